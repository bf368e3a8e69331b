/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of working trees, and records that change them.  A working tree is the upper layer of an overlay: inodes and
 * directory entries that ranks made or changed since the job's version (docs/tree.md).  Each request of a program that
 * changes something is one record: a list of rows that are put or dropped.  Records change memory, the log (tail.h) and
 * the catalog's tables, and nothing else changes these.
 *
 * Putting a row replaces the one with its key; dropping an absent row is nothing.  So a record can be applied again.
 */
#ifndef META_CHANGE_H
#define META_CHANGE_H

#include <sys/types.h>

#include "meta/base/err.h"
#include "meta/base/mem.h"

/** Bytes that are no text: they may hold anything, and no 0 follows them. */
struct meta_bytes {
	const char *at;
	size_t nr;
};

/** Returns the path of a name in a folder ('' is the top), in the arena; NULL: no memory. */
char *meta_path_in(struct sc_arena *arena, const char *folder, struct meta_bytes name);

/** The place of the bytes of an inode. */
enum meta_data {
	META_NO_DATA,		/* it is no regular file */
	META_OWN_DATA,		/* in a blob of the working tree, which a program may write to */
	META_LOWER_DATA,	/* in a committed blob: only attributes or names of the file were changed */
	META_FORGOTTEN,		/* of anything without a name that nobody holds: the version below has it still */
};

/** A folder, file, symbolic link or special file. */
struct meta_inode_row {
	uint64_t ino;			/* given once, in the life of a store */
	uint64_t job;
	mode_t mode;			/* with the type */
	uid_t uid;
	gid_t gid;
	uint64_t rdev;			/* of a device */
	uint32_t nlink;			/* 0: it has no name any more, but somebody may hold it */
	int64_t atime_ns, mtime_ns, ctime_ns;
	uint64_t parent;		/* of a folder: the folder that has its name; else the rank's or job's folder,
					 * which the object never leaves */
	enum meta_data data;
	uint64_t blob;			/* of a file */
	struct meta_bytes target;	/* of a symbolic link */
};

/** Clears the bits of users who could not reach a file through a folder. */
static inline mode_t meta_mode_below(mode_t mode, gid_t gid, const struct meta_inode_row *folder)
{
	bool group = folder->mode & 0010, others = folder->mode & 0001;

	if (folder->gid != gid)
		group = others = group && others;
	return mode & ~(mode_t)((group ? 0 : 0070) | (others ? 0 : 0007));
}

/** A name in a folder. */
struct meta_entry_row {
	uint64_t parent;
	struct meta_bytes name;
	uint64_t ino;			/* 0: a whiteout, the name that the version has here was removed */
};

/** An extended attribute. */
struct meta_xattr_row {
	uint64_t ino;
	struct meta_bytes name, value;
};

/** An object that is shown under another number: a rollback brought it back while a program held what it was before. */
struct meta_again_row {
	uint64_t ino, number;
};

enum meta_change_kind {
	META_PUT_INODE = 1,
	META_DROP_INODE,	/* with its extended attributes and the entries in it; uses inode.ino */
	META_PUT_ENTRY,
	META_DROP_ENTRY,	/* uses entry.parent and entry.name */
	META_PUT_XATTR,
	META_DROP_XATTR,	/* uses xattr.ino and xattr.name */
	META_PUT_AGAIN,
};

struct meta_change {
	enum meta_change_kind kind;
	union {
		struct meta_inode_row inode;
		struct meta_entry_row entry;
		struct meta_xattr_row xattr;
		struct meta_again_row again;
	};
};

/** One request's changes, in order.  The bytes of their texts are borrowed. */
struct meta_changes {
	struct meta_change *at;
	size_t nr, room;
};

/** Appends the changes as bytes (which hold no pointers); on failure to->failed is set. */
void meta_changes_encode(const struct meta_changes *changes, struct sc_buf *to);
/**
 * Reads encoded changes and appends them to `ret`; their bytes point into `from`.  Never reads beyond `bytes`.
 * Errors: SC_E_CORRUPT (no encoded changes, nothing was appended), SC_E_NO_MEMORY.
 */
int meta_changes_decode(const char *from, size_t bytes, struct meta_changes *ret, struct sc_err *err);

static inline void meta_changes_done(struct meta_changes *changes)
{
	sc_vec_done(changes);
}

#endif
