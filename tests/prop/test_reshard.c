/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of reshards over random layouts, topologies and states (in memory, no I/O):
 *   - what a target rank gathers from source ranks is what cutting the whole tensors gives;
 *   - A -> B -> A is the identity, in whatever order of their dimensions source ranks store tensors;
 *   - each target byte has exactly one source, or is padding and zero;
 *   - the digests of what ranks hold add up to those of the whole tensors;
 *   - what ranks store is inferred back to the same tensors; what is joined over a dimension only if they are known;
 *   - what a plan moves between nodes is the lower bound, counted here element by element.
 * Prints the seed and the case when one fails; SEED=n repeats it.
 */
#include "reshard/engine/io/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "tests/prop/held.h"
#include "tests/support/every.h"

#define ROUNDS some_of(400)

static unsigned long seed = 1;

/* The slow, obvious way: element by element from the whole. */
static void cut_part(const struct meta_view *v, const struct meta_stored *s, uint32_t *to)
{
	const struct meta_tensor *t = &v->state->tensors[s->entry->tensor];

	for (uint32_t k = 0; k < s->piece.nr_boxes; k++)
		for (uint64_t i = 0; i < meta_box_elements(&s->piece.boxes[k]); i++) {
			uint64_t at, x = flat_index(&t->shape, &s->piece.boxes[k], i, &at);

			assert_int_equal(0, to[at]); /* each element has one place */
			to[at] = element(s->entry->tensor, x);
		}
}

static void cut_whole(const struct meta_view *v, const struct held *h, uint32_t *to)
{
	for (uint32_t i = 0; i < h->nr; i++)
		cut_part(v, &h->parts[i], to);
}

static bool job_new(struct job *j, const struct meta_layout *l, const struct meta_state *s)
{
	struct sc_err err;
	char text[100];

	*j = (struct job){0};
	/* the first of some topologies that divides */
	for (int tries = 0; !j->view; tries++) {
		if (tries == 20)
			return false;
		random_topology(text, sizeof(text));
		if (meta_topology_parse(l, text, &j->topo, &err) < 0)
			continue;
		if (meta_view_new(l, &j->topo, s, &j->view, &err) < 0)
			meta_topology_done(&j->topo);
	}
	hold(j);
	return true;
}

static void plan(const struct job *from, const struct job *to, const struct held *h, struct rs_gather *g,
		 struct rs_sources *sources)
{
	const struct rs_nodes one = {0};
	struct sc_err err;

	*g = (struct rs_gather){.bytes = h->elements * 4};
	for (uint32_t p = 0; p < h->nr; p++)
		for (uint32_t k = 0; k < h->parts[p].piece.nr_boxes; k++)
			assert_int_equal(0, rs_plan_box(from->view, to->view->state->tensors[h->parts[p].entry->tensor].key,
							&h->parts[p].piece.boxes[k], &one, 0, 0, g, sources, &err));
	rs_gather_finish(g);
}

/* What is planned as others were is what is planned alone. */
static void expect_plans(const struct job *from, const struct job *to)
{
	struct rs_sources all = {0};

	for (size_t i = 0; i < to->held.nr; i++) {
		struct rs_sources alone = {0};
		struct rs_gather a, b;

		plan(from, to, &to->held.at[i], &a, &all);
		plan(from, to, &to->held.at[i], &b, &alone);
		assert_int_equal(a.nr, b.nr);
		assert_int_equal(a.has_padding, b.has_padding);
		for (uint32_t k = 0; k < a.nr; k++) {
			const struct rs_copy *x = &a.copies[k], *y = &b.copies[k];
			const struct rs_source *s = &all.at[x->source], *t = &alone.at[y->source];

			assert_true(x->nr == y->nr && x->turns == y->turns && x->to == y->to && x->from == y->from && x->run == y->run);
			assert_true(x->row == y->row && x->rows == y->rows);
			assert_memory_equal(x->ext, y->ext, x->nr * sizeof(*x->ext));
			assert_memory_equal(x->to_stride, y->to_stride, x->nr * sizeof(*x->ext));
			assert_memory_equal(x->from_stride, y->from_stride, x->nr * sizeof(*x->ext));
			assert_int_equal(s->rank, t->rank);
			assert_string_equal(s->file, t->file);
			assert_string_equal(s->name, t->name);
		}
		rs_gather_done(&a);
		rs_gather_done(&b);
		rs_sources_done(&alone);
	}
	rs_sources_done(&all);
}

static void expect_cut(const struct job *j)
{
	for (size_t i = 0; i < j->held.nr; i++) {
		const struct held *h = &j->held.at[i];
		uint32_t *want = calloc(h->elements + 1, sizeof(*want));

		cut_whole(j->view, h, want);
		assert_memory_equal(want, h->data, h->elements * 4);
		free(want);
	}
}

static void fill(const struct job *j)
{
	for (size_t i = 0; i < j->held.nr; i++) {
		memset(j->held.at[i].data, 0, j->held.at[i].elements * 4);
		cut_whole(j->view, &j->held.at[i], j->held.at[i].data);
	}
}

/* Ranks that are said to be alike store the same pieces of the same tensors under the same names. */
static void expect_alike(const struct job *j)
{
	for (size_t i = 0; i < j->held.nr; i++) {
		const struct held *h = &j->held.at[i], *other = NULL;
		uint32_t alike = meta_view_alike(j->view, h->rank, h->file);

		assert_true(alike <= h->rank);
		for (size_t k = 0; k < j->held.nr && !other; k++)
			if (j->held.at[k].rank == alike && strcmp(j->held.at[k].name, h->name) == 0 &&
			    strcmp(j->held.at[k].file, h->file) == 0)
				other = &j->held.at[k];
		assert_non_null(other);
		assert_int_equal(other->nr, h->nr);
		for (uint32_t p = 0; p < h->nr; p++) {
			const struct meta_stored *x = &h->parts[p], *y = &other->parts[p];

			assert_int_equal(y->entry->tensor, x->entry->tensor);
			assert_true(meta_shape_equal(&y->piece.shape, &x->piece.shape));
			assert_int_equal(y->piece.nr_boxes, x->piece.nr_boxes);
			for (uint32_t k = 0; k < x->piece.nr_boxes; k++)
				assert_true(meta_box_equal(&y->piece.boxes[k], &x->piece.boxes[k]));
		}
		shared += alike != h->rank;
	}
}

/* --- digests --- */

static struct rs_digester digester;

/* Of what a rank stores of one box. */
static struct rs_digest digest_of(const struct held *h, const struct meta_tensor *t, const struct meta_box *box)
{
	struct meta_box all = {.nr = t->shape.nr};
	struct rs_gather g = {0};
	struct rs_order order;
	uint32_t *data = h->parts->piece.shape.nr > 1 ? in_order(h, &order) : NULL;
	uint64_t stride = 1;

	for (int k = t->shape.nr - 1; k >= 0; k--) {
		all.stride[k] = stride;
		stride *= all.ext[k] = t->shape.dim[k];
	}
	assert_int_equal(0, rs_gather_add(&g, 0, &all, box, 4));
	rs_gather_reorder(&g, (const struct rs_order *[]){data ? &order : NULL});
	rs_digester_begin(&digester);
	rs_digester_add_copy(&digester, 0, g.copies, 0, stride * 4, (const unsigned char *)(data ? data : h->data));
	rs_gather_done(&g);
	free(data);
	return rs_digester_end(&digester, stride * 4);
}

/* Whatever the topology, the boxes that ranks hold of a tensor, each once, add up to the whole one's digest. */
static void expect_digests(const struct job *j)
{
	const struct meta_state *s = j->view->state;
	struct sum {
		const struct meta_box *at[200];
		struct rs_digest digest[200], all;
		size_t nr;
		uint64_t elements;
	} *sums = calloc(s->nr + 1u, sizeof(*sums));

	for (size_t i = 0; i < j->held.nr; i++)
		for (uint32_t p = 0; p < j->held.at[i].nr; p++) {
			const struct meta_stored *x = &j->held.at[i].parts[p];
			struct sum *sum = &sums[x->entry->tensor];

			for (uint32_t b = 0; b < x->piece.nr_boxes; b++) {
				const struct meta_box *box = &x->piece.boxes[b];
				struct rs_digest d;
				size_t k = 0;

				if (!meta_entry_is_read(j->view, x->entry) || box->copy || !meta_box_elements(box))
					continue;
				d = digest_of(&j->held.at[i], &s->tensors[x->entry->tensor], box);
				while (k < sum->nr && (memcmp(box->off, sum->at[k]->off, box->nr * sizeof(*box->off)) != 0 ||
						       memcmp(box->ext, sum->at[k]->ext, box->nr * sizeof(*box->ext)) != 0))
					k++;
				if (k < sum->nr) { /* a replica */
					assert_true(rs_digest_equal(&d, &sum->digest[k]));
					continue;
				}
				assert_true(k < 200);
				sum->at[k] = box;
				sum->digest[k] = d;
				sum->nr++;
				sum->elements += meta_box_elements(box);
				rs_digest_add(&sum->all, &d);
			}
		}
	for (uint32_t t = 0; t < s->nr; t++) {
		uint64_t nr;
		struct rs_digest want;

		assert_true(meta_shape_elements(&s->tensors[t].shape, &nr));
		assert_int_equal(nr, sums[t].elements);
		rs_digester_begin(&digester);
		for (uint64_t x = 0; x < nr; x++)
			rs_digester_add(&digester, x * 4, &(uint32_t){element(t, x)}, 4);
		want = rs_digester_end(&digester, nr * 4);
		assert_true(rs_digest_equal(&want, &sums[t].all));
	}
	free(sums);
}

/* --- the other way --- */

/* Returns how many rows of padding ranks store behind a tensor. */
static uint64_t stored_padding(const struct job *j, const struct meta_tensor *t, int dim)
{
	const struct meta_entry *e = &j->view->entries[j->view->first[t - j->view->state->tensors]];
	int padded = -1;
	uint64_t rows = meta_cuts_padding(&j->topo, e->rule->cuts, e->rule->nr_cuts, &t->shape, &padded);

	return padded == dim ? rows : 0;
}

static void expect_inferred(const struct job *j, const struct meta_layout *l, const struct meta_state *state, const char *text)
{
	const bool fused = strstr(text, "fused");
	struct meta_state back = {0}, padding = {0};
	const struct meta_state *known = fused ? state : &padding;
	struct sc_err err;
	uint32_t nr = 0;

	for (uint32_t i = 0; i < state->nr; i++)
		if (meta_tensor_padding(state->tensors[i].name, NULL))
			assert_int_equal(0, meta_state_add(&padding, state->tensors[i].key, strlen(state->tensors[i].key), META_DTYPE_U32,
							   &state->tensors[i].shape));
	if (fused && infer(j, l, NULL, &back, &err) == 0)
		fail_msg("seed %lu: the shapes of what is fused were guessed", seed);
	if (fused)
		assert_true(strstr(err.msg, "of which nothing tells the shapes") || strstr(err.msg, "its shape is not known"));
	if (infer(j, l, known, &back, &err) < 0)
		fail_msg("seed %lu: %s\n%s\n%s", seed, err.msg, j->topo.text, text);
	for (uint32_t i = 0; i < state->nr; i++) {
		const struct meta_tensor *was = &state->tensors[i], *t = meta_state_find(&back, was->key);

		if (meta_tensor_padding(was->name, NULL))
			continue;
		assert_non_null(t);
		assert_true(meta_shape_equal(&t->shape, &was->shape));
		nr++;
		for (int k = 0; k < was->shape.nr; k++) {
			const struct meta_tensor *before = meta_state_padding(state, was->key, k), *now = meta_state_padding(&back, was->key, k);
			const uint64_t a = before ? before->shape.dim[k] : 0, b = stored_padding(j, was, k);

			nr += now != NULL;
			assert_int_equal(a > b ? a : b, now ? now->shape.dim[k] : 0);
		}
	}
	assert_int_equal(nr, back.nr);
	meta_state_done(&back);
	meta_state_done(&padding);
}

/* --- cost --- */

static const struct meta_view *origin(void *arg, const struct meta_tensor *t)
{
	(void)t;
	return arg;
}

static void mark(const struct job *j, uint32_t node, uint32_t per, uint32_t t, uint8_t *bits)
{
	for (size_t i = 0; i < j->held.nr; i++) {
		const struct held *h = &j->held.at[i];

		for (uint32_t p = 0; h->rank / per == node && p < h->nr; p++) {
			const struct meta_piece *piece = &h->parts[p].piece;

			for (uint32_t k = 0; h->parts[p].entry->tensor == t && k < piece->nr_boxes; k++)
				for (uint64_t x = 0; x < meta_box_elements(&piece->boxes[k]); x++) {
					uint64_t at;

					bits[flat_index(&j->view->state->tensors[t].shape, &piece->boxes[k], x, &at)] = 1;
				}
		}
	}
}

static void expect_cost(const struct job *from, const struct job *to)
{
	struct rs_nodes nodes = {1 + pick(5)};
	uint64_t needed = 0, bound = 0, pairs = 0;
	struct rs_cost cost;
	struct sc_err err;

	assert_int_equal(0, rs_plan_cost(to->view, origin, from->view, &nodes, &cost, &err));
	for (uint32_t node = 0; node < cost.target_nodes; node++)
		for (uint32_t t = 0; t < to->view->state->nr; t++) {
			uint8_t need[200] = {0}, have[200] = {0};

			mark(to, node, nodes.ranks_per_node, t, need);
			mark(from, node, nodes.ranks_per_node, t, have);
			for (int x = 0; x < 200; x++) {
				needed += need[x];
				bound += need[x] && !have[x];
			}
		}
	for (size_t i = 0; i < cost.nr_pairs; i++) {
		assert_true(cost.pairs[i].from != cost.pairs[i].to);
		pairs += cost.pairs[i].bytes;
	}
	assert_int_equal(needed * 4, cost.bytes);
	assert_int_equal(bound * 4, cost.bound);
	assert_int_equal(cost.moved, cost.bound);
	assert_int_equal(cost.moved, pairs);
	assert_int_equal(cost.bytes, cost.local + cost.moved);
	rs_cost_done(&cost);
}

static void reshards_of_random_jobs(void **unused)
{
	unsigned done = 0, tensors = 0;

	(void)unused;
	rs_digester_init(&digester);
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct job a, b;
		struct sc_err err;
		char text[2000];

		random_state = seed * 1000003u + round;
		random_layout(text, sizeof(text));
		if (meta_layout_parse(text, NULL, NULL, &l, &err) < 0)
			fail_msg("seed %lu round %u: %s", seed, round, err.msg);
		random_tensors(&state, META_DTYPE_U32, 1);
		bool both = job_new(&a, l, &state);

		both = job_new(&b, l, &state) && both;
		if (both) {
			fill(&a);
			reshard(&a, &b);
			expect_plans(&a, &b);
			expect_cut(&b);
			for (size_t i = 0; i < a.held.nr; i++)
				memset(a.held.at[i].data, 0, a.held.at[i].elements * 4);
			reshard(&b, &a);
			expect_cut(&a); /* A -> B -> A */
			expect_digests(&a);
			expect_digests(&b);
			expect_cost(&a, &b);
			expect_alike(&a);
			expect_inferred(&a, l, &state, text);
			done++;
			tensors += (unsigned)(a.held.nr + b.held.nr);
		}
		job_done(&a);
		job_done(&b);
		meta_state_done(&state);
		meta_layout_free(l);
	}
	printf("# seed %lu: %u of %u jobs (the rest do not divide), %u stored tensors, %u of replicas, %u joined; %u sources in another "
	       "order\n", seed, done, ROUNDS, tensors, shared, joins, ordered);
	assert_true(done > ROUNDS * 9 / 10 && shared > 0 && joins > 0 && ordered > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(reshards_of_random_jobs)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
