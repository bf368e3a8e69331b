/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over the objects of a version's tree: those that a view shows, and those that no rank of a view shows. */
#include "reshard/version/view/below_i.h"

#include <string.h>
#include <sys/stat.h>

struct folders {
	size_t nr, room;
	struct folder {
		uint64_t ino;
		const char *path;
	} *at;
};

/* --- what a rank shows --- */

struct shown_walk {
	struct rs_view *view;
	struct rs_lower lower;
	uint32_t rank;
	const char *above;
	struct folders folders;
	struct sc_arena texts;
	rs_shown_fn *fn;
	void *arg;
	struct sc_err *err;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct shown_walk *w = arg;
	const uint64_t root = w->view->job->root;
	struct meta_inode_row row;
	const char *path;
	int rc;

	if (ino > root && ino - root <= SC_RANKS_MAX)
		return 0; /* of the job's folder: a rank */
	rc = w->lower.inode(w->lower.arg, ino, &w->texts, &row, w->err);
	if (rc <= 0 || (S_ISREG(row.mode) && !row.blob))
		return rc < 0 ? rc : 0;
	path = meta_path_in(&w->texts, w->above, name);
	if (!path)
		return sc_nomem(w->err);
	rc = w->fn(w->arg, w->rank, path, &row);
	if (rc == 0 && S_ISDIR(row.mode) && sc_vec_push(&w->folders, (struct folder){ino, path}) < 0)
		rc = sc_nomem(w->err);
	return rc;
}

int rs_view_each(struct rs_view *view, uint32_t rank, rs_shown_fn *fn, void *arg, struct sc_err *err)
{
	struct shown_walk w = {.view = view, .rank = rank, .fn = fn, .arg = arg, .err = err};
	const uint64_t home = rank == RS_SHARED ? view->job->root : view->job->root + 1 + rank;
	struct rs_below *b;
	int rc = rs_view_below(view, &b, err);

	if (rc == 0 && (rank == RS_SHARED || rank < view->topo.ranks) &&
	    sc_vec_push(&w.folders, (struct folder){home, ""}) < 0)
		rc = sc_nomem(err);
	if (rc == 0)
		w.lower = rs_below_lower(b);
	while (rc == 0 && w.folders.nr) {
		struct folder f = w.folders.at[--w.folders.nr];

		w.above = f.path;
		rc = w.lower.children(w.lower.arg, f.ino, on_child, &w, err);
	}
	sc_vec_done(&w.folders);
	sc_arena_done(&w.texts);
	return rc;
}

/* --- what no rank shows --- */

struct hidden_walk {
	struct rs_below *b;
	struct rs_rank_files tree, common;	/* whose rows are walked; what ranks without a source show */
	struct folders folders;
	struct sc_arena texts;
	rs_shown_fn *fn;
	void *arg;
	struct sc_err *err;
};

static int on_hidden(struct hidden_walk *w, const char *above, struct meta_bytes name)
{
	struct meta_inode_row row, common;
	struct sc_buf target = {0};
	const char *path = meta_path_in(&w->texts, above, name);
	int rc = path ? rs_source_row(w->b, &w->tree, path, &row, &target, w->err) : sc_nomem(w->err);

	if (rc > 0 && S_ISDIR(row.mode)) {
		rc = sc_vec_push(&w->folders, (struct folder){row.ino, path}) < 0 ? sc_nomem(w->err) : 0;
	} else if (rc > 0) {
		rc = rs_source_row(w->b, &w->common, path, &common, NULL, w->err);
		rc = rc == 0 ? w->fn(w->arg, w->tree.rank, path, &row) : rc < 0 ? rc : 0;
	}
	sc_buf_done(&target);
	return rc;
}

/* Walks over the plain files and links that a rank of the tree has, and that not all ranks of the tree have. */
static int each_hidden(struct rs_below *b, uint32_t rank, rs_shown_fn *fn, void *arg, struct sc_err *err)
{
	struct hidden_walk w = {.b = b, .tree = {.rank = rank, .source = rank, .rows = RS_ROWS_OTHER},
				.common.rows = RS_ROWS_COMMON, .fn = fn, .arg = arg, .err = err};
	int rc = sc_vec_push(&w.folders, (struct folder){0, ""}) < 0 ? sc_nomem(err) : 0;

	while (rc == 0 && w.folders.nr) {
		struct folder f = w.folders.at[--w.folders.nr];
		struct rs_source_names names = {0};

		rc = rs_source_children(b, &w.tree, f.path, &names, err);
		for (size_t i = 0; rc == 0 && i < names.nr; i++)
			rc = on_hidden(&w, f.path, names.at[i]);
		rs_source_names_done(&names);
	}
	sc_vec_done(&w.folders);
	sc_arena_done(&w.texts);
	return rc;
}

/* Marks the ranks of the tree that are the source of a rank of a presentation. */
static void mark(const struct rs_below *b, const struct meta_layout *layout, const struct meta_topology *topo,
		 uint8_t *marks, uint8_t as)
{
	for (uint32_t r = 0; r < topo->ranks; r++) {
		uint32_t source;
		enum rs_rows rows = rs_below_source(b, layout, topo, r, &source);

		if (rows == RS_ROWS_OWN || rows == RS_ROWS_OTHER)
			marks[source] = as;
	}
}

enum { UNSEEN, SHOWN, STAYS };

static int each_with(struct rs_view *view, uint8_t which, const struct meta_layout *layout,
		     const struct meta_topology *topo, rs_shown_fn *fn, void *arg, struct sc_err *err)
{
	struct rs_below *b;
	uint8_t *marks;
	int rc = rs_view_below(view, &b, err);

	if (rc < 0 || !rs_below_has_tree(b))
		return rc;
	marks = sc_zalloc_array(b->rows_ranks, 1);
	if (!marks)
		return sc_nomem(err);
	mark(b, view->version->layout, &view->topo, marks, SHOWN);
	if (topo)
		mark(b, layout, topo, marks, STAYS);
	for (uint32_t r = 0; rc == 0 && r < b->rows_ranks; r++)
		if (marks[r] == which)
			rc = each_hidden(b, r, fn, arg, err);
	sc_sys.release(marks);
	return rc;
}

int rs_view_each_unplaced(struct rs_view *view, rs_shown_fn *fn, void *arg, struct sc_err *err)
{
	return each_with(view, UNSEEN, NULL, NULL, fn, arg, err);
}

int rs_view_each_lost(struct rs_view *view, const struct meta_layout *layout, const struct meta_topology *topo,
		      rs_shown_fn *fn, void *arg, struct sc_err *err)
{
	return each_with(view, SHOWN, layout, topo, fn, arg, err);
}

const char *rs_view_rows_topology(struct rs_view *view)
{
	struct sc_err ignored;
	struct rs_below *b;

	return rs_view_below(view, &b, &ignored) == 0 && rs_below_has_tree(b) ? b->rows_topo.text : view->topo.text;
}
