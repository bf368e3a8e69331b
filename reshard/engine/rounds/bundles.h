/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins the copies of all images that belong together: copies that read the same source, and copies that others join
 * so.  A bundle is a logical tensor, or a part of one that no image reads with the rest.
 */
#ifndef RS_BUNDLES_H
#define RS_BUNDLES_H

#include "reshard/engine/rounds/rounds.h"

/** A copy, and the places from which it counts. */
struct rs_bundle_copy {
	const struct rs_copy *copy;
	uint32_t source, target;	/* files */
	uint64_t from, to;		/* byte 0 of its source and of its tensor, in these */
};

struct rs_bundle {
	uint64_t row, end;		/* of all its copies */
	size_t nr;
	struct rs_bundle_copy *copies;	/* by row */
};

struct rs_bundles {
	struct sc_arena arena;
	uint32_t nr_files;
	struct rs_rounds_file *files;	/* in the order in which images name them */
	size_t nr;
	struct rs_bundle *at;		/* by file and place */
	size_t nr_copies;
	struct rs_bundle_copy *copies;	/* of all of them */
};

/**
 * Makes the bundles that are fit for rounds.  It leaves out copies whose rows are not known or do not lie one behind
 * the other (transposed files), bundles of long runs (run_bytes), and bundles of which reads of whole extents would be
 * more than twice what copies need.  *ret is zeroed before the call; rs_bundles_done() ends it, after errors, too.
 * Errors: SC_E_NO_MEMORY.
 */
int rs_bundles_make(const struct rs_image *const *images, uint32_t nr, const struct rs_rounds_options *options,
		   struct rs_bundles *ret, struct sc_err *err);
void rs_bundles_done(struct rs_bundles *set);

/** Returns how many bytes a copy spans in its target (`stride` is its to_stride) or in its source (its from_stride). */
uint64_t rs_bundle_reach(const struct rs_copy *copy, const uint64_t *stride);

#endif
