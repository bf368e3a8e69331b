/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the members of joined tensors.  A joined tensor does not say what its members are or how long; they are known
 * from the version before, or they are like tensors that are stored on their own (`like=`: the states of an optimizer).
 * infer_check.c checks, with all else, that they make what was written, when it presents the state at the same
 * topology.
 */
#include "meta/model/infer_i.h"

#include <string.h>

struct joined {			/* a joined name, in the global numbers of layers */
	struct infer *n;
	const struct meta_written *w;
	const struct meta_rule *rule;
	struct meta_caps caps;
	const char **key;	/* of the first member that was found */
	uint32_t nr_state;	/* tensors of the state that are stored on their own */
};

static bool same_value(const struct meta_cap *a, const struct meta_cap *b)
{
	if (a->is_number)
		return a->number == b->number && a->is_empty == b->is_empty;
	return a->bytes == b->bytes && (!a->bytes || memcmp(a->text, b->text, a->bytes) == 0);
}

/* Tells whether a tensor that would be stored under `name` is a member. */
static bool is_member(const struct joined *j, const char *name)
{
	const struct meta_join *join = j->rule->join;

	for (uint8_t i = 0; i < join->nr; i++) {
		struct meta_caps caps = {0};
		bool same = true;

		if (!meta_pattern_match(&join->globs[i].pattern, name, strlen(name), &caps))
			continue;
		for (uint16_t k = 0; k < caps.nr; k++) {
			const struct meta_cap *mine = meta_caps_find(&j->caps, caps.at[k].id);

			same = same && (!mine || same_value(mine, &caps.at[k]));
		}
		return same && !join->globs[i].is_out;
	}
	return false;
}

/* Appends the captures of `more` that are not there yet. */
static void add_caps(struct meta_caps *to, const struct meta_caps *more)
{
	for (uint16_t i = 0; i < more->nr && to->nr < SC_CAPTURES_MAX; i++)
		if (!meta_caps_find(to, more->at[i].id))
			to->at[to->nr++] = more->at[i];
}

/* Makes a name of captures; coordinates of a rank are 0 in it.  NULL: a capture is missing, or out of memory. */
static char *render(struct joined *j, const struct meta_pattern *p, struct meta_caps caps)
{
	struct sc_buf buf = {0};
	char *text = NULL;

	for (uint16_t i = 0; i < p->nr; i++) {
		const struct meta_token *t = &p->tokens[i];

		if (t->kind == META_TOKEN_LIT || meta_caps_find(&caps, t->cap))
			continue;
		if (t->axis < 0 && t->cap != META_CAP_V)
			return NULL;
		if (caps.nr == SC_CAPTURES_MAX)
			return NULL;
		meta_caps_set_number(&caps, t->cap, t->axis, 0);
		((struct meta_cap *)meta_caps_find(&caps, t->cap))->is_empty = t->axis < 0;
	}
	meta_pattern_render(p, &caps, &buf);
	if (!buf.failed)
		text = sc_arena_copy(&j->n->arena, buf.text ? buf.text : "", buf.bytes);
	sc_buf_done(&buf);
	return text;
}

static int add_found(struct joined *j, const char *key, const struct meta_rule *rule, const struct meta_caps *caps,
		     const struct meta_shape *shape)
{
	struct infer *n = j->n;

	if (meta_rule_of_factor(n->layout, rule, caps, shape->nr, &n->arena, &n->factors, &rule, n->err) < 0)
		return sc_wrap(n->err, n->err->code, "'%s'", key);
	if (!meta_state_find(n->state, key) && meta_infer_add(n, key, rule, j->w->dtype, shape) < 0)
		return sc_nomem(n->err);
	if (!*j->key)
		*j->key = sc_arena_copy(&j->n->arena, key, strlen(key));
	return *j->key ? 0 : sc_nomem(j->n->err);
}

/* Adds a known tensor, if its logical name says that it is a member. */
static int try_known(struct joined *j, const struct meta_tensor *t)
{
	const struct meta_layout *l = j->n->layout;
	struct meta_caps caps = {0};
	const struct meta_rule *r;
	uint32_t at = 0;

	while ((r = meta_layout_next(l, true, t->file, t->name, &at, &caps))) {
		struct meta_caps file = {0};
		char *name = r->is_object || r->nr_each ? NULL : render(j, &r->name, caps);

		if (name && meta_pattern_match(&r->file, j->w->file, strlen(j->w->file), &file) && is_member(j, name))
			return add_found(j, t->key, r, &caps, &t->shape);
	}
	return 0;
}

/* Adds the member that is like a tensor by this rule, if there is one. */
static int try_like(struct joined *j, const struct meta_rule *r, const struct meta_tensor *base)
{
	struct meta_caps all = {0}, of_base = {0}, first;
	const struct meta_tensor *known;
	char *name, *goal, *file, *key;

	if (!meta_pattern_match(&r->base, base->name, strlen(base->name), &of_base) ||
	    !meta_pattern_match(&r->file, j->w->file, strlen(j->w->file), &all))
		return 0;
	add_caps(&all, &j->caps);
	add_caps(&all, &of_base);
	name = render(j, &r->name, all);
	goal = name && is_member(j, name) ? render(j, &r->goal, all) : NULL;
	file = goal ? render(j, &r->file_goal, all) : NULL;
	if (!file || meta_layout_first(j->n->layout, j->n->topo->pp > 1, j->w->file, name, &first) != r)
		return 0;
	key = sc_arena_join(&j->n->arena, file, ':', goal);
	if (!key)
		return sc_nomem(j->n->err);
	known = j->n->known ? meta_state_find(j->n->known, key) : NULL;
	return add_found(j, key, r, &all, known ? &known->shape : &base->shape);
}

/* Adds members that are like a tensor, which is of the rule that a `like` line copies. */
static int try_rules(struct joined *j, const struct meta_tensor *t)
{
	const struct meta_layout *l = j->n->layout;
	struct meta_caps caps;
	uint32_t at = 0;
	const struct meta_rule *own = meta_layout_next(l, true, t->file, t->name, &at, &caps);
	int rc = 0;

	if (!own || own->is_like || own->nr_each)
		return 0;
	for (uint32_t i = 0; rc == 0 && i < l->nr_rules; i++)
		if (l->rules[i].is_like && l->rules[i].base_text == own->text && !l->rules[i].nr_each &&
		    !l->rules[i].tied)
			rc = try_like(j, &l->rules[i], t);
	return rc;
}

static int find_members(struct joined *j)
{
	const struct meta_state *known = j->n->known;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && known && i < known->nr; i++)
		if (!meta_tensor_padding(known->tensors[i].name, NULL))
			rc = try_known(j, &known->tensors[i]);
	for (uint32_t i = 0; rc == 0 && known && i < known->nr; i++)
		if (!meta_tensor_padding(known->tensors[i].name, NULL))
			rc = try_rules(j, &known->tensors[i]);
	for (uint32_t i = 0; rc == 0 && i < j->nr_state; i++) { /* the state grows, and its array may move */
		const struct meta_tensor t = j->n->state->tensors[i];

		if (!meta_tensor_padding(t.name, NULL))
			rc = try_rules(j, &t);
	}
	if (rc == 0 && !*j->key)
		rc = sc_fail(j->n->err, SC_E_STATE, "rank %u: '%s:%s' is joined of tensors of which nothing tells the "
			     "shapes; also store the tensors that they are like, or commit them once under a layout "
			     "without the join ('%s')", j->w->rank, j->w->file, j->w->name, j->rule->text);
	return rc;
}

int meta_infer_joins(struct infer *n)
{
	const uint32_t nr_state = n->state->nr;
	struct sc_map seen = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n->nr; i++) {
		struct joined j = {.n = n, .w = &n->written[i], .rule = n->rows[i].name->rule, .nr_state = nr_state};
		uint32_t coords[SC_AXES_MAX];
		char *name, *key;

		if (!j.rule->join)
			continue;
		meta_topology_coords(n->topo, j.w->rank, coords);
		meta_infer_caps(n, i, coords, &j.caps);
		name = render(&j, &j.rule->name, j.caps);
		key = name ? sc_arena_join(&n->arena, j.w->file, ':', name) : NULL;
		j.key = key ? sc_map_make(&seen, key, strlen(key), &n->arena, sizeof(*j.key)) : NULL;
		if (!j.key)
			rc = sc_nomem(n->err);
		else if (!*j.key)
			rc = find_members(&j);
		n->rows[i].key = j.key ? *j.key : NULL;
	}
	sc_map_done(&seen);
	return rc;
}
