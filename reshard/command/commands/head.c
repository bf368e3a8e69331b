/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of head.h.  Each checks what a kind is given and what it answers; when an advance ends, what is left in it
 * is freed. */
#include "reshard/command/commands/command_i.h"

#include <assert.h>

const struct rs_head_ops *rs_head_extra;

static const struct rs_head_ops *kind(const struct rs_service *s)
{
	return rs_head_extra ? rs_head_extra : s->head ? s->head : &rs_head_local;
}

static void drop(struct rs_advance *a)
{
	struct rs_service *s = a->job->service;

	rs_version_unref(a->draft);
	rs_view_unref(s, a->next);
	rs_view_unref(s, a->base);
	a->draft = NULL;
	a->next = a->base = NULL;
}

int rs_requested(struct rs_service *s, uint64_t token, struct sc_err *err)
{
	int rc;

	assert(token);
	rc = kind(s)->requested(s, token, err);
	assert(rc >= 0 || err->code == rc);
	return rc;
}

int rs_head_begin(struct rs_advance *a, struct sc_err *err)
{
	int rc;

	assert(a->job && !a->base && !a->draft && !a->next);
	assert((a->change == RS_BY_COMMIT) == !a->present);
	rc = kind(a->job->service)->begin(a->job->service, a, err);
	assert(rc >= 0 || err->code == rc);
	assert(rc != 0 || !a->present || a->draft);
	if (rc != 0)
		drop(a);
	return rc;
}

int rs_head_publish(struct rs_advance *a, struct sc_err *err)
{
	int rc;

	assert(a->next && !a->next->id);
	rc = kind(a->job->service)->publish(a->job->service, a, err);
	assert(rc == 0 ? !a->next : rc < 0 && err->code == rc);
	drop(a);
	return rc;
}

void rs_head_abort(struct rs_advance *a)
{
	kind(a->job->service)->abort(a->job->service, a);
	drop(a);
}

int rs_head_move(struct rs_advance *a, struct sc_err *err)
{
	struct rs_version *v;
	int rc = rs_head_begin(a, err);

	if (rc != 0)
		return rc;
	rc = rs_version_finish(a->draft, &a->job->whole, err);
	rs_step(RS_STEP_RESHARD_PRESENT);
	if (rc == 0) {
		v = a->draft;
		a->draft = NULL;
		rc = rs_view_new(a->job, v, 0, &v->topo, &a->next, err);
	}
	if (rc == 0 && (a->change == RS_BY_TOPOLOGY || a->change == RS_BY_LAYOUT))
		rc = rs_view_judge(a->next, err);
	if (rc == 0)
		return rs_head_publish(a, err);
	rs_head_abort(a);
	return rc;
}

int rs_head_settle(struct rs_view *of, struct rs_view *next, struct rs_set *const *sets, struct sc_err *err)
{
	int rc;

	assert(of->id && of->id == next->id && of->version->nr_sets == next->version->nr_sets);
	rc = kind(of->job->service)->settle(of->job->service, of, next, sets, err);
	assert(rc == 0 || (rc < 0 && err->code == rc));
	return rc;
}

int rs_head_amend(struct rs_service *s, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	int rc;

	assert((change->kind == RS_AMEND_MAKE) == !job);
	rc = kind(s)->amend(s, job, change, err);
	assert(rc >= 0 || err->code == rc);
	assert(rc == 0 || rc < 0 || (rc == 1 && kind(s)->waits));
	assert(rc < 0 || change->kind != RS_AMEND_MAKE || change->made->id);
	assert(rc < 0 || change->kind != RS_AMEND_CLONE || (change->clone->id && *change->ret_head));
	return rc;
}

int rs_head_current(struct rs_job *job, struct sc_err *err)
{
	struct rs_service *s = job->service;
	const struct rs_head_ops *ops = kind(s);
	int rc = ops->current ? ops->current(s, job, err) : 0;

	assert(rc == 0 || (rc < 0 && err->code == rc));
	return rc;
}

int rs_head_known(struct rs_job *job, struct sc_err *err)
{
	struct rs_service *s = job->service;
	const struct rs_head_ops *ops = kind(s);

	return ops->known ? ops->known(s, job, err) : 0;
}

void rs_head_soon(struct rs_job *job)
{
	const struct rs_head_ops *ops = kind(job->service);

	if (ops->soon)
		ops->soon(job->service, job);
}

bool rs_head_waits(const struct rs_service *s)
{
	return kind(s)->waits;
}

int64_t rs_head_until(struct rs_service *s)
{
	const struct rs_head_ops *ops = kind(s);

	return ops->until ? ops->until(s) : INT64_MAX;
}
