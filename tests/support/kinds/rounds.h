/* SPDX-License-Identifier: Apache-2.0 */
/* A third kind of engine: it executes rounds (reshard/engine/rounds/rounds.h). */
#ifndef TEST_ROUNDS_H
#define TEST_ROUNDS_H

#include "reshard/engine/io/engine.h"
#include "reshard/engine/rounds/rounds.h"

extern const struct rs_engine_ops rounds_engine;

/** Of each call; `writers` is the engine's: image i is written by peer i % peers. */
extern struct rs_rounds_options rounds_options;

/** Copies boxes between windows of so many bytes; `from` NULL: makes the bytes of their targets 0.  Loops of memcpy, unless
 *  tests/gpu/kernel_rounds.c is linked. */
typedef void rounds_copy_fn(const struct rs_copy *boxes, uint32_t nr, unsigned char *from, uint64_t from_bytes, unsigned char *to,
			    uint64_t to_bytes);
extern rounds_copy_fn *rounds_copy;

/** What executes rounds, in place of copies between windows of this engine; NULL: nothing does. */
struct rounds_device {
	int (*begin)(void *call, struct sc_err *err);
	int (*put)(const struct rs_round *round, struct sc_err *err);
	int (*end)(int rc, struct sc_err *err);	/* after all rounds, or an error */
};
extern const struct rounds_device *rounds_device;
/** Reads what a share reads; writes what it wrote. */
int rounds_fill(void *call, const struct rs_share *share, unsigned char *in, struct sc_err *err);
int rounds_drain(void *call, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes, struct sc_err *err);

/** Is told each round before it is executed, and the rest in the end (`round` NULL).  NULL: nobody is. */
extern void (*rounds_look)(struct rs_rounds *r, const struct rs_round *round, const struct rs_extent *rest, uint32_t nr_rest);

#endif
