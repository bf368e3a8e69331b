/* SPDX-License-Identifier: Apache-2.0 */
/* The upper layer in memory, and records that are being made. */
#ifndef RS_OVERLAY_I_H
#define RS_OVERLAY_I_H

#include "reshard/overlay/overlay.h"

struct rs_xattr {
	struct rs_xattr *next;
	struct meta_bytes name, value;	/* behind the struct */
};

struct rs_node {
	struct meta_inode_row row;	/* its target is behind the struct */
	struct rs_xattr *xattrs;
	uint64_t changes;		/* of the names in it */
	int64_t lost_ns;		/* when it lost a name, if it did since the rows were loaded */
};

struct rs_name {
	struct rs_name *next, *prev;	/* of the same folder */
	uint64_t ino;			/* 0: whiteout */
	size_t bytes;			/* of the name */
	struct rs_name_key {
		uint64_t folder;
		char name[];
	} key;
};

/* The upper entries of a folder. */
struct rs_names {
	uint64_t folder;
	struct rs_name *first;
};

struct rs_upper {
	struct sc_map nodes;		/* number -> struct rs_node */
	struct sc_map names;		/* struct rs_name_key -> struct rs_name */
	struct sc_map folders;		/* number -> struct rs_names */
	size_t nameless;		/* rows with link count 0 that are not forgotten */
	struct sc_map again, again_of;	/* number, its other number -> struct meta_again_row */
};

struct rs_overlay {
	uint64_t job, root;
	struct rs_lower lower;
	struct rs_overlay_log log;
	struct rs_upper up;
	uint64_t swaps;
	uint64_t applied;	/* changes of any kind; atomic */
};

/* upper.c */
struct rs_node *rs_upper_node(const struct rs_upper *up, uint64_t ino);
struct rs_name *rs_upper_name(const struct rs_upper *up, uint64_t folder, struct meta_bytes name);
const struct rs_names *rs_upper_names(const struct rs_upper *up, uint64_t folder);
void rs_upper_done(struct rs_upper *up);
/** Memory for changes, so that applying them cannot fail. */
struct rs_prepared {
	const struct meta_changes *changes;
	void **at;			/* for each change what it puts */
	struct rs_names **folders;	/* for each change */
};
/** Allocates what the changes need.  Errors: SC_E_NO_MEMORY. */
int rs_upper_prepare(struct rs_upper *up, const struct meta_changes *changes, struct rs_prepared *ret,
		     struct sc_err *err);
/** Ends what rs_upper_prepare() began: applies the changes, or only frees the memory. */
void rs_upper_apply(struct rs_upper *up, struct rs_prepared *p);
void rs_upper_cancel(struct rs_prepared *p);

/* record.c: a record that is being made.  Reads of the overlay see the state before it. */
struct rs_record {
	struct rs_overlay *o;
	int64_t now_ns;
	struct sc_arena texts;
	struct {
		struct meta_inode_row **at;
		size_t nr, room;
	} rows;				/* as they will be */
	struct meta_changes changes;	/* of names and attributes */
};

struct rs_record rs_record_begin(struct rs_overlay *o, int64_t now_ns);
/** Gives the row of an object as it will be, to be changed; copies a lower one up.  Errors: SC_E_STALE (no object). */
int rs_record_row(struct rs_record *r, uint64_t ino, struct meta_inode_row **ret, struct sc_err *err);
/** Sets the ctime of an object that changes.  Errors: SC_E_STALE (no object). */
int rs_record_touch(struct rs_record *r, uint64_t ino, struct sc_err *err);
/** Gives the row of a folder whose names change, as rs_record_row() does, and sets its times. */
int rs_record_folder(struct rs_record *r, uint64_t ino, struct meta_inode_row **ret, struct sc_err *err);
/** Adds the row of a new object; its texts are borrowed. */
int rs_record_new(struct rs_record *r, const struct meta_inode_row *row, struct sc_err *err);
/** Puts a name; its bytes are borrowed. */
int rs_record_put_name(struct rs_record *r, uint64_t folder, struct meta_bytes name, uint64_t ino, struct sc_err *err);
/** Removes a name: leaves a whiteout where the lower layer has it. */
int rs_record_drop_name(struct rs_record *r, uint64_t folder, struct meta_bytes name, struct sc_err *err);
int rs_record_add(struct rs_record *r, struct meta_change change, struct sc_err *err);
/** Logs the record and applies it, if rc is 0; frees it.  Returns rc or the error. */
int rs_record_end(struct rs_record *r, int rc, struct sc_err *err);

/* overlay.c */
int rs_overlay_check_name(struct meta_bytes name, struct sc_err *err);

/** Applies changes, and counts that for rs_overlay_applied(). */
static inline void rs_overlay_apply(struct rs_overlay *o, struct rs_prepared *p)
{
	rs_upper_apply(&o->up, p);
	(void)__atomic_add_fetch(&o->applied, 1, __ATOMIC_SEQ_CST);
}

#endif
