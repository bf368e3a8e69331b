/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a reshard moves between nodes.  For each tensor: the distinct pieces of the target and of
 * the source with the nodes that have them; for each node, what it needs less what it holds is the
 * lower bound, and exactly that is fetched, once.
 */
#include "reshard/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#define PAIRS_UNMERGED_MAX (1u << 20) /* 16 MiB: bounds memory, costs a sort now and then */

struct boxes {
	size_t nr, room;
	struct meta_box *at;
};

struct piece {
	struct meta_piece p;
	uint32_t *nodes;	/* that have it, sorted */
	uint32_t nr_nodes;
	uint32_t turn;
	bool primary;		/* of the tensor's first entry: together these cover it */
};

struct pieces {
	size_t nr, room;
	struct piece *at;
};

struct costing {
	const struct meta_view *target;
	const struct rs_nodes *nodes;
	struct rs_cost *cost;
	struct sc_arena arena;	/* of one tensor */
	struct sc_err *err;
	uint64_t *row;		/* bytes by source node, of one target node */
};

static uint32_t node_of(const struct costing *c, uint32_t rank)
{
	return c->nodes->ranks_per_node ? rank / c->nodes->ranks_per_node : 0;
}

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int piece_nodes(struct costing *c, const struct meta_view *v, uint32_t replica_axes,
		       uint32_t coords[SC_AXES_MAX], struct piece *p)
{
	uint32_t n = meta_topology_degree(v->topo, replica_axes), nr = 0;

	p->nodes = sc_arena_array(&c->arena, n, sizeof(*p->nodes));
	if (!p->nodes)
		return sc_nomem(c->err);
	for (uint32_t i = 0; i < n; i++) {
		meta_topology_split(v->topo, replica_axes, i, coords);
		p->nodes[i] = node_of(c, meta_topology_rank(v->topo, coords));
	}
	qsort(p->nodes, n, sizeof(*p->nodes), compare_u32);
	for (uint32_t i = 0; i < n; i++)
		if (i == 0 || p->nodes[i] != p->nodes[nr - 1])
			p->nodes[nr++] = p->nodes[i];
	p->nr_nodes = nr;
	return 0;
}

/* All distinct pieces of a tensor under a view, with the nodes that have them. */
static int collect(struct costing *c, const struct meta_view *v, uint32_t t, struct pieces *ret)
{
	for (uint32_t i = v->first[t]; i < v->first[t + 1]; i++) {
		const struct meta_entry *e = &v->entries[i];
		uint32_t free_axes = meta_entry_replica_axes(v, e), cut_axes = 0;

		for (int k = 0; k < e->rule->nr_cuts; k++)
			cut_axes |= e->rule->cuts[k].axes;
		for (uint32_t x = 0; x < meta_topology_degree(v->topo, cut_axes); x++) {
			struct piece p = {.primary = i == v->first[t]};
			uint32_t coords[SC_AXES_MAX] = {0};
			int rc;

			for (int k = 0; k < SC_AXES_MAX; k++)
				coords[k] = e->fixed[k] != META_FREE ? e->fixed[k] : 0;
			meta_topology_split(v->topo, cut_axes, x, coords);
			rc = meta_entry_piece(v, e, coords, &c->arena, &p.p, c->err);
			if (rc == 0)
				rc = piece_nodes(c, v, free_axes, coords, &p);
			if (rc < 0)
				return rc;
			if (sc_vec_push(ret, p) < 0)
				return sc_nomem(c->err);
		}
	}
	return 0;
}

static bool on_node(const struct piece *p, uint32_t node)
{
	return bsearch(&node, p->nodes, p->nr_nodes, sizeof(node), compare_u32) != NULL;
}

/* Appends a less b: at most 2N boxes around the intersection. */
static int subtract_one(struct meta_box a, const struct meta_box *b, struct boxes *out)
{
	struct meta_box met;

	if (!meta_box_meet(&a, b->off, b->ext, &met))
		return sc_vec_push(out, a);
	for (int k = 0; k < a.nr; k++) {
		struct meta_box side = a;

		side.ext[k] = met.off[k] - a.off[k];
		if (side.ext[k] && sc_vec_push(out, side) < 0)
			return -1;
		side = a;
		side.off[k] = met.off[k] + met.ext[k];
		side.ext[k] = a.off[k] + a.ext[k] - side.off[k];
		if (side.ext[k] && sc_vec_push(out, side) < 0)
			return -1;
		a.off[k] = met.off[k];
		a.ext[k] = met.ext[k];
	}
	return 0;
}

static int subtract(struct boxes *left, const struct meta_piece *p)
{
	for (uint32_t i = 0; i < p->nr_boxes && left->nr; i++) {
		struct boxes out = {0};

		for (size_t k = 0; k < left->nr; k++)
			if (subtract_one(left->at[k], &p->boxes[i], &out) < 0) {
				sc_vec_done(&out);
				return -1;
			}
		sc_vec_done(left);
		*left = out;
	}
	return 0;
}

static uint64_t volume(const struct boxes *b)
{
	uint64_t n = 0;

	for (size_t i = 0; i < b->nr; i++)
		n += meta_box_elements(&b->at[i]);
	return n;
}

/* Fetches what is left from primary pieces; holders of one piece take turns. */
static void fetch(struct costing *c, const struct boxes *left, struct pieces *held, unsigned bits)
{
	for (size_t i = 0; i < left->nr; i++)
		for (size_t k = 0; k < held->nr; k++) {
			struct piece *p = &held->at[k];
			uint64_t n = 0;

			for (uint32_t b = 0; p->primary && b < p->p.nr_boxes; b++) {
				struct meta_box met;

				if (meta_box_meet(&p->p.boxes[b], left->at[i].off, left->at[i].ext, &met))
					n += meta_box_elements(&met);
			}
			if (!n)
				continue;
			c->row[p->nodes[p->turn++ % p->nr_nodes]] += n * bits / 8;
			c->cost->moved += n * bits / 8;
			c->cost->pieces++;
		}
}

static int add_pairs(struct costing *c, uint32_t node)
{
	for (uint32_t i = 0; i < c->cost->source_nodes; i++) {
		if (c->row[i] && sc_vec_grow((void **)&c->cost->pairs, c->cost->nr_pairs, &c->cost->room,
					     sizeof(*c->cost->pairs)) < 0)
			return sc_nomem(c->err);
		if (c->row[i])
			c->cost->pairs[c->cost->nr_pairs++] = (struct rs_pair){i, node, c->row[i]};
		c->row[i] = 0;
	}
	return 0;
}

static int cost_node(struct costing *c, uint32_t node, struct pieces *need, struct pieces *have,
		     unsigned bits)
{
	for (size_t i = 0; i < need->nr; i++) {
		struct boxes left = {0};
		int rc = 0;

		if (!on_node(&need->at[i], node))
			continue;
		for (uint32_t b = 0; b < need->at[i].p.nr_boxes && rc == 0; b++)
			rc = sc_vec_push(&left, need->at[i].p.boxes[b]);
		/* what an earlier piece of this node brings is there already */
		for (size_t k = 0; k < i && rc == 0; k++)
			if (on_node(&need->at[k], node))
				rc = subtract(&left, &need->at[k].p);
		c->cost->bytes += volume(&left) * bits / 8;
		c->cost->local += volume(&left) * bits / 8;
		for (size_t k = 0; k < have->nr && rc == 0; k++)
			if (on_node(&have->at[k], node))
				rc = subtract(&left, &have->at[k].p);
		c->cost->local -= volume(&left) * bits / 8;
		c->cost->bound += volume(&left) * bits / 8;
		if (rc == 0)
			fetch(c, &left, have, bits);
		sc_vec_done(&left);
		if (rc < 0)
			return sc_nomem(c->err);
	}
	return add_pairs(c, node);
}

static int compare_pairs(const void *a, const void *b)
{
	const struct rs_pair *x = a, *y = b;

	return x->from != y->from ? compare_u32(&x->from, &y->from) : compare_u32(&x->to, &y->to);
}

static void merge_pairs(struct rs_cost *cost)
{
	size_t nr = 0;

	if (cost->nr_pairs)
		qsort(cost->pairs, cost->nr_pairs, sizeof(*cost->pairs), compare_pairs);
	for (size_t i = 0; i < cost->nr_pairs; i++) {
		if (nr && compare_pairs(&cost->pairs[nr - 1], &cost->pairs[i]) == 0)
			cost->pairs[nr - 1].bytes += cost->pairs[i].bytes;
		else
			cost->pairs[nr++] = cost->pairs[i];
	}
	cost->nr_pairs = nr;
}

static int cost_tensor(struct costing *c, uint32_t t, const struct meta_view *source)
{
	const struct meta_tensor *tensor = &c->target->state->tensors[t];
	const struct meta_tensor *from = meta_state_find(source->state, tensor->key);
	struct pieces need = {0}, have = {0};
	int rc = from ? 0 : sc_fail(c->err, SC_E_STATE, "'%s' is in no file", tensor->key);

	if (rc == 0)
		rc = collect(c, c->target, t, &need);
	if (rc == 0)
		rc = collect(c, source, (uint32_t)(from - source->state->tensors), &have);
	for (uint32_t node = 0; rc == 0 && node < c->cost->target_nodes; node++)
		rc = cost_node(c, node, &need, &have, meta_dtype_bits(tensor->dtype));
	if (c->cost->nr_pairs > PAIRS_UNMERGED_MAX)
		merge_pairs(c->cost);
	sc_vec_done(&need);
	sc_vec_done(&have);
	sc_arena_done(&c->arena);
	return rc;
}

int rs_plan_cost(const struct meta_view *target, rs_origin_fn *source_of, void *arg,
		 const struct rs_nodes *nodes, struct rs_cost *ret, struct sc_err *err)
{
	struct rs_cost cost = {.target_nodes = 1, .source_nodes = 1};
	struct costing c = {.target = target, .nodes = nodes, .cost = &cost, .err = err};
	uint32_t per = nodes->ranks_per_node;
	int rc = 0;

	if (per)
		cost.target_nodes = (target->topo->ranks + per - 1) / per;
	for (uint32_t t = 0; t < target->state->nr; t++) {
		const struct meta_view *source = source_of(arg, &target->state->tensors[t]);
		uint32_t n = per ? (source->topo->ranks + per - 1) / per : 1;

		cost.source_nodes = n > cost.source_nodes ? n : cost.source_nodes;
	}
	c.row = sc_zalloc_array(cost.source_nodes, sizeof(*c.row));
	if (!c.row)
		return sc_nomem(err);
	for (uint32_t t = 0; t < target->state->nr && rc == 0; t++)
		rc = cost_tensor(&c, t, source_of(arg, &target->state->tensors[t]));
	sc_sys.release(c.row);
	merge_pairs(&cost);
	if (rc < 0)
		rs_cost_done(&cost);
	else
		*ret = cost;
	return rc;
}

void rs_cost_done(struct rs_cost *cost)
{
	sc_sys.release(cost->pairs);
	*cost = (struct rs_cost){0};
}
