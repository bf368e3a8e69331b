/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the log of working trees (meta/tree/tail.h), and gives numbers to new objects.  A record in the log outlives
 * the process; a thread applies records to the catalog, many in a transaction.
 */
#include "reshard/worktree/requests/requests_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/trees.h"
#include "meta/tree/tail.h"

#define LOG_NAME "scalai.log"
#define LOG_BYTES (4u << 20)
#define DRAIN_NS INT64_C(50000000)
#define RETRY_NS INT64_C(1000000000)
#define NUMBERS 4096	/* that a job takes at once */

static _Thread_local uint64_t *note;

struct keeping {
	struct rs_service *s;
	struct sc_err *err;
};

static int apply_all(struct meta_catalog *c, struct meta_tail_batch *batch, struct sc_err *err)
{
	struct meta_changes changes = {0};
	struct meta_tail_record record;
	int rc;

	while ((rc = meta_tail_next(batch, &record, err)) > 0) {
		changes.nr = 0;
		rc = meta_changes_decode(record.bytes.at, record.bytes.nr, &changes, err);
		if (rc == 0)
			rc = meta_upper_apply(c, &changes, err);
		if (rc < 0)
			break;
	}
	meta_changes_done(&changes);
	return rc < 0 ? rc : meta_tail_set_applied(c, batch->sequence, err);
}

static int apply(void *arg, struct meta_tail_batch *batch, struct sc_err *err)
{
	struct rs_service *s = arg;
	int rc = meta_catalog_begin(s->catalog, false, err);

	return rc < 0 ? rc : meta_catalog_end(s->catalog, apply_all(s->catalog, batch, err), err);
}

/* --- the thread --- */

static void *drainer(void *arg)
{
	struct rs_service *s = arg;
	struct sc_err err, said = {0};
	bool stop;

	do {
		int rc = 0;

		(void)pthread_mutex_lock(&s->requests->log.lock);
		while (!s->requests->log.stop && !meta_tail_waiting(s->requests->log.tail))
			(void)pthread_cond_wait(&s->requests->log.wake, &s->requests->log.lock);
		if (!s->requests->log.stop)
			(void)sc_sys.wait_until(&s->requests->log.wake, &s->requests->log.lock, sc_now_ns() + DRAIN_NS);
		stop = s->requests->log.stop;
		(void)pthread_mutex_unlock(&s->requests->log.lock);
		if (meta_tail_waiting(s->requests->log.tail))
			rc = meta_tail_drain(s->requests->log.tail, &err);
		if (rc == 0) {
			said = (struct sc_err){0};
			continue;
		}
		if (strcmp(said.msg, err.msg) != 0)
			sc_log(SC_LOG_ERROR, "changes of names stay in the log, which has room for %u MiB: %s",
			       LOG_BYTES >> 20, err.msg);
		said = err;
		(void)pthread_mutex_lock(&s->requests->log.lock);
		if (!s->requests->log.stop)
			(void)sc_sys.wait_until(&s->requests->log.wake, &s->requests->log.lock, sc_now_ns() + RETRY_NS);
		stop = s->requests->log.stop;
		(void)pthread_mutex_unlock(&s->requests->log.lock);
	} while (!stop);
	return NULL;
}

static int on_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	struct rs_service *s = arg;

	return sc_vec_push(&s->requests->numbers, (struct rs_number_block){first, nr, job}) < 0 ? SC_E_NO_MEMORY : 0;
}

static int open_tail(struct rs_service *s, struct sc_err *err)
{
	uint64_t applied = 0;
	int rc = meta_tail_applied(s->catalog, &applied, err);

	return rc < 0 ? rc : meta_tail_open(s->store.dir, LOG_NAME, LOG_BYTES, applied, apply, s,
					    &s->requests->log.tail, err);
}

/* Moves the file of a blob without a row to lost+found, as a dropped record may have made it and the start would remove
 * it.  A blob with a recovery record had a row, and its version was dropped: it stays. */
static int keep_blob(void *arg, uint64_t blob)
{
	const struct keeping *k = arg;
	int known = meta_blob_known(k->s->catalog, blob, k->err);

	if (known || meta_store_has_record(&k->s->store, blob))
		return known < 0 ? known : 0;
	return meta_store_set_aside(&k->s->store, blob, k->err);
}

int rs_log_set_aside(struct rs_service *s, struct sc_err *err)
{
	char name[META_ASIDE_BYTES];
	int rc = meta_store_set_file_aside(&s->store, LOG_NAME, name, err);

	return rc == SC_E_SYSTEM && err->errnum == ENOENT ? 0 : rc;
}

/*
 * Moves what a damaged log leaves to lost+found.  Records before the damaged one are in the catalog.  Blobs go first,
 * the log goes last: a start that is killed in between finds the damage once more, until the whole log is in
 * lost+found.
 */
static int keep_damaged(struct rs_service *s, const struct meta_tail_damage *damage, struct sc_err *err)
{
	struct keeping k = {s, err};
	char name[META_ASIDE_BYTES];
	int rc = meta_store_each(&s->store, keep_blob, &k, err);

	if (rc == 0)
		rc = meta_store_set_file_aside(&s->store, LOG_NAME, name, err);
	if (rc < 0)
		return sc_wrap(err, rc, "the log of working trees is damaged, and could not be kept");
	sc_log(SC_LOG_ERROR, "log of working trees: the record at %" PRIu64 " is damaged, so it is dropped, and %"
	       PRIu64 " whole records behind it: the last changes of names and attributes before the daemon ended; the "
	       "log is kept as lost+found/%s, and files that no row names are there, too, continuing", damage->at,
	       damage->behind, name);
	s->requests->log.tail = meta_tail_close(s->requests->log.tail);
	return open_tail(s, err);
}

bool rs_log_is_damaged(const struct rs_service *s, struct meta_tail_damage *ret)
{
	return meta_tail_is_damaged(s->requests->log.tail, ret);
}

bool rs_log_next_kept(const struct rs_service *s, unsigned *nr, char ret[META_ASIDE_BYTES])
{
	return meta_store_next_aside(&s->store, LOG_NAME, nr, ret);
}

int rs_log_open(struct rs_service *s, bool looks_only, struct sc_err *err)
{
	struct meta_tail_damage damage;
	int rc = open_tail(s, err);

	if (rc == 0)
		rc = meta_tail_drain(s->requests->log.tail, err);
	if (rc == 0 && !looks_only && meta_tail_is_damaged(s->requests->log.tail, &damage))
		rc = keep_damaged(s, &damage, err);
	if (rc == 0)
		rc = meta_tail_applied(s->catalog, &s->requests->log.began, err);
	if (rc == 0)
		rc = meta_numbers_each(s->catalog, on_block, s, err);
	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	return rc;
}

int rs_log_start(struct rs_service *s, struct sc_err *err)
{
	return sc_thread_start(&s->requests->log.thread, "scalai-log", drainer, s, err);
}

void rs_log_close(struct rs_service *s)
{
	struct sc_err err;

	if (!s->requests)
		return;
	if (s->requests->log.thread.started) {
		(void)pthread_mutex_lock(&s->requests->log.lock);
		s->requests->log.stop = true;
		(void)pthread_cond_signal(&s->requests->log.wake);
		(void)pthread_mutex_unlock(&s->requests->log.lock);
		sc_thread_join(&s->requests->log.thread);
	}
	if (s->requests->log.tail && meta_tail_drain(s->requests->log.tail, &err) < 0)
		sc_log(SC_LOG_ERROR, "changes of names stay in the log until the next start: %s", err.msg);
	s->requests->log.tail = meta_tail_close(s->requests->log.tail);
}

int rs_log_drain(struct rs_service *s, struct sc_err *err)
{
	return meta_tail_drain(s->requests->log.tail, err);
}

void rs_log_note(uint64_t *to)
{
	note = to;
}

bool rs_log_had(const struct rs_service *s, uint64_t sequence)
{
	return sequence && sequence <= s->requests->log.began;
}

int rs_log_write(void *arg, const struct meta_changes *record, struct sc_err *err)
{
	struct rs_service *s = ((struct rs_job *)arg)->service;
	struct sc_buf buf = {0};
	uint64_t *to = note && *note == 0 ? note : NULL;
	bool was_empty = !meta_tail_waiting(s->requests->log.tail);
	int rc;

	meta_changes_encode(record, &buf);
	rc = buf.failed ? sc_nomem(err)
			: meta_tail_append(s->requests->log.tail, 0, (struct meta_bytes){buf.text, buf.bytes}, to, err);
	sc_buf_done(&buf);
	if (rc == 0 && was_empty) {
		(void)pthread_mutex_lock(&s->requests->log.lock);
		(void)pthread_cond_signal(&s->requests->log.wake);
		(void)pthread_mutex_unlock(&s->requests->log.lock);
	}
	return rc;
}

/* --- numbers --- */

static int by_first(const void *a, const void *b)
{
	const struct rs_number_block *x = a, *y = b;

	return (x->first > y->first) - (x->first < y->first);
}

int rs_numbers_note(struct rs_service *s, uint64_t first, uint64_t nr, uint64_t job, struct sc_err *err)
{
	struct rs_requests *r = s->requests;
	int rc;

	(void)pthread_mutex_lock(&s->lock);
	rc = sc_vec_push(&r->numbers, (struct rs_number_block){first, nr, job}) < 0 ? sc_nomem(err) : 0;
	if (rc == 0 && r->numbers.nr > 1 && r->numbers.at[r->numbers.nr - 2].first > first)
		qsort(r->numbers.at, r->numbers.nr, sizeof(*r->numbers.at), by_first);
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

int rs_number_take(void *arg, uint64_t *ret, struct sc_err *err)
{
	struct rs_job *job = arg;
	uint64_t first;
	int rc = 0;

	if (job->numbers.next == job->numbers.end) {
		rc = meta_numbers_take(job->service->catalog, job->id, NUMBERS, &first, err);
		if (rc == 0)
			rc = rs_numbers_note(job->service, first, NUMBERS, job->id, err);
		if (rc < 0)
			return rc;
		job->numbers.next = first;
		job->numbers.end = first + NUMBERS;
	}
	*ret = job->numbers.next++;
	return 0;
}

struct rs_job *rs_job_of_number(struct rs_service *s, uint64_t ino)
{
	const struct rs_requests *r = s->requests;
	uint64_t id = 0;
	struct rs_job *job;

	if (ino & META_VIRTUAL) {
		id = meta_virtual_job(ino);
	} else {
		size_t behind;

		(void)pthread_mutex_lock(&s->lock);
		behind = sc_first(r->numbers.nr, i, r->numbers.at[i].first > ino);
		if (behind && ino - r->numbers.at[behind - 1].first < r->numbers.at[behind - 1].nr)
			id = r->numbers.at[behind - 1].job;
		(void)pthread_mutex_unlock(&s->lock);
	}
	job = id ? rs_job_by_id(s, id) : NULL;
	return job && !rs_job_is_removed(job) ? job : NULL;
}
