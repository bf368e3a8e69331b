/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the model of a version as a folder that vLLM's ShardedStateLoader (load_format="sharded_state") takes: each
 * rank's file of its model in one folder, and plain files that say what the model is.  If the model is stored in
 * several files, a rank has one file for its part of each: part-0, part-1, ...
 *
 *     model-rank-3-part-0.safetensors
 *     config.json, ...                       files of the job's folder, and of rank 0's (form_plain.c)
 *
 * Names and cuts are those of the layout: the preset vllm-llama has what vLLM's ranks hold.  vLLM's ranks differ by tp
 * alone, have q, k and v in one tensor, and experts in an order that no layout makes.  Where several names share one
 * memory (tied embeddings), the loader asks for the first by alphabet: a model whose embeddings are tied to its head
 * has lm_head.weight alone.  It is tied if there is no head, or config.json says so.  Options: as of form_hf.c.
 */
#include "reshard/checkpoint/export/form.h"
#include "reshard/checkpoint/export/facts.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"

#define AXIS "tp"
#define FORMAT "safetensors"
#define EXPERT ".experts."
#define KEYS ".self_attn.k_proj.weight"
#define CONFIG "config.json"
#define EMBEDDINGS "model.embed_tokens.weight"
#define HEAD "lm_head.weight"
#define NAME "model-rank-%u-part-%u.safetensors"
#define NAME_BYTES 64

/* The parts of the model that a rank has. */
struct parts {
	const char *glob;
	uint32_t nr, sought;		/* sought: the part whose file is to be found */
	char file[SC_PATH_BYTES_MAX + 1];
};

static int on_file(void *arg, const char *file, const char *logical)
{
	struct parts *p = arg;

	if (fnmatch(p->glob, logical, 0) != 0 || meta_file_is_hidden(file))
		return 0;
	if (p->nr++ != p->sought)
		return 0;
	(void)snprintf(p->file, sizeof(p->file), "%s", file);
	return 0;
}

static int find_parts(const struct rs_formed *x, uint32_t rank, const char *glob, uint32_t sought, struct parts *ret,
		      struct sc_err *err)
{
	*ret = (struct parts){.glob = glob, .sought = sought};
	return meta_view_files(x->view, rank, on_file, ret) < 0 ? sc_nomem(err) : 0;
}

static int check(const struct rs_formed *x, struct sc_err *err)
{
	const struct meta_layout *layout = x->view->layout;
	const struct meta_topology *topo = x->view->topo;

	for (int i = 0; i < topo->nr_axes; i++)
		if (topo->degree[i] > 1 && strcmp(layout->axes.name[i], AXIS) != 0)
			return sc_fail(err, SC_E_UNSUPPORTED, "ranks that load one model by vLLM's sharded_state "
				       "differ by " AXIS " alone, and the topology '%s' has %s: ask for .vllm/" AXIS
				       "=N", topo->text, layout->axes.name[i]);
	return 0;
}

/* Tells whether a tensor is of experts, of one or of all of a layer, and has not the name that vLLM gives it. */
static bool is_of_experts(const char *name)
{
	const char *at = strstr(name, EXPERT);

	at = at ? at + strlen(EXPERT) : "";
	return *at && strncmp(at, "w13_", 4) != 0 && strncmp(at, "w2_", 3) != 0;
}

/* Finds keys of an attention that a layout has apart from what vLLM's ranks have in the same tensor; NULL: none. */
static const char *apart(const struct rs_formed *x, const char *glob)
{
	const struct meta_state *state = x->view->state;

	for (uint32_t i = 0; !x->view->layout->has_joins && i < state->nr; i++)
		if (sc_ends_with(state->tensors[i].name, KEYS) && fnmatch(glob, state->tensors[i].file, 0) == 0)
			return state->tensors[i].name;
	return NULL;
}

/* Finds a tensor that a layer has beside its weight or in its place, which vLLM joins as it joins weights, or loads in
 * another way; NULL: there is none. */
static const char *beside_weights(const struct meta_state *state, const char *glob)
{
	static const char *const words[] = {".lora_", ".base_layer.", ".weight_scale", ".input_scale", ".qweight",
					    ".qzeros", ".g_idx"};

	for (uint32_t i = 0; i < state->nr; i++)
		for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
			if (strstr(state->tensors[i].name, words[k]) && fnmatch(glob, state->tensors[i].file, 0) == 0)
				return state->tensors[i].name;
	return NULL;
}

/* Reads what config.json says, if it is there; one whose bytes are on another node says nothing. */
static int read_facts(const struct rs_formed *x, struct rs_facts *ret, struct sc_err *err)
{
	const struct rs_plain *config = rs_form_plain(x, CONFIG);
	struct sc_err away;
	char *text;
	int rc = 0;

	*ret = (struct rs_facts){0};
	if (!config || !config->bytes || config->bytes > SC_CONFIG_JSON_BYTES_MAX)
		return 0;
	text = sc_sys.alloc(config->bytes + 1);
	if (!text)
		return sc_nomem(err);
	if (rs_blob_read(x->origins->blobs, config->blob, config->bytes, text, &away) == 0)
		rc = rs_facts_read(text, config->bytes, ret, err);
	sc_sys.release(text);
	return rc;
}

static bool has(const struct meta_state *state, const char *glob, const char *name)
{
	for (uint32_t i = 0; i < state->nr; i++)
		if (strcmp(state->tensors[i].name, name) == 0 && fnmatch(glob, state->tensors[i].file, 0) == 0)
			return true;
	return false;
}

/* Finds the files of the model, and whether ranks of vLLM can have it. */
static int find_model(const struct rs_formed *x, const char **ret_glob, struct sc_err *err)
{
	const struct meta_state *state = x->view->state;
	struct rs_facts facts = {0};
	const char *beside, *keys;
	int rc = rs_form_model_files(x, ret_glob, err);

	for (uint32_t i = 0; rc == 0 && i < state->nr; i++)
		if (is_of_experts(state->tensors[i].name) && fnmatch(*ret_glob, state->tensors[i].file, 0) == 0)
			rc = sc_fail(err, SC_E_UNSUPPORTED, "vLLM and SGLang hold all experts of a layer in one "
				     "tensor, in an order that no layout makes of '%s' and the like: let them load "
				     "this model from .hf", state->tensors[i].name);
	beside = rc == 0 ? beside_weights(state, *ret_glob) : NULL;
	if (beside)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "vLLM takes adapters and quantized layers, as '%s' and the "
			     "like, from a Hugging Face folder alone: let it load this model from .hf", beside);
	if (rc == 0)
		rc = check(x, err);
	keys = rc == 0 ? apart(x, *ret_glob) : NULL;
	if (keys)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "vLLM's ranks have q, k and v of a layer in one tensor, and the "
			     "layout has '%s' and the like apart: write 'use vllm-llama kv=N', N for the model's key "
			     "heads, to layout, or let vLLM load this model from .hf", keys);
	if (rc == 0)
		rc = read_facts(x, &facts, err);
	return rc < 0 ? rc : rs_facts_heads(&facts, x->view, true, err);
}

static int files(const struct rs_formed *x, uint32_t rank, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	const char *glob;
	int rc = find_model(x, &glob, err);

	for (rank = 0; rc == 0 && rank < x->view->topo->ranks; rank++) {
		struct parts p;

		rc = find_parts(x, rank, glob, UINT32_MAX, &p, err);
		for (uint32_t i = 0; rc == 0 && i < p.nr; i++) {
			char name[NAME_BYTES];

			(void)snprintf(name, sizeof(name), NAME, rank, i);
			rc = each(arg, name);
		}
	}
	for (size_t i = 0; rc == 0 && i < x->plain->nr; i++)
		rc = each(arg, x->plain->at[i].name);
	return rc;
}

/* Finds the file and the rank of a name. */
static int find(const struct rs_formed *x, const char *name, uint32_t *ret_rank, struct parts *ret, struct sc_err *err)
{
	char again[NAME_BYTES] = "";
	uint32_t part = 0;
	const char *glob;
	int rc = find_model(x, &glob, err);

	if (rc < 0)
		return rc;
	if (sscanf(name, "model-rank-%" SCNu32 "-part-%" SCNu32, ret_rank, &part) == 2)
		(void)snprintf(again, sizeof(again), NAME, *ret_rank, part);
	if (strcmp(again, name) == 0 && *ret_rank < x->view->topo->ranks)
		rc = find_parts(x, *ret_rank, glob, part, ret, err);
	else
		*ret = (struct parts){0};
	return rc < 0 || *ret->file ? rc : sc_fail(err, SC_E_NOT_FOUND, "there is no file '%s'", name);
}

/* Gives the names that files have of a tied model. */
static int tied_names(const struct rs_formed *x, const struct rs_renamed **ret, struct sc_err *err)
{
	static const struct rs_renamed alone[] = {{EMBEDDINGS, HEAD}, {NULL, NULL}};
	static const struct rs_renamed both[] = {{EMBEDDINGS, NULL}, {NULL, NULL}};
	const char *glob;
	struct rs_facts facts;
	int rc = rs_form_model_files(x, &glob, err);

	if (rc == 0)
		rc = read_facts(x, &facts, err);
	if (rc == 0 && has(x->view->state, glob, EMBEDDINGS))
		*ret = !has(x->view->state, glob, HEAD) ? alone : facts.tied ? both : NULL;
	return rc;
}

static int image(const struct rs_formed *x, uint32_t rank, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	const struct rs_plain *plain = rs_form_plain(x, file);
	struct rs_origins o = *x->origins;
	struct parts p;
	int rc;

	(void)as_view;
	if (plain)
		return rs_image_same(plain->blob, plain->bytes, ret, err);
	o.as = rs_format_find(FORMAT);
	rc = find(x, file, &rank, &p, err);
	if (rc == 0)
		rc = tied_names(x, &o.renamed, err);
	return rc < 0 ? rc : rs_image_new(x->view, rank, p.file, true, &o, ret, err);
}

const struct rs_form rs_form_vllm = {
	.mark = '&', .folders = true, .tensors_alone = true, .one_folder = true, .plain = true, .has_options = true,
	.files = files, .image = image,
};
