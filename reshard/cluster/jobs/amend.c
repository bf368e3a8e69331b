/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes in etcd what a command of this node changes of a job, but for its head: name, mode, owner, first layout,
 * settings, tags.  Each change is one transaction, over keys that were read before; if a key has changed meanwhile, or
 * the answer is lost, all are read again (edit.c).  The caller then makes the same change here, and other nodes'
 * workers follow (take.c).
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

struct making {
	struct rs_member *m;
	const struct meta_job_row *row;
	const char *text;	/* of the row */
	struct rs_shared *j;
	bool lost;		/* the answer of a try */
};

static int taken(const struct making *x, struct sc_err *err)
{
	return sc_fail(err, SC_E_EXISTS, "another node has made a job '%s'", x->row->name);
}

/* Tells what became of tries whose answers were lost: RS_EDIT_DONE, RS_EDIT_AGAIN (none was done by now), or an
 * error: none was, and none will be. */
static int was_made(struct making *x, struct sc_err *err)
{
	struct rs_got got;
	int rc = rs_member_get(x->m, rs_key_of(META_KEY_JOB, x->j->id), &got, err);

	sc_sys.release(got.text);
	if (rc == RS_EDIT_DONE && got.is)
		note_revision(x->m, &x->j->row_mod, got.mod);
	if (rc || got.is)
		return rc;
	rc = rs_member_get(x->m, rs_key_of(META_KEY_REMOVED, x->j->id), &got, err);
	if (rc || !got.is)
		return rc ? rc : RS_EDIT_AGAIN;
	return got.token == x->m->node ? taken(x, err) : RS_EDIT_DONE; /* others may have removed it already */
}

/* Lets no try be done any more: the job is one that this node has removed. */
static int give_up(struct making *x, struct sc_err *err)
{
	const struct meta_key removed = rs_key_of(META_KEY_REMOVED, x->j->id);
	struct rs_edit c = {.nr_then = 0};
	int rc;

	rs_edit_expect(&c, rs_key_of(META_KEY_JOB, x->j->id), 0);
	rs_edit_expect(&c, removed, 0);
	rs_edit_op(&c, META_PUT, removed)->value.number.nr = x->m->node;
	rc = rs_edit_make(x->m, &c);
	return rc == RS_EDIT_DONE ? taken(x, err) : rc;
}

static int make_once(void *arg, struct sc_err *err)
{
	struct making *x = arg;
	struct rs_edit c = {.nr_then = 0};
	int rc;

	/* the last two: it is made once, also if the name is free again when a try comes late */
	rs_edit_expect(&c, key_name(x->row->name), 0);
	rs_edit_expect(&c, rs_key_of(META_KEY_JOB, x->j->id), 0);
	rs_edit_expect(&c, rs_key_of(META_KEY_REMOVED, x->j->id), 0);
	rs_edit_op(&c, META_PUT, key_name(x->row->name))->value.number.nr = x->j->id;
	rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_JOB, x->j->id))->value.rest = x->text;
	rc = rs_edit_make(x->m, &c);
	if (rc == RS_EDIT_DONE)
		note_revision(x->m, &x->j->row_mod, c.revision);
	if (rc == RS_EDIT_AGAIN && !x->lost)
		return taken(x, err);
	if (rc == RS_EDIT_AGAIN) {
		rc = was_made(x, err);
		return rc == RS_EDIT_AGAIN ? give_up(x, err) : rc;
	}
	x->lost |= rc == RS_EDIT_LOST || rc == RS_EDIT_FULL;
	return rc == RS_EDIT_FULL && was_made(x, err) == RS_EDIT_DONE ? RS_EDIT_DONE : rc;
}

/* Gives a new job to all nodes, unless one has this name. */
static int share_job(struct rs_member *m, const struct meta_job_row *row, struct sc_err *err)
{
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	struct making x = {.m = m, .row = row};
	uint64_t id;
	int rc = rs_member_token(&id, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	x.j = rs_shared_of(m, id);
	(void)pthread_mutex_unlock(&m->lock);
	job_row_text(row, &text);
	if (!x.j || text.failed)
		return sc_nomem(err);
	x.text = text.text;
	/* before others can know of it: what comes of them belongs to this one */
	rc = meta_shared_job_add(m->s->catalog, row->id, id, err);
	return rc < 0 ? rc : rs_edit_until(m, 0, make_once, &x, SC_E_SYSTEM, err);
}

static int make_job(struct rs_member *m, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_amend remove = {.kind = RS_AMEND_REMOVE};
	bool is_theirs = change->row->root != 0;
	struct sc_err ignored;
	int rc = meta_job_add(m->s->catalog, change->row, err);

	if (rc < 0 || is_theirs)
		return rc;
	rc = share_job(m, change->row, err);
	if (rc < 0) {
		struct rs_job gone = {.service = m->s, .id = change->row->id};

		(void)rs_head_local.amend(m->s, &gone, &remove, &ignored);
	}
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
	} while (rc == RS_EDIT_DEAF && rs_ask_pause(m, give_up));
	return rc == RS_EDIT_DEAF ? rs_edit_unknown(m, SC_E_SYSTEM, err) : rc < 0 ? rc : row.is;
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
};

static int first_once(void *arg, struct sc_err *err)
{
	const struct first *x = arg;
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
	if (rc || is_it)
		return rc;
	rs_edit_expect(&c, job, row.mod);
	rs_edit_expect(&c, first, was.mod); /* a try that comes late must not put an older one over a newer */
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
	struct rs_bag bag = {.lacking = false};
	size_t bytes;
	int rc = rs_layout_by_id(m->s, change->layout, &kept, err);

	if (rc < 0)
		return rc;
	bytes = strlen(kept->layout->flat);
	rs_sha256(kept->layout->flat, bytes, x.layout.at);
	rc = rs_bag_ops.put(&bag, x.layout.at, kept->layout->flat, bytes, err);
	if (rc == 0)
		rc = rs_bag_put(m, &bag, err);
	rs_bag_done(&bag);
	return rc < 0 ? rc : rs_edit_until(m, j->id, first_once, &x, SC_E_STALE, err);
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

static bool has_shared(const struct rs_amend *change)
{
	bool any = false;

	for (size_t i = 0; i < change->nr_settings; i++)
		any |= !is_own(change->settings[i].key);
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
		return has_shared(change) ? rs_edit_until(m, j->id, config_once, &x, SC_E_STALE, err) : 0;
	default:
		return rs_member_tag(m, j, change, err);
	}
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
	return rc < 0 || change->kind == RS_AMEND_TAG ? rc : rs_head_local.amend(m->s, job, change, err);
}
