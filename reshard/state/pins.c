/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs that no row needs yet, and that are no garbage all the same: those that are being made, and files of a head
 * that an open made real (upkeep/made.c).  The latter belong to the head in memory only; the worker takes them over
 * when it materializes the head.  When another head comes, they stay for RS_LEAVING_NS, for those who have looked
 * them up and not yet opened them.
 */
#include "reshard/state/state_i.h"

#include <string.h>

static bool is_pinned(struct rs_service *s, uint64_t blob)
{
	bool holds = false;

	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->held.nr; i++)
		holds |= s->held.at[i] == blob;
	(void)pthread_mutex_unlock(&s->lock);
	return holds;
}

int rs_pin_new(struct rs_service *s, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&s->making);
	rc = meta_blob_add(s->catalog, ret_blob, err);
	if (rc == 0) {
		(void)pthread_mutex_lock(&s->lock);
		rc = sc_vec_push(&s->held, *ret_blob) < 0 ? sc_nomem(err) : 0;
		(void)pthread_mutex_unlock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->making);
	return rc < 0 ? rc : meta_store_create(&s->store, *ret_blob, ret_fd, err);
}

void rs_unpin(struct rs_service *s, uint64_t blob)
{
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; blob && i < s->held.nr; i++)
		if (s->held.at[i] == blob) {
			s->held.at[i] = s->held.at[--s->held.nr];
			break;
		}
	(void)pthread_mutex_unlock(&s->lock);
}

uint64_t rs_made_find(struct rs_view *view, uint32_t rank, const char *file, uint64_t *ret_bytes)
{
	struct rs_job *job = view->job;
	uint64_t blob = 0;

	if (!view->own)
		return 0;
	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; i < job->made.nr && !blob; i++) {
		const struct rs_made *m = &job->made.at[i];

		if (m->view == view->id && m->rank == rank && strcmp(m->path, file) == 0) {
			blob = m->blob;
			*ret_bytes = m->bytes;
		}
	}
	(void)pthread_mutex_unlock(&job->state);
	return blob;
}

bool rs_made_holds(struct rs_service *s, uint64_t blob)
{
	struct rs_job *job;
	bool holds = is_pinned(s, blob);

	for (size_t i = 0; !holds && (job = rs_job_at(s, i)); i++) {
		(void)pthread_mutex_lock(&job->state);
		for (size_t k = 0; k < job->made.nr; k++)
			holds |= job->made.at[k].blob == blob;
		(void)pthread_mutex_unlock(&job->state);
	}
	return holds;
}

void rs_made_leave(struct rs_job *job, uint64_t view)
{
	int64_t now = sc_now_ns();
	size_t kept = 0;

	for (size_t i = 0; i < job->made.nr; i++) {
		struct rs_made *m = &job->made.at[i];

		if (m->view == view)
			continue;
		if (!m->left_ns)
			m->left_ns = now;
		job->made.at[kept++] = *m;
	}
	job->made.nr = kept;
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

/* True when the head is still this view; the list may then name the blob. */
bool rs_made_keep(struct rs_view *view, const struct rs_made *made)
{
	struct rs_job *job = view->job;
	bool kept;

	(void)pthread_mutex_lock(&job->state);
	kept = job->head && job->head->id == view->id && !job->removed && sc_vec_push(&job->made, *made) == 0;
	(void)pthread_mutex_unlock(&job->state);
	return kept;
}
