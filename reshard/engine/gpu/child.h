/* SPDX-License-Identifier: Apache-2.0 */
/* Starts child processes of the daemon.  A thread waits for each, so that it leaves no zombie whenever it ends. */
#ifndef RS_CHILD_H
#define RS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

#include "meta/base/err.h"

struct rs_child;

/**
 * Starts a program without arguments, in /, in a process group of its own, with an environment of our making, which
 * has `variable`.  The program has /dev/null, stderr, and `fd` as descriptor `as`, and no other descriptor.  The caller
 * ends *ret by rs_child_leave().
 * Errors: SC_E_SYSTEM, SC_E_NO_MEMORY.
 */
int rs_child_start(const char *program, const char *variable, int fd, int as, struct rs_child **ret,
		   struct sc_err *err);
/** Waits for a child's end; false: it has not ended in time. */
bool rs_child_wait(struct rs_child *child, unsigned ms);
/** Tells, after a child's end, whether it ended with status 0; false: by a signal or with another status, which
 *  `ret_text` says in words. */
bool rs_child_ended_well(struct rs_child *child, char *ret_text, size_t bytes);
/** Kills a child that has not ended. */
void rs_child_kill(struct rs_child *child);
/** Ends the caller's hold of a child; the process may go on. */
void rs_child_leave(struct rs_child *child);

#endif
