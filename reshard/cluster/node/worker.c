/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the worker, which does what the core wants of jobs, one after the other.
 *
 * 1. A gate that this thread closed, this thread opens, when etcd has told the outcome of the command.
 * 2. It says HIDDEN when no lookup is answered by an older head any more: the kernel's names are stale, and
 *    rs_member_current() waits.
 * 3. A version that cannot be taken is tried again, and the job waits for it: nothing older is shown in its place.
 */
#include "reshard/cluster/node/member_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define AGAIN_NS (1000 * MEMBER_MS)

static struct rs_shared *shared(struct rs_member *m, uint64_t id)
{
	struct rs_shared *j;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_of(m, id);
	(void)pthread_mutex_unlock(&m->lock);
	return j;
}

/* --- the gate --- */

static void open_gate(struct rs_shared *j)
{
	if (!j->gate)
		return;
	rs_tree_open(j->job);
	(void)pthread_mutex_unlock(&j->job->command);
	j->gate = 0;
	j->opens = false;
}

/* Closes the gate for a command, if this job may have it. */
static int check(struct rs_shared *j, const struct rs_act *a, bool is_mine, struct sc_err *err)
{
	static const char *const what[] = {
		[META_BY_TOPOLOGY] = "topology",
		[META_BY_LAYOUT] = "layout", [META_BY_ROLLBACK] = "head", [META_BY_DATA] = "dataset",
		[META_BY_REMOVAL] = NULL,
	};
	const bool takes_dirty = a->change == META_BY_COMMIT || (a->change == META_BY_REMOVAL && is_mine);
	struct rs_view *head;
	uint64_t nr;
	int rc;

	if (!j->job)
		return sc_fail(err, SC_E_BUSY, "this node has not made the job yet; try again");
	(void)pthread_mutex_lock(&j->job->command);
	head = rs_job_head(j->job);
	nr = head ? head->version->nr : 0;
	rs_view_unref(j->job->service, head);
	rc = nr == a->base ? 0 : sc_fail(err, SC_E_BUSY, "this node has version %" PRIu64 " only; try again", nr);
	if (rc == 0)
		rc = rs_tree_close(j->job, a->change == META_BY_COMMIT, err);
	if (rc < 0) {
		(void)pthread_mutex_unlock(&j->job->command);
		return rc;
	}
	j->gate = a->token;
	return takes_dirty ? 0 : rs_local_refuse_dirty(j->job, what[a->change], err);
}

/* Makes this node's part of a commit, with the gate closed, and brings it to stable storage. */
static int offer(struct rs_member *m, struct rs_shared *j, const struct rs_act *a, bool is_mine, struct sc_err *err)
{
	int rc = rs_part_prepare(m, j, a->token, err);

	return rc < 0 || is_mine || !j->part.text.bytes ? rc : rs_part_flush(j->job, err);
}

static void on_check(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	struct rs_event e = {.kind = RS_EV_CHECKED, .job = j->id, .token = a->token};
	struct sc_err err;
	bool is_mine;

	rs_cluster_step(RS_PREPARE);
	(void)pthread_mutex_lock(&m->lock);
	is_mine = rs_move_of(m, j->id, a->token) != NULL;
	(void)pthread_mutex_unlock(&m->lock);
	if (j->stuck.code)
		e.code = sc_fail(&err, SC_E_BUSY, "this node has no version %" PRIu64 ": %s", j->wants, j->stuck.msg);
	else if (!j->gate)
		e.code = check(j, a, is_mine, &err);
	else if (j->gate != a->token) /* its outcome is on its way, and opens it; this one is checked again */
		e.code = sc_fail(&err, SC_E_BUSY, "another command has just ended; try again");
	if (!e.code && a->change == META_BY_COMMIT)
		e.code = offer(m, j, a, is_mine, &err);
	if (e.code)
		rs_move_refuse(m, j, a->token, &err);
	if (!e.code && a->change != META_BY_COMMIT)
		rs_cluster_step(RS_PREPARED);
	rs_member_post(m, &e);
}

/* Closes the gate over files that the daemon before had prepared, which must not change until the outcome is known;
 * CHECK closes all other gates. */
static void on_gate(struct rs_shared *j, const struct rs_act *a)
{
	struct sc_err ignored;

	if (!j->job || j->gate || j->row != a->token)
		return;
	(void)pthread_mutex_lock(&j->job->command);
	(void)rs_tree_close(j->job, false, &ignored); /* fails only where it waits for quiet files */
	j->gate = a->token;
}

static void on_ungate(struct rs_shared *j, const struct rs_act *a)
{
	if (j->gate != a->token)
		return;
	j->opens = true; /* a version that is not saved yet comes first */
	if (!j->wants)
		open_gate(j);
}

/* --- rows of commits --- */

static void on_prepare(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	struct rs_event e = {.kind = RS_EV_PREPARED, .job = j->id, .token = a->token};
	struct sc_err err;

	e.code = rs_take_note(m, j, a->token, a->base, &err);
	if (e.code) {
		sc_log(SC_LOG_ERROR, "commit: %s", err.msg);
		rs_move_refuse(m, j, a->token, &err);
	} else {
		j->row = a->token;
		j->row_base = a->base;
		rs_cluster_step(RS_PREPARED);
	}
	rs_member_post(m, &e);
}

/* Forgets the row of a commit; if the commit has become a version, the row stays until the version is here. */
static void on_outcome(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	if (a->kind == RS_ACT_FORGET || !j->wants)
		rs_take_forget(m, j);
}

/* --- heads --- */

/*
 * Takes the version that has this node's prepared files, which may be an older one than the newest: the node was cut
 * off meanwhile.  It comes first, as it seals the files, which newer versions may have, too.  A version that was
 * dropped since is taken, too, and goes again afterwards.
 */
static int take_prepared(struct rs_member *m, struct rs_shared *j, uint64_t head, struct sc_err *err)
{
	const uint64_t nr = j->row_base + 1;
	uint64_t token = 0;
	bool is_it;
	int rc;

	if (!j->row || !j->job || j->row == j->token || nr >= j->wants)
		return 0;
	rc = rs_version_token(m, j->id, nr, &token, err);
	is_it = rc == 0 && token == j->row;
	if (is_it && nr > head)
		rc = rs_take_version(m, j, nr, token, err);
	if (rc == 0 && is_it)
		j->older = nr;
	if (rc == 0)
		rs_take_forget(m, j);
	return rc;
}

/* Makes a version the head here: one of this node's command, or another's. */
static int take(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	const uint64_t nr = rs_shared_head(m, j);
	struct rs_move *move;
	int rc;

	if (nr >= j->wants)
		return 0;
	rc = nr ? 0 : rs_bound_know(m, j->id, err);
	if (rc == 0)
		rc = rs_backup_wait(m, j->id, j->wants, err);
	if (rc == 0)
		rc = rs_storage_finish(m, j, err);
	if (rc == 0)
		rc = take_prepared(m, j, nr, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	move = j->move && j->move->composed && j->move->token == j->token && !m->stop ? j->move : NULL;
	if (move)
		move->saves = true;
	(void)pthread_mutex_unlock(&m->lock);
	if (!move)
		return rs_take_version(m, j, j->wants, j->token, err);
	rc = rs_move_save(m, move, err);
	(void)pthread_mutex_lock(&m->lock);
	move->saved = rc == 0;
	move->saves = false;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
	return rc;
}

/* Tells whether uncommitted files here, which are in no version, keep a version away until a user discards them, which
 * the gate must not prevent.  Files of a prepared commit, which has a row, may be in a version. */
static bool is_kept_away(const struct rs_shared *j)
{
	struct rs_dirt dirt = {0};
	struct sc_err ignored;

	return j->job && !j->row && rs_tree_dirt(j->job, &dirt, NULL, &ignored) == 0 && dirt.nr;
}

/* Nothing is wanted of the job any more, and a command whose answer is lost can end.  Under m->lock. */
static void has_taken(struct rs_member *m, struct rs_shared *j)
{
	j->wants = 0;
	if (j->move && j->move->composed)
		j->move->overtaken = true;
	(void)pthread_cond_broadcast(&m->changed);
}

static void try_to_take(struct rs_member *m, struct rs_shared *j)
{
	const uint64_t nr = j->wants, was = rs_shared_head(m, j);
	struct sc_err err = {0};
	int rc;

	rs_copies_wait(m, j, j->again.missed || nr > was + 1);
	rc = take(m, j, &err);
	if (rc < 0 && (!j->stuck.code || strcmp(j->stuck.msg, err.msg) != 0))
		sc_log(SC_LOG_ERROR, "version %" PRIu64 " of a job that other nodes show: %s; trying again", j->wants,
		       err.msg);
	(void)pthread_mutex_lock(&m->lock);
	j->stuck = rc < 0 ? err : (struct sc_err){0};
	if (j->move && j->move->token == j->token)
		j->move->failed = rc < 0;
	if (rc == 0) {
		if (j->show == j->wants)
			j->shown = j->show;
		has_taken(m, j);
	} else {
		(void)pthread_cond_broadcast(&m->changed);
	}
	(void)pthread_mutex_unlock(&m->lock);
	if (rc == 0 && j->row && j->row == j->token)
		rs_take_forget(m, j);
	j->again.tags |= rc == 0 && j->lacks_tagged; /* maybe of this one */
	j->again.missed |= rc == 0 && nr > was + 1;
	if (rc == 0 && nr && j->job) {
		if (rs_gone_followed(m, j, &err) < 0) /* the next start does it */
			sc_log(SC_LOG_ERROR, "what keep= has dropped stays here: %s", err.msg);
		rs_gone_taken(m, j, nr);
		if (j->older) /* not while it was the head */
			rs_gone_taken(m, j, j->older);
		j->older = 0;
	}
	if (j->opens && (rc == 0 || is_kept_away(j)))
		open_gate(j);
	if (rc == 0 && j->job)
		rs_job_tell(j->job);
}

/* Tells whether a job is over here, though etcd may have keys of it still: its row is gone. */
static bool is_over(const struct rs_shared *j)
{
	return j->gone || j->again.end || (!j->job && !j->again.row.text);
}

static void on_hide(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	struct rs_event e = {.kind = RS_EV_HIDDEN, .job = j->id, .nr = a->nr};

	if (is_over(j)) {
		rs_member_post(m, &e);
		return;
	}
	rs_cluster_step(RS_HIDE);
	(void)pthread_mutex_lock(&m->lock);
	j->shown = 0;
	j->show = 0;
	j->wants = a->nr;
	j->token = a->token;
	(void)pthread_mutex_unlock(&m->lock);
	m->s->events.names_changed(m->s->events.arg);
	rs_member_post(m, &e);
	rs_cluster_step(RS_HIDDEN);
	try_to_take(m, j);
}

static void on_show(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	(void)pthread_mutex_lock(&m->lock);
	j->show = a->nr;
	if (!j->wants)
		j->shown = a->nr;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

static void on_compose(struct rs_member *m, const struct rs_act *a)
{
	struct rs_move *move;

	(void)pthread_mutex_lock(&m->lock);
	move = rs_move_of(m, a->job, a->token);
	if (move)
		move->composes = true;
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

/* --- the thread --- */

static void on_place(struct rs_member *m, struct rs_shared *j, const struct rs_todo *todo)
{
	struct sc_err err = {0};

	if (rs_storage_place(m, j, todo->act.nr, todo->more, todo->act.nr_keep, &err) < 0)
		sc_log(SC_LOG_WARN, "version %" PRIu64 " is not stored anew: %s; trying again", todo->act.nr, err.msg);
}

static void on_stored(struct rs_member *m, struct rs_shared *j, const struct rs_todo *todo)
{
	struct sc_err err;

	if (rs_storage_note(m, j, todo, &err) < 0)
		sc_log(SC_LOG_ERROR, "version %" PRIu64 " keeps its storage here: %s", todo->act.nr, err.msg);
}

/* Takes missed versions, which are only in .v/: no thread that waits for anything else waits for them. */
static void take_missed(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err err;
	bool more;
	int rc = rs_take_missed(m, j, &more, &err);

	if (rc < 0 && !j->said_missed)
		sc_log(SC_LOG_WARN, "older versions of a job that other nodes have: %s; trying again", err.msg);
	j->said_missed = rc < 0;
	j->again.missed = rc < 0 || more;
	j->again.tags |= j->lacks_tagged;
}

static void delete_dead(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err err;
	size_t kept = 0;

	/* files of what goes may be in versions that are still to be taken */
	if (j->again.missed || (j->wants && j->job && !j->gone))
		return;
	for (size_t i = 0; i < j->dead.later.nr; i++) {
		if (rs_gone_delete(m, j, &j->dead.later.at[i], &err) == 0)
			continue;
		if (!kept && !j->dead.said)
			sc_log(SC_LOG_ERROR, "what keep= has dropped stays here: %s; trying again", err.msg);
		j->dead.later.at[kept++] = j->dead.later.at[i];
	}
	j->dead.said = kept > 0;
	j->dead.later.nr = kept;
}

static void on_end(struct rs_member *m, struct rs_shared *j, const struct rs_act *a)
{
	struct sc_err err;
	int rc = 0;

	if (a->kind == RS_ACT_DIED)
		rc = rs_gone_died(m, j, a->nr, a->base, a->revision, &err);
	else if (sc_vec_push(&j->dead.later, a->set) < 0)
		rc = sc_nomem(&err);
	if (rc < 0) /* the next start does it */
		sc_log(SC_LOG_ERROR, "what keep= has dropped stays here until this daemon starts again: %s", err.msg);
	delete_dead(m, j);
}

static void act(struct rs_member *m, struct rs_shared *j, const struct rs_todo *todo)
{
	const struct rs_act *a = &todo->act;

	switch (a->kind) {
	case RS_ACT_GATE:
		on_gate(j, a);
		break;
	case RS_ACT_CHECK:
		on_check(m, j, a);
		break;
	case RS_ACT_PREPARE:
		on_prepare(m, j, a);
		break;
	case RS_ACT_SEAL:
	case RS_ACT_FORGET:
		on_outcome(m, j, a);
		break;
	case RS_ACT_UNGATE:
		on_ungate(j, a);
		break;
	case RS_ACT_HIDE:
		on_hide(m, j, a);
		break;
	case RS_ACT_SHOW:
		on_show(m, j, a);
		break;
	case RS_ACT_STORED:
		on_stored(m, j, todo);
		break;
	case RS_ACT_PLACE:
		on_place(m, j, todo);
		break;
	case RS_ACT_DIED:
	case RS_ACT_DELETE:
		on_end(m, j, a);
		break;
	default:
		on_compose(m, a);
	}
}

/* --- rows of jobs --- */

static int take_end(struct rs_member *m, struct rs_shared *j, uint64_t mod, struct sc_err *err)
{
	int rc = rs_take_end(m, j, mod, err);

	rs_rows_drop(j);
	j->again.end = rc < 0 ? mod : 0;
	if (rc < 0 || (j->job && !j->gone)) /* or it was made, or changed, since */
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j->stuck = (struct sc_err){0};
	has_taken(m, j);
	(void)pthread_mutex_unlock(&m->lock);
	if (j->opens)
		open_gate(j);
	return 0;
}

static void do_one(struct rs_member *m, struct rs_todo *todo)
{
	struct rs_shared *j = todo->what == TODO_BOUND ? NULL : shared(m, todo->act.job);
	struct sc_err err;
	int rc = 0;

	if (todo->what == TODO_BOUND)
		rs_bound_move(m);
	else if (!j)
		rc = sc_nomem(&err);
	else if (todo->what == TODO_END)
		rc = take_end(m, j, todo->mod, &err);
	else if (todo->what == TODO_JOB || todo->what == TODO_FIRST || todo->what == TODO_CONFIG ||
		 todo->what == TODO_TAGS)
		rc = rs_rows_take(m, j, todo, &err);
	else if (todo->what == TODO_COPIES)
		rs_copies_say(m, j);
	else
		act(m, j, todo);
	if (rc < 0)
		sc_log(SC_LOG_ERROR, "a job of the cluster cannot be followed: %s", err.msg);
	sc_sys.release(todo->text);
	sc_sys.release(todo->more);
}

/* Tries again what could not be done of a job.  Returns whether there is more to do. */
static bool try_job_again(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err ignored;
	bool more;

	if (j->again.end)
		(void)take_end(m, j, j->again.end, &ignored);
	more = rs_rows_again(m, j);
	if (j->wants)
		try_to_take(m, j);
	if (j->again.missed && !j->wants)
		take_missed(m, j);
	delete_dead(m, j);
	more |= rs_storage_step(m, j);
	more |= rs_gone_step(m, j);
	return more || j->again.end || j->again.missed || j->wants || j->dead.later.nr;
}

static bool try_again(struct rs_member *m)
{
	bool any = false;

	for (size_t i = 0;; i++) {
		struct rs_shared *j;

		j = rs_shared_at(m, i);
		if (!j)
			return any;
		any |= try_job_again(m, j);
	}
}

static void *run(void *arg)
{
	struct rs_member *m = arg;
	bool again = false;

	(void)pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		typeof(m->todo) todo = m->todo;
		const int64_t until = sc_now_ns() + AGAIN_NS;

		if (!todo.nr) {
			while (!m->stop && !m->todo.nr && !again)
				(void)pthread_cond_wait(&m->changed, &m->lock);
			while (!m->stop && !m->todo.nr && sc_now_ns() < until)
				(void)sc_sys.wait_until(&m->changed, &m->lock, until);
			if (m->stop || m->todo.nr)
				continue;
		}
		m->todo = (typeof(m->todo)){0};
		(void)pthread_mutex_unlock(&m->lock);
		for (size_t i = 0; i < todo.nr; i++)
			do_one(m, &todo.at[i]);
		sc_vec_done(&todo);
		rs_revision_note(m);
		again = try_again(m);
		(void)pthread_mutex_lock(&m->lock);
	}
	(void)pthread_mutex_unlock(&m->lock);
	for (size_t i = 0; i < m->jobs.nr; i++)
		open_gate(m->jobs.at[i]);
	return NULL;
}

int rs_follow_start(struct rs_member *m, struct sc_err *err)
{
	return sc_thread_start(&m->worker, "scalai-member", run, m, err);
}

void rs_follow_stop(struct rs_member *m)
{
	sc_thread_join(&m->worker);
	for (size_t i = 0; i < m->todo.nr; i++) {
		sc_sys.release(m->todo.at[i].text);
		sc_sys.release(m->todo.at[i].more);
	}
	sc_vec_done(&m->todo);
}
