/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads committed trees.  Rules of their rows, which the functions of tree_commit.c keep:
 *
 *  1. The trees of a chain have falling ids: a base is older than what lies over it.
 *  2. A row of an inode in a tree tells all of it, its extended attributes too: those of the same tree.
 *  3. An entry in a tree stands before entries of that name in the trees below it; with number 0 there is no such name.
 *  4. A folder that has an entry in a tree has a row in the tree or below it, unless the entry is a whiteout.
 *  5. Rows that a reader of a tree sees never change, whatever is done to the tree's chain.  Who has read a chain
 *     notices at the next call that one was changed, and loads it anew, under the lock under which it was changed.
 */
#include "meta/catalog/tree_i.h"

#include <inttypes.h>
#include <string.h>

struct chain_walk {
	struct meta_tree *tree;
	uint64_t base;		/* of the last one */
};

static int on_link(void *arg, sqlite3_stmt *row)
{
	struct chain_walk *w = arg;

	if (w->tree->nr == META_CHAIN_MAX)
		return 1;
	w->tree->chain[w->tree->nr++] = U64(row, 0);
	w->base = U64(row, 1);
	return 0;
}

int tree_chain(struct meta_catalog *c, struct meta_tree *tree, struct sc_err *err)
{
	struct chain_walk w = {.tree = tree, .base = tree->id};
	int rc;

	if (tree->seen == db_chains(c))
		return 0;
	*tree = (struct meta_tree){.id = tree->id};
	rc = db_each(c, err, on_link, &w,
		     "WITH RECURSIVE chain (id, base) AS (SELECT id, base FROM tree WHERE id = ? UNION ALL SELECT "
		     "tree.id, tree.base FROM chain JOIN tree ON tree.id = chain.base) SELECT id, base FROM chain",
		     "i", tree->id);
	if (rc > 0)
		return sc_fail(err, SC_E_CORRUPT, "catalog: tree %" PRIu64 ": its chain is longer than %d trees",
			       tree->id, META_CHAIN_MAX);
	if (rc == 0 && w.base)
		return sc_fail(err, SC_E_CORRUPT, "catalog: tree %" PRIu64 ": tree %" PRIu64 " of its chain is missing",
			       tree->id, w.base);
	if (rc == 0)
		tree->seen = db_chains(c);
	return rc;
}

/* --- inodes --- */

struct inode_walk {
	struct meta_inode_row row;
	struct sc_buf *target;
	uint64_t tree;		/* that has the row, 0: none */
};

static int on_inode(void *arg, sqlite3_stmt *row)
{
	struct inode_walk *w = arg;
	mode_t mode = (mode_t)U64(row, 1);

	w->row = (struct meta_inode_row){
		.ino = U64(row, 0), .mode = mode, .uid = (uid_t)U64(row, 2), .gid = (gid_t)U64(row, 3),
		.nlink = (uint32_t)U64(row, 4), .atime_ns = sqlite3_column_int64(row, 5),
		.mtime_ns = sqlite3_column_int64(row, 6), .ctime_ns = sqlite3_column_int64(row, 7),
		.parent = U64(row, 8), .data = S_ISREG(mode) ? META_LOWER_DATA : META_NO_DATA, .blob = U64(row, 9)};
	if (w->target) {
		struct meta_bytes target = db_bytes(row, 10);

		sc_buf_reset(w->target);
		sc_buf_add(w->target, target.at, target.nr);
		w->row.target = (struct meta_bytes){w->target->text, w->target->bytes};
	}
	w->tree = U64(row, 11);
	return 0;
}

int meta_tree_inode(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, struct meta_inode_row *ret,
		    struct sc_buf *target, struct sc_err *err)
{
	struct inode_walk w = {.target = target};
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	for (uint32_t i = 0; rc == 0 && !w.tree && i < tree->nr; i++)
		rc = db_each(c, err, on_inode, &w,
			     "SELECT ino, mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, parent, blob, target, "
			     "tree FROM tree_inode WHERE tree = ? AND ino = ?", "ii", tree->chain[i], ino);
	db_unlock(c);
	if (rc == 0 && target && target->failed)
		return sc_nomem(err);
	if (rc == 0 && w.tree)
		*ret = w.row;
	return rc < 0 ? rc : w.tree != 0;
}

/* --- names --- */

struct child_walk {
	uint64_t ino;
	bool found;
};

static int on_child(void *arg, sqlite3_stmt *row)
{
	struct child_walk *w = arg;

	w->ino = U64(row, 0);
	w->found = true;
	return 0;
}

int meta_tree_child(struct meta_catalog *c, struct meta_tree *tree, uint64_t parent, struct meta_bytes name,
		    uint64_t *ret_ino, struct sc_err *err)
{
	struct child_walk w = {0};
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	for (uint32_t i = 0; rc == 0 && !w.found && i < tree->nr; i++)
		rc = db_each(c, err, on_child, &w,
			     "SELECT ino FROM tree_entry WHERE tree = ? AND parent = ? AND name = ?", "iiB",
			     tree->chain[i], parent, &name);
	db_unlock(c);
	if (rc == 0)
		*ret_ino = w.ino;
	return rc;
}

struct children_walk {
	meta_entry_fn *fn;
	void *arg;
	uint64_t parent;
	struct sc_buf last;	/* name */
	bool any;
};

/* Of equal names the newest tree's comes first. */
static int on_name(void *arg, sqlite3_stmt *row)
{
	struct children_walk *w = arg;
	struct meta_entry_row e = {w->parent, db_bytes(row, 0), U64(row, 1)};

	if (w->any && e.name.nr == w->last.bytes && (!e.name.nr || memcmp(e.name.at, w->last.text, e.name.nr) == 0))
		return 0;
	sc_buf_reset(&w->last);
	sc_buf_add(&w->last, e.name.at, e.name.nr);
	w->any = true;
	return w->last.failed ? SC_E_NO_MEMORY : e.ino ? w->fn(w->arg, &e) : 0;
}

int meta_tree_children(struct meta_catalog *c, struct meta_tree *tree, uint64_t parent, meta_entry_fn *fn, void *arg,
		       struct sc_err *err)
{
	struct children_walk w = {.fn = fn, .arg = arg, .parent = parent};
	const uint64_t *t = tree->chain;
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0 && tree->nr == 1)	/* no need to sort */
		rc = db_each(c, err, on_name, &w,
			     "SELECT name, ino FROM tree_entry WHERE tree = ? AND parent = ? ORDER BY name", "ii", t[0],
			     parent);
	else if (rc == 0)
		rc = db_each(c, err, on_name, &w,
			     "SELECT name, ino FROM tree_entry WHERE parent = ? AND tree IN (?, ?, ?, ?, ?, ?, ?, ?, "
			     "?, ?, ?, ?, ?, ?, ?, ?) ORDER BY name, tree DESC",
			     "i0000000000000000", parent, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9],
			     t[10], t[11], t[12], t[13], t[14], t[15]);
	db_unlock(c);
	if (w.last.failed)
		rc = sc_nomem(err);
	sc_buf_done(&w.last);
	return rc;
}

/* --- extended attributes --- */

struct xattr_walk {
	meta_xattr_fn *fn;
	void *arg;
};

static int on_xattr(void *arg, sqlite3_stmt *row)
{
	const struct xattr_walk *w = arg;
	struct meta_xattr_row x = {U64(row, 0), db_bytes(row, 1), db_bytes(row, 2)};

	return w->fn(w->arg, &x);
}

int meta_tree_xattrs(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_xattr_fn *fn, void *arg,
		     struct sc_err *err)
{
	struct xattr_walk w = {fn, arg};
	uint64_t found = 0;
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	for (uint32_t i = 0; rc == 0 && !found && i < tree->nr; i++)
		rc = db_each(c, err, db_id, &found, "SELECT tree FROM tree_inode WHERE tree = ? AND ino = ?", "ii",
			     tree->chain[i], ino);
	if (rc == 0 && found)
		rc = db_each(c, err, on_xattr, &w,
			     "SELECT ino, name, value FROM tree_xattr WHERE tree = ? AND ino = ? ORDER BY name", "ii",
			     found, ino);
	db_unlock(c);
	return rc;
}
