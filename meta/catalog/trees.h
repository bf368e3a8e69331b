/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees have all objects of jobs and versions but the bytes of files of tensors, as inodes and directory entries by
 * number (meta/tree/change.h).
 *
 *     upper layer of a job     inode, entry, xattr      what was made or changed since the job's version; it changes
 *          |                                            by records, which the log (meta/tree/tail.h) hands over
 *          |  a commit moves rows
 *          v
 *     tree 9 -> tree 7 -> 3    tree_inode, tree_entry,  what each commit added to the tree of the version before; the
 *                              tree_xattr               newest tree that has a row of a number tells all of it
 *
 * A tree is a chain of what its commits added, newest first.  An entry with number 0 is a whiteout: older trees of the
 * chain have that name, and it was removed.  The rows that a version sees never change; trees are only added, made
 * flat (one tree gets the rows of its whole chain, which says the same) and removed when nothing needs them.
 *
 * Hashes of committed files are those of their blobs: meta_blob_checked().
 *
 * Thread: any.  Errors: as in catalog.h.  A function that fails inside a transaction leaves it to be rolled back.
 */
#ifndef META_TREES_H
#define META_TREES_H

#include "meta/catalog/catalog.h"
#include "meta/tree/change.h"
#include "meta/tree/virtual.h"

/* --- numbers, and the log --- */

/**
 * Takes a block of `nr` numbers for a job, the first of which is *ret_first; none of them was given before or will be
 * given again, also when the job is removed.  A block is of one job, so a number tells its job.
 * Outside a transaction it is on stable storage then, since a number may be in what survives a power cut without the
 * catalog's last transactions: a file handle of an NFS client.  Take some thousand at once.  Inside a transaction the
 * block is a part of it, and as durable as it: begin it as durable.
 * Errors: SC_E_LIMIT (they are used up, after 2^42).
 */
int meta_numbers_take(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret_first, struct sc_err *err);
typedef int meta_numbers_fn(void *arg, uint64_t first, uint64_t nr, uint64_t job);
/** Walks over the blocks of all jobs, by their first numbers. */
int meta_numbers_each(struct meta_catalog *c, meta_numbers_fn *fn, void *arg, struct sc_err *err);

/** The sequence up to which the log's records are in the catalog: written in the transaction that applies them. */
int meta_tail_applied(struct meta_catalog *c, uint64_t *ret, struct sc_err *err);
int meta_tail_set_applied(struct meta_catalog *c, uint64_t sequence, struct sc_err *err);

/* --- upper layers --- */

/**
 * Applies records, inside a transaction.  Applying them again changes nothing.  A job's entries are found by their
 * folders' rows: a record that puts an entry also puts the row of its folder (its times change), unless it is there.
 *
 * A file with META_OWN_DATA has a row of its blob, which is added if it is missing.  When such a file is dropped or
 * gets another blob, the row of the old one goes, unless a set, dataset, tree or other file has it.  Who made the
 * record removes the blob's file afterwards, or the next start does: it is a file without a row.
 * Errors: SC_E_LIMIT (no blob may have this number).
 */
int meta_upper_apply(struct meta_catalog *c, const struct meta_changes *changes, struct sc_err *err);

/** Is handed a row as the change that puts it; its bytes are valid during the call.  Non-zero ends the walk. */
typedef int meta_change_fn(void *arg, const struct meta_change *change);
/** Walks over the upper layer of a job: inodes by number, then attributes, then entries. */
int meta_upper_each(struct meta_catalog *c, uint64_t job, meta_change_fn *fn, void *arg, struct sc_err *err);
/** Walks over the folders of all jobs that are shown under another number. */
int meta_again_each(struct meta_catalog *c, meta_change_fn *fn, void *arg, struct sc_err *err);
/** Removes all rows of a job's upper layer; its blobs become garbage.  Inside a transaction. */
int meta_upper_remove(struct meta_catalog *c, uint64_t job, struct sc_err *err);

/* --- reading committed trees --- */

#define META_CHAIN_MAX 16	/* trees of a chain: a commit over a longer one makes it flat first */
#define META_CHAIN_LONG 8	/* a chain that is longer should be made flat when there is time */

/** A tree that is read.  Its owner sets `id` (0: the empty tree) and zeroes the rest; threads may share it. */
struct meta_tree {
	uint64_t id;
	/* lock: the catalog's.  The chain as it was at change `seen` of the catalog's chains. */
	uint64_t seen;
	uint32_t nr;
	uint64_t chain[META_CHAIN_MAX];	/* newest first */
};

/**
 * Finds the row of an inode: 1, 0 (the tree has none) or an error.  `target` holds the bytes of a symbolic link, which
 * ret->target points to; NULL: they are not wanted.  Committed rows know no job (versions of several jobs share
 * them): ret->job is 0.  The bytes of a file are META_LOWER_DATA.
 */
int meta_tree_inode(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, struct meta_inode_row *ret,
		    struct sc_buf *target, struct sc_err *err);
/** Finds the number that a name has in a folder; *ret_ino is 0 if the folder has no such name. */
int meta_tree_child(struct meta_catalog *c, struct meta_tree *tree, uint64_t parent, struct meta_bytes name,
		    uint64_t *ret_ino, struct sc_err *err);
typedef int meta_entry_fn(void *arg, const struct meta_entry_row *row);
typedef int meta_xattr_fn(void *arg, const struct meta_xattr_row *row);
/** Walks over a folder's names, sorted by their bytes. */
int meta_tree_children(struct meta_catalog *c, struct meta_tree *tree, uint64_t parent, meta_entry_fn *fn, void *arg,
		       struct sc_err *err);
/** Walks over the extended attributes of an inode, sorted by their names. */
int meta_tree_xattrs(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_xattr_fn *fn, void *arg,
		     struct sc_err *err);
/** Tells whether a row of the tree's chain may have extended attributes. */
int meta_tree_any_xattr(struct meta_catalog *c, struct meta_tree *tree, bool *ret, struct sc_err *err);
/**
 * Walks over the names that an inode has, in no order, each once.  What was in a folder when it was removed keeps its
 * rows, so a folder here may have no name itself: who follows the names of folders up to the job's or a rank's notices
 * it.
 */
int meta_tree_names(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_entry_fn *fn, void *arg,
		    struct sc_err *err);

/** Walks over the numbers of folders and symbolic links that the rows of a tree's chain tell of, each once.  The tree
 *  itself may have some of them no more. */
int meta_tree_folders(struct meta_catalog *c, struct meta_tree *tree, int (*fn)(void *arg, uint64_t ino), void *arg,
		      struct sc_err *err);
/** Walks over the folders that have the name of a checkpoint's marker, each once (reshard/checkpoint/folders).  One
 *  query of an index, however large the tree is. */
int meta_tree_named(struct meta_catalog *c, struct meta_tree *tree, int (*fn)(void *arg, uint64_t folder), void *arg,
		    struct sc_err *err);
typedef int meta_tree_path_fn(void *arg, int64_t rank, const char *path);
/** Walks over the paths of an inode in the folders of ranks and of the job (META_SHARED); what is in a removed folder
 *  has none. */
int meta_tree_paths(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_tree_path_fn *fn, void *arg,
		    struct sc_err *err);

/** What a tree says about itself; it says nothing about the trees below it, but which they are. */
struct meta_tree_row {
	uint64_t base;		/* the tree that it lies over, 0: none */
	uint64_t root;		/* number of the job's folder */
	uint64_t layout;	/* under this layout and topology its rows of ranks were made */
	const char *topology;
};
/** Tells about a tree.  ret->topology points into `topology` (NULL: it is not wanted).  Errors: SC_E_NOT_FOUND. */
int meta_tree_about(struct meta_catalog *c, uint64_t tree, struct meta_tree_row *ret, struct sc_buf *topology,
		    struct sc_err *err);

/* --- making and removing trees: inside a transaction --- */

struct meta_tree_spec {
	uint64_t job;
	uint64_t base;		/* tree of the job's version, 0: it has none */
	uint64_t root;		/* number of the job's folder; SC_RANKS_MAX numbers for those of its ranks follow it */
	uint64_t layout;	/* of the new version; the same for its topology */
	const char *topology;
	/*
	 * What the commit decided about the new tree, applied after the upper rows were moved there:
	 *   a put inode      stands in place of the moved row: a written file's attributes as its backing file has
	 *   them,
	 *                    an equal blob in place of its own; or is added to the moved ones
	 *   a dropped inode  is not in the tree's rows, nor are its attributes: a shard without other names
	 *   a put entry      likewise; with number 0 the name is not in the tree: it became a shard
	 *   a put xattr      likewise
	 * Other kinds are refused.
	 */
	struct meta_changes rows;
};

/**
 * Moves the upper layer of a job into a new tree over spec->base.  These stay in the upper layer: FIFOs, sockets and
 * devices with the entries that name them (the tree does not have these names), and what has no name any more
 * (nlink 0), with the entries in it.  The caller gives the tree to a version in the same transaction, or it is garbage.
 * Rows of blobs stay as they are: the caller seals those that it commits (meta_blob_seal()).
 * If nothing is to be committed, it is a tree without rows, which says what its base says; who knows that keeps the
 * base.
 */
int meta_tree_commit(struct meta_catalog *c, const struct meta_tree_spec *spec, uint64_t *ret_tree, struct sc_err *err);

/** Adds a tree of these rows, each a put one, as meta_tree_rows() hands them over; a name that is put with number 0 is
 *  a whiteout.  spec->job is not used. */
int meta_tree_add(struct meta_catalog *c, const struct meta_tree_spec *spec, uint64_t *ret_tree, struct sc_err *err);

/**
 * Gives a tree the rows of its whole chain, so that it needs no other.  What no path from the folders of the job and of
 * its ranks, and from virtual numbers, reaches is left out: rows of removed files, whose blobs become garbage when no
 * other tree has them.  Its layout and topology stay.  Readers before and after it see the same.
 */
int meta_tree_flatten(struct meta_catalog *c, uint64_t tree, struct sc_err *err);
/**
 * Finds a tree of a version that should be made flat: its chain is long, or a tree in it has no version of its own
 * any more, so that it may keep files which were removed.  *ret is 0 if there is none.
 */
int meta_tree_to_flatten(struct meta_catalog *c, uint64_t *ret, struct sc_err *err);
/** Removes the trees that no version and no other tree needs, with their rows; their blobs become garbage. */
int meta_tree_garbage(struct meta_catalog *c, struct sc_err *err);

/* --- recovery records: what `fsck --rebuild` makes trees of (tree_records.c) --- */

struct meta_tree_record {
	uint64_t id, base, root, layout;
	const char *topology, *job;
	uint64_t job_id, uid, gid, job_mode;
	uint64_t version;		/* the newest one that has the tree, 0: none */
	int64_t step;			/* of that version, -1: none; all below, too */
	uint64_t head_layout;
	uint64_t last_set;		/* the newest set of the catalog */
	const char *head_topology;
};
typedef int meta_tree_record_fn(void *arg, const struct meta_tree_record *record);
/** Walks over the trees that were made, or made flat, since their records were kept; bases first. */
int meta_tree_unkept(struct meta_catalog *c, meta_tree_record_fn *fn, void *arg, struct sc_err *err);
/** Walks over the rows of one tree of a chain: inodes (`rdev` of a file is its size), then attributes, then entries. */
int meta_tree_rows(struct meta_catalog *c, uint64_t tree, meta_change_fn *fn, void *arg, struct sc_err *err);
/** Walks over the blocks that the numbers of inodes in a tree's rows are of, but for its job's and ranks' folders. */
int meta_tree_numbers(struct meta_catalog *c, uint64_t tree, meta_numbers_fn *fn, void *arg, struct sc_err *err);
/** Walks over the paths that virtual numbers in a tree's rows are made of. */
int meta_tree_path_texts(struct meta_catalog *c, uint64_t tree, meta_text_fn *fn, void *arg, struct sc_err *err);
/** Walks over a version's sets: number and logical file. */
int meta_version_files(struct meta_catalog *c, uint64_t version, meta_text_fn *fn, void *arg, struct sc_err *err);
/** Notes that a record tells the rows of its tree, unless the tree was made flat meanwhile, or its job is called
 *  otherwise, or another's. */
int meta_tree_set_kept(struct meta_catalog *c, const struct meta_tree_record *record, struct sc_err *err);
/** Notes that a record does not tell which version has its tree now.  Inside a transaction. */
int meta_tree_set_unkept(struct meta_catalog *c, uint64_t tree, struct sc_err *err);
/** Tells whether the catalog has this tree: 1, 0 or an error. */
int meta_tree_known(struct meta_catalog *c, uint64_t tree, struct sc_err *err);
/** Keeps numbers up to `last` from being given to new trees. */
int meta_tree_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err);

#endif
