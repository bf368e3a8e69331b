/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host engine: writes images as files, with io_uring and reflink.
 *
 *     run of one source, block aligned on both sides, 64 KiB or more  -> FICLONERANGE
 *     other long run of one source                                   -> read into a buffer, write
 *     strided, short                                                 -> gather into a buffer, write
 *
 * Memory: buffers of 1 MiB, as many as the budget allows (2 to 16), each in flight on its own.  They are not
 * registered with the ring: writes into the page cache gain nothing by it, and pinning them took longer than
 * writing a small topology.  Without io_uring the same steps are done one after the other.
 */
#ifndef RS_HOST_H
#define RS_HOST_H

#include "reshard/engine/io/engine.h"

extern const struct rs_engine_ops rs_engine_host;

/** Asks the kernel for a ring, and gives it back.  Returns 0, or the errno for which the host engine goes without. */
int rs_host_ring(void);

struct rs_range {
	uint64_t at, bytes;
};

/**
 * Writes the ranges of a file that another kind of engine has left out; they are in order and do not meet.  The engine
 * is of this kind.  Adds the cloned and the copied bytes to *ret.  Errors: those of `write` of engines.
 */
int rs_host_write_parts(struct rs_engine *e, const struct rs_target *target, const struct rs_range *parts, size_t nr,
			const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err);

#endif
