/* SPDX-License-Identifier: Apache-2.0 */
/* Open control files, and programs that wait for news. */
#ifndef FS_CONTROL_H
#define FS_CONTROL_H

#include "fs/fs_i.h"

struct fs_command;

/* control.c */
/** Opens a control file; fs_control_close() closes it.  `job`: NULL for a file of the mount. */
int fs_control_open(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row, int flags,
		    struct fs_control **ret, struct sc_err *err);
/** Registers that text written to the file before the daemon was replaced is lost. */
void fs_control_lost(struct fs *fs, struct fs_control *c, uint64_t fh);
void fs_control_close(struct fs *fs, struct fs_control *c);
void fs_control_read(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, size_t bytes, off_t at);
void fs_control_write(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh, const char *text,
		      size_t bytes, off_t at);
void fs_control_flush(fuse_req_t req, struct fs *fs, struct fs_control *c, uint64_t fh);
void fs_control_poll(fuse_req_t req, struct fs *fs, struct fs_control *c, struct fuse_pollhandle *ph);

/* notify.c */
int fs_notify_start(struct fs *fs, struct sc_err *err);
void fs_notify_stop(struct fs *fs);
void fs_notify_news(struct fs *fs);
/** Parks a write of `bytes` to a control file (0: its close); fs_notify_hold() or fs_notify_runs() takes it over. */
struct fs_waiter *fs_notify_new(fuse_req_t req, struct fs *fs, struct rs_job *job, const struct rs_control *row,
				size_t bytes);
/** Answers the write when rs_control_held() of its row says that `held` is over. */
void fs_notify_hold(struct fs_waiter *w, uint64_t held);
/** Begins a command that another thread carries out.  `may_go`: a program that is killed meanwhile is answered EINTR,
 *  the command goes on, and the control file may be closed before it ends. */
void fs_notify_runs(struct fs_waiter *w, bool may_go);
/** Answers the write when that command is over, with `err` if it holds an error; then ends `command` (or NULL). */
void fs_notify_done(struct fs_waiter *w, struct fs_command *command, const struct sc_err *err);
/** What a control file's poll(2) waits for: part of the open file, used by the four below only. */
struct fs_poll {
	struct rs_job *job;		/* NULL: there is never news */
	uint64_t seen;			/* news that its reader has got; atomic */
	struct fuse_pollhandle *ph;	/* whom to tell; under notify_lock */
	struct fs_poll *next;
};
/** Marks all changes up to now as seen; p->job is not NULL. */
void fs_poll_seen(struct fs_poll *p);
bool fs_poll_has_news(const struct fs_poll *p);
/** Answers a poll.  Takes `ph` (or NULL), which is notified of the next change. */
void fs_poll_begin(fuse_req_t req, struct fs *fs, struct fs_poll *p, struct fuse_pollhandle *ph);
/** Ends a poll, before the open file is freed. */
void fs_poll_end(struct fs *fs, struct fs_poll *p);

#endif
