/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kind "etcd" of head.h.  A command's thread waits; what it waits for is done by the core, and for the job by the
 * worker, which closes the gate, saves the version when etcd has it, and opens the gate.
 *
 *	begin		propose; all nodes close their gates and agree; then the version is made
 *	publish		its objects go to etcd; the commit there is the atomic point; saved, hidden, shown
 *
 * 1. What etcd has committed is saved here sooner or later: until then nothing of the job is shown by plain path.
 * 2. A command that failed did not happen: the catalog's transaction before the commit was a trial.
 *    SC_E_BUSY: it may be tried again; SC_E_STALE: nobody can say whether it happened.
 * 3. A command whose version etcd has ends as soon as the worker has that version or a later one: a node that was cut
 *    off after its commit may learn of the next node's version first, and takes its own as it takes others'.  So it
 *    does if it could not save the version for a registration's time: all other nodes show it, and it was done.
 */
#include "reshard/cluster/node/member_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COMMIT_NS (600000 * MEMBER_MS)	/* from the proposal to the commit: files are read in between */
#define CHANGE_NS (30000 * MEMBER_MS)
#define AGAIN_NS (10000 * MEMBER_MS)	/* another command of the job is waited for so long */
#define LOOK_NS (100 * MEMBER_MS)

SC_METRIC(prepared, SC_COUNTER, "scalai_cluster_prepared_total",
	  "Commands of this node that all nodes have prepared.");
SC_METRIC(prepared_ns, SC_SECONDS, "scalai_cluster_prepare_seconds_total",
	  "Time from when such a command was proposed to when it was prepared.");
SC_METRIC(committed, SC_COUNTER, "scalai_cluster_committed_total",
	  "Versions of this node's commands that all nodes show.");
SC_METRIC(committed_ns, SC_SECONDS, "scalai_cluster_commit_seconds_total",
	  "Time from when such a version was made to when it is shown.");

static void count(struct sc_metric *times, struct sc_metric *ns, int64_t since_ns)
{
	sc_metric_add(times, 1);
	sc_metric_add(ns, (uint64_t)(sc_now_ns() - since_ns));
}

static enum meta_command_kind kind_of(enum rs_change change)
{
	static const enum meta_command_kind kinds[] = {
		[RS_BY_COMMIT] = META_BY_COMMIT, [RS_BY_TOPOLOGY] = META_BY_TOPOLOGY, [RS_BY_LAYOUT] = META_BY_LAYOUT,
		[RS_BY_ROLLBACK] = META_BY_ROLLBACK, [RS_BY_DATA] = META_BY_DATA,
		[RS_BY_REMOVAL] = META_BY_REMOVAL,
	};

	return kinds[change];
}

/* --- the outcome --- */

void rs_move_done(struct rs_member *m, const struct rs_act *a)
{
	struct rs_move *move;

	(void)pthread_mutex_lock(&m->lock);
	move = rs_move_of(m, a->job, a->token);
	if (move) {
		move->done = true;
		move->code = a->code;
		(void)pthread_cond_broadcast(&m->changed);
	}
	(void)pthread_mutex_unlock(&m->lock);
}

static int failed(const struct rs_move *move, struct sc_err *err)
{
	if (move->err.code) {
		*err = move->err;
		return err->code;
	}
	switch (move->code) {
	case SC_E_BUSY:
		return *move->late
			       ? sc_fail(err, SC_E_BUSY, "%s has not answered in time; try again", move->late)
			       : sc_fail(err, SC_E_BUSY, "another command changes this job, or this node is no member "
					 "of the cluster now; see /.ctl/health and try again");
	case SC_E_NO_SPACE:
		return sc_fail(err, SC_E_NO_SPACE, "nothing was changed: " RS_FULL);
	case SC_E_STALE:
		return sc_fail(err, SC_E_STALE, "etcd's answer was lost, and later versions hide what became of the "
			       "command: see .ctl/versions");
	case SC_E_CANCELLED:
		return sc_fail(err, SC_E_BUSY, "the command was given up, as this node's registration with etcd ended, "
			       "or the list of nodes changed: nothing was changed; try again");
	default:
		return sc_fail(err, SC_E_BUSY, "etcd's answer was lost, and the command was not done: nothing was "
			       "changed; try again");
	}
}

/* Under m->lock: waits until the version is to be made, or the outcome is known, and the version saved.  It is not
 * saved here any more if that has failed (3).  False: the member ends. */
static bool wait_for(struct rs_member *m, struct rs_move *move)
{
	int64_t give_up = 0;

	while (!m->stop && !move->composes && !(move->done && (move->code || move->saved || move->overtaken)) &&
	       !(give_up && move->failed && sc_now_ns() >= give_up)) {
		if (move->done && !give_up)
			give_up = sc_now_ns() + m->times.ttl;
		(void)(give_up ? sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + LOOK_NS)
			       : pthread_cond_wait(&m->changed, &m->lock));
	}
	while (move->saves)
		(void)pthread_cond_wait(&m->changed, &m->lock);
	if (move->done && !move->saved)
		move->composed = false; /* the worker saves it no more as this command's */
	return !m->stop;
}

static int ends(struct sc_err *err)
{
	return sc_fail(err, SC_E_CANCELLED, "this mount ends; .ctl/versions on another node tells what became of the "
		       "command");
}

/* Takes the command off its job. */
static void drop(struct rs_member *m, struct rs_shared *j)
{
	j->move->a->joined = NULL;
	rs_member_join_done(m, j->move);
	(void)pthread_mutex_lock(&m->lock);
	sc_sys.release(j->move);
	j->move = NULL;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

/* --- begin --- */

/* One attempt: 0, all have prepared; 1, another command was there before; or an error. */
static int propose(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err)
{
	const int64_t began = sc_now_ns();
	struct rs_event e = {.kind = RS_EV_COMMAND, .job = j->id, .change = kind_of(move->a->change),
			     .deadline = move->a->change == RS_BY_COMMIT ? COMMIT_NS : CHANGE_NS};
	bool lives;
	int rc = rs_member_token(&e.token, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	move->token = e.token;
	move->done = false;
	move->err.code = 0;
	*move->late = 0;
	(void)pthread_mutex_unlock(&m->lock);
	rs_cluster_step(RS_PROPOSE);
	rs_member_post(m, &e);
	(void)pthread_mutex_lock(&m->lock);
	lives = wait_for(m, move);
	(void)pthread_mutex_unlock(&m->lock);
	if (!lives)
		return ends(err);
	if (!move->done) {
		count(&prepared, &prepared_ns, began);
		return 0;
	}
	return move->code == SC_E_BUSY && !move->err.code ? 1 : failed(move, err);
}

static int propose_until(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err)
{
	const int64_t give_up = sc_now_ns() + AGAIN_NS;
	int rc;

	while ((rc = propose(m, j, move, err)) == 1 && sc_now_ns() < give_up) {
		(void)pthread_mutex_lock(&m->lock);
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + 20 * MEMBER_MS);
		(void)pthread_mutex_unlock(&m->lock);
	}
	return rc == 1 ? failed(move, err) : rc;
}

/* Tells whether a head has another storage, which is not taken here yet.  Under m->lock. */
static bool is_stored_anew(const struct rs_shared *j, const struct rs_view *head)
{
	return !j->storage.done && j->storage.nr == head->version->nr;
}

/* Waits for that, before a gate is closed: a commit is made of the storage that the head has then. */
static void wait_stored(struct rs_member *m, const struct rs_shared *j, const struct rs_view *head)
{
	const int64_t give_up = sc_now_ns() + AGAIN_NS;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop && is_stored_anew(j, head) && sc_now_ns() < give_up)
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + 20 * MEMBER_MS);
	(void)pthread_mutex_unlock(&m->lock);
}

/* The job's entry, with this command: one at a time. */
static int enter(struct rs_member *m, struct rs_advance *a, struct rs_shared **ret, struct sc_err *err)
{
	struct rs_move *move = sc_zalloc(sizeof(*move));
	struct rs_shared *j;
	int rc = move ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	move->a = a;
	(void)pthread_mutex_lock(&m->lock);
	while ((j = rs_shared_wait(m, a->job)) && j->move && !m->stop)
		(void)pthread_cond_wait(&m->changed, &m->lock);
	if (m->stop)
		rc = ends(err);
	else if (!j || j->gone)
		rc = sc_fail(err, SC_E_NOT_FOUND, "the job is not in the cluster%s", j ? ": it was removed" : "");
	else
		j->move = move;
	(void)pthread_mutex_unlock(&m->lock);
	if (rc < 0)
		sc_sys.release(move);
	*ret = j;
	return rc;
}

/* Layout and topology of a job without a version are no version. */
static int begin_first(struct rs_advance *a, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&a->job->command);
	(void)rs_tree_close(a->job, false, err);
	rc = a->present(a, err);
	rs_tree_open(a->job);
	(void)pthread_mutex_unlock(&a->job->command);
	return rc;
}

static void etcd_abort(void *arg, struct rs_advance *a);

static int etcd_begin(void *arg, struct rs_advance *a, struct sc_err *err)
{
	struct rs_service *s = arg;
	struct rs_member *m = s->member;
	struct rs_view *head;
	struct rs_shared *j = NULL;
	int rc = rs_member_current(m, a->job, err); /* another node's first version may be on its way */

	if (rc < 0)
		return rc;
	head = rs_job_head(a->job);
	if (!head && a->change != RS_BY_COMMIT && a->change != RS_BY_DATA)
		return begin_first(a, err);
	if (head && a->change == RS_BY_TOPOLOGY)
		rc = rs_copies_refuse_lost(m, a->job, head->version->nr, err);
	if (rc == 0)
		rc = enter(m, a, &j, err);
	if (rc == 0 && head && a->change == RS_BY_COMMIT)
		wait_stored(m, j, head);
	rs_view_unref(s, head);
	if (rc < 0)
		return rc;
	rc = propose_until(m, j, j->move, err);
	if (rc < 0) {
		drop(m, j);
		return rc;
	}
	a->base = rs_job_head(a->job);
	rc = a->change == RS_BY_COMMIT ? rs_member_join(m, j, j->move, err) : a->present(a, err);
	if (rc == 0 && j->move->joins)
		a->joined = &j->move->joined;
	if (rc != 0)
		etcd_abort(s, a);
	return rc;
}

/* --- publish --- */

struct publishing {
	struct rs_member *m;
	const struct rs_move *move;
	struct rs_bag bag;
	struct rs_object_names sets;
	struct meta_set_name *named;	/* likewise, with their files */
	uint8_t version[RS_OBJECT_NAME_BYTES];
};

/* Inside the catalog's transaction, which is a trial. */
static int collect(void *arg, uint64_t version, struct sc_err *err)
{
	struct publishing *p = arg;
	int rc = rs_objects_put(p->m->s, version, p->m->node, &p->move->parts, &rs_bag_ops, &p->bag, p->version,
				&p->sets, err);

	return rc < 0 ? rc : 1;
}

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct meta_set_name *)a)->file, ((const struct meta_set_name *)b)->file);
}

/* Sets are named by their files, and come in the order of these. */
static int name_sets(struct publishing *p, const struct rs_version *v, struct sc_err *err)
{
	p->named = sc_zalloc_array(v->nr_sets + 1, sizeof(*p->named));
	if (!p->named)
		return sc_nomem(err);
	if (p->sets.nr != v->nr_sets || v->nr_sets > META_SETS_MAX)
		return sc_fail(err, SC_E_LIMIT, "the version has %zu files of tensors; in a cluster it has at most %u",
			       v->nr_sets, META_SETS_MAX);
	for (size_t i = 0; i < v->nr_sets; i++)
		p->named[i].file = v->sets[i]->file;
	qsort(p->named, v->nr_sets, sizeof(*p->named), by_file);
	for (size_t i = 0; i < v->nr_sets; i++)
		memcpy(p->named[i].set.at, p->sets.at[i].at, RS_OBJECT_NAME_BYTES);
	return 0;
}

static void publishing_done(struct publishing *p)
{
	rs_bag_done(&p->bag);
	sc_vec_done(&p->sets);
	sc_sys.release(p->named);
}

/* A commit that nodes have to prepare once more: it has the files of its parts, and of the storage below. */
static int check_again(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&m->lock);
	move->a->again = move->a->base && is_stored_anew(j, move->a->base);
	(void)pthread_mutex_unlock(&m->lock);
	if (move->a->again)
		return sc_fail(err, SC_E_BUSY, "the version below has just been stored anew: nothing was committed; "
			       "try again");
	rc = rs_member_join_check(m, j, move, err);
	move->a->again = rc == SC_E_BUSY;
	return rc;
}

/* Puts what the version is made of; again, if a sweep was announced since. */
static int put_objects(struct rs_member *m, struct publishing *p, bool again, struct sc_err *err)
{
	const uint64_t was = p->bag.sweep;
	const size_t nr = p->bag.all.nr;
	int rc = rs_bag_refer(m, &p->bag, err);

	if (rc < 0 || (again && p->bag.sweep == was && p->bag.all.nr == nr))
		return rc;
	return rs_bag_put(m, &p->bag, err);
}

/* Hands the version to the core, or (rc) that there is none; waits for the outcome.  The core asks once more if a node
 * has registered anew meanwhile, and has to prepare again: the version is the same, over the same head. */
static int compose(struct rs_member *m, struct rs_shared *j, struct publishing *p, int rc, struct sc_err *err)
{
	struct rs_move *move = j->move;
	const struct rs_version *v = move->a->next ? move->a->next->version : NULL;
	struct rs_event e = {.kind = RS_EV_COMPOSED, .job = j->id, .token = move->token, .code = rc};
	const int64_t began = sc_now_ns();
	bool lives, again;

	if (rc == 0) {
		memcpy(e.record.at, p->version, RS_OBJECT_NAME_BYTES);
		e.version.topology = v->topo.text;
		e.version.note = v->note ? v->note : "";
		memcpy(e.version.placement.at, p->version, RS_OBJECT_NAME_BYTES);
		e.nr_sets = (uint32_t)p->sets.nr;
		e.sets = p->named;
		e.presented = !rs_view_is_materialized(move->a->next);
	}
	do {
		(void)pthread_mutex_lock(&m->lock);
		move->composes = false;
		move->composed = rc == 0;
		(void)pthread_mutex_unlock(&m->lock);
		e.members = move->members;
		e.sweep = p ? p->bag.sweep : 0;
		if (rc == 0)
			rs_cluster_step(RS_COMMIT);
		rs_member_post(m, &e);
		(void)pthread_mutex_lock(&m->lock);
		lives = wait_for(m, move);
		again = lives && move->composes && !move->done;
		(void)pthread_mutex_unlock(&m->lock);
		if (again && rc == 0 && move->a->change == RS_BY_COMMIT)
			rc = e.code = check_again(m, j, move, err);
		if (again && rc == 0)
			rc = e.code = put_objects(m, p, true, err);
	} while (again);
	if (!lives)
		return ends(err);
	if (rc == 0 && !move->code)
		count(&committed, &committed_ns, began);
	return rc < 0 ? rc : move->code ? failed(move, err) : 0;
}

static int etcd_publish(void *arg, struct rs_advance *a, struct sc_err *err)
{
	struct rs_service *s = arg;
	struct rs_member *m = s->member;
	struct publishing p = {.m = m};
	struct rs_shared *j;
	int rc;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, a->job);
	(void)pthread_mutex_unlock(&m->lock);
	p.move = j->move;
	rc = rs_local_plan(a, &j->move->turn, err);
	if (rc == 0)
		rc = rs_local_save(a, j->move->turn, collect, &p, err);
	if (rc == 0)
		rc = name_sets(&p, a->next->version, err);
	if (rc == 0)
		rc = put_objects(m, &p, false, err);
	rc = compose(m, j, &p, rc, err);
	if (rc == 0 && !j->move->saved) { /* 3 */
		rs_view_unref(s, a->next);
		a->next = NULL;
		if (j->move->failed)
			sc_log(SC_LOG_ERROR, "a version that all other nodes show is not saved on this one, which made "
			       "it; /.ctl/health says why");
	}
	publishing_done(&p);
	rs_turn_done(j->move->turn);
	drop(m, j);
	return rc;
}

static void etcd_abort(void *arg, struct rs_advance *a)
{
	struct rs_service *s = arg;
	struct rs_member *m = s->member;
	struct rs_shared *j;
	struct sc_err ignored;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, a->job);
	(void)pthread_mutex_unlock(&m->lock);
	(void)compose(m, j, NULL, SC_E_CANCELLED, &ignored);
	drop(m, j);
}

/* What the trial has named has its name from now on: it is known when it comes back from another node. */
static int keep_names(void *arg, uint64_t version, struct sc_err *err)
{
	const struct rs_member *m = arg;
	uint8_t named[RS_OBJECT_NAME_BYTES];
	struct rs_bag bag = {.lacking = false};
	int rc = rs_objects_put(m->s, version, m->node, NULL, &rs_bag_ops, &bag, named, NULL, err);

	rs_bag_done(&bag);
	return rc;
}

int rs_move_save(struct rs_member *m, struct rs_move *move, struct sc_err *err)
{
	int rc = rs_local_save(move->a, move->turn, keep_names, m, err);

	if (rc == 0)
		rs_local_show(move->a, move->turn);
	return rc;
}

/* --- the rest of the kind --- */

static int etcd_requested(void *arg, uint64_t token, struct sc_err *err)
{
	return rs_head_local.requested(arg, token, err);
}

/* What is stored anew is what nodes keep of it: stored.c. */
static int etcd_settle(void *arg, struct rs_view *of, struct rs_view *next, struct rs_set *const *sets,
		       struct sc_err *err)
{
	(void)arg;
	(void)of;
	(void)next;
	(void)sets;
	return sc_fail(err, SC_E_CANCELLED, "a node of a cluster does not store versions anew");
}

/* --- the end of a job --- */

/* The worker removes it here, as on all nodes.  Where that takes long, it is done in the cluster all the same. */
static int wait_until_gone(struct rs_member *m, const struct rs_shared *j)
{
	const int64_t give_up = sc_now_ns() + m->times.ttl;
	bool is_gone;

	(void)pthread_mutex_lock(&m->lock);
	while (!j->gone && !m->stop && sc_now_ns() < give_up)
		(void)sc_sys.wait_until(&m->changed, &m->lock, give_up);
	is_gone = j->gone;
	(void)pthread_mutex_unlock(&m->lock);
	if (!is_gone)
		sc_log(SC_LOG_WARN, "a job is removed from the cluster, and from this node when its worker gets there");
	return 0;
}

/* Fails for a removal that was not answered, and was not done. */
static int still_there(struct rs_member *m, struct sc_err *err)
{
	bool is_full;

	(void)pthread_mutex_lock(&m->lock);
	is_full = m->full;
	(void)pthread_mutex_unlock(&m->lock);
	return is_full ? sc_fail(err, SC_E_NO_SPACE, "nothing was changed: " RS_FULL)
		       : sc_fail(err, SC_E_BUSY, "etcd's answer was lost, and it has the job still: nothing was "
				 "changed; try again");
}

/* All nodes close their gates, and refuse it if they have what is not committed; then its names go. */
static int remove_job(struct rs_member *m, struct rs_job *job, struct sc_err *err)
{
	struct rs_advance a = {.job = job, .change = RS_BY_REMOVAL};
	struct rs_shared *j;
	struct sc_err ignored;
	int rc = enter(m, &a, &j, err);

	if (rc < 0)
		return rc;
	rc = propose_until(m, j, j->move, err);
	if (rc < 0) {
		drop(m, j);
		return rc;
	}
	rc = rs_member_unname(m, j->id, j->move->token, err);
	if (rc == 0)
		rc = wait_until_gone(m, j);
	(void)compose(m, j, NULL, SC_E_CANCELLED, &ignored);
	drop(m, j);
	if (rc <= 0)
		return rc;
	/* no answer came: without its proposal it can't be done any more, so it was, or never will be */
	rc = rs_member_is_named(m, j->id, err);
	if (rc > 0)
		rc = still_there(m, err);
	return rc < 0 ? rc : wait_until_gone(m, j);
}

static int etcd_amend(void *arg, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_service *s = arg;

	if (change->kind == RS_AMEND_REMOVE && !change->is_followed && !rs_member_keeps(s->member, job))
		return remove_job(s->member, job, err);
	return rs_member_amend(s->member, job, change, err);
}

static int etcd_current(void *arg, struct rs_job *job, struct sc_err *err)
{
	const struct rs_service *s = arg;

	return rs_member_current(s->member, job, err);
}

static int etcd_known(void *arg, struct rs_job *job, struct sc_err *err)
{
	const struct rs_service *s = arg;

	return rs_member_known(s->member, job, err);
}

static void etcd_soon(void *arg, struct rs_job *job)
{
	const struct rs_service *s = arg;

	rs_member_soon(s->member, job);
}

static int64_t etcd_until(void *arg)
{
	const struct rs_service *s = arg;

	return rs_member_until(s->member);
}

const struct rs_head_ops rs_head_etcd = {
	.name = "etcd",
	.waits = true,
	.requested = etcd_requested,
	.begin = etcd_begin,
	.publish = etcd_publish,
	.abort = etcd_abort,
	.settle = etcd_settle,
	.joint = rs_joint_make,
	.kept = rs_storage_kept,
	.amend = etcd_amend,
	.current = etcd_current,
	.known = etcd_known,
	.soon = etcd_soon,
	.until = etcd_until,
};
