/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and follows tags of versions, each a key of etcd.  A node reads all tags of a job when one has changed. */
#include "reshard/cluster/jobs/rows_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct tags {
	size_t nr, room;
	struct tag {
		char name[104];
		uint64_t nr, mod;	/* of the version; revision of the key */
	} *at;
	bool failed;
};

static void on_tags(void *arg, const struct meta_answer *answer)
{
	struct tags *t = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		struct tag tag = {.nr = r->value.number.nr, .mod = r->mod};

		if (r->key.kind != META_KEY_TAG || !r->present || strlen(r->key.text) >= sizeof(tag.name))
			continue;
		(void)snprintf(tag.name, sizeof(tag.name), "%s", r->key.text);
		t->failed |= sc_vec_push(t, tag) < 0;
	}
}

/* RS_EDIT_DONE, RS_EDIT_DEAF or an error. */
static int read_tags(struct rs_member *m, uint64_t id, struct tags *ret, struct sc_err *err)
{
	struct meta_op list = {.what = META_LIST, .key = {.job = id}, .range = META_RANGE_TAGS};
	struct meta_txn txn = {.nr_then = 1, .then = &list};

	*ret = (struct tags){0};
	if (rs_member_ask(m, &txn, on_tags, ret) != META_APPLIED)
		return RS_EDIT_DEAF;
	return ret->failed ? sc_nomem(err) : RS_EDIT_DONE;
}

/* --- as they are in etcd, here --- */

struct following {
	const struct tags *tags;
	struct {
		size_t nr, room;
		struct {
			uint64_t id;
			const char *tag;	/* NULL: it loses its own */
		} *at;
	} changes;
	size_t nr_here;
	bool failed;
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct following *f = arg;
	const struct tag *tag = NULL;

	for (size_t i = 0; i < f->tags->nr; i++) /* of two that were given at once the last one counts */
		if (f->tags->at[i].nr == row->nr && (!tag || f->tags->at[i].mod > tag->mod))
			tag = &f->tags->at[i];
	f->nr_here += tag != NULL;
	if (row->tag && (!tag || strcmp(row->tag, tag->name) != 0))
		f->failed |= sc_vec_push(&f->changes, (typeof(*f->changes.at)){row->id, NULL}) < 0;
	if (tag && (!row->tag || strcmp(row->tag, tag->name) != 0))
		f->failed |= sc_vec_push(&f->changes, (typeof(*f->changes.at)){row->id, tag->name}) < 0;
	return 0;
}

/* Saves the changes of tags: takes tags off before it gives others, as a tag has one version. */
static int save(struct rs_member *m, const struct following *f, struct sc_err *err)
{
	int rc = meta_catalog_begin(m->s->catalog, true, err);

	if (rc < 0)
		return rc;
	for (int give = 0; give < 2; give++)
		for (size_t i = 0; rc == 0 && i < f->changes.nr; i++)
			if (!give == !f->changes.at[i].tag)
				rc = meta_version_set_tag(m->s->catalog, f->changes.at[i].id, f->changes.at[i].tag,
							  err);
	return meta_catalog_end(m->s->catalog, rc, err);
}

int rs_member_follow_tags(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	struct tags tags;
	struct following f = {.tags = &tags};
	int rc = read_tags(m, j->id, &tags, err);

	if (rc == RS_EDIT_DEAF)
		rc = sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for tags");
	if (rc == 0)
		rc = meta_version_each(m->s->catalog, j->job->id, on_version, &f, err);
	if (rc == 0 && f.failed)
		rc = sc_nomem(err);
	if (rc == 0 && f.changes.nr)
		rc = save(m, &f, err);
	(void)pthread_mutex_lock(&m->lock);
	j->lacks_tagged = rc == 0 ? f.nr_here < tags.nr : j->lacks_tagged;
	(void)pthread_mutex_unlock(&m->lock);
	sc_vec_done(&f.changes);
	sc_vec_done(&tags);
	return rc;
}

/* --- a command --- */

/* Adds to the edit that a version is stored still: a version that is being dropped gets no tag. */
static int expect_version(struct rs_member *m, uint64_t id, uint64_t nr, struct rs_edit *c, struct sc_err *err)
{
	const struct meta_key key = {.kind = META_KEY_STORE, .job = id, .nr = nr};
	struct rs_got got;
	int rc = rs_member_get(m, key, &got, err);

	sc_sys.release(got.text);
	if (rc == 0 && !got.is)
		return sc_fail(err, SC_E_NOT_FOUND, "version %" PRIu64 " was dropped just now: keep= keeps newer ones",
			       nr);
	if (rc == 0)
		rs_edit_expect(c, key, got.mod);
	return rc;
}

/* Adds to the edit that the job is there, and its row as it is now. */
static int expect_job(struct rs_member *m, uint64_t id, struct rs_edit *c, struct sc_err *err)
{
	const struct meta_key key = rs_key_of(META_KEY_JOB, id);
	struct rs_got got;
	int rc = rs_member_get(m, key, &got, err);

	sc_sys.release(got.text);
	if (rc == RS_EDIT_DONE && !got.is)
		return sc_fail(err, SC_E_STALE, "another node has removed the job");
	if (rc == RS_EDIT_DONE)
		rs_edit_expect(c, key, got.mod);
	return rc;
}

/* Tries once to put a tag.  A version has one tag, and a tag one version. */
static int tag_once(void *arg, struct sc_err *err)
{
	const struct rs_amending *x = arg;
	const struct rs_amend *change = x->change;
	struct meta_key key = rs_key_of(META_KEY_TAG, x->j->id);
	struct rs_edit c = {.nr_then = 0};
	struct tags tags = {0};
	bool is_there = false;
	int rc = expect_job(x->m, x->j->id, &c, err);

	if (rc == 0)
		rc = read_tags(x->m, x->j->id, &tags, err);
	for (size_t i = 0; rc == 0 && i < tags.nr && c.nr_then < META_TXN_OPS_MAX - 3; i++) {
		const struct tag *t = &tags.at[i];
		bool same = change->tag && strcmp(t->name, change->tag) == 0;

		key.text = t->name;
		if (same && t->nr != change->nr)
			rc = sc_fail(err, SC_E_EXISTS, "another version has the tag '%s'; untag it first", t->name);
		is_there |= same;
		if (same || t->nr != change->nr)
			continue;
		rs_edit_expect(&c, key, t->mod);
		rs_edit_op(&c, META_DELETE, key);
	}
	key.text = change->tag;
	if (rc == 0 && change->tag && !is_there)
		rc = expect_version(x->m, x->j->id, change->nr, &c, err);
	if (rc == 0 && change->tag && !is_there) {
		rs_edit_expect(&c, key, 0);
		rs_edit_op(&c, META_PUT, key)->value.number.nr = change->nr;
	}
	if (rc == 0 && c.nr_then)
		rc = rs_edit_make(x->m, &c);
	sc_vec_done(&tags);
	return rc;
}

int rs_member_tag(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_amending x = {m, j, change};
	int rc = rs_edit_until(m, j->id, tag_once, &x, SC_E_STALE, err);
	struct sc_err why;

	if (rc == 0 && rs_member_follow_tags(m, j, &why) < 0) /* it is done; the worker hears of it, too */
		sc_log(SC_LOG_WARN, "tags of a job are not those of etcd here yet: %s", why.msg);
	return rc;
}

