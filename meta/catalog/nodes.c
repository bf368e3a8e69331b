/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/catalog/nodes.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/catalog/db_i.h"

/* --- blobs of other nodes --- */

static int on_away(void *arg, sqlite3_stmt *row)
{
	uint64_t *n = arg;

	n[0] = U64(row, 0);
	n[1] = U64(row, 1);
	return 1;
}

int meta_blob_is_away(struct meta_catalog *c, uint64_t blob, uint32_t node, uint64_t number, uint64_t bytes,
		      struct sc_err *err)
{
	int rc = meta_blob_seal(c, blob, bytes, err);

	return rc < 0 ? rc
		      : db_run(c, err, "INSERT INTO away (blob, node, number) VALUES (?, ?, ?)", "iii", blob,
			       (uint64_t)node, number);
}

static int add_away(struct meta_catalog *c, uint32_t node, uint64_t number, uint64_t bytes, uint64_t *ret_blob,
		    struct sc_err *err)
{
	int rc = meta_blob_add(c, ret_blob, err);

	return rc < 0 ? rc : meta_blob_is_away(c, *ret_blob, node, number, bytes, err);
}

int meta_blob_put_away(struct meta_catalog *c, uint32_t node, uint64_t number, uint64_t bytes, uint64_t *ret_blob,
		       struct sc_err *err)
{
	uint64_t is[2];
	int rc;

	db_lock(c);
	rc = db_each(c, err, on_away, is,
		     "SELECT id, bytes FROM away JOIN blob ON id = blob WHERE node = ? AND number = ?", "ii",
		     (uint64_t)node, number);
	if (rc > 0 && is[1] != bytes)
		rc = sc_fail(err, SC_E_CORRUPT, "blob %" PRIu64 " of node %" PRIu32 " has %" PRIu64 " bytes, but it "
			     "is said to have %" PRIu64, number, node, is[1], bytes);
	else if (rc > 0)
		*ret_blob = is[0];
	else if (rc == 0)
		rc = add_away(c, node, number, bytes, ret_blob, err);
	db_unlock(c);
	return rc < 0 ? rc : 0;
}

static int find_away(struct meta_catalog *c, const char *sql, uint64_t blob, uint32_t *ret_node, uint64_t *ret_number,
		     struct sc_err *err)
{
	uint64_t is[2];
	int rc = db_each(c, err, on_away, is, sql, "i", blob);

	if (rc > 0) {
		*ret_node = (uint32_t)is[0];
		*ret_number = is[1];
	}
	return rc;
}

int meta_blob_away(struct meta_catalog *c, uint64_t blob, uint32_t *ret_node, uint64_t *ret_number,
		   struct sc_err *err)
{
	return find_away(c, "SELECT node, number FROM away WHERE blob = ? AND here = 0", blob, ret_node, ret_number,
			 err);
}

int meta_blob_origin(struct meta_catalog *c, uint64_t blob, uint32_t *ret_node, uint64_t *ret_number,
		     struct sc_err *err)
{
	return find_away(c, "SELECT node, number FROM away WHERE blob = ?", blob, ret_node, ret_number, err);
}

int meta_blob_came(struct meta_catalog *c, uint64_t blob, struct sc_err *err)
{
	return db_run(c, err, "UPDATE away SET here = 1 WHERE blob = ?", "i", blob);
}

int meta_blob_here(struct meta_catalog *c, uint32_t node, uint64_t number, uint64_t *ret_blob, struct sc_err *err)
{
	uint64_t is[2];
	int rc = db_each(c, err, on_away, is, "SELECT blob, 0 FROM away WHERE node = ? AND number = ? AND here", "ii",
			 (uint64_t)node, number);

	*ret_blob = rc > 0 ? is[0] : 0;
	return rc;
}

struct id_walk {
	meta_id_fn *fn;
	void *arg;
};

static int on_id(void *arg, sqlite3_stmt *row)
{
	const struct id_walk *w = arg;

	return w->fn(w->arg, U64(row, 0));
}

int meta_away_nodes(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err)
{
	struct id_walk w = {fn, arg};

	return db_each(c, err, on_id, &w, "SELECT DISTINCT node FROM away", "");
}

struct away_walk {
	meta_away_fn *fn;
	void *arg;
};

static int on_away_row(void *arg, sqlite3_stmt *row)
{
	const struct away_walk *w = arg;

	return w->fn(w->arg, &(struct meta_away_row){U64(row, 0), U64(row, 1), U64(row, 2), (uint32_t)U64(row, 3),
						     U64(row, 4)});
}

int meta_away_each(struct meta_catalog *c, uint64_t job, meta_away_fn *fn, void *arg, struct sc_err *err)
{
	struct away_walk w = {fn, arg};

	return db_each(c, err, on_away_row, &w,
		       "WITH RECURSIVE these (id, tree) AS (SELECT id, tree FROM version WHERE job = ?), chain (tree) "
		       "AS (SELECT tree FROM these WHERE tree IS NOT NULL UNION SELECT base FROM tree JOIN chain ON id "
		       "= chain.tree WHERE base > 0) "
		       "SELECT a.blob, bytes, number, node, here FROM away a JOIN blob ON id = a.blob WHERE a.blob IN "
		       "(SELECT s.blob FROM these JOIN version_set ON version = these.id JOIN set_blob s USING "
		       "(blob_set) UNION SELECT i.blob FROM chain JOIN tree_inode i USING (tree) WHERE i.blob > 0) "
		       "ORDER BY a.blob DESC", "i", job);
}

/* --- files that this node made of a version --- */

int meta_home_put(struct meta_catalog *c, const struct meta_home_row *row, struct sc_err *err)
{
	int rc = meta_blob_seal(c, row->blob, row->bytes, err);

	return rc < 0 ? rc
		      : db_run(c, err, "INSERT OR REPLACE INTO home VALUES (?, ?, ?, ?)", "iiii", row->version,
			       row->rank, row->path, row->blob);
}

struct home_walk {
	meta_home_fn *fn;
	void *arg;
};

static int on_home(void *arg, sqlite3_stmt *row)
{
	const struct home_walk *w = arg;

	return w->fn(w->arg, &(struct meta_home_row){U64(row, 0), U64(row, 1), U64(row, 2), U64(row, 3), U64(row, 4)});
}

int meta_home_each(struct meta_catalog *c, uint64_t version, meta_home_fn *fn, void *arg, struct sc_err *err)
{
	struct home_walk w = {fn, arg};

	return db_each(c, err, on_home, &w,
		       "SELECT version, rank, path, blob, bytes FROM home JOIN blob ON id = blob WHERE version = ? "
		       "ORDER BY rank, path", "i", version);
}

struct same_walk {
	meta_same_fn *fn;
	void *arg;
};

static int on_same(void *arg, sqlite3_stmt *row)
{
	const struct same_walk *w = arg;

	return w->fn(w->arg, &(struct meta_same_row){U64(row, 0), U64(row, 1), U64(row, 2)});
}

int meta_home_same(struct meta_catalog *c, uint64_t version, meta_same_fn *fn, void *arg, struct sc_err *err)
{
	struct same_walk w = {fn, arg};

	return db_each(c, err, on_same, &w,
		       "SELECT h.blob, a.blob, mine.bytes FROM home h JOIN version_set v USING (version) JOIN "
		       "set_blob s ON s.blob_set = v.blob_set AND s.rank = h.rank AND s.path = h.path JOIN away a ON "
		       "a.blob = s.blob JOIN blob mine ON mine.id = h.blob JOIN blob its ON its.id = a.blob AND "
		       "its.bytes = mine.bytes WHERE version = ? AND NOT here ORDER BY a.blob", "i", version);
}

int meta_home_drop(struct meta_catalog *c, uint64_t version, struct sc_err *err)
{
	return db_run(c, err, "DELETE FROM home WHERE version = ?", "i", version);
}

int meta_version_settle(struct meta_catalog *c, uint64_t version, uint64_t set, struct sc_err *err)
{
	uint64_t old = 0;
	int rc = db_each(c, err, db_id, &old, "SELECT o.id FROM version_set JOIN blob_set o ON o.id = blob_set JOIN "
			 "blob_set n ON n.file = o.file WHERE version = ? AND n.id = ?", "ii", version, set);

	if (rc >= 0 && (!old || old == set))
		return old ? 0 : sc_fail(err, SC_E_CORRUPT, "catalog: no set of version row %" PRIu64 " has the file "
					 "of set %" PRIu64, version, set);
	if (rc >= 0)
		rc = meta_version_replace_set(c, version, old, set, err);
	if (rc == 0)
		rc = db_run(c, err, "INSERT OR IGNORE INTO held_set SELECT ?, abs(job) FROM version WHERE id = ?", "ii",
			    old, version);
	if (rc == 0)
		rc = db_run(c, err, "UPDATE blob_set SET (verified, tensors, report) = (SELECT verified, tensors, "
			    "report FROM blob_set WHERE id = ?1) WHERE id = ?2 AND verified = 0", "ii", old, set);
	return rc < 0 ? rc : 1;
}

int meta_set_let_go(struct meta_catalog *c, uint64_t set, struct sc_err *err)
{
	return db_run(c, err, "DELETE FROM held_set WHERE blob_set = ?", "i", set);
}

struct held_walk {
	meta_held_fn *fn;
	void *arg;
};

static int on_held(void *arg, sqlite3_stmt *row)
{
	const struct held_walk *w = arg;
	struct meta_bytes name = db_bytes(row, 0);

	return name.nr == 32 ? w->fn(w->arg, (const uint8_t *)name.at) : 0;
}

int meta_held_each(struct meta_catalog *c, uint64_t job, meta_held_fn *fn, void *arg, struct sc_err *err)
{
	struct held_walk w = {fn, arg};

	return db_each(c, err, on_held, &w, "SELECT name FROM held_set JOIN object ON kind = 2 AND id = blob_set WHERE "
		       "job = ?", "i", job);
}

int meta_version_retire(struct meta_catalog *c, uint64_t version, struct sc_err *err)
{
	int rc = meta_version_hide(c, version, err);

	return rc < 0 ? rc : db_run(c, err, "DELETE FROM view WHERE version = ?", "i", version);
}

int meta_set_is_shown(struct meta_catalog *c, uint64_t set, struct sc_err *err)
{
	uint64_t version = 0;
	int rc = db_each(c, err, db_id, &version, "SELECT version FROM version_set JOIN version ON id = version WHERE "
			 "blob_set = ? AND job > 0 LIMIT 1", "i", set);

	return rc < 0 ? rc : version != 0;
}

int meta_version_let_go(struct meta_catalog *c, uint64_t version, struct sc_err *err)
{
	int rc = db_run(c, err, "INSERT OR IGNORE INTO held_set SELECT blob_set, abs(job) FROM version_set JOIN "
			"version ON id = version WHERE id = ?", "i", version);

	return rc < 0 ? rc : meta_version_remove(c, version, err);
}

/* --- objects --- */

static struct meta_bytes bytes_of(const uint8_t name[32])
{
	return (struct meta_bytes){(const char *)name, 32};
}

int meta_object_put(struct meta_catalog *c, const struct meta_object *o, struct sc_err *err)
{
	struct meta_bytes name = bytes_of(o->name);

	return db_run(c, err, "INSERT INTO object (kind, id, name, depth) VALUES (?, ?, ?, ?)", "iiBi",
		      (uint64_t)o->kind, o->id, &name, (uint64_t)o->depth);
}

static int on_object(void *arg, sqlite3_stmt *row)
{
	struct meta_object *o = arg;
	struct meta_bytes name = db_bytes(row, 2);

	o->kind = (enum meta_object_kind)U64(row, 0);
	o->id = U64(row, 1);
	o->depth = (uint32_t)U64(row, 3);
	if (name.nr != sizeof(o->name))
		return 0;
	memcpy(o->name, name.at, sizeof(o->name));
	return 1;
}

int meta_object_of(struct meta_catalog *c, enum meta_object_kind kind, uint64_t id, struct meta_object *ret,
		   struct sc_err *err)
{
	return db_each(c, err, on_object, ret, "SELECT kind, id, name, depth FROM object WHERE kind = ? AND id = ?",
		       "ii", (uint64_t)kind, id);
}

int meta_object_named(struct meta_catalog *c, enum meta_object_kind kind, const uint8_t name[32],
		      struct meta_object *ret, struct sc_err *err)
{
	struct meta_bytes key = bytes_of(name);

	return db_each(c, err, on_object, ret,
		       "SELECT kind, id, name, depth FROM object WHERE name = ? AND kind = ? ORDER BY id LIMIT 1",
		       "Bi", &key, (uint64_t)kind);
}
