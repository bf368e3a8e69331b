/* SPDX-License-Identifier: Apache-2.0 */
/* What a topology would move, computed once for whoever shows it: as text (`plan`) or as a drawing (`plan.svg`). */
#ifndef RS_MOVE_PLAN_H
#define RS_MOVE_PLAN_H

#include "reshard/engine/plan/plan.h"
#include "reshard/version/state/state.h"

struct rs_move_plan {
	struct rs_view *head, *target;
	struct rs_nodes nodes;
	struct rs_cost cost;
	double seconds;		/* that it took */
};

/** Plans a topology, which `text` says.  Errors: the job has no version, or does not take this topology;
 *  SC_E_NO_MEMORY.  Owner: the caller, rs_move_plan_done(), after an error, too. */
int rs_move_plan_make(struct rs_service *s, struct rs_job *job, const char *text, struct rs_move_plan *ret,
		      struct sc_err *err);
void rs_move_plan_done(struct rs_service *s, struct rs_move_plan *plan);

#endif
