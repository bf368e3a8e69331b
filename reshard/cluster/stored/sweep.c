/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes from etcd what nobody needs any more: records of dropped versions, keys of jobs that were removed, and
 * objects that nothing names.  The first of the members does so, on a thread of its own, while commands go on.
 *
 * 1. The record of a dropped version goes when its rows and files have gone here, as on all nodes, some time ago; and
 *    each node that had uncommitted files in it is given up, or has said that its newest version is no older: it knows
 *    that these were committed.
 * 2. The keys of a job go when etcd says that it was removed; what says so for ever is `all/ended`, which is put in
 *    the same transaction.
 * 3. An object goes that no record, storage or first layout names, by what etcd has at one revision, in two rounds.
 *    Before it goes, the round announces it: `sweeping` has it, and `all/sweep` is put.  Who makes a version or a
 *    storage reads both when it asks whether etcd has what it names, puts again what is announced, and compares
 *    `all/sweep` when it names it.  The round then looks once more, and removes what is as it was, and named by nothing
 *    still.  So whoever has named it since has put it since, or is looked at, or is refused.
 * 4. What is removed is compared by what it was removed for: that a version is not stored, that a job has no row, and
 *    the key that says that it was removed.  So a round that was begun by what etcd had then removes nothing that it
 *    has now, if it is an older copy of its data since, or if another node sweeps.
 * 5. Nothing is removed while the cluster speaks a protocol of programs that do not put again what is announced, or do
 *    not know `all/ended`: RS_PROTOCOL_SWEEPS.  Each transaction compares that the number is the one of the round.
 */
#include "reshard/cluster/stored/sweep_i.h"
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/nodes.h"

#define ANNOUNCED_MAX 8192u	/* objects, in a round */
#define REMOVED_MAX 32u		/* objects, in a transaction */
#define RECORDS_MAX (META_TXN_OPS_MAX - 1)	/* likewise */
#define COMPARES_MAX (REMOVED_MAX + 2)		/* of these, the announcement and the protocol */

SC_METRIC(swept, SC_COUNTER, "scalai_swept_objects_total",
	  "Objects that were removed from etcd, as no version is made of them.");

/* --- who knows of a version --- */

/* The newest versions that members have saved. */
struct saved {
	size_t nr, room;
	struct {
		uint32_t node;
		uint64_t version;
	} *at;
	bool failed;
};

static void on_saved(void *arg, const struct meta_answer *answer)
{
	struct saved *s = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];

		if (r->key.kind == META_KEY_COPIED && r->present)
			s->failed |= sc_vec_push(s, ((typeof(*s->at)){r->key.node, r->value.copied.version})) < 0;
	}
}

static int ask_saved(struct rs_sweep *w, uint64_t job, struct saved *ret)
{
	struct meta_op op = {.what = META_LIST, .key = {.job = job}, .range = META_RANGE_COPIED};
	struct meta_txn txn = {.nr_then = 1, .then = &op};

	if (rs_member_ask(w->m, &txn, on_saved, ret) != META_APPLIED)
		return sc_fail(w->err, SC_E_SYSTEM, "etcd has not answered when it was asked for copies");
	return ret->failed ? sc_nomem(w->err) : 0;
}

/* Tells whether a node is given up: it was drained, and is no member, so nobody needs its uncommitted files. */
static bool is_given_up(struct rs_member *m, uint32_t node)
{
	bool is = false;

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->drained.nr; i++)
		is |= m->drained.at[i] == node;
	is = is && !rs_core_lists(m->core, node);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

static bool knows(struct rs_member *m, const struct saved *saved, uint32_t node, uint64_t nr)
{
	bool is = is_given_up(m, node);

	for (size_t i = 0; i < saved->nr; i++)
		is |= saved->at[i].node == node && saved->at[i].version >= nr;
	return is;
}

/* Tells whether all nodes that have a part in a version know that it was made (rule 1): 1, 0 or an error. */
static int all_know(struct rs_sweep *w, const struct rs_glance_version *v)
{
	const struct rs_object_parts *parts;
	struct saved saved = {.nr = 0};
	bool all = true;
	int rc = rs_marks_parts(w->m, &w->marks, &v->object, &parts, w->err);

	if (rc == SC_E_NOT_FOUND)
		return 1; /* a round of a program from before has removed it; the record was to follow */
	if (rc == 0 && parts->nr)
		rc = ask_saved(w, v->job, &saved);
	for (size_t i = 0; rc == 0 && i < parts->nr; i++)
		all = all && knows(w->m, &saved, parts->at[i].node, v->nr);
	sc_vec_done(&saved);
	return rc < 0 ? rc : all;
}

/* Tells whether rows of a version are here: 1, 0 or an error. */
static int is_here(struct rs_sweep *w, const struct rs_glance_version *v)
{
	struct meta_catalog *c = w->m->s->catalog;
	uint64_t job = 0, id = 0;
	int rc = meta_shared_job_find(c, v->job, &job, w->err);

	if (rc == 0 && job)
		rc = meta_version_find(c, job, v->nr, &id, w->err);
	if (rc == 0 && job && !id)
		rc = meta_version_find(c, -job, v->nr, &id, w->err); /* it has died */
	return rc < 0 ? rc : id != 0;
}

/* Counts the rounds in which nothing of a dropped version was here. */
static uint32_t *rounds_of(struct rs_sweep *w, const struct rs_glance_version *v)
{
	for (size_t i = 0; i < w->dropped.nr; i++)
		if (w->dropped.at[i].job == v->job && w->dropped.at[i].nr == v->nr)
			return &w->dropped.at[i].rounds;
	return sc_vec_push(&w->dropped, ((struct rs_dropped){v->job, v->nr, 0})) < 0
		       ? NULL : &w->dropped.at[w->dropped.nr - 1].rounds;
}

/* Tells whether the record of a dropped version may go: 1, 0 or an error. */
static int may_go(struct rs_sweep *w, const struct rs_glance_version *v)
{
	uint32_t *rounds = rounds_of(w, v);
	int rc = rounds ? is_here(w, v) : sc_nomem(w->err);

	if (rc < 0)
		return rc;
	*rounds = rc ? 0 : *rounds + 1;
	return *rounds > 1 ? !SWEEPS(all_know) || all_know(w, v) : 0;
}

/* Forgets versions that have no records any more. */
static void forget_dropped(struct rs_sweep *w)
{
	size_t kept = 0;

	for (size_t i = 0; i < w->dropped.nr; i++)
		for (size_t k = 0; k < w->look.records.nr; k++)
			if (w->look.records.at[k].job == w->dropped.at[i].job &&
			    w->look.records.at[k].nr == w->dropped.at[i].nr) {
				w->dropped.at[kept++] = w->dropped.at[i];
				break;
			}
	w->dropped.nr = kept;
}

/* --- transactions --- */

static void on_done(void *arg, const struct meta_answer *answer)
{
	*(uint64_t *)arg = answer->revision;
}

/* Adds to a transaction of up to COMPARES_MAX compares that a key is as it was (its MOD; 0: absent). */
static void expect(struct meta_txn *txn, struct meta_key key, uint64_t mod)
{
	struct meta_compare is = {.what = META_MOD_IS, .key = key, .revision = mod};

	txn->compares[txn->nr_compares++] = is;
}

/* Carries out a transaction that removes keys, which puts the tick, too: that tells it from a removal by hand
 * (reshard/cluster/peers/backup.c).  0, 1 (a compare did not hold) or an error. */
static int do_txn(struct rs_sweep *w, struct meta_txn *txn, uint64_t *ret_revision)
{
	struct meta_op *tick = &txn->then[txn->nr_then++];
	uint64_t revision = 0;

	if (SWEEPS(protocol_compared))
		expect(txn, (struct meta_key){.kind = META_KEY_PROTOCOL}, w->look.protocol_mod);
	*tick = (struct meta_op){.what = META_PUT, .key.kind = META_KEY_TICK};
	tick->value = (struct meta_value){.kind = META_KEY_TICK, .rest = ""};
	rs_cluster_step(RS_SWEEP);
	switch (rs_member_ask(w->m, txn, on_done, &revision)) {
	case META_APPLIED:
		if (ret_revision)
			*ret_revision = revision;
		return 0;
	case META_REFUSED:
		return 1;
	default:
		return sc_fail(w->err, SC_E_SYSTEM, "etcd has not answered when keys were removed");
	}
}

static struct meta_op drop(struct meta_key key)
{
	return (struct meta_op){.what = META_DELETE, .key = key};
}

static struct meta_op clear(enum meta_key_kind kind, uint64_t job)
{
	return (struct meta_op){.what = META_CLEAR, .range = META_RANGE_JOB, .key = {.kind = kind, .job = job}};
}

/* Removes what nodes have said of a job that was removed: else that would go with their leases. */
static int remove_reports(struct rs_sweep *w, uint64_t job)
{
	static const enum meta_key_kind kinds[] = {META_KEY_VERSION, META_KEY_COPIED, META_KEY_READY,  META_KEY_KEPT,
						   META_KEY_NCCL,    META_KEY_WHERE,  META_KEY_DIGEST};
	struct meta_compare is[COMPARES_MAX];
	struct meta_op ops[META_TXN_OPS_MAX];
	struct meta_txn txn = {.compares = is, .then = ops};

	if (SWEEPS(row_compared))
		expect(&txn, (struct meta_key){.kind = META_KEY_JOB, .job = job}, 0);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		ops[txn.nr_then++] = clear(kinds[i], job);
	return do_txn(w, &txn, NULL);
}

/* Removes the keys of a job that was removed.  One without a number keeps the key that says so. */
static int remove_job(struct rs_sweep *w, const struct rs_glance_job *j)
{
	const struct meta_key ended = {.kind = META_KEY_ENDED}, removed = {.kind = META_KEY_REMOVED, .job = j->id};
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	struct meta_compare is[COMPARES_MAX];
	struct meta_op ops[META_TXN_OPS_MAX];
	struct meta_txn txn = {.compares = is, .then = ops};
	int rc = remove_reports(w, j->id);

	if (SWEEPS(row_compared))
		expect(&txn, (struct meta_key){.kind = META_KEY_JOB, .job = j->id}, 0);
	if (SWEEPS(removed_compared))
		expect(&txn, removed, j->removed_mod);
	ops[txn.nr_then++] = drop((struct meta_key){.kind = META_KEY_HEAD, .job = j->id});
	ops[txn.nr_then++] = drop((struct meta_key){.kind = META_KEY_SHOWN, .job = j->id});
	ops[txn.nr_then++] = (struct meta_op){.what = META_CLEAR, .range = META_RANGE_STORES, .key = removed};
	ops[txn.nr_then++] = (struct meta_op){.what = META_CLEAR, .range = META_RANGE_TAGS, .key = removed};
	if (rc == 0 && rs_job_number(j->id)) {
		if (SWEEPS(ended_compared))
			expect(&txn, ended, w->look.ended_mod);
		rc = rs_ended_add(w->look.ended.text, rs_job_number(j->id), &text, w->err);
		ops[txn.nr_then++] = drop(removed);
		ops[txn.nr_then] = (struct meta_op){.what = META_PUT, .key = ended};
		ops[txn.nr_then++].value = (struct meta_value){.kind = META_KEY_ENDED, .rest = text.text};
	}
	if (rc == 0)
		rc = do_txn(w, &txn, &w->look.ended_mod);
	if (rc == 0 && text.bytes) {
		sc_buf_done(&w->look.ended);
		w->look.ended = sc_steal(&text);
	}
	w->again |= rc > 0;
	return rc < 0 ? rc : 0;
}

/* Removes what is left of jobs that had been removed in the last round, too: nobody says anything of them any more. */
static int remove_jobs(struct rs_sweep *w)
{
	struct rs_ended_jobs ended = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->look.jobs.nr; i++) {
		const struct rs_glance_job *j = &w->look.jobs.at[i];
		bool again = false;

		if (!j->has_ended || !(j->has_more || (j->has_removed && rs_job_number(j->id))))
			continue;
		for (size_t k = 0; k < w->ended.nr; k++)
			again |= w->ended.at[k] == j->id;
		if (again)
			rc = remove_job(w, j);
		else if (sc_vec_push(&ended, j->id) < 0)
			rc = sc_nomem(w->err);
	}
	w->again |= ended.nr > 0;
	sc_vec_done(&w->ended);
	w->ended = ended;
	return rc;
}

static int remove_records(struct rs_sweep *w)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->records.nr; i += RECORDS_MAX) {
		struct meta_compare is[COMPARES_MAX];
		struct meta_op ops[RECORDS_MAX + 1];
		struct meta_txn txn = {.compares = is, .then = ops};

		for (size_t k = i; k < w->records.nr && k < i + RECORDS_MAX; k++) {
			struct meta_key stored = w->records.at[k];

			stored.kind = META_KEY_STORE;
			if (SWEEPS(record_compared))
				expect(&txn, stored, 0); /* for ever, in one history of etcd */
			ops[txn.nr_then++] = drop(w->records.at[k]);
		}
		rc = do_txn(w, &txn, NULL);
	}
	w->again |= rc > 0;
	return rc < 0 ? rc : 0;
}

/* Says which objects are removed next. */
static int announce(struct rs_sweep *w)
{
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	struct meta_op ops[3] = {{.what = META_PUT, .key.kind = META_KEY_SWEEPING},
				 {.what = META_PUT, .key.kind = META_KEY_SWEEP}};
	struct meta_compare is[COMPARES_MAX];
	struct meta_txn txn = {.compares = is, .nr_then = 2, .then = ops};
	int rc;

	for (size_t i = 0; i < w->goes.nr; i++) {
		char line[RS_SWEEPING_LINE + 1];

		rs_sweeping_line(&w->goes.at[i].name, line);
		sc_buf_printf(&text, "%s", line);
	}
	if (text.failed)
		return sc_nomem(w->err);
	ops[0].value = (struct meta_value){.kind = META_KEY_SWEEPING, .rest = text.text};
	ops[1].value = (struct meta_value){.kind = META_KEY_SWEEP, .number = {w->look.sweeps + 1}};
	rc = do_txn(w, &txn, &w->announced);
	if (rc > 0)
		w->goes.nr = 0; /* nothing is announced */
	return rc < 0 ? rc : 0;
}

/* Removes objects that are as they were: 0, 1 (some are not) or an error. */
static int remove_some(struct rs_sweep *w, const struct rs_glance_object *at, size_t nr)
{
	struct meta_compare is[COMPARES_MAX];
	struct meta_op ops[REMOVED_MAX + 1];
	struct meta_txn txn = {.compares = is, .then = ops};
	int rc;

	if (SWEEPS(announced))
		expect(&txn, (struct meta_key){.kind = META_KEY_SWEEP}, w->announced);
	for (size_t i = 0; i < nr; i++) {
		struct meta_key key = {.kind = META_KEY_OBJECT};

		memcpy(key.hash.at, at[i].name.at, sizeof(key.hash.at));
		if (SWEEPS(object_compared))
			expect(&txn, key, at[i].mod);
		ops[txn.nr_then++] = drop(key);
	}
	rc = do_txn(w, &txn, NULL);
	sc_metric_add(&swept, rc == 0 ? nr : 0);
	return rc;
}

static int remove_objects(struct rs_sweep *w)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < w->goes.nr; i += REMOVED_MAX) {
		const size_t nr = sc_min_u64(REMOVED_MAX, w->goes.nr - i);
		bool any = false;

		rc = remove_some(w, &w->goes.at[i], nr);
		if (rc <= 0)
			continue;
		for (size_t k = 0; rc >= 0 && k < nr; k++) {
			rc = remove_some(w, &w->goes.at[i + k], 1);
			any |= rc == 0;
		}
		if (rc >= 0 && !any)
			return 0; /* another node announces: it is the first member now */
	}
	return rc < 0 ? rc : 0;
}

/* --- rounds --- */

/* Marks what stays by what etcd has, and notes which records may go; `again`: by what it has now. */
static int mark(struct rs_sweep *w, const struct rs_glance *l, bool again)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->named.nr; i++)
		if (!rs_glance_job(l, l->named.at[i].job)->has_ended)
			rc = rs_marks_add(w->m, &w->marks, &l->named.at[i].object, false, w->err);
	for (size_t i = 0; rc == 0 && i < l->records.nr; i++) {
		const struct rs_glance_version *v = &l->records.at[i];
		const struct meta_key key = {.kind = META_KEY_VERSION, .job = v->job, .nr = v->nr};

		if (rs_glance_job(l, v->job)->has_ended)
			continue;
		rc = v->is_stored || again ? 0 : may_go(w, v);
		w->again |= !v->is_stored && rc <= 0;
		if (rc > 0)
			rc = sc_vec_push(&w->records, key) < 0 ? sc_nomem(w->err) : 0;
		else if (rc == 0)
			rc = rs_marks_add(w->m, &w->marks, &v->object, !v->is_stored, w->err);
	}
	return rc;
}

static bool was_unmarked(const struct rs_sweep *w, const struct rs_object_name *name)
{
	return w->unmarked.nr && bsearch(name, w->unmarked.at, w->unmarked.nr, sizeof(*name), rs_object_name_order);
}

/* Finds the objects that go: those that nothing names, as in the last round. */
static int find_objects(struct rs_sweep *w)
{
	struct rs_object_names unmarked = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->look.objects.nr; i++) {
		const struct rs_glance_object *o = &w->look.objects.at[i];

		if (rs_marks_have(&w->marks, &o->name))
			continue;
		if (sc_vec_push(&unmarked, o->name) < 0 ||
		    (was_unmarked(w, &o->name) && w->goes.nr < ANNOUNCED_MAX && sc_vec_push(&w->goes, *o) < 0))
			rc = sc_nomem(w->err);
	}
	sc_vec_done(&w->unmarked);
	w->unmarked = unmarked;
	w->again |= unmarked.nr > 0;
	return rc;
}

/* Looks once more, after the announcement, and keeps what is named by now. */
static int look_again(struct rs_sweep *w)
{
	struct rs_glance now;
	size_t kept = 0;
	int rc = rs_glance(w->m, false, &now, w->err);

	if (rc == 0)
		rc = mark(w, &now, true);
	for (size_t i = 0; rc == 0 && i < w->goes.nr; i++)
		if (!rs_marks_have(&w->marks, &w->goes.at[i].name))
			w->goes.at[kept++] = w->goes.at[i];
	w->goes.nr = kept;
	rs_glance_done(&now);
	return rc;
}

int rs_sweep_round(struct rs_sweep *w, struct sc_err *err)
{
	int rc = rs_glance(w->m, true, &w->look, err);

	w->err = err;
	rs_marks_begin(&w->marks);
	w->again = false;
	if (rc == 0 && SWEEPS(protocol_spoken) && w->look.protocol < RS_PROTOCOL_SWEEPS) {
		rs_glance_done(&w->look);
		return 0;
	}
	if (rc == 0)
		rc = remove_jobs(w);
	if (rc == 0)
		rc = mark(w, &w->look, false);
	if (rc == 0)
		rc = find_objects(w);
	if (rc == 0)
		rc = remove_records(w);
	if (rc == 0 && w->goes.nr)
		rc = announce(w);
	if (rc == 0 && w->goes.nr && SWEEPS(looks_again))
		rc = look_again(w);
	if (rc == 0)
		rc = remove_objects(w);
	forget_dropped(w);
	if (rc == 0)
		rs_marks_end(&w->marks);
	rs_glance_done(&w->look);
	sc_vec_done(&w->goes);
	sc_vec_done(&w->records);
	return rc;
}

static void try_round(struct rs_sweep *w)
{
	struct sc_err err = {0};
	bool ends;
	int rc;

	rc = rs_sweep_round(w, &err);
	w->again |= rc < 0;
	(void)pthread_mutex_lock(&w->m->lock);
	ends = w->m->stop;
	(void)pthread_mutex_unlock(&w->m->lock);
	if (ends)
		return;
	if (rc < 0 && !w->said)
		sc_log(SC_LOG_WARN, "what dropped versions and removed jobs have in etcd stays there: %s; trying again",
		       err.msg);
	w->said = rc < 0;
}

/* Waits until it is time for a round.  False: the member ends. */
static bool wait_for_time(struct rs_sweep *w)
{
	struct rs_member *m = w->m;
	int64_t next = sc_now_ns() + m->times.ttl;
	uint32_t first = 0;
	uint64_t tick = 0;
	bool goes_on;

	(void)pthread_mutex_lock(&m->lock);
	for (;;) {
		while (!m->stop && sc_now_ns() < next)
			(void)sc_sys.wait_until(&m->changed, &m->lock, next);
		(void)rs_core_members(m->core, &first, 1);
		tick = rs_core_tick(m->core);
		if (m->stop || (first == m->node && m->serves && !m->outdated && tick && (w->again || tick != w->tick)))
			break;
		if (first && first != m->node) /* what it knows is old when it is the first one again */
			w->unmarked.nr = w->dropped.nr = w->ended.nr = 0;
		next = sc_now_ns() + m->times.ttl;
	}
	goes_on = !m->stop;
	(void)pthread_mutex_unlock(&m->lock);
	w->tick = tick;
	return goes_on;
}

void rs_sweep_done(struct rs_sweep *w)
{
	rs_marks_done(&w->marks);
	sc_vec_done(&w->dropped);
	sc_vec_done(&w->unmarked);
	sc_vec_done(&w->ended);
}

static void *run(void *arg)
{
	struct rs_sweep w = {.m = arg, .again = true};

	while (wait_for_time(&w))
		try_round(&w);
	rs_sweep_done(&w);
	return NULL;
}

int rs_sweep_start(struct rs_member *m, struct sc_err *err)
{
	return sc_thread_start(&m->sweep, "scalai-sweep", run, m, err);
}

void rs_sweep_stop(struct rs_member *m)
{
	sc_thread_join(&m->sweep);
}
