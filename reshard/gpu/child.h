/* SPDX-License-Identifier: Apache-2.0 */
/* A child process of the daemon, which is awaited by a thread, so that it leaves no zombie whenever it ends. */
#ifndef RS_CHILD_H
#define RS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

#include "meta/base/err.h"

struct rs_child;

/**
 * Starts a program without arguments, in /, in a process group of its own, with an environment of our making, of which
 * `variable` is one.  It has /dev/null, stderr, and `fd` as descriptor `as`, and no other.  *ret is the caller's,
 * rs_child_leave().
 * Errors: SC_E_SYSTEM, SC_E_NO_MEMORY.
 */
int rs_child_start(const char *program, const char *variable, int fd, int as, struct rs_child **ret,
		   struct sc_err *err);
/** Waits for its end; false: it has not ended in time. */
bool rs_child_wait(struct rs_child *child, unsigned ms);
/** After its end: false: by a signal, or with a status that is not 0.  Says so in words. */
bool rs_child_ended_well(struct rs_child *child, char *ret_text, size_t bytes);
/** Kills it, if it has not ended. */
void rs_child_kill(struct rs_child *child);
/** The caller needs it no more; the process may go on. */
void rs_child_leave(struct rs_child *child);

#endif
