/* SPDX-License-Identifier: Apache-2.0 */
/* Background work, as far as other rooms start it or wait for it. */
#ifndef RS_UPKEEP_H
#define RS_UPKEEP_H

#include "reshard/state/state.h"

/** Does the worker's work once, in this thread: verifies, materializes, hashes, removes garbage.  Only with
 *  quiet_worker.  Returns the first error. */
int rs_service_work(struct rs_service *s, struct sc_err *err);
/** Tells whether there are damaged blobs, marked or only met by a read; `status` of their jobs names them. */
bool rs_service_is_damaged(struct rs_service *s);
/** Reads blobs again that were last checked before that time (seconds since 1970), and damaged ones after an hour, a
 *  thousand at most. */
int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err);

/** Makes a file of the head real by reflink, if that takes milliseconds.  Returns true if so: then look it up again. */
bool rs_make_real(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  struct rs_image *image);

/** Tells whether this node of a cluster keeps the files of a rank of a job's head. */
bool rs_home(const struct rs_view *head, uint32_t rank);
/** Takes over the files that an earlier daemon made of a job's head; before there is a worker. */
int rs_homes_load(struct rs_job *job, struct sc_err *err);
/** Tells whether all files that this node keeps of a view, which is a head, are here; as of its last pass. */
bool rs_homes_are_here(const struct rs_view *head);

#endif
