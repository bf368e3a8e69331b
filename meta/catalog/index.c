/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of the write-ahead log, CATALOG-shm, on a full disk.  SQLite maps it, and removes it with the log.  There
 * is no room for it in the next start then, and a store to a part of it that has no block would end the process
 * (SIGBUS).  So it has a second name, too, CATALOG-index, and is mapped only when each of its blocks is allocated.  Who
 * opens the catalog first fills it with zeros, where SQLite cuts it to 3 bytes: it is not valid in either case.
 */
#include "meta/catalog/db_i.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "meta/base/mem.h"

typedef void *map_fn(void *at, size_t bytes, int prot, int flags, int fd, off_t off);
typedef int truncate_fn(int fd, off_t bytes);

#define SQLITE_CUTS_INDEX_TO 3

static map_fn *map_of_sqlite;
static truncate_fn *truncate_of_sqlite;
static __thread bool index_begins;	/* a catalog is being opened by this thread */

static bool is_zeroed(int fd, off_t bytes)
{
	static const char zeros[4096];

	for (off_t at = 0; at < bytes; at += (off_t)sizeof(zeros)) {
		const size_t n = (size_t)sc_min_u64((uint64_t)(bytes - at), sizeof(zeros));

		if (sc_sys.pwrite(fd, zeros, n, at) != (ssize_t)n)
			return false;
	}
	return true;
}

static int cut_or_clear(int fd, off_t bytes)
{
	struct stat st;

	if (bytes == SQLITE_CUTS_INDEX_TO && sc_sys.fstat(fd, &st) == 0 && st.st_size > bytes &&
	    is_zeroed(fd, st.st_size))
		return 0;
	return truncate_of_sqlite(fd, bytes);
}

/* A file system that cannot do what was asked for says nothing about room. */
static bool is_no_room(int rc)
{
	return rc < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO);
}

/*
 * SQLite writes a byte into each 4 KiB before it maps: where blocks are smaller, the others are holes; and of a block
 * whose allocation is delayed, ext4 on a full disk knows nothing any more when it is stored to.
 */
static bool has_blocks(int fd)
{
	struct stat st;
	int rc = sc_sys.fstat(fd, &st);

	if (rc == 0 && (uint64_t)st.st_blocks * 512 < (uint64_t)st.st_size)
		do
			rc = sc_sys.fallocate(fd, 0, 0, st.st_size);
		while (rc < 0 && errno == EINTR);
	return !is_no_room(rc) && !is_no_room(sc_sys.fdatasync(fd));
}

/* A flush fails once: of an index that begins, what has failed is not tried again, as SQLite does when it closes. */
static void *map_with_room(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
	static __thread int failed; /* errno */
	const bool is_index = prot & PROT_WRITE && flags & MAP_SHARED;

	if (!is_index)
		return map_of_sqlite(at, bytes, prot, flags, fd, off);
	if (index_begins)
		failed = 0;
	index_begins = false;
	if (off == 0 && failed) {
		errno = failed;
		return MAP_FAILED;
	}
	if (!has_blocks(fd)) {
		failed = off == 0 ? errno : 0;
		return MAP_FAILED;
	}
	return map_of_sqlite(at, bytes, prot, flags, fd, off);
}

static void set_calls(void)
{
	sqlite3_vfs *vfs = sqlite3_initialize() == SQLITE_OK ? sqlite3_vfs_find(NULL) : NULL;
	sqlite3_syscall_ptr map = NULL, cut = NULL;

	if (vfs && vfs->iVersion >= 3) {
		map = vfs->xGetSystemCall(vfs, "mmap");
		cut = vfs->xGetSystemCall(vfs, "ftruncate");
	}
	if (!map || !cut)
		return;
	map_of_sqlite = (map_fn *)map;
	truncate_of_sqlite = (truncate_fn *)cut;
	(void)vfs->xSetSystemCall(vfs, "mmap", (sqlite3_syscall_ptr)map_with_room);
	(void)vfs->xSetSystemCall(vfs, "ftruncate", (sqlite3_syscall_ptr)cut_or_clear);
}

void db_index_give(const char *shm, const char *kept)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct stat st;

	(void)pthread_once(&once, set_calls);
	index_begins = true;
	if (sc_sys.fstatat(AT_FDCWD, kept, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_nlink > 1)
		return; /* of a daemon that was killed it is there, with both names */
	if (!truncate_of_sqlite || !S_ISREG(st.st_mode) ||
	    sc_sys.renameat(AT_FDCWD, kept, AT_FDCWD, shm, RENAME_NOREPLACE) < 0)
		(void)sc_sys.unlinkat(AT_FDCWD, kept, 0);
}

/* By its name: SQLite's locks are on this file, and to open and close it would take them away. */
void db_index_take(const char *shm, const char *kept)
{
	struct stat st;

	if (!truncate_of_sqlite || sc_sys.fstatat(AT_FDCWD, shm, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_nlink > 1)
		return;
	(void)sc_sys.unlinkat(AT_FDCWD, kept, 0);
	(void)sc_sys.linkat(AT_FDCWD, shm, AT_FDCWD, kept, 0);
}
