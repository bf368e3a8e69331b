/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands between the program and the system: a test is asked before each call of sc_sys, and of SQLite's table of system
 * calls, whether it is made, fails, moves only half of its bytes, or is the last one of the process.
 */
#ifndef TESTS_SUPPORT_INTERPOSE_H
#define TESTS_SUPPORT_INTERPOSE_H

#include <stdint.h>

/* of sc_sys, by their names there */
#define INTERPOSE_SYS(X)                                                                                               \
	X(alloc)                                                                                                       \
	X(resize)                                                                                                      \
	X(openat)                                                                                                      \
	X(pread)                                                                                                       \
	X(pwrite)                                                                                                      \
	X(fstat)                                                                                                       \
	X(ftruncate)                                                                                                   \
	X(fallocate)                                                                                                   \
	X(fsync)                                                                                                       \
	X(unlinkat)                                                                                                    \
	X(linkat)                                                                                                      \
	X(renameat)                                                                                                    \
	X(fsetxattr)                                                                                                   \
	X(fchmod)                                                                                                      \
	X(fchown)                                                                                                      \
	X(futimens)                                                                                                    \
	X(fdatasync)                                                                                                   \
	X(mkdirat)                                                                                                     \
	X(fstatat)                                                                                                     \
	X(fdopendir)                                                                                                   \
	X(readdir)                                                                                                     \
	X(flock)                                                                                                       \
	X(fcntl_lease)                                                                                                 \
	X(clone_range)                                                                                                 \
	X(copy_range)                                                                                                  \
	X(mmap)                                                                                                        \
	X(ring_init)                                                                                                   \
	X(ring_submit)                                                                                                 \
	X(ring_wait)                                                                                                   \
	X(step)
/* of SQLite */
#define INTERPOSE_SQL(X)                                                                                               \
	X(sql_pread)                                                                                                   \
	X(sql_pwrite)                                                                                                  \
	X(sql_ftruncate)                                                                                               \
	X(sql_unlink)

#define INTERPOSE_ENUM(name) CALL_##name,
enum interpose_call { INTERPOSE_SYS(INTERPOSE_ENUM) INTERPOSE_SQL(INTERPOSE_ENUM) INTERPOSE_CALLS };
#undef INTERPOSE_ENUM

/* A set of calls: INTERPOSE(openat) | INTERPOSE(sql_pread). */
#define INTERPOSE(name) (UINT64_C(1) << CALL_##name)

enum {
	INTERPOSE_SHORT = 1,	/* of more than one byte, only half are moved */
	INTERPOSE_LAST = 2,	/* after this call the process ends by _exit(INTERPOSE_STATUS) */
	INTERPOSE_STATUS = 42,
};

/*
 * Judges one call before it is made: 0 makes it; a negative errno fails it so without making it; else what is said above.
 * `arg`: flags of openat, bytes of what moves bytes, the result that ring_wait is about to hand out, the number of a step.
 */
typedef int interpose_fn(enum interpose_call call, long arg);

/** Has `judge` asked before each of `calls` (a set), in all threads, until interpose_end().  The program may be running. */
void interpose_begin(uint64_t calls, interpose_fn *judge);

/** All calls go to the system again. */
void interpose_end(void);

#endif
