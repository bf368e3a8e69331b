/* SPDX-License-Identifier: Apache-2.0 */
/* What a view shows, shared by below.c (by number) and below_files.c (by path). */
#ifndef RS_BELOW_I_H
#define RS_BELOW_I_H

#include "reshard/shown/shown_i.h"

enum rs_origin { RS_FROM_TENSORS, RS_FROM_BYTES, RS_FROM_DATA };

struct rs_below_file {
	enum rs_origin origin;
	const struct rs_set *set;	/* of FROM_BYTES */
	char path[];
};

struct rs_below_folder {		/* a folder on the way to files; "" is the rank's */
	size_t nr, room;
	struct meta_bytes *at;		/* names in it */
	uint32_t folders;		/* so many of these are folders */
	char path[];
};

struct rs_rank_files {			/* never changed once it is there */
	uint32_t rank;
	bool rows;			/* rows of the tree count (B2) */
	struct sc_map files, folders;	/* by path */
	struct sc_arena arena;
};

struct rs_where {
	uint64_t ino;
	uint32_t rank;
	const char *path;
};

struct rs_below {
	struct rs_view *view;
	struct meta_catalog *catalog;
	struct meta_tree tree;
	bool dropped;			/* the version was, and its tree's rows are gone; atomic */
	uint64_t root;
	uint32_t ranks, rows_ranks;	/* of the view; of the topology under which the tree's rows were made */
	const struct meta_layout *rows_layout;
	struct meta_topology rows_topo;
	int64_t floor_ns;
	struct meta_inode_row folder;	/* times of what has no row */
	bool same;			/* the rows were made under this layout and topology */
	bool has_rank_folder;
	struct rs_owner rank_folder;	/* what those that were made have in common */
	pthread_mutex_t lock;		/* below */
	struct sc_map tables;		/* rank -> struct rs_rank_files */
	struct sc_map wheres;		/* number -> struct rs_where */
	struct sc_arena arena;
};

/* below_files.c */
int rs_rank_files(struct rs_below *b, uint32_t rank, const struct rs_rank_files **ret, struct sc_err *err);
/** Has a rank the coordinates that it had when the tree's rows were made (B2)? */
bool rs_rank_has_rows(const struct rs_below *b, uint32_t rank);
const struct rs_below_file *rs_rank_file(const struct rs_rank_files *t, const char *path);
const struct rs_below_folder *rs_rank_folder(const struct rs_rank_files *t, const char *path);
/** Gives the row of the set that a rank sees as this plain file. */
const struct rs_set_blob *rs_below_plain(const struct rs_below *b, uint32_t rank, const struct rs_below_file *file);

/** Returns rc, or 0 for an error that comes from rows of a version that was dropped meanwhile. */
int rs_below_unless_dropped(struct rs_below *b, int rc);

/* below.c */
/** Gives the number of a name in a folder, which is at `at`; 0: there is none. */
int rs_below_number(struct rs_below *b, const struct rs_where *at, uint64_t folder, struct meta_bytes name,
		    uint64_t *ret, struct sc_err *err);

#endif
