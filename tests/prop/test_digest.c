/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of random tensors, cut into random boxes: those of the boxes add up to that of the whole, in whatever pieces
 * the runs are given; a byte that was changed or moved is seen.  Prints the seed when one fails; SEED=n repeats it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "reshard/engine/digest.h"
#include "tests/prop/pick.h"

#define ROUNDS 3000
#define DIMS 3

static unsigned long seed = 1;

struct tensor {
	unsigned dim[DIMS];	/* the last one in bytes */
	size_t bytes;
	unsigned char *at;
};

struct box {
	unsigned from[DIMS], to[DIMS];
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

static struct rs_digest digest_of(const struct tensor *t, const struct box *b)
{
	rs_digester_begin(&digester);
	for (unsigned i = b->from[0]; i < b->to[0]; i++)
		for (unsigned j = b->from[1]; j < b->to[1]; j++) {
			size_t at = ((size_t)i * t->dim[1] + j) * t->dim[2] + b->from[2], n = b->to[2] - b->from[2];
			size_t first = n > 1 && pick(4) == 0 ? pick((unsigned)n) : n;

			rs_digester_add(&digester, at, t->at + at, first);
			if (first < n)
				rs_digester_add(&digester, at + first, t->at + at + first, n - first);
		}
	return rs_digester_end(&digester, t->bytes);
}

/* Cuts a box again and again, and adds up the digests of what cannot be cut any more. */
static void add_up(const struct tensor *t, struct box b, unsigned cuts, struct rs_digest *sum)
{
	unsigned d = pick(DIMS);
	struct rs_digest part;
	struct box left = b;

	if (cuts && b.to[d] - b.from[d] > 1) {
		left.to[d] = b.from[d] = b.from[d] + 1 + pick(b.to[d] - b.from[d] - 1);
		add_up(t, left, cuts - 1, sum);
		add_up(t, b, cuts - 1, sum);
		return;
	}
	part = digest_of(t, &b);
	rs_digest_add(sum, &part);
}

static bool same(const struct rs_digest *a, const struct rs_digest *b)
{
	return a->crc[0] == b->crc[0] && a->crc[1] == b->crc[1];
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
	if (x != t->at[at] && same(&changed, &moved))
		fail_msg("seed %lu: it is not seen that bytes %zu and %zu changed places", seed, at, other);
}

static void test_boxes(void **state)
{
	(void)state;
	random_state = seed;
	for (int round = 0; round < ROUNDS; round++) {
		struct tensor t = {.bytes = 1};
		struct box b = {0};
		struct rs_digest all, sum = {0};

		for (int d = 0; d < DIMS; d++) {
			t.dim[d] = 1 + pick(d == 2 ? 300 : 12);
			t.bytes *= t.dim[d];
			b.to[d] = t.dim[d];
		}
		t.at = malloc(t.bytes);
		for (size_t i = 0; i < t.bytes; i++)
			t.at[i] = (unsigned char)(pick(3) ? pick(256) : 0);
		all = whole(t.at, t.bytes);
		add_up(&t, b, pick(7), &sum);
		if (!same(&all, &sum))
			fail_msg("seed %lu, round %d: boxes do not add up", seed, round);
		check_changes(&t, &all);
		free(t.at);
	}
}

/* The values do not depend on the program: they are stored. */
static void test_values(void **state)
{
	static const char text[] = "123456789";
	struct rs_digest d = whole((const unsigned char *)text, 9);

	(void)state;
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
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_boxes), cmocka_unit_test(test_values)};

	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
