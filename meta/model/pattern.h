/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name patterns of the layout language (docs/layout.md, section 3): literal text, numbers ({L},
 * {E}, ... and coordinates of the rank such as {tp}), text ({K}, *) and one of some words
 * ({weight|bias}).
 *
 * Matching is deterministic: a number takes its whole run of digits (at most 9), a choice the longest
 * of its words that is there, a text as little as lets the rest match, and only the last text is ever
 * lengthened.  Cost at most |pattern| * |name| steps, no recursion, no allocation.
 */
#ifndef META_PATTERN_H
#define META_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/base/err.h"
#include "meta/base/limits.h"
#include "meta/base/mem.h"

/* Ids of the captures that have a meaning; others are numbered from META_CAP_FREE on. */
enum meta_cap_id {
	META_CAP_L,	/* layer, numbered in its chunk */
	META_CAP_G,	/* layer, numbered in the whole model */
	META_CAP_E,	/* expert, numbered in its ep coordinate */
	META_CAP_X,	/* expert, numbered in all */
	META_CAP_V,	/* virtual pipeline chunk */
	META_CAP_B,	/* bucket, in join rules only */
	META_CAP_P,	/* what `like` replaces */
	META_CAP_FREE,
};

struct meta_token {
	enum meta_token_kind { META_TOKEN_LIT, META_TOKEN_NUM, META_TOKEN_TEXT, META_TOKEN_CHOICE } kind;
	uint8_t width;	    /* of a number: {tp:02} is 2 */
	bool star;	    /* `*`: has no name */
	int8_t axis;	    /* of a coordinate: index of the layout's axis, else -1 */
	uint16_t cap;	    /* capture id */
	uint32_t bytes;
	const char *text;   /* literal text, the capture's name, or the words of a choice between bars */
};

struct meta_pattern {
	const struct meta_token *tokens;
	uint16_t nr;
};

struct meta_cap {
	uint16_t id;
	bool is_number, is_empty; /* empty: {V} that matched nothing */
	int8_t axis;
	uint32_t number;
	const char *text;	  /* into the name that was matched */
	uint32_t bytes;
};

struct meta_caps {
	uint16_t nr;
	struct meta_cap at[SC_CAPTURES_MAX];
};

/** Names of the captures of one layout; a name has the same id everywhere in the layout. */
struct meta_cap_names {
	struct sc_arena *arena;
	const char **at;
	size_t nr, room;
	uint16_t stars;
};

struct meta_axis_names {
	uint8_t nr;
	const char *name[SC_AXES_MAX];
};

int meta_axis_find(const struct meta_axis_names *axes, const char *name, size_t bytes); /* or -1 */

/**
 * Parses a pattern.  Owner: the tokens live in names->arena, literals point into a copy there.
 * Errors: SC_E_LAYOUT for a stray brace, an empty word, a capture used twice or two of a kind that touch,
 * SC_E_NO_MEMORY.
 */
int meta_pattern_parse(struct meta_cap_names *names, const struct meta_axis_names *axes,
		       const char *text, size_t bytes, struct meta_pattern *ret,
		       struct sc_err *err);

/** Matches, and appends what was captured; false leaves `caps` as it was. */
bool meta_pattern_match(const struct meta_pattern *pattern, const char *name, size_t bytes,
			struct meta_caps *caps);

/** Renders a pattern with captures; a missing capture is a programmer's error (asserted). */
void meta_pattern_render(const struct meta_pattern *pattern, const struct meta_caps *caps,
			 struct sc_buf *buf);

/**
 * Pairs of neighbouring characters, hashed into a set: a pattern can only match a name that has all
 * pairs of its literals.  Tells most rules apart from most names in a few instructions.
 */
#define META_PAIRS 256u
struct meta_pairs {
	uint64_t bits[META_PAIRS / 64];
};
void meta_pairs_add(struct meta_pairs *pairs, const char *text, size_t bytes);
void meta_pattern_pairs(const struct meta_pattern *pattern, struct meta_pairs *ret);

static inline bool meta_pairs_within(const struct meta_pairs *some, const struct meta_pairs *all)
{
	uint64_t missing = 0;

	for (unsigned i = 0; i < META_PAIRS / 64; i++)
		missing |= some->bits[i] & ~all->bits[i];
	return !missing;
}

bool meta_pattern_has(const struct meta_pattern *pattern, uint16_t cap);

/** Copies the pattern without the captures that only say where: {V}, {B} and coordinates. */
int meta_pattern_where_less(struct sc_arena *arena, const struct meta_pattern *pattern,
			    struct meta_pattern *ret);

const struct meta_cap *meta_caps_find(const struct meta_caps *caps, uint16_t id);
void meta_caps_set_number(struct meta_caps *caps, uint16_t id, int8_t axis, uint32_t number);

#endif
