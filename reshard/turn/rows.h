/* SPDX-License-Identifier: Apache-2.0 */
/* A turn in the making, shared by turn.c and rows.c. */
#ifndef RS_TURN_ROWS_H
#define RS_TURN_ROWS_H

#include <sys/stat.h>

#include "meta/catalog/trees.h"
#include "reshard/turn/turn_i.h"

struct rs_turn {
	struct rs_job *job;
	struct rs_view *next;		/* borrowed */
	enum rs_turn_by by;
	bool moves;			/* a commit has rows for a tree */
	int64_t now_ns;
	struct meta_tree_spec spec;	/* of a commit */
	struct meta_changes upper;	/* rows that the upper layer will have */
	struct meta_changes apart;	/* and the changes of those that get another number: keep_apart() */
	struct sc_map own;		/* the files of these */
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

/** Adds to t->spec.rows; `rows`: what the commit says of files (may be NULL). */
int rs_turn_rows(struct rs_turn *t, const struct meta_changes *rows);

#endif
