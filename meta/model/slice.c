/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Per dimension we keep runs (start in the logical dimension or padding, length), at first
 * [(0, n)].  pad appends a run; a cut splits the runs at section borders, takes a part of each
 * section and joins these.  A stored tensor's shape is the runs' lengths; its boxes are the
 * products of one run per dimension.  `flat` switches to runs over the flattened local tensor,
 * where a range is at most 2N-1 boxes, each met with the grid of runs.
 */
#include "meta/model/slice_i.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

uint64_t meta_runs_length(const struct runs *runs)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < runs->nr; i++)
		n += runs->at[i].length;
	return n;
}

static uint64_t divide_up(uint64_t n, uint64_t d)
{
	return n / d + (n % d != 0);
}

uint64_t meta_part_size(const struct meta_cut *cut, uint64_t n, uint64_t d)
{
	return cut->unit ? divide_up(divide_up(n, cut->unit), d) * cut->unit : divide_up(n, d);
}

/* Gives part i of d parts of n, as torch.chunk: the last one is shorter or empty. */
static void part(const struct meta_cut *cut, uint64_t n, uint64_t d, uint64_t i, uint64_t *lo, uint64_t *hi)
{
	uint64_t c = meta_part_size(cut, n, d);

	*lo = sc_min_u64(i * c, n);
	*hi = sc_min_u64(i * c + c, n);
}

/* Appends to `out` the part [lo, hi) of a concatenation of runs. */
void meta_runs_take(const struct runs *runs, uint64_t lo, uint64_t hi, struct runs *out)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < runs->nr; i++) {
		const struct run *r = &runs->at[i];
		uint64_t a = sc_max_u64(lo, at), b = sc_min_u64(hi, at + r->length);

		if (a < b)
			out->at[out->nr++] = (struct run){
				r->start >= ELSEWHERE ? r->start : r->start + a - at, b - a, r->copy};
		at += r->length;
	}
}

/* Computes the length after padding for a cut in d parts; false on overflow. */
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
int meta_runs_pad(struct sc_arena *arena, const struct runs *runs, const struct meta_cut *cut, uint64_t d,
		  const struct meta_padding *rows, struct runs *ret, struct sc_err *err)
{
	uint64_t n = meta_runs_length(runs), want, kept = 0, more = 0;

	if (!padded_length(cut, n, d, &want))
		return sc_fail(err, SC_E_LIMIT, "the padded size overflows 64 bits");
	if (rows) {
		kept = sc_min_u64(want - n, rows->rows);
		more = rows->once ? 0 : want - n - kept;
	}
	if (more > SC_BOXES_MAX)
		return sc_fail(err, SC_E_LIMIT, "the last row of padding would be repeated %llu times, at most %u",
			       (unsigned long long)more, SC_BOXES_MAX);
	ret->at = sc_arena_array(arena, runs->nr + 2u + more, sizeof(*ret->at));
	if (!ret->at)
		return sc_nomem(err);
	if (runs->nr)
		memcpy(ret->at, runs->at, runs->nr * sizeof(*ret->at));
	ret->nr = runs->nr;
	if (kept)
		ret->at[ret->nr++] = (struct run){0, kept, false};
	for (uint64_t i = 0; i < more; i++)
		ret->at[ret->nr++] = (struct run){rows->rows - 1, 1, true};
	if (want - n > kept + more)
		ret->at[ret->nr++] = (struct run){PADDING, want - n - kept - more, false};
	return 0;
}

const struct meta_padding *meta_local_padding(const struct local *l, int dim)
{
	return l->padding && !l->is_flat && l->padding->dim == dim ? l->padding : NULL;
}

uint64_t meta_cuts_padding(const struct meta_topology *topo, const struct meta_cut *cuts, uint8_t nr_cuts,
			   const struct meta_shape *shape, int *ret_dim)
{
	uint64_t rows = 0;

	for (int i = 0; i < nr_cuts && !cuts[i].flat; i++) {
		const int dim = cuts[i].dim < 0 ? cuts[i].dim + shape->nr : cuts[i].dim;
		uint64_t from, to;

		if (dim < 0 || dim >= shape->nr) /* refused where it is cut */
			return 0;
		from = topo || !cuts[i].size ? shape->dim[dim] : cuts[i].size;
		to = shape->dim[dim];
		if (topo && !padded_length(&cuts[i], from, meta_topology_degree(topo, cuts[i].axes), &to))
			return 0;
		if (!cuts[i].pad || to <= from)
			continue;
		if (rows)
			return 0;
		rows = to - from;
		*ret_dim = dim;
	}
	return rows;
}

uint64_t meta_cut_parts(const struct meta_cut *cut, uint32_t section, uint64_t d)
{
	const uint32_t upto = cut->upto ? cut->upto[cut->nr_upto == 1 ? 0 : section] : 0;

	return upto ? sc_min_u64(upto, d) : d;
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
		    const struct runs *runs, const struct meta_cut *cut, const struct meta_padding *rows, uint64_t i,
		    struct runs *ret, struct sc_err *err)
{
	uint64_t d = meta_topology_degree(topo, cut->axes), n, at = 0;
	struct runs padded;
	int rc = meta_runs_pad(arena, runs, cut, d, rows, &padded, err);

	if (rc < 0)
		return rc;
	n = meta_runs_length(&padded);
	if (n % cut->section_sum)
		return refuse_sections(cut, n, err);
	ret->nr = 0;
	ret->at = sc_arena_array(arena, (size_t)padded.nr + 2u * cut->nr_sections, sizeof(*ret->at));
	if (!ret->at)
		return sc_nomem(err);
	for (uint32_t s = 0; s < cut->nr_sections; s++) {
		uint64_t m = n / cut->section_sum * cut->sections[s], k = meta_cut_parts(cut, s, d), lo, hi;
		uint32_t from = ret->nr;

		if (d % k)
			return sc_fail(err, SC_E_STATE, "%s=%llu does not divide by upto=%llu", cut->axes_text,
				       (unsigned long long)d, (unsigned long long)k);
		if (!cut->chunk && m % k)
			return sc_fail(err, SC_E_STATE, "%llu does not divide by %s=%llu%s; take a degree that divides "
				       "it, or a rule with 'chunk' for uneven parts, where the framework makes these",
				       (unsigned long long)m, cut->axes_text, (unsigned long long)k,
				       k < d ? " (upto)" : "");
		part(cut, m, k, i / (d / k), &lo, &hi);
		meta_runs_take(&padded, at + lo, at + hi, ret);
		for (; from < ret->nr; from++)
			ret->at[from].copy |= i % (d / k) != 0;
		at += m;
	}
	return 0;
}

int meta_local_dim(const struct meta_cut *cut, const struct meta_shape *shape, const char *what,
		   int *ret, struct sc_err *err)
{
	if (cut->dim < -(int)shape->nr || cut->dim >= (int)shape->nr)
		return sc_fail(err, SC_E_STATE, "'%s': the rule cuts dimension %d, but the tensor has %d dimensions",
			what,
			       cut->dim, shape->nr);
	*ret = meta_cut_dim(cut, shape);
	return 0;
}

int meta_local_whole(struct sc_arena *arena, const struct meta_shape *shape, const struct meta_padding *padding,
		     struct local *ret, struct sc_err *err)
{
	*ret = (struct local){.nr = shape->nr, .padding = padding};
	for (int k = 0; k < shape->nr; k++) {
		ret->dims[k].at = sc_arena_alloc(arena, sizeof(struct run));
		if (!ret->dims[k].at)
			return sc_nomem(err);
		ret->dims[k].at[0] = (struct run){meta_local_padding(ret, k) ? ELSEWHERE : 0, shape->dim[k], false};
		ret->dims[k].nr = shape->dim[k] > 0;
	}
	return 0;
}

int meta_local_flatten(struct sc_arena *arena, struct local *l, const char *what, struct sc_err *err)
{
	uint64_t n = 1;

	for (int k = 0; k < l->nr; k++)
		if (!sc_mul_u64(n, meta_runs_length(&l->dims[k]), &n))
			return sc_fail(err, SC_E_LIMIT, "'%s': too many elements", what);
	l->is_flat = true;
	l->flat.at = sc_arena_alloc(arena, sizeof(struct run));
	if (!l->flat.at)
		return sc_nomem(err);
	l->flat.at[0] = (struct run){0, n, false};
	l->flat.nr = n > 0;
	return 0;
}

/* Applies one cut to what the cuts before have left to the rank; the rank gets part `index`. */
int meta_local_cut(struct sc_arena *arena, const struct meta_topology *topo,
		 const struct meta_cut *cut, const struct meta_shape *shape, uint64_t index,
		 const char *what, struct local *l, struct sc_err *err)
{
	struct runs *runs = &l->flat, out;
	int k = 0, rc;

	if (cut->flat)
		return meta_local_flatten(arena, l, what, err);
	if (!l->is_flat) {
		rc = meta_local_dim(cut, shape, what, &k, err);
		if (rc < 0)
			return rc;
		runs = &l->dims[k];
	}
	rc = cut_runs(arena, topo, runs, cut, meta_local_padding(l, k), index, &out, err);
	if (rc == 0)
		*runs = out;
	else if (l->is_flat)
		return sc_wrap(err, rc, "'%s' (flat)", what);
	return rc < 0 ? sc_wrap(err, rc, "'%s' dimension %d", what, k) : 0;
}

/* --- joined tensors --- */

/* Makes what a member sees of a joined tensor, which goes on in front of the member and behind it. */
int meta_local_join(struct sc_arena *arena, const struct meta_cutting *c, const struct meta_shape *shape,
		    const struct meta_lie *lie, const char *what, struct local *l, struct sc_err *err)
{
	struct runs *runs = &l->flat, out = {0};
	struct meta_cut over = {.dim = c->dim};
	int k = 0, rc = 0;

	if (c->how == META_JOINED_OVER && l->is_flat)
		return sc_fail(err, SC_E_STATE, "'%s' is flat, so it is joined over no dimension", what);
	if (c->how == META_JOINED_OVER)
		rc = meta_local_dim(&over, shape, what, &k, err);
	else if (!l->is_flat)
		rc = meta_local_flatten(arena, l, what, err);
	if (rc < 0)
		return rc;
	if (c->how == META_JOINED_OVER)
		runs = &l->dims[k];
	assert(lie->before <= lie->total && meta_runs_length(runs) <= lie->total - lie->before);
	out.at = sc_arena_array(arena, runs->nr + 2u, sizeof(*out.at));
	if (!out.at)
		return sc_nomem(err);
	if (lie->before)
		out.at[out.nr++] = (struct run){ELSEWHERE, lie->before, false};
	for (uint32_t i = 0; i < runs->nr; i++) {
		out.at[out.nr] = runs->at[i];
		if (runs->at[i].start == PADDING) /* the member's own, which `strip` leaves */
			out.at[out.nr].start = ELSEWHERE;
		out.nr++;
	}
	if (meta_runs_length(&out) < lie->total)
		out.at[out.nr++] = (struct run){ELSEWHERE, lie->total - meta_runs_length(&out), false};
	*runs = out;
	l->padding = NULL; /* what the cuts fill from here on is behind the joined tensor */
	return 0;
}

/* Cuts a joined tensor, as the member sees it. */
static int apply_join(struct sc_arena *arena, const struct meta_topology *topo, const struct meta_cutting *c,
		      const struct meta_shape *shape, const uint32_t coords[SC_AXES_MAX], const char *what,
		      struct local *l, struct sc_err *err)
{
	const struct meta_lie *lie = c->lie(c->arg, coords);
	struct runs *runs;
	int rc = lie ? meta_local_join(arena, c, shape, lie, what, l, err)
		     : sc_fail(err, SC_E_STATE, "'%s' is not on this rank", what);

	for (int i = 0; rc == 0 && i < c->nr_more; i++)
		rc = meta_local_cut(arena, topo, &c->more[i], shape,
				    meta_topology_index(topo, c->more[i].axes, coords), what, l, err);
	if (rc < 0 || !c->strip)
		return rc;
	runs = l->is_flat ? &l->flat : &l->dims[c->dim < 0 ? c->dim + shape->nr : c->dim];
	while (runs->nr && runs->at[runs->nr - 1].start == PADDING)
		runs->nr--;
	return 0;
}

/* Puts the layer's piece where it lies among the others'. */
static int stack(const struct meta_lie *lie, const char *what, struct meta_piece *p, struct sc_err *err)
{
	uint64_t elements = 0, end;

	if (!lie || p->shape.nr == SC_DIMS_MAX)
		return sc_fail(err, SC_E_STATE, "'%s': layers of %d dimensions cannot be stacked", what,
			       p->shape.nr);
	if (!meta_shape_elements(&p->shape, &elements) || !sc_mul_u64(elements, lie->total, &end))
		return sc_fail(err, SC_E_LIMIT, "'%s': too many elements", what);
	memmove(&p->shape.dim[1], &p->shape.dim[0], p->shape.nr++ * sizeof(*p->shape.dim));
	p->shape.dim[0] = lie->total;
	for (uint32_t i = 0; i < p->nr_boxes; i++)
		p->boxes[i].at += lie->before * elements;
	return 0;
}

/* --- boxes --- */

struct spans {
	uint64_t lo[SC_DIMS_MAX], hi[SC_DIMS_MAX];
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

		if (lo < hi && r->start < ELSEWHERE) {
			struct meta_box inner = box;

			inner.copy |= r->copy;

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
	struct meta_box box = {.nr = b->local->nr, .copy = b->copy};

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
		b->length[k] = meta_runs_length(&b->local->dims[k]);
		b->stride[k] = n;
		if (!sc_mul_u64(n, b->length[k], &n))
			return sc_fail(b->err, SC_E_LIMIT, "'%s': too many elements", b->what);
	}
	*ret_elements = n;
	return 0;
}

/* Makes the boxes of the whole local tensor, or of its flat runs. */
int meta_local_boxes(struct boxes *b, uint64_t *ret_length)
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
		b->copy = r->copy;
		if (r->start < ELSEWHERE && r->length)
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
	int rc = meta_local_boxes(&b, &length);

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

int meta_slice(struct sc_arena *arena, const struct meta_topology *topo, const struct meta_cutting *c,
	       const struct meta_shape *shape, const uint32_t coords[SC_AXES_MAX], const char *what,
	       struct meta_piece *ret, struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct sc_arena temporary = SC_ARENA_IN(scratch);
	struct local l;
	int rc = meta_local_whole(&temporary, shape, c->padding, &l, err);

	for (int i = 0; rc == 0 && i < c->nr_cuts; i++)
		rc = meta_local_cut(&temporary, topo, &c->cuts[i], shape,
			   c->cuts[i].flat ? 0 : meta_topology_index(topo, c->cuts[i].axes, coords), what, &l, err);
	if (rc == 0 && (c->how == META_JOINED || c->how == META_JOINED_OVER))
		rc = apply_join(&temporary, topo, c, shape, coords, what, &l, err);
	rc = rc < 0 ? rc : make_piece(arena, &l, what, ret, err);
	if (rc == 0 && c->how == META_STACKED)
		rc = stack(c->lie(c->arg, coords), what, ret, err);
	sc_arena_done(&temporary);
	return rc;
}

int meta_run(struct sc_arena *arena, const struct meta_shape *shape, uint64_t first, uint64_t nr, const char *what,
	     struct meta_piece *ret, struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct sc_arena temporary = SC_ARENA_IN(scratch);
	struct local l;
	int rc = meta_local_whole(&temporary, shape, NULL, &l, err);

	if (rc == 0)
		rc = meta_local_flatten(&temporary, &l, what, err);
	if (rc == 0) {
		assert(l.flat.nr && first <= l.flat.at[0].length && nr <= l.flat.at[0].length - first);
		l.flat.at[0] = (struct run){first, nr, false};
		rc = make_piece(arena, &l, what, ret, err);
	}
	sc_arena_done(&temporary);
	return rc;
}
