/* SPDX-License-Identifier: Apache-2.0 */
/* Replies, second tries, and waits for free space; parked.h: waits for a job. */
#ifndef FS_REQUEST_H
#define FS_REQUEST_H

#include "fs/fs_i.h"

/* reply.c: the only place where failures become replies */
struct fs *fs_of(fuse_req_t req);
/** True if the request arrived on a ring and the session has ended: the ring is gone, and the kernel has already failed
 *  the request.  Do not reply. */
bool fs_is_lost(const struct fs *fs, bool by_ring);
void fs_fail(fuse_req_t req, const char *op, const struct sc_err *err);
/** Keeps the sentence of a refused command for the `error` of the job (NULL: of the mount), and logs it. */
void fs_say_refused(struct rs_job *job, const char *command, const struct sc_err *err);
/** Refuses a command: does that, and replies.  Returns the errno. */
int fs_refuse(fuse_req_t req, struct rs_job *job, const char *command, const struct sc_err *err);

/* again.c */
/** Registers that a request of this thread fails with ESTALE: the kernel retries lookup and open once; a second ESTALE
 *  would reach the program.  `copies`: it wants to write to a committed file, and only the lookup of its name can copy
 *  that up. */
void fs_told_stale(struct fs *fs, pid_t thread, bool copies);
/** Returns when this thread, which is retrying, was told so (0: it is not retrying), and whether its lookup copies. */
int64_t fs_looks_again(struct fs *fs, pid_t thread, bool *ret_copies);
/** The open of the retry is answered: what the thread was told until then is over. */
void fs_looked_again(struct fs *fs, pid_t thread, int64_t told);

/* room.c */
/** Waits, 0.1 s at most, until the bytes of removed files are free, after a command has found no room.  Returns whether
 *  there was anything to wait for. */
bool fs_room_for_command(struct fs *fs);
/** Waits in the same way before a file is made, if less than 256 MiB are free. */
void fs_room_for_file(struct fs *fs);
/** Waits in the same way before statfs(2) is answered. */
void fs_room_to_show(struct fs *fs);

#endif
