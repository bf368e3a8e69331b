/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps jobs that all nodes have, as this node sees them, and how long what it shows of them may be told. */
#include "reshard/cluster/peers/peers_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

SC_METRIC(lookups_waited, SC_COUNTER, "scalai_cluster_waits_total",
	  "Lookups that waited until this node knew which version is the newest.");

#define WAITING_MAX 8		/* lookups; the others of the FUSE threads go on */
#define WAIT_NS (5000 * MEMBER_MS)

int64_t rs_member_now(void)
{
	struct timespec t;

	(void)sc_sys.clock(CLOCK_BOOTTIME, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

struct rs_shared *rs_shared_of(struct rs_member *m, uint64_t id)
{
	struct rs_shared *j;

	for (size_t i = 0; i < m->jobs.nr; i++)
		if (m->jobs.at[i]->id == id)
			return m->jobs.at[i];
	j = sc_zalloc(sizeof(*j));
	if (!j || sc_vec_push(&m->jobs, j) < 0) {
		sc_sys.release(j);
		return NULL;
	}
	j->id = id;
	return j;
}

void rs_move_refuse(struct rs_member *m, struct rs_shared *j, uint64_t token, const struct sc_err *err)
{
	struct rs_move *move;

	(void)pthread_mutex_lock(&m->lock);
	move = rs_move_of(m, j->id, token);
	if (move) {
		move->err = *err;
	} else {
		j->refused = token;
		(void)snprintf(j->why, sizeof(j->why), "%s", err->msg);
	}
	(void)pthread_mutex_unlock(&m->lock);
}

bool rs_member_is_called(struct rs_member *m)
{
	bool called;

	(void)pthread_mutex_lock(&m->lock);
	called = m->stop || m->todo.nr;
	(void)pthread_mutex_unlock(&m->lock);
	return called;
}

struct rs_shared *rs_shared_find(struct rs_member *m, const struct rs_job *job)
{
	for (size_t i = 0; i < m->jobs.nr; i++)
		if (m->jobs.at[i]->job == job)
			return m->jobs.at[i];
	return NULL;
}

struct rs_shared *rs_shared_wait(struct rs_member *m, const struct rs_job *job)
{
	const int64_t give_up = sc_now_ns() + WAIT_NS;
	struct rs_shared *j;

	while (!(j = rs_shared_find(m, job)) && !m->stop && sc_now_ns() < give_up)
		(void)sc_sys.wait_until(&m->changed, &m->lock, give_up);
	return j;
}

struct rs_move *rs_move_of(struct rs_member *m, uint64_t id, uint64_t token)
{
	for (size_t i = 0; i < m->jobs.nr; i++) {
		struct rs_shared *j = m->jobs.at[i];

		if (j->id == id)
			return j->move && j->move->token == token ? j->move : NULL;
	}
	return NULL;
}

bool rs_member_todo(struct rs_member *m, const struct rs_todo *todo)
{
	bool ok = sc_vec_push(&m->todo, *todo) == 0;

	if (!ok)
		sc_log(SC_LOG_ERROR, "out of memory: job %" PRIu64 " of the cluster is not shown any more until this "
		       "daemon is started again", todo->act.job);
	(void)pthread_cond_broadcast(&m->changed);
	return ok;
}

void rs_shared_behind(struct rs_member *m, struct rs_shared *j, const struct sc_err *why)
{
	(void)pthread_mutex_lock(&m->lock);
	j->behind = *why;
	j->behind_mod = sc_max_u64(j->row_mod, sc_max_u64(j->first_mod, j->config_mod));
	(void)pthread_cond_broadcast(&m->changed);
	(void)pthread_mutex_unlock(&m->lock);
}

uint64_t rs_shared_head(struct rs_member *m, const struct rs_shared *j)
{
	struct rs_view *head = j->job ? rs_job_head(j->job) : NULL;
	uint64_t nr = head ? head->version->nr : 0;

	rs_view_unref(m->s, head);
	return nr;
}

struct rs_shared *rs_shared_at(struct rs_member *m, size_t i)
{
	struct rs_shared *j;

	(void)pthread_mutex_lock(&m->lock);
	j = i < m->jobs.nr ? m->jobs.at[i] : NULL;
	(void)pthread_mutex_unlock(&m->lock);
	return j;
}

void rs_shared_note_heads(struct rs_member *m)
{
	for (size_t i = 0;; i++) {
		struct rs_shared *j;

		j = rs_shared_at(m, i);
		if (!j)
			return;
		j->asked_head = rs_shared_head(m, j);
	}
}

/* Tells whether lookups may be answered with the head that is in memory; until *ret_until, by rs_member_now(). */
static bool is_current(struct rs_member *m, const struct rs_shared *j, int64_t *ret_until)
{
	uint64_t nr;

	if (j->kept) /* no other node has it */
		return true;
	if (m->outdated)
		return false;
	nr = rs_core_current(m->core, rs_member_now(), j->id, ret_until);
	return *ret_until && j->shown == nr && !j->wants;
}

/* Says why the job's head in memory is not the one that plain paths show.  Under m->lock. */
static int not_current(const struct rs_member *m, const struct rs_shared *j, struct sc_err *err)
{
	if (j->stuck.code)
		return sc_fail_sys(err, EHOSTDOWN, "this node cannot show version %" PRIu64 ": %s", j->wants,
				   j->stuck.msg);
	return sc_fail_sys(err, EHOSTDOWN, "this node does not know which version is the newest: %s",
			   *m->left	 ? m->left
			   : m->outdated ? "its program does not speak the cluster's protocol"
			   : m->taken	 ? RS_TAKEN
			   : m->serves	 ? "another node's command is on its way; try again"
					 : "it does not hear from etcd");
}

int rs_member_current(struct rs_member *m, struct rs_job *job, struct sc_err *err)
{
	const int64_t give_up = sc_now_ns() + WAIT_NS;
	const struct rs_shared *j;
	int64_t until = 0;
	bool waits = false;
	int rc = 0;

	(void)pthread_mutex_lock(&m->lock);
	while ((j = rs_shared_wait(m, job)) && !is_current(m, j, &until)) {
		if (j->stuck.code || m->stop || m->outdated || (m->gave_up && !m->serves) || sc_now_ns() >= give_up ||
		    (!waits && m->waiting >= WAITING_MAX)) {
			rc = not_current(m, j, err);
			/* one lookup waits for it, not each folder of a path */
			m->gave_up |= !m->serves && sc_now_ns() - m->fenced_ns >= WAIT_NS;
			break;
		}
		m->waiting += !waits;
		sc_metric_add(&lookups_waited, !waits);
		waits = true;
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + 20 * MEMBER_MS);
	}
	m->waiting -= waits;
	(void)pthread_mutex_unlock(&m->lock);
	if (rc == 0 && !j)
		rc = sc_fail_sys(err, EHOSTDOWN, "etcd has not told this node of the job yet");
	return rc;
}

int rs_member_known(struct rs_member *m, struct rs_job *job, struct sc_err *err)
{
	const struct rs_shared *j;
	int64_t until = 0;
	int rc = 0;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	if (j && !is_current(m, j, &until))
		rc = not_current(m, j, err);
	(void)pthread_mutex_unlock(&m->lock);
	return rc;
}

void rs_member_soon(struct rs_member *m, struct rs_job *job)
{
	const int64_t give_up = sc_now_ns() + WAIT_NS;
	const struct rs_shared *j;
	bool waits = false;
	int64_t until;

	(void)pthread_mutex_lock(&m->lock);
	while ((j = rs_shared_find(m, job)) && m->serves && !m->stop && !j->stuck.code && !is_current(m, j, &until) &&
	       sc_now_ns() < give_up && (waits || m->waiting < WAITING_MAX)) {
		m->waiting += !waits;
		waits = true;
		(void)sc_sys.wait_until(&m->changed, &m->lock, sc_now_ns() + 20 * MEMBER_MS);
	}
	m->waiting -= waits;
	(void)pthread_mutex_unlock(&m->lock);
}

int64_t rs_member_until(struct rs_member *m)
{
	int64_t until;

	(void)pthread_mutex_lock(&m->lock);
	(void)rs_core_current(m->core, rs_member_now(), 0, &until); /* the same for all jobs */
	(void)pthread_mutex_unlock(&m->lock);
	return until ? sc_now_ns() + until - rs_member_now() : 0;
}
