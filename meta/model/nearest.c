/* SPDX-License-Identifier: Apache-2.0 */
/* The rule that is most like a name that none matches, for the refusal: words between dots, from both ends. */
#include "meta/model/layout.h"

#include <string.h>

#include "meta/base/text.h"

#define WORDS_MAX 64
#define FRONT_WORDS_MAX 16

struct words {
	size_t nr;
	struct word {
		const char *at;
		size_t bytes;
	} at[WORDS_MAX];
};

static struct words split(const char *text, size_t bytes)
{
	struct words w = {0};
	const char *end = text + bytes;

	while (text <= end && w.nr < WORDS_MAX) {
		size_t n = strcspn(text, ".");

		if (n > (size_t)(end - text))
			n = (size_t)(end - text);
		w.at[w.nr++] = (struct word){text, n};
		text += n + 1;
	}
	return w;
}

static bool is_capture(struct word w)
{
	return w.bytes > 2 && w.at[0] == '{' && w.at[w.bytes - 1] == '}';
}

static bool is_same(struct word a, struct word b)
{
	return a.bytes == b.bytes && memcmp(a.at, b.at, a.bytes) == 0;
}

static bool is_choice(struct word w)
{
	return is_capture(w) && memchr(w.at, '|', w.bytes);
}

/* Is the name one of the words of a choice? */
static bool is_chosen(struct word name, struct word choice)
{
	const char *at = choice.at + 1, *end = choice.at + choice.bytes - 1;

	while (at < end) {
		const char *bar = memchr(at, '|', (size_t)(end - at));
		struct word one = {at, (size_t)((bar ? bar : end) - at)};

		if (is_same(name, one))
			return true;
		at += one.bytes + 1;
	}
	return false;
}

/* `*h` is like h, and no more: what `*` stands for may be several words. */
static bool is_like(struct word name, struct word pattern)
{
	uint32_t ignored;

	if (pattern.bytes > 1 && *pattern.at == '*')
		pattern = (struct word){pattern.at + 1, pattern.bytes - 1};
	if (!is_capture(pattern))
		return is_same(name, pattern);
	return is_choice(pattern) ? is_chosen(name, pattern) : sc_number_parse(name.at, name.bytes, &ignored);
}

/* The words of the name's pattern, without that of a file. */
static struct words words_of(const struct meta_rule *rule)
{
	size_t bytes = strcspn(rule->text, " ");
	const char *colon = memchr(rule->text, ':', bytes);

	return colon ? split(colon + 1, bytes - (size_t)(colon + 1 - rule->text)) : split(rule->text, bytes);
}

/* How many words are alike, from the beginning and from the end. */
static size_t likeness(const struct words *name, const struct words *rule, size_t *ret_first)
{
	size_t least = name->nr < rule->nr ? name->nr : rule->nr, first = 0, last = 0;

	while (first < least && is_like(name->at[first], rule->at[first]))
		first++;
	while (last < least - first && is_like(name->at[name->nr - 1 - last], rule->at[rule->nr - 1 - last]))
		last++;
	*ret_first = first;
	return first + last;
}

static bool begins_with_text(const struct meta_rule *rule)
{
	return rule->name.nr && rule->name.tokens[0].kind == META_TOKEN_TEXT;
}

/* What wrappers put into names: DistributedDataParallel, torch.compile(), FSDP 1, checkpoints of activations. */
static const char *const wrappers[] = {
	"module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.",
};

/* Finds the next text that a layout's text puts in front of names, by `root=` or a `file` line. */
static bool next_root(const char **at, struct word *ret)
{
	bool is_of_file = false;

	while (*(*at += strspn(*at, " \t\r\n"))) {
		const struct word w = {*at, strcspn(*at, " \t\r\n")};
		const char *colon = is_of_file ? memrchr(w.at, ':', w.bytes) : NULL;

		*at += *w.at == '#' ? strcspn(*at, "\n") : w.bytes;
		is_of_file = w.bytes == 4 && memcmp(w.at, "file", 4) == 0;
		if (w.bytes > 5 && memcmp(w.at, "root=", 5) == 0)
			colon = w.at + 4;
		if (!colon || colon + 1 == w.at + w.bytes)
			continue;
		*ret = (struct word){colon + 1, (size_t)(w.at + w.bytes - colon - 1)};
		return true;
	}
	return false;
}

/* Tells whether a rule knows a name whose first bytes are an optimizer's, and what is behind them a weight's name. */
static bool is_known(const struct meta_layout *layout, bool pipelined, const char *file, const struct sc_buf *name,
		     size_t front)
{
	struct meta_caps caps;
	const struct meta_rule *rule = name->failed || !name->bytes
					       ? NULL : meta_layout_first(layout, pipelined, file, name->text, &caps);
	struct sc_buf base = {0};
	bool is_base;

	if (!rule || !rule->is_like)
		return rule && !front && !begins_with_text(rule);
	meta_pattern_render(&rule->base, &caps, &base);
	is_base = base.bytes && !base.failed && rule->base.tokens[0].kind != META_TOKEN_TEXT &&
		  strncmp(name->text + front, base.text, base.bytes) == 0;
	sc_buf_done(&base);
	return is_base;
}

/* Returns where the next word of a name begins, behind a dot or slash; 0: there is none. */
static size_t next_end(const char *name, size_t at)
{
	const size_t n = strcspn(name + at, "./");

	return name[at + n] ? at + n + 1 : 0;
}

/* Finds what `root=` must be for a name to be known, of which the layout says `old`. */
static bool find_root(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
		      struct word old, struct meta_front *ret)
{
	size_t first = 0;

	for (int i = 0; i < FRONT_WORDS_MAX && (i == 0 || (first = next_end(name, first))); i++) {
		size_t end = first;

		for (int k = 0; k < FRONT_WORDS_MAX && (k == 0 || (end = next_end(name, end))); k++) {
			struct sc_buf other = {0};
			bool known;

			sc_buf_add(&other, name, first);
			sc_buf_add(&other, old.at, old.bytes);
			sc_buf_add(&other, name + end, strlen(name + end));
			known = is_known(layout, pipelined, file, &other, first);
			sc_buf_done(&other);
			if (!known)
				continue;
			*ret = (struct meta_front){
				.kind = end > first ? META_FRONT_ROOT : META_FRONT_LACKS,
				.words = name, .words_bytes = first, .root = name + first, .root_bytes = end - first,
				.old = old.at, .old_bytes = old.bytes};
			return true;
		}
	}
	return false;
}

/* Tells whether a name is known without the words that wrappers put into it behind `old`. */
static bool is_wrapped(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
		       struct word old)
{
	struct sc_buf other = {0};
	const struct meta_rule *rule = NULL;
	struct meta_caps caps;
	size_t next;

	for (size_t at = 0; name[at]; at += next) {
		bool skip = false;

		next = next_end(name, at) ? next_end(name, at) - at : strlen(name + at);
		for (size_t i = 0; i < sizeof(wrappers) / sizeof(*wrappers) && at >= old.bytes; i++)
			skip |= strlen(wrappers[i]) == next && memcmp(wrappers[i], name + at, next) == 0;
		if (!skip)
			sc_buf_add(&other, name + at, next);
	}
	if (!other.failed && other.bytes && other.bytes < strlen(name))
		rule = meta_layout_first(layout, pipelined, file, other.text, &caps);
	sc_buf_done(&other);
	return rule && (rule->is_like || !begins_with_text(rule));
}

/* Finds what rules have in front of a name that they know so. */
static bool find_lacking(const struct meta_layout *layout, const char *name, struct meta_front *ret)
{
	const struct words words = split(name, strlen(name));

	for (uint32_t i = 0; i < layout->nr_rules; i++) {
		const struct words rule = words_of(&layout->rules[i]);
		size_t more = rule.nr > words.nr ? rule.nr - words.nr : 0, alike = 0;

		while (more && alike < words.nr && is_like(words.at[alike], rule.at[more + alike]))
			alike++;
		if (!more || alike < words.nr || words.nr < 2 || layout->rules[i].is_like ||
		    memchr(rule.at[0].at, '*', (size_t)(rule.at[more].at - rule.at[0].at)))
			continue;
		*ret = (struct meta_front){.kind = META_FRONT_PART, .root = rule.at[0].at,
					   .root_bytes = (size_t)(rule.at[more].at - rule.at[0].at)};
		return true;
	}
	return false;
}

void meta_layout_front(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
		       struct meta_front *ret)
{
	const char *at = layout->source;
	struct word old;

	*ret = (struct meta_front){0};
	while (next_root(&at, &old)) /* what the layout says comes before nothing: a rule begins with it */
		if (find_root(layout, pipelined, file, name, old, ret))
			return;
	if (find_root(layout, pipelined, file, name, (struct word){"", 0}, ret))
		return;
	at = layout->source;
	old = (struct word){"", 0};
	do {
		if (strncmp(name, old.at, old.bytes) == 0 && is_wrapped(layout, pipelined, file, name, old)) {
			ret->kind = META_FRONT_WITHIN;
			return;
		}
	} while (next_root(&at, &old));
	(void)find_lacking(layout, name, ret);
}

/* The name with captures in the place of numbers as the rule has them at the beginning, then with any text. */
static void make_pattern(const struct words *name, const struct words *rule, size_t first, struct sc_buf *ret)
{
	for (size_t i = 0; i < name->nr; i++) {
		const bool is_of_rule = i < first && !is_choice(rule->at[i]);
		const struct word *w = is_of_rule ? &rule->at[i] : &name->at[i];
		uint32_t ignored;

		if (i)
			sc_buf_add(ret, ".", 1);
		if (i >= first && sc_number_parse(w->at, w->bytes, &ignored))
			sc_buf_add(ret, "*", 1);
		else
			sc_buf_add(ret, w->at, w->bytes);
	}
}

bool meta_layout_nearest(const struct meta_layout *layout, const char *name, struct sc_buf *ret_pattern,
			 struct sc_buf *ret_rule)
{
	const struct words words = split(name, strlen(name));
	const struct meta_rule *nearest = NULL;
	size_t most = 0, first_of_nearest = 0;
	struct words of_nearest = {0};

	for (uint32_t i = 0; i < layout->nr_rules; i++) {
		const struct words rule = words_of(&layout->rules[i]);
		size_t first, alike = likeness(&words, &rule, &first);

		if (alike > most) {
			most = alike;
			nearest = &layout->rules[i];
			first_of_nearest = first;
			of_nearest = rule;
		}
	}
	make_pattern(&words, &of_nearest, first_of_nearest, ret_pattern);
	if (nearest)
		sc_buf_add(ret_rule, nearest->text, strlen(nearest->text));
	return !ret_pattern->failed && !ret_rule->failed && ret_pattern->bytes && ret_rule->bytes;
}

const char *meta_layout_cuts_all(const struct meta_layout *layout)
{
	static const char line[] = ":{P} like={P} ";

	for (uint32_t i = 0; i < layout->nr_rules; i++) {
		const char *at = layout->rules[i].is_like ? strstr(layout->rules[i].text, line) : NULL;

		if (at && at < strchr(layout->rules[i].text, ' '))
			return at + sizeof(line) - 1;
	}
	return NULL;
}

/* Appends the attributes of a `like` line that are no lists of words: how it cuts. */
static void add_cuts(const char *attributes, struct sc_buf *ret)
{
	static const char *const lists[] = {"rows=", "columns=", "blocks=", "whole="};

	while (*attributes && strncmp(attributes, "<- ", 3) != 0) {
		const size_t n = strcspn(attributes, " ");
		bool is_list = false;

		for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++)
			is_list |= strncmp(attributes, lists[i], strlen(lists[i])) == 0;
		if (!is_list)
			sc_buf_printf(ret, " %.*s", (int)n, attributes);
		attributes += n + (attributes[n] == ' ');
	}
}

bool meta_layout_state_line(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
			    struct sc_buf *ret)
{
	const char *dot = strrchr(name, '.'), *open, *like;
	const struct meta_rule *rule = NULL;
	struct sc_buf other = {0};
	struct meta_caps caps;

	if (!dot || !dot[1])
		return false;
	sc_buf_printf(&other, "%.*s.exp_avg", (int)(dot - name), name);
	if (!other.failed)
		rule = meta_layout_first(layout, pipelined, file, other.text, &caps);
	sc_buf_done(&other);
	like = rule && rule->is_like ? strstr(rule->text, " like={P}") : NULL;
	open = like && like[-1] == '}' ? like : NULL;
	while (open && open > rule->text && *open != '{')
		open--;
	if (!open || strncmp(open, "{P}", 3) == 0) /* the name of the state comes first in it */
		return false;
	sc_buf_printf(ret, "%.*s%s like={P}", (int)(open - rule->text), rule->text, dot + 1);
	add_cuts(like + strlen(" like={P}") + (like[strlen(" like={P}")] == ' '), ret);
	return !ret->failed;
}
