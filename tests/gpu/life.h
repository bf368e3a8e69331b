/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the engine gpu by files that are made by hand, and what is left after them. */
#ifndef TEST_LIFE_H
#define TEST_LIFE_H

#include "reshard/gpu/remote.h"
#include "tests/gpu/by_hand.h"

extern struct rs_engine *engine;
extern char script[30];	/* that runs the helper; its pid is in a file beside it */
extern unsigned devices;	/* that options() has */
extern unsigned stop_at;	/* the call's tick that stops it; 0: none does */

/** A call.  Files that it made are right. */
int call(struct sc_err *err);
/** Without that check, to these files. */
int write_to(const int *fds, struct rs_written *written, struct sc_err *err);
struct rs_gpu_state state(void);
struct rs_gpu_options options(void);
void write_script(const char *args);
/** Begins with these options and a helper with these arguments (fake_helper.c). */
void begin(const struct rs_gpu_options *o, const char *args);
unsigned open_files(void);
void expect_no_children(void);
/** Whatever the helper does: a call that is right in time, by the GPU (true) or the host, and another one after it. */
bool expect_right(const char *misdeed, unsigned n, unsigned timeout_ms);

#endif
