/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presents a tensor: of the rules whose logical pattern matches its name, takes the first that is not
 * tied and that is the first match of the stored name it gives; and every tied rule (pp > 1).  A layout
 * is thus its own inverse, checked.
 */
#include "meta/model/present_i.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct each_family {	/* tensors of one `each` name: how many there are along each axis */
	uint32_t had[SC_AXES_MAX];
};

static int add_match(struct builder *b, const struct meta_rule *rule, const struct meta_caps *caps,
		     const uint32_t *experts)
{
	struct match m = {.rule = rule, .nr_caps = caps->nr, .experts = experts};

	m.caps = (const struct meta_cap *)sc_arena_copy(&b->arena, (const char *)caps->at,
							caps->nr * sizeof(*caps->at));
	return m.caps && sc_vec_push(&b->matches, m) == 0 ? 0 : -1;
}

static void caps_of(const struct match *m, struct meta_caps *ret)
{
	ret->nr = m->nr_caps;
	memcpy(ret->at, m->caps, m->nr_caps * sizeof(*m->caps));
}

static int count_each(struct builder *b, const struct meta_rule *rule, const struct meta_tensor *t,
		      const char *plain)
{
	const char *p = meta_tensor_each(t->name);
	const char *key = sc_arena_join(&b->arena, t->file, ':', plain);
	struct each_family *f = key ? sc_map_make(&b->eachs, key, strlen(key), &b->arena, sizeof(*f)) : NULL;

	if (!f)
		return sc_nomem(b->err);
	for (int i = 0; i < rule->nr_each; i++) {
		uint32_t at;

		p = p ? strchr(p, '=') : NULL;
		if (!p)
			return sc_fail(b->err, SC_E_STATE, "'%s': a coordinate that the rule '%s' asks for is missing",
				t->key,
				       rule->text);
		at = (uint32_t)strtoul(++p, NULL, 10);
		if (f->had[i] < at + 1)
			f->had[i] = at + 1;
	}
	return 0;
}

/* Finds the rules whose logical pattern matches tensor t, and counts what all tensors decide: layers, experts, each. */
static int find_matches(struct builder *b, uint32_t t, uint32_t *first)
{
	const struct meta_view *v = b->v;
	const struct meta_tensor *tensor = &v->state->tensors[t];
	const char *plain = meta_tensor_plain(tensor, &b->arena);
	bool is_each = plain != tensor->name, told = false;
	const struct meta_rule *r;
	const uint32_t *experts;
	struct meta_caps caps;
	uint32_t at = 0;
	int rc = 0;

	if (!plain)
		return sc_nomem(b->err);
	first[t] = (uint32_t)b->matches.nr;
	if (meta_tensor_padding(tensor->name, NULL))
		return 0; /* it is where the tensor is that it is behind */
	while (rc == 0 && (r = meta_layout_next(v->layout, true, tensor->file, plain, &at, &caps))) {
		if ((r->tied && v->topo->pp == 1) || (r->nr_each > 0) != is_each)
			continue;
		if (meta_counts_add(&b->counts, r, &caps, !r->tied && !told, &experts) < 0 ||
		    add_match(b, r, &caps, experts) < 0)
			return sc_nomem(b->err);
		told |= !r->tied;
		if (is_each)
			rc = count_each(b, r, tensor, plain);
	}
	return rc;
}

/* Adds an entry if the stored name leads back to the rule; sets *mine. */
static int add_entry(struct builder *b, uint32_t t, const struct match *m,
		     const uint32_t fixed[SC_AXES_MAX], const struct meta_caps *caps, bool *mine)
{
	const struct meta_view *v = b->v;
	struct meta_entry e = {.tensor = t, .experts = m->experts ? *m->experts : 0, .rule = m->rule};
	struct sc_buf *file = &b->file, *name = &b->name;
	struct meta_caps all = *caps, found;
	bool varies = false;

	for (int part = 0; part < 2; part++) {
		const struct meta_pattern *p = part ? &m->rule->name : &m->rule->file;

		for (uint16_t i = 0; i < p->nr; i++)
			if (p->tokens[i].axis >= 0) {
				uint32_t at = fixed[p->tokens[i].axis];

				varies |= at == META_FREE;
				meta_caps_set_number(&all, p->tokens[i].cap, p->tokens[i].axis,
						     at == META_FREE ? 0 : at);
			}
	}
	sc_buf_reset(file);
	sc_buf_reset(name);
	meta_pattern_render(&m->rule->file, &all, file);
	meta_pattern_render(&m->rule->name, &all, name);
	e.file = meta_keep_text(b, file, v->state->tensors[t].file);
	e.name = meta_keep_text(b, name, v->state->tensors[t].name);
	e.fixed = meta_keep_fixed(b, fixed);
	if (!e.file || !e.name || !e.fixed)
		return sc_nomem(b->err);
	if (meta_layout_first(v->layout, v->topo->pp > 1, e.file, e.name, &found) != m->rule)
		return 0;
	if (varies) {
		struct meta_caps *kept = sc_arena_alloc(&b->v->arena, sizeof(*kept));

		if (!kept)
			return sc_nomem(b->err);
		*kept = all;
		e.varies = kept;
	}
	if (meta_rule_of_factor(v->layout, m->rule, &all, v->state->tensors[t].shape.nr, &b->v->arena, &b->factors,
				&e.rule, b->err) < 0)
		return sc_wrap(b->err, b->err->code, "'%s'", v->state->tensors[t].key);
	if (e.rule->factor == META_BLOCKS && meta_place_blocks(b, t, &e.rule) < 0)
		return b->err->code;
	*mine = true;
	return sc_vec_push(&b->entries, e) < 0 ? sc_nomem(b->err) : 0;
}

/* Finds the chunks that the rule places a tensor on. */
static int place_chunks(struct builder *b, const struct match *m, uint32_t t,
			const uint32_t fixed[SC_AXES_MAX], struct meta_caps caps, bool *mine)
{
	const struct meta_topology *topo = b->v->topo;
	const struct meta_rule *r = m->rule;
	const struct meta_cap *layer = meta_layer_of(&caps);
	const uint32_t number = layer ? layer->number : 0;
	bool all = r->has_virtual && !layer && !r->nr_stage;
	uint32_t stages[SC_STAGE_LIST_MAX], nr = 0;
	int rc = 0;

	if (layer) {
		uint32_t c = topo->chunks;

		while (b->starts[--c] > number)
			;
		meta_caps_set_number(&caps, META_CAP_L, -1, number - b->starts[c]);
		if (meta_caps_find(&caps, META_CAP_G) && r->has_local == false)
			meta_caps_set_number(&caps, META_CAP_G, -1, number);
		stages[nr++] = c;
	}
	for (int i = 0; i < r->nr_stage; i++) {
		uint32_t c = r->stage[i] < 0 ? topo->chunks - 1 : (uint32_t)r->stage[i], at = nr;

		if (c >= topo->chunks)
			return sc_fail(b->err, SC_E_TOPOLOGY, "rule '%s': stage %u is out of range: topology '%s' has "
				"%u stages",
				       r->text, c, topo->text, topo->chunks);
		while (at && stages[at - 1] > c)
			at--;
		if (at && stages[at - 1] == c)
			continue;
		memmove(&stages[at + 1], &stages[at], (nr - at) * sizeof(*stages));
		stages[at] = c;
		nr++;
	}
	for (uint32_t i = 0; rc == 0 && i < (all ? topo->chunks : nr ? nr : 1); i++) {
		bool placed = all || nr;
		uint32_t c = all ? i : nr ? stages[i] : 0, where[SC_AXES_MAX];

		memcpy(where, fixed, sizeof(where));
		if (placed && b->v->layout->pp >= 0)
			where[b->v->layout->pp] = c % topo->pp;
		if (r->has_virtual) {
			meta_caps_set_number(&caps, META_CAP_V, -1, c / topo->pp);
			((struct meta_cap *)meta_caps_find(&caps, META_CAP_V))->is_empty = topo->vp == 1;
		}
		rc = add_entry(b, t, m, where, &caps, mine);
	}
	return rc;
}

/* Adds the coordinates that see this one of the tensors of an `each` rule. */
static int place_each(struct builder *b, const struct match *m, uint32_t t,
		      uint32_t fixed[SC_AXES_MAX], const struct meta_caps *caps, bool *mine)
{
	const struct meta_tensor *tensor = &b->v->state->tensors[t];
	const struct meta_rule *r = m->rule;
	const struct meta_topology *topo = b->v->topo;
	const char *p = meta_tensor_each(tensor->name), *key;
	uint32_t my[SC_AXES_MAX] = {0}, product = 1;
	const struct each_family *f;
	int rc = 0;

	if (!r->nr_each)
		return place_chunks(b, m, t, fixed, *caps, mine);
	key = sc_arena_printf(&b->arena, "%s:%.*s", tensor->file, (int)(p - tensor->name), tensor->name);
	f = key ? sc_map_get(&b->eachs, key, strlen(key)) : NULL;
	if (!f)
		return sc_nomem(b->err);
	for (int i = 0; i < r->nr_each; i++) {
		p = strchr(p, '=') + 1;
		my[i] = (uint32_t)strtoul(p, NULL, 10);
		product *= topo->degree[r->each[i]];
		if (!r->wrap && f->had[i] != topo->degree[r->each[i]])
			return sc_fail(b->err, SC_E_STATE,
				       "'%s' exists once for each of %u %s coordinates, but the topology has %u; "
				       "say wrap in the layout's rule to read coordinate i from i mod the old degree",
				       tensor->key, f->had[i], b->v->layout->axes.name[r->each[i]],
				       topo->degree[r->each[i]]);
	}
	for (uint32_t x = 0; rc == 0 && x < product; x++) {
		bool here = true;

		for (uint32_t i = r->nr_each, left = x; i-- > 0;) {
			uint32_t d = topo->degree[r->each[i]];

			fixed[r->each[i]] = left % d;
			here = here && left % d % f->had[i] == my[i];
			left /= d;
		}
		if (here)
			rc = place_chunks(b, m, t, fixed, *caps, mine);
	}
	return rc;
}

static int place(struct builder *b, const struct match *m, uint32_t t, bool *mine)
{
	uint32_t fixed[SC_AXES_MAX], ep = b->v->topo->ep;
	const struct meta_cap *x;
	struct meta_caps caps;

	caps_of(m, &caps);
	x = meta_expert_of(&caps);
	for (int i = 0; i < SC_AXES_MAX; i++)
		fixed[i] = META_FREE;
	if (x) {
		uint32_t each = *m->experts / ep;

		if (*m->experts % ep)
			return sc_fail(b->err, SC_E_STATE, "'%s': %u experts do not divide by ep=%u",
				       b->v->state->tensors[t].key, *m->experts, ep);
		if (b->v->layout->ep >= 0)
			fixed[b->v->layout->ep] = x->number / each;
		meta_caps_set_number(&caps, META_CAP_E, -1, x->number % each);
	}
	return place_each(b, m, t, fixed, &caps, mine);
}

static int place_tensor(struct builder *b, uint32_t t, const uint32_t *first)
{
	const char *key = b->v->state->tensors[t].key;
	size_t before = b->entries.nr;
	bool primary = false;
	int rc = 0;

	b->v->first[t] = (uint32_t)before;
	if (meta_tensor_padding(b->v->state->tensors[t].name, NULL))
		return meta_place_padding(b, t);
	for (uint32_t i = first[t]; i < first[t + 1] && rc == 0; i++) {
		const struct match *m = &b->matches.at[i];
		bool mine = false;

		if (!m->rule->tied && primary)
			continue;
		rc = place(b, m, t, &mine);
		primary |= mine && !m->rule->tied;
	}
	if (rc == 0 && b->entries.nr == before && meta_layout_is_plain(b->v->layout, b->v->state->tensors[t].file))
		return sc_fail(b->err, SC_E_STATE, "the layout says that '%s' is plain, but the version has its "
			       "tensors; remove the file and commit, then change the layout",
			       b->v->state->tensors[t].file);
	if (rc == 0 && b->entries.nr == before)
		return sc_fail(b->err, SC_E_STATE, "no rule places '%s'", key);
	if (rc == 0 && !primary)
		return sc_fail(b->err, SC_E_STATE, "only rules with tied= place '%s'", key);
	return rc;
}

/* --- checks of every rank of the result --- */

static bool compatible(const struct meta_entry *a, const struct meta_entry *b)
{
	for (int i = 0; i < SC_AXES_MAX; i++)
		if (a->fixed[i] != META_FREE && b->fixed[i] != META_FREE && a->fixed[i] != b->fixed[i])
			return false;
	return true;
}

struct same_key {
	const struct meta_entry *e;
	struct same_key *next;
};

static int check_names(struct builder *b)
{
	const struct meta_view *v = b->v;

	if (sc_map_reserve(&b->keys, v->nr_entries) < 0)
		return sc_nomem(b->err);
	for (uint32_t i = 0; i < v->nr_entries; i++) {
		const struct meta_entry *e = &v->entries[i];
		const char *key = sc_arena_join(&b->arena, e->file, ':', e->name);
		struct same_key *head = key ? sc_map_get(&b->keys, key, strlen(key)) : NULL;
		struct same_key *mine = sc_arena_alloc(&b->arena, sizeof(*mine));

		if (!key || !mine)
			return sc_nomem(b->err);
		if (e->behind && (!e->hidden || !e->rows))
			continue; /* it is stored with the other tensor */
		for (struct same_key *s = head; s; s = s->next)
			if (compatible(s->e, e) && !(e->group && s->e->group == e->group))
				return sc_fail(b->err, SC_E_STATE,
					       "'%s' and '%s' would both be stored as '%s'%s",
					       v->state->tensors[s->e->tensor].key,
					       v->state->tensors[e->tensor].key, key,
					       v->topo->vp > 1 ? " (vp > 1 and no {V} in the rule)" : "");
		*mine = (struct same_key){e, head};
		if (sc_map_put(&b->keys, key, strlen(key), mine) < 0)
			return sc_nomem(b->err);
	}
	return 0;
}

/* Returns the axes whose index changes what is left to later cuts: those of uneven cuts. */
static uint32_t uneven_axes(const struct meta_rule *r)
{
	uint32_t axes = 0;

	for (int i = 0; i + 1 < r->nr_cuts; i++)
		if (r->cuts[i].chunk)
			axes |= r->cuts[i].axes;
	return axes;
}

/* Checks one tensor of each rule and shape: the others are cut in the same way. */
static int check_sizes(struct builder *b)
{
	const struct meta_view *v = b->v;
	const struct meta_tensor **last = sc_arena_array(&b->arena, v->layout->nr_rules, sizeof(*last));
	int rc = last ? 0 : sc_nomem(b->err);

	for (uint32_t i = 0; i < v->nr_entries && rc == 0; i++) {
		const struct meta_entry *e = &v->entries[i];
		const struct meta_tensor *t = &v->state->tensors[e->tensor], *like = last[e->rule->index];
		uint32_t axes = uneven_axes(e->rule), n = meta_topology_degree(v->topo, axes);

		if (e->behind || e->rule->factor == META_BLOCKS)
			continue; /* as the other tensor; meta_check_scales() */
		if (like && like->dtype == t->dtype && meta_shape_equal(&like->shape, &t->shape))
			continue;
		for (uint32_t x = 0; x < n && rc == 0; x++) {
			uint32_t coords[SC_AXES_MAX] = {0};

			meta_topology_split(v->topo, axes, x, coords);
			rc = meta_check_piece(b, e, coords);
		}
		last[e->rule->index] = t;
	}
	return rc;
}

static int index_stages(struct builder *b)
{
	struct meta_view *v = b->v;
	uint32_t nr = v->topo->pp + 1, *fill;

	v->stage_first = sc_arena_array(&v->arena, nr + 1u, sizeof(uint32_t));
	v->by_stage = sc_arena_array(&v->arena, v->nr_entries + 1u, sizeof(uint32_t));
	fill = sc_arena_array(&b->arena, nr + 1u, sizeof(uint32_t));
	if (!v->stage_first || !v->by_stage || !fill)
		return sc_nomem(b->err);
#define STAGE(e) (v->layout->pp >= 0 && (e)->fixed[v->layout->pp] != META_FREE                     \
			  ? (e)->fixed[v->layout->pp] : v->topo->pp)
	/* padding that is shown is met with the tensor that it is behind */
#define HAS(e) (!(e)->behind || ((e)->hidden && (e)->rows))
	for (uint32_t i = 0; i < v->nr_entries; i++)
		v->stage_first[STAGE(&v->entries[i]) + 1] += HAS(&v->entries[i]);
	for (uint32_t s = 0; s < nr; s++) {
		v->stage_first[s + 1] += v->stage_first[s];
		fill[s] = v->stage_first[s];
	}
	for (uint32_t i = 0; i < v->nr_entries; i++)
		if (HAS(&v->entries[i]))
			v->by_stage[fill[STAGE(&v->entries[i])]++] = i;
#undef HAS
#undef STAGE
	return 0;
}

static int build(struct builder *b)
{
	struct meta_view *v = b->v;
	uint32_t nr = v->state->nr, *first = sc_arena_array(&b->arena, nr + 1u, sizeof(*first));
	int rc = 0;

	v->first = sc_arena_array(&v->arena, nr + 1u, sizeof(*v->first));
	b->starts = sc_arena_array(&b->arena, v->topo->chunks + 1u, sizeof(*b->starts));
	if (!first || !v->first || !b->starts)
		return sc_nomem(b->err);
	for (uint32_t t = 0; t < nr && rc == 0; t++)
		rc = find_matches(b, t, first);
	first[nr] = (uint32_t)b->matches.nr;
	v->layers = b->counts.layers;
	if (rc == 0 && v->layers)
		rc = meta_topology_starts(v->topo, v->layers, b->starts, b->err);
	for (uint32_t t = 0; t < nr && rc == 0; t++)
		rc = place_tensor(b, t, first);
	if (rc < 0)
		return rc;
	v->first[nr] = v->nr_entries = (uint32_t)b->entries.nr;
	v->entries = sc_arena_array(&v->arena, v->nr_entries + 1u, sizeof(*v->entries));
	if (!v->entries)
		return sc_nomem(b->err);
	if (v->nr_entries)
		memcpy(v->entries, b->entries.at, v->nr_entries * sizeof(*v->entries));
	rc = meta_join_entries(v, b->err);
	if (rc == 0)
		rc = meta_share_padding(b);
	if (rc == 0)
		rc = check_names(b);
	if (rc == 0)
		rc = check_sizes(b);
	if (rc == 0)
		rc = meta_check_scales(b);
	if (rc == 0)
		rc = meta_alike_index(v, b->err);
	return rc < 0 ? rc : index_stages(b);
}

int meta_view_new(const struct meta_layout *layout, const struct meta_topology *topo,
		  const struct meta_state *state, struct meta_view **ret, struct sc_err *err)
{
	struct builder b = {.err = err, .v = sc_zalloc(sizeof(*b.v))};
	int rc;

	if (!b.v)
		return sc_nomem(err);
	b.v->layout = layout;
	b.v->topo = topo;
	b.v->state = state;
	meta_counts_begin(&b.counts, state);
	rc = build(&b);
	sc_vec_done(&b.matches);
	sc_vec_done(&b.entries);
	meta_counts_done(&b.counts);
	sc_map_done(&b.eachs);
	sc_map_done(&b.keys);
	sc_map_done(&b.factors);
	sc_map_done(&b.texts);
	sc_map_done(&b.places);
	sc_buf_done(&b.file);
	sc_buf_done(&b.name);
	sc_arena_done(&b.arena);
	if (rc < 0)
		meta_view_free(b.v);
	else
		*ret = b.v;
	return rc;
}
