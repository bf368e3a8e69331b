/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files of working trees: nothing else hands out descriptors of uncommitted files.
 *
 * A change by a node holds the tree's read lock from the look that found the file uncommitted until the change is made,
 * so no commit seals the file in between.  A change by an open handle is covered by the count of writers (writers.c).
 */
#include "fs/open/open.h"

#include <errno.h>
#include <fcntl.h>

#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

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

int fs_work_begin(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, bool truncate,
		  struct rs_job **ret_job, uint64_t *ret_blob, struct sc_err *err)
{
	struct fs *fs = fs_of(req);
	struct rs_job *job = fs_job(fs, n);
	uint64_t number;
	int rc;

	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	rc = fs_enter(req, job, a, err);
	if (rc != RS_HERE)
		return rc;
	*ret_job = job;
	*ret_blob = n->blob;
	if (n->kind == FS_WORK && rs_work_is(fs->service, job, n->blob))
		return 0;
	rc = fs_number(fs, n, &job, &number, err);
	if (rc == 0)
		rc = rs_tree_copy_up(fs->service, job, number, truncate, ret_blob, err);
	if (rc == 0)
		fs_changed(fs, n, job, number, true);
	else
		rs_tree_leave(*ret_job);
	return rc;
}

int fs_work_instead(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, bool truncate,
		    struct sc_err *err)
{
	struct fs *fs = fs_of(req);
	const pid_t thread = fuse_req_ctx(req)->pid;
	struct rs_job *job;
	uint64_t blob;
	int rc = fs_work_begin(req, a, n, truncate, &job, &blob, err);

	/* a blob that an earlier daemon has sealed tells no number: the lookup of the retry makes the copy */
	if (rc == SC_E_STALE && n->kind == FS_WORK)
		fs_told_stale(fs, thread, true);
	if (rc != RS_HERE)
		return rc;
	fs_reserve(fs, blob, thread);
	rs_tree_leave(job);
	return sc_fail(err, SC_E_STALE, "look again");
}

/* --- what the kernel remembers --- */

static void invalidate(struct fs *fs, struct fs_node n)
{
	/* attributes alone: this waits for no lock of the kernel's inode, which a request may hold */
	(void)fuse_lowlevel_notify_inval_inode(fs->se, fs_node_id(n), -1, 0);
}

bool fs_is_committed(struct fs *fs, struct rs_job *job, uint64_t number)
{
	struct sc_err ignored;
	struct rs_look look;

	return rs_tree_get(fs->service, job, number, &look, &ignored) == 0 &&
	       (look.kind == RS_VIEW || look.kind == RS_BLOB);
}

void fs_changed(struct fs *fs, const struct fs_node *n, struct rs_job *job, uint64_t number, bool was_committed)
{
	struct fs_node now, other = *n;
	struct sc_err ignored;
	struct rs_look look;

	if (rs_tree_get(fs->service, job, number, &look, &ignored) < 0 || look.kind == RS_NONE)
		return;
	now = fs_node_of_look(job, &look);
	if (was_committed && look.kind == RS_WORK && fs->epoch)
		(void)fuse_lowlevel_notify_increment_epoch(fs->se);
	if (fs_node_id(now) != fs_node_id(*n)) {
		invalidate(fs, now);
		invalidate(fs, *n);
	}
	/* the same place, stored in another way, may be open, too */
	if (n->kind == FS_VIEW || n->kind == FS_BLOB) {
		other.kind = n->kind == FS_VIEW ? FS_BLOB : FS_VIEW;
		if (fs_node_id(other) != fs_node_id(now))
			invalidate(fs, other);
	}
}

void fs_drop_set_id(fuse_req_t req, int fd)
{
	struct stat st;

	if (fuse_req_ctx(req)->uid != 0 && sc_sys.fstat(fd, &st) == 0 && st.st_mode & (S_ISUID | S_ISGID))
		(void)sc_sys.fchmod(fd, fs_killed_mode(req, st.st_mode & 07777, st.st_gid));
}

mode_t fs_killed_mode(fuse_req_t req, mode_t mode, gid_t gid)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	gid_t groups[256];
	bool in_group = ctx->uid == 0 || ctx->gid == gid;
	int nr;

	if (mode & S_ISGID && !(mode & S_IXGRP) && !in_group) {
		nr = fuse_req_getgroups(req, sizeof(groups) / sizeof(*groups), groups);
		for (int i = 0; i < nr && i < (int)(sizeof(groups) / sizeof(*groups)); i++)
			in_group = in_group || groups[i] == gid;
	}
	mode &= ~(mode_t)S_ISUID;
	return mode & S_IXGRP || !in_group ? mode & ~(mode_t)S_ISGID : mode;
}
