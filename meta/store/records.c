/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads recovery records of blobs, which are attributes of their files, and texts of layouts, which are
 * files of STORE/layouts. */
#include "meta/store/store_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/mem.h"
#include "meta/base/sys.h"

#define RECORD "user.scalai"

int meta_store_set_record(const struct meta_store *store, uint64_t blob, const char *text, size_t bytes,
			  struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_work(store, blob, O_RDONLY, &fd, err);

	if (rc == 0 && sc_sys.fsetxattr(fd, RECORD, text, bytes, 0) < 0)
		rc = errno == ENOTSUP || errno == ENOSPC || errno == E2BIG
			     ? sc_fail(err, SC_E_UNSUPPORTED, "store: blob %" PRIu64 " cannot have a recovery record "
			     	"(extended "
				       "attribute): %s", blob, strerror(errno))
			     : sc_fail_sys(err, errno, "store: cannot write the recovery record of blob %" PRIu64,
			     	blob);
	return rc;
}

int meta_store_get_record(const struct meta_store *store, uint64_t blob, char *text, size_t room, size_t *ret_bytes,
			  struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_damaged(store, blob, O_RDONLY, &fd, err);
	ssize_t n = rc < 0 ? -1 : sc_sys.fgetxattr(fd, RECORD, text, room);

	if (rc == 0 && n < 0)
		rc = errno == ENODATA || errno == ENOTSUP || errno == ERANGE
			     ? sc_fail(err, SC_E_NOT_FOUND, "blob %" PRIu64 " has no recovery record", blob)
			     : sc_fail_sys(err, errno, "store: cannot read the recovery record of blob %" PRIu64, blob);
	*ret_bytes = n < 0 ? 0 : (size_t)n;
	return rc;
}

bool meta_store_has_record(const struct meta_store *store, uint64_t blob)
{
	struct sc_err ignored;
	size_t bytes;
	char byte;

	/* without room for it, the attribute's size is returned */
	return meta_store_get_record(store, blob, &byte, 0, &bytes, &ignored) == 0;
}

#define TEXTS "layouts"
#define TEXT_BYTES_MAX (1u << 20)

int store_open_text(int dir, const char *folder, const char *name, int *ret_fd, struct sc_err *err)
{
	const char *other;
	struct stat st;

	/* looked at first: an open would wait at a FIFO */
	if (sc_sys.fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return sc_fail_sys(err, errno, "store: cannot read '%s/%s'", folder, name);
	other = store_not_a_file(&st);
	if (other)
		return sc_fail(err, SC_E_FORMAT, "store: '%s/%s' %s", folder, name, other);
	*ret_fd = sc_sys.openat(dir, name, O_RDONLY | O_NOFOLLOW, 0);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "store: cannot read '%s/%s'", folder, name) : 0;
}

int meta_store_keep_text(const struct meta_store *store, const char *name, const char *text, struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = store_make_dir(store->dir, TEXTS, &dir, err);

	if (rc < 0 || sc_sys.fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return rc;
	(void)sc_sys.unlinkat(dir, "new", 0);
	fd = sc_sys.openat(dir, "new", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	if (fd < 0 || sc_pwrite_all(fd, text, strlen(text), 0) < 0 || sc_sys.fsync(fd) < 0 ||
	    sc_sys.renameat(dir, "new", dir, name, 0) < 0 || sc_sys.fsync(dir) < 0)
		return sc_fail_sys(err, errno, "store: cannot write '" TEXTS "/%s'", name);
	return 0;
}

int meta_store_kept_text(const struct meta_store *store, const char *name, char **ret, struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = store_make_dir(store->dir, TEXTS, &dir, err);

	if (rc < 0)
		return rc;
	rc = strchr(name, '/') ? 0 : store_open_text(dir, TEXTS, name, &fd, err);
	if (rc < 0)
		return rc;
	if (fd < 0 || sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "store: cannot read '" TEXTS "/%s'", name);
	if (st.st_size > TEXT_BYTES_MAX)
		return sc_fail(err, SC_E_FORMAT, "store: '" TEXTS "/%s' is too large for a layout", name);
	*ret = sc_zalloc((size_t)st.st_size + 1);
	if (!*ret)
		return sc_nomem(err);
	if (sc_pread_all(fd, *ret, (size_t)st.st_size, 0) < 0) {
		sc_sys.release(*ret);
		return sc_fail_sys(err, errno, "store: cannot read '" TEXTS "/%s'", name);
	}
	return 0;
}
