/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses views that cut heads of attention apart, as config.json has them (facts.h). */
#include "reshard/checkpoint/export/facts.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/text.h"

/* Tells which of q, k and v a tensor of a layer is (0: none); *dim: in which dimension it has its rows. */
static char projection(const char *name, int *dim)
{
	static const char attention[] = ".self_attn.";
	static const struct {
		const char *text;
		int dim;
	} ends[] = {{"_proj.weight", 0}, {"_proj.bias", 0}, {"_proj.base_layer.weight", 0}, {"_proj.scales", 1}};
	const char *at = strstr(name, attention);

	if (!at || !rs_facts_in_layer(name))
		return 0;
	at += sizeof(attention) - 1;
	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		*dim = ends[i].dim;
		if (*at && strchr("qkv", *at) && strcmp(at + 1, ends[i].text) == 0)
			return *at;
	}
	return 0;
}

/* Tells whether a tensor says which scales each column of a weight has (GPTQ's act-order). */
static bool is_order(const char *name)
{
	static const char end[] = ".g_idx";

	return strcmp(name, end) != 0 && sc_ends_with(name, end);
}

/* Finds the cut of a dimension of an entry by more than one rank; NULL: there is none.  FSDP's cuts (`chunk`) are no
 * cuts of heads. */
static const struct meta_cut *any_cut_of(const struct meta_view *view, const struct meta_entry *e, int dim)
{
	const struct meta_shape *shape = &view->state->tensors[e->tensor].shape;

	for (int i = 0; i < e->rule->nr_cuts && !e->rule->cuts[i].flat; i++) {
		const struct meta_cut *cut = &e->rule->cuts[i];

		if (meta_cut_dim(cut, shape) == dim && !cut->chunk)
			return meta_topology_degree(view->topo, cut->axes) > 1 ? cut : NULL;
	}
	return NULL;
}

/* Likewise, of a cut in one section. */
static const struct meta_cut *cut_of(const struct meta_view *view, const struct meta_entry *e, int dim)
{
	const struct meta_cut *cut = any_cut_of(view, e, dim);

	return cut && cut->nr_sections == 1 ? cut : NULL;
}

/* --- several matrices in one tensor, and tensors with the same number of heads in each --- */

/* Finds the cut of a tensor each of whose sections has the rows of all attention heads. */
static const struct meta_cut *cut_of_heads(const struct meta_view *view, const struct meta_entry *e)
{
	static const struct {
		const char *end;
		int dim;
		uint32_t sections;
	} known[] = {
		{".attention.query_key_value.bias", 0, 1}, {".attention.query_key_value.weight", 0, 1},
		{".attention.self.key.bias", 0, 1},	   {".attention.self.key.weight", 0, 1},
		{".attention.self.query.bias", 0, 1},	   {".attention.self.query.weight", 0, 1},
		{".attention.self.value.bias", 0, 1},	   {".attention.self.value.weight", 0, 1},
		{".attn.c_attn.bias", 0, 3},		   {".attn.c_attn.weight", 1, 3},
		{".self_attn.kv_b_proj.weight", 0, 1},	   {".self_attn.q_b_proj.weight", 0, 1},
	};
	const char *name = view->state->tensors[e->tensor].name;

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		const struct meta_cut *cut =
			sc_ends_with(name, known[i].end) ? any_cut_of(view, e, known[i].dim) : NULL;

		if (cut && cut->nr_sections == known[i].sections)
			return cut;
	}
	return NULL;
}

static bool is_fused(const char *name)
{
	return sc_ends_with(name, ".self_attn.qkv_proj.weight") || sc_ends_with(name, ".self_attn.qkv_proj.bias");
}

static int refuse_part(const struct meta_tensor *t, const char *what, uint64_t heads, const struct meta_cut *cut,
		       uint64_t d, struct sc_err *err)
{
	return sc_fail(err, SC_E_STATE, "'%s' has %" PRIu64 " %sheads by config.json, which %s=%" PRIu64 " does not "
		       "divide: a rank would have parts of heads; choose another topology, or write "
		       "suspicious=accept to config", t->key, heads, what, cut->axes_text, d);
}

/* Judges a tensor in which several matrices, or both of q and k, have heads. */
static int judge_several(const struct rs_facts *facts, const struct meta_view *view, const struct meta_entry *e,
			 struct sc_err *err)
{
	const struct meta_tensor *t = &view->state->tensors[e->tensor];
	const struct meta_cut *cut = cut_of_heads(view, e);
	uint64_t rows[RS_FUSED_MAX], d;
	const char *what;

	if (cut && facts->heads) {
		d = meta_topology_degree(view->topo, cut->axes);
		return facts->heads % meta_cut_parts(cut, 0, d) ? refuse_part(t, "", facts->heads, cut, d, err) : 0;
	}
	cut = facts->head && is_fused(t->name) ? any_cut_of(view, e, 0) : NULL;
	if (!cut || rs_facts_fused(facts, t, rows, &what) != 3 || t->shape.dim[0] % cut->section_sum)
		return 0;
	d = meta_topology_degree(view->topo, cut->axes);
	for (uint32_t s = 0; s < cut->nr_sections; s++) {
		const uint64_t all = t->shape.dim[0] / cut->section_sum * cut->sections[s];

		if (all / meta_cut_parts(cut, s, d) % facts->head)
			return refuse_part(t, s ? "key " : "", all / facts->head, cut, d, err);
	}
	return 0;
}

bool rs_facts_has_heads(const struct meta_view *view)
{
	for (uint32_t i = 0; i < view->nr_entries; i++) {
		const char *name = view->state->tensors[view->entries[i].tensor].name;
		int dim = 0;

		if (((projection(name, &dim) || is_order(name)) && cut_of(view, &view->entries[i], dim)) ||
		    cut_of_heads(view, &view->entries[i]) || is_fused(name))
			return true;
	}
	return false;
}

static int refuse_order(const struct meta_tensor *t, const struct meta_cut *cut, struct sc_err *err)
{
	return sc_fail(err, SC_E_STATE, "'%s' gives columns to groups in the order of their activations (desc_act in "
		       "config.json), so that columns of a rank by %s are of groups on other ranks: choose a topology "
		       "of %s=1, or write suspicious=accept to config", t->key, cut->axes_text, cut->axes_text);
}

int rs_facts_heads(const struct rs_facts *facts, const struct meta_view *view, bool shared, struct sc_err *err)
{
	for (uint32_t i = 0; (facts->head || facts->heads || facts->act_order) && i < view->nr_entries; i++) {
		const struct meta_tensor *t = &view->state->tensors[view->entries[i].tensor];
		int dim = 0;
		const bool order = facts->act_order && is_order(t->name);
		const char which = facts->head ? projection(t->name, &dim) : 0;
		const struct meta_cut *cut = which || order ? cut_of(view, &view->entries[i], order ? 0 : dim) : NULL;
		const uint64_t rows = which == 'q' ? facts->q : facts->kv, heads = which ? rows / facts->head : 0;
		uint64_t d, parts, want;

		if (cut && order)
			return refuse_order(t, cut, err);
		if (!which && judge_several(facts, view, &view->entries[i], err) < 0)
			return SC_E_STATE;
		if (!cut || dim >= t->shape.nr || t->shape.dim[dim] != rows)
			continue;
		d = meta_topology_degree(view->topo, cut->axes);
		parts = meta_cut_parts(cut, 0, d);
		want = shared && which != 'q' ? sc_min_u64(heads, d) : parts;
		if (heads % parts == 0 && parts == want)
			continue;
		if (which == 'q')
			return sc_fail(err, SC_E_STATE, "'%s' has %" PRIu64 " heads by config.json, which %s=%" PRIu64
				       " does not divide: a rank would have parts of heads; choose another topology, "
				       "or write suspicious=accept to config", t->key, heads, cut->axes_text, d);
		return sc_fail(err, SC_E_STATE, "'%s' has %" PRIu64 " heads by config.json, and the layout makes %"
			       PRIu64 " parts of them for %s=%" PRIu64 ", so that ranks would not have whole heads as "
			       "frameworks share them: write kv=%" PRIu64 " behind the preset (upto=%" PRIu64
			       " behind the cut), by which neighbours share what there is too little of; or choose "
			       "another topology, or write suspicious=accept to config", t->key, heads, parts,
			       cut->axes_text, d, heads, heads);
	}
	return 0;
}
