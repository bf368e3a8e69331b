/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives the order in which an epoch visits the samples of a dataset: a pure function of (seed, epoch,
 * number of samples), and no table, so that a billion samples cost nothing.
 *
 * A keyed permutation of [0, n) is an alternating unbalanced Feistel network over the smallest
 * power of two that holds n, walked until it lands inside (cycle walking: fewer than two steps on
 * average).  Source: Black, Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002); for
 * shuffling data: Mitchell et al., "Bandwidth-Optimal Random Shuffling for GPUs" (2021).  It is no
 * cipher: the round function only mixes well.  Its numbers are part of the format: a change would
 * reorder the epochs of running jobs, so tests/unit/model/test_order.c pins them.
 */
#ifndef META_ORDER_H
#define META_ORDER_H

#include <stdint.h>

#define META_PERM_ROUNDS 16

struct meta_perm {
	uint64_t nr;
	unsigned left, right;	/* bits of the two halves */
	int rounds;
	uint64_t key[META_PERM_ROUNDS];
};

enum meta_shuffle {
	META_SHUFFLE_NONE,
	META_SHUFFLE_GLOBAL,
	META_SHUFFLE_BLOCK,	/* blocks of neighbours in random order, and each shuffled in itself */
};

struct meta_order {
	uint64_t nr;
	enum meta_shuffle shuffle;
	uint64_t block, full, short_slot;
	struct meta_perm all;	/* of samples, or of full blocks */
	struct meta_perm inside, inside_last;
};

/** Makes the order of an epoch; `block` is the number of samples in a block, at least 1, for META_SHUFFLE_BLOCK
 *  alone. */
void meta_order_init(struct meta_order *order, uint64_t nr, enum meta_shuffle shuffle, uint64_t block,
		     uint64_t seed, uint64_t epoch);
/** Returns the sample at a position of the epoch, position < nr. */
uint64_t meta_order_at(const struct meta_order *order, uint64_t position);

#endif
