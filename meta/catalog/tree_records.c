/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the paths of objects of a tree, the files that use a blob, and the rows for the recovery record of a tree. */
#include "meta/catalog/tree_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"

/* --- paths --- */

struct up {
	size_t nr, room;
	struct meta_entry_row *at;	/* their names are the arena's */
	struct sc_arena arena;
	struct sc_err *err;
};

static int on_up(void *arg, const struct meta_entry_row *row)
{
	struct up *u = arg;
	struct meta_entry_row e = *row;

	e.name.at = sc_arena_copy(&u->arena, row->name.at, row->name.nr);
	return !e.name.at || sc_vec_push(u, e) < 0 ? sc_nomem(u->err) : 0;
}

struct path_walk {
	struct meta_catalog *c;
	struct meta_tree *tree;
	uint64_t root;
	meta_tree_path_fn *fn;
	void *arg;
	struct sc_err *err;
};

static int on_path_text(void *arg, uint64_t id, const char *text, const char *more)
{
	struct sc_buf *buf = arg;

	(void)id;
	(void)more;
	sc_buf_printf(buf, "%s/", text);
	return 0;
}

/* Tells whether a folder is the first one of a path, so that no name goes before it: that of the job, or of a rank. */
static bool is_top(const struct path_walk *w, uint64_t folder)
{
	return folder >= w->root && folder - w->root <= SC_RANKS_MAX;
}

/* Begins a path: with nothing, or with the path of a folder that nobody made.  1: there is such a folder. */
static int begin_path(struct path_walk *w, uint64_t folder, int64_t *ret_rank, struct sc_buf *path)
{
	int rc;

	if (folder < META_VIRTUAL) {
		*ret_rank = (int64_t)(folder - w->root) - 1;
		return is_top(w, folder);
	}
	*ret_rank = meta_virtual_rank(folder);
	if (*ret_rank == SC_RANKS_MAX - 1)
		*ret_rank = META_SHARED;
	rc = meta_path_get(w->c, meta_virtual_path(folder), on_path_text, path, w->err);
	return rc == SC_E_NOT_FOUND ? 0 : rc < 0 ? rc : 1;
}

/* Adds the names of the folders above.  1: up to a folder that needs no name, or has none; 0: the folders form a
 * circle. */
static int climb_names(struct path_walk *w, struct up *names)
{
	uint64_t mark = 0;	/* where the number of names was a power of two last */

	for (size_t before;;) {
		uint64_t folder = names->at[names->nr - 1].parent;
		int rc;

		if (folder == mark)
			return 0;
		if (!(names->nr & (names->nr - 1)))
			mark = folder;
		before = names->nr;
		rc = is_top(w, folder) ? 0 : meta_tree_names(w->c, w->tree, folder, on_up, names, w->err);
		if (rc < 0 || names->nr == before)
			return rc < 0 ? rc : 1;
		names->nr = before + 1;	/* a folder has one */
	}
}

/* Climbs to the folder that ends the path; an object in a removed folder has no path. */
static int climb(struct path_walk *w, struct up *names)
{
	struct sc_buf path = {0};
	int64_t rank = META_SHARED;
	int rc, is = climb_names(w, names);

	if (is > 0)
		is = begin_path(w, names->at[names->nr - 1].parent, &rank, &path);
	for (size_t i = names->nr; is > 0 && i-- > 0;) {
		sc_buf_add(&path, names->at[i].name.at, names->at[i].name.nr);
		if (i)
			sc_buf_add(&path, "/", 1);
	}
	rc = is <= 0 ? is : path.failed ? sc_nomem(w->err) : w->fn(w->arg, rank, path.text);
	sc_buf_done(&path);
	return rc;
}

int meta_tree_paths(struct meta_catalog *c, struct meta_tree *tree, uint64_t ino, meta_tree_path_fn *fn, void *arg,
		    struct sc_err *err)
{
	struct path_walk w = {c, tree, 0, fn, arg, err};
	struct meta_tree_row about;
	struct up first = {.err = err};
	int rc = meta_tree_about(c, tree->id, &about, NULL, err);

	if (rc == 0)
		rc = meta_tree_names(c, tree, ino, on_up, &first, err);
	for (size_t i = 0; rc == 0 && i < first.nr; i++) {
		struct up names = {.err = err};

		w.root = about.root;
		rc = on_up(&names, &first.at[i]);
		if (rc == 0)
			rc = climb(&w, &names);
		sc_vec_done(&names);
		sc_arena_done(&names.arena);
	}
	sc_vec_done(&first);
	sc_arena_done(&first.arena);
	return rc;
}

/* --- who uses a blob --- */

struct tree_uses {
	size_t nr, room;
	struct tree_use {
		uint64_t ino, tree, version;
		const char *job, *topology;
	} *at;
	struct sc_arena arena;
	const struct tree_use *now;
	meta_blob_use_fn *fn;
	void *arg;
};

static const char *copy_text(struct sc_arena *arena, const char *text)
{
	return sc_arena_copy(arena, text, strlen(text));
}

static int on_tree_use(void *arg, sqlite3_stmt *row)
{
	struct tree_uses *u = arg;
	struct tree_use x = {U64(row, 0), U64(row, 1), U64(row, 2), copy_text(&u->arena, db_text(row, 3)),
			     copy_text(&u->arena, db_text(row, 4))};

	return !x.job || !x.topology || sc_vec_push(u, x) < 0 ? SC_E_NO_MEMORY : 0;
}

static int on_use_path(void *arg, int64_t rank, const char *path)
{
	struct tree_uses *u = arg;
	struct meta_blob_use use = {.job = u->now->job, .version = u->now->version, .topology = u->now->topology,
				    .rank = rank, .path = path};

	return u->fn(u->arg, &use);
}

/* Finds the files of a version's tree that use a blob: the newest row of a number in the chain tells the file's
 * blob. */
static int use_in_version(struct meta_catalog *c, uint64_t blob, struct tree_uses *u, struct sc_err *err)
{
	struct meta_tree tree = {.id = u->now->tree};
	struct meta_inode_row row;
	int rc = meta_tree_inode(c, &tree, u->now->ino, &row, NULL, err);

	return rc <= 0 || row.blob != blob ? (rc < 0 ? rc : 0)
					   : meta_tree_paths(c, &tree, u->now->ino, on_use_path, u, err);
}

int tree_blob_uses(struct meta_catalog *c, uint64_t blob, meta_blob_use_fn *fn, void *arg, struct sc_err *err)
{
	struct tree_uses u = {.fn = fn, .arg = arg};
	int rc;

	db_lock(c);
	rc = db_each(c, err, on_tree_use, &u,
		     "WITH RECURSIVE up (ino, id) AS (SELECT ino, tree FROM tree_inode WHERE blob = ? AND blob <> 0 "
		     "UNION SELECT ino, tree.id FROM up JOIN tree ON tree.base = up.id) SELECT DISTINCT up.ino, "
		     "version.tree, version.nr, job.name, tree.topology FROM up JOIN version ON version.tree = up.id "
		     "JOIN tree ON tree.id = version.tree JOIN job ON job.id = version.job ORDER BY version.nr DESC, "
		     "job.id", "i", blob);
	if (rc == SC_E_NO_MEMORY)
		rc = sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < u.nr; i++) {
		u.now = &u.at[i];
		rc = use_in_version(c, blob, &u, err);
	}
	db_unlock(c);
	sc_vec_done(&u);
	sc_arena_done(&u.arena);
	return rc;
}

/* --- recovery records of trees --- */

struct record_walk {
	union {
		meta_tree_record_fn *record;
		meta_change_fn *change;
		meta_text_fn *text;
		meta_numbers_fn *numbers;
	} fn;
	void *arg;
};

static int on_unkept(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;
	struct meta_tree_record r = {
		.id = U64(row, 0), .base = U64(row, 1), .root = U64(row, 2), .layout = U64(row, 3),
		.topology = db_text(row, 4), .job_id = U64(row, 5), .job = db_text(row, 6), .uid = U64(row, 7),
		.gid = U64(row, 8), .job_mode = U64(row, 9), .version = U64(row, 10),
		.step = sqlite3_column_int64(row, 11), .head_layout = U64(row, 12),
		.head_topology = db_text(row, 13), .last_set = U64(row, 14)};

	return w->fn.record(w->arg, &r);
}

int meta_tree_unkept(struct meta_catalog *c, meta_tree_record_fn *fn, void *arg, struct sc_err *err)
{
	struct record_walk w = {.fn.record = fn, .arg = arg};

	return db_each(c, err, on_unkept, &w,
		       "SELECT t.id, base, t.root, t.layout, t.topology, job.id, name, uid, gid, mode, coalesce(v.id, "
		       "0), coalesce(step, -1), coalesce(v.layout, t.layout), coalesce(v.topology, t.topology), "
		       "(SELECT seq FROM sqlite_sequence WHERE name = 'blob_set') FROM tree t JOIN job ON job.root "
		       "= t.root LEFT JOIN version v ON v.id = (SELECT id FROM version WHERE tree = t.id AND job = "
		       "job.id ORDER BY nr DESC LIMIT 1) WHERE NOT kept ORDER BY t.id", "");
}

static int on_row(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;
	mode_t mode = (mode_t)U64(row, 1);
	struct meta_change x = {
		META_PUT_INODE,
		.inode = {.ino = U64(row, 0), .mode = mode, .uid = (uid_t)U64(row, 2), .gid = (gid_t)U64(row, 3),
			  .nlink = (uint32_t)U64(row, 4), .atime_ns = sqlite3_column_int64(row, 5),
			  .mtime_ns = sqlite3_column_int64(row, 6), .ctime_ns = sqlite3_column_int64(row, 7),
			  .parent = U64(row, 8), .data = S_ISREG(mode) ? META_LOWER_DATA : META_NO_DATA,
			  .blob = U64(row, 9), .target = db_bytes(row, 10), .rdev = U64(row, 11)}};

	return w->fn.change(w->arg, &x);
}

static int on_row_xattr(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;
	struct meta_change x = {META_PUT_XATTR, .xattr = {U64(row, 0), db_bytes(row, 1), db_bytes(row, 2)}};

	return w->fn.change(w->arg, &x);
}

static int on_row_entry(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;
	struct meta_change x = {META_PUT_ENTRY, .entry = {U64(row, 0), db_bytes(row, 1), U64(row, 2)}};

	return w->fn.change(w->arg, &x);
}

int meta_tree_rows(struct meta_catalog *c, uint64_t tree, meta_change_fn *fn, void *arg, struct sc_err *err)
{
	struct record_walk w = {.fn.change = fn, .arg = arg};
	int rc;

	db_lock(c);
	rc = db_each(c, err, on_row, &w,
		     "SELECT ino, mode, uid, gid, nlink, atime_ns, mtime_ns, ctime_ns, parent, blob, target, "
		     "coalesce(bytes, 0) FROM tree_inode LEFT JOIN blob ON blob.id = tree_inode.blob WHERE tree = ? "
		     "ORDER BY ino", "i", tree);
	if (rc == 0)
		rc = db_each(c, err, on_row_xattr, &w,
			     "SELECT ino, name, value FROM tree_xattr WHERE tree = ? ORDER BY ino, name", "i", tree);
	if (rc == 0)
		rc = db_each(c, err, on_row_entry, &w,
			     "SELECT parent, name, ino FROM tree_entry WHERE tree = ? ORDER BY parent, name", "i",
			     tree);
	db_unlock(c);
	return rc;
}

static int on_text(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;

	return w->fn.text(w->arg, U64(row, 0), db_text(row, 1), "");
}

int meta_tree_path_texts(struct meta_catalog *c, uint64_t tree, meta_text_fn *fn, void *arg, struct sc_err *err)
{
	struct record_walk w = {.fn.text = fn, .arg = arg};

	return db_each(c, err, on_text, &w,
		       "SELECT id, text FROM path WHERE id IN (SELECT ino & ?3 FROM tree_inode WHERE tree = ?1 "
		       "AND ino >= ?2 UNION SELECT parent & ?3 FROM tree_inode WHERE tree = ?1 AND parent >= ?2 "
		       "UNION SELECT parent & ?3 FROM tree_entry WHERE tree = ?1 AND parent >= ?2 "
		       "UNION SELECT ino & ?3 FROM tree_entry WHERE tree = ?1 AND ino >= ?2)",
		       "iii", tree, META_VIRTUAL, (uint64_t)SC_PATHS_MAX - 1);
}

static int on_numbers(void *arg, sqlite3_stmt *row)
{
	const struct record_walk *w = arg;

	return w->fn.numbers(w->arg, U64(row, 0), U64(row, 1), U64(row, 2));
}

int meta_tree_numbers(struct meta_catalog *c, uint64_t tree, meta_numbers_fn *fn, void *arg, struct sc_err *err)
{
	struct record_walk w = {.fn.numbers = fn, .arg = arg};

	return db_each(c, err, on_numbers, &w,
		       "SELECT first, nr, job FROM number_block WHERE first <> (SELECT root FROM tree WHERE id = ?1) "
		       "AND EXISTS (SELECT 1 FROM tree_inode WHERE tree = ?1 AND ino >= first AND ino < first + nr) "
		       "ORDER BY "
		       "first", "i", tree);
}

int meta_version_files(struct meta_catalog *c, uint64_t version, meta_text_fn *fn, void *arg, struct sc_err *err)
{
	struct record_walk w = {.fn.text = fn, .arg = arg};

	return db_each(c, err, on_text, &w,
		       "SELECT id, file FROM blob_set JOIN version_set ON id = blob_set WHERE version = ? ORDER BY "
		       "file",
		       "i", version);
}

int meta_tree_set_kept(struct meta_catalog *c, const struct meta_tree_record *record, struct sc_err *err)
{
	return db_run(c, err,
		      "UPDATE tree SET kept = 1 WHERE id = ? AND base = ? AND EXISTS (SELECT 1 FROM job WHERE "
		      "job.root = tree.root AND name = ? AND uid = ? AND gid = ? AND mode = ?)",
		      "iisiii", record->id, record->base, record->job, record->uid, record->gid, record->job_mode);
}

int meta_tree_set_unkept(struct meta_catalog *c, uint64_t tree, struct sc_err *err)
{
	return db_run(c, err, "UPDATE tree SET kept = 0 WHERE id = ?", "i", tree);
}

int meta_tree_known(struct meta_catalog *c, uint64_t tree, struct sc_err *err)
{
	uint64_t id = 0;
	int rc = db_each(c, err, db_id, &id, "SELECT id FROM tree WHERE id = ?", "i", tree);

	return rc < 0 ? rc : id != 0;
}

int meta_tree_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err)
{
	int rc = last ? db_run(c, err, "INSERT INTO tree (id, base, root, layout, topology) VALUES (?, 0, 0, 0, '')",
			       "i", last) : 0;

	return rc < 0 || !last ? rc : db_run(c, err, "DELETE FROM tree WHERE id = ?", "i", last);
}
