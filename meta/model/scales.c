/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks tensors that tell how another tensor is read (`of=`): its scales by rows, columns or blocks, zero points,
 * packed words.  A rank must have those of its part, and whole ones: an axis that cuts the other tensor cuts this one
 * in the same dimension, where one is a power of two longer than the other; or this one has nothing along that
 * dimension.  Blocks have a power of two of elements, so that is not so where the last block is not full, of which
 * two ranks might have a part.
 */
#include "meta/model/infer_i.h"
#include "meta/model/present_i.h"

#include <string.h>

static char *name_of(const struct meta_rule *rule, const char *name, struct sc_arena *arena)
{
	const char *dot = strrchr(name, '.');

	return sc_arena_printf(arena, "%.*s%s", dot ? (int)(dot + 1 - name) : 0, name, rule->of);
}

/* Makes a map of all tensors by name, when it is asked for the first time. */
static int map_names(struct sc_map *names, const struct meta_state *state)
{
	for (uint32_t i = 0, had = (uint32_t)names->nr; !had && i < state->nr; i++) {
		const struct meta_tensor *t = &state->tensors[i];

		if (sc_map_put(names, t->name, strlen(t->name), (void *)t) < 0)
			return -1;
	}
	return 0;
}

int meta_view_told(const struct meta_view *v, const struct meta_entry *e, struct sc_map *names, struct sc_arena *arena,
		   const struct meta_entry **ret)
{
	const struct meta_tensor *t = &v->state->tensors[e->tensor], *other;
	const char *name = name_of(e->rule, t->name, arena);
	const char *key = name ? sc_arena_join(arena, t->file, ':', name) : NULL;

	*ret = NULL;
	if (!key)
		return -1;
	other = meta_state_find(v->state, key);
	if (!other && map_names(names, v->state) < 0)
		return -1;
	if (!other)
		other = sc_map_get(names, name, strlen(name));
	if (other)
		*ret = &v->entries[v->first[other - v->state->tensors]];
	return 0;
}

/* Finds the cut of an entry by these axes that makes parts to compute with: FSDP's are put together before. */
static const struct meta_cut *cut_by(const struct builder *b, const struct meta_entry *e, uint32_t axes)
{
	for (int i = 0; i < e->rule->nr_cuts && !e->rule->cuts[i].flat; i++) {
		const struct meta_cut *cut = &e->rule->cuts[i];

		if (cut->axes == axes && !cut->chunk && meta_topology_degree(b->v->topo, axes) > 1)
			return cut;
	}
	return NULL;
}

static bool is_power_of_two_of(uint64_t a, uint64_t b)
{
	return b && a % b == 0 && (a / b & (a / b - 1)) == 0;
}

/* Tells whether two cuts by the same axes leave whole blocks to each rank. */
static bool agree(const struct builder *b, const struct meta_cut *mine, const struct meta_shape *my,
		  const struct meta_cut *other, const struct meta_shape *its)
{
	const uint64_t d = meta_topology_degree(b->v->topo, mine->axes);
	const int k = meta_cut_dim(mine, my);

	if (k != meta_cut_dim(other, its) || mine->nr_sections != other->nr_sections || mine->pad || other->pad)
		return false;
	for (uint32_t s = 0; s < mine->nr_sections; s++)
		if (meta_cut_parts(mine, s, d) != meta_cut_parts(other, s, d) ||
		    mine->sections[s] * other->section_sum != other->sections[s] * mine->section_sum)
			return false;
	return is_power_of_two_of(its->dim[k], my->dim[k]) || is_power_of_two_of(my->dim[k], its->dim[k]);
}

static int check(struct builder *b, const struct meta_entry *e, const struct meta_entry *other)
{
	const struct meta_tensor *t = &b->v->state->tensors[e->tensor], *of = &b->v->state->tensors[other->tensor];
	const struct meta_entry *both[] = {other, e};
	char mine[128], its[128];

	for (int i = 0; i < 2 * SC_CUTS_MAX; i++) {
		const struct meta_rule *r = both[i / SC_CUTS_MAX]->rule;
		const struct meta_cut *cut = i % SC_CUTS_MAX < r->nr_cuts ? &r->cuts[i % SC_CUTS_MAX] : NULL;
		const struct meta_cut *a = cut ? cut_by(b, other, cut->axes) : NULL;
		const struct meta_cut *c = cut ? cut_by(b, e, cut->axes) : NULL;
		const int k = a ? meta_cut_dim(a, &of->shape) : 0;
		const char *why = "cuts it otherwise, or inside of a block (blocks have a power of two of elements)";

		if ((!a && !c) || (a && c && agree(b, c, &t->shape, a, &of->shape)) ||
		    (!c && (k >= t->shape.nr || t->shape.dim[k] == 1)))
			continue;
		if (!c)
			why = "leaves all of it to each rank";
		return sc_fail(b->err, SC_E_STATE, "'%s' is %s and tells how '%s' %s is read, of which %s=%u gives "
			       "each rank a part, but the layout %s: choose a topology whose parts are whole "
			       "blocks, or write a rule for it", t->key,
			       meta_shape_text(&t->shape, mine, sizeof(mine)), of->key,
			       meta_shape_text(&of->shape, its, sizeof(its)), cut->axes_text,
			       meta_topology_degree(b->v->topo, cut->axes), why);
	}
	return 0;
}

int meta_check_scales(struct builder *b)
{
	struct sc_map names = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < b->v->nr_entries; i++) {
		const struct meta_entry *e = &b->v->entries[i], *other = NULL;

		if (!e->rule->of || e->behind)
			continue;
		rc = meta_view_told(b->v, e, &names, &b->arena, &other) < 0 ? sc_nomem(b->err) : 0;
		if (rc == 0 && other)
			rc = check(b, e, other);
	}
	sc_map_done(&names);
	return rc;
}

int meta_infer_scales(struct infer *n)
{
	struct sc_map names = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n->order.nr; i++) {
		const struct meta_rule *r = n->rows[n->order.at[i]->rows[0]].name->rule;
		const struct meta_tensor *t = r->of ? meta_state_find(n->state, n->order.at[i]->key) : NULL;
		const char *name = t ? name_of(r, t->name, &n->arena) : NULL;

		if (t && (!name || map_names(&names, n->state) < 0))
			rc = sc_nomem(n->err);
		else if (t && !sc_map_get(&names, name, strlen(name)))
			rc = sc_fail(n->err, SC_E_STATE, "'%s' tells how '%s' is read, which is in no file: nothing "
				     "says in which parts it may be cut; save both", t->key, name);
	}
	sc_map_done(&names);
	return rc;
}
