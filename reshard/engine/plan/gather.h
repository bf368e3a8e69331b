/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gather describes how the bytes of one dense, row-major target (a stored tensor, or a whole logical
 * one) are collected from source tensors by strided copies.  Views, materialization and verification
 * all read gathers.  Pure: sources are memory that the caller has mapped.
 *
 * Units: bytes everywhere.  Memory: a gather grows with its boxes, not with its bytes.
 */
#ifndef RS_GATHER_H
#define RS_GATHER_H

#include "meta/model/view.h"

/** Copies `run` bytes ext[k] times, from from + k * from_stride to to + k * to_stride. */
struct rs_copy {
	uint32_t source;
	uint8_t nr;
	uint8_t turns;	/* copies from this one on whose runs interleave in the target; set by rs_gather_finish() */
	uint64_t to, from, run;
	uint64_t ext[SC_DIMS_MAX], to_stride[SC_DIMS_MAX], from_stride[SC_DIMS_MAX];
	uint64_t row, rows;	/* of the logical tensor, see rs_gather_rows(); rows 0: nobody said */
};

struct rs_gather {
	uint64_t bytes;
	bool has_padding;	/* some bytes of the target are in no copy: they are zero */
	uint32_t nr;
	size_t room;
	struct rs_copy *copies;
};

/**
 * Adds the copy of a region: `source_box` is where it lies in the source tensor, `target_box` a box
 * of the target that contains the region.  -1: out of memory.
 */
int rs_gather_add(struct rs_gather *g, uint32_t source, const struct meta_box *target_box,
		  const struct meta_box *source_box, unsigned element_bytes);

/** Adds copies as they are, from before rs_gather_finish(), with sources to be set.  -1: out of memory. */
int rs_gather_append(struct rs_gather *g, const struct rs_copy *copies, uint32_t nr);

/**
 * Says which rows of its logical tensor the copy that was added last has: indexes of the first dimension longer than
 * 1.  `region` is a box of it.  A range of rows lies together in every shard that is not cut by rows.
 */
void rs_gather_rows(struct rs_gather *g, const struct meta_shape *shape, const struct meta_box *region);

/** How a source lies that is not row-major: element (i, j, ...) is at i * stride[0] + j * stride[1] + ...; elements. */
struct rs_order {
	struct meta_shape shape;
	uint64_t stride[SC_DIMS_MAX];
	unsigned element_bytes;
};

/** Rewrites the copies from sources that have an order (orders[source] is not NULL).  They were added as if all sources
 *  were row-major: each reads a box of a source of that order. */
void rs_gather_reorder(struct rs_gather *g, const struct rs_order *const *orders);

/** Sets has_padding and turns, and gives unused memory back: call once after all copies. */
void rs_gather_finish(struct rs_gather *g);
void rs_gather_done(struct rs_gather *g);

/** Fills `to` with bytes [at, at + bytes) of the target; sources[i] is the data of source i. */
void rs_gather_read(const struct rs_gather *g, const unsigned char *const *sources, uint64_t at,
		    uint64_t bytes, unsigned char *to);

/**
 * Returns how many bytes from `at` on, at most `bytes`, are one contiguous run of one source, at
 * *ret_from of *ret_source; 0: none (padding).
 */
uint64_t rs_gather_run(const struct rs_gather *g, uint64_t at, uint64_t bytes, uint32_t *ret_source,
		       uint64_t *ret_from);

/**
 * Finds the range of its source that has all bytes which a copy reads for [at, at + bytes) of the target.  Returns its
 * length (0: the copy gives none of these bytes); *ret_from is where it begins.  The range lies inside of what the
 * whole copy spans, and is exact if the bytes come from one run.
 */
uint64_t rs_copy_span(const struct rs_copy *copy, uint64_t at, uint64_t bytes, uint64_t *ret_from);

/** Cuts a copy whose rows are known: *ret is the part of rows [row, row + rows); false: it has none of them. */
bool rs_copy_rows(const struct rs_copy *copy, uint64_t row, uint64_t rows, struct rs_copy *ret);

/** Returns a copy to the same places of the target, from a source that lies as the target does, in the longest runs. */
struct rs_copy rs_copy_laid(const struct rs_copy *copy);

/** Returns the byte of the target behind the last one that a copy copies. */
uint64_t rs_copy_end(const struct rs_copy *copy);
/** Returns how many bytes a copy copies. */
uint64_t rs_copy_bytes(const struct rs_copy *copy);

#endif
