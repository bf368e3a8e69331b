/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a head that an open made real (background/made.c).  They belong to the head in memory only; the worker takes
 * them over when it materializes the head.  When another head comes, they stay for RS_LEAVING_NS, for those who have
 * looked them up and not yet opened them.
 */
#include "reshard/version/state/state_i.h"

#include <string.h>

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
