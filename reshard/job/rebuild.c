/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new catalog from what the blobs say of themselves: of each job the newest state of each file, as one
 * version (more than one, if files were written under different topologies).  It is made by the ordinary
 * commands: blobs become files of the working tree, which are then committed, with all that commit checks.
 * What is not used goes to lost+found.  Older versions, tags, settings and datasets are not made again.
 */
#include "reshard/job/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
		uint64_t *at;
	} unused;
};

/* --- what there is --- */

static int on_file(void *arg, uint64_t blob)
{
	struct rebuild *r = arg;
	struct rs_record rec;
	struct sc_err why;
	uint8_t hash[16];
	uint64_t bytes;

	if (blob > r->last_blob)
		r->last_blob = blob;
	if (rs_record_read(r->s, blob, &r->arena, &rec, &why) < 0)
		return sc_vec_push(&r->unused, blob) < 0 ? sc_nomem(r->err) : 0;
	if (rs_hash_blob(r->s, blob, hash, &bytes, &why) < 0 || memcmp(hash, rec.hash, 16) != 0) {
		r->bad++;
		sc_buf_printf(r->report, "BAD\tblob %" PRIu64 ", job '%s' '%s', has other bytes than when it was sealed: left out\n",
			      blob, rec.job, rec.path);
		return sc_vec_push(&r->unused, blob) < 0 ? sc_nomem(r->err) : 0;
	}
	return sc_vec_push(&r->all, rec) < 0 ? sc_nomem(r->err) : 0;
}

/* By job, then from old to new. */
static int compare(const void *a, const void *b)
{
	const struct rs_record *x = a, *y = b;
	int by_job = strcmp(x->job, y->job);

	return by_job ? by_job : x->set != y->set ? (x->set < y->set ? -1 : 1) : (x->blob > y->blob) - (x->blob < y->blob);
}

/* --- one file of one set --- */

struct adopting {
	struct rebuild *r;
	struct rs_job *job;
	const struct rs_record *rec;
	bool used;
};

static int on_rank(void *arg, uint32_t rank)
{
	struct adopting *a = arg;
	const struct rs_record *rec = a->rec;
	struct rs_owner owner = {(uid_t)rec->uid, (gid_t)rec->gid, (mode_t)rec->mode};
	int rc;

	if (rs_work_has(a->job, rank, rec->path))
		return 0; /* a newer one */
	rc = rs_work_adopt(a->r->s, a->job, rank, rec->path, &owner, rec->blob, a->used, a->r->err);
	a->used |= rc == 0;
	return rc;
}

/* Newer sets first: what an unchanged file shares with an older one, only the older one says. */
static int adopt_file(struct rebuild *r, struct rs_job *job, size_t first, size_t end, const struct rs_record *newest,
		      bool *used)
{
	int rc = 0;

	for (size_t i = end; rc == 0 && i > first; i--) {
		struct adopting a = {r, job, &r->all.at[i - 1], used[i - 1]};

		if (a.rec->kind != newest->kind || strcmp(a.rec->file, newest->file) != 0 ||
		    strcmp(a.rec->topology, newest->topology) != 0 || strcmp(a.rec->layout, newest->layout) != 0)
			continue;
		rc = rs_record_ranks(a.rec->ranks, on_rank, &a, r->err);
		used[i - 1] = a.used;
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
	return rs_job_commit(r->s, job, text, r->err);
}

static int present(struct rebuild *r, struct rs_job *job, const struct rs_record *rec)
{
	char *text = NULL;
	int rc = meta_store_kept_text(&r->s->store, rec->layout, &text, r->err);

	if (rc == 0)
		rc = rs_job_layout(r->s, job, text, r->err);
	sc_sys.release(text);
	return rc < 0 ? rc : rs_job_topology(r->s, job, rec->topology, r->err);
}

static int job_of(struct rebuild *r, size_t first, size_t end, bool *used)
{
	const struct rs_record *rec = &r->all.at[end - 1], *now = NULL;
	struct rs_job *job = NULL;
	int64_t step = -1;
	int rc = rs_job_make(r->s, rec->job, (mode_t)rec->job_mode, (uid_t)rec->uid, (gid_t)rec->gid, &job, r->err);

	for (size_t i = first; rc == 0 && i < end; i++) {
		rec = &r->all.at[i];
		if (!is_newest(r, i, end))
			continue;
		if (!now || strcmp(now->layout, rec->layout) != 0 || strcmp(now->topology, rec->topology) != 0) {
			if (now)
				rc = commit(r, job, step);
			if (rc == 0)
				rc = present(r, job, rec);
			now = rec;
		}
		if (rc == 0)
			rc = adopt_file(r, job, first, end, rec, used);
		step = rec->step > step ? rec->step : step;
	}
	if (rc == 0)
		rc = commit(r, job, step);
	return rc;
}

static int each_job(struct rebuild *r, bool *used)
{
	for (size_t first = 0, end; first < r->all.nr; first = end) {
		const char *name = r->all.at[first].job;
		int rc;

		for (end = first; end < r->all.nr && strcmp(r->all.at[end].job, name) == 0;)
			end++;
		rc = job_of(r, first, end, used);
		if (rc == SC_E_NO_MEMORY || rc == SC_E_CATALOG)
			return rc;
		r->bad += rc < 0;
		if (rc < 0)
			sc_buf_printf(r->report, "BAD\tjob '%s': %s\n", name, r->err->msg);
		else
			sc_buf_printf(r->report, "rebuilt\tjob '%s' from %zu blobs\n", name, end - first);
	}
	return 0;
}

int rs_rebuild(struct rs_service *s, uint64_t *ret_bad, struct sc_buf *report, struct sc_err *err)
{
	struct rebuild r = {.s = s, .report = report, .err = err};
	size_t nr_used = 0;
	bool *used = NULL;
	int rc = meta_store_each(&s->store, on_file, &r, err);

	/* numbers are never used again */
	if (rc == 0)
		rc = meta_blob_reserve(s->catalog, r.last_blob, err);
	if (rc == 0 && r.all.nr) {
		qsort(r.all.at, r.all.nr, sizeof(*r.all.at), compare);
		used = sc_zalloc(r.all.nr * sizeof(*used));
		rc = used ? each_job(&r, used) : sc_nomem(err);
	}
	for (size_t i = 0; rc == 0 && i < r.all.nr; i++) {
		nr_used += used[i];
		if (!used[i])
			rc = sc_vec_push(&r.unused, r.all.at[i].blob) < 0 ? sc_nomem(err) : 0;
	}
	for (size_t i = 0; rc == 0 && i < r.unused.nr; i++)
		rc = meta_store_set_aside(&s->store, r.unused.at[i], err);
	if (rc == 0)
		sc_buf_printf(report, "%s\t%zu blobs used, %zu moved to lost+found, %" PRIu64 " complaints\n", r.bad ? "BAD" : "clean",
			      nr_used, r.unused.nr, r.bad);
	*ret_bad = r.bad;
	sc_sys.release(used);
	sc_vec_done(&r.all);
	sc_vec_done(&r.unused);
	sc_arena_done(&r.arena);
	return rc < 0 ? rc : report->failed ? sc_nomem(err) : 0;
}
