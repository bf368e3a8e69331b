/* SPDX-License-Identifier: Apache-2.0 */
/* The session with the kernel: what it is asked for, and the table of what it may ask. */
#include "fs/daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/background/background.h"
#include "fs/calls/calls.h"
#include "fs/daemon/mount.h"
#include "fs/open/open.h"

#define READ_AHEAD_KIB 4096	/* of the mount: only mmap of views uses it */

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;
	bool leases = true;

	(void)fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	(void)fuse_set_feature_flag(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	(void)fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	/* open_by_handle_at of what the kernel has forgotten: op_lookup answers "." and ".." */
	(void)fuse_set_feature_flag(conn, FUSE_CAP_EXPORT_SUPPORT);
	/* else the kernel asks for security.capability at each write(2) */
	fs->kills_set_id = fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_unset_feature_flag(conn, FUSE_CAP_WRITEBACK_CACHE);
	if (!fs->no_passthrough && fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH)) {
		conn->max_backing_stack_depth = 1;
		leases = meta_store_has_leases(rs_service_store(fs->service));
		/* the ioctl asks for CAP_SYS_ADMIN; without leases a commit does not see mappings of backing files */
		fs->passthrough = geteuid() == 0 && leases;
	}
	if (!fs->passthrough)
		sc_log(SC_LOG_WARN, "no passthrough (%s), continuing: reads and writes of files go through the daemon",
		       fs->no_passthrough ? "switched off" :
		       geteuid() ? "not root" :
		       !leases ? "the store's file system has no leases" : "the kernel has none");
	/* FUSE 7.44: one epoch makes all cached names stale; before it, nothing is cached */
	fs->epoch = conn->proto_minor >= 44;
	if (!fs->epoch)
		sc_log(SC_LOG_WARN, "the kernel (FUSE 7.%u) has no epoch, continuing: names are not cached",
		       conn->proto_minor);
	conn->max_readahead = READ_AHEAD_KIB << 10;
	/* libfuse delivers none of requests that came by a ring */
	conn->no_interrupt = fs->rings;
}

static const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.fsyncdir = op_fsyncdir,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getxattr = op_getxattr,
	.setxattr = op_setxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.releasedir = op_release,
	.statfs = op_statfs,
	.create = op_create,
	.poll = op_poll,
	.ioctl = op_ioctl,
	.fallocate = op_fallocate,
	.copy_file_range = op_copy_file_range,
	.lseek = op_lseek,
};

void fs_session_read_ahead(dev_t device)
{
	char path[128], text[16];
	int fd, bytes;

	(void)snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(device), minor(device));
	fd = open(path, O_WRONLY | O_CLOEXEC);
	bytes = snprintf(text, sizeof(text), "%d", READ_AHEAD_KIB);
	if (fd < 0 || write(fd, text, (size_t)bytes) != bytes)
		sc_log(SC_LOG_INFO, "cannot raise the read-ahead of the mount (%s), continuing with the kernel's "
		       "default", strerror(errno));
	if (fd >= 0)
		(void)close(fd);
}

int fs_session_new(struct fs *fs, const struct fs_mount_options *o, struct sc_err *err)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct sc_buf opts = {0};
	int rc = 0;

	sc_buf_printf(&opts, "fsname=");
	for (const char *c = o->store; *c; c++)
		sc_buf_printf(&opts, "%s%c", *c == ',' || *c == '\\' ? "\\" : "", *c);
	sc_buf_printf(&opts, ",subtype=scalai,default_permissions");
	if (!o->private_ && geteuid() == 0)
		sc_buf_printf(&opts, ",allow_other");
	if (o->io_uring)
		sc_buf_printf(&opts, ",io_uring,io_uring_q_depth=%d", FS_RING_ENTRIES);
	if (opts.failed || fuse_opt_add_arg(&args, "scalai") || fuse_opt_add_arg(&args, "-o") ||
	    fuse_opt_add_arg(&args, opts.text))
		rc = sc_nomem(err);
	sc_buf_done(&opts);
	if (rc == 0) {
		fs->se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
		if (!fs->se)
			rc = sc_fail(err, SC_E_SYSTEM, "libfuse refuses these options");
	}
	fuse_opt_free_args(&args);
	return rc;
}
