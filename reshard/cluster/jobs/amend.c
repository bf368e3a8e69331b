/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes in etcd what a command of this node changes of a job, but for its head: name, mode, owner, first layout,
 * settings, tags.  Each change is one transaction, over keys that were read before; if a key has changed meanwhile, or
 * the answer is lost, all are read again (edit.c).  The caller then makes the same change here, and other nodes'
 * workers follow (take.c).  If it cannot be saved here, it is made all the same, and this node's worker follows, too.
 */
#include "reshard/cluster/jobs/rows_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/service/service.h"

#define CONFIG_BYTES_MAX 1000

/* --- rows of jobs --- */

static struct meta_key key_name(const char *name)
{
	return (struct meta_key){.kind = META_KEY_NAME, .text = name};
}

static void job_row_text(const struct meta_job_row *row, struct sc_buf *to)
{
	sc_buf_printf(to, "owner %u %u %o\nmade %" PRId64 "\nroot %" PRIu64 "\nname ", row->uid, row->gid, row->mode,
		      row->made_ns, row->root);
	sc_buf_quoted(to, row->name);
	sc_buf_printf(to, "\n");
}

int rs_job_row_read(char *text, struct meta_job_row *ret, struct sc_err *err)
{
	char *name = strstr(text, "\nname ");
	unsigned uid, gid, mode;

	if (!name || sscanf(text, "owner %u %u %o\nmade %" SCNd64 "\nroot %" SCNu64 "\n", &uid, &gid, &mode,
			    &ret->made_ns, &ret->root) != 5 || !ret->root)
		return sc_fail(err, SC_E_FORMAT, "the row of a job in etcd cannot be read");
	ret->uid = uid;
	ret->gid = gid;
	ret->mode = mode & 07777;
	name += 6;
	name[strcspn(name, "\n")] = 0;
	sc_unquote(name);
	ret->name = name;
	return 0;
}

/* What others say of the job before this revision is older than what this node has. */
static void note_revision(struct rs_member *m, uint64_t *of, uint64_t revision)
{
	(void)pthread_mutex_lock(&m->lock);
	if (revision > *of)
		*of = revision;
	(void)pthread_mutex_unlock(&m->lock);
}

/*
 * A new job.  Its number comes after the last one that was given, key `jobs`, which each try compares, and puts.  So of
 * tries one is done at most, and one whose answer was lost can't be done any more once that key was put again, whoever
 * puts it, and whatever becomes of the job and its name.  Then what etcd has of the job's id says whether it was.
 */
struct making {
	struct rs_member *m;
	const struct meta_job_row *row;
	const char *text;	/* of the row */
	struct rs_shared *j;	/* NULL: it has no number yet */
	uint64_t jobs_mod;	/* of `jobs`, as the last try compared it */
	bool lost;		/* the answer of that one */
};

/* Chooses the id of a new job, with the number after the last one that was given.  Whoever may know of the job knows it
 * by this id from now on: of one before nobody ever will. */
static int number_job(struct making *x, uint64_t last, struct sc_err *err)
{
	struct rs_member *m = x->m;
	uint64_t random, id;
	int rc = rs_member_token(&random, err);

	if (rc == 0 && last >= RS_JOB_NUMBERS_MAX)
		rc = sc_fail(err, SC_E_LIMIT, "the cluster has had %" PRIu64 " jobs, which is the limit", last);
	if (rc < 0)
		return rc;
	id = rs_job_with_number(last + 1, random);
	(void)pthread_mutex_lock(&m->lock);
	if (x->j)
		x->j->id = id;
	else
		x->j = rs_shared_of(m, id);
	(void)pthread_mutex_unlock(&m->lock);
	return x->j ? meta_shared_job_number(m->s->catalog, x->row->id, id, err) : sc_nomem(err);
}

/* Tells what became of the last try: RS_EDIT_DONE, RS_EDIT_AGAIN (it was not done by now), RS_EDIT_DEAF or an error. */
static int was_made(struct making *x, struct sc_err *err)
{
	struct rs_got got;
	bool has_ended;
	int rc = rs_member_get(x->m, rs_key_of(META_KEY_JOB, x->j->id), &got, err);

	sc_sys.release(got.text);
	if (rc == RS_EDIT_DONE && got.is)
		note_revision(x->m, &x->j->row_mod, got.mod);
	if (rc || got.is)
		return rc;
	/* others may have removed it already; what says so goes in the transaction that says it in `ended` */
	rc = rs_member_get(x->m, rs_key_of(META_KEY_REMOVED, x->j->id), &got, err);
	if (rc || got.is)
		return rc;
	rc = rs_member_get(x->m, (struct meta_key){.kind = META_KEY_ENDED}, &got, err);
	has_ended = rc == RS_EDIT_DONE && rs_ended_has(got.text, rs_job_number(x->j->id));
	sc_sys.release(got.text);
	if (has_ended) /* it, or another job that has got the number instead */
		return sc_fail(err, SC_E_SYSTEM, "etcd's answer was lost: the job may have been made, and removed by "
			       "another node; look, and try again");
	return rc ? rc : RS_EDIT_AGAIN;
}

/* Lets a try whose answer was lost not be done any more, and tells whether it was: as was_made(), but RS_EDIT_AGAIN
 * says that it never will be; RS_EDIT_LOST, that this is not known yet. */
static int settle(struct making *x, uint64_t last, struct sc_err *err)
{
	const struct meta_key jobs = {.kind = META_KEY_JOBS};
	struct rs_edit c = {.nr_then = 0};
	int rc;

	rs_edit_expect(&c, jobs, x->jobs_mod);
	rs_edit_op(&c, META_PUT, jobs)->value.number.nr = last;
	rc = rs_edit_make(x->m, &c);
	if (rc == RS_EDIT_DONE || rc == RS_EDIT_AGAIN) /* another one's is as good */
		return was_made(x, err);
	return rc == RS_EDIT_FULL ? RS_EDIT_LOST : rc;
}

/* Why a try was refused: the name is taken, or another node has made a job meanwhile. */
static int refused(struct making *x, struct sc_err *err)
{
	struct rs_got other;
	int rc = rs_member_get(x->m, key_name(x->row->name), &other, err);

	if (rc == RS_EDIT_DONE && other.is)
		return sc_fail(err, SC_E_EXISTS, "another node has made a job '%s'", x->row->name);
	return rc ? rc : RS_EDIT_AGAIN;
}

static int make_once(void *arg, struct sc_err *err)
{
	const struct meta_key jobs = {.kind = META_KEY_JOBS};
	struct making *x = arg;
	struct rs_edit c = {.nr_then = 0};
	struct rs_got last;
	int rc = x->lost ? settle(x, rs_job_number(x->j->id) - 1, err) : RS_EDIT_AGAIN;

	if (rc != RS_EDIT_AGAIN)
		return rc;
	x->lost = false;
	rc = rs_member_get(x->m, jobs, &last, err);
	if (rc == RS_EDIT_DONE)
		rc = number_job(x, last.token, err);
	if (rc)
		return rc;
	x->jobs_mod = last.mod;
	rs_edit_expect(&c, key_name(x->row->name), 0);
	rs_edit_expect(&c, jobs, last.mod);
	rs_edit_op(&c, META_PUT, jobs)->value.number.nr = rs_job_number(x->j->id);
	rs_edit_op(&c, META_PUT, key_name(x->row->name))->value.number.nr = x->j->id;
	rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_JOB, x->j->id))->value.rest = x->text;
	rc = rs_edit_make(x->m, &c);
	if (rc == RS_EDIT_DONE)
		note_revision(x->m, &x->j->row_mod, c.revision);
	if (rc == RS_EDIT_AGAIN)
		return refused(x, err);
	if (rc == RS_EDIT_FULL) { /* it was the last one that was done, or is not done */
		rc = was_made(x, err);
		rc = rc == RS_EDIT_AGAIN ? RS_EDIT_FULL
		     : rc == RS_EDIT_DEAF || rc == SC_E_NO_MEMORY ? RS_EDIT_LOST : rc;
	}
	x->lost = rc == RS_EDIT_LOST;
	return rc;
}

/* Gives a new job to all nodes, unless one has this name.  Then nothing is left that can fail here. */
static int share_job(struct rs_member *m, const struct meta_job_row *row, struct sc_err *err)
{
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	struct making x = {.m = m, .row = row};

	job_row_text(row, &text);
	if (text.failed)
		return sc_nomem(err);
	x.text = text.text;
	/* its id is noted here before others can know of it: what comes of them belongs to this one */
	return rs_edit_until(m, RS_EDIT_SETTLES, make_once, &x, SC_E_SYSTEM, err);
}

static int make_job(struct rs_member *m, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_amend remove = {.kind = RS_AMEND_REMOVE};
	bool is_theirs = change->row->root != 0;
	struct sc_err ignored;
	int rc = rs_head_local.amend(m->s, NULL, change, err);

	if (rc < 0 || is_theirs)
		return rc;
	rc = share_job(m, change->row, err);
	if (rc < 0) /* if it stays, the next start finds that the cluster has no such job */
		(void)rs_head_local.amend(m->s, change->made, &remove, &ignored);
	return rc;
}

/* Mode and owner, as far as they are others than this node's: what another node has just changed stays. */
static void put_attr(struct rs_job *job, const struct meta_job_row *attr, struct meta_job_row *row)
{
	struct rs_job_attr a;

	rs_job_attr(job, &a);
	if (attr->mode != a.mode)
		row->mode = attr->mode;
	if (attr->uid != a.uid)
		row->uid = attr->uid;
	if (attr->gid != a.gid)
		row->gid = attr->gid;
}

/* Tries once to put another name (NULL: it stays), or mode and owner, over the row that was read. */
static int put_row(const struct rs_amending *x, const struct rs_got *was, const char *name, struct sc_err *err)
{
	const struct meta_key key = rs_key_of(META_KEY_JOB, x->j->id);
	struct rs_edit c = {.nr_then = 0};
	struct meta_job_row row = {0};
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	char *copy = sc_strdup(was->text);
	int rc = copy ? rs_job_row_read(copy, &row, err) : sc_nomem(err);
	const char *old = row.name;

	row.name = name ? name : old;
	if (rc == 0 && !name)
		put_attr(x->j->job, x->change->row, &row);
	if (rc == 0)
		job_row_text(&row, &text);
	if (rc == 0 && text.failed)
		rc = sc_nomem(err);
	if (rc == 0 && strcmp(text.text, was->text) == 0) { /* it was done by a try before, or by another node */
		note_revision(x->m, &x->j->row_mod, was->mod);
		sc_sys.release(copy);
		return RS_EDIT_DONE;
	}
	if (rc == 0) {
		rs_edit_expect(&c, key, was->mod);
		rs_edit_op(&c, META_PUT, key)->value.rest = text.text;
	}
	if (rc == 0 && name && strcmp(name, old) != 0) {
		rs_edit_expect(&c, key_name(name), 0);
		rs_edit_op(&c, META_DELETE, key_name(old));
		rs_edit_op(&c, META_PUT, key_name(name))->value.number.nr = x->j->id;
	}
	if (rc == 0)
		rc = rs_edit_make(x->m, &c);
	if (rc == RS_EDIT_DONE)
		note_revision(x->m, &x->j->row_mod, c.revision);
	sc_sys.release(copy);
	return rc;
}

static int row_once(void *arg, struct sc_err *err)
{
	const struct rs_amending *x = arg;
	const char *name = x->change->kind == RS_AMEND_RENAME ? x->change->name : NULL;
	struct rs_got row, other;
	int rc = rs_member_get(x->m, rs_key_of(META_KEY_JOB, x->j->id), &row, err);

	if (rc == RS_EDIT_DONE && !row.is)
		rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc == RS_EDIT_DONE)
		rc = put_row(x, &row, name, err);
	sc_sys.release(row.text);
	if (rc != RS_EDIT_AGAIN || !name)
		return rc;
	rc = rs_member_get(x->m, key_name(name), &other, err);
	if (rc == RS_EDIT_DONE && other.is && other.token != x->j->id)
		return sc_fail(err, SC_E_EXISTS, "another node has made a job '%s'", name);
	return rc == RS_EDIT_DONE ? RS_EDIT_AGAIN : rc;
}

int rs_member_is_named(struct rs_member *m, uint64_t id, struct sc_err *err)
{
	const int64_t give_up = sc_now_ns() + 2 * m->times.ttl;
	struct rs_got row;
	int rc;

	do {
		rc = rs_member_get(m, rs_key_of(META_KEY_JOB, id), &row, err);
		sc_sys.release(row.text);
	} while (rc && rs_ask_pause(m, give_up));
	return rc ? rs_edit_unknown(m, SC_E_SYSTEM, err) : row.is;
}

int rs_member_unname(struct rs_member *m, uint64_t id, uint64_t token, struct sc_err *err)
{
	const struct meta_key proposal = rs_key_of(META_KEY_PROPOSAL, id), job = rs_key_of(META_KEY_JOB, id);
	struct meta_job_row named = {0};
	struct rs_edit c = {.nr_then = 0};
	struct rs_got row = {.is = false}, mine;
	int rc = rs_member_get(m, proposal, &mine, err);

	if (rc == 0)
		rc = rs_member_get(m, job, &row, err);
	if (rc == 0 && (!row.is || !mine.is || mine.token != token)) {
		rc = RS_EDIT_AGAIN;
	} else if (rc == 0) {
		rc = rs_job_row_read(row.text, &named, err);
		rs_edit_expect(&c, proposal, mine.mod);
		rs_edit_expect(&c, job, row.mod);
		rs_edit_op(&c, META_DELETE, job);
		rs_edit_op(&c, META_DELETE, rs_key_of(META_KEY_FIRST, id));
		rs_edit_op(&c, META_DELETE, rs_key_of(META_KEY_CONFIG, id));
		if (rc == 0) {
			rs_edit_op(&c, META_DELETE, key_name(named.name));
			/* what is only absent, etcd has lost (E3 of docs/cluster-protocol.md) */
			rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_REMOVED, id))->value.number.nr = m->node;
			rc = rs_edit_make(m, &c);
		}
	}
	sc_sys.release(row.text);
	switch (rc) {
	case RS_EDIT_AGAIN:
		return sc_fail(err, SC_E_BUSY, "other nodes change the job: nothing was changed; try again");
	case RS_EDIT_DEAF:
		return rs_edit_deaf(err);
	default:
		return rc <= 0 ? rc : 1;
	}
}

/* --- the first layout and topology: all nodes have them --- */

struct first {
	struct rs_amending by;
	struct meta_hash layout;
	struct rs_bag bag;		/* the layout */
	bool was_put;
};

/* Puts the layout into etcd, and again if a sweep was announced since. */
static int put_layout(struct first *x, struct sc_err *err)
{
	const uint64_t was = x->bag.sweep;
	int rc = rs_bag_refer(x->by.m, &x->bag, err);

	if (rc < 0 || (x->was_put && x->bag.sweep == was))
		return rc;
	rc = rs_bag_put(x->by.m, &x->bag, err);
	x->was_put = rc == 0;
	return rc;
}

static int first_once(void *arg, struct sc_err *err)
{
	struct first *x = arg;
	const char *topology = x->by.change->topology ? x->by.change->topology : "";
	const struct meta_key job = rs_key_of(META_KEY_JOB, x->by.j->id);
	const struct meta_key first = rs_key_of(META_KEY_FIRST, x->by.j->id);
	struct rs_edit c = {.nr_then = 0};
	struct rs_got row, was = {.is = false};
	struct meta_op *put;
	bool is_it;
	int rc = rs_member_get(x->by.m, job, &row, err);

	sc_sys.release(row.text);
	if (rc == RS_EDIT_DONE && !row.is)
		rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc == RS_EDIT_DONE)
		rc = rs_member_get(x->by.m, first, &was, err);
	is_it = was.is && was.text && strcmp(was.text, topology) == 0 &&
		memcmp(was.layout.at, x->layout.at, sizeof(was.layout.at)) == 0;
	sc_sys.release(was.text);
	if (rc == RS_EDIT_DONE && is_it) /* it was done by a try before, or by another node */
		note_revision(x->by.m, &x->by.j->first_mod, was.mod);
	if (rc == RS_EDIT_DONE && !is_it)
		rc = put_layout(x, err);
	if (rc || is_it)
		return rc;
	rs_edit_expect(&c, job, row.mod);
	rs_edit_expect(&c, first, was.mod); /* a try that comes late must not put an older one over a newer */
	rs_edit_expect(&c, (struct meta_key){.kind = META_KEY_SWEEP}, x->bag.sweep);
	put = rs_edit_op(&c, META_PUT, first);
	put->value.first.topology = topology;
	put->value.first.layout = x->layout;
	rc = rs_edit_make(x->by.m, &c);
	if (rc == RS_EDIT_DONE)
		note_revision(x->by.m, &x->by.j->first_mod, c.revision);
	return rc;
}

static int share_first(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	struct first x = {.by = {m, j, change}};
	const struct rs_kept_layout *kept;
	size_t bytes;
	int rc = rs_layout_by_id(m->s, change->layout, &kept, err);

	if (rc < 0)
		return rc;
	bytes = strlen(kept->layout->flat);
	rs_sha256(kept->layout->flat, bytes, x.layout.at);
	rc = rs_bag_ops.put(&x.bag, x.layout.at, kept->layout->flat, bytes, err);
	if (rc == 0)
		rc = rs_edit_until(m, j->id, first_once, &x, SC_E_STALE, err);
	rs_bag_done(&x.bag);
	return rc;
}

/* --- settings --- */

/* Tells whether a setting is the machine's, not the job's. */
static bool is_own(const char *key)
{
	return strcmp(key, "engine") == 0 || strcmp(key, "buffer_mib") == 0 || strcmp(key, "home") == 0;
}

/* Appends the lines of settings that the change does not set, then those that it does. */
static void merge(const char *was, const struct rs_amend *change, struct sc_buf *to)
{
	for (const char *line = was ? was : ""; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		size_t key = strcspn(line, "=\n");
		bool again = false;

		for (size_t i = 0; i < change->nr_settings; i++)
			again |= strlen(change->settings[i].key) == key &&
				 memcmp(change->settings[i].key, line, key) == 0;
		if (!again)
			sc_buf_printf(to, "%.*s\n", (int)strcspn(line, "\n"), line);
	}
	for (size_t i = 0; i < change->nr_settings; i++)
		if (!is_own(change->settings[i].key))
			sc_buf_printf(to, "%s=%s\n", change->settings[i].key, change->settings[i].value);
}

static int config_once(void *arg, struct sc_err *err)
{
	const struct rs_amending *x = arg;
	const struct meta_key key = rs_key_of(META_KEY_CONFIG, x->j->id), job = rs_key_of(META_KEY_JOB, x->j->id);
	struct rs_edit c = {.nr_then = 0};
	struct sc_buf text = {0};
	struct rs_got was, row = {.is = false};
	int rc = rs_member_get(x->m, key, &was, err);
	bool is_it = false;

	if (rc == 0)
		rc = rs_member_get(x->m, job, &row, err);
	if (rc == 0 && !row.is)
		rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc == 0)
		merge(was.text, x->change, &text);
	if (rc == 0 && (text.failed || text.bytes > CONFIG_BYTES_MAX))
		rc = text.failed ? sc_nomem(err) : sc_fail(err, SC_E_LIMIT, "the settings of a job have %d bytes at "
							   "most in a cluster", CONFIG_BYTES_MAX);
	is_it = rc == 0 && was.is && strcmp(text.text, was.text) == 0;
	if (rc == 0 && !is_it) {
		rs_edit_expect(&c, key, was.mod);
		rs_edit_expect(&c, job, row.mod);
		rs_edit_op(&c, META_PUT, key)->value.rest = text.text;
		rc = rs_edit_make(x->m, &c);
	}
	sc_buf_done(&text);
	sc_sys.release(was.text);
	sc_sys.release(row.text);
	if (rc == RS_EDIT_DONE)
		note_revision(x->m, &x->j->config_mod, is_it ? was.mod : c.revision);
	return rc;
}

/* Tells whether any setting is the machine's, or (false) the job's. */
static bool has_setting(const struct rs_amend *change, bool own)
{
	bool any = false;

	for (size_t i = 0; i < change->nr_settings; i++)
		any |= is_own(change->settings[i].key) == own;
	return any;
}

/* --- all of them --- */

bool rs_member_keeps(struct rs_member *m, const struct rs_job *job)
{
	const struct rs_shared *j;
	bool keeps;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, job);
	keeps = j && j->kept;
	(void)pthread_mutex_unlock(&m->lock);
	return keeps;
}

/* Changes a job that was removed from the cluster, and is kept on this node alone. */
static int amend_kept(struct rs_member *m, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	int rc;

	if (change->kind == RS_AMEND_FIRST)
		return sc_fail(err, SC_E_NOT_FOUND, "the job is not in the cluster any more: copy its files, and "
			       "remove it");
	if (change->kind != RS_AMEND_REMOVE)
		return rs_head_local.amend(m->s, job, change, err);
	(void)pthread_mutex_lock(&job->command);
	(void)rs_tree_close(job, false, err);
	rc = rs_job_drop(m->s, job, err);
	rs_tree_open(job);
	(void)pthread_mutex_unlock(&job->command);
	return rc;
}

static int share(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_amending x = {m, j, change};

	switch (change->kind) {
	case RS_AMEND_RENAME:
	case RS_AMEND_ATTR:
		return rs_edit_until(m, j->id, row_once, &x, SC_E_SYSTEM, err);
	case RS_AMEND_FIRST:
		return share_first(m, j, change, err);
	case RS_AMEND_CONFIG:
		return has_setting(change, false) ? rs_edit_until(m, j->id, config_once, &x, SC_E_STALE, err) : 0;
	default:
		return rs_member_tag(m, j, change, err);
	}
}

/* Says of a change that all nodes have, and that can't be saved here: it is made, and this node follows.  The command
 * keeps the worker from the job until it ends.  What is about this machine alone is not made. */
static int not_saved(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	if (change->kind == RS_AMEND_CONFIG && !has_setting(change, false))
		return err->code;
	if (change->kind == RS_AMEND_CONFIG && has_setting(change, true))
		return sc_wrap(err, err->code, "all nodes have what is the job's of this; what is this machine's is "
			       "not set");
	sc_log(SC_LOG_ERROR, "a change of a job is made on all nodes but this one: %s; trying again", err->msg);
	rs_shared_behind(m, j, err);
	return 1;
}

int rs_member_amend(struct rs_member *m, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_shared *j;
	int rc;

	if (change->kind == RS_AMEND_MAKE)
		return make_job(m, change, err);
	if (change->is_followed)
		return rs_head_local.amend(m->s, job, change, err);
	if (change->kind == RS_AMEND_CLONE)
		return sc_fail(err, SC_E_UNSUPPORTED, "a node of a cluster cannot clone a job: its files would have "
			       "numbers that other nodes do not know; copy them from .v/N into a new job, and commit");
	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_wait(m, job);
	(void)pthread_mutex_unlock(&m->lock);
	if (!j)
		return sc_fail(err, SC_E_NOT_FOUND, "the job is not in the cluster");
	if (j->kept)
		return amend_kept(m, job, change, err);
	rc = share(m, j, change, err);
	if (rc < 0 || change->kind == RS_AMEND_TAG)
		return rc;
	rc = rs_head_local.amend(m->s, job, change, err);
	return rc < 0 ? not_saved(m, j, change, err) : rc;
}
