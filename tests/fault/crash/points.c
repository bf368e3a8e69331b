/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/crash/crash.h"

#include "tests/support/interpose.h"

#include <fcntl.h>
#include <unistd.h>

struct shared *shared;
static long left;		/* calls until it does */
static enum how how;

/* One more change of a file; is it the one? */
static int judge(enum interpose_call call, long arg)
{
	if (call == CALL_openat && !(arg & O_CREAT))
		return 0;
	(void)__atomic_add_fetch(&shared->events, 1, __ATOMIC_RELAXED);
	if (__atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) != 0)
		return 0;
	if (how == BEFORE)
		_exit(KILLED);
	return INTERPOSE_LAST | (how == TORN ? INTERPOSE_SHORT : 0);
}

void arm(long n, enum how mode)
{
	left = n;
	how = mode;
	interpose_begin(INTERPOSE(openat) | INTERPOSE(pwrite) | INTERPOSE(ftruncate) | INTERPOSE(fallocate) | INTERPOSE(fsync) |
				INTERPOSE(unlinkat) | INTERPOSE(linkat) | INTERPOSE(renameat) | INTERPOSE(mkdirat) | INTERPOSE(fchmod) |
				INTERPOSE(fchown) | INTERPOSE(futimens) |
				INTERPOSE(fsetxattr) | INTERPOSE(clone_range) | INTERPOSE(copy_range) | INTERPOSE(ring_submit) |
				INTERPOSE(step) | INTERPOSE(sql_pwrite) | INTERPOSE(sql_ftruncate) | INTERPOSE(sql_unlink),
			judge);
}
