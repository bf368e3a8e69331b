/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files of .gpu: while one is open, a GPU has the bytes of the rank's file, and a read tells where they are.
 *
 *     op_open() ── rs_load_start() ──> parked ── done(), by the loader's thread ──> answered, freed
 *
 * The OPEN is answered when all bytes are there; until then it occupies no FUSE worker.  What is parked has the handle,
 * which the kernel does not know yet, and with it view and image.  A signal for the opener gives the load up, and so
 * does the end of the mount: done() comes soon, once, in any case, but behind the load that its GPU is busy with.  Over
 * io_uring some may be parked (FS_RING_WAITERS), the others are refused: a ring's thread that waited would keep the
 * loader from answering those of its ring, and so from loading.  A daemon that is killed has answered
 * none of them: the kernel sends them to the next one.  Bytes of files that were open are lost with it, and reading
 * says so.
 */
#include "fs/open/open.h"

#include <errno.h>

#include "fs/request/request.h"
#include "reshard/engine/gpu/remote.h"
#include "reshard/engine/loads/loads.h"

#define PARKED_MAX 1024
#define RING_OPENS (FS_RING_WAITERS / 2) /* the others are for control files */

struct fs_gpu_open {
	fuse_req_t req;
	struct fs *fs;
	struct fs_handle *h;
	struct fuse_file_info fi;
	bool by_ring;
	/* under fs->gpu.lock */
	bool is_interrupted;
	struct sc_err err;	/* code 0: none */
	struct fs_gpu_open *before, *after;
};

/* --- what others call --- */

/* libfuse calls this with the request's lock held. */
static void on_interrupt(fuse_req_t req, void *data)
{
	struct fs_gpu_open *o = data;

	(void)req;
	(void)pthread_mutex_lock(&o->fs->gpu.lock);
	o->is_interrupted = true;
	if (o->h->load)
		rs_load_cancel(o->h->load);
	(void)pthread_mutex_unlock(&o->fs->gpu.lock);
}

static void unlink_open(struct fs_gpu_open *o)
{
	struct fs *fs = o->fs;

	if (o->before)
		o->before->after = o->after;
	else
		fs->gpu.opens = o->after;
	if (o->after)
		o->after->before = o->before;
	fs->gpu.nr--;
	if (o->by_ring)
		(void)__atomic_sub_fetch(&fs->ring_waiters, 1, __ATOMIC_RELEASE);
	(void)pthread_cond_broadcast(&fs->gpu.news);
}

/* Ends a load's interrupts, and gives its result: on_interrupt() neither runs nor will run afterwards. */
static int finish(struct fs_gpu_open *o)
{
	struct fs *fs = o->fs;

	fuse_req_interrupt_func(o->req, NULL, NULL);
	if (o->err.code == SC_E_CANCELLED)
		o->err.errnum = fs->gpu.stop ? ECONNABORTED : EINTR;
	else if (o->err.code)
		rs_job_refused(rs_view_job(o->h->view), ".gpu", &o->err);
	return o->err.code;
}

static void answer(struct fs_gpu_open *o)
{
	struct fs *fs = o->fs;
	const int rc = finish(o);

	if (!fs_is_lost(fs, o->by_ring))
		fs_open_end(o->req, fs, o->h, NULL, &o->fi, "open", rc, &o->err);
	(void)pthread_mutex_lock(&fs->gpu.lock);
	unlink_open(o);
	(void)pthread_mutex_unlock(&fs->gpu.lock);
	sc_sys.release(o);
}

static void on_done(void *arg, struct rs_load *load, const struct sc_err *err)
{
	struct fs_gpu_open *o = arg;

	(void)load;
	(void)pthread_mutex_lock(&o->fs->gpu.lock);
	if (err)
		o->err = *err;
	(void)pthread_mutex_unlock(&o->fs->gpu.lock);
	answer(o);
}

/* --- opens --- */

static bool may_park(struct fs *fs, bool by_ring)
{
	if (!by_ring)
		return true;
	if (__atomic_add_fetch(&fs->ring_waiters, 1, __ATOMIC_ACQ_REL) <= RING_OPENS)
		return true;
	(void)__atomic_sub_fetch(&fs->ring_waiters, 1, __ATOMIC_RELEASE);
	return false;
}

static struct fs_gpu_open *open_new(fuse_req_t req, struct fs *fs, struct fs_handle *h, const struct fuse_file_info *fi,
				    struct sc_err *err)
{
	struct fs_gpu_open *o = sc_zalloc(sizeof(*o));
	bool fits;

	if (!o) {
		(void)sc_nomem(err);
		return NULL;
	}
	*o = (struct fs_gpu_open){.req = req, .fs = fs, .h = h, .fi = *fi, .by_ring = fuse_req_is_uring(req)};
	(void)pthread_mutex_lock(&fs->gpu.lock);
	fits = fs->gpu.nr < PARKED_MAX && !fs->gpu.stop && may_park(fs, o->by_ring);
	if (fits) {
		o->after = fs->gpu.opens;
		if (o->after)
			o->after->before = o;
		fs->gpu.opens = o;
		fs->gpu.nr++;
	}
	(void)pthread_mutex_unlock(&fs->gpu.lock);
	if (fits)
		return o;
	(void)sc_fail(err, SC_E_BUSY, "%d files of .gpu are being loaded%s: open this one later",
		      o->by_ring ? RING_OPENS : PARKED_MAX, o->by_ring ? " or waited for, with -o io_uring" : "");
	sc_sys.release(o);
	return NULL;
}

int fs_gpu_open(fuse_req_t req, struct fs *fs, struct fs_handle *h, uint32_t rank, struct fuse_file_info *fi,
		struct sc_err *err)
{
	const struct rs_load_file file = {.image = h->image, .fd = h->fd,
					  .bytes = h->image ? h->image->bytes : h->bytes};
	struct fs_gpu_open *o;
	int rc = 0;

	h->kind = FS_H_GPU;
	fi->direct_io = 1;
	fi->keep_cache = 0;
	fi->noflush = 1;
	o = open_new(req, fs, h, fi, err);
	if (!o)
		return err->code;
	fuse_req_interrupt_func(req, on_interrupt, o);
	(void)pthread_mutex_lock(&fs->gpu.lock); /* on_interrupt() finds the load, or came before */
	if (o->is_interrupted)
		rc = sc_fail(err, SC_E_CANCELLED, "interrupted");
	if (rc == 0)
		rc = rs_load_start(&file, rank, on_done, o, &h->load, err);
	if (rc < 0)
		o->err = *err;
	(void)pthread_mutex_unlock(&fs->gpu.lock);
	if (rc == 0)
		return 1;
	rc = finish(o);
	*err = o->err;
	(void)pthread_mutex_lock(&fs->gpu.lock);
	unlink_open(o);
	(void)pthread_mutex_unlock(&fs->gpu.lock);
	sc_sys.release(o);
	return rc;
}

void fs_gpu_read(fuse_req_t req, const struct fs_handle *h, size_t bytes, uint64_t at)
{
	struct sc_buf text = {0};
	struct sc_err err = {0};
	int rc = h->load ? rs_load_text(h->load, &text, &err)
			 : sc_fail(&err, SC_E_SYSTEM, "the bytes are in no GPU any more: the daemon that had loaded "
				   "them was replaced; open the file again");

	if (rc < 0) {
		rs_job_refused(rs_view_job(h->view), ".gpu", &err);
		fs_fail(req, "read", &err);
	} else if (at >= text.bytes) {
		(void)fuse_reply_buf(req, NULL, 0);
	} else {
		(void)fuse_reply_buf(req, text.text + at, sc_min_u64(bytes, text.bytes - at));
	}
	sc_buf_done(&text);
}

void fs_gpu_stop(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->gpu.lock);
	fs->gpu.stop = true;
	for (struct fs_gpu_open *o = fs->gpu.opens; o; o = o->after)
		if (o->h->load)
			rs_load_cancel(o->h->load);
	while (fs->gpu.opens)
		(void)pthread_cond_wait(&fs->gpu.news, &fs->gpu.lock);
	(void)pthread_mutex_unlock(&fs->gpu.lock);
}

void fs_gpu_end(void)
{
	rs_loads_stop();
	(void)rs_gpu_stop();
}
