/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts that are none.  A layout says that a tensor is cut by an axis, but a framework left it whole on each rank (a
 * vocabulary that is not parallelized, a key head that all ranks share): joined, the copies would be a tensor of twice
 * the size, and nothing else would tell.  Real parts differ, nearly always in their first bytes, so few bytes are read.
 *
 *     parts along the axis      0 = 1 = ... = d-1, in every byte, for all other cuts of the tensor:      refused
 *     bytes of a layer          `_extra_state`: pickles, of which two in a row are none:                 refused
 *     not judged                one element repeated (zeros, ones); less than 64 bytes; parts of different shapes, or
 *                               that lie in different orders of their dimensions
 */
#include "reshard/items/items_i.h"

#include <inttypes.h>
#include <string.h>

#define BYTES_MIN 64
#define FIRST 4096u
#define CHUNK (256u << 10)

struct suspicion {
	struct commit *c;
	const struct rs_set *set;
	const struct meta_entry *entry;
	struct sc_arena arena;
	unsigned char *mine, *theirs;
	unsigned element;		/* bytes */
};

static int find_part(struct suspicion *s, const uint32_t coords[SC_AXES_MAX], struct part *ret)
{
	return rs_commit_part(s->c, s->set->view, s->entry, coords, &s->arena, ret);
}

/* 1: the same bytes, 0: not, or an error.  *constant: the bytes that were read are one element, repeated. */
static int is_equal(struct suspicion *s, const struct part *a, const struct part *b, bool *constant)
{
	const uint64_t bytes = rs_found_bytes(a->at);
	unsigned char first[16] = {0};
	uint64_t n;

	*constant = true;
	for (uint64_t at = 0; at < bytes; at += n) {
		int rc;

		n = sc_min_u64(bytes - at, at ? CHUNK : FIRST);
		rc = rs_commit_bytes(a->item, a->at->at + at, n, s->mine, s->c->err);
		if (rc == 0)
			rc = rs_commit_bytes(b->item, b->at->at + at, n, s->theirs, s->c->err);
		if (rc < 0)
			return rc;
		if (memcmp(s->mine, s->theirs, n) != 0)
			return 0;
		if (at == 0)
			memcpy(first, s->mine, s->element);
		*constant &= memcmp(s->mine, first, s->element) == 0 &&
			     memcmp(s->mine, s->mine + s->element, n - s->element) == 0;
	}
	return 1;
}

static bool lie_alike(const struct rs_found_tensor *a, const struct rs_found_tensor *b)
{
	return !a->stride == !b->stride && meta_shape_equal(&a->shape, &b->shape) &&
	       (!a->stride || memcmp(a->stride, b->stride, a->shape.nr * sizeof(*a->stride)) == 0);
}

/* The same of all parts along an axis, at these indexes of the other ones. */
static int are_equal(struct suspicion *s, uint32_t coords[SC_AXES_MAX], int axis, bool *constant)
{
	struct part first, other;
	bool is_constant = true;
	int rc;

	coords[axis] = 0;
	rc = find_part(s, coords, &first);
	if (rc == 0)
		rc = first.at && rs_found_bytes(first.at) >= BYTES_MIN;
	while (rc > 0 && ++coords[axis] < s->set->view->topo->degree[axis]) {
		rc = find_part(s, coords, &other);
		if (rc == 0)
			rc = other.at && other.at != first.at && lie_alike(first.at, other.at);
		if (rc > 0)
			rc = is_equal(s, &first, &other, &is_constant);
	}
	coords[axis] = 0;
	*constant &= is_constant;
	return rc;
}

/* Steps to the next indexes of some axes; false: those were the last. */
static bool step(const struct meta_topology *topo, uint32_t axes, uint32_t coords[SC_AXES_MAX])
{
	for (int i = 0; i < topo->nr_axes; i++) {
		if (!(axes & 1u << i))
			continue;
		if (++coords[i] < topo->degree[i])
			return true;
		coords[i] = 0;
	}
	return false;
}

/* What torch calls the state of a layer that is no parameter, with a number if there are several. */
static bool is_opaque(const struct meta_tensor *t)
{
	static const char end[] = "_extra_state";
	size_t n = strlen(t->name);

	while (n && t->name[n - 1] >= '0' && t->name[n - 1] <= '9')
		n--;
	return t->dtype == META_DTYPE_U8 && n >= sizeof(end) - 1 &&
	       memcmp(t->name + n - (sizeof(end) - 1), end, sizeof(end) - 1) == 0;
}

static int refuse(struct suspicion *s, uint32_t coords[SC_AXES_MAX], int axis)
{
	const struct meta_topology *topo = s->set->view->topo;
	const struct meta_tensor *t = &s->set->state.tensors[s->entry->tensor];
	const char *name = s->set->layout->axes.name[axis];
	char part[128], whole[128];
	struct part first, last;
	int rc = find_part(s, coords, &first);

	coords[axis] = topo->degree[axis] - 1;
	if (rc == 0)
		rc = find_part(s, coords, &last);
	coords[axis] = 0;
	if (rc < 0)
		return rc;
	(void)meta_shape_text(&t->shape, whole, sizeof(whole));
	(void)meta_shape_text(&first.at->shape, part, sizeof(part));
	if (is_opaque(t))
		return sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is bytes that only a layer can read, but the layout "
			       "cuts it by %s, so that ranks %u to %u wrote parts %s of one tensor %s: write a rule "
			       "with 'copy' for it, or with each=%s if it is not the same on each rank; if these are "
			       "parts, write suspicious=accept to config", first.file, first.name, name, first.rank,
			       last.rank, part, whole, name);
	return sc_fail(s->c->err, SC_E_STATE, "'%s:%s' is cut by %s in the layout, but ranks %u to %u wrote equal "
		       "parts %s, which would make one tensor %s: if each rank has the whole tensor, write a rule with "
		       "'copy' for it; if these are parts, write suspicious=accept to config", first.file, first.name,
		       name, first.rank, last.rank, part, whole);
}

/* By `upto` all ranks of an axis may hold the same. */
static bool may_be_equal(const struct meta_entry *e, const struct meta_topology *topo, int axis)
{
	const struct meta_rule *r = e->rule;

	for (int i = 0; i < r->nr_cuts; i++)
		for (uint32_t s = 0; r->cuts[i].axes & 1u << axis && s < r->cuts[i].nr_sections; s++)
			if (meta_cut_parts(&r->cuts[i], s, topo->degree[axis]) > 1)
				return false;
	return e->rule->cut_axes & 1u << axis;
}

/* Judges the cuts of an entry by one axis. */
static int judge(struct suspicion *s, int axis, uint32_t others)
{
	const struct meta_topology *topo = s->set->view->topo;
	uint32_t coords[SC_AXES_MAX];
	bool constant = true;
	struct part first;
	int rc;

	rs_commit_coords(s->set->view, s->entry, coords);
	if (is_opaque(&s->set->state.tensors[s->entry->tensor])) {
		rc = find_part(s, coords, &first);
		return rc == 0 && first.at ? refuse(s, coords, axis) : rc;
	}
	do
		rc = are_equal(s, coords, axis, &constant);
	while (rc > 0 && step(topo, others, coords));
	return rc < 0 ? rc : rc == 0 || constant ? 0 : refuse(s, coords, axis);
}

static int judge_entry(struct suspicion *s)
{
	const struct meta_topology *topo = s->set->view->topo;
	uint32_t axes = 0;
	int rc = 0;

	for (int i = 0; i < topo->nr_axes; i++)
		if (meta_entry_cut_axes(s->entry) & 1u << i && s->entry->fixed[i] == META_FREE && topo->degree[i] > 1 &&
		    !may_be_equal(s->entry, topo, i))
			axes |= 1u << i;
	for (int i = 0; i < topo->nr_axes && rc == 0; i++)
		if (axes & 1u << i)
			rc = judge(s, i, axes & ~(1u << i));
	return rc;
}

int rs_commit_suspect(struct commit *c, const struct rs_set *set)
{
	struct suspicion s = {.c = c, .set = set, .mine = sc_sys.alloc(CHUNK), .theirs = sc_sys.alloc(CHUNK)};
	int rc = s.mine && s.theirs ? 0 : sc_nomem(c->err);

	for (uint32_t i = 0; i < set->view->nr_entries && rc == 0; i++) {
		s.entry = &set->view->entries[i];
		s.element = meta_dtype_bits(set->state.tensors[s.entry->tensor].dtype) / 8;
		/* of what is joined: once */
		if (s.element && (!s.entry->group || s.entry->member == 0))
			rc = judge_entry(&s);
	}
	sc_sys.release(s.mine);
	sc_sys.release(s.theirs);
	sc_arena_done(&s.arena);
	return rc;
}
