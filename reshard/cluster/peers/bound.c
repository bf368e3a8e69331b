/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the numbers of blobs and inodes that this node may give.  Other nodes know its files by these, for ever; and
 * the store that is mounted may be an older copy of the one that was.  So etcd has the first numbers that were not
 * given to the node yet: key `bound`, which each life of the daemon moves on before it uses any of them.
 *
 * 1. A life gives the numbers between those that it found in `bound` and those that it put there, and no others.
 * 2. A daemon that finds the key changed by another one gives no numbers from then on.
 *
 * The key says, too, of which jobs this node may have versions (ended.c).
 */
#include "reshard/cluster/peers/peers_i.h"

#include "meta/base/limits.h"

#define BLOBS (UINT64_C(1) << 24)	/* at a time: of 2^40 */
#define INODES (UINT64_C(1) << 26)	/* of 2^42; a job has a million from the first on */
#define AGAIN_NS (1000 * MEMBER_MS)
#define TRIES 5				/* of a change, where this life changes the key, too */

void rs_bound_after(const struct rs_member *m, const struct meta_bound_value *was, struct meta_numbers *first,
		    struct meta_numbers *ret_end)
{
	const uint64_t last = (m->node + UINT64_C(1)) << META_NODE_NUMBERS;

	first->blob = sc_max_u64(first->blob, was->blob);
	first->inode = sc_max_u64(first->inode, was->inode);
	ret_end->blob = sc_min_u64(first->blob + BLOBS, SC_BLOBS_MAX);
	ret_end->inode = sc_min_u64(first->inode + INODES, last);
}

void rs_bound_edit(const struct rs_member *m, const struct meta_bound_value *was, uint64_t mod,
		   const struct meta_numbers *next, struct rs_bound_edit *ret)
{
	const struct meta_key key = {.kind = META_KEY_BOUND, .node = m->node};

	ret->same = (struct meta_compare){.what = META_MOD_IS, .key = key, .revision = mod};
	ret->put = (struct meta_op){.what = META_PUT, .key = key, .value = {.kind = META_KEY_BOUND, .bound = *was}};
	ret->put.value.bound.blob = next->blob;
	ret->put.value.bound.inode = next->inode;
	ret->txn = (struct meta_txn){.nr_compares = 1, .compares = &ret->same, .nr_then = 1, .then = &ret->put};
}

void rs_bound_tick(struct rs_member *m)
{
	struct rs_todo todo = {.what = TODO_BOUND};

	if (!meta_numbers_are_few(m->s->catalog) || m->bound.lost || sc_now_ns() < m->bound.again_ns)
		return;
	m->bound.again_ns = sc_now_ns() + AGAIN_NS;
	(void)pthread_mutex_lock(&m->lock);
	(void)rs_member_todo(m, &todo);
	(void)pthread_mutex_unlock(&m->lock);
}

struct moved {
	struct meta_bound_value is;
	uint64_t mod, revision;
	bool found;
};

static void on_moved(void *arg, const struct meta_answer *answer)
{
	struct moved *x = arg;

	x->revision = answer->revision;
	x->found = answer->nr && answer->records[0].present;
	if (!x->found)
		return;
	x->is = answer->records[0].value.bound;
	x->mod = answer->records[0].mod;
}

/* Puts the end of this node's numbers: 0, 1 (another daemon has done so), or an error. */
static int put_end(struct rs_member *m, const struct meta_numbers *end, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_BOUND, .node = m->node}};
	struct meta_txn read = {.nr_then = 1, .then = &get};
	struct moved x = {.found = false};
	struct rs_bound_edit e;

	rs_bound_edit(m, &m->bound.is, m->bound.mod, end, &e);
	if (rs_member_ask(m, &e.txn, on_moved, &x) == META_APPLIED) {
		m->bound.mod = x.revision;
		m->bound.is = e.put.value.bound;
		return 0;
	}
	if (rs_member_ask(m, &read, on_moved, &x) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd does not answer");
	if (!x.found || (x.mod != m->bound.mod && (x.is.blob != end->blob || x.is.inode != end->inode)))
		return 1;
	if (x.mod == m->bound.mod)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered");
	m->bound.mod = x.mod;
	m->bound.is = x.is;
	return 0;
}

void rs_bound_move(struct rs_member *m)
{
	struct meta_numbers first, end;
	struct sc_err err;
	int rc = meta_numbers_next(m->s->catalog, &first, &err);

	if (rc == 0) {
		rs_bound_after(m, &(struct meta_bound_value){.blob = 0}, &first, &end);
		rc = put_end(m, &end, &err);
	}
	if (rc == 0)
		rc = meta_numbers_from(m->s->catalog, &first, &end, &err);
	if (rc > 0) {
		m->bound.lost = true;
		sc_log(SC_LOG_ERROR, "node '%s' has been mounted elsewhere, or etcd has lost its data: this one "
		       "gives no new numbers to files; unmount one of both", m->name);
	} else if (rc < 0) {
		sc_log(SC_LOG_WARN, "numbers for files: %s; trying again", err.msg);
	}
}

/* --- which jobs may be here --- */

bool rs_bound_knows(struct rs_member *m, uint64_t job)
{
	bool knows;

	(void)pthread_mutex_lock(&m->lock);
	knows = m->bound.jobs >= rs_job_number(job);
	(void)pthread_mutex_unlock(&m->lock);
	return knows;
}

/* Takes the key as it is in etcd, whoever has changed it: of this daemon if its numbers are this life's. */
static int read_again(struct rs_member *m, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_BOUND, .node = m->node}};
	struct meta_txn read = {.nr_then = 1, .then = &get};
	struct moved x = {.found = false};

	if (rs_member_ask(m, &read, on_moved, &x) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd does not answer");
	if (!x.found || x.is.blob != m->bound.is.blob || x.is.inode != m->bound.is.inode)
		return sc_fail(err, SC_E_BUSY, "node '%s' has been mounted elsewhere, or etcd has lost its data",
			       m->name);
	m->bound.mod = x.mod;
	m->bound.is = x.is;
	return 0;
}

/* Has etcd note that versions of a job may be here.  1: the key was changed meanwhile, and is to be put anew. */
static int know(struct rs_member *m, uint64_t job, struct sc_err *err)
{
	const struct meta_key key = {.kind = META_KEY_BOUND, .node = m->node};
	struct meta_compare same[] = {{.what = META_MOD_IS, .key = key, .revision = m->bound.mod},
				      {.what = META_CREATE_IS_NOT, .key = {.kind = META_KEY_JOB, .job = job}}};
	struct meta_op put = {.what = META_PUT, .key = key, .value = {.kind = META_KEY_BOUND, .bound = m->bound.is}};
	struct meta_txn txn = {.nr_compares = 2, .compares = same, .nr_then = 1, .then = &put};
	struct moved x = {.found = false};
	enum rs_unanswered why;
	enum meta_outcome outcome;

	put.value.bound.jobs = rs_job_number(job);
	outcome = rs_member_ask_why(m, &txn, on_moved, &x, &why);
	if (outcome != META_APPLIED && read_again(m, err) < 0)
		return err->code;
	if (outcome == META_APPLIED) {
		m->bound.mod = x.revision;
		m->bound.is = put.value.bound;
	} else if (m->bound.is.jobs < put.value.bound.jobs) {
		if (outcome == META_REFUSED)
			return m->bound.mod != same[0].revision ? 1 : sc_fail(err, SC_E_STALE, "the job was removed");
		if (why == RS_NO_ROOM)
			return sc_fail(err, SC_E_NO_SPACE, RS_FULL);
		return sc_fail(err, SC_E_SYSTEM, "etcd has not noted that this node has versions of the job");
	}
	(void)pthread_mutex_lock(&m->lock);
	m->bound.jobs = m->bound.is.jobs;
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

int rs_bound_know(struct rs_member *m, uint64_t job, struct sc_err *err)
{
	int rc = 1;

	for (int i = 0; rc == 1 && i < TRIES && !rs_bound_knows(m, job); i++)
		rc = know(m, job, err);
	if (rs_bound_knows(m, job))
		return 0;
	return rc < 0 ? rc : sc_fail(err, SC_E_BUSY, "what etcd notes of node '%s' changes all the time; try again",
				     m->name);
}
