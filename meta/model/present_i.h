/* SPDX-License-Identifier: Apache-2.0 */
/* A view while it is made, which present.c, padding.c and entry.c share. */
#ifndef META_PRESENT_I_H
#define META_PRESENT_I_H

#include "meta/model/count.h"
#include "meta/model/view.h"

struct match {
	const struct meta_rule *rule;
	uint16_t nr_caps;
	const struct meta_cap *caps;	/* in the builder's arena */
	const uint32_t *experts;	/* experts of the tensor's family; NULL: the tensor is no expert */
};

struct builder {
	struct meta_view *v;
	struct sc_err *err;
	struct sc_arena arena;	/* ends with the build */
	struct meta_counts counts;
	struct sc_map eachs, keys, factors;
	struct sc_map texts, places;	/* files and names of entries, and their fixed coordinates: each once */
	struct sc_buf file, name;	/* as an entry is stored */
	uint32_t *starts;
	struct {
		struct match *at;
		size_t nr, room;
	} matches;
	struct {
		struct meta_entry *at;
		size_t nr, room;
	} entries;
};

/** Keeps the text of a stored file or name once: stages have the same names, and many tensors are stored under their
 *  own name (`own`, which the state has).  NULL: out of memory. */
const char *meta_keep_text(struct builder *b, const struct sc_buf *text, const char *own);
/** Keeps the coordinates that an entry fixes, once.  NULL: out of memory. */
const uint32_t *meta_keep_fixed(struct builder *b, const uint32_t fixed[SC_AXES_MAX]);
/** Cuts the piece of an entry at some coordinates, to see whether it can be cut. */
int meta_check_piece(struct builder *b, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX]);
/** Places tensor t, which is padding: entry by entry where the tensor is that the padding is behind, and behind the
 *  first entry the hidden rows. */
int meta_place_padding(struct builder *b, uint32_t t);
/** Finds the rule of numbers of blocks by the tensor whose blocks they are: how many of them a row has (scales.c). */
int meta_place_blocks(struct builder *b, uint32_t t, const struct meta_rule **rule);
/** Checks that ranks have whole blocks, and the scales of all of them (scales.c). */
int meta_check_scales(struct builder *b);
/** Finds which rows of padding each entry has, when all are placed and joined. */
int meta_share_padding(struct builder *b);

#endif
