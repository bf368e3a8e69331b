/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/store/store_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <linux/mount.h>

#include "meta/base/mem.h"
#include "meta/base/sys.h"

#define FAN_OUT 256 /* folders, so that none has millions of names */
#define RUN 256	    /* blobs with adjacent numbers share a folder: a save needs few inode tables and flushes */
/* name of files that are about to take a blob's name; the next start removes those that are left */
#define REPLACEMENT "replacement"
#define SHARED "shared"
#define ASIDE "lost+found"
#define ASIDE_MAX 10000	/* files of one name in lost+found */

struct meta_damaged {
	pthread_mutex_t lock;
	size_t nr, room;
	uint64_t *at;
	bool any;		/* atomic */
	uint64_t news;		/* atomic */
};

static void blob_path(uint64_t blob, char *path, size_t bytes)
{
	(void)snprintf(path, bytes, "%02x/%" PRIu64, (unsigned)(blob / RUN % FAN_OUT), blob);
}

/* Makes a detached read-only mount of STORE/blobs that only this process can reach; -1: not allowed. */
static int private_read_only(int blobs)
{
	int fd = sc_sys.clone_mount(blobs);

	if (fd >= 0 && sc_sys.set_mount(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID |
						    MOUNT_ATTR_NODEV) < 0)
		sc_closep(&fd);
	return fd;
}

int store_make_dir(int at, const char *path, int *ret_fd, struct sc_err *err)
{
	if (sc_sys.mkdirat(at, path, 0700) < 0 && errno != EEXIST)
		return sc_fail_sys(err, errno, "store: cannot make the folder '%s'", path);
	if (!ret_fd)
		return 0;
	*ret_fd = sc_sys.openat(at, path, O_RDONLY | O_DIRECTORY, 0);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "store: cannot open the folder '%s'", path) : 0;
}

static int take_lock(const char *path, struct meta_store *s, struct sc_err *err)
{
	s->lock = sc_sys.openat(s->dir, "lock", O_RDWR | O_CREAT, 0600);
	if (s->lock < 0 && errno == EROFS)
		return sc_fail_sys(err, errno, "store '%s': its file system is read-only, and a store is written also "
				   "where it is only read; 'mount -o remount,rw' it, or mount a copy", path);
	if (s->lock < 0)
		return sc_fail_sys(err, errno, "store '%s': cannot make the lock file", path);
	if (sc_sys.flock(s->lock, LOCK_EX | LOCK_NB) == 0)
		return 0;
	return errno == EWOULDBLOCK ? sc_fail(err, SC_E_BUSY, "store '%s' is in use by another scalai daemon, or by "
					      "fsck; 'findmnt -t fuse.scalai' says where it is mounted", path)
				    : sc_fail_sys(err, errno, "store '%s': cannot lock the store", path);
}

static int open_store(const char *path, int lock, struct meta_store *s, struct sc_err *err)
{
	int rc = store_make_dir(AT_FDCWD, path, &s->dir, err);

	if (rc < 0)
		return rc;
	if (lock)
		s->lock = lock;
	else
		rc = take_lock(path, s, err);
	if (rc == 0)
		rc = store_make_dir(s->dir, "blobs", &s->blobs, err);
	for (int i = 0; rc == 0 && i < FAN_OUT; i++) {
		char name[8];

		(void)snprintf(name, sizeof(name), "%02x", i);
		rc = store_make_dir(s->blobs, name, NULL, err);
	}
	/* a new store survives a power cut */
	if (rc == 0 && (sc_sys.fsync(s->blobs) < 0 || sc_sys.fsync(s->dir) < 0))
		rc = sc_fail_sys(err, errno, "store '%s': cannot flush the store's folders", path);
	if (rc < 0)
		return rc;
	(void)sc_sys.unlinkat(s->blobs, REPLACEMENT, 0);
	(void)sc_sys.unlinkat(s->blobs, SHARED, 0);
	s->sealed = private_read_only(s->blobs);
	s->damaged = sc_zalloc(sizeof(*s->damaged));
	if (!s->damaged)
		return sc_nomem(err);
	(void)pthread_mutex_init(&s->damaged->lock, NULL);
	return 0;
}

int meta_store_open(const char *path, int lock, struct meta_store *ret, struct sc_err *err)
{
	struct meta_store s = {-1, -1, -1, -1, NULL};
	int rc = open_store(path, lock, &s, err);

	if (rc < 0)
		meta_store_close(&s);
	else
		*ret = s;
	return rc;
}

int meta_store_wait_unused(const char *path, struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = sc_sys.openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
	sc_cleanup(sc_closep) int lock = dir < 0 ? -1 : sc_sys.openat(dir, "lock", O_RDONLY, 0);

	if (lock < 0)
		return errno == ENOENT ? 0 : sc_fail_sys(err, errno, "store '%s': cannot open its lock file", path);
	if (sc_sys.flock(lock, LOCK_SH) == 0)
		return 0;
	return errno == EINTR ? sc_fail(err, SC_E_BUSY, "store '%s' is in use by a scalai daemon", path)
			      : sc_fail_sys(err, errno, "store '%s': cannot lock it", path);
}

bool meta_store_has_leases(const struct meta_store *store)
{
	/* our own lock file is open for writing, so a file system with leases refuses a read lease on it */
	if (sc_sys.fcntl_lease(store->lock, F_RDLCK) == 0) {
		(void)sc_sys.fcntl_lease(store->lock, F_UNLCK);
		return true;
	}
	return errno == EAGAIN;
}

void meta_store_close(struct meta_store *store)
{
	sc_closep(&store->sealed);
	sc_closep(&store->blobs);
	sc_closep(&store->dir);
	sc_closep(&store->lock);
	if (store->damaged) {
		sc_vec_done(store->damaged);
		(void)pthread_mutex_destroy(&store->damaged->lock);
		sc_sys.release(store->damaged);
		store->damaged = NULL;
	}
}

bool meta_disk_fails(int errnum)
{
	/* page cache: EIO; O_DIRECT: the device's own, of a medium or of protected data; ext4 and XFS: bad structure */
	return errnum == EIO || errnum == ENODATA || errnum == EILSEQ || errnum == EUCLEAN || errnum == EBADMSG;
}

int meta_store_create(const struct meta_store *store, uint64_t blob, int *ret_fd,
		      struct sc_err *err)
{
	char path[40];
	int fd;

	blob_path(blob, path, sizeof(path));
	fd = sc_sys.openat(store->blobs, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	if (fd < 0)
		return sc_fail_sys(err, errno, "store: cannot make the file of blob %" PRIu64, blob);
	*ret_fd = fd;
	return 0;
}

static int cannot(const char *what, uint64_t blob, struct sc_err *err)
{
	if (meta_disk_fails(errno))
		(void)sc_fail(err, SC_E_DAMAGED, "store: cannot %s blob %" PRIu64 ": %s", what, blob, strerror(errno));
	else
		(void)sc_fail_sys(err, errno, "store: cannot %s blob %" PRIu64, what, blob);
	return sc_about(err, blob);
}

const char *store_not_a_file(const struct stat *st)
{
	return S_ISREG(st->st_mode)    ? NULL
	       : S_ISLNK(st->st_mode)  ? "is a symbolic link, not a file"
	       : S_ISDIR(st->st_mode)  ? "is a folder, not a file"
	       : S_ISFIFO(st->st_mode) ? "is a FIFO, not a file"
	       : S_ISSOCK(st->st_mode) ? "is a socket, not a file"
				       : "is a device, not a file";
}

/* Looks at the object that has a blob's name, without opening it: an open would wait at a FIFO, and act on a device. */
static int look(int dir, uint64_t blob, const char *what, struct stat *ret, struct sc_err *err)
{
	const char *other;
	char path[40];

	blob_path(blob, path, sizeof(path));
	if (sc_sys.fstatat(dir, path, ret, AT_SYMLINK_NOFOLLOW) < 0)
		return cannot(what, blob, err);
	other = store_not_a_file(ret);
	if (!other)
		return 0;
	(void)sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " %s", blob, other);
	return sc_about(err, blob);
}

static int open_in(int dir, uint64_t blob, int flags, int *ret_fd, struct sc_err *err)
{
	struct stat st;
	char path[40];
	int fd, rc = look(dir, blob, "open", &st, err);

	if (rc < 0)
		return rc;
	blob_path(blob, path, sizeof(path));
	fd = sc_sys.openat(dir, path, flags | O_NOFOLLOW, 0);
	if (fd < 0)
		return cannot("open", blob, err);
	*ret_fd = fd;
	return 0;
}

int meta_store_stat_work(const struct meta_store *store, uint64_t blob, struct stat *ret, struct sc_err *err)
{
	struct stat st;
	int rc = look(store->blobs, blob, "stat", &st, err);

	if (rc == 0)
		*ret = st;
	return rc;
}

const char *meta_store_not_a_file(const struct meta_store *store, uint64_t blob)
{
	struct stat st;
	char path[40];

	blob_path(blob, path, sizeof(path));
	return sc_sys.fstatat(store->blobs, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ? NULL : store_not_a_file(&st);
}

int meta_store_open_damaged(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			    struct sc_err *err)
{
	return open_in(store->sealed >= 0 ? store->sealed : store->blobs, blob, flags, ret_fd, err);
}

int meta_store_open_work(const struct meta_store *store, uint64_t blob, int flags, int *ret_fd,
			 struct sc_err *err)
{
	return open_in(store->blobs, blob, flags, ret_fd, err);
}

bool meta_store_has_damage(const struct meta_store *store)
{
	return __atomic_load_n(&store->damaged->any, __ATOMIC_ACQUIRE);
}

bool meta_store_is_damaged(const struct meta_store *store, uint64_t blob)
{
	struct meta_damaged *d = store->damaged;
	bool is = false;

	if (!meta_store_has_damage(store))
		return false;
	(void)pthread_mutex_lock(&d->lock);
	for (size_t i = 0; i < d->nr; i++)
		is |= d->at[i] == blob;
	(void)pthread_mutex_unlock(&d->lock);
	return is;
}

/* Refuses a file of another size: a rank that reads one that is too short would see an early end, and no error. */
static int check_size(int fd, uint64_t blob, uint64_t bytes, struct sc_err *err)
{
	struct stat st;

	if (bytes == UINT64_MAX)
		return 0;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "store: cannot stat blob %" PRIu64, blob);
	if ((uint64_t)st.st_size == bytes)
		return 0;
	(void)sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " is damaged: it has %" PRIu64 " bytes instead of %" PRIu64
		      "; restore it, or roll back", blob, (uint64_t)st.st_size, bytes);
	return sc_about(err, blob);
}

int meta_store_open_blob(const struct meta_store *store, uint64_t blob, uint64_t bytes, int *ret_fd, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	if (meta_store_is_damaged(store, blob))
		return sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " is damaged, and no replica has the same bytes; "
			       "restore its file, and write to 'verify', or roll back", blob);
	rc = meta_store_open_damaged(store, blob, O_RDONLY, &fd, err);
	if (rc == 0)
		rc = check_size(fd, blob, bytes, err);
	if (rc == 0)
		*ret_fd = sc_steal_fd(&fd);
	return rc;
}

int meta_store_set_damaged(const struct meta_store *store, uint64_t blob, bool damaged, struct sc_err *err)
{
	struct meta_damaged *d = store->damaged;
	size_t i = 0;
	int rc = 0;

	(void)pthread_mutex_lock(&d->lock);
	while (i < d->nr && d->at[i] != blob)
		i++;
	if (damaged && i == d->nr) {
		rc = sc_vec_push(d, blob) < 0 ? sc_nomem(err) : 1;
	} else if (!damaged && i < d->nr) {
		d->at[i] = d->at[--d->nr];
		rc = 1;
	}
	__atomic_store_n(&d->any, d->nr != 0, __ATOMIC_RELEASE);
	if (rc > 0)
		(void)__atomic_add_fetch(&d->news, 1, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&d->lock);
	return rc;
}

uint64_t meta_store_damage_news(const struct meta_store *store)
{
	return __atomic_load_n(&store->damaged->news, __ATOMIC_ACQUIRE);
}

int meta_store_damaged(const struct meta_store *store, uint64_t **ret, size_t *ret_nr, struct sc_err *err)
{
	struct meta_damaged *d = store->damaged;

	*ret = NULL;
	(void)pthread_mutex_lock(&d->lock);
	*ret_nr = d->nr;
	if (d->nr) {
		*ret = sc_sys.alloc(d->nr * sizeof(**ret));
		if (*ret)
			memcpy(*ret, d->at, d->nr * sizeof(**ret));
	}
	(void)pthread_mutex_unlock(&d->lock);
	return *ret_nr && !*ret ? sc_nomem(err) : 0;
}

int meta_store_begin_replace(const struct meta_store *store, int *ret_fd, struct sc_err *err)
{
	(void)sc_sys.unlinkat(store->blobs, REPLACEMENT, 0);
	*ret_fd = sc_sys.openat(store->blobs, REPLACEMENT, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "store: cannot make a replacement for a damaged blob") : 0;
}

static bool is_folder(const struct meta_store *store, const char *path)
{
	struct stat st;

	return sc_sys.fstatat(store->blobs, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static int take_name(const struct meta_store *store, const char *from, uint64_t blob, struct sc_err *err)
{
	char path[40];
	int rc;

	blob_path(blob, path, sizeof(path));
	if (sc_sys.renameat(store->blobs, from, store->blobs, path, 0) == 0)
		return 0;
	rc = sc_fail_sys(err, errno, "store: cannot replace the file of blob %" PRIu64, blob);
	if (!is_folder(store, path))
		return rc;
	/* it is none of ours, so all that is in it is kept */
	rc = meta_store_set_aside(store, blob, err);
	if (rc == 0 && sc_sys.renameat(store->blobs, from, store->blobs, path, 0) < 0)
		rc = sc_fail_sys(err, errno, "store: cannot replace the file of blob %" PRIu64, blob);
	return rc;
}

int meta_store_replace(const struct meta_store *store, uint64_t blob, struct sc_err *err)
{
	int rc = take_name(store, REPLACEMENT, blob, err);

	if (rc == 0)
		(void)__atomic_add_fetch(&store->damaged->news, 1, __ATOMIC_RELEASE);
	return rc;
}

int meta_store_link(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err)
{
	char from[40], to[40];

	blob_path(same, from, sizeof(from));
	blob_path(blob, to, sizeof(to));
	if (sc_sys.linkat(store->blobs, from, store->blobs, to, 0) < 0)
		return sc_fail_sys(err, errno, "store: cannot link blob %" PRIu64, same);
	return 0;
}

int meta_store_adopt(const struct meta_store *store, uint64_t blob, int fd, struct sc_err *err)
{
	char from[40], to[40];

	(void)snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
	blob_path(blob, to, sizeof(to));
	if (sc_sys.linkat(AT_FDCWD, from, store->blobs, to, AT_SYMLINK_FOLLOW) < 0)
		return sc_fail_sys(err, errno, "store: cannot give the file of blob %" PRIu64 " its name", blob);
	return 0;
}

int meta_store_share(const struct meta_store *store, uint64_t blob, uint64_t same, struct sc_err *err)
{
	char path[40];

	blob_path(same, path, sizeof(path));
	(void)sc_sys.unlinkat(store->blobs, SHARED, 0);
	if (sc_sys.linkat(store->blobs, path, store->blobs, SHARED, 0) < 0)
		return errno == EMLINK || errno == EPERM || errno == EOPNOTSUPP
			       ? sc_fail(err, SC_E_UNSUPPORTED, "store: the file system allows no more hard links to "
			       	"blob %" PRIu64, same)
			       : sc_fail_sys(err, errno, "store: cannot link blob %" PRIu64, same);
	return take_name(store, SHARED, blob, err);
}

int meta_store_remove(const struct meta_store *store, uint64_t blob, struct sc_err *err)
{
	char path[40];
	int rc;

	blob_path(blob, path, sizeof(path));
	if (sc_sys.unlinkat(store->blobs, path, 0) == 0 || errno == ENOENT)
		return 0;
	rc = sc_fail_sys(err, errno, "store: cannot remove the file of blob %" PRIu64, blob);
	/* a folder is none of ours, so all that is in it is kept */
	return is_folder(store, path) ? meta_store_set_aside(store, blob, err) : rc;
}

/* Gives the name that a file gets in lost+found, as the `nr`th of its name there (from 1 on). */
static void aside_name(const char *name, unsigned nr, char ret[META_ASIDE_BYTES])
{
	if (nr < 2)
		(void)snprintf(ret, META_ASIDE_BYTES, "%s", name);
	else
		(void)snprintf(ret, META_ASIDE_BYTES, "%s.%u", name, nr);
}

static int set_aside(const struct meta_store *store, int from, const char *path, const char *name,
		     char ret[META_ASIDE_BYTES], struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	int rc = store_make_dir(store->dir, ASIDE, &to, err);

	if (rc < 0)
		return rc;
	aside_name(name, 1, ret);
	/* a catalog that was made anew may have given a number again */
	for (unsigned i = 2; sc_sys.renameat(from, path, to, ret, RENAME_NOREPLACE) < 0; i++) {
		if (errno != EEXIST || i == ASIDE_MAX)
			return sc_fail_sys(err, errno, "store: cannot move '%s' to " ASIDE, path);
		aside_name(name, i, ret);
	}
	return 0;
}

int store_set_aside(const struct meta_store *store, int from, const char *path, const char *name, struct sc_err *err)
{
	char ignored[META_ASIDE_BYTES];

	return set_aside(store, from, path, name, ignored, err);
}

int meta_store_set_file_aside(const struct meta_store *store, const char *name, char ret[META_ASIDE_BYTES],
			      struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	int rc = set_aside(store, store->dir, name, name, ret, err);

	if (rc == 0)
		rc = store_make_dir(store->dir, ASIDE, &to, err);
	if (rc == 0 && (sc_sys.fsync(to) < 0 || sc_sys.fsync(store->dir) < 0))
		rc = sc_fail_sys(err, errno, "store: cannot flush the folder '" ASIDE "'");
	return rc;
}

bool meta_store_next_aside(const struct meta_store *store, const char *name, unsigned *nr, char ret[META_ASIDE_BYTES])
{
	sc_cleanup(sc_closep) int dir = sc_sys.openat(store->dir, ASIDE, O_RDONLY | O_DIRECTORY, 0);
	struct stat st;

	aside_name(name, ++*nr, ret);
	return dir >= 0 && sc_sys.fstatat(dir, ret, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int meta_store_set_aside(const struct meta_store *store, uint64_t blob, struct sc_err *err)
{
	char path[40], name[32];

	blob_path(blob, path, sizeof(path));
	(void)snprintf(name, sizeof(name), "%" PRIu64, blob);
	return store_set_aside(store, store->blobs, path, name, err);
}

void meta_store_note_dir(struct meta_store_dirs *dirs, uint64_t blob)
{
	dirs->bits[blob % FAN_OUT / 64] |= UINT64_C(1) << blob % 64;
}

int meta_store_next_dir(const struct meta_store *store, const struct meta_store_dirs *dirs, int *at, int *ret_fd,
			struct sc_err *err)
{
	char name[8];

	while (*at < FAN_OUT && !(dirs->bits[*at / 64] >> *at % 64 & 1))
		++*at;
	if (*at == FAN_OUT)
		return 0;
	(void)snprintf(name, sizeof(name), "%02x", (*at)++);
	*ret_fd = sc_sys.openat(store->blobs, name, O_RDONLY | O_DIRECTORY, 0);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "store: cannot open the folder '%s'", name) : 1;
}

int meta_store_sync_dirs(const struct meta_store *store, const struct meta_store_dirs *dirs, struct sc_err *err)
{
	int at = 0, fd = -1, rc;

	while ((rc = meta_store_next_dir(store, dirs, &at, &fd, err)) > 0) {
		if (sc_sys.fsync(fd) < 0)
			rc = sc_fail_sys(err, errno, "store: cannot flush a folder of blobs");
		sc_closep(&fd);
		if (rc < 0)
			break;
	}
	return rc;
}

int store_each_in(int fd, const char *name, int (*each)(void *arg, uint64_t number), void *arg, struct sc_err *err)
{
	DIR *d = sc_sys.fdopendir(fd);
	struct dirent *e = NULL;
	int rc = 0;

	if (!d) {
		rc = sc_fail_sys(err, errno, "store: cannot list '%s'", name);
		sc_closep(&fd);
		return rc;
	}
	/* an error that were taken for the end would make a store of many blobs an empty one */
	while (rc == 0 && (errno = 0, e = sc_sys.readdir(d))) {
		char *end;
		uint64_t number = strtoull(e->d_name, &end, 10);

		if (*e->d_name != '.' && !*end)
			rc = each(arg, number);
	}
	if (!e && errno)
		rc = sc_fail_sys(err, errno, "store: cannot list '%s'", name);
	(void)sc_sys.closedir(d);
	return rc;
}

int meta_store_each(const struct meta_store *store, int (*each)(void *arg, uint64_t blob), void *arg,
		    struct sc_err *err)
{
	int rc = 0;

	for (int i = 0; rc == 0 && i < FAN_OUT; i++) {
		char name[8];
		int fd;

		(void)snprintf(name, sizeof(name), "%02x", i);
		fd = sc_sys.openat(store->blobs, name, O_RDONLY | O_DIRECTORY, 0);
		if (fd < 0)
			return sc_fail_sys(err, errno, "store: cannot list '%s'", name);
		rc = store_each_in(fd, name, each, arg, err);
	}
	return rc;
}
