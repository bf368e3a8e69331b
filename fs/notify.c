/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread that answers held requests and wakes polls.  A held request costs no thread of the
 * session: 200 waiters leave all of them free.
 */
#include "fs/fs_i.h"

#include <errno.h>

struct fs_waiter {
	fuse_req_t req;
	struct fs *fs;
	struct rs_job *job;
	uint64_t version;
	size_t bytes;
	bool interrupted;	/* under notify_lock */
	struct fs_waiter *next;
};

void fs_notify_news(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->notify_lock);
	fs->news = true;
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

static void wake_polls(struct fs *fs)
{
	for (struct fs_control *c = fs->controls; c; c = *fs_control_next(c)) {
		struct fuse_pollhandle *ph;

		if (!fs_control_has_news(c))
			continue;
		ph = fs_control_take_poll(c);
		if (ph) {
			(void)fuse_lowlevel_notify_poll(ph);
			fuse_pollhandle_destroy(ph);
		}
	}
}

/* Answers it if it can be answered. */
static bool answer(struct fs_waiter *w, bool interrupted)
{
	struct sc_err err = {0};
	int rc;

	rc = interrupted ? 1 : rs_job_wait_poll(w->fs->service, w->job, w->version, &err);
	if (rc == 0)
		return false;
	/* takes the request's lock: when it returns, on_interrupt neither runs nor will run */
	fuse_req_interrupt_func(w->req, NULL, NULL);
	if (interrupted)
		(void)fuse_reply_err(w->req, EINTR);
	else if (rc < 0)
		(void)fs_refuse(w->req, w->job, "wait", &err);
	else
		(void)fuse_reply_write(w->req, w->bytes);
	return true;
}

static void *notifier(void *arg)
{
	struct fs *fs = arg;

	(void)pthread_mutex_lock(&fs->notify_lock);
	for (;;) {
		struct fs_waiter *all;

		while (!fs->news && !fs->stop)
			(void)pthread_cond_wait(&fs->notify_wake, &fs->notify_lock);
		if (fs->stop)
			break;
		fs->news = false;
		wake_polls(fs);
		all = fs->waiters;
		fs->waiters = NULL;
		while (all) {
			struct fs_waiter *w = all;
			bool interrupted = w->interrupted;

			all = w->next;
			(void)pthread_mutex_unlock(&fs->notify_lock);
			if (answer(w, interrupted)) {
				sc_sys.release(w);
				w = NULL;
			}
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

void fs_notify_wait(fuse_req_t req, struct fs *fs, struct rs_job *job, uint64_t nr, size_t bytes)
{
	struct fs_waiter *w = sc_zalloc(sizeof(*w));

	if (!w) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	*w = (struct fs_waiter){.req = req, .fs = fs, .job = job, .version = nr, .bytes = bytes};
	if (answer(w, false)) {
		sc_sys.release(w);
		return;
	}
	fuse_req_interrupt_func(req, on_interrupt, w);
	(void)pthread_mutex_lock(&fs->notify_lock);
	w->next = fs->waiters;
	fs->waiters = w;
	fs->news = true; /* it may have become true meanwhile */
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
}

int fs_notify_start(struct fs *fs, struct sc_err *err)
{
	int rc = pthread_create(&fs->notifier, NULL, notifier, fs);

	if (rc)
		return sc_fail_sys(err, rc, "cannot start the notifier");
	(void)pthread_setname_np(fs->notifier, "scalai-notify");
	return 0;
}

void fs_notify_stop(struct fs *fs)
{
	(void)pthread_mutex_lock(&fs->notify_lock);
	fs->stop = true;
	(void)pthread_cond_signal(&fs->notify_wake);
	(void)pthread_mutex_unlock(&fs->notify_lock);
	(void)pthread_join(fs->notifier, NULL);
	while (fs->waiters) {
		struct fs_waiter *w = fs->waiters;

		fs->waiters = w->next;
		(void)fuse_reply_err(w->req, EINTR);
		sc_sys.release(w);
	}
}
