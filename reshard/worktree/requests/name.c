/* SPDX-License-Identifier: Apache-2.0 */
/* Names an object of a working tree in sentences; it searches, since the row of a file does not tell its folder. */
#include "reshard/worktree/requests/tree_i.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "meta/base/limits.h"

struct folders {
	struct seen {
		const char *path;
		uint64_t ino;
	} *at;
	size_t nr, room;
};

struct searching {
	struct rs_job *job;
	uint64_t ino;
	struct sc_arena *texts;
	const char *above, *found;
	rs_path_fn *each;		/* is called for each name; NULL: the first one is `found` */
	void *arg;
	struct folders folders;
	struct sc_err *err;
};

static int on_searched(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct searching *x = arg;
	struct meta_inode_row row;
	struct seen here = {NULL, ino};
	int rc = rs_overlay_inode(x->job->overlay, ino, x->texts, &row, x->err);

	if (rc <= 0 || (ino != x->ino && !S_ISDIR(row.mode)))
		return rc < 0 ? rc : 0;
	here.path = meta_path_in(x->texts, x->above, name);
	if (!here.path)
		return sc_nomem(x->err);
	if (ino == x->ino && x->each)
		return x->each(x->arg, here.path);
	if (ino == x->ino) {
		x->found = here.path;
		return 1;
	}
	if (ino > x->job->root && ino - x->job->root <= SC_RANKS_MAX)
		return 0; /* another rank */
	return sc_vec_push(&x->folders, here) < 0 ? sc_nomem(x->err) : 0;
}

static int search(struct searching *x, uint64_t home)
{
	int rc = sc_vec_push(&x->folders, (struct seen){"", home}) < 0 ? sc_nomem(x->err) : 0;

	while (rc == 0 && x->folders.nr) {
		struct seen folder = x->folders.at[--x->folders.nr];

		x->above = folder.path;
		rc = rs_overlay_children(x->job->overlay, folder.ino, on_searched, x, x->err);
	}
	sc_vec_done(&x->folders);
	return rc;
}

int rs_tree_home(struct rs_job *job, const struct meta_inode_row *row, struct sc_arena *texts, uint64_t *ret,
		 struct sc_err *err)
{
	uint64_t root = job->root, ino = S_ISDIR(row->mode) ? row->ino : row->parent;
	struct meta_inode_row above;
	int rc = 1;

	while (rc > 0 && (ino < root || ino - root > SC_RANKS_MAX)) {
		rc = rs_overlay_inode(job->overlay, ino, texts, &above, err);
		ino = above.parent;
	}
	*ret = rc > 0 ? ino : 0;
	return rc < 0 ? rc : 0;
}

int rs_tree_each_path(struct rs_job *job, uint64_t ino, rs_path_fn *each, void *arg, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct searching x = {.job = job, .ino = ino, .texts = &texts, .each = each, .arg = arg, .err = err};
	struct meta_inode_row row;
	uint64_t home = 0;
	int rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);

	if (rc > 0)
		rc = rs_tree_home(job, &row, &texts, &home, err);
	if (rc == 0 && home)
		rc = search(&x, home);
	sc_arena_done(&texts);
	return rc;
}

int rs_tree_name(struct rs_job *job, uint64_t ino, const char *more, struct sc_buf *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct searching x = {.job = job, .ino = ino, .texts = &texts, .err = err};
	struct meta_inode_row row;
	uint64_t home = 0;
	int rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);

	if (rc > 0)
		rc = rs_tree_home(job, &row, &texts, &home, err);
	if (rc == 0 && home == ino)
		x.found = ""; /* a rank's folder */
	else if (rc == 0 && home)
		rc = search(&x, home);
	rc = rc < 0 ? rc : 0;
	if (rc == 0 && x.found && !*x.found && !*more) {
		if (home == job->root)
			sc_buf_printf(ret, "the job's folder");
		else
			sc_buf_printf(ret, "the folder '%u'", (uint32_t)(home - job->root - 1));
	} else if (rc == 0 && x.found) {
		if (home != job->root)
			sc_buf_printf(ret, "rank %u: ", (uint32_t)(home - job->root - 1));
		sc_buf_printf(ret, "'%s%s%s'", x.found, *x.found && *more ? "/" : "", more);
	}
	sc_arena_done(&texts);
	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : 0;
}

