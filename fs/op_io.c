/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of open files.  Views are answered straight from the blobs' mappings where runs are long; the bytes
 * between these runs are gathered into a buffer.  Real files come here only without passthrough.
 */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define RUN_BYTES_MIN 8192 /* shorter ones are gathered: each piece of a reply costs the kernel some 100 ns */
#define SHORT_RUNS_MAX 4   /* one after another: then the rest of their tensor is taken for such */
#define PIECES_MAX 1000	   /* of a reply; writev takes 1024 */
#define PIECE_BYTES_MIN 1024

/*
 * Buffers of gathered replies, as large as the largest read so far (the kernel sends 1 MiB at most).
 * Requests go to all workers in turn, so a buffer for each thread would never be in the processor's
 * cache; the buffer that was used last is handed out first.
 */
struct buffer {
	struct buffer *next;
	size_t bytes;
	unsigned char *at;		/* behind the struct, at a border of 64 bytes */
};

static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;

static struct buffer *take_buffer(size_t bytes)
{
	struct buffer *b;

	(void)pthread_mutex_lock(&buffers_lock);
	b = buffers;
	if (b)
		buffers = b->next;
	(void)pthread_mutex_unlock(&buffers_lock);
	if (b && b->bytes >= bytes)
		return b;
	sc_sys.release(b);
	b = sc_sys.alloc(sizeof(*b) + 63 + bytes);
	if (b) {
		b->bytes = bytes;
		b->at = (unsigned char *)(((uintptr_t)(b + 1) + 63) & ~(uintptr_t)63);
	}
	return b;
}

static void give_buffer(struct buffer *b)
{
	if (!b)
		return;
	(void)pthread_mutex_lock(&buffers_lock);
	b->next = buffers;
	buffers = b;
	(void)pthread_mutex_unlock(&buffers_lock);
}

/* Returns the room for a gathered reply: the ring entry of the request, or `*b`. */
static unsigned char *reply_room(fuse_req_t req, size_t bytes, struct buffer **b)
{
	char *payload;
	size_t room;

	if (fuse_req_is_uring(req) && fuse_req_get_payload(req, &payload, &room, NULL) == 0 && room >= bytes)
		return (unsigned char *)payload;
	*b = take_buffer(bytes);
	return *b ? (*b)->at : NULL;
}

void fs_buffers_done(void)
{
	for (struct buffer *b = buffers, *next; b; b = next) {
		next = b->next;
		sc_sys.release(b);
	}
	buffers = NULL;
}

/* --- read --- */

/*
 * Splits a reply into long runs of memory and (iov_base NULL) parts to gather between them, *ret_gather bytes in all.
 * Returns the number of pieces.
 */
static int find_pieces(const struct rs_image *im, uint64_t at, size_t bytes, struct iovec *iov, size_t *ret_gather)
{
	int nr = 0, nr_short = 0;

	*ret_gather = 0;
	for (uint64_t n; bytes; at += n, bytes -= n) {
		const unsigned char *data;
		uint32_t source;
		bool is_long;

		n = rs_image_run(im, at, bytes, &data, &source);
		is_long = n && (n == bytes || n >= RUN_BYTES_MIN) && nr < PIECES_MAX - 1;
		nr_short = is_long ? 0 : nr_short + 1;
		if (is_long) {
			iov[nr++] = (struct iovec){(void *)data, n};
			continue;
		}
		if (nr == PIECES_MAX - 1)
			n = bytes;
		else if (n == 0 || nr_short > SHORT_RUNS_MAX)
			n = sc_min_u64(rs_image_border(im, at) - at, bytes);
		*ret_gather += n;
		if (nr && !iov[nr - 1].iov_base)
			iov[nr - 1].iov_len += n;
		else
			iov[nr++] = (struct iovec){NULL, n};
	}
	return nr;
}

/* Puts read errors of changed sources and damaged blobs into the job's `error`. */
static void fail_read(fuse_req_t req, const struct fs_handle *h, const struct sc_err *err)
{
	rs_job_refused(rs_view_job(h->view), "read", err);
	fs_fail(req, "read", err);
}

/*
 * Finds out why the kernel could not read a mapping and has answered EIO, by reading the same bytes once more.  Uses a
 * handle of its own, because the reader may have closed the file.
 */
static void name_damage(struct fs *fs, fuse_ino_t ino, size_t bytes, uint64_t at)
{
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	struct buffer *b = take_buffer(bytes);
	struct sc_err err = {0};
	int rc = h && b ? 0 : sc_nomem(&err);

	if (h) {
		h->ino = ino;
		h->fd = -1;
	}
	if (rc == 0)
		rc = fs_reopen(NULL, fs, h, 0, O_RDONLY, &err);
	if (rc == 0 && h->data)
		rc = rs_data_read(h->data, at, bytes, b->at, &err);
	else if (rc == 0 && h->image)
		rc = rs_image_fetch(h->image, at, bytes, b->at, &err);
	if (rc < 0 && h && h->view)
		rs_job_refused(rs_view_job(h->view), "read", &err);
	if (rc < 0)
		sc_log(SC_LOG_ERROR, "read: %s", err.msg);
	fs_handle_free(fs, h);
	give_buffer(b);
}

/* Reads a partition: straight from the sources' mappings where samples are not small, else gathered. */
static void read_data(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at)
{
	const fuse_ino_t ino = h->ino;
	uint64_t end = rs_data_bytes(h->data);
	struct iovec iov[PIECES_MAX];
	struct buffer *buffer = NULL;
	struct sc_err err = {0};
	unsigned char *to;
	int nr = 0;

	if (at >= end) {
		(void)fuse_reply_buf(req, NULL, 0);
		return;
	}
	bytes = sc_min_u64(bytes, end - at);
	/* over io_uring libfuse itself would read the mappings, where a file that is cut meanwhile is SIGBUS */
	if (!fuse_req_is_uring(req))
		nr = rs_data_pieces(h->data, at, bytes, iov, (int)sc_min_u64(PIECES_MAX, bytes / PIECE_BYTES_MIN + 2),
				    &err);
	if (nr > 0) {
		if (fuse_reply_iov(req, iov, nr) == -EFAULT) /* a file cut just now */
			name_damage(fs, ino, bytes, at);
		return;
	}
	to = nr == 0 ? reply_room(req, bytes, &buffer) : NULL;
	if (nr == 0 && !to)
		nr = sc_nomem(&err);
	if (nr == 0)
		nr = rs_data_read(h->data, at, bytes, to, &err);
	if (nr < 0)
		fail_read(req, h, &err);
	else
		(void)fuse_reply_buf(req, (const char *)to, bytes);
	give_buffer(buffer);
}

/* Gathers the parts that are not runs, one after another in `to`. */
static int gather(const struct rs_image *im, uint64_t at, struct iovec *iov, int nr, unsigned char *to,
		  struct sc_err *err)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < nr; i++) {
		if (!iov[i].iov_base) {
			rc = rs_image_read(im, at, iov[i].iov_len, to, err);
			iov[i].iov_base = to;
			to += iov[i].iov_len;
		}
		at += iov[i].iov_len;
	}
	return rc;
}

/* at + bytes is within the view, and needed. */
static void send_view(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at)
{
	const struct rs_image *im = h->image;
	const fuse_ino_t ino = h->ino;
	struct buffer *buffer = NULL;
	struct iovec iov[PIECES_MAX];
	const bool ring = fuse_req_is_uring(req);
	unsigned char *to = NULL;
	struct sc_err err = {0};
	size_t gathered;
	int nr = 1;

	/* over io_uring libfuse itself would read the mappings, without our guard: all is gathered */
	iov[0] = (struct iovec){NULL, bytes};
	gathered = bytes;
	if (!ring)
		nr = find_pieces(im, at, bytes, iov, &gathered);
	if (gathered) {
		to = reply_room(req, gathered, &buffer);
		if (!to) {
			(void)fuse_reply_err(req, ENOMEM);
			return;
		}
	}
	if (gathered && gather(im, at, iov, nr, to, &err) < 0)
		fail_read(req, h, &err);
	else if (ring)
		(void)fuse_reply_buf(req, (const char *)to, bytes);
	else if (fuse_reply_iov(req, iov, nr) == -EFAULT)
		name_damage(fs, ino, bytes, at);
	give_buffer(buffer);
}

static void read_view(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at)
{
	struct rs_image *im = h->image;
	const bool waits = im->mapped.waits;
	struct sc_err err = {0};

	if (at >= im->bytes) {
		(void)fuse_reply_buf(req, NULL, 0);
		return;
	}
	bytes = sc_min_u64(bytes, im->bytes - at);
	if (rs_image_need(im, at, bytes, NULL, &err) < 0) {
		fail_read(req, h, &err);
		return;
	}
	/* once the reader has its answer, it may close the handle */
	if (waits)
		rs_image_ref(fs->service, im);
	send_view(req, fs, h, bytes, at);
	if (waits) {
		rs_image_release(im, at, bytes);
		rs_image_unref(fs->service, im);
	}
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

	if (!h)
		return;
	if (h->kind == FS_H_VIEW && h->data)
		read_data(req, fs, h, bytes, (uint64_t)at);
	else if (h->kind == FS_H_VIEW)
		read_view(req, fs, h, bytes, (uint64_t)at);
	else if (h->kind == FS_H_CONTROL)
		fs_control_read(req, fs, h->control, fi->fh, bytes, at);
	else if (h->kind == FS_H_FD)
		read_fd(req, h, bytes, at);
	else
		(void)fuse_reply_err(req, EBADF);
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
