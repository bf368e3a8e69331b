/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A digest of a logical tensor that adds up over its pieces: who has a box of it digests the runs of bytes that he has,
 * at their places in the whole, and the digests of boxes that cover the whole once, XORed, are that of the whole,
 * however it was cut.  It finds accidents, not forgers.
 *
 * Two CRC-64 (ECMA-182 and Jones) without initial value and final complement are linear in the bytes: a run's CRC is
 * carried to its place by a multiplication in GF(2)[x], gap for gap (Horner's rule).
 */
#ifndef RS_DIGEST_H
#define RS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

struct rs_digest {
	uint64_t crc[2];
};

/** Digests runs of a tensor in the order of their places.  Some 33 KB. */
struct rs_digester {
	struct rs_digest sum;
	uint64_t at;			/* behind the last run */
	uint64_t gap;			/* the last one; 0: none */
	uint64_t known_gap;		/* that `table` is of; 0: none.  Runs of a box have few different gaps */
	uint64_t table[2][8][256];
};

void rs_digester_begin(struct rs_digester *d);
/** Adds bytes that lie at byte `at` of the tensor, not before what was added last ends. */
void rs_digester_add(struct rs_digester *d, uint64_t at, const void *bytes, size_t nr);
/** Gives the digest of what was added, as a part of a tensor of `bytes` bytes. */
struct rs_digest rs_digester_end(struct rs_digester *d, uint64_t bytes);

static inline void rs_digest_add(struct rs_digest *sum, const struct rs_digest *part)
{
	sum->crc[0] ^= part->crc[0];
	sum->crc[1] ^= part->crc[1];
}

#endif
