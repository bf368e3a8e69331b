/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/interpose.h"

#include "meta/base/sys.h"

#include <errno.h>
#include <liburing.h>
#include <sqlite3.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static struct sc_sys real;
static interpose_fn *judge;
static ssize_t (*real_sql_pread)(int fd, void *p, size_t n, off_t at);
static ssize_t (*real_sql_pwrite)(int fd, const void *p, size_t n, off_t at);
static int (*real_sql_ftruncate)(int fd, off_t n);
static int (*real_sql_unlink)(const char *path);

/* One call: what it returns when it fails, and the call as it is made; both may use what the test said. */
#define ASK(name, arg, failed, call)                                                                                   \
	int said_ = judge(CALL_##name, (long)(arg));                                                                   \
	if (said_ < 0) {                                                                                               \
		errno = -said_;                                                                                        \
		return failed;                                                                                         \
	}                                                                                                              \
	__typeof__(call) rc_ = (call);                                                                                 \
	if (said_ & INTERPOSE_LAST)                                                                                    \
		_exit(INTERPOSE_STATUS);                                                                               \
	return rc_

#define BYTES(n) (said_ & INTERPOSE_SHORT && (n) > 1 ? (n) / 2 : (n))

static void *ask_alloc(size_t n)
{
	ASK(alloc, n, NULL, real.alloc(n));
}

static void *ask_resize(void *p, size_t n)
{
	ASK(resize, n, NULL, real.resize(p, n));
}

static int ask_openat(int dir, const char *path, int flags, mode_t mode)
{
	ASK(openat, flags, -1, real.openat(dir, path, flags, mode));
}

static ssize_t ask_pread(int fd, void *p, size_t n, off_t at)
{
	ASK(pread, n, -1, real.pread(fd, p, BYTES(n), at));
}

static ssize_t ask_pwrite(int fd, const void *p, size_t n, off_t at)
{
	ASK(pwrite, n, -1, real.pwrite(fd, p, BYTES(n), at));
}

static int ask_fstat(int fd, struct stat *st)
{
	ASK(fstat, 0, -1, real.fstat(fd, st));
}

static int ask_ftruncate(int fd, off_t n)
{
	ASK(ftruncate, n, -1, real.ftruncate(fd, n));
}

static int ask_fallocate(int fd, int mode, off_t at, off_t n)
{
	ASK(fallocate, n, -1, real.fallocate(fd, mode, at, n));
}

static int ask_fsync(int fd)
{
	ASK(fsync, 0, -1, real.fsync(fd));
}

static int ask_unlinkat(int dir, const char *path, int flags)
{
	ASK(unlinkat, flags, -1, real.unlinkat(dir, path, flags));
}

static int ask_linkat(int from_dir, const char *from, int dir, const char *path, int flags)
{
	ASK(linkat, flags, -1, real.linkat(from_dir, from, dir, path, flags));
}

static int ask_renameat(int from_dir, const char *from, int dir, const char *path, unsigned flags)
{
	ASK(renameat, flags, -1, real.renameat(from_dir, from, dir, path, flags));
}

static int ask_fsetxattr(int fd, const char *name, const void *value, size_t bytes, int flags)
{
	ASK(fsetxattr, bytes, -1, real.fsetxattr(fd, name, value, bytes, flags));
}

static int ask_fchmod(int fd, mode_t mode)
{
	ASK(fchmod, mode, -1, real.fchmod(fd, mode));
}

static int ask_fchown(int fd, uid_t uid, gid_t gid)
{
	ASK(fchown, uid, -1, real.fchown(fd, uid, gid));
}

static int ask_futimens(int fd, const struct timespec ts[2])
{
	ASK(futimens, 0, -1, real.futimens(fd, ts));
}

static int ask_fdatasync(int fd)
{
	ASK(fdatasync, 0, -1, real.fdatasync(fd));
}

static int ask_mkdirat(int dir, const char *path, mode_t mode)
{
	ASK(mkdirat, mode, -1, real.mkdirat(dir, path, mode));
}

static int ask_fstatat(int dir, const char *path, struct stat *st, int flags)
{
	ASK(fstatat, flags, -1, real.fstatat(dir, path, st, flags));
}

static DIR *ask_fdopendir(int fd)
{
	ASK(fdopendir, 0, NULL, real.fdopendir(fd));
}

static struct dirent *ask_readdir(DIR *dir)
{
	ASK(readdir, 0, NULL, real.readdir(dir));
}

static int ask_flock(int fd, int operation)
{
	ASK(flock, operation, -1, real.flock(fd, operation));
}

static int ask_fcntl_lease(int fd, int lease)
{
	ASK(fcntl_lease, lease, -1, real.fcntl_lease(fd, lease));
}

static int ask_clone_range(int to, uint64_t to_at, int from, uint64_t from_at, uint64_t n)
{
	ASK(clone_range, n, -1, real.clone_range(to, to_at, from, from_at, n));
}

static ssize_t ask_copy_range(int from, off_t *from_at, int to, off_t *to_at, size_t n)
{
	ASK(copy_range, n, -1, real.copy_range(from, from_at, to, to_at, BYTES(n)));
}

static void *ask_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	ASK(mmap, n, MAP_FAILED, real.mmap(at, n, prot, flags, fd, off));
}

static int ask_ring_init(struct io_uring *ring, unsigned entries)
{
	ASK(ring_init, entries, said_, real.ring_init(ring, entries));
}

static int ask_ring_submit(struct io_uring *ring)
{
	ASK(ring_submit, 0, said_, real.ring_submit(ring));
}

/* What fails or is short is the completion. */
static int ask_ring_wait(struct io_uring *ring, struct io_uring_cqe **ret)
{
	int rc = real.ring_wait(ring, ret), said = rc == 0 ? judge(CALL_ring_wait, (*ret)->res) : 0;

	if (said < 0)
		(*ret)->res = said;
	else if (said & INTERPOSE_SHORT)
		(*ret)->res /= 2;
	return rc;
}

static void ask_step(int nr, const char *name)
{
	if (judge(CALL_step, nr) & INTERPOSE_LAST)
		_exit(INTERPOSE_STATUS);
	real.step(nr, name);
}

static ssize_t ask_sql_pread(int fd, void *p, size_t n, off_t at)
{
	ASK(sql_pread, n, -1, real_sql_pread(fd, p, BYTES(n), at));
}

static ssize_t ask_sql_pwrite(int fd, const void *p, size_t n, off_t at)
{
	ASK(sql_pwrite, n, -1, real_sql_pwrite(fd, p, BYTES(n), at));
}

static int ask_sql_ftruncate(int fd, off_t n)
{
	ASK(sql_ftruncate, n, -1, real_sql_ftruncate(fd, n));
}

static int ask_sql_unlink(const char *path)
{
	ASK(sql_unlink, 0, -1, real_sql_unlink(path));
}

static void set_sql(sqlite3_vfs *vfs, const char *name, void *fn, uint64_t wanted)
{
	(void)vfs->xSetSystemCall(vfs, name, wanted ? (sqlite3_syscall_ptr)fn : NULL); /* NULL: its own */
}

static void set_all(uint64_t calls)
{
	sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

	sc_sys = real;
#define SET(name)                                                                                                      \
	if (calls & INTERPOSE(name))                                                                                   \
		sc_sys.name = ask_##name;
	INTERPOSE_SYS(SET)
#undef SET
	/* SQLite uses one of the two names, as it was built */
	set_sql(vfs, "pread", ask_sql_pread, calls & INTERPOSE(sql_pread));
	set_sql(vfs, "pread64", ask_sql_pread, calls & INTERPOSE(sql_pread));
	set_sql(vfs, "pwrite", ask_sql_pwrite, calls & INTERPOSE(sql_pwrite));
	set_sql(vfs, "pwrite64", ask_sql_pwrite, calls & INTERPOSE(sql_pwrite));
	set_sql(vfs, "ftruncate", ask_sql_ftruncate, calls & INTERPOSE(sql_ftruncate));
	set_sql(vfs, "unlink", ask_sql_unlink, calls & INTERPOSE(sql_unlink));
}

void interpose_begin(uint64_t calls, interpose_fn *fn)
{
	sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

	if (!real.alloc) {
		real = sc_sys;
		real_sql_pread = (void *)(vfs->xGetSystemCall(vfs, "pread64") ?: vfs->xGetSystemCall(vfs, "pread"));
		real_sql_pwrite = (void *)(vfs->xGetSystemCall(vfs, "pwrite64") ?: vfs->xGetSystemCall(vfs, "pwrite"));
		real_sql_ftruncate = (void *)vfs->xGetSystemCall(vfs, "ftruncate");
		real_sql_unlink = (void *)vfs->xGetSystemCall(vfs, "unlink");
	}
	judge = fn;
	set_all(calls);
}

void interpose_end(void)
{
	set_all(0);
}
