/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deals an epoch to data-parallel ranks.  Global batch b is positions [b B, (b + 1) B) of
 * the epoch's order, whatever the number of ranks D; rank r of D takes its share of each batch, so
 * that the sequence of global batches does not depend on how often D was changed.
 *
 *     contiguous   positions b B + [r B/D, (r + 1) B/D)
 *     strided      positions b B + r, + D, + 2 D ...
 *
 * Where D does not divide the batch: refuse; pad (each batch is extended to the next multiple of D
 * by its own first samples again); drop (the last B mod D samples of each batch are left out).
 * The last, short batch of an epoch (only with drop_last=no) is dealt as evenly as can be under
 * `refuse`: shares differ by one sample, none is lost or repeated.
 *
 * All are pure functions; samples and positions count from 0.
 */
#ifndef META_DEAL_H
#define META_DEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/base/err.h"

enum meta_uneven { META_UNEVEN_REFUSE, META_UNEVEN_PAD, META_UNEVEN_DROP };

struct meta_deal {
	uint64_t batch;		/* global, in samples, at least 1 */
	bool drop_last;		/* of an epoch's samples only whole batches are used */
	bool strided;
	enum meta_uneven uneven;
};

/** Returns how many samples of an epoch are used. */
uint64_t meta_deal_length(const struct meta_deal *deal, uint64_t nr);

/** Whole epochs, and a position in the next one. */
struct meta_at {
	uint64_t epoch, position;
};

/** Converts `consumed` samples since an epoch's beginning to whole epochs and a position.  Errors: SC_E_COMMAND (the
 *  position is inside a global batch). */
int meta_deal_seek(const struct meta_deal *deal, uint64_t nr, uint64_t consumed, struct meta_at *ret,
		   struct sc_err *err);

/** The rest of an epoch, for one rank. */
struct meta_share {
	uint64_t begin;		/* position of the first batch */
	uint64_t batch;
	uint32_t ranks, rank;
	bool strided;
	uint64_t full;		/* whole batches */
	uint64_t per;		/* of each, samples of this rank */
	uint64_t tail;		/* samples of the short batch at the end */
	uint64_t tail_from, tail_per; /* contiguous: first of this rank; how many it has */
};

/** Makes the share of a rank.  Errors: SC_E_TOPOLOGY (the ranks do not divide the batch, and uneven=refuse). */
int meta_share_init(const struct meta_deal *deal, uint64_t nr, uint64_t begin, uint32_t ranks,
		    uint32_t rank, struct meta_share *ret, struct sc_err *err);
/** Returns how many samples the share has. */
uint64_t meta_share_count(const struct meta_share *share);
/** Returns the position of sample i of the share, i < count; *ret_run is how many samples follow at the next
 *  positions. */
uint64_t meta_share_at(const struct meta_share *share, uint64_t i, uint64_t *ret_run);

#endif
