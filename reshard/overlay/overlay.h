/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working tree of a job, by inode number.  Objects that programs made or changed lie in an upper layer; the lower
 * layer is the job's version.  This room knows neither paths nor FUSE nor SQL; docs/tree.md has the design.
 *
 *  T1  A number is given once, to one object.  Copying an object up, renaming it and committing it keep its number.
 *  T2  An object is the upper row of its number if there is one, else the lower one.
 *  T3  The children of a folder are the lower ones overlaid by the upper entries.  An entry without a number is a
 *      whiteout, and lies over a lower name only.  A removed folder has no children.
 *  T4  A new folder has a new number, so no lower child shows through it.  A rename changes entries, never numbers, so
 *      the lower children of a folder follow it.
 *  T5  Link counts are columns, kept by each request: files by their names, folders 2 and their subfolders.
 *  T6  An object without a name keeps its row, with link count 0, until the caller drops it: somebody may hold it.
 *  T7  A request is one record (meta/tree/change.h).  It is logged before it changes memory; a request that fails has
 *      changed neither.  Memory is what all records make of the rows that were loaded, and nothing else.
 *
 * Thread: the caller's lock is held, for writing where a function changes something.  Errors: those named, and
 * SC_E_NO_MEMORY, those of `number` and `log`, and those of the lower layer.
 */
#ifndef RS_OVERLAY_H
#define RS_OVERLAY_H

#include "meta/tree/change.h"

struct rs_overlay;

typedef int rs_child_fn(void *arg, struct meta_bytes name, uint64_t ino);
typedef int rs_xattr_fn(void *arg, struct meta_bytes name, struct meta_bytes value);

/** The functions of a lower layer.  It is no error if something is not there. */
struct rs_lower {
	/** Gives a row: 1, 0 (there is none), or an error.  Its texts live in `texts`. */
	int (*inode)(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err);
	/** Gives the number of a name in a folder, 0: there is none. */
	int (*child)(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err);
	/** Walk; a callback that returns non-zero ends the walk, and that value is returned. */
	int (*children)(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err);
	int (*xattrs)(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err);
	void *arg;
	bool lets_ranks_go;	/* no version has them: the folder of a rank may be removed as any other */
};

/** What a change needs from outside of this room: numbers and a log. */
struct rs_overlay_log {
	/** Gives a number that was never given before. */
	int (*number)(void *arg, uint64_t *ret, struct sc_err *err);
	/** Keeps a record so that it outlives the process. */
	int (*write)(void *arg, const struct meta_changes *record, struct sc_err *err);
	void *arg;
};

/** Makes an overlay without upper rows.  `root`: number of the job's folder; a rank's is root + 1 + rank. */
int rs_overlay_open(uint64_t job, uint64_t root, const struct rs_lower *lower, const struct rs_overlay_log *log,
		    struct rs_overlay **ret, struct sc_err *err);
struct rs_overlay *rs_overlay_close(struct rs_overlay *o);
/** Applies changes to memory alone: rows of the catalog, records that are in the log already. */
int rs_overlay_load(struct rs_overlay *o, const struct meta_changes *changes, struct sc_err *err);

/* --- what there is --- */

/** Gives the row of a number: 1, 0 (there is none), or an error.  Its texts live in `texts`. */
int rs_overlay_inode(const struct rs_overlay *o, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret,
		     struct sc_err *err);
/** Gives the number of a name in a folder, 0: there is none.  Errors: SC_E_NAME. */
int rs_overlay_child(const struct rs_overlay *o, uint64_t folder, struct meta_bytes name, uint64_t *ret,
		     struct sc_err *err);
/** Tells whether an object still has a name that it has in the lower layer: 1, 0 or an error. */
int rs_overlay_still_names(const struct rs_overlay *o, const struct meta_entry_row *below, struct sc_err *err);
/** Walks over the names in a folder, in no order. */
int rs_overlay_children(const struct rs_overlay *o, uint64_t folder, rs_child_fn *fn, void *arg, struct sc_err *err);
int rs_overlay_xattrs(const struct rs_overlay *o, uint64_t ino, rs_xattr_fn *fn, void *arg, struct sc_err *err);
/** Tells whether the upper layer has a row of this number. */
bool rs_overlay_has(const struct rs_overlay *o, uint64_t ino);
/** Walks over the upper rows. */
typedef int rs_row_fn(void *arg, const struct meta_inode_row *row);
int rs_overlay_each(const struct rs_overlay *o, rs_row_fn *fn, void *arg);
/** Walks over the upper entries of a folder, whiteouts too. */
int rs_overlay_entries(const struct rs_overlay *o, uint64_t folder, rs_child_fn *fn, void *arg);
/** Walks over the folders that have upper entries; of a row only `ino` and whether it has a name are sure. */
int rs_overlay_each_folder(const struct rs_overlay *o, rs_row_fn *fn, void *arg);
/** Appends the rows of objects that are shown under another number. */
int rs_overlay_each_again(const struct rs_overlay *o, struct meta_changes *ret, struct sc_err *err);
/** Counts the upper rows of objects without a name that are not forgotten. */
size_t rs_overlay_nameless(const struct rs_overlay *o);
/** Counts the changes of a folder's names since the upper layer was loaded.  If the count is another one than before,
 *  names may have come or gone. */
uint64_t rs_overlay_changes(const struct rs_overlay *o, uint64_t folder);
/** Gives a count that differs from an earlier one if anything has changed since; no lock is needed. */
uint64_t rs_overlay_applied(const struct rs_overlay *o);
/** Tells when an object has lost a name, or changed otherwise; 0: it has lost none of late. */
int64_t rs_overlay_lost_ns(const struct rs_overlay *o, uint64_t ino);

/* --- requests; `now_ns` is their time --- */

#define RS_LINKS_MAX 65000	/* names of a file, as ext4 has it */
#define RS_XATTR_VALUE_MAX 65536
#define RS_XATTRS_BYTES_MAX (1u << 20) /* of an inode */

/**
 * Makes an object.  `what` gives mode with type, owner, device, target, the blob of a file, and 0 or the number of a
 * rank's folder.  In a folder with SGID the object gets the folder's group, and a folder gets the bit.  Stores the
 * whole row in `what`.
 * Errors: SC_E_NOT_FOUND (the folder was removed), SC_E_EXISTS, SC_E_NOT_DIR, SC_E_NAME, SC_E_STALE.
 */
int rs_overlay_make(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		    struct meta_inode_row *what, struct sc_err *err);
/** Gives a file another name.  Errors: those of rs_overlay_make(), SC_E_NOT_FOUND (it has no name any more),
 *  SC_E_PERMISSION (it is a folder), SC_E_CROSS (it is another rank's), EMLINK. */
int rs_overlay_link(struct rs_overlay *o, int64_t now_ns, uint64_t ino, uint64_t folder, struct meta_bytes name,
		    struct sc_err *err);
/** Removes a name.  Errors: SC_E_NOT_FOUND, SC_E_IS_DIR, SC_E_STALE. */
int rs_overlay_unlink(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		      struct sc_err *err);
/** Removes an empty folder.  Errors: SC_E_NOT_FOUND, SC_E_NOT_DIR, SC_E_NOT_EMPTY, SC_E_BUSY (a rank), SC_E_STALE. */
int rs_overlay_rmdir(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		     struct sc_err *err);

enum rs_rename { RS_RENAME_OVER, RS_RENAME_NOREPLACE, RS_RENAME_EXCHANGE };
/**
 * Renames as renameat2(2).  Errors: of unlink and rmdir, SC_E_EXISTS, SC_E_CROSS (another rank), EINVAL (into itself),
 * SC_E_STALE (both names are one file's: the kernel, which would not have asked, has to look again).
 */
int rs_overlay_rename(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		      uint64_t new_folder, struct meta_bytes new_name, enum rs_rename how, struct sc_err *err);

/** The attributes that a setattr sets.  The type in `mode` is ignored. */
struct rs_attrs {
	bool has_mode, has_uid, has_gid, has_atime, has_mtime;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t atime_ns, mtime_ns;
};
int rs_overlay_set_attrs(struct rs_overlay *o, int64_t now_ns, uint64_t ino, const struct rs_attrs *set,
			 struct sc_err *err);
/** Sets the blob of a committed file to one that programs may write to.  Errors: SC_E_STALE, SC_E_EXISTS (it has one
 *  already). */
int rs_overlay_own_data(struct rs_overlay *o, int64_t now_ns, uint64_t ino, uint64_t blob, struct sc_err *err);
enum rs_xattr_set { RS_XATTR_ANY, RS_XATTR_NEW, RS_XATTR_OLD };
/** Sets an attribute.  Errors: SC_E_EXISTS (it has it, NEW), ENODATA (it has not, OLD), ENOSPC and E2BIG (limits). */
int rs_overlay_set_xattr(struct rs_overlay *o, int64_t now_ns, uint64_t ino, struct meta_bytes name,
			 struct meta_bytes value, enum rs_xattr_set how, struct sc_err *err);
/** Removes an attribute.  Errors: ENODATA. */
int rs_overlay_drop_xattr(struct rs_overlay *o, int64_t now_ns, uint64_t ino, struct meta_bytes name,
			  struct sc_err *err);
/** Forgets an object without a name, which nobody holds any more.  If the lower layer has the object, a row stays that
 *  hides its name there (META_FORGOTTEN).  Errors: SC_E_BUSY (it has a name). */
int rs_overlay_forget(struct rs_overlay *o, uint64_t ino, struct sc_err *err);

/* --- numbers that programs see --- */

#define RS_WAS (UINT64_C(1) << 61) /* in a number: what is held without a name, while something else came back */
/** Give the number under which an object is shown, and the object that is shown under a number. */
uint64_t rs_overlay_shown(const struct rs_overlay *o, uint64_t ino);
uint64_t rs_overlay_of_shown(const struct rs_overlay *o, uint64_t number);

/* --- a new version below --- */

/** The numbers that somebody holds when the version below is replaced, in ascending order. */
struct rs_held {
	const uint64_t *at;
	size_t nr;
};
/**
 * Prepares for another version below without a commit (rollback, discard): appends the rows that the upper layer will
 * then have.  These are of objects that somebody holds: `held` names those of the lower layer of now and of files of
 * the upper one; objects of the upper layer that are no regular files are taken for held.  An object that is not in
 * `after` loses its name.  So does a removed folder that is in `after` again, and a file whose own bytes are not those
 * that it has in `after`: these get rows beside the object that is back (RS_WAS).  Changes nothing.  Texts live in
 * `texts` or are the overlay's.
 */
int rs_overlay_plan_back(const struct rs_overlay *o, int64_t now_ns, const struct rs_lower *after,
			 const struct rs_held *held, struct sc_arena *texts, struct meta_changes *ret,
			 struct sc_err *err);
/**
 * Prepares for a commit: appends the rows of an object without a name that has a virtual number, which any version may
 * show again, under a new one (RS_WAS).  The row that it has is to be dropped.
 */
int rs_overlay_plan_apart(const struct rs_overlay *o, int64_t now_ns, const struct meta_inode_row *row,
			  struct sc_arena *texts, struct meta_changes *ret, struct sc_err *err);
/** Makes an upper layer of rows, so that putting it in place cannot fail; rs_overlay_layer_done() frees it. */
struct rs_layer;
int rs_overlay_layer(const struct meta_changes *rows, struct rs_layer **ret, struct sc_err *err);
/** Puts a layer in place (NULL: the upper rows stay), over another lower layer. */
void rs_overlay_put(struct rs_overlay *o, const struct rs_lower *lower, struct rs_layer *layer);
void rs_overlay_layer_done(struct rs_layer *layer);
/** Allocates what changes of rows need, so that putting them in place cannot fail; `changes` are borrowed, and nobody
 *  changes the overlay in between.  rs_overlay_ready_done() frees it. */
struct rs_ready;
int rs_overlay_ready(struct rs_overlay *o, const struct meta_changes *changes, struct rs_ready **ret,
		     struct sc_err *err);
/** Puts these changes in place, over another lower layer. */
void rs_overlay_put_ready(struct rs_overlay *o, const struct rs_lower *lower, struct rs_ready *ready);
void rs_overlay_ready_done(struct rs_ready *ready);

#endif
