/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the objects of a payload, as torch.distributed.checkpoint flattens a state (_traverse.py, pytorch 2.13): each
 * item of a dict, and of a list that holds dicts or tensors, has a name of its own; all else is one object.  A tuple
 * that had a tensor is taken apart, too: the tensor is one of the state.
 */
#include "reshard/codec/format/torch_i.h"

#include <string.h>

#include "meta/base/limits.h"

struct listing {
	struct rs_torch_payload payload;
	struct sc_arena arena;
	struct sc_arena *to;
	struct {
		struct rs_object *at;
		size_t nr, room;
	} objects;
	uint64_t bytes;			/* of these */
	struct {			/* carried by the object that is written, in the order of its records */
		struct rs_torch_carried **at;
		size_t nr, room;
	} records;
	struct sc_err *err;
	int rc;				/* of rs_pickle_emit()'s callback, which has none */
};

static const struct rs_pickled_items *pairs_of(const struct rs_pickled *n)
{
	const bool is_object = n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW;

	if (n->kind == RS_PICKLED_DICT)
		return &n->items;
	if (!is_object || (!n->object->pairs.first && !rs_pickled_is(n->object->what, "collections", "OrderedDict") &&
			   !rs_pickled_is(n->object->what, "collections", "defaultdict")))
		return NULL;
	return &n->object->pairs;
}

/* Tells whether a node, or anything in it, is the place of a tensor. */
static int on_any(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	const struct rs_pickled_bytes *name;
	int64_t flags;

	(void)walk;
	*(bool *)arg |= rs_torch_ref(n, &name, &flags);
	return *(bool *)arg;
}

static int has_tensor(struct listing *l, struct rs_pickled *n, bool *ret)
{
	const struct rs_pickle part = {.root = n, .bytes = l->payload.pickle.bytes};

	*ret = false;
	return rs_pickle_walk(&part, on_any, ret, l->err);
}

/* Tells whether a list holds a dict, at whatever depth of lists. */
static bool holds_dict(const struct rs_pickled *n, int depth)
{
	const struct rs_pickled_cell *c = n->kind == RS_PICKLED_LIST && depth < SC_PICKLE_DEPTH_MAX ? n->items.first
												    : NULL;

	for (; c; c = c->next)
		if (pairs_of(c->node) || holds_dict(c->node, depth + 1))
			return true;
	return false;
}

/* Gives a storage the number of its record as key. */
static struct rs_pickled *number_storage(void *arg, struct rs_pickled *n)
{
	struct listing *l = arg;
	struct rs_torch_carried *c;

	if (l->rc < 0 || n->kind != RS_PICKLED_PERSIST || n->mark)
		return n;
	l->rc = rs_torch_carried_of(&l->payload, n, &c, l->err);
	if (l->rc == 0 && !c->record) {
		c->record = l->records.nr + 1;
		if (sc_vec_push(&l->records, c) < 0)
			l->rc = sc_nomem(l->err);
	}
	if (l->rc < 0)
		return n;
	n = rs_torch_number(&l->arena, n->id, c->record - 1);
	if (!n) {
		l->rc = sc_nomem(l->err);
		return rs_pickled_none(&l->arena);
	}
	n->mark = 1;
	return n;
}

/* Writes an object as torch.save() writes it. */
static int write(struct listing *l, struct rs_pickled *n, struct rs_object *ret)
{
	struct rs_zip_frame z = {0};
	struct rs_frame frame = {0};
	struct sc_buf pickle = {0};
	int rc = rs_pickle_emit(n, number_storage, l, &pickle, l->err);

	if (rc == 0)
		rc = l->rc;
	if (rc == 0)
		rs_torch_begin(&z, &pickle);
	for (size_t i = 0; i < l->records.nr; i++) {
		struct rs_torch_carried *c = l->records.at[i];

		if (rc == 0)
			rs_torch_record(&z, i, c->data, c->bytes);
		c->record = 0;
	}
	l->records.nr = 0;
	sc_buf_done(&pickle);
	if (rc < 0)
		rs_zip_frame_drop(&z);
	else
		rc = rs_zip_frame_end(&z, &frame, l->err);
	/* records of text are padded by text: it is one piece */
	ret->bytes = frame.bytes;
	ret->text = rc == 0 ? sc_arena_copy(l->to, frame.pieces->text, frame.bytes) : NULL;
	sc_arena_done(&frame.arena);
	sc_sys.release(frame.text);
	return rc < 0 ? rc : ret->text ? 0 : sc_nomem(l->err);
}

static int on_node(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct listing *l = arg;
	const struct rs_pickled_bytes *name;
	struct rs_object object = {0};
	bool tensor = false;
	size_t bytes = 0;
	int64_t flags;
	int rc;

	if (rs_pickle_is_inside(walk) || rs_torch_ref(n, &name, &flags) || rs_torch_ref_in(n))
		return 1;
	if (pairs_of(n) || holds_dict(n, 0) || !rs_pickle_slot(walk))
		return 0;
	rc = has_tensor(l, n, &tensor);
	if (rc < 0 || tensor)
		return rc;
	object.name = rs_pickle_path_in(walk, l->to, &bytes);
	if (object.name && strlen(object.name) != bytes)
		return 1; /* a key has a 0 byte */
	rc = object.name ? write(l, n, &object) : sc_nomem(l->err);
	l->bytes += object.bytes;
	if (rc == 0 && l->bytes > SC_OBJECTS_BYTES_MAX)
		rc = sc_fail(l->err, SC_E_LIMIT, "torch: the objects take more than %u bytes, one by one",
			     SC_OBJECTS_BYTES_MAX);
	if (rc == 0 && sc_vec_push(&l->objects, object) < 0)
		rc = sc_nomem(l->err);
	return rc < 0 ? rc : 1;
}

int rs_torch_objects(const char *payload, size_t bytes, struct sc_arena *arena, struct rs_object **ret, size_t *ret_nr,
		     struct sc_err *err)
{
	struct listing l = {.to = arena, .err = err};
	int rc = rs_torch_payload_read(payload, bytes, &l.arena, &l.payload, err);

	if (rc == 0) {
		rc = rs_pickle_walk(&l.payload.pickle, on_node, &l, err);
		rs_pickle_done(&l.payload.pickle);
	}
	*ret = rc == 0 ? sc_arena_array(arena, l.objects.nr + 1, sizeof(**ret)) : NULL;
	if (rc == 0 && !*ret)
		rc = sc_nomem(err);
	if (rc == 0 && l.objects.nr)
		memcpy(*ret, l.objects.at, l.objects.nr * sizeof(**ret));
	*ret_nr = l.objects.nr;
	sc_vec_done(&l.objects);
	sc_vec_done(&l.records);
	sc_arena_done(&l.arena);
	return rc;
}
