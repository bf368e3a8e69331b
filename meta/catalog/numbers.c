/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates the numbers that nodeids are made of (fs/node/node.h).  A kernel remembers a nodeid for as long as it
 * likes, even when the daemon is replaced, so no number is given twice while a kernel could remember it:
 *
 *     path         each number once in a mount: a mount that begins drops paths that no row names any more, if many
 *                  numbers are given; when the last one is given, the numbers without a row are given
 *     blob         each number once in the life of a store, and of a cluster's node: whatever copy of its store was put
 *                  back (meta_numbers_from())
 *     view         each number once in the life of a store; a view takes one for each of its ranks, and its id is the
 *                  last of them
 *     job          each number once in a mount: the kernel of the next mount remembers none, so numbers of removed jobs
 *                  are given again
 *     inode        each number once in the life of a store: counter `number`, taken in blocks, each of one job.  Nodes
 *                  of a cluster give different ones (nodes.h)
 *     tree         each number once in the life of a store
 *
 * sqlite_sequence holds the last number of each table.  A blob may get its row later than its number: memory holds the
 * last one that was given.  A number whose row has not come when the daemon ends is given again; no kernel knows it.
 */
#include "meta/catalog/db_i.h"
#include "meta/catalog/nodes.h"
#include "meta/catalog/trees.h"

#include <inttypes.h>

#include "meta/base/limits.h"

static int last_given(struct meta_catalog *c, const char *table, uint64_t *ret, struct sc_err *err)
{
	return db_each(c, err, db_id, ret, "SELECT seq FROM sqlite_sequence WHERE name = ?", "s", table);
}

/* Takes `nr` new numbers of a table, larger than `given`, and gives the last of them; the caller inserts it, under the
 * same lock, or remembers that it is given. */
static int take(struct meta_catalog *c, const char *table, uint64_t given, uint64_t nr, uint64_t end,
		uint64_t *ret_last, struct sc_err *err)
{
	uint64_t last = 0;
	int rc = last_given(c, table, &last, err);

	if (last < given)
		last = given;
	if (rc == 0 && (last >= end || nr >= end - last))
		return sc_fail(err, SC_E_LIMIT, "this store has used up its %" PRIu64 " numbers for %ss: start a new "
			       "store", end - 1, table);
	*ret_last = last + nr;
	return rc;
}

/* Gives a number to a path.  Paths lose their rows only when a mount begins, so a number without a row was not given in
 * this mount. */
int db_take_path(struct meta_catalog *c, uint64_t *ret, struct sc_err *err)
{
	uint64_t last = 0, *searched = db_path_searched(c), id = 0;
	int rc = last_given(c, "path", &last, err);

	if (rc == 0 && last + 1 < SC_PATHS_MAX) {
		*ret = last + 1;
		return 0;
	}
	if (rc == 0)
		rc = db_each(c, err, db_id, &id,
			     "SELECT n + 1 FROM (SELECT ?1 AS n UNION ALL SELECT id FROM path WHERE id > ?1) WHERE NOT "
			     "EXISTS (SELECT 1 FROM path WHERE id = n + 1) LIMIT 1",
			     "i", *searched);
	if (rc == 0 && (!id || id >= SC_PATHS_MAX))
		return sc_fail(err, SC_E_LIMIT, "the versions in this store, and those that it had since it was "
			       "mounted, have files under %u different paths, which is the limit: remove versions, "
			       "then unmount the store and mount it again", SC_PATHS_MAX - 1);
	if (rc == 0)
		*ret = *searched = id;
	return rc;
}

#define DROP_PATHS_FROM (SC_PATHS_MAX / 2)

/* Drops paths of whose numbers nothing is made any more: neither rows of sets nor virtual numbers in rows of trees. */
static int drop_paths(struct meta_catalog *c, struct sc_err *err)
{
	uint64_t last = 0;
	int rc = last_given(c, "path", &last, err);

	if (rc < 0 || last < DROP_PATHS_FROM)
		return rc;
	return db_run(c, err,
		      "DELETE FROM path WHERE text <> '' AND id NOT IN ("
		      "SELECT path FROM set_blob UNION SELECT path FROM given "
		      "UNION SELECT ino & ?2 FROM inode WHERE ino >= ?1 UNION SELECT parent & ?2 FROM inode WHERE "
		      "parent >= ?1 UNION SELECT ino & ?2 FROM entry WHERE ino >= ?1 "
		      "UNION SELECT parent & ?2 FROM entry WHERE parent >= ?1 "
		      "UNION SELECT ino & ?2 FROM xattr WHERE ino >= ?1 "
		      "UNION SELECT ino & ?2 FROM again WHERE ino >= ?1 "
		      "UNION SELECT number & ?2 FROM again WHERE number >= ?1 "
		      "UNION SELECT ino & ?2 FROM tree_inode WHERE ino >= ?1 "
		      "UNION SELECT parent & ?2 FROM tree_inode WHERE parent >= ?1 "
		      "UNION SELECT ino & ?2 FROM tree_entry WHERE ino >= ?1 "
		      "UNION SELECT parent & ?2 FROM tree_entry WHERE parent >= ?1 "
		      "UNION SELECT ino & ?2 FROM tree_xattr WHERE ino >= ?1)",
		      "ii", META_VIRTUAL, (uint64_t)SC_PATHS_MAX - 1);
}

/* Refuses numbers beyond those that etcd has given to this node of a cluster (reshard/cluster/peers/bound.c). */
static int check_end(struct meta_catalog *c, uint64_t next, uint64_t end, uint64_t half, struct sc_err *err)
{
	if (end && next > half)
		__atomic_store_n(&db_ends(c)->low, true, __ATOMIC_RELAXED);
	return !end || next <= end ? 0
				   : sc_fail(err, SC_E_BUSY, "this node may give no more numbers to files before "
					     "etcd has given it others: does etcd answer? (/.ctl/health); try again");
}

int db_take_blob(struct meta_catalog *c, uint64_t *ret, struct sc_err *err)
{
	uint64_t *given = db_blob_given(c);
	int rc = take(c, "blob", *given, 1, SC_BLOBS_MAX, ret, err);

	if (rc == 0)
		rc = check_end(c, *ret + 1, db_ends(c)->blobs, db_ends(c)->half[0], err);
	if (rc == 0)
		*given = *ret;
	return rc;
}

int db_take_view(struct meta_catalog *c, uint32_t ranks, uint64_t *ret, struct sc_err *err)
{
	return take(c, "view", 0, ranks, SC_PLACES_MAX, ret, err);
}

static int on_job_number(void *arg, sqlite3_stmt *row)
{
	uint64_t *n = arg;

	n[0] = U64(row, 0);
	n[1] = U64(row, 1);
	return 0;
}

int db_take_job(struct meta_catalog *c, uint64_t *ret, struct sc_err *err)
{
	uint64_t n[2] = {0}, id = 0, used = 1;
	int rc = db_each(c, err, on_job_number, n, "SELECT given, before_mount FROM job_number", "");

	while (rc == 0 && used) {
		if (n[0] - n[1] >= SC_JOBS_MAX - 1)
			return sc_fail(err, SC_E_LIMIT, "this mount has made %u jobs and has no number for another "
				       "one: unmount the store and mount it again", SC_JOBS_MAX - 1);
		id = n[0]++ % (SC_JOBS_MAX - 1) + 1;
		used = 0;
		rc = db_each(c, err, db_id, &used, "SELECT id FROM job WHERE id = ?", "i", id);
	}
	if (rc == 0)
		rc = db_run(c, err, "UPDATE job_number SET given = ?", "i", n[0]);
	if (rc == 0)
		*ret = id;
	return rc;
}

int meta_mount_begins(struct meta_catalog *c, struct sc_err *err)
{
	int rc = drop_paths(c, err);

	return rc < 0 ? rc
		      : db_run(c, err, "UPDATE job_number SET before_mount = given WHERE before_mount <> given", "");
}

/* --- of blobs and trees, as their files tell them --- */

int meta_last_number(struct meta_catalog *c, enum meta_numbered of, uint64_t *ret, struct sc_err *err)
{
	*ret = 0;
	/* SQLite's own count may be lost where rows were saved from a damaged catalog */
	return db_each(c, err, db_id, ret,
		       of == META_NUMBERED_BLOB
			       ? "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'blob'), 0), "
				 "coalesce((SELECT max(id) FROM blob), 0))"
			       : "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'tree'), 0), "
				 "coalesce((SELECT max(id) FROM tree), 0))", "");
}

int meta_number_flush(struct meta_catalog *c, enum meta_numbered of, uint64_t number, struct sc_err *err)
{
	uint64_t last = 0;
	bool is_durable;
	int rc = 0;

	db_lock(c);
	is_durable = number <= db_durable(c)[of];
	if (!is_durable)
		rc = meta_last_number(c, of, &last, err);
	db_unlock(c);
	if (rc < 0 || is_durable)
		return rc;
	rc = meta_catalog_flush(c, err);
	db_lock(c);
	if (rc == 0 && last > db_durable(c)[of])
		db_durable(c)[of] = last;
	db_unlock(c);
	return rc;
}

/* --- numbers of inodes --- */

#define NUMBERS (UINT64_C(1) << META_NODE_NUMBERS)

static int take_block(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret_first, struct sc_err *err)
{
	uint64_t first = 0;
	int rc = db_each(c, err, db_id, &first,
			 "UPDATE counter SET next = next + ?1 WHERE name = 'number' RETURNING next - ?1", "i", nr);

	/* those behind it are another node's */
	if (rc == 0 && (nr > NUMBERS || first + nr > ((first >> META_NODE_NUMBERS) + 1) * NUMBERS ||
			first >= SC_NUMBERS_MAX))
		return sc_fail(err, SC_E_LIMIT, "this store has used up its numbers for files: start a new store");
	if (rc == 0)
		rc = check_end(c, first + nr, db_ends(c)->inodes, db_ends(c)->half[1], err);
	if (rc == 0)
		rc = db_run(c, err, "INSERT INTO number_block (first, nr, job) VALUES (?, ?, ?)", "iii", first, nr,
			    job);
	if (rc == 0)
		*ret_first = first;
	return rc;
}

int meta_numbers_take(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret_first, struct sc_err *err)
{
	bool joins;
	int rc;

	db_lock(c);
	joins = db_in_transaction(c);
	rc = joins ? 0 : meta_catalog_begin(c, true, err);
	if (rc == 0) {
		rc = take_block(c, job, nr, ret_first, err);
		if (!joins)
			rc = meta_catalog_end(c, rc, err);
	}
	db_unlock(c);
	return rc;
}

int db_take_root(struct meta_catalog *c, uint64_t job, uint64_t *ret, struct sc_err *err)
{
	return take_block(c, job, SC_RANKS_MAX + UINT64_C(1), ret, err);
}

struct blocks_walk {
	meta_numbers_fn *fn;
	void *arg;
};

static int on_block(void *arg, sqlite3_stmt *row)
{
	const struct blocks_walk *w = arg;

	return w->fn(w->arg, U64(row, 0), U64(row, 1), U64(row, 2));
}

int meta_numbers_each(struct meta_catalog *c, meta_numbers_fn *fn, void *arg, struct sc_err *err)
{
	struct blocks_walk w = {fn, arg};

	return db_each(c, err, on_block, &w, "SELECT first, nr, job FROM number_block ORDER BY first", "");
}

/* --- of nodes --- */

_Static_assert(UINT64_C(1) << (META_NODE_BITS + META_NODE_NUMBERS) < SC_NUMBERS_MAX, "all nodes have numbers");

/* The largest number that a counter which nothing was taken of has: schema.sql. */
#define FIRST_NUMBER 1024

int meta_numbers_of_node(struct meta_catalog *c, uint32_t node, struct sc_err *err)
{
	const uint64_t first = (uint64_t)node << META_NODE_NUMBERS;
	uint64_t next = 0;
	int rc;

	if (!node || node >> META_NODE_BITS)
		return sc_fail(err, SC_E_STATE, "there is no node %" PRIu32 ": nodes have numbers from 1 to %u", node,
			       (1u << META_NODE_BITS) - 1);
	db_lock(c);
	rc = db_each(c, err, db_id, &next, "SELECT next FROM counter WHERE name = 'number'", "");
	if (rc == 0 && next == FIRST_NUMBER)
		rc = db_run(c, err, "UPDATE counter SET next = ? WHERE name = 'number'", "i", first);
	else if (rc == 0 && next >> META_NODE_NUMBERS != node)
		rc = sc_fail(err, SC_E_STATE, "this store has given numbers to files that are not those of node %"
			     PRIu32 ": start a new store for this node", node);
	db_unlock(c);
	return rc;
}

int meta_numbers_next(struct meta_catalog *c, struct meta_numbers *ret, struct sc_err *err)
{
	int rc;

	db_lock(c);
	rc = meta_last_number(c, META_NUMBERED_BLOB, &ret->blob, err);
	ret->blob = sc_max_u64(ret->blob, *db_blob_given(c)) + 1;
	if (rc == 0)
		rc = db_each(c, err, db_id, &ret->inode, "SELECT next FROM counter WHERE name = 'number'", "");
	db_unlock(c);
	return rc;
}

int meta_numbers_from(struct meta_catalog *c, const struct meta_numbers *first, const struct meta_numbers *end,
		      struct sc_err *err)
{
	struct db_ends *e = db_ends(c);
	int rc;

	db_lock(c);
	rc = db_run(c, err, "UPDATE counter SET next = max(next, ?) WHERE name = 'number'", "i", first->inode);
	if (rc == 0) {
		*db_blob_given(c) = sc_max_u64(*db_blob_given(c), first->blob - 1);
		*e = (struct db_ends){end->blob, end->inode, {first->blob + (end->blob - first->blob) / 2,
				      first->inode + (end->inode - first->inode) / 2}, false};
	}
	db_unlock(c);
	return rc < 0 ? rc : 0;
}

bool meta_numbers_are_few(struct meta_catalog *c)
{
	return __atomic_load_n(&db_ends(c)->low, __ATOMIC_RELAXED);
}

struct block {
	uint64_t first, nr, job;
	bool found;
};

static int on_part(void *arg, sqlite3_stmt *row)
{
	*(struct block *)arg = (struct block){U64(row, 0), U64(row, 1), U64(row, 2), true};
	return 0;
}

/* Finds the block that has some of these numbers, and this catalog's next number. */
static int look(struct meta_catalog *c, uint64_t first, uint64_t nr, struct block *ret, uint64_t *ret_next,
		struct sc_err *err)
{
	int rc = db_each(c, err, on_part, ret,
			 "SELECT first, nr, job FROM number_block WHERE first < ?1 + ?2 AND first + nr > ?1 ORDER BY "
			 "first LIMIT 1", "ii", first, nr);

	return rc < 0 ? rc : db_each(c, err, db_id, ret_next, "SELECT next FROM counter WHERE name = 'number'", "");
}

int meta_numbers_put(struct meta_catalog *c, uint64_t first, uint64_t nr, uint64_t job, struct sc_err *err)
{
	struct block is = {0};
	uint64_t next = 0;
	bool own, known;
	int rc;

	if (!first || !nr || first >= SC_NUMBERS_MAX || nr > SC_NUMBERS_MAX - first)
		return sc_fail(err, SC_E_CORRUPT, "no files have %" PRIu64 " numbers from %" PRIu64 " on", nr, first);
	db_lock(c);
	rc = look(c, first, nr, &is, &next, err);
	/* it would be given again */
	own = first >> META_NODE_NUMBERS == next >> META_NODE_NUMBERS && first + nr > next;
	known = is.found && is.first == first && is.nr == nr && is.job == job;
	if (rc == 0 && !known && (is.found || own))
		rc = sc_fail(err, SC_E_CORRUPT, "the numbers %" PRIu64 " to %" PRIu64 " are %s", first, first + nr - 1,
			     is.found ? "another job's here, or of other blocks"
				      : "said to be given, but this node has not given them yet");
	if (rc == 0 && !known)
		rc = db_run(c, err, "INSERT INTO number_block (first, nr, job) VALUES (?, ?, ?)", "iii", first, nr,
			    job);
	db_unlock(c);
	return rc < 0 ? rc : !known;
}
