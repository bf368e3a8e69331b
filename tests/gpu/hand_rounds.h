/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds by hand: rows become their left and their right halves; another range has bytes in the midst of zeros; and each peer
 * gives some columns of its rows to each other one.
 */
#ifndef TEST_HAND_ROUNDS_H
#define TEST_HAND_ROUNDS_H

#include "reshard/engine/gpu/pool.h"
#include "reshard/engine/rounds/rounds.h"

#define HAND_WINDOW 8192
#define HAND_BOXES 3
#define HAND_PEERS_MAX 4u

extern struct rs_pool pool;	/* how many peers there are */

struct share {
	struct rs_extent in[2], out[3];
	struct rs_copy copies[HAND_BOXES], packs[HAND_BOXES], unpacks[HAND_BOXES];
	struct rs_part sends[HAND_PEERS_MAX], recvs[HAND_PEERS_MAX];
};

struct round {
	struct share shares[HAND_PEERS_MAX];
	struct rs_share of_peers[HAND_PEERS_MAX];
	struct rs_round round;
};

/** Makes round k; it lives as long as *r. */
const struct rs_round *make_round(unsigned k, struct round *r);
/** Byte `at` of a source. */
unsigned char byte_of(unsigned file, uint64_t at);
/** What byte `at` of the file of a peer is to be. */
unsigned char expected(unsigned k, unsigned p, uint64_t at);

#endif
