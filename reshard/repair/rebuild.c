/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new catalog from what the blobs say of themselves: of each job the newest state of each file of tensors, as one
 * version.  It is made by the ordinary commands: blobs become files of the working tree, which are then
 * committed, with all that commit checks; one commit for each topology under which files were written.
 * All else is what the job's newest tree tells (rebuild_trees.c).  What is not used goes to lost+found.  Older
 * versions, tags, settings and datasets are not made again.
 */
#include "reshard/repair/rebuild_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/engine/copy.h"

/* --- what there is --- */

static int on_record(void *arg, const struct rs_record *record)
{
	struct rs_rebuild *r = arg;

	if (record->set > r->last_set)
		r->last_set = record->set;
	return sc_vec_push(&r->all, *record) < 0 ? sc_nomem(r->err) : 0;
}

static int on_file(void *arg, uint64_t blob)
{
	struct rs_rebuild *r = arg;
	const size_t before = r->all.nr;
	const struct rs_record none = {.job = "?", .path = "?"}, *rec = &none;
	struct sc_err why = {0};
	uint8_t hash[16], was[16];
	uint64_t bytes;
	int rc;

	if (blob > r->last_blob)
		r->last_blob = blob;
	if (sc_vec_push(&r->files, (struct rs_rebuild_file){.blob = blob}) < 0)
		return sc_nomem(r->err);
	rc = rs_record_read(r->s, blob, &r->arena, was, on_record, r, &why);
	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(r->err);
	if (rc == SC_E_NOT_FOUND || rc == SC_E_FORMAT || (rc == 0 && r->all.nr == before)) {
		r->all.nr = before;
		return 0;
	}
	if (rc == 0) {
		rec = &r->all.at[before];
		rc = rs_hash_blob(&r->s->store, blob, NULL, NULL, hash, &bytes, &why);
	}
	if (rc < 0 && !rs_is_damage(&why)) {
		*r->err = why; /* it says nothing about the blob */
		return rc;
	}
	if (rc == 0 && memcmp(hash, rec->hash, 16) == 0) {
		struct rs_rebuild_file *f = &r->files.at[r->files.nr - 1];

		memcpy(f->hash, hash, sizeof(f->hash));
		f->has_hash = true;
		return 0;
	}
	r->bad++;
	sc_buf_printf(r->report, "BAD\t");
	sc_buf_line(r->report, "blob %" PRIu64 ", job '%s' '%s', has other bytes than when it was sealed, and is left "
		    "out", blob, rec->job, rec->path);
	r->all.nr = before;
	return 0;
}

/* By job, then from old to new. */
static int compare(const void *a, const void *b)
{
	const struct rs_record *x = a, *y = b;
	int by_job = strcmp(x->job, y->job);

	return by_job             ? by_job
	       : x->set != y->set ? (x->set < y->set ? -1 : 1)
				  : (x->blob > y->blob) - (x->blob < y->blob);
}

/* --- one file of one set --- */

/* Written under one presentation, so that they are committed together. */
static bool go_together(const struct rs_record *a, const struct rs_record *b)
{
	return strcmp(a->layout, b->layout) == 0 && strcmp(a->topology, b->topology) == 0 &&
	       (!a->layers || !b->layers || a->layers == b->layers);
}

struct adopting {
	struct rs_rebuild *r;
	struct rs_job *job;
	const struct rs_record *rec;
	struct rs_rebuild_file *file;
};

/* A file for `mine` with the bytes of `blob`.  One file has one owner, and is of one job. */
static int copy_blob(struct adopting *a, uint64_t mine, uint64_t blob, const struct rs_owner *owner)
{
	const struct meta_store *store = &a->r->s->store;
	sc_cleanup(sc_closep) int from = -1;
	sc_cleanup(sc_closep) int to = -1;
	struct sc_err *err = a->r->err;
	struct stat st;
	int rc = meta_store_open_blob(store, blob, UINT64_MAX, &from, err);

	if (rc == 0 && sc_sys.fstat(from, &st) < 0)
		rc = sc_fail_sys(err, errno, "cannot stat blob %" PRIu64, blob);
	if (rc < 0)
		return rc;
	if (a->file->user == a->job && st.st_uid == owner->uid && st.st_gid == owner->gid &&
	    (st.st_mode & 07777) == owner->mode)
		return meta_store_link(store, mine, blob, err);
	rc = meta_store_create(store, mine, &to, err);
	return rc < 0 ? rc : rs_copy_file(to, from, blob, (uint64_t)st.st_size, a->rec->path, err);
}

static int on_rank(void *arg, uint32_t rank, const struct rs_owner *owner)
{
	struct adopting *a = arg;
	const struct rs_record *rec = a->rec;
	struct rs_rebuild *r = a->r;
	uint64_t blob = rec->blob;
	int rc = 0;

	if (rs_work_has(a->job, rank, rec->path))
		return 0; /* a newer one */
	if (a->file->user) {
		blob = ++r->last_blob;
		rc = copy_blob(a, blob, rec->blob, owner);
		if (rc == 0 && sc_vec_push(&r->twins, (typeof(*r->twins.at)){blob, rec->blob}) < 0)
			rc = sc_nomem(r->err);
	}
	if (rc == 0)
		rc = rs_work_adopt(r->s, a->job, rank, rec->path, owner, blob, r->err);
	if (rc == 0 && !a->file->user)
		a->file->user = a->job;
	return rc;
}

/* Newer sets first. */
static int adopt_file(struct rs_rebuild *r, struct rs_job *job, size_t first, size_t end,
		      const struct rs_record *newest)
{
	int rc = 0;

	for (size_t i = end; rc == 0 && i > first; i--) {
		struct adopting a = {r, job, &r->all.at[i - 1], rs_rebuild_file(r, r->all.at[i - 1].blob)};

		if (strcmp(a.rec->file, newest->file) != 0 ||
		    a.rec->layers != newest->layers || a.rec->experts != newest->experts || !go_together(a.rec, newest))
			continue;
		rc = rs_record_ranks(a.rec, on_rank, &a, r->err);
	}
	return rc;
}

/* --- one job: records first to end --- */

static bool is_newest(const struct rs_rebuild *r, size_t i, size_t end)
{
	const struct rs_record *x = &r->all.at[i];

	for (size_t k = i + 1; k < end; k++)
		if (strcmp(r->all.at[k].file, x->file) == 0)
			return false;
	return true;
}

static int commit(struct rs_rebuild *r, struct rs_job *job, int64_t step)
{
	char text[64] = "note=rebuilt";

	if (step >= 0)
		(void)snprintf(text, sizeof(text), "step=%" PRId64 " note=rebuilt", step);
	return rs_job_commit(RS_CALLER(r->s), job, text, r->err);
}

static int present(struct rs_rebuild *r, struct rs_job *job, const char *layout, const char *topology)
{
	char *text = NULL;
	int rc = meta_store_kept_text(&r->s->store, layout, &text, r->err);

	if (rc == 0)
		rc = rs_job_layout(RS_CALLER(r->s), job, text, r->err);
	sc_sys.release(text);
	return rc < 0 ? rc : rs_job_topology(RS_CALLER(r->s), job, topology, r->err);
}

/* What is committed first may be a part of what there was, which no topology need divide: of the records from i on that
 * are committed together. */
static struct rs_whole whole_of(const struct rs_rebuild *r, size_t i, size_t end, struct rs_whole before)
{
	const struct rs_record *now = &r->all.at[i];
	struct rs_whole whole = {0};
	bool differ = false;

	for (; i < end && (!is_newest(r, i, end) || go_together(now, &r->all.at[i])); i++) {
		const struct rs_record *rec = &r->all.at[i];

		if (!is_newest(r, i, end))
			continue;
		now = rec->layers ? rec : now;
		whole.layers = rec->layers ? rec->layers : whole.layers;
		differ |= whole.experts && rec->experts && whole.experts != rec->experts;
		whole.experts = rec->experts ? rec->experts : whole.experts;
	}
	whole.layers = whole.layers ? whole.layers : before.layers;
	whole.experts = differ ? 0 : whole.experts ? whole.experts : before.experts;
	return whole;
}

/* Once they are sealed, ranks share a blob again: what the blob says of itself is said of all of them. */
static int join_twins(struct rs_rebuild *r)
{
	int rc = meta_catalog_begin(r->s->catalog, false, r->err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < r->twins.nr; i++)
		rc = meta_blob_become(r->s->catalog, r->twins.at[i].blob, r->twins.at[i].of, r->err);
	rc = meta_catalog_end(r->s->catalog, rc, r->err);
	for (size_t i = 0; rc == 0 && i < r->twins.nr; i++)
		rc = meta_store_remove(&r->s->store, r->twins.at[i].blob, r->err);
	return rc;
}

/* Its row goes. */
static int on_garbage(void *arg, uint64_t blob)
{
	(void)arg;
	(void)blob;
	return 0;
}

/* A part of a job is none: all that it was made of goes to lost+found. */
static int forget(struct rs_rebuild *r, struct rs_job *job, int rc)
{
	struct sc_err why = *r->err;

	job->config.remove = true;
	if (rs_job_remove(r->s, job, r->err) < 0 || meta_garbage(r->s->catalog, on_garbage, NULL, r->err) < 0)
		return SC_E_CATALOG;
	for (size_t i = 0; i < r->files.nr; i++)
		if (r->files.at[i].user == job)
			r->files.at[i].user = NULL;
	*r->err = why;
	return rc;
}

/* Files of tensors: records first to end. */
static int tensors_of(struct rs_rebuild *r, struct rs_job *job, size_t first, size_t end, int64_t step)
{
	const struct rs_record *now = NULL;
	int rc = 0;

	for (size_t i = first; rc == 0 && i < end; i++) {
		const struct rs_record *rec = &r->all.at[i];

		if (!is_newest(r, i, end))
			continue;
		if (now && !go_together(now, rec)) {
			rc = commit(r, job, step);
			now = NULL;
		}
		if (rc == 0 && !now) {
			job->whole = whole_of(r, i, end, job->whole);
			rc = present(r, job, rec->layout, rec->topology);
		}
		if (!now || rec->layers)
			now = rec;
		if (rc == 0)
			rc = adopt_file(r, job, first, end, rec);
		step = rec->step > step ? rec->step : step;
	}
	if (rc == 0 && now)
		rc = commit(r, job, step);
	if (rc == 0)
		rc = join_twins(r);
	r->twins.nr = 0;
	job->whole = (struct rs_whole){0};
	return rc;
}

/* The rest.  A job that was presented anew since its tensors were written is presented so again. */
static int tree_of(struct rs_rebuild *r, struct rs_job *job, const struct rs_record *last, struct rs_joined *tree)
{
	const struct rs_tree_record *t = &tree->chain[0];
	char *text = NULL;
	int rc = 0;

	if (!last || last->set <= t->last_set)
		rc = present(r, job, t->head_layout, t->head_topology);
	if (rc < 0 && last) {
		sc_buf_printf(r->report, "note\t");
		sc_buf_line(r->report, "job '%s' has the topology under which its tensors were written, not '%s': %s",
			    job->name, t->head_topology, r->err->msg);
		rc = 0;
	}
	if (rc == 0)
		rc = meta_store_kept_text(&r->s->store, t->layout, &text, r->err);
	if (rc == 0)
		rc = rs_rebuild_tree(r, job, tree, text);
	sc_sys.release(text);
	return rc;
}

/* Does the tree's version lack this set: of a file that was removed, or of other versions?  One that was made since is
 * not known to it. */
static bool is_another(const struct rs_record *rec, const struct rs_tree_record *tree)
{
	if (rec->set > tree->last_set)
		return false;
	for (size_t i = 0; i < tree->sets.nr; i++)
		if (tree->sets.at[i] == rec->set)
			return false;
	return true;
}

/* Leaves out records of sets that the tree's version lacks; returns where those that stay end. */
static size_t drop_others(struct rs_rebuild *r, size_t first, size_t end, const struct rs_tree_record *tree)
{
	size_t to = first;

	for (size_t i = first; i < end; i++)
		if (!is_another(&r->all.at[i], tree))
			r->all.at[to++] = r->all.at[i];
	return to;
}

static struct rs_job *make_job(struct rs_rebuild *r, const char *name, const struct rs_record *last)
{
	const struct rs_rebuild_tree *t = r->trees.at;
	struct rs_job *job = NULL;

	while (!last && (!t->job || strcmp(t->job, name) != 0))
		t++;
	if (rs_job_make(r->s, name, (mode_t)(last ? last->job_mode : t->job_mode), (uid_t)(last ? last->uid : t->uid),
			(gid_t)(last ? last->gid : t->gid), &job, r->err) < 0)
		return NULL;
	job->config.drop_plain = true;
	job->config.accept_suspicious = true; /* it was committed */
	job->config.keep = 1; /* of the versions that are made on the way only the last one is whole */
	return job;
}

/* The records of a job, first to end, maybe none; and its tree, if there is one. */
static int job_of(struct rs_rebuild *r, const char *name, size_t first, size_t end)
{
	struct rs_joined tree = {0};
	struct rs_job *job;
	bool newest;
	int has = rs_rebuild_find_tree(r, name, &tree, &newest), rc = has < 0 ? has : 0;

	if (has < 0 || (!has && first == end))
		return rc;
	if (has && newest)
		end = drop_others(r, first, end, &tree.chain[0]);
	job = make_job(r, name, first < end ? &r->all.at[end - 1] : NULL);
	if (!job)
		rc = r->err->code;
	if (rc == 0)
		rc = tensors_of(r, job, first, end, has ? tree.chain[0].step : -1);
	if (rc == 0 && has)
		rc = tree_of(r, job, first < end ? &r->all.at[end - 1] : NULL, &tree);
	if (has)
		rs_joined_done(&tree);
	return rc < 0 && job && (job->head || has) ? forget(r, job, rc) : rc;
}

static int one_job(struct rs_rebuild *r, const char *name, size_t first, size_t end)
{
	int rc = job_of(r, name, first, end);

	if (rc == SC_E_NO_MEMORY || rc == SC_E_CATALOG || rc == SC_E_CORRUPT)
		return rc;
	r->bad += rc < 0;
	sc_buf_printf(r->report, "%s\t", rc < 0 ? "BAD" : "rebuilt");
	if (rc < 0)
		sc_buf_line(r->report, "job '%s': %s", name, r->err->msg);
	else
		sc_buf_line(r->report, "job '%s' from %zu blobs of tensors", name, end - first);
	return 0;
}

/* Those that no blob of tensors names. */
static int each_other_job(struct rs_rebuild *r)
{
	for (size_t i = 0; i < r->trees.nr; i++) {
		const char *name = r->trees.at[i].job;
		bool is_new = name;
		int rc;

		for (size_t k = 0; is_new && k < r->all.nr; k++)
			is_new = strcmp(r->all.at[k].job, name) != 0;
		for (size_t k = 0; is_new && k < i; k++)
			is_new = !r->trees.at[k].job || strcmp(r->trees.at[k].job, name) != 0;
		rc = is_new ? one_job(r, name, 0, 0) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int each_job(struct rs_rebuild *r)
{
	for (size_t first = 0, end; first < r->all.nr; first = end) {
		const char *name = r->all.at[first].job;
		int rc;

		for (end = first; end < r->all.nr && strcmp(r->all.at[end].job, name) == 0;)
			end++;
		rc = one_job(r, name, first, end);
		if (rc < 0)
			return rc;
	}
	return each_other_job(r);
}

int rs_rebuild(struct rs_service *s, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err)
{
	struct rs_rebuild r = {.s = s, .report = report, .err = err};
	size_t nr_used = 0;
	int rc = meta_store_each(&s->store, on_file, &r, err);

	if (rc == 0)
		rc = rs_rebuild_read_trees(&r);
	/* numbers are never used again */
	if (rc == 0)
		rc = meta_blob_reserve(s->catalog, r.last_blob, err);
	if (rc == 0)
		rc = meta_set_reserve(s->catalog, r.last_set, err);
	rs_rebuild_sort_files(&r);
	if (r.all.nr)
		qsort(r.all.at, r.all.nr, sizeof(*r.all.at), compare);
	if (rc == 0)
		rc = each_job(&r);
	if (rc == 0)
		rc = rs_rebuild_keep(&r);
	for (size_t i = 0; rc == 0 && i < r.files.nr; i++) {
		nr_used += r.files.at[i].user != NULL;
		if (!r.files.at[i].user)
			rc = meta_store_set_aside(&s->store, r.files.at[i].blob, err);
	}
	if (rc == 0)
		sc_buf_printf(report, "%s\t%zu blobs used, %zu moved to lost+found, %" PRIu64 " problems\n",
			      r.bad ? "BAD" : "clean", nr_used, r.files.nr - nr_used, r.bad);
	*ret_bad = r.bad;
	sc_vec_done(&r.all);
	sc_vec_done(&r.files);
	sc_vec_done(&r.twins);
	sc_vec_done(&r.trees);
	sc_arena_done(&r.arena);
	return rc < 0 ? rc : report->failed ? sc_nomem(err) : 0;
}
