/* SPDX-License-Identifier: Apache-2.0 */
/* What each signal does to a daemon and to its holder. */
#ifndef FS_SIGNALS_H
#define FS_SIGNALS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/**
 * Gives every signal the meaning that the table in signals.c says, whatever the process that started this one has left.
 * Once, before threads and children are started: they inherit it.
 */
void fs_signals_begin(void);

/** Holds back SIGTERM and SIGINT, in this thread and those that it starts, until fs_signals_admit(). */
void fs_signals_defer(void);
/** Tells whether one of them came meanwhile: it ends the mount when it is let in. */
bool fs_signals_came(void);
/** Lets all signals in, also those that came meanwhile. */
void fs_signals_admit(void);
/** Reads what a daemon says that is being started; meanwhile it gets what would end this process.  0: it has ended. */
size_t fs_signals_wait(pid_t daemon, int fd, char *to, size_t room);

#endif
