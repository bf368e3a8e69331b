/* SPDX-License-Identifier: Apache-2.0 */
/* What fsck and a rebuild share: how far they are. */
#ifndef RS_REPAIR_I_H
#define RS_REPAIR_I_H

#include "reshard/repair/repair.h"

/** Bytes that are read, part after part.  How many a part has is an estimate: it counts as read when the next one
 *  begins. */
struct rs_repair_progress {
	const struct rs_events *events;	/* `progress` is told */
	uint64_t done, end, total;	/* end: of the part */
};

/** Begins the next part. */
static inline void rs_repair_next(struct rs_repair_progress *p, uint64_t bytes)
{
	p->done = p->end;
	p->end = sc_min_u64(p->end + bytes, p->total);
}

/** Counts bytes of the part; it is a tick (reshard/engine/io/engine.h) that stops nothing. */
static inline int rs_repair_bytes(void *progress, uint64_t bytes)
{
	struct rs_repair_progress *p = progress;

	p->done = sc_min_u64(p->done + bytes, p->end);
	if (p->events->progress)
		p->events->progress(p->events->arg, p->done, p->total);
	return 0;
}

#endif
