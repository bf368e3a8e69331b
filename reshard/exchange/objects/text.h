/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as text.  Printing and parsing are one walk over the fields, so parsing takes what printing makes and nothing
 * else: a line is its key and its values, with one blank between; the last one may be a text, quoted as sc_buf_quoted()
 * does.  Bytes that are no text follow a line that counts them.
 */
#ifndef RS_OBJECTS_TEXT_H
#define RS_OBJECTS_TEXT_H

#include "meta/base/mem.h"
#include "meta/tree/change.h"

struct rs_text {
	struct sc_buf *to;		/* prints, if it is set */
	const char *at, *end;		/* else parses */
	struct sc_arena *arena;		/* then, for texts */
	bool bad, failed;		/* it is no such object; out of memory */
};

/** Tells whether all went well so far. */
static inline bool rs_text_good(const struct rs_text *t)
{
	return !t->bad && !t->failed;
}

void rs_text_key(struct rs_text *t, const char *key);
void rs_text_number(struct rs_text *t, uint64_t *n);
void rs_text_signed(struct rs_text *t, int64_t *n);
void rs_text_hex(struct rs_text *t, uint8_t *at, size_t bytes);
/** The rest of a line; parsed, it lives as long as the arena. */
void rs_text_rest(struct rs_text *t, const char **text);
void rs_text_end(struct rs_text *t);
/** A line of a key and how many bytes follow it, and these; parsed, they are where the object is. */
void rs_text_bytes(struct rs_text *t, const char *key, struct meta_bytes *bytes);

/** A number of any type; one that does not fit is bad. */
#define RS_TEXT_NUMBER(t, field) \
	do { \
		uint64_t n_ = (uint64_t)(field); \
	\
		rs_text_number((t), &n_); \
		(field) = (__typeof__(field))n_; \
		(t)->bad |= (uint64_t)(field) != n_; \
	} while (0)

/**
 * A line that counts, and so many items, each of which takes some bytes: so the vector is no larger than what is
 * parsed makes it.  `walk(t, &item)` is one of them.
 */
#define RS_TEXT_LIST(t, key, vec, walk) \
	do { \
		uint64_t nr_ = (vec)->nr; \
	\
		rs_text_key((t), (key)); \
		rs_text_number((t), &nr_); \
		rs_text_end(t); \
		for (uint64_t i_ = 0; i_ < nr_ && rs_text_good(t); i_++) { \
			if (!(t)->to && sc_vec_push((vec), (__typeof__(*(vec)->at)){0}) < 0) \
				(t)->failed = true; \
			else \
				walk((t), &(vec)->at[i_]); \
		} \
	} while (0)

#endif
