/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads keys of etcd for a command, and changes them if they are still as they were read.
 *
 * An answer may be lost: the transaction was done, will be later, or never will.  Each compares the row of its job
 * (or, of what is no job's, a key that it changes itself), so whoever puts that row anew, as it is, knows that the
 * transaction can't be done any more.  Then the command reads what is there, and is done, or tries again.  What fails
 * then for another reason may have been done before it was changed by others: nobody can know.
 */
#include "reshard/cluster/jobs/rows_i.h"

#include <errno.h>
#include <string.h>

int rs_member_token(uint64_t *ret, struct sc_err *err)
{
	do {
		if (sc_sys.random(ret, sizeof(*ret), 0) != (ssize_t)sizeof(*ret))
			return sc_fail_sys(err, errno, "cannot get a random number");
		*ret >>= 4;
	} while (!*ret);
	return 0;
}

struct meta_key rs_key_of(enum meta_key_kind kind, uint64_t job)
{
	return (struct meta_key){.kind = kind, .job = job};
}

static void on_got(void *arg, const struct meta_answer *answer)
{
	const struct meta_record *r = answer->records;
	struct rs_got *g = arg;
	const char *text = NULL;

	g->is = answer->nr && r->present;
	if (!g->is)
		return;
	g->mod = r->mod;
	switch (r->key.kind) {
	case META_KEY_PROPOSAL:
		g->token = r->value.proposal.token;
		return;
	case META_KEY_NAME:
	case META_KEY_JOBS:
	case META_KEY_REMOVED:
		g->token = r->value.number.nr;
		return;
	case META_KEY_FIRST:
		g->layout = r->value.first.layout;
		text = r->value.first.topology;
		break;
	default:
		text = r->value.rest;
	}
	g->failed = !(g->text = sc_strdup(text ? text : ""));
}

int rs_member_get(struct rs_member *m, struct meta_key key, struct rs_got *ret, struct sc_err *err)
{
	struct meta_op op = {.what = META_GET, .key = key};
	struct meta_txn txn = {.nr_then = 1, .then = &op};

	*ret = (struct rs_got){.is = false};
	if (rs_member_ask(m, &txn, on_got, ret) != META_APPLIED)
		return RS_EDIT_DEAF;
	return ret->failed ? sc_nomem(err) : RS_EDIT_DONE;
}

void rs_edit_expect(struct rs_edit *c, struct meta_key key, uint64_t mod)
{
	c->compares[c->nr_compares++] = (struct meta_compare){.what = META_MOD_IS, .key = key, .revision = mod};
}

struct meta_op *rs_edit_op(struct rs_edit *c, int what, struct meta_key key)
{
	struct meta_op *o = &c->then[c->nr_then++];

	*o = (struct meta_op){.what = what, .key = key, .value = {.kind = key.kind}};
	return o;
}

static void on_revision(void *arg, const struct meta_answer *answer)
{
	*(uint64_t *)arg = answer->revision;
}

int rs_edit_make(struct rs_member *m, struct rs_edit *c)
{
	struct meta_txn txn = {.compares = c->compares, .then = c->then};
	enum rs_unanswered why;

	rs_edit_op(c, META_PUT, (struct meta_key){.kind = META_KEY_TICK})->value.rest = "";
	txn.nr_compares = c->nr_compares;
	txn.nr_then = c->nr_then;
	switch (rs_member_ask_why(m, &txn, on_revision, &c->revision, &why)) {
	case META_APPLIED:
		return RS_EDIT_DONE;
	case META_REFUSED:
		return RS_EDIT_AGAIN;
	default:
		return why == RS_NO_ROOM ? RS_EDIT_FULL : why == RS_UNSENT ? RS_EDIT_DEAF : RS_EDIT_LOST;
	}
}

int rs_edit_deaf(struct sc_err *err)
{
	return sc_fail(err, SC_E_BUSY, "etcd does not answer: nothing was changed; try again");
}

int rs_edit_unknown(struct rs_member *m, int code, struct sc_err *err)
{
	bool ends;

	(void)pthread_mutex_lock(&m->lock);
	ends = m->stop;
	(void)pthread_mutex_unlock(&m->lock);
	return sc_fail(err, ends ? SC_E_CANCELLED : code, "%s: the change may have been made, or may be made later; "
		       "look when etcd answers", ends ? "this mount ends, and etcd's answer was lost"
						      : "etcd's answer was lost, and what became of it is not known");
}

/* Makes sure that no transaction which compares the row of a job, as it was, is done any more: puts the row as it
 * is. */
static int fence(struct rs_member *m, uint64_t job, struct sc_err *err)
{
	struct rs_edit c = {.nr_then = 0};
	struct rs_got row;
	int rc = job ? rs_member_get(m, rs_key_of(META_KEY_JOB, job), &row, err) : RS_EDIT_DONE;

	if (!job || rc)
		return rc;
	if (row.is) {
		rs_edit_expect(&c, rs_key_of(META_KEY_JOB, job), row.mod);
		rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_JOB, job))->value.rest = row.text;
		rc = rs_edit_make(m, &c);
	}
	sc_sys.release(row.text);
	return rc == RS_EDIT_AGAIN ? RS_EDIT_DONE : rc; /* another row is as good */
}

/* Says of a command that is not tried again why it failed, as far as what it has tried is known. */
static int not_done(int rc, struct sc_err *err)
{
	switch (rc) {
	case RS_EDIT_AGAIN:
		return sc_fail(err, SC_E_BUSY, "other nodes change the same: nothing was changed; try again");
	case RS_EDIT_FULL:
		return sc_fail(err, SC_E_NO_SPACE, "nothing was changed: " RS_FULL);
	case RS_EDIT_DEAF:
		return rs_edit_deaf(err);
	default:
		return rc;
	}
}

int rs_edit_until(struct rs_member *m, uint64_t job, rs_edit_fn *once, void *arg, int unknown, struct sc_err *err)
{
	const int64_t give_up = sc_now_ns() + 2 * m->times.ttl;
	bool lost = false, fences = false, full = false, ends;
	int rc, tries = 0;

	for (;;) {
		rc = fences ? fence(m, job == RS_EDIT_SETTLES ? 0 : job, err) : once(arg, err);
		if (rc == SC_E_NO_MEMORY && lost) /* in a moment there may be some: something is to be found out */
			rc = RS_EDIT_DEAF;
		if (rc == RS_EDIT_DONE && !fences)
			return rc;
		fences = rc == RS_EDIT_LOST || (fences && rc == RS_EDIT_DEAF);
		lost |= fences;
		if (rc == RS_EDIT_LOST)
			rs_cluster_step(RS_WAS_LOST);
		tries += rc == RS_EDIT_AGAIN;
		ends = rc < 0 || tries == RS_EDIT_TRIES || (rc == RS_EDIT_DEAF && !lost) ||
		       (rc == RS_EDIT_FULL && full);
		if (ends && (!lost || job == RS_EDIT_SETTLES))
			return not_done(rc, err);
		full |= rc == RS_EDIT_FULL;
		if (ends || ((rc == RS_EDIT_LOST || rc == RS_EDIT_DEAF) && !rs_ask_pause(m, give_up)))
			return rs_edit_unknown(m, unknown, err);
	}
}
