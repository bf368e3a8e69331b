/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs_i.h"

#include <errno.h>

void fs_fail(fuse_req_t req, const char *op, const struct sc_err *err)
{
	/* expected answers are no news; what went wrong inside is */
	if (err->errnum == EIO || err->errnum == ENOSPC || err->errnum == ENOMEM)
		sc_log(SC_LOG_ERROR, "%s: %s (%s:%d)", op, err->msg, err->file, err->line);
	else if (err->errnum != ENOENT && err->errnum != ESTALE)
		sc_log(SC_LOG_DEBUG, "%s: %s", op, err->msg);
	if (err->errnum == ESTALE)
		fs_told_stale(fs_of(req), fuse_req_ctx(req)->pid);
	(void)fuse_reply_err(req, err->errnum ? err->errnum : EIO);
}

int fs_refuse(fuse_req_t req, struct rs_job *job, const char *command, const struct sc_err *err)
{
	int errnum = err->errnum ? err->errnum : EIO;
	char name[SC_NAME_BYTES_MAX + 1];

	rs_job_refused(job, command, err);
	sc_log(SC_LOG_ERROR, "job '%s': %s: %s", rs_job_name(job, name, sizeof(name)), command, err->msg);
	(void)fuse_reply_err(req, errnum);
	return errnum;
}
