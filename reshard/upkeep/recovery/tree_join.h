/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the recovery records of a chain of trees into one tree without a base. */
#ifndef RS_TREE_JOIN_H
#define RS_TREE_JOIN_H

#include "meta/catalog/trees.h"
#include "reshard/upkeep/recovery/trees.h"

struct rs_joined {
	struct rs_tree_record chain[META_CHAIN_MAX];	/* newest first */
	size_t nr_chain;
	struct {
		size_t nr, room;
		struct rs_joined_inode {
			const struct meta_inode_row *row;
			size_t from;	/* in the chain */
			bool live;	/* it has a name, or needs none */
			bool lost;	/* the caller's */
			uint64_t number;	/* the caller's */
		} **at;
	} inodes;
	struct {
		size_t nr, room;
		struct rs_joined_entry {
			const struct meta_entry_row *row;
			const struct rs_joined_inode *inode;	/* that it names, NULL: one without a row */
			bool live;	/* it is in a folder that is live */
			uint32_t rank;	/* RS_SHARED: in the job's folder */
			const char *path;
		} *at;			/* by folder */
	} entries;
	struct {
		size_t nr, room;
		const struct meta_xattr_row **at;
	} xattrs;			/* of rows that count */
	struct sc_map by_number, names;
	struct sc_arena arena;
};

/** Reads the records of a tree and of all below it.  Errors: SC_E_FORMAT (one is missing or damaged), of reading. */
int rs_tree_join(struct rs_service *s, uint64_t tree, struct rs_joined *ret, struct sc_err *err);
void rs_joined_done(struct rs_joined *joined);
/** Finds the row of a number; NULL: there is none. */
struct rs_joined_inode *rs_joined_inode(const struct rs_joined *joined, uint64_t ino);
/** Gives the path that virtual numbers with this path number are made of; NULL: no record tells. */
const char *rs_joined_path(const struct rs_joined *joined, uint64_t path_id);

#endif
