/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits the text of a layout into lines: variables, presets, meshes.  rule.c makes the rules.
 *
 * A layout file is first flattened: variables replaced, presets read in.  The flat text is a
 * layout itself (mesh lines, then `file:pattern attributes` lines) and is what a version keeps, so
 * that a preset file edited later never changes the meaning of what is stored.
 */
#include "meta/model/layout_i.h"

#include <string.h>

#define BLANKS " \t\r"

struct variables {
	struct variable {
		const char *name, *value;
		bool *is_used;		/* by a line, or by a `let` of the preset that it was set for */
	} *at;
	size_t nr;
};

struct reader {
	struct meta_layout *layout;
	struct sc_err *err;
	meta_preset_fn *preset;
	void *preset_arg;
	struct {
		char **at;
		size_t nr, room;
	} lines;
	struct {
		unsigned *at;
		size_t nr, room;
	} numbers;		/* of each of these lines: that of the user's own line that it comes from */
	unsigned number;	/* of the user's line that is read */
	struct {
		struct meta_plain *at;
		size_t nr, room;
	} plain;
	struct {
		const char **at;
		size_t nr, room;
	} known;		/* variables of the preset that is read, and of those that it uses */
	const char *within;	/* text of the preset that is read; NULL: none is */
};

static const char *variable_get(const struct variables *vars, const char *name, size_t bytes)
{
	for (size_t i = 0; i < vars->nr; i++)
		if (strlen(vars->at[i].name) == bytes && memcmp(vars->at[i].name, name, bytes) == 0) {
			*vars->at[i].is_used = true;
			return vars->at[i].value;
		}
	return NULL;
}

/* How variables are set: by a `let` of the user's own text or of a preset, which changes none that is set already; or
 * by a `use` line, for the preset alone. */
enum by { BY_LET, BY_PRESET, BY_USE };

static int variable_set(struct reader *r, struct variables *vars, const char *name, const char *value,
			enum by by)
{
	bool *is_used = sc_arena_array(&r->layout->arena, 1, sizeof(*is_used));
	struct variable *at;

	if (!is_used || (by == BY_PRESET && sc_vec_push(&r->known, name) < 0))
		return sc_nomem(r->err);
	*is_used = by == BY_PRESET;
	for (size_t i = 0; i < vars->nr; i++)
		if (strcmp(vars->at[i].name, name) == 0) {
			if (by == BY_USE)
				vars->at[i] = (struct variable){name, value, is_used};
			else if (by == BY_PRESET)
				*vars->at[i].is_used = true;
			return 0;
		}
	at = sc_arena_array(&r->layout->arena, vars->nr + 1, sizeof(*at));
	if (!at)
		return sc_nomem(r->err);
	if (vars->nr)
		memcpy(at, vars->at, vars->nr * sizeof(*at));
	at[vars->nr++] = (struct variable){name, value, is_used};
	vars->at = at;
	return 0;
}

/* Gives the text inside (a preset) the variables of the text outside. */
static int variables_copy(struct reader *r, struct variables *to, const struct variables *from)
{
	*to = (struct variables){sc_arena_array(&r->layout->arena, from->nr + 1, sizeof(*to->at)), from->nr};
	if (!to->at)
		return sc_nomem(r->err);
	if (from->nr)
		memcpy(to->at, from->at, from->nr * sizeof(*to->at));
	return 0;
}

/* Refuses a variable that nothing uses: the nearest of those that are known, and all of them. */
static int unknown(struct reader *r, const char *line, const char *name, const char *preset)
{
	sc_cleanup(sc_buf_done) struct sc_buf names = {0};
	const char *nearest = NULL;

	for (size_t i = 0; i < r->known.nr; i++) {
		bool is_again = false;

		for (size_t k = 0; k < i && !is_again; k++)
			is_again = strcmp(r->known.at[k], r->known.at[i]) == 0;
		if (is_again)
			continue;
		sc_buf_printf(&names, "%s%s=", names.bytes ? ", " : "", r->known.at[i]);
		if (!nearest || sc_distance(name, r->known.at[i]) < sc_distance(name, nearest))
			nearest = r->known.at[i];
	}
	if (names.failed)
		return sc_nomem(r->err);
	if (!preset)
		return sc_fail(r->err, SC_E_LAYOUT, "layout: nothing uses the variable %s; take 'let %s=' away, or "
			       "write $%s where it is meant", name, name, name);
	if (!nearest)
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': preset %s has no variables", line, preset);
	if (2 * sc_distance(name, nearest) > strlen(nearest) + 1)
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': preset %s has no variable %s; it has %s", line,
			       preset, name, names.text);
	return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': preset %s has no variable %s; did you mean %s=? It has %s",
		       line, preset, name, nearest, names.text);
}

static int read_settings(struct reader *r, const char *line, char *words, struct variables *vars,
			 enum by by)
{
	struct sc_keys names = {0};
	char *word;
	int rc = 0;

	while (rc == 0 && (word = sc_next_word(&words))) {
		char *eq = strchr(word, '=');

		if (!eq || eq == word) {
			rc = sc_fail(r->err, SC_E_LAYOUT, "layout '%s': '%s' is not NAME=value", line, word);
			break;
		}
		*eq = 0;
		rc = sc_keys_add(&names, word, r->err);
		if (rc < 0)
			rc = sc_wrap(r->err, rc, "layout '%s'", line);
		else
			rc = variable_set(r, vars, word, eq + 1, by);
	}
	sc_vec_done(&names);
	return rc;
}

/* Refuses a line that uses a variable without a value.  In a preset, the error quotes the comment in the preset's first
 * line, which lists its variables. */
static int no_variable(struct reader *r, const char *line, size_t bytes, const char *name, size_t name_bytes)
{
	const char *usage = r->within ? r->within + strcspn(r->within, "#\n") : "";

	if (*usage++ == '#')
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%.*s': no variable %.*s, which the preset has no default "
			       "for:%.*s", (int)bytes, line, (int)name_bytes, name, (int)strcspn(usage, "\n"), usage);
	return sc_fail(r->err, SC_E_LAYOUT, "layout '%.*s': no variable %.*s; write 'let %.*s='", (int)bytes, line,
		       (int)name_bytes, name, (int)name_bytes, name);
}

/* Copies one line to the arena, without its comment and with its variables replaced. */
static int clean_line(struct reader *r, const struct variables *vars, const char *text,
		      size_t bytes, char **ret)
{
	struct sc_buf buf = {0};
	const char *end = text + bytes;

	for (const char *p = text; p < end; p++)
		if (*p == '#' && (p == text || strchr(BLANKS, p[-1])))
			end = p;
	while (text < end && strchr(BLANKS, *text))
		text++;
	while (end > text && strchr(BLANKS, end[-1]))
		end--;
	for (const char *p = text; p < end;) {
		const char *q = p + 1, *value;

		while (q < end && ((*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z') || *q == '_' ||
				   (*q >= '0' && *q <= '9')))
			q++;
		if (*p != '$' || q == p + 1) {
			sc_buf_add(&buf, p++, 1);
			continue;
		}
		value = variable_get(vars, p + 1, (size_t)(q - p - 1));
		if (!value) {
			sc_buf_done(&buf);
			return no_variable(r, text, (size_t)(end - text), p + 1, (size_t)(q - p - 1));
		}
		sc_buf_add(&buf, value, strlen(value));
		p = q;
	}
	*ret = buf.failed ? NULL : sc_arena_copy(&r->layout->arena, buf.text ? buf.text : "", buf.bytes);
	sc_buf_done(&buf);
	return *ret ? 0 : sc_nomem(r->err);
}

static int axis_intern(struct reader *r, const char *name, size_t bytes)
{
	struct meta_axis_names *axes = &r->layout->axes;
	int at = meta_axis_find(axes, name, bytes);

	if (at >= 0 || axes->nr == SC_AXES_MAX)
		return at;
	axes->name[axes->nr] = sc_arena_copy(&r->layout->arena, name, bytes);
	return axes->name[axes->nr] ? axes->nr++ : -1;
}

static bool is_axis_name(const char *name, size_t bytes)
{
	static const char *const taken[] = {"vp", "stages", "order", "plain"};

	if (bytes == 0 || bytes > SC_AXIS_NAME_MAX || name[0] < 'a' || name[0] > 'z')
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') ||
		      name[i] == '_'))
			return false;
	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		if (strlen(taken[i]) == bytes && memcmp(taken[i], name, bytes) == 0)
			return false;
	return true;
}

static bool same_mesh(const struct meta_mesh *a, const struct meta_mesh *b)
{
	for (int i = 0; i < a->nr && a->nr == b->nr; i++)
		if (a->at[i].axis != b->at[i].axis || a->at[i].kind != b->at[i].kind ||
		    a->at[i].number != b->at[i].number)
			return false;
	return a->nr == b->nr;
}

static int read_mesh(struct reader *r, const char *line, char *words)
{
	struct meta_layout *l = r->layout;
	struct meta_mesh mesh = {0};
	char *word;

	while ((word = sc_next_word(&words))) {
		char *eq = strchr(word, '=');
		size_t bytes = eq ? (size_t)(eq - word) : strlen(word);
		struct meta_mesh_axis *a = &mesh.at[mesh.nr];
		int other;

		if (!is_axis_name(word, bytes) || mesh.nr == SC_AXES_MAX)
			return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': '%s' is no axis", line, word);
		other = axis_intern(r, word, bytes);
		if (other < 0)
			return sc_fail(r->err, SC_E_LIMIT, "layout '%s': more than %d axes", line, SC_AXES_MAX);
		*a = (struct meta_mesh_axis){.axis = (uint8_t)other, .number = 1};
		for (int i = 0; i < mesh.nr; i++)
			if (mesh.at[i].axis == a->axis)
				return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': axis %.*s twice", line,
					       (int)bytes, word);
		mesh.nr++;
		if (!eq || !eq[1])
			continue;
		if (strcmp(eq + 1, "*") == 0) {
			a->kind = META_DEGREE_REST;
		} else if (sc_number_parse(eq + 1, strlen(eq + 1), &a->number) && a->number) {
			a->kind = META_DEGREE_NUMBER;
		} else {
			other = meta_axis_find(&l->axes, eq + 1, strlen(eq + 1));
			if (other < 0)
				return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': '%s' is no degree; write a number, * "
					       "or an axis declared before", line, eq + 1);
			a->kind = META_DEGREE_AXIS;
			a->number = (uint32_t)other;
		}
	}
	if (mesh.nr == 0)
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': the mesh has no axis", line);
	for (int i = 0; i < l->nr_meshes; i++)
		if (same_mesh(&l->meshes[i], &mesh))
			return 0;
	if (l->nr_meshes == SC_MESHES_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "layout '%s': more than %d meshes", line, SC_MESHES_MAX);
	l->meshes[l->nr_meshes++] = mesh;
	return 0;
}

static int read_text(struct reader *r, const char *text, const struct variables *outer, int depth);

static int read_use(struct reader *r, const char *line, char *words, const struct variables *vars,
		    int depth)
{
	struct variables inner;
	const char *preset, *outer, *name = sc_next_word(&words);
	int rc = variables_copy(r, &inner, vars);

	if (rc == 0)
		rc = read_settings(r, line, words, &inner, BY_USE);
	if (rc < 0)
		return rc;
	preset = name ? r->preset(r->preset_arg, name) : NULL;
	if (!preset)
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': no preset '%s'; the presets are %s", line,
			       name ? name : "", meta_preset_names);
	if (depth == 0)
		r->known.nr = 0;
	outer = r->within;
	r->within = preset;
	rc = read_text(r, preset, &inner, depth + 1);
	r->within = outer;
	for (size_t i = 0; rc == 0 && i < inner.nr; i++)
		if (!*inner.at[i].is_used && (i >= vars->nr || inner.at[i].is_used != vars->at[i].is_used))
			rc = unknown(r, line, inner.at[i].name, name);
	return rc;
}

/* Reads one glob, without captures: it matches whole paths, and its `*` also a slash. */
static int read_plain(struct reader *r, const char *line, const char *kind, char *words)
{
	struct meta_cap_names names = {.arena = &r->layout->arena};
	struct meta_plain one = {.text = sc_next_word(&words), .is_log = strcmp(kind, "log") == 0};
	int rc;

	if (!one.text || sc_next_word(&words))
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': a %s line has one pattern of a file", line, kind);
	if (strpbrk(one.text, "{}"))
		return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': a %s file has no captures; write * for any text",
			       line, kind);
	for (size_t i = 0; i < r->plain.nr; i++)
		if (strcmp(r->plain.at[i].text, one.text) == 0 && r->plain.at[i].is_log == one.is_log)
			return 0;
	if (r->plain.nr == SC_RULES_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "layout: more than %d plain and log lines", SC_RULES_MAX);
	rc = meta_pattern_parse(&names, &r->layout->axes, one.text, strlen(one.text), &one.pattern, r->err);
	return rc < 0 ? rc : sc_vec_push(&r->plain, one) < 0 ? sc_nomem(r->err) : 0;
}

static int read_line(struct reader *r, char *line, struct variables *vars, const char **file,
		     int depth)
{
	char *words = sc_arena_copy(&r->layout->arena, line, strlen(line)), *word;
	char *rule = line;

	if (!words)
		return sc_nomem(r->err);
	word = sc_next_word(&words);
	if (!word)
		return 0;
	if (strcmp(word, "let") == 0)
		return read_settings(r, line, words, vars, depth ? BY_PRESET : BY_LET);
	if (strcmp(word, "use") == 0)
		return read_use(r, line, words, vars, depth);
	if (strcmp(word, "mesh") == 0)
		return read_mesh(r, line, words);
	if (strcmp(word, "plain") == 0 || strcmp(word, "log") == 0)
		return read_plain(r, line, word, words);
	if (strcmp(word, "file") == 0) {
		word = sc_next_word(&words);
		if (!word || sc_next_word(&words))
			return sc_fail(r->err, SC_E_LAYOUT, "layout '%s': a file line has one pattern", line);
		*file = word;
		return 0;
	}
	if (!meta_find_colon(word)) /* the file line may say how names of tensors begin */
		rule = sc_arena_printf(&r->layout->arena, "%s%s%s", *file, meta_find_colon(*file) ? "" : ":", line);
	if (!rule || sc_vec_push(&r->lines, rule) < 0 || sc_vec_push(&r->numbers, r->number) < 0)
		return sc_nomem(r->err);
	if (r->lines.nr > SC_RULES_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "layout: more than %d rules", SC_RULES_MAX);
	return 0;
}

/* Says in which line of several an error is; a text of one line needs no number. */
static int number_error(struct reader *r, unsigned number, int rc)
{
	const char *end = strchr(r->layout->source, '\n');

	return end && end[1] ? sc_wrap(r->err, rc, "line %u", number) : rc;
}

static int read_text(struct reader *r, const char *text, const struct variables *outer, int depth)
{
	struct variables vars = {0};
	const char *file = "*";
	int rc = outer ? variables_copy(r, &vars, outer) : 0;

	if (depth >= SC_USE_DEPTH_MAX)
		return sc_fail(r->err, SC_E_LAYOUT, "layout: presets use each other too deeply");
	while (rc == 0 && *text) {
		size_t bytes = strcspn(text, "\n");
		char *line = NULL;

		r->number += !depth;
		rc = clean_line(r, &vars, text, bytes, &line);
		if (rc == 0)
			rc = read_line(r, line, &vars, &file, depth);
		text += bytes + (text[bytes] == '\n');
		if (rc < 0 && !depth)
			(void)number_error(r, r->number, rc);
	}
	for (size_t i = 0; rc == 0 && !outer && i < vars.nr; i++)
		if (!*vars.at[i].is_used && *vars.at[i].value) /* an empty one changes nothing */
			rc = unknown(r, NULL, vars.at[i].name, NULL);
	return rc;
}

static int make_flat(struct reader *r)
{
	struct meta_layout *l = r->layout;
	struct sc_buf buf = {0};

	for (int m = 0; m < l->nr_meshes; m++) {
		sc_buf_printf(&buf, "mesh");
		for (int i = 0; i < l->meshes[m].nr; i++) {
			const struct meta_mesh_axis *a = &l->meshes[m].at[i];

			sc_buf_printf(&buf, " %s", l->axes.name[a->axis]);
			if (a->kind == META_DEGREE_REST)
				sc_buf_printf(&buf, "=*");
			else if (a->kind == META_DEGREE_AXIS)
				sc_buf_printf(&buf, "=%s", l->axes.name[a->number]);
			else if (a->number != 1)
				sc_buf_printf(&buf, "=%u", a->number);
		}
		sc_buf_printf(&buf, "\n");
	}
	for (size_t i = 0; i < r->plain.nr; i++)
		sc_buf_printf(&buf, "%s %s\n", r->plain.at[i].is_log ? "log" : "plain", r->plain.at[i].text);
	for (size_t i = 0; i < r->lines.nr; i++)
		sc_buf_printf(&buf, "%s\n", r->lines.at[i]);
	l->flat = buf.failed ? NULL : sc_arena_copy(&l->arena, buf.text ? buf.text : "", buf.bytes);
	sc_buf_done(&buf);
	return l->flat ? 0 : sc_nomem(r->err);
}

/* Leaves one blank between words: for messages, and for code that looks for " like=". */
static void squeeze(char *line)
{
	char *to = line;

	for (const char *from = line; *from; from++) {
		const bool blank = *from == ' ' || *from == '\t';

		if (!blank || (to > line && to[-1] != ' '))
			*to++ = blank ? ' ' : *from;
	}
	*to = 0;
}

int meta_layout_parse(const char *text, meta_preset_fn *preset, void *preset_arg,
		      struct meta_layout **ret, struct sc_err *err)
{
	sc_cleanup(meta_layout_freep) struct meta_layout *l = sc_zalloc(sizeof(*l));
	struct reader r = {.layout = l, .err = err, .preset_arg = preset_arg,
			   .preset = preset ? preset : meta_preset_builtin};
	int rc;

	if (!l)
		return sc_nomem(err);
	if (strlen(text) > SC_LAYOUT_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "layout: %zu bytes, at most %u", strlen(text),
			       SC_LAYOUT_BYTES_MAX);
	l->source = sc_arena_copy(&l->arena, text, strlen(text));
	rc = l->source ? read_text(&r, l->source, NULL, 0) : sc_nomem(err);
	if (rc == 0 && l->nr_meshes == 0)
		rc = sc_fail(err, SC_E_LAYOUT, "layout: no mesh line; write 'mesh tp cp dp pp', or 'use PRESET', where "
			     "PRESET is one of %s", meta_preset_names);
	if (rc == 0 && r.lines.nr == 0)
		rc = sc_fail(err, SC_E_LAYOUT, "layout: there is no rule; write PATTERN ATTRIBUTES or use a preset");
	if (rc == 0)
		rc = make_flat(&r);
	if (rc == 0 && r.plain.nr) {
		l->plain = sc_arena_array(&l->arena, r.plain.nr, sizeof(*l->plain));
		l->nr_plain = l->plain ? (uint32_t)r.plain.nr : 0;
		if (l->plain)
			memcpy(l->plain, r.plain.at, r.plain.nr * sizeof(*l->plain));
		else
			rc = sc_nomem(err);
	}
	for (uint32_t i = 0; i < l->nr_plain; i++)
		l->has_logs |= l->plain[i].is_log;
	l->pp = meta_axis_find(&l->axes, "pp", 2);
	l->ep = meta_axis_find(&l->axes, "ep", 2);
	if (rc == 0)
		for (size_t i = 0; i < r.lines.nr; i++)
			squeeze(r.lines.at[i]);
	if (rc == 0) {
		size_t at = 0;

		rc = meta_rules_make(l, (const char **)r.lines.at, r.lines.nr, &at, err);
		if (rc == SC_E_LAYOUT)
			rc = number_error(&r, r.numbers.at[at], rc);
	}
	for (uint32_t i = 0; i < l->nr_rules; i++) {
		l->has_objects |= l->rules[i].is_object;
		l->has_joins |= l->rules[i].join || l->rules[i].is_stack;
	}
	sc_vec_done(&r.lines);
	sc_vec_done(&r.numbers);
	sc_vec_done(&r.plain);
	sc_vec_done(&r.known);
	if (rc == 0)
		*ret = sc_steal(&l);
	return rc;
}

struct meta_layout *meta_layout_free(struct meta_layout *layout)
{
	if (layout) {
		sc_arena_done(&layout->arena);
		sc_sys.release(layout);
	}
	return NULL;
}

void meta_layout_freep(struct meta_layout **layout)
{
	*layout = meta_layout_free(*layout);
}

static bool match(const struct meta_rule *rule, bool logical, const char *file, size_t file_bytes,
		  const char *name, size_t name_bytes, struct meta_caps *caps)
{
	const struct meta_pattern *f = logical ? &rule->file_goal : &rule->file;
	const struct meta_pattern *n = logical ? &rule->goal : &rule->name;
	struct meta_caps of_name;

	/* A file that holds no tensors has an empty name, which globs do not match. */
	if (!name_bytes != !n->nr || (logical && rule->join))
		return false;
	/* names tell rules apart, files seldom do; captures are in order of the text, files first */
	of_name.nr = 0;
	if (!meta_pattern_match(n, name, name_bytes, &of_name) ||
	    !meta_pattern_match(f, file, file_bytes, caps))
		return false;
	memcpy(caps->at + caps->nr, of_name.at, of_name.nr * sizeof(*of_name.at));
	caps->nr += of_name.nr;
	return true;
}

bool meta_rule_match(const struct meta_rule *rule, bool logical, const char *file,
		     const char *name, struct meta_caps *caps)
{
	return match(rule, logical, file, strlen(file), name, strlen(name), caps);
}

const struct meta_rule *meta_layout_next(const struct meta_layout *layout, bool logical,
					 const char *file, const char *name, uint32_t *at,
					 struct meta_caps *ret_caps)
{
	const struct meta_pairs *of_rules = logical ? layout->goal_pairs : layout->name_pairs;
	size_t file_bytes = strlen(file), name_bytes = strlen(name);
	struct meta_pairs pairs = {0};

	if (*at < layout->nr_rules)
		meta_pairs_add(&pairs, name, name_bytes);
	while (*at < layout->nr_rules) {
		const struct meta_pairs *of_rule = &of_rules[*at];
		const struct meta_rule *r = &layout->rules[(*at)++];

		ret_caps->nr = 0;
		if (meta_pairs_within(of_rule, &pairs) &&
		    match(r, logical, file, file_bytes, name, name_bytes, ret_caps))
			return r;
	}
	return NULL;
}

const struct meta_rule *meta_layout_first(const struct meta_layout *layout, bool pipelined,
					  const char *file, const char *name,
					  struct meta_caps *ret_caps)
{
	const struct meta_rule *r;
	uint32_t at = 0;

	if (meta_layout_is_plain(layout, file))
		return NULL;
	do
		r = meta_layout_next(layout, false, file, name, &at, ret_caps);
	while (r && r->tied && !pipelined);
	return r;
}

bool meta_layout_is_object(const struct meta_layout *layout, bool pipelined, const char *file, const char *name)
{
	struct meta_caps caps = {0};
	const struct meta_rule *r = layout->has_objects ? meta_layout_first(layout, pipelined, file, name, &caps)
							: NULL;

	return r && r->is_object;
}
