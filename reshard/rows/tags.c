/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and follows tags of versions, each a key of etcd.  A node reads all tags of a job when one has changed. */
#include "reshard/rows/rows_i.h"

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

static int read_tags(struct rs_member *m, uint64_t id, struct tags *ret, struct sc_err *err)
{
	struct meta_op list = {.what = META_LIST, .key = {.job = id}, .range = META_RANGE_TAGS};
	struct meta_txn txn = {.nr_then = 1, .then = &list};

	*ret = (struct tags){0};
	if (rs_member_ask(m, &txn, on_tags, ret) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd does not answer; nothing was changed, try again");
	return ret->failed ? sc_nomem(err) : 0;
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

/* Tries once to put a tag.  A version has one tag, and a tag one version. */
static int put_tag(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	struct meta_key key = rs_key_of(META_KEY_TAG, j->id);
	struct rs_edit c = {.nr_then = 0};
	enum meta_outcome outcome = META_APPLIED;
	struct tags tags;
	bool is_there = false;
	int rc = read_tags(m, j->id, &tags, err);

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
		rc = expect_version(m, j->id, change->nr, &c, err);
	if (rc == 0 && change->tag && !is_there) {
		rs_edit_expect(&c, key, 0);
		rs_edit_op(&c, META_PUT, key)->value.number.nr = change->nr;
	}
	if (rc == 0 && c.nr_then)
		outcome = rs_edit_make(m, &c);
	sc_vec_done(&tags);
	return rc < 0 || outcome == META_APPLIED ? rc : outcome == META_REFUSED ? 1 : rs_edit_unknown(m, err);
}

int rs_member_tag(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err)
{
	for (int i = 0; i < RS_EDIT_TRIES; i++) {
		int rc = put_tag(m, j, change, err);

		if (rc <= 0)
			return rc < 0 ? rc : rs_member_follow_tags(m, j, err);
	}
	return rs_edit_again(err);
}

