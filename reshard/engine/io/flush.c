/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/flush.h"

#include <errno.h>
#include <liburing.h>

#include "meta/base/sys.h"

static int fail(const struct rs_flush_item *it, int error, struct sc_err *err)
{
	return !it->path       ? sc_fail_sys(err, error, "store: cannot flush a folder of blobs")
       : it->rank < 0 ? sc_fail_sys(err, error, "cannot flush '%s'", it->path)
			: sc_fail_sys(err, error, "rank %d: cannot flush '%s'", it->rank, it->path);
}

static int one_by_one(const struct rs_flush *f, struct sc_err *err)
{
	for (unsigned i = 0; i < f->nr; i++)
		if (sc_sys.fsync(f->at[i].fd) < 0)
			return fail(&f->at[i], errno, err);
	return 0;
}

/* Waits until all that was submitted has ended, unless the wait itself fails. */
static int reap(const struct rs_flush *f, struct io_uring *ring, unsigned nr, int rc, struct sc_err *err)
{
	while (nr) {
		struct io_uring_cqe *cqe;
		int n = sc_sys.ring_wait(ring, &cqe);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return rc < 0 ? rc : sc_fail_sys(err, -n, "cannot wait for files to be flushed (io_uring)");
		if (rc == 0 && cqe->res < 0)
			rc = fail(&f->at[io_uring_cqe_get_data64(cqe)], -cqe->res, err);
		io_uring_cqe_seen(ring, cqe);
		nr--;
	}
	return rc;
}

static int at_once(const struct rs_flush *f, struct io_uring *ring, struct sc_err *err)
{
	unsigned submitted = 0;
	int rc = 0;

	for (unsigned i = 0; i < f->nr; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring); /* as many as there are descriptors */

		io_uring_prep_fsync(sqe, f->at[i].fd, 0);
		io_uring_sqe_set_data64(sqe, i);
	}
	while (rc == 0 && submitted < f->nr) {
		int n = sc_sys.ring_submit(ring);

		if (n > 0)
			submitted += (unsigned)n;
		else if (n != -EINTR)
			rc = sc_fail_sys(err, n ? -n : EIO, "cannot begin to flush files (io_uring)");
	}
	return reap(f, ring, submitted, rc, err);
}

static int flush(const struct rs_flush *f, struct sc_err *err)
{
	struct io_uring ring;
	int rc;

	if (f->nr < 2 || sc_sys.ring_init(&ring, RS_FLUSH_MAX) < 0)
		return one_by_one(f, err);
	rc = at_once(f, &ring, err);
	sc_sys.ring_exit(&ring);
	return rc;
}

int rs_flush_end(struct rs_flush *f, int rc, struct sc_err *err)
{
	if (rc == 0)
		rc = flush(f, err);
	while (f->nr)
		sc_closep(&f->at[--f->nr].fd);
	return rc;
}

int rs_flush_add(struct rs_flush *f, int fd, int rank, const char *path, struct sc_err *err)
{
	int rc = f->nr == RS_FLUSH_MAX ? rs_flush_end(f, 0, err) : 0;

	f->at[f->nr++] = (struct rs_flush_item){fd, rank, path};
	return rc;
}

int rs_flush_add_dirs(struct rs_flush *f, const struct meta_store *store, const struct meta_store_dirs *dirs,
		      struct sc_err *err)
{
	int at = 0, fd = -1, rc;

	while ((rc = meta_store_next_dir(store, dirs, &at, &fd, err)) > 0) {
		rc = rs_flush_add(f, fd, 0, NULL, err);
		if (rc < 0)
			return rc;
	}
	return rc;
}
