/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of open files.  Real files come here only without passthrough. */
#include "fs/calls/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fs/background/background.h"
#include "fs/control/control.h"
#include "fs/handover/handover.h"
#include "fs/lookup/lookup.h"
#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/read/read.h"
#include "fs/request/request.h"

/* --- read --- */

FS_READS(data_reads, "data");
FS_READS(control_reads, "control");
FS_READS(stored_reads, "stored");
FS_READS(work_reads, "uncommitted");

static void read_view(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at,
		      int64_t began_ns)
{
	struct rs_image *im = h->image;

	if (at >= im->bytes) {
		(void)fuse_reply_buf(req, NULL, 0);
		return;
	}
	bytes = sc_min_u64(bytes, im->bytes - at);
	/* once the reader has its answer, it may close the handle: the reply's bytes stay until it has been sent */
	rs_image_ref(fs->service, im);
	(im->mapped.waits ? fs_read_late : fs_send_seen)(&(struct fs_seen){fs, req, im, h->view, h->ino, bytes, at,
								       began_ns});
	rs_image_unref(fs->service, im);
}

static void read_fd(fuse_req_t req, const struct fs_handle *h, size_t bytes, off_t at)
{
	struct fuse_bufvec vec = FUSE_BUFVEC_INIT(bytes);

	vec.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	vec.buf[0].fd = h->fd;
	vec.buf[0].pos = at;
	(void)fuse_reply_data(req, &vec, FUSE_BUF_SPLICE_MOVE);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = fs_handle_of(req, fs, ino, fi);
	const int64_t began_ns = sc_now_ns();
	struct sc_metric *histogram = NULL; /* chosen before the reply: its reader may close the handle then */

	if (!h)
		return;
	if (h->kind == FS_H_VIEW && h->data) {
		histogram = &data_reads;
		fs_read_data(req, fs, h, bytes, (uint64_t)at);
	} else if (h->kind == FS_H_VIEW) {
		read_view(req, fs, h, bytes, (uint64_t)at, began_ns);
	} else if (h->kind == FS_H_CONTROL) {
		histogram = &control_reads;
		fs_control_read(req, fs, h->control, fi->fh, bytes, at);
	} else if (h->kind == FS_H_FD) {
		histogram = fs_node_of(ino).kind == FS_WORK ? &work_reads : &stored_reads;
		read_fd(req, h, bytes, at);
	} else if (h->kind == FS_H_GPU) {
		fs_gpu_read(req, h, bytes, (uint64_t)at);
	} else {
		(void)fuse_reply_err(req, EBADF);
	}
	if (histogram)
		sc_metric_since(histogram, began_ns);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *text, size_t bytes, off_t at,
	      struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h;

	if (fi->writepage) /* stored through a mapping: the request does not say how the file was opened */
		fi->flags |= O_RDWR;
	h = fs_handle_of(req, fs, ino, fi);
	if (!h)
		return;
	if (h->kind == FS_H_CONTROL) {
		fs_control_write(req, fs, h->control, fi->fh, text, bytes, at);
	} else if (h->kind == FS_H_FD && h->writes) {
		struct stat st;

		/* O_APPEND: the size that the kernel knows may be older than ours */
		if (fi->flags & O_APPEND && sc_sys.fstat(h->fd, &st) == 0)
			at = st.st_size;
		fs_drop_set_id(req, h->fd);
		if (sc_pwrite_all(h->fd, text, bytes, (uint64_t)at) < 0)
			(void)fuse_reply_err(req, errno);
		else
			(void)fuse_reply_write(req, bytes);
	} else {
		(void)fuse_reply_err(req, EBADF);
	}
}

/* --- close and the rest --- */

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = fs_handle_get(fs, fi->fh);

	if (!h && fs_document_is_lost(fs, fi->fh)) {
		h = fs_handle_of(req, fs, ino, fi);
		if (!h)
			return;
	}
	if (h && h->kind == FS_H_CONTROL)
		fs_control_flush(req, fs, h->control, fi->fh);
	else
		(void)fuse_reply_err(req, 0);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = fs_handle_take(fs, fi->fh);

	/* one of an earlier daemon, which only the kernel used, counts by its inode; what is said twice, once */
	if (h ? h->kind == FS_H_PASS : !fs_handle_is_mine(fs, fi->fh) && !fs->replays)
		fs_passthrough_end(req, fs, ino);
	/* before the answer: if the daemon dies in between, the request comes again and finds no entry */
	fs_writer_end(fs, h, fi->fh);
	(void)fuse_reply_err(req, 0);
	if (h && h->writes)
		fs_write_back(fs, ino);
	fs_handle_free(fs, h);
	fs_forget(fs, ino);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	int rc;

	(void)fi;
	if (fs_node_of(ino).kind != FS_WORK) {
		op_fsyncdir(req, ino, data_only, fi); /* the bytes of what is committed are on stable storage */
		return;
	}
	rc = fs_open_bytes(fs, ino, O_RDONLY, &fd, &err);
	if (rc == SC_E_STALE)
		rc = rs_tree_flush(fs->service, &err); /* it was committed, or removed, meanwhile */
	else if (rc == 0)
		rc = rs_work_sync(fs->service, fs_node_of(ino).blob, fd, data_only != 0, &err);
	if (rc < 0)
		fs_fail(req, "fsync", &err);
	else
		(void)fuse_reply_err(req, 0);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t bytes,
		  struct fuse_file_info *fi)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};

	(void)fi;
	if (fs_open_bytes(fs, ino, O_RDWR, &fd, &err) < 0) {
		fs_fail(req, "fallocate", &err);
		return;
	}
	fs_drop_set_id(req, fd);
	if (sc_sys.fallocate(fd, mode, at, bytes) < 0)
		(void)fuse_reply_err(req, errno);
	else
		(void)fuse_reply_err(req, 0);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_found found;
	off_t to;

	(void)fi;
	if (fs_node_of(ino).kind == FS_WORK) {
		if (fs_open_bytes(fs, ino, O_RDONLY, &fd, &err) < 0) {
			fs_fail(req, "lseek", &err);
			return;
		}
		to = sc_sys.lseek(fd, at, whence);
		if (to < 0)
			(void)fuse_reply_err(req, errno);
		else
			(void)fuse_reply_lseek(req, to);
		return;
	}
	/* a view has no holes: data up to its end */
	if (fs_stat(fs, ino, &found, &err) < 0)
		fs_fail(req, "lseek", &err);
	else if (at < 0 || at >= found.st.st_size)
		(void)fuse_reply_err(req, ENXIO);
	else
		(void)fuse_reply_lseek(req, whence == SEEK_DATA ? at : found.st.st_size);
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_at,
			struct fuse_file_info *from_fi, fuse_ino_t to, off_t to_at,
			struct fuse_file_info *to_fi, size_t bytes, int flags)
{
	sc_cleanup(sc_closep) int in = -1;
	sc_cleanup(sc_closep) int out = -1;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	ssize_t n;

	(void)from_fi;
	(void)to_fi;
	(void)flags;
	if (fs_open_bytes(fs, from, O_RDONLY, &in, &err) < 0 || fs_open_bytes(fs, to, O_RDWR, &out, &err) < 0) {
		fs_fail(req, "copy_file_range", &err);
		return;
	}
	fs_drop_set_id(req, out);
	n = sc_sys.copy_range(in, &from_at, out, &to_at, bytes);
	if (n < 0)
		(void)fuse_reply_err(req, errno);
	else
		(void)fuse_reply_write(req, (size_t)n);
}

void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
	enum fs_kind kind = fs_node_of(ino).kind;
	bool is_control = kind == FS_TOP || kind == FS_SPECIAL;
	struct fs *fs = fs_of(req);
	/* a poll does not say how the file is open: one of an earlier daemon is not opened again for it */
	struct fs_handle *h = is_control ? fs_handle_of(req, fs, ino, fi) : NULL;

	if (h && h->kind == FS_H_CONTROL) {
		fs_control_poll(req, fs, h->control, ph);
		return;
	}
	if (ph)
		fuse_pollhandle_destroy(ph);
	if (h || !is_control)
		(void)fuse_reply_poll(req, POLLIN | POLLOUT);
}
