/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the backup of a cluster's keys of etcd in the catalog: member.h. */
#include "meta/catalog/db_i.h"
#include "meta/catalog/member.h"

#define PART 0u
#define FRESH 1u

int meta_member_set_era(struct meta_catalog *c, uint64_t era, struct sc_err *err)
{
	int rc = meta_catalog_begin(c, true, err);

	if (rc < 0)
		return rc;
	rc = db_run(c, err, "UPDATE member SET era = ?, revision = 0", "i", era);
	return meta_catalog_end(c, rc, err);
}

int meta_backup_begin(struct meta_catalog *c, struct sc_err *err)
{
	return db_run(c, err, "DELETE FROM backup_key WHERE part = ?", "i", (uint64_t)FRESH);
}

int meta_backup_put(struct meta_catalog *c, bool fresh, const char *key, const char *value, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO backup_key (part, key, value) VALUES (?, ?, ?) "
		      "ON CONFLICT (part, key) DO UPDATE SET value = excluded.value", "iss",
		      (uint64_t)(fresh ? FRESH : PART), key, value);
}

int meta_backup_drop(struct meta_catalog *c, const char *key, struct sc_err *err)
{
	return db_run(c, err, "DELETE FROM backup_key WHERE part = ? AND key = ?", "is", (uint64_t)PART, key);
}

int meta_backup_done(struct meta_catalog *c, bool fresh, uint64_t revision, struct sc_err *err)
{
	int rc = 0;

	if (fresh)
		rc = db_run(c, err, "DELETE FROM backup_key WHERE part = ?", "i", (uint64_t)PART);
	if (rc == 0 && fresh)
		rc = db_run(c, err, "UPDATE backup_key SET part = ?", "i", (uint64_t)PART);
	return rc < 0 ? rc : db_run(c, err, "UPDATE member SET backup_era = era, backup = ?", "i", revision);
}

struct walk {
	meta_backup_fn *fn;
	void *arg;
};

static int on_key(void *arg, sqlite3_stmt *row)
{
	const struct walk *w = arg;

	return w->fn(w->arg, db_text(row, 0), db_text(row, 1));
}

int meta_backup_each(struct meta_catalog *c, const char *only, meta_backup_fn *fn, void *arg, struct sc_err *err)
{
	struct walk w = {fn, arg};

	if (only)
		return db_each(c, err, on_key, &w, "SELECT key, value FROM backup_key WHERE part = ? AND key = ?", "is",
			       (uint64_t)PART, only);
	return db_each(c, err, on_key, &w, "SELECT key, value FROM backup_key WHERE part = ? ORDER BY key", "i",
		       (uint64_t)PART);
}
