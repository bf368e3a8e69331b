/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A partition: the rest of an epoch for one data-parallel rank, as a file of the dataset's own format.
 * A partition is described, not stored: head, samples in the epoch's order, tail; reads gather extents
 * of the sources.  Megatron's .bin and .idx are two files of one partition.
 *
 * Where the sizes of samples vary, the offset of every STRIDE-th sample is kept, found in one pass over
 * the partition's samples; samples of one size need no table.
 *
 *     byte -> sample i of the share -> position in the epoch -> sample of the corpus -> extent
 *             (offsets, or /)          (deal.h)                 (order.h)
 */
#ifndef RS_DATA_PART_H
#define RS_DATA_PART_H

#include <sys/uio.h>

#include "reshard/data/corpus.h"

struct rs_part {
	struct rs_corpus *corpus;	/* borrowed: its user keeps it */
	uint64_t epoch;
	struct meta_share share;
	struct meta_order order;
	uint64_t nr;			/* samples */
	uint64_t sequences;		/* of RS_DATA_MEGATRON */
	struct sc_buf head;
	uint64_t body, tail;		/* bytes of samples; zeros after them */
	uint64_t *offsets;		/* of samples 0, STRIDE, 2 STRIDE ..., NULL: one size */
	uint64_t *firsts;		/* likewise, sequences before them; NULL: as many as samples */
	uint64_t table_bytes;
};

/** Makes a partition.  Errors: SC_E_SOURCE, SC_E_DAMAGED, SC_E_TOPOLOGY (uneven=refuse), SC_E_NO_MEMORY. */
int rs_part_new(struct rs_corpus *corpus, uint64_t epoch, uint64_t begin, uint32_t ranks, uint32_t rank,
		struct rs_part **ret, struct sc_err *err);
struct rs_part *rs_part_free(struct rs_part *part);
/** Returns the size of a file of the partition: 0, or 1 for the .idx. */
uint64_t rs_part_bytes(const struct rs_part *part, int file);
/**
 * Fills `to`; at + bytes must be within the file.  Errors: SC_E_SOURCE (a source that was used has
 * changed since it was added), SC_E_DAMAGED (a table or a copy cannot be read).
 */
int rs_part_read(struct rs_part *part, int file, uint64_t at, uint64_t bytes, unsigned char *to,
		 struct sc_err *err);
/**
 * Gives the same bytes as pieces of mapped memory.  Returns their number, or 0: they are more than
 * `room`, or the bytes are not only samples.  Sources are checked now; if one becomes shorter later,
 * the reader of the pieces gets EFAULT.
 */
int rs_part_pieces(struct rs_part *part, int file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err);

#endif
