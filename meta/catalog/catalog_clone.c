/* SPDX-License-Identifier: Apache-2.0 */
/* A second job of the same versions: rows that have the same sets and datasets. */
#include "meta/catalog/db_i.h"

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

int meta_job_clone(struct meta_catalog *c, uint64_t source, const char *name, int64_t made_ns, uint64_t request,
		   uint64_t *ret_id, struct sc_err *err)
{
	uint64_t id;
	int rc = db_take_job(c, &id, err);

	if (rc == 0)
		rc = db_run(c, err,
			    "INSERT INTO job (id, name, uid, gid, mode, made_ns, layout, topology) "
			    "SELECT ?, ?, uid, gid, mode, ?, layout, topology FROM job WHERE id = ?",
			    "isIi", id, name, made_ns, source);
	for (size_t i = 0; rc == 0 && i < sizeof(copies) / sizeof(*copies); i++)
		rc = db_run(c, err, copies[i], "ii", id, source);
	if (rc == 0)
		rc = db_run(c, err,
			    "UPDATE job SET head = (SELECT mine.id FROM job old JOIN version head ON head.id = "
			    "old.head JOIN version mine ON mine.nr = head.nr WHERE old.id = ? AND mine.job = job.id) "
			    "WHERE id = ?",
			    "ii", source, id);
	if (rc == 0)
		rc = db_run(c, err, "UPDATE version SET request = ? WHERE id = (SELECT head FROM job WHERE id = ?)",
			    "0i", request, id);
	if (rc == 0)
		*ret_id = id;
	return rc;
}

struct shared_walk {
	meta_id_fn *fn;
	void *arg;
};

static int on_shared(void *arg, sqlite3_stmt *row)
{
	const struct shared_walk *w = arg;

	return w->fn(w->arg, U64(row, 0));
}

int meta_job_shared_blobs(struct meta_catalog *c, uint64_t job, uint64_t version, meta_id_fn *fn, void *arg,
			  struct sc_err *err)
{
	struct shared_walk w = {fn, arg};

	return db_each(c, err, on_shared, &w,
		       "SELECT DISTINCT blob FROM set_blob WHERE blob_set IN (SELECT mine.blob_set FROM version me "
		       "JOIN version_set mine ON mine.version = me.id JOIN version_set other ON other.blob_set = "
		       "mine.blob_set JOIN version it ON it.id = other.version WHERE me.job = ? AND "
		       "(? = 0 OR me.id = ?) AND it.job <> me.job)",
		       "iii", job, version, version);
}
