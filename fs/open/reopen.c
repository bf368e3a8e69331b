/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the files of a daemon that died again.  The kernel goes on using them (hold.h), and the next daemon opens each
 * of them when the first request for it comes.  It has a handle for each regular file from its start (opens.c).
 */
#include "fs/open/open.h"

#include <errno.h>
#include <fcntl.h>

#include "fs/control/control.h"
#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "fs/request/request.h"

/* Opens it as what an earlier daemon had it open; if that is not known, as what its node is now. */
int fs_reopen_committed(struct fs *fs, struct fs_handle *h, const struct fs_node *n, struct sc_err *err)
{
	struct fuse_file_info ignored = {0};
	struct rs_look look = {0};
	const char *path;
	int rc = h->view ? 0 : rs_view_at(fs->service, n->place, &h->view, err);

	if (rc == 0 && rs_view_is_for_gpus(h->view)) { /* its bytes went with that daemon */
		h->kind = FS_H_GPU;
		return 0;
	}
	if (rc == 0)
		rc = rs_path_text(fs->service, n->path, &path, err);
	if (rc == 0 && n->kind == FS_VIEW)
		return fs_open_image(fs, n, path, true, h, &ignored, err);
	if (rc == 0 && !h->blob) {
		rc = rs_look(fs->service, rs_view_job(h->view), h->view, fs_rank(n, h->view), path, &look, err);
		if (rc == 0 && look.kind != RS_BLOB)
			rc = sc_fail(err, SC_E_STALE, "the version is gone");
		h->blob = look.blob;
		h->bytes = look.bytes;
	}
	if (rc == 0 && !rs_blob_here(fs->service, h->blob))
		return fs_open_elsewhere(fs, n, h, &ignored, err);
	if (rc == 0)
		rc = meta_store_open_blob(rs_service_store(fs->service), h->blob, h->bytes, &h->fd, err);
	if (rc == 0)
		h->kind = FS_H_FD;
	return rc;
}

int fs_reopen(fuse_req_t req, struct fs *fs, struct fs_handle *h, uint64_t fh, int flags, struct sc_err *err)
{
	struct fs_node n = fs_node_of(h->ino);
	struct fuse_file_info fi = {.flags = flags};
	struct rs_job *job = fs_job(fs, &n);
	int rc;

	switch (n.kind) {
	case FS_TOP:
	case FS_SPECIAL:
		if (fs_is_control(n.what)) {
			rc = fs_open_control(req, fs, &n, h, &fi, err);
			if (rc == 0)
				fs_control_lost(fs, h->control, fh);
			return rc;
		}
		break;
	case FS_WORK:
		h->kind = FS_H_FD;
		h->writes |= (flags & O_ACCMODE) != O_RDONLY;
		return job ? fs_open_bytes(fs, h->ino, h->writes ? O_RDWR : O_RDONLY, &h->fd, err)
			   : sc_fail(err, SC_E_STALE, "the job is gone");
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
		return fs_reopen_committed(fs, h, &n, err);
	default:
		break;
	}
	/* a folder: it is listed when it is read */
	h->kind = FS_H_DIR;
	return 0;
}

static struct fs_handle *adopt(fuse_req_t req, struct fs *fs, uint64_t ino, struct fuse_file_info *fi,
			       struct sc_err *err)
{
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	int rc = h ? 0 : sc_nomem(err);

	if (rc == 0) {
		h->ino = ino;
		h->fd = -1;
		rc = fs_reopen(req, fs, h, fi->fh, fi->flags, err);
	}
	if (rc == 0 && !fs_handle_add(fs, h))
		rc = sc_nomem(err);
	if (rc < 0) {
		fs_handle_free(fs, h);
		return NULL;
	}
	if (h->view)
		fs_handle_committed(fs, h);
	(void)pthread_mutex_lock(&fs->lock);
	h->number = fi->fh;
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

/* Opens a file that the earlier daemon had open; a failure leaves it for the next request. */
static struct fs_handle *open_now(fuse_req_t req, struct fs *fs, struct fs_handle *h, struct fuse_file_info *fi,
				  struct sc_err *err)
{
	fs_open_answered(fs, h->kept, fi->fh);
	if (fs_reopen(req, fs, h, fi->fh, fi->flags, err) < 0)
		return NULL;
	__atomic_store_n(&h->later, false, __ATOMIC_RELEASE);
	return h;
}

struct fs_handle *fs_handle_of(fuse_req_t req, struct fs *fs, uint64_t ino, struct fuse_file_info *fi)
{
	struct fs_handle *h = fs_handle_get(fs, fi->fh);
	struct sc_err err = {0};

	if (h && !__atomic_load_n(&h->later, __ATOMIC_ACQUIRE))
		return h;
	if (!fi->fh || fs_handle_is_mine(fs, fi->fh)) {
		(void)fuse_reply_err(req, EBADF);
		return NULL;
	}
	(void)pthread_mutex_lock(&fs->adopt_lock);
	h = fs_handle_get(fs, fi->fh);
	if (!h)
		h = adopt(req, fs, ino, fi, &err);
	else if (h->later)
		h = open_now(req, fs, h, fi, &err);
	(void)pthread_mutex_unlock(&fs->adopt_lock);
	if (!h)
		fs_fail(req, "taking over an open file", &err);
	return h;
}
