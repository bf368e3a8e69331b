/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads committed trees.  Rules of their rows, which the functions of tree_commit.c keep:
 *
 *  1. The trees of a chain have falling ids: a base is older than what lies over it.
 *  2. A row of an inode in a tree tells all of the inode, with the extended attributes of the same tree.
 *  3. An entry in a tree stands before entries of that name in the trees below it; with number 0 there is no such name.
 *  4. A folder that has an entry in a tree has a row in the tree or below it, unless the entry is a whiteout.  The
 *     folders of the job and of its ranks, and virtual ones, need none.
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

/* A condition on a tree, its letters, and its parameters: one statement for a chain of any length, since each begins
 * and ends a transaction for reading.  By rule 1 the newest tree is the one with the highest number. */
#define IN_CHAIN "tree IN (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)"
#define IN_CHAIN_TYPES "0000000000000000"
#define CHAIN(t)                                                                                                       \
	(t)->chain[0], (t)->chain[1], (t)->chain[2], (t)->chain[3], (t)->chain[4], (t)->chain[5], (t)->chain[6],       \
		(t)->chain[7], (t)->chain[8], (t)->chain[9], (t)->chain[10], (t)->chain[11], (t)->chain[12],           \
		(t)->chain[13], (t)->chain[14], (t)->chain[15]
_Static_assert(META_CHAIN_MAX == 16, "");

/* --- inodes --- */

struct inode_walk {
	struct meta_inode_row row;
	struct sc_buf *target;
	bool found;
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
	w->found = true;
	return 0;
}

int meta_tree_inode(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, struct meta_inode_row *ret,
		    struct sc_buf *target, struct sc_err *err)
{
	struct inode_walk w = {.target = target};
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, on_inode, &w,
			     "SELECT ino, mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, parent, blob, target "
			     "FROM tree_inode WHERE " IN_CHAIN " AND ino = ? ORDER BY tree DESC LIMIT 1",
			     IN_CHAIN_TYPES "i", CHAIN(tree), ino);
	db_unlock(c);
	if (rc == 0 && target && target->failed)
		return sc_nomem(err);
	if (rc == 0 && w.found)
		*ret = w.row;
	return rc < 0 ? rc : w.found;
}

/* --- names --- */

int meta_tree_child(struct meta_catalog *c, struct meta_tree *tree, uint64_t parent, struct meta_bytes name,
		    uint64_t *ret_ino, struct sc_err *err)
{
	uint64_t ino = 0;
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, db_id, &ino,
			     "SELECT ino FROM tree_entry WHERE " IN_CHAIN " AND parent = ? AND name = ? ORDER BY tree "
			     "DESC LIMIT 1", IN_CHAIN_TYPES "iB", CHAIN(tree), parent, &name);
	db_unlock(c);
	if (rc == 0)
		*ret_ino = ino;
	return rc;
}

struct children_walk {
	meta_entry_fn *fn;
	void *arg;
	uint64_t parent;
	struct sc_buf last;	/* name */
	bool any;
};

/* Takes a name, unless a newer tree had it: of equal names the newest tree's comes first. */
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
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, on_name, &w,
			     "SELECT name, ino FROM tree_entry WHERE " IN_CHAIN " AND parent = ? ORDER BY name, "
			     "tree DESC", IN_CHAIN_TYPES "i", CHAIN(tree), parent);
	db_unlock(c);
	if (w.last.failed)
		rc = sc_nomem(err);
	sc_buf_done(&w.last);
	return rc;
}

struct names_walk {
	struct meta_catalog *c;
	const struct meta_tree *tree;
	meta_entry_fn *fn;
	void *arg;
	struct sc_err *err;
};

/* Takes a name of the number if the newest tree of the chain that has the name says so; the row's tree may not even be
 * of the chain. */
static int on_named(void *arg, sqlite3_stmt *row)
{
	const struct names_walk *w = arg;
	struct meta_entry_row e = {U64(row, 1), db_bytes(row, 2), U64(row, 3)};
	uint64_t newest = 0;
	int rc = db_each(w->c, w->err, db_id, &newest,
			 "SELECT tree FROM tree_entry WHERE " IN_CHAIN " AND parent = ? AND name = ? ORDER BY tree "
			 "DESC LIMIT 1", IN_CHAIN_TYPES "iB", CHAIN(w->tree), e.parent, &e.name);

	return rc < 0 || newest != U64(row, 0) ? rc : w->fn(w->arg, &e);
}

/* Asks for the rows of all trees that have the number, which are of one job.  (Two conditions on chains at once cost
 * 30 us.) */
int meta_tree_names(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_entry_fn *fn, void *arg,
		    struct sc_err *err)
{
	struct names_walk w = {c, tree, fn, arg, err};
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, on_named, &w,
			     "SELECT tree, parent, name, ino FROM tree_entry WHERE ino = ? AND ino <> 0 ORDER BY tree, "
			     "parent, name", "i", ino);
	db_unlock(c);
	return rc;
}

struct folders_walk {
	int (*fn)(void *arg, uint64_t ino);
	void *arg;
};

static int on_folder(void *arg, sqlite3_stmt *row)
{
	const struct folders_walk *w = arg;

	return w->fn(w->arg, U64(row, 0));
}

/* `query` has the trees of the chain as its parameters, and numbers of folders as its rows. */
static int each_folder(struct meta_catalog *c, struct meta_tree *tree, const char *query,
		       int (*fn)(void *arg, uint64_t ino), void *arg, struct sc_err *err)
{
	struct folders_walk w = {fn, arg};
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, on_folder, &w, query, IN_CHAIN_TYPES, CHAIN(tree));
	db_unlock(c);
	return rc;
}

int meta_tree_folders(struct meta_catalog *c, struct meta_tree *tree, int (*fn)(void *arg, uint64_t ino), void *arg,
		      struct sc_err *err)
{
	return each_folder(c, tree,
			   "SELECT DISTINCT ino FROM tree_inode WHERE " IN_CHAIN " AND mode & 61440 IN (16384, 40960)",
			   fn, arg, err);
}

/* Finds the names of markers by the index tree_entry_marker, which has these names alone; the newest tree that tells of
 * a name counts. */
int meta_tree_named(struct meta_catalog *c, struct meta_tree *tree, int (*fn)(void *arg, uint64_t folder), void *arg,
		    struct sc_err *err)
{
	return each_folder(c, tree,
			   "SELECT DISTINCT parent FROM (SELECT parent, ino, max(tree) FROM tree_entry INDEXED BY "
			   "tree_entry_marker WHERE " IN_CHAIN " AND name IN (CAST('.metadata' AS BLOB), "
			   "CAST('mp_rank_00_model_states.pt' AS BLOB), "
			   "CAST('zero_pp_rank_0_mp_rank_00_model_states.pt' AS BLOB)) GROUP BY parent, name) WHERE "
			   "ino <> 0", fn, arg, err);
}

/* --- what a tree is --- */

struct about_walk {
	struct meta_tree_row row;
	struct sc_buf *topology;
	bool found;
};

static int on_about(void *arg, sqlite3_stmt *row)
{
	struct about_walk *w = arg;

	w->row = (struct meta_tree_row){.root = U64(row, 0), .layout = U64(row, 1), .base = U64(row, 3)};
	if (w->topology) {
		sc_buf_reset(w->topology);
		sc_buf_printf(w->topology, "%s", db_text(row, 2));
		w->row.topology = w->topology->text;
	}
	w->found = true;
	return 0;
}

int meta_tree_about(struct meta_catalog *c, uint64_t tree, struct meta_tree_row *ret, struct sc_buf *topology,
		    struct sc_err *err)
{
	struct about_walk w = {.topology = topology};
	int rc = db_each(c, err, on_about, &w, "SELECT root, layout, topology, base FROM tree WHERE id = ?", "i", tree);

	if (rc == 0 && topology && topology->failed)
		return sc_nomem(err);
	if (rc == 0 && !w.found)
		return sc_fail(err, SC_E_NOT_FOUND, "catalog: no tree %" PRIu64, tree);
	if (rc == 0)
		*ret = w.row;
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
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, on_xattr, &w,
			     "SELECT ino, name, value FROM tree_xattr WHERE tree = (SELECT max(tree) FROM tree_inode "
			     "WHERE " IN_CHAIN " AND ino = ?) AND ino = ? ORDER BY name",
			     IN_CHAIN_TYPES "ii", CHAIN(tree), ino, ino);
	db_unlock(c);
	return rc;
}

int meta_tree_any_xattr(struct meta_catalog *c, struct meta_tree *tree, bool *ret, struct sc_err *err)
{
	uint64_t any = 0;
	int rc;

	db_lock(c);
	rc = tree_chain(c, tree, err);
	if (rc == 0)
		rc = db_each(c, err, db_id, &any, "SELECT EXISTS (SELECT 1 FROM tree_xattr WHERE " IN_CHAIN ")",
			     IN_CHAIN_TYPES, CHAIN(tree));
	db_unlock(c);
	*ret = any != 0;
	return rc;
}
