/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes rows: one function for each query, in the order of schema.sql. */
#include "meta/catalog/db_i.h"
#include "meta/catalog/nodes.h"
#include "meta/catalog/trees.h"

#include "meta/base/limits.h"
#include "meta/base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct walk_arg {
	union {
		meta_job_fn *job;
		meta_config_fn *config;
		meta_version_fn *version;
		meta_set_fn *set;
		meta_set_blob_fn *set_blob;
		meta_view_fn *view;
		meta_text_fn *text;
		meta_id_fn *id;
	} fn;
	void *arg;
	bool found;
};

/* --- jobs --- */

static int on_job(void *arg, sqlite3_stmt *row)
{
	const struct walk_arg *w = arg;
	struct meta_job_row job = {
		.id = U64(row, 0), .name = db_text(row, 1), .uid = (uid_t)U64(row, 2),
		.gid = (gid_t)U64(row, 3), .mode = (mode_t)U64(row, 4), .made_ns = sqlite3_column_int64(row, 5),
		.head = U64(row, 6), .layout = U64(row, 7),
		.topology = (const char *)sqlite3_column_text(row, 8), .root = U64(row, 9)};

	return w->fn.job(w->arg, &job);
}

int meta_job_each(struct meta_catalog *c, meta_job_fn *fn, void *arg, struct sc_err *err)
{
	struct walk_arg w = {.fn.job = fn, .arg = arg};

	return db_each(c, err, on_job, &w, "SELECT id, name, uid, gid, mode, made_ns, head, layout, topology, root "
					   "FROM job ORDER BY id", "");
}

int meta_job_add(struct meta_catalog *c, struct meta_job_row *row, struct sc_err *err)
{
	uint64_t id = 0, root = row->root;
	int rc = meta_catalog_begin(c, true, err);

	if (rc < 0)
		return rc;
	rc = db_take_job(c, &id, err);
	if (rc == 0 && root)
		rc = meta_numbers_put(c, root, SC_RANKS_MAX + UINT64_C(1), id, err);
	else if (rc == 0)
		rc = db_take_root(c, id, &root, err);
	rc = rc > 0 ? 0 : rc;
	if (rc == 0)
		rc = db_run(c, err, "INSERT INTO job (id, name, uid, gid, mode, made_ns, root) VALUES (?, ?, ?, ?, ?, "
				    "?, ?)", "isiiiIi", id, row->name, (uint64_t)row->uid, (uint64_t)row->gid,
			    (uint64_t)row->mode, row->made_ns, root);
	rc = meta_catalog_end(c, rc, err);
	if (rc == 0) {
		row->id = id;
		row->root = root;
	}
	return rc;
}

_Static_assert(META_VIRTUAL_JOB == 42 && META_VIRTUAL == UINT64_C(1) << 60, "");

int meta_job_remove(struct meta_catalog *c, uint64_t job, struct sc_err *err)
{
	static const char *const steps[] = {
		"DELETE FROM version_set WHERE version IN (SELECT id FROM version WHERE job IN (?1, -?1))",
		"DELETE FROM version_data WHERE version IN (SELECT id FROM version WHERE job IN (?1, -?1))",
		"DELETE FROM view WHERE version IN (SELECT id FROM version WHERE job IN (?1, -?1))",
		"DELETE FROM version WHERE job IN (?1, -?1)",
		"DELETE FROM config WHERE job = ?",
		"DELETE FROM held_set WHERE job = ?",
		/* virtual numbers have the job's id in 18 bits, and another job gets this id */
		"DELETE FROM again WHERE ino >> 42 = (1 << 18) + ?1 OR EXISTS (SELECT 1 FROM number_block WHERE job = "
		"?1 AND ino & ~(1 << 61) >= first AND ino & ~(1 << 61) < first + nr)", /* RS_WAS */
		"DELETE FROM number_block WHERE job = ?",
		"DELETE FROM shared_job WHERE job = ?",
		"DELETE FROM job WHERE id = ?",
	};
	int rc = meta_upper_remove(c, job, err);

	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(*steps); i++)
		rc = db_run(c, err, steps[i], "i", job);
	return rc;
}

int meta_job_set_head(struct meta_catalog *c, uint64_t job, uint64_t version, struct sc_err *err)
{
	return db_run(c, err, "UPDATE job SET head = ? WHERE id = ?", "ii", version, job);
}

int meta_job_set_first(struct meta_catalog *c, uint64_t job, uint64_t layout, const char *topology,
		       struct sc_err *err)
{
	return db_run(c, err, "UPDATE job SET layout = ?, topology = ? WHERE id = ?", "0si", layout, topology,
		      job);
}

int meta_job_set_attr(struct meta_catalog *c, uint64_t job, mode_t mode, uid_t uid, gid_t gid,
		      struct sc_err *err)
{
	return db_run(c, err, "UPDATE job SET mode = ?, uid = ?, gid = ? WHERE id = ?", "iiii", (uint64_t)mode,
		      (uint64_t)uid, (uint64_t)gid, job);
}

int meta_job_set_name(struct meta_catalog *c, uint64_t job, const char *name, struct sc_err *err)
{
	return db_run(c, err, "UPDATE job SET name = ? WHERE id = ?", "si", name, job);
}

static int on_config(void *arg, sqlite3_stmt *row)
{
	const struct walk_arg *w = arg;

	return w->fn.config(w->arg, db_text(row, 0), db_text(row, 1));
}

int meta_config_each(struct meta_catalog *c, uint64_t job, meta_config_fn *fn, void *arg,
		     struct sc_err *err)
{
	struct walk_arg w = {.fn.config = fn, .arg = arg};

	return db_each(c, err, on_config, &w, "SELECT key, value FROM config WHERE job = ? AND key <> 'spared'", "i",
		       job);
}

int meta_job_spared(struct meta_catalog *c, uint64_t job, uint64_t *ret_before, struct sc_err *err)
{
	*ret_before = 0;
	return db_each(c, err, db_id, ret_before, "SELECT CAST(value AS INTEGER) FROM config WHERE job = ? AND key = "
		       "'spared'", "i", job);
}

int meta_job_set_spared(struct meta_catalog *c, uint64_t job, uint64_t before, struct sc_err *err)
{
	if (!before)
		return db_run(c, err, "DELETE FROM config WHERE job = ? AND key = 'spared'", "i", job);
	return db_run(c, err, "INSERT INTO config (job, key, value) VALUES (?1, 'spared', CAST(?2 AS TEXT)) "
		      "ON CONFLICT DO UPDATE SET value = excluded.value", "ii", job, before);
}

int meta_config_set(struct meta_catalog *c, uint64_t job, const char *key, const char *value,
		    struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO config (job, key, value) VALUES (?, ?, ?) "
			      "ON CONFLICT DO UPDATE SET value = excluded.value", "iss", job, key, value);
}

/* --- texts with ids: layouts, paths, views --- */

static int on_text(void *arg, sqlite3_stmt *row)
{
	struct walk_arg *w = arg;

	w->found = true;
	return w->fn.text(w->arg, U64(row, 0), db_text(row, 1), db_text(row, 2));
}

static int found(const struct walk_arg *w, int rc, const char *what, uint64_t id, struct sc_err *err)
{
	if (rc == 0 && !w->found)
		return sc_fail(err, SC_E_NOT_FOUND, "catalog: no %s %" PRIu64, what, id);
	return rc;
}

int meta_layout_put(struct meta_catalog *c, const char *source, const char *flat, uint64_t *ret_id,
		    struct sc_err *err)
{
	uint64_t id = 0;
	int rc;

	db_lock(c);
	rc = db_each(c, err, db_id, &id, "SELECT id FROM layout WHERE source = ? AND flat = ?", "ss", source,
		     flat);
	if (rc == 0 && !id)
		rc = ADD(c, err, &id, "INSERT INTO layout (source, flat) VALUES (?, ?)", "ss", source, flat);
	db_unlock(c);
	if (rc == 0)
		*ret_id = id;
	return rc;
}

int meta_layout_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		    struct sc_err *err)
{
	struct walk_arg w = {.fn.text = fn, .arg = arg};
	int rc = db_each(c, err, on_text, &w, "SELECT id, source, flat FROM layout WHERE id = ?", "i", id);

	return found(&w, rc, "layout", id, err);
}

int meta_path_put(struct meta_catalog *c, const char *text, uint64_t *ret_id, struct sc_err *err)
{
	uint64_t id = 0;
	int rc;

	db_lock(c);
	rc = db_each(c, err, db_id, &id, "SELECT id FROM path WHERE text = ?", "s", text);
	if (rc == 0 && !id) {
		rc = db_take_path(c, &id, err);
		if (rc == 0)
			rc = db_run(c, err, "INSERT INTO path (id, text) VALUES (?, ?)", "is", id, text);
	}
	db_unlock(c);
	if (rc == 0)
		*ret_id = id;
	return rc;
}

int meta_path_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		  struct sc_err *err)
{
	struct walk_arg w = {.fn.text = fn, .arg = arg};
	int rc = db_each(c, err, on_text, &w, "SELECT id, text, '' FROM path WHERE id = ?", "i", id);

	return found(&w, rc, "path", id, err);
}

static int find_view(struct meta_catalog *c, uint64_t version, const char *topology, uint64_t *ret_id,
		     struct sc_err *err)
{
	*ret_id = 0;
	return db_each(c, err, db_id, ret_id, "SELECT id FROM view WHERE version = ? AND topology = ?", "is", version,
		       topology);
}

int meta_view_put(struct meta_catalog *c, uint64_t version, const char *topology, uint32_t ranks, uint64_t *ret_id,
		  struct sc_err *err)
{
	uint64_t id;
	int rc;

	db_lock(c);
	rc = find_view(c, version, topology, &id, err);
	if (rc == 0 && !id) {
		rc = db_take_view(c, ranks, &id, err);
		if (rc == 0)
			rc = db_run(c, err, "INSERT INTO view (id, version, topology) VALUES (?, ?, ?)", "iis", id,
				    version, topology);
	}
	db_unlock(c);
	if (rc == 0)
		*ret_id = id;
	return rc;
}

int meta_view_own(struct meta_catalog *c, uint64_t version, uint64_t *ret_id, struct sc_err *err)
{
	int rc = find_view(c, version, "", ret_id, err);

	return rc < 0 || *ret_id ? rc
				 : sc_fail(err, SC_E_NOT_FOUND, "catalog: version %" PRIu64 " has no view", version);
}

static int on_view(void *arg, sqlite3_stmt *row)
{
	struct walk_arg *w = arg;
	struct meta_view_row v = {.id = U64(row, 0), .version = U64(row, 1), .topology = db_text(row, 2)};

	w->found = true;
	return w->fn.view(w->arg, &v);
}

int meta_view_at(struct meta_catalog *c, uint64_t place, meta_view_fn *fn, void *arg, struct sc_err *err)
{
	struct walk_arg w = {.fn.view = fn, .arg = arg};
	int rc = db_each(c, err, on_view, &w,
			 "SELECT id, version, topology FROM view WHERE id >= ? ORDER BY id LIMIT 1", "i", place);

	return found(&w, rc, "view at", place, err);
}

/* --- versions --- */

static int on_version(void *arg, sqlite3_stmt *row)
{
	struct walk_arg *w = arg;
	struct meta_version_row v = {
		.id = U64(row, 0), .job = (uint64_t)llabs(sqlite3_column_int64(row, 1)), .nr = U64(row, 2),
		.parent = U64(row, 3),
		.step = sqlite3_column_type(row, 4) == SQLITE_NULL ? -1 : sqlite3_column_int64(row, 4),
		.note = db_text(row, 5), .made_ns = sqlite3_column_int64(row, 6), .made_by = db_text(row, 7),
		.layout = U64(row, 8), .topology = db_text(row, 9), .samples = U64(row, 10),
		.tag = (const char *)sqlite3_column_text(row, 11), .tree = U64(row, 12),
		.floor_ns = sqlite3_column_int64(row, 13), .request = U64(row, 14)};

	w->found = true;
	return w->fn.version(w->arg, &v);
}

#define VERSION_COLUMNS                                                                                                \
	"id, job, nr, parent, step, note, made_ns, made_by, layout, topology, samples, tag, tree, floor_ns, request"

int meta_version_requested(struct meta_catalog *c, uint64_t request, struct sc_err *err)
{
	uint64_t id = 0;
	int rc = db_each(c, err, db_id, &id, "SELECT id FROM version WHERE request = ?", "i", request);

	return rc < 0 ? rc : id != 0;
}

int meta_version_add(struct meta_catalog *c, struct meta_version_row *row, struct sc_err *err)
{
	int rc = 0;

	db_lock(c);
	if (!row->nr)
		rc = db_each(c, err, db_id, &row->nr, "SELECT coalesce(max(nr), 0) + 1 FROM version WHERE job = ?",
			     "i", row->job);
	if (rc == 0)
		rc = db_run(c, err,
			    "INSERT INTO version (job, nr, parent, step, note, made_ns, made_by, layout, "
			    "topology, samples, request, tree, floor_ns) "
			    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			    "ii0IsIsisi00I", row->job, row->nr, row->parent, row->step, row->note, row->made_ns,
			    row->made_by, row->layout, row->topology, row->samples, row->request, row->tree,
			    row->floor_ns);
	if (rc == 0)
		row->id = db_last_id(c);
	db_unlock(c);
	return rc;
}

int meta_version_get(struct meta_catalog *c, uint64_t id, meta_version_fn *fn, void *arg,
		     struct sc_err *err)
{
	struct walk_arg w = {.fn.version = fn, .arg = arg};
	int rc = db_each(c, err, on_version, &w, "SELECT " VERSION_COLUMNS " FROM version WHERE id = ?", "i", id);

	return found(&w, rc, "version", id, err);
}

int meta_version_each(struct meta_catalog *c, uint64_t job, meta_version_fn *fn, void *arg,
		      struct sc_err *err)
{
	struct walk_arg w = {.fn.version = fn, .arg = arg};

	return db_each(c, err, on_version, &w, "SELECT " VERSION_COLUMNS " FROM version WHERE job = ? ORDER BY nr",
		       "i", job);
}

int meta_version_find(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret, struct sc_err *err)
{
	*ret = 0;
	return db_each(c, err, db_id, ret, "SELECT id FROM version WHERE job = ? AND nr = ?", "ii", job, nr);
}

static int on_any(void *arg, sqlite3_stmt *row)
{
	(void)arg, (void)row;
	return 1;
}

int meta_version_differs(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	return db_each(c, err, on_any, NULL, "SELECT 1 FROM version_set JOIN blob_set ON blob_set.id = blob_set "
		       "WHERE version = ? AND verified = ?", "ii", id, (uint64_t)META_DIFFER);
}

int meta_version_is_right(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	return db_each(c, err, on_any, NULL, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM version_set JOIN blob_set ON "
		       "blob_set.id = blob_set WHERE version = ? AND verified <> ?)", "ii", id, (uint64_t)META_EQUAL);
}

int meta_version_is_damaged(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	return db_each(c, err, on_any, NULL,
		       "WITH RECURSIVE chain (tree) AS (SELECT tree FROM version WHERE id = ?1 AND tree IS NOT NULL "
		       "UNION SELECT base FROM tree JOIN chain ON id = chain.tree WHERE base > 0) "
		       "SELECT 1 FROM blob WHERE damaged AND id IN (SELECT s.blob FROM version_set JOIN set_blob s "
		       "USING (blob_set) WHERE version = ?1 UNION SELECT i.blob FROM chain JOIN tree_inode i USING "
		       "(tree) WHERE i.blob > 0)", "i", id);
}

int meta_version_set_tree(struct meta_catalog *c, uint64_t id, uint64_t tree, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version SET tree = ? WHERE id = ?", "ii", tree, id);
}

int meta_version_set_floor(struct meta_catalog *c, uint64_t id, int64_t floor_ns, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version SET floor_ns = ? WHERE id = ?", "Ii", floor_ns, id);
}

int meta_version_set_tag(struct meta_catalog *c, uint64_t id, const char *tag, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version SET tag = ? WHERE id = ?", "si", tag, id);
}

static int on_id(void *arg, sqlite3_stmt *row)
{
	const struct walk_arg *w = arg;

	return w->fn.id(w->arg, U64(row, 0));
}

int meta_version_hide(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version SET job = -abs(job), tag = NULL WHERE id = ?", "i", id);
}

int meta_version_unhide(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version SET job = abs(job) WHERE id = ?", "i", id);
}

int meta_version_hidden(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err)
{
	struct walk_arg w = {.fn.id = fn, .arg = arg};

	return db_each(c, err, on_id, &w, "SELECT id FROM version WHERE job < 0", "");
}

int meta_version_remove(struct meta_catalog *c, uint64_t id, struct sc_err *err)
{
	int rc = db_run(c, err, "DELETE FROM version_set WHERE version = ?", "i", id);

	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM version_data WHERE version = ?", "i", id);
	if (rc == 0)
		rc = db_run(c, err, "DELETE FROM view WHERE version = ?", "i", id);
	return rc < 0 ? rc : db_run(c, err, "DELETE FROM version WHERE id = ?", "i", id);
}

int meta_version_add_set(struct meta_catalog *c, uint64_t version, uint64_t set, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO version_set (version, blob_set) VALUES (?, ?)", "ii", version, set);
}

int meta_version_replace_set(struct meta_catalog *c, uint64_t version, uint64_t old_set,
			     uint64_t new_set, struct sc_err *err)
{
	return db_run(c, err, "UPDATE version_set SET blob_set = ? WHERE version = ? AND blob_set = ?", "iii",
		      new_set, version, old_set);
}

/* --- blob sets and blobs --- */

static int on_set(void *arg, sqlite3_stmt *row)
{
	const struct walk_arg *w = arg;
	struct meta_set_row set = {
		.id = U64(row, 0), .file = db_text(row, 1), .layout = U64(row, 2), .topology = db_text(row, 3),
		.tensors = db_text(row, 4), .payload = (const char *)sqlite3_column_text(row, 5),
		.verified = (enum meta_verified)U64(row, 6), .report = db_text(row, 7),
		.layers = (uint32_t)U64(row, 8), .experts = (uint32_t)U64(row, 9),
		.given_layout = U64(row, 10), .given_topology = (const char *)sqlite3_column_text(row, 11),
		.given_layers = (uint32_t)U64(row, 12), .given_experts = (uint32_t)U64(row, 13),
		.format = db_text(row, 14)};

	return w->fn.set(w->arg, &set);
}

int meta_version_sets(struct meta_catalog *c, uint64_t version, meta_set_fn *fn, void *arg,
		      struct sc_err *err)
{
	struct walk_arg w = {.fn.set = fn, .arg = arg};

	return db_each(c, err, on_set, &w,
		       "SELECT id, file, layout, topology, tensors, payload, "
		       "verified, report, layers, experts, given_layout, given_topology, "
		       "given_layers, given_experts, format FROM blob_set JOIN version_set ON id = blob_set "
		       "WHERE version = ? ORDER BY file",
		       "i", version);
}

int meta_set_add(struct meta_catalog *c, const struct meta_set_row *row, uint64_t *ret_id,
		 struct sc_err *err)
{
	return ADD(c, err, ret_id, "INSERT INTO blob_set (file, layout, topology, tensors, payload, "
				   "verified, report, layers, experts, given_layout, given_topology, given_layers, "
				   "given_experts, format) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		   "sisssisii0siis", row->file, row->layout, row->topology, row->tensors,
		   row->payload, (uint64_t)row->verified, row->report, (uint64_t)row->layers, (uint64_t)row->experts,
		   row->given_layout, row->given_topology, (uint64_t)row->given_layers, (uint64_t)row->given_experts,
		   row->format);
}

int meta_set_set_verified(struct meta_catalog *c, uint64_t set, enum meta_verified verified,
			  const char *tensors, const char *report, struct sc_err *err)
{
	return db_run(c, err, "UPDATE blob_set SET verified = ?, tensors = ?, report = ? WHERE id = ?", "issi",
		      (uint64_t)verified, tensors, report, set);
}

int meta_set_add_blob(struct meta_catalog *c, uint64_t set, const struct meta_set_blob_row *row,
		      struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO set_blob (blob_set, rank, path, blob, mode, uid, gid, payload, step) VALUES "
			      "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, coalesce((SELECT max(step) FROM set_blob WHERE blob = "
			      "?4 AND ?10), ?9))", "iIiiiiiiIi", set, row->rank, row->path, row->blob,
		      (uint64_t)row->mode, (uint64_t)row->uid, (uint64_t)row->gid, row->payload, row->step,
		      (uint64_t)row->taken);
}

int meta_set_add_given(struct meta_catalog *c, uint64_t set, const struct meta_set_blob_row *row, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO given (blob_set, rank, path, mode, uid, gid, payload) VALUES (?, ?, ?, ?, "
			      "?, ?, ?)",
		      "iIiiiii", set, row->rank, row->path, (uint64_t)row->mode, (uint64_t)row->uid, (uint64_t)row->gid,
		      row->payload);
}

static int on_set_blob(void *arg, sqlite3_stmt *row)
{
	const struct walk_arg *w = arg;
	struct meta_set_blob_row b = {.rank = sqlite3_column_int64(row, 0), .path = U64(row, 1),
				      .blob = U64(row, 2), .bytes = U64(row, 3), .mode = (mode_t)U64(row, 4),
				      .uid = (uid_t)U64(row, 5), .gid = (gid_t)U64(row, 6), .payload = U64(row, 7),
				      .step = sqlite3_column_int64(row, 8)};

	return w->fn.set_blob(w->arg, &b);
}

int meta_set_blobs(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg,
		   struct sc_err *err)
{
	struct walk_arg w = {.fn.set_blob = fn, .arg = arg};

	return db_each(c, err, on_set_blob, &w, "SELECT rank, path, blob, bytes, mode, uid, gid, payload, step FROM "
						"set_blob JOIN blob ON blob.id = set_blob.blob WHERE blob_set = ? "
						"ORDER BY rank, path", "i", set);
}

int meta_set_given(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg, struct sc_err *err)
{
	struct walk_arg w = {.fn.set_blob = fn, .arg = arg};

	return db_each(c, err, on_set_blob, &w, "SELECT rank, path, 0, 0, mode, uid, gid, payload, 0 FROM given WHERE "
						"blob_set = ? ORDER BY rank, path", "i", set);
}
