/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/boxes.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/err.h"
#include "meta/base/mem.h"
#include "reshard/engine/plan/gather.h"

#define WORD 16u
#define WORDS_RUN_MIN 64u		/* shorter rows are copied in narrow units */
#define BOX_BYTES_MAX (1ull << 30)	/* so units, of one byte or more, are below 2^31 */

static_assert(RS_BOX_DIMS_MAX == SC_DIMS_MAX, "a box has the dimensions of a copy");

/* --- is it inside? --- */

/* Tells whether one side of a copy is inside of a window; false: its last byte is outside, or its place overflows. */
static bool is_inside(const struct rs_copy *c, uint64_t at, const uint64_t *stride, uint64_t bytes)
{
	uint64_t end, step;

	if (!sc_add_u64(at, c->run, &end))
		return false;
	for (int k = 0; k < c->nr; k++)
		if (!sc_mul_u64(c->ext[k] - 1, stride[k], &step) || !sc_add_u64(end, step, &end))
			return false;
	return end <= bytes;
}

/* Counts the bytes that a copy copies; UINT64_MAX: 64 bits do not hold the number. */
static uint64_t all_bytes(const struct rs_copy *c)
{
	uint64_t bytes = c->run;
	bool held = true;

	for (int k = 0; k < c->nr; k++) {
		if (c->ext[k] == 0)
			return 0;
		held = held && sc_mul_u64(bytes, c->ext[k], &bytes);
	}
	return held ? bytes : UINT64_MAX;
}

/* --- a box --- */

static struct rs_div div_by(uint32_t d)
{
	struct rs_div v = {.d = d};

	if (d == 1)
		return v;
	while (1ull << (v.shift + 1) < d)
		v.shift++;
	v.mul = (uint32_t)(((1ull << (32 + v.shift)) + d - 1) / d);
	return v;
}

/* Joins dimensions that are contiguous on both sides to one dimension, or to one run, and drops dimensions of length
 * 1. */
static void collapse(struct rs_copy *c)
{
	uint8_t nr = 0;

	for (; c->nr; c->nr--) {
		const uint8_t k = c->nr - 1;

		if (c->ext[k] != 1 && (c->to_stride[k] != c->run || c->from_stride[k] != c->run))
			break;
		c->run *= c->ext[k];
	}
	for (uint8_t k = 0; k < c->nr; k++) {
		const uint8_t last = nr - 1;

		if (c->ext[k] == 1)
			continue;
		if (nr && c->to_stride[last] == c->ext[k] * c->to_stride[k] &&
		    c->from_stride[last] == c->ext[k] * c->from_stride[k]) {
			c->ext[last] *= c->ext[k];
			c->to_stride[last] = c->to_stride[k];
			c->from_stride[last] = c->from_stride[k];
			continue;
		}
		c->ext[nr] = c->ext[k];
		c->to_stride[nr] = c->to_stride[k];
		c->from_stride[nr++] = c->from_stride[k];
	}
	c->nr = nr;
}

/* Chooses the kind and the units of a box. */
static void choose(const struct rs_copy *c, bool zero, struct rs_box *b)
{
	uint64_t both = c->to | c->from | c->run, apart = c->to ^ c->from;

	for (int k = 0; k < c->nr; k++) {
		both |= c->to_stride[k] | c->from_stride[k];
		apart |= c->to_stride[k] ^ c->from_stride[k];
	}
	b->shift = 4;
	while (both & ((1u << b->shift) - 1))
		b->shift--;
	b->kind = RS_BOX_UNITS;
	b->units = div_by((uint32_t)(c->run >> b->shift));
	if (zero)
		b->kind = RS_BOX_ZERO;
	else if (b->shift < 4 && c->run >= WORDS_RUN_MIN)
		b->kind = apart % WORD ? RS_BOX_SHIFT : RS_BOX_PEEL;
	if (b->kind == RS_BOX_UNITS)
		return;
	/* as many words as a row may touch */
	b->shift = 4;
	b->units = div_by((uint32_t)((c->run + 2 * (WORD - 1)) / WORD));
}

/* Adds a box and its tiles; false: a table is full. */
static bool add_box(struct rs_tables *t, const struct rs_copy *c, bool zero)
{
	struct rs_box b = {.from = zero ? 0 : c->from, .to = c->to, .run = (uint32_t)c->run, .nr = c->nr};
	uint32_t step;
	uint64_t units;

	choose(c, zero, &b);
	units = b.units.d;
	for (int k = 0; k < c->nr; k++) {
		b.ext[k] = div_by((uint32_t)c->ext[k]);
		b.from_stride[k] = c->from_stride[k];
		b.to_stride[k] = c->to_stride[k];
		units *= c->ext[k];
	}
	assert(units < 1ull << 31);
	step = RS_TILE_BYTES >> b.shift;
	if (t->nr_boxes == t->boxes_max || (units + step - 1) / step > t->tiles_max - t->nr_tiles)
		return false;
	for (uint64_t at = 0; at < units; at += step)
		t->tiles[t->nr_tiles++] = (struct rs_tile){.box = t->nr_boxes, .first = (uint32_t)at,
							   .nr = (uint32_t)sc_min_u64(step, units - at)};
	t->boxes[t->nr_boxes++] = b;
	return true;
}

/* Adds a copy between addresses.  Cuts a copy of too many bytes in two: at its first dimension, or, if it is one run,
 * in the middle. */
static bool add(struct rs_tables *t, const struct rs_copy *copy, bool zero)
{
	struct rs_copy a = *copy, b;
	uint64_t to, from;

	collapse(&a);
	if (rs_copy_bytes(&a) < BOX_BYTES_MAX)
		return add_box(t, &a, zero);
	b = a;
	if (a.nr) {
		a.ext[0] /= 2;
		b.ext[0] -= a.ext[0];
		to = a.ext[0] * a.to_stride[0];
		from = a.ext[0] * a.from_stride[0];
	} else {
		a.run = a.run / 2 / WORD * WORD;
		b.run -= a.run;
		to = from = a.run;
	}
	b.to += to;
	b.from += from;
	return add(t, &a, zero) && add(t, &b, zero);
}

int rs_tables_add(struct rs_tables *t, const struct rs_copy *copy, const struct rs_window *from,
		  const struct rs_window *to, struct sc_err *err)
{
	const struct rs_tables before = *t;
	const uint64_t bytes = all_bytes(copy);
	const bool zero = !from;
	struct rs_copy c = *copy;

	if (bytes == 0)
		return 0;
	if (zero) { /* as if it were copied onto itself */
		c.from = c.to;
		memcpy(c.from_stride, c.to_stride, sizeof(c.from_stride));
		from = to;
	}
	/* a target has no byte twice */
	if (bytes > to->bytes || !is_inside(&c, c.to, c.to_stride, to->bytes) ||
	    !is_inside(&c, c.from, c.from_stride, from->bytes))
		return sc_fail(err, SC_E_STATE, "a box (from byte %" PRIu64 " to byte %" PRIu64 ") is not inside of "
			       "windows of %" PRIu64 " and %" PRIu64 " bytes", c.from, c.to, from->bytes, to->bytes);
	c.to += to->address;
	c.from += from->address;
	if (add(t, &c, zero))
		return 0;
	*t = before;
	return sc_fail(err, SC_E_LIMIT, "a round has more than %u boxes or %u tiles", t->boxes_max, t->tiles_max);
}
