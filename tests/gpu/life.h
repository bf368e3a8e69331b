/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the engine gpu by files that are made by hand, and what is left after them. */
#ifndef TEST_LIFE_H
#define TEST_LIFE_H

#include <sys/types.h>

#include "reshard/engine/gpu/remote.h"
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

struct trial {
	const char *misdeed;
	unsigned n, timeout_ms;
	bool by_gpu;		/* what expect_right() returned */
};

/** Expects all to be right, some at a time: each is done by one of a few processes, which wait for helpers of their own. */
void expect_all_right(struct trial *trials, unsigned nr);
/** Makes the script's file, and the files by hand.  Returns -1: it could not. */
int life_begin(void);
/** For cmocka: the same, with the engine; and the end of all of it. */
int life_set_up(void **unused);
int life_tear_down(void **unused);
/** The pid of the helper that the script has started last, once; it is waited for. */
pid_t helper_pid(void);
/** Forgets it: the helper has ended. */
void forget_pid(void);

#endif
