/* SPDX-License-Identifier: Apache-2.0 */
/* What the next daemon has to know; hold.h has the memory that is kept. */
#ifndef FS_HANDOVER_H
#define FS_HANDOVER_H

#include "fs/fs_i.h"
#include "fs/handover/hold.h"

/** Tells whether this daemon has given the number, not an earlier one. */
static inline bool fs_handle_is_mine(const struct fs *fs, uint64_t fh)
{
	return fh >> FS_GENERATION_SHIFT == fs->kept->generation;
}

/* kept.c */
/** Registers a command of this handle; NULL: too many at once, so it will not be recognised if it is resent.
 *  *ret_is_replay: a daemon that died had begun the command. */
struct fs_command *fs_command_begin(struct fs *fs, uint64_t fh, const void *text, size_t bytes, off_t at,
				    bool *ret_is_replay);
void fs_command_end(struct fs_command *c);
/** Registers that reading this handle's text has begun. */
void fs_text_begun(struct fs *fs, uint64_t fh, uint64_t bytes);
/** Tells whether the text was read at least up to `at`, and ended there. */
bool fs_text_is_read(struct fs *fs, uint64_t fh, uint64_t at);
/** Registers (`begun`) or unregisters a document of this handle that is not judged yet. */
void fs_document(struct fs *fs, uint64_t fh, bool begun);
/** Tells whether the handle had such a document in a daemon that died. */
bool fs_document_is_lost(struct fs *fs, uint64_t fh);

/* requests.c: with -o hold, requests that come again */
/** Sees to it that each request is entered under its number before it is served; when the session is mounted. */
int fs_requests_begin(struct fs *fs, struct sc_err *err);
/** Judges the requests that an earlier daemon had entered; before the first one comes again. */
void fs_requests_load(struct fs *fs);
/** Tells whether the request that this thread has read comes again. */
bool fs_request_comes_again(void);
/** Tells whether it does, and an earlier daemon has made its record. */
bool fs_was_done(void);
/** What this thread has read is answered; for those that come again, and those that were parked. */
void fs_request_answered(void);
/** Returns the kernel's number of what this thread has read, or serves; 0: it is not known, without -o hold. */
uint64_t fs_request_number(void);
/** Enters a request that another thread has read, and this one serves now. */
void fs_request_runs(struct fs *fs, uint64_t number);
/** All requests that came again are answered. */
void fs_requests_settle(struct fs *fs);

/* writers.c */
/** Counts a handle that may write to this file of a working tree.  Under rs_tree_enter().
 *  Errors: ENFILE (too many), SC_E_NO_MEMORY. */
int fs_writer_begin(struct fs *fs, struct fs_handle *h, uint64_t blob, pid_t thread, struct sc_err *err);
/** Registers that the kernel has got handle `fh`, with this h->writer; the kernel may already have closed it. */
void fs_writer_answered(struct fs *fs, uint32_t writer, uint64_t fh);
/** Ends the count of handle `fh`, before the kernel is answered; h is NULL for one of an earlier daemon. */
void fs_writer_end(struct fs *fs, const struct fs_handle *h, uint64_t fh);
/** Keeps a file of a working tree from being committed until this thread opens it, or for RS_RESERVED_NS.
 *  Under rs_tree_enter(). */
void fs_reserve(struct fs *fs, uint64_t blob, pid_t thread);
void fs_redeem(struct fs *fs, uint64_t blob, pid_t thread);
/** Counts the handles that earlier daemons had counted, before anything is served. */
int fs_writers_load(struct fs *fs, struct sc_err *err);
/** Call when all resent requests are answered. */
void fs_writers_settle(struct fs *fs);
/** Drops expired entries, before a commit counts writers. */
void fs_writers_check(struct fs *fs);

/* opens.c */
/** Gives an open file, not answered yet, an entry by which the next daemon knows it. */
void fs_open_keep(struct fs *fs, struct fs_handle *h);
/** Registers that the kernel has got handle `fh`, with this h->kept; the kernel may already have closed it. */
void fs_open_answered(struct fs *fs, uint32_t kept, uint64_t fh);
/** End an entry.  Under fs->lock. */
void fs_open_drop(struct fs *fs, struct fs_handle *h);
void fs_open_forget(struct fs *fs, uint32_t at);

#endif
