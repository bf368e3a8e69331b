/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a rule says of tensors that are stored as one: join=, stack= and their attributes (docs/layout.md). */
#include "meta/model/layout_i.h"

#include <string.h>

/* Gives the join of a rule, and makes it if need be: its attributes may come before it. */
static struct meta_join *join_of(struct maker *m, struct meta_rule *r)
{
	if (!r->join)
		r->join = sc_arena_alloc(&m->layout->arena, sizeof(*r->join));
	return (struct meta_join *)r->join;
}

/* Makes the i-th `*` of a glob the same capture as the i-th `*` of the stored name. */
static int share_stars(struct maker *m, const struct meta_pattern *stored, struct meta_pattern *glob)
{
	struct meta_token *t = sc_arena_array(&m->layout->arena, glob->nr + 1u, sizeof(*t));
	uint16_t at = 0;

	if (!t)
		return sc_nomem(m->err);
	if (glob->nr)
		memcpy(t, glob->tokens, glob->nr * sizeof(*t));
	for (uint16_t i = 0; i < glob->nr; i++) {
		if (!t[i].star)
			continue;
		while (at < stored->nr && !stored->tokens[at].star)
			at++;
		if (at < stored->nr)
			t[i].cap = stored->tokens[at++].cap;
	}
	*glob = (struct meta_pattern){t, glob->nr};
	return 0;
}

static int parse_glob(struct maker *m, const struct meta_rule *r, const char *text, size_t bytes,
		      struct meta_pattern *ret)
{
	int rc = meta_pattern_parse(&m->names, &m->layout->axes, text, bytes, ret, m->err);

	if (rc == 0 && ret->nr == 0)
		rc = refuse(m, "a glob is empty");
	for (size_t i = 0; rc == 0 && i < bytes; i++)
		if (text[i] == ':')
			rc = refuse(m, "a glob has no colon: what is joined is in the file of the joined tensor");
	return rc < 0 ? rc : share_stars(m, &r->name, ret);
}

static int set_globs(struct maker *m, struct meta_rule *r, struct meta_join *j, const char *value)
{
	for (j->nr = 0;;) {
		const size_t n = strcspn(value, ",");
		struct meta_glob *g = &j->globs[j->nr];
		int rc;

		if (j->nr++ == SC_GLOBS_MAX)
			return refuse(m, "more than %d globs", SC_GLOBS_MAX);
		g->is_out = *value == '!';
		rc = parse_glob(m, r, value + g->is_out, n - g->is_out, &g->pattern);
		if (rc < 0 || !value[n])
			return rc < 0 ? rc : 1;
		value += n + 1;
	}
}

static int set_order(struct maker *m, struct meta_join *j, const char *value)
{
	static const char *const orders[] = {"rules", "reverse", "name", "listed"};

	for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++)
		if (strcmp(value, orders[i]) == 0) {
			j->order = (enum meta_join_order)i;
			return 1;
		}
	return refuse(m, "order: '%s' is not rules, reverse, name or listed", value);
}

static int set_number(struct maker *m, const char *key, const char *value, uint64_t *ret)
{
	uint32_t n;

	if (!sc_number_parse(value, strlen(value), &n) || !n)
		return refuse(m, "%s: '%s' is not a number from 1", key, value);
	*ret = n;
	return 1;
}

static int set_over(struct maker *m, struct meta_join *j, const char *value)
{
	const bool minus = *value == '-';

	if (strlen(value + minus) != 1 || value[minus] < '0' || value[minus] > '9')
		return refuse(m, "over: '%s' is no dimension", value);
	j->is_over = true;
	j->dim = (int8_t)((value[minus] - '0') * (minus ? -1 : 1));
	return 1;
}

int meta_factor_attribute(struct maker *m, const char *key, const char *value, const char **ret)
{
	*ret = value ? value : "";
	while (value) {
		const size_t n = strcspn(value, "|"), word = strcspn(value, "|:");

		if (!word || (word < n && (n - word != 2 || value[word + 1] != '1')))
			return refuse(m, "%s: '%.*s' is neither a word of names nor WORD:1", key, (int)n, value);
		value = value[n] ? value + n + 1 : NULL;
	}
	return 0;
}

int meta_blocks_attribute(struct maker *m, const char *value, const char **ret)
{
	*ret = value;
	while (value) {
		const size_t n = strcspn(value, "|"), word = strcspn(value, "|:"), of = word < n ? n - word - 1 : 0;

		if (!word || !of || memchr(value + word + 1, ':', of))
			return refuse(m, "blocks: '%.*s' is not WORD:OF, as in absmax1:state1", (int)n, value);
		value = value[n] ? value + n + 1 : NULL;
	}
	return 0;
}

int meta_join_attribute(struct maker *m, struct meta_rule *r, const char *key, const char *value)
{
	static const char *const keys[] = {"join", "over", "order", "align", "bucket", "alone", "strip"};
	struct meta_join *j;
	size_t i = 0;
	int rc;

	if (value && strcmp(key, "stack") == 0) {
		r->is_stack = true;
		return strcmp(value, "{G}") == 0 ? 1 : refuse(m, "stack: '%s' is not {G}", value);
	}
	if (value && strcmp(key, "concat") == 0)
		return refuse(m, "concat= is now join=");
	while (i < sizeof(keys) / sizeof(*keys) && strcmp(keys[i], key) != 0)
		i++;
	if (i == sizeof(keys) / sizeof(*keys) || (i < 6) != (value != NULL))
		return 0;
	j = join_of(m, r);
	if (!j)
		return sc_nomem(m->err);
	switch (i) {
	case 0:
		return set_globs(m, r, j, value);
	case 1:
		return set_over(m, j, value);
	case 2:
		return set_order(m, j, value);
	case 3:
		return set_number(m, key, value, &j->align);
	case 4:
		return set_number(m, key, value, &j->bucket);
	case 5:
		rc = meta_pattern_parse(&m->names, &m->layout->axes, value, strlen(value), &j->alone, m->err);
		j->has_alone = true;
		return rc < 0 ? rc : 1;
	default:
		j->strip = true;
		return 1;
	}
}

/* Checks that names of members have each capture of the stored name: else that name could not be made. */
static int check_captures(struct maker *m, const struct meta_rule *r)
{
	for (uint16_t i = 0; i < r->name.nr; i++) {
		const struct meta_token *t = &r->name.tokens[i];

		if (t->kind == META_TOKEN_LIT || t->cap == META_CAP_B)
			continue;
		if (t->axis >= 0 || t->cap == META_CAP_E || t->cap == META_CAP_X)
			return refuse(m, "{%.*s} is not for the name of a joined tensor", (int)t->bytes, t->text);
		for (uint8_t k = 0; k < r->join->nr; k++)
			if (!r->join->globs[k].is_out && !meta_pattern_has(&r->join->globs[k].pattern, t->cap))
				return refuse(m, "a glob does not capture %s%.*s%s, which the stored name has",
					      t->star ? "" : "{", (int)t->bytes, t->text, t->star ? "" : "}");
	}
	return 0;
}

static int check_join(struct maker *m, const struct meta_rule *r)
{
	const struct meta_join *j = r->join;
	const bool has_bucket = meta_pattern_has(&r->name, META_CAP_B);
	bool takes = false;

	for (uint8_t i = 0; i < j->nr; i++)
		takes |= !j->globs[i].is_out;
	if (!j->nr)
		return refuse(m, "over, order, align, bucket, alone and strip belong to a join");
	if (!takes || !r->name.nr)
		return refuse(m, "a join has a name and a glob of members");
	if (r->is_stack || r->is_object || r->nr_stage || r->nr_each || r->wrap || r->tied)
		return refuse(m, "a join has cuts and nothing else: where it is follows from its members");
	if (j->is_over && (j->align || j->bucket || j->has_alone))
		return refuse(m, "align, bucket and alone are of joins without over");
	if ((j->bucket || j->has_alone) && !has_bucket)
		return refuse(m, "bucket and alone need {B} in the name");
	for (int i = 0; i < r->nr_cuts; i++) {
		if (r->cuts[i].flat)
			return refuse(m, "what is joined is flat, or over a dimension, so it can't be made flat");
		if (!j->is_over && r->cuts[i].dim != 0)
			return refuse(m, "what is joined without over has dimension 0 only");
	}
	return check_captures(m, r);
}

int meta_join_check(struct maker *m, const struct meta_rule *r)
{
	const bool captured = meta_pattern_has(&r->name, META_CAP_G) || meta_pattern_has(&r->file, META_CAP_G);

	if (meta_pattern_has(&r->file, META_CAP_B) || (meta_pattern_has(&r->name, META_CAP_B) && !r->join))
		return refuse(m, "{B}, a bucket, is in the names of joined tensors only");
	if (r->join)
		return check_join(m, r);
	if (r->is_stack && (r->has_local || captured || r->has_virtual || r->nr_stage || r->tied || r->nr_each))
		return refuse(m, "a stack has all layers of a rank: its name has no {L}, {G} or {V}, and its rule no "
			      "stage, tied or each");
	if (r->is_stack && !meta_pattern_has(&r->goal, META_CAP_G))
		return refuse(m, "stack={G} needs {G} in name=, the name of one layer");
	if (!r->is_stack && !captured && meta_pattern_has(&r->goal, META_CAP_G))
		return refuse(m, "name= uses {G}, which the pattern does not capture");
	return 0;
}
