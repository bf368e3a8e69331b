/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount needs to begin and to end: its service, and a session that another daemon had begun. */
#ifndef FS_DAEMON_H
#define FS_DAEMON_H

#include "fs/fs_i.h"

/* takeover.c */
/** Reads and answers the kernel's first request. */
int fs_begin(struct fs *fs, struct sc_err *err);
/** Continues the session of a daemon that died. */
int fs_take_over(struct fs *fs, struct sc_err *err);

/* session.c */
struct fs_mount_options;
int fs_session_new(struct fs *fs, const struct fs_mount_options *o, struct sc_err *err);
void fs_session_read_ahead(dev_t device);	/* larger for this mount only: views through mmap are twice as fast */

/* service.c */
struct rs_member_options;
int fs_service_start(struct fs *fs, const struct rs_options *options, const struct rs_member_options *member,
		     int fuse_fd, struct sc_err *err);
/** Looks, beside the session's loop, whether it ends, and then lets no request wait for other nodes any more. */
void fs_service_look(struct fs *fs);
void fs_service_looked(struct fs *fs);	/* the loop has ended */
/** Lets no command wait for other nodes any more: before those that run are waited for. */
void fs_service_leave(struct fs *fs);
void fs_service_end(struct fs *fs);
/** Prints the files of /.ctl that describe the mount; for struct rs_events. */
void fs_describe(void *arg, const char *name, struct sc_buf *buf);

#endif
