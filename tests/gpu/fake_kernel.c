/* SPDX-License-Identifier: Apache-2.0 */
/* scalai_copy() for the stand-in: its source as loops of the host, over what the tables name. */
#include <stdlib.h>

#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/host_run.h"
#include "tests/gpu/pipeline_rounds.h"

#define AREAS_MAX 4

/* What a launch touches of an area: all between its first and its last byte. */
struct touched {
	struct fake_area *area;
	uint64_t lo, hi;
	bool write;
};

struct launch {
	struct fake_op *op;
	struct touched at[AREAS_MAX];
	unsigned nr;
};

/* Device memory by the address of its first byte; false: there is none. */
static bool touch(struct launch *l, uint64_t lo, uint64_t hi, bool write)
{
	struct touched *t = l->at;

	while (t < l->at + l->nr && (t->write != write || lo < (uint64_t)(uintptr_t)t->area->at ||
				     lo >= (uint64_t)(uintptr_t)t->area->at + t->area->bytes))
		t++;
	if (t == l->at + l->nr) {
		if (l->nr == AREAS_MAX)
			return false;
		*t = (struct touched){fake_uses(l->op, (const void *)(uintptr_t)lo, 0, write), lo, hi, write};
		if (!t->area || t->area->device < 0)
			return false;
		l->nr++;
	}
	if (t->lo > lo)
		t->lo = lo;
	if (t->hi < hi)
		t->hi = hi;
	return true;
}

static uint64_t reach(const struct rs_box *b, const uint64_t *stride)
{
	uint64_t bytes = b->run;

	for (unsigned k = 0; k < b->nr; k++)
		bytes += (b->ext[k].d - 1) * stride[k];
	return bytes;
}

/* Tables that were not copied, or not yet, are poison. */
static bool touch_box(struct launch *l, const struct rs_box *b)
{
	if (b->nr > RS_BOX_DIMS_MAX || b->kind > RS_BOX_ZERO || b->shift > 4)
		return false;
	if (b->kind != RS_BOX_ZERO && !touch(l, b->from, b->from + reach(b, b->from_stride), false))
		return false;
	return touch(l, b->to, b->to + reach(b, b->to_stride), true);
}

static bool touch_all(struct launch *l, const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr)
{
	uint32_t last = 0;

	if (!fake_uses(l->op, tiles, nr * sizeof(*tiles), false))
		return false;
	for (uint32_t i = 0; i < nr; i++)
		last = tiles[i].box > last ? tiles[i].box : last;
	if (!fake_uses(l->op, boxes, ((size_t)last + 1) * sizeof(*boxes), false))
		return false;
	for (uint32_t i = 0; i < nr; i++)
		if (!touch_box(l, &boxes[tiles[i].box]))
			return false;
	for (unsigned i = 0; i < l->nr; i++)
		if (!fake_uses(l->op, (const void *)(uintptr_t)l->at[i].lo, l->at[i].hi - l->at[i].lo, l->at[i].write))
			return false;
	return true;
}

static bool run(struct fake_op *op, void **args, unsigned blocks, unsigned threads, uint64_t seed)
{
	const struct rs_box *boxes = *(const struct rs_box **)args[0];
	const struct rs_tile *tiles = *(const struct rs_tile **)args[1];
	const uint32_t nr = *(const uint32_t *)args[2];
	struct host_region regions[AREAS_MAX];
	struct launch l = {.op = op};
	struct host_device device = {regions, 0, NULL, 0};

	if (!touch_all(&l, boxes, tiles, nr))
		return false;
	for (unsigned i = 0; i < l.nr; i++) {
		struct fake_area *a = l.at[i].area;
		const uint64_t lo = l.at[i].lo, bytes = l.at[i].hi - lo;

		/* it may load beside its rows, since words are aligned, and stores nothing but them */
		if (l.at[i].write)
			regions[device.nr++] = (struct host_region){lo, bytes, (unsigned char *)(uintptr_t)lo, NULL, calloc(bytes + 1, 1)};
		else
			regions[device.nr++] = (struct host_region){(uint64_t)(uintptr_t)a->at, a->bytes, a->at, a->written, NULL};
	}
	host_run(&device, boxes, tiles, nr, blocks, threads, seed);
	for (unsigned i = 0; i < l.nr; i++) {
		uint8_t *written = l.at[i].area->written + (l.at[i].lo - (uint64_t)(uintptr_t)l.at[i].area->at);

		for (uint64_t k = 0; regions[i].stored && k < regions[i].bytes; k++)
			written[k] |= regions[i].stored[k];
		free(regions[i].stored);
	}
	if (device.wrong)
		fake_misuse(op, device.wrong);
	return true;
}

const char *const pipeline_kernel = ".version 8.0"; /* the stand-in looks no further */
const struct fake_kernel fake_the_kernel = {"scalai_copy", 3, {sizeof(void *), sizeof(void *), sizeof(uint32_t)}, run};

/* --- the host's tables: linked with --wrap=rs_tables_add, so that their accesses are seen --- */

int __real_rs_tables_add(struct rs_tables *t, const struct rs_copy *copy, const struct rs_window *from,
			 const struct rs_window *to, struct sc_err *err);
int __wrap_rs_tables_add(struct rs_tables *t, const struct rs_copy *copy, const struct rs_window *from,
			 const struct rs_window *to, struct sc_err *err);

int __wrap_rs_tables_add(struct rs_tables *t, const struct rs_copy *copy, const struct rs_window *from,
			 const struct rs_window *to, struct sc_err *err)
{
	int rc = __real_rs_tables_add(t, copy, from, to, err);

	fake_host_uses(t->boxes, t->nr_boxes * sizeof(*t->boxes), true, "the host's table of boxes");
	fake_host_uses(t->tiles, t->nr_tiles * sizeof(*t->tiles), true, "the host's table of tiles");
	return rc;
}
