/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/exchange/objects/text.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/text.h"

/* Prints these bytes, or takes them and nothing else. */
static void literal(struct rs_text *t, const char *bytes, size_t nr)
{
	if (t->to) {
		sc_buf_add(t->to, bytes, nr);
		return;
	}
	if (t->bad || (size_t)(t->end - t->at) < nr || memcmp(t->at, bytes, nr) != 0)
		t->bad = true;
	else
		t->at += nr;
}

void rs_text_key(struct rs_text *t, const char *key)
{
	literal(t, key, strlen(key));
}

void rs_text_end(struct rs_text *t)
{
	literal(t, "\n", 1);
}

static void digits(struct rs_text *t, uint64_t *n)
{
	const char *begin = t->at;

	*n = 0;
	while (t->at < t->end && *t->at >= '0' && *t->at <= '9' && !t->bad) {
		t->bad = __builtin_mul_overflow(*n, UINT64_C(10), n) ||
			 __builtin_add_overflow(*n, (uint64_t)(*t->at - '0'), n);
		t->at++;
	}
	t->bad |= t->at == begin || (*begin == '0' && t->at > begin + 1);
}

void rs_text_number(struct rs_text *t, uint64_t *n)
{
	literal(t, " ", 1);
	if (t->to)
		sc_buf_number(t->to, *n);
	else if (!t->bad)
		digits(t, n);
}

void rs_text_signed(struct rs_text *t, int64_t *n)
{
	bool minus = *n < 0;
	uint64_t u = minus ? -(uint64_t)*n : (uint64_t)*n;

	literal(t, " ", 1);
	if (t->to) {
		sc_buf_add(t->to, "-", minus);
		sc_buf_number(t->to, u);
		return;
	}
	minus = !t->bad && t->at < t->end && *t->at == '-';
	t->at += minus;
	if (!t->bad)
		digits(t, &u);
	t->bad |= minus ? !u || u > UINT64_C(1) << 63 : u > INT64_MAX;
	*n = t->bad ? 0 : (int64_t)(minus ? -u : u);
}

void rs_text_hex(struct rs_text *t, uint8_t *at, size_t bytes)
{
	static const char hex[] = "0123456789abcdef";

	literal(t, " ", 1);
	for (size_t i = 0; i < 2 * bytes && !t->bad; i++) {
		const char *digit;

		if (t->to) {
			sc_buf_byte(t->to, hex[at[i / 2] >> (i % 2 ? 0 : 4) & 15]);
			continue;
		}
		digit = t->at < t->end && *t->at ? strchr(hex, *t->at++) : NULL;
		t->bad = !digit;
		if (digit)
			at[i / 2] = (uint8_t)((i % 2 ? at[i / 2] << 4 : 0) | (digit - hex));
	}
}

/* Tells whether a text is escaped as sc_buf_quoted() does it: no 0 byte, and a backslash only before 'n' or another
 * backslash. */
static bool is_quoted(const char *at, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		if (!at[i] || (at[i] == '\\' && (++i == nr || (at[i] != 'n' && at[i] != '\\'))))
			return false;
	return true;
}

void rs_text_rest(struct rs_text *t, const char **text)
{
	const char *last;
	char *copy;

	literal(t, " ", 1);
	if (t->to) {
		sc_buf_quoted(t->to, *text);
		return;
	}
	*text = "";
	last = t->bad || t->at == t->end ? NULL : memchr(t->at, '\n', (size_t)(t->end - t->at));
	if (!last || !is_quoted(t->at, (size_t)(last - t->at))) {
		t->bad = true;
		return;
	}
	copy = sc_arena_copy(t->arena, t->at, (size_t)(last - t->at));
	t->at = last;
	if (!copy) {
		t->failed = true;
		return;
	}
	sc_unquote(copy);
	*text = copy;
}

void rs_text_bytes(struct rs_text *t, const char *key, struct meta_bytes *bytes)
{
	uint64_t nr = bytes->nr;

	rs_text_key(t, key);
	rs_text_number(t, &nr);
	rs_text_end(t);
	if (t->to) {
		sc_buf_add(t->to, bytes->at, bytes->nr);
		return;
	}
	*bytes = (struct meta_bytes){"", 0};
	if (t->bad || nr > (uint64_t)(t->end - t->at)) {
		t->bad = true;
		return;
	}
	*bytes = (struct meta_bytes){t->at, (size_t)nr};
	t->at += nr;
}
