/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint folder that ranks of the job's topology wrote says which part of a tensor each of them had.  A layout
 * that gives them other parts is wrong, and where only the order in a tensor differs (a gate and what it gates, in
 * one), what is presented has the right shape and wrong values.
 *
 * But a folder may be of another topology, or of none that the layout speaks of (FSDP cuts all tensors by rows), and
 * replicas save one copy, of whichever part they please.  So an axis is judged only if some tensor proves that the
 * writers were cut by it as the layout says: along a dimension that is not the first, each chunk inside of its writer's
 * part.  Then a tensor is refused of which a writer had neither a piece of its part nor a whole that it is in.  Of
 * tensors that one axis cuts; all others are not judged.
 */
#include "reshard/command/changed/items_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct judging {
	struct commit *c;
	const struct rs_folder *folder;
	struct meta_view *view;
	struct sc_arena arena;		/* of a tensor's pieces */
	uint32_t proven;		/* axes, a bit set */
	struct wrong {			/* the first tensor that lies otherwise */
		const struct meta_tensor *tensor;
		uint32_t rank;
		struct meta_box has, part;
		bool more;		/* the part has more boxes */
	} wrong[SC_AXES_MAX];
	bool others;			/* the writers are no ranks of this topology */
};

/* Reads the rank that wrote a file from its name, __R_N.distcp; false: the file is of another kind. */
static bool writer_of(const char *file, uint32_t *ret)
{
	const char *name = strrchr(file, '/');
	int end = 0;

	return sscanf(name ? name + 1 : file, "__%" SCNu32 "_%*u.distcp%n", ret, &end) == 1 && end;
}

/* Finds the only axis by which an entry is cut; -1: there is none, several cut it, or it is not judged. */
static int axis_of(const struct meta_view *view, const struct meta_entry *e)
{
	int axis = -1;

	if (e->group)
		return -1;
	for (int i = 0; i < e->rule->nr_cuts; i++)
		if (e->rule->cuts[i].flat)
			return -1;
	for (int i = 0; i < view->topo->nr_axes; i++) {
		if (!(meta_entry_cut_axes(e) & 1u << i) || view->topo->degree[i] == 1)
			continue;
		if (axis >= 0)
			return -1;
		axis = i;
	}
	return axis;
}

static bool is_inside(const struct meta_box *b, const struct meta_piece *piece)
{
	uint64_t met = 0;

	for (uint32_t i = 0; i < piece->nr_boxes; i++) {
		struct meta_box both;

		if (meta_box_meet(&piece->boxes[i], b->off, b->ext, &both))
			met += meta_box_elements(&both);
	}
	return met == meta_box_elements(b);
}

static bool holds(const struct meta_box *b, const struct meta_piece *piece)
{
	for (uint32_t i = 0; i < piece->nr_boxes; i++) {
		struct meta_box both;

		if (!meta_box_meet(&piece->boxes[i], b->off, b->ext, &both) ||
		    meta_box_elements(&both) != meta_box_elements(&piece->boxes[i]))
			return false;
	}
	return true;
}

/* Tells whether a part is cut along a dimension that is not the first. */
static bool is_proof(const struct meta_piece *piece, const struct meta_tensor *t)
{
	for (int k = 1; k < t->shape.nr; k++)
		if (piece->nr_boxes && piece->boxes[0].ext[k] < t->shape.dim[k])
			return true;
	return false;
}

static int judge_tensor(struct judging *j, uint32_t t)
{
	const struct meta_tensor *tensor = &j->view->state->tensors[t];
	const struct rs_placed_tensor *placed = &j->folder->tensors.at[t];
	const struct meta_entry *e = &j->view->entries[j->view->first[t]];
	const int axis = j->view->first[t + 1] - j->view->first[t] == 1 ? axis_of(j->view, e) : -1;
	bool proves = axis >= 0;

	for (uint64_t i = 0; i < placed->nr; i++) {
		const struct meta_box *has = &placed->boxes[i].box;
		uint32_t coords[SC_AXES_MAX], rank;
		struct meta_piece piece;
		int rc;

		j->others = !writer_of(placed->boxes[i].file, &rank) || rank >= j->view->topo->ranks;
		if (j->others || axis < 0)
			return 0;
		meta_topology_coords(j->view->topo, rank, coords);
		rc = meta_entry_is_on(j->view, e, coords);
		if (rc == 0)
			return 0;
		rc = meta_entry_piece(j->view, e, coords, &j->arena, &piece, j->c->err);
		if (rc < 0)
			return rc;
		proves = proves && is_proof(&piece, tensor) && is_inside(has, &piece);
		if (!j->wrong[axis].tensor && !is_inside(has, &piece) && !holds(has, &piece))
			j->wrong[axis] = (struct wrong){tensor, rank, *has, piece.boxes[0], piece.nr_boxes > 1};
	}
	if (proves && placed->nr)
		j->proven |= 1u << axis;
	return 0;
}

/* Writes "[0:16, 32:64]". */
static const char *box_text(const struct meta_box *b, char *ret, size_t bytes)
{
	size_t at = 0;

	for (int k = 0; k < b->nr && at < bytes; k++)
		at += (size_t)snprintf(ret + at, bytes - at, "%s%" PRIu64 ":%" PRIu64, k ? ", " : "[", b->off[k],
				       b->off[k] + b->ext[k]);
	if (at < bytes)
		(void)snprintf(ret + at, bytes - at, "]");
	return ret;
}

static int refuse(const struct judging *j, int axis)
{
	const struct wrong *w = &j->wrong[axis];
	char has[160], part[160];

	return sc_fail(j->c->err, SC_E_STATE, "checkpoint folder '%s': '%s' is cut by %s in the layout so that rank %u "
		       "has %s%s, but rank %u saved %s, though other tensors lie as the layout says: correct its rule, "
		       "or write suspicious=accept to config", j->folder->path, w->tensor->key,
		       j->c->layout->axes.name[axis], w->rank, box_text(&w->part, part, sizeof(part)),
		       w->more ? " and more" : "", w->rank, box_text(&w->has, has, sizeof(has)));
}

int rs_commit_chunks(struct commit *c, const struct rs_folder *folder)
{
	struct judging j = {.c = c, .folder = folder};
	struct sc_err why;
	int rc = 0;

	if (c->topo.ranks < 2 || rs_config_of(c->job).accept_suspicious)
		return 0;
	/* one that is not shown at this topology is none of the layout's business */
	if (meta_view_new(c->layout, &c->topo, &folder->state, &j.view, &why) < 0)
		return why.code == SC_E_NO_MEMORY ? sc_nomem(c->err) : 0;
	for (uint32_t t = 0; rc == 0 && !j.others && t < folder->state.nr; t++) {
		rc = judge_tensor(&j, t);
		sc_arena_done(&j.arena);
	}
	for (int i = 0; rc == 0 && !j.others && i < c->topo.nr_axes; i++)
		if (j.proven & 1u << i && j.wrong[i].tensor)
			rc = refuse(&j, i);
	meta_view_free(j.view);
	return rc;
}
