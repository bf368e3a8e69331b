/* SPDX-License-Identifier: Apache-2.0 */
/* The command `verify` compares the digests of the head's logical tensors with those of its commit, and other files
 * with their hashes. */
#include "reshard/command/commands/command_i.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/version/view/shown_i.h"

SC_METRIC(bytes_left, SC_GAUGE, "scalai_verify_left_bytes", "Bytes that commands `verify` have still to read.");

#define TELL_NS 100000000	/* who polls status is told ten times a second */

struct verify {
	struct rs_service *s;
	struct rs_job *job;
	struct sc_buf *report;
	struct sc_err first;	/* what the command answers: the first difference; all are in the report */
	struct sc_map seen;	/* plain files: ranks share some; a value is a struct plain */
	struct sc_arena arena;
	uint64_t done, until, total;	/* bytes; until: done at the end of the part that is read */
	int64_t told_ns;
	bool shows;		/* `status` has how far it is; of several commands it has the first one */
	struct sc_err *err;
};

struct plain {
	uint64_t blob;		/* its key */
	uint64_t bytes;
	bool is_compared;
};

/* --- how far it is --- */

static void show(struct verify *v, const struct rs_progress *p)
{
	if (!v->shows)
		return;
	(void)pthread_mutex_lock(&v->job->state);
	v->job->verify = *p;
	(void)pthread_mutex_unlock(&v->job->state);
	rs_job_tell(v->job);
}

static void set_done(struct verify *v, uint64_t done)
{
	const int64_t now = sc_now_ns();

	sc_metric_add(&bytes_left, v->done - done); /* modulo 2^64: less */
	v->done = done;
	if (v->shows) {
		(void)pthread_mutex_lock(&v->job->state);
		v->job->verify.done = done;
		(void)pthread_mutex_unlock(&v->job->state);
	}
	if (now - v->told_ns < TELL_NS)
		return;
	v->told_ns = now;
	if (v->shows)
		rs_job_tell(v->job);
}

/* Begins a part of so many bytes.  How many are read of it is not known: bytes of replicas that are one file are read
 * once, others twice.  It is done when the next one begins. */
static void next_part(struct verify *v, uint64_t bytes)
{
	set_done(v, v->until);
	v->until = sc_min_u64(v->until + bytes, v->total);
}

static int on_bytes(void *arg, uint64_t bytes)
{
	struct verify *v = arg;

	set_done(v, sc_min_u64(v->done + bytes, v->until));
	return 0;
}

static void begin(struct verify *v, uint64_t version)
{
	const struct rs_progress p = {version, "verifying", 0, v->total, sc_now_ns()};

	(void)pthread_mutex_lock(&v->job->state);
	v->shows = !v->job->verify.version;
	(void)pthread_mutex_unlock(&v->job->state);
	sc_metric_add(&bytes_left, v->total);
	show(v, &p);
}

static void end(struct verify *v)
{
	sc_metric_add(&bytes_left, v->done - v->total);
	show(v, &(struct rs_progress){0});
}

/* --- files and sets --- */

static void note_first(struct verify *v, const struct sc_err *why)
{
	if (v->first.code == 0)
		v->first = *why;
}

/* Compares a file that is on this node with the hash that it had when it was written.  1: it differs. */
static int compare_file(struct verify *v, uint64_t blob, uint32_t rank, const char *path)
{
	struct sc_buf of = {0};
	char file[SC_ERR_BYTES_MAX];
	int rc = rs_blob_here(v->s, blob) ? rs_verify_suspect(v->s, blob, on_bytes, v, v->err) : 0;

	if (rc <= 0)
		return rc;
	if (rank == RS_SHARED)
		sc_buf_printf(&of, "the job");
	else
		sc_buf_printf(&of, "rank %u", rank);
	if (of.failed) {
		sc_buf_done(&of);
		return sc_nomem(v->err);
	}
	sc_buf_printf(v->report, "%s\t%s\t%s\n", rc == RS_SUSPECT_OTHER ? "DIFFERENT" : "UNREADABLE", of.text, path);
	(void)snprintf(file, sizeof(file), "%s '%s'", of.text, path);
	(void)rs_verify_refuse(rc, file, v->err);
	note_first(v, v->err);
	sc_buf_done(&of);
	return 1;
}

/* Compares the files of a set that has no digests yet with their hashes.  1: one differs, so the set gets no digests
 * now. */
static int compare_files(struct verify *v, const struct rs_set *set)
{
	bool any = false;
	int rc = 0;

	next_part(v, rs_set_bytes(set));
	for (size_t i = 0; rc >= 0 && i < set->nr_blobs; i++) {
		rc = compare_file(v, set->blobs[i].blob, set->blobs[i].rank, set->blobs[i].path);
		any |= rc > 0;
	}
	return rc < 0 ? rc : any;
}

/* Counts the bytes of a file without tensors; one that several ranks have is read once. */
static int count_plain(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct verify *v = arg;
	struct plain *plain;
	struct sc_err ignored;

	(void)rank, (void)path;
	if (!S_ISREG(row->mode) || !row->blob || sc_map_get(&v->seen, (const char *)&row->blob, sizeof(row->blob)))
		return 0;
	plain = sc_arena_alloc(&v->arena, sizeof(*plain));
	if (!plain)
		return sc_nomem(v->err);
	plain->blob = row->blob;
	if (sc_map_put(&v->seen, (const char *)&plain->blob, sizeof(plain->blob), plain) < 0)
		return sc_nomem(v->err);
	if (rs_blob_here(v->s, row->blob) &&
	    meta_blob_bytes(v->s->catalog, row->blob, &plain->bytes, &ignored) == 0)
		v->total += plain->bytes;
	return 0;
}

static int compare_plain(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct verify *v = arg;
	struct plain *plain = sc_map_get(&v->seen, (const char *)&row->blob, sizeof(row->blob));
	int rc;

	if (!plain || plain->is_compared)
		return 0;
	plain->is_compared = true;
	next_part(v, plain->bytes);
	rc = compare_file(v, row->blob, rank, path);
	return rc < 0 ? rc : 0; /* 1 would end the walk */
}

/* Walks over the files without tensors, which have no digests, but hashes. */
static int each_plain(struct verify *v, struct rs_view *view, rs_shown_fn *each)
{
	int rc = rs_view_each(view, RS_SHARED, each, v, v->err);

	for (uint32_t rank = 0; rc == 0 && rank < view->topo.ranks; rank++)
		rc = rs_view_each(view, rank, each, v, v->err);
	return rc ? rc : rs_view_each_unplaced(view, each, v, v->err);
}

static void report_tensors(struct verify *v, const struct rs_set *set, const uint8_t (*kept)[16],
			   const uint8_t (*digests)[16], const char **ret_other)
{
	for (uint32_t t = 0; t < set->state.nr; t++) {
		const bool same = kept && memcmp(kept[t], digests[t], 16) == 0;

		sc_buf_printf(v->report, "%s\t", kept ? (same ? "equal" : "DIFFERENT") : "new");
		sc_buf_hex(v->report, digests[t], sizeof(digests[t]));
		sc_buf_printf(v->report, "\t%s\n", set->state.tensors[t].key);
		if (kept && !same && !*ret_other)
			*ret_other = set->state.tensors[t].key;
	}
}

/* Tells whether an error is what `verify` looks for, not one that ends it: EIO, also of bytes that no node has. */
static bool is_found(int rc, const struct sc_err *err)
{
	return rc == SC_E_COPIES || rc == SC_E_DAMAGED || (rc == SC_E_SYSTEM && err->errnum == EIO);
}

static int compare_set(struct verify *v, struct rs_set *set)
{
	const uint64_t news = meta_store_damage_news(&v->s->store);
	const uint8_t (*kept)[16] = rs_set_digests(set);
	uint8_t (*digests)[16] = NULL;
	const char *other = NULL;
	char *text = NULL;
	int rc = kept ? 0 : compare_files(v, set);

	next_part(v, rs_set_bytes(set));
	if (rc > 0)
		return 0;
	if (rc == 0)
		rc = rs_verify_set(v->s, set, on_bytes, v, &digests, &text, v->err);
	if (rc == 0)
		report_tensors(v, set, kept, (const uint8_t (*)[16])digests, &other);
	if (rc == SC_E_COPIES && kept)
		other = set->file; /* which were equal */
	if (is_found(rc, v->err))
		sc_buf_printf(v->report, "%s\t%s\n", rc == SC_E_COPIES ? "DIFFERENT\tcopies" : "UNREADABLE\ttensors",
			      set->file);
	if (kept && other)
		rc = rs_verify_other(v->s, set, other, news, v->err);
	else if (rc == 0)
		rc = rs_verify_same(v->s, set, sc_steal(&digests), v->err);
	if (is_found(rc, v->err)) {
		note_first(v, v->err);
		rc = 0;
	}
	sc_sys.release(digests);
	sc_sys.release(text);
	return rc;
}

/* Compares the tensors of a view with their digests as they were first verified, and adds a line for each to `report`;
 * then compares its other files with their hashes, and adds a line for each that differs.  Errors: SC_E_COPIES (copies
 * of a tensor differ), SC_E_DAMAGED (a tensor or file has other bytes). */
static int compare_digests(struct rs_service *s, struct rs_view *view, struct sc_buf *report, struct sc_err *err)
{
	struct verify v = {.s = s, .job = view->job, .report = report, .err = err};
	const struct rs_version *of = view->version;
	int rc = each_plain(&v, view, count_plain);

	for (size_t i = 0; i < of->nr_sets; i++)
		v.total += (rs_set_digests(of->sets[i]) ? 1 : 2) * rs_set_bytes(of->sets[i]);
	begin(&v, of->nr);
	for (size_t i = 0; rc == 0 && i < of->nr_sets; i++)
		rc = compare_set(&v, of->sets[i]);
	if (rc == 0)
		rc = each_plain(&v, view, compare_plain);
	end(&v);
	sc_map_done(&v.seen);
	sc_arena_done(&v.arena);
	if (rc == 0 && v.first.code)
		*err = v.first;
	return rc < 0 ? rc : v.first.code;
}

void rs_damaged_again(struct rs_service *s, const struct rs_version *v)
{
	struct sc_err met = {.code = SC_E_DAMAGED};

	for (size_t i = 0; meta_store_has_damage(&s->store) && i < v->nr_sets; i++)
		for (size_t k = 0; k < v->sets[i]->nr_blobs; k++) {
			met.blob = v->sets[i]->blobs[k].blob;
			if (meta_store_is_damaged(&s->store, met.blob))
				rs_damage_met(s, &met);
		}
}

int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_view *head = NULL;
	struct sc_buf report = {0};
	int rc = rs_view_head(s, job, &head, err);

	if (rc < 0)
		return rc;
	rs_damaged_again(s, head->version);
	rc = compare_digests(s, head, &report, err);
	if (report.failed)
		rc = sc_nomem(err);
	if (report.text) {
		(void)pthread_mutex_lock(&job->state);
		sc_sys.release(job->verify_report);
		job->verify_report = report.text;
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_view_unref(s, head);
	return rc;
}
