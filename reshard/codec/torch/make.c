/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reshard/codec/torch/pickle.h"

static struct rs_pickled *make(struct sc_arena *arena, enum rs_pickled_kind kind)
{
	struct rs_pickled *n = sc_arena_alloc(arena, sizeof(*n));

	if (n) {
		n->kind = kind;
		n->is_single = true;
	}
	return n;
}

struct rs_pickled *rs_pickled_none(struct sc_arena *arena)
{
	return make(arena, RS_PICKLED_NONE);
}

struct rs_pickled *rs_pickled_bool(struct sc_arena *arena, bool truth)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_BOOL);

	if (n)
		n->truth = truth;
	return n;
}

struct rs_pickled *rs_pickled_int(struct sc_arena *arena, int64_t number)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_INT);

	if (n)
		n->number = number;
	return n;
}

struct rs_pickled *rs_pickled_text(struct sc_arena *arena, const char *text, uint64_t bytes)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_TEXT);

	if (n)
		n->bytes = (struct rs_pickled_bytes){text, bytes};
	return n;
}

struct rs_pickled *rs_pickled_tuple(struct sc_arena *arena, uint64_t nr, struct rs_pickled *const *nodes)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_TUPLE);

	if (!n)
		return NULL;
	n->tuple.nr = nr;
	n->tuple.at = sc_arena_array(arena, nr ? nr : 1, sizeof(*nodes));
	for (uint64_t i = 0; n->tuple.at && i < nr; i++) {
		if (!nodes[i])
			return NULL;
		n->tuple.at[i] = nodes[i];
	}
	return n->tuple.at ? n : NULL;
}

struct rs_pickled *rs_pickled_dict(struct sc_arena *arena)
{
	return make(arena, RS_PICKLED_DICT);
}

struct rs_pickled *rs_pickled_global(struct sc_arena *arena, const char *module, const char *name)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_GLOBAL);

	if (n) {
		n->global.module = (struct rs_pickled_bytes){module, strlen(module)};
		n->global.name = (struct rs_pickled_bytes){name, strlen(name)};
	}
	return n;
}

struct rs_pickled *rs_pickled_call(struct sc_arena *arena, struct rs_pickled *what, struct rs_pickled *args)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_CALL);

	if (!n || !what || !args)
		return NULL;
	n->object = sc_arena_alloc(arena, sizeof(*n->object));
	if (!n->object)
		return NULL;
	n->object->what = what;
	n->object->args = args;
	return n;
}

struct rs_pickled *rs_pickled_new(struct sc_arena *arena, struct rs_pickled *what, struct rs_pickled *state)
{
	struct rs_pickled *n = rs_pickled_call(arena, what, rs_pickled_tuple(arena, 0, NULL));

	if (!n || !state)
		return NULL;
	n->kind = RS_PICKLED_NEW;
	n->object->state = state;
	return n;
}

struct rs_pickled *rs_pickled_list(struct sc_arena *arena)
{
	return make(arena, RS_PICKLED_LIST);
}

struct rs_pickled *rs_pickled_persist(struct sc_arena *arena, struct rs_pickled *id)
{
	struct rs_pickled *n = make(arena, RS_PICKLED_PERSIST);

	if (!n || !id)
		return NULL;
	n->id = id;
	return n;
}

void rs_pickled_link(struct rs_pickled_items *items, struct rs_pickled_cell *cell, struct rs_pickled *node)
{
	cell->node = node;
	if (items->last)
		items->last->next = cell;
	else
		items->first = cell;
	items->last = cell;
	items->nr++;
}

bool rs_pickled_add(struct sc_arena *arena, struct rs_pickled_items *items, struct rs_pickled *node)
{
	struct rs_pickled_cell *cell = node ? sc_arena_alloc(arena, sizeof(*cell)) : NULL;

	if (cell)
		rs_pickled_link(items, cell, node);
	return cell;
}
