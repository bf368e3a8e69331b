/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this test share. */
#ifndef TESTS_FAULT_CRASH_H
#define TESTS_FAULT_CRASH_H

#include "reshard/service/service.h"

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

/** What ranks of all jobs see, of heads and of working trees: folders, links and files, with all bytes, modes, owners
 *  and attributes, and which names are one file. */
struct seen look(struct rs_service *s);

/* --- tree_scenarios.c --- */

void with_tree(struct rs_service *s);
void with_dirty_tree(struct rs_service *s);
void with_turned_links(struct rs_service *s);
void with_moved_brought(struct rs_service *s);
void with_both_kinds(struct rs_service *s);
void with_other_tree(struct rs_service *s);
void with_log(struct rs_service *s);
void with_kept_log(struct rs_service *s);
void do_commit_log(struct rs_service *s);
void do_rollback_log(struct rs_service *s);
void do_discard_log(struct rs_service *s);
void do_exchange(struct rs_service *s);
void do_rollback_tree(struct rs_service *s);
void do_discard_held(struct rs_service *s);
void do_mkdir(struct rs_service *s);
void do_rename_committed(struct rs_service *s);
void do_link(struct rs_service *s);
void do_symlink(struct rs_service *s);
void do_setxattr(struct rs_service *s);
void do_rmdir(struct rs_service *s);
void do_rmtree(struct rs_service *s);

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

/** Writes a file as a program does. */
void put(struct rs_service *s, uint32_t rank, const char *path, const void *data, size_t bytes);

/* one change of the tree of job_of(s), which has a `struct sc_err err` */
#define IN_TREE(s, call)                                                                           \
	do {                                                                                       \
		struct sc_err err = {0};                                                           \
		rs_tree_enter(job_of(s));                                                          \
		must(call, &err);                                                                  \
		rs_tree_leave(job_of(s));                                                          \
	} while (0)

#define COMMAND(s, fn, text)                                                                       \
	do {                                                                                       \
		struct sc_err err_ = {0};                                                          \
		must(fn(RS_CALLER(s), job_of(s), (text), &err_), &err_);                                    \
	} while (0)

/** Brings changes of names to the catalog.  They are in the log, which is mapped, when a program is answered: only now
 *  are there calls to die at. */
void flush_tree(struct rs_service *s);

/** Does what the worker does in the background. */
void work(struct rs_service *s);

void committed(struct rs_service *s);
void do_commit(struct rs_service *s);
void do_discard(struct rs_service *s);

#endif
