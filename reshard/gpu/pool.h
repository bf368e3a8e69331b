/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a pipeline copies by: for each GPU, a peer, each slot has a window of input, one of output, and tables;
 * with several peers, windows of what is sent and received, too.  A GPU has all of it, what is pinned has the first
 * three.  A process that has the pipeline in another one (wire.h) finds windows by these sizes, too.
 */
#ifndef RS_POOL_H
#define RS_POOL_H

#include <stdint.h>

#define RS_POOL_SLOTS 3
#define RS_POOL_PEERS_MAX 8
#define RS_POOL_WINDOW_MAX (64ull << 20)
#define RS_POOL_WINDOW_MIN (1ull << 20)	/* rs_pool_window() gives no smaller one */
#define RS_POOL_BOXES_MAX (1u << 16)

struct rs_pool {
	uint64_t window_bytes;	/* at most RS_POOL_WINDOW_MAX */
	uint32_t boxes_max;	/* of a table of copies; as rounds were asked for; at most RS_POOL_BOXES_MAX */
	uint32_t peers;		/* 1 to RS_POOL_PEERS_MAX */
};

enum rs_pool_part {
	RS_POOL_IN, RS_POOL_OUT, RS_POOL_TABLES,
	RS_POOL_PINNED,		/* those before; the others are of the device alone */
	RS_POOL_SEND = RS_POOL_PINNED, RS_POOL_RECV,
	RS_POOL_PARTS
};

/** Returns how many extents a share reads, or writes, at most. */
uint32_t rs_pool_extents(const struct rs_pool *pool);
/** Returns how many boxes and tiles the tables of a slot hold. */
uint32_t rs_pool_boxes(const struct rs_pool *pool);
uint32_t rs_pool_tiles(const struct rs_pool *pool);
/** Returns how many bytes a part of a slot has; 0: there is none. */
uint64_t rs_pool_part_bytes(const struct rs_pool *pool, enum rs_pool_part part);
/** Returns where a pinned part of a peer's slot begins. */
uint64_t rs_pool_place(const struct rs_pool *pool, uint32_t peer, unsigned slot, enum rs_pool_part part);
/** Returns how many bytes all slots of all peers have, pinned. */
uint64_t rs_pool_bytes(const struct rs_pool *pool);
/**
 * Returns the largest window of which all slots, with their tables, fit into so many bytes of each device, and of
 * pinned memory.  0: they are too few.
 */
uint64_t rs_pool_window(uint64_t device_bytes, uint64_t pinned_bytes, uint32_t boxes_max, uint32_t peers);

#endif
