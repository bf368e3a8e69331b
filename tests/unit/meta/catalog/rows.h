/* SPDX-License-Identifier: Apache-2.0 */
/* A catalog for tests, records that change it, commits of them, and its rows as another connection sees them. */
#ifndef UNIT_CATALOG_ROWS_H
#define UNIT_CATALOG_ROWS_H

#include "meta/catalog/trees.h"

#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

static char folder[64], path[80];
static struct meta_catalog *catalog;
static struct sc_err err;

#define OK(call) \
	({ \
		if ((call) < 0) \
			fail_msg("%s: %s", #call, err.msg); \
	})

static inline void open_catalog(void)
{
	OK(meta_catalog_open(path, true, &catalog, &err));
}

/* For each test. */
static inline int fresh(void **unused)
{
	char clean[100];

	(void)unused;
	catalog = meta_catalog_close(catalog);
	(void)snprintf(clean, sizeof(clean), "rm -f %s*", path);
	assert_int_equal(0, system(clean));
	open_catalog();
	return 0;
}

static inline struct meta_bytes text(const char *t)
{
	return (struct meta_bytes){t, strlen(t)};
}

/* --- records of job 1, whose folder is `root` --- */

static struct meta_changes record;
static uint64_t root = 100;

static inline void say(struct meta_change x)
{
	assert_int_equal(0, sc_vec_push(&record, x));
}

static inline void put_inode(uint64_t ino, mode_t mode, uint64_t blob)
{
	struct meta_inode_row r = {.ino = ino, .job = 1, .mode = mode, .nlink = 1, .parent = root,
				   .data = blob ? META_OWN_DATA : META_NO_DATA, .blob = blob};

	say((struct meta_change){META_PUT_INODE, .inode = r});
}

static inline void put_entry(uint64_t parent, const char *name, uint64_t ino)
{
	say((struct meta_change){META_PUT_ENTRY, .entry = {parent, text(name), ino}});
}

static inline int apply_record(void)
{
	int rc = meta_catalog_begin(catalog, false, &err);

	if (rc == 0)
		rc = meta_catalog_end(catalog, meta_upper_apply(catalog, &record, &err), &err);
	record.nr = 0;
	return rc;
}

static inline void apply(void)
{
	OK(apply_record());
}

/* A version with a new tree of what is in the upper layer. */
static inline struct meta_version_row commit(uint64_t base)
{
	struct meta_tree_spec spec = {.job = 1, .base = base, .root = root, .layout = 1, .topology = "dp=2"};
	struct meta_version_row row = {.job = 1, .step = -1, .note = "", .made_by = "", .layout = 1, .topology = "dp=2",
				       .floor_ns = -5};

	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_commit(catalog, &spec, &row.tree, &err));
	OK(meta_version_add(catalog, &row, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	return row;
}

/* --- rows --- */

static inline void with_rows(const char *sql, void (*fn)(void *arg, sqlite3_stmt *row), void *arg)
{
	sqlite3 *db;
	sqlite3_stmt *stmt;
	int step;

	assert_int_equal(SQLITE_OK, sqlite3_open(path, &db));
	assert_int_equal(SQLITE_OK, sqlite3_prepare_v2(db, sql, -1, &stmt, NULL));
	while ((step = sqlite3_step(stmt)) == SQLITE_ROW)
		fn(arg, stmt);
	assert_int_equal(SQLITE_DONE, step);
	(void)sqlite3_finalize(stmt);
	assert_int_equal(SQLITE_OK, sqlite3_close(db));
}

static inline void keep_number(void *arg, sqlite3_stmt *row)
{
	*(int64_t *)arg = sqlite3_column_int64(row, 0);
}

/* A number that a query tells, or -1. */
static inline int64_t ask(const char *fmt, ...)
{
	char sql[400];
	int64_t n = -1;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(sql, sizeof(sql), fmt, ap);
	va_end(ap);
	with_rows(sql, keep_number, &n);
	return n;
}

/* Changes rows as no function does. */
static inline void force(const char *sql)
{
	sqlite3 *db;

	assert_int_equal(SQLITE_OK, sqlite3_open(path, &db));
	assert_int_equal(SQLITE_OK, sqlite3_exec(db, sql, NULL, NULL, NULL));
	assert_int_equal(SQLITE_OK, sqlite3_close(db));
}

static inline void make_place(bool fast)
{
	(void)snprintf(folder, sizeof(folder), "%s/scalai-trees.XXXXXX",
		       fast && access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/var/tmp");
	if (!mkdtemp(folder))
		exit(1);
	(void)snprintf(path, sizeof(path), "%s/db", folder);
}

static inline int leave_place(int rc)
{
	char clean[100];

	catalog = meta_catalog_close(catalog);
	sc_vec_done(&record);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", folder);
	return system(clean) == 0 ? rc : 1;
}

#endif
