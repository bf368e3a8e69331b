/* SPDX-License-Identifier: Apache-2.0 */
/* Pins blobs, which are no garbage though no row has them yet: blobs that are being made, and files of a head that an
 * open made real (state/made.c). */
#include "reshard/worktree/requests/requests_i.h"

static bool is_pinned(struct rs_service *s, uint64_t blob)
{
	bool holds = false;

	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->requests->pinned.nr; i++)
		holds |= s->requests->pinned.at[i] == blob;
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
		rc = sc_vec_push(&s->requests->pinned, *ret_blob) < 0 ? sc_nomem(err) : 0;
		(void)pthread_mutex_unlock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->making);
	return rc < 0 ? rc : meta_store_create(&s->store, *ret_blob, ret_fd, err);
}

void rs_unpin(struct rs_service *s, uint64_t blob)
{
	(void)pthread_mutex_lock(&s->lock);
	for (size_t i = 0; blob && i < s->requests->pinned.nr; i++)
		if (s->requests->pinned.at[i] == blob) {
			s->requests->pinned.at[i] = s->requests->pinned.at[--s->requests->pinned.nr];
			break;
		}
	(void)pthread_mutex_unlock(&s->lock);
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
