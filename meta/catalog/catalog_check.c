/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the catalog for fsck: by SQLite's own check, and for rows that refer to missing ones. */
#include "meta/catalog/db_i.h"
#include "meta/catalog/trees.h"

#include <string.h>

#include "meta/base/limits.h"

struct check_walk {
	meta_text_fn *fn;
	void *arg;
};

static int on_complaint(void *arg, sqlite3_stmt *row)
{
	const struct check_walk *w = arg;
	const char *text = db_text(row, 0);

	return strcmp(text, "ok") == 0 ? 0 : w->fn(w->arg, 0, text, "");
}

/* condition on a number: it needs a row.  The folders of a job (at `root`) and of its ranks, and virtual numbers do
 * not. */
#define NEEDS_ROW(x) x " NOT BETWEEN root AND root + (1 << 20) AND " x " < 1 << 60"
_Static_assert(SC_RANKS_MAX == 1u << 20 && META_VIRTUAL == UINT64_C(1) << 60, "");

static const char *const checks[] = {
	"PRAGMA integrity_check",
	"SELECT 'job ' || name || ': the head, row ' || head || ', is missing' FROM job WHERE head IS NOT NULL AND "
	"head NOT IN (SELECT id FROM version)",
	"SELECT 'version row ' || version || ': blob set ' || blob_set || ' is missing' FROM version_set WHERE "
	"blob_set NOT IN (SELECT id FROM blob_set)",
	"SELECT 'blob set ' || blob_set || ', which is held, is missing' FROM held_set WHERE blob_set NOT IN (SELECT "
	"id FROM blob_set)",
	"SELECT 'version row ' || version || ': dataset ' || dataset || ' is missing' FROM version_data WHERE dataset "
	"NOT IN (SELECT id FROM dataset)",
	"SELECT 'blob set ' || blob_set || ': blob ' || blob || ' is missing' FROM set_blob WHERE blob NOT IN (SELECT "
	"id FROM blob)",
	"SELECT 'blob set ' || blob_set || ': the objects of rank ' || rank || ', row ' || payload || ', are missing' "
	"FROM (SELECT blob_set, rank, payload FROM set_blob WHERE payload > 0 UNION ALL SELECT blob_set, rank, payload "
	"FROM given WHERE payload > 0) WHERE payload NOT IN (SELECT id FROM payload)",
	"SELECT 'blob set ' || id || ': layout ' || layout || ' is missing' FROM blob_set WHERE layout NOT IN (SELECT "
	"id FROM layout)",
	"SELECT 'version row ' || id || ': layout ' || layout || ' is missing' FROM version WHERE layout NOT IN "
	"(SELECT id FROM layout)",
	"SELECT 'dataset ' || dataset || ': a blob is missing' FROM data_source WHERE (blob IS NOT NULL AND blob NOT "
	"IN (SELECT id FROM blob)) OR (borders IS NOT NULL AND borders NOT IN (SELECT id FROM blob))",
	"SELECT 'version row ' || id || ': tree ' || tree || ' is missing' FROM version WHERE tree IS NOT NULL AND "
	"tree NOT IN (SELECT id FROM tree)",
	"SELECT 'tree ' || id || ': tree ' || base || ', which it lies over, is missing' FROM tree WHERE base <> 0 AND "
	"base NOT IN (SELECT id FROM tree)",
	"SELECT 'tree ' || id || ': layout ' || layout || ' is missing' FROM tree WHERE layout NOT IN (SELECT id FROM "
	"layout)",
	"SELECT 'tree ' || tree || ': blob ' || blob || ' is missing' FROM tree_inode WHERE blob <> 0 AND blob NOT IN "
	"(SELECT id FROM blob)",
	"SELECT 'uncommitted file ' || ino || ': blob ' || blob || ' is missing' FROM inode WHERE blob <> 0 AND blob "
	"NOT IN (SELECT id FROM blob)",
	"SELECT 'uncommitted inode ' || ino || ': job ' || job || ' is missing' FROM inode WHERE job NOT IN (SELECT id "
	"FROM job)",
	"SELECT 'numbers from ' || first || ': job ' || job || ' is missing' FROM number_block WHERE job NOT IN "
	"(SELECT id FROM job)",
	"SELECT 'job ' || name || ': the numbers from ' || root || ' are not its own' FROM job WHERE NOT EXISTS "
	"(SELECT 1 FROM number_block WHERE first = root AND job = job.id)",
	"SELECT 'blob ' || blob || ', which is blob ' || number || ' of node ' || node || ', is missing' FROM away "
	"WHERE blob NOT IN (SELECT id FROM blob)",
	"SELECT 'version row ' || version || ': blob ' || blob || ', made of rank ' || rank || ', is missing' FROM "
	"home WHERE blob NOT IN (SELECT id FROM blob)",
	"SELECT 'object ' || lower(hex(name)) || ': what it names, row ' || id || ' of kind ' || kind || ', is "
	"missing' FROM object WHERE NOT CASE kind WHEN 1 THEN id IN (SELECT id FROM layout) WHEN 2 THEN id IN (SELECT "
	"id FROM blob_set) WHEN 3 THEN id IN (SELECT id FROM tree) WHEN 4 THEN id IN (SELECT id FROM payload) WHEN 5 "
	"THEN id IN (SELECT id FROM dataset) ELSE 0 END",
	/* A number that was taken is one object for ever, so a row of any tree tells its type. */
	"SELECT 'tree ' || tree || ': inode ' || ino || ' is missing, which has a name in folder ' || parent FROM "
	"tree_entry JOIN tree ON id = tree WHERE ino <> 0 AND ino NOT IN (SELECT ino FROM tree_inode) AND "
	NEEDS_ROW("ino"),
	"SELECT 'tree ' || tree || ': folder ' || parent || ' is missing, which has names' FROM tree_entry JOIN tree "
	"ON id = tree WHERE ino <> 0 AND parent NOT IN (SELECT ino FROM tree_inode) AND " NEEDS_ROW("parent"),
	"SELECT 'tree ' || tree || ': inode ' || parent || ' has names in it, but it is no folder' FROM tree_entry "
	"WHERE parent < 1 << 60 AND parent IN (SELECT ino FROM tree_inode WHERE mode & 61440 <> 16384)",
	"SELECT 'uncommitted inode ' || entry.ino || ' is missing, which has a name in folder ' || entry.parent FROM "
	"entry LEFT JOIN inode ON inode.ino = entry.parent LEFT JOIN job ON id = job WHERE entry.ino <> 0 AND "
	"entry.ino NOT IN (SELECT ino FROM inode) AND entry.ino NOT IN (SELECT ino FROM tree_inode) AND NOT "
	"coalesce(entry.ino BETWEEN root AND root + (1 << 20), 0) AND entry.ino < 1 << 60",
	"SELECT 'uncommitted inode ' || parent || ' has names in it, but it is no folder' FROM entry WHERE parent "
	"IN (SELECT ino FROM inode WHERE mode & 61440 <> 16384)",
};

int meta_catalog_check(struct meta_catalog *c, meta_text_fn *fn, void *arg, struct sc_err *err)
{
	struct check_walk w = {fn, arg};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(checks) / sizeof(*checks); i++)
		rc = db_each(c, err, on_complaint, &w, checks[i], "");
	return rc;
}
