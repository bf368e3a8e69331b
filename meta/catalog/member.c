/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/catalog/member.h"

#include <string.h>

#include "meta/catalog/db_i.h"
#include "meta/catalog/nodes.h"

struct walk {
	union {
		meta_member_fn *member;
		meta_shared_job_fn *job;
	} fn;
	void *arg;
};

static int on_member(void *arg, sqlite3_stmt *row)
{
	const struct walk *w = arg;
	struct meta_member_row r = {db_text(row, 0), (uint32_t)U64(row, 1), U64(row, 2), {0}, U64(row, 4),
				    U64(row, 5), U64(row, 6), U64(row, 7)};

	if (sqlite3_column_bytes(row, 3) == META_ID_BYTES)
		memcpy(r.id, sqlite3_column_blob(row, 3), META_ID_BYTES);
	return w->fn.member(w->arg, &r);
}

int meta_member_get(struct meta_catalog *c, meta_member_fn *fn, void *arg, struct sc_err *err)
{
	struct walk w = {.fn.member = fn, .arg = arg};

	return db_each(c, err, on_member, &w,
		       "SELECT cluster, node, lease, id, era, revision, backup_era, backup FROM member", "");
}

int meta_member_join(struct meta_catalog *c, const char *cluster, const uint8_t id[META_ID_BYTES], uint32_t node,
		     struct sc_err *err)
{
	int rc = meta_catalog_begin(c, true, err);

	if (rc < 0)
		return rc;
	rc = db_run(c, err, "INSERT INTO member (cluster, node, id) VALUES (?, ?, ?)", "sib", cluster, (uint64_t)node,
		    id);
	if (rc == 0)
		rc = meta_numbers_of_node(c, node, err);
	return meta_catalog_end(c, rc, err);
}

static int on_identity(void *arg, sqlite3_stmt *row)
{
	if (sqlite3_column_bytes(row, 0) != META_ID_BYTES)
		return 0;
	memcpy(arg, sqlite3_column_blob(row, 0), META_ID_BYTES);
	return 1;
}

int meta_store_identity(struct meta_catalog *c, uint8_t ret[META_ID_BYTES], struct sc_err *err)
{
	int rc = db_each(c, err, on_identity, ret, "SELECT store FROM identity", "");

	return rc > 0 ? 0 : rc < 0 ? rc : sc_fail(err, SC_E_CORRUPT, "the catalog does not say which store it is of");
}

int meta_member_set_lease(struct meta_catalog *c, uint64_t lease, struct sc_err *err)
{
	int rc = meta_catalog_begin(c, true, err);

	if (rc < 0)
		return rc;
	return meta_catalog_end(c, db_run(c, err, "UPDATE member SET lease = ?", "i", lease), err);
}

int meta_member_set_revision(struct meta_catalog *c, uint64_t revision, struct sc_err *err)
{
	return db_run(c, err, "UPDATE member SET revision = max(revision, ?)", "i", revision);
}

static int on_job(void *arg, sqlite3_stmt *row)
{
	const struct walk *w = arg;

	return w->fn.job(w->arg, &(struct meta_shared_job){U64(row, 0), U64(row, 1), U64(row, 2), U64(row, 3)});
}

int meta_shared_job_each(struct meta_catalog *c, meta_shared_job_fn *fn, void *arg, struct sc_err *err)
{
	struct walk w = {.fn.job = fn, .arg = arg};

	return db_each(c, err, on_job, &w, "SELECT job, id, token, base FROM shared_job", "");
}

static int on_found(void *arg, sqlite3_stmt *row)
{
	*(uint64_t *)arg = U64(row, 0);
	return 0;
}

int meta_shared_job_find(struct meta_catalog *c, uint64_t id, uint64_t *ret_job, struct sc_err *err)
{
	*ret_job = 0;
	return db_each(c, err, on_found, ret_job, "SELECT job FROM shared_job WHERE id = ?", "i", id);
}

int meta_shared_job_add(struct meta_catalog *c, uint64_t job, uint64_t id, struct sc_err *err)
{
	return db_run(c, err, "INSERT OR IGNORE INTO shared_job (job, id) VALUES (?, ?)", "ii", job, id);
}

int meta_shared_job_number(struct meta_catalog *c, uint64_t job, uint64_t id, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO shared_job (job, id) VALUES (?, ?) "
		      "ON CONFLICT (job) DO UPDATE SET id = excluded.id", "ii", job, id);
}

int meta_shared_job_lose(struct meta_catalog *c, uint64_t job, struct sc_err *err)
{
	return db_run(c, err, "UPDATE shared_job SET id = -job, token = 0, base = 0 WHERE job = ?", "i", job);
}

int meta_shared_job_prepare(struct meta_catalog *c, uint64_t job, uint64_t token, uint64_t base, struct sc_err *err)
{
	return db_run(c, err, "UPDATE shared_job SET token = ?, base = ? WHERE job = ?", "iii", token, base, job);
}
