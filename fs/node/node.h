/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodeids are numbers made of numbers that the catalog gives, never pointers: a kernel may remember one for longer than
 * any object lives, and the next daemon means the same by it.
 *
 *     63..60  59..0
 *      kind     job (20), 0 (40)          JOB: number rs_job_root() of its working tree
 *      kind     number (60 bits)          INODE: a folder, link or special file of a head
 *      kind     number without META_VIRTUAL IMPLIED: a folder of a head that follows from a topology
 *      kind     job (20), blob (40)       WORK: a file that programs may write to
 *      kind     place (38), path (22)     VIEW, BLOB, SHARED: a committed file, of a head or a version;
 *                                         VROOT, VDIR, VLINK, VSDIR, VSLINK: what is in a version (.v, .as)
 *      kind     place (38), what (22)     VSPECIAL: .as, .pt, .dcp, .hf and .vllm of a version
 *      kind     job (20), what (40)       SPECIAL: .ctl, .v, .as, .full, .dcp, ... and the control files
 *
 * A place is a rank of a view (a version at a topology).  meta/catalog/numbers.c gives the numbers of jobs, places,
 * paths and blobs, and says when a number may be given again; those of working trees are given once.
 *
 * A number of a working tree is one object for ever, and its st_ino.  Its node is the number, too, but for regular
 * files: a node of these stands for one backing, because once an inode has a passthrough open, mmap of a descriptor
 * that was opened on it before fails (docs/decisions.md, "Nodeids are numbers").  So copying a file up, committing it,
 * and storing its version in another way change its node.  open(2) at an older node is answered ESTALE where it would
 * matter; all other requests at it act on the object.
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs_i.h"
#include "meta/base/limits.h"
#include "meta/tree/virtual.h"

enum fs_kind {
	FS_ROOT,	/* number 1 */
	FS_TOP,		/* /.ctl and what is in it: what */
	FS_JOB,		/* job */
	FS_SPECIAL,	/* job, what */
	FS_INODE,	/* number */
	FS_IMPLIED,	/* number */
	FS_WORK,	/* job, blob */
	FS_VIEW,	/* place, path: a committed file that is described */
	FS_BLOB,	/* place, path: one that is a blob */
	FS_SHARED,	/* place of rank 0, path: a committed file of the job itself */
	FS_VROOT,	/* place of rank 0: the folder of a version */
	FS_VDIR,	/* place, path: a folder of a rank; path "" is the rank's own */
	FS_VLINK,	/* place, path: a symbolic link of a rank */
	FS_VSDIR,	/* place of rank 0, path: a folder of the job itself */
	FS_VSLINK,	/* place of rank 0, path: a symbolic link of the job itself */
	FS_VSPECIAL,	/* place of rank 0, what: a folder of presentations of a version */
};

struct fs_node {
	enum fs_kind kind;
	uint64_t job, place, path, blob;
	uint64_t number;	/* as the working tree has it: with META_VIRTUAL */
	uint32_t what;
};

/** Numbers of what a node of FS_SPECIAL or FS_TOP is: the folder, then folders beside it, then control files. */
enum {
	FS_CTL_DIR,
	FS_V_DIR,
	FS_AS_DIR,
	FS_FULL_LINK,
	FS_CTL_FILE, /* + index of the control file */
	FS_DCP_DIR = 1 << 19, /* behind all of these: a kernel remembers their numbers */
	FS_PT_DIR,
	FS_HF_DIR,
	FS_VLLM_DIR,
	FS_GPU_DIR,
};

/** Gives the i-th of the names in a job's folder that are the mount's, and its `what`; NULL: there are no more. */
static inline const char *fs_special_name(uint32_t i, uint32_t *ret_what)
{
	static const char *const names[] = {".ctl", ".v", ".as", ".full", ".dcp", ".pt", ".hf", ".vllm",
					    ".gpu"};

	*ret_what = i >= 4 ? FS_DCP_DIR + i - 4 : i;
	return i < sizeof(names) / sizeof(*names) ? names[i] : (const char *)0;
}

#define FS_PRESENTED_FIRST 2	/* of these names: what a version has, too */

/** Tells whether a number `what` is of a control file. */
static inline bool fs_is_control(uint32_t what)
{
	return what >= FS_CTL_FILE && what < FS_DCP_DIR;
}

#define FS_NUMBER_MASK ((UINT64_C(1) << 60) - 1)

static inline uint64_t fs_node_id(struct fs_node n)
{
	uint64_t kind = (uint64_t)n.kind << 60;

	switch (n.kind) {
	case FS_ROOT:
		return 1;
	case FS_TOP:
		return kind | n.what;
	case FS_JOB:
		return kind | n.job << 40;
	case FS_SPECIAL:
		return kind | n.job << 40 | n.what;
	case FS_INODE:
	case FS_IMPLIED:
		return kind | (n.number & FS_NUMBER_MASK);
	case FS_WORK:
		return kind | n.job << 40 | n.blob;
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
	case FS_VROOT:
	case FS_VDIR:
	case FS_VLINK:
	case FS_VSDIR:
	case FS_VSLINK:
		return kind | n.place << SC_PATH_BITS | n.path;
	case FS_VSPECIAL:
		return kind | n.place << SC_PATH_BITS | n.what;
	}
	return 0;
}

static inline struct fs_node fs_node_of(uint64_t id)
{
	const uint64_t mask = (1u << 20) - 1;
	struct fs_node n = {.kind = (enum fs_kind)(id >> 60)};
	uint64_t high = id >> 40 & mask, low = id & mask;

	switch (n.kind) {
	case FS_ROOT:
		break;
	case FS_TOP:
		n.what = (uint32_t)low;
		break;
	case FS_JOB:
		n.job = high;
		break;
	case FS_SPECIAL:
		n.job = high;
		n.what = (uint32_t)low;
		break;
	case FS_INODE:
		n.number = id & FS_NUMBER_MASK;
		break;
	case FS_IMPLIED:
		n.number = (id & FS_NUMBER_MASK) | META_VIRTUAL;
		break;
	case FS_WORK:
		n.job = high;
		n.blob = id & ((UINT64_C(1) << 40) - 1);
		break;
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
	case FS_VROOT:
	case FS_VDIR:
	case FS_VLINK:
	case FS_VSDIR:
	case FS_VSLINK:
		n.place = (id & FS_NUMBER_MASK) >> SC_PATH_BITS;
		n.path = id & (SC_PATHS_MAX - 1);
		break;
	case FS_VSPECIAL:
		n.place = (id & FS_NUMBER_MASK) >> SC_PATH_BITS;
		n.what = (uint32_t)(id & (SC_PATHS_MAX - 1));
		break;
	}
	return n;
}

/** Tells whether a node is found by a place. */
static inline bool fs_node_has_place(const struct fs_node *n)
{
	return n->kind >= FS_VIEW;
}

/** Tells whether a node is the folder of a whole version, without rank and path. */
static inline bool fs_node_is_version(const struct fs_node *n)
{
	return n->kind == FS_VROOT || n->kind == FS_VSPECIAL;
}

/** Tells whether a node is a regular file, committed or not, of a head, or (committed) of a version. */
static inline bool fs_node_is_file(const struct fs_node *n)
{
	return n->kind == FS_WORK || n->kind == FS_VIEW || n->kind == FS_BLOB || n->kind == FS_SHARED;
}

/** Returns the st_ino of a node that is no part of a head; a file has one st_ino as a view and as a blob. */
static inline uint64_t fs_node_ino(struct fs_node n)
{
	if (n.kind == FS_BLOB)
		n.kind = FS_VIEW;
	return fs_node_id(n);
}

/** What a name is found as, and for how long the kernel may keep that. */
struct fs_found {
	struct fs_node node;
	struct stat st;
	double timeout;
	uint64_t changes;	/* of a folder of a working tree: rs_tree_applied(), of when it was looked up */
};

/* node.c: nodes and what they are of */
/** Returns the rank of a node of this view; RS_SHARED: it is the job's own. */
uint32_t fs_rank(const struct fs_node *n, const struct rs_view *view);
/** Returns the job of a node; NULL: it was removed. */
struct rs_job *fs_job(struct fs *fs, const struct fs_node *n);
/** Refuses a change of what is only shown: SC_E_SEALED. */
int fs_fail_sealed(struct sc_err *err);
/** Returns the row of a control file's node; NULL: the node is no control file. */
const struct rs_control *fs_control_of(const struct fs_node *n);
/** Returns the node of a folder, link or special file of a working tree. */
struct fs_node fs_node_of_number(struct rs_job *job, uint64_t number);
/** Returns the node that what was looked up by number has now. */
struct fs_node fs_node_of_look(struct rs_job *job, const struct rs_look *look);
/** Registers of which object the node of a written file is, before the kernel is told of the node. */
void fs_number_keep(struct fs *fs, uint64_t ino, uint64_t number);
/** Finds the object of a written file's node, also if an earlier daemon has committed it; 0: it is nothing any more. */
int fs_number_of_bytes(struct fs *fs, struct rs_job *job, const struct fs_node *n, uint64_t *ret, struct sc_err *err);
/** Finds a node's number in the working tree of its job.  Errors: SC_E_STALE (it is nothing any more), SC_E_SEALED
 *  (it is of a version), SC_E_PERMISSION (a control file, or the mount's root). */
int fs_number(struct fs *fs, const struct fs_node *n, struct rs_job **ret_job, uint64_t *ret, struct sc_err *err);
/** Gives the view of a node that has a place, and its path there. */
int fs_view(struct fs *fs, const struct fs_node *n, struct rs_view **ret, const char **ret_path, struct sc_err *err);
bool fs_rank_number(const char *name, uint32_t *ret);
/** A name in a folder of a working tree, for what changes it. */
struct fs_folder {
	struct rs_job *job;
	uint64_t number;
	struct meta_bytes name;
};
/** Errors: SC_E_SEALED (in another folder), SC_E_PERMISSION (a name that is ours). */
int fs_folder(struct fs *fs, uint64_t parent, const char *name, struct fs_folder *ret, struct sc_err *err);
/** Gives the node of the folder above a folder. */
int fs_parent(struct fs *fs, const struct fs_node *n, struct fs_node *ret, struct sc_err *err);

#endif
