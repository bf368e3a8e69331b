/* SPDX-License-Identifier: Apache-2.0 */
/* A turn: another version comes below a working tree; a commit also takes what the working tree has. */
#ifndef RS_TURN_I_H
#define RS_TURN_I_H

#include "reshard/worktree/requests/tree_i.h"

/* --- changes.c: what was changed since the head, as files by rank and path --- */

/** A regular file that a commit has to take in, or a file of tensors that is gone. */
struct rs_change_row {
	enum {
		RS_CHANGE_WROTE,	/* its bytes are blob's, which is a file of the working tree */
		RS_CHANGE_MOVED,	/* a committed file that has got another name, or, of one of tensors, another
					 * mode or owner: its bytes are what the head has under the number */
		RS_CHANGE_GONE,
	} how;
	uint32_t rank;			/* RS_SHARED: the job's own */
	const char *path;		/* valid during the call */
	uint64_t ino, blob;		/* blob of a moved one: 0 if it has tensors */
};
typedef int rs_change_row_fn(void *arg, const struct rs_change_row *row);
/** Walks over all changed files, by rank, then path; a file with several names comes once for each name. */
int rs_tree_changes(struct rs_job *job, rs_change_row_fn *fn, void *arg, struct sc_err *err);
/** Counts the uncommitted changes that a commit would keep, and those that it would leave out; `names` (may be NULL)
 *  gets the first few that it would keep, as "rank 3: 'a', 'b'". */
struct rs_dirt {
	size_t nr, others, special;	/* others: of nr, but for written files and removed names */
};
int rs_tree_dirt(struct rs_job *job, struct rs_dirt *ret, struct sc_buf *names, struct sc_err *err);
/** Counts in the same way, but for objects whose numbers are keys of the map `but`. */
int rs_tree_dirt_but(struct rs_job *job, const struct sc_map *but, struct rs_dirt *ret, struct sc_buf *names,
		     struct sc_err *err);
/** Counts in the same way, but for the logs that rs_turn_plan() lets stay (logs.c). */
int rs_tree_dirt_but_logs(struct rs_job *job, struct rs_dirt *ret, struct sc_buf *names, struct sc_err *err);
/** Names the FIFOs, sockets and devices, which no version has, in the form that rs_tree_dirt_but() has. */
int rs_tree_specials(struct rs_job *job, struct sc_buf *names, struct sc_err *err);

/* --- first.c: the first layout and topology, with the folders of ranks.  The gate is closed, from plan to done --- */

struct rs_first;
/** Prepares a job without a version for a layout (0: none yet) and a topology (NULL: none yet).  Drains the log.
 *  Errors: those of rs_first_ranks(). */
int rs_first_plan(struct rs_job *job, uint64_t layout, const char *topology, struct rs_first **ret, struct sc_err *err);
/** Returns the changes of rows that belong into the transaction which saves both. */
const struct meta_changes *rs_first_rows(const struct rs_first *first);
/** Gives the job both in memory, and shows the folders; cannot fail. */
void rs_first_show(struct rs_first *first);
void rs_first_done(struct rs_first *first);

/* --- turn.c: another version below a working tree.  The gate is closed, from plan to done --- */

/** One of several names of a file.  From the new version on it has other bytes than the rest of them, or is gone. */
struct rs_leave {
	uint64_t ino, folder;
	struct meta_bytes name;
	uint64_t group;			/* those of an inode and a group are one file from then on */
#define RS_LEAVE_GONE UINT64_MAX	/* the group of names that are no more */
};
struct rs_leaves {
	size_t nr, room;
	struct rs_leave *at;
};

struct rs_turn;
enum rs_turn_by {
	RS_TURN_COMMIT,		/* the upper layer goes into the tree of `next` */
	RS_TURN_STAY,		/* nothing is uncommitted but logs; these and special files stay: topology, layout,
				 * datasets */
	RS_TURN_KEEP,		/* all stays, since `next` shows what the head does: a layout of other `log` lines */
	RS_TURN_TAKEN,		/* likewise, and another node has made `next` of what was there */
	RS_TURN_BACK,		/* the upper layer is dropped: rollback, discard */
};
/**
 * Prepares `next` (NULL: no version) as the version below.  A commit gives `rows`, without link counts, of written and
 * moved files and of the files that names leave, and `leaves`, names of files of tensors, each once; both are NULL
 * without a commit.  Drains the log.
 */
int rs_turn_plan(struct rs_job *job, struct rs_view *next, enum rs_turn_by by, const struct meta_changes *rows,
		 const struct rs_leaves *leaves, struct rs_turn **ret, struct sc_err *err);
/** Carries the turn out in the catalog: inside the transaction that adds the version, before the version's row is
 *  added.  Sets next->version->tree and floor_ns. */
int rs_turn_save(struct rs_turn *turn, struct sc_err *err);
/** Carries the turn out in memory, and makes the view (taken) the head of `job` in the same instant; cannot fail.
 *  `job` is the job of rs_turn_plan(), or the job whose second working tree that was
 *  (reshard/exchange/merge/part.h). */
void rs_turn_show(struct rs_turn *turn, struct rs_job *job, struct rs_view *head);
void rs_turn_done(struct rs_turn *turn);
/** Makes a view (NULL: none; taken) the head, with the working tree as it is: another storage of the same version, the
 *  head of a new job, or the end of one.  rs_view_below() was called for it, so that this cannot fail. */
void rs_tree_show(struct rs_job *job, struct rs_view *head);

#endif
