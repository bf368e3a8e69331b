/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of random tensors of 0 to 6 dimensions, cut into random boxes, each stored by itself in some way: those of the
 * boxes add up to that of the whole, in whatever order and windows they are read; a byte that was changed or moved is
 * seen.  Prints the seed when one fails; SEED=n repeats it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "reshard/engine/io/digest.h"
#include "tests/prop/pick.h"

#define ROUNDS 3000
#define DIMS_MAX 6

static unsigned long seed = 1;

struct tensor {
	struct meta_shape shape;
	unsigned element_bytes;
	size_t bytes;
	unsigned char *at;
};

static struct rs_digester digester;

static struct rs_digest whole(const unsigned char *bytes, size_t nr)
{
	rs_digester_begin(&digester);
	for (size_t at = 0, n; at < nr; at += n) {
		n = 1 + pick(2000);
		n = n < nr - at ? n : nr - at;
		rs_digester_add(&digester, at, bytes + at, n);
	}
	return rs_digester_end(&digester, nr);
}

/* A box of the whole tensor, as it lies in it. */
static struct meta_box lying(const struct tensor *t, const struct meta_box *b)
{
	struct meta_box w = *b;
	uint64_t stride = 1;

	for (int k = t->shape.nr - 1; k >= 0; k--) {
		w.stride[k] = stride;
		stride *= t->shape.dim[k];
	}
	return w;
}

/* Stores a box by itself, row-major or with its dimensions in any order and bytes between. */
static unsigned char *store(const struct tensor *t, struct meta_box *b)
{
	const struct meta_box w = lying(t, b);
	uint64_t stride = 1, elements = meta_box_elements(b), base = 0;
	uint8_t order[DIMS_MAX];
	bool row_major = pick(3);
	unsigned char *to;

	for (int k = 0; k < b->nr; k++) {
		uint8_t other = (uint8_t)pick((unsigned)k + 1);

		order[k] = order[other];
		order[other] = (uint8_t)k;
		base += w.off[k] * w.stride[k];
	}
	for (int k = 0; row_major && k < b->nr; k++) 
		order[k] = (uint8_t)(b->nr - 1 - k);
	for (int k = 0; k < b->nr; k++) {
		b->stride[order[k]] = stride;
		stride = stride * b->ext[order[k]] + pick(3);
	}
	b->at = pick(5);
	to = calloc(b->at + stride + 1, t->element_bytes);
	for (uint64_t i = 0; i < elements; i++) {
		uint64_t rest = i, x = base, at = b->at;

		for (int k = b->nr - 1; k >= 0; k--) {
			x += rest % b->ext[k] * w.stride[k];
			at += rest % b->ext[k] * b->stride[k];
			rest /= b->ext[k];
		}
		memcpy(to + at * t->element_bytes, t->at + x * t->element_bytes, t->element_bytes);
	}
	return to;
}

static struct rs_digest digest_of(const struct tensor *t, const struct meta_box *b)
{
	struct meta_box box = *b, target = lying(t, b);
	unsigned char *stored = store(t, &box);
	struct rs_gather g = {.bytes = t->bytes};
	uint64_t base = 0;

	for (int k = 0; k < b->nr; k++)
		base += target.off[k] * target.stride[k];
	assert_int_equal(0, rs_gather_add(&g, 0, &target, &box, t->element_bytes));
	rs_digester_begin(&digester);
	for (uint64_t at = 0, end = rs_copy_end(g.copies), n; at < end; at += n) {
		n = 1 + pick(pick(2) ? 50 : 5000);
		rs_digester_add_copy(&digester, base * t->element_bytes, g.copies, at, n < end - at ? n : end - at, stored);
	}
	rs_gather_done(&g);
	free(stored);
	return rs_digester_end(&digester, t->bytes);
}

/* Cuts a box again and again, and adds up the digests of what cannot be cut any more. */
static void add_up(const struct tensor *t, struct meta_box b, unsigned cuts, struct rs_digest *sum)
{
	unsigned d = t->shape.nr ? pick(t->shape.nr) : 0;
	struct meta_box left = b;
	struct rs_digest part;

	if (cuts && t->shape.nr && b.ext[d] > 1) {
		bool in_order = pick(2);

		left.ext[d] = 1 + pick((unsigned)b.ext[d] - 1);
		b.off[d] += left.ext[d];
		b.ext[d] -= left.ext[d];
		add_up(t, in_order ? left : b, cuts - 1, sum);
		add_up(t, in_order ? b : left, cuts - 1, sum);
		return;
	}
	part = digest_of(t, &b);
	rs_digest_add(sum, &part);
}

static void check_changes(const struct tensor *t, const struct rs_digest *all)
{
	size_t at = pick((unsigned)t->bytes), other = pick((unsigned)t->bytes);
	struct rs_digest changed, moved;
	unsigned char x;

	t->at[at] ^= (unsigned char)(1 << pick(8));
	changed = whole(t->at, t->bytes);
	if (changed.crc[0] == all->crc[0] || changed.crc[1] == all->crc[1])
		fail_msg("seed %lu: a bit of byte %zu is not seen", seed, at);
	x = t->at[at];
	t->at[at] = t->at[other];
	t->at[other] = x;
	moved = whole(t->at, t->bytes);
	if (x != t->at[at] && rs_digest_equal(&changed, &moved))
		fail_msg("seed %lu: it is not seen that bytes %zu and %zu changed places", seed, at, other);
}

static void test_boxes(void **state)
{
	(void)state;
	random_state = seed;
	rs_digester_init(&digester);
	for (int round = 0; round < ROUNDS; round++) {
		struct tensor t = {.shape.nr = (uint8_t)pick(DIMS_MAX + 1), .element_bytes = 1u << pick(4)};
		struct meta_box b = {.nr = t.shape.nr};
		struct rs_digest all, sum = {{0}};

		t.bytes = t.element_bytes;
		for (int d = 0; d < t.shape.nr; d++) {
			b.ext[d] = t.shape.dim[d] = 1 + pick(t.shape.nr < 3 ? 60 : 6);
			t.bytes *= t.shape.dim[d];
		}
		t.at = malloc(t.bytes);
		for (size_t i = 0; i < t.bytes; i++)
			t.at[i] = (unsigned char)(pick(3) ? pick(256) : 0);
		all = whole(t.at, t.bytes);
		add_up(&t, b, pick(7), &sum);
		if (!rs_digest_equal(&all, &sum))
			fail_msg("seed %lu, round %d: boxes do not add up", seed, round);
		check_changes(&t, &all);
		free(t.at);
	}
}

/* The values do not depend on the program: they are stored. */
static void test_values(void **state)
{
	static const char text[] = "123456789";
	struct rs_digest d;
	uint8_t shown[16];

	(void)state;
	rs_digester_init(&digester);
	d = whole((const unsigned char *)text, 9);
	rs_digest_bytes(&d, shown);
	/* by a program of another hand: bit by bit, without initial value and final complement */
	for (int k = 0; k < 2; k++) {
		static const uint64_t polynomials[2] = {UINT64_C(0xC96C5795D7870F42), UINT64_C(0x95AC9329AC4BC9B5)};
		uint64_t crc = 0;

		for (int i = 0; i < 9; i++) {
			crc ^= (unsigned char)text[i];
			for (int bit = 0; bit < 8; bit++)
				crc = crc & 1 ? crc >> 1 ^ polynomials[k] : crc >> 1;
		}
		assert_int_equal(d.crc[k], crc);
		for (int i = 0; i < 8; i++)
			assert_int_equal(shown[8 * k + i], crc >> (56 - 8 * i) & 255);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_boxes), cmocka_unit_test(test_values)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
