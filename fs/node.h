/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodeids are numbers made of the catalog's numbers, never pointers: a kernel may remember one for
 * longer than any object lives, and FORGET has nothing to do.
 *
 *     63..60  59..40   39..20   19..0
 *      kind     job     rank    path     DIR: a folder of the head; path "" is the rank's own
 *      kind     place (40 bits) path     VROOT, VDIR, VIEW, BLOB, SHARED: a rank of a view (a version at a topology)
 *      kind     job     blob (40 bits)   WORK: a file of the working tree
 *      kind     job      what            SPECIAL: .ctl, .v, .as, .full and the control files
 *
 * meta/catalog/numbers.c gives the numbers of jobs, places, paths and blobs, and says when a number may be given again.
 *
 * A rank file as a view and as a blob are two nodes with one st_ino: once an inode has a
 * passthrough open, mmap of a descriptor opened on it before fails (docs/design.md, "flip").
 */
#ifndef FS_NODE_H
#define FS_NODE_H

#include <stdint.h>

enum fs_kind {
	FS_ROOT,	/* number 1 */
	FS_TOP,		/* /.ctl and what is in it: what */
	FS_JOB,		/* job */
	FS_SPECIAL,	/* job, what */
	FS_DIR,
	FS_VROOT,	/* place: of rank 0 */
	FS_VDIR,
	FS_VIEW,
	FS_BLOB,
	FS_WORK,
	FS_SHARED,	/* place of rank 0, path: a committed file of the job itself */
};

struct fs_node {
	enum fs_kind kind;
	uint64_t job, place, path, blob;
	uint32_t tree_rank, what;	/* the rank of DIR; the others have a place */
};

/** What of FS_SPECIAL and FS_TOP: the folder, then folders beside it, then control files. */
enum {
	FS_CTL_DIR,
	FS_V_DIR,
	FS_AS_DIR,
	FS_FULL_LINK,
	FS_CTL_FILE, /* + index of the control file */
};

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
	case FS_DIR:
		return kind | n.job << 40 | (uint64_t)n.tree_rank << 20 | n.path;
	case FS_VROOT:
	case FS_VDIR:
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
		return kind | n.place << 20 | n.path;
	case FS_WORK:
		return kind | n.job << 40 | n.blob;
	}
	return 0;
}

static inline struct fs_node fs_node_of(uint64_t id)
{
	const uint64_t mask = (1u << 20) - 1;
	struct fs_node n = {.kind = (enum fs_kind)(id >> 60)};
	uint64_t high = id >> 40 & mask, middle = id >> 20 & mask, low = id & mask;

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
	case FS_DIR:
		n.job = high;
		n.tree_rank = (uint32_t)middle;
		n.path = low;
		break;
	case FS_VROOT:
	case FS_VDIR:
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
		n.place = high << 20 | middle;
		n.path = low;
		break;
	case FS_WORK:
		n.job = high;
		n.blob = id & ((UINT64_C(1) << 40) - 1);
		break;
	}
	return n;
}

/** Returns the st_ino of a node; a rank file has the same one as a view and as a blob. */
static inline uint64_t fs_node_ino(struct fs_node n)
{
	if (n.kind == FS_BLOB)
		n.kind = FS_VIEW;
	return fs_node_id(n);
}

#endif
