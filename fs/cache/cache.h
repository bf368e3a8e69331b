/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel may keep, and for how long. */
#ifndef FS_CACHE_H
#define FS_CACHE_H

#include "fs/fs_i.h"

struct fs_found;

/* current.c */
/** Waits until what a name in a folder is found as is the newest (NULL: what the folder lists).  Errors: SC_E_STATE. */
int fs_current(struct fs *fs, uint64_t folder, const char *name, struct sc_err *err);
/** Returns for how long the kernel may keep a name or attributes, at most so many seconds. */
double fs_keep(struct fs *fs, double seconds);

/* folders.c */
/** Decides whether the kernel may keep the attributes of a folder that the next reply gives it (F3 in folders.c).  Sets
 *  found->timeout to 0 if it may not. */
void fs_folder_told(fuse_req_t req, struct fs *fs, struct fs_found *found);
/** Makes the kernel ask again for those of a folder in which a name has come or gone, before the reply to that. */
void fs_folder_changed(fuse_req_t req, struct fs *fs, fuse_ino_t ino);

/* listings.c */
/** Lets the kernel keep what it reads by an open folder, which is in the table, if it may: sets `fi`. */
void fs_listing_opened(struct fs *fs, struct fs_handle *h, struct fuse_file_info *fi);
void fs_listing_closed(struct fs *fs, const struct fs_handle *h);

#endif
