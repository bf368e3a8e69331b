/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the names in a folder, in an order that does not move.
 *
 *  T8  A name's offset follows from the name.  So a listing that is read in parts, while names come and go, gives each
 *      name that is there all the time exactly once; also across a commit or a restart, and for a reader that kept only
 *      an offset.
 */
#ifndef RS_LISTING_H
#define RS_LISTING_H

#include "reshard/overlay/overlay.h"

#define RS_OFFSET_FIRST 3	/* below: 0 the beginning, 1 behind ".", 2 behind ".." */

struct rs_listed {
	uint64_t offset;	/* where a reader goes on that got this name; below 2^62 */
	uint64_t ino;
	struct meta_bytes name;
};

struct rs_listing {
	struct rs_listed *at;	/* by offset */
	size_t nr, room;
	/* private */
	struct sc_arena names;
	uint64_t folder, changes;
};

/** Lists a folder as it is now; rs_listing_done() frees it, also after an error.  `ret`: zeroed, or a listing. */
int rs_listing_make(const struct rs_overlay *o, uint64_t folder, struct rs_listing *ret, struct sc_err *err);
void rs_listing_done(struct rs_listing *l);
/** Tells whether names may have come or gone since the listing was made. */
bool rs_listing_is_old(const struct rs_overlay *o, const struct rs_listing *l);
/** Finds the first name behind an offset; l->nr: there is none. */
size_t rs_listing_after(const struct rs_listing *l, uint64_t offset);

#endif
