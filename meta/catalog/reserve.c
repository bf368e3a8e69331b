/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reserves room for transactions on a full disk: blocks of the write-ahead log beyond its end, which nobody else can
 * take.  SQLite removes the log when the catalog is closed.  A second name, CATALOG-reserve, keeps its blocks, and the
 * next log begins with them.
 *
 *     closed: CATALOG-reserve   ── db_reserve_give() ──>   open: CATALOG-wal   ── db_reserve_take() ──> both
 *                               <── SQLite removes the log, db_reserve_clear() ──
 *
 * A log that is not empty is part of the catalog.  The file that a closed catalog leaves is no log: it begins with
 * zeros, or is not used.  Otherwise a catalog that is put in the place of this one would be read with the pages of this
 * one.
 */
#include "meta/catalog/db_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "meta/base/mem.h"

#define RESERVE_BYTES (UINT64_C(8) << 20) /* twice what the log has when it is moved to the database */
#define RESERVE_PART 64	/* of a small file system, at most */
#define HEADER_BYTES 32	/* of a log, by SQLite's file format */

/* Fills the beginning of the reserve with zeros, so that it is no log.  It has no other name. */
static bool clear(const char *reserve)
{
	static const char zeros[HEADER_BYTES];
	sc_cleanup(sc_closep) int fd = sc_sys.openat(AT_FDCWD, reserve, O_WRONLY, 0);

	return fd >= 0 && sc_sys.pwrite(fd, zeros, sizeof(zeros), 0) == (ssize_t)sizeof(zeros) &&
	       sc_sys.fdatasync(fd) == 0;
}

int db_reserve_give(const char *wal, const char *reserve, struct sc_err *err)
{
	struct stat st, old;

	if (sc_sys.fstatat(AT_FDCWD, reserve, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : sc_fail_sys(err, errno, "catalog: cannot look at '%s'", reserve);
	if (sc_sys.fstatat(AT_FDCWD, wal, &old, AT_SYMLINK_NOFOLLOW) == 0)
		return 0; /* of a daemon that was killed: it is a log, with both names */
	if (errno != ENOENT)
		return sc_fail_sys(err, errno, "catalog: cannot look at '%s'", wal);
	if (st.st_nlink == 1 && S_ISREG(st.st_mode) && clear(reserve) &&
	    sc_sys.renameat(AT_FDCWD, reserve, AT_FDCWD, wal, RENAME_NOREPLACE) == 0)
		return 0;
	/* a log that was moved away with its catalog, or nothing that can be used: the catalog is whole without it */
	if (sc_sys.unlinkat(AT_FDCWD, reserve, 0) < 0)
		return sc_fail_sys(err, errno, "catalog: cannot remove '%s'", reserve);
	return 0;
}

int db_reserve_take(const char *wal, const char *reserve, struct sc_err *err)
{
	/* SQLite's locks are not those of the log's file: to close it takes none of them away */
	sc_cleanup(sc_closep) int fd = sc_sys.openat(AT_FDCWD, wal, O_RDWR, 0);
	struct statvfs fs;
	struct stat st;
	uint64_t bytes;
	int rc = 0;

	if (fd < 0 || sc_sys.fstatvfs(fd, &fs) < 0 || sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "catalog: cannot look at '%s'", wal);
	bytes = sc_min_u64(RESERVE_BYTES, (uint64_t)fs.f_blocks * fs.f_frsize / RESERVE_PART);
	if ((uint64_t)st.st_blocks * 512 < bytes) {
		errno = ENOSPC; /* where there is less it would take what is left, and fail */
		rc = (uint64_t)fs.f_bfree * fs.f_frsize < bytes
			     ? -1 : sc_sys.fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
	}
	if (rc < 0 && errno != EOPNOTSUPP)
		return sc_fail_sys(err, errno, "catalog: cannot reserve %" PRIu64 " KiB for '%s', without which a full "
				   "disk lets nothing be removed; free some", bytes >> 10, wal);
	if (rc < 0 || st.st_nlink > 1)
		return 0;
	/* without it a store may need room when it is opened; one is left of a log that was moved away or lost */
	if (sc_sys.unlinkat(AT_FDCWD, reserve, 0) < 0 && errno != ENOENT)
		return sc_fail_sys(err, errno, "catalog: cannot remove '%s'", reserve);
	rc = sc_sys.linkat(AT_FDCWD, wal, AT_FDCWD, reserve, 0);
	if (rc < 0 && errno != EOPNOTSUPP && errno != EPERM)
		return sc_fail_sys(err, errno, "catalog: cannot make '%s'", reserve);
	return 0;
}

void db_reserve_clear(const char *wal, const char *reserve)
{
	struct stat st;

	if (sc_sys.fstatat(AT_FDCWD, wal, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT &&
	    sc_sys.fstatat(AT_FDCWD, reserve, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink == 1)
		(void)clear(reserve); /* tried again when the catalog is opened */
}
