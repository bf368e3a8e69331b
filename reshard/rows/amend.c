/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes in etcd what a command of this node changes of a job, but for its head: name, mode, owner, first layout,
 * settings, tags.  Each change is one transaction, over keys that were read before; if a key has changed meanwhile, all
 * are read again.  The caller then makes the same change here, and other nodes' workers follow (take.c).
 */
#include "reshard/rows/rows_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/job/service.h"

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

/* Gives a new job to all nodes, unless one has this name. */
static int share_job(struct rs_member *m, const struct meta_job_row *row, struct sc_err *err)
{
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	struct rs_edit c = {.nr_then = 0};
	struct rs_shared *j = NULL;
	enum meta_outcome outcome;
	uint64_t id;
	int rc = rs_member_token(&id, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_of(m, id);
	(void)pthread_mutex_unlock(&m->lock);
	if (!j)
		return sc_nomem(err);
	job_row_text(row, &text);
	if (text.failed)
		return sc_nomem(err);
	rs_edit_expect(&c, key_name(row->name), 0);
	rs_edit_op(&c, META_PUT, key_name(row->name))->value.number.nr = id;
	rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_JOB, id))->value.rest = text.text;
	/* before others can know of it: what comes of them belongs to this one */
	rc = meta_shared_job_add(m->s->catalog, row->id, id, err);
	outcome = rc == 0 ? rs_edit_make(m, &c) : META_UNKNOWN;
	if (outcome == META_APPLIED)
		note_revision(m, &j->row_mod, c.revision);
	if (rc == 0 && outcome == META_REFUSED)
		rc = sc_fail(err, SC_E_EXISTS, "another node has made a job '%s'", row->name);
	else if (rc == 0 && outcome == META_UNKNOWN)
		rc = rs_ask_failed(m, err, "etcd does not answer: the job may come into being later, or not");
	return rc;
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
static int put_row(struct rs_member *m, struct rs_shared *j, const struct rs_got *was, const char *name,
		   const struct meta_job_row *attr, struct sc_err *err)
{
	const struct meta_key key = rs_key_of(META_KEY_JOB, j->id);
	struct rs_edit c = {.nr_then = 0};
	struct meta_job_row row = {0};
	sc_cleanup(sc_buf_done) struct sc_buf text = {0};
	const char *old;
	enum meta_outcome outcome;
	int rc = rs_job_row_read(was->text, &row, err);

	if (rc < 0)
		return rc;
	old = row.name;
	row.name = name ? name : old;
	if (attr)
		put_attr(j->job, attr, &row);
	job_row_text(&row, &text);
	if (text.failed)
		return sc_nomem(err);
	rs_edit_expect(&c, key, was->mod);
	rs_edit_op(&c, META_PUT, key)->value.rest = text.text;
	if (name && strcmp(name, old) != 0) {
		rs_edit_expect(&c, key_name(name), 0);
		rs_edit_op(&c, META_DELETE, key_name(old));
		rs_edit_op(&c, META_PUT, key_name(name))->value.number.nr = j->id;
	}
	outcome = rs_edit_make(m, &c);
	if (outcome == META_APPLIED)
		note_revision(m, &j->row_mod, c.revision);
	return outcome == META_APPLIED ? 0 : outcome == META_REFUSED ? 1 : rs_edit_unknown(m, err);
}

static int change_row(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	const char *name = change->kind == RS_AMEND_RENAME ? change->name : NULL;
	const struct meta_job_row *attr = change->kind == RS_AMEND_ATTR ? change->row : NULL;
	struct rs_got row, taken;
	int rc;

	for (int i = 0; i < RS_EDIT_TRIES; i++) {
		rc = rs_member_get(m, rs_key_of(META_KEY_JOB, j->id), &row, err);
		if (rc == 0 && !row.is)
			rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
		if (rc == 0)
			rc = put_row(m, j, &row, name, attr, err);
		sc_sys.release(row.text);
		if (rc > 0 && name && (rc = rs_member_get(m, key_name(name), &taken, err)) == 0)
			rc = taken.is ? sc_fail(err, SC_E_EXISTS, "another node has made a job '%s'", name) : 1;
		if (rc <= 0)
			return rc;
	}
	return rs_edit_again(err);
}

int rs_member_is_named(struct rs_member *m, uint64_t id, struct sc_err *err)
{
	struct rs_got row;
	int rc = rs_member_get(m, rs_key_of(META_KEY_JOB, id), &row, err);

	sc_sys.release(row.text);
	return rc < 0 ? rc : row.is;
}

int rs_member_unname(struct rs_member *m, uint64_t id, uint64_t token, struct sc_err *err)
{
	const struct meta_key proposal = rs_key_of(META_KEY_PROPOSAL, id), job = rs_key_of(META_KEY_JOB, id);
	struct meta_job_row named = {0};
	struct rs_edit c = {.nr_then = 0};
	struct rs_got row = {.is = false}, mine;
	enum meta_outcome outcome = META_REFUSED;
	int rc = rs_member_get(m, proposal, &mine, err);

	if (rc == 0)
		rc = rs_member_get(m, job, &row, err);
	if (rc == 0 && row.is && mine.is && mine.token == token) {
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
			outcome = rs_edit_make(m, &c);
		}
	}
	sc_sys.release(row.text);
	if (rc == 0 && outcome == META_REFUSED)
		rc = rs_edit_again(err);
	return rc < 0 ? rc : outcome == META_APPLIED ? 0 : 1;
}

/* --- the first layout and topology: all nodes have them --- */

/* Tries once to put the first layout or topology: 0, 1 (another node has changed the job's row) or an error. */
static int put_first(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, const uint8_t layout[32],
		     struct sc_err *err)
{
	const struct meta_key job = rs_key_of(META_KEY_JOB, j->id);
	struct rs_edit c = {.nr_then = 0};
	struct meta_op *put;
	enum meta_outcome outcome;
	struct rs_got row;
	int rc = rs_member_get(m, job, &row, err);

	sc_sys.release(row.text);
	if (rc == 0 && !row.is)
		rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc < 0)
		return rc;
	rs_edit_expect(&c, job, row.mod);
	put = rs_edit_op(&c, META_PUT, rs_key_of(META_KEY_FIRST, j->id));
	put->value.first.topology = change->topology ? change->topology : "";
	memcpy(put->value.first.layout.at, layout, 32);
	outcome = rs_edit_make(m, &c);
	return outcome == META_APPLIED ? 0 : outcome == META_REFUSED ? 1 : rs_edit_unknown(m, err);
}

static int share_first(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	struct rs_bag bag = {.lacking = false};
	uint8_t layout[32];
	size_t bytes;
	int rc = rs_layout_by_id(m->s, change->layout, &kept, err);

	if (rc < 0)
		return rc;
	bytes = strlen(kept->layout->flat);
	rs_sha256(kept->layout->flat, bytes, layout);
	rc = rs_bag_ops.put(&bag, layout, kept->layout->flat, bytes, err);
	if (rc == 0)
		rc = rs_bag_put(m, &bag, err);
	rs_bag_done(&bag);
	for (int i = 0; rc == 0 && i < RS_EDIT_TRIES; i++) {
		rc = put_first(m, j, change, layout, err);
		if (rc <= 0)
			return rc;
		rc = 0;
	}
	return rc < 0 ? rc : rs_edit_again(err);
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

/* Tries once to put settings: 0, 1 (another node was first) or an error. */
static int put_config(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	const struct meta_key key = rs_key_of(META_KEY_CONFIG, j->id), job = rs_key_of(META_KEY_JOB, j->id);
	struct rs_edit c = {.nr_then = 0};
	struct sc_buf text = {0};
	enum meta_outcome outcome = META_UNKNOWN;
	struct rs_got was, row = {.is = false};
	int rc = rs_member_get(m, key, &was, err);

	if (rc == 0)
		rc = rs_member_get(m, job, &row, err);
	if (rc == 0 && !row.is)
		rc = sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc == 0)
		merge(was.text, change, &text);
	if (rc == 0 && (text.failed || text.bytes > CONFIG_BYTES_MAX))
		rc = text.failed ? sc_nomem(err) : sc_fail(err, SC_E_LIMIT, "the settings of a job have %d bytes at "
							   "most in a cluster", CONFIG_BYTES_MAX);
	if (rc == 0) {
		rs_edit_expect(&c, key, was.mod);
		rs_edit_expect(&c, job, row.mod);
		rs_edit_op(&c, META_PUT, key)->value.rest = text.text;
		outcome = rs_edit_make(m, &c);
	}
	sc_buf_done(&text);
	sc_sys.release(was.text);
	sc_sys.release(row.text);
	if (rc == 0 && outcome == META_APPLIED)
		note_revision(m, &j->config_mod, c.revision);
	return rc < 0 || outcome == META_APPLIED ? rc : outcome == META_REFUSED ? 1 : rs_edit_unknown(m, err);
}

static int change_config(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	bool any = false;

	for (size_t i = 0; i < change->nr_settings; i++)
		any |= !is_own(change->settings[i].key);
	for (int i = 0; any && i < RS_EDIT_TRIES; i++) {
		int rc = put_config(m, j, change, err);

		if (rc <= 0)
			return rc;
	}
	return any ? rs_edit_again(err) : 0;
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
	switch (change->kind) {
	case RS_AMEND_RENAME:
	case RS_AMEND_ATTR:
		return change_row(m, j, change, err);
	case RS_AMEND_FIRST:
		return share_first(m, j, change, err);
	case RS_AMEND_CONFIG:
		return change_config(m, j, change, err);
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
