/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts from users.  First, how they are shown in texts of our own: names, notes and commands may hold any byte,
 * which would break lines and tables, and reach terminals as control sequences.  Then, how words and numbers are
 * read from them.
 */
#ifndef SC_TEXT_H
#define SC_TEXT_H

#include "meta/base/mem.h"

/**
 * Writes `text` to `to` (`room` bytes, cut there) with what is no printable character as \n, \t or \xHH: control
 * characters of ASCII and of Unicode, and bytes that are no UTF-8.  For people and for tables; returns `to`.
 */
char *sc_shown(char *to, size_t room, const char *text);
/** The same in place; what no longer fits is cut. */
void sc_show(char *text, size_t room);
/** Appends the same. */
void sc_buf_shown(struct sc_buf *buf, const char *text);
/** Appends a line: what is formatted, as sc_shown() writes it, and a line feed. */
void sc_buf_line(struct sc_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Appends `text` so that it is one line, from which sc_unquote() makes it again. */
void sc_buf_quoted(struct sc_buf *buf, const char *text);
/** In place. */
void sc_unquote(char *text);

/** Removes blanks and line feeds at both ends, in place; returns where the rest begins. */
char *sc_trim(char *text);
/** Cuts the next word off *p, which is changed; NULL at the end. */
char *sc_next_word(char **p);
/** Reads a decimal number of at most nine digits, without a sign or leading zeros; false: `text` is none. */
bool sc_number_parse(const char *text, size_t bytes, uint32_t *ret);

#endif
