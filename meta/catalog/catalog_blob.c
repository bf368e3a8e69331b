/* SPDX-License-Identifier: Apache-2.0 */
/* Seals blobs, keeps their hashes and marks of damage, finds the files that use them, and collects garbage. */
#include "meta/catalog/tree_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/mem.h"

#define LIVE_SETS "SELECT blob_set FROM version_set UNION ALL SELECT blob_set FROM held_set"
/* conditions on a blob: nothing uses it; another node has its bytes */
#define IS_UNUSED                                                                                                      \
	"id NOT IN (SELECT blob FROM set_blob) AND id NOT IN (SELECT blob FROM data_source WHERE blob IS NOT NULL) "   \
	"AND id NOT IN (SELECT borders FROM data_source WHERE borders IS NOT NULL) AND id NOT IN (SELECT blob FROM "   \
	"tree_inode WHERE blob <> 0) AND id NOT IN (SELECT blob FROM inode WHERE blob <> 0) AND id NOT IN (SELECT "    \
	"blob FROM home)"
#define IS_AWAY "id IN (SELECT blob FROM away WHERE here = 0)"

struct blob_walk {
	union {
		meta_id_fn *id;
		meta_blob_fn *blob;
		meta_blob_use_fn *use;
		meta_blob_record_fn *record;
	} fn;
	void *arg;
};

int meta_blob_take(struct meta_catalog *c, uint64_t *ret_id, struct sc_err *err)
{
	int rc;

	db_lock(c);
	rc = db_take_blob(c, ret_id, err);
	db_unlock(c);
	return rc;
}

int meta_blob_add(struct meta_catalog *c, uint64_t *ret_id, struct sc_err *err)
{
	int rc;

	db_lock(c);
	rc = db_take_blob(c, ret_id, err);
	if (rc == 0)
		rc = meta_blob_adopt(c, *ret_id, err);
	db_unlock(c);
	return rc;
}

int meta_blob_seal(struct meta_catalog *c, uint64_t blob, uint64_t bytes, struct sc_err *err)
{
	return db_run(c, err, "UPDATE blob SET bytes = ? WHERE id = ?", "ii", bytes, blob);
}

int meta_blob_checked(struct meta_catalog *c, uint64_t blob, const void *hash16, int64_t seconds, bool damaged,
		      struct sc_err *err)
{
	return db_run(c, err, "UPDATE blob SET hash = ?, checked_s = ?, damaged = ? WHERE id = ?", "bIii", hash16,
		      seconds, (uint64_t)damaged, blob);
}

struct unused_blobs {
	size_t nr, room;
	uint64_t *at;
};

static int on_unused(void *arg, sqlite3_stmt *row)
{
	struct unused_blobs *u = arg;

	return sc_vec_push(u, U64(row, 0)) < 0 ? SC_E_NO_MEMORY : 0;
}

/* Removes rows of unused blobs of other nodes, which have no file here, and the names of unused objects. */
static int drop_away(struct meta_catalog *c, struct sc_err *err)
{
	static const char *const steps[] = {
		"DELETE FROM blob WHERE " IS_AWAY " AND " IS_UNUSED,
		"DELETE FROM away WHERE blob NOT IN (SELECT id FROM blob)",
		"DELETE FROM object WHERE kind = 2 AND id NOT IN (SELECT id FROM blob_set)",
		"DELETE FROM object WHERE kind = 3 AND id NOT IN (SELECT id FROM tree)",
		"DELETE FROM object WHERE kind = 4 AND id NOT IN (SELECT id FROM payload)",
		"DELETE FROM object WHERE kind = 5 AND id NOT IN (SELECT id FROM dataset)",
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		rc = db_run(c, err, steps[i], "");
	return rc;
}

int meta_garbage(struct meta_catalog *c, meta_id_fn *on_blob, void *arg, struct sc_err *err)
{
	struct unused_blobs unused = {0};
	int rc = db_run(c, err, "DELETE FROM set_blob WHERE blob_set NOT IN (" LIVE_SETS ")", "");

	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM home WHERE version NOT IN (SELECT head FROM job WHERE head IS NOT "
				    "NULL)", "");
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM given WHERE blob_set NOT IN (" LIVE_SETS ")", "");
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM payload WHERE NOT EXISTS (SELECT 1 FROM set_blob WHERE "
				    "set_blob.payload = payload.id AND set_blob.payload > 0) AND NOT EXISTS (SELECT 1 "
				    "FROM given WHERE given.payload = payload.id AND given.payload > 0)", "");
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM blob_set WHERE id NOT IN (" LIVE_SETS ")", "");
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM data_source WHERE dataset NOT IN (SELECT dataset FROM version_data)",
			    "");
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM dataset WHERE id NOT IN (SELECT dataset FROM version_data)", "");
	if (rc == 0)
		rc = meta_tree_garbage(c, err);
	if (rc == 0)
		rc = drop_away(c, err);
	if (rc == 0)
		rc = db_each(c, err, on_unused, &unused, "SELECT id FROM blob WHERE " IS_UNUSED, "");
	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < unused.nr; i++) {
		rc = on_blob(arg, unused.at[i]);
		if (rc > 0) {
			rc = 0;
			continue;
		}
		if (rc == 0) /* it may be a copy of another node's */
			rc = db_run(c, err, "DELETE FROM away WHERE blob = ?", "i", unused.at[i]);
		if (rc == 0)
			rc = db_run(c, err, "DELETE FROM blob WHERE id = ?", "i", unused.at[i]);
	}
	sc_vec_done(&unused);
	return rc;
}

static int on_blob_row(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;
	struct meta_blob_row b = {.id = U64(row, 0),
				  .bytes = U64(row, 1),
				  .work = sqlite3_column_int(row, 3) != 0,
				  .garbage = sqlite3_column_int(row, 4) != 0,
				  .damaged = sqlite3_column_int(row, 5) != 0,
				  .away = sqlite3_column_int(row, 6) != 0};

	if (sqlite3_column_bytes(row, 2) == 16)
		b.hash = sqlite3_column_blob(row, 2);
	return w->fn.blob(w->arg, &b);
}

int meta_blob_each(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.blob = fn, .arg = arg};

	return db_each(c, err, on_blob_row, &w,
		       "SELECT id, bytes, hash, id IN (SELECT blob FROM inode WHERE blob <> 0 AND data = 1), " IS_UNUSED
		       ", damaged, " IS_AWAY " FROM blob ORDER BY id",
		       "");
}

static int on_sealed(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;
	struct meta_blob_row b = {.id = U64(row, 0), .bytes = U64(row, 1)};

	if (sqlite3_column_bytes(row, 2) == 16)
		b.hash = sqlite3_column_blob(row, 2);
	return w->fn.blob(w->arg, &b);
}

/* condition on a blob: it is sealed, and here.  Until a blob is sealed its row says 0 bytes, but a file of a tree may
 * have 0 bytes. */
#define IS_SEALED \
	"(bytes > 0 OR EXISTS (SELECT 1 FROM tree_inode t WHERE t.blob = blob.id AND t.blob <> 0)) AND NOT " IS_AWAY

int meta_blob_unhashed(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.blob = fn, .arg = arg};

	return db_each(c, err, on_sealed, &w, "SELECT id, bytes, hash FROM blob WHERE hash IS NULL AND NOT damaged "
		       "AND " IS_SEALED, "");
}

int meta_blob_sealed(struct meta_catalog *c, uint64_t blob, meta_blob_fn *fn, void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.blob = fn, .arg = arg};

	return db_each(c, err, on_sealed, &w, "SELECT id, bytes, hash FROM blob WHERE id = ? AND " IS_SEALED, "i",
		       blob);
}

int meta_blob_due(struct meta_catalog *c, int64_t before_s, int64_t damaged_before_s, meta_blob_fn *fn, void *arg,
		  struct sc_err *err)
{
	struct blob_walk w = {.fn.blob = fn, .arg = arg};

	return db_each(c, err, on_sealed, &w,
		       "SELECT id, bytes, hash FROM blob WHERE (hash IS NOT NULL AND checked_s < ?) OR "
		       "(damaged AND checked_s < ?) ORDER BY damaged DESC, checked_s LIMIT 1000",
		       "II", before_s, damaged_before_s);
}

static int on_blob_id(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;

	return w->fn.id(w->arg, U64(row, 0));
}

int meta_blob_damaged(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.id = fn, .arg = arg};

	return db_each(c, err, on_blob_id, &w, "SELECT id FROM blob WHERE damaged", "");
}

int meta_blob_twins(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, meta_id_fn *fn,
		    void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.id = fn, .arg = arg};

	return db_each(c, err, on_blob_id, &w, "SELECT id FROM blob WHERE hash = ? AND bytes = ? AND id <> ?", "bii",
		       hash16, bytes, blob);
}

/* In a tree: the file with this number, or with a name of it, in the trees below and in the version before. */
#define MINE "tree_inode WHERE blob = ?1 AND blob <> 0"
#define BEFORE                                                                                                         \
	"WITH RECURSIVE below (id) AS (SELECT tree FROM " MINE " UNION SELECT old.tree FROM version JOIN version old " \
	"ON old.id = version.parent WHERE version.tree IN (SELECT tree FROM " MINE ") AND old.tree IS NOT NULL UNION " \
	"SELECT base FROM below JOIN tree USING (id) WHERE base <> 0), same (ino) AS (SELECT ino FROM " MINE " UNION " \
	"SELECT old.ino FROM tree_inode mine CROSS JOIN tree_entry e ON e.ino = mine.ino AND e.ino <> 0 AND e.tree = " \
	"mine.tree CROSS JOIN tree_entry old ON old.tree IN (SELECT id FROM below) AND old.parent = e.parent AND "     \
	"old.name = e.name WHERE mine.blob = ?1 AND mine.blob <> 0) "

/* Of `mine`: what has the same place `o` in a set `t` of the same file; the same bytes as ?1, by the hash ?2; whose set
 * is of one of the jobs that have `mine`. */
#define SAME_PLACE                                                                                 \
	"JOIN blob_set s ON s.id = mine.blob_set JOIN blob_set t ON t.file = s.file JOIN set_blob o ON " \
	"o.blob_set = t.id AND o.rank = mine.rank AND o.path = mine.path JOIN blob b ON b.id = o.blob "
#define SAME_BYTES                                                                                 \
	"WHERE mine.blob = ?1 AND b.hash = ?2 AND b.bytes = (SELECT bytes FROM blob WHERE id = ?1) "
#define OF_ITS_JOBS                                                                                \
	"t.id IN (SELECT blob_set FROM version_set JOIN version ON id = version WHERE job IN (SELECT job FROM " \
	"version_set JOIN version ON id = version WHERE blob_set = s.id)) "

int meta_blob_same_before(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, uint64_t *ret,
			  struct sc_err *err)
{
	int rc;

	*ret = 0;
	rc = db_each(c, err, db_id, ret,
		     "SELECT b.id FROM set_blob mine " SAME_PLACE "WHERE mine.blob = ? AND b.id < mine.blob AND "
		     "b.hash = ? AND b.bytes = ? AND " OF_ITS_JOBS "ORDER BY b.id LIMIT 1",
		     "ibi", blob, hash16, bytes);
	if (rc == 0 && !*ret)
		rc = db_each(c, err, db_id, ret,
			     BEFORE "SELECT b.id FROM same CROSS JOIN tree_inode o ON o.tree IN (SELECT id FROM below) "
			     "AND o.ino = same.ino JOIN blob b ON b.id = o.blob AND o.blob <> 0 WHERE b.id < ?1 AND "
			     "b.hash = ?2 AND b.bytes = ?3 ORDER BY b.id LIMIT 1",
			     "ibi", blob, hash16, bytes);
	return rc;
}

static int on_use(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;
	struct meta_blob_use use = {.job = db_text(row, 0), .version = U64(row, 1), .topology = db_text(row, 2),
				    .rank = sqlite3_column_int64(row, 3), .path = db_text(row, 4)};

	return w->fn.use(w->arg, &use);
}

int meta_blob_uses(struct meta_catalog *c, uint64_t blob, meta_blob_use_fn *fn, void *arg, struct sc_err *err)
{
	struct blob_walk w = {.fn.use = fn, .arg = arg};
	int rc;

	rc = db_each(c, err, on_use, &w,
		     "SELECT job.name, version.nr, blob_set.topology, set_blob.rank, path.text FROM set_blob JOIN "
		     "blob_set ON blob_set.id = set_blob.blob_set JOIN path ON path.id = set_blob.path JOIN "
		     "version_set ON version_set.blob_set = set_blob.blob_set JOIN version ON version.id = "
		     "version_set.version JOIN job ON job.id = version.job WHERE set_blob.blob = ? UNION ALL "
		     "SELECT job.name, version.nr, version.topology, -1, 'dataset ' || dataset.name || ' of ' || "
		     "data_source.path FROM data_source JOIN dataset ON dataset.id = data_source.dataset JOIN "
		     "version_data ON version_data.dataset = dataset.id JOIN version ON version.id = "
		     "version_data.version JOIN job ON job.id = version.job WHERE data_source.blob = ? OR "
		     "data_source.borders = ? ORDER BY 2 DESC",
		     "iii", blob, blob, blob);
	return rc ? rc : tree_blob_uses(c, blob, fn, arg, err);
}

static int on_hash(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;

	if (sqlite3_column_bytes(row, 0) != 16)
		return 0;
	memcpy(w->arg, sqlite3_column_blob(row, 0), 16);
	return 1;
}

int meta_blob_hash(struct meta_catalog *c, uint64_t blob, uint8_t ret[16], struct sc_err *err)
{
	struct blob_walk w = {.arg = ret};

	return db_each(c, err, on_hash, &w, "SELECT hash FROM blob WHERE id = ?", "i", blob);
}

int meta_blob_known(struct meta_catalog *c, uint64_t blob, struct sc_err *err)
{
	uint64_t id = 0;
	int rc = db_each(c, err, db_id, &id, "SELECT id FROM blob WHERE id = ?", "i", blob);

	return rc < 0 ? rc : id != 0;
}

static int on_bytes(void *arg, sqlite3_stmt *row)
{
	*(uint64_t *)arg = U64(row, 0);
	return 1;
}

int meta_blob_bytes(struct meta_catalog *c, uint64_t blob, uint64_t *ret, struct sc_err *err)
{
	int rc = db_each(c, err, on_bytes, ret, "SELECT bytes FROM blob WHERE id = ?", "i", blob);

	if (rc == 0)
		return sc_fail(err, SC_E_NOT_FOUND, "catalog: no blob %" PRIu64, blob);
	return rc < 0 ? rc : 0;
}

static int on_record(void *arg, sqlite3_stmt *row)
{
	const struct blob_walk *w = arg;
	struct meta_blob_record r = {.job = db_text(row, 0),
				     .uid = U64(row, 1),
				     .gid = U64(row, 2),
				     .job_mode = U64(row, 3),
				     .set = U64(row, 4),
				     .file = db_text(row, 5),
				     .layout = U64(row, 6),
				     .topology = db_text(row, 7),
				     .rank = sqlite3_column_int64(row, 8),
				     .mode = U64(row, 9),
				     .path = db_text(row, 10),
				     .step = sqlite3_column_int64(row, 11),
				     .layers = (uint32_t)U64(row, 12),
				     .experts = (uint32_t)U64(row, 13),
				     .file_uid = U64(row, 14),
				     .file_gid = U64(row, 15)};

	return w->fn.record(w->arg, &r);
}

/*
 * Of all that share the file: `one` are those of its jobs, `of` the jobs that have one of these (clones), `same` those
 * of all these jobs.  What heads have comes first: there may be room for some only.
 */
int meta_blob_record(struct meta_catalog *c, uint64_t blob, const void *hash16, meta_blob_record_fn *fn, void *arg,
		     struct sc_err *err)
{
	struct blob_walk w = {.fn.record = fn, .arg = arg};

	return db_each(c, err, on_record, &w,
		       "WITH one (id) AS (SELECT ?1 UNION SELECT b.id FROM set_blob mine " SAME_PLACE SAME_BYTES "AND "
		       OF_ITS_JOBS "), of (job) AS (SELECT DISTINCT v.job FROM one CROSS JOIN set_blob x ON x.blob = "
		       "one.id JOIN version_set u ON u.blob_set = x.blob_set JOIN version v ON v.id = u.version), "
		       "same (id) AS (SELECT ?1 UNION SELECT b.id FROM set_blob mine " SAME_PLACE SAME_BYTES "AND t.id "
		       "IN (SELECT u.blob_set FROM of CROSS JOIN version v ON v.job = of.job JOIN version_set u ON "
		       "u.version = v.id)) "
		       "SELECT job.name, job.uid, job.gid, job.mode, s.id, s.file, s.layout, s.topology, "
		       "set_blob.rank, set_blob.mode, path.text, coalesce((SELECT max(step) FROM version JOIN "
		       "version_set ON version.id = version WHERE blob_set = s.id AND version.job = job.id), -1), "
		       "s.layers, s.experts, set_blob.uid, set_blob.gid FROM "
		       "(SELECT v.job, blob, coalesce(max(CASE WHEN v.id = j.head THEN b.id END), max(b.id)) AS "
		       "set_id FROM same CROSS JOIN set_blob ON blob = same.id JOIN blob_set b ON b.id = "
		       "set_blob.blob_set JOIN version_set ON version_set.blob_set = b.id JOIN version v ON v.id = "
		       "version JOIN job j ON j.id = v.job GROUP BY v.job, b.file, blob) newest "
		       "JOIN blob_set s ON s.id = newest.set_id JOIN job ON job.id = newest.job JOIN set_blob ON "
		       "set_blob.blob_set = s.id JOIN path ON path.id = set_blob.path WHERE set_blob.blob = "
		       "newest.blob ORDER BY EXISTS (SELECT 1 FROM version_set WHERE version = job.head AND blob_set = "
		       "s.id) DESC, s.id DESC, job.id, set_blob.rank",
		       "ib", blob, hash16);
}

int meta_blob_adopt(struct meta_catalog *c, uint64_t blob, struct sc_err *err)
{
	if (blob >= SC_BLOBS_MAX)
		return sc_fail(err, SC_E_LIMIT, "blob %" PRIu64 ": numbers of blobs end at %" PRIu64, blob,
			SC_BLOBS_MAX - 1);
	return db_run(c, err, "INSERT INTO blob (id, bytes) VALUES (?, 0)", "i", blob);
}

int meta_blob_become(struct meta_catalog *c, uint64_t blob, uint64_t other, struct sc_err *err)
{
	static const char *const steps[] = {
		"UPDATE set_blob SET blob = ?2 WHERE blob = ?1",
		"UPDATE tree_inode SET blob = ?2 WHERE blob = ?1 AND blob <> 0",
		"UPDATE inode SET blob = ?2 WHERE blob = ?1 AND blob <> 0",
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		rc = db_run(c, err, steps[i], "ii", blob, other);
	return rc < 0 ? rc : db_run(c, err, "DELETE FROM blob WHERE id = ?", "i", blob);
}

int meta_blob_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err)
{
	int rc = last ? meta_blob_adopt(c, last, err) : 0;

	return rc < 0 || !last ? rc : db_run(c, err, "DELETE FROM blob WHERE id = ?", "i", last);
}

int meta_set_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err)
{
	int rc = last ? db_run(c, err, "INSERT INTO blob_set (id, file, format, layout, topology, tensors, verified, "
			       "report) VALUES (?, '', '', 0, '', '', 0, '')", "i", last) : 0;

	return rc < 0 || !last ? rc : db_run(c, err, "DELETE FROM blob_set WHERE id = ?", "i", last);
}
