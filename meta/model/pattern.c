/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/pattern.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char special_names[][2] = {"L", "G", "E", "X", "V", "B", "P"};

int meta_axis_find(const struct meta_axis_names *axes, const char *name, size_t bytes)
{
	for (int i = 0; i < axes->nr; i++)
		if (strlen(axes->name[i]) == bytes && memcmp(axes->name[i], name, bytes) == 0)
			return i;
	return -1;
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_';
}

static int cap_id(struct meta_cap_names *names, const char *name, size_t bytes)
{
	const char **at;
	char *copy;

	for (size_t i = 0; i < META_CAP_FREE; i++)
		if (bytes == 1 && special_names[i][0] == name[0])
			return (int)i;
	for (size_t i = 0; i < names->nr; i++)
		if (strlen(names->at[i]) == bytes && memcmp(names->at[i], name, bytes) == 0)
			return META_CAP_FREE + (int)i;
	if (names->nr + META_CAP_FREE + names->stars >= 0x7fff)
		return -1;
	at = sc_arena_array(names->arena, names->nr + 1, sizeof(*at));
	copy = sc_arena_copy(names->arena, name, bytes);
	if (!at || !copy)
		return -1;
	if (names->nr)
		memcpy(at, names->at, names->nr * sizeof(*at));
	at[names->nr] = copy;
	names->at = at;
	return META_CAP_FREE + (int)names->nr++;
}

/* Reads "{name}" or "{name:0D}" at `p`; returns the bytes read, 0 if there is no capture. */
static size_t read_capture(const char *p, const char *end, struct meta_token *ret)
{
	const char *name = p + 1, *q = name;

	while (q < end && is_word(*q))
		q++;
	if (q == name)
		return 0;
	*ret = (struct meta_token){.text = name, .bytes = (uint32_t)(q - name), .axis = -1};
	if (q + 2 < end && q[0] == ':' && q[1] == '0' && q[2] >= '0' && q[2] <= '9') {
		ret->width = (uint8_t)(q[2] - '0');
		q += 3;
	}
	return q < end && *q == '}' ? (size_t)(q + 1 - p) : 0;
}

/* Reads "{word|word}" at `p`; returns the bytes read, 0 if there is no choice of words. */
static size_t read_choice(const char *p, const char *end, struct meta_token *ret)
{
	const char *q = p + 1;
	size_t nr = 0;

	for (;; q++, nr++) {
		const char *word = q;

		while (q < end && is_word(*q))
			q++;
		if (q == word || q == end || (*q != '|' && *q != '}'))
			return 0;
		if (*q == '}')
			break;
	}
	*ret = (struct meta_token){.kind = META_TOKEN_CHOICE, .text = p + 1, .bytes = (uint32_t)(q - p - 1),
				   .axis = -1};
	return nr ? (size_t)(q + 1 - p) : 0;
}

static int set_capture(struct meta_cap_names *names, const struct meta_axis_names *axes,
		       struct meta_token *t, const char *text, struct sc_err *err)
{
	bool lower = t->text[0] >= 'a' && t->text[0] <= 'z';
	int id = cap_id(names, t->text, t->bytes);

	if (id < 0)
		return sc_nomem(err);
	t->cap = (uint16_t)id;
	t->kind = lower || id <= META_CAP_B ? META_TOKEN_NUM : META_TOKEN_TEXT;
	if (lower) {
		t->axis = (int8_t)meta_axis_find(axes, t->text, t->bytes);
		if (t->axis < 0)
			return sc_fail(err, SC_E_LAYOUT, "pattern '%s': {%.*s} is no axis of this layout",
				       text, (int)t->bytes, t->text);
	}
	return 0;
}

static int check_token(const struct meta_token *tokens, size_t nr, const char *text,
		       struct sc_err *err)
{
	const struct meta_token *t = &tokens[nr - 1];

	if (t->kind == META_TOKEN_LIT)
		return 0;
	if (nr > 1 && tokens[nr - 2].kind == t->kind)
		return sc_fail(err, SC_E_LAYOUT, "pattern '%s': there must be text between two captures of the same "
			"kind", text);
	for (size_t i = 0; i + 1 < nr; i++)
		if (tokens[i].kind != META_TOKEN_LIT && tokens[i].cap == t->cap)
			return sc_fail(err, SC_E_LAYOUT, "pattern '%s': a capture is used twice", text);
	return 0;
}

int meta_pattern_parse(struct meta_cap_names *names, const struct meta_axis_names *axes,
		       const char *text, size_t bytes, struct meta_pattern *ret, struct sc_err *err)
{
	char *copy = sc_arena_copy(names->arena, text, bytes), *p = copy;
	struct meta_token *tokens = sc_arena_array(names->arena, bytes + 1, sizeof(*tokens));
	size_t nr = 0, caps = 0;
	int rc = 0;

	if (!copy || !tokens)
		return sc_nomem(err);
	while (*p && rc == 0) {
		struct meta_token *t = &tokens[nr++];
		size_t n = strcspn(p, "{}*");

		if (n) {
			*t = (struct meta_token){.kind = META_TOKEN_LIT, .text = p, .axis = -1,
						 .bytes = (uint32_t)n};
		} else if (*p == '*') {
			*t = (struct meta_token){.kind = META_TOKEN_TEXT, .text = "*", .bytes = 1,
						 .axis = -1, .star = true};
			t->cap = (uint16_t)(0x8000u + names->stars++);
			n = 1;
		} else if (*p == '{' && (n = read_choice(p, copy + bytes, t))) {
			t->cap = (uint16_t)(0x8000u + names->stars++);
		} else {
			n = *p == '{' ? read_capture(p, copy + bytes, t) : 0;
			if (!n)
				return sc_fail(err, SC_E_LAYOUT, "pattern '%s': stray %c", copy, *p);
			rc = set_capture(names, axes, t, copy, err);
		}
		caps += t->kind != META_TOKEN_LIT;
		if (rc == 0 && caps > SC_CAPTURES_MAX / 2)
			rc = sc_fail(err, SC_E_LIMIT, "pattern '%s': more than %d captures", copy,
				     SC_CAPTURES_MAX / 2);
		if (rc == 0)
			rc = check_token(tokens, nr, copy, err);
		p += n;
	}
	if (rc == 0)
		*ret = (struct meta_pattern){tokens, (uint16_t)nr};
	return rc;
}

/* Reads a number of at most 9 digits, without leading zeros unless the width says so; returns 0 if there is none. */
static size_t read_number(const struct meta_token *t, const char *p, size_t left, uint32_t *ret)
{
	size_t n = 0, digits = 1;
	uint32_t v = 0, rest;

	while (n < 9 && n < left && p[n] >= '0' && p[n] <= '9')
		v = v * 10 + (uint32_t)(p[n++] - '0');
	for (rest = v; rest >= 10; rest /= 10)
		digits++;
	if (n != (digits < t->width ? t->width : digits))
		return 0;
	*ret = v;
	return n;
}

/* Finds the longest word of a choice that the text begins with; returns its bytes, 0 if there is none. */
static size_t read_word(const struct meta_token *t, const char *p, size_t left)
{
	const char *word = t->text, *end = t->text + t->bytes;
	size_t most = 0;

	while (word < end) {
		const char *bar = memchr(word, '|', (size_t)(end - word));
		size_t n = (size_t)((bar ? bar : end) - word);

		if (n > most && n <= left && memcmp(p, word, n) == 0)
			most = n;
		word += n + 1;
	}
	return most;
}

void meta_pairs_add(struct meta_pairs *pairs, const char *text, size_t bytes)
{
	for (size_t i = 1; i < bytes; i++) {
		unsigned at = ((unsigned char)text[i - 1] * 31u + (unsigned char)text[i] * 5u) % META_PAIRS;

		pairs->bits[at / 64] |= 1ull << at % 64;
	}
}

void meta_pattern_pairs(const struct meta_pattern *pattern, struct meta_pairs *ret)
{
	*ret = (struct meta_pairs){0};
	for (uint16_t i = 0; i < pattern->nr; i++)
		if (pattern->tokens[i].kind == META_TOKEN_LIT)
			meta_pairs_add(ret, pattern->tokens[i].text, pattern->tokens[i].bytes);
}

/* Finds the earliest end of a text capture, from `at` on: where the next literal begins; `end` if it is nowhere. */
static size_t next_end(const struct meta_token *after, const char *name, size_t at, size_t end)
{
	const char *p = after->kind == META_TOKEN_LIT ? memchr(name + at, after->text[0], end - at) : name + at;

	return p ? (size_t)(p - name) : end;
}

bool meta_pattern_match(const struct meta_pattern *pattern, const char *name, size_t bytes,
			struct meta_caps *caps)
{
	const uint16_t had = caps->nr;
	size_t i = 0, p = 0, back_end = 0;
	struct meta_cap *back = NULL;	/* the last text capture: the only one that is retried */
	size_t back_p = 0;
	uint16_t back_nr = 0;

	while (p < pattern->nr || i < bytes) {
		const struct meta_token *t = p < pattern->nr ? &pattern->tokens[p] : NULL;

		if (t && t->kind == META_TOKEN_TEXT) {
			back = &caps->at[caps->nr++];
			*back = (struct meta_cap){.id = t->cap, .axis = -1, .text = name + i};
			if (p + 1 == pattern->nr) {
				back->bytes = (uint32_t)(bytes - i);
				return true;
			}
			back_p = p++;
			back_end = i;
			back_nr = caps->nr;
			continue;
		}
		if (t && t->kind == META_TOKEN_LIT && bytes - i >= t->bytes &&
		    memcmp(name + i, t->text, t->bytes) == 0) {
			i += t->bytes;
			p++;
			continue;
		}
		if (t && t->kind == META_TOKEN_NUM) {
			uint32_t v = 0;
			size_t n = read_number(t, name + i, bytes - i, &v);
			bool none = t->cap == META_CAP_V &&
				    (i == bytes || name[i] < '0' || name[i] > '9');

			if (n || none) {
				caps->at[caps->nr++] = (struct meta_cap){
					.id = t->cap, .is_number = true, .is_empty = !n,
					.axis = t->axis, .number = v};
				i += n;
				p++;
				continue;
			}
		}
		if (t && t->kind == META_TOKEN_CHOICE) {
			size_t n = read_word(t, name + i, bytes - i);

			if (n) {
				caps->at[caps->nr++] = (struct meta_cap){
					.id = t->cap, .axis = -1, .text = name + i, .bytes = (uint32_t)n};
				i += n;
				p++;
				continue;
			}
		}
		if (!back || back_end == bytes) {
			caps->nr = had;
			return false;
		}
		p = back_p + 1;
		i = back_end = next_end(&pattern->tokens[p], name, back_end + 1, bytes);
		caps->nr = back_nr;
		back->bytes = (uint32_t)(name + i - back->text);
	}
	return true;
}

const struct meta_cap *meta_caps_find(const struct meta_caps *caps, uint16_t id)
{
	for (uint16_t i = 0; i < caps->nr; i++)
		if (caps->at[i].id == id)
			return &caps->at[i];
	return NULL;
}

void meta_caps_set_number(struct meta_caps *caps, uint16_t id, int8_t axis, uint32_t number)
{
	struct meta_cap *cap = (struct meta_cap *)meta_caps_find(caps, id);

	if (!cap) {
		assert(caps->nr < SC_CAPTURES_MAX);
		cap = &caps->at[caps->nr++];
	}
	*cap = (struct meta_cap){.id = id, .is_number = true, .axis = axis, .number = number};
}

void meta_pattern_render(const struct meta_pattern *pattern, const struct meta_caps *caps,
			 struct sc_buf *buf)
{
	for (uint16_t i = 0; i < pattern->nr; i++) {
		const struct meta_token *t = &pattern->tokens[i];
		const struct meta_cap *c;

		if (t->kind == META_TOKEN_LIT) {
			sc_buf_add(buf, t->text, t->bytes);
			continue;
		}
		c = meta_caps_find(caps, t->cap);
		assert(c);
		if (!c->is_number)
			sc_buf_add(buf, c->text, c->bytes);
		else if (!c->is_empty)
			sc_buf_printf(buf, "%0*u", t->width, c->number);
	}
}

bool meta_pattern_has(const struct meta_pattern *pattern, uint16_t cap)
{
	for (uint16_t i = 0; i < pattern->nr; i++)
		if (pattern->tokens[i].kind != META_TOKEN_LIT && pattern->tokens[i].cap == cap)
			return true;
	return false;
}

int meta_pattern_where_less(struct sc_arena *arena, const struct meta_pattern *pattern,
			    struct meta_pattern *ret)
{
	struct meta_token *tokens = sc_arena_array(arena, pattern->nr + 1u, sizeof(*tokens));
	uint16_t nr = 0;

	if (!tokens)
		return -1;
	for (uint16_t i = 0; i < pattern->nr; i++) {
		const struct meta_token *t = &pattern->tokens[i];

		if (t->kind != META_TOKEN_NUM || t->cap <= META_CAP_X)
			tokens[nr++] = *t;
	}
	*ret = (struct meta_pattern){tokens, nr};
	return 0;
}
