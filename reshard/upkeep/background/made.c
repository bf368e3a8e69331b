/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes files real at their first open.  If reflink makes a rank file in a few milliseconds, a view of it is not worth
 * its price: the open makes the file, says "look again", and the kernel finds a blob.  That belongs to the head in
 * memory until the worker takes it over (state/made.c).
 */
#include "reshard/upkeep/background/upkeep_i.h"

#include "reshard/engine/io/engine.h"

SC_METRIC(bytes_materialized, SC_COUNTER, "scalai_materialized_bytes_total", "Bytes of rank files materialized.");
SC_METRIC(bytes_reflinked, SC_COUNTER, "scalai_reflinked_bytes_total", "Bytes of rank files materialized by reflink.");

static int clone_file(struct rs_service *s, const struct rs_image *im, uint64_t *ret_blob,
		      uint64_t *ret_cloned, struct sc_err *err)
{
	const struct rs_write_options how = {.clones_only = true};
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_written written = {0};
	struct rs_engine *host = NULL;
	int rc = rs_engine_open(rs_engines[0], &s->store, 0, &host, err);

	if (rc == 0)
		rc = meta_blob_add(s->catalog, ret_blob, err);
	if (rc == 0)
		rc = meta_store_create(&s->store, *ret_blob, &fd, err);
	if (rc == 0)
		rc = rs_engine_write(host, &(struct rs_target){im, fd}, 1, &how, &written, err);
	*ret_cloned = written.cloned;
	rs_engine_close(host);
	return rc;
}

void rs_made_count(uint64_t bytes, uint64_t cloned)
{
	sc_metric_add(&bytes_materialized, bytes);
	sc_metric_add(&bytes_reflinked, cloned);
}

/* Puts a file into the list of its head, if the head is still this view; else returns false. */
static bool keep_made(struct rs_view *view, const struct rs_made *made)
{
	struct rs_job *job = view->job;
	bool kept;

	(void)pthread_mutex_lock(&job->state);
	kept = job->head && job->head->id == view->id && !job->removed && sc_vec_push(&job->made, *made) == 0;
	(void)pthread_mutex_unlock(&job->state);
	return kept;
}

bool rs_make_real(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  struct rs_image *im)
{
	struct rs_made made = {.view = view->id, .rank = rs_view_alike(view, rank, file),
			       .bytes = im->bytes};
	uint64_t path_id, seen, cloned = 0;
	struct sc_err err = {0};
	bool kept = false;
	int rc;

	/* an open does not wait for bytes */
	if (!view->own || im->mapped.waits || __atomic_load_n(&s->upkeep->no_reflink, __ATOMIC_RELAXED) ||
	    rs_config_of(view->job).materialize == RS_NEVER || !rs_image_clones(im))
		return false;
	/* one at a time, and no garbage is collected meanwhile */
	(void)pthread_mutex_lock(&s->making);
	if (rs_made_find(view, made.rank, file, &seen)) {
		(void)pthread_mutex_unlock(&s->making);
		return true;
	}
	rc = rs_path_id(view->job, file, &path_id, &err);
	if (rc == 0)
		rc = rs_path_text(s, path_id, &made.path, &err);
	if (rc == 0)
		rc = clone_file(s, im, &made.blob, &cloned, &err);
	if (rc == 0)
		kept = keep_made(view, &made);
	if (kept)
		rs_image_supersede(s, im);
	(void)pthread_mutex_unlock(&s->making);
	if (rc == SC_E_UNSUPPORTED)
		__atomic_store_n(&s->upkeep->no_reflink, true, __ATOMIC_RELAXED);
	else if (rc < 0)
		sc_log(SC_LOG_INFO, "rank %u '%s' stays a view: %s", rank, file, err.msg);
	if (made.blob && !kept)
		rs_worker_call(s, true); /* what was made is garbage */
	if (kept)
		rs_made_count(im->bytes, cloned);
	return kept;
}

bool rs_made_expire(struct rs_service *s, bool all, bool *ret_gone)
{
	int64_t now = sc_now_ns();
	bool left = false;
	struct rs_job *job;

	for (size_t i = 0; (job = rs_job_at(s, i)); i++) {
		size_t kept = 0;

		(void)pthread_mutex_lock(&job->state);
		for (size_t k = 0; k < job->made.nr; k++) {
			const struct rs_made *m = &job->made.at[k];
			bool is_over = m->left_ns && (all || now - m->left_ns >= RS_LEAVING_NS);

			left |= m->left_ns && !is_over;
			if (!is_over)
				job->made.at[kept++] = *m;
		}
		*ret_gone |= kept < job->made.nr;
		job->made.nr = kept;
		(void)pthread_mutex_unlock(&job->state);
	}
	return left;
}

bool rs_made_wrong(struct rs_job *job, uint64_t view)
{
	const int64_t now = sc_now_ns();
	bool any = false;

	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; i < job->made.nr; i++) {
		struct rs_made *m = &job->made.at[i];

		if (m->view != view || m->kept)
			continue;
		m->view = 0;
		any = true;
		m->left_ns = now;
	}
	(void)pthread_mutex_unlock(&job->state);
	if (any)
		rs_images_forget(job->service, NULL);
	return any;
}
