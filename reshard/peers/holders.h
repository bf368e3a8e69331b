/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes keep copies of a node's blob: rendezvous hashing, so that a node which comes or goes moves only what it
 * has to.  Each domain (a rack, say) has one before another has two.  Pure.
 *
 * The order of nodes for a blob: first the first one of each domain, then the second one of each, and so on; of equal
 * ones that with the larger weight, which is a hash of node and blob; the blob's own node has the largest.
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

/** Puts nodes into the order that the next two want: those of one domain together. */
void rs_holders_sort(struct rs_holder *nodes, size_t nr);

/**
 * Tells whether `self` keeps a copy of blob `number` of node `origin`.  `nodes`: those that may keep some, without
 * doubles.  `copies`: on how many nodes the bytes are to be, that of the blob included; if it is not among the nodes,
 * so many others have them.
 */
bool rs_holder_is(uint32_t self, const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number,
		  uint32_t copies);

/** Gives those that have the bytes soonest, at most `room` and RS_HOLDERS_MAX, in this order.  Returns how many. */
size_t rs_holders_first(const struct rs_holder *nodes, size_t nr, uint32_t origin, uint64_t number, uint32_t *ret,
			size_t room);

#endif
