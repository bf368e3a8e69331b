/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STOPPED_H
#define TESTS_STOPPED_H

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>

/** Stops a child, and returns when each of its threads has stopped: until then, one may still answer. */
static inline void stop_child(pid_t pid)
{
	siginfo_t info;

	(void)kill(pid, SIGSTOP);
	(void)waitid(P_PID, (id_t)pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

#endif
