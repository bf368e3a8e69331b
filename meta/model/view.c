/* SPDX-License-Identifier: Apache-2.0 */
/* Answers for a view which tensors a rank stores, and which ranks hold a region.  present.c makes views. */
#include "meta/model/count.h"
#include "meta/model/view.h"

#include <assert.h>
#include <string.h>

struct meta_view *meta_view_free(struct meta_view *view)
{
	if (view) {
		sc_arena_done(&view->arena);
		sc_sys.release(view);
	}
	return NULL;
}

int meta_view_part(const struct meta_view *view, const char *file, struct meta_state *ret, struct sc_err *err)
{
	ret->layers = view->layers;
	for (uint32_t t = 0; t < view->state->nr; t++) {
		const struct meta_tensor *x = &view->state->tensors[t];

		if (strcmp(x->file, file) != 0)
			continue;
		if (meta_state_add(ret, x->key, strlen(x->key), x->dtype, &x->shape) < 0)
			return sc_nomem(err);
		for (uint32_t i = view->first[t]; i < view->first[t + 1]; i++) {
			const struct meta_entry *e = &view->entries[i];

			if (!e->experts || !meta_rule_spreads(e->rule))
				continue;
			if (ret->experts && ret->experts != e->experts)
				return sc_fail(err, SC_E_UNSUPPORTED, "'%s' holds experts of a family of %u and of "
					"one of %u, and "
					       "both families lie in several files; all families of a file must be "
					       "equally "
					       "large", file, ret->experts, e->experts);
			ret->experts = e->experts;
		}
	}
	return 0;
}

static bool same_place(const struct meta_entry *a, const struct meta_entry *b)
{
	return a->rule->index == b->rule->index && memcmp(a->fixed, b->fixed, META_FIXED_BYTES) == 0 &&
	       strcmp(a->file, b->file) == 0 && strcmp(a->name, b->name) == 0;
}

bool meta_view_agrees(const struct meta_view *part, const struct meta_view *whole)
{
	if (part->layout != whole->layout || strcmp(part->topo->text, whole->topo->text) != 0)
		return false;
	for (uint32_t t = 0; t < part->state->nr; t++) {
		const struct meta_tensor *x = meta_state_find(whole->state, part->state->tensors[t].key);
		uint32_t nr = part->first[t + 1] - part->first[t], w = x ? (uint32_t)(x - whole->state->tensors) : 0;

		if (!x || whole->first[w + 1] - whole->first[w] != nr)
			return false;
		for (uint32_t i = 0; i < nr; i++)
			if (!same_place(&part->entries[part->first[t] + i], &whole->entries[whole->first[w] + i]))
				return false;
	}
	return true;
}

bool meta_entry_is_on(const struct meta_view *view, const struct meta_entry *e,
		      const uint32_t coords[SC_AXES_MAX])
{
	for (int i = 0; i < view->topo->nr_axes; i++)
		if (e->fixed[i] != META_FREE && e->fixed[i] != coords[i])
			return false;
	return true;
}

/* Finds where an entry of a group lies on a rank; NULL: the rank has none of it. */
static const struct meta_place *place_of(const struct meta_view *view, const struct meta_entry *e,
					  const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_group *g = e->group;
	const struct meta_variant *v = &g->variants[meta_topology_index(view->topo, g->vary, coords)];
	const size_t at = sc_first(v->nr, i, v->at[i].member >= e->member);

	return at < v->nr && v->at[at].member == e->member ? &v->at[at] : NULL;
}

int meta_entry_stored(const struct meta_view *view, const struct meta_entry *e,
		      const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena,
		      const char **ret_file, const char **ret_name)
{
	struct meta_caps caps;
	struct sc_buf file = {0}, name = {0};
	const bool joined = e->group && e->group->rule->join;

	*ret_file = e->file;
	*ret_name = e->name;
	if (joined && meta_pattern_has(&e->group->rule->name, META_CAP_B)) {
		const struct meta_place *place = place_of(view, e, coords);

		caps = e->group->caps;
		meta_caps_set_number(&caps, META_CAP_B, -1, place ? place->bucket : 0);
		meta_pattern_render(&e->group->rule->name, &caps, &name);
		*ret_name = name.failed ? NULL : sc_arena_copy(arena, name.text, name.bytes);
		sc_buf_done(&name);
	}
	if (!e->varies)
		return *ret_name ? 0 : -1;
	caps = *e->varies;
	for (uint16_t i = 0; i < caps.nr; i++)
		if (caps.at[i].axis >= 0)
			caps.at[i].number = coords[caps.at[i].axis];
	meta_pattern_render(&e->rule->file, &caps, &file);
	if (!joined) /* a joined tensor's name has no coordinates */
		meta_pattern_render(&e->rule->name, &caps, &name);
	*ret_file = file.failed ? NULL : sc_arena_copy(arena, file.text ? file.text : "", file.bytes);
	if (!joined)
		*ret_name = name.failed ? NULL : sc_arena_copy(arena, name.text ? name.text : "", name.bytes);
	sc_buf_done(&file);
	sc_buf_done(&name);
	return *ret_file && *ret_name ? 0 : -1;
}

struct lying {
	const struct meta_view *view;
	const struct meta_entry *entry;
};

static const struct meta_lie *lie(void *arg, const uint32_t coords[SC_AXES_MAX])
{
	const struct lying *l = arg;
	const struct meta_place *place;
	uint32_t full[SC_AXES_MAX];

	for (int i = 0; i < SC_AXES_MAX; i++)
		full[i] = l->entry->fixed[i] != META_FREE ? l->entry->fixed[i] : coords[i];
	place = place_of(l->view, l->entry, full);

	return place ? &place->lie : NULL;
}

static struct meta_cutting cutting(const struct meta_entry *e, struct lying *arg)
{
	struct meta_cutting c = {.cuts = e->rule->cuts, .nr_cuts = e->rule->nr_cuts, .lie = lie, .arg = arg};
	const struct meta_join *j = e->group ? e->group->rule->join : NULL;

	if (!e->group)
		return c;
	c.how = !j ? META_STACKED : j->is_over ? META_JOINED_OVER : META_JOINED;
	if (j) {
		c.dim = j->dim;
		c.strip = j->strip;
		c.more = e->group->rule->cuts;
		c.nr_more = e->group->rule->nr_cuts;
	}
	return c;
}

/* Makes the piece of the rows of padding that no rank shows: one box. */
static int hidden_piece(const struct meta_entry *e, const struct meta_shape *shape, struct sc_arena *arena,
			struct meta_piece *ret, struct sc_err *err)
{
	uint64_t stride = 1;

	*ret = (struct meta_piece){.shape = *shape, .nr_boxes = 1, .boxes = sc_arena_alloc(arena, sizeof(*ret->boxes))};
	if (!ret->boxes)
		return sc_nomem(err);
	ret->shape.dim[e->dim] = e->rows;
	*ret->boxes = (struct meta_box){.nr = shape->nr};
	ret->boxes->off[e->dim] = e->row;
	for (int k = shape->nr - 1; k >= 0; k--) {
		ret->boxes->ext[k] = ret->shape.dim[k];
		ret->boxes->stride[k] = stride;
		stride *= ret->shape.dim[k];
	}
	if (!stride)
		ret->nr_boxes = 0;
	return 0;
}

/* Makes the piece of an entry; with `once`, without boxes that repeat a row of padding. */
static int piece_of(const struct meta_view *view, const struct meta_entry *e, bool once,
		    const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena, struct meta_piece *ret,
		    struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[e->tensor];
	const struct meta_padding padding = {t->shape.dim[e->dim], e->dim, once};
	struct lying arg = {view, e};
	struct meta_cutting c = cutting(e, &arg);

	if (e->hidden)
		return hidden_piece(e, &t->shape, arena, ret, err);
	if (e->behind)
		c.padding = &padding;
	return meta_slice(arena, view->topo, &c, e->behind ? &e->behind->shape : &t->shape, coords, t->key, ret, err);
}

int meta_entry_piece(const struct meta_view *view, const struct meta_entry *e,
		     const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena,
		     struct meta_piece *ret, struct sc_err *err)
{
	return piece_of(view, e, false, coords, arena, ret, err);
}

const struct meta_entry *meta_view_next(const struct meta_view *view, uint32_t stage, uint32_t *at)
{
	uint32_t first = view->stage_first[stage], end = view->stage_first[stage + 1];
	uint32_t rest = view->stage_first[view->topo->pp];
	uint32_t i = *at;

	if (i < end - first) {
		(*at)++;
		return &view->entries[view->by_stage[first + i]];
	}
	i -= end - first;
	if (i >= view->stage_first[view->topo->pp + 1] - rest)
		return NULL;
	(*at)++;
	return &view->entries[view->by_stage[rest + i]];
}

static uint32_t stage_of(const struct meta_view *view, const uint32_t coords[SC_AXES_MAX])
{
	return view->layout->pp >= 0 ? coords[view->layout->pp] : 0;
}

#define PIECES 64

/* Tensors of one rule and one shape are cut alike: their pieces on a rank, by hash, which share the boxes. */
struct pieces {
	struct piece_of {
		const struct meta_rule *rule;	/* NULL: none yet */
		const struct meta_shape *shape;
		struct meta_piece piece;
	} at[PIECES];
};

static struct piece_of *like_piece(struct pieces *pieces, const struct meta_rule *rule, const struct meta_shape *shape)
{
	uint64_t h = rule->index;

	for (int k = 0; k < shape->nr; k++)
		h = (h ^ shape->dim[k]) * 0x9e3779b97f4a7c15u;
	return &pieces->at[(h ^ h >> 32) % PIECES];
}

static int add_stored(const struct meta_view *view, const uint32_t coords[SC_AXES_MAX], struct meta_stored s,
		      struct pieces *pieces, struct sc_arena *arena, struct meta_stored_list *ret, struct sc_err *err)
{
	const struct meta_shape *shape = &view->state->tensors[s.entry->tensor].shape;
	const bool alone = s.entry->group || s.entry->behind;
	struct piece_of *like = alone ? NULL : like_piece(pieces, s.entry->rule, shape);
	int rc = 0;

	if (like && like->rule == s.entry->rule && meta_shape_equal(like->shape, shape))
		s.piece = like->piece;
	else
		rc = meta_entry_piece(view, s.entry, coords, arena, &s.piece, err);
	if (rc == 0 && like)
		*like = (struct piece_of){s.entry->rule, shape, s.piece};
	if (rc == 0 && sc_vec_push(ret, s) < 0)
		rc = sc_nomem(err);
	if (rc < 0 || !s.entry->padding)
		return rc;
	s.entry = s.entry->padding;
	s.part++; /* behind it, also where it is a member of a joined tensor */
	rc = meta_entry_piece(view, s.entry, coords, arena, &s.piece, err);
	return rc < 0 ? rc : sc_vec_push(ret, s) < 0 ? sc_nomem(err) : 0;
}

/* All parts of a stored tensor, once: where its first one is met. */
static int add_parts(const struct meta_view *view, const uint32_t coords[SC_AXES_MAX], struct meta_stored s,
		     struct pieces *pieces, struct sc_arena *arena, struct meta_stored_list *ret, struct sc_err *err)
{
	const struct meta_group *g = s.entry->group;
	const struct meta_variant *v = &g->variants[meta_topology_index(view->topo, g->vary, coords)];
	const struct meta_place *first = place_of(view, s.entry, coords);
	const size_t begun = ret->nr;
	int rc = 0;

	if (!first || (first > v->at && first[-1].bucket == first->bucket))
		return 0;
	for (const struct meta_place *p = first; rc == 0 && p < v->at + v->nr && p->bucket == first->bucket; p++) {
		s.entry = &view->entries[g->members[p->member]];
		s.part = (uint32_t)(ret->nr - begun);
		rc = add_stored(view, coords, s, pieces, arena, ret, err);
	}
	return rc;
}

int meta_view_rank(const struct meta_view *view, uint32_t rank, const char *file,
		   struct sc_arena *arena, struct meta_stored_list *ret, struct sc_err *err)
{
	uint32_t coords[SC_AXES_MAX], at = 0;
	struct pieces pieces = {0};
	const struct meta_entry *e;

	meta_topology_coords(view->topo, rank, coords);
	while ((e = meta_view_next(view, stage_of(view, coords), &at))) {
		struct meta_stored s = {.entry = e};
		int rc;

		if (!meta_entry_is_on(view, e, coords))
			continue;
		if (meta_entry_stored(view, e, coords, arena, &s.file, &s.name) < 0)
			return sc_nomem(err);
		if (file && strcmp(s.file, file) != 0)
			continue;
		rc = e->group ? add_parts(view, coords, s, &pieces, arena, ret, err)
			      : add_stored(view, coords, s, &pieces, arena, ret, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int meta_view_files(const struct meta_view *view, uint32_t rank,
		    int (*each)(void *arg, const char *file, const char *logical_file), void *arg)
{
	uint32_t coords[SC_AXES_MAX], at = 0;
	const char *last = "";
	const struct meta_entry *e;
	struct sc_arena arena = {0};
	struct sc_map seen = {0};
	int rc = 0;

	meta_topology_coords(view->topo, rank, coords);
	while (rc == 0 && (e = meta_view_next(view, stage_of(view, coords), &at))) {
		const char *file, *name;

		if (!meta_entry_is_on(view, e, coords))
			continue;
		if (meta_entry_stored(view, e, coords, &arena, &file, &name) < 0) {
			rc = SC_E_NO_MEMORY;
			break;
		}
		if (strcmp(file, last) == 0 || sc_map_get(&seen, file, strlen(file)))
			continue;
		last = file;
		if (sc_map_put(&seen, file, strlen(file), &seen) < 0)
			rc = SC_E_NO_MEMORY;
		else
			rc = each(arg, file, view->state->tensors[e->tensor].file);
	}
	sc_map_done(&seen);
	sc_arena_done(&arena);
	return rc;
}

struct source_walk {
	const struct meta_view *view;
	const struct meta_entry *e;
	const uint64_t *off, *ext;
	meta_source_fn *each;
	void *arg;
	struct sc_err *err;
};

static int on_holder(void *arg, const uint32_t coords[SC_AXES_MAX])
{
	struct source_walk *w = arg;
	char scratch[1024] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	uint32_t full[SC_AXES_MAX];
	struct meta_piece piece;
	int rc;

	for (int i = 0; i < SC_AXES_MAX; i++)
		full[i] = w->e->fixed[i] != META_FREE ? w->e->fixed[i] : coords[i];
	rc = piece_of(w->view, w->e, true, full, &arena, &piece, w->err);
	for (uint32_t i = 0; rc == 0 && i < piece.nr_boxes; i++) {
		struct meta_box met;

		if (!piece.boxes[i].copy && meta_box_meet(&piece.boxes[i], w->off, w->ext, &met))
			rc = w->each(w->arg, w->e, full, &met);
	}
	sc_arena_done(&arena);
	return rc;
}

int meta_view_sources(const struct meta_view *view, const struct meta_entry *e,
		      const uint64_t *off, const uint64_t *ext, meta_source_fn *each, void *arg,
		      struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[e->tensor];
	struct source_walk w = {.view = view, .e = e, .off = off, .ext = ext, .each = each, .arg = arg,
				.err = err};
	const struct meta_padding padding = {t->shape.dim[e->dim], e->dim, true};
	const uint32_t none[SC_AXES_MAX] = {0};
	struct lying arg_of_lie = {view, e};
	struct meta_cutting c = cutting(e, &arg_of_lie);
	int rc = 0;

	if (!e->behind)
		return meta_holders(view->topo, &c, &t->shape, off, ext, t->key, on_holder, &w, err);
	c.padding = &padding;
	if (e->rows)
		rc = meta_holders(view->topo, &c, &e->behind->shape, off, ext, t->key, on_holder, &w, err);
	w.e = &e[1]; /* the hidden rows */
	return rc == 0 && w.e->rows ? on_holder(&w, none) : rc;
}

bool meta_entry_is_read(const struct meta_view *view, const struct meta_entry *e)
{
	return e == &view->entries[view->first[e->tensor]] || e->hidden;
}

bool meta_file_is_hidden(const char *file)
{
	const size_t n = strlen(file), m = sizeof(META_HIDDEN) - 1;

	return n >= m && strcmp(file + n - m, META_HIDDEN) == 0;
}

uint32_t meta_entry_cut_axes(const struct meta_entry *e)
{
	if (e->hidden)
		return 0;
	return e->rule->cut_axes | (e->group ? e->group->cut_axes : 0);
}

static uint32_t own_axes(const struct meta_view *view, const struct meta_entry *e)
{
	uint32_t axes = meta_entry_cut_axes(e);

	for (int i = 0; i < view->topo->nr_axes; i++)
		if (e->fixed[i] != META_FREE)
			axes |= 1u << i;
	return axes;
}

uint32_t meta_entry_axes(const struct meta_view *view, const struct meta_entry *e)
{
	return own_axes(view, e) | (e->group ? e->group->axes : 0);
}

bool meta_entry_is_first(const struct meta_view *view, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX])
{
	uint32_t others = meta_layout_mesh_axes(view->layout, meta_entry_axes(view, e)) & ~own_axes(view, e);

	return meta_topology_index(view->topo, others, coords) == 0;
}

uint32_t meta_entry_replica_axes(const struct meta_view *view, const struct meta_entry *e)
{
	uint32_t used = meta_entry_axes(view, e), mesh = meta_layout_mesh_axes(view->layout, used);

	assert(mesh); /* a rule's axes are in one mesh */
	return mesh & ~used;
}
