/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/host.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>

#include "meta/base/log.h"
#include "reshard/engine/io/fds.h"

#define BUFFER_BYTES (1u << 20)
#define SLOTS_MAX 16
#define AHEAD_BYTES (16u << 20)	/* of bytes that are not here yet, behind what is written */
#define WAIT_SECONDS 10		/* without a completion: it is said */
#define NUDGE UINT64_MAX	/* no slot's, and no flush's */
/* Write-back begins in pieces of this size, as far behind the writes: buffers in flight are not dirty yet. */
#define WRITE_BACK_BYTES (32u << 20)
#define WRITE_BACK_BEHIND (SLOTS_MAX * (uint64_t)BUFFER_BYTES)
#define WRITE_BACKS_MAX SLOTS_MAX	/* in flight: the ring has room for as many beside the slots */

struct slot {
	bool busy;
	unsigned char *buffer;		/* owner: the ring while busy */
	uint64_t at, bytes, done;	/* of the target file */
};

struct host {
	struct rs_engine engine;
	const struct meta_store *store;
	struct io_uring ring;
	bool has_ring;
	bool refused, mute;		/* the ring: took no entry, gives no completions */
	unsigned nr_slots, busy, write_backs;
	struct slot slots[SLOTS_MAX];
	unsigned char *memory;
	/* of the call */
	struct rs_fds fds;
	const struct rs_write_options *how;
	uint64_t cloned, copied;
	struct sc_err *err;
	/* of the file being written */
	const struct rs_image *image;
	int fd;
	bool clone;			/* not refused so far */
	uint64_t write_back_at;		/* it has begun up to here */
};

/* --- the ring's entries of the replaceable table --- */

static int real_ring_init(struct io_uring *ring, unsigned entries)
{
	return io_uring_queue_init(entries, ring, 0);
}

int rs_host_ring(void)
{
	struct io_uring ring;
	const int rc = real_ring_init(&ring, 8);

	if (rc == 0)
		io_uring_queue_exit(&ring);
	return -rc;
}

/* Submits an entry without effect: the kernel's workers begin with what waited before it. */
static void nudge(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe)
		return;
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data64(sqe, NUDGE);
	(void)io_uring_submit(ring);
}

/*
 * Waits for a completion, and nudges the ring after a second.  On Linux 6.18 an entry was seen to stay without a
 * completion for minutes, with no worker of io_uring in the process (in the fault test, in a thread that made and ended
 * many rings).  Why is not known.
 */
static int real_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret)
{
	unsigned seconds = 0;

	for (;;) {
		struct __kernel_timespec second = {.tv_sec = 1};
		int rc = io_uring_wait_cqe_timeout(ring, ret, &second);

		if (rc == 0 && io_uring_cqe_get_data64(*ret) == NUDGE) {
			io_uring_cqe_seen(ring, *ret);
			continue;
		}
		if (rc != -ETIME)
			return rc;
		nudge(ring);
		if (++seconds % WAIT_SECONDS == 0)
			sc_log(SC_LOG_WARN, "engine: the disk has not answered for %u s, continuing to wait", seconds);
	}
}

__attribute__((constructor)) static void set_ring_defaults(void)
{
	sc_sys.ring_init = real_ring_init;
	sc_sys.ring_exit = io_uring_queue_exit;
	sc_sys.ring_submit = io_uring_submit;
	sc_sys.ring_wait = real_ring_wait;
}

/* --- life --- */

static int host_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	struct host *h = sc_zalloc(sizeof(*h));
	uint64_t n = budget / BUFFER_BYTES;
	int rc;

	if (!h)
		return sc_nomem(err);
	h->store = store;
	h->nr_slots = n < 2 ? 2 : n > SLOTS_MAX ? SLOTS_MAX : (unsigned)n;
	h->memory = sc_sys.mmap(NULL, (size_t)h->nr_slots * BUFFER_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (h->memory == MAP_FAILED) {
		sc_sys.release(h);
		return sc_nomem(err);
	}
	for (unsigned i = 0; i < h->nr_slots; i++)
		h->slots[i].buffer = h->memory + (size_t)i * BUFFER_BYTES;
	rc = sc_sys.ring_init(&h->ring, SLOTS_MAX * 2);
	h->has_ring = rc == 0;
	if (!h->has_ring)
		sc_log(SC_LOG_WARN, "io_uring is not available (%s), continuing without it", strerror(-rc));
	*ret = &h->engine;
	return 0;
}

static void host_close(struct rs_engine *e)
{
	struct host *h = (struct host *)e;

	if (h->has_ring)
		sc_sys.ring_exit(&h->ring);
	(void)sc_sys.munmap(h->memory, (size_t)h->nr_slots * BUFFER_BYTES);
	sc_sys.release(h);
}

/* --- slots --- */

static int tick(struct host *h, uint64_t bytes)
{
	return h->how->tick && h->how->tick(h->how->arg, bytes) ? sc_fail(h->err, SC_E_CANCELLED, "stopped") : 0;
}

static void prepare(struct host *h, struct slot *s)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&h->ring); /* twice as many as slots: never full */
	unsigned char *p = s->buffer + s->done;
	unsigned n = (unsigned)(s->bytes - s->done);

	io_uring_prep_write(sqe, h->fd, p, n, s->at + s->done);
	io_uring_sqe_set_data(sqe, s);
}

/*
 * Begins the write-back of [write_back_at, to), in the kernel's workers, since it waits for the device's queue.  This
 * is only advice: the flush at the end has the errors, and finds what was left out here.
 */
static void begin_write_back(struct host *h, uint64_t to)
{
	uint64_t from = h->write_back_at;
	struct io_uring_sqe *sqe;

	if (h->write_backs == WRITE_BACKS_MAX || to - from > UINT32_MAX)
		return;
	h->write_back_at = to;
	sqe = io_uring_get_sqe(&h->ring);
	io_uring_prep_sync_file_range(sqe, h->fd, (unsigned)(to - from), from, SYNC_FILE_RANGE_WRITE);
	io_uring_sqe_set_data(sqe, NULL);
	h->write_backs++;
}

/* Submits the write of a slot.  If the ring does not take the entry it is not in flight, and nobody may wait for it. */
static int submit(struct host *h, struct slot *s)
{
	while (io_uring_sq_ready(&h->ring)) {
		int n = sc_sys.ring_submit(&h->ring);

		if (n <= 0 && n != -EINTR) {
			h->refused = true;
			s->busy = false;
			h->busy--;
			return sc_fail_sys(h->err, n ? -n : EIO, "cannot begin to write files (io_uring)");
		}
	}
	return 0;
}

static int start(struct host *h, struct slot *s)
{
	s->done = 0;
	h->copied += s->bytes;
	if (!h->has_ring)
		return sc_pwrite_all(h->fd, s->buffer, s->bytes, s->at) < 0
			       ? sc_fail_sys(h->err, errno, "cannot write") : tick(h, s->bytes);
	prepare(h, s);
	if (h->how->will_flush && s->at >= h->write_back_at + WRITE_BACK_BYTES + WRITE_BACK_BEHIND)
		begin_write_back(h, s->at - WRITE_BACK_BEHIND);
	s->busy = true;
	h->busy++;
	return submit(h, s);
}

/* Takes one completion; a short write goes on. */
static int complete(struct host *h, struct slot *s, int result)
{
	if (result == -EINTR || result == -EAGAIN)
		result = 0;
	s->done += result > 0 ? (uint64_t)result : 0;
	if (result < 0 || s->done == s->bytes || h->refused) {
		s->busy = false;
		h->busy--;
		return result < 0 ? sc_fail_sys(h->err, -result, "cannot write") : tick(h, s->bytes);
	}
	prepare(h, s);
	return submit(h, s);
}

static int reap(struct host *h)
{
	struct io_uring_cqe *cqe;
	struct slot *s;
	int n = sc_sys.ring_wait(&h->ring, &cqe), result;

	if (n == -EINTR)
		return 0;
	if (n < 0) {
		h->mute = true;
		return sc_fail_sys(h->err, -n, "cannot wait for writes (io_uring)");
	}
	s = io_uring_cqe_get_data(cqe);
	result = cqe->res;
	io_uring_cqe_seen(&h->ring, cqe);
	if (!s)
		h->write_backs--;
	/* one that was refused may have gone out with a later one */
	return s && s->busy ? complete(h, s, result) : 0;
}

static int get_slot(struct host *h, struct slot **ret)
{
	for (;;) {
		int rc;

		for (unsigned i = 0; i < h->nr_slots; i++)
			if (!h->slots[i].busy) {
				*ret = &h->slots[i];
				return 0;
			}
		rc = reap(h);
		if (rc < 0)
			return rc;
	}
}

/* Ends a ring that did not take an entry, which would go out with the next ones.  Later files are written without a
 * ring. */
static void end_ring(struct host *h)
{
	sc_sys.ring_exit(&h->ring);
	h->has_ring = h->refused = h->mute = false;
	h->busy = h->write_backs = 0;
	for (unsigned i = 0; i < h->nr_slots; i++)
		h->slots[i].busy = false;
}

/*
 * Waits until every buffer is ours again, also after an error.  (Buffers of a ring that gives no completions are not;
 * what it may still write goes into a file that is given up.)
 */
static int drain(struct host *h, int rc)
{
	struct sc_err ignored, *err = h->err;

	while (h->busy && !h->mute) {
		if (rc < 0)
			h->err = &ignored;
		if (reap(h) < 0 && rc == 0)
			rc = err->code;
	}
	h->err = err;
	if (h->refused || h->mute)
		end_ring(h);
	return rc;
}

/* --- one file --- */

/* Clones the block-aligned middle of a run; *ret is how many bytes it took, from `at` on. */
static int clone_run(struct host *h, uint64_t at, uint64_t bytes, uint32_t source,
		     const unsigned char *data, uint64_t *ret)
{
	struct rs_bytes *b = h->image->mapped.bytes[source];
	uint64_t from = (uint64_t)(data - b->map);
	int fd, rc, failed = 0;

	*ret = 0;
	if (!h->clone || bytes < SC_CLONE_BYTES_MIN || at % SC_DATA_ALIGN || from % SC_DATA_ALIGN)
		return 0;
	bytes -= bytes % SC_DATA_ALIGN;
	rc = rs_fds_get(&h->fds, b, &fd, h->err);
	if (rc == 0)
		rc = rs_image_need(h->image, at, bytes, NULL, h->err);
	if (rc < 0)
		return rc;
	if (sc_sys.clone_range(h->fd, at, fd, from, bytes) < 0)
		failed = errno;
	rs_image_release(h->image, at, bytes);
	if (failed) {
		if (failed == ENOSPC || failed == EIO)
			return sc_fail_sys(h->err, failed, "engine: cannot reflink");
		if (h->how->clones_only)
			return sc_fail(h->err, SC_E_UNSUPPORTED, "the store's file system cannot share blocks "
				"(reflink)");
		h->clone = false; /* this file system cannot, or not these two files */
		return 0;
	}
	h->cloned += bytes;
	*ret = bytes;
	return tick(h, bytes);
}

/* Returns the bytes up to the block where a clone of a run can begin; UINT64_MAX: no clone can. */
static uint64_t clone_head(const struct host *h, uint64_t at, uint64_t run, uint32_t source,
			   const unsigned char *data)
{
	if (!h->clone || run < 2 * SC_CLONE_BYTES_MIN || source == UINT32_MAX ||
	    at % SC_DATA_ALIGN != (uint64_t)(data - h->image->mapped.bytes[source]->map) % SC_DATA_ALIGN)
		return UINT64_MAX;
	return (SC_DATA_ALIGN - at % SC_DATA_ALIGN) % SC_DATA_ALIGN;
}

/*
 * Reads a long run by a descriptor; *ret is how many bytes it took.  Writes of whole buffers at multiples of their size
 * get large folios, which the small writes of copy_file_range do not.
 */
static int read_run(struct host *h, uint64_t at, uint64_t bytes, uint32_t source,
		    const unsigned char *data, uint64_t *ret)
{
	struct rs_bytes *b = h->image->mapped.bytes[source];
	const struct rs_source *from = &h->image->sources.at[source];
	struct slot *s = NULL;
	int fd, rc;

	*ret = 0;
	if (h->how->clones_only || bytes < RS_FDS_READ_BYTES_MIN ||
	    clone_head(h, at, bytes, source, data) != UINT64_MAX)
		return 0;
	rc = rs_fds_get(&h->fds, b, &fd, h->err);
	if (rc == 0)
		rc = get_slot(h, &s);
	if (rc < 0)
		return rc;
	s->at = at;
	s->bytes = sc_min_u64(bytes, BUFFER_BYTES - at % BUFFER_BYTES);
	*ret = s->bytes;
	rc = rs_image_need(h->image, at, s->bytes, NULL, h->err);
	if (rc < 0)
		return rc;
	rc = rs_fd_read(fd, b->blob, (uint64_t)(data - b->map), s->bytes, s->buffer, h->err);
	rs_image_release(h->image, at, s->bytes);
	return rc < 0 ? sc_wrap(h->err, rc, "rank %u '%s'", from->rank, from->file) : start(h, s);
}

/* Returns how many bytes up to `end` are gathered at once: not those of a block of this run or the next one that can be
 * cloned. */
static uint64_t piece_bytes(const struct host *h, uint64_t at, uint64_t end, uint64_t run, uint32_t source,
			    const unsigned char *data)
{
	uint64_t n = sc_min_u64(sc_min_u64(rs_image_border(h->image, at), end) - at, BUFFER_BYTES);
	uint64_t head = clone_head(h, at, run, source, data);

	if (head == UINT64_MAX && h->clone && run && run < n) {
		uint64_t next = rs_image_run(h->image, at + run, end - at - run, &data, &source);

		head = clone_head(h, at + run, next, source, data);
		if (head != UINT64_MAX)
			head += run;
	}
	return head && head < n ? head : n;
}

static int gather(struct host *h, uint64_t at, uint64_t bytes)
{
	struct slot *s = NULL;
	int rc = get_slot(h, &s);

	if (rc < 0)
		return rc;
	s->at = at;
	s->bytes = bytes;
	rc = rs_image_fetch(h->image, at, bytes, s->buffer, h->err);
	return rc < 0 ? rc : start(h, s);
}

static int write_part(struct host *h, const struct rs_range *part)
{
	const uint64_t end = part->at + part->bytes;
	uint64_t asked = part->at;
	int rc = 0;

	for (uint64_t at = part->at, n; rc == 0 && at < end; at += n) {
		const unsigned char *data = NULL;
		uint32_t source = UINT32_MAX;
		uint64_t run = rs_image_run(h->image, at, end - at, &data, &source);

		for (; h->image->mapped.waits && asked < end && asked < at + AHEAD_BYTES; asked += n) {
			n = sc_min_u64(AHEAD_BYTES / 2, end - asked);
			rs_image_ahead(h->image, asked, n);
		}
		n = 0;
		if (run && source != UINT32_MAX)
			rc = clone_run(h, at, run, source, data, &n);
		if (rc == 0 && n == 0 && run && source != UINT32_MAX)
			rc = read_run(h, at, run, source, data, &n);
		if (rc == 0 && n == 0) {
			n = piece_bytes(h, at, end, run, source, data);
			rc = gather(h, at, n);
		}
	}
	return rc;
}

static int write_file(struct host *h, const struct rs_target *target, const struct rs_range *parts, size_t nr)
{
	int rc = 0;

	h->image = target->image;
	h->fd = target->fd;
	h->clone = true;
	h->write_back_at = 0;
	for (size_t i = 0; rc == 0 && i < nr; i++)
		rc = write_part(h, &parts[i]);
	rc = drain(h, rc);
	if (rc == 0 && h->how->will_flush)
		(void)sc_sys.begin_write_back(h->fd); /* of the rest, and in small files of all */
	return rc;
}

static void begin_call(struct host *h, const struct rs_write_options *how, struct sc_err *err)
{
	h->how = how;
	h->err = err;
	h->cloned = h->copied = 0;
}

int rs_host_write_parts(struct rs_engine *e, const struct rs_target *target, const struct rs_range *parts, size_t nr,
			const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err)
{
	struct host *h = (struct host *)e;
	int rc;

	begin_call(h, how, err);
	rc = write_file(h, target, parts, nr);
	rs_fds_close(&h->fds);
	ret->cloned += h->cloned;
	ret->copied += h->copied;
	return rc;
}

static int host_write(struct rs_engine *e, const struct rs_target *targets, size_t nr,
		      const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err)
{
	struct host *h = (struct host *)e;
	int rc = 0;

	begin_call(h, how, err);
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		rc = write_file(h, &targets[i], &(struct rs_range){0, targets[i].image->bytes}, 1);
		if (rc < 0)
			ret->failed = i;
	}
	rs_fds_close(&h->fds);
	ret->cloned = h->cloned;
	ret->copied = h->copied;
	return rc;
}

const struct rs_engine_ops rs_engine_host = {
	.name = "host",
	.threads = 4,
	.targets = 1,
	.open = host_open,
	.close = host_close,
	.write = host_write,
};
