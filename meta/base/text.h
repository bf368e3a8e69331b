/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text from users.  The first functions escape it: names, notes and commands may hold any byte, and unescaped they
 * would break lines and tables, and reach terminals as control sequences.  The others read words and numbers from it.
 */
#ifndef SC_TEXT_H
#define SC_TEXT_H

#include "meta/base/err.h"
#include "meta/base/mem.h"

/**
 * Writes `text` to `to`, truncated to `room` bytes, and escapes unprintable characters as \n, \t or \xHH: control
 * characters of ASCII and of Unicode, and bytes that are not UTF-8.  For people and for tables.  Returns `to`.
 */
char *sc_shown(char *to, size_t room, const char *text);
/** Escapes as sc_shown() does, in place; text that no longer fits is cut off. */
void sc_show(char *text, size_t room);
/** Appends `text`, escaped as by sc_shown(). */
void sc_buf_shown(struct sc_buf *buf, const char *text);
/** Appends the formatted text, escaped as by sc_shown(), and a line feed. */
void sc_buf_line(struct sc_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Tells whether all of a text is UTF-8; with `surrogates` it may have lone surrogates, as Python's pickler writes. */
bool sc_is_utf8(const void *text, size_t bytes, bool surrogates);

/** Appends `text` as one line; sc_unquote() restores it. */
void sc_buf_quoted(struct sc_buf *buf, const char *text);
/** Undoes sc_buf_quoted(), in place. */
void sc_unquote(char *text);

/** Writes 2 * `bytes` digits and the end of a text to `to`.  Returns `to`. */
char *sc_hex(char *to, const void *from, size_t bytes);
/** Appends 2 * `bytes` digits. */
void sc_buf_hex(struct sc_buf *buf, const void *from, size_t bytes);

/** Tells whether a text ends with another one, or is it. */
bool sc_ends_with(const char *text, const char *end);
/** Counts the letters to add, take away or change that make `a` of `b`; SIZE_MAX: `b` has more than 31. */
size_t sc_distance(const char *a, const char *b);

/** Removes blanks and line feeds at both ends, in place; returns where the rest begins. */
char *sc_trim(char *text);
/** Returns the next word of *p, 0-terminated in place, and moves *p behind it; NULL at the end. */
char *sc_next_word(char **p);
/** The keys of one command of KEY=VALUE words, each of which may come once.  Keys are borrowed; sc_vec_done() ends
 *  it. */
struct sc_keys {
	const char **at;
	size_t nr, room;
};
/** Adds the next key.  Errors: SC_E_COMMAND (the command has it already), SC_E_NO_MEMORY. */
int sc_keys_add(struct sc_keys *keys, const char *key, struct sc_err *err);
/** Reads a decimal number of at most nine digits, without a sign or leading zeros; false: `text` is no such number. */
bool sc_number_parse(const char *text, size_t bytes, uint32_t *ret);
/** Reads a size like 5G: K, M and G are of 1,024 each.  False: `text` is no size, or one below 1M. */
bool sc_bytes_parse(const char *text, uint64_t *ret);

#endif
