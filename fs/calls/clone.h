/* SPDX-License-Identifier: Apache-2.0 */
/* The requests that a program makes to a file of the mount by ioctl(2). */
#ifndef FS_CLONE_H
#define FS_CLONE_H

#include <sys/ioctl.h>

/**
 * Gives an empty file the bytes of the descriptor to which the argument points, by sharing them (reflink): the file
 * system of the store must have reflink, and the source must be on it.  FICLONE itself does not reach a FUSE server.
 * Errors: EXDEV, EOPNOTSUPP (the bytes cannot be shared: copy them), EBADF (the file is not open for writing, or the
 * source not for reading), EINVAL (the file is not empty), EPERM (the daemon may not take the descriptor), ESTALE.
 */
#define SCALAI_IOC_CLONE _IOW(0xf7, 1, int)

#endif
