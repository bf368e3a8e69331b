/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placed tensors: a random tensor is cut into random boxes, which lie anywhere in a file, in any order of dimensions.
 * Any region of it that is planned has the tensor's bytes, also one range of rows after the other; a box less, one more or
 * another one is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the three above first */
#include <cmocka.h>

#include "reshard/engine/plan/placed.h"
#include "tests/prop/pick.h"

#define ROUNDS 3000
#define BOXES_MAX 64
#define FILE_BYTES (1 << 16)

static const enum meta_dtype dtypes[] = {META_DTYPE_U8, META_DTYPE_BF16, META_DTYPE_F32, META_DTYPE_F64};

struct world {
	struct meta_tensor tensor;
	unsigned bytes;				/* of an element */
	struct rs_placed_box boxes[BOXES_MAX];
	uint64_t nr;
	unsigned char file[FILE_BYTES];
	uint64_t used;
};

/* The value of an element's byte follows from its place in the whole tensor. */
static unsigned char value(uint64_t element, unsigned byte)
{
	return (unsigned char)(element * 31 + byte * 7 + (element >> 8));
}

static uint64_t index_of(const struct meta_shape *shape, const uint64_t *at)
{
	uint64_t n = 0;

	for (int k = 0; k < shape->nr; k++)
		n = n * shape->dim[k] + at[k];
	return n;
}

/* Steps through a box: the last dimension first.  False: it is over. */
static bool step(uint64_t *at, const uint64_t *ext, int nr)
{
	for (int k = nr - 1; k >= 0; k--) {
		if (++at[k] < ext[k])
			return true;
		at[k] = 0;
	}
	return false;
}

static void write_box(struct world *w, struct rs_placed_box *b)
{
	uint64_t at[SC_DIMS_MAX] = {0}, stride = 1;
	int order[SC_DIMS_MAX], nr = b->box.nr;

	for (int k = 0; k < nr; k++)
		order[k] = k;
	for (int k = nr - 1; k > 0; k--) {
		int other = pick(3) ? k : (int)pick((unsigned)k + 1), swap = order[k];

		order[k] = order[other];
		order[other] = swap;
	}
	for (int k = nr - 1; k >= 0; k--) {
		b->box.stride[order[k]] = stride;
		stride *= b->box.ext[order[k]];
	}
	w->used += pick(9);
	b->place = (struct rs_place){.id = 1, .bytes = FILE_BYTES, .at = w->used};
	b->file = "file";
	do {
		uint64_t whole[SC_DIMS_MAX], to = 0;

		for (int k = 0; k < nr; k++) {
			whole[k] = b->box.off[k] + at[k];
			to += at[k] * b->box.stride[k];
		}
		for (unsigned i = 0; i < w->bytes; i++)
			w->file[w->used + to * w->bytes + i] = value(index_of(&w->tensor.shape, whole), i);
	} while (step(at, b->box.ext, nr));
	w->used += stride * w->bytes;
	assert_true(w->used < FILE_BYTES);
}

/* Cuts boxes in two, again and again. */
static void cut(struct world *w)
{
	w->boxes[0] = (struct rs_placed_box){.box.nr = w->tensor.shape.nr};
	memcpy(w->boxes[0].box.ext, w->tensor.shape.dim, sizeof(w->boxes[0].box.ext));
	w->nr = 1;
	for (unsigned cuts = pick(BOXES_MAX - 1); cuts && w->tensor.shape.nr; cuts--) {
		struct rs_placed_box *a = &w->boxes[pick((unsigned)w->nr)], *b = &w->boxes[w->nr];
		int k = (int)pick(w->tensor.shape.nr);
		uint64_t at;

		if (a->box.ext[k] < 2)
			continue;
		at = 1 + pick((unsigned)a->box.ext[k] - 1);
		*b = *a;
		b->box.off[k] += at;
		b->box.ext[k] -= at;
		a->box.ext[k] = at;
		w->nr++;
	}
	for (uint64_t i = 0; i < w->nr; i++)
		write_box(w, &w->boxes[i]);
}

static void make_world(struct world *w)
{
	const enum meta_dtype dtype = dtypes[pick(4)];

	memset(w, 0, sizeof(*w));
	w->tensor = (struct meta_tensor){.key = "f:t", .file = "f", .name = "t", .dtype = dtype};
	w->tensor.shape.nr = (uint8_t)pick(4);
	for (int k = 0; k < w->tensor.shape.nr; k++)
		w->tensor.shape.dim[k] = 1 + pick(14);
	w->bytes = meta_dtype_bits(dtype) / 8;
	cut(w);
}

static struct rs_placed_tensor checked(struct world *w)
{
	struct rs_placed_tensor p = {w->nr, w->boxes};
	uint64_t budget = 1 << 20;
	struct sc_err err;

	for (uint64_t i = w->nr; i > 1; i--) { /* they come in any order */
		uint64_t k = pick((unsigned)i);
		struct rs_placed_box b = w->boxes[k];

		w->boxes[k] = w->boxes[i - 1];
		w->boxes[i - 1] = b;
	}
	if (rs_placed_check(&p, &w->tensor, &budget, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(p.nr, w->nr);
	return p;
}

/* The copies of a region, cut into ranges of rows, have its bytes; those of a range lie in its rows. */
static void read_rows(const struct world *w, const struct meta_box *target, const struct rs_gather *g,
		      const unsigned char *const *data, const unsigned char *want)
{
	const struct meta_shape *shape = &w->tensor.shape;
	unsigned char got[FILE_BYTES];
	uint64_t row_bytes, end, next;
	int d = 0;

	while (d < shape->nr && shape->dim[d] == 1)
		d++;
	row_bytes = d < shape->nr ? g->bytes / target->ext[d] : g->bytes;
	end = d < shape->nr ? target->off[d] + target->ext[d] : 1;
	memset(got, ~want[0], g->bytes);
	for (uint64_t row = d < shape->nr ? target->off[d] : 0, first = row; row < end; row = next) {
		struct rs_copy *copies = calloc(g->nr, sizeof(*copies));
		struct rs_gather part = {.bytes = g->bytes, .copies = copies};
		const uint64_t at = (row - first) * row_bytes;

		next = row + 1 + pick((unsigned)(end - row));
		for (uint32_t i = 0; i < g->nr; i++)
			part.nr += rs_copy_rows(&g->copies[i], row, next - row, &copies[part.nr]);
		/* `at` of the target is the first byte of these rows */
		rs_gather_read(&part, data, at, (next - row) * row_bytes, got + at);
		for (uint32_t i = 0; i < part.nr; i++) {
			assert_true(copies[i].row >= row && copies[i].row + copies[i].rows <= next);
			assert_true(copies[i].to >= at && copies[i].to < at + (next - row) * row_bytes);
		}
		free(copies);
	}
	assert_memory_equal(want, got, g->bytes);
}

static void read_region(struct world *w, const struct rs_placed_tensor *p)
{
	struct meta_box target = {.nr = w->tensor.shape.nr};
	struct rs_gather g = {0};
	struct rs_sources sources = {0};
	const unsigned char *data[BOXES_MAX];
	unsigned char got[FILE_BYTES];
	uint64_t at[SC_DIMS_MAX] = {0}, n = 1;
	struct sc_err err;

	for (int k = target.nr - 1; k >= 0; k--) {
		target.off[k] = pick((unsigned)w->tensor.shape.dim[k]);
		target.ext[k] = 1 + pick((unsigned)(w->tensor.shape.dim[k] - target.off[k]));
		target.stride[k] = n;
		n *= target.ext[k];
	}
	g.bytes = n * w->bytes;
	assert_int_equal(rs_plan_placed(p, &w->tensor, &target, &g, &sources, &err), 0);
	rs_gather_finish(&g);
	assert_false(g.has_padding);
	for (size_t i = 0; i < sources.nr; i++)
		data[i] = w->file + sources.at[i].place.at;
	rs_gather_read(&g, data, 0, g.bytes, got);
	read_rows(w, &target, &g, data, got);
	n = 0;
	do {
		uint64_t whole[SC_DIMS_MAX];

		for (int k = 0; k < target.nr; k++)
			whole[k] = target.off[k] + at[k];
		for (unsigned i = 0; i < w->bytes; i++)
			assert_int_equal(got[n++], value(index_of(&w->tensor.shape, whole), i));
	} while (step(at, target.ext, target.nr));
	rs_gather_done(&g);
	rs_sources_done(&sources);
}

static void test_regions(void **state)
{
	static struct world w;

	(void)state;
	random_state = 1;
	for (int i = 0; i < ROUNDS; i++) {
		struct rs_placed_tensor p;

		make_world(&w);
		p = checked(&w);
		for (int k = 0; k < 4; k++)
			read_region(&w, &p);
	}
}

/* Changes a covering so that it is none any more. */
static const char *spoil(struct world *w)
{
	struct rs_placed_box *b = &w->boxes[pick((unsigned)w->nr)];

	switch (pick(4)) {
	case 0: /* a gap */
		*b = w->boxes[--w->nr];
		return "hold";
	case 1: /* a box again, from elsewhere */
		w->boxes[w->nr] = *b;
		w->boxes[w->nr++].place.at++;
		return "overlap";
	case 2: /* outside */
		if (!w->tensor.shape.nr)
			return NULL;
		b->box.off[pick(w->tensor.shape.nr)] += w->tensor.shape.dim[0] + 14;
		return "outside";
	default: /* outside, and so far that it overflows */
		if (!w->tensor.shape.nr)
			return NULL;
		b->box.off[0] = UINT64_MAX;
		return "outside";
	}
}

static void test_refusals(void **state)
{
	static struct world w;

	(void)state;
	random_state = 2;
	for (int i = 0; i < ROUNDS; i++) {
		struct rs_placed_tensor p = {.boxes = w.boxes};
		uint64_t budget = 1 << 20;
		struct sc_err err;
		const char *why;

		do
			make_world(&w);
		while (w.nr == BOXES_MAX || !(why = spoil(&w)));
		p.nr = w.nr;
		if (rs_placed_check(&p, &w.tensor, &budget, &err) != SC_E_FORMAT)
			fail_msg("round %d: taken, though %s", i, why);
		if (!strstr(err.msg, why))
			fail_msg("round %d: %s, not %s", i, err.msg, why);
	}
}

/* What is there twice is there once; boxes without elements are nothing; the budget ends the work. */
static void test_edges(void **state)
{
	struct rs_placed_box b[3] = {{.box = {.nr = 1, .ext = {4}, .stride = {1}}, .place.id = 1, .file = "a"}};
	struct meta_tensor t = {.key = "f:t", .name = "t", .dtype = META_DTYPE_F32, .shape = {1, {4}}};
	struct rs_placed_tensor p = {3, b};
	uint64_t budget = 8;
	struct sc_err err;

	(void)state;
	b[1] = b[0];
	b[2] = b[0];
	b[2].box.off[0] = 4;
	b[2].box.ext[0] = 0;
	assert_int_equal(rs_placed_check(&p, &t, &budget, &err), 0);
	assert_int_equal(p.nr, 1);
	b[0].box.ext[0] = b[1].box.ext[0] = 4;
	b[1].place.id = 2;
	p.nr = 2;
	budget = 0;
	assert_int_equal(rs_placed_check(&p, &t, &budget, &err), SC_E_LIMIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_regions), cmocka_unit_test(test_refusals), cmocka_unit_test(test_edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
