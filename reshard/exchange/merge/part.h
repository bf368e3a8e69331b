/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A part is what a node has uncommitted, for another node that commits it: the upper rows of a job, as a text, and
 * where the bytes of its files are.  Parts are joined to a second working tree, which begins with this node's own rows.
 *
 * Gates are closed on both nodes, and files are quiet: so a part that is made again, also by another daemon of its
 * node, is the same text.  FIFOs, sockets, devices and what has no name stay where they are.
 */
#ifndef RS_PART_H
#define RS_PART_H

#include "reshard/worktree/requests/tree_i.h"

#define RS_PART_BYTES_MAX (256u << 20)

/** Files of other nodes' working trees. */
struct rs_aways {
	size_t nr, room;
	struct rs_away_file {
		uint64_t blob;		/* a number of this store, which has no row yet */
		uint32_t node;
		uint64_t number, bytes;	/* there */
	} *at;				/* by blob */
};
/** Finds one; NULL: the blob's bytes are here, or it is committed. */
const struct rs_away_file *rs_away_find(const struct rs_aways *aways, uint64_t blob);

/** What other nodes add to a commit of this one. */
struct rs_joined {
	struct rs_job *tree;		/* second working tree, with what they add */
	struct meta_changes rows;	/* that they add to the upper layer */
	struct rs_aways aways;
};

/** Makes the part of node `node`, this one; without bytes: nothing is uncommitted.  Drains the log.
 *  Errors: SC_E_LIMIT, those of the catalog and of the system. */
int rs_part_make(struct rs_job *job, uint32_t node, struct sc_buf *ret, struct sc_err *err);
/** Flushes the files that a part of this node tells of, if the job has sync=on. */
int rs_part_flush(struct rs_job *job, struct sc_err *err);
/**
 * Reads a part of node `from`, as rows for rs_join(); texts are in the arena or in `text`.  Files that were written
 * there get numbers of this store (`node`), which are appended to `aways`.  Has a transaction of its own.
 * Errors: SC_E_FORMAT, SC_E_BUSY (it lies over another version), those of the catalog.
 */
int rs_part_take(struct rs_job *job, uint32_t node, uint32_t from, const struct meta_bytes *text,
		 struct sc_arena *arena, struct meta_changes *ret, struct rs_aways *aways, struct sc_err *err);

/** Makes a job in memory that has the same number, head and uncommitted rows, and is in no list.  For whoever keeps the
 *  gate closed. */
int rs_second_new(struct rs_job *job, struct rs_job **ret, struct sc_err *err);
void rs_second_free(struct rs_job *second);

#endif
