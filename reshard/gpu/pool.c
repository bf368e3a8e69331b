/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/gpu/pool.h"

#include "meta/base/mem.h"
#include "reshard/gpu/boxes.h"

#define ALIGN 4096u

/* Each extent that has zeros is a box, too. */
uint32_t rs_pool_boxes(const struct rs_pool *pool)
{
	return 2 * pool->boxes_max;
}

/* A box touches at most half as much again as it has, in words; zeros and copies may each have a whole window. */
uint32_t rs_pool_tiles(const struct rs_pool *pool)
{
	return rs_pool_boxes(pool) + (uint32_t)(3 * pool->window_bytes / RS_TILE_BYTES) + 1;
}

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t rs_pool_part_bytes(const struct rs_pool *pool, enum rs_pool_part part)
{
	if (part != RS_POOL_TABLES)
		return round_up(pool->window_bytes);
	return round_up(rs_pool_boxes(pool) * sizeof(struct rs_box) + rs_pool_tiles(pool) * sizeof(struct rs_tile));
}

static uint64_t slot_bytes(const struct rs_pool *pool)
{
	uint64_t bytes = 0;

	for (enum rs_pool_part k = RS_POOL_IN; k < RS_POOL_PARTS; k++)
		bytes += rs_pool_part_bytes(pool, k);
	return bytes;
}

uint64_t rs_pool_place(const struct rs_pool *pool, unsigned slot, enum rs_pool_part part)
{
	uint64_t at = slot * slot_bytes(pool);

	for (enum rs_pool_part k = RS_POOL_IN; k < part; k++)
		at += rs_pool_part_bytes(pool, k);
	return at;
}

uint64_t rs_pool_bytes(const struct rs_pool *pool)
{
	return RS_POOL_SLOTS * slot_bytes(pool);
}

uint64_t rs_pool_window(uint64_t device_bytes, uint64_t pinned_bytes, uint32_t boxes_max)
{
	const uint64_t most = sc_min_u64(device_bytes, pinned_bytes);
	struct rs_pool pool = {RS_POOL_WINDOW_MAX, boxes_max};

	while (pool.window_bytes && rs_pool_bytes(&pool) > most)
		pool.window_bytes -= RS_POOL_WINDOW_MIN;
	return pool.window_bytes;
}
