/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a range by several threads: one thread alone copies out of the page cache at a fraction of the rate that a
 * GPU's link takes.  The threads start with the first long range and live until rs_crew_end().
 */
#ifndef RS_CREW_H
#define RS_CREW_H

#include <stdbool.h>

#include "meta/base/thread.h"

#define RS_CREW_MAX 8			/* with the caller */
#define RS_CREW_PART_BYTES (1u << 20)	/* that a thread reads at once; what is not longer is read by the caller */

/** Reads a part of what `arg` stands for.  Several threads call it at once. */
typedef int rs_crew_read_fn(const void *arg, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err);

/** A crew; all zero: no thread has started. */
struct rs_crew {
	bool started, stop;
	pthread_mutex_t lock;
	pthread_cond_t begin, ended;
	struct sc_thread threads[RS_CREW_MAX - 1];
	unsigned nr;
	/* the range that is being read, of which [next, end) is left, to memory of which `to` is that of `from` */
	rs_crew_read_fn *read;
	const void *arg;
	uint64_t from, next, end;
	unsigned char *to;
	unsigned busy;		/* threads that read a part */
	struct sc_err first;	/* error; code 0: none */
};

/**
 * Reads bytes [at, at + bytes) of what `read` reads, in parts, and returns when no thread reads any more.  If `c` is
 * NULL, the caller's thread reads all.
 * Errors: the first of read(), after which no part is begun.
 */
int rs_crew_read(struct rs_crew *c, rs_crew_read_fn *read, const void *arg, uint64_t at, uint64_t bytes,
		 unsigned char *to, struct sc_err *err);
/** Ends the threads. */
void rs_crew_end(struct rs_crew *c);

#endif
