/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the upper layers of jobs: puts and drops the rows that records say, and reads them at a start. */
#include "meta/catalog/tree_i.h"

#include <inttypes.h>

#include "meta/base/limits.h"

/* --- the log --- */

int meta_tail_applied(struct meta_catalog *c, uint64_t *ret, struct sc_err *err)
{
	return db_each(c, err, db_id, ret, "SELECT applied FROM tail", "");
}

int meta_tail_set_applied(struct meta_catalog *c, uint64_t sequence, struct sc_err *err)
{
	return db_run(c, err, "UPDATE tail SET applied = ?", "i", sequence);
}

/* --- records --- */

/* Blobs of files that programs may write to have rows (META_OWN_DATA is 1). */

static int own_blob(struct meta_catalog *c, uint64_t ino, uint64_t *ret, struct sc_err *err)
{
	*ret = 0;
	return db_each(c, err, db_id, ret, "SELECT blob FROM inode WHERE ino = ? AND data = 1", "i", ino);
}

static int add_blob(struct meta_catalog *c, uint64_t blob, struct sc_err *err)
{
	if (blob >= SC_BLOBS_MAX)
		return sc_fail(err, SC_E_LIMIT, "blob %" PRIu64 ": numbers of blobs end at %" PRIu64, blob,
			       SC_BLOBS_MAX - 1);
	return db_run(c, err, "INSERT OR IGNORE INTO blob (id, bytes) VALUES (?, 0)", "i", blob);
}

/* Drops the row of a blob that a file had before, unless something else has the blob. */
static int drop_blob(struct meta_catalog *c, uint64_t blob, struct sc_err *err)
{
	return db_run(c, err,
		      "DELETE FROM blob WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM inode WHERE blob = ?1 AND blob <> "
		      "0) AND NOT EXISTS (SELECT 1 FROM set_blob WHERE blob = ?1) AND NOT EXISTS (SELECT 1 FROM "
		      "tree_inode WHERE blob = ?1 AND blob <> 0) AND NOT EXISTS (SELECT 1 FROM data_source WHERE blob "
		      "= ?1) AND NOT EXISTS (SELECT 1 FROM data_source WHERE borders = ?1)", "i", blob);
}

static int put_inode(struct meta_catalog *c, const struct meta_inode_row *r, struct sc_err *err)
{
	uint64_t blob = r->data == META_OWN_DATA ? r->blob : 0, had = 0;
	int rc = S_ISREG(r->mode) ? own_blob(c, r->ino, &had, err) : 0;

	if (rc == 0)
		rc = db_run(c, err,
			    "INSERT OR REPLACE INTO inode (ino, job, mode, uid, gid, rdev, nlink, atime_ns, mtime_ns, "
			    "ctime_ns, parent, data, blob, target) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			    "iiiiiiiIIIiiiB", r->ino, r->job, (uint64_t)r->mode, (uint64_t)r->uid, (uint64_t)r->gid,
			    r->rdev, (uint64_t)r->nlink, r->atime_ns, r->mtime_ns, r->ctime_ns, r->parent,
			    (uint64_t)r->data, r->blob, &r->target);
	if (rc == 0 && blob && blob != had)
		rc = add_blob(c, blob, err);
	return rc < 0 || !had || had == blob ? rc : drop_blob(c, had, err);
}

static int drop_inode(struct meta_catalog *c, uint64_t ino, struct sc_err *err)
{
	uint64_t had = 0;
	int rc = own_blob(c, ino, &had, err);

	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM entry WHERE parent = ?", "i", ino);
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM xattr WHERE ino = ?", "i", ino);
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM inode WHERE ino = ?", "i", ino);
	return rc < 0 || !had ? rc : drop_blob(c, had, err);
}

static int apply(struct meta_catalog *c, const struct meta_change *x, struct sc_err *err)
{
	switch (x->kind) {
	case META_PUT_INODE:
		return put_inode(c, &x->inode, err);
	case META_DROP_INODE:
		return drop_inode(c, x->inode.ino, err);
	case META_PUT_ENTRY:
		return db_run(c, err, "INSERT OR REPLACE INTO entry (parent, name, ino) VALUES (?, ?, ?)", "iBi",
			      x->entry.parent, &x->entry.name, x->entry.ino);
	case META_DROP_ENTRY:
		return db_run(c, err, "DELETE FROM entry WHERE parent = ? AND name = ?", "iB", x->entry.parent,
			      &x->entry.name);
	case META_PUT_XATTR:
		return db_run(c, err, "INSERT OR REPLACE INTO xattr (ino, name, value) VALUES (?, ?, ?)", "iBB",
			      x->xattr.ino, &x->xattr.name, &x->xattr.value);
	case META_DROP_XATTR:
		return db_run(c, err, "DELETE FROM xattr WHERE ino = ? AND name = ?", "iB", x->xattr.ino,
			      &x->xattr.name);
	case META_PUT_AGAIN:
		return db_run(c, err, "INSERT OR REPLACE INTO again (ino, number) VALUES (?, ?)", "ii", x->again.ino,
			      x->again.number);
	}
	return sc_fail(err, SC_E_CORRUPT, "record of a working tree: there is no change of kind %d", (int)x->kind);
}

int meta_upper_apply(struct meta_catalog *c, const struct meta_changes *changes, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < changes->nr; i++)
		rc = apply(c, &changes->at[i], err);
	return rc;
}

/* --- reading --- */

struct change_walk {
	meta_change_fn *fn;
	void *arg;
};

static int on_inode(void *arg, sqlite3_stmt *row)
{
	const struct change_walk *w = arg;
	struct meta_change x = {
		META_PUT_INODE,
		.inode = {.ino = U64(row, 0), .job = U64(row, 1), .mode = (mode_t)U64(row, 2),
			  .uid = (uid_t)U64(row, 3), .gid = (gid_t)U64(row, 4), .rdev = U64(row, 5),
			  .nlink = (uint32_t)U64(row, 6),
			  .atime_ns = sqlite3_column_int64(row, 7), .mtime_ns = sqlite3_column_int64(row, 8),
			  .ctime_ns = sqlite3_column_int64(row, 9), .parent = U64(row, 10),
			  .data = (enum meta_data)U64(row, 11), .blob = U64(row, 12), .target = db_bytes(row, 13)}};

	return w->fn(w->arg, &x);
}

static int on_xattr(void *arg, sqlite3_stmt *row)
{
	const struct change_walk *w = arg;
	struct meta_change x = {META_PUT_XATTR, .xattr = {U64(row, 0), db_bytes(row, 1), db_bytes(row, 2)}};

	return w->fn(w->arg, &x);
}

static int on_entry(void *arg, sqlite3_stmt *row)
{
	const struct change_walk *w = arg;
	struct meta_change x = {META_PUT_ENTRY, .entry = {U64(row, 0), db_bytes(row, 1), U64(row, 2)}};

	return w->fn(w->arg, &x);
}

static int on_again(void *arg, sqlite3_stmt *row)
{
	const struct change_walk *w = arg;
	struct meta_change x = {META_PUT_AGAIN, .again = {U64(row, 0), U64(row, 1)}};

	return w->fn(w->arg, &x);
}

/* condition on an entry: the upper layer has a row of its folder.  A commit leaves special files without one; their
 * entries are found by their own rows. */
#define ENTRIES_IN_FOLDERS "parent IN (SELECT ino FROM inode WHERE job = ?1)"
#define OTHER_ENTRIES SPECIAL_ENTRY " AND NOT " ENTRIES_IN_FOLDERS

int meta_upper_each(struct meta_catalog *c, uint64_t job, meta_change_fn *fn, void *arg, struct sc_err *err)
{
	struct change_walk w = {fn, arg};
	int rc;

	db_lock(c);
	rc = db_each(c, err, on_inode, &w,
		     "SELECT ino, job, mode, uid, gid, rdev, nlink, atime_ns, mtime_ns, ctime_ns, parent, data, blob, "
		     "target FROM inode WHERE job = ? ORDER BY ino", "i", job);
	if (rc == 0)
		rc = db_each(c, err, on_xattr, &w,
			     "SELECT ino, name, value FROM xattr WHERE ino IN (SELECT ino FROM inode WHERE job = ?) "
			     "ORDER BY ino, name", "i", job);
	if (rc == 0)
		rc = db_each(c, err, on_entry, &w,
			     "SELECT parent, name, ino FROM entry WHERE " ENTRIES_IN_FOLDERS " ORDER BY parent, name",
			     "i", job);
	if (rc == 0)
		rc = db_each(c, err, on_entry, &w, "SELECT parent, name, ino FROM entry WHERE " OTHER_ENTRIES, "i",
			     job);
	db_unlock(c);
	return rc;
}

int meta_again_each(struct meta_catalog *c, meta_change_fn *fn, void *arg, struct sc_err *err)
{
	struct change_walk w = {fn, arg};

	return db_each(c, err, on_again, &w, "SELECT ino, number FROM again ORDER BY ino", "");
}

int meta_upper_remove(struct meta_catalog *c, uint64_t job, struct sc_err *err)
{
	static const char *const steps[] = {
		"DELETE FROM entry WHERE " OTHER_ENTRIES,
		"DELETE FROM entry WHERE " ENTRIES_IN_FOLDERS,
		"DELETE FROM xattr WHERE ino IN (SELECT ino FROM inode WHERE job = ?1)",
		"DELETE FROM inode WHERE job = ?1",
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		rc = db_run(c, err, steps[i], "i", job);
	return rc;
}
