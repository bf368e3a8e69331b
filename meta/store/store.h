/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blob store: files under STORE/blobs, named by number.  The store never looks into them.  Where
 * the kernel and privileges allow, sealed blobs are opened through a private read-only mount of the
 * store: FUSE passthrough ignores the mode of the daemon's descriptor, so only the mount keeps a
 * client from writing into a sealed blob (docs/decisions.md).
 */
#ifndef META_STORE_H
#define META_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "meta/base/err.h"

struct meta_store {
	int dir;	/* STORE */
	int blobs;	/* STORE/blobs */
	int sealed;	/* STORE/blobs through the read-only mount, or -1 */
	int lock;	/* locked for the life of the daemon: a store has one daemon */
	struct meta_damaged *damaged;
};

/** Makes the folders that are missing and takes the lock.  `lock`: 0, or that of a store that this process has opened
 *  before, or has inherited, and which is this store's now.  Errors: SC_E_SYSTEM, SC_E_BUSY (another daemon has the
 *  lock). */
int meta_store_open(const char *path, int lock, struct meta_store *ret, struct sc_err *err);
void meta_store_close(struct meta_store *store);
/**
 * Waits until no daemon has the lock of a store; a store that does not exist has none.  Errors: SC_E_BUSY (a signal
 * came first), SC_E_SYSTEM (the store can't be looked at).
 */
int meta_store_wait_unused(const char *path, struct sc_err *err);
/** Tells whether the store's file system has leases.  Without leases, writers through a mapping cannot be detected. */
bool meta_store_has_leases(const struct meta_store *store);

/** Tells whether an errno means a failing disk or a damaged file system; all other errors may be transient. */
bool meta_disk_fails(int errnum);

/**
 * Tells what a blob's name is of, if it is no regular file: "is a symbolic link, not a file", say; else NULL.  Such
 * a blob is damaged for all functions below: none of them follows a link, waits at a FIFO or opens a device.
 */
const char *meta_store_not_a_file(const struct meta_store *store, uint64_t blob);
/** Makes the file of a new blob, open O_RDWR. */
int meta_store_create(const struct meta_store *store, uint64_t blob, int *ret_fd,
		      struct sc_err *err);
/** Opens a sealed blob of `bytes` bytes (UINT64_MAX: any size) for reading.  Errors: SC_E_DAMAGED (the blob is
 *  marked as damaged, has another size, or the disk fails), SC_E_SYSTEM. */
int meta_store_open_blob(const struct meta_store *store, uint64_t blob, uint64_t bytes, int *ret_fd,
			 struct sc_err *err);
/** Opens a sealed blob even if it is marked as damaged; `flags`: O_RDONLY, optionally with O_DIRECT. */
int meta_store_open_damaged(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			    struct sc_err *err);
/** Stats the file of a blob that is not sealed.  Errors: SC_E_DAMAGED (the disk fails, it is no file), SC_E_SYSTEM. */
int meta_store_stat_work(const struct meta_store *store, uint64_t blob, struct stat *ret, struct sc_err *err);
/** Opens a blob that is not sealed, by `flags` O_RDONLY or O_RDWR; its path in /proc can then be opened for
 *  writing, too. */
int meta_store_open_work(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			 struct sc_err *err);
/** Marks a blob as damaged, so that it is not read any more, or takes the mark away.  Returns 1 if that is a
 *  change, 0 if not, or SC_E_NO_MEMORY.  Thread: any. */
int meta_store_set_damaged(const struct meta_store *store, uint64_t blob, bool damaged, struct sc_err *err);
bool meta_store_is_damaged(const struct meta_store *store, uint64_t blob);
bool meta_store_has_damage(const struct meta_store *store);
/** Returns how many times marks have changed, or a blob's file was replaced. */
uint64_t meta_store_damage_news(const struct meta_store *store);
/** Copies the list of marked blobs; the caller releases *ret. */
int meta_store_damaged(const struct meta_store *store, uint64_t **ret, size_t *ret_nr, struct sc_err *err);

/** Writes and reads a blob's recovery record, an extended attribute from which `fsck --rebuild` makes a catalog.
 *  Errors: SC_E_UNSUPPORTED (the file system cannot store it), SC_E_NOT_FOUND (there is no record). */
int meta_store_set_record(const struct meta_store *store, uint64_t blob, const char *text, size_t bytes,
			  struct sc_err *err);
int meta_store_get_record(const struct meta_store *store, uint64_t blob, char *text, size_t room, size_t *ret_bytes,
			  struct sc_err *err);
bool meta_store_has_record(const struct meta_store *store, uint64_t blob);
/** Write a text of STORE/layouts, if it is not there yet, and read one.  The name follows from the text, so a name
 *  never gets another text.  The caller releases *ret. */
int meta_store_keep_text(const struct meta_store *store, const char *name, const char *text, struct sc_err *err);
int meta_store_kept_text(const struct meta_store *store, const char *name, char **ret, struct sc_err *err);

/**
 * (trees.c) Write and read the recovery record of a tree: a file of STORE/trees, which is there as a whole or not.
 * `sync`: it is on stable storage then.  The caller releases *ret, which has a 0 behind its bytes.
 */
int meta_store_keep_tree(const struct meta_store *store, uint64_t tree, const char *at, size_t bytes, bool sync,
			 struct sc_err *err);
int meta_store_kept_tree(const struct meta_store *store, uint64_t tree, char **ret, size_t *ret_bytes,
			 struct sc_err *err);
/** Calls `each` for every record; `each` may remove it. */
int meta_store_each_tree(const struct meta_store *store, int (*each)(void *arg, uint64_t tree), void *arg,
			 struct sc_err *err);
/** Removes a record; a missing one is not an error. */
int meta_store_remove_tree(const struct meta_store *store, uint64_t tree, struct sc_err *err);
/** Moves a record to STORE/lost+found. */
int meta_store_set_tree_aside(const struct meta_store *store, uint64_t tree, struct sc_err *err);

/** Replace the bytes of a blob atomically: the first makes a new file (O_RDWR), the second gives it the blob's name. */
int meta_store_begin_replace(const struct meta_store *store, int *ret_fd, struct sc_err *err);
int meta_store_replace(const struct meta_store *store, uint64_t blob, struct sc_err *err);
/** Hard-links a new blob `blob` to the file of `same`. */
int meta_store_link(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err);
/** Gives a file without a name (O_TMPFILE), of the store's file system, the name of blob `blob`. */
int meta_store_adopt(const struct meta_store *store, uint64_t blob, int fd, struct sc_err *err);
/** Replaces the file of `blob` by a hard link to that of `same`, whose bytes are equal.  Errors: SC_E_UNSUPPORTED (no
 *  links, or no more of them). */
int meta_store_share(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err);
/** Removes a blob's file; a missing file is not an error.  A folder in its place goes to STORE/lost+found. */
int meta_store_remove(const struct meta_store *store, uint64_t blob, struct sc_err *err);
/** Moves the file of a blob that the catalog does not have to STORE/lost+found: NUMBER, or NUMBER.2 and so on. */
int meta_store_set_aside(const struct meta_store *store, uint64_t blob, struct sc_err *err);
#define META_ASIDE_BYTES 48
/** Moves a file of STORE itself to STORE/lost+found in the same way, and flushes the folders; gives its name there. */
int meta_store_set_file_aside(const struct meta_store *store, const char *name, char ret[META_ASIDE_BYTES],
			      struct sc_err *err);
/** Gives the next name under which a file `name` was moved to lost+found, from *nr (0 at first) on.  False: no more. */
bool meta_store_next_aside(const struct meta_store *store, const char *name, unsigned *nr,
			   char ret[META_ASIDE_BYTES]);
/** Folders with names of new blobs, which are to be flushed: bit `blob % 256` for each. */
struct meta_store_dirs {
	uint64_t bits[4];
};
void meta_store_note_dir(struct meta_store_dirs *dirs, uint64_t blob);
int meta_store_sync_dirs(const struct meta_store *store, const struct meta_store_dirs *dirs, struct sc_err *err);
/** Opens the next of these folders, from *at (0 at first) on.  Returns 1, 0 if there are no more, or an error. */
int meta_store_next_dir(const struct meta_store *store, const struct meta_store_dirs *dirs, int *at, int *ret_fd,
			struct sc_err *err);
/** Calls `each` for every blob file; `each` may remove the file. */
int meta_store_each(const struct meta_store *store, int (*each)(void *arg, uint64_t blob), void *arg,
		    struct sc_err *err);

#endif
