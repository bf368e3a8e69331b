/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/plan/placed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Orders boxes by their first elements, then by their extents. */
static int by_box(const void *a, const void *b)
{
	const struct rs_placed_box *x = a, *y = b;

	for (int k = 0; k < x->box.nr; k++)
		if (x->box.off[k] != y->box.off[k])
			return x->box.off[k] < y->box.off[k] ? -1 : 1;
	for (int k = 0; k < x->box.nr; k++)
		if (x->box.ext[k] != y->box.ext[k])
			return x->box.ext[k] < y->box.ext[k] ? -1 : 1;
	return 0;
}

static bool is_same(const struct rs_placed_box *a, const struct rs_placed_box *b)
{
	return meta_box_equal(&a->box, &b->box) && a->place.id == b->place.id && a->place.at == b->place.at;
}

static bool is_inside(const struct meta_box *b, const struct meta_shape *shape)
{
	uint64_t end;

	for (int k = 0; k < b->nr; k++)
		if (!sc_add_u64(b->off[k], b->ext[k], &end) || end > shape->dim[k])
			return false;
	return b->nr == shape->nr;
}

/* Refuses boxes that overlap.  A box of the sorted list can only meet boxes behind it that begin before it ends. */
static int refuse_overlap(const struct rs_placed_tensor *p, const struct meta_tensor *t, uint64_t *budget,
			  struct sc_err *err)
{
	for (uint64_t i = 0; i < p->nr; i++) {
		const struct meta_box *a = &p->boxes[i].box;

		for (uint64_t j = i + 1; j < p->nr; j++) {
			const struct meta_box *b = &p->boxes[j].box;
			struct meta_box both;

			if (a->nr && b->off[0] >= a->off[0] + a->ext[0])
				break;
			if (!(*budget)--)
				return sc_fail(err, SC_E_LIMIT, "'%s' has too many pieces to compare them all", t->key);
			if (meta_box_meet(a, b->off, b->ext, &both))
				return sc_fail(err, SC_E_FORMAT, "'%s': a piece in '%s' and one in '%s' overlap",
					       t->key, p->boxes[i].file, p->boxes[j].file);
		}
	}
	return 0;
}

int rs_placed_check(struct rs_placed_tensor *p, const struct meta_tensor *t, uint64_t *budget, struct sc_err *err)
{
	uint64_t all, held = 0, nr = 0;
	int rc;

	if (!meta_shape_elements(&t->shape, &all))
		return sc_fail(err, SC_E_FORMAT, "'%s': its size overflows 64 bits", t->key);
	for (uint64_t i = 0; i < p->nr; i++)
		if (!is_inside(&p->boxes[i].box, &t->shape))
			return sc_fail(err, SC_E_FORMAT, "'%s': a piece in '%s' is outside of the tensor", t->key,
				       p->boxes[i].file);
	if (p->nr)
		qsort(p->boxes, p->nr, sizeof(*p->boxes), by_box);
	for (uint64_t i = 0; i < p->nr; i++)
		if (meta_box_elements(&p->boxes[i].box) && !(nr && is_same(&p->boxes[nr - 1], &p->boxes[i])))
			p->boxes[nr++] = p->boxes[i];
	p->nr = nr;
	rc = refuse_overlap(p, t, budget, err);
	for (uint64_t i = 0; i < nr; i++)
		held += meta_box_elements(&p->boxes[i].box); /* disjoint parts of `all`: no overflow */
	if (rc == 0 && held != all)
		return sc_fail(err, SC_E_FORMAT, "'%s': the pieces hold %" PRIu64 " of its %" PRIu64 " elements",
			       t->key, held, all);
	return rc;
}

int rs_plan_placed(const struct rs_placed_tensor *p, const struct meta_tensor *t, const struct meta_box *target,
		   struct rs_gather *g, struct rs_sources *sources, struct sc_err *err)
{
	const unsigned bytes = meta_dtype_bits(t->dtype) / 8;

	for (uint64_t i = 0; i < p->nr; i++) {
		const struct rs_placed_box *b = &p->boxes[i];
		struct rs_source s = {.rank = RS_NO_RANK, .file = b->file, .name = t->name, .place = b->place};
		struct meta_box both;

		if (target->nr && b->box.off[0] >= target->off[0] + target->ext[0])
			break;
		if (!meta_box_meet(&b->box, target->off, target->ext, &both))
			continue;
		if (sc_vec_push(sources, s) < 0 ||
		    rs_gather_add(g, (uint32_t)sources->nr - 1, target, &both, bytes) < 0)
			return sc_nomem(err);
		rs_gather_rows(g, &t->shape, &both);
	}
	return 0;
}
