/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds tensors that are stored as one.  The entries of a view are made as if each tensor was stored on its own; then
 * those whose stored names a join's globs match become members of a group, in the order that the join says, and so do
 * the layers of a stack.  Where a member lies depends on the members before it that the rank has, so there is a
 * variant of the group for each index of the axes that decide this: those that place members on ranks, and those that
 * cut them unevenly.
 */
#include "meta/model/count.h"
#include "meta/model/view.h"

#include <stdlib.h>
#include <string.h>

struct member {
	uint32_t entry;
	/* what orders them, first things first */
	uint32_t glob, chunk, run, layer, rule, expert;
	const char *name;
};

struct making {			/* a group, while its members are found */
	struct meta_group *group;
	size_t nr, room;
	struct member *at;
	uint32_t globs;		/* bit set of those of the join that have matched */
	struct making *next;
};

struct joining {
	struct meta_view *view;
	struct sc_arena arena;
	struct sc_map by_name;	/* -> struct making */
	struct sc_map by_rule;	/* and joined name, in whatever file: the first struct making */
	struct making *first, **last;
	uint64_t places;
	struct sc_err *err;
};

/* --- members --- */

static uint32_t number_of(const struct meta_cap *c)
{
	return c && c->is_number && !c->is_empty ? c->number : 0;
}

/* Rules of layers that follow each other in the layout are one run, which is walked layer by layer.  Returns the index
 * of the first rule of the run that a rule is in. */
static uint32_t run_of(const struct meta_layout *l, const struct meta_rule *rule)
{
	uint32_t i = rule->index;

	while (rule->has_layer && i && l->rules[i - 1].has_layer && !l->rules[i - 1].join)
		i--;
	return i;
}

static int compare_u32(uint32_t a, uint32_t b)
{
	return (a > b) - (a < b);
}

static int by_order(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	const uint32_t p[] = {x->glob, x->chunk, x->run, x->layer, x->rule, x->expert};
	const uint32_t q[] = {y->glob, y->chunk, y->run, y->layer, y->rule, y->expert};

	for (size_t i = 0; i < sizeof(p) / sizeof(*p); i++)
		if (p[i] != q[i])
			return compare_u32(p[i], q[i]);
	return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct member *)a)->name, ((const struct member *)b)->name);
}

/* Matches a stored name with the globs of a join, and gives the captures, of which the joined name is made. */
static bool match_glob(const struct meta_rule *r, const struct meta_entry *e, struct meta_caps *caps,
		       uint32_t *ret_glob)
{
	caps->nr = 0;
	if (!meta_pattern_match(&r->file, e->file, strlen(e->file), caps))
		return false;
	for (uint8_t i = 0; i < r->join->nr; i++) {
		*ret_glob = i;
		if (meta_pattern_match(&r->join->globs[i].pattern, e->name, strlen(e->name), caps))
			return !r->join->globs[i].is_out;
	}
	return false;
}

/* Finds the rule of the join to which an entry belongs, and the captures of the joined name; NULL: it belongs to
 * none. */
static const struct meta_rule *join_of(const struct meta_layout *l, const struct meta_entry *e, struct meta_caps *caps,
				       uint32_t *ret_glob)
{
	for (uint32_t i = 0; i < l->nr_rules; i++)
		if (l->rules[i].join && match_glob(&l->rules[i], e, caps, ret_glob))
			return &l->rules[i];
	return NULL;
}

static const char *joined_name(struct joining *n, const struct meta_rule *r, struct meta_caps *caps)
{
	struct sc_buf buf = {0};
	const char *name;

	if (meta_pattern_has(&r->name, META_CAP_B))
		meta_caps_set_number(caps, META_CAP_B, -1, 0);
	meta_pattern_render(&r->name, caps, &buf);
	name = buf.failed ? NULL : sc_arena_copy(&n->view->arena, buf.text ? buf.text : "", buf.bytes);
	sc_buf_done(&buf);
	return name;
}

static struct making *make_group(struct joining *n, const struct meta_rule *r, const char *file, const char *name,
				 const struct meta_caps *caps)
{
	const char *key = sc_arena_printf(&n->arena, "%u|%s:%s", r->index, file, name);
	struct making *m = key ? sc_map_get(&n->by_name, key, strlen(key)) : NULL;

	if (m || !key)
		return m;
	m = sc_map_make(&n->by_name, key, strlen(key), &n->arena, sizeof(*m));
	if (!m)
		return NULL;
	m->group = sc_arena_alloc(&n->view->arena, sizeof(*m->group));
	if (!m->group)
		return NULL;
	m->group->rule = r;
	m->group->what = name;
	m->group->caps = *caps;
	m->group->cut_axes = r->join ? r->cut_axes : 0;
	m->group->axes = m->group->cut_axes;
	*n->last = m;
	n->last = &m->next;
	return m;
}

/* Gives the axes of uneven cuts: a rank's index on them decides how long its piece is. */
static uint32_t uneven_axes(const struct meta_rule *r)
{
	uint32_t axes = 0;

	for (int i = 0; i < r->nr_cuts; i++)
		if (r->cuts[i].chunk)
			axes |= r->cuts[i].axes;
	return axes;
}

static int add_member(struct joining *n, uint32_t i)
{
	struct meta_entry *e = &n->view->entries[i];
	struct member me = {.entry = i, .rule = e->rule->index, .run = run_of(n->view->layout, e->rule)};
	struct meta_caps caps = {0}, own = {0};
	const struct meta_rule *other;
	const struct meta_rule *r = e->rule->is_stack ? e->rule : join_of(n->view->layout, e, &caps, &me.glob);
	struct making *m;
	uint32_t globs;

	if (!r || e->behind)
		return 0;
	me.name = e->rule->is_stack ? n->view->state->tensors[e->tensor].name : e->name;
	(void)meta_rule_match(e->rule, e->rule->is_stack,
			      e->rule->is_stack ? n->view->state->tensors[e->tensor].file : e->file, me.name, &own);
	me.chunk = number_of(meta_caps_find(&own, META_CAP_V));
	me.layer = number_of(meta_layer_of(&own));
	me.expert = number_of(meta_expert_of(&own));
	globs = r->join ? 1u << me.glob : 0;
	if (!r->join || r->join->order != META_ORDER_LISTED)
		me.glob = 0;
	if (r->join) {
		e->name = joined_name(n, r, &caps);
		if (!e->name)
			return sc_nomem(n->err);
		other = meta_layout_first(n->view->layout, n->view->topo->pp > 1, e->file, e->name, &own);
		if (other != r)
			return sc_fail(n->err, SC_E_STATE, "'%s' would be joined to '%s', but the first rule of that "
				       "name is '%s'", me.name, e->name, other ? other->text : "");
	}
	m = make_group(n, r, e->file, e->name, &caps);
	if (!m || sc_vec_push(m, me) < 0)
		return sc_nomem(n->err);
	m->globs |= globs;
	e->group = m->group;
	m->group->vary |= uneven_axes(e->rule);
	m->group->axes |= e->rule->cut_axes;
	for (int k = 0; k < n->view->topo->nr_axes; k++)
		if (e->fixed[k] != META_FREE)
			m->group->vary |= 1u << k;
	return 0;
}

/* --- where they lie --- */

struct lying {			/* a variant that is made */
	struct joining *n;
	struct meta_group *g;
	uint32_t coords[SC_AXES_MAX];
	struct meta_variant *to;
	struct meta_shape first;	/* of the first member in the bucket */
	enum meta_dtype dtype;
	uint64_t at;
	uint32_t bucket, begun;		/* begun: the place at which the bucket begins */
};

#define REFUSE(l, code, ...) sc_fail((l)->n->err, code, __VA_ARGS__)

static void close_bucket(struct lying *l)
{
	for (uint32_t i = l->begun; i < l->to->nr; i++)
		l->to->at[i].lie.total = l->at;
	l->bucket += l->begun < l->to->nr;
	l->begun = l->to->nr;
	l->at = 0;
}

/* Checks that members are alike: those that are joined over a dimension in all others, layers in all. */
static int check_alike(struct lying *l, const struct meta_tensor *t, const struct meta_shape *shape, int except)
{
	bool same = shape->nr == l->first.nr;
	char a[200], b[200];

	for (int k = 0; same && k < shape->nr; k++)
		same = k == except || shape->dim[k] == l->first.dim[k];
	return same ? 0
		    : REFUSE(l, SC_E_STATE, "'%s' joins pieces of different shapes: '%s' is %s, and another one is %s",
			     l->g->what, t->key, meta_shape_text(shape, a, sizeof(a)),
			     meta_shape_text(&l->first, b, sizeof(b)));
}

static int measure(struct lying *l, const struct meta_tensor *t, const struct meta_shape *shape, uint64_t *ret)
{
	const struct meta_join *j = l->g->rule->join;
	int dim = j && j->is_over ? (j->dim < 0 ? j->dim + shape->nr : j->dim) : -1;

	if (!l->to->nr) {
		l->first = *shape;
		l->dtype = t->dtype;
	}
	if (t->dtype != l->dtype || meta_dtype_bits(t->dtype) % 8)
		return REFUSE(l, SC_E_UNSUPPORTED, "'%s' joins tensors of types %s and %s ('%s'); they must be of one "
			      "type of whole bytes", l->g->what, meta_dtype_name(l->dtype),
			      meta_dtype_name(t->dtype), t->key);
	*ret = 1;
	if (!j)
		return check_alike(l, t, shape, -1);
	if (!j->is_over)
		return meta_shape_elements(shape, ret) ? 0 : REFUSE(l, SC_E_LIMIT, "'%s': too many elements", t->key);
	if (dim < 0 || dim >= shape->nr)
		return REFUSE(l, SC_E_STATE, "'%s' is joined over dimension %d, but '%s' has %d dimensions", l->g->what,
			      j->dim, t->key, shape->nr);
	*ret = shape->dim[dim];
	return check_alike(l, t, shape, dim);
}

static int place(struct lying *l, uint32_t member, const struct meta_entry *e, const char *stored)
{
	const struct meta_join *j = l->g->rule->join;
	const struct meta_tensor *t = &l->n->view->state->tensors[e->tensor];
	const struct meta_cutting alone = {.cuts = e->rule->cuts, .nr_cuts = e->rule->nr_cuts};
	char scratch[1024] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	struct meta_caps caps = {0};
	struct meta_piece piece;
	uint64_t n = 0, gap = 0;
	bool by_itself;
	int rc = meta_slice(&arena, l->n->view->topo, &alone, &t->shape, l->coords, t->key, &piece, l->n->err);

	if (rc == 0)
		rc = measure(l, t, &piece.shape, &n);
	sc_arena_done(&arena);
	if (rc < 0)
		return rc;
	by_itself = j && j->has_alone && meta_pattern_match(&j->alone, stored, strlen(stored), &caps);
	if (by_itself && l->begun < l->to->nr)
		close_bucket(l);
	if (j && j->align && l->at % j->align)
		gap = j->align - l->at % j->align;
	if (++l->n->places > SC_JOIN_PLACES_MAX)
		return REFUSE(l, SC_E_LIMIT, "'%s': the joins of this topology have more than %u members on all ranks",
			      l->g->what, SC_JOIN_PLACES_MAX);
	if (!sc_add_u64(l->at, gap, &l->at) || n > INT64_MAX || l->at > INT64_MAX - n)
		return REFUSE(l, SC_E_LIMIT, "'%s': too many elements", l->g->what);
	l->to->at[l->to->nr++] = (struct meta_place){member, l->bucket, {l->at, 0}};
	l->at += n;
	if (by_itself || (j && j->bucket && l->at >= j->bucket))
		close_bucket(l);
	return 0;
}

/* Cuts one member of each bucket at these coordinates, to see whether the joined tensor can be cut at all. */
static int check_cuts(struct lying *l)
{
	const struct meta_view *v = l->n->view;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < l->to->nr; i++) {
		const struct meta_entry *e = &v->entries[l->g->members[l->to->at[i].member]];
		char scratch[1024] SC_SCRATCH;
		struct sc_arena arena = SC_ARENA_IN(scratch);
		struct meta_piece piece;

		if (i && l->to->at[i - 1].bucket == l->to->at[i].bucket)
			continue;
		rc = meta_entry_piece(v, e, l->coords, &arena, &piece, l->n->err);
		sc_arena_done(&arena);
		if (rc < 0)
			rc = sc_wrap(l->n->err, rc, "'%s'", l->g->what);
	}
	return rc;
}

static int make_variant(struct joining *n, const struct making *m, uint32_t index, struct meta_variant *to)
{
	struct lying l = {.n = n, .g = m->group, .to = to};
	uint32_t nr = 0;
	int rc = 0;

	meta_topology_split(n->view->topo, m->group->vary, index, l.coords);
	for (uint32_t i = 0; i < m->nr; i++)
		nr += meta_entry_is_on(n->view, &n->view->entries[m->at[i].entry], l.coords);
	to->at = sc_arena_array(&n->view->arena, nr + 1u, sizeof(*to->at));
	if (!to->at)
		return sc_nomem(n->err);
	for (uint32_t i = 0; rc == 0 && i < m->nr; i++) {
		const struct meta_entry *e = &n->view->entries[m->at[i].entry];

		if (meta_entry_is_on(n->view, e, l.coords))
			rc = place(&l, i, e, m->at[i].name);
	}
	close_bucket(&l);
	return rc < 0 ? rc : check_cuts(&l);
}

static int make_variants(struct joining *n, struct making *m)
{
	struct meta_group *g = m->group;
	const struct meta_join *j = g->rule->join;
	const uint32_t nr = meta_topology_degree(n->view->topo, g->vary);
	int rc = 0;

	qsort(m->at, m->nr, sizeof(*m->at), j && j->order == META_ORDER_NAME ? by_name : by_order);
	g->axes |= g->vary;
	g->nr = (uint32_t)m->nr;
	g->members = sc_arena_array(&n->view->arena, m->nr, sizeof(*g->members));
	g->variants = sc_arena_array(&n->view->arena, nr, sizeof(*g->variants));
	if (!g->members || !g->variants)
		return sc_nomem(n->err);
	for (size_t i = 0; i < m->nr / 2 && j && j->order == META_ORDER_REVERSE; i++) {
		struct member other = m->at[i];

		m->at[i] = m->at[m->nr - 1 - i];
		m->at[m->nr - 1 - i] = other;
	}
	for (uint32_t i = 0; i < m->nr; i++) {
		g->members[i] = m->at[i].entry;
		n->view->entries[m->at[i].entry].member = i;
	}
	if (!meta_layout_mesh_axes(n->view->layout, g->axes))
		return sc_fail(n->err, SC_E_STATE, "'%s' joins tensors of different meshes, so no rank's part of it is "
			       "like another one's; join those of each mesh for themselves", g->what);
	for (uint32_t i = 0; rc == 0 && i < m->nr; i++)
		if (n->view->entries[m->at[i].entry].rule->cut_axes & g->cut_axes)
			rc = sc_fail(n->err, SC_E_STATE, "'%s' is cut by an axis that cuts '%s' already", g->what,
				     m->at[i].name);
	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = make_variant(n, m, i, &g->variants[i]);
	return rc;
}

/* Checks that a joined tensor is in one file.  A file and its copy, as a model and its average, have all of the tensor
 * each, or the same part. */
static int check_files(struct joining *n, struct making *m)
{
	const struct meta_group *g = m->group;
	const char *key = sc_arena_printf(&n->arena, "%u|%s", g->rule->index, g->what);
	const struct making *other = key ? sc_map_get(&n->by_rule, key, strlen(key)) : NULL;
	const struct meta_entry *a = &n->view->entries[m->at[0].entry];

	if (other && (m->globs & ~other->globs) && (other->globs & ~m->globs)) {
		const struct meta_entry *b = &n->view->entries[other->at[0].entry];

		return sc_fail(n->err, SC_E_STATE, "'%s' joins '%s', which is in '%s', and '%s', which is in '%s': "
			       "they must be in one file (an import of a model's index alone makes one of its files)",
			       g->what, other->at[0].name, b->file, m->at[0].name, a->file);
	}
	return !key || (!other && sc_map_put(&n->by_rule, key, strlen(key), m) < 0) ? sc_nomem(n->err) : 0;
}

int meta_join_entries(struct meta_view *view, struct sc_err *err)
{
	struct joining n = {.view = view, .last = &n.first, .err = err};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && view->layout->has_joins && i < view->nr_entries; i++)
		rc = add_member(&n, i);
	for (struct making *m = n.first; m; m = m->next) {
		if (rc == 0 && m->group->rule->join)
			rc = check_files(&n, m);
		if (rc == 0)
			rc = make_variants(&n, m);
	}
	for (struct making *m = n.first; m; m = m->next)
		sc_vec_done(m);
	sc_map_done(&n.by_name);
	sc_map_done(&n.by_rule);
	sc_arena_done(&n.arena);
	return rc;
}
