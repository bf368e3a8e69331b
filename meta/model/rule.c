/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a rule of a line of a layout, and of a `like` line copies of all plain rules. */
#include "meta/model/layout_i.h"

#include <string.h>

static const uint32_t one_section[] = {1};

uint32_t meta_layout_mesh_axes(const struct meta_layout *layout, uint32_t axes)
{
	for (int m = 0; m < layout->nr_meshes; m++) {
		uint32_t all = 0;

		for (int i = 0; i < layout->meshes[m].nr; i++)
			all |= 1u << layout->meshes[m].at[i].axis;
		if ((axes & ~all) == 0)
			return all;
	}
	return 0;
}

void meta_rule_set_axes(const struct meta_layout *l, struct meta_rule *r)
{
	r->cut_axes = 0;
	for (int i = 0; i < r->nr_cuts; i++)
		r->cut_axes |= r->cuts[i].axes;
	r->axes = r->cut_axes;
	for (int i = 0; i < r->nr_each; i++)
		r->axes |= 1u << r->each[i];
	if ((r->nr_stage || r->has_layer) && l->pp >= 0)
		r->axes |= 1u << l->pp;
	if (r->has_expert && l->ep >= 0)
		r->axes |= 1u << l->ep;
}

/* Parses "a*b" to a bit set and a list of axes; false if a word is no axis. */
static bool parse_axes(const struct meta_layout *l, const char *text, size_t bytes,
		       uint32_t *ret_set, uint8_t *list, uint8_t *nr)
{
	const char *end = text + bytes;

	*ret_set = 0;
	while (text <= end) {
		const char *star = memchr(text, '*', (size_t)(end - text));
		size_t n = (size_t)((star ? star : end) - text);
		int axis = meta_axis_find(&l->axes, text, n);

		if (axis < 0 || *ret_set & 1u << axis)
			return false;
		*ret_set |= 1u << axis;
		if (list)
			list[(*nr)++] = (uint8_t)axis;
		text += n + 1;
	}
	return true;
}

static int add_cut(struct maker *m, struct meta_rule *r, struct meta_cut cut)
{
	if (r->nr_cuts == SC_CUTS_MAX)
		return refuse(m, "more than %d cuts", SC_CUTS_MAX);
	cut.nr_sections = 1;
	cut.sections = one_section;
	cut.section_sum = 1;
	r->cuts[r->nr_cuts++] = cut;
	return 0;
}

static int set_sections(struct maker *m, struct meta_cut *cut, const char *value)
{
	uint32_t *sections = sc_arena_array(&m->layout->arena, SC_SECTIONS_MAX, sizeof(*sections));

	if (!sections)
		return sc_nomem(m->err);
	cut->nr_sections = 0;
	cut->section_sum = 0;
	cut->sections = sections;
	for (;;) {
		size_t n = strcspn(value, ":");

		if (cut->nr_sections == SC_SECTIONS_MAX)
			return refuse(m, "more than %d sections", SC_SECTIONS_MAX);
		if (!sc_number_parse(value, n, &sections[cut->nr_sections]))
			return refuse(m, "sections: '%.*s' is not a number", (int)n, value);
		cut->section_sum += sections[cut->nr_sections++];
		if (!value[n])
			break;
		value += n + 1;
	}
	return cut->section_sum ? 0 : refuse(m, "sections add up to 0");
}

/* Reads `upto`: one number for all sections, or one for each; `-` is none. */
static int set_upto(struct maker *m, struct meta_cut *cut, const char *value)
{
	uint32_t *upto = sc_arena_array(&m->layout->arena, SC_SECTIONS_MAX, sizeof(*upto)), nr = 0;

	if (!upto)
		return sc_nomem(m->err);
	for (;; value++) {
		size_t n = strcspn(value, ":");
		bool none = n == 1 && *value == '-';

		if (nr == SC_SECTIONS_MAX)
			return refuse(m, "more than %d sections", SC_SECTIONS_MAX);
		if (!none && (!sc_number_parse(value, n, &upto[nr]) || !upto[nr]))
			return refuse(m, "upto: '%.*s' is neither a number from 1 nor -", (int)n, value);
		nr++;
		value += n;
		if (!*value)
			break;
	}
	cut->upto = upto;
	cut->nr_upto = nr;
	return 0;
}

static int set_pad(struct maker *m, struct meta_cut *cut, const char *value)
{
	size_t n = strlen(value);
	uint32_t pad;

	cut->lcm = strncmp(value, "lcm(", 4) == 0 && n > 5 && value[n - 1] == ')';
	if (cut->lcm ? !sc_number_parse(value + 4, n - 5, &pad) : !sc_number_parse(value, n, &pad))
		return refuse(m, "'pad=%s' is neither a number nor lcm(number)", value);
	cut->pad = pad;
	return 0;
}

/* Reads an attribute that changes the cut before it. */
static int cut_attribute(struct maker *m, struct meta_rule *r, const char *key, const char *value)
{
	struct meta_cut *cut = r->nr_cuts ? &r->cuts[r->nr_cuts - 1] : NULL;
	uint32_t size;

	if (!cut || cut->flat)
		return refuse(m, "%s follows no cut", key);
	if (strcmp(key, "sections") == 0)
		return set_sections(m, cut, value);
	if (strcmp(key, "pad") == 0)
		return set_pad(m, cut, value);
	if (strcmp(key, "upto") == 0)
		return set_upto(m, cut, value);
	if (strcmp(key, "size") == 0) {
		if (!sc_number_parse(value, strlen(value), &size))
			return refuse(m, "size: '%s' is not a number", value);
		cut->size = size;
		return 0;
	}
	cut->chunk = true;
	return 0;
}

static int set_stage(struct maker *m, struct meta_rule *r, const char *value)
{
	r->nr_stage = 0;
	for (;;) {
		size_t n = strcspn(value, ",");
		uint32_t nr = 0;

		if (r->nr_stage == SC_STAGE_LIST_MAX)
			return refuse(m, "more than %d stages", SC_STAGE_LIST_MAX);
		if (n == 4 && memcmp(value, "last", 4) == 0)
			r->stage[r->nr_stage++] = -1;
		else if ((n == 5 && memcmp(value, "first", 5) == 0) ||
			 sc_number_parse(value, n, &nr))
			r->stage[r->nr_stage++] = (int32_t)nr;
		else
			return refuse(m, "stage: '%.*s' is not first, last or a number", (int)n, value);
		if (!value[n])
			return 0;
		value += n + 1;
	}
}

static int set_goal(struct maker *m, struct meta_rule *r, const char *key, const char *value)
{
	int rc = meta_pattern_parse(&m->names, &m->layout->axes, value, strlen(value), &r->goal, m->err);

	if (rc < 0)
		return rc;
	r->tied = strcmp(key, "tied") == 0;
	for (uint16_t i = 0; i < r->goal.nr; i++) {
		const struct meta_token *t = &r->goal.tokens[i];

		if (t->kind != META_TOKEN_LIT && t->cap != META_CAP_G && !meta_pattern_has(&r->name, t->cap) &&
		    !meta_pattern_has(&r->file, t->cap)) /* {G}: see meta_join_check() */
			return refuse(m, "%s= uses {%.*s}, which the pattern does not capture", key,
				      (int)t->bytes, t->text);
	}
	for (uint16_t i = 0; i < r->name.nr; i++) {
		const struct meta_token *t = &r->name.tokens[i];

		if (t->kind != META_TOKEN_LIT && t->cap != META_CAP_V && t->axis < 0 &&
		    !meta_pattern_has(&r->goal, t->cap))
			return refuse(m, "%s=%s leaves out {%.*s}, so the stored name could not be made from it",
				      key, value, (int)t->bytes, t->text);
	}
	return 0;
}

static int one_attribute(struct maker *m, struct meta_rule *r, char *word, bool *done)
{
	char *value = strchr(word, '=');
	size_t key_bytes = value ? (size_t)(value - word) : strlen(word);
	char *key = sc_arena_copy(&m->layout->arena, word, key_bytes);
	uint32_t axes = 0;
	int rc;

	if (!key)
		return sc_nomem(m->err);
	*done = true;
	value = value ? value + 1 : NULL;
	if ((value && !*value) || strcmp(key, "like") == 0)
		return 0; /* the value of an empty variable: the attribute is ignored */
	if (value && parse_axes(m->layout, word, key_bytes, &axes, NULL, NULL)) {
		bool minus = *value == '-';

		if (strlen(value + minus) != 1 || value[minus] < '0' || value[minus] > '9')
			return refuse(m, "'%s': the dimension is not a number", word);
		return add_cut(m, r, (struct meta_cut){
			.axes = axes, .axes_text = key, .dim = (int8_t)((value[minus] - '0') * (minus ? -1 : 1))});
	}
	for (int i = 0; strcmp(word, "flat") == 0 && i < r->nr_cuts; i++)
		if (r->cuts[i].flat)
			return refuse(m, "flat is given twice");
	if (strcmp(word, "flat") == 0)
		return add_cut(m, r, (struct meta_cut){.flat = true});
	if ((value && (strcmp(key, "sections") == 0 || strcmp(key, "pad") == 0 ||
		       strcmp(key, "size") == 0 || strcmp(key, "upto") == 0)) || strcmp(word, "chunk") == 0)
		return cut_attribute(m, r, key, value);
	if (value && strcmp(key, "stage") == 0)
		return set_stage(m, r, value);
	if (value && strcmp(key, "each") == 0) {
		r->nr_each = 0;
		return parse_axes(m->layout, value, strlen(value), &axes, r->each, &r->nr_each)
			       ? 0 : refuse(m, "'%s' is not a list of axes, as in tp*dp", value);
	}
	if (value && (strcmp(key, "name") == 0 || strcmp(key, "tied") == 0))
		return set_goal(m, r, key, value);
	if (value && strcmp(key, "of") == 0) {
		r->of = value;
		return 0;
	}
	if (strcmp(key, "rows") == 0 || strcmp(key, "columns") == 0)
		return meta_factor_attribute(m, key, value, *key == 'r' ? &r->rows : &r->columns);
	if (value && strcmp(key, "blocks") == 0)
		return meta_blocks_attribute(m, value, &r->blocks);
	if (value && strcmp(key, "whole") == 0)
		return meta_factor_attribute(m, key, value, &r->whole);
	rc = meta_join_attribute(m, r, key, value);
	if (rc)
		return rc < 0 ? rc : 0;
	if (strcmp(word, "wrap") == 0)
		r->wrap = true;
	else if (strcmp(word, "object") == 0)
		r->is_object = true;
	else if (strcmp(word, "copy") != 0)
		return refuse(m, "'%s' is no attribute (and no axis of this layout)", word);
	return 0;
}

static int check_cuts(struct maker *m, const struct meta_rule *r)
{
	uint32_t seen = 0;
	int flat = -1;

	for (int i = 0; i < r->nr_cuts; i++) {
		const struct meta_cut *c = &r->cuts[i];

		if (c->flat) {
			flat = i;
			continue;
		}
		if (c->upto && c->chunk)
			return refuse(m, "upto and chunk exclude each other: parts that neighbours share are equal");
		if (c->nr_upto > 1 && c->nr_upto != c->nr_sections)
			return refuse(m, "upto has %u numbers, but there are %u sections", c->nr_upto, c->nr_sections);
		for (int j = flat + 1; (c->pad || c->size) && j < i; j++)
			if (r->cuts[j].dim == c->dim)
				return refuse(m, "pad and size belong to the first cut of a dimension");
		if (flat >= 0 && c->dim != 0)
			return refuse(m, "after flat only dimension 0 is left");
		if (seen & c->axes)
			return refuse(m, "an axis cuts twice");
		seen |= c->axes;
	}
	return 0;
}

const char *meta_find_colon(const char *word)
{
	bool inside = false;

	for (; *word; word++) {
		inside = *word == '{' || (inside && *word != '}');
		if (*word == ':' && !inside)
			return word;
	}
	return NULL;
}

static int parse_keyed(struct maker *m, const char *text, struct meta_rule *r)
{
	const char *colon = meta_find_colon(text);
	int rc = meta_pattern_parse(&m->names, &m->layout->axes, text, (size_t)(colon - text), &r->file,
				    m->err);

	if (rc == 0)
		rc = meta_pattern_parse(&m->names, &m->layout->axes, colon + 1, strlen(colon + 1),
					&r->name, m->err);
	for (uint16_t i = 0; rc == 0 && i < r->file.nr; i++)
		if (r->file.tokens[i].kind != META_TOKEN_LIT &&
		    meta_pattern_has(&r->name, r->file.tokens[i].cap))
			rc = refuse(m, "the file's pattern and the name's pattern use the same capture");
	return rc;
}

static bool has(const struct meta_rule *r, uint16_t cap)
{
	return meta_pattern_has(&r->file, cap) || meta_pattern_has(&r->name, cap);
}

static void set_flags(struct meta_rule *r)
{
	r->has_local = has(r, META_CAP_L);
	r->has_layer = r->has_local || has(r, META_CAP_G) || r->is_stack;
	r->has_expert = has(r, META_CAP_E) || has(r, META_CAP_X);
	r->has_virtual = has(r, META_CAP_V);
}

/* Reads the attributes of the maker's line into `r`, whose names are set. */
static int read_attributes(struct maker *m, struct meta_rule *r, char *words, bool into)
{
	bool done = into;
	char *word;
	int rc = 0;

	while (rc == 0 && (word = sc_next_word(&words)))
		rc = one_attribute(m, r, word, &done);
	if (rc < 0)
		return rc;
	if (!done)
		return refuse(m, "no attribute; a tensor that is whole on every rank has 'copy'");
	set_flags(r);
	rc = meta_join_check(m, r);
	if (rc < 0)
		return rc;
	if ((r->rows || r->columns || r->blocks || r->whole) && !into)
		return refuse(m, "rows, columns, blocks and whole belong to a like line: they are of the tensor that "
			      "it is like");
	if (r->nr_stage && r->has_layer)
		return refuse(m, "stage= is given, but the layer's number already says the stage");
	if (r->is_object && (r->nr_cuts || r->nr_stage || r->nr_each || r->wrap || r->tied))
		return refuse(m, "object stands alone: what is no tensor of the state is not cut");
	rc = check_cuts(m, r);
	meta_rule_set_axes(m->layout, r);
	return rc;
}

static int plain_rule(struct maker *m, struct meta_rule *r)
{
	char *words = sc_arena_copy(&m->layout->arena, m->line, strlen(m->line)), *pattern;
	int rc;

	if (!words)
		return sc_nomem(m->err);
	pattern = sc_next_word(&words);
	*r = (struct meta_rule){.text = m->line};
	rc = parse_keyed(m, pattern, r);
	if (rc < 0)
		return rc;
	set_flags(r);
	if (meta_pattern_where_less(&m->layout->arena, &r->name, &r->goal) < 0 ||
	    meta_pattern_where_less(&m->layout->arena, &r->file, &r->file_goal) < 0)
		return sc_nomem(m->err);
	rc = read_attributes(m, r, words, false);
	if (rc == 0 && !meta_layout_mesh_axes(m->layout, r->axes)) {
		struct sc_buf buf = {0};

		for (int i = 0; i < m->layout->axes.nr; i++)
			if (r->axes & 1u << i)
				sc_buf_printf(&buf, "%s%s", buf.bytes ? ", " : "", m->layout->axes.name[i]);
		rc = refuse(m, "no mesh has all of [%s]", buf.text ? buf.text : "");
		sc_buf_done(&buf);
	}
	return rc;
}

/* Replaces token `at` by the tokens of `inner`. */
static int wrap(struct maker *m, const struct meta_pattern *outer, uint16_t at,
		const struct meta_pattern *inner, struct meta_pattern *ret)
{
	uint16_t nr = (uint16_t)(outer->nr - 1 + inner->nr);
	struct meta_token *t = sc_arena_array(&m->layout->arena, nr + 1u, sizeof(*t));

	if (!t)
		return sc_nomem(m->err);
	memcpy(t, outer->tokens, at * sizeof(*t));
	if (inner->nr)
		memcpy(t + at, inner->tokens, inner->nr * sizeof(*t));
	memcpy(t + at + inner->nr, outer->tokens + at + 1, (outer->nr - at - 1u) * sizeof(*t));
	for (uint16_t i = 0, caps = 0; i < nr; i++) {
		caps += t[i].kind != META_TOKEN_LIT;
		if (caps > SC_CAPTURES_MAX / 2)
			return refuse(m, "more than %d captures", SC_CAPTURES_MAX / 2);
		for (uint16_t j = 0; j < i; j++)
			if (t[i].kind != META_TOKEN_LIT && t[j].kind != META_TOKEN_LIT && t[i].cap == t[j].cap)
				return refuse(m, "the like line and a rule that it copies both capture {%.*s}",
					      (int)t[i].bytes, t[i].text);
	}
	*ret = (struct meta_pattern){t, nr};
	return 0;
}

static int copy_renamed(struct maker *m, const struct meta_pattern *from, uint16_t old, uint16_t new_,
			struct meta_pattern *ret)
{
	struct meta_token *t = sc_arena_array(&m->layout->arena, from->nr + 1u, sizeof(*t));

	if (!t)
		return sc_nomem(m->err);
	memcpy(t, from->tokens, from->nr * sizeof(*t));
	for (uint16_t i = 0; i < from->nr; i++)
		if (t[i].kind != META_TOKEN_LIT && t[i].cap == old)
			t[i].cap = new_;
	*ret = (struct meta_pattern){t, from->nr};
	return 0;
}

/* Renames text captures of the copied rule that the `like` line uses, too, as they are others: {K} of
 * `optimizer.state.{K}.{P}` is not the {K} of a rule that the line wraps. */
static int rename_clashes(struct maker *m, const struct meta_rule *outer, struct meta_rule *r)
{
	for (uint16_t i = 0; i < r->name.nr; i++) {
		const struct meta_token *t = &r->name.tokens[i];
		uint16_t fresh = (uint16_t)(0x8000u + m->names.stars);
		int rc;

		if (t->kind != META_TOKEN_TEXT || !has(outer, t->cap) || t->cap == META_CAP_P)
			continue;
		m->names.stars++;
		rc = copy_renamed(m, &r->goal, t->cap, fresh, &r->goal);
		if (rc == 0)
			rc = copy_renamed(m, &r->name, t->cap, fresh, &r->name);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Checks that every capture which the logical name needs is still captured after the wrapping. */
static int check_goal(struct maker *m, const struct meta_rule *r)
{
	for (uint16_t i = 0; i < r->goal.nr; i++) {
		const struct meta_token *t = &r->goal.tokens[i];

		if (t->kind != META_TOKEN_LIT && !has(r, t->cap) && !(r->is_stack && t->cap == META_CAP_G))
			return refuse(m, "like replaces the file's pattern, which captures {%.*s} of '%s'",
				      (int)t->bytes, t->text, r->text);
	}
	return 0;
}

/* Appends the rules that a `like` line stands for to `out`. */
static int like_rules(struct maker *m, const struct meta_rule *plain, size_t nr_plain,
		      struct meta_rule *out, size_t *nr_out, size_t room)
{
	char *words = sc_arena_copy(&m->layout->arena, m->line, strlen(m->line)), *pattern;
	struct meta_rule outer = {.text = m->line};
	int at = -1, rc;

	if (!words)
		return sc_nomem(m->err);
	pattern = sc_next_word(&words);
	rc = parse_keyed(m, pattern, &outer);
	if (rc < 0)
		return rc;
	for (uint16_t i = 0; i < outer.name.nr; i++)
		if (outer.name.tokens[i].kind == META_TOKEN_TEXT && outer.name.tokens[i].cap == META_CAP_P)
			at = i;
	if (at < 0 || !strstr(m->line, " like={P}"))
		return refuse(m, "the pattern of a like line must have one {P}");
	if (meta_pattern_where_less(&m->layout->arena, &outer.file, &outer.file_goal) < 0)
		return sc_nomem(m->err);
	for (size_t i = 0; i < nr_plain; i++) {
		struct meta_rule r = plain[i];

		/* rules for plain files have no tensor's name to copy; what is joined is copied by its members; objects
		 * have no state of an optimizer, and nobody trains scales */
		if (r.name.nr == 0 || r.join || r.is_object || (r.of && outer.name.nr > 1))
			continue;
		rc = rename_clashes(m, &outer, &r);
		if (rc < 0)
			return rc;
		r.file = outer.file;
		r.file_goal = outer.file_goal;
		r.is_like = true;
		r.base = r.goal;
		r.base_text = plain[i].text;
		r.text = sc_arena_printf(&m->layout->arena, "%s <- %s", m->line, plain[i].text);
		if (!r.text)
			return sc_nomem(m->err);
		rc = wrap(m, &outer.name, (uint16_t)at, &r.name, &r.name);
		if (rc == 0)
			rc = wrap(m, &outer.name, (uint16_t)at, &r.goal, &r.goal);
		if (rc == 0)
			rc = check_goal(m, &r);
		if (rc < 0)
			return rc;
		set_flags(&r);
		pattern = sc_arena_copy(&m->layout->arena, strchr(m->line, ' '), strlen(strchr(m->line, ' ')));
		if (!pattern)
			return sc_nomem(m->err);
		rc = read_attributes(m, &r, pattern, true);
		if (rc < 0)
			return rc;
		if (!meta_layout_mesh_axes(m->layout, r.axes))
			continue;
		if (*nr_out == room)
			return sc_fail(m->err, SC_E_LIMIT, "layout: more than %d rules", SC_RULES_MAX);
		out[(*nr_out)++] = r;
	}
	return 0;
}

static bool is_like(const char *line)
{
	return strstr(line, " like=") != NULL;
}

int meta_rules_make(struct meta_layout *layout, const char **lines, size_t nr, size_t *ret_at, struct sc_err *err)
{
	struct maker m = {.layout = layout, .names.arena = &layout->arena, .err = err};
	struct meta_rule *plain = sc_zalloc_array(nr, sizeof(*plain)), *out = NULL;
	size_t nr_plain = 0, nr_out = 0, at = 0, room = 0;
	int rc = plain ? 0 : sc_nomem(err);

	for (size_t i = 0; rc == 0 && i < nr; i++) {
		*ret_at = i;
		m.line = lines[i];
		room += !is_like(lines[i]);
		if (!is_like(lines[i]))
			rc = plain_rule(&m, &plain[nr_plain++]);
	}
	for (size_t i = 0; i < nr; i++)
		room += is_like(lines[i]) ? nr_plain : 0;
	if (room > SC_RULES_MAX)
		room = SC_RULES_MAX;
	if (rc == 0)
		out = sc_arena_array(&layout->arena, room ? room : 1, sizeof(*out));
	if (rc == 0 && !out)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		*ret_at = i;
		m.line = lines[i];
		if (is_like(lines[i]))
			rc = like_rules(&m, plain, nr_plain, out, &nr_out, room);
		else if (nr_out < room)
			out[nr_out++] = plain[at++];
		else
			rc = sc_fail(err, SC_E_LIMIT, "layout: more than %d rules", SC_RULES_MAX);
	}
	sc_sys.release(plain);
	layout->name_pairs = sc_arena_array(&layout->arena, nr_out + 1, sizeof(*layout->name_pairs));
	layout->goal_pairs = sc_arena_array(&layout->arena, nr_out + 1, sizeof(*layout->goal_pairs));
	if (!layout->name_pairs || !layout->goal_pairs)
		return rc < 0 ? rc : sc_nomem(err);
	for (size_t i = 0; i < nr_out; i++) {
		out[i].index = (uint32_t)i;
		meta_pattern_pairs(&out[i].name, &layout->name_pairs[i]);
		meta_pattern_pairs(&out[i].goal, &layout->goal_pairs[i]);
	}
	layout->rules = out;
	layout->nr_rules = (uint32_t)nr_out;
	return rc;
}
