/* SPDX-License-Identifier: Apache-2.0 */
/* Begins a session; a daemon that takes over a mount continues the old session instead (hold.h). */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* <linux/fuse.h> of FUSE 7.40 has them; the headers of the distribution are older than the kernels */
#ifndef FUSE_UNIQUE_RESEND
#define FUSE_UNIQUE_RESEND (UINT64_C(1) << 63)
#define FUSE_NOTIFY_RESEND 7
#endif

int fs_begin(struct fs *fs, struct sc_err *err)
{
	struct fs_kept *kept = fs->kept;
	struct fuse_buf buf = {0};
	int n = fuse_session_receive_buf(fs->se, &buf);

	if (n <= 0 || buf.flags & FUSE_BUF_IS_FD || buf.size > sizeof(kept->init)) {
		free(buf.mem);
		return sc_fail(err, SC_E_SYSTEM, "the kernel's first request is not FUSE_INIT");
	}
	memcpy(kept->init, buf.mem, buf.size);
	kept->init_bytes = (uint32_t)buf.size;
	fuse_session_process_buf(fs->se, &buf);
	free(buf.mem);
	return 0;
}

/* Answers the requests that the dead daemon had read; they come first and marked, one at a time, in the kernel's
 * order. */
static void answer_replays(struct fs *fs)
{
	struct fuse_buf buf = {0};
	bool more = true;
	size_t nr = 0;

	while (more && fuse_session_receive_buf(fs->se, &buf) > 0) {
		const struct fuse_in_header *in = buf.mem;

		fs->replays = in->unique & FUSE_UNIQUE_RESEND;
		nr += fs->replays;
		/* a new one is the last that is taken here, but for those that overtake all */
		more = fs->replays || in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET ||
		       in->opcode == FUSE_INTERRUPT;
		fuse_session_process_buf(fs->se, &buf);
	}
	fs->replays = false;
	fs_writers_settle(fs);
	fs_forget_all(fs); /* what the kernel has forgotten while nobody served */
	free(buf.mem);
	/* requests that were answered, but that the kernel had not yet forgotten */
	for (size_t i = 0; i < FS_COMMANDS_MAX; i++)
		if (fs->kept->commands[i].generation != fs->kept->generation)
			fs_command_end(&fs->kept->commands[i]);
	sc_log(SC_LOG_INFO, "took over the mount; %zu requests were not answered yet", nr);
}

int fs_take_over(struct fs *fs, struct sc_err *err)
{
	struct fs_kept *kept = fs->kept;
	struct fuse_buf buf = {.size = kept->init_bytes, .mem = kept->init};
	const struct fuse_out_header resend = {.len = sizeof(resend), .error = FUSE_NOTIFY_RESEND};
	int fd = fuse_session_fd(fs->se), flags = fcntl(fd, F_GETFL), rc = fs_writers_load(fs, err);

	if (rc < 0)
		return rc;
	fs->are_told_stale = true; /* perhaps, by an earlier daemon */
	fs_backings_check(fs);
	/* the kernel drops the answer: it has had one */
	fuse_session_process_buf(fs->se, &buf);
	if (write(fd, &resend, sizeof(resend)) != (ssize_t)sizeof(resend))
		return sc_fail_sys(err, errno, "the kernel does not resend requests that were not answered");
	(void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	answer_replays(fs);
	(void)fcntl(fd, F_SETFL, flags);
	return 0;
}
