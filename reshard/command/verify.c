/* SPDX-License-Identifier: Apache-2.0 */
/* The command `verify` compares the digests of the head's logical tensors with those of its commit, and other files
 * with their hashes. */
#include "reshard/command/command_i.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/shown/shown_i.h"

struct verify {
	struct rs_service *s;
	struct sc_buf *report;
	struct sc_err first;	/* what the command answers: the first difference; all are in the report */
	struct sc_map seen;	/* plain files: ranks share some */
	struct sc_arena arena;
	struct sc_err *err;
};

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
	int rc = rs_blob_here(v->s, blob) ? rs_verify_suspect(v->s, blob, NULL, NULL, v->err) : 0;

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

	for (size_t i = 0; rc >= 0 && i < set->nr_blobs; i++) {
		rc = compare_file(v, set->blobs[i].blob, set->blobs[i].rank, set->blobs[i].path);
		any |= rc > 0;
	}
	return rc < 0 ? rc : any;
}

static int on_plain(void *arg, uint32_t rank, const char *path, const struct meta_inode_row *row)
{
	struct verify *v = arg;
	char *key;
	int rc;

	if (!S_ISREG(row->mode) || !row->blob || sc_map_get(&v->seen, (const char *)&row->blob, sizeof(row->blob)))
		return 0;
	key = sc_arena_copy(&v->arena, (const char *)&row->blob, sizeof(row->blob));
	if (!key || sc_map_put(&v->seen, key, sizeof(row->blob), key) < 0)
		return sc_nomem(v->err);
	rc = compare_file(v, row->blob, rank, path);
	return rc < 0 ? rc : 0; /* 1 would end the walk */
}

/* Compares the files without tensors, which have no digests, with their hashes. */
static int compare_plain(struct verify *v, struct rs_view *view)
{
	int rc = rs_view_each(view, RS_SHARED, on_plain, v, v->err);

	for (uint32_t rank = 0; rc == 0 && rank < view->topo.ranks; rank++)
		rc = rs_view_each(view, rank, on_plain, v, v->err);
	return rc ? rc : rs_view_each_unplaced(view, on_plain, v, v->err);
}

static void report_tensors(struct verify *v, const struct rs_set *set, const uint8_t (*kept)[16],
			   const uint8_t (*digests)[16], const char **ret_other)
{
	for (uint32_t t = 0; t < set->state.nr; t++) {
		const bool same = kept && memcmp(kept[t], digests[t], 16) == 0;

		sc_buf_printf(v->report, "%s\t", kept ? (same ? "equal" : "DIFFERENT") : "new");
		for (int k = 0; k < 16; k++)
			sc_buf_printf(v->report, "%02x", digests[t][k]);
		sc_buf_printf(v->report, "\t%s\n", set->state.tensors[t].key);
		if (kept && !same && !*ret_other)
			*ret_other = set->state.tensors[t].key;
	}
}

static int compare_set(struct verify *v, struct rs_set *set)
{
	const uint64_t news = meta_store_damage_news(&v->s->store);
	const uint8_t (*kept)[16] = rs_set_digests(set);
	uint8_t (*digests)[16] = NULL;
	const char *other = NULL;
	char *text = NULL;
	int rc = kept ? 0 : compare_files(v, set);

	if (rc > 0)
		return 0;
	if (rc == 0)
		rc = rs_verify_set(v->s, set, NULL, NULL, &digests, &text, v->err);
	if (rc == 0)
		report_tensors(v, set, kept, (const uint8_t (*)[16])digests, &other);
	if (rc == SC_E_COPIES && kept)
		other = set->file; /* which were equal */
	if (rc == SC_E_COPIES || rc == SC_E_DAMAGED)
		sc_buf_printf(v->report, "%s\t%s\n", rc == SC_E_COPIES ? "DIFFERENT\tcopies" : "UNREADABLE\ttensors",
			      set->file);
	if (kept && other)
		rc = rs_verify_other(v->s, set, other, news, v->err);
	else if (rc == 0)
		rc = rs_verify_same(v->s, set, sc_steal(&digests), v->err);
	if (rc == SC_E_COPIES || rc == SC_E_DAMAGED) {
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
	struct verify v = {.s = s, .report = report, .err = err};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < view->version->nr_sets; i++)
		rc = compare_set(&v, view->version->sets[i]);
	if (rc == 0)
		rc = compare_plain(&v, view);
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
