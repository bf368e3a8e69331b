/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this test share. */
#ifndef TESTS_FAULT_CRASH_H
#define TESTS_FAULT_CRASH_H

#include "reshard/job/service.h"

/* --- main.c --- */

extern char root[100];			/* of all that the test makes */

/** Ends the test as failed. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/** Ends the test as failed if `rc` is an error. */
void must(int rc, const struct sc_err *err);

/* --- points.c: at which the daemon dies --- */

#define KILLED INTERPOSE_STATUS
enum how { BEFORE, AFTER, TORN };

extern struct shared {			/* with the children: this process itself runs no service and stays small */
	long events;			/* counted by a child */
	struct seen {
		uint64_t head, tree;
		bool has_head;
	} before, after;
	bool acknowledged;		/* the command had returned: only the new state will do */
} *shared;

/** Counts, in a child, each change of a file from now on, and ends the process before, after or in the middle of the n-th. */
void arm(long n, enum how mode);

/* --- signature.c --- */

/** What ranks of all jobs see: all bytes of heads, and of working trees. */
struct seen look(struct rs_service *s);

/* --- scenarios.c: how the store was, and what is being done when the daemon dies --- */

extern const struct scenario {
	const char *name;
	void (*before)(struct rs_service *s);
	void (*what)(struct rs_service *s);
	bool any_tree;		/* the working tree may be anything between */
	bool steps;		/* of several commands: heads between are right, too */
	bool damaged;		/* fsck complains, until it is done */
} scenarios[];
extern const size_t scenarios_nr;

/** Starts a service without a mount.  Free it by rs_service_free(). */
struct rs_service *start(const char *store);

/** Frees it and starts it again: states are compared as a start finds them. */
struct rs_service *start_again(struct rs_service *s, const char *store);

/** The job of a scenario; a clone of it may be there, too. */
struct rs_job *job_of(struct rs_service *s);

#endif
