/* SPDX-License-Identifier: Apache-2.0 */
/* Linked to tests over rounds (tests/support/kinds/rounds.h): tables and kernel copy their boxes, on the CPU. */
#include <stdio.h>
#include <stdlib.h>

#include "meta/base/err.h"
#include "tests/gpu/host_run.h"
#include "tests/support/kinds/rounds.h"

#define FROM_ADDRESS 0x7f3000000000u
#define TO_ADDRESS 0x7e1000000000u

static void die(const char *why, uint64_t at)
{
	(void)fprintf(stderr, "kernel: %s, %lx\n", why, at);
	abort();
}

static void copy_by_kernel(const struct rs_copy *boxes, uint32_t nr, unsigned char *from, uint64_t from_bytes, unsigned char *to,
			   uint64_t to_bytes)
{
	struct host_region regions[] = {{TO_ADDRESS, to_bytes, to, NULL, calloc(to_bytes + 1, 1)},
					{FROM_ADDRESS, from_bytes, from, NULL, NULL}};
	struct rs_window a = {FROM_ADDRESS, from_bytes}, b = {TO_ADDRESS, to_bytes};
	const uint32_t tiles_max = nr + (uint32_t)(3 * to_bytes / RS_TILE_BYTES) + 1;
	struct rs_tables t = {calloc(nr + 1, sizeof(*t.boxes)), calloc(tiles_max, sizeof(*t.tiles)), nr + 1, tiles_max, 0, 0};
	struct host_device device = {regions, 2, NULL, 0};
	struct sc_err err;

	for (uint32_t i = 0; i < nr; i++)
		if (rs_tables_add(&t, &boxes[i], from ? &a : NULL, &b, &err) < 0)
			die(err.msg, i);
	if (t.nr_tiles)
		host_run(&device, t.boxes, t.tiles, t.nr_tiles, 1 + t.nr_tiles / 2, 32, to_bytes);
	if (device.wrong)
		die(device.wrong, device.wrong_at);
	free(regions[0].stored);
	free(t.boxes);
	free(t.tiles);
}

__attribute__((constructor)) static void choose(void)
{
	rounds_copy = copy_by_kernel;
}
