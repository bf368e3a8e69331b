/* SPDX-License-Identifier: Apache-2.0 */
/* What each signal does to a daemon and to its holder. */
#ifndef FS_SIGNALS_H
#define FS_SIGNALS_H

/**
 * Gives every signal the meaning that the table in signals.c says, whatever the process that started this one has left.
 * Once, before threads and children are started: they inherit it.
 */
void fs_signals_begin(void);

/** Holds back SIGTERM and SIGINT, in this thread and those that it starts, until fs_signals_admit(). */
void fs_signals_defer(void);
/** Lets all signals in, also those that came meanwhile. */
void fs_signals_admit(void);

#endif
