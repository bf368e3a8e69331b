/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading mappings of files that somebody else may shorten: the kernel says SIGBUS, and only the
 * thread that reads must learn of it.
 */
#ifndef SC_GUARD_H
#define SC_GUARD_H

#include <stdbool.h>

/** Once, before threads are started. */
void sc_guard_install(void);
/** Runs `fn(arg)`; false: it touched a page that its file does not have any more, and did not end.
 *  It must not take locks or memory. */
bool sc_guard_run(void (*fn)(void *arg), void *arg);

#endif
