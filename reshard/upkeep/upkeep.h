/* SPDX-License-Identifier: Apache-2.0 */
/* What is done in the background, as far as others begin it or wait for it. */
#ifndef RS_UPKEEP_H
#define RS_UPKEEP_H

#include "reshard/state/state.h"

/** What the worker does, once, in this thread: verify, materialize, hash, remove garbage.
 *  Only with quiet_worker.  The first error is returned. */
int rs_service_work(struct rs_service *s, struct sc_err *err);
/** There are blobs that nobody reads any more; `status` of their jobs says which. */
bool rs_service_is_damaged(struct rs_service *s);
/** Reads blobs again that were last checked before that time (seconds since 1970), and damaged ones after an hour, a
 *  thousand at most. */
int rs_service_scrub(struct rs_service *s, int64_t before_s, struct sc_err *err);

/** Makes a file of the head real by reflink, if that takes milliseconds: then look again. */
bool rs_make_real(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *file,
		  struct rs_image *image);

#endif
