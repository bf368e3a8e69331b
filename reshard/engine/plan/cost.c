/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes what a reshard moves between nodes.  The lower bound is what each node needs less what it
 * holds, and exactly that is fetched, once.
 *
 * A large model has thousands of tensors but few shapes, and thousands of nodes in few situations, so
 * geometry is done once for each
 *
 *     class      tensors of one shape that are placed and cut in the same way, old and new
 *     case       of a class: the pieces that a node needs and the pieces that it holds
 *
 * and for each tensor on each node only the replica that sends is left to choose.
 */
#include "reshard/engine/plan/plan.h"

#include <stdlib.h>
#include <string.h>

struct boxes {
	size_t nr, room;
	struct meta_box *at;
};

struct piece {
	struct meta_piece p;
	uint32_t *nodes;	/* that have it, sorted */
	uint32_t nr_nodes;
	uint32_t turn;
	bool repeats;		/* rows of padding: several boxes may be of the same one */
	bool primary;		/* of the tensor's first entry: together these cover it */
};

struct place {
	uint32_t node, piece;
};

/* The distinct pieces of a class under one view, with the nodes that have each of them. */
struct side {
	size_t nr, room;
	struct piece *at;
	size_t nr_places, next;	/* nodes are visited in ascending order: `next` is where we are */
	struct place *places;	/* sorted */
};

/* Elements of one tensor that a node fetches of a piece. */
struct fetch {
	uint32_t piece;
	uint64_t elements;
};

struct node_case {
	const struct place *need, *have;
	size_t nr_need, nr_have;
	uint64_t needed, missing;	/* elements */
	size_t nr, room;
	struct fetch *at;
};

struct class {
	struct side need, have;
	struct {
		size_t nr, room;
		unsigned *at;
	} bits;			/* of an element, of each tensor */
	struct {
		size_t nr, room;
		struct node_case *at;
	} cases;
};

struct costing {
	const struct meta_view *target;
	const struct rs_nodes *nodes;
	struct rs_cost *cost;
	struct sc_arena arena;
	struct sc_map by_key;
	struct {
		size_t nr, room;
		struct class **at;
	} classes;
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

/* --- classes --- */

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

/* Finds all distinct pieces of a tensor under a view, with the nodes that have them. */
static int collect(struct costing *c, const struct meta_view *v, uint32_t t, struct side *ret)
{
	for (uint32_t i = v->first[t]; i < v->first[t + 1]; i++) {
		const struct meta_entry *e = &v->entries[i];
		uint32_t free_axes = meta_entry_replica_axes(v, e), axes = meta_entry_axes(v, e);

		if (e->behind && !e->rows)
			continue;
		for (int k = 0; k < SC_AXES_MAX; k++)
			axes &= e->fixed[k] != META_FREE ? ~(1u << k) : UINT32_MAX;
		for (uint32_t x = 0; x < meta_topology_degree(v->topo, axes); x++) {
			struct piece p = {0};
			uint32_t coords[SC_AXES_MAX] = {0};
			int rc;

			for (int k = 0; k < SC_AXES_MAX; k++)
				coords[k] = e->fixed[k] != META_FREE ? e->fixed[k] : 0;
			meta_topology_split(v->topo, axes, x, coords);
			p.primary = meta_entry_is_read(v, e) && meta_entry_is_first(v, e, coords);
			rc = meta_entry_piece(v, e, coords, &c->arena, &p.p, c->err);
			p.repeats = e->behind;
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

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->node != y->node ? compare_u32(&x->node, &y->node) : compare_u32(&x->piece, &y->piece);
}

static int index_nodes(struct costing *c, struct side *s)
{
	size_t nr = 0;

	for (size_t i = 0; i < s->nr; i++)
		nr += s->at[i].nr_nodes;
	s->places = sc_arena_array(&c->arena, nr + 1, sizeof(*s->places));
	if (!s->places)
		return sc_nomem(c->err);
	for (size_t i = 0; i < s->nr; i++)
		for (uint32_t k = 0; k < s->at[i].nr_nodes; k++)
			s->places[s->nr_places++] = (struct place){s->at[i].nodes[k], (uint32_t)i};
	qsort(s->places, nr, sizeof(*s->places), compare_places);
	return 0;
}

static void add_entries(struct sc_buf *key, const struct meta_view *v, uint32_t t)
{
	sc_buf_add(key, &v, sizeof(v));
	for (uint32_t i = v->first[t]; i < v->first[t + 1]; i++) {
		sc_buf_add(key, &v->entries[i].rule, sizeof(v->entries[i].rule));
		sc_buf_add(key, v->entries[i].fixed, META_FIXED_BYTES);
		sc_buf_add(key, &v->entries[i].group, sizeof(v->entries[i].group));
		if (v->entries[i].group || v->entries[i].behind) /* it lies elsewhere than the others */
			sc_buf_add(key, &i, sizeof(i));
	}
}

static int new_class(struct costing *c, const struct sc_buf *key, uint32_t t,
		     const struct meta_view *source, uint32_t from, struct class **ret)
{
	struct class *k = sc_arena_alloc(&c->arena, sizeof(*k));
	const char *text = sc_arena_copy(&c->arena, key->text, key->bytes);
	int rc;

	if (!k || !text || sc_vec_push(&c->classes, k) < 0 || sc_map_put(&c->by_key, text, key->bytes, k) < 0)
		return sc_nomem(c->err);
	rc = collect(c, c->target, t, &k->need);
	if (rc == 0)
		rc = collect(c, source, from, &k->have);
	if (rc == 0)
		rc = index_nodes(c, &k->need);
	if (rc == 0)
		rc = index_nodes(c, &k->have);
	*ret = k;
	return rc;
}

static int classify(struct costing *c, uint32_t t, const struct meta_view *source)
{
	const struct meta_tensor *tensor = &c->target->state->tensors[t];
	const struct meta_tensor *from = meta_state_find(source->state, tensor->key);
	struct class *k = NULL;
	struct sc_buf key = {0};
	int rc = 0;

	if (!from)
		return sc_fail(c->err, SC_E_STATE, "'%s' is not in any file of the version", tensor->key);
	sc_buf_add(&key, tensor->shape.dim, tensor->shape.nr * sizeof(*tensor->shape.dim));
	add_entries(&key, c->target, t);
	add_entries(&key, source, (uint32_t)(from - source->state->tensors));
	if (key.failed)
		rc = sc_nomem(c->err);
	else
		k = sc_map_get(&c->by_key, key.text, key.bytes);
	if (rc == 0 && !k)
		rc = new_class(c, &key, t, source, (uint32_t)(from - source->state->tensors), &k);
	if (rc == 0 && sc_vec_push(&k->bits, meta_dtype_bits(tensor->dtype)) < 0)
		rc = sc_nomem(c->err);
	sc_buf_done(&key);
	return rc;
}

/* --- cases --- */

/* Appends the difference of a and b: at most 2N boxes around their intersection. */
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

/* Fetches the remaining boxes from primary pieces. */
static int fetch(const struct boxes *left, const struct side *have, struct node_case *ret)
{
	for (size_t k = 0; k < have->nr; k++) {
		const struct piece *p = &have->at[k];
		uint64_t n = 0;

		for (size_t i = 0; p->primary && i < left->nr; i++)
			for (uint32_t b = 0; b < p->p.nr_boxes; b++) {
				struct meta_box met;

				if (!p->p.boxes[b].copy &&
				    meta_box_meet(&p->p.boxes[b], left->at[i].off, left->at[i].ext, &met))
					n += meta_box_elements(&met);
			}
		if (n && sc_vec_push(ret, (struct fetch){(uint32_t)k, n}) < 0)
			return -1;
	}
	return 0;
}

/* Adds the part of a piece that none of the boxes before has. */
static int add_new(struct boxes *left, const struct meta_piece *p, uint32_t b)
{
	const struct meta_piece before = {.nr_boxes = b, .boxes = p->boxes};
	struct boxes mine = {0};
	int rc = sc_vec_push(&mine, p->boxes[b]);

	if (rc == 0)
		rc = subtract(&mine, &before);
	for (size_t i = 0; rc == 0 && i < mine.nr; i++)
		rc = sc_vec_push(left, mine.at[i]);
	sc_vec_done(&mine);
	return rc;
}

static int solve(const struct class *k, struct node_case *ret)
{
	for (size_t i = 0; i < ret->nr_need; i++) {
		const struct piece *piece = &k->need.at[ret->need[i].piece];
		const struct meta_piece *p = &piece->p;
		struct boxes left = {0};
		int rc = 0;

		for (uint32_t b = 0; b < p->nr_boxes && rc == 0; b++)
			rc = piece->repeats ? add_new(&left, p, b) : sc_vec_push(&left, p->boxes[b]);
		/* an earlier piece of this node already brings this part */
		for (size_t j = 0; j < i && rc == 0; j++)
			rc = subtract(&left, &k->need.at[ret->need[j].piece].p);
		ret->needed += volume(&left);
		for (size_t j = 0; j < ret->nr_have && rc == 0; j++)
			rc = subtract(&left, &k->have.at[ret->have[j].piece].p);
		ret->missing += volume(&left);
		if (rc == 0)
			rc = fetch(&left, &k->have, ret);
		sc_vec_done(&left);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static bool same_pieces(const struct place *a, size_t nr_a, const struct place *b, size_t nr_b)
{
	if (nr_a != nr_b)
		return false;
	for (size_t i = 0; i < nr_a; i++)
		if (a[i].piece != b[i].piece)
			return false;
	return true;
}

/* Finds the places of a node; the index only moves forward. */
static size_t places_of(struct side *s, uint32_t node, const struct place **ret)
{
	size_t end;

	while (s->next < s->nr_places && s->places[s->next].node < node)
		s->next++;
	for (end = s->next; end < s->nr_places && s->places[end].node == node; end++)
		;
	*ret = s->places + s->next;
	return end - s->next;
}

static int find_case(struct costing *c, struct class *k, uint32_t node, const struct node_case **ret)
{
	struct node_case mine = {0};

	*ret = NULL;
	mine.nr_need = places_of(&k->need, node, &mine.need);
	if (mine.nr_need == 0)
		return 0;
	mine.nr_have = places_of(&k->have, node, &mine.have);
	for (size_t i = 0; i < k->cases.nr; i++) {
		*ret = &k->cases.at[i];
		if (same_pieces((*ret)->need, (*ret)->nr_need, mine.need, mine.nr_need) &&
		    same_pieces((*ret)->have, (*ret)->nr_have, mine.have, mine.nr_have))
			return 0;
	}
	if (solve(k, &mine) < 0 || sc_vec_push(&k->cases, mine) < 0) {
		sc_vec_done(&mine);
		return sc_nomem(c->err);
	}
	*ret = &k->cases.at[k->cases.nr - 1];
	return 0;
}

/* --- nodes --- */

/* Chooses the replica of each piece that sends: they take turns, tensor after tensor. */
static void send(struct costing *c, struct class *k, const struct node_case *x)
{
	for (size_t t = 0; t < k->bits.nr; t++) {
		unsigned bits = k->bits.at[t];

		c->cost->bytes += x->needed * bits / 8;
		c->cost->local += (x->needed - x->missing) * bits / 8;
		c->cost->bound += x->missing * bits / 8;
		for (size_t i = 0; i < x->nr; i++) {
			struct piece *p = &k->have.at[x->at[i].piece];
			uint64_t bytes = x->at[i].elements * bits / 8;

			c->row[p->nodes[p->turn++ % p->nr_nodes]] += bytes;
			c->cost->moved += bytes;
		}
		c->cost->pieces += x->nr;
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

static int compare_pairs(const void *a, const void *b)
{
	const struct rs_pair *x = a, *y = b;

	return x->from != y->from ? compare_u32(&x->from, &y->from) : compare_u32(&x->to, &y->to);
}

static int cost_node(struct costing *c, uint32_t node)
{
	for (size_t i = 0; i < c->classes.nr; i++) {
		const struct node_case *x;
		int rc = find_case(c, c->classes.at[i], node, &x);

		if (rc < 0)
			return rc;
		if (x)
			send(c, c->classes.at[i], x);
	}
	return add_pairs(c, node);
}

static void costing_done(struct costing *c)
{
	for (size_t i = 0; i < c->classes.nr; i++) {
		struct class *k = c->classes.at[i];

		for (size_t n = 0; n < k->cases.nr; n++)
			sc_vec_done(&k->cases.at[n]);
		sc_vec_done(&k->cases);
		sc_vec_done(&k->bits);
		sc_vec_done(&k->need);
		sc_vec_done(&k->have);
	}
	sc_vec_done(&c->classes);
	sc_map_done(&c->by_key);
	sc_arena_done(&c->arena);
	sc_sys.release(c->row);
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
	for (uint32_t t = 0; t < target->state->nr && rc == 0; t++) {
		const struct meta_view *source = source_of(arg, &target->state->tensors[t]);
		uint32_t n = per ? (source->topo->ranks + per - 1) / per : 1;

		cost.source_nodes = n > cost.source_nodes ? n : cost.source_nodes;
		rc = classify(&c, t, source);
	}
	c.row = sc_zalloc_array(cost.source_nodes, sizeof(*c.row));
	if (rc == 0 && !c.row)
		rc = sc_nomem(err);
	for (uint32_t node = 0; rc == 0 && node < cost.target_nodes; node++)
		rc = cost_node(&c, node);
	costing_done(&c);
	if (rc < 0) {
		rs_cost_done(&cost);
		return rc;
	}
	if (cost.nr_pairs)
		qsort(cost.pairs, cost.nr_pairs, sizeof(*cost.pairs), compare_pairs);
	*ret = cost;
	return 0;
}

void rs_cost_done(struct rs_cost *cost)
{
	sc_sys.release(cost->pairs);
	*cost = (struct rs_cost){0};
}
