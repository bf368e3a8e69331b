/* SPDX-License-Identifier: Apache-2.0 */
/* The control file `wait`: tells whether a version is materialized. */
#include "reshard/service/service.h"

#include <inttypes.h>
#include <stdlib.h>

#include "reshard/command/commands/command_i.h"
#include "reshard/upkeep/background/upkeep.h"

/* Tells whether a version of a cluster is done: this node has what it keeps of it, and all copies are where they are to
 * be. */
static int is_done(const struct rs_view *view, struct sc_err *err)
{
	const struct rs_service *s = view->job->service;

	if (!s->shared)
		return rs_view_is_materialized(view);
	return !rs_homes_are_here(view) ? 0
	       : s->copies		? s->copies->are_done(s->member, view->job, view->version->nr, err)
					: 1;
}

int rs_job_wait_parse(struct rs_service *s, struct rs_job *job, const char *text,
		      uint64_t *ret_version, struct sc_err *err)
{
	struct rs_view *view = NULL;
	char *copy = sc_strdup(text), *word, *end;
	uint64_t nr = 0;
	bool done = false;
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	word = sc_trim(copy);
	if (*word) {
		nr = strtoull(word, &end, 10);
		if (*word < '0' || *word > '9' || *end)
			rc = sc_fail(err, SC_E_COMMAND, "'%s' is not a version's number", word);
		else
			rc = rs_view_version(s, job, nr, &view, err);
	} else {
		rc = rs_view_head(s, job, &view, err);
	}
	if (rc == 0)
		done = (rc = is_done(view, err)) > 0;
	rc = rc > 0 ? 0 : rc;
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && job->config.materialize == RS_NEVER && !done)
		rc = sc_fail(err, SC_E_COMMAND, "materialize=never: version %" PRIu64 " will not be materialized",
			     view->version->nr);
	if (rc == 0) {
		*ret_version = view->version->nr;
		job->wanted = view->version->nr;
		job->stopped_head = 0; /* it is tried now */
	}
	(void)pthread_mutex_unlock(&job->state);
	if (rc == 0)
		rs_damaged_again(s, view->version);
	rs_view_unref(s, view);
	sc_sys.release(copy);
	if (rc == 0)
		rs_worker_call(s, false);
	return rc;
}

int rs_job_wait_poll(struct rs_service *s, struct rs_job *job, uint64_t version, struct sc_err *err)
{
	struct rs_view *view = NULL, *head;
	int rc = rs_view_version(s, job, version, &view, err);

	if (rc < 0)
		return rc;
	head = rs_job_head(job);
	rc = is_done(view, err);
	if (rc == 0 && (!head || head->version->nr != version))
		rc = sc_fail(err, SC_E_COMMAND, "version %" PRIu64 " is not the head any more and will not be "
			     "materialized", version);
	else if (rc == 0)
		rc = rs_version_refuse_bad(view->version, err);
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && job->stopped && job->stopped_head == head->id) {
		rc = sc_fail(err, job->stopped_code, "version %" PRIu64 " is not materialized: %s", version,
			     job->stopped);
		err->errnum = job->stopped_errnum; /* `stopped` names it */
	}
	(void)pthread_mutex_unlock(&job->state);
	rs_view_unref(s, head);
	rs_view_unref(s, view);
	return rc;
}
