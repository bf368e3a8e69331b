/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says which nodes keep copies of a node's blob, by rendezvous hashing, so that a node which comes or goes moves only
 * the copies that it has to.  Each domain (a rack, say) has one copy before another has two.  Pure.
 *
 * The order of nodes for a blob: first the first node of each domain, then the second node of each, and so on; of equal
 * ones the node with the larger weight, which is a hash of node and blob; the blob's own node has the largest.
 */
#ifndef RS_HOLDERS_H
#define RS_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_HOLDERS_MAX 16

struct rs_holder {
	uint32_t node;
	uint32_t domain;	/* 0: one of its own */
};

/** Sorts nodes as the next two functions want them: those of one domain together. */
void rs_holders_sort(struct rs_holder *nodes, size_t nr);

/**
 * Tells whether `self` keeps a copy of blob `number` of node `origin`.  `nodes` are those that may keep copies, each
 * once.  `copies` is the number of nodes that are to have the bytes, `origin` included.  If `origin` is not among
 * `nodes`, that many of `nodes` have them.
 */
bool rs_holder_is(uint32_t self, const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number,
		  uint32_t copies);

/** Gives the nodes that have the bytes soonest, in this order, at most `room` and RS_HOLDERS_MAX.  Returns how many. */
size_t rs_holders_first(const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number, uint32_t *ret,
			size_t room);

#endif
