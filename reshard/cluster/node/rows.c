/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Follows what is changed of jobs' rows, on the worker: name and owner, first layout, settings, tags.  A change that
 * cannot be saved here is tried again, once in a second, until it is, or a newer one takes its place; `health` says so.
 * That is also how a change of this node's own command is saved that all others have (reshard/cluster/jobs/amend.c).
 */
#include "reshard/cluster/node/member_i.h"

#include <string.h>

static void drop(struct rs_row_again *of)
{
	sc_sys.release(of->text);
	*of = (struct rs_row_again){.text = NULL};
}

void rs_rows_drop(struct rs_shared *j)
{
	drop(&j->again.row);
	drop(&j->again.first);
	drop(&j->again.config);
}

static bool owes_any(const struct rs_shared *j)
{
	return j->again.row.text || j->again.first.text || j->again.config.text || j->again.tags;
}

static void note(struct rs_member *m, struct rs_shared *j, int rc, const struct sc_err *why)
{
	(void)pthread_mutex_lock(&m->lock);
	if (rc < 0) {
		j->behind = *why;
	} else if (j->behind.code && !owes_any(j) && !m->todo.nr &&
		   __atomic_load_n(&m->position, __ATOMIC_ACQUIRE) >= j->behind_mod) {
		j->behind = (struct sc_err){0};
		sc_log(SC_LOG_INFO, "what was changed of a job on all nodes is saved here, too");
	}
	(void)pthread_mutex_unlock(&m->lock);
}

/* Takes a row, and notes in etcd that this node may have versions of the job, if a program has saved some that did not
 * (reshard/cluster/peers/ended.c). */
static int take_row(struct rs_member *m, struct rs_shared *j, struct rs_row_again *r, struct sc_err *err)
{
	int rc = rs_take_job(m, j, r->text, r->mod, err);

	if (rc == 0 && j->job && !j->gone && rs_shared_head(m, j))
		rc = rs_bound_know(m, j->id, err);
	return rc; /* SC_E_STALE: it was removed, which is still to be heard of */
}

static int take_first(struct rs_member *m, struct rs_shared *j, struct rs_row_again *r, struct sc_err *err)
{
	return rs_take_first(m, j, &r->layout, r->text, r->mod, err);
}

static int take_config(struct rs_member *m, struct rs_shared *j, struct rs_row_again *r, struct sc_err *err)
{
	char *copy = sc_strdup(r->text);
	int rc = copy ? rs_take_config(m, j, copy, r->mod, err) : sc_nomem(err);

	sc_sys.release(copy);
	return rc;
}

typedef int take_fn(struct rs_member *m, struct rs_shared *j, struct rs_row_again *r, struct sc_err *err);

/* Takes what is to be taken, if anything is, and forgets it then. */
static int try(struct rs_member *m, struct rs_shared *j, struct rs_row_again *r, take_fn *take, struct sc_err *err)
{
	int rc = r->text ? take(m, j, r, err) : 0;

	if (r->text)
		note(m, j, rc, err);
	if (rc == 0)
		drop(r);
	return rc;
}

static int try_tags(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	int rc = rs_take_tags(m, j, err);

	j->again.tags = rc < 0;
	note(m, j, rc, err);
	return rc;
}

int rs_rows_take(struct rs_member *m, struct rs_shared *j, struct rs_todo *todo, struct sc_err *err)
{
	struct rs_row_again *r = todo->what == TODO_JOB ? &j->again.row
				 : todo->what == TODO_FIRST ? &j->again.first : &j->again.config;

	if (todo->what == TODO_TAGS)
		return try_tags(m, j, err);
	drop(r);
	*r = (struct rs_row_again){.text = sc_steal(&todo->text), .layout = todo->layout, .mod = todo->mod};
	return try(m, j, r, todo->what == TODO_JOB ? take_row : todo->what == TODO_FIRST ? take_first : take_config,
		   err);
}

bool rs_rows_again(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err ignored;
	bool behind;

	if (try(m, j, &j->again.row, take_row, &ignored) == 0) { /* the others are of a job that is here */
		(void)try(m, j, &j->again.first, take_first, &ignored);
		(void)try(m, j, &j->again.config, take_config, &ignored);
		if (j->again.tags)
			(void)try_tags(m, j, &ignored);
	}
	note(m, j, 0, NULL);
	(void)pthread_mutex_lock(&m->lock);
	behind = j->behind.code != 0;
	(void)pthread_mutex_unlock(&m->lock);
	return behind || owes_any(j);
}
