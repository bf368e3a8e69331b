/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite behind two calls: run a statement, walk over rows.  Private to this folder. */
#ifndef META_DB_I_H
#define META_DB_I_H

#include "meta/catalog/catalog.h"
#include "meta/tree/change.h"

#include <sqlite3.h>

/*
 * `types` has a letter for each parameter: i uint64_t, I int64_t, s const char * (NULL is NULL),
 * b 16 bytes (NULL is NULL), B const struct meta_bytes *, 0 a uint64_t that is NULL when 0.
 * `sql` must be a literal: prepared statements are kept by its address.
 */
int db_run(struct meta_catalog *c, struct sc_err *err, const char *sql, const char *types, ...);
typedef int db_row_fn(void *arg, sqlite3_stmt *row);
int db_each(struct meta_catalog *c, struct sc_err *err, db_row_fn *fn, void *arg, const char *sql,
	    const char *types, ...);
/** Row function that stores column 0 in a uint64_t. */
int db_id(void *arg, sqlite3_stmt *row);
uint64_t db_last_id(struct meta_catalog *c);
/** (reserve.c) Give the log its reserved blocks before the catalog is opened, and keep them after it is closed.
 *  Errors: SC_E_SYSTEM. */
int db_reserve_give(const char *wal, const char *reserve, struct sc_err *err);
void db_reserve_clear(const char *wal, const char *reserve);
/** Reserves blocks of the log of an open catalog: meta_catalog_reserve(). */
int db_reserve_take(const char *wal, const char *reserve, struct sc_err *err);
/** (index.c) Give the index of the log its kept blocks before the catalog is opened, and keep them when it is open.  A
 *  failure matters on a full disk only, where the next start is refused. */
void db_index_give(const char *shm, const char *kept);
void db_index_take(const char *shm, const char *kept);
/** Where numbers.c remembers up to which number of a path it has searched; under the lock. */
uint64_t *db_path_searched(struct meta_catalog *c);
/** Where numbers.c remembers the last number of a blob that it gave; under the lock. */
uint64_t *db_blob_given(struct meta_catalog *c);
/** Where numbers.c remembers the numbers that it may give; under the lock, but for `low`, which is atomic. */
struct db_ends {
	uint64_t blobs, inodes;	/* smaller ones may be given; 0: all */
	uint64_t half[2];	/* from these on there are few left, of blobs and of inodes */
	bool low;
};
struct db_ends *db_ends(struct meta_catalog *c);
/** Where numbers.c remembers which numbers are on stable storage; under the lock. */
uint64_t *db_durable(struct meta_catalog *c);
void db_lock(struct meta_catalog *c);
void db_unlock(struct meta_catalog *c);

/** Tells whether a transaction is open, which is the caller's, as the caller holds the lock. */
bool db_in_transaction(struct meta_catalog *c);

/**
 * Sets what renumber(x) in SQL is: fn(arg, x), where 0 means that x has no other number, which is an error of the
 * statement.  NULL: it is always an error.  Under the lock.
 */
void db_set_renumber(struct meta_catalog *c, uint64_t (*fn)(void *arg, uint64_t x), void *arg);

/** The number of the last change of trees' chains; under the lock. */
uint64_t db_chains(struct meta_catalog *c);
void db_chains_changed(struct meta_catalog *c);

/** (numbers.c) Give a number for a new row, which the caller inserts in the same transaction or under the same lock.
 *  Errors: SC_E_LIMIT (all numbers are used up). */
int db_take_path(struct meta_catalog *c, uint64_t *ret, struct sc_err *err);
int db_take_blob(struct meta_catalog *c, uint64_t *ret, struct sc_err *err);
int db_take_view(struct meta_catalog *c, uint32_t ranks, uint64_t *ret, struct sc_err *err);
int db_take_job(struct meta_catalog *c, uint64_t *ret, struct sc_err *err);
/** Takes the number of a job's folder and those of its ranks' folders.  Inside a transaction. */
int db_take_root(struct meta_catalog *c, uint64_t job, uint64_t *ret, struct sc_err *err);

const char *db_text(sqlite3_stmt *row, int column); /* never NULL */
static inline struct meta_bytes db_bytes(sqlite3_stmt *row, int column)
{
	const char *at = sqlite3_column_blob(row, column);

	return (struct meta_bytes){at, (size_t)sqlite3_column_bytes(row, column)};
}
#define U64(row, i) ((uint64_t)sqlite3_column_int64((row), (i)))

/* Inserts a row and stores its id, both under the lock. */
#define ADD(c, err, ret_id, ...)                                                                   \
	({                                                                                         \
		int rc_;                                                                           \
		db_lock(c);                                                                        \
		rc_ = db_run((c), (err), __VA_ARGS__);                                             \
		if (rc_ == 0)                                                                      \
			*(ret_id) = db_last_id(c);                                                 \
		db_unlock(c);                                                                      \
		rc_;                                                                               \
	})

#endif
