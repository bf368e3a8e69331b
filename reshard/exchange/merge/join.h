/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins what several nodes wrote over one version into one working tree.
 *
 *     node 1   upper rows ───────────────────────────┐
 *     node 2   upper rows ── part (part.h) ── join ──┤  upper rows of a second tree (part.h), of which a
 *     node 3   upper rows ── part ─────────── join ──┘  commit makes the version
 *
 * The rows of a part are joined to those that are there already by three ways: what the version below says, what is
 * there, and what the part says.
 *
 *  J1  What one of both has not changed is as the other one says.  Names, rows and attributes are compared one by one.
 *  J2  A name that both changed is refused, but for new folders of one name, mode and owner: these are one folder,
 *      under the number of the one that is there, with what is in both.
 *  J3  A file that one wrote and the other wrote, moved to other attributes, or removed, is refused; so is whatever one
 *      removed and the other changed, or put something into.
 *  J4  Link counts are those of the names that there are then.  Times are the newest ones.
 *  J5  The order of parts changes nothing but the numbers of folders that are one, and which refusal comes first.
 *
 * Pure, but for the lower layer.  Errors: SC_E_BUSY, naming the object and both nodes; those of the lower layer,
 * SC_E_NO_MEMORY.
 */
#ifndef RS_JOIN_H
#define RS_JOIN_H

#include "reshard/overlay/overlay.h"

struct rs_joining {
	struct rs_overlay *o;		/* takes what is joined */
	const struct rs_lower *lower;	/* below it */
	uint64_t root;			/* number of the job's folder */
	uint32_t node;			/* whose rows it has at first */
	/** Appends how users call an object, or (more: not "") a name in a folder. */
	int (*name)(void *arg, uint64_t ino, const char *more, struct sc_buf *to, struct sc_err *err);
	void *arg;
	/* zeroed at first */
	struct sc_map by;		/* names and objects of joined parts -> their nodes */
	struct sc_map gone;		/* what they have removed: they leave no row of it */
	struct sc_arena texts;
};

/**
 * Joins the part of a node: puts that are sorted as meta_upper_each() hands them over; of what was removed, a row with
 * link count 0.  Appends to `ret` the changes that the overlay has taken; their texts are the part's or j->texts.
 * After an error the overlay is of no use any more.
 */
int rs_join(struct rs_joining *j, uint32_t node, const struct meta_changes *part, struct meta_changes *ret,
	    struct sc_err *err);
void rs_joining_done(struct rs_joining *j);

#endif
