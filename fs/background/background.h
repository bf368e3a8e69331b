/* SPDX-License-Identifier: Apache-2.0 */
/* Work that no request waits for: objects that nobody holds, write-back; op_forget() is here, too. */
#ifndef FS_BACKGROUND_H
#define FS_BACKGROUND_H

#include "fs/fs_i.h"

/* forget.c */
int fs_forget_start(struct fs *fs, struct sc_err *err);
void fs_forget_stop(struct fs *fs);
/** Has the thread look soon whether the kernel still knows an object without a name, and drop it if not.  Does nothing
 *  for other objects. */
void fs_forget(struct fs *fs, fuse_ino_t ino);
/** Looks again at those that a job's gate kept, and serves what waits for it: it has opened; for struct rs_events. */
void fs_opened(void *arg, struct rs_job *job);
/** Tells whether the kernel knows an object that is no regular file; for struct rs_events. */
bool fs_is_known(void *arg, struct rs_job *job, uint64_t number);
/** Does so with all objects that have no name: after a take-over, and after a command that may have taken names. */
void fs_forget_all(struct fs *fs);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t times);
void op_forget_multi(fuse_req_t req, size_t nr, struct fuse_forget_data *forgets);

/* write_back.c: starts writing a file of a working tree to the device, soon */
void fs_write_back(struct fs *fs, fuse_ino_t ino);
int fs_write_back_start(struct fs *fs, struct sc_err *err);
void fs_write_back_stop(struct fs *fs);

#endif
