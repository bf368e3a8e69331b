/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of everything outside the process's own arithmetic: system calls, allocation, the clock,
 * randomness, io_uring, and the named steps of protocols.  Code calls `sc_sys.fn(...)`; a test replaces
 * entries to fail, shorten, delay or stop any call.
 * Conventions are those of libc (-1 and errno) so that the defaults are libc itself.  SQLite's own
 * calls are replaceable through its VFS; libfuse's session loop is not routed here.
 */
#ifndef SC_SYS_H
#define SC_SYS_H

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

struct io_uring;
struct io_uring_cqe;
struct msghdr;
struct pollfd;

struct sc_sys {
	void *(*alloc)(size_t bytes);
	void *(*resize)(void *p, size_t bytes);
	void (*release)(void *p);
	int (*openat)(int dir, const char *path, int flags, mode_t mode);
	int (*close)(int fd);
	ssize_t (*pread)(int fd, void *p, size_t bytes, off_t at);
	ssize_t (*pwrite)(int fd, const void *p, size_t bytes, off_t at);
	int (*fstat)(int fd, struct stat *st);
	int (*fstatat)(int dir, const char *path, struct stat *st, int flags);
	int (*ftruncate)(int fd, off_t bytes);
	int (*fallocate)(int fd, int mode, off_t at, off_t bytes);
	off_t (*lseek)(int fd, off_t at, int whence);
	int (*fsync)(int fd);
	int (*fdatasync)(int fd);
	int (*begin_write_back)(int fd);	      /* of all dirty bytes; advice */
	int (*unlinkat)(int dir, const char *path, int flags);
	int (*linkat)(int from_dir, const char *from, int dir, const char *path, int flags);
	int (*renameat)(int from_dir, const char *from, int dir, const char *path, unsigned flags);
	int (*mkdirat)(int dir, const char *path, mode_t mode);
	DIR *(*fdopendir)(int fd);
	struct dirent *(*readdir)(DIR *dir);
	int (*closedir)(DIR *dir);
	int (*flock)(int fd, int operation);
	int (*clone_mount)(int dir);		      /* open_tree: of a folder, detached */
	int (*set_mount)(int mount, uint64_t attrs);  /* mount_setattr: MOUNT_ATTR_... on */
	int (*fsetxattr)(int fd, const char *name, const void *value, size_t bytes, int flags);
	ssize_t (*fgetxattr)(int fd, const char *name, void *value, size_t bytes);
	int (*fchmod)(int fd, mode_t mode);
	int (*fchown)(int fd, uid_t uid, gid_t gid);
	int (*futimens)(int fd, const struct timespec ts[2]);
	int (*fcntl_lease)(int fd, int lease);	      /* F_SETLEASE */
	int (*fcntl_flags)(int fd, int flags);	      /* F_SETFL */
	int (*clone_range)(int to, uint64_t to_at, int from, uint64_t from_at, uint64_t bytes);
	/** Opens what a process has open: pid of one of its threads, and the number. */
	int (*take_fd)(pid_t thread, int number);
	ssize_t (*copy_range)(int from, off_t *from_at, int to, off_t *to_at, size_t bytes);
	int (*memfd)(const char *name, unsigned flags);
	int (*socket_pair)(int fds[2]);		      /* of messages in order: SOCK_SEQPACKET */
	ssize_t (*sendmsg)(int fd, const struct msghdr *msg, int flags);
	ssize_t (*recvmsg)(int fd, struct msghdr *msg, int flags);
	int (*poll)(struct pollfd *fds, int timeout_ms); /* of one */
	void *(*mmap)(void *at, size_t bytes, int prot, int flags, int fd, off_t off);
	int (*munmap)(void *p, size_t bytes);
	int (*fstatvfs)(int fd, struct statvfs *st);
	int (*clock)(clockid_t id, struct timespec *ret_now);
	/** pthread_cond_clockwait() until a time of sc_now_ns(); 0, ETIMEDOUT. */
	int (*wait_until)(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns);
	ssize_t (*random)(void *p, size_t bytes, unsigned flags);
	int (*ring_init)(struct io_uring *ring, unsigned entries);
	void (*ring_exit)(struct io_uring *ring);
	int (*ring_submit)(struct io_uring *ring);
	int (*ring_wait)(struct io_uring *ring, struct io_uring_cqe **ret_cqe);
	/** Called when a numbered, named step of a protocol has been reached (see reshard/command/commands/steps.h). */
	void (*step)(int nr, const char *name);
};

extern struct sc_sys sc_sys;

/* io_uring's defaults live with the engine, the only room that includes liburing.h. */

/** Read the clocks, in nanoseconds: the wall clock, since 1970; the monotonic clock. */
int64_t sc_now_wall_ns(void);
int64_t sc_now_ns(void);

/** Call pread or pwrite until all bytes are moved.  Return 0, or -1 with errno (EIO at a premature end). */
int sc_pread_all(int fd, void *p, size_t bytes, uint64_t at);
int sc_pwrite_all(int fd, const void *p, size_t bytes, uint64_t at);

void sc_closep(int *fd);
static inline int sc_steal_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}
#define sc_cleanup(fn) __attribute__((cleanup(fn)))
#define sc_steal(p)                                                                                \
	({                                                                                         \
		__typeof__(p) p_ = (p);                                                            \
		__typeof__(*p_) v_ = *p_;                                                          \
		*p_ = (__typeof__(*p_)){0};                                                        \
		v_;                                                                                \
	})

#endif
