/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: a turn between its plan and its end. */
#ifndef RS_TURN_ROWS_H
#define RS_TURN_ROWS_H

#include <sys/stat.h>

#include "meta/catalog/trees.h"
#include "reshard/worktree/rebase/turn_i.h"

struct rs_turn {
	struct rs_job *job;		/* whose working tree it is: of a commit maybe a second one */
	struct rs_view *next;		/* borrowed */
	enum rs_turn_by by;
	bool moves;			/* a commit has rows for a tree */
	int64_t now_ns;
	struct meta_tree_spec spec;	/* of a commit */
	struct meta_changes upper;	/* rows that the upper layer will have */
	struct meta_changes apart;	/* and the changes of those that get another number: keep_apart() */
	struct sc_map own;		/* the files of these */
	struct sc_map logs;		/* that stay in the upper layer: number -> anything (logs.c) */
	struct sc_map others;		/* of a commit: virtual number -> struct other (renumber.c) */
	struct rs_layer *layer;
	struct rs_lower lower;
	struct {
		size_t nr, room;
		uint64_t *at;
	} held;				/* before a rollback or discard; of these `opened` as programs see them */
	size_t opened;
	struct sc_arena texts;
	struct sc_err *err;
};

static inline bool rs_is_special(mode_t mode)
{
	return !S_ISDIR(mode) && !S_ISREG(mode) && !S_ISLNK(mode);
}

static inline int rs_turn_put(struct rs_turn *t, struct meta_changes *to, struct meta_change change)
{
	return sc_vec_push(to, change) < 0 ? sc_nomem(t->err) : 0;
}

/* put.c: rows of the new tree; texts are copied */
/** Puts a name; ino 0: the folder has no such name. */
int rs_turn_put_name(struct rs_turn *t, uint64_t folder, struct meta_bytes name, uint64_t ino);
/** Puts a row, with the attributes that `xattrs_of` has in the working tree (0: with none). */
int rs_turn_put_object(struct rs_turn *t, const struct meta_inode_row *row, uint64_t xattrs_of);
/** Says that nothing is known of a virtual number, whatever older trees of the chain say. */
int rs_turn_put_nothing(struct rs_turn *t, uint64_t ino);

/* logs.c */
/** Finds the logs that stay in the upper layer (t->logs).  Not under job.names. */
int rs_turn_find_logs(struct rs_turn *t);
/** Says in t->upper that a log stays, over what the next version has of it.  Errors: SC_E_BUSY, it has nothing. */
int rs_turn_keep_log(struct rs_turn *t, const struct meta_inode_row *row);
/** Puts the logs into t->apart, too: a commit applies that after the upper layer went into the tree. */
int rs_turn_put_logs(struct rs_turn *t);
static inline bool rs_turn_is_log(const struct rs_turn *t, uint64_t ino)
{
	return t->logs.nr && sc_map_get(&t->logs, (const char *)&ino, sizeof(ino));
}

/* rows.c */
/** Adds to t->spec.rows what the commit says of files; `rows` and `leaves` may be NULL. */
int rs_turn_rows(struct rs_turn *t, const struct meta_changes *rows, const struct rs_leaves *leaves);

/* renumber.c: a commit, in this order */
/** Finds the objects with virtual numbers that were moved, and takes numbers for them. */
int rs_turn_find_others(struct rs_turn *t);
/** Adds the rows of these objects to t->spec.rows, under their virtual numbers.  A row that is added later takes the
 *  place of an earlier one. */
int rs_turn_put_others(struct rs_turn *t);
/** Replaces the virtual numbers of these objects by the new ones, in all rows of the turn. */
int rs_turn_renumber(struct rs_turn *t);
/** Replaces the virtual numbers in memory, too, for programs that have such a file open; cannot fail. */
void rs_turn_renumber_own(const struct rs_turn *t, struct rs_job *job);
bool rs_turn_has_other_number(const struct rs_turn *t, uint64_t ino);

#endif
