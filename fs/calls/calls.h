/* SPDX-License-Identifier: Apache-2.0 */
/* System calls as the kernel sends them: each is a function of struct fuse_lowlevel_ops. */
#ifndef FS_CALLS_H
#define FS_CALLS_H

#include "fs/fs_i.h"

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set,
		struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags);
void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi);
void op_write(fuse_req_t req, fuse_ino_t ino, const char *text, size_t bytes, off_t at,
	      struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t bytes);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t bytes);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t bytes,
		  struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t from_at,
			struct fuse_file_info *from_fi, fuse_ino_t to, off_t to_at,
			struct fuse_file_info *to_fi, size_t bytes, int flags);
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int request, void *arg, struct fuse_file_info *fi,
	      unsigned int flags, const void *in, size_t in_bytes, size_t out_bytes);
void op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
	     struct fuse_pollhandle *ph);

#endif
