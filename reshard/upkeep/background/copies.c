/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies blobs of other nodes into files of this store, under the number that the blob has here.  A node of a cluster
 * copies the files of ranks whose home it is (homes.c), and files that would be lost with another node.
 *
 * 1. A row says that a copy is here after its bytes are on stable storage.  A copy without such a row is garbage at the
 *    next start.
 * 2. A copy lives as long as the blob's row: it goes with the last version that has the blob.
 * 3. If a member knows the hash that the blob had when it was sealed, the copy is compared with it, and gets it as its
 *    own.
 */
#include "reshard/upkeep/background/pass.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "meta/catalog/nodes.h"
#include "reshard/engine/remote/landing.h"

static int note_hashes(struct rs_copying *c)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->copies.nr; i++)
		if (c->copies.at[i].has_hash)
			rc = rs_hash_note(c->p->s, &c->copies.at[i], c->p->err);
	return rc;
}

static int end(struct rs_copying *c, int rc)
{
	struct rs_service *s = c->p->s;
	struct sc_err ignored;

	if (rc == 0)
		rc = rs_flush_add_dirs(&c->flush, &s->store, &c->dirs, c->p->err);
	rc = rs_flush_end(&c->flush, rc, c->p->err);
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, rs_job_syncs(c->p->job), c->p->err);
	if (rc == 0) {
		for (size_t i = 0; rc == 0 && i < c->copies.nr; i++)
			rc = meta_blob_came(s->catalog, c->copies.at[i].id, c->p->err);
		rc = meta_catalog_end(s->catalog, rc, c->p->err);
	}
	for (size_t i = 0; i < c->copies.nr; i++) {
		if (rc < 0)
			(void)meta_store_remove(&s->store, c->copies.at[i].id, &ignored);
		rs_blob_forget(s->blobs, c->copies.at[i].id);
	}
	if (rc == 0)
		rc = note_hashes(c);
	sc_vec_done(&c->copies);
	c->dirs = (struct meta_store_dirs){{0}};
	return rc;
}

/* Ends the copies that were begun.  A pass that is stopped by a newer version keeps the copies that are whole: else no
 * copy would ever be done if versions come faster than copies. */
int rs_copies_end(struct rs_copying *c, int rc)
{
	struct sc_err why;

	if (rc != SC_E_CANCELLED)
		return end(c, rc);
	why = *c->p->err;
	(void)end(c, 0);
	*c->p->err = why;
	return rc;
}

static int make(struct rs_copying *c, const struct rs_place *place, struct rs_sealed *ret, int rank)
{
	struct rs_pass *p = c->p;
	struct rs_service *s = p->s;
	struct rs_landing_kept kept;
	int rc = meta_store_remove(&s->store, ret->id, p->err); /* of an attempt before */

	if (rc == 0)
		rc = rs_landing_keep(place, &s->store, ret->id, rs_pass_bytes, p, &kept, p->err);
	if (rc < 0)
		return rc;
	ret->has_hash = kept.has_hash;
	if (kept.has_hash)
		memcpy(ret->hash, kept.hash, sizeof(ret->hash));
	return rs_pass_keep(p, &c->flush, &c->dirs, kept.fd, ret->id, rank, "a copy of another node's file", p->err);
}

int rs_copy_blob(struct rs_copying *c, uint64_t blob, uint64_t bytes, int rank)
{
	struct rs_sealed copy = {.id = blob, .bytes = bytes};
	struct rs_service *s = c->p->s;
	struct rs_place place;
	struct sc_err ignored;
	int rc = rs_blob_place(s->blobs, blob, bytes, 0, &place, c->p->err);

	assert(c->copies.nr < RS_FLUSH_MAX);
	if (rc <= 0)
		return rc;
	if (sc_vec_push(&c->copies, copy) < 0)
		return sc_nomem(c->p->err);
	rc = make(c, &place, &c->copies.at[c->copies.nr - 1], rank);
	if (rc < 0) {
		(void)meta_store_remove(&s->store, blob, &ignored);
		rs_blob_forget(s->blobs, blob); /* its bytes may be wrong */
		c->copies.nr--;
	}
	return rc;
}

int rs_copies_next(struct rs_copying *c)
{
	return c->copies.nr == RS_FLUSH_MAX ? rs_copies_end(c, 0) : 0;
}

/* --- what would be lost with another node --- */

void rs_copies_by(struct rs_service *s, const struct rs_copies_ops *ops)
{
	__atomic_store_n(&s->copies, ops, __ATOMIC_RELEASE);
}

struct listing {
	const struct rs_copies_ops *ops;
	void *member;
	struct rs_copied *c;
	struct {
		size_t nr, room;
		struct lacking {
			struct meta_away_row row;
			bool replica;	/* a file of another rank has its bytes */
		} *at;
	} lacking;			/* the largest number first */
	struct rs_job *job;
	struct rs_service *s;
	struct sc_err *err;
};

static int on_away(void *arg, const struct meta_away_row *row)
{
	struct listing *l = arg;

	if (!l->ops->keeps(l->member, l->c->replicas, row->node, row->number))
		return 0;
	l->c->wants += row->bytes;
	if (row->here)
		l->c->has += row->bytes;
	else if (sc_vec_push(&l->lacking, ((struct lacking){*row, false})) < 0)
		return sc_nomem(l->err);
	return 0;
}

struct lost {
	uint64_t head;		/* number of the newest version */
	bool used, newest;
	struct sc_buf text;	/* the file in the newest version */
};

static int on_lost(void *arg, const struct meta_blob_use *use)
{
	struct lost *x = arg;

	x->used = true;
	if (use->version == x->head && !x->newest)
		rs_use_text(use, &x->text);
	x->newest |= use->version == x->head;
	return 0;
}

/* Counts a blob that no node has, if versions have a file of it: rows of trees below tell of removed files, too. */
static int count_lost(const struct listing *l, const struct meta_away_row *row)
{
	struct lost x = {.head = l->c->version};
	int rc = meta_blob_uses(l->s->catalog, row->blob, on_lost, &x, l->err);

	if (rc == 0 && x.used) {
		l->c->lost += row->bytes;
		l->c->files++;
		l->c->newest += x.newest;
		if (x.newest && !*l->c->file && x.text.text)
			(void)snprintf(l->c->file, sizeof(l->c->file), "%s", x.text.text);
	} else if (rc == 0) {
		l->c->wants -= row->bytes;
	}
	sc_buf_done(&x.text);
	return rc;
}

/* Copies one blob.  If other nodes do not give it, that is no error of this node: it tries again when nodes come or go,
 * and now and then, as a version that is dropped meanwhile may have been the only one that had the blob. */
static int copy_one(struct rs_copying *copying, const struct listing *l, const struct meta_away_row *row)
{
	struct sc_err *err = copying->p->err;
	int rc = rs_copies_next(copying);

	if (rc < 0)
		return rc; /* this node's own */
	rc = rs_copy_blob(copying, row->blob, row->bytes, -1);
	if (rc == 0) {
		l->c->has += row->bytes;
		return 0;
	}
	if (rc != SC_E_SYSTEM || err->errnum != EIO)
		return rc;
	sc_log(l->c->again ? SC_LOG_DEBUG : SC_LOG_WARN, "no copy of a file is made here: %s", err->msg);
	return l->ops->is_near(l->member, row->node) ? 0 : count_lost(l, row);
}

/* --- what is lost, and replicas have --- */

static struct lacking *find_lacking(const struct listing *l, uint64_t blob)
{
	size_t from = 0, to = l->lacking.nr;

	while (from < to) {
		const size_t mid = from + (to - from) / 2;

		if (l->lacking.at[mid].row.blob == blob)
			return &l->lacking.at[mid];
		if (l->lacking.at[mid].row.blob > blob)
			from = mid + 1;
		else
			to = mid;
	}
	return NULL;
}

/* Notes the files of a version whose node is gone for good, and that a rank which is alike has on another node. */
static int on_version(void *arg, uint64_t nr)
{
	struct listing *l = arg;
	struct rs_view *view = NULL;
	int rc = rs_view_version(l->s, l->job, nr, &view, l->err);

	if (rc == SC_E_NOT_FOUND) /* it was dropped meanwhile */
		return 0;
	for (size_t i = 0; rc == 0 && i < view->version->nr_sets; i++) {
		const struct rs_set *set = view->version->sets[i];

		for (size_t k = 0; k < set->nr_blobs; k++) {
			struct lacking *f = find_lacking(l, set->blobs[k].blob);

			if (f && !f->replica && !l->ops->is_near(l->member, f->row.node))
				f->replica = rs_replica_of(l->s, set, &set->blobs[k]);
		}
	}
	rs_view_unref(l->s, view);
	return rc;
}

static int find_replicas(struct listing *l)
{
	bool any = false;

	for (size_t i = 0; !any && i < l->lacking.nr; i++)
		any = !l->ops->is_near(l->member, l->lacking.at[i].row.node);
	return any ? rs_versions_each(l->s, l->job, on_version, l, l->err) : 0;
}

static int on_damaged(void *arg, uint64_t blob)
{
	const struct sc_err why = {.code = SC_E_DAMAGED, .blob = blob};

	rs_damage_met(arg, &why);
	return 0;
}

int rs_copies_keep(struct rs_pass *p)
{
	const struct rs_copies_ops *ops = __atomic_load_n(&p->s->copies, __ATOMIC_ACQUIRE);
	struct rs_copied c = {.version = p->head->version->nr, .replicas = rs_config_of(p->job).replicas};
	struct listing l = {.ops = ops, .member = p->s->member, .c = &c, .job = p->job, .s = p->s, .err = p->err};
	struct rs_copying copying = {.p = p};
	int rc = 0;

	if (!ops || !ops->begin(l.member, p->job, &c))
		return 0;
	if (c.others) /* one of them may have the right bytes */
		rc = meta_blob_damaged(p->s->catalog, on_damaged, p->s, p->err);
	if (rc == 0)
		rc = meta_away_each(p->s->catalog, p->job->id, on_away, &l, p->err);
	if (rc == 0)
		rc = find_replicas(&l);
	for (size_t i = 0; i < l.lacking.nr; i++) /* that file has copies of its own, as many as are to be */
		c.has += l.lacking.at[i].replica ? l.lacking.at[i].row.bytes : 0;
	if (rc == 0 && l.lacking.nr)
		rs_pass_begin(p, "copying", c.wants - c.has);
	for (size_t i = 0; rc == 0 && i < l.lacking.nr; i++)
		if (!l.lacking.at[i].replica)
			rc = copy_one(&copying, &l, &l.lacking.at[i].row);
	rc = rs_copies_end(&copying, rc);
	if (l.lacking.nr)
		rs_pass_end(p);
	sc_vec_done(&l.lacking);
	if (rc == 0)
		ops->done(l.member, p->job, &c);
	return rc;
}
