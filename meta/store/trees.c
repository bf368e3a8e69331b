/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery records of trees: files of STORE/trees, named by the numbers of the trees. */
#include "meta/store/store_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "meta/base/sys.h"

#define TREES "trees"
#define NEW "new"	/* about to take a record's name; the next one replaces it */

struct name {
	char at[24];
};

static struct name name_of(uint64_t tree)
{
	struct name n;

	(void)snprintf(n.at, sizeof(n.at), "%" PRIu64, tree);
	return n;
}

int meta_store_keep_tree(const struct meta_store *store, uint64_t tree, const char *at, size_t bytes, bool sync,
			 struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	sc_cleanup(sc_closep) int fd = -1;
	int rc = store_make_dir(store->dir, TREES, &dir, err);

	if (rc < 0)
		return rc;
	(void)sc_sys.unlinkat(dir, NEW, 0);
	fd = sc_sys.openat(dir, NEW, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
	if (fd < 0 || sc_pwrite_all(fd, at, bytes, 0) < 0 || (sync && sc_sys.fsync(fd) < 0) ||
	    sc_sys.renameat(dir, NEW, dir, name_of(tree).at, 0) < 0 || (sync && sc_sys.fsync(dir) < 0)) {
		rc = sc_fail_sys(err, errno, "store: cannot write '" TREES "/%" PRIu64 "'", tree);
		(void)sc_sys.unlinkat(dir, NEW, 0);
	}
	return rc;
}

int meta_store_kept_tree(const struct meta_store *store, uint64_t tree, char **ret, size_t *ret_bytes,
			 struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = store_make_dir(store->dir, TREES, &dir, err);

	if (rc < 0)
		return rc;
	rc = store_open_text(dir, TREES, name_of(tree).at, &fd, err);
	if (rc < 0)
		return rc;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "store: cannot read '" TREES "/%" PRIu64 "'", tree);
	*ret = sc_zalloc((size_t)st.st_size + 1);
	if (!*ret)
		return sc_nomem(err);
	if (sc_pread_all(fd, *ret, (size_t)st.st_size, 0) < 0) {
		sc_sys.release(*ret);
		return sc_fail_sys(err, errno, "store: cannot read '" TREES "/%" PRIu64 "'", tree);
	}
	*ret_bytes = (size_t)st.st_size;
	return 0;
}

int meta_store_each_tree(const struct meta_store *store, int (*each)(void *arg, uint64_t tree), void *arg,
			 struct sc_err *err)
{
	int dir = -1, rc = store_make_dir(store->dir, TREES, &dir, err);

	return rc < 0 ? rc : store_each_in(dir, TREES, each, arg, err);
}

int meta_store_remove_tree(const struct meta_store *store, uint64_t tree, struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	int rc = store_make_dir(store->dir, TREES, &dir, err);

	if (rc == 0 && sc_sys.unlinkat(dir, name_of(tree).at, 0) < 0 && errno != ENOENT)
		return sc_fail_sys(err, errno, "store: cannot remove '" TREES "/%" PRIu64 "'", tree);
	return rc;
}

int meta_store_set_tree_aside(const struct meta_store *store, uint64_t tree, struct sc_err *err)
{
	sc_cleanup(sc_closep) int dir = -1;
	char name[32];
	int rc = store_make_dir(store->dir, TREES, &dir, err);

	if (rc < 0)
		return rc;
	(void)snprintf(name, sizeof(name), "tree-%" PRIu64, tree);
	return store_set_aside(store, dir, name_of(tree).at, name, err);
}
