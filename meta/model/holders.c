/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the ranks that hold a region, from the region: cut by cut, the parts that meet it. */
#include "meta/model/slice_i.h"

struct walk {
	struct sc_arena arena;
	const struct meta_topology *topo;
	const struct meta_cutting *c;
	const struct meta_shape *shape;
	const uint64_t *off, *ext;
	const char *what;
	meta_holder_fn *each;
	void *arg;
	struct sc_err *err;
};

/* Finds the range of the flattened local tensor between the region's first and last element. */
static int flat_span(struct walk *w, const struct local *l, uint64_t *lo, uint64_t *hi)
{
	struct boxes b = {.local = l, .what = w->what, .err = w->err};
	uint64_t length;
	int rc = meta_local_boxes(&b, &length);

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
		      const struct meta_padding *rows, uint64_t lo, uint64_t hi, uint8_t *hit, uint64_t d)
{
	struct runs padded, piece;
	uint64_t n, at = 0;
	int rc = meta_runs_pad(&w->arena, runs, cut, d, rows, &padded, w->err);

	if (rc < 0)
		return sc_wrap(w->err, rc, "'%s'", w->what);
	n = meta_runs_length(&padded);
	for (uint32_t s = 0; s < cut->nr_sections; s++) {
		uint64_t m = n / cut->section_sum * cut->sections[s], p = 0;
		uint64_t k = meta_cut_parts(cut, s, d), c = sc_max_u64(meta_part_size(cut, m, k), 1);

		piece.nr = 0;
		piece.at = sc_arena_array(&w->arena, padded.nr + 1u, sizeof(*piece.at));
		if (!piece.at)
			return sc_nomem(w->err);
		meta_runs_take(&padded, at, at + m, &piece);
		for (uint32_t i = 0; i < piece.nr; i++) {
			const struct run *r = &piece.at[i];
			uint64_t a = sc_max_u64(lo, r->start);
			uint64_t b = r->start < ELSEWHERE ? sc_min_u64(hi, r->start + r->length) : 0;

			if (r->start < ELSEWHERE && a < b)
				for (uint64_t x = (p + a - r->start) / c; x <= (p + b - r->start - 1) / c; x++)
					hit[x * (d / k)] = 1;
			p += r->length;
		}
		at += m;
	}
	return 0;
}

static int walk_cuts(struct walk *w, int i, struct local l, uint64_t lo, uint64_t hi,
		     uint32_t coords[SC_AXES_MAX]);

/* Goes on with a member that is cut: its place in the joined tensor depends on the coordinates, which are known by
 * now. */
static int walk_join(struct walk *w, int i, struct local l, uint64_t lo, uint64_t hi, uint32_t coords[SC_AXES_MAX])
{
	const struct meta_lie *lie = w->c->lie(w->c->arg, coords);
	int rc = 0;

	if (lie && w->c->how == META_JOINED && !l.is_flat) {
		rc = flat_span(w, &l, &lo, &hi);
		if (rc < 0 || lo >= hi)
			return rc;
	}
	if (lie)
		rc = meta_local_join(&w->arena, w->c, w->shape, lie, w->what, &l, w->err);
	return rc < 0 || !lie ? rc : walk_cuts(w, i + 1, l, lo, hi, coords);
}

static int walk_cuts(struct walk *w, int i, struct local l, uint64_t lo, uint64_t hi,
		     uint32_t coords[SC_AXES_MAX])
{
	const bool joined = w->c->how == META_JOINED || w->c->how == META_JOINED_OVER;
	const struct meta_cut *cut;
	const struct runs *runs = &l.flat;
	uint64_t d;
	uint8_t *hit;
	int k = 0, rc;

	if (i == w->c->nr_cuts + (joined ? 1 + w->c->nr_more : 0))
		return w->each(w->arg, coords);
	if (i == w->c->nr_cuts)
		return walk_join(w, i, l, lo, hi, coords);
	cut = i < w->c->nr_cuts ? &w->c->cuts[i] : &w->c->more[i - w->c->nr_cuts - 1];
	if (cut->flat) {
		rc = flat_span(w, &l, &lo, &hi);
		if (rc < 0 || lo >= hi)
			return rc;
		rc = meta_local_flatten(&w->arena, &l, w->what, w->err);
		return rc < 0 ? rc : walk_cuts(w, i + 1, l, lo, hi, coords);
	}
	d = meta_topology_degree(w->topo, cut->axes);
	hit = sc_arena_alloc(&w->arena, d);
	if (!hit)
		return sc_nomem(w->err);
	if (!l.is_flat) {
		rc = meta_local_dim(cut, w->shape, w->what, &k, w->err);
		if (rc < 0)
			return rc;
		runs = &l.dims[k];
	}
	rc = meet_parts(w, runs, cut, meta_local_padding(&l, k), l.is_flat ? lo : w->off[k],
			l.is_flat ? hi : w->off[k] + w->ext[k], hit, d);
	for (uint64_t x = 0; rc == 0 && x < d; x++) {
		struct local next = l;

		if (!hit[x])
			continue;
		meta_topology_split(w->topo, cut->axes, (uint32_t)x, coords);
		rc = meta_local_cut(&w->arena, w->topo, cut, w->shape, x, w->what, &next, w->err);
		if (rc == 0)
			rc = walk_cuts(w, i + 1, next, lo, hi, coords);
	}
	return rc;
}

int meta_holders(const struct meta_topology *topo, const struct meta_cutting *cutting, const struct meta_shape *shape,
		 const uint64_t *off, const uint64_t *ext, const char *what, meta_holder_fn *each, void *arg,
		 struct sc_err *err)
{
	char scratch[1024] SC_SCRATCH;
	struct walk w = {.arena = SC_ARENA_IN(scratch), .topo = topo, .c = cutting, .shape = shape, .off = off,
			 .ext = ext, .what = what, .each = each, .arg = arg, .err = err};
	uint32_t coords[SC_AXES_MAX] = {0};
	struct local l;
	int rc = meta_local_whole(&w.arena, shape, cutting->padding, &l, err);

	if (rc == 0)
		rc = walk_cuts(&w, 0, l, 0, 0, coords);
	sc_arena_done(&w.arena);
	return rc;
}
