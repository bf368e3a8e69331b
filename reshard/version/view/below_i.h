/* SPDX-License-Identifier: Apache-2.0 */
/* What the files below*.c share: they find what a view shows, by number and by path. */
#ifndef RS_BELOW_I_H
#define RS_BELOW_I_H

#include "reshard/version/view/shown_i.h"

#include <sys/stat.h>

struct rs_below_file {			/* of tensors, or of a dataset */
	bool data;
	char path[];
};

struct rs_below_folder {		/* a folder on the way to files; "" is the rank's */
	size_t nr, room;
	struct meta_bytes *at;		/* names in it */
	uint32_t folders;		/* so many of these are folders */
	char path[];
};

enum rs_rows {				/* of the tree, that a rank shows (B2) */
	RS_ROWS_NONE,
	RS_ROWS_OWN,			/* its own */
	RS_ROWS_OTHER,			/* those of its source */
	RS_ROWS_COMMON,			/* what is the same in all ranks that there were */
};

struct rs_rank_files {			/* never changed once it is there */
	uint32_t rank, source;		/* source: of ROWS_OWN and ROWS_OTHER */
	enum rs_rows rows;
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
	bool has_xattrs;		/* some row of the tree has */
	bool same;			/* the rows were made under this layout and topology */
	bool has_rank_folder;
	struct rs_owner rank_folder;	/* what those that were made have in common */
	pthread_mutex_t lock;		/* below */
	struct sc_map tables;		/* rank -> struct rs_rank_files */
	struct sc_map wheres;		/* number -> struct rs_where */
	struct sc_map links;		/* rank and number in the tree -> struct known_links (below_source.c) */
	struct sc_arena arena;
	uint64_t serial;		/* no other one of this process has it */
};

/* below.c: numbers */
/** Tells at which rank and path a number is: 1, 0 (the view shows nothing under it), or an error. */
int rs_below_where(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err);
/** Gives the inode number that the view shows at a path of a rank; *ret 0: nothing is there.  `ino` is the number in
 *  the rank's own rows (0: it has no row there).  `remembers`: keeps the place for later look-ups by number. */
int rs_below_number_at(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
		       bool remembers, uint64_t *ret, struct sc_err *err);
/** Finds the number of a name in a folder; 0: there is none.  `below` is a struct rs_below. */
int rs_below_child(void *below, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err);
/** Finds the number of the folder in which an object is. */
int rs_below_parent(struct rs_below *b, const struct rs_where *at, uint64_t *ret, struct sc_err *err);

/* below_rows.c */
/** Finds the number that a name has in the tree, of its own rank's rows; 0: none. */
int rs_below_tree_child(struct rs_below *b, uint64_t folder, struct meta_bytes name, uint64_t *ret,
			struct sc_err *err);
/** Keeps a name that the tree was seen to have, if it is not too long. */
void rs_below_keep_name(struct rs_below *b, uint64_t folder, struct meta_bytes name, uint64_t ino);

/** Remembers that the tree has no name of a number: an object that was made since the version is asked for with each
 *  request. */
void rs_below_keep_nameless(const struct rs_below *b, uint64_t ino);
bool rs_below_is_nameless(const struct rs_below *b, uint64_t ino);
/** Keeps the rows of numbers, and the sizes of their bytes, that the caller is about to ask for. */
void rs_below_keep_rows(struct rs_below *b, const uint64_t *inos, size_t nr);

/* below_files.c */
int rs_rank_files(struct rs_below *b, uint32_t rank, const struct rs_rank_files **ret, struct sc_err *err);
const struct rs_below_file *rs_rank_file(const struct rs_rank_files *t, const char *path);
const struct rs_below_folder *rs_rank_folder(const struct rs_rank_files *t, const char *path);

/** Looks up the bytes of a file of tensors or of a dataset: kind, bytes, blob. */
int rs_below_described(struct rs_below *b, uint32_t rank, const char *path, const struct rs_below_file *file,
		       struct rs_look *ret, struct sc_err *err);

static inline bool rs_below_has_tree(const struct rs_below *b)
{
	return b->tree.id && !__atomic_load_n(&b->dropped, __ATOMIC_RELAXED);
}

/* below_tree.c */
struct rs_named_list {		/* names that the tree has */
	size_t nr, room;
	struct rs_named {
		uint64_t parent, ino;
		struct meta_bytes name;
	} *at;
	struct sc_arena arena;
	struct sc_err *err;
};
/** Takes a row of the catalog into the list `arg`, whose names are sorted by their bytes. */
int rs_on_named(void *arg, const struct meta_entry_row *row);
int rs_by_name(const void *a, const void *b);
void rs_named_done(struct rs_named_list *n);
/** Returns rc, or 0 if it is the error of a version that was dropped meanwhile, and whose rows are gone. */
int rs_below_unless_dropped(struct rs_below *b, int rc);

/** Tells which rows a rank of a presentation shows, and of which rank they are. */
enum rs_rows rs_below_source(const struct rs_below *b, const struct meta_layout *layout,
			     const struct meta_topology *topo, uint32_t rank, uint32_t *ret_source);

/* below_source.c: rows of other ranks, by path.  1: there is one, 0: none, or an error */

/** Finds the row that a rank with RS_ROWS_OTHER or RS_ROWS_COMMON shows at a path; `target` may be NULL. */
int rs_source_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct meta_inode_row *ret,
		  struct sc_buf *target, struct sc_err *err);
struct rs_source_links {
	size_t nr, room;
	const char **at;		/* paths inside the rank, sorted */
	struct sc_arena arena;
};
/** Gives all names of the file at a path in a rank with RS_ROWS_OTHER or RS_ROWS_COMMON: 1, 0 (nothing is there), or an
 *  error.  The list is empty for a file with one name, and for a folder. */
int rs_source_links(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct rs_source_links *ret,
		    struct sc_err *err);
/** Gives the first of these names, or the path itself if there is one name only; it lives as long as the view.  1, 0
 *  (nothing is there), or an error. */
int rs_source_first(struct rs_below *b, const struct rs_rank_files *t, const char *path, const char **ret,
		    struct sc_err *err);
void rs_source_links_done(struct rs_source_links *links);
struct rs_source_names {
	size_t nr, room;
	struct meta_bytes *at;		/* sorted by their bytes; a 0 follows each */
	struct sc_arena arena;
};
/** Gives the names in a folder of a rank with RS_ROWS_OTHER or RS_ROWS_COMMON; files of tensors may be among them. */
int rs_source_children(struct rs_below *b, const struct rs_rank_files *t, const char *path,
		       struct rs_source_names *ret, struct sc_err *err);
void rs_source_names_done(struct rs_source_names *names);
int rs_source_xattrs(struct rs_below *b, const struct rs_rank_files *t, const char *path, rs_xattr_fn *fn, void *arg,
		     struct sc_err *err);
/** Clears the mode bits of users who could not reach a file through the folders above it, in the rank of its rows. */
int rs_source_limit(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct rs_owner *owner,
		    struct sc_err *err);

/* Tells whether a row is of several files of tensors that were one file where they were written, and are not here
 * (B4). */
static inline bool rs_below_is_split(const struct rs_below *b, const struct meta_inode_row *row)
{
	return !b->same && S_ISREG(row->mode) && !row->blob && row->nlink > 1;
}

static inline uint64_t rs_number_of_rank(const struct rs_below *b, uint32_t rank)
{
	return rank == RS_SHARED ? b->root : b->root + 1 + rank;
}

/* below_rows.c: 1: there is one, 0: none, or an error */

/** Finds the row that a rank itself has at a path, if it counts there (B1). */
int rs_own_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
	       struct meta_inode_row *ret, struct sc_buf *target, struct sc_err *err);
/** Finds the row that the tree has for an object. */
int rs_tree_row(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
		struct meta_inode_row *ret, struct sc_buf *target, struct sc_err *err);
/** Finds the row of an object.  Of a folder without a row of its own it does not know what is above: `parent` is 0. */
int rs_below_row(struct rs_below *b, const struct rs_where *at, struct meta_inode_row *ret, struct sc_buf *target,
		 struct sc_err *err);
int rs_below_blob_bytes(struct rs_below *b, const struct meta_inode_row *row, uint64_t *ret, struct sc_err *err);

#endif
