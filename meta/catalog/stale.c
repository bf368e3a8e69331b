/* SPDX-License-Identifier: Apache-2.0 */
/* Notes the blobs and trees whose recovery records are to be written anew. */
#include "meta/catalog/db_i.h"

int meta_stale_note_job(struct meta_catalog *c, uint64_t job, uint64_t version, struct sc_err *err)
{
	return db_run(c, err,
		      "INSERT OR REPLACE INTO stale (blob) SELECT DISTINCT blob FROM set_blob WHERE blob_set IN "
		      "(SELECT mine.blob_set FROM version me JOIN version_set mine ON mine.version = me.id JOIN "
		      "version_set other ON other.blob_set = mine.blob_set JOIN version it ON it.id = other.version "
		      "WHERE me.job = ? AND (? = 0 OR me.id = ?) AND abs(it.job) <> me.job)",
		      "iii", job, version, version);
}

int meta_stale_note_set(struct meta_catalog *c, uint64_t set, struct sc_err *err)
{
	return db_run(c, err,
		      "INSERT OR REPLACE INTO stale (blob) SELECT DISTINCT blob FROM set_blob JOIN blob ON blob.id = "
		      "set_blob.blob WHERE blob_set = ? AND hash IS NOT NULL",
		      "i", set);
}

int meta_stale_note_version(struct meta_catalog *c, uint64_t version, struct sc_err *err)
{
	return db_run(c, err,
		      "INSERT OR REPLACE INTO stale (blob) SELECT DISTINCT mine.blob FROM version_set v JOIN "
		      "set_blob mine ON mine.blob_set = v.blob_set JOIN blob ON blob.id = mine.blob WHERE "
		      "v.version = ? AND hash IS NOT NULL",
		      "i", version);
}

int meta_stale_note_named(struct meta_catalog *c, uint64_t job, struct sc_err *err)
{
	int rc = db_run(c, err,
			"INSERT OR REPLACE INTO stale (blob) SELECT DISTINCT blob FROM version v JOIN version_set s ON "
			"s.version = v.id JOIN set_blob USING (blob_set) JOIN blob ON blob.id = blob WHERE v.job = ? "
			"AND hash IS NOT NULL",
			"i", job);

	return rc < 0 ? rc : db_run(c, err, "UPDATE tree SET kept = 0 WHERE root = (SELECT root FROM job WHERE id = ?)",
				    "i", job);
}

struct walk {
	meta_stale_fn *fn;
	void *arg;
};

static int on_stale(void *arg, sqlite3_stmt *row)
{
	const struct walk *w = arg;

	return w->fn(w->arg, &(struct meta_stale){U64(row, 0), U64(row, 1)});
}

int meta_stale_each(struct meta_catalog *c, meta_stale_fn *fn, void *arg, struct sc_err *err)
{
	struct walk w = {fn, arg};

	return db_each(c, err, on_stale, &w, "SELECT id, blob FROM stale ORDER BY id LIMIT ?", "i",
		       (uint64_t)META_STALE_MAX);
}

int meta_stale_drop(struct meta_catalog *c, const struct meta_stale *stale, struct sc_err *err)
{
	return db_run(c, err, "DELETE FROM stale WHERE id = ?", "i", stale->id);
}
