/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blob's file says which jobs have the blob, for fsck --rebuild.  While a blob is one job's, that stays true for as
 * long as there is a file; blobs that clones share are noted here, for the worker, when one of the jobs comes or goes.
 */
#include "reshard/command/command_i.h"

struct noting {
	struct rs_service *s;
	struct sc_err *err;
};

static int on_shared(void *arg, uint64_t blob)
{
	const struct noting *n = arg;
	int rc;

	(void)pthread_mutex_lock(&n->s->lock);
	rc = sc_vec_push(&n->s->stale, blob) < 0 ? sc_nomem(n->err) : 0;
	(void)pthread_mutex_unlock(&n->s->lock);
	return rc;
}

int rs_stale_add(struct rs_service *s, uint64_t blob, struct sc_err *err)
{
	struct noting n = {s, err};

	return on_shared(&n, blob);
}

int rs_stale_note(struct rs_service *s, uint64_t job, uint64_t version, struct sc_err *err)
{
	struct noting n = {s, err};

	return meta_job_shared_blobs(s->catalog, job, version, on_shared, &n, err);
}

struct rs_numbers rs_stale_take(struct rs_service *s)
{
	struct rs_numbers stale;

	(void)pthread_mutex_lock(&s->lock);
	stale = s->stale;
	s->stale = (struct rs_numbers){0};
	(void)pthread_mutex_unlock(&s->lock);
	return stale;
}
