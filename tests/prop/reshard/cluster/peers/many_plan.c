/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of one node of a large cluster, by the real planner. */
#include "tests/prop/reshard/cluster/peers/many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/tensor_line.h"
#include "meta/model/view.h"
#include "reshard/engine/io/image.h"

#define LAYERS 126u
#define HIDDEN 16384u
#define KV 1024u
#define FFN 53248u
#define VOCAB 128256u

const char many_layout[] = "use fsdp2 model=hf-llama\n";

struct many_job {
	struct meta_layout *layout;
	struct meta_state state;
	struct meta_topology topo;
	struct meta_view *view;
	char text[100];
};

static const struct {
	const char *name;
	uint64_t rows, columns;
} of_layer[] = {{"self_attn.q_proj", HIDDEN, HIDDEN}, {"self_attn.k_proj", KV, HIDDEN}, {"self_attn.v_proj", KV, HIDDEN},
		{"self_attn.o_proj", HIDDEN, HIDDEN}, {"mlp.gate_proj", FFN, HIDDEN},	 {"mlp.up_proj", FFN, HIDDEN},
		{"mlp.down_proj", HIDDEN, FFN},	      {"input_layernorm", HIDDEN, 0},	 {"post_attention_layernorm", HIDDEN, 0}};

/* Weights of two bytes, and two moments of four. */
static void add(struct meta_state *s, const char *name, uint64_t rows, uint64_t columns)
{
	static const char *const what[] = {"%s:%s", "%s:state.%s.exp_avg", "%s:state.%s.exp_avg_sq"};
	struct meta_shape shape = {.nr = columns ? 2 : 1, .dim = {rows, columns}};
	char key[200];

	for (int i = 0; i < 3; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		(void)snprintf(key, sizeof(key), what[i], FILE_NAME, name);
#pragma GCC diagnostic pop
		assert_int_equal(0, meta_state_add(s, key, strlen(key), i ? META_DTYPE_F32 : META_DTYPE_BF16, &shape));
	}
}

struct many_job *many_job_new(unsigned nodes)
{
	struct many_job *j = calloc(1, sizeof(*j));
	struct sc_err err;
	char name[120];

	MUST(meta_layout_parse(many_layout, NULL, NULL, &j->layout, &err));
	add(&j->state, "model.embed_tokens.weight", VOCAB, HIDDEN);
	add(&j->state, "model.norm.weight", HIDDEN, 0);
	add(&j->state, "lm_head.weight", VOCAB, HIDDEN);
	for (unsigned g = 0; g < LAYERS; g++)
		for (size_t i = 0; i < sizeof(of_layer) / sizeof(*of_layer); i++) {
			(void)snprintf(name, sizeof(name), "model.layers.%u.%s.weight", g, of_layer[i].name);
			add(&j->state, name, of_layer[i].rows, of_layer[i].columns);
		}
	(void)snprintf(j->text, sizeof(j->text), "tp=8 dp=%u pp=16 stages=8x14+7x2", nodes / 16);
	MUST(meta_topology_parse(j->layout, j->text, &j->topo, &err));
	MUST(meta_view_new(j->layout, &j->topo, &j->state, &j->view, &err));
	return j;
}

void many_job_free(struct many_job *j)
{
	meta_view_free(j->view);
	meta_topology_done(&j->topo);
	meta_state_done(&j->state);
	meta_layout_free(j->layout);
	free(j);
}

unsigned many_ranks(const struct many_job *j)
{
	return j->topo.ranks;
}

const char *many_topology(const struct many_job *j)
{
	return j->topo.text;
}

void many_tensors(const struct many_job *j, struct sc_buf *buf)
{
	for (uint32_t i = 0; i < j->state.nr; i++) {
		const struct meta_tensor *t = &j->state.tensors[i];

		meta_tensor_line_add(buf, &(struct meta_tensor_line){.key = t->key, .dtype = t->dtype, .shape = t->shape});
	}
}

uint64_t many_file_bytes(const struct many_job *j, uint32_t rank)
{
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	struct sc_err err;
	uint64_t bytes = 0, one;

	MUST(meta_view_rank(j->view, rank, NULL, &arena, &list, &err));
	for (size_t i = 0; i < list.nr; i++)
		if (meta_tensor_bytes(j->state.tensors[list.at[i].entry->tensor].dtype, &list.at[i].piece.shape, &one))
			bytes += one;
	sc_vec_done(&list);
	sc_arena_done(&arena);
	return bytes;
}

/* --- what an image asks --- */

static const struct meta_view *view_of(void *arg, const struct meta_tensor *t)
{
	(void)t;
	return ((struct many_job *)arg)->view;
}

static const struct rs_format_ops *format_of(void *arg, const struct meta_view *stored)
{
	(void)arg, (void)stored;
	return rs_format_find("safetensors");
}

static uint64_t payload_of(void *arg, const struct meta_view *v, uint32_t rank, const char *file, const struct meta_tensor *like)
{
	(void)arg, (void)v, (void)rank, (void)file, (void)like;
	return 0;
}

static int payload(const struct rs_origins *o, uint64_t nr, const struct meta_tensor *like, struct sc_arena *arena,
		   const char **ret, size_t *ret_bytes, struct sc_err *err)
{
	(void)o, (void)nr, (void)like, (void)arena, (void)err;
	*ret = NULL;
	*ret_bytes = 0;
	return 0;
}

static uint32_t skew_of(void *arg, const struct meta_tensor *t)
{
	(void)arg, (void)t;
	return 0;
}

/* A region that a node pulls: of a rank's tensor. */
struct region {
	uint32_t rank;
	const char *name;
	uint64_t bytes;
	struct rs_copy copy;
};

static int by_region(const void *a, const void *b)
{
	const struct region *x = a, *y = b;
	int d = x->rank < y->rank ? -1 : x->rank > y->rank ? 1 : strcmp(x->name, y->name);

	if (d == 0)
		d = x->copy.from < y->copy.from ? -1 : x->copy.from > y->copy.from;
	if (d == 0)
		d = x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
	return d ? d : memcmp(x->copy.from_stride, y->copy.from_stride, sizeof(x->copy.from_stride));
}

/* Adds up the bytes that images of a node's ranks read of other nodes, each region once though several ranks need it. */
static uint64_t distinct(struct rs_image *const images[RANKS], unsigned node)
{
	struct {
		size_t nr, room;
		struct region *at;
	} all = {0};
	uint64_t bytes = 0;

	for (unsigned i = 0; i < RANKS && images[i]; i++)
		for (uint32_t k = 0; k < images[i]->nr; k++)
			for (uint32_t c = 0; c < images[i]->gathers[k].nr; c++) {
				const struct rs_copy *copy = &images[i]->gathers[k].copies[c];
				const struct rs_source *from = &images[i]->sources.at[copy->source];
				struct region r = {from->rank, from->name, rs_copy_bytes(copy), *copy};

				if (from->rank / RANKS != node)
					assert_int_equal(0, sc_vec_push(&all, r));
			}
	if (all.nr)
		qsort(all.at, all.nr, sizeof(*all.at), by_region);
	for (size_t i = 0; i < all.nr; i++)
		if (i == 0 || by_region(&all.at[i - 1], &all.at[i]) != 0)
			bytes += all.at[i].bytes;
	sc_vec_done(&all);
	return bytes;
}

void many_cost(struct many_job *j, const char *topology, unsigned nodes, struct many_cost *ret)
{
	const struct rs_nodes at = {.ranks_per_node = RANKS};
	struct rs_cost cost = {0};
	struct meta_topology topo;
	struct meta_view *view;
	struct sc_err err;

	*ret = (struct many_cost){.into = calloc(nodes, sizeof(*ret->into)), .out = calloc(nodes, sizeof(*ret->out))};
	MUST(meta_topology_parse(j->layout, topology, &topo, &err));
	MUST(meta_view_new(j->layout, &topo, &j->state, &view, &err));
	MUST(rs_plan_cost(view, view_of, j, &at, &cost, &err));
	ret->ranks = topo.ranks;
	ret->bound = cost.bound;
	assert_int_equal(cost.bound, cost.moved);
	for (size_t i = 0; i < cost.nr_pairs; i++) {
		ret->into[cost.pairs[i].to] += cost.pairs[i].bytes;
		ret->out[cost.pairs[i].from] += cost.pairs[i].bytes;
	}
	rs_cost_done(&cost);
	meta_view_free(view);
	meta_topology_done(&topo);
}

void many_cost_done(struct many_cost *c)
{
	free(c->into);
	free(c->out);
}

bool many_plan(struct many_job *j, const char *topology, unsigned node, struct many_plan *ret)
{
	const struct rs_origins origins = {.arg = j, .view_of = view_of, .format_of = format_of, .payload_of = payload_of,
					   .payload = payload, .skew_of = skew_of};
	struct rs_image *images[RANKS] = {0};
	struct meta_topology topo;
	struct meta_view *view;
	struct sc_err err;
	bool any = false;
	size_t before;

	*ret = (struct many_plan){0};
	MUST(meta_topology_parse(j->layout, topology, &topo, &err));
	MUST(meta_view_new(j->layout, &topo, &j->state, &view, &err));
	before = many_bytes;
	for (unsigned i = 0; i < RANKS && node * RANKS + i < topo.ranks; i++) {
		MUST(rs_image_new(view, node * RANKS + i, FILE_NAME, true, &origins, &images[i], &err));
		for (uint32_t k = 0; k < images[i]->nr; k++) {
			const struct rs_gather *g = &images[i]->gathers[k];

			ret->regions += g->nr;
			for (uint32_t c = 0; c < g->nr; c++)
				if (images[i]->sources.at[g->copies[c].source].rank / RANKS != node) {
					uint64_t bytes = g->copies[c].run;

					for (unsigned d = 0; d < g->copies[c].nr; d++)
						bytes *= g->copies[c].ext[d];
					ret->moved += bytes;
				}
		}
		any = true;
	}
	ret->bytes = ret->regions * sizeof(struct rs_copy);
	ret->all = many_bytes - before;
	ret->distinct = any ? distinct(images, node) : 0;
	for (unsigned i = 0; i < RANKS; i++)
		rs_image_free(images[i]);
	meta_view_free(view);
	meta_topology_done(&topo);
	return any;
}
