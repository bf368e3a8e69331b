/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends bytes of views and partitions.  Long runs are sent straight from the mappings of their sources; the bytes
 * between these runs are gathered into a buffer.
 */
#include "fs/read/read.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

#include "fs/open/open.h"
#include "fs/request/request.h"

#define RUN_BYTES_MIN 8192 /* shorter ones are gathered: each piece of a reply costs the kernel some 100 ns */
#define SHORT_RUNS_MAX 4   /* one after another: then the rest of their tensor is taken for such */
#define PIECES_MAX 1000	   /* of a reply; writev takes 1024 */
#define PIECE_BYTES_MIN 1024

FS_READS(view_reads, "view");

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
static void fail_read(fuse_req_t req, const struct rs_view *view, const struct sc_err *err)
{
	rs_job_refused(rs_view_job(view), "read", err);
	fs_fail(req, "read", err);
}

void fs_fail_seen(const struct fs_seen *seen, const struct sc_err *err)
{
	fail_read(seen->req, seen->view, err);
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
void fs_read_data(fuse_req_t req, struct fs *fs, const struct fs_handle *h, size_t bytes, uint64_t at)
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
		fail_read(req, h->view, &err);
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

void fs_send_seen(const struct fs_seen *seen)
{
	const struct fs_seen s = *seen;
	struct buffer *buffer = NULL;
	struct iovec iov[PIECES_MAX];
	const bool ring = fuse_req_is_uring(s.req);
	unsigned char *to = NULL;
	struct sc_err err = {0};
	size_t gathered;
	int nr = 1;

	/* over io_uring libfuse itself would read the mappings, without our guard: all is gathered */
	iov[0] = (struct iovec){NULL, s.bytes};
	gathered = s.bytes;
	if (!ring)
		nr = find_pieces(s.image, s.at, s.bytes, iov, &gathered);
	if (gathered) {
		to = reply_room(s.req, gathered, &buffer);
		if (!to) {
			(void)fuse_reply_err(s.req, ENOMEM);
			return;
		}
	}
	if (gathered && gather(s.image, s.at, iov, nr, to, &err) < 0)
		fs_fail_seen(&s, &err);
	else if (ring)
		(void)fuse_reply_buf(s.req, (const char *)to, s.bytes);
	else if (fuse_reply_iov(s.req, iov, nr) == -EFAULT)
		name_damage(s.fs, s.ino, s.bytes, s.at);
	sc_metric_since(&view_reads, s.began_ns);
	give_buffer(buffer);
}
