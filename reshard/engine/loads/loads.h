/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads files into the memory of GPUs, where other processes open them by a handle.
 *
 *     rs_load_start() ──> queue of a GPU's loader ── rounds ──> scalai-gpu, a helper for loads to this GPU alone
 *                                │                                   owns the memory until rs_load_end()
 *                                └── done(), by the loader's thread
 *
 * A loader is a thread, and the helper that the thread starts for the first file and ends when there has been no file
 * for a while.  The helper is none of the engine's: a failure of the engine, or of loads to another GPU, ends no file
 * here.  A failure of this GPU ends its helper, and all files that the helper had: rs_load_text() says so from then on.
 *
 * gpu_memory and gpu_pinned bound the loads; the windows of the engine and those of the loader are taken from them
 * first.  A file for which there is no room waits for rs_load_end() of others, 5 s at most.
 */
#ifndef RS_LOADS_H
#define RS_LOADS_H

#include "reshard/engine/io/image.h"

/** A file to load: an open image, or, if that is NULL, a descriptor.  The caller keeps both open until done(). */
struct rs_load_file {
	const struct rs_image *image;
	int fd;
	uint64_t bytes;
};

struct rs_load;

/** The loader's thread calls this once; if `err` is NULL, all bytes are in the GPU's memory. */
typedef void rs_load_done_fn(void *arg, struct rs_load *load, const struct sc_err *err);

/**
 * Begins a load to the GPU that a rank has: the one of gpu_devices at the rank's number modulo their number.  *ret is
 * set before done() is called; the caller ends it by rs_load_end() after done(), also after one with an error.
 * Errors of done(): SC_E_UNSUPPORTED (there is no GPU for it), SC_E_NO_MEMORY (no room: gpu_memory, or the GPU's),
 * SC_E_SYSTEM (the helper has ended, or is late), SC_E_CANCELLED, those of the file.
 * Errors: SC_E_UNSUPPORTED, SC_E_NO_MEMORY, SC_E_SYSTEM.
 */
int rs_load_start(const struct rs_load_file *file, uint32_t rank, rs_load_done_fn *done, void *arg,
		  struct rs_load **ret, struct sc_err *err);
/** Lets done() come soon, with SC_E_CANCELLED if it was not about to come anyhow.  Any thread may call it, until
 *  done(). */
void rs_load_cancel(struct rs_load *load);
/** Gives the memory back before the next load takes any.  Does not wait.  `load` may be NULL. */
void rs_load_end(struct rs_load *load);
/** Adds a line of JSON that says where the bytes are.  Errors: SC_E_SYSTEM (the helper has ended, and the bytes with
 *  it), SC_E_NO_MEMORY. */
int rs_load_text(const struct rs_load *load, struct sc_buf *buf, struct sc_err *err);
/** Ends the loaders, after all their loads were ended. */
void rs_loads_stop(void);

#endif
