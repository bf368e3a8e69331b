/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of the worker over a job's head: its progress, and when it has to stop. */
#include "reshard/upkeep/background/pass.h"

void rs_pass_begin(struct rs_pass *p, const char *what, uint64_t total)
{
	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress = (struct rs_progress){p->head->version->nr, what, 0, total, sc_now_ns()};
	(void)pthread_mutex_unlock(&p->job->state);
	rs_job_tell(p->job);
}

void rs_pass_end(struct rs_pass *p)
{
	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress = (struct rs_progress){0};
	(void)pthread_mutex_unlock(&p->job->state);
	rs_job_tell(p->job);
}

void rs_pass_reach(struct rs_pass *p, uint64_t done)
{
	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress.done = sc_max_u64(p->job->progress.done, done);
	(void)pthread_mutex_unlock(&p->job->state);
}

bool rs_pass_is_stale(struct rs_pass *p)
{
	bool stale;

	(void)pthread_mutex_lock(&p->s->worker.lock);
	stale = p->s->worker.stop;
	(void)pthread_mutex_unlock(&p->s->worker.lock);
	(void)pthread_mutex_lock(&p->job->state);
	stale = stale || p->job->head != p->head || p->job->removed;
	(void)pthread_mutex_unlock(&p->job->state);
	return stale;
}

/* Counts, tells readers of status ten times a second, and stops for a newer head. */
int rs_pass_bytes(void *pass, uint64_t bytes)
{
	struct rs_pass *p = pass;
	int64_t now = sc_now_ns();

	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress.done += bytes;
	(void)pthread_mutex_unlock(&p->job->state);
	if (now - __atomic_load_n(&p->told_ns, __ATOMIC_RELAXED) > 100000000) {
		__atomic_store_n(&p->told_ns, now, __ATOMIC_RELAXED);
		rs_job_tell(p->job);
	}
	return rs_pass_is_stale(p);
}

int rs_pass_keep(struct rs_pass *p, struct rs_flush *flush, struct meta_store_dirs *dirs, int fd, uint64_t blob,
		 int rank, const char *path, struct sc_err *err)
{
	if (!rs_job_syncs(p->job)) {
		sc_closep(&fd);
		return 0;
	}
	meta_store_note_dir(dirs, blob);
	return rs_flush_add(flush, fd, rank, path, err);
}
