/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What planning costs at the size of Llama-3.1-405B with Adam (bf16 weights, three f32 tensors of
 * each): views of both topologies, then the plan by nodes of 8 ranks.  No bytes are moved.
 *
 *     plan REPS FROM TO        topologies as tp,pp,dp; one JSON line
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reshard/engine/plan/plan.h"

#define LAYERS 126u
#define HIDDEN 16384u
#define FFN 53248u
#define QKV ((128u + 2 * 8) * 128)
#define VOCAB 128256u
#define RANKS_PER_NODE 8

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const struct sc_err *err)
{
	(void)fprintf(stderr, "plan: %s\n", err->msg);
	exit(1);
}

static void add(struct meta_state *state, const char *name, uint64_t rows, uint64_t columns)
{
	static const char *const moments[] = {"param", "exp_avg", "exp_avg_sq"};
	struct meta_shape shape = {columns ? 2 : 1, {rows, columns}};
	char key[256];

	(void)snprintf(key, sizeof(key), "model.safetensors:%s", name);
	(void)meta_state_add(state, key, strlen(key), META_DTYPE_BF16, &shape);
	for (int i = 0; i < 3; i++) {
		(void)snprintf(key, sizeof(key), "optimizer.safetensors:optimizer.state.%s.%s", moments[i], name);
		(void)meta_state_add(state, key, strlen(key), META_DTYPE_F32, &shape);
	}
}

static void llama(struct meta_state *state)
{
	static const struct {
		const char *name;
		uint64_t rows, columns;
	} of_layer[] = {
		{"self_attention.linear_qkv.layer_norm_weight", HIDDEN, 0},
		{"self_attention.linear_qkv.weight", QKV, HIDDEN},
		{"self_attention.linear_proj.weight", HIDDEN, HIDDEN},
		{"mlp.linear_fc1.layer_norm_weight", HIDDEN, 0},
		{"mlp.linear_fc1.weight", 2 * FFN, HIDDEN},
		{"mlp.linear_fc2.weight", HIDDEN, FFN},
	};
	char name[200];

	add(state, "embedding.word_embeddings.weight", VOCAB, HIDDEN);
	for (unsigned l = 0; l < LAYERS; l++)
		for (size_t i = 0; i < sizeof(of_layer) / sizeof(*of_layer); i++) {
			(void)snprintf(name, sizeof(name), "decoder.layers.%u.%s", l, of_layer[i].name);
			add(state, name, of_layer[i].rows, of_layer[i].columns);
		}
	add(state, "decoder.final_layernorm.weight", HIDDEN, 0);
	add(state, "output_layer.weight", VOCAB, HIDDEN);
}

/* 126 layers do not divide by most pipelines: the first stages take one more. */
static void parse(const struct meta_layout *layout, const char *text, struct meta_topology *ret)
{
	struct sc_buf buf = {0};
	struct sc_err err = {0};
	unsigned tp, pp, dp;

	if (sscanf(text, "%u,%u,%u", &tp, &pp, &dp) != 3)
		exit(2);
	sc_buf_printf(&buf, "tp=%u pp=%u dp=%u stages=", tp, pp, dp);
	for (unsigned i = 0; i < pp; i++)
		sc_buf_printf(&buf, "%s%u", i ? "+" : "", LAYERS / pp + (i < LAYERS % pp));
	if (meta_topology_parse(layout, buf.text, ret, &err) < 0)
		die(&err);
	sc_buf_done(&buf);
}

/* VmHWM: getrusage's figure is that of whoever started this program, if it was larger. */
static long peak_mib(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long kib = 0;

	while (f && fgets(line, sizeof(line), f))
		(void)sscanf(line, "VmHWM: %ld", &kib);
	if (f)
		(void)fclose(f);
	return kib >> 10;
}

static const struct meta_view *same_source(void *arg, const struct meta_tensor *tensor)
{
	(void)tensor;
	return arg;
}

int main(int argc, char **argv)
{
	struct meta_topology from = {0}, to = {0};
	struct meta_view *source = NULL, *target = NULL;
	struct meta_layout *layout = NULL;
	struct meta_state state = {0};
	struct rs_nodes nodes = {RANKS_PER_NODE};
	struct rs_cost cost = {0};
	struct sc_err err = {0};
	int reps = argc == 4 ? atoi(argv[1]) : 0;

	if (reps < 1)
		return 2;
	llama(&state);
	if (meta_layout_parse("use megatron-gpt vocab=128256 glu=1:1", NULL, NULL, &layout, &err) < 0)
		die(&err);
	parse(layout, argv[2], &from);
	parse(layout, argv[3], &to);
	if (meta_view_new(layout, &from, &state, &source, &err) < 0)
		die(&err);
	(void)printf("{\"from\": %u, \"to\": %u, \"tensors\": %u, \"view_s\": [", from.ranks, to.ranks, state.nr);
	for (int i = 0; i < reps; i++) {
		double began = now();

		target = meta_view_free(target);
		if (meta_view_new(layout, &to, &state, &target, &err) < 0)
			die(&err);
		(void)printf("%s%.6f", i ? ", " : "", now() - began);
	}
	(void)printf("], \"plan_s\": [");
	for (int i = 0; i < reps; i++) {
		double began = now();

		rs_cost_done(&cost);
		if (rs_plan_cost(target, same_source, source, &nodes, &cost, &err) < 0)
			die(&err);
		(void)printf("%s%.6f", i ? ", " : "", now() - began);
	}
	(void)printf("], \"bytes\": %llu, \"moved\": %llu, \"bound\": %llu, \"pieces\": %llu, \"pairs\": %zu, "
		     "\"rss_mib\": %ld}\n", (unsigned long long)cost.bytes, (unsigned long long)cost.moved,
		     (unsigned long long)cost.bound, (unsigned long long)cost.pieces, cost.nr_pairs,
		     peak_mib());
	rs_cost_done(&cost);
	meta_view_free(source);
	meta_view_free(target);
	meta_topology_done(&from);
	meta_topology_done(&to);
	meta_state_done(&state);
	meta_layout_free(layout);
	return 0;
}
