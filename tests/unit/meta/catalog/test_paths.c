/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of paths: which are given again, and when. */
#include "tests/unit/meta/catalog/rows.h"

#include "meta/base/limits.h"
#include "meta/catalog/db_i.h"
#include "tests/support/every.h"

static uint64_t put_path(const char *name)
{
	uint64_t id;

	OK(meta_path_put(catalog, name, &id, &err));
	return id;
}

/* The first 1,000 paths of a store whose numbers are all given, or `nr`; those that the SQL names are in use. */
static void give_paths(unsigned nr, const char *used)
{
	char sql[300];

	(void)snprintf(sql, sizeof(sql), "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
		       "INSERT INTO path SELECT i, 'p' || i FROM n;"
		       "UPDATE sqlite_sequence SET seq = %u WHERE name = 'path'", nr);
	catalog = meta_catalog_close(catalog);
	force(sql);
	force(used);
	open_catalog();
}

/* A mount goes on giving numbers that no path has; what lost its last row in this mount keeps its number. */
static void paths_fill_gaps(void **unused)
{
	(void)unused;
	give_paths(SC_PATHS_MAX - 3, "DELETE FROM path WHERE id IN (5, 6, 70)");
	assert_int_equal(SC_PATHS_MAX - 2, put_path("a"));
	assert_int_equal(SC_PATHS_MAX - 1, put_path("b"));
	assert_int_equal(5, put_path("c"));
	assert_int_equal(6, put_path("d"));
	assert_int_equal(70, put_path("e"));
	assert_int_equal(1001, put_path("f"));
	assert_int_equal(5, put_path("c"));
	catalog = meta_catalog_close(catalog);
	open_catalog(); /* a daemon that takes over does not know how far it had searched */
	assert_int_equal(1002, put_path("g"));
}

/* With all numbers in use there is a refusal that says what to do.  The gate has the last thousand, as if it had searched so far. */
static void paths_run_out(void **unused)
{
	const unsigned searched = every() > 1 ? SC_PATHS_MAX - 1001 : 0;
	char used[200];
	uint64_t id;

	(void)unused;
	(void)snprintf(used, sizeof(used), "WITH RECURSIVE n (i) AS (SELECT %u UNION ALL SELECT i + 1 FROM n WHERE i < %u) "
		       "INSERT INTO path SELECT i, i FROM n", searched ? searched : 1001, SC_PATHS_MAX - 1);
	give_paths(SC_PATHS_MAX - 1, used);
	*db_path_searched(catalog) = searched;
	assert_int_equal(SC_E_LIMIT, meta_path_put(catalog, "one more", &id, &err));
	*db_path_searched(catalog) = 0;
	assert_non_null(strstr(err.msg, "remove versions"));
	assert_int_equal(7, put_path("p7"));
	OK(meta_mount_begins(catalog, &err));
	assert_int_equal(1, put_path("one more"));
}

/* A mount that begins drops paths that nothing is made of; a store that has given few keeps all. */
static void a_mount_drops_paths(void **unused)
{
	static const char *const used =
		"INSERT INTO set_blob VALUES (1, 0, 11, 1, 0, 0, 0, 0, 0); INSERT INTO given VALUES (1, 0, 12, 0, 0, 0, 0);"
		"INSERT INTO inode VALUES ((1 << 60) + (7 << 42) + 13, 7, 0, 0, 0, 0, 1, 0, 0, 0, (1 << 60) + 14, 0, 0, x'');"
		"INSERT INTO entry VALUES ((1 << 60) + 15, x'61', (1 << 60) + 16);"
		"INSERT INTO xattr VALUES ((1 << 60) + 17, x'61', x'');"
		"INSERT INTO again VALUES ((1 << 60) + 18, (1 << 60) + 19);"
		"INSERT INTO tree_inode VALUES (1, (1 << 60) + 20, 0, 0, 0, 0, 0, 0, 0, (1 << 60) + (1 << 22) + 21, 0, x'');"
		"INSERT INTO tree_entry VALUES (1, (1 << 60) + 22, x'61', (1 << 60) + 23);"
		"INSERT INTO tree_xattr VALUES (1, (1 << 60) + 24, x'61', x''); UPDATE path SET text = '' WHERE id = 30";
	char name[8];

	(void)unused;
	give_paths(SC_PATHS_MAX / 2 - 1, used);
	OK(meta_mount_begins(catalog, &err));
	assert_int_equal(999, put_path("p999"));
	(void)fresh(NULL);
	give_paths(SC_PATHS_MAX - 1, used);
	OK(meta_mount_begins(catalog, &err));
	for (unsigned i = 11; i < 25; i++) {
		(void)snprintf(name, sizeof(name), "p%u", i);
		assert_int_equal(i, put_path(name));
	}
	assert_int_equal(30, put_path(""));
	assert_int_equal(1, put_path("p999"));
	assert_int_equal(2, put_path("new"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(paths_fill_gaps, fresh),
		cmocka_unit_test_setup(paths_run_out, fresh),
		cmocka_unit_test_setup(a_mount_drops_paths, fresh),
	};

	make_place(true);
	return leave_place(cmocka_run_group_tests(tests, NULL, NULL));
}
