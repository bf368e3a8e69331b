/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per dimension we keep runs (start in the logical dimension or padding, length), at first
 * [(0, n)].  pad appends a run; a cut splits the runs at section borders, takes a part of each
 * section and joins these.  A stored tensor's shape is the runs' lengths; its boxes are the
 * products of one run per dimension.  `flat` switches to runs over the flattened local tensor,
 * where a range is at most 2N-1 boxes, each met with the grid of runs.
 */
#include "meta/model/slice.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PADDING UINT64_MAX

struct run {
	uint64_t start, length; /* start PADDING: filled with zeros */
};

struct runs {
	uint32_t nr;
	struct run *at;
};

struct local {
	uint8_t nr;
	struct runs dims[SC_DIMS_MAX];
	bool is_flat;
	struct runs flat;
};

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

static uint64_t runs_length(const struct runs *runs)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < runs->nr; i++)
		n += runs->at[i].length;
	return n;
}

/* torch.chunk: part i of d of n; ceil(n/d) each, the last shorter or empty. */
static void part(uint64_t n, uint64_t d, uint64_t i, uint64_t *lo, uint64_t *hi)
{
	uint64_t c = n / d + (n % d != 0);

	*lo = sc_min_u64(i * c, n);
	*hi = sc_min_u64(i * c + c, n);
}

/* Appends to `out` the part [lo, hi) of a concatenation of runs. */
static void take(const struct runs *runs, uint64_t lo, uint64_t hi, struct runs *out)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < runs->nr; i++) {
		const struct run *r = &runs->at[i];
		uint64_t a = sc_max_u64(lo, at), b = sc_min_u64(hi, at + r->length);

		if (a < b)
			out->at[out->nr++] = (struct run){
				r->start == PADDING ? PADDING : r->start + a - at, b - a};
		at += r->length;
	}
}

/* Length after padding for a cut in d parts; false on overflow. */
static bool padded_length(const struct meta_cut *cut, uint64_t n, uint64_t d, uint64_t *ret)
{
	uint64_t m, more;

	*ret = n;
	if (!cut->pad)
		return true;
	if (!sc_mul_u64(cut->lcm ? cut->pad / gcd(cut->pad, d) : cut->pad, d, &m))
		return false;
	more = n % m ? m - n % m : 0;
	return sc_add_u64(n, more, ret);
}

/* Errors of cuts say what is wrong; their callers say where. */
static int padded_runs(struct sc_arena *arena, const struct runs *runs, const struct meta_cut *cut,
		       uint64_t d, struct runs *ret, struct sc_err *err)
{
	uint64_t n = runs_length(runs), want;

	if (!padded_length(cut, n, d, &want))
		return sc_fail(err, SC_E_LIMIT, "the padded size overflows 64 bits");
	ret->at = sc_arena_array(arena, runs->nr + 1u, sizeof(*ret->at));
	if (!ret->at)
		return sc_nomem(err);
	if (runs->nr)
		memcpy(ret->at, runs->at, runs->nr * sizeof(*ret->at));
	ret->nr = runs->nr;
	if (want > n)
		ret->at[ret->nr++] = (struct run){PADDING, want - n};
	return 0;
}

static int refuse_sections(const struct meta_cut *cut, uint64_t n, struct sc_err *err)
{
	struct sc_buf buf = {0};
	int rc;

	for (uint32_t i = 0; i < cut->nr_sections; i++)
		sc_buf_printf(&buf, "%s%u", i ? ":" : "", cut->sections[i]);
	rc = sc_fail(err, SC_E_STATE, "%llu does not divide by sections %s", (unsigned long long)n,
		     buf.text ? buf.text : "");
	sc_buf_done(&buf);
	return rc;
}

/* Does one cut of one dimension, as the framework does it to the tensor that the cuts before have left. */
static int cut_runs(struct sc_arena *arena, const struct meta_topology *topo,
		    const struct runs *runs, const struct meta_cut *cut, uint64_t i, struct runs *ret,
		    struct sc_err *err)
{
	uint64_t d = meta_topology_degree(topo, cut->axes), n, at = 0;
	struct runs padded;
	int rc = padded_runs(arena, runs, cut, d, &padded, err);

	if (rc < 0)
		return rc;
	n = runs_length(&padded);
	if (n % cut->section_sum)
		return refuse_sections(cut, n, err);
	ret->nr = 0;
	ret->at = sc_arena_array(arena, (size_t)padded.nr + 2u * cut->nr_sections, sizeof(*ret->at));
	if (!ret->at)
		return sc_nomem(err);
	for (uint32_t s = 0; s < cut->nr_sections; s++) {
		uint64_t m = n / cut->section_sum * cut->sections[s], lo, hi;

		if (!cut->chunk && m % d)
			return sc_fail(err, SC_E_STATE, "%llu does not divide by %s=%llu",
				       (unsigned long long)m, cut->axes_text, (unsigned long long)d);
		part(m, d, i, &lo, &hi);
		take(&padded, at + lo, at + hi, ret);
		at += m;
	}
	return 0;
}

static int cut_dim(const struct meta_cut *cut, const struct meta_shape *shape, const char *what,
		   int *ret, struct sc_err *err)
{
	if (cut->dim < -(int)shape->nr || cut->dim >= (int)shape->nr)
		return sc_fail(err, SC_E_STATE, "'%s': the rule cuts dimension %d, but the tensor has %d dimensions",
			what,
			       cut->dim, shape->nr);
	*ret = cut->dim < 0 ? cut->dim + shape->nr : cut->dim;
	return 0;
}

static int whole(struct sc_arena *arena, const struct meta_shape *shape, struct local *ret,
		 struct sc_err *err)
{
	*ret = (struct local){.nr = shape->nr};
	for (int k = 0; k < shape->nr; k++) {
		ret->dims[k].at = sc_arena_alloc(arena, sizeof(struct run));
		if (!ret->dims[k].at)
			return sc_nomem(err);
		ret->dims[k].at[0] = (struct run){0, shape->dim[k]};
		ret->dims[k].nr = shape->dim[k] > 0;
	}
	return 0;
}

static int flatten(struct sc_arena *arena, struct local *l, const char *what, struct sc_err *err)
{
	uint64_t n = 1;

	for (int k = 0; k < l->nr; k++)
		if (!sc_mul_u64(n, runs_length(&l->dims[k]), &n))
			return sc_fail(err, SC_E_LIMIT, "'%s': too many elements", what);
	l->is_flat = true;
	l->flat.at = sc_arena_alloc(arena, sizeof(struct run));
	if (!l->flat.at)
		return sc_nomem(err);
	l->flat.at[0] = (struct run){0, n};
	l->flat.nr = n > 0;
	return 0;
}

/* Applies one cut to what the cuts before have left to the rank; the rank gets part `index`. */
static int apply(struct sc_arena *arena, const struct meta_topology *topo,
		 const struct meta_cut *cut, const struct meta_shape *shape, uint64_t index,
		 const char *what, struct local *l, struct sc_err *err)
{
	struct runs *runs = &l->flat, out;
	int k = 0, rc;

	if (cut->flat)
		return flatten(arena, l, what, err);
	if (!l->is_flat) {
		rc = cut_dim(cut, shape, what, &k, err);
		if (rc < 0)
			return rc;
		runs = &l->dims[k];
	}
	rc = cut_runs(arena, topo, runs, cut, index, &out, err);
	if (rc == 0)
		*runs = out;
	else if (l->is_flat)
		return sc_wrap(err, rc, "'%s' (flat)", what);
	return rc < 0 ? sc_wrap(err, rc, "'%s' dimension %d", what, k) : 0;
}

/* --- boxes --- */

struct spans {
	uint64_t lo[SC_DIMS_MAX], hi[SC_DIMS_MAX];
};

struct boxes {
	struct sc_arena *arena;
	const struct local *local;
	uint64_t length[SC_DIMS_MAX], stride[SC_DIMS_MAX];
	struct {
		struct meta_box *at;
		size_t nr, room;
	} out;
	uint64_t at, from;	/* the range starts at element `from` of the local tensor, at `at` */
	const char *what;
	struct sc_err *err;
};

/* Makes a box of each product of one run per dimension, inside the spans. */
static int boxes_in(struct boxes *b, const struct spans *s, int k, struct meta_box box)
{
	uint64_t p = 0;
	int rc = 0;

	if (k == b->local->nr) {
		if (b->out.nr == SC_BOXES_MAX)
			return sc_fail(b->err, SC_E_LIMIT, "'%s': more than %u boxes in a piece", b->what,
				       SC_BOXES_MAX);
		box.at += b->at - b->from;
		return sc_vec_push(&b->out, box) < 0 ? sc_nomem(b->err) : 0;
	}
	for (uint32_t i = 0; i < b->local->dims[k].nr && rc == 0; i++) {
		const struct run *r = &b->local->dims[k].at[i];
		uint64_t lo = sc_max_u64(s->lo[k], p), hi = sc_min_u64(s->hi[k], p + r->length);

		if (lo < hi && r->start != PADDING) {
			struct meta_box inner = box;

			inner.off[k] = r->start + lo - p;
			inner.ext[k] = hi - lo;
			inner.at += lo * b->stride[k];
			rc = boxes_in(b, s, k + 1, inner);
		}
		p += r->length;
	}
	return rc;
}

static int emit(struct boxes *b, const struct spans *s)
{
	struct meta_box box = {.nr = b->local->nr};

	memcpy(box.stride, b->stride, sizeof(box.stride));
	return boxes_in(b, s, 0, box);
}

/* Splits the row-major range [lo, hi) of dimensions k and on into at most 2N-1 spans. */
static int rows(struct boxes *b, struct spans s, int k, uint64_t lo, uint64_t hi)
{
	uint64_t inner, first, last;
	int rc = 0;

	if (lo >= hi)
		return 0;
	if (k == b->local->nr)
		return emit(b, &s);
	inner = b->stride[k];
	first = lo / inner + (lo % inner != 0);
	last = hi / inner;
	if (first > last) {
		s.lo[k] = last;
		s.hi[k] = last + 1;
		return rows(b, s, k + 1, lo - last * inner, hi - last * inner);
	}
	if (lo < first * inner) {
		s.lo[k] = first - 1;
		s.hi[k] = first;
		rc = rows(b, s, k + 1, lo - (first - 1) * inner, inner);
	}
	if (rc == 0 && first < last) {
		struct spans mid = s;

		mid.lo[k] = first;
		mid.hi[k] = last;
		for (int j = k + 1; j < b->local->nr; j++) {
			mid.lo[j] = 0;
			mid.hi[j] = b->length[j];
		}
		rc = emit(b, &mid);
	}
	s.lo[k] = last;
	s.hi[k] = last + 1;
	return rc < 0 ? rc : rows(b, s, k + 1, 0, hi - last * inner);
}

static int boxes_init(struct boxes *b, uint64_t *ret_elements)
{
	uint64_t n = 1;

	for (int k = b->local->nr - 1; k >= 0; k--) {
		b->length[k] = runs_length(&b->local->dims[k]);
		b->stride[k] = n;
		if (!sc_mul_u64(n, b->length[k], &n))
			return sc_fail(b->err, SC_E_LIMIT, "'%s': too many elements", b->what);
	}
	*ret_elements = n;
	return 0;
}

/* Makes the boxes of the whole local tensor, or of its flat runs. */
static int make_boxes(struct boxes *b, uint64_t *ret_length)
{
	uint64_t elements = 0, at = 0;
	struct spans all = {0};
	int rc = boxes_init(b, &elements);

	*ret_length = elements;
	if (rc < 0)
		return rc;
	for (int k = 0; k < b->local->nr; k++)
		all.hi[k] = b->length[k];
	if (!b->local->is_flat)
		return elements ? emit(b, &all) : 0;
	for (uint32_t i = 0; i < b->local->flat.nr && rc == 0; i++) {
		const struct run *r = &b->local->flat.at[i];

		b->at = at;
		b->from = r->start;
		if (r->start != PADDING && r->length)
			rc = r->start == 0 && r->length == elements ? emit(b, &all)
				: rows(b, (struct spans){0}, 0, r->start, r->start + r->length);
		at += r->length;
	}
	*ret_length = at;
	return rc;
}

static int make_piece(struct sc_arena *arena, const struct local *l, const char *what, struct meta_piece *ret,
		      struct sc_err *err)
{
	struct boxes b = {.arena = arena, .local = l, .what = what, .err = err};
	uint64_t length = 0;
	int rc = make_boxes(&b, &length);

	if (rc == 0) {
		struct meta_box *boxes = sc_arena_array(arena, b.out.nr ? b.out.nr : 1, sizeof(*boxes));

		if (boxes && b.out.nr)
			memcpy(boxes, b.out.at, b.out.nr * sizeof(*boxes));
		*ret = (struct meta_piece){.nr_boxes = (uint32_t)b.out.nr, .boxes = boxes};
		ret->shape.nr = l->is_flat ? 1 : l->nr;
		for (int k = 0; k < ret->shape.nr; k++)
			ret->shape.dim[k] = l->is_flat ? length : b.length[k];
		if (!boxes)
			rc = sc_nomem(err);
	}
	sc_vec_done(&b.out);
	return rc;
}

int meta_slice(struct sc_arena *arena, const struct meta_topology *topo,
	       const struct meta_cut *cuts, uint8_t nr_cuts, const struct meta_shape *shape,
	       const uint32_t coords[SC_AXES_MAX], const char *what, struct meta_piece *ret,
	       struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct sc_arena temporary = SC_ARENA_IN(scratch);
	struct local l;
	int rc = whole(&temporary, shape, &l, err);

	for (int i = 0; rc == 0 && i < nr_cuts; i++)
		rc = apply(&temporary, topo, &cuts[i], shape,
			   cuts[i].flat ? 0 : meta_topology_index(topo, cuts[i].axes, coords), what, &l, err);
	rc = rc < 0 ? rc : make_piece(arena, &l, what, ret, err);
	sc_arena_done(&temporary);
	return rc;
}

int meta_run(struct sc_arena *arena, const struct meta_shape *shape, uint64_t first, uint64_t nr, const char *what,
	     struct meta_piece *ret, struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct sc_arena temporary = SC_ARENA_IN(scratch);
	struct local l;
	int rc = whole(&temporary, shape, &l, err);

	if (rc == 0)
		rc = flatten(&temporary, &l, what, err);
	if (rc == 0) {
		assert(l.flat.nr && first <= l.flat.at[0].length && nr <= l.flat.at[0].length - first);
		l.flat.at[0] = (struct run){first, nr};
		rc = make_piece(arena, &l, what, ret, err);
	}
	sc_arena_done(&temporary);
	return rc;
}

/* --- holders --- */

struct walk {
	struct sc_arena arena;
	const struct meta_topology *topo;
	const struct meta_cut *cuts;
	uint8_t nr_cuts;
	const struct meta_shape *shape;
	const uint64_t *off, *ext;
	const char *what;
	meta_holder_fn *each;
	void *arg;
	struct sc_err *err;
};

/* Range of the flattened local tensor between the region's first and last element. */
static int flat_span(struct walk *w, const struct local *l, uint64_t *lo, uint64_t *hi)
{
	struct boxes b = {.local = l, .what = w->what, .err = w->err};
	uint64_t length;
	int rc = make_boxes(&b, &length);

	*lo = UINT64_MAX;
	*hi = 0;
	for (size_t i = 0; rc == 0 && i < b.out.nr; i++) {
		struct meta_box m;
		uint64_t end;

		if (!meta_box_meet(&b.out.at[i], w->off, w->ext, &m))
			continue;
		end = m.at + 1;
		for (int k = 0; k < m.nr; k++)
			end += (m.ext[k] - 1) * m.stride[k];
		*lo = sc_min_u64(*lo, m.at);
		*hi = sc_max_u64(*hi, end);
	}
	sc_vec_done(&b.out);
	return rc;
}

/* Marks in `hit` the parts of a cut that meet [lo, hi) of the dimension. */
static int meet_parts(struct walk *w, const struct runs *runs, const struct meta_cut *cut,
		      uint64_t lo, uint64_t hi, uint8_t *hit, uint64_t d)
{
	struct runs padded, piece;
	uint64_t n, at = 0;
	int rc = padded_runs(&w->arena, runs, cut, d, &padded, w->err);

	if (rc < 0)
		return sc_wrap(w->err, rc, "'%s'", w->what);
	n = runs_length(&padded);
	for (uint32_t s = 0; s < cut->nr_sections; s++) {
		uint64_t m = n / cut->section_sum * cut->sections[s], p = 0;
		uint64_t c = sc_max_u64(m / d + (m % d != 0), 1);

		piece.nr = 0;
		piece.at = sc_arena_array(&w->arena, padded.nr + 1u, sizeof(*piece.at));
		if (!piece.at)
			return sc_nomem(w->err);
		take(&padded, at, at + m, &piece);
		for (uint32_t i = 0; i < piece.nr; i++) {
			const struct run *r = &piece.at[i];
			uint64_t a = sc_max_u64(lo, r->start), b = sc_min_u64(hi, r->start + r->length);

			if (r->start != PADDING && a < b)
				for (uint64_t x = (p + a - r->start) / c; x <= (p + b - r->start - 1) / c; x++)
					hit[x] = 1;
			p += r->length;
		}
		at += m;
	}
	return 0;
}

static int walk_cuts(struct walk *w, int i, struct local l, uint64_t lo, uint64_t hi,
		     uint32_t coords[SC_AXES_MAX])
{
	const struct meta_cut *cut = &w->cuts[i];
	const struct runs *runs = &l.flat;
	uint64_t d;
	uint8_t *hit;
	int k = 0, rc;

	if (i == w->nr_cuts)
		return w->each(w->arg, coords);
	if (cut->flat) {
		rc = flat_span(w, &l, &lo, &hi);
		if (rc < 0 || lo >= hi)
			return rc;
		rc = flatten(&w->arena, &l, w->what, w->err);
		return rc < 0 ? rc : walk_cuts(w, i + 1, l, lo, hi, coords);
	}
	d = meta_topology_degree(w->topo, cut->axes);
	hit = sc_arena_alloc(&w->arena, d);
	if (!hit)
		return sc_nomem(w->err);
	if (!l.is_flat) {
		rc = cut_dim(cut, w->shape, w->what, &k, w->err);
		if (rc < 0)
			return rc;
		runs = &l.dims[k];
	}
	rc = meet_parts(w, runs, cut, l.is_flat ? lo : w->off[k], l.is_flat ? hi : w->off[k] + w->ext[k],
			hit, d);
	for (uint64_t x = 0; rc == 0 && x < d; x++) {
		struct local next = l;

		if (!hit[x])
			continue;
		meta_topology_split(w->topo, cut->axes, (uint32_t)x, coords);
		rc = apply(&w->arena, w->topo, cut, w->shape, x, w->what, &next, w->err);
		if (rc == 0)
			rc = walk_cuts(w, i + 1, next, lo, hi, coords);
	}
	return rc;
}

int meta_holders(const struct meta_topology *topo, const struct meta_cut *cuts, uint8_t nr_cuts,
		 const struct meta_shape *shape, const uint64_t *off, const uint64_t *ext,
		 const char *what, meta_holder_fn *each, void *arg, struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct walk w = {.arena = SC_ARENA_IN(scratch), .topo = topo, .cuts = cuts, .nr_cuts = nr_cuts,
			 .shape = shape, .off = off, .ext = ext, .what = what, .each = each, .arg = arg,
			 .err = err};
	uint32_t coords[SC_AXES_MAX] = {0};
	struct local l;
	int rc = whole(&w.arena, shape, &l, err);

	if (rc == 0)
		rc = walk_cuts(&w, 0, l, 0, 0, coords);
	sc_arena_done(&w.arena);
	return rc;
}
