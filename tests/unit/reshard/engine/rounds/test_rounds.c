/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of images made by hand: what is left to the caller, and why; how large rounds are; their order; out of memory.
 * What rounds hold to over random jobs is tested in tests/prop/reshard/engine/rounds/test_rounds.c.
 */
#include "reshard/engine/rounds/rounds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "reshard/engine/plan/gather.h"

#define SOURCES 4
#define SOURCE_BYTES 4096u

/* A file of one tensor, whose bytes come from files of one tensor each, at any byte of them. */
struct one {
	struct rs_image image;
	struct rs_piece piece;
	struct rs_gather gather;
	struct rs_source sources[SOURCES];
	const unsigned char *data[SOURCES];
	struct rs_bytes *bytes[SOURCES];
};

static unsigned char memory[SOURCE_BYTES];
static struct rs_bytes files[SOURCES] = {{.bytes = SOURCE_BYTES}, {.bytes = SOURCE_BYTES}, {.bytes = SOURCE_BYTES}, {.bytes = SOURCE_BYTES}};

static void make(struct one *o, struct rs_copy *copies, uint32_t nr, uint64_t bytes)
{
	*o = (struct one){.piece = {.kind = RS_PIECE_TENSOR}, .gather = {.bytes = bytes, .nr = nr, .copies = copies}};
	o->image = (struct rs_image){.bytes = bytes, .nr = 1, .gathers = &o->gather};
	o->image.frame = (struct rs_frame){.bytes = bytes, .nr = 1, .pieces = &o->piece};
	o->image.sources = (struct rs_sources){.nr = SOURCES, .at = o->sources};
	o->image.mapped = (struct rs_mapped){.data = o->data, .bytes = o->bytes};
	for (uint32_t i = 0; i < SOURCES; i++) {
		o->sources[i].place = (struct rs_place){.id = i, .bytes = SOURCE_BYTES};
		o->data[i] = memory;
		o->bytes[i] = &files[i];
	}
}

struct result {
	uint32_t rounds;
	uint64_t first_bytes;	/* written by the first one */
	uint64_t read, written, rest;
};

/* `image` twice is two ranks that hold the same. */
static struct result rounds_of(const struct rs_image *const *images, uint32_t nr, const struct rs_rounds_options *options)
{
	const struct rs_extent *rest;
	const struct rs_round *round;
	struct result all = {0};
	struct rs_rounds *r;
	struct sc_err err;
	uint32_t nr_rest;

	assert_int_equal(0, rs_rounds_new(images, nr, options, &r, &err));
	while (rs_rounds_next(r, &round, &err) == 0 && round) {
		for (uint32_t i = 0; i < round->shares[0].nr_in; i++)
			all.read += round->shares[0].in[i].bytes;
		for (uint32_t i = 0; i < round->shares[0].nr_out; i++)
			all.written += round->shares[0].out[i].bytes;
		if (all.rounds++ == 0)
			all.first_bytes = all.written;
	}
	assert_int_equal(0, rs_rounds_rest(r, &rest, &nr_rest, &err));
	for (uint32_t i = 0; i < nr_rest; i++)
		all.rest += rest[i].bytes;
	rs_rounds_free(r);
	return all;
}

static const struct rs_rounds_options roomy = {.window_bytes = 1 << 20, .boxes_max = 1000, .peers = 1};

/* One copy, once and for two ranks. */
static struct result one_copy(struct rs_copy copy, const struct rs_rounds_options *options)
{
	struct one a, b;
	const struct rs_image *images[] = {&a.image, &b.image};
	struct result once, twice;

	make(&a, &copy, 1, rs_copy_bytes(&copy));
	make(&b, &copy, 1, rs_copy_bytes(&copy));
	once = rounds_of(images, 1, options);
	twice = rounds_of(images, 2, options);
	assert_int_equal(rs_copy_bytes(&copy), once.written + once.rest);
	assert_int_equal(2 * once.written, twice.written);
	assert_int_equal(2 * once.rest, twice.rest);
	assert_int_equal(once.read, twice.read);
	return once;
}

/* Some bytes of each of 16 rows of `stride` bytes. */
static struct rs_copy columns(uint64_t run, uint64_t stride)
{
	return (struct rs_copy){.nr = 1, .turns = 1, .run = run, .ext = {16}, .to_stride = {run}, .from_stride = {stride}, .rows = 16};
}

static void reads_are_at_most_twice_what_is_needed(void **unused)
{
	(void)unused;
	assert_int_equal(15 * 100 + 60, one_copy(columns(60, 100), &roomy).read);
	assert_int_equal(15 * 119 + 60, one_copy(columns(60, 119), &roomy).read);
	assert_int_equal(0, one_copy(columns(60, 130), &roomy).rounds);
	assert_int_equal(16 * 60, one_copy(columns(60, 130), &roomy).rest);
}

static void rows_that_are_not_known_or_lie_in_each_other_are_left(void **unused)
{
	struct rs_copy unknown = columns(60, 60), transposed = columns(4, 4);

	(void)unused;
	unknown.rows = 0;
	assert_int_equal(0, one_copy(unknown, &roomy).rounds);
	/* 16 rows of 16 elements, of which the source has columns one behind the other */
	transposed.nr = 2;
	transposed.ext[1] = 16;
	transposed.to_stride[0] = 64;
	transposed.to_stride[1] = 4;
	transposed.from_stride[1] = 64;
	assert_int_equal(0, one_copy(transposed, &roomy).rounds);
	transposed.from_stride[0] = 64;
	transposed.from_stride[1] = 4;
	assert_int_equal(1, one_copy(transposed, &roomy).rounds);
}

static void long_runs_are_left(void **unused)
{
	struct rs_rounds_options options = roomy;
	struct rs_copy run = {.turns = 1, .run = 1000, .rows = 10};

	(void)unused;
	assert_int_equal(1, one_copy(run, &options).rounds);
	options.run_bytes = 1001;
	assert_int_equal(1, one_copy(run, &options).rounds);
	options.run_bytes = 1000;
	assert_int_equal(0, one_copy(run, &options).rounds);
	/* rows of it are no run */
	assert_int_equal(1, one_copy(columns(60, 61), &options).rounds);
}

static void a_round_is_as_large_as_windows_allow(void **unused)
{
	struct rs_rounds_options options = roomy;
	struct result r;

	(void)unused;
	/* 16 rows of 60 bytes, and up to 15 bytes to be at the right byte of 16 */
	options.window_bytes = 8 * 60 + 15;
	r = one_copy(columns(60, 60), &options);
	assert_int_equal(2, r.rounds);
	assert_int_equal(8 * 60, r.first_bytes);
	options.window_bytes--;
	r = one_copy(columns(60, 60), &options);
	assert_int_equal(3, r.rounds);
	assert_int_equal(7 * 60, r.first_bytes);
	/* a row that does not fit is left, and so are all of them here */
	options.window_bytes = 60 + 14;
	r = one_copy(columns(60, 60), &options);
	assert_int_equal(0, r.rounds);
	assert_int_equal(16 * 60, r.rest);
}

/* Four tensors, each of its own source: in the order of files, together where they fit. */
static void small_tensors_share_a_round(void **unused)
{
	struct rs_rounds_options options = roomy;
	const struct rs_image *images[SOURCES];
	const struct rs_round *round;
	struct one all[SOURCES];
	struct rs_copy copies[SOURCES];
	struct rs_rounds *r;
	struct sc_err err;

	(void)unused;
	for (uint32_t i = 0; i < SOURCES; i++) {
		copies[i] = columns(10, 10);
		copies[i].source = i;
		make(&all[i], &copies[i], 1, 160);
		images[i] = &all[i].image;
	}
	assert_int_equal(1, rounds_of(images, SOURCES, &options).rounds);
	options.boxes_max = 3;
	assert_int_equal(2, rounds_of(images, SOURCES, &options).rounds);
	options.boxes_max = 1;
	assert_int_equal(SOURCES, rounds_of(images, SOURCES, &options).rounds);
	assert_int_equal(0, rs_rounds_new(images, SOURCES, &options, &r, &err));
	for (uint32_t i = 0; i < SOURCES; i++) {
		assert_int_equal(0, rs_rounds_next(r, &round, &err));
		assert_int_equal(i, round->shares[0].in[0].file);
		assert_int_equal(i, round->shares[0].out[0].file);
	}
	rs_rounds_free(r);
}

/* --- out of memory --- */

static unsigned allocations_left;
static struct sc_sys real;

static void *failing_alloc(size_t bytes)
{
	return allocations_left-- ? real.alloc(bytes) : NULL;
}

static void *failing_resize(void *at, size_t bytes)
{
	return allocations_left-- ? real.resize(at, bytes) : NULL;
}

static int all_of_it(const struct rs_image *const *images, uint32_t nr, struct sc_err *err)
{
	const struct rs_rounds_options options = {.window_bytes = 200, .boxes_max = 1000, .peers = 2, .writers = (uint32_t[]){0, 1}};
	const struct rs_extent *rest;
	const struct rs_round *round;
	struct rs_rounds *r = NULL;
	uint32_t nr_rest;
	int rc = rs_rounds_new(images, nr, &options, &r, err);

	do
		rc = rc == 0 ? rs_rounds_next(r, &round, err) : rc;
	while (rc == 0 && round);
	if (rc == 0)
		rc = rs_rounds_rest(r, &rest, &nr_rest, err);
	rs_rounds_free(r);
	return rc;
}

static void each_allocation_that_fails_is_said(void **unused)
{
	struct rs_copy copy = columns(10, 12);
	struct one a, b;
	const struct rs_image *images[] = {&a.image, &b.image};
	unsigned nr = 0;
	int rc;

	(void)unused;
	make(&a, &copy, 1, 160);
	make(&b, &copy, 1, 200);
	real = sc_sys;
	sc_sys.alloc = failing_alloc;
	sc_sys.resize = failing_resize;
	do {
		struct sc_err err = {0};

		allocations_left = nr++;
		rc = all_of_it(images, 2, &err);
		if (rc < 0)
			assert_int_equal(SC_E_NO_MEMORY, err.code);
	} while (rc < 0);
	sc_sys = real;
	assert_true(nr > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_are_at_most_twice_what_is_needed),
		cmocka_unit_test(rows_that_are_not_known_or_lie_in_each_other_are_left),
		cmocka_unit_test(long_runs_are_left),
		cmocka_unit_test(a_round_is_as_large_as_windows_allow),
		cmocka_unit_test(small_tensors_share_a_round),
		cmocka_unit_test(each_allocation_that_fails_is_said),
	};

	return cmocka_run_group_tests_name("rounds", tests, NULL, NULL);
}
