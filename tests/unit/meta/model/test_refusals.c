/* SPDX-License-Identifier: Apache-2.0 */
/* The refusals of docs/layout.md, section 7: each has its sentence. */
#include "meta/model/infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

struct row {
	const char *layout, *topology, *why; /* topology NULL: the layout is refused */
};

#define M "mesh tp cp dp pp\nmesh etp=tp ep edp=* pp\n"

#define SIXTEEN "1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1"

static const struct row rows[] = {
	{M "a", NULL, "no attribute; a tensor that is whole"},
	{M "a foo", NULL, "'foo' is no attribute"},
	{M "a tq=0", NULL, "'tq=0' is no attribute"},
	{M "a copy\n# a line\nb tq=0", NULL, "line 5: layout '*:b tq=0': 'tq=0' is no attribute"},
	{M "a copy\nlet x=1 x=2", NULL, "line 4: layout 'let x=1 x=2': x= is given twice"},
	{"\nuse hf-llama kw=2\n", NULL, "line 2: layout 'use hf-llama kw=2': preset hf-llama has no variable kw"},
	{M "a pad=4", NULL, "pad follows no cut"},
	{M "a tp=0 dp=0 pad=4", NULL, "belong to the first cut"},
	{M "a tp=0 tp=1", NULL, "an axis cuts twice"},
	{M "a dp=0 ep=1", NULL, "no mesh has all of"},
	{M "a tp=x", NULL, "the dimension is not a number"},
	{M "a tp=0 sections=1:y", NULL, "is not a number"},
	{M "a tp=0 sections=0:0", NULL, "add up to 0"},
	{M "a tp=0 sections=" SIXTEEN ":" SIXTEEN ":" SIXTEEN ":" SIXTEEN ":1", NULL, "more than 64 sections"},
	{M "a tp=0 pad=x", NULL, "neither a number nor lcm"},
	{M "a stage=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 copy", NULL, "more than 16 stages"},
	{M "file {K}\na.{K} copy", NULL, "the file's pattern and the name's pattern use the same capture"},
	{M "a.{B} copy", NULL, "{B}, a bucket, is in the names of joined"},
	{M "{L}{G} copy", NULL, "text between two captures of the same kind"},
	{M "{K}.{K} copy", NULL, "a capture is used twice"},
	{M "a{ copy", NULL, "stray {"},
	{M "a{b| copy", NULL, "stray {"},
	{M "a{b|} copy", NULL, "stray {"},
	{M "a{|b} copy", NULL, "stray {"},
	{M "a{b|c.d} copy", NULL, "stray {"},
	{M "a{b|c}{d|e} copy", NULL, "text between two captures"},
	{M "a.{b|c} name=d", NULL, "leaves out {b|c}"},
	{M "z.{b|c} join=a", NULL, "a glob does not capture {b|c}"},
	{M "a.{b|c} copy", NULL, NULL},
	{M "a.{zz} copy", NULL, "is no axis of this layout"},
	{M "a.$x copy", NULL, "no variable x"},
	{M "a.{K} name=b", NULL, "leaves out {K}"},
	{M "l.{L} stage=first copy", NULL, "the layer's number already says the stage"},
	{M "o.{P} like={P}", NULL, NULL},
	{M "o.{K} like={P}\na copy", NULL, "like line must have one {P}"},
	{M "o.{P} like={P} rows\na copy", NULL, NULL},
	{M "o.{K}.{P} like={P} rows=row|r:1 columns=column\na copy", NULL, NULL},
	{M "o.{K}.{P} like={P} rows=row|\na copy", NULL, "rows: '' is neither a word of names nor WORD:1"},
	{M "o.{K}.{P} like={P} columns=c:2\na copy", NULL, "columns: 'c:2' is neither a word of names nor WORD:1"},
	{M "a rows tp=0", NULL, "rows, columns, blocks and whole belong to a like line"},
	{M "a whole=a tp=0", NULL, "rows, columns, blocks and whole belong to a like line"},
	{M "o.{K}.{P} like={P} blocks=b:s|c\na copy", NULL, "blocks: 'c' is not WORD:OF, as in absmax1:state1"},
	{M "o.{K}.{P} like={P} blocks=b:s:t\na copy", NULL, "blocks: 'b:s:t' is not WORD:OF"},
	{M "o.{K}.{P} like={P} blocks=b:s|c:t whole=q\na tp=0 chunk", NULL, NULL},
	{M "z.{K} concat=* dp=0", NULL, "concat= is now join="},
	{M "z join=a dp=0 pad=2\na copy", NULL, NULL},
	{M "z.{K} join=* dp=0", NULL, "a glob does not capture {K}"},
	{M "*.z join=a", NULL, "a glob does not capture *"},
	{M "z.{tp} join=a", NULL, "{tp} is not for the name of a joined"},
	{M "z.{E} join=a.{E}", NULL, "{E} is not for the name of a joined"},
	{M "z join=!a", NULL, "a join has a name and a glob of members"},
	{M "z join=a,", NULL, "a glob is empty"},
	{M "z join=m.bin:a", NULL, "a glob has no colon"},
	{M "z order=reverse dp=0", NULL, "belong to a join"},
	{M "z strip dp=0", NULL, "belong to a join"},
	{M "z join=a order=up", NULL, "is not rules, reverse, name or listed"},
	{M "z join=a align=0", NULL, "align: '0' is not a number from 1"},
	{M "z join=a bucket=9", NULL, "bucket and alone need {B}"},
	{M "z.{B} join=a over=0 bucket=9", NULL, "of joins without over"},
	{M "z join=a over=x", NULL, "is no dimension"},
	{M "z join=a dp=1", NULL, "has dimension 0 only"},
	{M "z join=a flat dp=0", NULL, "can't be made flat"},
	{M "z join=a stage=first", NULL, "a join has cuts and nothing else"},
	{M "z join=a name=b", NULL, NULL},
	{M "a.scale tp=0 of=weight", NULL, NULL},
	{M "a tp=0 upto=0", NULL, "neither a number from 1 nor -"},
	{M "a tp=0 upto=x", NULL, "neither a number from 1 nor -"},
	{M "a upto=2 tp=0", NULL, "upto follows no cut"},
	{M "a tp=0 chunk upto=2", NULL, "upto and chunk exclude each other"},
	{M "a tp=0 sections=1:1 upto=-:1:2", NULL, "upto has 3 numbers, but there are 2 sections"},
	{M "a stack={L} name=a.{G}", NULL, "stack: '{L}' is not {G}"},
	{M "a stack={G}", NULL, "needs {G} in name="},
	{M "a.{G} stack={G}", NULL, "has no {L}, {G} or {V}"},
	{M "a stack={G} name=a.{G} stage=first", NULL, "its rule no stage"},
	{M "a name=a.{G} copy", NULL, "name= uses {G}, which the pattern does not capture"},
	{M "a copy\nplain", NULL, "a plain line has one pattern"},
	{M "a copy\nplain a b", NULL, "a plain line has one pattern"},
	{M "a copy\nplain a.{K}", NULL, "a plain file has no captures"},
	{M "a copy\nplain a**b", NULL, "text between two captures"},
	{M "plain a", NULL, "there is no rule"},
	{M "a copy\nlog", NULL, "a log line has one pattern"},
	{M "a copy\nlog a b", NULL, "a log line has one pattern"},
	{M "a copy\nlog a.{K}", NULL, "a log file has no captures"},
	{M "log a", NULL, "there is no rule"},
	{"mesh tp plain\na copy", NULL, "'plain' is no axis"},
	{"use nosuch", NULL, "no preset 'nosuch'"},
	{"use megatron-gpt gul=1:1", NULL, "preset megatron-gpt has no variable gul; did you mean glu=? It has vocab=, glu=, "},
	{"use megatron-gpt Vocab=300", NULL, "has no variable Vocab; did you mean vocab=?"},
	{"use megatron-gpt parameters=300", NULL, "has no variable parameters; it has vocab="},
	{"use hf-phi3", NULL, "no variable qkv, which the preset has no default for: use hf-phi3 qkv=4:1:1: rows of q, k and v"},
	{"use vllm-llama", NULL, "no variable kv, which the preset has no default for: use vllm-llama kv=8: what vLLM's"},
	{"use replicated vocab=300", NULL, "preset replicated has no variables"},
	{"let gul=1:1\nuse megatron-gpt", NULL, "nothing uses the variable gul"},
	{"use megatron-gpt\nlet glu=1:1", NULL, "nothing uses the variable glu"},
	{"let glu=1:1\nuse megatron-gpt", NULL, NULL},
	{"let v=300 n=tp=0\nuse megatron-gpt vocab=$v\nother $n", NULL, NULL},
	{"a copy", NULL, "no mesh line"},
	{M "a flat tp=0 flat", NULL, "flat is given twice"},
	{M "a object", NULL, NULL},
	{M "a object\nb copy\no.{P} like={P} dp=0 chunk", NULL, NULL},
	{"rng/* object\nuse fsdp2 model=hf-llama", NULL, NULL},
	{"use fsdp2\n*rng*:* object", NULL, NULL},
	{M "a tp=0 object", NULL, "object stands alone"},
	{M "a object each=tp", NULL, "object stands alone"},
	{M "file *:model/\na tp=0\nb.pt:c copy", NULL, NULL},
	{M "file\na tp=0", NULL, "a file line has one pattern"},
	{M "a flat tp=1", NULL, "after flat only dimension 0"},
	{M "a copy", "tq=2", "no axis 'tq'; this layout's axes are tp cp dp pp etp ep edp"},
	{M "a copy", "tp=2,tp=2", "tp is given twice"},
	{M "a copy", "tp=0", "tp is 0"},
	{M "a copy", "tp=01", "'01' is not a number"},
	{M "a copy", "tp=4 ep=3 etp=1", "4 ranks do not divide by 3, the product of etp ep pp"},
	{M "a copy", "tp=2 ep=2", "2 ranks do not divide by 4, the product of etp ep pp (etp is tp, unless it is given)"},
	{M "a copy", "tp=1048577", "more than 1048576 ranks"},
	{M "a copy", "pp=2 stages=1+1+1", "stages= lists 3 chunks, but pp*vp is 2"},
	{M "a copy", "tp=2 order=pp-dp", "order lacks axis tp"},
	{M "a copy", "order=tp-tp", "order repeats axis tp"},
	{M "a copy", "stages=1 stages=1", "stages is given twice"},
	{M "a copy", "tp=2 dp=2 pp=2 order=pp-tp-dp", "disagree on which ranks share a pp coordinate"},
};

static void one_row(void **state)
{
	const struct row *row = *state;
	struct meta_topology topo = {0};
	struct meta_layout *l = NULL;
	struct sc_err err = {0};
	int rc = meta_layout_parse(row->layout, NULL, NULL, &l, &err);

	if (rc == 0 && row->topology)
		rc = meta_topology_parse(l, row->topology, &topo, &err);
	if (row->why && rc == 0)
		fail_msg("taken: %s %s", row->layout, row->topology ? row->topology : "");
	if (!row->why && rc < 0)
		fail_msg("refused: %s", err.msg);
	if (row->why && !strstr(err.msg, row->why))
		fail_msg("says '%s', want '%s'", err.msg, row->why);
	meta_topology_done(&topo);
	meta_layout_free(l);
}

/* canonical text: parse and print are inverse, any spelling is the same topology */
static void canonical_text(void **unused)
{
	static const char *const pairs[][2] = {
		{"tp=1", "tp=1"},	     {"dp=1,pp=1", "tp=1"},
		{" pp=2,, tp=4 ", "tp=4 pp=2"}, {"etp=1 tp=4 ep=2", "tp=4 etp=1 ep=2"},
		{"pp=2 vp=2 stages=7+8x2+9", "pp=2 vp=2 stages=7+8x2+9"},
	};
	struct meta_layout *l = NULL;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, meta_layout_parse(M "a copy", NULL, NULL, &l, &err));
	for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		struct meta_topology a = {0}, b = {0};

		assert_int_equal(0, meta_topology_parse(l, pairs[i][0], &a, &err));
		assert_string_equal(pairs[i][1], a.text);
		assert_int_equal(0, meta_topology_parse(l, a.text, &b, &err));
		assert_string_equal(a.text, b.text);
		assert_int_equal(a.ranks, b.ranks);
		meta_topology_done(&a);
		meta_topology_done(&b);
	}
	meta_layout_free(l);
}

/* files that a `plain` line matches have no rule, in the flat text, too; others are as without it */
static void plain_files(void **unused)
{
	static const struct {
		const char *file;
		bool plain;
	} files[] = {
		{"adapter/a.safetensors", true},      {"adapter/b/c.safetensors", true}, {"adapter", false},
		{"x/reward.safetensors", true},	      {"reward-1.safetensors", true},	 {"reward.bin", false},
		{"model.safetensors", false},	      {"my/adapter/a.safetensors", false},
	};
	const char *text = M "plain adapter/*\n* copy\nplain *reward*.safetensors # no shard\n";
	struct meta_caps caps;
	struct sc_err err;

	(void)unused;
	for (int flat = 0; flat < 2; flat++) {
		struct meta_layout *l = NULL, *again = NULL;

		assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
		if (flat) {
			assert_int_equal(0, meta_layout_parse(l->flat, NULL, NULL, &again, &err));
			meta_layout_free(l);
			l = again;
		}
		assert_int_equal(2, l->nr_plain);
		for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
			assert_int_equal(files[i].plain, meta_layout_is_plain(l, files[i].file));
			assert_int_equal(files[i].plain, !meta_layout_first(l, false, files[i].file, "t", &caps));
		}
		meta_layout_free(l);
	}
}

/* A `log` line makes plain, too; and two layouts may differ by such lines alone. */
static void log_files(void **unused)
{
	static const struct {
		const char *file;
		bool plain, log;
	} files[] = {
		{"train.log", true, true},   {"a/b/c.log", true, true},	  {"runs/events.1", true, true},
		{"adapter/a", true, false},  {"runs", false, false},	  {"adapter/a.log", true, true},
		{"my/runs/x", false, false}, {"log", false, false},
	};
	static const struct {
		const char *text;
		bool same;
	} others[] = {
		{M "plain adapter/*\n* copy\n", true},
		{M "* copy\nplain adapter/*\nlog other\nlog *.log", true},
		{M "plain adapter/*\nplain runs/*\n* copy\n", false},
		{M "* copy\nlog *.log\nlog runs/*", false},
		{M "plain adapter/*\n* copy\nx copy\n", false},
		{M "plain adapter/*\n* tp=0\n", false},
	};
	const char *text = M "log *.log\nlog runs/* # TensorBoard\nplain adapter/*\nlog *.log\n* copy\n";
	struct meta_layout *l = NULL, *flat = NULL;
	struct meta_caps caps;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
	assert_int_equal(0, meta_layout_parse(l->flat, NULL, NULL, &flat, &err));
	for (const struct meta_layout *x = l; x; x = x == l ? flat : NULL) {
		assert_int_equal(3, x->nr_plain);
		for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
			assert_int_equal(files[i].plain, meta_layout_is_plain(x, files[i].file));
			assert_int_equal(files[i].log, meta_layout_is_log(x, files[i].file));
			assert_int_equal(files[i].plain, !meta_layout_first(x, false, files[i].file, "t", &caps));
		}
	}
	assert_true(meta_layout_same_but_logs(l, flat));
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		struct meta_layout *other = NULL;

		assert_int_equal(0, meta_layout_parse(others[i].text, NULL, NULL, &other, &err));
		assert_int_equal(others[i].same, meta_layout_same_but_logs(l, other));
		assert_int_equal(others[i].same, meta_layout_same_but_logs(other, l));
		meta_layout_free(other);
	}
	meta_layout_free(flat);
	meta_layout_free(l);
}

/* What is proposed names the file that it is proposed for, and is no longer than needed. */
static void proposed_logs(void **unused)
{
	static const struct {
		const char *file, *glob;
	} cases[] = {
		{"train.log", "*.log"}, {"runs/a/x1", "runs/*"}, {"wandb/run-1/logs/debug.log", "*.log"},
		{"events.out.tfevents.1.host", "events.out.tfevents.1.host"}, {"runs/events.out.tfevents.1.host", "runs/*"},
		{".log", "*.log"},
	};

	static const char *const none[] = {"model.safetensors", "a/optim.pt", "runs/__0_0.distcp", "my log", "a{b}.log"};
	struct sc_buf nothing = {0};

	(void)unused;
	for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
		assert_false(meta_layout_propose_log(none[i], &nothing));
	assert_int_equal(0, nothing.bytes);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct sc_buf glob = {0}, text = {0};
		struct meta_layout *l = NULL;
		struct sc_err err;

		assert_true(meta_layout_propose_log(cases[i].file, &glob));
		assert_string_equal(cases[i].glob, glob.text);
		sc_buf_printf(&text, M "a copy\nlog %s\n", glob.text);
		assert_int_equal(0, meta_layout_parse(text.text, NULL, NULL, &l, &err));
		assert_true(meta_layout_is_log(l, cases[i].file));
		meta_layout_free(l);
		sc_buf_done(&glob);
		sc_buf_done(&text);
	}
}

#define LAYER "model.layers.{G}."

/*
 * A name that no rule matches is refused with the rule that is most like it, and a line that matches it: with the line
 * added to the layout, the name is taken.
 */
static void nearest_rules(void **unused)
{
	static const char layout[] = M LAYER "self_attn.q_proj.weight tp=0\n" LAYER "mlp.down_proj.weight tp=1\n"
				     "emb.weight   stage=first  tp=0\n";
	static const struct {
		const char *name, *line, *nearest; /* NULL: none is like it */
	} names[] = {
		{"model.layers.7.self_attn.qkv_proj.weight", LAYER "self_attn.qkv_proj.weight copy",
		 LAYER "self_attn.q_proj.weight tp=0"},
		{"model.layers.0.mlp.experts.3.down_proj.weight", LAYER "mlp.experts.*.down_proj.weight copy",
		 LAYER "mlp.down_proj.weight tp=1"},
		{"emb.bias", "emb.bias copy", "emb.weight stage=first tp=0"},
		{"class_token", "class_token copy", NULL},
		{"blocks.3.norm", "blocks.*.norm copy", NULL},
		{"", "m.safetensors: copy", NULL},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct meta_written w = {0, "m.safetensors", names[i].name, META_DTYPE_F32, {1, {4}}};
		char text[512], want[256];
		struct meta_topology topo = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct sc_err err = {0};
		struct meta_caps caps;

		assert_int_equal(0, meta_layout_parse(layout, NULL, NULL, &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=1", &topo, &err));
		assert_true(meta_infer(l, &topo, &w, 1, NULL, &state, &err) < 0);
		(void)snprintf(want, sizeof(want), "such as '%s'", names[i].line);
		if (!strstr(err.msg, want))
			fail_msg("says '%s', want '%s'", err.msg, want);
		(void)snprintf(want, sizeof(want), "the nearest rule is '*:%s'", names[i].nearest ? names[i].nearest : "");
		assert_int_equal(!!names[i].nearest, !!strstr(err.msg, want));
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
		(void)snprintf(text, sizeof(text), "%s%s\n", layout, names[i].line);
		assert_int_equal(0, meta_layout_parse(text, NULL, NULL, &l, &err));
		assert_non_null(meta_layout_first(l, false, "m.safetensors", names[i].name, &caps));
		meta_layout_free(l);
	}
}

#undef LAYER
#define LAYER "model.layers.3."
#define MEGATRON "decoder.layers.0."

/* Presets take what they know, and nothing that is stored beside it: adapters, scales, maps, factors, other models. */
static void names_of_presets(void **unused)
{
	static const struct {
		const char *use, *names;	/* separated by blanks; after a '|' those that are refused */
	} presets[] = {
		{"use hf-llama", LAYER "self_attn.q_proj.weight " LAYER "self_attn.q_proj.bias model.norm.weight score.weight "
		 LAYER "self_attn.rotary_emb.inv_freq state." LAYER "mlp.up_proj.weight.exp_avg lm_head.bias "
		 LAYER "self_attn.q_proj.lora_A.default.weight " LAYER "self_attn.q_proj.lora_A.weight "
		 LAYER "mlp.down_proj.lora_B.weight " LAYER "self_attn.v_proj.base_layer.bias "
		 LAYER "mlp.up_proj.lora_magnitude_vector " LAYER "mlp.up_proj.lora_magnitude_vector.default.weight "
		 "model.embed_tokens.lora_embedding_A.default state." LAYER "mlp.fc1.lora_B.default.weight.exp_avg "
		 LAYER "self_attn.q_proj.weight_scale_inv " LAYER "mlp.up_proj.input_scale " LAYER "self_attn.k_scale " LAYER "mlp.up_proj.g_idx "
		 LAYER "self_attn.q_proj.qweight " LAYER "mlp.down_proj.qzeros | "
		 LAYER "self_attn.q_proj.lora_A.default " LAYER "self_attn.q_proj.lora_C.weight " LAYER "mlp.lora_A.weight "
		 LAYER "input_layernorm.base_layer.weight " LAYER "self_attn.q_proj.weight_packed " LAYER "input_layernorm.g_idx "
		 LAYER "mlp.up_proj.weight.quant_map " LAYER "mlp.up_proj.weight.absmax " LAYER "mlp.up_proj.output_scale "
		 "state." LAYER "mlp.up_proj.weight_scale_inv.exp_avg "
		 "lm_head.qzeros " LAYER "iput_layernorm.weight " "state." LAYER "mlp.up_proj.weight.exp_avg_sq_cols"},
		{"use hf-llama", "state." LAYER "mlp.up_proj.weight.sum state." LAYER "mlp.up_proj.weight.square_avg "
		 "state." LAYER "mlp.up_proj.weight.mu_product optimizer.state.exp_inf." LAYER "mlp.up_proj.weight "
		 "state." LAYER "mlp.up_proj.weight.row_var state." LAYER "mlp.up_proj.weight.exp_avg_sq_row | "
		 "state." LAYER "mlp.uq_proj.weight.sum"},
		{"use hf-moe", LAYER "mlp.gate.weight " LAYER "mlp.gate.e_score_correction_bias " LAYER
		 "self_attn.kv_b_proj.weight " LAYER "mlp.experts.0.down_proj.lora_A.default.weight " LAYER
		 "self_attn.kv_a_proj_with_mqa.lora_B.weight " LAYER "self_attn.kv_b_proj.weight_scale_inv " LAYER
		 "mlp.experts.0.up_proj.weight_scale | " LAYER "mlp.gate.weight_scale " LAYER "mlp.experts.0.weight_scale"},
		{"use hf-moe", LAYER "mlp.experts.gate_up_proj " LAYER "feed_forward.experts.down_proj " LAYER
		 "linear_attn.in_proj_qkvz.weight " LAYER "self_attn.indexer.wk.weight " LAYER "mlp.router.weight | " LAYER
		 "mlp.experts.gate_up_proj_bias " LAYER "mlp.experts.gate_up_proj_blocks " LAYER "linear_attn.q_proj.weight"},
		{"use hf-gpt-oss", LAYER "mlp.experts.gate_up_proj_bias " LAYER "self_attn.sinks " LAYER
		 "mlp.experts.down_proj_scales | " LAYER "mlp.experts.0.gate_proj.weight"},
		{"use hf-glm gate_up=1:1", LAYER "mlp.gate_up_proj.weight " LAYER "mlp.gate_up_proj.qweight | " LAYER
		 "self_attn.qkv_proj.weight"},
		{"use hf-vl", "model.visual.blocks.0.attn.qkv.weight model.vision_tower.encoder.layers.0.self_attn.q_proj.bias "
		 "model.language_model.layers.0.mlp.up_proj.weight language_model.model.norm.weight language_model.lm_head.weight "
		 "visual.merger.ln_q.weight " LAYER "mlp.up_proj.weight image_newline state.model.visual.patch_embed.proj.weight.exp_avg | "
		 "model.visual.blocks.0.attn.qkv.weight_scale audio_model.layers.0.fc1.weight "
		 "model.language_model.layers.0.mlp.gate_up_proj.weight vision_tower.layers.0.fc1.weight.absmax"},
		{"use hf-opt", "model.decoder.layers.0.fc1.weight lm_head.weight | model.decoder.layers.0.encoder_attn.q_proj.weight"},
		{"use hf-bart", "model.encoder.layers.0.fc1.bias model.decoder.layers.1.encoder_attn.out_proj.bias proj_out.weight "
		 "state.model.shared.weight.exp_avg | model.encoder.layers.0.mlp.fc1.bias"},
		{"use hf-t5", "encoder.block.0.layer.1.DenseReluDense.wi_0.weight decoder.block.1.layer.1.EncDecAttention.o.weight "
		 "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight shared.weight | encoder.block.0.layer.1.mlp.wi.weight"},
		{"use hf-gpt2", "transformer.h.0.attn.c_attn.weight h.1.mlp.c_fc.bias h.0.attn.bias wte.weight ln_f.bias "
		 "h.0.attn.c_attn.lora_A.weight transformer.h.2.mlp.c_proj.lora_B.default.weight | "
		 "h.0.attn.c_attn.qweight h.0.attn.q_attn.weight"},
		{"use hf-gpt-neox", "gpt_neox.layers.0.attention.masked_bias gpt_neox.layers.0.attention.query_key_value.bias "
		 "gpt_neox.layers.0.mlp.dense_4h_to_h.lora_A.weight | "
		 "gpt_neox.layers.0.attention.query_key_value.qweight"},
		{"use hf-bert", "bert.encoder.layer.0.attention.self.key.bias encoder.layer.1.output.LayerNorm.gamma "
		 "cls.predictions.bias | bert.encoder.layer.0.attention.self.key.lora_B.weight"},
		{"use megatron-gpt vocab=300", MEGATRON "self_attention.linear_qkv.weight " MEGATRON
		 "self_attention.linear_q_up_proj.weight " MEGATRON "mlp.router.expert_bias " MEGATRON
		 "input_layernorm.weight | " MEGATRON "self_attention.linear_qkv.adapter.linear_in.weight " MEGATRON
		 "self_attention.linear_qkv.weight_scale"},
		{"use fsdp2", "net.0.weight net.0.bias cls_token attn.in_proj_weight bn.running_mean step state.net.0.bias.step "
		 "state.net.0.bias.exp_avg optimizer.state.exp_avg.net.0.bias state.net.0.weight.acc_delta "
		 "state.net.0.weight.eta state.net.0.weight.grad_avg state.net.0.weight.exp_avg_sq_col | layer_scalar "
		 "net.0.weight_scale state.net.0.weight.exp_avg_sq_columns net.0.qweight"},
		{"use fsdp2 model=hf-llama", LAYER "self_attn.q_proj.weight " LAYER "self_attn.rotary_emb.inv_freq "
		 LAYER "self_attn.q_proj.lora_A.weight | " LAYER "mlp.up_proj.weight_packed"},
		{"use vllm-llama kv=2", LAYER "self_attn.qkv_proj.bias " LAYER "mlp.gate_up_proj.weight | " LAYER
		 "self_attn.qkv_proj.weight_scale " LAYER "mlp.gate_up_proj.input_scale"},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++) {
		char *names = strdup(presets[i].names), *rest = names, *name;
		struct meta_layout *l = NULL;
		bool taken = true;
		struct sc_err err = {0};
		struct meta_caps caps;

		assert_non_null(names);
		assert_int_equal(0, meta_layout_parse(presets[i].use, NULL, NULL, &l, &err));
		while ((name = strsep(&rest, " "))) {
			if (strcmp(name, "|") == 0)
				taken = false;
			else if (!!meta_layout_first(l, false, "model.safetensors", name, &caps) != taken)
				fail_msg("%s: '%s' is %s", presets[i].use, name, taken ? "unknown" : "taken");
		}
		assert_false(taken);
		meta_layout_free(l);
		free(names);
	}
}

/* A layout may have several uses of a preset, for dicts with names of their own in front. */
static void uses_of_presets(void **unused)
{
	static const struct {
		const char *use;
		int times;
	} uses[] = {
		{"use hf-llama", 4}, {"use hf-moe", 4}, {"use hf-gpt2", 4}, {"use megatron-gpt vocab=300", 4},
		{"use fsdp2 model=hf-llama", 2}, {"use fsdp2 model=hf-moe", 1}, {"use vllm-llama kv=2", 2},
		{"use hf-vl-moe", 1}, {"use fsdp2 model=hf-vl", 1}, {"use fsdp2 model=hf-vl-moe", 1},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(uses) / sizeof(*uses); i++) {
		struct meta_layout *l = NULL;
		struct sc_buf text = {0};
		struct sc_err err = {0};

		for (int k = 0; k < uses[i].times; k++)
			sc_buf_printf(&text, "%s root=%d/\n", uses[i].use, k);
		if (meta_layout_parse(text.text, NULL, NULL, &l, &err) < 0)
			fail_msg("%d times %s: %s", uses[i].times, uses[i].use, err.msg);
		print_message("%d times %s: %u rules\n", uses[i].times, uses[i].use, l->nr_rules);
		assert_in_range(l->nr_rules, 1, SC_RULES_MAX);
		meta_layout_free(l);
		sc_buf_done(&text);
	}
}

/* Names that have something in front that the rules do not know, or lack what these have. */
static void prefixes_of_names(void **unused)
{
	static const struct {
		const char *use, *name, *why;
	} names[] = {
		{"use hf-llama", "module." LAYER "mlp.up_proj.weight", "without 'module.' in front: write root=module. behind"},
		{"use hf-llama", "_orig_mod.model.norm.weight", "write root=_orig_mod. behind"},
		{"use hf-llama", "state_dict/lm_head.weight", "or the line 'file *:state_dict/' above your own rules"},
		{"use hf-llama", "layers.0.mlp.up_proj.weight", "with 'model.' in front: save the whole model"},
		{"use hf-llama root=module.", LAYER "mlp.up_proj.weight", "with 'module.' in front, as root= says: take root=module. away"},
		{"use hf-llama", "module._orig_mod." LAYER "mlp.up_proj.weight", "write root=module._orig_mod. behind"},
		{"use hf-llama", "_orig_mod.module." LAYER "mlp.up_proj.weight", "write root=_orig_mod.module. behind"},
		{"use hf-llama root=module.", "module._orig_mod." LAYER "mlp.up_proj.weight",
		 "with 'module.' in front, as root= says: write root=module._orig_mod. behind"},
		{"use hf-llama root=module.", "_orig_mod.module." LAYER "mlp.up_proj.weight", "write root=_orig_mod.module. behind"},
		{"use hf-llama root=base_model.model.", "module.base_model.model." LAYER "mlp.up_proj.weight", "write root=module.base_model.model. "},
		{"use megatron-gpt vocab=300 root=model/", "model/module." MEGATRON "input_layernorm.weight", "write root=model/module. behind"},
		{"use hf-llama", "state.module." LAYER "mlp.up_proj.weight.exp_avg", "without 'module.' behind 'state.': write root=module. behind"},
		{"use hf-llama", "optimizer.state._orig_mod.module.model.norm.weight.sum", "write root=_orig_mod.module. behind"},
		{"use hf-llama root=module.", "state.module._orig_mod.model.norm.weight.exp_avg", "write root=module._orig_mod. behind"},
		{"use fsdp2 model=hf-gpt2", "optim.state._orig_mod.transformer.wte.weight.exp_avg", "write root=_orig_mod. behind"},
		{"use hf-llama", LAYER "_orig_mod.mlp.up_proj.weight", "without the words (module., _orig_mod.) that a wrapper of a part"},
		{"use hf-llama root=module.", "module.model._orig_mod.norm.weight", "save it without them"},
		{"use hf-llama", "state.model._orig_mod.norm.weight.exp_avg", "save it without them"},
		{"use hf-gpt2", "h.0.attn.q_attn.weight", "such as 'h.{G}.attn.q_attn.weight copy'"},
		{"use fsdp2", "my_token", "add the line 'my_token copy' to the layout: behind 'use' if it is a parameter, of which each "
		 "rank has a part (cp*dp_shard=0 chunk, as all that is named there)"},
		{"use hf-llama", "state.model.norm.weight.hessian", "add the line '*:*state.{P}.hessian like={P}' to the layout"},
		{"use fsdp2", "optim.state.a.weight.hessian", "add the line '*:*state.{P}.hessian like={P} cp*dp_shard=0 chunk' to"},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct meta_written w = {0, "m.safetensors", names[i].name, META_DTYPE_F32, {1, {4}}, 0};
		struct meta_topology topo = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct sc_err err = {0};

		assert_int_equal(0, meta_layout_parse(names[i].use, NULL, NULL, &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=1", &topo, &err));
		assert_true(meta_infer(l, &topo, &w, 1, NULL, &state, &err) < 0);
		if (!strstr(err.msg, names[i].why))
			fail_msg("says '%s', want '%s'", err.msg, names[i].why);
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
}

/* What a `like` line takes has the shape of the tensor that it is like, or is a number. */
static void shapes_of_likes(void **unused)
{
	static const struct {
		const char *name;
		struct meta_shape shape;
		bool taken;
	} states[] = {
		{"optimizer.state.exp_avg.w", {2, {4, 3}}, true}, {"optimizer.state.exp_avg_sq_col.w", {1, {3}}, false},
		{"optimizer.state.exp_avg_sq_row.w", {1, {4}}, false}, {"optimizer.state.absmax.w", {2, {4, 1}}, false},
		{"optimizer.state.count.w", {0, {0}}, true}, {"optimizer.state.exp_avg.v", {2, {4, 1}}, true},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(states) / sizeof(*states); i++) {
		struct meta_written w[] = {{0, "m.safetensors", "w", META_DTYPE_F32, {2, {4, 3}}, 0},
					   {0, "m.safetensors", states[i].name, META_DTYPE_F32, states[i].shape, 0}};
		struct meta_topology topo = {0};
		struct meta_layout *l = NULL;
		struct meta_state state = {0};
		struct sc_err err = {0};

		assert_int_equal(0, meta_layout_parse("mesh tp\noptimizer.state.{K}.{P} like={P}\n* copy\n", NULL, NULL,
						      &l, &err));
		assert_int_equal(0, meta_topology_parse(l, "tp=1", &topo, &err));
		if ((meta_infer(l, &topo, w, 2, NULL, &state, &err) == 0) != states[i].taken)
			fail_msg("%s: %s", states[i].name, err.msg);
		assert_true(states[i].taken || strstr(err.msg, "but 'm.safetensors:w', which it is like by "));
		meta_state_done(&state);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
}

int main(void)
{
	struct CMUnitTest tests[sizeof(rows) / sizeof(*rows) + 9];
	size_t nr = 0;

	for (; nr < sizeof(rows) / sizeof(*rows); nr++)
		tests[nr] = (struct CMUnitTest){rows[nr].why ? rows[nr].why : "good", one_row, NULL, NULL,
						(void *)&rows[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(canonical_text);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(plain_files);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(log_files);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(proposed_logs);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(nearest_rules);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(names_of_presets);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(uses_of_presets);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(prefixes_of_names);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(shapes_of_likes);
	return _cmocka_run_group_tests("refusals", tests, nr, NULL, NULL);
}
