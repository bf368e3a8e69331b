/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading mappings of files that somebody else may shorten, or whose disk may fail: the kernel says
 * SIGBUS, and only the thread that reads must learn of it.
 */
#ifndef SC_GUARD_H
#define SC_GUARD_H

#include <stdbool.h>

/** Once, before threads are started. */
void sc_guard_install(void);
/** Runs `fn(arg)`; false: it read a page that its file does not have any more or that the disk does not give, at
 *  *ret_lost, and did not end.  While it reads it holds no lock and no memory of its own. */
bool sc_guard_run(void (*fn)(void *arg), void *arg, const void **ret_lost);

#endif
