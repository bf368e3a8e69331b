/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers reads of views whose bytes are not here yet.  Such reads are parked, so that they occupy no FUSE worker, and
 * one thread answers them when their source says that the bytes have come.
 *
 *     a worker asks ── RS_LATER ──> parked ── done() ──> told ── the thread asks again ──> sent, released, freed
 *                                     ^                                    │ RS_LATER
 *                                     └────────────────────────────────────┘
 *
 * P1  A parked read has references to its image and its view.  So it needs no handle: RELEASE, which the kernel sends
 *     when the last read of a file is answered, and the end of the mount, which closes all, may come at any time.
 * P2  A parked read is answered once, by the thread, which alone frees it: when its source has called done().  One that
 *     is answered earlier (P4, P6) stays parked until then, with its image.
 * P3  done() and interrupts only mark, in whatever thread they come.  Both may come before need() has returned to who
 *     parks: the thread sees a read only when it is parked, and a parked one belongs to it.
 * P4  A reader that is being killed is answered EINTR.  No other signal ends a wait: read(2) of a regular file is not
 *     interrupted, and a page fault that was would be SIGBUS.  The kernel tells of the first signal only, so the
 *     thread goes on looking whether the reader is being killed.
 * P5  What need() has answered RS_HERE for is released when the reply is written, or has failed.  Of a read that is
 *     given up, what was there already is released after done().
 * P6  At the end of the mount all that are parked are answered ECONNABORTED, which the kernel says when /dev/fuse is
 *     closed first.  Then each done() is waited for: a source calls it within its own deadline.
 * P7  A daemon that is killed has answered none of what it had parked.  The kernel sends that to the next one (hold.h),
 *     which reopens the file and parks it again; reading changes nothing.
 * P8  What is parked is bounded.  A read beyond that, or without memory or a thread, waits in its worker.
 *
 * The thread starts with the first read of an image that may wait (rs_mapped.waits), and lives until the mount ends, as
 * a ring's entry wants it of who replies (notify.c).
 */
#include "fs/read/read.h"

#include <errno.h>

#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"
#include "meta/base/metric.h"

#define PARKED_MAX 4096			   /* some 1.3 KiB each */
#define LOOK_NS INT64_C(100000000)	   /* how often at readers that a signal has come for */
#define RING_READS (FS_RING_WAITERS / 2) /* the others are for control files */

SC_METRIC(reads_waiting, SC_GAUGE, "scalai_reads_waiting", "Reads of views that wait for bytes of another node.");

struct fs_read {
	struct rs_later later;		/* first: on_done() gets it */
	struct fs_seen seen;		/* req NULL: it is answered */
	pid_t thread;			/* the reader's */
	bool by_ring;
	/* under reads.lock */
	bool is_parked, is_told, is_interrupted;
	struct sc_err err;		/* why the bytes don't come; code 0: they came */
	struct fs_read *next;		/* of told */
	struct fs_read *before, *after; /* of parked */
};

/* --- what others call --- */

/* Tells the thread of a parked read.  The caller holds the lock. */
static void tell(struct fs *fs, struct fs_read *r)
{
	r->next = NULL;
	*fs->reads.told_end = r;
	fs->reads.told_end = &r->next;
	(void)pthread_cond_signal(&fs->reads.wake);
}

static void on_done(struct rs_done *done, const struct sc_err *err)
{
	struct fs_read *r = (struct fs_read *)done;
	struct fs *fs = r->seen.fs;

	(void)pthread_mutex_lock(&fs->reads.lock);
	if (err)
		r->err = *err;
	r->is_told = true;
	if (r->is_parked)
		tell(fs, r);
	(void)pthread_mutex_unlock(&fs->reads.lock);
}

/* libfuse calls this with the request's lock held. */
static void on_interrupt(fuse_req_t req, void *data)
{
	struct fs_read *r = data;
	struct fs *fs = r->seen.fs;

	(void)req;
	(void)pthread_mutex_lock(&fs->reads.lock);
	if (!r->is_interrupted)
		fs->reads.nr_interrupted++;
	r->is_interrupted = true;
	(void)pthread_cond_signal(&fs->reads.wake);
	(void)pthread_mutex_unlock(&fs->reads.lock);
}

/* --- the thread --- */

static void read_free(struct fs_read *r)
{
	struct fs *fs = r->seen.fs;

	rs_image_unref(fs->service, r->seen.image);
	rs_view_unref(fs->service, r->seen.view);
	if (r->by_ring)
		(void)__atomic_sub_fetch(&fs->ring_waiters, 1, __ATOMIC_RELEASE);
	(void)__atomic_sub_fetch(&fs->reads.nr, 1, __ATOMIC_RELEASE);
	sc_sys.release(r);
}

/* Ends the interrupts of a read before the reply: on_interrupt() neither runs nor will run afterwards. */
static void disarm(struct fs_read *r)
{
	struct fs *fs = r->seen.fs;

	fuse_req_interrupt_func(r->seen.req, NULL, NULL);
	(void)pthread_mutex_lock(&fs->reads.lock);
	if (r->is_interrupted)
		fs->reads.nr_interrupted--;
	r->is_interrupted = false;
	(void)pthread_mutex_unlock(&fs->reads.lock);
}

static void answer_early(struct fs_read *r, int errnum)
{
	disarm(r);
	if (!fs_is_lost(r->seen.fs, r->by_ring))
		(void)fuse_reply_err(r->seen.req, errnum);
	r->seen.req = NULL;
}

/* Asks the source again, and answers the read.  Returns false if the bytes have not come yet. */
static bool answer(struct fs_read *r)
{
	struct rs_image *im = r->seen.image;
	struct sc_err err = r->err;
	int rc = err.code;

	if (!r->seen.req || rc < 0)
		rs_image_give_up(im, r->seen.at, r->seen.bytes, &r->later);
	if (!r->seen.req)
		return true;
	if (rc == 0)
		rc = rs_image_need(im, r->seen.at, r->seen.bytes, &r->later, &err);
	if (rc == RS_LATER)
		return false;
	disarm(r);
	if (!fs_is_lost(r->seen.fs, r->by_ring)) {
		if (rc < 0)
			fs_fail_seen(&r->seen, &err);
		else
			fs_send_seen(&r->seen);
	}
	if (rc == RS_HERE)
		rs_image_release(im, r->seen.at, r->seen.bytes);
	return true;
}

static void unpark(struct fs *fs, struct fs_read *r)
{
	sc_metric_add(&reads_waiting, UINT64_MAX); /* one less */
	if (r->before)
		r->before->after = r->after;
	else
		fs->reads.parked = r->after;
	if (r->after)
		r->after->before = r->before;
}

/* Answers the first read that was told.  The caller holds the lock, which is dropped meanwhile. */
static void answer_told(struct fs *fs)
{
	struct fs_read *r = fs->reads.told;
	bool is_over;

	fs->reads.told = r->next;
	if (!fs->reads.told)
		fs->reads.told_end = &fs->reads.told;
	r->is_told = false;
	(void)pthread_mutex_unlock(&fs->reads.lock);
	is_over = answer(r);
	(void)pthread_mutex_lock(&fs->reads.lock);
	if (!is_over)
		return;
	unpark(fs, r);
	(void)pthread_mutex_unlock(&fs->reads.lock);
	read_free(r);
	(void)pthread_mutex_lock(&fs->reads.lock);
}

/* Answers reads whose readers are killed (P4), or all at the end (P6).  The caller holds the lock, which is dropped
 * meanwhile: others only add to the list, in front. */
static void answer_some_early(struct fs *fs)
{
	for (struct fs_read *r = fs->reads.parked; r; r = r->after) {
		const bool stop = fs->reads.stop;

		if (!r->seen.req || !(stop || r->is_interrupted))
			continue;
		(void)pthread_mutex_unlock(&fs->reads.lock);
		if (stop || fs_is_killed(r->thread))
			answer_early(r, stop ? ECONNABORTED : EINTR);
		(void)pthread_mutex_lock(&fs->reads.lock);
	}
}

static void *answer_reads(void *arg)
{
	struct fs *fs = arg;

	(void)pthread_mutex_lock(&fs->reads.lock);
	while (!fs->reads.stop || fs->reads.parked) {
		if (fs->reads.nr_interrupted || fs->reads.stop)
			answer_some_early(fs);
		if (fs->reads.told)
			answer_told(fs);
		else if (fs->reads.nr_interrupted)
			(void)sc_sys.wait_until(&fs->reads.wake, &fs->reads.lock, sc_now_ns() + LOOK_NS);
		else if (!fs->reads.stop || fs->reads.parked)
			(void)pthread_cond_wait(&fs->reads.wake, &fs->reads.lock);
	}
	(void)pthread_mutex_unlock(&fs->reads.lock);
	return NULL;
}

/* --- parking --- */

static bool has_thread(struct fs *fs)
{
	struct sc_err ignored;
	bool has;

	(void)pthread_mutex_lock(&fs->reads.lock);
	if (!fs->reads.thread.started) {
		fs->reads.told_end = &fs->reads.told;
		(void)sc_thread_start(&fs->reads.thread, "scalai-reads", answer_reads, fs, &ignored);
	}
	has = fs->reads.thread.started;
	(void)pthread_mutex_unlock(&fs->reads.lock);
	return has;
}

/* Counts one more unless that would be more than `most`. */
static bool count(int *nr, int most)
{
	int now = __atomic_load_n(nr, __ATOMIC_ACQUIRE);

	while (now < most)
		if (__atomic_compare_exchange_n(nr, &now, now + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

/* Makes a read that can be parked; NULL: it can't be (P8). */
static struct fs_read *read_new(const struct fs_seen *seen)
{
	struct fs *fs = seen->fs;
	const bool by_ring = fuse_req_is_uring(seen->req);
	struct fs_read *r;

	if (!has_thread(fs) || !count(&fs->reads.nr, PARKED_MAX))
		return NULL;
	r = !by_ring || count(&fs->ring_waiters, RING_READS) ? sc_zalloc(sizeof(*r)) : NULL;
	if (!r) {
		(void)__atomic_sub_fetch(&fs->reads.nr, 1, __ATOMIC_RELEASE);
		return NULL;
	}
	r->later.done.call = on_done;
	r->seen = *seen;
	r->thread = fuse_req_ctx(seen->req)->pid;
	r->by_ring = by_ring;
	rs_image_ref(fs->service, seen->image);
	(void)rs_view_ref(seen->view);
	return r;
}

/* Hands a read to the thread (P3). */
static void park(struct fs *fs, struct fs_read *r)
{
	fuse_req_interrupt_func(r->seen.req, on_interrupt, r);
	sc_metric_add(&reads_waiting, 1);
	(void)pthread_mutex_lock(&fs->reads.lock);
	r->is_parked = true;
	r->after = fs->reads.parked;
	if (r->after)
		r->after->before = r;
	fs->reads.parked = r;
	if (r->is_told)
		tell(fs, r);
	else if (r->is_interrupted)
		(void)pthread_cond_signal(&fs->reads.wake);
	(void)pthread_mutex_unlock(&fs->reads.lock);
}

void fs_read_late(const struct fs_seen *seen)
{
	struct fs *fs = seen->fs;
	struct rs_image *im = seen->image;
	struct fs_read *r = read_new(seen);
	struct sc_err err = {0};
	int rc;

	rs_image_reads(im, seen->at, seen->bytes);
	rc = rs_image_need(im, seen->at, seen->bytes, r ? &r->later : NULL, &err);

	if (rc == RS_LATER) {
		park(fs, r);
		return;
	}
	if (rc < 0) {
		fs_fail_seen(seen, &err);
	} else {
		fs_send_seen(seen);
		rs_image_release(im, seen->at, seen->bytes);
	}
	if (r)
		read_free(r);
}

void fs_reads_stop(struct fs *fs)
{
	fs_gpu_stop(fs); /* opens that are parked */
	(void)pthread_mutex_lock(&fs->reads.lock);
	fs->reads.stop = true;
	(void)pthread_cond_signal(&fs->reads.wake);
	(void)pthread_mutex_unlock(&fs->reads.lock);
	sc_thread_join(&fs->reads.thread);
}
