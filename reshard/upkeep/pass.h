/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of the worker over one job's head: what its parts (worker.c, materialize.c) share. */
#ifndef RS_PASS_H
#define RS_PASS_H

#include "reshard/upkeep/upkeep_i.h"

struct rs_pass {
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *head;
	struct sc_err *err;
	int64_t told_ns;	/* atomic */
};

/** Progress, for `status`: what is being done and how many bytes it will be. */
void rs_pass_begin(struct rs_pass *p, const char *what, uint64_t total);
void rs_pass_end(struct rs_pass *p);
/** Counts bytes done; non-zero when there is a newer head, or no job.  Any thread. */
int rs_pass_bytes(void *pass, uint64_t bytes);
bool rs_pass_is_stale(struct rs_pass *p);

/** Verifies what is not verified of the head, and keeps the verdict.  Errors: SC_E_CANCELLED, of reading, of the
 *  catalog. */
int rs_verify_head(struct rs_pass *p);
/** Steps 21 to 25: rank files of the head as real files, flipped in.  Errors: SC_E_CANCELLED, … */
int rs_materialize(struct rs_pass *p);

#endif
