/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in the memory of GPUs, which other processes open by a handle.
 *
 *     rs_load_start() ──> queue of a GPU's loader ── rounds ──> scalai-gpu, a helper for loads to this GPU alone
 *                                │                                   owns the memory until rs_load_end()
 *                                └── done(), by the loader's thread
 *
 * A loader is a thread, and the helper that it starts for the first file and ends when none has been there for a while.
 * It is none of the engine's: what fails there, or in loads to another GPU, ends no file here.  What fails of this GPU
 * ends its helper, and all files that it had: rs_load_text() says so from then on.
 *
 * Bounded by gpu_memory and gpu_pinned, of which the windows of the engine and those of the loader are taken first.  A
 * file for which there is no room waits for rs_load_end() of others, 5 s at most.
 */
#ifndef RS_LOADS_H
#define RS_LOADS_H

#include "reshard/engine/image.h"

/** A file to load: an open image, or (NULL) a descriptor.  They are the caller's until done(). */
struct rs_load_file {
	const struct rs_image *image;
	int fd;
	uint64_t bytes;
};

struct rs_load;

/** Called once by the loader's thread; `err` NULL: all bytes are there. */
typedef void rs_load_done_fn(void *arg, struct rs_load *load, const struct sc_err *err);

/**
 * Begins a load to the GPU that a rank has: of gpu_devices, by its number modulo how many there are.  *ret is the
 * caller's, rs_load_end() after done(), also after one with an error.  *ret is set before done() is called.
 * Errors of done(): SC_E_UNSUPPORTED (there is no GPU for it), SC_E_NO_MEMORY (no room: gpu_memory, or the GPU's),
 * SC_E_SYSTEM (the helper has ended, or is late), SC_E_CANCELLED, those of the file.
 * Errors: SC_E_UNSUPPORTED, SC_E_NO_MEMORY, SC_E_SYSTEM.
 */
int rs_load_start(const struct rs_load_file *file, uint32_t rank, rs_load_done_fn *done, void *arg,
		  struct rs_load **ret, struct sc_err *err);
/** Lets done() come soon, with SC_E_CANCELLED if it was not about to come anyhow.  Any thread, until done(). */
void rs_load_cancel(struct rs_load *load);
/** Gives the memory back, before what is loaded next.  Does not wait.  NULL is fine. */
void rs_load_end(struct rs_load *load);
/** Adds a line of JSON that says where the bytes are.  Errors: SC_E_SYSTEM (the helper has ended: they are nowhere),
 *  SC_E_NO_MEMORY. */
int rs_load_text(const struct rs_load *load, struct sc_buf *buf, struct sc_err *err);
/** Ends the loaders, when all their files have been ended. */
void rs_loads_stop(void);

#endif
