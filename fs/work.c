/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of working trees: the only place that hands out descriptors of uncommitted files.
 *
 * A change by path holds the tree's read lock from the lookup that found the file uncommitted until the change is made,
 * so no commit seals the file in between.  A change by an open handle is covered by the count of writers (writers.c).
 */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>

int fs_open_bytes(struct fs *fs, fuse_ino_t ino, int flags, int *ret_fd, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);
	struct rs_job *job = fs_job(fs, &n);

	if (!job || n.kind != FS_WORK)
		return sc_fail(err, SC_E_UNSUPPORTED, "not a file of the working tree");
	/* open for reading since before a commit sealed it */
	if (flags == O_RDONLY && !rs_work_is(fs->service, job, n.blob))
		return meta_store_open_blob(rs_service_store(fs->service), n.blob, UINT64_MAX, ret_fd, err);
	return rs_work_open(fs->service, job, n.blob, flags, ret_fd, err);
}

/* Finds the path of a version's file in the working tree; the head may be another version by now. */
static int committed_path(struct fs *fs, const struct fs_node *n, uint32_t *ret_rank, const char **ret_path,
			  struct sc_err *err)
{
	struct rs_view *view = NULL;
	bool own;
	int rc = rs_view_at(fs->service, n->place, &view, err);

	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	if (rc < 0)
		return rc;
	own = rs_view_is_own(view);
	*ret_rank = fs_rank(n, view);
	rs_view_unref(fs->service, view);
	if (!own)
		return sc_fail(err, SC_E_SEALED, "versions (.v) and other topologies (.as) are read-only");
	return rs_path_text(fs->service, n->path, ret_path, err);
}

int fs_work_begin(struct fs *fs, const struct fs_node *n, bool truncate, struct rs_job **ret_job, uint64_t *ret_blob,
		  struct sc_err *err)
{
	struct rs_job *job = fs_job(fs, n);
	const char *path;
	uint32_t rank = 0;
	int rc;

	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	rs_tree_enter(job);
	*ret_job = job;
	*ret_blob = n->blob;
	if (n->kind == FS_WORK) {
		if (rs_work_is(fs->service, job, n->blob))
			return 0;
		/* a blob does not tell whose file it was: equal files share one, other topologies give it to other
		 * ranks */
		rs_tree_leave(job);
		return sc_fail(err, SC_E_STALE, "the file was committed; open it again");
	}
	rc = committed_path(fs, n, &rank, &path, err);
	if (rc == 0)
		rc = rs_work_copy_up(fs->service, job, rank, path, truncate, ret_blob, err);
	if (rc < 0)
		rs_tree_leave(job);
	else if (fs->epoch)
		(void)fuse_lowlevel_notify_increment_epoch(fs->se);
	return rc;
}

int fs_work_instead(struct fs *fs, const struct fs_node *n, bool truncate, pid_t thread, struct sc_err *err)
{
	struct rs_job *job;
	uint64_t blob;
	int rc = fs_work_begin(fs, n, truncate, &job, &blob, err);

	/* only the path tells which file it is by now: the lookup of the retry makes the copy */
	if (rc == SC_E_STALE)
		fs_told_stale(fs, thread, true);
	if (rc < 0)
		return rc;
	fs_reserve(fs, blob, thread);
	rs_tree_leave(job);
	return sc_fail(err, SC_E_STALE, "look again");
}
