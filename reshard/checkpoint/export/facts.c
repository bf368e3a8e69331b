/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/checkpoint/export/facts.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "meta/base/text.h"

/* types of models whose tensors have the names below, with shapes by the four numbers of their config.json */
static const char *const models[] = {
	"apertus", "arcee", "bert", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "gemma",
	"gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_neox", "granite", "helium", "hunyuan_v1_dense",
	"llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2",
	"qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
};

/* types of text models that are a part of others, of which the heads alone are read: from `text_config`, or from the
 * config itself */
static const struct text_model {
	const char *type;
	bool by_width;		/* a config without head_dim means the model's width by its heads */
} text_models[] = {
	{"gemma3_text", false}, {"glm4v_moe_text", false}, {"glm4v_text", false},      {"llama", true},
	{"mistral", true},	{"qwen2", true},	   {"qwen2_5_vl", true},       {"qwen2_5_vl_text", true},
	{"qwen2_vl", true},	{"qwen2_vl_text", true},   {"qwen3", false},	       {"qwen3_vl_moe_text", false},
	{"qwen3_vl_text", false},
};

/* Dimensions: the vocabulary (at least: it is padded), the model's width, that inside of a layer's MLP, any. */
enum dimension { NONE, VOCAB, HIDDEN, INTERMEDIATE, Q, KV, ANY };

static const char *const keys[] = {[VOCAB] = "vocab_size", [HIDDEN] = "hidden_size",
				   [INTERMEDIATE] = "intermediate_size",
				   [Q] = "num_attention_heads", [KV] = "num_key_value_heads"};

static const struct name {
	const char *text;		/* of a tensor of a layer: behind its number */
	enum dimension dim[2];
} whole[] = {
	{"bert.embeddings.word_embeddings.weight", {VOCAB, HIDDEN}},
	{"embed_out.weight", {ANY, HIDDEN}},
	{"gpt_neox.embed_in.weight", {VOCAB, HIDDEN}},
	{"lm_head.weight", {ANY, HIDDEN}}, /* a draft's has some words alone */
	{"model.embed_tokens.weight", {VOCAB, HIDDEN}},
}, in_layers[] = {
	{"input_layernorm.weight", {HIDDEN}},
	{"intermediate.dense.weight", {INTERMEDIATE, HIDDEN}},
	{"mlp.c_fc.weight", {INTERMEDIATE, HIDDEN}},
	{"mlp.c_proj.weight", {HIDDEN, INTERMEDIATE}},
	{"mlp.dense_4h_to_h.weight", {HIDDEN, INTERMEDIATE}},
	{"mlp.dense_h_to_4h.weight", {INTERMEDIATE, HIDDEN}},
	{"mlp.down_proj.weight", {HIDDEN, INTERMEDIATE}},
	{"mlp.fc1.weight", {INTERMEDIATE, HIDDEN}},
	{"mlp.fc2.weight", {HIDDEN, INTERMEDIATE}},
	{"mlp.gate_proj.weight", {INTERMEDIATE, HIDDEN}},
	{"mlp.gate_up_proj.weight", {ANY, HIDDEN}},
	{"mlp.up_proj.weight", {INTERMEDIATE, HIDDEN}},
	{"output.dense.weight", {HIDDEN, INTERMEDIATE}},
	{"post_attention_layernorm.weight", {HIDDEN}},
	{"self_attn.k_proj.weight", {KV, HIDDEN}},
	{"self_attn.o_proj.weight", {HIDDEN, ANY}},
	{"self_attn.q_proj.weight", {Q, HIDDEN}},
	{"self_attn.qkv_proj.bias", {ANY}},
	{"self_attn.qkv_proj.weight", {ANY, HIDDEN}},
	{"self_attn.v_proj.weight", {KV, HIDDEN}},
};
static const char *const layers[] = {"bert.encoder.layer.", "gpt_neox.layers.", "language_model.model.layers.",
				     "model.language_model.layers.", "model.layers."};

static bool is_known(const json_t *config)
{
	const char *model = json_string_value(json_object_get(config, "model_type"));

	for (size_t i = 0; model && i < sizeof(models) / sizeof(*models); i++)
		if (strcmp(model, models[i]) == 0)
			return true;
	return false;
}

/* Of gpt2 the heads alone are read: its other numbers have names of their own. */
static bool is_gpt2(const json_t *config)
{
	const char *model = json_string_value(json_object_get(config, "model_type"));

	return model && strcmp(model, "gpt2") == 0;
}

/* Tells whether a config says that its model consists of parts, or is a draft. */
static bool is_special(json_t *config)
{
	static const char end[] = "_config";
	const char *key;
	json_t *value;

	json_object_foreach(config, key, value) {
		const size_t n = strlen(key), m = sizeof(end) - 1;

		if (strcmp(key, "quantization_config") == 0) /* that changes types, not heads */
			continue;
		if ((n > m && strcmp(key + n - m, end) == 0 && !json_is_null(value)) ||
		    strncmp(key, "draft_", 6) == 0 || (strcmp(key, "is_encoder_decoder") == 0 && json_is_true(value)))
			return true;
	}
	return false;
}

static uint64_t number(const json_t *config, const char *key)
{
	const json_int_t n = json_integer_value(json_object_get(config, key));

	return n > 0 ? (uint64_t)n : 0;
}

/* Reads the rows of q, and of k or v: heads of head_dim, or of the model's width by heads.  A number above 2^30 counts
 * as unknown. */
static void read_heads(const json_t *config, struct rs_facts *ret)
{
	const uint64_t heads = number(config, "num_attention_heads"), own = number(config, "num_key_value_heads");
	const uint64_t size = number(config, "head_dim"), kv = own ? own : heads, most = 1u << 30;
	const uint64_t of_width = heads && ret->hidden % heads == 0 ? ret->hidden / heads : 0;
	const uint64_t rows = size ? size : of_width;

	ret->heads = heads <= most ? heads : 0;
	if (heads > most || kv > most || rows > most || json_object_get(config, "kv_lora_rank")) /* MLA's differ */
		return;
	ret->head = rows;
	ret->q = heads * rows;
	ret->kv = kv * rows;
}

/* Reads the heads of the text model of one that consists of parts.  All numbers must be there: a config may lack those
 * that are its type's defaults. */
static void read_text_heads(const json_t *config, struct rs_facts *ret)
{
	const json_t *inner = json_object_get(config, "text_config"), *text = inner ? inner : config;
	const char *type = json_string_value(json_object_get(text, "model_type"));
	struct rs_facts facts = {.hidden = number(text, keys[HIDDEN])};

	if (!number(text, keys[Q]) || !number(text, keys[KV]))
		return;
	for (size_t i = 0; type && i < sizeof(text_models) / sizeof(*text_models); i++)
		if (strcmp(type, text_models[i].type) == 0 && (text_models[i].by_width || number(text, "head_dim")))
			read_heads(text, &facts);
	ret->heads = facts.heads;
	ret->head = facts.head;
	ret->q = facts.q;
	ret->kv = facts.kv;
}

static void read_quantization(const json_t *config, struct rs_facts *ret)
{
	const json_t *how = json_object_get(config, "quantization_config");
	const json_t *size = json_object_get(how, "weight_block_size");

	ret->act_order = json_is_true(json_object_get(how, "desc_act"));
	for (size_t i = 0; i < 2 && json_array_size(size) == 2; i++) {
		const json_int_t n = json_integer_value(json_array_get(size, i));

		ret->block[i] = n > 0 ? (uint64_t)n : 0;
	}
}

int rs_facts_read(const char *text, size_t bytes, struct rs_facts *ret, struct sc_err *err)
{
	json_error_t why;
	json_t *config = json_loadb(text, bytes, JSON_ALLOW_NUL, &why);

	*ret = (struct rs_facts){0};
	if (!config)
		return json_error_code(&why) == json_error_out_of_memory ? sc_nomem(err) : 0;
	ret->tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
	read_quantization(config, ret);
	if (is_gpt2(config))
		ret->heads = sc_min_u64(number(config, "n_head"), 1u << 30);
	if (is_known(config) && !is_special(config)) {
		ret->vocab = number(config, keys[VOCAB]);
		ret->hidden = number(config, keys[HIDDEN]);
		ret->intermediate = number(config, keys[INTERMEDIATE]);
		ret->layers = number(config, "num_hidden_layers");
		if (ret->layers) /* those that predict further words are behind the last one */
			ret->layers += number(config, "num_nextn_predict_layers");
		read_heads(config, ret);
	} else if (json_object_get(config, "vision_config")) {
		read_text_heads(config, ret);
	}
	json_decref(config);
	return 0;
}

static const struct name *find(const struct name *names, size_t nr, const char *text)
{
	for (size_t i = 0; i < nr; i++)
		if (strcmp(names[i].text, text) == 0)
			return &names[i];
	return NULL;
}

/* Looks up a name; *layer is the number of its layer, or -1: it is of no layer.  False: nothing is known of it. */
static bool look(const char *name, const struct name **ret, int64_t *layer)
{
	/* a key of torch.save(), DDP, torch.compile, PEFT: each may stand in front of another */
	static const char *const roots[] = {"model/", "module.", "_orig_mod.", "base_model.model."};

	for (size_t i = 0; i < sizeof(roots) / sizeof(*roots); i++)
		if (strncmp(name, roots[i], strlen(roots[i])) == 0) {
			name += strlen(roots[i]);
			i = SIZE_MAX; /* from the first one */
		}
	*layer = -1;
	for (size_t i = 0; i < sizeof(layers) / sizeof(*layers); i++) {
		const size_t n = strlen(layers[i]), digits = strncmp(name, layers[i], n) ? 0 : strcspn(name + n, ".");
		uint32_t nr;

		if (!digits || !name[n + digits] || !sc_number_parse(name + n, digits, &nr))
			continue;
		*layer = nr;
		*ret = find(in_layers, sizeof(in_layers) / sizeof(*in_layers), name + n + digits + 1);
		return true;
	}
	*ret = find(whole, sizeof(whole) / sizeof(*whole), name);
	return *ret;
}

bool rs_facts_in_layer(const char *name)
{
	const struct name *what;
	int64_t layer;

	return look(name, &what, &layer) && layer >= 0;
}

bool rs_facts_know(const char *name)
{
	const struct name *what;
	int64_t layer;

	return look(name, &what, &layer);
}

static bool is_plain(enum meta_dtype dtype)
{
	return dtype == META_DTYPE_F16 || dtype == META_DTYPE_BF16 || dtype == META_DTYPE_F32 ||
	       dtype == META_DTYPE_F64;
}

bool rs_facts_agree(const struct rs_facts *facts, const struct meta_tensor *tensor, const char **key,
		    struct meta_shape *want)
{
	const uint64_t sizes[] = {[VOCAB] = facts->vocab, [HIDDEN] = facts->hidden,
				  [INTERMEDIATE] = facts->intermediate, [Q] = facts->q, [KV] = facts->kv,
				  [ANY] = 0};
	const struct meta_shape *shape = &tensor->shape;
	const struct name *what;
	int64_t layer;

	*key = NULL;
	if (!look(tensor->name, &what, &layer))
		return true;
	*want = (struct meta_shape){0};
	if (facts->layers && layer >= (int64_t)facts->layers) {
		*key = "num_hidden_layers";
		return false;
	}
	if (!what || !is_plain(tensor->dtype) || shape->nr != 1 + (what->dim[1] != NONE))
		return true; /* packed, or factored */
	*want = *shape;
	for (int i = 0; i < shape->nr; i++) {
		const enum dimension d = what->dim[i];

		if (!sizes[d] || shape->dim[i] == sizes[d] || (d == VOCAB && shape->dim[i] > sizes[d]))
			continue;
		want->dim[i] = sizes[d];
		*key = *key ? *key : keys[d];
	}
	return !*key;
}

int rs_facts_fused(const struct rs_facts *facts, const struct meta_tensor *tensor, uint64_t rows[RS_FUSED_MAX],
		   const char **what)
{
	const uint64_t all = tensor->shape.nr ? tensor->shape.dim[0] : 0;
	const struct name *name;
	int64_t layer;

	if (!look(tensor->name, &name, &layer) || layer < 0 || !name || !is_plain(tensor->dtype) || !all)
		return 0;
	if (strncmp(name->text, "mlp.gate_up_proj.", 17) == 0 && all % 2 == 0 && all / 2 == facts->intermediate) {
		*what = "gate and up";
		rows[0] = rows[1] = facts->intermediate;
		return 2;
	}
	if (strncmp(name->text, "self_attn.qkv_proj.", 19) == 0 && facts->q && all == facts->q + 2 * facts->kv) {
		*what = "q, k and v";
		rows[0] = facts->q;
		rows[1] = rows[2] = facts->kv;
		return 3;
	}
	return 0;
}
