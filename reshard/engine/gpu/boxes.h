/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells the kernel what to copy: boxes, and tiles of boxes.  The host makes both tables from the copies of a round
 * (reshard/engine/rounds/rounds.h), so that the device searches for nothing.
 *
 *     box    ext[0] x ext[1] x ... rows of `run` bytes; a row has its own place on both sides
 *     unit   what a thread copies at once: 16, 8, 4, 2 or 1 bytes of a row, the widest that is aligned everywhere in
 *            the box; or a word of 16 bytes of the target, where rows are long and aligned to less
 *     tile   some units of a box, about RS_TILE_BYTES: the work of a block of threads
 *
 * C reads this file and, for the kernel, C++: all types are plain.
 */
#ifndef RS_BOXES_H
#define RS_BOXES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RS_BOX_DIMS_MAX 8
#define RS_TILE_BYTES (32u << 10)
#define RS_BLOCK_THREADS 256

enum rs_box_kind {
	RS_BOX_UNITS,	/* units of 1 << shift bytes, aligned on both sides */
	RS_BOX_PEEL,	/* words; each row begins at the same byte of 16 on both sides */
	RS_BOX_SHIFT,	/* words; rows do not */
	RS_BOX_ZERO,	/* words; there is no source */
};

/** Divides numbers below 2^31 by d: the upper half of n * mul, shifted; d 1 has mul 0. */
struct rs_div {
	uint32_t d, mul, shift;
};

struct rs_box {
	uint64_t from, to;		/* addresses of the device */
	uint64_t from_stride[RS_BOX_DIMS_MAX], to_stride[RS_BOX_DIMS_MAX];
	struct rs_div ext[RS_BOX_DIMS_MAX];
	struct rs_div units;		/* of a row */
	uint32_t run;			/* bytes of a row */
	uint8_t nr, kind, shift, unused;
};

struct rs_tile {
	uint32_t box, first, nr;	/* units [first, first + nr) of the box */
};

struct rs_copy;
struct sc_err;

/** A window of memory, with its address on the device. */
struct rs_window {
	uint64_t address, bytes;
};

/** The tables, in memory of the caller. */
struct rs_tables {
	struct rs_box *boxes;
	struct rs_tile *tiles;
	uint32_t boxes_max, tiles_max, nr_boxes, nr_tiles;
};

/**
 * Adds a copy, whose places are in windows, as a box, or as several if it is large.  If `from` is NULL, the bytes of
 * the target become 0.  A copy that reads or writes anything outside of the windows is refused.
 * Errors, which leave the tables as they were: SC_E_STATE (the copy is not inside), SC_E_LIMIT (a table is full).
 */
int rs_tables_add(struct rs_tables *t, const struct rs_copy *copy, const struct rs_window *from,
		  const struct rs_window *to, struct sc_err *err);

#ifdef __cplusplus
}
#endif

#endif
