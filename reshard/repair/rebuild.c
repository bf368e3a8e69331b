/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a new catalog from what the blobs say of themselves: for each job one version, with the newest state of each
 * file of tensors.  Ordinary commands make it: blobs become files of the working tree, which are then committed, with
 * all checks of a commit; one commit for each topology under which files were written.  The job's newest tree tells all
 * else (rebuild_trees.c).  Blobs that are not used go to lost+found.  Older versions, tags, settings and datasets are
 * not made again.
 */
#include "reshard/repair/rebuild_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/engine/io/copy.h"

/* Orders records by job, then from old to new. */
static int compare(const void *a, const void *b)
{
	const struct rs_record *x = a, *y = b;
	int by_job = strcmp(x->job, y->job);

	return by_job             ? by_job
	       : x->set != y->set ? (x->set < y->set ? -1 : 1)
				  : (x->blob > y->blob) - (x->blob < y->blob);
}

/* --- one file of one set --- */

/* Tells whether two records were written under one presentation, so that they are committed together. */
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

/* Makes a file for the blob `mine` with the bytes of `blob`: one file has one owner, and belongs to one job. */
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

/* Makes a file of the working tree from a record; newer sets come first. */
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
	char text[80] = "kept=yes note=rebuilt"; /* it was committed */

	if (step >= 0)
		(void)snprintf(text, sizeof(text), "step=%" PRId64 " kept=yes note=rebuilt", step);
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

/* Tells of which whole state the records from i on that are committed together are a part, as no topology need divide
 * a part. */
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

/* Removes the second names that this rebuild gave to blobs, and the copies of blobs. */
static int drop_twins(struct rs_rebuild *r, int rc)
{
	struct sc_err ignored;

	for (size_t i = 0; i < r->twins.nr; i++)
		if (rc < 0) /* with an error that is to be told; the next start removes what is left */
			(void)meta_store_remove(&r->s->store, r->twins.at[i].blob, &ignored);
		else
			rc = meta_store_remove(&r->s->store, r->twins.at[i].blob, r->err);
	r->twins.nr = 0;
	return rc;
}

/* Makes ranks share a blob again once their files are sealed, so that the record of the blob has all of them. */
static int join_twins(struct rs_rebuild *r)
{
	int rc = meta_catalog_begin(r->s->catalog, false, r->err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < r->twins.nr; i++)
		rc = meta_blob_become(r->s->catalog, r->twins.at[i].blob, r->twins.at[i].of, r->err);
	return drop_twins(r, meta_catalog_end(r->s->catalog, rc, r->err));
}

/* Leaves the file of a blob whose row meta_garbage() removes: it goes to lost+found. */
static int on_garbage(void *arg, uint64_t blob)
{
	(void)arg;
	(void)blob;
	return 0;
}

/* Removes a job that could be made in part only; all blobs of which it was made go to lost+found. */
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

/* Makes and commits the files of tensors of a job, of the records first to end. */
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
	rc = rc < 0 ? drop_twins(r, rc) : join_twins(r);
	job->whole = (struct rs_whole){0};
	return rc;
}

/* Gives a job what its tree tells, and presents it anew if it was since its tensors were written. */
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
	job->config.drop_at_once = true;
	job->config.steps_unknown = true;
	return job;
}

/* Makes a job of its records, first to end, maybe none, and of its tree, if there is one. */
static int make_of(struct rs_rebuild *r, const char *name, size_t first, size_t end, struct rs_joined *tree)
{
	const struct rs_record *last = first < end ? &r->all.at[end - 1] : NULL;
	struct rs_job *job = make_job(r, name, last);
	int rc = job ? tensors_of(r, job, first, end, tree ? tree->chain[0].step : -1) : r->err->code;

	if (rc == 0 && tree)
		rc = tree_of(r, job, last, tree);
	return rc < 0 && job && (job->head || tree) ? forget(r, job, rc) : rc;
}

/* --- which version: the newest one that is whole --- */

/* The sets of which a job may be made. */
enum sets {
	ALL,	/* that there are: its tree may not be the newest one */
	SINCE,	/* of its newest tree's version, and those that were written since */
	OWN,	/* of the tree's version alone */
};

struct pick {
	const char *name;
	size_t first, end;
	struct rs_record *records;	/* first to end, as they were read */
	size_t nr;			/* of them, that were picked */
	enum sets sets;
	bool has_tree;
	struct rs_joined tree;
};

static bool is_of(const struct pick *p, const struct rs_record *rec)
{
	const struct rs_tree_record *tree = &p->tree.chain[0];

	if (p->sets == ALL || rec->set > tree->last_set)
		return p->sets != OWN;
	for (size_t i = 0; i < tree->sets.nr; i++)
		if (tree->sets.at[i].id == rec->set)
			return true;
	return false;
}

static void pick(struct rs_rebuild *r, struct pick *p)
{
	p->nr = 0;
	for (size_t i = 0; i < p->end - p->first; i++)
		if (is_of(p, &p->records[i]))
			r->all.at[p->first + p->nr++] = p->records[i];
}

/* Finds the newest and the oldest set that was picked of a logical file; 0: none. */
static uint64_t newest_set(const struct rs_rebuild *r, const struct pick *p, const char *file, uint64_t *ret_oldest)
{
	uint64_t newest = 0;

	*ret_oldest = 0;
	for (size_t i = p->first; i < p->first + p->nr; i++) {
		const struct rs_record *rec = &r->all.at[i];

		if (strcmp(rec->file, file) != 0)
			continue;
		newest = rec->set > newest ? rec->set : newest;
		*ret_oldest = !*ret_oldest || rec->set < *ret_oldest ? rec->set : *ret_oldest;
	}
	return newest;
}

/* Refuses to make a file without the ranks of a damaged blob, or with ranks of an older set.  The commit judges what
 * replicas and the topology leave of one set. */
static int refuse_lost(struct rs_rebuild *r, const struct pick *p)
{
	for (size_t i = 0; i < r->lost.nr; i++) {
		const struct rs_record *lost = &r->lost.at[i];
		uint64_t newest, oldest;

		if (strcmp(lost->job, p->name) != 0 || !is_of(p, lost))
			continue;
		newest = newest_set(r, p, lost->file, &oldest);
		if (lost->set > newest || (lost->set == newest && oldest != newest))
			return sc_fail(r->err, SC_E_DAMAGED, "'%s' is not whole: blob %" PRIu64 " is damaged",
				       lost->path, lost->blob);
	}
	return 0;
}

/* Refuses a version if its tree names a set of which no blob tells.  The newest version is refused only if blobs that
 * say nothing can't be the reason. */
static int refuse_missing(struct rs_rebuild *r, const struct pick *p)
{
	const struct rs_tree_record *tree = &p->tree.chain[0];

	for (size_t i = 0; p->has_tree && i < tree->sets.nr; i++) {
		const struct rs_tree_set *set = &tree->sets.at[i];
		uint64_t ignored;

		if (newest_set(r, p, set->file, &ignored) >= set->id)
			continue;
		if (p->sets == OWN || !r->silent)
			return sc_fail(r->err, SC_E_DAMAGED, "'%s' is missing: no blob says that it is of set %" PRIu64,
				       set->file, set->id);
		sc_buf_printf(r->report, "note\t");
		sc_buf_line(r->report, "job '%s' lacks '%s': no blob says that it is of set %" PRIu64, p->name,
			    set->file, set->id);
	}
	return 0;
}

static int make_picked(struct rs_rebuild *r, struct pick *p)
{
	int rc;

	pick(r, p);
	rc = refuse_lost(r, p);
	if (rc == 0)
		rc = refuse_missing(r, p);
	return rc < 0 ? rc : make_of(r, p->name, p->first, p->first + p->nr, p->has_tree ? &p->tree : NULL);
}

static void add_when(struct sc_buf *buf, const struct pick *p)
{
	if (p->tree.chain[0].step >= 0)
		sc_buf_printf(buf, "step %" PRId64 ", ", p->tree.chain[0].step);
	sc_buf_printf(buf, "tree %" PRIu64, p->tree.chain[0].id);
}

/* Goes on to the next older tree and sets of which a job can be made: 1, 0 (there are none) or an error. */
static int next_older(struct rs_rebuild *r, struct pick *p, size_t *at)
{
	const size_t before = p->nr;
	const enum sets sets = p->sets;
	bool ignored;
	int rc;

	p->sets = OWN;
	pick(r, p);
	if (sets != OWN && p->nr != before)
		return 1;
	do {
		rs_joined_done(&p->tree);
		rc = rs_rebuild_find_tree(r, p->name, at, &p->tree, &ignored);
	} while (rc > 0 && !p->tree.chain[0].version); /* no version's own: it is below others */
	p->has_tree = rc > 0;
	return rc;
}

/* Tells whether an error says that a version is not whole; other errors may not come again. */
static bool is_of_version(int rc)
{
	return rc < 0 && rc != SC_E_NO_MEMORY && rc != SC_E_CATALOG && rc != SC_E_CORRUPT && rc != SC_E_SYSTEM &&
	       rc != SC_E_NO_SPACE && rc != SC_E_BUSY;
}

/* Tries older versions in turn after the newest one has failed with `rc`. */
static int make_older(struct rs_rebuild *r, struct pick *p, size_t *at, int rc)
{
	const struct sc_err why = *r->err;
	struct sc_buf left = {0}, when = {0};
	uint64_t nr = 0;

	while (is_of_version(rc) && p->has_tree) {
		sc_buf_reset(&when);
		add_when(&when, p);
		sc_buf_printf(&left, "BAD\t");
		sc_buf_line(&left, "job '%s': its %sstate (%s) is left out: %s", p->name,
			    p->sets == OWN ? "" : "newest ", when.text ? when.text : "", r->err->msg);
		nr++;
		rc = next_older(r, p, at);
		if (rc > 0)
			rc = make_picked(r, p);
		else if (rc == 0)
			break;
	}
	if (rc == 0 && p->has_tree) {
		sc_buf_add(r->report, left.text, left.bytes);
		r->bad += nr;
		sc_buf_reset(&when);
		add_when(&when, p);
		sc_buf_printf(r->report, "note\t");
		sc_buf_line(r->report, "job '%s' is made as it was before (%s)", p->name, when.text ? when.text : "");
	} else if (rc == 0 || is_of_version(rc)) { /* the newest one's reason is the one to know */
		*r->err = why;
		rc = why.code;
	}
	r->report->failed |= left.failed || when.failed;
	sc_buf_done(&left);
	sc_buf_done(&when);
	return rc;
}

/* Makes the newest version of a job that its records, first to end, maybe none, and its trees can make. */
static int job_of(struct rs_rebuild *r, const char *name, size_t first, size_t end)
{
	struct pick p = {.name = name, .first = first, .end = end};
	size_t at = 0, bytes = (end - first) * sizeof(*p.records);
	bool newest;
	int rc = rs_rebuild_find_tree(r, name, &at, &p.tree, &newest);

	if (rc < 0 || (rc == 0 && first == end))
		return rc;
	p.has_tree = rc > 0;
	p.sets = p.has_tree && newest ? SINCE : ALL;
	p.records = sc_sys.alloc(bytes + 1);
	if (p.records && bytes)
		memcpy(p.records, &r->all.at[first], bytes);
	rc = p.records ? make_picked(r, &p) : sc_nomem(r->err);
	if (is_of_version(rc) && p.has_tree)
		rc = make_older(r, &p, &at, rc);
	if (p.has_tree)
		rs_joined_done(&p.tree);
	sc_sys.release(p.records);
	return rc;
}

/* Counts the used blobs of a job.  A blob has several records, and blobs that share a file have each other's. */
static size_t count_used(struct rs_rebuild *r, const char *name, size_t first, size_t end)
{
	size_t nr = 0;

	for (size_t i = first; i < end; i++) {
		struct rs_rebuild_file *f = rs_rebuild_file(r, r->all.at[i].blob);

		if (f->counted || !f->user || strcmp(f->user->name, name) != 0)
			continue;
		f->counted = true;
		nr++;
	}
	return nr;
}

static int one_job(struct rs_rebuild *r, const char *name, size_t first, size_t end)
{
	int rc = job_of(r, name, first, end);

	if (rs_rebuild_ends(rc, r->err))
		return rc;
	r->bad += rc < 0;
	sc_buf_printf(r->report, "%s\t", rc < 0 ? "BAD" : "rebuilt");
	if (rc < 0)
		sc_buf_line(r->report, "job '%s': %s", name, r->err->msg);
	else
		sc_buf_line(r->report, "job '%s' from %zu blobs of tensors", name, count_used(r, name, first, end));
	return 0;
}

/* Makes the jobs that no blob of tensors names, from their trees alone. */
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
	struct rs_rebuild r = {.s = s, .report = report, .err = err, .progress = {&s->events}};
	size_t nr_used = 0;
	int rc = rs_rebuild_read_blobs(&r);

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
	sc_vec_done(&r.lost);
	sc_vec_done(&r.files);
	sc_vec_done(&r.twins);
	sc_vec_done(&r.trees);
	sc_arena_done(&r.arena);
	return rc < 0 ? rc : report->failed ? sc_nomem(err) : 0;
}
