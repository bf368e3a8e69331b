/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a second job of the versions of a job: rows with the same sets and datasets, and trees with other numbers. */
#include "meta/catalog/db_i.h"
#include "meta/catalog/trees.h"

#include <inttypes.h>

#include "meta/base/limits.h"
#include "meta/base/mem.h"

/* Each has two parameters, the new job and its source.  Numbers of versions are unique in a job: they tell which
 * version is whose copy. */
static const char *const copies[] = {
	/* who may remove the source need not want to remove its clone */
	"INSERT INTO config SELECT ?, key, value FROM config WHERE job = ? AND key <> 'remove'",
	"INSERT INTO version (job, nr, parent, step, note, made_ns, made_by, layout, topology, samples, tag, "
	"tree, floor_ns) SELECT ?, nr, parent, step, note, made_ns, made_by, layout, topology, samples, tag, tree, "
	"floor_ns FROM version WHERE job = ? ORDER BY nr",
	"UPDATE version SET parent = (SELECT mine.id FROM version old JOIN version mine ON mine.nr = old.nr "
	"WHERE old.id = version.parent AND mine.job = version.job) WHERE job = ? AND ? <> 0",
	"INSERT INTO version_set SELECT mine.id, blob_set FROM version_set JOIN version old ON old.id = version "
	"JOIN version mine ON mine.nr = old.nr WHERE mine.job = ? AND old.job = ?",
	"INSERT INTO version_data SELECT mine.id, dataset, from_epoch, from_samples FROM version_data "
	"JOIN version old ON old.id = version JOIN version mine ON mine.nr = old.nr WHERE mine.job = ? AND old.job = ?",
};

/* --- trees --- */

/*
 * The new job has a block for the folders, and one for all other numbers of the source's blocks, which follow each
 * other there.  (The range from the source's first number to its last doubles with each clone, whose numbers are in
 * between.)
 */
struct numbers {
	uint64_t source, source_root, job;	/* job: the new one */
	uint64_t nr_others;
	struct {
		size_t nr, room;
		struct block {
			uint64_t first, nr, to;
		} *at;				/* of the source */
	} blocks;
};

static int on_block(void *arg, sqlite3_stmt *row)
{
	struct numbers *n = arg;
	struct block b = {U64(row, 0), U64(row, 1), n->nr_others};

	if (b.first != n->source_root)
		n->nr_others += b.nr;
	return sc_vec_push(&n->blocks, b) < 0 ? SC_E_NO_MEMORY : 0;
}

static uint64_t renumber(void *arg, uint64_t x)
{
	const struct numbers *n = arg;
	size_t behind;

	if (x >= META_VIRTUAL)
		return meta_virtual(n->job, meta_virtual_rank(x), meta_virtual_path(x));
	behind = sc_first(n->blocks.nr, i, n->blocks.at[i].first > x);
	if (behind == 0 || x - n->blocks.at[behind - 1].first >= n->blocks.at[behind - 1].nr)
		return 0;
	return n->blocks.at[behind - 1].to + (x - n->blocks.at[behind - 1].first);
}

static int take_numbers(struct meta_catalog *c, uint64_t job, uint64_t root, struct numbers *n, struct sc_err *err)
{
	uint64_t others = 0;
	int rc = db_each(c, err, on_block, n, "SELECT first, nr FROM number_block WHERE job = ? ORDER BY first", "i",
			 n->source);

	if (rc == SC_E_NO_MEMORY)
		return sc_nomem(err);
	if (rc == 0 && n->nr_others)
		rc = meta_numbers_take(c, job, n->nr_others, &others, err);
	n->job = job;
	for (size_t i = 0; i < n->blocks.nr; i++)
		n->blocks.at[i].to = n->blocks.at[i].first == n->source_root ? root : others + n->blocks.at[i].to;
	return rc;
}

struct trees {
	size_t nr, room;
	struct tree {
		uint64_t was, base, is;
	} *at;		/* a base stands before what lies over it */
};

static int on_tree(void *arg, sqlite3_stmt *row)
{
	struct trees *t = arg;

	return sc_vec_push(t, (struct tree){U64(row, 0), U64(row, 1), 0}) < 0 ? SC_E_NO_MEMORY : 0;
}

/* statements that give tree ?1 the rows of ?2 */
static const char *const tree_copies[] = {
	"INSERT INTO tree_inode (tree, ino, mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, parent, blob, target) "
	"SELECT ?1, renumber(ino), mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, iif(parent, renumber(parent), "
	"0), blob, target FROM tree_inode WHERE tree = ?2",
	"INSERT INTO tree_entry (tree, parent, name, ino) SELECT ?1, renumber(parent), name, iif(ino, renumber(ino), "
	"0) FROM tree_entry WHERE tree = ?2",
	"INSERT INTO tree_xattr (tree, ino, name, value) SELECT ?1, renumber(ino), name, value FROM tree_xattr WHERE "
	"tree = ?2",
};

static int copy_tree(struct meta_catalog *c, uint64_t root, const struct trees *t, struct tree *tree,
		     struct sc_err *err)
{
	uint64_t base = 0;
	int rc;

	for (size_t i = 0; i < t->nr; i++)
		if (t->at[i].was == tree->base)
			base = t->at[i].is;
	if (tree->base && !base)
		return sc_fail(err, SC_E_CORRUPT, "catalog: tree %" PRIu64 ": tree %" PRIu64 ", which it lies over, is "
			       "missing or newer: run 'scalai fsck'", tree->was, tree->base);
	rc = ADD(c, err, &tree->is, "INSERT INTO tree (base, root, layout, topology) SELECT ?, ?, layout, topology "
				    "FROM tree WHERE id = ?", "iii", base, root, tree->was);
	for (size_t i = 0; rc == 0 && i < sizeof(tree_copies) / sizeof(*tree_copies); i++)
		rc = db_run(c, err, tree_copies[i], "ii", tree->is, tree->was);
	return rc;
}

static int clone_trees(struct meta_catalog *c, uint64_t source, uint64_t job, uint64_t root, struct sc_err *err)
{
	struct numbers n = {.source = source};
	struct trees t = {0};
	int rc = db_each(c, err, on_tree, &t,
			 "WITH RECURSIVE mine (id) AS (SELECT tree FROM version WHERE job = ? AND tree IS NOT NULL "
			 "UNION SELECT base FROM mine JOIN tree USING (id)) SELECT id, base FROM mine JOIN tree USING "
			 "(id) ORDER BY id", "i", source);

	if (rc == 0 && t.nr)
		rc = db_each(c, err, db_id, &n.source_root, "SELECT root FROM job WHERE id = ?", "i", source);
	if (rc == 0 && t.nr)
		rc = take_numbers(c, job, root, &n, err);
	db_set_renumber(c, renumber, &n);
	for (size_t i = 0; rc == 0 && i < t.nr; i++) {
		rc = copy_tree(c, root, &t, &t.at[i], err);
		if (rc == 0)
			rc = db_run(c, err, "UPDATE version SET tree = ? WHERE job = ? AND tree = ?", "iii",
				    t.at[i].is, job, t.at[i].was);
	}
	db_set_renumber(c, NULL, NULL);
	sc_vec_done(&t);
	sc_vec_done(&n.blocks);
	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

int meta_job_clone(struct meta_catalog *c, uint64_t source, const char *name, int64_t made_ns, uint64_t request,
		   uint64_t *ret_id, uint64_t *ret_root, struct sc_err *err)
{
	uint64_t id = 0, root = 0;
	int rc = db_take_job(c, &id, err);

	if (rc == 0)
		rc = db_take_root(c, id, &root, err);
	if (rc == 0)
		rc = db_run(c, err,
			    "INSERT INTO job (id, name, uid, gid, mode, made_ns, layout, topology, root) "
			    "SELECT ?, ?, uid, gid, mode, ?, layout, topology, ? FROM job WHERE id = ?",
			    "isIii", id, name, made_ns, root, source);
	for (size_t i = 0; rc == 0 && i < sizeof(copies) / sizeof(*copies); i++)
		rc = db_run(c, err, copies[i], "ii", id, source);
	if (rc == 0)
		rc = clone_trees(c, source, id, root, err);
	if (rc == 0)
		rc = db_run(c, err,
			    "UPDATE job SET head = (SELECT mine.id FROM job old JOIN version head ON head.id = "
			    "old.head JOIN version mine ON mine.nr = head.nr WHERE old.id = ? AND mine.job = job.id) "
			    "WHERE id = ?",
			    "ii", source, id);
	if (rc == 0)
		rc = db_run(c, err, "UPDATE version SET request = ? WHERE id = (SELECT head FROM job WHERE id = ?)",
			    "0i", request, id);
	if (rc == 0) {
		*ret_id = id;
		*ret_root = root;
	}
	return rc;
}
