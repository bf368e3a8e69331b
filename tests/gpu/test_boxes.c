/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables and kernel, on the CPU: the bytes of a target are those of plain loops, and of the host's gather, over random
 * boxes of all kinds and widths, strides beyond 4 GiB included.  Each access is aligned, no byte outside of a row is
 * loaded, each byte of a target is stored once.  Boxes outside of their windows are refused.
 * Prints the seed and the plan when one fails; SEED=n repeats it, ROUNDS=n makes as many plans.  ON_A_DEVICE: by the kernel of one
 * (device_run.c), which has memory between addresses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "meta/base/err.h"
#include "reshard/engine/plan/gather.h"
#include "tests/gpu/host_run.h"
#include "tests/prop/pick.h"
#include "tests/support/every.h"

#define PLANS some_of(5000)
#define FAR_PLANS 500
#define BOXES_MAX 4096
#define TILES_MAX 65536
#define MANY_TILES (1u << 20)
#define PARTS_MAX 16
#define KINDS 4
#define SOURCE_ADDRESS 0x7f3000000000u
#define TARGET_ADDRESS 0x7e1000000000u

static unsigned long seed = 1;
static unsigned plan;
static struct rs_box boxes[BOXES_MAX];
static struct rs_tile tiles[TILES_MAX];
static struct rs_tables tables;
static unsigned long nr_of[KINDS][5], bytes_copied;

#define broken(fmt, ...) fail_msg("seed %lu plan %u: " fmt, seed, plan, ##__VA_ARGS__)

/* --- arrays of the device --- */

struct array {
	uint8_t nr;
	uint64_t dim[SC_DIMS_MAX], stride[SC_DIMS_MAX], bytes;
};

static struct array array_of(uint8_t nr, const uint64_t *dim, uint64_t element_bytes)
{
	struct array a = {.nr = nr, .bytes = element_bytes};

	for (int k = nr - 1; k >= 0; k--) {
		a.dim[k] = dim[k];
		a.stride[k] = a.bytes;
		a.bytes *= dim[k];
	}
	return a;
}

/* Addresses begin at any byte of 16, often at the first. */
static struct host_region region_of(uint64_t address, uint64_t bytes, bool is_target)
{
	struct host_region r = {.address = address + (pick(2) ? 0 : pick(48)), .bytes = bytes, .memory = malloc(bytes + 1)};

	r.stored = is_target ? calloc(bytes + 1, 1) : NULL;
	r.readable = is_target ? NULL : calloc(bytes + 1, 1);
	for (uint64_t i = 0; i < bytes; i++)
		r.memory[i] = is_target ? 0xa5 : (unsigned char)pick(256);
	return r;
}

static void region_done(struct host_region *r)
{
	free(r->memory);
	free(r->stored);
	free((void *)r->readable);
}

/* --- plain loops --- */

/* `from` NULL: zeros.  `readable`: of each byte of the source, 1 where a row is. */
static void copy_plainly(const struct rs_copy *c, int k, const unsigned char *from, uint8_t *readable, unsigned char *to)
{
	if (k < c->nr) {
		for (uint64_t i = 0; i < c->ext[k]; i++)
			copy_plainly(c, k + 1, from ? from + i * c->from_stride[k] : NULL,
				     from ? readable + i * c->from_stride[k] : NULL, to + i * c->to_stride[k]);
	} else if (from) {
		memcpy(to, from, c->run);
		memset(readable, 1, c->run);
	} else {
		memset(to, 0, c->run);
	}
}

/* --- tables and kernel --- */

static void clear_tables(void)
{
	tables = (struct rs_tables){boxes, tiles, BOXES_MAX, TILES_MAX, 0, 0};
}

static void add(const struct rs_copy *c, const struct host_region *from, const struct host_region *to)
{
	struct rs_window a = {from ? from->address : 0, from ? from->bytes : 0}, b = {to->address, to->bytes};
	const uint32_t was = tables.nr_boxes;
	struct sc_err err;

	if (rs_tables_add(&tables, c, from ? &a : NULL, &b, &err) < 0)
		broken("%s", err.msg);
	for (uint32_t i = was; i < tables.nr_boxes; i++)
		nr_of[boxes[i].kind][boxes[i].shift]++;
}

/* Runs the kernel over the tables; what it touches is in the regions, the target first. */
static void run(const struct host_region *regions, uint32_t nr)
{
	static const uint32_t threads[] = {1, 7, 32, 64, RS_BLOCK_THREADS};
	struct host_device device = {.regions = regions, .nr = nr};

	if (tables.nr_tiles)
		host_run(&device, boxes, tiles, tables.nr_tiles, 1 + pick(tables.nr_tiles + 1), threads[pick(5)],
			 seed * 1000003u + plan);
	if (device.wrong)
		broken("address %lx: %s", device.wrong_at, device.wrong);
}

static void expect(const unsigned char *want, const struct host_region *target)
{
	for (uint64_t i = 0; i < target->bytes; i++)
		if (want[i] != target->memory[i])
			broken("byte %lu of %lu is %02x, want %02x", i, target->bytes, target->memory[i], want[i]);
	bytes_copied += target->bytes;
}

/* --- random boxes against plain loops --- */

static void random_shape(uint8_t *ret_nr, uint64_t *dim)
{
	static const unsigned longest[] = {0, 9000, 120, 28, 12, 7, 4, 4, 4};
	const uint8_t nr = (uint8_t)(pick(20) ? 1 + pick(5) : 6 + pick(3));

	*ret_nr = nr;
	for (uint8_t k = 0; k < nr; k++)
		dim[k] = 1 + pick(longest[nr]);
	if (pick(4) == 0) { /* long rows */
		for (uint8_t k = 0; k + 1 < nr; k++)
			dim[k] = 1 + dim[k] / 3;
		dim[nr - 1] = 1 + pick(nr > 4 ? 100 : 1500);
	}
	if (pick(2))
		dim[nr - 1] = dim[nr - 1] < 16 ? dim[nr - 1] : dim[nr - 1] / 16 * 16;
	if (pick(50) == 0) { /* many tiles */
		*ret_nr = 2;
		dim[0] = 2 + pick(3);
		dim[1] = 20000 + pick(40000);
	}
}

/* A box of the target: [lo, hi) of dimension `cut`, some of the others. */
static struct rs_copy random_box(const struct array *t, uint8_t cut, uint64_t lo, uint64_t hi, uint64_t element_bytes,
				 struct array *ret_source)
{
	struct rs_copy c = {.nr = t->nr, .run = element_bytes};
	uint64_t dim[SC_DIMS_MAX], off[SC_DIMS_MAX];

	for (uint8_t k = 0; k < t->nr; k++) {
		const uint64_t at = k == cut ? lo : pick(2) ? 0 : pick((unsigned)t->dim[k]);

		c.ext[k] = k == cut ? hi - lo : pick(2) ? t->dim[k] - at : 1 + pick((unsigned)(t->dim[k] - at));
		c.to += at * t->stride[k];
		c.to_stride[k] = t->stride[k];
		dim[k] = c.ext[k] + (pick(2) ? pick(4) : 0);
		off[k] = pick((unsigned)(dim[k] - c.ext[k] + 1));
	}
	*ret_source = array_of(t->nr, dim, element_bytes);
	for (uint8_t k = 0; k < t->nr; k++) {
		c.from += off[k] * ret_source->stride[k];
		c.from_stride[k] = ret_source->stride[k];
	}
	return c;
}

static void one_plan(void)
{
	static const uint64_t sizes[] = {1, 2, 2, 2, 3, 4, 4, 4, 6, 8, 8, 10, 12, 16};
	const uint64_t element_bytes = sizes[pick(sizeof(sizes) / sizeof(*sizes))];
	struct host_region regions[1 + PARTS_MAX];
	uint64_t dim[SC_DIMS_MAX];
	unsigned char *want;
	uint32_t nr = 1;
	struct array t;
	uint8_t cut;

	random_shape(&t.nr, dim);
	t = array_of(t.nr, dim, element_bytes);
	regions[0] = region_of(TARGET_ADDRESS, t.bytes, true);
	want = malloc(t.bytes + 1);
	memcpy(want, regions[0].memory, t.bytes);
	cut = (uint8_t)pick(t.nr);
	clear_tables();
	for (uint64_t lo = 0, hi; lo < t.dim[cut] && nr <= PARTS_MAX; lo = hi) {
		const unsigned what = pick(10);
		struct array source;
		struct rs_copy c;

		hi = pick(3) ? lo + 1 + pick((unsigned)(t.dim[cut] - lo)) : t.dim[cut];
		if (what == 0)
			continue; /* nothing is stored there */
		c = random_box(&t, cut, lo, hi, element_bytes, &source);
		if (what == 1) {
			copy_plainly(&c, 0, NULL, NULL, want + c.to);
			add(&c, NULL, &regions[0]);
			continue;
		}
		regions[nr] = region_of(SOURCE_ADDRESS + nr * 0x100000000u, source.bytes, false);
		copy_plainly(&c, 0, regions[nr].memory + c.from, (uint8_t *)regions[nr].readable + c.from, want + c.to);
		add(&c, &regions[nr], &regions[0]);
		nr++;
	}
	run(regions, nr);
	expect(want, &regions[0]);
	while (nr)
		region_done(&regions[--nr]);
	free(want);
}

static void the_kernel_copies_what_loops_copy(void **unused)
{
	const unsigned plans = getenv("ROUNDS") ? (unsigned)strtoul(getenv("ROUNDS"), NULL, 10) : PLANS;
	static const char *const names[KINDS] = {"units", "peel", "shift", "zero"};

	(void)unused;
	for (plan = 0; plan < plans; plan++) {
		random_state = seed * 1000003u + plan;
		one_plan();
	}
	printf("# seed %lu: %u plans, %.1f MB; boxes:", seed, plans, (double)bytes_copied / 1e6);
	for (int kind = 0; kind < KINDS; kind++)
		for (int shift = 0; shift < 5; shift++) {
			if (nr_of[kind][shift])
				printf(" %s of %d: %lu", names[kind], 1 << shift, nr_of[kind][shift]);
			assert_true(kind == RS_BOX_UNITS || shift == 4 ? nr_of[kind][shift] > plans / 500 : !nr_of[kind][shift]);
		}
	printf("\n");
}

/* --- random shards against the host's gather --- */

static struct meta_box box_of(const struct array *a, uint8_t cut, uint64_t lo, uint64_t hi)
{
	struct meta_box b = {.nr = a->nr};
	uint64_t stride = 1;

	for (int k = a->nr - 1; k >= 0; k--) {
		b.off[k] = k == cut ? lo : 0;
		b.ext[k] = k == cut ? hi - lo : a->dim[k];
		b.stride[k] = stride;
		stride *= b.ext[k];
	}
	return b;
}

/* Everything that the kernel loads of whole shards is theirs. */
static struct host_region shard_of(uint32_t i, uint64_t bytes)
{
	struct host_region r = region_of(SOURCE_ADDRESS + i * 0x100000000u, bytes, false);

	memset((uint8_t *)r.readable, 1, bytes);
	return r;
}

/* A tensor cut along one dimension before, along another or the same one after: a shard from all that it meets. */
static void one_gather(void)
{
	static const unsigned longest[] = {0, 50000, 300, 40, 20};
	const uint64_t element_bytes = 1u << pick(5);
	const uint8_t nr = (uint8_t)(1 + pick(4)), old_cut = (uint8_t)pick(nr), new_cut = (uint8_t)pick(nr);
	const unsigned parts = 1 + pick(6);
	const unsigned char *data[PARTS_MAX];
	struct host_region regions[1 + PARTS_MAX];
	struct rs_gather g = {0};
	struct meta_box target;
	uint64_t dim[SC_DIMS_MAX], lo, hi;
	unsigned char *want;
	struct array whole;

	for (uint8_t k = 0; k < nr; k++)
		dim[k] = 1 + pick(longest[nr]);
	whole = array_of(nr, dim, element_bytes);
	lo = pick((unsigned)dim[new_cut]);
	hi = lo + 1 + pick((unsigned)(dim[new_cut] - lo));
	target = box_of(&whole, new_cut, lo, hi);
	g.bytes = meta_box_elements(&target) * element_bytes;
	for (uint32_t i = 0; i < parts; i++) {
		struct meta_box source = box_of(&whole, old_cut, dim[old_cut] * i / parts, dim[old_cut] * (i + 1) / parts), both;

		regions[1 + i] = shard_of(i, meta_box_elements(&source) * element_bytes);
		data[i] = regions[1 + i].memory;
		if (pick(10) && meta_box_meet(&source, target.off, target.ext, &both))
			assert_int_equal(0, rs_gather_add(&g, i, &target, &both, (unsigned)element_bytes));
	}
	rs_gather_finish(&g);
	want = malloc(g.bytes);
	rs_gather_read(&g, data, 0, g.bytes, want);
	regions[0] = region_of(TARGET_ADDRESS, g.bytes, true);
	clear_tables();
	if (g.has_padding) {
		add(&(struct rs_copy){.run = g.bytes}, NULL, &regions[0]);
		run(regions, 1);
		memset(regions[0].stored, 0, g.bytes);
		clear_tables();
	}
	for (uint32_t i = 0; i < g.nr; i++)
		add(&g.copies[i], &regions[1 + g.copies[i].source], &regions[0]);
	run(regions, 1 + parts);
	expect(want, &regions[0]);
	for (uint32_t i = 0; i <= parts; i++)
		region_done(&regions[i]);
	rs_gather_done(&g);
	free(want);
}

static void the_kernel_copies_what_the_host_gathers(void **unused)
{
	const unsigned plans = getenv("ROUNDS") ? (unsigned)strtoul(getenv("ROUNDS"), NULL, 10) : PLANS;

	(void)unused;
	bytes_copied = 0;
	for (plan = 0; plan < plans; plan++) {
		random_state = seed * 1000003u + plan;
		one_gather();
	}
	printf("# seed %lu: %u gathers, %.1f MB\n", seed, plans, (double)bytes_copied / 1e6);
}

/* --- addresses without memory between them --- */

#ifndef ON_A_DEVICE
static void one_far_plan(void)
{
	static const uint64_t sizes[] = {1, 2, 16, 48, 64, 100, 333};
	const uint64_t run_bytes = sizes[pick(sizeof(sizes) / sizeof(*sizes))];
	const uint8_t nr = (uint8_t)(1 + pick(3));
	struct host_region regions[2 * 27];
	struct rs_window from = {SOURCE_ADDRESS, UINT64_MAX / 2}, to = {TARGET_ADDRESS, UINT64_MAX / 2};
	struct rs_copy c = {.run = run_bytes, .nr = nr, .from = pick(1u << 20), .to = pick(1u << 20)};
	uint64_t rows = 1;
	struct sc_err err;

	for (int k = nr - 1; k >= 0; k--) {
		const uint64_t least = k + 1 < nr ? 3 : 1; /* dimensions do not meet */

		c.ext[k] = 2 + pick(2);
		c.from_stride[k] = least * (k + 1 < nr ? c.from_stride[k + 1] : run_bytes) + ((uint64_t)pick(1u << 20) << pick(18));
		c.to_stride[k] = least * (k + 1 < nr ? c.to_stride[k + 1] : run_bytes) + ((uint64_t)pick(1u << 20) << pick(18));
		rows *= c.ext[k];
	}
	for (uint64_t row = 0; row < rows; row++) {
		struct host_region *a = &regions[2 * row], *b = a + 1;
		uint64_t rest = row;

		*a = region_of(0, run_bytes, false);
		*b = region_of(0, run_bytes, true);
		memset((uint8_t *)a->readable, 1, run_bytes);
		a->address = from.address + c.from;
		b->address = to.address + c.to;
		for (int k = nr - 1; k >= 0; k--) {
			a->address += rest % c.ext[k] * c.from_stride[k];
			b->address += rest % c.ext[k] * c.to_stride[k];
			rest /= c.ext[k];
		}
	}
	clear_tables();
	if (rs_tables_add(&tables, &c, &from, &to, &err) < 0)
		broken("%s", err.msg);
	run(regions, (uint32_t)(2 * rows));
	for (uint64_t row = 0; row < rows; row++) {
		if (memcmp(regions[2 * row].memory, regions[2 * row + 1].memory, run_bytes) != 0)
			broken("row %lu differs", row);
		region_done(&regions[2 * row]);
		region_done(&regions[2 * row + 1]);
	}
}

static void strides_are_of_64_bits(void **unused)
{
	(void)unused;
	for (plan = 0; plan < FAR_PLANS; plan++) {
		random_state = seed * 1000003u + plan;
		one_far_plan();
	}
}

#endif

/* --- large boxes, and wrong ones --- */

static uint64_t units_of(uint32_t box)
{
	uint64_t n = boxes[box].units.d;

	for (uint8_t k = 0; k < boxes[box].nr; k++)
		n *= boxes[box].ext[k].d;
	return n;
}

/* What the kernel divides by, it divides exactly by. */
static void expect_quotients(const struct rs_div *v)
{
	for (int i = 0; i < 200; i++) {
		const uint32_t top = (1u << 31) - 1, near = v->d * (1 + pick(top / v->d)) - pick(2);
		const uint32_t n = i == 0 ? top : i % 2 ? pick(1u << 31) : near;
		const uint32_t got = v->d == 1 ? n : (uint32_t)((uint64_t)n * v->mul >> 32) >> v->shift;

		if (got != n / v->d)
			broken("%u / %u is %u", n, v->d, got);
	}
}

/* The tiles of a box are its units, one behind the other.  Returns the tile behind them. */
static uint32_t expect_tiles(uint32_t box, uint32_t at)
{
	uint64_t units = units_of(box);

	if (units >= 1u << 31)
		broken("box %u has %lu units", box, units);
	for (uint64_t u = 0; u < units; u += tables.tiles[at++].nr)
		if (at == tables.nr_tiles || tables.tiles[at].box != box || tables.tiles[at].first != u ||
		    tables.tiles[at].nr > units - u)
			broken("tile %u is not of unit %lu of box %u", at, u, box);
	return at;
}

/* A box reads what the copy has for the byte where it begins to write. */
static void expect_source(const struct rs_copy *c, const struct rs_box *b, uint64_t address)
{
	uint64_t to = b->to - address - c->to, from = c->from;

	for (uint8_t k = 0; k < c->nr; k++) {
		const uint64_t i = sc_min_u64(to / c->to_stride[k], c->ext[k] - 1);

		to -= i * c->to_stride[k];
		from += i * c->from_stride[k];
	}
	if (b->from != address + from + to)
		broken("a box for byte %lu reads byte %lx", b->to - address, b->from - address);
}

static struct rs_copy large_copy(void)
{
	struct rs_copy c = {.nr = (uint8_t)pick(3), .run = 1 + pick(pick(2) ? 100 : 1u << 31), .from = pick(64), .to = pick(64)};
	uint64_t bytes = c.run;

	for (int k = c.nr - 1; k >= 0; k--) {
		c.ext[k] = 1 + pick((unsigned)sc_min_u64((4ull << 30) / bytes + 1, pick(2) ? 10 : 1u << 30));
		c.from_stride[k] = bytes + pick(3);
		c.to_stride[k] = bytes + pick(3);
		bytes = (c.ext[k] - 1) * sc_max_u64(c.from_stride[k], c.to_stride[k]) + bytes;
	}
	return c;
}

static void large_boxes_are_cut(void **unused)
{
	struct rs_tile *many = malloc(MANY_TILES * sizeof(*many));
	struct rs_window window = {1u << 20, 1ull << 40};
	struct sc_err err;

	(void)unused;
	random_state = seed;
	for (plan = 0; plan < 300; plan++) {
		const struct rs_copy c = large_copy();
		uint64_t there = 0;
		uint32_t at = 0;

		clear_tables();
		tables.tiles = many;
		tables.tiles_max = MANY_TILES;
		if (rs_tables_add(&tables, &c, &window, &window, &err) < 0)
			broken("%s", err.msg);
		for (uint32_t i = 0; i < tables.nr_boxes; i++) {
			uint64_t bytes = boxes[i].run;

			expect_quotients(&boxes[i].units);
			for (uint8_t k = 0; k < boxes[i].nr; k++) {
				expect_quotients(&boxes[i].ext[k]);
				bytes *= boxes[i].ext[k].d;
			}
			there += bytes;
			expect_source(&c, &boxes[i], window.address);
			at = expect_tiles(i, at);
		}
		if (there != rs_copy_bytes(&c) || at != tables.nr_tiles)
			broken("%lu bytes of %lu, %u tiles of %u", there, rs_copy_bytes(&c), at, tables.nr_tiles);
		/* one box or tile less than it takes: nothing is added */
		if (pick(2))
			tables.boxes_max = tables.nr_boxes - 1;
		else
			tables.tiles_max = tables.nr_tiles - 1;
		tables.nr_boxes = tables.nr_tiles = 0;
		if (rs_tables_add(&tables, &c, &window, &window, &err) != SC_E_LIMIT || tables.nr_boxes || tables.nr_tiles)
			broken("it does not fit the tables, and is added");
	}
	free(many);
}

static void boxes_outside_of_windows_are_refused(void **unused)
{
	static const struct {
		struct rs_copy c;
		uint64_t from_bytes, to_bytes;
		int rc;
	} of[] = {
		{{.run = 10}, 10, 10, 0},
		{{.run = 10}, 9, 10, SC_E_STATE},
		{{.run = 10}, 10, 9, SC_E_STATE},
		{{.run = 10, .from = 1}, 10, 10, SC_E_STATE},
		{{.run = 10, .to = UINT64_MAX - 5}, 10, 100, SC_E_STATE},
		{{.run = 10, .nr = 1, .ext = {3}, .from_stride = {20}, .to_stride = {10}}, 50, 30, 0},
		{{.run = 10, .nr = 1, .ext = {3}, .from_stride = {20}, .to_stride = {10}}, 49, 30, SC_E_STATE},
		{{.run = 10, .nr = 1, .ext = {3}, .from_stride = {20}, .to_stride = {10}}, 50, 29, SC_E_STATE},
		{{.run = 1, .nr = 1, .ext = {1ull << 33}, .from_stride = {1ull << 31}, .to_stride = {1}}, 100, 1ull << 40, SC_E_STATE},
		{{.run = 1, .nr = 2, .ext = {1ull << 32, 1ull << 32}}, 100, 100, SC_E_STATE},
		{{.run = 1, .nr = 1, .ext = {101}}, 100, 100, SC_E_STATE},
		{{.run = 10, .nr = 1, .ext = {0}, .from = 1000}, 10, 10, 0},
		{{.run = 0, .from = 1000}, 10, 10, 0},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		const struct rs_window from = {1u << 20, of[i].from_bytes}, to = {1u << 30, of[i].to_bytes};
		struct sc_err err;

		clear_tables();
		assert_int_equal(of[i].rc, rs_tables_add(&tables, &of[i].c, &from, &to, &err));
		if (of[i].rc < 0)
			assert_int_equal(0, tables.nr_boxes + tables.nr_tiles);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_kernel_copies_what_loops_copy),
		cmocka_unit_test(the_kernel_copies_what_the_host_gathers),
#ifndef ON_A_DEVICE
		cmocka_unit_test(strides_are_of_64_bits),
#endif
		cmocka_unit_test(large_boxes_are_cut),
		cmocka_unit_test(boxes_outside_of_windows_are_refused),
	};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name("boxes", tests, NULL, NULL);
}
