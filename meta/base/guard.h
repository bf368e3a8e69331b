/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards reads of mapped files.  If the file was shortened or its disk fails, the kernel raises SIGBUS
 * in the thread that reads; the guard turns the signal into a return value.
 */
#ifndef SC_GUARD_H
#define SC_GUARD_H

#include <stdbool.h>

/** Installs the handler; call once, before threads are started. */
void sc_guard_install(void);
/** Runs `fn(arg)`.  Returns false if `fn` was cut short because the page at *ret_lost could not be read.  While it
 *  reads mappings, `fn` must hold no lock and own no memory. */
bool sc_guard_run(void (*fn)(void *arg), void *arg, const void **ret_lost);

#endif
