/* SPDX-License-Identifier: Apache-2.0 */
/* What a program asks of a file of the mount by ioctl(2). */
#ifndef FS_CLONE_H
#define FS_CLONE_H

#include <sys/ioctl.h>

/**
 * An empty file gets the bytes of the descriptor that the argument points to, by sharing them (reflink), so the
 * store's file system must have it, and the file must be on it.  FICLONE itself does not reach a FUSE server.
 * Errors: EXDEV, EOPNOTSUPP (they cannot be shared: copy them), EBADF (the one is not open for writing, or the other
 * for reading), EINVAL (the file is not empty), EPERM (the daemon may not take the descriptor), ESTALE.
 */
#define SCALAI_IOC_CLONE _IOW(0xf7, 1, int)

#endif
