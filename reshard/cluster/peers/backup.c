/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the backup of the cluster's keys, which each node has in its catalog: the way out where etcd has lost its data
 * (reshard/cluster/node/restore.c).  A thread watches all keys of the cluster, and writes changes down, revision by
 * revision.
 *
 * 1. A backup is etcd's keys as they were at one revision.  Those that go with a lease are not in it, nor those that
 *    say who has registered, nor the secret.
 * 2. A version is in a store's catalog only after the backup has it: a backup lacks no version of its own store.
 * 3. It is made of an etcd that this node takes part in: one that has lost its data is not written over it.  Keys that
 *    somebody has removed by hand stay in it, as far as that can be seen: the cluster's own, those of jobs, and
 *    objects, as whoever sweeps puts the tick in the same transaction.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <string.h>

#define SNAPSHOT 1u
#define AGAIN_MS 1000
#define WAIT_NS (3000 * MEMBER_MS)
#define BACK_NS (5000 * MEMBER_MS)

static bool is_kept(enum meta_key_kind kind)
{
	switch (kind) {
	case META_KEY_CLUSTER: case META_KEY_NUMBERS: case META_KEY_NUMBER: case META_KEY_BOUND: case META_KEY_DRAIN:
	case META_KEY_JOBS: case META_KEY_ENDED:
	case META_KEY_DOMAINS: case META_KEY_PROTOCOL: case META_KEY_FIRST: case META_KEY_HEAD: case META_KEY_SHOWN:
	case META_KEY_STORE: case META_KEY_JOB: case META_KEY_REMOVED: case META_KEY_CONFIG: case META_KEY_TAG:
	case META_KEY_NAME: case META_KEY_VERSION: case META_KEY_OBJECT: case META_KEY_WHERE: case META_KEY_DIGEST:
		return true;
	default:
		return false;
	}
}

/* Tells whether no program removes keys of a kind, so that a removal is by hand. */
static bool is_for_ever(enum meta_key_kind kind)
{
	return kind == META_KEY_CLUSTER || kind == META_KEY_NUMBERS || kind == META_KEY_NUMBER ||
	       kind == META_KEY_BOUND || kind == META_KEY_JOBS || kind == META_KEY_ENDED;
}

static bool has_tick(const struct meta_answer *changes, uint64_t revision)
{
	for (uint32_t i = 0; i < changes->nr; i++)
		if (changes->records[i].key.kind == META_KEY_TICK && changes->records[i].mod == revision)
			return true;
	return false;
}

/* Tells whether a key was removed by hand, and not by a node. */
static bool is_by_hand(const struct meta_answer *changes, const struct meta_record *r)
{
	return !r->present && (is_for_ever(r->key.kind) ||
			       ((r->key.kind == META_KEY_OBJECT || r->key.kind == META_KEY_REMOVED) &&
				!has_tick(changes, r->mod)));
}

static int put(struct rs_member *m, bool fresh, const struct meta_record *r, struct sc_err *err)
{
	sc_cleanup(sc_buf_done) struct sc_buf key = {0}, value = {0};
	int rc;

	if (!is_kept(r->key.kind))
		return 0;
	rc = meta_key_print(m->cluster, &r->key, &key, err);
	if (rc == 0 && r->present)
		rc = meta_value_print(&r->value, &value, err);
	if (rc == 0 && (key.failed || value.failed))
		rc = sc_nomem(err);
	if (rc < 0)
		return rc;
	return r->present ? meta_backup_put(m->s->catalog, fresh, key.text, value.text ? value.text : "", err)
			  : meta_backup_drop(m->s->catalog, key.text, err);
}

/* Takes changes, or a part of a snapshot (`first`: its first part), into the backup. */
static int take(struct rs_member *m, const struct meta_etcd_event *v, bool first, struct sc_err *err)
{
	const bool fresh = v->kind == META_ETCD_SNAPSHOT;
	size_t by_hand = 0;
	int rc = meta_catalog_begin(m->s->catalog, false, err);

	if (rc < 0)
		return rc;
	if (fresh && first)
		rc = meta_backup_begin(m->s->catalog, err);
	for (uint32_t i = 0; rc == 0 && i < v->answer.nr; i++)
		if (is_by_hand(&v->answer, &v->answer.records[i]))
			by_hand++;
		else
			rc = put(m, fresh, &v->answer.records[i], err);
	if (by_hand)
		sc_log(SC_LOG_ERROR, "%zu keys were removed from etcd, and by no node: commits may be refused, as "
		       "etcd lacks them; the backup keeps them: 'scalai cluster rebuild --replace' makes them anew",
		       by_hand);
	if (rc == 0 && !v->more)
		rc = meta_backup_done(m->s->catalog, fresh, v->answer.revision, err);
	return meta_catalog_end(m->s->catalog, rc, err);
}

/* Waits until this node knows that etcd has all that the node has.  False: it will never know that. */
static bool may_begin(struct rs_member *m)
{
	bool may;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop && !m->outdated && !m->checked)
		(void)pthread_cond_wait(&m->changed, &m->lock);
	may = !m->stop && !m->outdated;
	(void)pthread_mutex_unlock(&m->lock);
	return may;
}

static bool goes_on(struct rs_member *m, int64_t until)
{
	bool goes;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop && !m->outdated && sc_now_ns() < until)
		(void)sc_sys.wait_until(&m->changed, &m->lock, until);
	goes = !m->stop && !m->outdated;
	(void)pthread_mutex_unlock(&m->lock);
	return goes;
}

const struct meta_record *rs_record_of_job(const struct meta_answer *answer, enum meta_key_kind kind, uint64_t job)
{
	for (uint32_t i = 0; i < answer->nr; i++)
		if (answer->records[i].key.kind == kind && answer->records[i].key.job == job &&
		    answer->records[i].present)
			return &answer->records[i];
	return NULL;
}

bool rs_removed_by_hand(const struct meta_answer *changes)
{
	for (uint32_t i = 0; i < changes->nr; i++) {
		const struct meta_record *r = &changes->records[i];

		if (r->key.kind == META_KEY_JOB && !r->present &&
		    !rs_record_of_job(changes, META_KEY_REMOVED, r->key.job))
			return true;
		if (r->key.kind == META_KEY_ENDED && !r->present)
			return true;
	}
	return false;
}

static int on_head(void *arg, const char *key, const char *value)
{
	struct sc_arena arena = {0};
	struct meta_value v;
	struct sc_err ignored;

	(void)key;
	if (meta_value_parse(META_KEY_HEAD, value, strlen(value), &arena, &v, &ignored) == 0)
		*(uint64_t *)arg = v.head.nr;
	sc_arena_done(&arena);
	return 0;
}

static bool has_version(struct rs_member *m, const char *key, uint64_t nr)
{
	struct sc_err ignored;
	uint64_t has = 0;

	return meta_backup_each(m->s->catalog, key, on_head, &has, &ignored) == 0 && has >= nr;
}

/* Tells whether the backup has what 2. says.  Of a program before this one it may have parts only. */
static bool is_whole(struct rs_member *m)
{
	struct rs_shared *j;

	for (size_t i = 0; (j = rs_shared_at(m, i)); i++) {
		const struct meta_key key = {.kind = META_KEY_HEAD, .job = j->id};
		sc_cleanup(sc_buf_done) struct sc_buf text = {0};
		struct sc_err ignored;
		bool is_shared;
		uint64_t nr;

		(void)pthread_mutex_lock(&m->lock);
		is_shared = !j->gone && !j->kept;
		(void)pthread_mutex_unlock(&m->lock);
		nr = is_shared ? rs_shared_head(m, j) : 0;
		if (nr && (meta_key_print(m->cluster, &key, &text, &ignored) < 0 || !has_version(m, text.text, nr)))
			return false;
	}
	return true;
}

static void *run(void *arg)
{
	struct rs_member *m = arg;
	struct meta_etcd *e = m->backup.etcd;
	bool follows = m->joined.backup != 0, reads = false, first = false, said = false;

	if (!may_begin(m))
		return NULL;
	if (follows && !is_whole(m)) {
		sc_log(SC_LOG_WARN, "the backup of etcd's keys lacked some of this store, by a fault of a program "
		       "before this one: it is made anew");
		follows = false;
	}
	if (follows)
		meta_etcd_watch(e, m->joined.backup);
	while (goes_on(m, 0)) {
		const struct meta_etcd_event *v;
		struct sc_err err = {0};
		int rc = 0;

		if (!follows && !reads) {
			rc = meta_etcd_snapshot(e, SNAPSHOT, &err);
			reads = first = rc == 0;
		}
		if (rc == 0 && !meta_etcd_next(e, AGAIN_MS, &v))
			continue;
		if (rc == 0 && (v->kind == META_ETCD_UNWATCHED || v->answer.outcome != META_APPLIED))
			rc = sc_fail(&err, v->err.code ? v->err.code : SC_E_SYSTEM, "%s", v->err.msg);
		/* the node's thread sees it, too, and takes no part any more; or they are back since */
		if (rc == 0 && rs_removed_by_hand(&v->answer) && goes_on(m, sc_now_ns() + BACK_NS))
			rc = sc_fail(&err, SC_E_STALE, "keys were removed by hand, and put back");
		if (rc == 0 && goes_on(m, 0))
			rc = take(m, v, first, &err);
		if (rc == 0) {
			first = false;
			reads = v->kind == META_ETCD_SNAPSHOT && v->more;
			follows = !reads;
			said = false;
			(void)pthread_mutex_lock(&m->lock);
			(void)pthread_cond_broadcast(&m->changed);
			(void)pthread_mutex_unlock(&m->lock);
			continue;
		}
		if (!said && err.code != SC_E_STALE)
			sc_log(SC_LOG_WARN, "the backup of etcd's keys: %s; trying again", err.msg);
		said = true;
		follows = reads = false;
		if (!goes_on(m, sc_now_ns() + AGAIN_MS * MEMBER_MS))
			break;
	}
	return NULL;
}

int rs_backup_start(struct rs_member *m, struct sc_err *err)
{
	meta_etcd_saw(m->backup.etcd, meta_etcd_seen(m->etcd));
	return sc_thread_start(&m->backup.thread, "scalai-backup", run, m, err);
}

void rs_backup_stop(struct rs_member *m)
{
	if (m->backup.thread.started)
		meta_etcd_wake(m->backup.etcd);
	sc_thread_join(&m->backup.thread);
	meta_etcd_free(m->backup.etcd);
	m->backup.etcd = NULL;
}

int rs_backup_wait(struct rs_member *m, uint64_t job, uint64_t nr, struct sc_err *err)
{
	const struct meta_key key = {.kind = META_KEY_HEAD, .job = job};
	const int64_t until = sc_now_ns() + WAIT_NS;
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	int rc = meta_key_print(m->cluster, &key, &text, err);
	bool has;

	if (rc < 0)
		return rc;
	for (;;) {
		has = has_version(m, text.text, nr);
		(void)pthread_mutex_lock(&m->lock);
		if (has || m->stop || m->outdated || sc_now_ns() >= until)
			break;
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + 20 * MEMBER_MS);
		(void)pthread_mutex_unlock(&m->lock);
	}
	(void)pthread_mutex_unlock(&m->lock);
	return has ? 0 : sc_fail(err, SC_E_BUSY, "etcd does not answer: the backup of its keys is behind");
}

void rs_revision_note(struct rs_member *m)
{
	struct sc_err err;
	uint64_t seen;

	(void)pthread_mutex_lock(&m->lock);
	seen = m->seen;
	(void)pthread_mutex_unlock(&m->lock);
	if (seen <= m->noted)
		return;
	if (meta_member_set_revision(m->s->catalog, seen, &err) < 0)
		sc_log(SC_LOG_WARN, "%s: how far etcd was is not noted, continuing", err.msg);
	else
		m->noted = seen;
}
