/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the index of the write-ahead log, CATALOG-shm, for a full disk.  SQLite maps the index, and removes it with the
 * log.  On a full disk the next start would have no room for it, and a store to a part of it that has no block would
 * end the process (SIGBUS).  So the index has a second name, CATALOG-index, and is mapped only when each of its blocks
 * is allocated.  The first to open the catalog fills it with zeros, where SQLite would cut it to 3 bytes: in both cases
 * it is not valid.
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

/* Tells whether an error says that there is no room; a file system that cannot do what was asked for does not say
 * so. */
static bool is_no_room(int rc)
{
	return rc < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO);
}

/*
 * Tells whether each block of a file is allocated.  SQLite writes a byte into each 4 KiB before it maps: if blocks are
 * smaller, the others are holes; and ext4 may have no block on a full disk when a block whose allocation is delayed is
 * stored to.
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

/* Maps the index, if each of its blocks is allocated.  What has failed for an index that begins is not tried again, as
 * SQLite does when it closes: a flush fails once. */
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

/* Keeps the index by a second name, without opening it: SQLite's locks are on this file, and a close would take them
 * away. */
void db_index_take(const char *shm, const char *kept)
{
	struct stat st;

	if (!truncate_of_sqlite || sc_sys.fstatat(AT_FDCWD, shm, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_nlink > 1)
		return;
	(void)sc_sys.unlinkat(AT_FDCWD, kept, 0);
	(void)sc_sys.linkat(AT_FDCWD, shm, AT_FDCWD, kept, 0);
}
