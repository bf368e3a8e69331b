/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/faults.h"

#include "tests/support/interpose.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

const char *const kind_names[KINDS] = {"no memory", "EIO when reading", "ENOSPC when writing", "EMFILE",
				       "catalog: ENOSPC", "catalog: EIO", "io_uring: EIO", "io_uring: ENOSPC",
				       "short calls and EINTR"};

int failures;
static long left;		/* calls until one fails */
static pthread_t victim;	/* only this thread's calls fail, but for the engine's rings: of any of its threads */
static int error;		/* what fails says */

#define RINGS (INTERPOSE(ring_init) | INTERPOSE(ring_submit) | INTERPOSE(ring_wait))

static int fail_one(enum interpose_call call, long arg)
{
	(void)arg;
	if (!(RINGS & UINT64_C(1) << call) && !pthread_equal(victim, pthread_self()))
		return 0;
	if (__atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) != 0)
		return 0;
	(void)__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
	return call == CALL_ring_init ? -ENOMEM : -error;
}

/* Calls that do less than was asked for, or are interrupted: nothing may come of it. */
static unsigned dice;

static bool is_odd(void)
{
	dice = dice * 1103515245 + 12345;
	if (!pthread_equal(victim, pthread_self()) || (dice >> 16) % 3)
		return false;
	failures++;
	return true;
}

static int do_less(enum interpose_call call, long arg)
{
	switch (call) {
	case CALL_ring_wait:
		if (arg <= 1 || !is_odd())
			return 0;
		return dice & 1 << 20 ? -EAGAIN : INTERPOSE_SHORT;
	case CALL_ring_submit:
	case CALL_sql_pwrite:
		return is_odd() ? -EINTR : 0;
	default:
		if (is_odd() && dice & 1 << 20)
			return -EINTR;
		return is_odd() ? INTERPOSE_SHORT : 0;
	}
}

static const struct {
	int error;
	uint64_t calls;
} kinds[KINDS] = {
	[MEMORY] = {ENOMEM, INTERPOSE(alloc) | INTERPOSE(resize)},
	[READING] = {EIO, INTERPOSE(openat) | INTERPOSE(fstat) | INTERPOSE(mmap) | INTERPOSE(pread) |
		     INTERPOSE(fstatat) | INTERPOSE(fdopendir) | INTERPOSE(readdir) | INTERPOSE(flock) |
		     INTERPOSE(fcntl_lease)},
	[WRITING] = {ENOSPC, INTERPOSE(fsync) | INTERPOSE(pwrite) | INTERPOSE(ftruncate) | INTERPOSE(fallocate) |
		     INTERPOSE(fchmod) | INTERPOSE(copy_range) | INTERPOSE(linkat) | INTERPOSE(renameat) |
		     INTERPOSE(fsetxattr) | INTERPOSE(fdatasync) | INTERPOSE(mkdirat) | INTERPOSE(fchown) |
		     INTERPOSE(futimens)},
	[DESCRIPTORS] = {EMFILE, INTERPOSE(openat)},
	[CATALOG_FULL] = {ENOSPC, INTERPOSE(sql_pwrite)},
	[CATALOG_BROKEN] = {EIO, INTERPOSE(sql_pwrite) | INTERPOSE(sql_pread)},
	[RING] = {EIO, RINGS},
	[RING_FULL] = {ENOSPC, RINGS},
	[ODD] = {0, INTERPOSE(ring_submit) | INTERPOSE(ring_wait) | INTERPOSE(pread) | INTERPOSE(pwrite) |
		 INTERPOSE(copy_range) | INTERPOSE(sql_pwrite)},
};

void break_all(enum kind kind, long n)
{
	left = n;
	failures = 0;
	victim = pthread_self();
	error = kinds[kind].error;
	interpose_begin(kinds[kind].calls, kind == ODD ? do_less : fail_one);
}

void mend_all(void)
{
	interpose_end();
}
