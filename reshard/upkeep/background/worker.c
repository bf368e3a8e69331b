/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker: one thread that, job after job, verifies sets that are not verified yet, materializes heads
 * (materialize.c) and removes garbage.  It is the only one that removes blobs of sets, so a blob that it is writing
 * can't be taken for garbage.
 *
 * When something stops it, the job's status says so, the head stays readable, and it tries again after RETRY_NS or when
 * anything changes.  A head for which there was no space waits until there is more space, or for FULL_NS: a pass fills
 * the disk before it fails, and other writers then fail with it.  A head whose rows or headers are wrong waits as long:
 * nothing mends them by itself.  A head that needs a damaged blob waits as long, too, unless other blobs become known
 * as damaged or intact.
 */
#include "reshard/upkeep/background/pass.h"
#include "reshard/upkeep/recovery/record.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>

#include "reshard/upkeep/recovery/trees.h"

#define RETRY_NS 2000000000
#define FULL_NS INT64_C(60000000000)

/* Tells whether an error stays: rows and headers stay wrong, but space, memory and descriptors come back. */
static bool is_lasting(int rc)
{
	return rc == SC_E_STATE || rc == SC_E_TOPOLOGY || rc == SC_E_LAYOUT || rc == SC_E_UNSUPPORTED ||
	       rc == SC_E_LIMIT;
}

/* Tells whether an error ends the waits for a head: not if another try follows that may succeed. */
static bool ends_waits(int code, bool is_last)
{
	return is_last || is_lasting(code) || code == SC_E_FORMAT || code == SC_E_DAMAGED;
}

/* Notes the error that stopped the work on a head; `is_last`: the worker does not try again at once. */
static void set_stopped(struct rs_job *job, uint64_t head, const struct sc_err *err, bool is_last)
{
	const char *why = err ? err->msg : NULL;
	char name[SC_NAME_BYTES_MAX + 1];
	bool changed;

	if (err)
		rs_damage_met(job->service, err);
	(void)pthread_mutex_lock(&job->state);
	changed = (job->stopped != NULL) != (why != NULL) || (why && strcmp(job->stopped, why) != 0);
	if (changed) {
		sc_sys.release(job->stopped);
		job->stopped = why ? sc_strdup(why) : NULL;
	}
	job->stopped_code = err ? err->code : 0;
	job->stopped_errnum = err ? err->errnum : 0;
	job->stopped_head = err && ends_waits(err->code, is_last) ? head : 0;
	(void)pthread_mutex_unlock(&job->state);
	if (changed && why)
		sc_log(SC_LOG_ERROR, "job '%s': %s; trying again", rs_job_name(job, name, sizeof(name)), why);
	if (changed || why)
		rs_job_tell(job); /* who waits for it asks again */
}

static bool wants_materialize(struct rs_job *job, const struct rs_view *head)
{
	const struct rs_service *s = job->service;
	bool wants;

	if (s->shared && !__atomic_load_n(&s->follows, __ATOMIC_ACQUIRE))
		return false;
	(void)pthread_mutex_lock(&job->state);
	wants = job->config.materialize == RS_EAGER ||
		(job->config.materialize == RS_LAZY && job->wanted == head->version->nr);
	(void)pthread_mutex_unlock(&job->state);
	return wants && !(s->shared ? rs_homes_are_here(head) : rs_view_is_materialized(head));
}

/* Tells whether a version may be materialized by what its verification has found.  In a cluster each node verifies the
 * files that it has. */
static bool may_materialize(const struct rs_service *s, const struct rs_version *v)
{
	enum meta_verified verified = rs_version_verified(v);

	return verified == META_EQUAL || (s->shared && verified == META_UNVERIFIED);
}

/* Works on the head of a job.  Sets *garbage if blobs were written or replaced, or a version was dropped. */
static int work_on(struct rs_service *s, struct rs_job *job, bool *garbage, struct sc_err *err)
{
	struct rs_pass p = {.s = s, .job = job, .err = err, .head = rs_job_head(job)};
	char name[SC_NAME_BYTES_MAX + 1];
	int rc;

	if (!p.head)
		return 0;
	rc = rs_verify_head(&p);
	if (rc == 0) /* first, for its bytes are room for what follows */
		rc = rs_versions_drop_spared(s, job, garbage, err);
	if (rc == 0 && may_materialize(s, p.head->version) && wants_materialize(job, p.head)) {
		rc = s->shared ? rs_homes_keep(&p) : rs_materialize(&p);
		if (rc == 0 && job->said != p.head->version->nr) {
			sc_log(SC_LOG_INFO, "job '%s' version %" PRIu64 ": materialized",
			       rs_job_name(job, name, sizeof(name)), p.head->version->nr);
			job->said = p.head->version->nr;
		}
		*garbage = true;
	}
	if (rc == 0 && __atomic_load_n(&s->follows, __ATOMIC_ACQUIRE))
		rc = rs_copies_keep(&p);
	if (rc == 0 && s->shared) /* what has come meanwhile */
		rc = rs_verify_head(&p);
	rs_view_unref(s, p.head);
	return rc;
}

int rs_service_work(struct rs_service *s, struct sc_err *err)
{
	struct rs_job *job;
	bool garbage = false; /* is collected anyway */
	struct sc_err why;
	int rc = 0, hashed;

	for (size_t i = 0; rc == 0 && (job = rs_job_at(s, i)); i++)
		rc = rs_job_is_removed(job) ? 0 : work_on(s, job, &garbage, err);
	hashed = rs_records_renew(s, false, &why);
	if (hashed == 0)
		hashed = rs_hash_blobs(s, &why);
	if (rc == 0 && hashed < 0) {
		*err = why;
		rc = hashed;
	}
	if (rc == 0)
		rc = rs_garbage_collect(s, err);
	return rc < 0 ? rc : rs_trees_keep(s, err);
}

/* Removes garbage.  *garbage says that there may be some, and afterwards whether some could not be removed.  Returns
 * true if more of it comes soon. */
static bool tidy(struct rs_service *s, bool *garbage, bool may_wait)
{
	bool more = rs_made_expire(s, !may_wait, garbage);
	struct sc_err err;

	if (*garbage) {
		bool later;
		int rc = rs_garbage_rows(s, may_wait, &later, &err);

		rs_say_once(&s->upkeep->logged.rows, rc, &err);
		*garbage = rc < 0 || later;
	}
	/* also then: files whose rows went before are room */
	rs_say_once(&s->upkeep->logged.files, rs_garbage_files(s, may_wait, &err), &err);
	return more || s->upkeep->nameless.nr;
}

/* Returns the free bytes of the store, with those for root alone: they are only compared. */
static uint64_t free_space(struct rs_service *s)
{
	struct statvfs fs;

	return sc_sys.fstatvfs(s->store.dir, &fs) < 0 ? 0 : (uint64_t)fs.f_bfree * fs.f_frsize;
}

static uint64_t head_id(struct rs_service *s, struct rs_job *job)
{
	struct rs_view *head = rs_job_head(job);
	uint64_t id = head ? head->id : 0;

	rs_view_unref(s, head);
	return id;
}

/* Tells whether a head is put off: it had no space, or its rows, headers or bytes are wrong.  If somebody waits for a
 * head that is wrong, it is tried all the same. */
static bool is_put_off(struct rs_service *s, struct rs_job *job, uint64_t head, uint64_t space)
{
	bool news = meta_store_damage_news(&s->store) != job->full.news, lasts;

	(void)pthread_mutex_lock(&job->state);
	lasts = job->stopped_head == head &&
		(is_lasting(job->stopped_code) || (job->stopped_code == SC_E_DAMAGED && !news));
	(void)pthread_mutex_unlock(&job->state);
	return sc_now_ns() < job->full.until_ns && (lasts || (job->full.head == head && space <= job->full.space));
}

/* Notes that work on a head is put off.  The first time, wakes those who wait for that head, so that they read why. */
static void set_put_off(struct rs_job *job, uint64_t head)
{
	bool asked;

	(void)pthread_mutex_lock(&job->state);
	asked = job->stopped_head != head;
	job->stopped_head = head;
	(void)pthread_mutex_unlock(&job->state);
	if (asked)
		rs_job_tell(job);
}

/* Works on one job; true: it has to be tried again. */
static bool try_job(struct rs_service *s, struct rs_job *job, bool *garbage, bool is_last)
{
	uint64_t head = head_id(s, job), space = free_space(s), news = meta_store_damage_news(&s->store);
	struct sc_err err = {0};
	int rc;

	if (is_put_off(s, job, head, space)) {
		if (is_last)
			set_put_off(job, head);
		return true;
	}
	job->full.head = 0;
	rc = work_on(s, job, garbage, &err);
	if (rc == SC_E_CANCELLED) /* whoever made a newer head has kicked */
		return head_id(s, job) == head;
	if (rc < 0)
		tidy(s, garbage, false); /* before it says so: what it had taken is there for others again */
	if (rc == SC_E_NO_SPACE) {
		job->full.head = head;
		job->full.space = sc_min_u64(space, free_space(s));
	}
	job->full.news = news;
	job->full.until_ns = sc_now_ns() + FULL_NS;
	set_stopped(job, head, rc < 0 ? &err : NULL, is_last);
	return rc < 0;
}

static bool try_jobs(struct rs_service *s, bool *garbage, bool is_last)
{
	struct rs_job *job;
	bool again = false;

	for (size_t i = 0; (job = rs_job_at(s, i)); i++)
		again |= !rs_job_is_removed(job) && try_job(s, job, garbage, is_last);
	return again;
}

/* Does all work, first that for which somebody may wait; true: some of it has to be tried again. */
static bool work(struct rs_service *s, bool *garbage)
{
	bool had_garbage = *garbage || s->upkeep->nameless.nr;
	struct sc_err err;
	bool again, more;
	int rc, kept;

	s->worker.retry_ns = 0;
	rs_met_check(s); /* what was restored is there for what follows */
	rs_say_once(&s->upkeep->logged.reserve, meta_catalog_reserve(s->catalog, &err), &err);
	again = try_jobs(s, garbage, !had_garbage);
	more = tidy(s, garbage, !again);
	if (again && had_garbage) { /* there may be space now */
		again = try_jobs(s, garbage, true);
		more = tidy(s, garbage, !again);
	}
	/* a job that fails keeps no blob from its hash, nor hashes it for long from its next turn */
	s->worker.retry_ns = again ? sc_now_ns() + RETRY_NS : 0;
	rc = rs_records_renew(s, true, &err);
	if (rc == 0)
		rc = rs_hash_blobs(s, &err);
	rs_say_once(&s->upkeep->logged.hashes, rc, &err);
	kept = rs_trees_keep(s, &err);
	rs_say_once(&s->upkeep->logged.trees, kept, &err);
	rs_met_check(s);
	return again || rc < 0 || kept < 0 || *garbage || more;
}

/* Does what an orderly end must not leave undone: removes garbage, and writes the records that fsck --rebuild reads. */
static void finish(struct rs_service *s)
{
	bool garbage = s->is_held; /* nobody can ask for dropped versions any more */
	struct sc_err err;

	tidy(s, &garbage, false); /* fsck takes files without rows for what a crash has left */
	/* what 'fsck --rebuild' would not know; blobs that have no hash yet get theirs after the next start */
	rs_say_once(&s->upkeep->logged.hashes, rs_records_renew(s, false, &err), &err);
	rs_say_once(&s->upkeep->logged.trees, rs_trees_keep(s, &err), &err);
}

/* Returns when the worker goes on without a call; 0: never. */
static int64_t wake_ns(struct rs_service *s, bool again)
{
	int64_t met = rs_met_due(s), retry = again ? sc_now_ns() + RETRY_NS : 0;

	return met && (!retry || met < retry) ? met : retry;
}

static void *worker(void *arg)
{
	struct rs_service *s = arg;
	bool again = false, garbage = false;

	for (;;) {
		(void)pthread_mutex_lock(&s->worker.lock);
		s->worker.works = false;
		while (!s->worker.stop && !s->worker.called) {
			int64_t at = wake_ns(s, again);

			if (!at)
				(void)pthread_cond_wait(&s->worker.wake, &s->worker.lock);
			else if (sc_sys.wait_until(&s->worker.wake, &s->worker.lock, at) == ETIMEDOUT)
				break;
		}
		if (s->worker.stop) {
			(void)pthread_mutex_unlock(&s->worker.lock);
			finish(s);
			return NULL;
		}
		s->worker.called = false;
		s->worker.works = true;
		garbage |= s->worker.garbage;
		s->worker.garbage = false;
		(void)pthread_mutex_unlock(&s->worker.lock);
		again = work(s, &garbage);
	}
}

int rs_upkeep_new(struct rs_service *s, int64_t scrub_every_s, uint64_t scrub_bytes_per_s, struct sc_err *err)
{
	s->upkeep = sc_zalloc(sizeof(*s->upkeep));
	if (!s->upkeep)
		return sc_nomem(err);
	s->upkeep->scrub_every_s = scrub_every_s;
	s->upkeep->scrub_rate = scrub_bytes_per_s;
	(void)pthread_cond_init(&s->upkeep->scrub_wake, NULL);
	return 0;
}

void rs_upkeep_free(struct rs_service *s)
{
	if (!s->upkeep)
		return;
	sc_vec_done(&s->upkeep->nameless);
	(void)pthread_cond_destroy(&s->upkeep->scrub_wake);
	sc_sys.release(s->upkeep);
	s->upkeep = NULL;
}

int rs_worker_start(struct rs_service *s, struct sc_err *err)
{
	s->worker.called = true;
	return sc_thread_start(&s->worker.thread, "scalai-worker", worker, s, err);
}

bool rs_worker_rests(struct rs_service *s)
{
	bool rests;

	(void)pthread_mutex_lock(&s->worker.lock);
	rests = !s->worker.called && !s->worker.works;
	(void)pthread_mutex_unlock(&s->worker.lock);
	return rests;
}

void rs_worker_stop(struct rs_service *s)
{
	(void)pthread_mutex_lock(&s->worker.lock);
	s->worker.stop = true;
	(void)pthread_cond_signal(&s->worker.wake);
	if (s->upkeep)
		(void)pthread_cond_signal(&s->upkeep->scrub_wake);
	(void)pthread_mutex_unlock(&s->worker.lock);
	sc_thread_join(&s->worker.thread);
	if (s->upkeep)
		sc_thread_join(&s->upkeep->scrubber);
}
