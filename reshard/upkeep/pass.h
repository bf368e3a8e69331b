/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of the worker over one job's head; shared by worker.c and materialize.c. */
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

/** Begins to report progress in `status`: what is done, and how many bytes it will be. */
void rs_pass_begin(struct rs_pass *p, const char *what, uint64_t total);
void rs_pass_end(struct rs_pass *p);
/** Counts bytes done.  Returns non-zero if there is a newer head, or no job any more.  Thread: any. */
int rs_pass_bytes(void *pass, uint64_t bytes);
bool rs_pass_is_stale(struct rs_pass *p);

/** Verifies what is not verified of the head, and keeps the result.  Errors: SC_E_CANCELLED, those of reading and
 *  of the catalog. */
int rs_verify_head(struct rs_pass *p);
/** Does steps 21 to 25: writes the rank files of the head and switches the version over to them.  Errors:
*  SC_E_CANCELLED, those of engines and of the catalog. */
int rs_materialize(struct rs_pass *p);
/** Does steps 22 and 23: writes the files that a set lists, or finds blobs that have these bytes; they are on stable
 *  storage if sync=on.  Errors: as above. */
int rs_materialize_files(struct rs_pass *p, struct rs_set *set);

/* homes.c */
/** Makes the files of the head real that this node of a cluster keeps, for itself: those that are views, and those that
 *  are other nodes' blobs.  Errors: as above, and of other nodes. */
int rs_homes_keep(struct rs_pass *p);

#endif
