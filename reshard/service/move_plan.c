/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/service/move_plan.h"

#include "meta/base/text.h"
#include "reshard/service/service.h"
#include "reshard/upkeep/background/upkeep_i.h"

static const struct meta_view *origin(void *arg, const struct meta_tensor *tensor)
{
	struct rs_origins *o = arg;

	return o->view_of(o->arg, tensor);
}

int rs_move_plan_make(struct rs_service *s, struct rs_job *job, const char *text, struct rs_move_plan *ret,
		      struct sc_err *err)
{
	char *copy = sc_strdup(text);
	int64_t began;
	int rc;

	*ret = (struct rs_move_plan){0};
	rc = copy ? rs_view_head(s, job, &ret->head, err) : sc_nomem(err);
	if (rc == 0)
		rc = rs_view_present(s, job, sc_trim(copy), &ret->target, err);
	sc_sys.release(copy);
	ret->nodes.ranks_per_node = rs_config_of(job).ranks_per_node;
	began = sc_now_ns();
	if (rc == 0)
		rc = rs_plan_cost(ret->target->model, origin, &ret->target->origins, &ret->nodes, &ret->cost, err);
	ret->seconds = (double)(sc_now_ns() - began) / 1e9;
	return rc;
}

void rs_move_plan_done(struct rs_service *s, struct rs_move_plan *plan)
{
	rs_cost_done(&plan->cost);
	rs_view_unref(s, plan->head);
	rs_view_unref(s, plan->target);
}
