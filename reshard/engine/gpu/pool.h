/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out the memory that a pipeline copies by.  For each GPU, a peer, each slot has a window of input, one of output,
 * and tables; where there are other peers, windows of bytes to send and to receive, too.  A GPU has all of these,
 * pinned memory has the first three.  The daemon, whose pipeline is in another process (wire.h), finds windows by these
 * sizes, too.
 */
#ifndef RS_POOL_H
#define RS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define RS_POOL_SLOTS 3
#define RS_POOL_PEERS_MAX 8		/* of a node */
#define RS_POOL_WORLD_MAX 64		/* of all nodes of a pass */
#define RS_POOL_WINDOW_MAX (64ull << 20)
#define RS_POOL_WINDOW_MIN (1ull << 20)	/* rs_pool_window() gives no smaller one */
#define RS_POOL_BOXES_MAX (1u << 16)
#define RS_POOL_LOADS_MAX 64		/* buffers of a GPU that outlive a pass (wire.h) */
#define RS_POOL_ID_DIGITS 256		/* of an id of NCCL, in hex: of a pass of several nodes */
#define RS_POOL_NET_BYTES 64		/* of a name of interfaces, as NCCL_SOCKET_IFNAME has it */
#define RS_POOL_HANDLE_BYTES 192	/* text by which others open one: PCI address, a blank, handle in hex */

struct rs_pool {
	uint64_t window_bytes;	/* at most RS_POOL_WINDOW_MAX */
	uint32_t boxes_max;	/* of a table of copies; as rounds were asked for; at most RS_POOL_BOXES_MAX */
	uint32_t peers;		/* GPUs of this node: 1 to RS_POOL_PEERS_MAX */
	uint32_t world, first;	/* peers of all nodes, of which these are [first, first + peers); world 0: no others */
};

/** Returns how many peers there are on all nodes. */
static inline uint32_t rs_pool_world(const struct rs_pool *pool)
{
	return pool->world ? pool->world : pool->peers;
}

enum rs_pool_part {
	RS_POOL_IN, RS_POOL_OUT, RS_POOL_TABLES,
	RS_POOL_PINNED,		/* those before; the others are of the device alone */
	RS_POOL_SEND = RS_POOL_PINNED, RS_POOL_RECV,
	RS_POOL_PARTS
};

/** Deals files to peers by the files' numbers, which may have a step in common. */
static inline uint32_t rs_pool_deal(uint64_t number, uint32_t peers)
{
	return (uint32_t)((number * 0x9e3779b97f4a7c15u) >> 32) % peers;
}

/** Returns how many extents a share reads, or writes, at most. */
uint32_t rs_pool_extents(const struct rs_pool *pool);
/** Returns how many boxes and tiles the tables of a slot hold. */
uint32_t rs_pool_boxes(const struct rs_pool *pool);
uint32_t rs_pool_tiles(const struct rs_pool *pool);
/** Returns how many bytes a part of a slot has; 0: slots have no such part. */
uint64_t rs_pool_part_bytes(const struct rs_pool *pool, enum rs_pool_part part);
/** Returns where a pinned part of a peer's slot begins. */
uint64_t rs_pool_place(const struct rs_pool *pool, uint32_t peer, unsigned slot, enum rs_pool_part part);
/** Returns how many pinned bytes all slots of all peers have. */
uint64_t rs_pool_bytes(const struct rs_pool *pool);
/** Returns how many bytes all slots have on each device. */
uint64_t rs_pool_device_bytes(const struct rs_pool *pool);
/**
 * Returns the largest window for a pool that is else like `like`, so that all its slots, with their tables, fit into so
 * many bytes of each device, and of pinned memory.  0: these are too few.
 */
uint64_t rs_pool_window(uint64_t device_bytes, uint64_t pinned_bytes, struct rs_pool like);

#endif
