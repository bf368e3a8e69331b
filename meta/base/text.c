/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BLANKS " \t\r"

/* Reads a character of a text of 1 byte or more: returns how many bytes it has; 0: it is not UTF-8.  Lone surrogates
 * are read, too. */
static size_t read_character(const void *text, size_t bytes, uint32_t *ret)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *p = text;
	size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
	uint32_t c = n == 1 ? *p : n ? *p & (0x7fu >> n) : 0;

	if (!n || n > bytes)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	*ret = c;
	return c < least[n] || c > 0x10ffff ? 0 : n;
}

bool sc_is_utf8(const void *text, size_t bytes, bool surrogates)
{
	const char *at = text;
	uint32_t c = 0;

	while (bytes) {
		uint64_t eight;
		size_t n;

		for (; bytes >= sizeof(eight); at += sizeof(eight), bytes -= sizeof(eight)) {
			memcpy(&eight, at, sizeof(eight));
			if (eight & 0x8080808080808080u)
				break;
		}
		if (!bytes)
			break;
		n = read_character(at, bytes, &c);
		if (!n || (c >= 0xd800 && c < 0xe000 && !surrogates))
			return false;
		at += n;
		bytes -= n;
	}
	return true;
}

/* Returns the number of bytes of the printable character at `p`, 0 if there is none. */
static size_t printable(const unsigned char *p)
{
	uint32_t c = 0;
	size_t n = read_character(p, strnlen((const char *)p, 4), &c);

	/* C0 and C1 controls; surrogates; marks of lines, paragraphs and directions */
	if (c < ' ' || (c >= 0x7f && c < 0xa0) || (c >= 0xd800 && c < 0xe000) || (c >= 0x2028 && c <= 0x202e) ||
	    (c >= 0x2066 && c <= 0x2069))
		return 0;
	return n;
}

/* Writes one character, or its escape, to `piece`; returns how many bytes of `text` it was. */
static size_t show_one(const char *text, char piece[8], size_t *ret_bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t n = printable(p);

	if (n)
		memcpy(piece, text, n);
	*ret_bytes = n ? n : (size_t)(*p == '\n'   ? snprintf(piece, 8, "\\n")
				      : *p == '\t' ? snprintf(piece, 8, "\\t")
						   : snprintf(piece, 8, "\\x%02x", *p));
	return n ? n : 1;
}

char *sc_shown(char *to, size_t room, const char *text)
{
	size_t used = 0;

	while (*text) {
		char piece[8];
		size_t bytes, n = show_one(text, piece, &bytes);

		if (used + bytes >= room)
			break;
		memcpy(to + used, piece, bytes);
		used += bytes;
		text += n;
	}
	to[used] = 0;
	return to;
}

void sc_show(char *text, size_t room)
{
	for (char *p = text; *p;) {
		char piece[8];
		size_t bytes, n = show_one(p, piece, &bytes), at = (size_t)(p - text), rest;

		if (at + bytes >= room) {
			*p = 0;
			return;
		}
		rest = bytes == n ? 0 : sc_min_u64(strlen(p + n), room - 1 - at - bytes);
		if (bytes != n) {
			memmove(p + bytes, p + n, rest);
			p[bytes + rest] = 0;
			memcpy(p, piece, bytes);
		}
		p += bytes;
	}
}

void sc_buf_shown(struct sc_buf *buf, const char *text)
{
	while (*text) {
		char piece[8];
		size_t bytes, n = show_one(text, piece, &bytes);

		sc_buf_add(buf, piece, bytes);
		text += n;
	}
}

void sc_buf_line(struct sc_buf *buf, const char *fmt, ...)
{
	char small[512], *text = small;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(small, sizeof(small), fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof(small)) {
		text = sc_sys.alloc((size_t)n + 1);
		va_start(ap, fmt);
		if (text)
			(void)vsnprintf(text, (size_t)n + 1, fmt, ap);
		va_end(ap);
	}
	if (text && n >= 0)
		sc_buf_shown(buf, text);
	else
		buf->failed = true;
	sc_buf_add(buf, "\n", 1);
	if (text != small)
		sc_sys.release(text);
}

void sc_buf_quoted(struct sc_buf *buf, const char *text)
{
	for (; *text; text++)
		if (*text == '\n' || *text == '\\')
			sc_buf_printf(buf, "\\%c", *text == '\n' ? 'n' : '\\');
		else
			sc_buf_add(buf, text, 1);
}

void sc_unquote(char *text)
{
	char *to = text;

	for (; *text; text++) {
		if (*text == '\\' && text[1]) {
			text++;
			*to++ = *text == 'n' ? '\n' : *text;
		} else {
			*to++ = *text;
		}
	}
	*to = 0;
}

char *sc_trim(char *text)
{
	size_t n;

	while (*text && strchr(" \t\r\n", *text))
		text++;
	n = strlen(text);
	while (n && strchr(" \t\r\n", text[n - 1]))
		text[--n] = 0;
	return text;
}

char *sc_next_word(char **p)
{
	char *word;

	*p += strspn(*p, BLANKS);
	if (!**p)
		return NULL;
	word = *p;
	*p += strcspn(*p, BLANKS);
	if (**p)
		*(*p)++ = 0;
	return word;
}

int sc_keys_add(struct sc_keys *keys, const char *key, struct sc_err *err)
{
	for (size_t i = 0; i < keys->nr; i++)
		if (strcmp(keys->at[i], key) == 0)
			return sc_fail(err, SC_E_COMMAND, "%s= is given twice; write it once", key);
	return sc_vec_push(keys, key) < 0 ? sc_nomem(err) : 0;
}

bool sc_number_parse(const char *text, size_t bytes, uint32_t *ret)
{
	uint32_t v = 0;

	if (bytes == 0 || bytes > 9 || (bytes > 1 && text[0] == '0'))
		return false;
	for (size_t i = 0; i < bytes; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		v = v * 10 + (uint32_t)(text[i] - '0');
	}
	*ret = v;
	return true;
}

bool sc_bytes_parse(const char *text, uint64_t *ret)
{
	static const char units[] = "KMG";
	const size_t digits = strspn(text, "0123456789");
	const char *unit = text[digits] ? strchr(units, text[digits]) : NULL;
	uint32_t number;
	uint64_t n;

	if (!sc_number_parse(text, digits, &number) || (text[digits] && (!unit || text[digits + 1])))
		return false;
	n = (uint64_t)number << (unit ? 10 * (unit - units + 1) : 0);
	if (n < 1u << 20)
		return false;
	*ret = n;
	return true;
}

/* Writes the two digits of each byte. */
static void digits(char *to, const uint8_t *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		to[2 * i] = "0123456789abcdef"[from[i] >> 4];
		to[2 * i + 1] = "0123456789abcdef"[from[i] & 15];
	}
}

char *sc_hex(char *to, const void *from, size_t bytes)
{
	digits(to, from, bytes);
	to[2 * bytes] = 0;
	return to;
}

void sc_buf_hex(struct sc_buf *buf, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		char two[2];

		digits(two, (const uint8_t *)from + i, 1);
		sc_buf_add(buf, two, sizeof(two));
	}
}

bool sc_ends_with(const char *text, const char *end)
{
	const size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

#define DISTANCE_MAX 31		/* letters of `b` */

size_t sc_distance(const char *a, const char *b)
{
	size_t row[DISTANCE_MAX + 1], nr = strlen(b);

	if (nr > DISTANCE_MAX)
		return SIZE_MAX;
	for (size_t i = 0; i <= nr; i++)
		row[i] = i;
	for (size_t k = 1; *a; a++, k++) {
		size_t before = row[0];

		row[0] = k;
		for (size_t i = 1; i <= nr; i++) {
			size_t above = row[i], least = above < row[i - 1] ? above + 1 : row[i - 1] + 1;

			row[i] = before + (*a != b[i - 1]) < least ? before + (*a != b[i - 1]) : least;
			before = above;
		}
	}
	return row[nr];
}
