/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A digest of a logical tensor that adds up over its pieces.  Who has a box of the tensor digests its runs of bytes, at
 * their places in the whole.  The digests of boxes that cover the whole once, XORed, are the digest of the whole,
 * however it was cut.  It finds accidents, not forgers.
 *
 * Two CRC-64 (ECMA-182 and Jones) without initial value and final complement are linear in the bytes: a run's CRC is
 * carried to its place by a multiplication in GF(2)[x], gap for gap (Horner's rule).  docs/formats.md defines it for
 * users; tests/support/digest.py computes it by that definition.
 */
#ifndef RS_DIGEST_H
#define RS_DIGEST_H

#include <stddef.h>

#include "reshard/engine/plan/gather.h"

struct rs_digest {
	uint64_t crc[2];
};

/** Digests runs of a tensor in the order of their places.  Some 34 KB.  One init, then a begin for each part. */
struct rs_digester {
	struct rs_digest sum;
	uint64_t at;			/* behind the last run */
	uint64_t gap;			/* the last one; 0: none */
	uint64_t known_gap;		/* that `table` is of; 0: none.  Runs of a box have few different gaps */
	uint64_t added;			/* bytes since the init */
	uint64_t powers[2][64];		/* of x: a zero byte's, two bytes', four bytes', ... */
	uint64_t table[2][8][256];
};

void rs_digester_init(struct rs_digester *d);
void rs_digester_begin(struct rs_digester *d);
/** Adds bytes that lie at byte `at` of the tensor, behind the bytes that were added last. */
void rs_digester_add(struct rs_digester *d, uint64_t at, const void *bytes, size_t nr);
/** Adds the bytes that a copy puts into [at, at + bytes) of its target; `source` is the copy's, and byte 0 of the
 *  target is byte `base` of the tensor. */
void rs_digester_add_copy(struct rs_digester *d, uint64_t base, const struct rs_copy *copy, uint64_t at,
			  uint64_t bytes, const unsigned char *source);
/** Gives the digest of the added bytes, as a part of a tensor of `bytes` bytes. */
struct rs_digest rs_digester_end(struct rs_digester *d, uint64_t bytes);

static inline void rs_digest_add(struct rs_digest *sum, const struct rs_digest *part)
{
	sum->crc[0] ^= part->crc[0];
	sum->crc[1] ^= part->crc[1];
}

static inline bool rs_digest_equal(const struct rs_digest *a, const struct rs_digest *b)
{
	return a->crc[0] == b->crc[0] && a->crc[1] == b->crc[1];
}

/** Writes a digest as it is stored and shown: ECMA's value, then Jones', each with its highest bits first. */
void rs_digest_bytes(const struct rs_digest *digest, uint8_t ret[16]);

#endif
