/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the open files of working trees.
 *
 * A removed file keeps its bytes until its last close, as POSIX wants, or until the mount ends: the kernel sends no
 * RELEASE of a file that was closed in a mount's last moment.  After a crash the next start finds the file without a
 * row.
 *
 * A commit seals a file only while nobody can write it.  Invariants (job.tree is the lock of both sides):
 *
 *  W1  A handle that may write is counted, under the lock that found its file uncommitted, before the kernel is
 *      answered, and until its RELEASE.  The kernel opens the backing file of a passthrough handle after the answer:
 *      a lease alone sees nobody in between.
 *  W2  A thread that is told to open a copy has it reserved until that open, or for RS_RESERVED_NS.
 *  W3  A commit holds job.tree for writing, finds no count and no reservation, and then has a lease on every file:
 *      a mapping outlives the handle that made it, and only the lease sees it.
 */
#include "reshard/worktree/requests/requests_i.h"

static struct rs_opened **find(struct rs_service *s, uint64_t blob)
{
	struct rs_opened **at = &s->requests->opened.buckets[blob % RS_OPENED_BUCKETS];

	while (*at && (*at)->blob != blob)
		at = &(*at)->next;
	return at;
}

static struct rs_opened *make(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	struct rs_opened **at = find(s, blob);

	if (*at)
		return *at;
	*at = sc_zalloc(sizeof(**at));
	if (!*at)
		(void)sc_nomem(err);
	else
		(*at)->blob = blob;
	return *at;
}

/* Frees an entry that counts nothing any more; true: its file was removed, and the bytes are to go now. */
static bool drop(struct rs_service *s, uint64_t blob)
{
	struct rs_opened **at = find(s, blob), *o = *at;
	bool removed;

	if (!o || o->times || o->writers || o->reserved)
		return false;
	removed = o->removed;
	*at = o->next;
	sc_sys.release(o);
	return removed;
}

/* Adds to one of the three counts of a blob: opens, writers, reservations. */
static int count(struct rs_service *s, uint64_t blob, int times, int writers, int reserved, int64_t until_ns,
		 struct sc_err *err)
{
	struct sc_err ignored;
	struct rs_opened *o;
	bool removed = false;

	(void)pthread_mutex_lock(&s->requests->opened.lock);
	o = times + writers + reserved > 0 ? make(s, blob, err) : *find(s, blob);
	if (o) {
		o->times += (uint32_t)times;
		o->writers += (uint32_t)writers;
		o->reserved += (uint32_t)reserved;
		if (until_ns > o->until_ns)
			o->until_ns = until_ns;
		removed = drop(s, blob);
	}
	(void)pthread_cond_broadcast(&s->requests->opened.fewer);
	(void)pthread_mutex_unlock(&s->requests->opened.lock);
	if (removed)
		(void)meta_store_remove(&s->store, blob, &ignored); /* else: at the next start */
	return o || times + writers + reserved < 0 ? 0 : SC_E_NO_MEMORY;
}

int rs_work_hold(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	return count(s, blob, 1, 0, 0, 0, err);
}

void rs_work_release(struct rs_service *s, uint64_t blob)
{
	(void)count(s, blob, -1, 0, 0, 0, NULL);
}

int rs_writer_begin(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	return count(s, blob, 0, 1, 0, 0, err);
}

void rs_writer_end(struct rs_service *s, uint64_t blob)
{
	(void)count(s, blob, 0, -1, 0, 0, NULL);
}

int rs_writer_reserve(struct rs_service *s, uint64_t blob, int64_t until_ns, struct sc_err *err)
{
	return count(s, blob, 0, 0, 1, until_ns, err);
}

void rs_writer_redeem(struct rs_service *s, uint64_t blob)
{
	(void)count(s, blob, 0, 0, -1, 0, NULL);
}

enum rs_writers rs_work_writers(struct rs_service *s, uint64_t blob)
{
	enum rs_writers is = RS_QUIET;
	const struct rs_opened *o;

	(void)pthread_mutex_lock(&s->requests->opened.lock);
	o = *find(s, blob);
	if (o && o->writers)
		is = RS_OPEN;
	else if (o && o->reserved && sc_now_ns() < o->until_ns)
		is = RS_RESERVED;
	(void)pthread_mutex_unlock(&s->requests->opened.lock);
	return is;
}

bool rs_work_is_written(struct rs_service *s, uint64_t blob)
{
	return rs_work_writers(s, blob) == RS_OPEN;
}

void rs_work_wait(struct rs_service *s, int64_t ns)
{
	(void)pthread_mutex_lock(&s->requests->opened.lock);
	(void)sc_sys.wait_until(&s->requests->opened.fewer, &s->requests->opened.lock, sc_now_ns() + ns);
	(void)pthread_mutex_unlock(&s->requests->opened.lock);
}

bool rs_work_is_open(struct rs_service *s, uint64_t blob)
{
	const struct rs_opened *o;
	bool is;

	(void)pthread_mutex_lock(&s->requests->opened.lock);
	o = *find(s, blob);
	is = o && (o->times || o->writers);
	(void)pthread_mutex_unlock(&s->requests->opened.lock);
	return is;
}

int rs_remove_bytes(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	struct rs_opened *o;
	bool is_open;

	(void)pthread_mutex_lock(&s->requests->opened.lock);
	o = *find(s, blob);
	is_open = o && (o->times || o->writers || o->reserved);
	if (is_open)
		o->removed = true;
	(void)pthread_mutex_unlock(&s->requests->opened.lock);
	return is_open ? 0 : meta_store_remove(&s->store, blob, err);
}

void rs_opened_init(struct rs_service *s)
{
	(void)pthread_mutex_init(&s->requests->opened.lock, NULL);
	(void)pthread_cond_init(&s->requests->opened.fewer, NULL);
}

void rs_opened_done(struct rs_service *s)
{
	struct sc_err ignored;

	for (size_t i = 0; i < RS_OPENED_BUCKETS; i++)
		while (s->requests->opened.buckets[i]) {
			struct rs_opened *o = s->requests->opened.buckets[i];

			if (o->removed) /* whatever was counted: who still has it open keeps its bytes by that */
				(void)meta_store_remove(&s->store, o->blob, &ignored); /* else: at the next start */
			s->requests->opened.buckets[i] = o->next;
			sc_sys.release(o);
		}
	(void)pthread_cond_destroy(&s->requests->opened.fewer);
	(void)pthread_mutex_destroy(&s->requests->opened.lock);
}
