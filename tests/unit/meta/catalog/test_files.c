/* SPDX-License-Identifier: Apache-2.0 */
/* Plain files in the catalog, which only rows of trees have: their paths, who uses their blobs, and what records tell. */
#include "tests/unit/meta/catalog/rows.h"

#include "meta/base/limits.h"

#define FILE_NR(n) (first + (n))
#define RANK(r) (root + 1 + (r))

static struct meta_job_row job;
static uint64_t first;

static int fresh_job(void **unused)
{
	uint64_t layout;

	job = (struct meta_job_row){.name = "one", .uid = 7, .gid = 8, .mode = 0750};
	assert_int_equal(0, fresh(unused));
	OK(meta_layout_put(catalog, "", "", &layout, &err));
	OK(meta_job_add(catalog, &job, &err));
	root = job.root;
	OK(meta_numbers_take(catalog, job.id, 4096, &first, &err));
	return 0;
}

static void put_file(uint64_t ino, uint64_t parent, const char *name, uint64_t blob)
{
	put_inode(ino, S_IFREG | 0644, blob);
	put_entry(parent, name, ino);
}

static void put_folder(uint64_t ino, uint64_t parent, const char *name)
{
	put_inode(ino, S_IFDIR | 0755, 0);
	put_entry(parent, name, ino);
}

static void seal(uint64_t blob, uint64_t bytes, const char *hash)
{
	OK(meta_blob_seal(catalog, blob, bytes, &err));
	if (hash)
		OK(meta_blob_checked(catalog, blob, hash, 1, false, &err));
}

/* --- paths --- */

static int on_path(void *arg, int64_t rank, const char *at)
{
	sc_buf_printf(arg, "%" PRId64 "/%s ", rank, at);
	return 0;
}

static void expect_paths(uint64_t tree, uint64_t ino, const char *want)
{
	struct meta_tree t = {.id = tree};
	struct sc_buf got = {0};

	sc_buf_printf(&got, "%s", "");
	OK(meta_tree_paths(catalog, &t, ino, on_path, &got, &err));
	assert_string_equal(want, got.text);
	sc_buf_done(&got);
}

static void paths_of_files(void **unused)
{
	struct sc_buf deep = {0};
	uint64_t a, b, number;

	(void)unused;
	OK(meta_path_put(catalog, "of/tensors", &number, &err));
	number = meta_virtual(job.id, 5, number);
	put_inode(root, S_IFDIR, 0);
	put_inode(RANK(3), S_IFDIR, 0);
	put_inode(number, S_IFDIR, 0);
	put_file(FILE_NR(1), root, "config.json", 1);
	put_folder(FILE_NR(2), RANK(3), "logs");
	put_folder(FILE_NR(3), FILE_NR(2), "old");
	put_file(FILE_NR(4), FILE_NR(3), "a b", 2);
	put_entry(RANK(3), "link", FILE_NR(4));
	put_file(FILE_NR(5), number, "x", 3);
	put_entry(root, "3", RANK(3)); /* a name that the folder of a rank does not need */
	apply();
	a = commit(0).tree;
	expect_paths(a, FILE_NR(1), "-1/config.json ");
	expect_paths(a, FILE_NR(4), "3/link 3/logs/old/a b ");
	expect_paths(a, FILE_NR(5), "5/of/tensors/x ");
	expect_paths(a, FILE_NR(6), "");
	put_inode(RANK(3), S_IFDIR, 0);
	put_entry(RANK(3), "logs", 0); /* with all that is in it */
	put_inode(FILE_NR(1), S_IFREG, 1);
	put_inode(root, S_IFDIR, 0);
	put_entry(root, "config.json", 0);
	put_entry(root, "renamed.json", FILE_NR(1));
	apply();
	b = commit(a).tree;
	expect_paths(b, FILE_NR(1), "-1/renamed.json ");
	expect_paths(b, FILE_NR(4), "3/link ");
	expect_paths(a, FILE_NR(4), "3/link 3/logs/old/a b ");
	/* rows that go round in a circle have no path */
	put_folder(FILE_NR(7), FILE_NR(8), "seven");
	put_folder(FILE_NR(8), FILE_NR(7), "eight");
	put_file(FILE_NR(9), FILE_NR(7), "nine", 4);
	put_inode(RANK(0), S_IFDIR, 0);
	sc_buf_printf(&deep, "0/");
	for (uint64_t i = 0; i < 50; i++) {
		char name[251];

		memset(name, 'a' + (int)(i % 26), sizeof(name) - 1);
		name[250] = 0;
		put_folder(FILE_NR(100 + i), i ? FILE_NR(99 + i) : RANK(0), name);
		assert_non_null(record.at[record.nr - 1].entry.name.at);
		apply();
		sc_buf_printf(&deep, "%s/", name);
	}
	put_file(FILE_NR(200), FILE_NR(149), "end", 5);
	apply();
	sc_buf_printf(&deep, "end ");
	b = commit(b).tree;
	expect_paths(b, FILE_NR(9), "");
	expect_paths(b, FILE_NR(200), deep.text);
	sc_buf_done(&deep);
}

/* --- who uses a blob --- */

static int on_use(void *arg, const struct meta_blob_use *use)
{
	sc_buf_printf(arg, "%s %" PRIu64 " %s %" PRId64 " %s;", use->job, use->version, use->topology, use->rank,
		      use->path);
	return 0;
}

static int on_first_use(void *arg, const struct meta_blob_use *use)
{
	(void)use;
	++*(int *)arg;
	return 1;
}

static void expect_uses(uint64_t blob, const char *want)
{
	struct sc_buf got = {0};

	sc_buf_printf(&got, "%s", "");
	OK(meta_blob_uses(catalog, blob, on_use, &got, &err));
	assert_string_equal(want, got.text);
	sc_buf_done(&got);
}

static void blobs_of_files_name_them(void **unused)
{
	uint64_t a, b, id, other, size;
	int nr = 0;

	(void)unused;
	put_inode(root, S_IFDIR, 0);
	put_inode(RANK(1), S_IFDIR, 0);
	put_file(FILE_NR(1), root, "config.json", 1);
	put_file(FILE_NR(2), RANK(1), "log", 2);
	apply();
	a = commit(0).tree;
	put_file(FILE_NR(1), root, "config.json", 3); /* written again */
	apply();
	b = commit(a).tree;
	assert_true(b != a);
	expect_uses(1, "one 1 dp=2 -1 config.json;");
	expect_uses(2, "one 2 dp=2 1 log;one 1 dp=2 1 log;");
	expect_uses(3, "one 2 dp=2 -1 config.json;");
	expect_uses(0, "");
	expect_uses(9, "");
	assert_int_equal(1, meta_blob_uses(catalog, 2, on_first_use, &nr, &err));
	assert_int_equal(1, nr);
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_job_clone(catalog, job.id, "two", 0, 0, &id, &other, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	expect_uses(3, "one 2 dp=2 -1 config.json;two 2 dp=2 -1 config.json;");
	seal(3, 99, NULL);
	OK(meta_blob_bytes(catalog, 3, &size, &err));
	assert_int_equal(99, size);
	OK(meta_blob_bytes(catalog, 1, &size, &err));
	assert_int_equal(0, size);
	assert_int_equal(SC_E_NOT_FOUND, meta_blob_bytes(catalog, 77, &size, &err));
}

/* --- empty files, and files that were written again --- */

static int note_blob(void *arg, const struct meta_blob_row *row)
{
	*(uint64_t *)arg |= UINT64_C(1) << row->id;
	return 0;
}

static void empty_files_are_sealed(void **unused)
{
	uint64_t found = 0;

	(void)unused;
	put_inode(root, S_IFDIR, 0);
	put_file(FILE_NR(1), root, "empty", 1);
	put_file(FILE_NR(2), root, "full", 2);
	apply();
	OK(meta_blob_unhashed(catalog, note_blob, &found, &err)); /* they may be written to */
	assert_int_equal(0, found);
	(void)commit(0);
	seal(2, 5, NULL);
	put_file(FILE_NR(3), root, "new", 3);
	apply();
	OK(meta_blob_unhashed(catalog, note_blob, &found, &err));
	assert_int_equal(1 << 1 | 1 << 2, found);
	found = 0;
	for (uint64_t i = 1; i <= 3; i++)
		OK(meta_blob_sealed(catalog, i, note_blob, &found, &err));
	assert_int_equal(1 << 1 | 1 << 2, found);
}

static uint64_t same_before(uint64_t blob, uint64_t bytes, const char *hash)
{
	uint64_t same;

	OK(meta_blob_same_before(catalog, blob, bytes, hash, &same, &err));
	return same;
}

static void unchanged_files_find_the_older_one(void **unused)
{
	static const char x[17] = "xxxxxxxxxxxxxxxx", y[17] = "yyyyyyyyyyyyyyyy";
	struct meta_version_row v;
	uint64_t a;

	(void)unused;
	put_inode(root, S_IFDIR, 0);
	put_inode(RANK(1), S_IFDIR, 0);
	put_file(FILE_NR(1), root, "in place", 1);
	put_file(FILE_NR(2), root, "renamed over", 2);
	put_file(FILE_NR(3), RANK(1), "of another", 3);
	apply();
	a = commit(0).tree;
	for (uint64_t i = 1; i <= 3; i++)
		seal(i, 10, x);
	put_inode(root, S_IFDIR, 0);
	put_file(FILE_NR(1), root, "in place", 4);
	put_file(FILE_NR(4), root, "renamed over", 5);
	put_file(FILE_NR(5), root, "of another", 6);
	apply();
	v = commit(a);
	for (uint64_t i = 4; i <= 6; i++)
		seal(i, 10, x);
	assert_int_equal(1, same_before(4, 10, x));
	assert_int_equal(2, same_before(5, 10, x));
	assert_int_equal(0, same_before(6, 10, x)); /* nothing was at its path */
	assert_int_equal(0, same_before(4, 10, y));
	assert_int_equal(0, same_before(4, 11, x));
	assert_int_equal(0, same_before(1, 10, x)); /* none is older */
	/* a flat tree lies over no other: the version before has it */
	force("UPDATE version SET parent = 1 WHERE nr = 2");
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_flatten(catalog, v.tree, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	assert_int_equal(1, same_before(4, 10, x));
	assert_int_equal(2, same_before(5, 10, x));
}

/* --- recovery records --- */

static int on_record(void *arg, const struct meta_tree_record *r)
{
	sc_buf_printf(arg, "%" PRIu64 " over %" PRIu64 ", %s %" PRIu64 " %" PRIu64 " %" PRIo64 ", version %" PRIu64
		      " step %" PRId64 " %s;", r->id, r->base, r->job, r->uid, r->gid, r->job_mode, r->version, r->step,
		      r->topology);
	assert_int_equal(root, r->root);
	return 0;
}

static void expect_records(const char *want)
{
	struct sc_buf got = {0};

	sc_buf_printf(&got, "%s", "");
	OK(meta_tree_unkept(catalog, on_record, &got, &err));
	assert_string_equal(want, got.text);
	sc_buf_done(&got);
}

static int on_row(void *arg, const struct meta_change *x)
{
	if (x->kind == META_PUT_INODE)
		sc_buf_printf(arg, "%" PRIu64 ":%o:%" PRIu64 ":%" PRIu64 " ", x->inode.ino - first, x->inode.mode,
			      x->inode.blob, x->inode.rdev);
	else if (x->kind == META_PUT_ENTRY)
		sc_buf_printf(arg, "%.*s=%" PRIu64 " ", (int)x->entry.name.nr, x->entry.name.at, x->entry.ino ? x->entry.ino - first : 0);
	else
		sc_buf_printf(arg, "%.*s:%.*s ", (int)x->xattr.name.nr, x->xattr.name.at, (int)x->xattr.value.nr,
			      x->xattr.value.at);
	return 0;
}

static int on_text(void *arg, uint64_t id, const char *at, const char *more)
{
	(void)more;
	sc_buf_printf(arg, "%" PRIu64 " %s;", id, at);
	return 0;
}

static void records_of_trees(void **unused)
{
	struct meta_tree_record record_of = {.job = "one", .uid = 7, .gid = 8, .job_mode = 0750};
	struct meta_tree_record old[] = {{.job = "two", .uid = 7, .gid = 8, .job_mode = 0750},
					 {.job = "one", .uid = 6, .gid = 8, .job_mode = 0750},
					 {.job = "one", .uid = 7, .gid = 9, .job_mode = 0750},
					 {.job = "one", .uid = 7, .gid = 8, .job_mode = 0755}};
	struct sc_buf got = {0};
	uint64_t a, b, number;

	(void)unused;
	OK(meta_path_put(catalog, "not/here", &number, &err));
	OK(meta_path_put(catalog, "config.json", &number, &err));
	put_inode(RANK(0), S_IFDIR | 0755, 0);
	put_file(meta_virtual(job.id, 0, number), RANK(0), "config.json", 1);
	put_file(FILE_NR(2), RANK(0), "x", 2);
	say((struct meta_change){META_PUT_XATTR, .xattr = {FILE_NR(2), text("user.a"), text("b")}});
	apply();
	a = commit(0).tree;
	seal(2, 12, NULL);
	put_inode(RANK(0), S_IFDIR | 0755, 0);
	put_entry(RANK(0), "x", 0);
	apply();
	b = commit(a).tree;
	expect_records("1 over 0, one 7 8 750, version 1 step -1 dp=2;2 over 1, one 7 8 750, version 2 step -1 dp=2;");
	OK(meta_tree_rows(catalog, a, on_row, &got, &err));
	assert_non_null(strstr(got.text, "2:100644:2:12 "));
	sc_buf_reset(&got);
	OK(meta_tree_rows(catalog, b, on_row, &got, &err));
	assert_non_null(strstr(got.text, "x=0 "));
	sc_buf_reset(&got);
	OK(meta_tree_path_texts(catalog, a, on_text, &got, &err));
	assert_string_equal("2 config.json;", got.text);
	sc_buf_done(&got);
	record_of.id = a;
	for (size_t i = 0; i < sizeof(old) / sizeof(*old); i++) { /* the job is called otherwise, or another's, by now */
		old[i].id = a;
		OK(meta_tree_set_kept(catalog, &old[i], &err));
	}
	expect_records("1 over 0, one 7 8 750, version 1 step -1 dp=2;2 over 1, one 7 8 750, version 2 step -1 dp=2;");
	OK(meta_tree_set_kept(catalog, &record_of, &err));
	expect_records("2 over 1, one 7 8 750, version 2 step -1 dp=2;");
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_flatten(catalog, b, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	record_of.id = b;
	record_of.base = a;
	OK(meta_tree_set_kept(catalog, &record_of, &err)); /* it tells what the tree was before */
	expect_records("2 over 0, one 7 8 750, version 2 step -1 dp=2;");
	record_of.base = 0;
	OK(meta_tree_set_kept(catalog, &record_of, &err));
	expect_records("");
	assert_int_equal(1, meta_tree_known(catalog, b, &err));
	assert_int_equal(0, meta_tree_known(catalog, 3, &err));
	OK(meta_tree_reserve(catalog, 40, &err));
	OK(meta_tree_reserve(catalog, 0, &err));
	assert_int_equal(41, commit(b).tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(paths_of_files, fresh_job),
		cmocka_unit_test_setup(blobs_of_files_name_them, fresh_job),
		cmocka_unit_test_setup(empty_files_are_sealed, fresh_job),
		cmocka_unit_test_setup(unchanged_files_find_the_older_one, fresh_job),
		cmocka_unit_test_setup(records_of_trees, fresh_job),
	};

	make_place(true);
	return leave_place(cmocka_run_group_tests(tests, NULL, NULL));
}
