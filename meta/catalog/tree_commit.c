/* SPDX-License-Identifier: Apache-2.0 */
/* Makes trees of upper layers, makes them flat, and removes them; catalog_tree.c has the rules of their rows. */
#include "meta/catalog/tree_i.h"

#include <inttypes.h>

#include "meta/base/limits.h"

/* --- commit --- */

#define COLUMNS "mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, parent, blob, target"

/* condition on an upper inode of job ?1: a commit moves it into the tree */
#define MOVES "job = ?1 AND nlink > 0 AND NOT (" IS_SPECIAL ")"
#define XATTR_MOVES "ino IN (SELECT ino FROM inode WHERE " MOVES ")"
/* condition on an upper inode of job ?1: it hides an object of the version below that the new one does not have
 * (META_FORGOTTEN is 3) */
#define FORGOTTEN "job = ?1 AND nlink = 0 AND data = 3"
#define ENTRY_MOVES                                                                                                    \
	"parent IN (SELECT ino FROM inode WHERE job = ?1 AND nlink > 0) AND ino NOT IN (SELECT ino FROM inode WHERE "  \
	"job = ?1 AND " IS_SPECIAL ")"

struct commit {
	struct meta_catalog *c;
	const struct meta_tree_spec *spec;
	struct meta_tree base;
	uint64_t tree;
	struct sc_err *err;
};

/* Hides a name in the new tree; that takes a whiteout only if a tree below has the name. */
static int hide(struct commit *m, uint64_t parent, struct meta_bytes name)
{
	uint64_t below = 0;
	int rc = meta_tree_child(m->c, &m->base, parent, name, &below, m->err);

	if (rc == 0 && below)
		rc = db_run(m->c, m->err,
			    "INSERT OR REPLACE INTO tree_entry (tree, parent, name, ino) VALUES (?, ?, ?, 0)", "iiB",
			    m->tree, parent, &name);
	return rc;
}

static int on_special(void *arg, sqlite3_stmt *row)
{
	return hide(arg, U64(row, 0), db_bytes(row, 1));
}

static int put_inode(struct commit *m, const struct meta_inode_row *r)
{
	return db_run(m->c, m->err,
		      "INSERT OR REPLACE INTO tree_inode (tree, ino, " COLUMNS ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "
		      "?, ?, ?)",
		      "iiiiiiIIIiiB", m->tree, r->ino, (uint64_t)r->mode, (uint64_t)r->uid, (uint64_t)r->gid,
		      (uint64_t)r->nlink, r->atime_ns, r->mtime_ns, r->ctime_ns, r->parent, r->blob, &r->target);
}

static int drop_inode(struct commit *m, uint64_t ino)
{
	int rc = db_run(m->c, m->err, "DELETE FROM tree_xattr WHERE tree = ? AND ino = ?", "ii", m->tree, ino);

	return rc < 0 ? rc
		      : db_run(m->c, m->err, "DELETE FROM tree_inode WHERE tree = ? AND ino = ?", "ii", m->tree, ino);
}

/* Tells whether a folder needs no row: those of the job and of ranks, and virtual ones. */
static bool needs_no_row(uint64_t root, uint64_t folder)
{
	return (folder >= root && folder - root <= SC_RANKS_MAX) || folder >= META_VIRTUAL;
}

static int put_entry(struct commit *m, const struct meta_entry_row *e)
{
	uint64_t folder = needs_no_row(m->spec->root, e->parent) ? e->parent : 0;
	struct meta_inode_row ignored;
	int rc = 0;

	if (!e->ino) {
		rc = db_run(m->c, m->err, "DELETE FROM tree_entry WHERE tree = ? AND parent = ? AND name = ?", "iiB",
			    m->tree, e->parent, &e->name);
		return rc < 0 ? rc : hide(m, e->parent, e->name);
	}
	if (!folder)
		rc = db_each(m->c, m->err, db_id, &folder, "SELECT ino FROM tree_inode WHERE tree = ? AND ino = ?",
			     "ii", m->tree, e->parent);
	if (rc == 0 && !folder) {
		rc = meta_tree_inode(m->c, &m->base, e->parent, &ignored, NULL, m->err);
		if (rc == 0)
			return sc_fail(m->err, SC_E_CORRUPT, "commit: '%.*s' is put into folder %" PRIu64 ", which has "
				       "no row: nothing was committed", (int)e->name.nr, e->name.at, e->parent);
	}
	return rc < 0 ? rc
		      : db_run(m->c, m->err,
			       "INSERT OR REPLACE INTO tree_entry (tree, parent, name, ino) VALUES (?, ?, ?, ?)",
			       "iiBi", m->tree, e->parent, &e->name, e->ino);
}

static int decide(struct commit *m, const struct meta_change *x)
{
	switch (x->kind) {
	case META_PUT_INODE:
		return put_inode(m, &x->inode);
	case META_DROP_INODE:
		return drop_inode(m, x->inode.ino);
	case META_PUT_ENTRY:
		return put_entry(m, &x->entry);
	case META_PUT_XATTR:
		return db_run(m->c, m->err,
			      "INSERT OR REPLACE INTO tree_xattr (tree, ino, name, value) VALUES (?, ?, ?, ?)", "iiBB",
			      m->tree, x->xattr.ino, &x->xattr.name, &x->xattr.value);
	case META_DROP_ENTRY:
	case META_DROP_XATTR:
	case META_PUT_AGAIN:
		break;
	}
	return sc_fail(m->err, SC_E_CORRUPT, "commit: rows of a tree cannot have a change of kind %d", (int)x->kind);
}

static int begin(struct commit *m)
{
	int rc = tree_chain(m->c, &m->base, m->err);

	if (rc == 0 && m->base.nr == META_CHAIN_MAX)
		rc = meta_tree_flatten(m->c, m->base.id, m->err);
	return rc < 0 ? rc
		      : ADD(m->c, m->err, &m->tree, "INSERT INTO tree (base, root, layout, topology) VALUES (?, ?, ?, "
			    "?)", "iiis", m->base.id, m->spec->root, m->spec->layout, m->spec->topology);
}

static int copy(struct commit *m)
{
	uint64_t job = m->spec->job;
	int rc = db_run(m->c, m->err,
			"INSERT INTO tree_inode (tree, ino, " COLUMNS ") SELECT ?2, ino, " COLUMNS " FROM inode WHERE "
			MOVES " ORDER BY ino", "ii", job, m->tree);

	if (rc == 0)
		rc = db_run(m->c, m->err,
			    "INSERT INTO tree_xattr (tree, ino, name, value) SELECT ?2, ino, name, value FROM xattr "
			    "WHERE " XATTR_MOVES " ORDER BY ino, name", "ii", job, m->tree);
	if (rc == 0)
		rc = db_run(m->c, m->err,
			    "INSERT INTO tree_entry (tree, parent, name, ino) SELECT ?2, parent, name, ino FROM entry "
			    "WHERE " ENTRY_MOVES " AND (ino <> 0 OR ?3 <> 0) ORDER BY parent, name",
			    "iii", job, m->tree, m->base.id);
	if (rc == 0 && m->base.id)
		rc = db_each(m->c, m->err, on_special, m,
			     "SELECT parent, name FROM entry WHERE " SPECIAL_ENTRY, "i", job);
	return rc;
}

static int remove_moved(struct commit *m)
{
	uint64_t job = m->spec->job;
	int rc = db_run(m->c, m->err, "DELETE FROM entry WHERE " ENTRY_MOVES, "i", job);

	if (rc == 0)
		rc = db_run(m->c, m->err, "DELETE FROM xattr WHERE " XATTR_MOVES, "i", job);
	if (rc == 0)
		rc = db_run(m->c, m->err, "DELETE FROM xattr WHERE ino IN (SELECT ino FROM inode WHERE " FORGOTTEN ")",
			    "i", job);
	if (rc == 0)
		rc = db_run(m->c, m->err, "DELETE FROM inode WHERE " FORGOTTEN, "i", job);
	return rc < 0 ? rc : db_run(m->c, m->err, "DELETE FROM inode WHERE " MOVES, "i", job);
}

int meta_tree_commit(struct meta_catalog *c, const struct meta_tree_spec *spec, uint64_t *ret_tree, struct sc_err *err)
{
	struct commit m = {.c = c, .spec = spec, .base.id = spec->base, .err = err};
	int rc = begin(&m);

	if (rc == 0)
		rc = copy(&m);
	for (size_t i = 0; rc == 0 && i < spec->rows.nr; i++)
		rc = decide(&m, &spec->rows.at[i]);
	if (rc == 0)
		rc = remove_moved(&m);
	if (rc == 0)
		*ret_tree = m.tree;
	return rc;
}

static int add_row(struct commit *m, const struct meta_change *x)
{
	if (x->kind != META_PUT_ENTRY || x->entry.ino)
		return decide(m, x);
	return db_run(m->c, m->err, "INSERT OR REPLACE INTO tree_entry (tree, parent, name, ino) VALUES (?, ?, ?, 0)",
		      "iiB", m->tree, x->entry.parent, &x->entry.name);
}

int meta_tree_add(struct meta_catalog *c, const struct meta_tree_spec *spec, uint64_t *ret_tree, struct sc_err *err)
{
	struct commit m = {.c = c, .spec = spec, .base.id = spec->base, .err = err};
	int rc = begin(&m);

	for (size_t i = 0; rc == 0 && i < spec->rows.nr; i++)
		rc = add_row(&m, &spec->rows.at[i]);
	if (rc == 0)
		*ret_tree = m.tree;
	return rc;
}

/* --- flat trees --- */

/* statements that give tree ?1 the rows of ?2 that it lacks.  Attributes come first: they belong to the rows of inodes,
 * which are copied next. */
static const char *const merges[] = {
	"INSERT INTO tree_xattr (tree, ino, name, value) SELECT ?1, ino, name, value FROM tree_xattr WHERE tree = ?2 "
	"AND ino NOT IN (SELECT ino FROM tree_inode WHERE tree = ?1) ORDER BY ino, name",
	"INSERT OR IGNORE INTO tree_inode (tree, ino, " COLUMNS ") SELECT ?1, ino, " COLUMNS " FROM tree_inode WHERE "
	"tree = ?2 ORDER BY ino",
	"INSERT OR IGNORE INTO tree_entry (tree, parent, name, ino) SELECT ?1, parent, name, ino FROM tree_entry WHERE "
	"tree = ?2 ORDER BY parent, name",
};

#define NEEDS_NO_ROW(x) "(" x " BETWEEN ?2 AND ?3 OR " x " >= ?4)"

/* Removes whiteouts, and all rows that cannot be reached from the folders of the job and of its ranks, or from virtual
 * numbers.  By rule 4 of catalog_tree.c any other folder that is reached has a row. */
static int prune(struct meta_catalog *c, uint64_t tree, struct sc_err *err)
{
	uint64_t root = 0;
	int rc = db_each(c, err, db_id, &root, "SELECT root FROM tree WHERE id = ?", "i", tree);

	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM tree_entry WHERE tree = ? AND ino = 0", "i", tree);
	if (rc == 0)
		rc = db_run(c, err,
			    "WITH RECURSIVE live (ino) AS (SELECT ino FROM tree_inode WHERE tree = ?1 AND "
			    NEEDS_NO_ROW("ino") " UNION SELECT ino FROM tree_entry WHERE tree = ?1 AND "
			    NEEDS_NO_ROW("parent") " UNION SELECT e.ino FROM live JOIN tree_entry e ON e.tree = ?1 "
			    "AND e.parent = live.ino) DELETE FROM tree_inode WHERE tree = ?1 AND ino NOT IN (SELECT "
			    "ino FROM live)", "iiii", tree, root, root + SC_RANKS_MAX, META_VIRTUAL);
	if (rc == 0)
		rc = db_run(c, err,
			    "DELETE FROM tree_entry WHERE tree = ?1 AND NOT " NEEDS_NO_ROW("parent") " AND parent NOT "
			    "IN (SELECT ino FROM tree_inode WHERE tree = ?1)", "iiii", tree, root, root + SC_RANKS_MAX,
			    META_VIRTUAL);
	if (rc == 0)
		rc = db_run(c, err,
			    "DELETE FROM tree_xattr WHERE tree = ?1 AND ino NOT IN (SELECT ino FROM tree_inode WHERE "
			    "tree = ?1)", "i", tree);
	return rc;
}

int meta_tree_flatten(struct meta_catalog *c, uint64_t tree, struct sc_err *err)
{
	struct meta_tree t = {.id = tree};
	int rc = tree_chain(c, &t, err);

	if (rc < 0 || t.nr < 2)
		return rc;
	db_chains_changed(c);
	for (uint32_t b = 1; b < t.nr; b++)
		for (size_t i = 0; rc == 0 && i < sizeof(merges) / sizeof(*merges); i++)
			rc = db_run(c, err, merges[i], "ii", tree, t.chain[b]);
	if (rc == 0)
		rc = prune(c, tree, err);
	return rc < 0 ? rc : db_run(c, err, "UPDATE tree SET base = 0, kept = 0 WHERE id = ?", "i", tree);
}

int meta_tree_to_flatten(struct meta_catalog *c, uint64_t *ret, struct sc_err *err)
{
	*ret = 0;
	return db_each(c, err, db_id, ret,
		       "WITH RECURSIVE chain (top, id, nr) AS (SELECT DISTINCT tree, tree, 1 FROM version WHERE tree "
		       "IS NOT NULL UNION ALL SELECT top, base, nr + 1 FROM chain JOIN tree USING (id) WHERE base <> "
		       "0) SELECT top FROM chain WHERE nr > ? OR id NOT IN (SELECT tree FROM version WHERE tree IS NOT "
		       "NULL) ORDER BY top LIMIT 1", "i", (uint64_t)META_CHAIN_LONG);
}

/* --- garbage --- */

#define UNNEEDED                                                                                                       \
	"(SELECT id FROM tree WHERE id NOT IN (WITH RECURSIVE needed (id) AS (SELECT tree FROM version WHERE tree "    \
	"IS NOT NULL UNION SELECT base FROM needed JOIN tree USING (id)) SELECT id FROM needed))"

int meta_tree_garbage(struct meta_catalog *c, struct sc_err *err)
{
	static const char *const steps[] = {
		"DELETE FROM tree_inode WHERE tree IN " UNNEEDED,
		"DELETE FROM tree_entry WHERE tree IN " UNNEEDED,
		"DELETE FROM tree_xattr WHERE tree IN " UNNEEDED,
		"DELETE FROM tree WHERE id IN " UNNEEDED,
	};
	int rc = 0;

	db_chains_changed(c);
	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		rc = db_run(c, err, steps[i], "");
	return rc;
}
