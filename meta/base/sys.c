/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static int real_openat(int dir, const char *path, int flags, mode_t mode)
{
	return openat(dir, path, flags | O_CLOEXEC, mode);
}

static int real_fcntl_lease(int fd, int lease)
{
	return fcntl(fd, F_SETLEASE, lease);
}

static int real_fcntl_flags(int fd, int flags)
{
	return fcntl(fd, F_SETFL, flags);
}

static int real_clone_range(int to, uint64_t to_at, int from, uint64_t from_at, uint64_t bytes)
{
	struct file_clone_range range = {
		.src_fd = from,
		.src_offset = from_at,
		.src_length = bytes,
		.dest_offset = to_at,
	};

	return ioctl(to, FICLONERANGE, &range);
}

#define PIDFD_OF_THREAD O_EXCL /* PIDFD_THREAD, which older headers do not have */

static int real_take_fd(pid_t thread, int number)
{
	int process = (int)syscall(SYS_pidfd_open, thread, PIDFD_OF_THREAD), fd, failed;

	if (process < 0 && errno == EINVAL) /* Linux before 6.9 knows processes only */
		process = (int)syscall(SYS_pidfd_open, thread, 0);
	if (process < 0)
		return -1;
	fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
	failed = errno;
	(void)close(process);
	errno = failed;
	return fd;
}

static int real_memfd(const char *name, unsigned flags)
{
	return memfd_create(name, flags | MFD_CLOEXEC);
}

static int real_socket_pair(int fds[2])
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds);
}

static int real_poll(struct pollfd *fds, int timeout_ms)
{
	return poll(fds, 1, timeout_ms);
}

static int real_begin_write_back(int fd)
{
	return sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

static ssize_t real_copy_range(int from, off_t *from_at, int to, off_t *to_at, size_t bytes)
{
	return copy_file_range(from, from_at, to, to_at, bytes, 0);
}

static int real_clock(clockid_t id, struct timespec *ret_now)
{
	return clock_gettime(id, ret_now);
}

static int real_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns)
{
	struct timespec until = {ns / 1000000000, ns % 1000000000};

	return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &until);
}

static int real_fstatat(int dir, const char *path, struct stat *st, int flags)
{
	return fstatat(dir, path, st, flags);
}

static int real_fstat(int fd, struct stat *st)
{
	return fstat(fd, st);
}

static int real_renameat(int from_dir, const char *from, int dir, const char *path, unsigned flags)
{
	return renameat2(from_dir, from, dir, path, flags);
}

static int real_clone_mount(int dir)
{
	return (int)syscall(SYS_open_tree, dir, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
}

static int real_set_mount(int mount, uint64_t attrs)
{
	struct mount_attr attr = {.attr_set = attrs};

	return (int)syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attr, sizeof(attr));
}

static void no_step(int nr, const char *name)
{
	(void)nr;
	(void)name;
}

struct sc_sys sc_sys = {
	.alloc = malloc,
	.resize = realloc,
	.release = free,
	.openat = real_openat,
	.close = close,
	.pread = pread,
	.pwrite = pwrite,
	.fstat = real_fstat,
	.fstatat = real_fstatat,
	.ftruncate = ftruncate,
	.fallocate = fallocate,
	.lseek = lseek,
	.fsync = fsync,
	.fdatasync = fdatasync,
	.begin_write_back = real_begin_write_back,
	.unlinkat = unlinkat,
	.linkat = linkat,
	.renameat = real_renameat,
	.mkdirat = mkdirat,
	.fdopendir = fdopendir,
	.readdir = readdir,
	.closedir = closedir,
	.flock = flock,
	.clone_mount = real_clone_mount,
	.take_fd = real_take_fd,
	.set_mount = real_set_mount,
	.fsetxattr = fsetxattr,
	.fgetxattr = fgetxattr,
	.fchmod = fchmod,
	.fchown = fchown,
	.futimens = futimens,
	.fcntl_lease = real_fcntl_lease,
	.fcntl_flags = real_fcntl_flags,
	.clone_range = real_clone_range,
	.copy_range = real_copy_range,
	.memfd = real_memfd,
	.socket_pair = real_socket_pair,
	.sendmsg = sendmsg,
	.recvmsg = recvmsg,
	.poll = real_poll,
	.mmap = mmap,
	.munmap = munmap,
	.fstatvfs = fstatvfs,
	.clock = real_clock,
	.wait_until = real_wait_until,
	.random = getrandom,
	.step = no_step,
};

static int64_t now(clockid_t id)
{
	struct timespec ts = {0};

	(void)sc_sys.clock(id, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t sc_now_wall_ns(void)
{
	return now(CLOCK_REALTIME);
}

int64_t sc_now_ns(void)
{
	return now(CLOCK_MONOTONIC);
}

int sc_pread_all(int fd, void *p, size_t bytes, uint64_t at)
{
	while (bytes) {
		ssize_t n = sc_sys.pread(fd, p, bytes, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = EIO;
		if (n <= 0)
			return -1;
		p = (char *)p + n;
		bytes -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

int sc_pwrite_all(int fd, const void *p, size_t bytes, uint64_t at)
{
	while (bytes) {
		ssize_t n = sc_sys.pwrite(fd, p, bytes, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = EIO;
		if (n <= 0)
			return -1;
		p = (const char *)p + n;
		bytes -= (size_t)n;
		at += (uint64_t)n;
	}
	return 0;
}

void sc_closep(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		(void)sc_sys.close(*fd);
	*fd = -1;
	errno = saved;
}
