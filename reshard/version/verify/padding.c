/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at padding.  Rows of padding that are state (struct meta_padding) should look like padding; bytes of stored
 * tensors that are in no logical tensor should be zero, as a reshard does not keep them.
 */
#include "reshard/version/verify/verify_i.h"

#include <inttypes.h>
#include <string.h>

#include "reshard/engine/io/engine.h"

#define CHUNK (256u << 10)

static int read_gather(struct verify *v, const struct rs_mapped *m, const struct rs_gather *g, uint64_t at,
		       uint64_t bytes, unsigned char *to)
{
	int rc = rs_sources_need(m, g, at, bytes, NULL, v->err);

	if (rc < 0)
		return rc;
	rc = rs_sources_read(m, g, at, bytes, to, v->err);
	rs_sources_release(m, g, at, bytes);
	return rc;
}

/* --- rows that are state --- */

/* A tensor of padding in row-major order: [outer, rows, inner bytes]. */
struct padded {
	const struct rs_mapped *mapped;
	const struct rs_gather *g;
	uint64_t rows, inner, outer;
	bool equal;
};

/* Compares rows with the first one, `n` bytes of each, from `at` on. */
static int compare_rows(struct verify *v, struct padded *p, uint64_t at, uint64_t n)
{
	int rc = read_gather(v, p->mapped, p->g, at, n, v->mine);

	for (uint64_t r = 1; rc == 0 && p->equal && r < p->rows; r++) {
		rc = read_gather(v, p->mapped, p->g, at + r * p->inner, n, v->theirs);
		p->equal = rc == 0 && memcmp(v->mine, v->theirs, n) == 0;
	}
	return rc;
}

/* Compares the rows of many outer indexes, which are read at once. */
static int compare_short(struct verify *v, struct padded *p)
{
	const uint64_t each = p->rows * p->inner;
	int rc = 0;

	for (uint64_t o = 0, nr; rc == 0 && p->equal && o < p->outer; o += nr) {
		nr = sc_min_u64(CHUNK / each, p->outer - o);
		rc = read_gather(v, p->mapped, p->g, o * each, nr * each, v->theirs);
		/* all equal: what follows the first row is what is one row before */
		for (uint64_t i = 0; rc == 0 && p->equal && i < nr; i++)
			p->equal = memcmp(v->theirs + i * each, v->theirs + i * each + p->inner, each - p->inner) == 0;
	}
	return rc;
}

static int compare_all(struct verify *v, struct padded *p)
{
	int rc = 0;

	if (p->rows * p->inner <= CHUNK)
		return compare_short(v, p);
	for (uint64_t o = 0; rc == 0 && p->equal && o < p->outer; o++)
		for (uint64_t at = 0, n; rc == 0 && p->equal && at < p->inner; at += n) {
			n = sc_min_u64(p->inner - at, CHUNK);
			rc = compare_rows(v, p, o * p->rows * p->inner + at, n);
		}
	return rc;
}

/* Reports rows of padding that differ, as they may be real rows: padding is all zero, or was filled with one value.
 * That is no error, since frameworks may give padding random values, as Megatron does. */
static int look_at_rows(struct verify *v, const struct meta_tensor *t)
{
	struct rs_origins o = rs_origins_of(v->s, &v->whole);
	const struct rs_nodes one_node = {0};
	const struct meta_tensor *behind = meta_state_before_padding(&v->set->state, t);
	struct meta_box all = {.nr = t->shape.nr};
	struct padded p = {.inner = meta_dtype_bits(t->dtype) / 8, .outer = 1, .equal = true};
	struct rs_sources sources = {0};
	struct rs_gather g = {0};
	struct rs_mapped mapped = {0};
	struct sc_arena arena = {0};
	uint64_t stride = 1;
	int dim = 0, rc;

	(void)meta_tensor_padding(t->name, &dim);
	for (int k = t->shape.nr - 1; k >= 0; k--) {
		all.ext[k] = t->shape.dim[k];
		all.stride[k] = stride;
		stride *= all.ext[k];
		p.inner *= k > dim ? all.ext[k] : 1;
		p.outer *= k < dim ? all.ext[k] : 1;
	}
	p.rows = t->shape.dim[dim];
	if (!meta_tensor_bytes(t->dtype, &t->shape, &g.bytes) || !g.bytes || p.rows < 2)
		return 0;
	rc = rs_plan_box(v->set->view, t->key, &all, &one_node, 0, 0, &g, &sources, v->err);
	rs_gather_finish(&g);
	if (rc == 0)
		rc = rs_sources_open(&sources, &g, 1, &o, &arena, &mapped, v->err);
	p.mapped = &mapped;
	p.g = &g;
	if (rc == 0)
		rc = compare_all(v, &p);
	if (rc == 0 && !p.equal && behind)
		rs_verify_line(v, "padding: '%s': the %" PRIu64 " rows of padding from row %" PRIu64 " of dimension %d "
			       "on are neither all zero nor all equal; they are kept as padding, but if some are "
			       "real, the layout says too small a size (vocab=)", behind->key, p.rows,
			       behind->shape.dim[dim], dim);
	rs_sources_close(&mapped);
	rs_gather_done(&g);
	rs_sources_done(&sources);
	sc_arena_done(&arena);
	return rc;
}

/* --- bytes that are none --- */

/* Counts the rows of a stored piece that have bytes in no box which are not zero; a gather of the boxes has zeros
 * there. */
static int count_padding(struct verify *v, const struct meta_stored *s, const struct rs_mapped *own, uint64_t *ret)
{
	const struct meta_tensor *t = &v->set->state.tensors[s->entry->tensor];
	unsigned bytes = meta_dtype_bits(t->dtype) / 8;
	struct meta_box all = {.nr = 1, .stride = {1}};
	struct rs_gather boxes = {0}, whole = {0};
	uint64_t row = bytes, last_row = UINT64_MAX, n;
	int rc = 0;

	*ret = 0;
	if (!bytes || !meta_tensor_bytes(t->dtype, &s->piece.shape, &all.ext[0]))
		return 0;
	boxes.bytes = whole.bytes = all.ext[0];
	for (int k = 1; k < s->piece.shape.nr; k++)
		row *= s->piece.shape.dim[k];
	if (rs_gather_add(&whole, 0, &all, &all, 1) < 0)
		rc = sc_nomem(v->err);
	for (uint32_t i = 0; i < s->piece.nr_boxes && rc == 0; i++)
		if (rs_gather_add(&boxes, 0, &s->piece.boxes[i], &s->piece.boxes[i], bytes) < 0)
			rc = sc_nomem(v->err);
	rs_gather_finish(&boxes);
	rs_sources_reorder(own, &boxes);
	rs_sources_reorder(own, &whole);
	for (uint64_t at = 0; rc == 0 && at < boxes.bytes; at += n) {
		uint32_t source;
		uint64_t from;

		n = rs_gather_run(&boxes, at, boxes.bytes - at, &source, &from);
		if (n >= CHUNK)
			continue; /* no padding for long */
		n = sc_min_u64(boxes.bytes - at, CHUNK);
		rc = read_gather(v, own, &whole, at, n, v->mine);
		if (rc == 0)
			rc = read_gather(v, own, &boxes, at, n, v->theirs);
		for (uint64_t i = 0; rc == 0 && i < n; i++)
			if (v->mine[i] != v->theirs[i] && (at + i) / row != last_row) {
				last_row = (at + i) / row;
				(*ret)++;
			}
	}
	rs_gather_done(&boxes);
	rs_gather_done(&whole);
	return rc;
}

static bool is_first_replica(const struct verify *v, const struct meta_entry *e, uint32_t rank)
{
	uint32_t coords[SC_AXES_MAX];

	meta_topology_coords(v->set->view->topo, rank, coords);
	return meta_entry_is_first(v->set->view, e, coords);
}

static bool has_padding(const struct meta_stored *s)
{
	uint64_t n = 0, all;

	/* what is between joined tensors is of no interest: frameworks leave anything there */
	if (s->entry->group || s->entry->padding || s->entry->behind)
		return false;
	for (uint32_t i = 0; i < s->piece.nr_boxes; i++)
		n += meta_box_elements(&s->piece.boxes[i]);
	return meta_shape_elements(&s->piece.shape, &all) && n < all;
}

static int look_at_padding(struct verify *v, uint32_t rank, const struct meta_stored *s)
{
	struct own own = {0};
	uint64_t rows = 0;
	int rc;

	if (!has_padding(s) || !is_first_replica(v, s->entry, rank))
		return 0;
	rc = rs_verify_open_own(v, rank, s, &own);
	if (rc == 0)
		rc = count_padding(v, s, &own.mapped, &rows);
	if (rc == 0 && rows)
		rs_verify_line(v, "padding: rank %u '%s:%s': %" PRIu64 " rows of padding are not zero; they are in no "
		     "logical tensor and will be lost in a reshard", rank, s->file, s->name, rows);
	rs_verify_close_own(&own);
	return rc;
}

int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err)
{
	struct verify v = {.s = s, .set = set, .err = err};
	int rc;

	rs_verify_begin(&v);
	v.mine = sc_sys.alloc(CHUNK);
	v.theirs = sc_sys.alloc(CHUNK);
	rc = v.mine && v.theirs ? rs_verify_each(&v, look_at_padding) : sc_nomem(err);
	for (uint32_t t = 0; rc == 0 && t < set->state.nr; t++)
		if (meta_tensor_padding(set->state.tensors[t].name, NULL))
			rc = look_at_rows(&v, &set->state.tensors[t]);
	*ret_report = rc == 0 ? sc_strdup(v.report.text ? v.report.text : "") : NULL;
	rs_verify_end(&v);
	return rc == 0 && !*ret_report ? sc_nomem(err) : rc;
}
