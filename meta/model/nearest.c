/* SPDX-License-Identifier: Apache-2.0 */
/* The rule that is most like a name that none matches, for the refusal: words between dots, from both ends. */
#include "meta/model/layout.h"

#include <string.h>

#include "meta/base/text.h"

#define WORDS_MAX 64

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

size_t meta_layout_prefix(const struct meta_layout *layout, bool pipelined, const char *file, const char *name,
			  struct sc_buf *ret_lacks)
{
	const struct words words = split(name, strlen(name));

	for (const char *at = name; (at = strpbrk(at, "./")); ) {
		struct meta_caps caps;
		const struct meta_rule *rule = meta_layout_first(layout, pipelined, file, ++at, &caps);

		if (rule && !begins_with_text(rule))
			return (size_t)(at - name);
	}
	for (uint32_t i = 0; i < layout->nr_rules; i++) {
		const struct words rule = words_of(&layout->rules[i]);
		size_t more = rule.nr > words.nr ? rule.nr - words.nr : 0, alike = 0;

		while (more && alike < words.nr && is_like(words.at[alike], rule.at[more + alike]))
			alike++;
		if (!more || alike < words.nr || words.nr < 2 || layout->rules[i].is_like ||
		    memchr(rule.at[0].at, '*', (size_t)(rule.at[more].at - rule.at[0].at)))
			continue;
		sc_buf_add(ret_lacks, rule.at[0].at, (size_t)(rule.at[more].at - rule.at[0].at));
		return 0;
	}
	return 0;
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
