/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/plan/gather.h"

#include <assert.h>
#include <string.h>

#define TURNS_MAX 16

/* Adds a dimension outside of those that a copy has, the innermost first.  A dimension that is contiguous on both sides
 * is merged into the run, or into the dimension inside of it. */
static void add_loop(struct rs_copy *c, uint64_t ext, uint64_t to, uint64_t from)
{
	const int in = c->nr - 1;

	if (ext == 1)
		return;
	if (c->nr == 0 && to == c->run && from == c->run) {
		c->run *= ext;
	} else if (c->nr && to == c->ext[in] * c->to_stride[in] && from == c->ext[in] * c->from_stride[in]) {
		c->ext[in] *= ext;
	} else {
		assert(c->nr < SC_DIMS_MAX);
		c->ext[c->nr] = ext;
		c->to_stride[c->nr] = to;
		c->from_stride[c->nr++] = from;
	}
}

/* Reverses the dimensions, which were added innermost first, and are kept outermost first. */
static void turn_around(struct rs_copy *c)
{
	for (int i = 0, j = c->nr - 1; i < j; i++, j--) {
#define SWAP(a, b) do { uint64_t v_ = (a); (a) = (b); (b) = v_; } while (0)
		SWAP(c->ext[i], c->ext[j]);
		SWAP(c->to_stride[i], c->to_stride[j]);
		SWAP(c->from_stride[i], c->from_stride[j]);
#undef SWAP
	}
}

int rs_gather_add(struct rs_gather *g, uint32_t source, const struct meta_box *target_box,
		  const struct meta_box *source_box, unsigned element_bytes)
{
	const struct meta_box *t = target_box, *s = source_box;
	struct rs_copy c = {.source = source, .turns = 1, .to = t->at, .from = s->at, .run = element_bytes};
	size_t nr = g->nr;

	assert(t->nr == s->nr);
	for (int k = 0; k < s->nr; k++)
		c.to += (s->off[k] - t->off[k]) * t->stride[k];
	c.to *= element_bytes;
	c.from *= element_bytes;
	for (int k = s->nr - 1; k >= 0; k--)
		add_loop(&c, s->ext[k], t->stride[k] * element_bytes, s->stride[k] * element_bytes);
	turn_around(&c);
	if (sc_vec_grow((void **)&g->copies, nr, &g->room, sizeof(c)) < 0)
		return -1;
	g->copies[g->nr++] = c;
	return 0;
}

int rs_gather_append(struct rs_gather *g, const struct rs_copy *copies, uint32_t nr)
{
	struct rs_copy *more = g->copies;

	if (g->room - g->nr < nr) /* most gathers get no others */
		more = sc_sys.resize(g->copies, ((size_t)g->nr + nr) * sizeof(*more));
	if (!more)
		return -1;
	g->room = sc_max_u64(g->room, (uint64_t)g->nr + nr);
	g->copies = more;
	memcpy(g->copies + g->nr, copies, nr * sizeof(*copies));
	g->nr += nr;
	return 0;
}

void rs_gather_rows(struct rs_gather *g, const struct meta_shape *shape, const struct meta_box *region)
{
	struct rs_copy *c = &g->copies[g->nr - 1];
	int k = 0;

	assert(shape->nr == region->nr);
	while (k < shape->nr && shape->dim[k] == 1)
		k++;
	c->row = k < shape->nr ? region->off[k] : 0;
	c->rows = k < shape->nr ? region->ext[k] : 1;
}

struct rs_copy rs_copy_laid(const struct rs_copy *c)
{
	struct rs_copy laid = *c;

	laid.turns = 1;
	laid.from = laid.to;
	laid.nr = 0;
	for (int k = c->nr - 1; k >= 0; k--)
		add_loop(&laid, c->ext[k], c->to_stride[k], c->to_stride[k]);
	turn_around(&laid);
	return laid;
}

uint64_t rs_copy_bytes(const struct rs_copy *c)
{
	uint64_t n = c->run;

	for (int k = 0; k < c->nr; k++)
		n *= c->ext[k];
	return n;
}

/* Cuts a copy by rows, which are the slowest part of what it counts: of its first extent, or of its run. */
bool rs_copy_rows(const struct rs_copy *c, uint64_t row, uint64_t rows, struct rs_copy *ret)
{
	uint64_t lo = sc_max_u64(c->row, row), hi = sc_min_u64(c->row + c->rows, row + rows), before = lo - c->row;

	assert(c->rows);
	if (lo >= hi)
		return false;
	*ret = *c;
	ret->turns = 1;
	ret->row = lo;
	ret->rows = hi - lo;
	if (c->rows > 1 && c->nr) {
		ret->ext[0] = c->ext[0] / c->rows * ret->rows;
		ret->to += c->ext[0] / c->rows * before * c->to_stride[0];
		ret->from += c->ext[0] / c->rows * before * c->from_stride[0];
	} else if (c->rows > 1) {
		ret->run = c->run / c->rows * ret->rows;
		ret->to += c->run / c->rows * before;
		ret->from += c->run / c->rows * before;
	}
	return true;
}

/* Tells whether the runs of `next` interleave with those of `c`: the same dimensions, and each run lies between two
 * of c. */
static bool takes_turns(const struct rs_copy *c, const struct rs_copy *next)
{
	const size_t n = c->nr * sizeof(c->ext[0]);

	return c->nr && next->nr == c->nr && next->run == c->run &&
	       next->to + next->run <= c->to + c->to_stride[c->nr - 1] && memcmp(next->ext, c->ext, n) == 0 &&
	       memcmp(next->to_stride, c->to_stride, n) == 0 && memcmp(next->from_stride, c->from_stride, n) == 0;
}

/*
 * Groups copies whose runs interleave, such as columns from several ranks.  Walked together they write the target from
 * front to back, which takes 0.8 of the time of one copy after another (runs of 1 KiB from two sources).
 */
static void find_turns(struct rs_gather *g)
{
	for (uint32_t i = 0; i < g->nr; i += g->copies[i].turns) {
		struct rs_copy *c = &g->copies[i];

		while (i + c->turns < g->nr && c->turns < TURNS_MAX && takes_turns(c, c + c->turns) &&
		       c[c->turns].to > c[c->turns - 1].to)
			c->turns++;
	}
}

/* A source as it was taken to be: row-major. */
struct rows {
	const struct rs_order *order;	/* as it lies */
	uint64_t stride[SC_DIMS_MAX];	/* row-major, in elements */
	uint64_t first[SC_DIMS_MAX];	/* index of the first element that the copy reads */
};

/* Adds `ext` elements that are `stride` elements apart, as steps along the dimension of that stride.  Dimensions that
 * were merged are told apart again: a copy that steps over the end of a dimension takes all of it. */
static void add_steps(struct rs_copy *c, const struct rows *r, uint64_t ext, uint64_t stride, uint64_t to)
{
	const struct rs_order *o = r->order;

	while (ext > 1) {
		uint64_t n = ext, step;
		int k = 0;

		while (k < o->shape.nr - 1 && stride < r->stride[k])
			k++;
		step = stride / r->stride[k];
		if (r->first[k] + (ext - 1) * step >= o->shape.dim[k]) {
			n = o->shape.dim[k] / step;
			assert(r->first[k] < step && n * step == o->shape.dim[k] && ext % n == 0);
		}
		assert(stride % r->stride[k] == 0);
		add_loop(c, n, to, step * o->stride[k] * o->element_bytes);
		ext /= n;
		stride *= n;
		to *= n;
	}
}

static void reorder(struct rs_copy *c, const struct rs_order *o)
{
	const struct rs_copy old = *c;
	struct rows r = {.order = o};
	uint64_t stride = 1, left = old.from / o->element_bytes;

	for (int k = o->shape.nr - 1; k >= 0; k--) {
		r.stride[k] = stride;
		stride *= o->shape.dim[k];
	}
	c->from = 0;
	for (int k = 0; k < o->shape.nr; k++) {
		r.first[k] = left / r.stride[k];
		left %= r.stride[k];
		c->from += r.first[k] * o->stride[k] * o->element_bytes;
	}
	c->nr = 0;
	c->run = o->element_bytes;
	add_steps(c, &r, old.run / o->element_bytes, 1, o->element_bytes);
	for (int k = old.nr - 1; k >= 0; k--)
		add_steps(c, &r, old.ext[k], old.from_stride[k] / o->element_bytes, old.to_stride[k]);
	turn_around(c);
}

void rs_gather_reorder(struct rs_gather *g, const struct rs_order *const *orders)
{
	bool any = false;

	for (uint32_t i = 0; i < g->nr; i++) {
		struct rs_copy *c = &g->copies[i];

		if (!orders[c->source])
			continue;
		reorder(c, orders[c->source]);
		any = true;
	}
	for (uint32_t i = 0; any && i < g->nr; i++)
		g->copies[i].turns = 1;
	if (any)
		find_turns(g);
}

void rs_gather_finish(struct rs_gather *g)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < g->nr; i++)
		n += rs_copy_bytes(&g->copies[i]);
	find_turns(g);
	assert(n <= g->bytes); /* each byte of a target has at most one source */
	g->has_padding = n < g->bytes;
	/* most have one copy, and a file has thousands of gathers */
	if (g->nr && g->nr < g->room) {
		struct rs_copy *less = sc_sys.resize(g->copies, g->nr * sizeof(*less));

		if (less) {
			g->copies = less;
			g->room = g->nr;
		}
	}
}

void rs_gather_done(struct rs_gather *g)
{
	sc_sys.release(g->copies);
	*g = (struct rs_gather){0};
}

/* Returns the bytes that dimensions k and on of a copy span, from their first byte to behind their last. */
static uint64_t span(const struct rs_copy *c, int k)
{
	uint64_t n = c->run;

	for (; k < c->nr; k++)
		n += (c->ext[k] - 1) * c->to_stride[k];
	return n;
}

uint64_t rs_copy_end(const struct rs_copy *c)
{
	return c->to + span(c, 0);
}

struct window {
	uint64_t lo, hi;	/* of the target */
	unsigned char *to;	/* byte lo */
	/* for each interleaved copy: how far behind the first one it writes, and its first byte */
	uint64_t after[TURNS_MAX];
	const unsigned char *from[TURNS_MAX];
};

/* Returns how far behind the first copy the last one writes. */
static uint64_t reach(const struct rs_copy *c)
{
	return c[c->turns - 1].to - c->to;
}

/* Copies a run of each copy, clipped to the window. */
static void copy_part(const struct rs_copy *c, const struct window *w, uint64_t to, uint64_t from)
{
	for (uint32_t i = 0; i < c->turns; i++) {
		uint64_t at = to + w->after[i], lo = sc_max_u64(at, w->lo), hi = sc_min_u64(at + c->run, w->hi);

		if (lo < hi)
			memcpy(w->to + (lo - w->lo), w->from[i] + from + (lo - at), hi - lo);
	}
}

#define SHORT_BYTES 16	/* runs up to this are elements, or little more */
#define TILE 32

/* Copies dimension k from index `first` to `last`, of short runs of one source. */
static void copy_short(const struct rs_copy *c, int k, unsigned char *to, const unsigned char *from, uint64_t first,
		       uint64_t last)
{
	const uint64_t ts = c->to_stride[k], fs = c->from_stride[k];

	switch (c->run) {
	case 1:
		for (uint64_t i = first; i < last; i++)
			to[i * ts] = from[i * fs];
		break;
	case 2:
		for (uint64_t i = first; i < last; i++)
			memcpy(to + i * ts, from + i * fs, 2);
		break;
	case 4:
		for (uint64_t i = first; i < last; i++)
			memcpy(to + i * ts, from + i * fs, 4);
		break;
	case 8:
		for (uint64_t i = first; i < last; i++)
			memcpy(to + i * ts, from + i * fs, 8);
		break;
	default:
		for (uint64_t i = first; i < last; i++)
			memcpy(to + i * ts, from + i * fs, c->run);
	}
}

/* Tells whether dimension k and the next one are the last two, and rows are nearer to each other in the source than
 * columns. */
static bool is_transposed(const struct rs_copy *c, int k)
{
	return k + 2 == c->nr && c->turns == 1 && c->run <= SHORT_BYTES && c->from_stride[k] < c->from_stride[k + 1];
}

/* Copies rows `first` to `last` of a transposed matrix: some columns of all rows, then the next columns, since
 * neighbours in the source come with one line of the cache. */
static void copy_tiles(const struct rs_copy *c, const struct window *w, uint64_t first, uint64_t last, uint64_t to,
		       uint64_t from)
{
	const int k = c->nr - 2;

	for (uint64_t j = 0; j < c->ext[k + 1]; j += TILE)
		for (uint64_t i = first; i < last; i++)
			copy_short(c, k + 1, w->to + (to + i * c->to_stride[k] - w->lo),
				   w->from[0] + from + i * c->from_stride[k], j, sc_min_u64(j + TILE, c->ext[k + 1]));
}

/* Copies the part of dimensions k and on that is in the window, at target byte `to` and `from` bytes behind each copy's
 * first; visits only indexes that meet the window. */
static void copy_in(const struct rs_copy *c, const struct window *w, int k, uint64_t to,
		    uint64_t from)
{
	uint64_t inner, first, last;

	if (k == c->nr) {
		copy_part(c, w, to, from);
		return;
	}
	inner = span(c, k + 1) + reach(c);
	first = w->lo > to + inner - 1 ? (w->lo - (to + inner - 1) + c->to_stride[k] - 1) / c->to_stride[k] : 0;
	last = w->hi > to ? (w->hi - to + c->to_stride[k] - 1) / c->to_stride[k] : 0;
	if (last > c->ext[k])
		last = c->ext[k];
	if (is_transposed(c, k)) {
		uint64_t lo = first, hi = last;

		while (lo < hi && to + lo * c->to_stride[k] < w->lo)
			lo++;
		while (lo < hi && to + (hi - 1) * c->to_stride[k] + inner > w->hi)
			hi--;
		for (uint64_t i = first; i < lo; i++)
			copy_in(c, w, k + 1, to + i * c->to_stride[k], from + i * c->from_stride[k]);
		copy_tiles(c, w, lo, hi, to, from);
		for (uint64_t i = hi; i < last; i++)
			copy_in(c, w, k + 1, to + i * c->to_stride[k], from + i * c->from_stride[k]);
		return;
	}
	if (k + 1 == c->nr) {
		/* the innermost loop: whole runs without another call */
		for (uint64_t i = first; i < last; i++) {
			uint64_t t = to + i * c->to_stride[k], f = from + i * c->from_stride[k];

			if (t < w->lo || t + inner > w->hi)
				copy_part(c, w, t, f);
			else
				for (uint32_t j = 0; j < c->turns; j++)
					memcpy(w->to + (t + w->after[j] - w->lo), w->from[j] + f, c->run);
		}
		return;
	}
	for (uint64_t i = first; i < last; i++)
		copy_in(c, w, k + 1, to + i * c->to_stride[k], from + i * c->from_stride[k]);
}

void rs_gather_read(const struct rs_gather *g, const unsigned char *const *sources, uint64_t at,
		    uint64_t bytes, unsigned char *to)
{
	assert(at + bytes <= g->bytes);
	if (g->has_padding)
		memset(to, 0, bytes);
	for (uint32_t i = 0; i < g->nr; i += g->copies[i].turns) {
		const struct rs_copy *c = &g->copies[i];
		struct window w = {.lo = at, .hi = at + bytes, .to = to};

		if (c->to >= at + bytes || rs_copy_end(c) + reach(c) <= at)
			continue;
		for (uint32_t j = 0; j < c->turns; j++) {
			w.after[j] = c[j].to - c->to;
			w.from[j] = sources[c[j].source] + c[j].from;
		}
		copy_in(c, &w, 0, c->to, 0);
	}
}

/* Finds the run of a copy that contains target byte `at`; false: none does. */
static bool find_run(const struct rs_copy *c, uint64_t at, uint64_t *ret_to, uint64_t *ret_from)
{
	uint64_t to = c->to, from = c->from;

	if (at < to || at >= to + span(c, 0))
		return false;
	for (int k = 0; k < c->nr; k++) {
		uint64_t i = (at - to) / c->to_stride[k];

		if (i >= c->ext[k])
			i = c->ext[k] - 1;
		to += i * c->to_stride[k];
		from += i * c->from_stride[k];
	}
	*ret_to = to;
	*ret_from = from;
	return at < to + c->run;
}

uint64_t rs_gather_run(const struct rs_gather *g, uint64_t at, uint64_t bytes, uint32_t *ret_source,
		       uint64_t *ret_from)
{
	for (uint32_t i = 0; i < g->nr; i++) {
		uint64_t to, from;

		if (!find_run(&g->copies[i], at, &to, &from))
			continue;
		*ret_source = g->copies[i].source;
		*ret_from = from + (at - to);
		return sc_min_u64(bytes, to + g->copies[i].run - at);
	}
	return 0;
}

uint64_t rs_copy_span(const struct rs_copy *c, uint64_t at, uint64_t bytes, uint64_t *ret_from)
{
	uint64_t to = c->to, from = c->from, end = at + bytes, n = c->run, lo, hi;

	if (!bytes || at >= to + span(c, 0) || end <= to)
		return 0;
	/* down the dimensions of which one index alone is met */
	for (int k = 0; k < c->nr; k++) {
		uint64_t inner = span(c, k + 1), stride = c->to_stride[k];
		uint64_t first = at < to + inner ? 0 : (at - to - inner) / stride + 1;
		uint64_t last = sc_min_u64((end - 1 - to) / stride, c->ext[k] - 1);

		if (first > last)
			return 0; /* it lies between two runs */
		to += first * stride;
		from += first * c->from_stride[k];
		if (first == last)
			continue;
		n += (last - first) * c->from_stride[k];
		while (++k < c->nr)
			n += (c->ext[k] - 1) * c->from_stride[k];
		*ret_from = from;
		return n;
	}
	lo = at > to ? at : to;
	hi = sc_min_u64(end, to + c->run);
	*ret_from = from + (lo - to);
	return hi - lo;
}
