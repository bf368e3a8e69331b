/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells what a view (a version at a topology) shows: files of its sets and datasets, and what the version's tree says
 * of folders, links, numbers and attributes.  Nothing here changes anything.
 *
 * Numbers are those that programs see (st_ino).  An object that a program made has a number below META_VIRTUAL.  Files
 * and folders that nobody made, as they follow from a topology, have numbers made of job, rank and path.
 */
#ifndef RS_SHOWN_H
#define RS_SHOWN_H

#include "meta/tree/change.h"
#include "meta/tree/virtual.h"
#include "reshard/version/partitions/parts.h"
#include "reshard/version/state/state.h"

/* --- what there is --- */

enum rs_kind {
	RS_NONE,
	RS_DIR, RS_LINK,
	RS_SPECIAL,		/* a FIFO, socket or device */
	RS_VIEW, RS_BLOB,	/* a committed file: described, or a blob */
	RS_WORK,		/* a file that programs may write to */
	RS_DATA,		/* a file of a dataset */
};

struct rs_look {
	enum rs_kind kind;
	uint64_t ino;		/* in a working tree: its number */
	struct rs_owner owner;	/* without the type; of RS_WORK its file says */
	mode_t type;		/* S_IFDIR, ... */
	uint32_t nlink;
	uint64_t rdev;		/* of a device */
	uint64_t bytes;		/* of RS_WORK its file says */
	uint64_t blob;		/* of RS_BLOB and RS_WORK */
	int64_t atime_ns, mtime_ns, ctime_ns; /* of RS_WORK: its file's, but ctime is the later one of both */
	uint64_t changes;	/* rs_tree_applied(), of when it was looked up in a working tree */
	int64_t lost_ns;	/* when it lost a name, in a working tree; 0: not of late */
	uint64_t place;		/* of RS_VIEW, RS_BLOB, RS_DATA: the rank's, in the view that has it (fs/node/node.h) */
	uint32_t rank;		/* of these: whose folder it is in, RS_SHARED: the job's */
	uint64_t path_id;	/* and the path there, by number; of a RS_LINK of a view: if it has several names */
};

/** Reads an extended attribute of the object at a path of a view: 1, 0 (it has none of this name), or an error. */
int rs_view_xattr(struct rs_view *view, uint32_t rank, const char *path, struct meta_bytes name, struct sc_buf *ret,
		  struct sc_err *err);
/** Appends the names of all extended attributes of the object at a path, each with a 0 behind it. */
int rs_view_xattrs(struct rs_view *view, uint32_t rank, const char *path, struct sc_buf *ret, struct sc_err *err);
/** Reads a symbolic link of a view. */
int rs_view_link(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path, struct sc_buf *ret,
		 struct sc_err *err);

#endif
