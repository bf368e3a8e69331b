/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening files.
 *
 *     view    direct_io with mmap allowed
 *     blob    passthrough: the kernel reads the backing file itself; only ever opened for reading
 *     work    passthrough for reading and writing
 *
 * Where the kernel or privileges do not allow passthrough, reads and writes come to op_io.c.
 */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>

int fs_open_work(fuse_req_t req, struct fs *fs, uint64_t blob, struct fs_handle *h, int *fd, struct fuse_file_info *fi,
		 struct sc_err *err)
{
	sc_cleanup(sc_closep) int path = -1;
	int rc = rs_work_hold(fs->service, blob, err);

	if (rc < 0)
		return rc;
	h->held = blob;
	h->kind = FS_H_PASS;
	if (fs->passthrough) {
		rc = meta_store_open_work(rs_service_store(fs->service), blob, O_RDONLY, &path, err);
		if (rc < 0 || fs_passthrough(req, fs, h->ino, &path, fi))
			return rc;
	}
	h->kind = FS_H_FD;
	h->fd = sc_steal_fd(fd);
	fi->direct_io = 1;
	return 0;
}

static int open_work(fuse_req_t req, struct fs *fs, const struct fs_node *n, struct fs_handle *h,
		     struct fuse_file_info *fi, struct sc_err *err)
{
	struct rs_job *job = fs_job(fs, n);
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	h->writes = (fi->flags & O_ACCMODE) != O_RDONLY;
	rs_tree_read_lock(job);
	rc = rs_work_open(fs->service, job, n->blob, h->writes ? O_RDWR : O_RDONLY, &fd, err);
	if (rc == 0 && fi->flags & O_TRUNC && sc_sys.ftruncate(fd, 0) < 0)
		rc = sc_fail_sys(err, errno, "truncate");
	if (rc == 0)
		rc = fs_open_work(req, fs, n->blob, h, &fd, fi, err);
	rs_tree_unlock(job);
	return rc;
}

/* Is the path of this node still this node?  A working-tree file may lie on it by now. */
static int check_current(struct fs *fs, const struct fs_node *n, bool again, const char *path, struct rs_view *view,
			 struct rs_look *ret, struct sc_err *err)
{
	uint32_t rank = n->kind == FS_SHARED ? RS_SHARED : n->rank;
	bool own = rs_view_is_own(view) && !again;
	struct rs_job *job = rs_view_job(view);
	int rc = 0;

	/* a number of an older head, of a removed job, or of a file that was written or flipped since */
	if (rs_job_is_removed(job) || (own && !rs_view_is_head(view)))
		return sc_fail(err, SC_E_STALE, "look again");
	if (own || n->kind != FS_VIEW)
		rc = rs_look(fs->service, job, own ? NULL : view, rank, path, ret, err);
	else
		ret->kind = RS_VIEW; /* .v and .as never change: the image will say */
	if (rc == 0 && !again && ret->kind != (n->kind == FS_VIEW ? RS_VIEW : RS_BLOB) && ret->kind != RS_DATA)
		rc = sc_fail(err, SC_E_STALE, "look again");
	return rc;
}

static int open_blob(fuse_req_t req, struct fs *fs, const struct rs_look *look, struct fs_handle *h,
		     struct fuse_file_info *fi, struct sc_err *err)
{
	int fd = -1, rc = meta_store_open_blob(rs_service_store(fs->service), look->blob, look->bytes, &fd, err);

	if (rc < 0)
		return rc;
	h->kind = FS_H_PASS;
	fi->noflush = 1;
	if (!fs_passthrough(req, fs, h->ino, &fd, fi)) {
		h->kind = FS_H_FD;
		h->fd = fd;
		fi->keep_cache = 1; /* sealed: what is cached stays right */
	}
	return 0;
}

static int open_image(struct fs *fs, const struct fs_node *n, const char *path, bool again, struct fs_handle *h,
		      struct fuse_file_info *fi, struct sc_err *err)
{
	int rc;

	if (n->kind == FS_VIEW && rs_view_has_data(h->view, path)) {
		rc = rs_data_open(fs->service, h->view, n->rank, path, &h->data, err);
	} else {
		rc = rs_view_image(fs->service, h->view, n->rank, path, again, true, &h->image, err);
		if (rc == 0 && !again && (h->image->same_as || rs_make_real(fs->service, h->view, n->rank, path, h->image)))
			rc = sc_fail(err, SC_E_STALE, "look again");
	}
	h->kind = FS_H_VIEW;
	fi->direct_io = 1;
	fi->noflush = 1;
	return rc;
}

/* A file that an open had made real, and that is gone with its version. */
static int open_gone(struct fs *fs, const struct fs_node *n, const char *path, struct fs_handle *h,
		     struct fuse_file_info *fi, struct sc_err *err)
{
	/* the kernel wants all opens of an inode alike */
	if (fs_passthrough_join(fs, h->ino, fi)) {
		h->kind = FS_H_PASS;
		return 0;
	}
	return open_image(fs, n, path, true, h, fi, err);
}

static int open_committed(fuse_req_t req, struct fs *fs, const struct fs_node *n,
			  struct fs_handle *h, struct fuse_file_info *fi, struct sc_err *err)
{
	struct rs_view *found = NULL;
	bool again = fs_looks_again(fs, fuse_req_ctx(req)->pid, &found);
	struct rs_look look = {0};
	const char *path = NULL;
	int rc;

	if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
		rs_view_unref(fs->service, found);
		return fs_copy_up(fs, n, fi->flags & O_TRUNC, err);
	}
	rc = rs_path_text(fs->service, n->path, &path, err);
	if (rc == 0)
		rc = rs_view_by_id(fs->service, n->view, &h->view, err);
	if (rc == SC_E_NOT_FOUND && found && rs_view_id(found) == n->view) {
		h->view = sc_steal(&found);
		rc = 0;
	}
	rs_view_unref(fs->service, found);
	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	if (rc == 0)
		rc = check_current(fs, n, again, path, h->view, &look, err);
	if (rc < 0)
		return rc;
	if (n->kind == FS_VIEW)
		return open_image(fs, n, path, again, h, fi, err);
	if (look.kind == RS_BLOB)
		rc = open_blob(req, fs, &look, h, fi, err);
	if (again && (look.kind != RS_BLOB || err->errnum == ENOENT))
		rc = open_gone(fs, n, path, h, fi, err);
	return rc;
}

static int open_control(struct fs *fs, const struct fs_node *n, struct fs_handle *h,
			struct fuse_file_info *fi, struct sc_err *err)
{
	bool top = n->kind == FS_TOP;
	struct rs_job *job = top ? NULL : fs_job(fs, n);

	if (!top && !job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	h->kind = FS_H_CONTROL;
	fi->direct_io = 1;
	return fs_control_open(fs, job, top, n->what - FS_CTL_FILE, fi->flags, &h->control, err);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(ino);
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	struct sc_err err = {0};
	int rc = h ? 0 : sc_nomem(&err);

	if (rc == 0) {
		h->ino = ino;
		h->fd = -1;
		if (n.kind == FS_WORK)
			rc = open_work(req, fs, &n, h, fi, &err);
		else if (n.kind == FS_VIEW || n.kind == FS_BLOB || n.kind == FS_SHARED)
			rc = open_committed(req, fs, &n, h, fi, &err);
		else if (n.kind == FS_TOP || n.kind == FS_SPECIAL)
			rc = open_control(fs, &n, h, fi, &err);
		else
			rc = sc_fail(&err, SC_E_IS_DIR, "a directory");
	}
	if (rc == 0) {
		fi->fh = fs_handle_add(fs, h);
		rc = fi->fh ? 0 : sc_nomem(&err);
	}
	if (rc < 0) {
		if (h && h->kind == FS_H_PASS && fi->backing_id)
			fs_passthrough_end(req, fs, ino);
		fs_handle_free(fs, h);
		fs_fail(req, "open", &err);
		return;
	}
	(void)fuse_reply_open(req, fi);
}

int fs_reopen(struct fs *fs, struct fs_handle *h, uint64_t fh, int flags, struct sc_err *err)
{
	struct fs_node n = fs_node_of(h->ino);
	struct fuse_file_info fi = {.flags = flags};
	struct rs_job *job = fs_job(fs, &n);
	struct rs_look look = {0};
	const char *path;
	int rc = 0;

	switch (n.kind) {
	case FS_TOP:
	case FS_SPECIAL:
		if (n.what >= FS_CTL_FILE) {
			rc = open_control(fs, &n, h, &fi, err);
			if (rc == 0)
				fs_control_lost(fs, h->control, fh);
			return rc;
		}
		break;
	case FS_WORK:
		h->kind = FS_H_FD;
		h->writes = (flags & O_ACCMODE) != O_RDONLY;
		return job ? rs_work_open(fs->service, job, n.blob, h->writes ? O_RDWR : O_RDONLY, &h->fd, err)
			   : sc_fail(err, SC_E_STALE, "the job is gone");
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
		rc = rs_view_by_id(fs->service, n.view, &h->view, err);
		if (rc == 0)
			rc = rs_path_text(fs->service, n.path, &path, err);
		if (rc == 0 && n.kind != FS_VIEW)
			rc = rs_look(fs->service, job, h->view, n.kind == FS_SHARED ? RS_SHARED : n.rank, path, &look, err);
		if (rc < 0 || look.kind != RS_BLOB)
			return rc < 0 ? rc : open_image(fs, &n, path, true, h, &fi, err);
		h->kind = FS_H_FD;
		return meta_store_open_blob(rs_service_store(fs->service), look.blob, look.bytes, &h->fd, err);
	default:
		break;
	}
	h->kind = FS_H_DIR;
	return fs_list(fs, h->ino, h, err);
}
