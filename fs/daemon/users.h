/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that use a mount: files that they have open or mapped, and folders that they are in. */
#ifndef FS_USERS_H
#define FS_USERS_H

#include <sys/types.h>

struct fs_user {
	pid_t pid;
	char name[64];		/* of the program */
	char file[4096];	/* one that it uses */
};

/**
 * Calls `each` for every process that uses a mount, once, as far as we may look into it; returns how many there are.
 * Asks the daemon for nothing: it may be dead.
 */
size_t fs_users_each(const char *mountpoint, dev_t device, void (*each)(void *arg, const struct fs_user *user),
		     void *arg);

#endif
