/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the copies of one target box from ranks that hold its bytes. */
#include "reshard/engine/plan/plan.h"

#include <string.h>

struct box_plan {
	const struct meta_view *view;
	const struct meta_box *target;
	const struct rs_nodes *nodes;
	uint32_t node, turn;
	unsigned element_bytes;
	struct meta_shape shape;
	struct rs_gather *g;
	struct rs_sources *sources;
	uint64_t found;
	struct sc_err *err;
};

void rs_sources_done(struct rs_sources *sources)
{
	rs_plan_done(sources);
	sc_arena_done(&sources->arena);
	sc_sys.release(sources->at);
	*sources = (struct rs_sources){0};
}

/* Finds a rank of the node that holds the same bytes as `coords`; -1: there is none. */
static int64_t replica_on_node(const struct meta_view *v,
			       const uint32_t coords[SC_AXES_MAX], uint32_t used,
			       const struct rs_nodes *nodes, uint32_t node)
{
	uint64_t first = (uint64_t)node * nodes->ranks_per_node, last = first + nodes->ranks_per_node;

	for (uint64_t r = first; r < last && r < v->topo->ranks; r++) {
		uint32_t c[SC_AXES_MAX];
		bool same = true;

		meta_topology_coords(v->topo, (uint32_t)r, c);
		for (int i = 0; i < v->topo->nr_axes; i++)
			same = same && (!(used & 1u << i) || c[i] == coords[i]);
		if (same)
			return (int64_t)r;
	}
	return -1;
}

/* Finds, of the ranks that hold the same bytes as `coords` (of one mesh, 0 elsewhere), the first of those whose file is
 * nearest; -1: all are gone. */
static int64_t nearest_replica(const struct box_plan *p, const struct meta_entry *e,
			       const uint32_t coords[SC_AXES_MAX])
{
	const uint32_t axes = meta_entry_replica_axes(p->view, e), nr = meta_topology_degree(p->view->topo, axes);
	enum rs_near best = RS_GONE, near;
	struct sc_arena arena = {0};
	int64_t found = -1;

	for (uint32_t i = 0; nr > 1 && best < RS_ON_NODE && i < nr; i++) {
		uint32_t full[SC_AXES_MAX], rank;
		const char *file, *name;

		memcpy(full, coords, sizeof(full));
		meta_topology_split(p->view->topo, axes, (p->turn + i) % nr, full);
		rank = meta_topology_rank(p->view->topo, full);
		meta_topology_coords(p->view->topo, rank, full);
		if (meta_entry_stored(p->view, e, full, &arena, &file, &name) < 0)
			break; /* out of memory: any replica will do */
		near = p->nodes->near(p->nodes->arg, p->view, rank, file);
		if (near > best) {
			best = near;
			found = rank;
		}
	}
	sc_arena_done(&arena);
	return found;
}

static uint32_t choose_rank(const struct box_plan *p, const struct meta_entry *e,
			    const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_view *v = p->view;
	uint32_t axes = meta_entry_replica_axes(v, e), full[SC_AXES_MAX];
	int64_t local;

	if (p->nodes->ranks_per_node) {
		local = replica_on_node(v, coords, meta_entry_axes(v, e), p->nodes, p->node);
		if (local >= 0)
			return (uint32_t)local;
	}
	memcpy(full, coords, sizeof(full));
	meta_topology_split(v->topo, axes, p->turn % meta_topology_degree(v->topo, axes), full);
	local = p->nodes->near ? nearest_replica(p, e, full) : -1;
	return local >= 0 ? (uint32_t)local : meta_topology_rank(v->topo, full);
}

/* Adds a source: the tensor that a rank stores of an entry. */
static int add_source(struct box_plan *p, const struct meta_entry *e, uint32_t rank)
{
	struct rs_source s = {.view = p->view, .rank = rank};
	const struct rs_source *last = p->sources->nr ? &p->sources->at[p->sources->nr - 1] : NULL;
	uint32_t full[SC_AXES_MAX];

	meta_topology_coords(p->view->topo, s.rank, full);
	if (meta_entry_stored(p->view, e, full, &p->sources->arena, &s.file, &s.name) < 0)
		return sc_nomem(p->err);
	if (!last || last->view != s.view || last->rank != s.rank || strcmp(last->name, s.name) != 0 ||
	    strcmp(last->file, s.file) != 0)
		if (sc_vec_push(p->sources, s) < 0)
			return sc_nomem(p->err);
	return 0;
}

static int on_source(void *arg, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX],
		     const struct meta_box *box)
{
	struct box_plan *p = arg;
	int rc = add_source(p, e, choose_rank(p, e, coords));

	if (rc < 0)
		return rc;
	p->found += meta_box_elements(box);
	if (rs_gather_add(p->g, (uint32_t)p->sources->nr - 1, p->target, box, p->element_bytes) < 0)
		return sc_nomem(p->err);
	rs_gather_rows(p->g, &p->shape, box);
	return 0;
}

/* --- boxes that are planned alike --- */

#define LIKES 64
#define LIKE_COPIES_MAX 64

/* The key that decides the copies of a box, and the copies; their sources are ranks here. */
struct rs_like {
	const struct meta_view *view;
	const struct meta_rule *rule;
	const uint32_t *fixed;
	const struct meta_shape *shape;
	unsigned element_bytes;
	struct meta_box target;
	uint32_t nr;		/* 0: there is none yet */
	struct rs_copy *copies;
};

struct rs_likes {
	struct sc_arena arena;
	struct rs_like at[LIKES];	/* by hash */
};

/* Finds the place of copies that are alike, or where they would be; NULL: more than the entry decides the copies. */
static struct rs_like *find_like(struct box_plan *p, const struct meta_entry *e)
{
	struct rs_likes **likes = &p->sources->likes;
	uint64_t h = e->rule->index;

	if (e->group || e->behind || p->nodes->ranks_per_node || p->turn)
		return NULL;
	if (!*likes)
		*likes = sc_zalloc(sizeof(**likes));
	for (int k = 0; k < p->target->nr; k++)
		h = (h ^ p->shape.dim[k] ^ p->target->off[k] << 32) * 0x9e3779b97f4a7c15u;
	return *likes ? &(*likes)->at[(h ^ h >> 32) % LIKES] : NULL;
}

static bool is_like(const struct box_plan *p, const struct meta_entry *e, const struct rs_like *l)
{
	return l->nr && l->view == p->view && l->rule == e->rule && l->element_bytes == p->element_bytes &&
	       meta_shape_equal(l->shape, &p->shape) && meta_box_equal(&l->target, p->target) &&
	       memcmp(l->fixed, e->fixed, META_FIXED_BYTES) == 0;
}

static int plan_like(struct box_plan *p, const struct meta_entry *e, const struct rs_like *l)
{
	const uint32_t nr = p->g->nr;

	if (rs_gather_append(p->g, l->copies, l->nr) < 0)
		return sc_nomem(p->err);
	for (uint32_t i = 0; i < l->nr; i++) {
		int rc = add_source(p, e, l->copies[i].source);

		if (rc < 0)
			return rc;
		p->g->copies[nr + i].source = (uint32_t)p->sources->nr - 1;
	}
	return 0;
}

/* Keeps the copies from number `first` on for entries that are alike, unless some are kept already. */
static void keep_like(struct box_plan *p, const struct meta_entry *e, const struct meta_tensor *t, uint32_t first,
		      struct rs_like *l)
{
	const uint32_t nr = p->g->nr - first;
	struct rs_copy *copies;

	if (l->nr || !nr || nr > LIKE_COPIES_MAX)
		return;
	copies = sc_arena_array(&p->sources->likes->arena, nr, sizeof(*copies));
	if (!copies)
		return;
	memcpy(copies, &p->g->copies[first], nr * sizeof(*copies));
	for (uint32_t i = 0; i < nr; i++)
		copies[i].source = p->sources->at[copies[i].source].rank;
	*l = (struct rs_like){p->view, e->rule, e->fixed, &t->shape, p->element_bytes, *p->target, nr, copies};
}

void rs_plan_done(struct rs_sources *sources)
{
	if (sources->likes)
		sc_arena_done(&sources->likes->arena);
	sc_sys.release(sources->likes);
	sources->likes = NULL;
}

/* Plans a tensor of a type smaller than a byte, which is whole on every rank: its bytes are one run. */
static int plan_sub_byte(struct box_plan *p, const struct meta_entry *e, const struct meta_tensor *t)
{
	uint64_t bytes;
	struct meta_box one = {.nr = 1, .stride = {1}};
	uint32_t coords[SC_AXES_MAX];

	(void)meta_tensor_bytes(t->dtype, &t->shape, &bytes);
	one.ext[0] = bytes;
	for (int i = 0; i < SC_AXES_MAX; i++)
		coords[i] = e->fixed[i] != META_FREE ? e->fixed[i] : 0;
	p->target = &one;
	p->element_bytes = 1;
	p->shape = (struct meta_shape){1, {bytes}};
	return on_source(p, e, coords, &one);
}

int rs_plan_box(const struct meta_view *view, const char *key, const struct meta_box *target,
		const struct rs_nodes *nodes, uint32_t node, uint32_t turn, struct rs_gather *g,
		struct rs_sources *sources, struct sc_err *err)
{
	const struct meta_tensor *t = meta_state_find(view->state, key);
	struct box_plan p = {.view = view, .target = target, .nodes = nodes, .node = node, .turn = turn,
			     .g = g, .sources = sources, .err = err};
	const uint32_t first = g->nr;
	const struct meta_entry *e;
	struct rs_like *like;
	int rc;

	if (!t)
		return sc_fail(err, SC_E_STATE, "'%s' is not in any file of the version", key);
	e = &view->entries[view->first[t - view->state->tensors]];
	if (meta_dtype_bits(t->dtype) % 8)
		return plan_sub_byte(&p, e, t);
	p.element_bytes = meta_dtype_bits(t->dtype) / 8;
	p.shape = t->shape;
	like = find_like(&p, e);
	if (like && is_like(&p, e, like))
		return plan_like(&p, e, like);
	rc = meta_view_sources(view, e, target->off, target->ext, on_source, &p, err);
	if (rc == 0 && p.found != meta_box_elements(target))
		return sc_fail(err, SC_E_STATE, "'%s': no rank holds %llu of the %llu elements of a piece", key,
			       (unsigned long long)(meta_box_elements(target) - p.found),
			       (unsigned long long)meta_box_elements(target));
	if (rc == 0 && like)
		keep_like(&p, e, t, first, like);
	return rc;
}
