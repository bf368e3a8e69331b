/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host engine: writes images as files, with io_uring and reflink.
 *
 *     run of one source, block aligned on both sides, 64 KiB or more  -> FICLONERANGE
 *     other long run of one source                                   -> read into a buffer, write
 *     strided, short                                                 -> gather into a buffer, write
 *
 * Memory: buffers of RS_HOST_BUFFER_BYTES, as many as the limit given allows (at least 2), each in
 * flight on its own.  They are not registered with the ring: writes into the page cache gain nothing
 * by it, and pinning them took longer than writing a small topology.  Without io_uring the same steps
 * are done one after the other.
 * Thread: one at a time.
 */
#ifndef RS_HOST_H
#define RS_HOST_H

#include "reshard/engine/image.h"

#define RS_HOST_BUFFER_BYTES (1u << 20)

struct rs_host;

/** Called after every piece; non-zero ends the work with SC_E_CANCELLED. */
typedef int rs_host_tick_fn(void *arg, uint64_t bytes);

int rs_host_new(const struct meta_store *store, uint64_t buffer_bytes_max, struct rs_host **ret,
		struct sc_err *err);
struct rs_host *rs_host_free(struct rs_host *host);

/**
 * Write the image (open, not same_as a blob) into an empty file.  Not synced; with `will_flush` the
 * device begins while this writes, so that a flush later finds little to do.
 * *ret_cloned counts bytes that were reflinked.
 * Errors: SC_E_NO_SPACE, SC_E_SYSTEM, SC_E_DAMAGED, SC_E_CANCELLED; the file then has some of the bytes.
 */
int rs_host_write(struct rs_host *host, const struct rs_image *image, int fd, bool will_flush,
		  rs_host_tick_fn *tick, void *arg, uint64_t *ret_cloned, struct sc_err *err);

/**
 * The same, of clones and small pieces only.  Errors: SC_E_UNSUPPORTED when the file system refuses
 * to clone.
 */
int rs_host_clone(struct rs_host *host, const struct rs_image *image, int fd, uint64_t *ret_cloned,
		  struct sc_err *err);

#endif
