/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blob store: files under STORE/blobs, named by number, nothing else.  It never looks into
 * them.  Sealed blobs are opened through a private read-only mount of the store where the kernel
 * and privileges allow: FUSE passthrough ignores the mode of the daemon's descriptor, and this is
 * what keeps a sealed blob from being written through it (docs/design.md).
 */
#ifndef META_STORE_H
#define META_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/base/err.h"

struct meta_store {
	int dir;	/* STORE */
	int blobs;	/* STORE/blobs */
	int sealed;	/* the same through the read-only mount, or -1 */
	int lock;	/* held for the life of the daemon: one daemon a store */
	struct meta_damaged *damaged;
};

/** Make what is missing, take the lock. Errors: SC_E_SYSTEM, SC_E_BUSY (another daemon has it). */
int meta_store_open(const char *path, struct meta_store *ret, struct sc_err *err);
void meta_store_close(struct meta_store *store);
/**
 * Wait until no daemon has the lock of a store; one that is not there has none.  Errors: SC_E_BUSY, a signal came
 * first, or it may not wait; SC_E_SYSTEM, the store can't be looked at.
 */
int meta_store_wait_unused(const char *path, bool may_wait, struct sc_err *err);
/** Does the store's file system have leases?  Without them nobody sees who writes by a mapping. */
bool meta_store_has_leases(const struct meta_store *store);

/** Is this what a disk that fails says, or a file system that it has damaged?  Everything else may pass. */
bool meta_disk_fails(int errnum);

/** A new blob to be written: descriptor O_RDWR. */
int meta_store_create(const struct meta_store *store, uint64_t blob, int *ret_fd,
		      struct sc_err *err);
/** A sealed one, for reading; it has so many bytes (UINT64_MAX: any).  Errors: SC_E_DAMAGED, its bytes are known to be
 *  wrong, or it has another size, or the disk fails. */
int meta_store_open_blob(const struct meta_store *store, uint64_t blob, uint64_t bytes, int *ret_fd,
			 struct sc_err *err);
/** The same, and damage that is known does not matter; `flags`: O_RDONLY, with O_DIRECT or not. */
int meta_store_open_damaged(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			    struct sc_err *err);
/** One that is not sealed, `flags` O_RDONLY or O_RDWR; what is opened through its path can be written, too. */
int meta_store_open_work(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			 struct sc_err *err);
/** Blobs whose bytes are known to be wrong: nobody reads them.  1: that is news, 0: it was known, or SC_E_NO_MEMORY.
 *  Any thread. */
int meta_store_set_damaged(const struct meta_store *store, uint64_t blob, bool damaged, struct sc_err *err);
bool meta_store_has_damage(const struct meta_store *store);
/** Counts the news. */
uint64_t meta_store_damage_news(const struct meta_store *store);
/** A copy of the list, which the caller releases. */
int meta_store_damaged(const struct meta_store *store, uint64_t **ret, size_t *ret_nr, struct sc_err *err);

/** What a blob's file says of itself.  Errors: SC_E_UNSUPPORTED; SC_E_NOT_FOUND, nothing. */
int meta_store_set_record(const struct meta_store *store, uint64_t blob, const char *text, size_t bytes,
			  struct sc_err *err);
int meta_store_get_record(const struct meta_store *store, uint64_t blob, char *text, size_t room, size_t *ret_bytes,
			  struct sc_err *err);
bool meta_store_has_record(const struct meta_store *store, uint64_t blob);
/** A text beside the blobs, by a name that follows from it: written once.  The caller releases *ret. */
int meta_store_keep_text(const struct meta_store *store, const char *name, const char *text, struct sc_err *err);
int meta_store_kept_text(const struct meta_store *store, const char *name, char **ret, struct sc_err *err);

/** Other bytes for a blob, at once: a new file (O_RDWR), which then takes its name. */
int meta_store_begin_replace(const struct meta_store *store, int *ret_fd, struct sc_err *err);
int meta_store_replace(const struct meta_store *store, uint64_t blob, struct sc_err *err);
/** A file for `blob`, which has none, that is also the file of `same`. */
int meta_store_link(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err);
/** The file of `blob` becomes that of `same`, whose bytes are equal.  Errors: SC_E_UNSUPPORTED, no (more) links. */
int meta_store_share(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err);
/** Missing blobs are not an error. */
int meta_store_remove(const struct meta_store *store, uint64_t blob, struct sc_err *err);
/** Moves a file that no row knows to STORE/lost+found. */
int meta_store_set_aside(const struct meta_store *store, uint64_t blob, struct sc_err *err);
/** Names of new blobs on stable storage: of these folders, bit `blob % 256` each. */
struct meta_store_dirs {
	uint64_t bits[4];
};
void meta_store_note_dir(struct meta_store_dirs *dirs, uint64_t blob);
int meta_store_sync_dirs(const struct meta_store *store, const struct meta_store_dirs *dirs, struct sc_err *err);
/** Opens the next of them, from *at (0 at first) on: 1, 0: there is no more, or an error. */
int meta_store_next_dir(const struct meta_store *store, const struct meta_store_dirs *dirs, int *at, int *ret_fd,
			struct sc_err *err);
/** Calls `each` for every blob file there is; it may remove the file. */
int meta_store_each(const struct meta_store *store, int (*each)(void *arg, uint64_t blob), void *arg,
		    struct sc_err *err);

#endif
