/* SPDX-License-Identifier: Apache-2.0 */
/* Padding: bytes of stored tensors that are in no logical one, and that a reshard does not keep. */
#include "reshard/verify/verify_i.h"

#include <inttypes.h>

#include "reshard/engine/engine.h"

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

/* Rows of a stored piece with bytes in no box that are not zero: a gather of the boxes has zeros there. */
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

	if (s->entry->group) /* what is between joined tensors is of no interest: frameworks leave anything there */
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
	*ret_report = rc == 0 ? sc_strdup(v.report.text ? v.report.text : "") : NULL;
	rs_verify_end(&v);
	return rc == 0 && !*ret_report ? sc_nomem(err) : rc;
}
