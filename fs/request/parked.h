/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that wait for their job.  While a command has the gate of a job's working tree closed
 * (reshard/worktree/requests/gate.c), nothing of that tree is made, changed or opened for writing, and commands of one
 * job are done one after the other. What has to wait for that is parked here, and occupies no worker of FUSE: however
 * many requests of a job wait, and however long, those of other jobs are served.
 *
 *     a worker ── fs_enter(): the gate is open ──> inside, until rs_tree_leave()
 *        └─ it is closed ──> parked ── it opens ──> a runner serves the request from its beginning
 *     a command ── fs_order(): none of its job runs ──> a thread of its own
 *        └─ one runs ──> parked ── that one ends ──> the same thread
 *
 * G1  A request enters the gate before it changes anything.  So one that finds it closed can begin anew, from what it
 *     asks for (struct fs_asked), of which a copy is parked.
 * G2  No worker and no runner waits for a gate or for a command of a job; but for a request that comes again after its
 *     daemon died, and was done then (requests.c): nothing of it may be done twice, so it waits where it is.
 * G3  What is parked is in the list.  Who takes it out, under the list's lock, alone runs it, parks it again, or
 *     answers it: each request has one answer.
 * G4  A request is put into the list under the lock under which it found the gate closed, and who opens a gate takes
 *     that lock afterwards.  So nothing stays parked behind an open gate.
 * G5  A program that is being killed is answered EINTR while its request is parked; what runs by then is finished,
 *     but who wrote a command that runs is answered, too (control/notify.c).
 *     No other signal ends the wait: programs do not expect that of creat(2), rename(2) or open(2).  The kernel tells
 *     of the first signal only, and over io_uring of none: so the runners look whether those programs are killed.
 * G6  At the end of the mount all that is parked is answered ECONNABORTED at once, before anything is waited for, and
 *     a runner that has a request of a ring is waited for by the ring's thread: then its memory goes.
 * G7  What is parked is bounded, and over io_uring leaves entries of each ring free.  One too many is refused, EBUSY.
 * G8  Of one job one command runs at a time, the others in their order.  It is in a thread of its own; but for the
 *     removal of a job: the kernel locks the mount's folder for that, so it is refused where it would wait.
 * G9  With -o hold, what is parked has no record in the log.  Who runs it enters it under its number first (R1 of
 *     requests.c); if the daemon dies before, the kernel sends it to the next one.
 */
#ifndef FS_PARKED_H
#define FS_PARKED_H

#include "fs/fs_i.h"

/** All that it takes to serve a request; a text that nobody needs is NULL. */
struct fs_asked {
	void (*serve)(fuse_req_t req, const struct fs_asked *a);
	fuse_ino_t ino, other;
	const char *name, *text;
	size_t bytes;			/* of `text` */
	mode_t mode;
	dev_t dev;
	int flags;
	struct stat attr;
	struct fuse_file_info fi;
	int64_t told;			/* of fs_looks_again(), when the request came */
	bool copies;
	bool is_again;			/* it was parked */
	int64_t began_ns;		/* of a lookup or open: when it came */
};

/** Enters the gate of a job for the request that asks for `a`.  RS_HERE: inside, until rs_tree_leave().  RS_LATER: it
 *  is parked, or answered by now: not the caller's any more.  Errors: SC_E_BUSY (too many are parked), SC_E_NO_MEMORY,
 *  of the system. */
int fs_enter(fuse_req_t req, struct rs_job *job, const struct fs_asked *a, struct sc_err *err);

/** A command; part of what its caller needs to carry it out. */
struct fs_order {
	/** Carries the command out.  In a thread of its own. */
	void (*run)(struct fs_order *order);
	/** Answers it, when the job's next command may begin, and frees this. */
	void (*answer)(struct fs_order *order);
	/** Frees this: the command was not begun, and is answered by who calls. */
	void (*give_up)(struct fs_order *order);
};
/** Carries out a command of a job, now or later, and takes it; takes nothing on failure.  Errors: those of
 *  fs_enter(). */
int fs_order(fuse_req_t req, struct rs_job *job, struct fs_order *order, struct sc_err *err);

/** Begins a command of a job here, if none of it runs; else it fails: SC_E_BUSY. */
int fs_order_here(struct rs_job *job, struct sc_err *err);
void fs_order_ends(struct rs_job *job);

/** Serves what waits for the gate of this job, which has opened. */
void fs_parked_opened(struct rs_job *job);
/** At the end: answers all that is parked, and waits for what runs, but not for commands. */
void fs_parked_stop(void);
/** Tells that this is a ring's thread: at its end it waits for the runners that have a request of a ring (G6). */
void fs_parked_ring(void);
/** Tells whether the process of a thread is being killed.  True, too, for a thread that cannot be looked at, as it is
 *  in another PID namespace. */
bool fs_is_killed(pid_t thread);

#endif
