/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/pool.h"

#include "meta/base/mem.h"
#include "reshard/engine/gpu/boxes.h"

#define ALIGN 4096u

static bool exchanges(const struct rs_pool *pool)
{
	return rs_pool_world(pool) > 1;
}

/* Counts the extents of a share at most: each has a copy, or bytes that go to a peer or come from one. */
uint32_t rs_pool_extents(const struct rs_pool *pool)
{
	return (exchanges(pool) ? 2 : 1) * pool->boxes_max;
}

/* Counts the boxes of a share at most: its copies, each extent that gets zeros, and, with peers, packs and unpacks. */
uint32_t rs_pool_boxes(const struct rs_pool *pool)
{
	return rs_pool_extents(pool) + (exchanges(pool) ? 3 : 1) * pool->boxes_max;
}

/* Counts the tiles of a share at most: in words, a box touches at most half as much again as it has; zeros, copies,
 * packs and unpacks may each have a whole window. */
uint32_t rs_pool_tiles(const struct rs_pool *pool)
{
	const uint64_t windows = exchanges(pool) ? 4 : 2;

	return rs_pool_boxes(pool) + (uint32_t)(3 * windows * pool->window_bytes / 2 / RS_TILE_BYTES) + 1;
}

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t rs_pool_part_bytes(const struct rs_pool *pool, enum rs_pool_part part)
{
	if (part == RS_POOL_TABLES)
		return round_up(rs_pool_boxes(pool) * sizeof(struct rs_box) +
				rs_pool_tiles(pool) * sizeof(struct rs_tile));
	return part < RS_POOL_PINNED || exchanges(pool) ? round_up(pool->window_bytes) : 0;
}

/* Adds up the sizes of the parts of a slot that come before part `end`. */
static uint64_t slot_bytes(const struct rs_pool *pool, enum rs_pool_part end)
{
	uint64_t bytes = 0;

	for (enum rs_pool_part k = RS_POOL_IN; k < end; k++)
		bytes += rs_pool_part_bytes(pool, k);
	return bytes;
}

uint64_t rs_pool_place(const struct rs_pool *pool, uint32_t peer, unsigned slot, enum rs_pool_part part)
{
	return (peer * RS_POOL_SLOTS + slot) * slot_bytes(pool, RS_POOL_PINNED) + slot_bytes(pool, part);
}

uint64_t rs_pool_bytes(const struct rs_pool *pool)
{
	return pool->peers * RS_POOL_SLOTS * slot_bytes(pool, RS_POOL_PINNED);
}

uint64_t rs_pool_device_bytes(const struct rs_pool *pool)
{
	return RS_POOL_SLOTS * slot_bytes(pool, RS_POOL_PARTS);
}

uint64_t rs_pool_window(uint64_t device_bytes, uint64_t pinned_bytes, struct rs_pool like)
{
	like.window_bytes = RS_POOL_WINDOW_MAX;
	while (like.window_bytes && (rs_pool_bytes(&like) > pinned_bytes ||
				     rs_pool_device_bytes(&like) > device_bytes))
		like.window_bytes -= RS_POOL_WINDOW_MIN;
	return like.window_bytes;
}
