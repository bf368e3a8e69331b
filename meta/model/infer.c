/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps: match every name; count layers of every chunk; count experts; group by logical name and
 * find each group's type and shape; then infer_check.c presents the result at the same topology and
 * compares it with what was written.
 */
#include "meta/model/infer_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Refuses a name that a rule would match with something else in front; 0: none would. */
static int refuse_front(struct infer *n, const struct meta_written *w, const char *key)
{
	struct meta_front f;
	int words, more, old;

	meta_layout_front(n->layout, n->topo->pp > 1, w->file, w->name, &f);
	words = (int)f.words_bytes;
	more = (int)f.root_bytes;
	old = (int)f.old_bytes;
	if (f.kind == META_FRONT_ROOT)
		return sc_fail(n->err, SC_E_STATE,
			       "rank %u: no rule matches '%s', but there is one for it with%s '%.*s' %s%.*s%s%s: "
			       "write root=%.*s behind the name of the preset, or the line 'file *:%.*s' above your "
			       "own rules", w->rank, key, old ? "" : "out", old ? old : more, old ? f.old : f.root,
			       words ? "behind '" : "in front", words, f.words, words ? "'" : "",
			       old ? ", as root= says" : "", more, f.root, more, f.root);
	if (f.kind == META_FRONT_LACKS)
		return sc_fail(n->err, SC_E_STATE,
			       "rank %u: no rule matches '%s', but there is one for it with '%.*s' in front, as root= "
			       "says: take root=%.*s away", w->rank, key, old, f.old, old, f.old);
	if (f.kind == META_FRONT_WITHIN)
		return sc_fail(n->err, SC_E_STATE,
			       "rank %u: no rule matches '%s', but there is one for it without the words (module., "
			       "_orig_mod.) that a wrapper of a part of the model puts into names: save it without "
			       "them, as in {k.replace('_orig_mod.', ''): t for k, t in state.items()}", w->rank, key);
	if (f.kind == META_FRONT_PART)
		return sc_fail(n->err, SC_E_STATE,
			       "rank %u: no rule matches '%s', but there is one for it with '%.*s' in front: save the "
			       "whole model, of which this is a part, or copy the preset, without '%.*s' in its names",
			       w->rank, key, more, f.root, more, f.root);
	return 0;
}

/* Refuses a name of which a line of a known kind can be written: 0: there is none. */
static int refuse_kind(struct infer *n, const struct meta_written *w, const char *key, const char *pattern)
{
	const char *cuts = meta_layout_cuts_all(n->layout);
	struct sc_buf line = {0};
	int rc = 0;

	if (meta_layout_state_line(n->layout, n->topo->pp > 1, w->file, w->name, &line))
		rc = sc_fail(n->err, SC_E_STATE,
			     "rank %u: no rule matches '%s'; if it is a state of an optimizer that has its parameter's "
			     "shape, add the line '%s' to the layout, and else a rule such as '%s copy' (each rank has "
			     "all of it), or the line 'plain %s', which keeps the file as it is", w->rank, key,
			     line.text, pattern, w->file);
	else if (cuts)
		rc = sc_fail(n->err, SC_E_STATE,
			     "rank %u: no rule matches '%s'; add the line '%s copy' to the layout: behind 'use' if it "
			     "is a parameter, of which each rank has a part (%.*s, as all that is named there), or in "
			     "front of it if it is a buffer, of which each rank has all; or the line 'plain %s', "
			     "which keeps the file as it is", w->rank, key, pattern, (int)strcspn(cuts, "<") - 1, cuts,
			     w->file);
	sc_buf_done(&line);
	return rc;
}

/* What to say of a tensor whose name tells that it is several matrices, one behind the other. */
static const char *fused(const char *name)
{
	if (strstr(name, "gate_up_proj"))
		return "; or tp=0 sections=1:1: each has some of gate and some of up";
	if (strstr(name, "qkv"))
		return "; or tp=0 with sections=, the ratio of rows of q, k and v: each has some of each, and some "
		       "models have them in another order, by heads";
	return "";
}

static int refuse_unknown(struct infer *n, const struct meta_written *w, const char *key)
{
	struct sc_buf pattern = {0}, nearest = {0};
	int rc = refuse_front(n, w, key);
	const char *mine;
	bool near;

	if (rc < 0)
		return rc;
	near = meta_layout_nearest(n->layout, w->name, &pattern, &nearest);
	mine = pattern.bytes && !pattern.failed ? pattern.text : key;
	rc = *w->name ? refuse_kind(n, w, key, mine) : 0;
	if (rc == 0 && near)
		rc = sc_fail(n->err, SC_E_STATE,
			     "rank %u: no rule matches '%s'; add a rule for it to the layout, such as '%s copy' (each "
			     "rank has all of it; or tp=0: each has some rows%s), or the line 'plain %s', which keeps "
			     "the file as it is; the nearest rule is '%s'", w->rank, key, mine, fused(w->name),
			     w->file, nearest.text);
	else if (rc == 0)
		rc = sc_fail(n->err, SC_E_STATE,
			     "rank %u: no rule matches '%s'; add a rule for it to the layout, such as '%s copy' (each "
			     "rank has all of it%s), or the line 'plain %s', which keeps the file as it is", w->rank,
			     key, mine, *w->name ? "; or tp=0: each has some rows" : "", w->file);
	sc_buf_done(&pattern);
	sc_buf_done(&nearest);
	return rc;
}

static int match_name(struct infer *n, const struct meta_written *w, struct name **ret)
{
	const char *key = sc_arena_join(&n->arena, w->file, ':', w->name);
	struct name *name = key ? sc_map_get(&n->names, key, strlen(key)) : NULL;

	if (key && !name) {
		name = sc_arena_alloc(&n->arena, sizeof(*name));
		if (!name || sc_map_put(&n->names, key, strlen(key), name) < 0)
			return sc_nomem(n->err);
		name->rule = meta_layout_first(n->layout, n->topo->pp > 1, w->file, w->name, &name->caps);
		if (name->rule && meta_rule_of_factor(n->layout, name->rule, &name->caps, w->shape.nr, &n->arena,
						      &n->factors, &name->rule, n->err) < 0)
			return sc_wrap(n->err, n->err->code, "rank %u: '%s'", w->rank, key);
	}
	if (!key)
		return sc_nomem(n->err);
	if (!name->rule)
		return refuse_unknown(n, w, key);
	if (name->rule->is_object)
		return sc_fail(n->err, SC_E_STATE, "rank %u: '%s': the layout says 'object', but files of this format "
			       "have nothing but tensors; give it another rule, such as copy", w->rank, key);
	if (meta_tensor_each(w->name))
		return sc_fail(n->err, SC_E_STATE, "rank %u: '%s': names that end in @axis=number are reserved; "
			"rename the tensor",
			       w->rank, key);
	if (meta_tensor_padding(w->name, NULL) || meta_file_is_hidden(w->file))
		return sc_fail(n->err, SC_E_STATE, "rank %u: '%s': names of files that end in " META_HIDDEN ", and "
			       "of tensors that end in it and a digit, are reserved; rename it", w->rank, key);
	*ret = name;
	return 0;
}

static int check_where(struct infer *n, const struct meta_written *w, const struct name *name,
		       const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_cap *v = meta_caps_find(&name->caps, META_CAP_V);

	for (uint16_t i = 0; i < name->caps.nr; i++) {
		const struct meta_cap *c = &name->caps.at[i];

		if (c->axis >= 0 && c->number != coords[c->axis])
			return sc_fail(n->err, SC_E_STATE, "rank %u: the name '%s:%s' has %s coordinate %u, but the "
				"rank has %u",
				       w->rank, w->file, w->name, n->layout->axes.name[c->axis], c->number,
				       coords[c->axis]);
	}
	if (v && (v->is_empty == (n->topo->vp > 1) || (!v->is_empty && v->number >= n->topo->vp)))
		return sc_fail(n->err, SC_E_STATE, "rank %u: the virtual chunk in the name '%s:%s' does not fit vp=%u",
			w->rank,
			       w->file, w->name, n->topo->vp);
	return 0;
}

/* Counts the layers of a rank by a stack, which holds all of them. */
static int count_stack(struct infer *n, const struct meta_written *w, uint32_t *layers)
{
	if (!w->shape.nr)
		return sc_fail(n->err, SC_E_STATE, "rank %u: '%s:%s' has no dimension for its layers", w->rank, w->file,
			       w->name);
	if (w->shape.dim[0] > SC_TENSORS_MAX)
		return sc_fail(n->err, SC_E_LIMIT, "rank %u: '%s:%s' has %llu layers, at most %u", w->rank, w->file,
			       w->name, (unsigned long long)w->shape.dim[0], SC_TENSORS_MAX);
	if (*layers < w->shape.dim[0])
		*layers = (uint32_t)w->shape.dim[0];
	n->has_local = true;
	return 0;
}

static int match_rows(struct infer *n)
{
	for (size_t i = 0; i < n->nr; i++) {
		const struct meta_written *w = &n->written[i];
		uint32_t coords[SC_AXES_MAX];
		const struct meta_cap *layer;
		struct name *name = NULL;
		int rc = match_name(n, w, &name);

		meta_topology_coords(n->topo, w->rank, coords);
		if (rc == 0)
			rc = check_where(n, w, name, coords);
		if (rc < 0)
			return rc;
		n->rows[i].name = name;
		layer = meta_caps_find(&name->caps, META_CAP_L);
		if (layer) {
			uint32_t *c = &n->chunk_layers[meta_infer_chunk(n, &name->caps, coords)];

			n->has_local = true;
			if (*c < layer->number + 1)
				*c = layer->number + 1;
		}
		if (name->rule->is_stack) {
			rc = count_stack(n, w, &n->chunk_layers[meta_infer_chunk(n, &name->caps, coords)]);
			if (rc < 0)
				return rc;
		}
		n->has_experts |= meta_caps_find(&name->caps, META_CAP_E) != NULL;
		layer = meta_caps_find(&name->caps, META_CAP_G);
		if (layer && n->layers < layer->number + 1)
			n->layers = layer->number + 1;
	}
	return 0;
}

static void stages_text(struct sc_buf *buf, const uint32_t *at, uint32_t nr, uint32_t even)
{
	for (uint32_t i = 0; i < nr; i++)
		sc_buf_printf(buf, "%s%u", i ? "+" : "", at ? at[i] : even);
}

static int refuse_stages(struct infer *n, uint32_t most)
{
	const struct meta_topology *t = n->topo;
	struct sc_buf found = {0}, want = {0};
	int rc;

	stages_text(&found, n->chunk_layers, t->chunks, 0);
	stages_text(&want, t->nr_stages ? t->stages : NULL, t->chunks, most);
	rc = sc_fail(n->err, SC_E_STATE, "the stages hold %s layers, but topology '%s' means %s",
		     found.text ? found.text : "", t->text, want.text ? want.text : "");
	sc_buf_done(&found);
	sc_buf_done(&want);
	return rc;
}

/* Counts the layers of each chunk, where ranks number layers locally: those that were written, and those that are known
 * from before. */
static int count_layers(struct infer *n)
{
	const struct meta_topology *t = n->topo;
	struct sc_err uneven;
	uint32_t most = 0;
	uint64_t sum = 0;
	bool good = true;

	if (n->counts.layers && meta_topology_starts(t, n->counts.layers, n->starts, &uneven) == 0)
		for (uint32_t c = 0; c < t->chunks; c++)
			if (n->chunk_layers[c] < n->starts[c + 1] - n->starts[c])
				n->chunk_layers[c] = n->starts[c + 1] - n->starts[c];
	for (uint32_t c = 0; c < t->chunks; c++) {
		sum += n->chunk_layers[c];
		if (n->chunk_layers[c] > most)
			most = n->chunk_layers[c];
	}
	for (uint32_t c = 0; c < t->chunks; c++)
		good = good && n->chunk_layers[c] == (t->nr_stages ? t->stages[c] : most);
	if (!good)
		return refuse_stages(n, most);
	if (n->layers < n->counts.layers)
		n->layers = n->counts.layers;
	if (sum > n->layers)
		n->layers = (uint32_t)sum;
	return n->layers ? meta_topology_starts(t, n->layers, n->starts, n->err) : 0;
}

/* Turns local numbers into global ones, which count over all files, also over files that were not written. */
static int count(struct infer *n)
{
	int rc = 0;

	if (n->known && (n->has_local || n->has_experts))
		rc = meta_counts_state(&n->counts, n->layout, n->topo->pp > 1, n->known, n->err);
	return rc < 0 || !n->has_local ? rc : count_layers(n);
}

static struct experts *experts_of(struct infer *n, const struct meta_rule *rule,
				  const struct meta_caps *caps)
{
	const char *key = meta_family_key(rule, caps, &n->arena);
	struct experts *x = key ? sc_map_get(&n->families, key, strlen(key)) : NULL;

	if (!key || x)
		return x;
	x = sc_arena_array(&n->arena, n->topo->ep, sizeof(uint32_t));
	if (!x || sc_map_put(&n->families, key, strlen(key), x) < 0)
		return NULL;
	for (uint32_t k = 0; k < n->topo->ep; k++)
		x->nr[k] = meta_counts_experts(&n->counts, rule, key) / n->topo->ep;
	return x;
}

static int count_experts(struct infer *n)
{
	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < n->nr; i++) {
			const struct name *name = n->rows[i].name;
			const struct meta_cap *e = meta_caps_find(&name->caps, META_CAP_E);
			uint32_t coords[SC_AXES_MAX], ep;
			struct meta_caps caps;
			struct experts *x;

			if (!e)
				continue;
			meta_topology_coords(n->topo, n->written[i].rank, coords);
			ep = n->layout->ep >= 0 ? coords[n->layout->ep] : 0;
			meta_infer_caps(n, i, coords, &caps);
			x = experts_of(n, name->rule, &caps);
			if (!x)
				return sc_nomem(n->err);
			if (pass == 0 && x->nr[ep] < e->number + 1)
				x->nr[ep] = e->number + 1;
			for (uint32_t k = 0; pass == 1 && k < n->topo->ep; k++)
				if (x->nr[k] != x->nr[0])
					return sc_fail(n->err, SC_E_STATE, "'%s:%s': ep coordinate 0 holds %u "
						       "experts, but coordinate %u holds %u; each of ep=%u must hold "
						       "the same number", n->written[i].file, n->written[i].name,
						       x->nr[0], k, x->nr[k], n->topo->ep);
			n->rows[i].expert = e->number + ep * x->nr[0];
		}
	return 0;
}

/* Finds or makes the group of a logical tensor, and adds a row to it. */
static int add_to_group(struct infer *n, size_t i, const struct sc_buf *key)
{
	struct group *g = key->failed ? NULL : sc_map_get(&n->groups, key->text, key->bytes);

	if (!g && !key->failed) {
		g = sc_arena_alloc(&n->arena, sizeof(*g));
		if (g)
			g->key = sc_arena_copy(&n->arena, key->text, key->bytes);
		if (!g || !g->key || sc_map_put(&n->groups, g->key, key->bytes, g) < 0 || sc_vec_push(&n->order, g) < 0)
			g = NULL;
	}
	if (!g || sc_vec_grow((void **)&g->rows, g->nr, &g->room, sizeof(*g->rows)) < 0)
		return sc_nomem(n->err);
	g->rows[g->nr++] = (uint32_t)i;
	if (!n->rows[i].key)
		n->rows[i].key = g->key;
	return 0;
}

static int group_row(struct infer *n, size_t i, struct sc_buf *key)
{
	const struct meta_rule *r = n->rows[i].name->rule;
	const uint64_t layers = r->is_stack ? n->written[i].shape.dim[0] : 1;
	uint32_t coords[SC_AXES_MAX];
	struct meta_caps caps;
	int rc = 0;

	meta_topology_coords(n->topo, n->written[i].rank, coords);
	meta_infer_caps(n, i, coords, &caps);
	if (meta_caps_find(&caps, META_CAP_E))
		meta_caps_set_number(&caps, META_CAP_E, -1, n->rows[i].expert);
	for (uint32_t g = 0; rc == 0 && g < layers; g++) {
		if (r->is_stack)
			meta_caps_set_number(&caps, META_CAP_G, -1, g + n->starts[meta_infer_chunk(n, &caps, coords)]);
		sc_buf_reset(key);
		meta_pattern_render(&r->file_goal, &caps, key);
		sc_buf_add(key, ":", 1);
		meta_pattern_render(&r->goal, &caps, key);
		for (int k = 0; k < r->nr_each; k++)
			sc_buf_printf(key, "%s%s=%u", k ? "," : "@", n->layout->axes.name[r->each[k]],
				      coords[r->each[k]]);
		rc = add_to_group(n, i, key);
	}
	return rc;
}

static int group_rows(struct infer *n)
{
	struct sc_buf key = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n->nr; i++)
		if (!n->rows[i].name->rule->join)
			rc = group_row(n, i, &key);
	sc_buf_done(&key);
	return rc;
}

/* Tells whether a layer or an expert that ranks number locally has another global number now. */
static int is_renumbered(struct infer *n, const struct meta_rule *r, const struct meta_caps *caps)
{
	const struct experts *x;
	const char *key;

	if ((r->has_local || r->is_stack) && n->topo->chunks > 1 && n->layers != n->counts.layers)
		return true;
	if (!n->has_experts || n->topo->ep == 1 || !meta_expert_of(caps) || !meta_rule_spreads(r))
		return false;
	key = meta_family_key(r, caps, &n->arena);
	x = key ? experts_of(n, r, caps) : NULL;
	return x ? x->nr[0] * n->topo->ep != meta_counts_experts(&n->counts, r, key) : sc_nomem(n->err);
}

/* Checks a file that was not written again: its tensors are numbered by the old counts of layers and experts. */
static int check_numbers(struct infer *n, const struct meta_tensor *t)
{
	const char *plain = meta_tensor_plain(t, &n->arena);
	const struct meta_rule *r;
	struct meta_caps caps;
	uint32_t at = 0;
	int rc = 0;

	if (!plain)
		return sc_nomem(n->err);
	while (rc == 0 && (n->has_local || n->has_experts) &&
	       (r = meta_layout_next(n->layout, true, t->file, plain, &at, &caps)))
		rc = is_renumbered(n, r, &caps);
	if (rc <= 0)
		return rc;
	return sc_fail(n->err, SC_E_STATE, "'%s' was not written again, but the files that were change how many "
		       "layers or experts there are, and by that the numbers of those in it; write it again, too",
		       t->file);
}

/* Takes over the tensors of files that were not written; files that were written must hold all of their tensors
 * again. */
static int take_over(struct infer *n)
{
	struct sc_map written = {0};
	int rc = 0;

	for (uint32_t i = 0; i < n->state->nr && rc == 0; i++)
		if (sc_map_put(&written, n->state->tensors[i].file, strlen(n->state->tensors[i].file), n) < 0)
			rc = sc_nomem(n->err);
	for (uint32_t i = 0; n->known && i < n->known->nr && rc == 0; i++) {
		const struct meta_tensor *t = &n->known->tensors[i];

		if (meta_state_find(n->state, t->key))
			continue;
		if (meta_tensor_padding(t->name, NULL))
			; /* it goes with the tensor that it is behind */
		else if (sc_map_get(&written, t->file, strlen(t->file)))
			rc = sc_fail(n->err, SC_E_STATE, "'%s' is in the previous version, but no rank wrote it; if "
				     "it is to go, remove the file on all ranks, commit, and write the file again",
				t->key);
		else
			rc = check_numbers(n, t);
		if (rc == 0 && meta_state_add(n->state, t->key, strlen(t->key), t->dtype, &t->shape) < 0)
			rc = sc_nomem(n->err);
	}
	sc_map_done(&written);
	return rc;
}

static int infer(struct infer *n)
{
	int rc = match_rows(n);

	if (rc == 0)
		rc = count(n);
	if (rc == 0)
		rc = count_experts(n);
	if (rc == 0)
		rc = group_rows(n);
	for (size_t i = 0; i < n->order.nr && rc == 0; i++)
		rc = meta_infer_shape(n, n->order.at[i]);
	for (size_t i = 0; i < n->order.nr && rc == 0; i++)
		if (n->order.at[i]->flat_later)
			rc = meta_infer_flat_shape(n, n->order.at[i]);
	if (rc == 0)
		rc = meta_infer_joins(n);
	if (rc == 0)
		rc = take_over(n);
	if (rc == 0)
		rc = meta_infer_likes(n);
	if (rc == 0)
		rc = meta_infer_scales(n);
	for (size_t i = 0; i < n->nr && rc == 0; i++)
		n->written[i].tensor = (uint32_t)(meta_state_find(n->state, n->rows[i].key) - n->state->tensors);
	return rc < 0 ? rc : meta_infer_check(n->layout, n->topo, n->written, n->nr, n->state, n->err);
}

int meta_infer(const struct meta_layout *layout, const struct meta_topology *topo,
	       struct meta_written *written, size_t nr, const struct meta_state *known,
	       struct meta_state *ret, struct sc_err *err)
{
	struct infer n = {.layout = layout, .topo = topo, .written = written, .nr = nr, .known = known,
			  .state = ret, .err = err};
	int rc;

	if (known) {
		meta_counts_begin(&n.counts, known);
		ret->layers = known->layers;
		ret->experts = known->experts;
	}
	n.rows = sc_zalloc_array(nr, sizeof(*n.rows));
	n.chunk_layers = sc_arena_array(&n.arena, topo->chunks, sizeof(uint32_t));
	n.starts = sc_arena_array(&n.arena, topo->chunks + 1u, sizeof(uint32_t));
	rc = n.rows && n.chunk_layers && n.starts ? infer(&n) : sc_nomem(err);
	for (size_t i = 0; i < n.order.nr; i++)
		sc_sys.release(n.order.at[i]->rows);
	sc_vec_done(&n.order);
	meta_counts_done(&n.counts);
	sc_map_done(&n.names);
	sc_map_done(&n.families);
	sc_map_done(&n.groups);
	sc_map_done(&n.factors);
	sc_arena_done(&n.arena);
	sc_sys.release(n.rows);
	if (rc < 0)
		meta_state_done(ret);
	return rc;
}
