/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds: the images of a set -> pieces of work that fit windows of memory, for engines that copy by such windows.
 *
 *     file ── in ──> window ── copies ────────────────────────────────────────> window ── out ──> file
 *                          └── packs ──> window ══ sends, recvs ══> window ── unpacks ──┘  (of another peer)
 *
 * A round is a range of rows of a logical tensor, or several small tensors whole.  Shards are row-major, so rows lie
 * together in every shard, old or new, that is not cut by rows: all reads and writes of a round are contiguous, and all
 * strides are inside of windows.  A source of a tensor is read once for all images.
 *
 * The caller writes what no round writes from the images: rs_rounds_rest().  That is text, fill and padding between
 * tensors, rows longer than a window, and the copies that bundles.h leaves out as not fit for rounds.
 *
 * Pure: no I/O, no clock, no thread; the same images and options give the same rounds in every process.  Units: bytes.
 * Memory: grows with the copies of the images, not with their bytes.
 */
#ifndef RS_ROUNDS_H
#define RS_ROUNDS_H

#include "reshard/engine/io/image.h"

/** Bytes of a file, and their place in a window, which has the same remainder by 16 as their place in the file. */
struct rs_extent {
	uint32_t file;		/* in: of rs_rounds_files(); out: of the images */
	bool zero;		/* out: some of its bytes are in no box; all are made 0 before boxes are copied */
	uint64_t at, bytes, window;
};

/** Bytes of a window that go to a peer, or come from one. */
struct rs_part {
	uint64_t at, bytes;
};

/**
 * What one peer does in a round.  Boxes are copies whose `from` and `to` are places in its windows; no two of a window
 * overlap in their target.  `source` has no meaning in them.
 */
struct rs_share {
	struct rs_extent *in, *out;		/* by file, then place */
	struct rs_copy *copies;			/* window in -> window out */
	struct rs_copy *packs, *unpacks;	/* in -> send; recv -> out */
	struct rs_part *sends, *recvs;		/* of each peer: of windows send and recv */
	uint32_t nr_in, nr_out, nr_copies, nr_packs, nr_unpacks;
	uint64_t in_bytes, out_bytes, send_bytes, recv_bytes;	/* of each window, used */
};

struct rs_round {
	uint32_t nr;
	struct rs_share *shares;	/* of each peer */
};

struct rs_rounds_options {
	uint64_t window_bytes;	/* each of the four windows of a peer; rows that do not fit are left to the caller */
	uint32_t boxes_max;	/* each of the three tables of a peer in a round */
	uint64_t run_bytes;	/* what is copied in runs of so many bytes is left to the caller; 0: nothing is */
	uint32_t peers;		/* who share the work: 1 or more */
	const uint32_t *writers;	/* which peer writes each image; NULL: peer 0 */
	/** Tells which peer reads a file; NULL: peer 0. */
	uint32_t (*reader)(void *arg, const struct rs_place *place);
	void *arg;
};

/** A file from which rounds read. */
struct rs_rounds_file {
	const struct rs_place *place;	/* its `at` has no meaning */
	struct rs_bytes *bytes;
	uint32_t reader;
};

struct rs_rounds;

/**
 * Prepares the rounds of images that are open, and of which none is a blob.  The images, their array and `writers` must
 * outlive the rounds.  *ret is the caller's, who ends it by rs_rounds_free().
 * Errors: SC_E_NO_MEMORY.
 */
int rs_rounds_new(const struct rs_image *const *images, uint32_t nr, const struct rs_rounds_options *options,
		  struct rs_rounds **ret, struct sc_err *err);
struct rs_rounds *rs_rounds_free(struct rs_rounds *r);

/** Gives the files that rounds read; extents have their numbers. */
const struct rs_rounds_file *rs_rounds_files(const struct rs_rounds *r, uint32_t *ret_nr);

/** Makes the next round; NULL: there are no more.  It lives until the next call.  Errors: SC_E_NO_MEMORY. */
int rs_rounds_next(struct rs_rounds *r, const struct rs_round **ret, struct sc_err *err);

/** Gives, after the last round, what no round wrote, by image and place (windows and `zero` have no meaning).
 *  Errors: SC_E_NO_MEMORY. */
int rs_rounds_rest(struct rs_rounds *r, const struct rs_extent **ret, uint32_t *ret_nr, struct sc_err *err);

#endif
