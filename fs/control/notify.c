/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notifier: one thread that answers parked requests and wakes polls.  A parked request occupies no
 * FUSE worker: 200 waiters leave all workers free.  All replies but those of the workers come from this
 * thread and from that of reads.c: over io_uring, a ring entry belongs to the thread that replied last, and is lost,
 * with the next request, when that thread ends.
 */
#include "fs/control/control.h"

#include <errno.h>

#include "fs/handover/handover.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

#define LOOK_NS INT64_C(100000000) /* how often at programs that may be killed */

struct fs_waiter {
	fuse_req_t req;
	struct fs *fs;
	struct rs_job *job;
	const struct rs_control *row;	/* the control file */
	size_t bytes;
	bool by_ring;
	uint64_t held;			/* what it waits for: its row's */
	pid_t thread;			/* the program's; 0: it stays, or cannot be seen */
	bool runs;			/* a command in a thread of its own */
	bool gone;			/* its program was killed and is answered; only the notifier uses it */
	/* under notify_lock */
	bool interrupted;
	bool done;			/* the command, with this: */
	struct sc_err err;
	struct fs_command *command;	/* or NULL */
	struct fs_waiter *next;
};

void fs_notify_news(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->notify_lock);
	fs->news = true;
	/* a notifier that is at work looks for news again before it sleeps; each change of a file comes here */
	if (fs->waiters || fs->polls)
		(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

static void wake_polls(struct fs *fs)
{
	for (struct fs_poll *p = fs->polls; p; p = p->next) {
		if (!p->ph || !fs_poll_has_news(p))
			continue;
		(void)fuse_lowlevel_notify_poll(p->ph);
		fuse_pollhandle_destroy(p->ph);
		p->ph = NULL;
	}
}

/* `seen` is read by the notifier while a reader gets its text. */
void fs_poll_seen(struct fs_poll *p)
{
	__atomic_store_n(&p->seen, rs_job_news(p->job), __ATOMIC_RELAXED);
}

bool fs_poll_has_news(const struct fs_poll *p)
{
	return p->job && __atomic_load_n(&p->seen, __ATOMIC_RELAXED) != rs_job_news(p->job);
}

void fs_poll_begin(fuse_req_t req, struct fs *fs, struct fs_poll *p, struct fuse_pollhandle *ph)
{
	bool news, known = false;

	(void)pthread_mutex_lock(&fs->notify_lock);
	if (ph) {
		if (p->ph)
			fuse_pollhandle_destroy(p->ph);
		p->ph = ph;
		for (struct fs_poll *x = fs->polls; x; x = x->next)
			known |= x == p;
		if (!known) {
			p->next = fs->polls;
			fs->polls = p;
		}
	}
	news = fs_poll_has_news(p);
	(void)pthread_mutex_unlock(&fs->notify_lock);
	(void)fuse_reply_poll(req, POLLOUT | (news || !p->job ? POLLIN : 0));
}

void fs_poll_end(struct fs *fs, struct fs_poll *p)
{
	(void)pthread_mutex_lock(&fs->notify_lock);
	for (struct fs_poll **at = &fs->polls; *at; at = &(*at)->next)
		if (*at == p) {
			*at = p->next;
			break;
		}
	(void)pthread_mutex_unlock(&fs->notify_lock);
	if (p->ph)
		fuse_pollhandle_destroy(p->ph);
}

static void waiter_free(struct fs_waiter *w)
{
	if (w->by_ring && !w->done)
		(void)__atomic_sub_fetch(&w->fs->ring_waiters, 1, __ATOMIC_RELEASE);
	fs_command_end(w->command);
	sc_sys.release(w);
}

/* Tells whether the notifier looks if the program of a command that runs is being killed: the kernel has told of a
 * signal; or it tells of none, as over io_uring. */
static bool is_due(const struct fs_waiter *w, bool interrupted)
{
	return w->runs && !w->gone && (interrupted || w->by_ring) && w->thread;
}

/* Answers a program that is being killed, so that it ends; its command goes on. */
static void let_go(struct fs_waiter *w)
{
	w->gone = fs_is_killed(w->thread);
	if (!w->gone || fs_is_lost(w->fs, w->by_ring))
		return;
	fuse_req_interrupt_func(w->req, NULL, NULL);
	(void)fuse_reply_err(w->req, EINTR);
}

/* Answers a parked request if its condition is met, and tells whether that ends it. */
static bool answer(struct fs_waiter *w, bool interrupted, bool done)
{
	int rc;

	if (w->runs && !done) {
		if (is_due(w, interrupted))
			let_go(w);
		return false;
	}
	if (w->gone && w->err.errnum)
		fs_say_refused(w->job, w->row->name, &w->err);
	if (w->gone || fs_is_lost(w->fs, w->by_ring))
		return true;
	if (done)
		rc = w->err.errnum ? -1 : 1;
	else
		rc = interrupted ? 1 : rs_control_held(w->row, w->job, w->held, &w->err);
	if (rc == 0)
		return false;
	/* takes the request's lock: when it returns, on_interrupt neither runs nor will run */
	fuse_req_interrupt_func(w->req, NULL, NULL);
	if (interrupted && !done)
		(void)fuse_reply_err(w->req, EINTR);
	else if (rc < 0)
		(void)fs_refuse(w->req, w->job, w->row->name, &w->err);
	else if (w->bytes)
		(void)fuse_reply_write(w->req, w->bytes);
	else
		(void)fuse_reply_err(w->req, 0);
	return true;
}

/* Waits for news; `looks`: also until it is time to look at programs that may be killed.  The caller holds the lock. */
static void rest(struct fs *fs, bool looks)
{
	const int64_t at = looks ? sc_now_ns() + LOOK_NS : 0;

	while (!fs->news && !fs->stop) {
		if (!looks)
			(void)pthread_cond_wait(&fs->notify_wake, &fs->notify_lock);
		else if (sc_sys.wait_until(&fs->notify_wake, &fs->notify_lock, at) == ETIMEDOUT)
			break;
	}
}

static void *notifier(void *arg)
{
	struct fs *fs = arg;
	bool looks = false;

	(void)pthread_mutex_lock(&fs->notify_lock);
	for (;;) {
		struct fs_waiter *all;

		rest(fs, looks);
		if (fs->stop)
			break;
		fs->news = looks = false;
		wake_polls(fs);
		all = fs->waiters;
		fs->waiters = NULL;
		while (all) {
			struct fs_waiter *w = all;
			bool interrupted = w->interrupted, done = w->done;

			all = w->next;
			(void)pthread_mutex_unlock(&fs->notify_lock);
			if (answer(w, interrupted, done)) {
				waiter_free(w);
				w = NULL;
			}
			looks |= w && is_due(w, interrupted);
			(void)pthread_mutex_lock(&fs->notify_lock);
			if (w) {
				w->next = fs->waiters;
				fs->waiters = w;
			}
		}
	}
	(void)pthread_mutex_unlock(&fs->notify_lock);
	return NULL;
}

/* libfuse calls this with the request's lock held. */
static void on_interrupt(fuse_req_t req, void *data)
{
	struct fs_waiter *w = data;
	struct fs *fs = w->fs;

	(void)req;
	(void)pthread_mutex_lock(&fs->notify_lock);
	w->interrupted = true;
	fs->news = true;
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

static void hold(struct fs_waiter *w)
{
	struct fs *fs = w->fs;

	(void)pthread_mutex_lock(&fs->notify_lock);
	w->next = fs->waiters;
	fs->waiters = w;
	fs->news = true; /* the condition may have been met meanwhile */
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

struct fs_waiter *fs_notify_new(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row,
				size_t bytes)
{
	struct fs_waiter *w = sc_zalloc(sizeof(*w));

	if (w)
		*w = (struct fs_waiter){.req = req, .fs = fs, .job = job, .row = row, .bytes = bytes,
					.by_ring = fuse_req_is_uring(req), .thread = fuse_req_ctx(req)->pid};
	return w;
}

void fs_notify_runs(struct fs_waiter *w, bool may_go)
{
	w->runs = true;
	w->thread = may_go ? w->thread : 0;
	if (may_go && !w->by_ring)
		fuse_req_interrupt_func(w->req, on_interrupt, w);
	hold(w);
}

void fs_notify_done(struct fs_waiter *w, struct fs_command *command, const struct sc_err *err)
{
	struct fs *fs = w->fs;

	(void)pthread_mutex_lock(&fs->notify_lock);
	w->done = true;
	w->command = command;
	w->err = *err;
	fs->news = true;
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

void fs_notify_hold(struct fs_waiter *w, uint64_t held)
{
	int waiters = 0;

	w->held = held;
	if (w->by_ring)
		waiters = __atomic_add_fetch(&w->fs->ring_waiters, 1, __ATOMIC_ACQUIRE);
	if (answer(w, false, false)) {
		waiter_free(w);
		return;
	}
	if (waiters > FS_RING_WAITERS) {
		(void)sc_fail(&w->err, SC_E_BUSY, "too many processes are waiting (limit %d with -o io_uring); try "
			"again later",
			      FS_RING_WAITERS);
		(void)fs_refuse(w->req, w->job, w->row->name, &w->err);
		waiter_free(w);
		return;
	}
	fuse_req_interrupt_func(w->req, on_interrupt, w);
	hold(w);
}

int fs_notify_start(struct fs *fs, struct sc_err *err)
{
	return sc_thread_start(&fs->notifier, "scalai-notify", notifier, fs, err);
}

void fs_notify_stop(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->notify_lock);
	fs->stop = true;
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
	sc_thread_join(&fs->notifier);
	while (fs->waiters) {
		struct fs_waiter *w = fs->waiters;

		fs->waiters = w->next;
		(void)answer(w, !w->done, w->done);
		waiter_free(w);
	}
}
