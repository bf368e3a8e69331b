/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors come to lie in a file that Scalai writes (reshard/codec/format/arrange.h). */
#include "reshard/codec/format/arrange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "tests/prop/pick.h"

#define TENSORS_MAX 600

struct file {
	uint32_t nr;
	struct rs_tensor_at t[TENSORS_MAX];
	char names[TENSORS_MAX][16];
};

static void add(struct file *f, enum meta_dtype dtype, uint64_t elements)
{
	(void)snprintf(f->names[f->nr], sizeof(f->names[0]), "%05u", f->nr);
	f->t[f->nr] = (struct rs_tensor_at){.name = f->names[f->nr], .dtype = dtype, .shape = {1, {elements}}};
	f->nr++;
}

static uint64_t bytes_of(const struct rs_tensor_at *t)
{
	uint64_t n;

	assert_true(meta_tensor_bytes(t->dtype, &t->shape, &n));
	return n;
}

/* As a framework saves them: one behind the other, in this order, the first at byte `at` of a block. */
static void save(struct file *f, uint64_t at)
{
	for (uint32_t i = 0; i < f->nr; i++) {
		f->t[i].skew = (uint32_t)(at % SC_DATA_ALIGN / 8 * 8);
		at += bytes_of(&f->t[i]);
	}
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct rs_tensor_at *)a)->name, ((const struct rs_tensor_at *)b)->name);
}

/* -> bytes of large tensors of whole blocks, and how many of them begin at their skew */
static void arrange(struct file *f, uint64_t *ret_large, uint64_t *ret_there)
{
	static struct rs_tensor_at was[TENSORS_MAX], again[TENSORS_MAX];
	uint32_t skew, skew_again;
	struct sc_err err;
	uint64_t at;

	*ret_large = *ret_there = 0;
	memcpy(was, f->t, sizeof(was));
	assert_int_equal(0, rs_arrange_tensors(f->t, f->nr, &skew, &err));
	assert_true(skew < SC_DATA_ALIGN && skew % 8 == 0);
	at = skew;
	for (uint32_t i = 0; i < f->nr; i++) {
		const struct rs_tensor_at *t = &f->t[i];
		uint64_t n = bytes_of(t), element = t->shape.dim[0] ? n / t->shape.dim[0] : 1;

		assert_int_equal(0, at % element);
		assert_int_equal(n, t->end - t->begin);
		if (n >= SC_CLONE_BYTES_MIN && n % SC_DATA_ALIGN == 0) {
			*ret_large += n;
			*ret_there += at % SC_DATA_ALIGN == t->skew ? n : 0;
		}
		at += n;
	}
	/* the same, whatever the order it is given in */
	memcpy(again, was, sizeof(again));
	for (uint32_t i = f->nr; i > 1; i--) {
		uint32_t j = pick(i);
		struct rs_tensor_at t = again[i - 1];

		again[i - 1] = again[j];
		again[j] = t;
	}
	assert_int_equal(0, rs_arrange_tensors(again, f->nr, &skew_again, &err));
	assert_int_equal(skew, skew_again);
	for (uint32_t i = 0; i < f->nr; i++)
		assert_string_equal(f->t[i].name, again[i].name);
	/* each once */
	qsort(again, f->nr, sizeof(*again), by_name);
	for (uint32_t i = 0; i < f->nr; i++)
		assert_ptr_equal(was[i].name, again[i].name);
}

/* A GPT's layers with biases, saved for tp=4; the parts for tp=8 of the same ranks. */
static void layers_of_a_gpt(void **unused)
{
	static struct file f;
	uint64_t large, there;

	(void)unused;
	for (int hidden = 256; hidden <= 1024; hidden *= 2) {
		for (uint64_t tp = 4; tp <= 8; tp *= 2) {
			uint64_t h = (uint64_t)hidden, f4h = 4 * h / tp, q3h = 3 * h / tp;
			uint64_t sizes[] = {h, h, f4h, f4h * h, h, h * f4h, h, h, h, h / tp * h, q3h, q3h * h};

			f.nr = tp == 4 ? 0 : f.nr;
			for (uint32_t layer = 0; layer < 16; layer++)
				for (uint32_t k = 0; k < 12; k++)
					if (tp == 4)
						add(&f, META_DTYPE_F32, sizes[k]);
					else
						f.t[layer * 12 + k].shape.dim[0] = sizes[k];
			if (tp == 4)
				save(&f, 3056);
		}
		arrange(&f, &large, &there);
		print_message("# hidden=%d: %llu of %llu bytes begin where they did\n", hidden, (unsigned long long)there,
			      (unsigned long long)large);
		assert_true(large > 0 && there >= large / 100 * 95);
	}
}

/* Saved by name: each large one shifted by a small one, behind headers of any length.  Any of them may be first. */
static void a_chain(void **unused)
{
	static struct file f;
	uint64_t large, there;

	(void)unused;
	for (uint64_t at = 0; at < SC_DATA_ALIGN; at += 8) {
		f.nr = 0;
		for (int layer = 0; layer < 6; layer++) {
			add(&f, META_DTYPE_F32, 520);
			add(&f, META_DTYPE_F32, 1 << 18);
		}
		save(&f, at);
		for (uint32_t i = 1; i < f.nr; i += 2) /* cut */
			f.t[i].shape.dim[0] /= 2;
		arrange(&f, &large, &there);
		assert_int_equal(large, there);
	}
}

/* What a store has must be read by every later program: this order is its format. */
static void as_it_was(void **unused)
{
	static const uint32_t bytes[] = {520, 65536, 1000, 131072, 1000, 65536, 2056, 4096, 65536, 520, 262144, 12, 7};
	static const char *const want[] = {"00010", "00000", "00003", "00002", "00005", "00006", "00007",
					  "00008", "00001", "00004", "00009", "00011", "00012"};
	static struct file f;
	uint64_t large, there;

	(void)unused;
	for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
		add(&f, META_DTYPE_U8, bytes[i]);
	save(&f, 1264);
	arrange(&f, &large, &there);
	for (uint32_t i = 0; i < f.nr; i++)
		assert_string_equal(want[i], f.t[i].name);
}

static void all_of_one_skew(void **unused)
{
	static const char *const want[] = {"00001", "00003", "00002", "00000"};
	static struct file f;
	uint64_t large, there;

	(void)unused;
	add(&f, META_DTYPE_U8, 3);
	add(&f, META_DTYPE_F32, 1 << 20);
	add(&f, META_DTYPE_F32, 5);
	add(&f, META_DTYPE_BF16, 1 << 20);
	for (uint32_t i = 0; i < f.nr; i++)
		f.t[i].skew = 1528;
	arrange(&f, &large, &there);
	assert_int_equal(large, there);
	for (uint32_t i = 0; i < f.nr; i++)
		assert_string_equal(want[i], f.t[i].name);
}

static void random_files(void **unused)
{
	static const enum meta_dtype types[] = {META_DTYPE_U8, META_DTYPE_BF16, META_DTYPE_F32, META_DTYPE_I64};
	static struct file f;
	uint64_t large, there, sum = 0, sum_there = 0;

	(void)unused;
	for (int i = 0; i < 2000; i++) {
		uint32_t nr = pick(TENSORS_MAX / 4);
		bool odd_ones = pick(4);

		for (f.nr = 0; f.nr < nr;)
			add(&f, types[pick(4)], odd_ones && pick(2) ? pick(5000) : (1 + pick(40)) * 4096);
		save(&f, 8 * pick(512));
		for (uint32_t k = 0; k < nr; k++) /* cut in another way */
			if (f.t[k].shape.dim[0] % 8192 && pick(2))
				f.t[k].shape.dim[0] /= 2;
		arrange(&f, &large, &there);
		sum += large;
		sum_there += there;
	}
	print_message("# %llu of %llu MiB begin where they did\n", (unsigned long long)(sum_there >> 20), (unsigned long long)(sum >> 20));
	assert_true(sum_there > sum / 2);
}

/* What an open may meet: many skews and many sizes. */
static void hostile(void **unused)
{
	static struct file f;
	uint64_t large, there;

	(void)unused;
	for (uint32_t i = 0; i < TENSORS_MAX / 2; i++) {
		add(&f, META_DTYPE_F32, 1 << 15);
		add(&f, META_DTYPE_F32, 2 * (1 + i * 7 % 511));
	}
	for (uint32_t i = 0; i < f.nr; i++)
		f.t[i].skew = i * 8 * 211 % SC_DATA_ALIGN;
	arrange(&f, &large, &there);
	assert_true(there > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layers_of_a_gpt),
		cmocka_unit_test(a_chain),
		cmocka_unit_test(as_it_was),
		cmocka_unit_test(all_of_one_skew),
		cmocka_unit_test(random_files),
		cmocka_unit_test(hostile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
