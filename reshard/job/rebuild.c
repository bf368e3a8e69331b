/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new catalog from what the blobs say of themselves: of each job the newest state of each file, as one
 * version.  It is made by the ordinary commands: blobs become files of the working tree, which are then
 * committed, with all that commit checks; one commit for each topology under which files were written.
 * What is not used goes to lost+found.  Older versions, tags, settings and datasets are not made again.
 */
#include "reshard/job/service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/engine/copy.h"
#include "reshard/upkeep/record.h"

struct rebuild {
	struct rs_service *s;
	struct sc_buf *report;
	struct sc_err *err;
	struct sc_arena arena;
	uint64_t bad, last_blob;
	struct {
		size_t nr, room;
		struct rs_record *at;
	} all;
	struct {
		size_t nr, room;
		struct file {
			uint64_t blob;
			struct rs_job *user;	/* in whose working tree it is now, NULL: none */
		} *at;
	} files;		/* all that there are, by number once they are sorted */
	struct {
		size_t nr, room;
		struct {
			uint64_t blob, of;
		} *at;
	} twins;		/* of a blob that several ranks have: a file of a working tree is one rank's */
};

/* --- what there is --- */

static int on_record(void *arg, const struct rs_record *record)
{
	struct rebuild *r = arg;

	return sc_vec_push(&r->all, *record) < 0 ? sc_nomem(r->err) : 0;
}

static int on_file(void *arg, uint64_t blob)
{
	struct rebuild *r = arg;
	const size_t before = r->all.nr;
	const struct rs_record none = {.job = "?", .path = "?"}, *rec = &none;
	struct sc_err why = {0};
	uint8_t hash[16];
	uint64_t bytes;
	int rc;

	if (blob > r->last_blob)
		r->last_blob = blob;
	if (sc_vec_push(&r->files, (struct file){.blob = blob}) < 0)
		return sc_nomem(r->err);
	rc = rs_record_read(r->s, blob, &r->arena, on_record, r, &why);
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
	if (rc == 0 && memcmp(hash, rec->hash, 16) == 0)
		return 0;
	r->bad++;
	sc_buf_printf(r->report, "BAD\t");
	sc_buf_line(r->report, "blob %" PRIu64 ", job '%s' '%s', has other bytes than when it was sealed, and is left "
		"out",
		    blob, rec->job, rec->path);
	r->all.nr = before;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const struct file *x = a, *y = b;

	return (x->blob > y->blob) - (x->blob < y->blob);
}

static struct file *file_of(const struct rebuild *r, uint64_t blob)
{
	const struct file key = {.blob = blob};

	return bsearch(&key, r->files.at, r->files.nr, sizeof(key), by_number);
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
	struct rebuild *r;
	struct rs_job *job;
	const struct rs_record *rec;
	struct file *file;
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
	struct rebuild *r = a->r;
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

/* Newer sets first: what an unchanged file shares with an older one, only the older one says. */
static int adopt_file(struct rebuild *r, struct rs_job *job, size_t first, size_t end, const struct rs_record *newest)
{
	int rc = 0;

	for (size_t i = end; rc == 0 && i > first; i--) {
		struct adopting a = {r, job, &r->all.at[i - 1], file_of(r, r->all.at[i - 1].blob)};

		if (a.rec->kind != newest->kind || strcmp(a.rec->file, newest->file) != 0 ||
		    a.rec->layers != newest->layers || a.rec->experts != newest->experts || !go_together(a.rec, newest))
			continue;
		rc = rs_record_ranks(a.rec, on_rank, &a, r->err);
	}
	return rc;
}

/* --- one job: records first to end --- */

static bool is_newest(const struct rebuild *r, size_t i, size_t end)
{
	const struct rs_record *x = &r->all.at[i];

	for (size_t k = i + 1; k < end; k++)
		if (r->all.at[k].kind == x->kind && strcmp(r->all.at[k].file, x->file) == 0)
			return false;
	return true;
}

static int commit(struct rebuild *r, struct rs_job *job, int64_t step)
{
	char text[64] = "note=rebuilt";

	if (step >= 0)
		(void)snprintf(text, sizeof(text), "step=%" PRId64 " note=rebuilt", step);
	return rs_job_commit(RS_CALLER(r->s), job, text, r->err);
}

static int present(struct rebuild *r, struct rs_job *job, const struct rs_record *rec)
{
	char *text = NULL;
	int rc = meta_store_kept_text(&r->s->store, rec->layout, &text, r->err);

	if (rc == 0)
		rc = rs_job_layout(RS_CALLER(r->s), job, text, r->err);
	sc_sys.release(text);
	return rc < 0 ? rc : rs_job_topology(RS_CALLER(r->s), job, rec->topology, r->err);
}

/* What is committed first may be a part of what there was, which no topology need divide: of the records from i on that
 * are committed together. */
static struct rs_whole whole_of(const struct rebuild *r, size_t i, size_t end, struct rs_whole before)
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
static int join_twins(struct rebuild *r)
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
static int forget(struct rebuild *r, struct rs_job *job, int rc)
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

static int job_of(struct rebuild *r, size_t first, size_t end)
{
	const struct rs_record *rec = &r->all.at[end - 1], *now = NULL;
	struct rs_job *job = NULL;
	int64_t step = -1;
	int rc = rs_job_make(r->s, rec->job, (mode_t)rec->job_mode, (uid_t)rec->uid, (gid_t)rec->gid, &job, r->err);

	if (rc < 0)
		return rc;
	job->config.drop_plain = true;
	job->config.keep = 1; /* of the versions that are made on the way only the last one is whole */
	for (size_t i = first; rc == 0 && i < end; i++) {
		rec = &r->all.at[i];
		if (!is_newest(r, i, end))
			continue;
		if (now && !go_together(now, rec)) {
			rc = commit(r, job, step);
			now = NULL;
		}
		if (rc == 0 && !now) {
			job->whole = whole_of(r, i, end, job->whole);
			rc = present(r, job, rec);
		}
		if (!now || rec->layers)
			now = rec;
		if (rc == 0)
			rc = adopt_file(r, job, first, end, rec);
		step = rec->step > step ? rec->step : step;
	}
	if (rc == 0)
		rc = commit(r, job, step);
	if (rc == 0)
		rc = join_twins(r);
	r->twins.nr = 0;
	job->whole = (struct rs_whole){0};
	return rc < 0 && job->head ? forget(r, job, rc) : rc;
}

static int each_job(struct rebuild *r)
{
	for (size_t first = 0, end; first < r->all.nr; first = end) {
		const char *name = r->all.at[first].job;
		int rc;

		for (end = first; end < r->all.nr && strcmp(r->all.at[end].job, name) == 0;)
			end++;
		rc = job_of(r, first, end);
		if (rc == SC_E_NO_MEMORY || rc == SC_E_CATALOG || rc == SC_E_CORRUPT)
			return rc;
		r->bad += rc < 0;
		sc_buf_printf(r->report, "%s\t", rc < 0 ? "BAD" : "rebuilt");
		if (rc < 0)
			sc_buf_line(r->report, "job '%s': %s", name, r->err->msg);
		else
			sc_buf_line(r->report, "job '%s' from %zu blobs", name, end - first);
	}
	return 0;
}

int rs_rebuild(struct rs_service *s, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err)
{
	struct rebuild r = {.s = s, .report = report, .err = err};
	size_t nr_used = 0;
	int rc = meta_store_each(&s->store, on_file, &r, err);

	/* numbers are never used again */
	if (rc == 0)
		rc = meta_blob_reserve(s->catalog, r.last_blob, err);
	if (r.files.nr)
		qsort(r.files.at, r.files.nr, sizeof(*r.files.at), by_number);
	if (rc == 0 && r.all.nr) {
		qsort(r.all.at, r.all.nr, sizeof(*r.all.at), compare);
		rc = each_job(&r);
	}
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
	sc_arena_done(&r.arena);
	return rc < 0 ? rc : report->failed ? sc_nomem(err) : 0;
}
