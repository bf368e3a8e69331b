/* SPDX-License-Identifier: Apache-2.0 */
/* What a path means: names, attributes, lists. */
#ifndef FS_LOOKUP_H
#define FS_LOOKUP_H

#include "fs/fs_i.h"
#include "fs/node/node.h"

/* stat.c */
int fs_stat(struct fs *fs, uint64_t ino, struct fs_found *ret, struct sc_err *err);
/** Gives node and attributes of what was looked up in a working tree by number. */
int fs_stat_look(struct fs *fs, struct rs_job *job, const struct rs_look *look, struct fs_found *ret,
		 struct sc_err *err);
/** Gives those of what is at a path of a view, as the view has it.  Errors: SC_E_NOT_FOUND, without a message. */
int fs_stat_path(struct fs *fs, struct rs_view *view, uint32_t rank, const char *path, struct fs_found *ret,
		 struct sc_err *err);
/** Fails with SC_E_NOT_FOUND, without a message: that is no failure. */
int fs_no_entry(struct sc_err *err);

/* resolve.c */
/** Looks a name up.  Errors: SC_E_NOT_FOUND, without a message, if there is no such name. */
int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_found *ret, struct sc_err *err);
void fs_entry(struct fs *fs, const struct fs_found *found, struct fuse_entry_param *ret);

/* list.c */
/** Lists a folder that is none of a working tree, by names; fs_names_done() frees them, also after an error. */
int fs_list(struct fs *fs, uint64_t ino, struct fs_names *ret, struct sc_err *err);
/** Tells whether a folder is of a working tree, so that it has a struct rs_listing. */
static inline bool fs_is_listed_by_number(const struct fs_node *n)
{
	return n->kind == FS_JOB || n->kind == FS_INODE || n->kind == FS_IMPLIED;
}

#endif
