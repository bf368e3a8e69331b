/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite's allocations fail one by one, in each function of trees: it is refused with "out of memory" and all rows are as
 * before, or it does all that it says, as without the fault.  With statements that are prepared, and (each third one) with
 * new ones.
 */
#include "meta/catalog/trees.h"
#include "tests/fault/sqlite_memory.h"
#include "tests/support/every.h"

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

/* --- a catalog with an upper layer over a chain of trees --- */

#define ROOT UINT64_C(1024)	/* of the first job of a catalog */
#define FILES (UINT64_C(1) << 21)	/* behind the numbers of folders of job and ranks */

static char path[64];
static struct meta_catalog *catalog;
static struct sc_err err;
static struct meta_changes record;
static uint64_t tree;		/* the newest */
static struct sc_buf said;	/* what a call told */

#define OK(call) \
	({ \
		if ((call) < 0) \
			fail_msg("%s: %s", #call, err.msg); \
	})

static struct meta_bytes text(const char *t)
{
	return (struct meta_bytes){t, strlen(t)};
}

static void put_inode(uint64_t ino, mode_t mode, uint32_t nlink)
{
	struct meta_inode_row r = {.ino = ino, .job = 1, .mode = mode, .nlink = nlink,
				   .data = S_ISREG(mode) ? META_OWN_DATA : META_NO_DATA, .blob = S_ISREG(mode) ? ino : 0,
				   .target = text(S_ISLNK(mode) ? "a longer target than a page header has room for" : "")};

	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_PUT_INODE, .inode = r}));
}

static void put_entry(uint64_t parent, const char *name, uint64_t ino)
{
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_PUT_ENTRY, .entry = {parent, text(name), ino}}));
}

/* A record with a change of each kind. */
static void say_all(uint64_t first)
{
	record.nr = 0;
	put_inode(ROOT, S_IFDIR, 2);
	first += FILES;
	put_inode(first, S_IFREG, 1);
	put_inode(first + 1, S_IFLNK, 1);
	put_inode(first + 2, S_IFIFO, 1);
	put_inode(first + 3, S_IFREG, 0);
	put_inode(first + 4, S_IFREG, 0);
	put_entry(ROOT, "file", first);
	put_entry(ROOT, "link", first + 1);
	put_entry(ROOT, "pipe", first + 2);
	put_entry(ROOT, first / 10 % 2 ? "a" : "b", 0);
	put_entry(ROOT, first / 10 % 2 ? "b" : "a", first + 1);
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_PUT_XATTR,
						  .xattr = {first, text("user.x"), text("value")}}));
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_PUT_XATTR,
						  .xattr = {first, text("user.y"), text("value")}}));
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_DROP_XATTR, .xattr = {first, text("user.y"), {0}}}));
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_DROP_ENTRY, .entry = {ROOT, text("gone"), 0}}));
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_DROP_INODE, .inode = {.ino = first + 4}}));
	assert_int_equal(0, sc_vec_push(&record, (struct meta_change){META_PUT_AGAIN, .again = {first, first + 500}}));
}

static int call_apply(void)
{
	int rc = meta_catalog_begin(catalog, false, &err);

	say_all(1000);
	if (rc == 0)
		rc = meta_catalog_end(catalog, meta_upper_apply(catalog, &record, &err), &err);
	return rc;
}

static int call_numbers(void)
{
	uint64_t first = 0;
	int rc = meta_numbers_take(catalog, 1, 100, &first, &err);

	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 "\n", first);
	return rc;
}

static int call_sequence(void)
{
	uint64_t was = 0;
	int rc = meta_tail_applied(catalog, &was, &err);

	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 "\n", was);
	return rc < 0 ? rc : meta_tail_set_applied(catalog, 64, &err);
}

static int tell_change(void *arg, const struct meta_change *x)
{
	struct meta_changes one = {.at = (struct meta_change *)(uintptr_t)x, .nr = 1};

	(void)arg;
	meta_changes_encode(&one, &said);
	return 0;
}

static int call_each(void)
{
	int rc = meta_upper_each(catalog, 1, tell_change, NULL, &err);

	return rc < 0 ? rc : meta_again_each(catalog, tell_change, NULL, &err);
}

static int call_remove(void)
{
	int rc = meta_catalog_begin(catalog, false, &err);

	return rc < 0 ? rc : meta_catalog_end(catalog, meta_upper_remove(catalog, 1, &err), &err);
}

static int commit(uint64_t base)
{
	struct meta_version_row v = {.job = 1, .step = -1, .note = "", .made_by = "", .topology = ""};
	struct meta_change decided[] = {
		{META_PUT_INODE, .inode = {.ino = FILES + 800, .mode = S_IFREG, .nlink = 1, .blob = 5, .data = META_LOWER_DATA}},
		{META_PUT_ENTRY, .entry = {ROOT, text("more"), FILES + 800}},
		{META_PUT_ENTRY, .entry = {ROOT, text("file"), 0}},
		{META_PUT_XATTR, .xattr = {FILES + 800, text("user.z"), text("1")}},
		{META_DROP_INODE, .inode = {.ino = FILES + 1001}},
	};
	struct meta_tree_spec spec = {.job = 1, .base = base, .root = ROOT, .layout = 1, .topology = "dp=2",
				      .rows = {decided, sizeof(decided) / sizeof(*decided), 0}};
	int rc = meta_catalog_begin(catalog, false, &err);

	if (rc < 0)
		return rc;
	rc = meta_tree_commit(catalog, &spec, &v.tree, &err);
	if (rc == 0)
		rc = meta_version_add(catalog, &v, &err);
	rc = meta_catalog_end(catalog, rc, &err);
	if (rc == 0)
		tree = v.tree;
	return rc;
}

static int call_commit(void)
{
	return commit(tree);
}

static int call_flatten(void)
{
	uint64_t some = 0;
	int rc = meta_catalog_begin(catalog, false, &err);

	if (rc < 0)
		return rc;
	rc = meta_tree_to_flatten(catalog, &some, &err);
	if (rc == 0)
		rc = meta_tree_flatten(catalog, tree, &err);
	rc = meta_catalog_end(catalog, rc, &err);
	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 "\n", some);
	return rc;
}

static int call_garbage(void)
{
	int rc = meta_catalog_begin(catalog, false, &err);

	return rc < 0 ? rc : meta_catalog_end(catalog, meta_tree_garbage(catalog, &err), &err);
}

static int tell_entry(void *arg, const struct meta_entry_row *e)
{
	(void)arg;
	sc_buf_printf(&said, "%.*s %" PRIu64 "\n", (int)e->name.nr, e->name.at, e->ino);
	return 0;
}

static int tell_xattr(void *arg, const struct meta_xattr_row *x)
{
	(void)arg;
	sc_buf_printf(&said, "%.*s=%.*s\n", (int)x->name.nr, x->name.at, (int)x->value.nr, x->value.at);
	return 0;
}

static int call_read(void)
{
	sc_cleanup(sc_buf_done) struct sc_buf target = {0};
	struct meta_tree t = {.id = tree};
	struct meta_inode_row row = {0};
	uint64_t ino = 0;
	int rc = meta_tree_inode(catalog, &t, FILES + 601, &row, &target, &err);

	if (rc >= 0) {
		sc_buf_printf(&said, "%d %o %.*s\n", rc, row.mode, (int)row.target.nr, row.target.at);
		rc = meta_tree_child(catalog, &t, ROOT, text("link"), &ino, &err);
	}
	if (rc >= 0) {
		sc_buf_printf(&said, "%" PRIu64 "\n", ino);
		rc = meta_tree_children(catalog, &t, ROOT, tell_entry, NULL, &err);
	}
	if (rc >= 0)
		rc = meta_tree_xattrs(catalog, &t, FILES + 800, tell_xattr, NULL, &err);
	return rc < 0 ? rc : meta_tree_names(catalog, &t, FILES + 601, tell_entry, NULL, &err);
}

static int call_about(void)
{
	sc_cleanup(sc_buf_done) struct sc_buf topology = {0};
	struct meta_tree_row row = {0};
	int rc = meta_tree_about(catalog, tree, &row, &topology, &err);

	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 " %" PRIu64 " %s\n", row.root, row.layout, row.topology);
	return rc;
}

static int tell_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	(void)arg;
	sc_buf_printf(&said, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", first, nr, job);
	return 0;
}

static int call_blocks(void)
{
	return meta_numbers_each(catalog, tell_block, NULL, &err);
}

static int call_job(void)
{
	struct meta_job_row row = {.name = "another", .mode = 0755};
	int rc = meta_job_add(catalog, &row, &err);

	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 " %" PRIu64 "\n", row.id, row.root);
	return rc;
}

static int call_clone(void)
{
	uint64_t id = 0, root = 0;
	int rc = meta_catalog_begin(catalog, true, &err);

	if (rc < 0)
		return rc;
	rc = meta_catalog_end(catalog, meta_job_clone(catalog, 1, "clone", 0, 0, &id, &root, &err), &err);
	if (rc == 0)
		sc_buf_printf(&said, "%" PRIu64 " %" PRIu64 "\n", id, root);
	return rc;
}

static int call_become(void)
{
	int rc = meta_catalog_begin(catalog, false, &err);

	return rc < 0 ? rc : meta_catalog_end(catalog, meta_blob_become(catalog, FILES + 600, FILES + 610, &err), &err);
}

static const struct {
	const char *what;
	int (*call)(void);
} calls[] = {
	{"numbers", call_numbers}, {"sequence", call_sequence}, {"apply", call_apply},	 {"each", call_each},
	{"read", call_read},	   {"commit", call_commit},	{"read", call_read},	 {"clone", call_clone},
	{"job", call_job},	   {"blocks", call_blocks},	{"become", call_become}, {"flatten", call_flatten},
	{"read", call_read},	   {"about", call_about},	{"garbage", call_garbage}, {"remove", call_remove},
};

/* --- all rows, read by another connection --- */

static char *rows(void)
{
	static const char *const tables[] = {"counter", "tail", "inode", "entry", "xattr", "again", "tree", "tree_inode",
					     "tree_entry", "tree_xattr", "version", "blob", "job",
					     "number_block"};
	struct sc_buf buf = {0};
	sqlite3 *db;

	assert_int_equal(SQLITE_OK, sqlite3_open(path, &db));
	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
		sqlite3_stmt *stmt;
		char sql[64];

		(void)snprintf(sql, sizeof(sql), "SELECT * FROM %s", tables[i]);
		assert_int_equal(SQLITE_OK, sqlite3_prepare_v2(db, sql, -1, &stmt, NULL));
		while (sqlite3_step(stmt) == SQLITE_ROW) {
			sc_buf_printf(&buf, "%s", tables[i]);
			for (int c = 0; c < sqlite3_column_count(stmt); c++) {
				sc_buf_printf(&buf, " ");
				sc_buf_add(&buf, sqlite3_column_blob(stmt, c), (size_t)sqlite3_column_bytes(stmt, c));
			}
			sc_buf_printf(&buf, "\n");
		}
		(void)sqlite3_finalize(stmt);
	}
	(void)sqlite3_close(db);
	assert_false(buf.failed);
	return buf.text;
}

static void clean(void)
{
	char command[100];

	(void)snprintf(command, sizeof(command), "rm -f %s*", path);
	assert_int_equal(0, system(command));
}

/* The catalog before the first call: three trees, an upper layer. */
static void begin(void)
{
	struct meta_job_row job = {.name = "job"};

	clean();
	OK(meta_catalog_open(path, true, &catalog, &err));
	OK(meta_tail_set_applied(catalog, 0, &err));
	OK(meta_job_add(catalog, &job, &err));
	assert_int_equal(ROOT, job.root);
	OK(meta_numbers_take(catalog, 1, UINT64_C(1) << 22, &(uint64_t){0}, &err));
	tree = 0;
	for (uint64_t first = 600; first < 630; first += 10) {
		OK(meta_catalog_begin(catalog, false, &err));
		say_all(first);
		OK(meta_upper_apply(catalog, &record, &err));
		OK(meta_catalog_end(catalog, 0, &err));
		OK(commit(tree));
	}
	OK(meta_version_remove(catalog, 1, &err));
}

static void reopen(void)
{
	catalog = meta_catalog_close(catalog);
	OK(meta_catalog_open(path, true, &catalog, &err));
}

static long total;

static void expect_text(const char *got, const char *want, const char *what, long n)
{
	if (strcmp(got, want) != 0)
		fail_msg("%s, allocation %ld:\n%s--- not\n%s", what, n, got, want);
}

/* First all calls without a fault, to know what comes of them; then with. */
static void in_turn(bool cold)
{
	enum { NR = sizeof(calls) / sizeof(*calls) };
	char *want[NR], *told[NR];

	begin();
	for (size_t i = 0; i < NR; i++) {
		sc_buf_reset(&said);
		OK(calls[i].call());
		want[i] = rows();
		told[i] = sc_strdup(said.text ? said.text : "");
	}
	catalog = meta_catalog_close(catalog);
	begin();
	for (size_t i = 0; i < NR; i++) {
		char *before = rows(), *after;
		int rc = -1;

		for (long n = cold && sqlite_memory.lasts; rc != 0; n += every_at_most(3) * (cold ? 3 : 1)) {
			if (cold)
				reopen();
			sc_buf_reset(&said);
			sqlite_memory.left = n;
			sqlite_memory.failures = 0;
			sqlite_memory.armed = true;
			rc = calls[i].call();
			sqlite_memory.armed = false;
			total += sqlite_memory.failures;
			if (rc != 0 && (rc != SC_E_NO_MEMORY || !sqlite_memory.failures))
				fail_msg("%s, allocation %ld: %d '%s' after %ld failures", calls[i].what, n, rc, err.msg,
					 sqlite_memory.failures);
			after = rows();
			/* two calls of their own: the first may have been done */
			if (rc == 0 || calls[i].call != call_sequence)
				expect_text(after, rc == 0 ? want[i] : before, calls[i].what, n);
			if (rc == 0)
				expect_text(said.text ? said.text : "", told[i], calls[i].what, n);
			sc_sys.release(after);
		}
		sc_sys.release(before);
		sc_sys.release(want[i]);
		sc_sys.release(told[i]);
	}
	catalog = meta_catalog_close(catalog);
	clean();
}

static void prepared_statements(void **unused)
{
	(void)unused;
	in_turn(false);
}

static void new_statements(void **unused)
{
	(void)unused;
	in_turn(true);
}

static void memory_stays_away(void **unused)
{
	(void)unused;
	sqlite_memory.lasts = true;
	in_turn(true);
	sqlite_memory.lasts = false;
}

static int say(void **unused)
{
	(void)unused;
	printf("# %ld faults\n", total);
	assert_true(total > 300);
	sc_buf_done(&said);
	sc_vec_done(&record);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prepared_statements),
		cmocka_unit_test(new_statements),
		cmocka_unit_test(memory_stays_away),
	};

	(void)snprintf(path, sizeof(path), "%s/scalai-faults.%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
		       (int)getpid());
	return cmocka_run_group_tests_name("trees", tests, sqlite_memory_take, say);
}
