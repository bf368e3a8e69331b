/* SPDX-License-Identifier: Apache-2.0 */
/* Begins a session; a daemon that takes over a mount continues the old session instead (hold.h). */
#include "fs/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/background/background.h"
#include "fs/handover/handover.h"
#include "fs/handover/hold.h"
#include "fs/node/node.h"
#include "fs/open/open.h"

#define LOST_NS INT64_C(10000000000) /* of opens.c */

/* <linux/fuse.h> of FUSE 7.40 has it; the headers of the distribution are older than the kernels */
#ifndef FUSE_NOTIFY_RESEND
#define FUSE_NOTIFY_RESEND 7
#endif

int fs_begin(struct fs *fs, struct sc_err *err)
{
	struct fs_kept *kept = fs->kept;
	struct fuse_buf buf = {0};
	int rc = fs_requests_begin(fs, err), n;

	if (rc < 0)
		return rc;
	n = fuse_session_receive_buf(fs->se, &buf);
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

/* --- open files: O3 of opens.c --- */

/* Makes the handle of an entry; NULL: its version is gone, or there is no memory. */
static struct fs_handle *handle_of(struct fs *fs, uint32_t at)
{
	const struct fs_open *o = &fs->kept->opens[at];
	const struct fs_node n = fs_node_of(o->ino);
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	struct rs_view *view = NULL;
	struct sc_err ignored;

	if (!h || (fs_node_has_place(&n) && rs_view_at(fs->service, n.place, &view, &ignored) < 0) ||
	    !fs_handle_add(fs, h)) {
		rs_view_unref(fs->service, view);
		sc_sys.release(h);
		return NULL;
	}
	h->kind = o->passes ? FS_H_PASS : 0;
	h->later = !o->passes;
	h->ino = o->ino;
	h->fd = -1;
	h->view = view;
	h->held = h->blob = fs->kept->open_blobs[at];
	h->bytes = o->bytes;
	h->writes = o->writes;
	h->kept = at + 1;
	(void)pthread_mutex_lock(&fs->lock);
	h->number = o->fh;
	(void)pthread_mutex_unlock(&fs->lock);
	if (view)
		fs_handle_committed(fs, h);
	return h;
}

static void load_opens(struct fs *fs)
{
	const struct fs_kept *kept = fs->kept;

	for (uint32_t i = 0; i < kept->nr_opens; i++) {
		const uint64_t blob = kept->open_blobs[i]; /* held since the service began */

		if (kept->opens[i].fh && handle_of(fs, i))
			continue;
		if (blob)
			rs_work_release(fs->service, blob);
		fs_open_forget(fs, i);
	}
}

/* --- requests --- */

/* Answers the requests that the dead daemon had read; they come first and marked, one at a time, in the kernel's
 * order. */
static void answer_replays(struct fs *fs)
{
	struct fuse_buf buf = {0};
	bool more = true;
	size_t nr = 0;

	while (more && fuse_session_receive_buf(fs->se, &buf) > 0) {
		const struct fuse_in_header *in = buf.mem;

		fs->replays = fs_request_comes_again();
		nr += fs->replays;
		/* a new one is the last that is taken here, but for those that overtake all */
		more = fs->replays || in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET ||
		       in->opcode == FUSE_INTERRUPT;
		fuse_session_process_buf(fs->se, &buf);
		fs_request_answered();
	}
	fs->replays = false;
	fs_requests_settle(fs);
	fs_writers_settle(fs);
	fs->lost_opens_ns = sc_now_ns() + LOST_NS;
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
	int fd = fuse_session_fd(fs->se), flags = fcntl(fd, F_GETFL), rc = fs_requests_begin(fs, err);

	if (rc == 0)
		rc = fs_writers_load(fs, err);
	if (rc < 0)
		return rc;
	load_opens(fs);
	fs_requests_load(fs);
	fs->are_told_stale = true; /* perhaps, by an earlier daemon */
	fs_backings_check(fs);
	/* the kernel drops the answer: it has had one */
	fuse_session_process_buf(fs->se, &buf);
	fs_names_changed(fs); /* a command may have been done, and the daemon killed before it said so */
	if (write(fd, &resend, sizeof(resend)) != (ssize_t)sizeof(resend))
		return sc_fail_sys(err, errno, "the kernel does not resend requests that were not answered");
	(void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	answer_replays(fs);
	(void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* a daemon that was killed here has left it */
	return 0;
}
