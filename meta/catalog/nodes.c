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
