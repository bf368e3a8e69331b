/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the connection to SQLite, runs transactions, keeps prepared statements.
 * WAL; synchronous=NORMAL for the working trees (a crash of the machine may lose the last ones, a
 * crash of the daemon none), FULL for what must be durable when it returns.
 */
#include "meta/catalog/db_i.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/mem.h"

#define STATEMENTS_MAX 256

/* links the text of a file in */
#define EMBED(name, file)                                                                          \
	extern const char name[];                                                                  \
	__asm__(".section .rodata\n"                                                               \
		".globl " #name "\n" #name ":\n"                                                   \
		".incbin \"" CATALOG_DIR "/" file "\"\n"                                           \
		".byte 0\n"                                                                        \
		".previous\n")

EMBED(meta_schema_sql, "schema.sql");
#define VERSION_NOW 29	/* of schema.sql */

struct meta_catalog {
	sqlite3 *db;
	char *wal, *shm, *reserve, *index;	/* paths of the log and its index; what reserve.c and index.c keep */
	pthread_mutex_t lock;	/* recursive: a transaction holds it */
	int holds;		/* meta_catalog_hold() in itself */
	bool hold_began;	/* the first of these has begun a transaction */
	bool full;		/* synchronous=FULL is set: a durable transaction is open */
	uint64_t chains;	/* counts the changes of trees' chains, so that readers load theirs anew */
	uint64_t path_searched;	/* numbers of paths up to it are given: numbers.c */
	uint64_t blob_given;	/* the last number of a blob that was given; its row may come later, or never */
	struct db_ends ends;	/* of the numbers that a node of a cluster may give: numbers.c */
	uint64_t durable[2];	/* the last numbers that have been flushed, of blobs and of trees: numbers.c */
	bool has_reserve;	/* meta_catalog_reserve() has nothing left to do */
	uint64_t (*renumber)(void *arg, uint64_t x); /* of db_set_renumber() */
	void *renumber_arg;
	struct {
		const char *sql;
		sqlite3_stmt *stmt;
	} kept[STATEMENTS_MAX];
	int nr_kept;
};

static int fail(struct meta_catalog *c, struct sc_err *err, const char *what)
{
	int code = sqlite3_errcode(c->db);

	/* the index of the log is a file that is mapped: its room is not written, but made */
	if (code == SQLITE_FULL || (code == SQLITE_IOERR && sqlite3_system_errno(c->db) == ENOSPC))
		return sc_fail(err, SC_E_NO_SPACE, "the catalog could not be written: No space left on device; free "
			       "some megabytes where the store is");
	if (code == SQLITE_NOMEM)
		return sc_nomem(err);
	if (code == SQLITE_CONSTRAINT)
		return sc_fail(err, SC_E_EXISTS, "catalog: %s: %s", what, sqlite3_errmsg(c->db));
	return sc_fail(err, code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? SC_E_CORRUPT : SC_E_CATALOG,
		       "catalog: %s: %s (SQLite %d)", what, sqlite3_errmsg(c->db), code);
}

static int exec(struct meta_catalog *c, const char *sql, struct sc_err *err)
{
	return sqlite3_exec(c->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : fail(c, err, "exec");
}

static int read_int(void *arg, sqlite3_stmt *row)
{
	*(int *)arg = sqlite3_column_int(row, 0);
	return 0;
}

/* Makes the tables of a new database; refuses one of another version. */
static int make_tables(struct meta_catalog *c, const char *path, bool may_be_new, struct sc_err *err)
{
	char set[64];
	int version = 0;
	int rc = db_each(c, err, read_int, &version, "PRAGMA user_version", "");

	if (rc < 0 || version == VERSION_NOW)
		return rc;
	/* an empty catalog beside blobs was lost: a new one would take all blobs for garbage */
	if (version == 0 && !may_be_new)
		return sc_fail(err, SC_E_CORRUPT, "catalog '%s' is empty, but the store holds blobs: restore it from a "
			       "backup, or run 'scalai fsck --rebuild'", path);
	if (version > VERSION_NOW)
		return sc_fail(err, SC_E_CATALOG, "catalog '%s' has version %d, but this program knows only versions "
			"up to %d: "
			       "use the newer scalai that made it", path, version, VERSION_NOW);
	if (version)
		return sc_fail(err, SC_E_CATALOG, "catalog '%s' has version %d, of an older build: copy its jobs out "
			"with that "
			       "build, and import them into a new store", path, version);
	(void)snprintf(set, sizeof(set), "PRAGMA user_version = %d", VERSION_NOW);
	rc = exec(c, "BEGIN IMMEDIATE", err);
	if (rc == 0)
		rc = exec(c, meta_schema_sql, err);
	if (rc == 0)
		rc = exec(c, set, err);
	if (rc == 0)
		rc = exec(c, "COMMIT", err);
	return rc;
}

static void renumber(sqlite3_context *context, int nr, sqlite3_value **values)
{
	struct meta_catalog *c = sqlite3_user_data(context);
	sqlite3_int64 x = sqlite3_value_int64(values[0]);
	uint64_t to = nr == 1 && c->renumber ? c->renumber(c->renumber_arg, (uint64_t)x) : 0;

	if (to)
		sqlite3_result_int64(context, (sqlite3_int64)to);
	else
		sqlite3_result_error(context, "a row has an inode number that its job does not have", -1);
}

/* the statement that rolls back is prepared when the catalog is opened: it must pass without memory */
static const char roll_back[] = "ROLLBACK";

static int prepare(struct meta_catalog *c, const char *sql, sqlite3_stmt **ret, struct sc_err *err)
{
	for (int i = 0; i < c->nr_kept; i++)
		if (c->kept[i].sql == sql && !sqlite3_stmt_busy(c->kept[i].stmt)) {
			*ret = c->kept[i].stmt;
			return 0;
		}
	if (sqlite3_prepare_v3(c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL) != SQLITE_OK)
		return fail(c, err, sql);
	if (c->nr_kept < STATEMENTS_MAX) {
		c->kept[c->nr_kept].sql = sql;
		c->kept[c->nr_kept++].stmt = *ret;
	}
	return 0;
}

static char *beside(const char *path, const char *end)
{
	char *text = sc_zalloc(strlen(path) + strlen(end) + 1);

	if (text)
		(void)stpcpy(stpcpy(text, path), end);
	return text;
}

bool meta_catalog_is_made(const char *path)
{
	static const char magic[16] = "SQLite format 3", no_version[4];
	sc_cleanup(sc_closep) int fd = sc_sys.openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
	char head[64], *wal;
	struct stat st;
	bool made;

	if (fd < 0)
		return errno != ENOENT;
	if (sc_sys.pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) || memcmp(head, magic, sizeof(magic)) != 0)
		return false;
	/* user_version, by SQLite's file format; a daemon that was killed early has left all tables in the log */
	if (memcmp(head + 60, no_version, sizeof(no_version)) != 0)
		return true;
	wal = beside(path, "-wal");
	made = !wal || (sc_sys.fstatat(AT_FDCWD, wal, &st, 0) == 0 && st.st_size > (off_t)sizeof(head));
	sc_sys.release(wal);
	return made;
}

static void release_paths(struct meta_catalog *c)
{
	sc_sys.release(c->wal);
	sc_sys.release(c->reserve);
	sc_sys.release(c->shm);
	sc_sys.release(c->index);
}

int meta_catalog_open(const char *path, bool may_be_new, struct meta_catalog **ret, struct sc_err *err)
{
	struct meta_catalog *c = sc_zalloc(sizeof(*c));
	sqlite3_stmt *prepared;
	pthread_mutexattr_t recursive;
	int rc = 0;

	if (!c)
		return sc_nomem(err);
	c->wal = beside(path, "-wal");
	c->reserve = beside(path, "-reserve");
	c->shm = beside(path, "-shm");
	c->index = beside(path, "-index");
	if (!c->wal || !c->reserve || !c->shm || !c->index) {
		release_paths(c);
		sc_sys.release(c);
		return sc_nomem(err);
	}
	c->chains = 1;
	(void)pthread_mutexattr_init(&recursive);
	(void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	(void)pthread_mutex_init(&c->lock, &recursive);
	(void)pthread_mutexattr_destroy(&recursive);
	db_index_give(c->shm, c->index);
	rc = db_reserve_give(c->wal, c->reserve, err);
	if (rc == 0 && sqlite3_open_v2(path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
				       NULL) != SQLITE_OK)
		rc = fail(c, err, path);
	if (rc == 0)
		/* the time first, for a backup may read meanwhile */
		rc = exec(c, "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL;"
			     "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = OFF;"
			     "PRAGMA wal_autocheckpoint = 1000;", err);
	if (rc == 0 && sqlite3_create_function_v2(c->db, "renumber", 1, SQLITE_UTF8 | SQLITE_DIRECTONLY, c, renumber,
						  NULL, NULL, NULL) != SQLITE_OK)
		rc = fail(c, err, path);
	if (rc == 0)
		rc = make_tables(c, path, may_be_new, err);
	if (rc == 0)
		rc = prepare(c, roll_back, &prepared, err);
	if (rc < 0)
		meta_catalog_close(c);
	else
		*ret = c;
	return rc;
}

struct meta_catalog *meta_catalog_close(struct meta_catalog *c)
{
	if (c) {
		for (int i = 0; i < c->nr_kept; i++)
			(void)sqlite3_finalize(c->kept[i].stmt);
		(void)sqlite3_close(c->db);
		db_reserve_clear(c->wal, c->reserve);
		release_paths(c);
		(void)pthread_mutex_destroy(&c->lock);
		sc_sys.release(c);
	}
	return NULL;
}

/* Flushes the log.  That is enough: a commit without a flush has written its frames to the log, which recovery
 * reads. */
int meta_catalog_flush(struct meta_catalog *c, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = sc_sys.openat(AT_FDCWD, c->wal, O_RDONLY, 0);

	if (fd < 0)
		return errno == ENOENT ? 0 : sc_fail_sys(err, errno, "catalog: cannot open '%s'", c->wal);
	return sc_sys.fsync(fd) < 0 ? sc_fail_sys(err, errno, "catalog: cannot flush '%s'", c->wal) : 0;
}

int meta_catalog_reserve(struct meta_catalog *c, struct sc_err *err)
{
	int rc = c->has_reserve ? 0 : db_reserve_take(c->wal, c->reserve, err);

	if (!c->has_reserve)
		db_index_take(c->shm, c->index);
	c->has_reserve = rc == 0;
	return rc;
}

uint64_t *db_path_searched(struct meta_catalog *c)
{
	return &c->path_searched;
}

struct db_ends *db_ends(struct meta_catalog *c)
{
	return &c->ends;
}

uint64_t *db_blob_given(struct meta_catalog *c)
{
	return &c->blob_given;
}

uint64_t *db_durable(struct meta_catalog *c)
{
	return c->durable;
}

void db_lock(struct meta_catalog *c)
{
	(void)pthread_mutex_lock(&c->lock);
}

void db_unlock(struct meta_catalog *c)
{
	(void)pthread_mutex_unlock(&c->lock);
}

/* Ends a transaction: later ones are not flushed unless they are durable; the next durable commit flushes them. */
static void leave(struct meta_catalog *c)
{
	struct sc_err ignored;

	if (c->full && exec(c, "PRAGMA synchronous = NORMAL", &ignored) == 0)
		c->full = false;
	db_unlock(c);
}

bool db_in_transaction(struct meta_catalog *c)
{
	return !sqlite3_get_autocommit(c->db);
}

void db_set_renumber(struct meta_catalog *c, uint64_t (*fn)(void *arg, uint64_t x), void *arg)
{
	c->renumber = fn;
	c->renumber_arg = arg;
}

uint64_t db_chains(struct meta_catalog *c)
{
	return c->chains;
}

void db_chains_changed(struct meta_catalog *c)
{
	c->chains++;
}

void meta_catalog_hold(struct meta_catalog *c)
{
	struct sc_err ignored;

	db_lock(c);
	/* one transaction, in place of one for each statement */
	if (c->holds++ == 0)
		c->hold_began = !db_in_transaction(c) && exec(c, "BEGIN", &ignored) == 0;
}

void meta_catalog_release(struct meta_catalog *c)
{
	struct sc_err ignored;

	if (--c->holds == 0 && c->hold_began && exec(c, "COMMIT", &ignored) < 0)
		(void)db_run(c, &ignored, roll_back, "");
	db_unlock(c);
}

int meta_catalog_begin(struct meta_catalog *c, bool durable, struct sc_err *err)
{
	int rc = 0;

	db_lock(c);
	if (durable) {
		c->full = true;
		rc = exec(c, "PRAGMA synchronous = FULL", err);
	}
	if (rc == 0)
		rc = exec(c, "BEGIN IMMEDIATE", err);
	if (rc < 0)
		leave(c);
	return rc;
}

int meta_catalog_end(struct meta_catalog *c, int rc, struct sc_err *err)
{
	struct sc_err ignored;

	if (rc == 0)
		rc = exec(c, "COMMIT", err);
	if (rc != 0 && !sqlite3_get_autocommit(c->db))
		(void)db_run(c, &ignored, roll_back, "");
	if (rc != 0)
		db_chains_changed(c);
	leave(c);
	return rc;
}

static int bind_one(sqlite3_stmt *stmt, int i, char type, va_list *ap)
{
	const struct meta_bytes *bytes;
	const char *text;
	const void *p;
	uint64_t v;

	switch (type) {
	case 'i':
		return sqlite3_bind_int64(stmt, i, (sqlite3_int64)va_arg(*ap, uint64_t));
	case 'I':
		return sqlite3_bind_int64(stmt, i, va_arg(*ap, int64_t));
	case '0':
		v = va_arg(*ap, uint64_t);
		return v ? sqlite3_bind_int64(stmt, i, (sqlite3_int64)v) : sqlite3_bind_null(stmt, i);
	case 'B':
		bytes = va_arg(*ap, const struct meta_bytes *);
		return sqlite3_bind_blob64(stmt, i, bytes->nr ? bytes->at : "", bytes->nr, SQLITE_STATIC);
	case 's':
		text = va_arg(*ap, const char *);
		return sqlite3_bind_text(stmt, i, text, -1, SQLITE_TRANSIENT);
	default:
		p = va_arg(*ap, const void *);
		return p ? sqlite3_bind_blob(stmt, i, p, 16, SQLITE_TRANSIENT) : sqlite3_bind_null(stmt, i);
	}
}

/* Binds parameters, or fails: one that could not be bound would be NULL, and mean another row, or none. */
static int bind(struct meta_catalog *c, sqlite3_stmt *stmt, const char *types, va_list *ap, struct sc_err *err)
{
	for (int i = 1; *types; i++, types++)
		if (bind_one(stmt, i, *types, ap) != SQLITE_OK)
			return fail(c, err, sqlite3_sql(stmt));
	return 0;
}

static void finish(struct meta_catalog *c, sqlite3_stmt *stmt)
{
	(void)sqlite3_reset(stmt);
	(void)sqlite3_clear_bindings(stmt);
	for (int i = 0; i < c->nr_kept; i++)
		if (c->kept[i].stmt == stmt)
			return;
	(void)sqlite3_finalize(stmt);
}

static int walk(struct meta_catalog *c, struct sc_err *err, db_row_fn *fn, void *arg,
		const char *sql, const char *types, va_list *ap)
{
	sqlite3_stmt *stmt = NULL;
	int rc, step;

	db_lock(c);
	rc = prepare(c, sql, &stmt, err);
	if (rc == 0) {
		rc = bind(c, stmt, types, ap, err);
		while (rc == 0 && (step = sqlite3_step(stmt)) != SQLITE_DONE) {
			if (step != SQLITE_ROW)
				rc = fail(c, err, sql);
			else if (fn)
				rc = fn(arg, stmt);
			/* a column that could not be made text was NULL, whatever that led to */
			if (sqlite3_errcode(c->db) == SQLITE_NOMEM)
				rc = sc_nomem(err);
		}
		finish(c, stmt);
	}
	db_unlock(c);
	return rc;
}

int db_run(struct meta_catalog *c, struct sc_err *err, const char *sql, const char *types, ...)
{
	va_list ap;
	int rc;

	va_start(ap, types);
	rc = walk(c, err, NULL, NULL, sql, types, &ap);
	va_end(ap);
	return rc;
}

int db_each(struct meta_catalog *c, struct sc_err *err, db_row_fn *fn, void *arg, const char *sql,
	    const char *types, ...)
{
	va_list ap;
	int rc;

	va_start(ap, types);
	rc = walk(c, err, fn, arg, sql, types, &ap);
	va_end(ap);
	return rc;
}

int db_id(void *arg, sqlite3_stmt *row)
{
	*(uint64_t *)arg = U64(row, 0);
	return 0;
}

uint64_t db_last_id(struct meta_catalog *c)
{
	return (uint64_t)sqlite3_last_insert_rowid(c->db);
}

const char *db_text(sqlite3_stmt *row, int column)
{
	const char *text = (const char *)sqlite3_column_text(row, column);

	return text ? text : "";
}
