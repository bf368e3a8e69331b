/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the mounts that the kernel lists, and unmounts. */
#ifndef FS_MOUNTS_H
#define FS_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "fs/daemon/users.h"
#include "meta/base/err.h"

struct fs_mounts {
	size_t nr, room;
	struct fs_mounted {
		char *path, *type;
		char *source;		/* of scalai's: the store */
		dev_t device;
	} *at;				/* a later one covers an earlier one at the same path */
};

/** Read the mount table; fs_mounts_done() frees it, also after an error. */
int fs_mounts_read(struct fs_mounts *ret, struct sc_err *err);
void fs_mounts_done(struct fs_mounts *mounts);

/** Find the mount at a path, as fs_mount_path() gives it; NULL: nothing is mounted there. */
const struct fs_mounted *fs_mounts_find(const struct fs_mounts *mounts, const char *path);
bool fs_mounted_is_scalai(const struct fs_mounted *m);
/** Tells whether a store is mounted at a mount point (both real paths). */
bool fs_mount_is_there(const char *store, const char *mountpoint);

#define FS_PATH_BYTES 4096
/** Find the path of a mount point as the mount table has it; it need not exist, and its daemon may be dead. */
int fs_mount_path(const char *path, char ret[FS_PATH_BYTES], struct sc_err *err);
/** Refuses a store and a mount point (both real paths) of which one lies in the other.  Errors: SC_E_COMMAND. */
int fs_mount_apart(const char *store, const char *mountpoint, struct sc_err *err);

/**
 * Find the real path of a store; makes its folder if it is missing (*ret_made).  A folder that has other files, and no
 * store's, is refused as a new store; with `existing` every new store is.  Errors: SC_E_COMMAND, SC_E_SYSTEM.
 */
int fs_mount_store(const char *path, bool existing, char ret[FS_PATH_BYTES], bool *ret_made, struct sc_err *err);

/**
 * Unmount one of scalai's mounts; `lazy`: also while it is in use.
 * `ret_store`: the store whose daemon ends now; "": the same mount is at another place, too.
 * Errors: SC_E_COMMAND, it is no mount of scalai's; SC_E_BUSY, it is in use.
 */
int fs_umount(const char *path, bool lazy, char ret_store[FS_PATH_BYTES], struct sc_err *err);

/**
 * Unmount one of scalai's mounts also while it is in use.  Before, `each` is called for its users, who get errors from
 * then on.  Errors: as above.
 */
int fs_umount_cut(const char *path, void (*each)(void *arg, const struct fs_user *user), void *arg,
		  char ret_store[FS_PATH_BYTES], struct sc_err *err);

/**
 * Wait until a daemon has left its store: it finishes what it was doing; 0 seconds: do not wait.
 * SC_E_BUSY: not within so many seconds.
 */
int fs_umount_wait(const char *store, unsigned seconds, struct sc_err *err);

/** Unmount one of scalai's mounts that nobody serves any more, whoever still uses it; it has this device (0: any). */
int fs_umount_dead(const char *path, dev_t device, struct sc_err *err);

#endif
