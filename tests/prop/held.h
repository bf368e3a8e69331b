/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of a random job hold, in memory; and a reshard of it by plans. */
#ifndef PROP_HELD_H
#define PROP_HELD_H

#include "meta/model/infer.h"
#include "reshard/engine/plan/plan.h"
#include "tests/prop/jobs.h"

/* --- jobs in memory: every stored tensor of every rank --- */

static unsigned shared __attribute__((unused)); /* tensors in files that another rank has, too */
static unsigned joins __attribute__((unused));	/* stored tensors of several logical ones */

struct held {
	uint32_t rank;
	const char *file, *name;
	uint32_t *data;
	uint64_t elements;
	const struct meta_stored *parts; /* of each logical tensor in it */
	uint32_t nr;
};

struct job {
	struct meta_topology topo;
	struct meta_view *view;
	struct sc_arena arena;
	struct {
		struct held *at;
		size_t nr, room;
	} held;
};

/* Element x of tensor t of the whole: never 0, different everywhere. */
static inline uint32_t element(uint32_t t, uint64_t x)
{
	return (t + 1) * 1000u + (uint32_t)x;
}

static inline uint64_t flat_index(const struct meta_shape *s, const struct meta_box *b, uint64_t i,
			   uint64_t *ret_at)
{
	uint64_t x = 0, at = b->at, c[SC_DIMS_MAX];

	for (int k = b->nr - 1; k >= 0; k--) {
		c[k] = i % b->ext[k];
		i /= b->ext[k];
		at += c[k] * b->stride[k];
	}
	for (int k = 0; k < b->nr; k++)
		x = x * s->dim[k] + b->off[k] + c[k];
	*ret_at = at;
	return x;
}

/* Finds what ranks store. */
static inline void hold(struct job *j)
{
	struct sc_err err;

	for (uint32_t r = 0; r < j->topo.ranks; r++) {
		struct meta_stored_list list = {0};

		assert_int_equal(0, meta_view_rank(j->view, r, NULL, &j->arena, &list, &err));
		for (size_t i = 0, n; i < list.nr; i += n) {
			struct held h = {r, sc_arena_copy(&j->arena, list.at[i].file, strlen(list.at[i].file)),
					 sc_arena_copy(&j->arena, list.at[i].name, strlen(list.at[i].name)), NULL, 0, NULL, 0};
			struct meta_stored *copy;

			for (n = 1; i + n < list.nr && list.at[i + n].part; n++) {
				assert_int_equal(n, list.at[i + n].part);
				assert_string_equal(h.name, list.at[i + n].name);
				assert_true(meta_shape_equal(&list.at[i].piece.shape, &list.at[i + n].piece.shape));
			}
			joins += n > 1;
			copy = sc_arena_array(&j->arena, n, sizeof(*copy));
			memcpy(copy, &list.at[i], n * sizeof(*copy));
			h.parts = copy;
			h.nr = (uint32_t)n;
			assert_true(meta_shape_elements(&copy->piece.shape, &h.elements));
			h.data = sc_arena_array(&j->arena, h.elements + 1, sizeof(*h.data));
			assert_int_equal(0, sc_vec_push(&j->held, h));
		}
		sc_vec_done(&list);
	}
}

static inline void job_done(struct job *j)
{
	sc_vec_done(&j->held);
	meta_view_free(j->view);
	meta_topology_done(&j->topo);
	sc_arena_done(&j->arena);
}

/* Copies what a rank stores in another order of the dimensions, element by element. */
static inline uint32_t *in_order(const struct held *h, struct rs_order *ret)
{
	const struct meta_shape *shape = &h->parts->piece.shape;
	uint32_t *to = calloc(h->elements + 1, sizeof(*to));
	uint64_t stride = 1;
	bool done[SC_DIMS_MAX] = {0};

	*ret = (struct rs_order){.shape = *shape, .element_bytes = 4};
	for (int i = 0; i < shape->nr; i++) {
		unsigned k = pick(shape->nr);

		while (done[k])
			k = (k + 1) % shape->nr;
		done[k] = true;
		ret->stride[k] = shape->dim[k] == 1 ? pick(1000) : stride;
		stride *= shape->dim[k];
	}
	for (uint64_t i = 0; i < h->elements; i++) {
		uint64_t left = i, at = 0;

		for (int k = shape->nr - 1; k >= 0; k--) {
			at += left % shape->dim[k] * ret->stride[k];
			left /= shape->dim[k];
		}
		to[at] = h->data[i];
	}
	return to;
}

static unsigned ordered __attribute__((unused)); /* sources of two dimensions or more, in an order of their own */

/* A source's data, to be freed; of some in another order. */
static inline unsigned char *data_of(const struct job *j, const struct rs_source *s, struct rs_order *order, const struct rs_order **ret)
{
	for (size_t i = 0; i < j->held.nr; i++) {
		const struct held *h = &j->held.at[i];

		if (h->rank != s->rank || strcmp(h->name, s->name) != 0 || strcmp(h->file, s->file) != 0)
			continue;
		if (pick(2) && h->parts->piece.shape.nr > 1) {
			ordered++;
			*ret = order;
			return (unsigned char *)in_order(h, order);
		}
		*ret = NULL;
		return memcpy(malloc(h->elements * 4 + 1), h->data, h->elements * 4);
	}
	fail_msg("a source that is on no rank");
	return NULL;
}

/* A rank's file is here, on another node, or gone with it, by chance. */
static inline enum rs_near near_by_chance(void *arg, const struct meta_view *view, uint32_t rank, const char *file)
{
	(void)arg;
	(void)file;
	assert_true(rank < view->topo->ranks);
	return (enum rs_near)pick(3);
}

/* Every stored tensor of `to` gathered from `from`, read in odd pieces, whichever replica is nearest. */
static inline void reshard(const struct job *from, const struct job *to)
{
	struct rs_nodes nodes = {pick(4), pick(2) ? near_by_chance : NULL, NULL};

	for (size_t i = 0; i < to->held.nr; i++) {
		const struct held *h = &to->held.at[i];
		struct rs_gather g = {.bytes = h->elements * 4};
		struct rs_sources sources = {0};
		struct rs_order *orders;
		const struct rs_order **order;
		unsigned char **data;
		struct sc_err err;

		for (uint32_t p = 0; p < h->nr; p++)
			for (uint32_t k = 0; k < h->parts[p].piece.nr_boxes; k++)
				assert_int_equal(0, rs_plan_box(from->view,
								to->view->state->tensors[h->parts[p].entry->tensor].key,
								&h->parts[p].piece.boxes[k], &nodes,
								nodes.ranks_per_node ? h->rank / nodes.ranks_per_node : 0,
								pick(100), &g, &sources, &err));
		rs_gather_finish(&g);
		data = calloc(sources.nr + 1, sizeof(*data));
		orders = calloc(sources.nr + 1, sizeof(*orders));
		order = calloc(sources.nr + 1, sizeof(*order));
		for (size_t k = 0; k < sources.nr; k++)
			data[k] = data_of(from, &sources.at[k], &orders[k], &order[k]);
		rs_gather_reorder(&g, order);
		memset(h->data, 0xee, h->elements * 4);
		for (uint64_t at = 0, n; at < g.bytes; at += n) {
			uint32_t source;
			uint64_t where;

			n = 1 + pick(97);
			n = n < g.bytes - at ? n : g.bytes - at;
			rs_gather_read(&g, (const unsigned char *const *)data, at, n, (unsigned char *)h->data + at);
			/* the contiguous run at this place has the same bytes */
			if (rs_gather_run(&g, at, n, &source, &where))
				assert_memory_equal(data[source] + where, (unsigned char *)h->data + at, 1);
		}
		for (size_t k = 0; k < sources.nr; k++)
			free(data[k]);
		free(data);
		free(orders);
		free(order);
		rs_gather_done(&g);
		rs_sources_done(&sources);
	}
}

/* Infers the tensors of a job's ranks, which write no hidden files; `known`: NULL, or those of the version before. */
static inline int infer(const struct job *j, const struct meta_layout *l, const struct meta_state *known, struct meta_state *ret,
		 struct sc_err *err)
{
	struct meta_written *w = calloc(j->held.nr, sizeof(*w));
	size_t nr = 0;
	int rc;

	for (size_t i = 0; i < j->held.nr; i++)
		if (!meta_file_is_hidden(j->held.at[i].file))
			w[nr++] = (struct meta_written){j->held.at[i].rank, j->held.at[i].file, j->held.at[i].name, META_DTYPE_U32,
							j->held.at[i].parts->piece.shape, 0};
	rc = meta_infer(l, &j->topo, w, nr, known, ret, err);
	free(w);
	return rc;
}

#endif
