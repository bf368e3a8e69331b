/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/request/request.h"

#include <errno.h>

struct fs *fs_of(fuse_req_t req)
{
	struct fs *fs = fuse_req_userdata(req);

	if (fuse_req_is_uring(req)) {
		/* at its end libfuse cancels the rings' threads, also in the middle of a commit: ours end
		 * by themselves, between two requests */
		(void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
		fs->on_ring();
		if (!__atomic_load_n(&fs->io_uring, __ATOMIC_RELAXED))
			__atomic_store_n(&fs->io_uring, true, __ATOMIC_RELAXED);
	}
	return fs;
}

bool fs_is_lost(const struct fs *fs, bool by_ring)
{
	return by_ring && fuse_session_exited(fs->se);
}

void fs_fail(fuse_req_t req, const char *op, const struct sc_err *err)
{
	rs_damage_met(fs_of(req)->service, err);
	/* expected errors are not logged; internal errors and limits are */
	if (err->errnum == EIO || err->errnum == ENOSPC || err->errnum == ENOMEM || err->errnum == E2BIG)
		sc_log(SC_LOG_ERROR, "%s: %s (%s:%d)", op, err->msg, err->file, err->line);
	else if (err->errnum != ENOENT && err->errnum != ESTALE)
		sc_log(SC_LOG_DEBUG, "%s: %s", op, err->msg);
	if (err->errnum == ESTALE)
		fs_told_stale(fs_of(req), fuse_req_ctx(req)->pid, false);
	(void)fuse_reply_err(req, err->errnum ? err->errnum : EIO);
}

void fs_say_refused(struct rs_job *job, const char *command, const struct sc_err *err)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct sc_err said = *err;

	sc_err_name(&said, command);
	if (job) {
		rs_job_refused(job, command, err);
		sc_log(SC_LOG_ERROR, "job '%s': %s", rs_job_name(job, name, sizeof(name)), said.msg);
	} else {
		sc_log(SC_LOG_ERROR, ".ctl: %s", said.msg);
	}
}

int fs_refuse(fuse_req_t req, struct rs_job *job, const char *command, const struct sc_err *err)
{
	int errnum = err->errnum ? err->errnum : EIO;

	fs_say_refused(job, command, err);
	(void)fuse_reply_err(req, errnum);
	return errnum;
}
