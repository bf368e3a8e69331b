/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves a job's head and writes the row of a job; nothing else does.
 *
 *	rs_head_begin()		closes the gate and calls present(), which makes the new version from the head
 *	    ...			nobody else moves the head; no file of the job is opened for writing, created,
 *				renamed or removed
 *	rs_head_publish()	the new version is the head, or it never will be; the gate is open again
 *	rs_head_abort()		in place of publish: nothing has changed, and the gate is open again
 *
 * rs_head_settle() gives the head another storage for the same bytes, without the gate; rs_head_amend() changes the row
 * of a job, or makes a job: no new version.  rs_head_current() says for how long a name of the head may be remembered.
 * How all this is done is up to a kind, struct rs_head_ops; "local" (head_local.c) has one catalog and one node.
 * Callers use the functions below, which check what a kind is given and what it answers.
 */
#ifndef RS_HEAD_H
#define RS_HEAD_H

#include "meta/catalog/catalog.h"
#include "meta/tree/change.h"
#include "reshard/version/state/state.h"

/* RS_BY_REMOVAL makes no version: all nodes close the gate while the job is removed */
enum rs_change { RS_BY_COMMIT, RS_BY_TOPOLOGY, RS_BY_LAYOUT, RS_BY_ROLLBACK, RS_BY_DATA, RS_BY_REMOVAL };

struct rs_seal {
	uint64_t blob, bytes;
};

/* One move of a head.  The command fills the first part and has the struct until publish or abort returns. */
struct rs_advance {
	struct rs_job *job;
	enum rs_change change;
	uint64_t token;			/* of the request that asks for it, 0: none; see rs_requested() */
	bool keeps;			/* set by present(): all that is uncommitted stays as it is over `draft` */
	bool again;			/* set by rs_head_publish() that fails: what the version is made of has changed
					 * meanwhile, and the command may be carried out anew */
	/**
	 * Makes `draft`, with its topology, from `base`.  Called with the gate closed, again if the head has moved.
	 * 1: there is nothing to change, and rs_head_begin() answers 1.  NULL: the command makes `next` by itself.
	 */
	int (*present)(struct rs_advance *a, struct sc_err *err);

	/* made by rs_head_begin() and present() */
	struct rs_view *base;		/* the head; NULL: the job has no version */
	struct rs_version *draft;	/* NULL once `next` has it */

	/* set by the command before rs_head_publish() */
	struct rs_view *next;		/* complete, but without numbers */
	const struct rs_seal *seals;	/* files of the working tree that it takes; on stable storage if sync=on */
	size_t nr_seals;
	const struct meta_changes *rows; /* of files, for its tree: rs_turn_plan(); NULL: none */
	const struct rs_leaves *leaves;	/* likewise */

	/* set by rs_head_begin() for RS_BY_COMMIT: what other nodes wrote (reshard/exchange/merge/part.h); NULL:
	 * nothing */
	const struct rs_joined *joined;
};

/** Returns the job whose working tree a command is about: its own, or the second one of `joined`. */
struct rs_job *rs_advance_tree(const struct rs_advance *a);

/* One change of a job's row. */
struct rs_amend {
	enum { RS_AMEND_MAKE, RS_AMEND_REMOVE, RS_AMEND_RENAME, RS_AMEND_ATTR, RS_AMEND_FIRST, RS_AMEND_CONFIG,
	       RS_AMEND_TAG, RS_AMEND_CLONE } kind;
	bool is_followed;		/* REMOVE, RENAME, ATTR, FIRST, CONFIG: all nodes have it, but for this one */
	struct meta_job_row *row;	/* MAKE: all but `id` and `root`, which are set; ATTR: mode, uid, gid */
	struct rs_job *made;		/* MAKE: in memory; its `id`, `root` and working tree are set */
	const char *name;		/* RENAME */
	uint64_t layout;		/* FIRST: of the first version; 0: none yet */
	const char *topology;		/* FIRST, NULL: none yet */
	const struct meta_changes *rows; /* FIRST: of the working tree, with them (rebase/first.c) */
	const struct rs_setting {
		const char *key, *value;
	} *settings;			/* CONFIG: all of them or none */
	size_t nr_settings;
	uint64_t version, nr;		/* TAG: which one, by its row, and its number */
	const char *tag;		/* TAG, NULL: it loses its tag */
	struct rs_job *clone;		/* CLONE: a second job of all its versions, in memory; its `id` and `root` are
					 * set */
	struct rs_view **ret_head;	/* CLONE: the head of that job */
	uint64_t token;			/* CLONE: of the request */
};

struct rs_pass;

/* Called without the lock of a service, of a cache or job.state.  `arg` is the service. */
struct rs_head_ops {
	const char *name;
	bool waits;			/* for others: no thread that serves FUSE calls begin or publish */
	/** Has this token made its version?  1, 0 or an error. */
	int (*requested)(void *arg, uint64_t token, struct sc_err *err);
	/**
	 * Closes the gate, sets `base` and calls present().  RS_BY_COMMIT: no program can write to a file of the
	 * working tree; else nothing is uncommitted.  Unless it answers 0, the gate is open.  Errors: SC_E_BUSY,
	 * naming the file or how many; those of present().
	 */
	int (*begin)(void *arg, struct rs_advance *a, struct sc_err *err);
	/** The atomic point.  0: each open(2) from now on finds `next` or a later head, and `next` is taken. */
	int (*publish)(void *arg, struct rs_advance *a, struct sc_err *err);
	void (*abort)(void *arg, struct rs_advance *a);
	/**
	 * Makes `sets` (NULL where a set stays; on stable storage if sync=on) the storage of the head `of`, in place
	 * of its own; `next` is `of` with these sets.  Errors: SC_E_CANCELLED, `of` is not the head any more.
	 */
	int (*settle)(void *arg, struct rs_view *of, struct rs_view *next, struct rs_set *const *sets,
		      struct sc_err *err);
	/** Makes views real that this node keeps of a head, together with other nodes (reshard/cluster/joint), as far
	 *  as that goes: what it has not made is made without it.  NULL: it never goes.  Errors: SC_E_CANCELLED. */
	int (*joint)(void *arg, struct rs_pass *p);
	/** All that this node keeps of the head `of` is here (background/homes.c, which calls it).  NULL: nobody
	 *  asks. */
	int (*kept)(void *arg, struct rs_view *of, struct sc_err *err);
	/** `job` is NULL for RS_AMEND_MAKE, and has a head for RS_AMEND_CLONE.  The caller keeps others from the row,
	 *  and changes the job in memory.  1: all nodes have it, and this one will, by what they do where they follow:
	 *  the row is not saved here yet, and the caller changes nothing in memory (RENAME, ATTR, FIRST, CONFIG). */
	int (*amend)(void *arg, struct rs_job *job, const struct rs_amend *change, struct sc_err *err);
	/** Waits until the head in memory is the one that plain paths show.  NULL: it is.  Errors: SC_E_SYSTEM with
	 *  EHOSTDOWN (this node does not know the head, and has waited for it). */
	int (*current)(void *arg, struct rs_job *job, struct sc_err *err);
	/** The same, and does not wait. */
	int (*known)(void *arg, struct rs_job *job, struct sc_err *err);
	/** Waits, 5 s at most, while a newer head is on its way here.  NULL: none ever is. */
	void (*soon)(void *arg, struct rs_job *job);
	/** Returns a time of sc_now_ns(): until then, what was looked up stays so, or rs_events.names_changed is
	 *  called.  NULL: for ever. */
	int64_t (*until)(void *arg);
};

extern const struct rs_head_ops rs_head_local;
/** Takes the place of the kind "local" if it is not NULL.  A test sets it before it opens a store. */
extern const struct rs_head_ops *rs_head_extra;

/** Begins a move.  Returns 0 (the gate is closed until publish or abort), 1 (nothing is to be changed), or an error; if
 *  not 0, nothing is left in `a`. */
int rs_head_begin(struct rs_advance *a, struct sc_err *err);
/** Makes a->next the head, and opens the gate; takes `next`, also on failure. */
int rs_head_publish(struct rs_advance *a, struct sc_err *err);
void rs_head_abort(struct rs_advance *a);
/** Carries out a whole command that writes no bytes: begins, presents the draft at its topology, and publishes that or
 *  aborts.  1: nothing is to be changed. */
int rs_head_move(struct rs_advance *a, struct sc_err *err);
int rs_head_settle(struct rs_view *of, struct rs_view *next, struct rs_set *const *sets, struct sc_err *err);
/** Returns 0, 1 (of `amend`: it is done, and the job in memory stays as it is for now) or an error. */
int rs_head_amend(struct rs_service *s, struct rs_job *job, const struct rs_amend *change, struct sc_err *err);
/** These ask the kind for `current`, `known`, `soon` and `until` (struct rs_head_ops); INT64_MAX: for ever. */
int rs_head_current(struct rs_job *job, struct sc_err *err);
int rs_head_known(struct rs_job *job, struct sc_err *err);
void rs_head_soon(struct rs_job *job);
/** Asks the kind for `waits` (struct rs_head_ops). */
bool rs_head_waits(const struct rs_service *s);
int64_t rs_head_until(struct rs_service *s);

/* What "local" does to publish, for kinds that do more before or after it. */
struct rs_turn;
/** Refuses a new `what` (NULL: the end of the job) while anything is uncommitted, but for logs that stay
 *  (rebase/logs.c): SC_E_BUSY names some of it.  The gate is closed. */
int rs_local_refuse_dirty(struct rs_job *job, const char *what, struct sc_err *err);
/** Refuses in the same case, and advises something else than to commit or discard. */
int rs_local_advise_dirty(struct rs_job *job, const char *advice, struct sc_err *err);
/** Prepares a->next as the version below the working tree.  Drains the log. */
int rs_local_plan(struct rs_advance *a, struct rs_turn **ret, struct sc_err *err);
/**
 * Saves a->next with the turn, and makes it the head, in one transaction.  Calls `in` (NULL: nothing) inside of it with
 * the number of the version's row; if `in` returns 1, all of this was a trial, and is undone.
 */
int rs_local_save(struct rs_advance *a, struct rs_turn *turn,
		  int (*in)(void *arg, uint64_t version, struct sc_err *err), void *arg, struct sc_err *err);
/** Makes a->next the head in memory, and takes it; cannot fail. */
void rs_local_show(struct rs_advance *a, struct rs_turn *turn);

#endif
