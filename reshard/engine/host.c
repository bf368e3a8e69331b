/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/host.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>

#include "meta/base/log.h"

#define SLOTS_MAX 32
#define CLONE_BYTES_MIN (64u << 10)	/* a clone costs 17 us: below this copying is faster */
#define READ_BYTES_MIN (256u << 10)	/* shorter runs are gathered from the mapping */
#define SOURCES_OPEN_MAX 64

enum slot_state { SLOT_FREE, SLOT_READ, SLOT_WRITE };

struct slot {
	enum slot_state state;
	unsigned char *buffer;		/* owner: the ring while the state is not FREE */
	uint64_t at, bytes, done;	/* of the target file */
	int from;
	uint64_t from_at;
};

struct rs_host {
	const struct meta_store *store;
	struct io_uring ring;
	bool has_ring, registered;
	unsigned nr_slots, busy;
	struct slot slots[SLOTS_MAX];
	unsigned char *memory;
	struct {
		uint64_t blob;
		int fd;
	} open[SOURCES_OPEN_MAX];
	unsigned nr_open, next_open;
	/* of the file being written */
	const struct rs_image *image;
	int fd;
	bool clone;
	rs_host_tick_fn *tick;
	void *arg;
	uint64_t cloned;
	struct sc_err *err;
};

/* --- the ring's entries of the replaceable table --- */

static int real_ring_init(struct io_uring *ring, unsigned entries)
{
	return io_uring_queue_init(entries, ring, 0);
}

static int real_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret)
{
	return io_uring_wait_cqe(ring, ret);
}

__attribute__((constructor)) static void set_ring_defaults(void)
{
	sc_sys.ring_init = real_ring_init;
	sc_sys.ring_exit = io_uring_queue_exit;
	sc_sys.ring_submit = io_uring_submit;
	sc_sys.ring_wait = real_ring_wait;
}

/* --- life --- */

static void register_buffers(struct rs_host *h)
{
	struct iovec iov[SLOTS_MAX];

	for (unsigned i = 0; i < h->nr_slots; i++)
		iov[i] = (struct iovec){h->slots[i].buffer, RS_HOST_BUFFER_BYTES};
	/* refused under a low RLIMIT_MEMLOCK: plain reads and writes then */
	h->registered = io_uring_register_buffers(&h->ring, iov, h->nr_slots) == 0;
}

int rs_host_new(const struct meta_store *store, uint64_t buffer_bytes_max, struct rs_host **ret,
		struct sc_err *err)
{
	struct rs_host *h = sc_zalloc(sizeof(*h));
	uint64_t n = buffer_bytes_max / RS_HOST_BUFFER_BYTES;
	int rc;

	if (!h)
		return sc_nomem(err);
	h->store = store;
	h->nr_slots = n < 2 ? 2 : n > SLOTS_MAX ? SLOTS_MAX : (unsigned)n;
	h->memory = sc_sys.mmap(NULL, (size_t)h->nr_slots * RS_HOST_BUFFER_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (h->memory == MAP_FAILED) {
		sc_sys.release(h);
		return sc_nomem(err);
	}
	for (unsigned i = 0; i < h->nr_slots; i++)
		h->slots[i].buffer = h->memory + (size_t)i * RS_HOST_BUFFER_BYTES;
	rc = sc_sys.ring_init(&h->ring, SLOTS_MAX * 2);
	h->has_ring = rc == 0;
	if (h->has_ring)
		register_buffers(h);
	else
		sc_log(SC_LOG_WARN, "io_uring is not available (%s), continuing without it", strerror(-rc));
	*ret = h;
	return 0;
}

struct rs_host *rs_host_free(struct rs_host *h)
{
	if (h) {
		if (h->has_ring)
			sc_sys.ring_exit(&h->ring);
		for (unsigned i = 0; i < h->nr_open; i++)
			sc_closep(&h->open[i].fd);
		(void)sc_sys.munmap(h->memory, (size_t)h->nr_slots * RS_HOST_BUFFER_BYTES);
		sc_sys.release(h);
	}
	return NULL;
}

static int source_fd(struct rs_host *h, uint64_t blob, int *ret_fd)
{
	int fd, rc;

	for (unsigned i = 0; i < h->nr_open; i++)
		if (h->open[i].blob == blob) {
			*ret_fd = h->open[i].fd;
			return 0;
		}
	/* a descriptor may be closed only while no request uses it */
	if (h->nr_open == SOURCES_OPEN_MAX && h->busy)
		return 1;
	rc = meta_store_open_blob(h->store, blob, O_RDONLY, &fd, h->err);
	if (rc < 0)
		return rc;
	if (h->nr_open < SOURCES_OPEN_MAX) {
		h->open[h->nr_open].blob = blob;
		h->open[h->nr_open++].fd = fd;
	} else {
		sc_closep(&h->open[h->next_open].fd);
		h->open[h->next_open].blob = blob;
		h->open[h->next_open].fd = fd;
		h->next_open = (h->next_open + 1) % SOURCES_OPEN_MAX;
	}
	*ret_fd = fd;
	return 0;
}

/* --- slots --- */

static int tick(struct rs_host *h, uint64_t bytes)
{
	return h->tick && h->tick(h->arg, bytes) ? sc_fail(h->err, SC_E_CANCELLED, "stopped") : 0;
}

static void prepare(struct rs_host *h, struct slot *s)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&h->ring); /* twice as many as slots: never full */
	unsigned char *p = s->buffer + s->done;
	unsigned n = (unsigned)(s->bytes - s->done);
	int index = (int)(s - h->slots);

	if (s->state == SLOT_READ && h->registered)
		io_uring_prep_read_fixed(sqe, s->from, p, n, s->from_at + s->done, index);
	else if (s->state == SLOT_READ)
		io_uring_prep_read(sqe, s->from, p, n, s->from_at + s->done);
	else if (h->registered)
		io_uring_prep_write_fixed(sqe, h->fd, p, n, s->at + s->done, index);
	else
		io_uring_prep_write(sqe, h->fd, p, n, s->at + s->done);
	io_uring_sqe_set_data(sqe, s);
}

static int run_now(struct rs_host *h, struct slot *s)
{
	int n = 0;

	if (s->state == SLOT_READ)
		n = sc_pread_all(s->from, s->buffer, s->bytes, s->from_at);
	if (n == 0)
		n = sc_pwrite_all(h->fd, s->buffer, s->bytes, s->at);
	s->state = SLOT_FREE;
	return n < 0 ? sc_fail_sys(h->err, errno, "engine: cannot copy") : tick(h, s->bytes);
}

static int start(struct rs_host *h, struct slot *s)
{
	int n;

	s->done = 0;
	if (!h->has_ring)
		return run_now(h, s);
	prepare(h, s);
	h->busy++;
	n = sc_sys.ring_submit(&h->ring);
	return n < 0 ? sc_fail_sys(h->err, -n, "engine: cannot submit") : 0;
}

/* One completion: short transfers go on, a finished read becomes a write. */
static int complete(struct rs_host *h, struct slot *s, int result)
{
	int n;

	if (result == -EINTR || result == -EAGAIN)
		result = 0;
	else if (result == 0 && s->state == SLOT_READ)
		result = -EIO; /* a sealed blob does not end early */
	if (result < 0) {
		s->state = SLOT_FREE;
		h->busy--;
		return sc_fail_sys(h->err, -result, "engine: cannot copy");
	}
	s->done += (uint64_t)result;
	if (s->done == s->bytes && s->state == SLOT_WRITE) {
		s->state = SLOT_FREE;
		h->busy--;
		return tick(h, s->bytes);
	}
	if (s->done == s->bytes) {
		s->state = SLOT_WRITE;
		s->done = 0;
	}
	prepare(h, s);
	n = sc_sys.ring_submit(&h->ring);
	return n < 0 ? sc_fail_sys(h->err, -n, "engine: cannot submit") : 0;
}

static int reap(struct rs_host *h)
{
	struct io_uring_cqe *cqe;
	struct slot *s;
	int n = sc_sys.ring_wait(&h->ring, &cqe), result;

	if (n == -EINTR)
		return 0;
	if (n < 0)
		return sc_fail_sys(h->err, -n, "engine: cannot wait");
	s = io_uring_cqe_get_data(cqe);
	result = cqe->res;
	io_uring_cqe_seen(&h->ring, cqe);
	return complete(h, s, result);
}

static int get_slot(struct rs_host *h, struct slot **ret)
{
	for (;;) {
		int rc;

		for (unsigned i = 0; i < h->nr_slots; i++)
			if (h->slots[i].state == SLOT_FREE) {
				*ret = &h->slots[i];
				return 0;
			}
		rc = reap(h);
		if (rc < 0)
			return rc;
	}
}

/* Every buffer is ours again when this returns, also after an error. */
static int drain(struct rs_host *h, int rc)
{
	struct sc_err ignored, *err = h->err;

	while (h->busy) {
		if (rc < 0)
			h->err = &ignored;
		if (reap(h) < 0 && rc == 0)
			rc = err->code;
		if (rc < 0 && h->busy > h->nr_slots)
			break;
	}
	h->err = err;
	return rc;
}

/* --- one file --- */

/* Clones the block-aligned middle of a run; *ret is how many bytes it took, from `at` on. */
static int clone_run(struct rs_host *h, uint64_t at, uint64_t bytes, uint32_t source,
		     const unsigned char *data, uint64_t *ret)
{
	const struct rs_blob *blob = h->image->blobs[source];
	uint64_t from = (uint64_t)(data - blob->map);
	int fd, rc;

	*ret = 0;
	if (!h->clone || bytes < CLONE_BYTES_MIN || at % SC_DATA_ALIGN || from % SC_DATA_ALIGN)
		return 0;
	bytes -= bytes % SC_DATA_ALIGN;
	do
		rc = source_fd(h, blob->id, &fd);
	while (rc == 1 && (rc = reap(h)) == 0);
	if (rc < 0)
		return rc;
	if (sc_sys.clone_range(h->fd, at, fd, from, bytes) < 0) {
		if (errno == ENOSPC || errno == EIO)
			return sc_fail_sys(h->err, errno, "engine: cannot reflink");
		h->clone = false; /* this file system cannot, or not these two files */
		return 0;
	}
	h->cloned += bytes;
	*ret = bytes;
	return tick(h, bytes);
}

/* How far the next piece of the file goes that is copied in one go. */
static uint64_t piece_bytes(const struct rs_host *h, uint64_t at, uint64_t run, uint32_t source,
			    const unsigned char *data)
{
	const struct rs_image *im = h->image;
	uint64_t end = im->bytes, n;

	/* tensors are taken one by one, so that the next one can still be cloned */
	for (uint32_t lo = 0, hi = im->nr; lo < hi;) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (im->tensors[mid].end <= at)
			lo = mid + 1;
		else
			hi = mid;
		if (lo == hi && lo < im->nr)
			end = at < im->tensors[lo].begin ? im->tensors[lo].begin : im->tensors[lo].end;
	}
	n = end - at < RS_HOST_BUFFER_BYTES ? end - at : RS_HOST_BUFFER_BYTES;
	if (h->clone && run >= 2 * CLONE_BYTES_MIN && source != UINT32_MAX) {
		uint64_t from = (uint64_t)(data - im->blobs[source]->map), head = SC_DATA_ALIGN - at % SC_DATA_ALIGN;

		if (at % SC_DATA_ALIGN == from % SC_DATA_ALIGN && at % SC_DATA_ALIGN && head < n)
			return head; /* up to the block where a clone can begin */
	}
	return run >= READ_BYTES_MIN && run < n ? run : n;
}

static int write_image(struct rs_host *h)
{
	const struct rs_image *im = h->image;
	int rc = 0;

	for (uint64_t at = 0, n; rc == 0 && at < im->bytes; at += n) {
		const unsigned char *data = NULL;
		uint32_t source = UINT32_MAX;
		uint64_t run = rs_image_run(im, at, im->bytes - at, &data, &source);
		struct slot *s;

		n = 0;
		if (run && source != UINT32_MAX)
			rc = clone_run(h, at, run, source, data, &n);
		if (rc < 0 || n)
			continue;
		n = piece_bytes(h, at, run, source, data);
		rc = get_slot(h, &s);
		if (rc < 0)
			break;
		s->at = at;
		s->bytes = n;
		s->state = SLOT_WRITE;
		if (run >= n && n >= READ_BYTES_MIN && source != UINT32_MAX &&
		    source_fd(h, im->blobs[source]->id, &s->from) == 0) {
			s->from_at = (uint64_t)(data - im->blobs[source]->map);
			s->state = SLOT_READ;
		} else {
			rs_image_read(im, at, n, s->buffer);
		}
		rc = start(h, s);
	}
	return drain(h, rc);
}

int rs_host_write(struct rs_host *host, const struct rs_image *image, int fd,
		  rs_host_tick_fn *tick_fn, void *arg, uint64_t *ret_cloned, struct sc_err *err)
{
	int rc;

	host->image = image;
	host->fd = fd;
	host->clone = true;
	host->tick = tick_fn;
	host->arg = arg;
	host->cloned = 0;
	host->err = err;
	rc = write_image(host);
	if (rc == 0)
		*ret_cloned = host->cloned;
	return rc;
}
