/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ioctl(2): one request, by which `scalai import` shares the bytes of files with the store (clone.h).
 *
 * The descriptor itself is taken from the process that asks, not what its number or a path leads to by then.  So a
 * program gets no byte that it could not read: the kernel clones from what is open for reading only.
 */
#include "fs/calls/clone.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs/calls/calls.h"
#include "fs/open/open.h"
#include "fs/request/request.h"

static int clone_file(fuse_req_t req, struct fs *fs, fuse_ino_t ino, int number, struct sc_err *err)
{
	sc_cleanup(sc_closep) int from = -1;
	sc_cleanup(sc_closep) int to = -1;
	struct stat st;
	int rc = fs_open_bytes(fs, ino, O_RDWR, &to, err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(to, &st) < 0)
		return sc_fail_sys(err, errno, "clone: stat");
	if (st.st_size)
		return sc_fail(err, SC_E_COMMAND, "clone: the file is not empty");
	from = sc_sys.take_fd(fuse_req_ctx(req)->pid, number);
	if (from < 0)
		return sc_fail_sys(err, errno, "clone: the descriptor of the process cannot be taken");
	fs_drop_set_id(req, to);
	if (sc_sys.clone_range(to, 0, from, 0, 0) < 0)
		return sc_fail_sys(err, errno, "clone");
	/* the kernel knows the file as empty */
	(void)fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
	return 0;
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int request, void *arg, struct fuse_file_info *fi,
	      unsigned int flags, const void *in, size_t in_bytes, size_t out_bytes)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h;
	struct sc_err err = {0};
	int number;

	(void)arg;
	(void)out_bytes;
	if (request != (unsigned int)SCALAI_IOC_CLONE || flags & FUSE_IOCTL_DIR || in_bytes < sizeof(number)) {
		(void)fuse_reply_err(req, ENOTTY);
		return;
	}
	h = fs_handle_of(req, fs, ino, fi);
	if (!h)
		return;
	if (!h->writes) {
		(void)fuse_reply_err(req, EBADF);
		return;
	}
	memcpy(&number, in, sizeof(number));
	if (clone_file(req, fs, ino, number, &err) < 0)
		(void)fuse_reply_err(req, err.errnum);
	else
		(void)fuse_reply_ioctl(req, 0, NULL, 0);
}
