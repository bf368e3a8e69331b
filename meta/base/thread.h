/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, by name: `ps -L` and `top -H` show it, and docs/architecture.md says what each does. */
#ifndef SC_THREAD_H
#define SC_THREAD_H

#include <pthread.h>
#include <stdbool.h>

#include "meta/base/err.h"

/** A thread that somebody joins; all zero: none has started. */
struct sc_thread {
	pthread_t id;
	bool started;
};

/** Starts a thread; `name` has at most 15 bytes.  Errors: SC_E_SYSTEM, SC_E_NO_MEMORY. */
static inline int sc_thread_start(struct sc_thread *thread, const char *name, void *(*run)(void *), void *arg,
				  struct sc_err *err)
{
	const int rc = pthread_create(&thread->id, NULL, run, arg);

	if (rc)
		return sc_fail_sys(err, rc, "cannot start the thread '%s'", name);
	(void)pthread_setname_np(thread->id, name);
	thread->started = true;
	return 0;
}

/** Waits for the end of a thread, which its owner has told to end; returns at once if none has started. */
static inline void sc_thread_join(struct sc_thread *thread)
{
	if (thread->started)
		(void)pthread_join(thread->id, NULL);
	thread->started = false;
}

/** Starts a thread that nobody joins.  Errors: as sc_thread_start(). */
static inline int sc_thread_release(const char *name, void *(*run)(void *), void *arg, struct sc_err *err)
{
	struct sc_thread thread;
	const int rc = sc_thread_start(&thread, name, run, arg, err);

	if (rc == 0)
		(void)pthread_detach(thread.id);
	return rc;
}

#endif
