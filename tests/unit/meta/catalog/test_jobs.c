/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and their trees in the catalog: numbers, blobs of files, names of an inode, clones, what a check complains of. */
#include "tests/unit/meta/catalog/rows.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "meta/base/limits.h"

/* SQLite's, too. */
static unsigned flushes;

int fdatasync(int fd)
{
	flushes++;
	return (int)syscall(SYS_fdatasync, fd);
}

static struct meta_job_row add_job(const char *name)
{
	struct meta_job_row job = {.name = name, .mode = 0755};

	OK(meta_job_add(catalog, &job, &err));
	return job;
}

static void remove_job(uint64_t id)
{
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_job_remove(catalog, id, &err));
	OK(meta_catalog_end(catalog, 0, &err));
}

static uint64_t add_layout(void)
{
	uint64_t id;

	OK(meta_layout_put(catalog, "", "", &id, &err));
	assert_int_equal(1, id);
	return id;
}

static int on_complaint(void *arg, uint64_t id, const char *complaint, const char *more)
{
	(void)id;
	(void)more;
	sc_buf_printf(arg, "%s\n", complaint);
	return 0;
}

/* All complaints of a check contain `want`, and there are `nr` of them. */
static void expect_complaints(unsigned nr, const char *want)
{
	struct sc_buf said = {0};
	unsigned got = 0;

	OK(meta_catalog_check(catalog, on_complaint, &said, &err));
	for (char *line = said.text ? strtok(said.text, "\n") : NULL; line; line = strtok(NULL, "\n"), got++)
		if (!strstr(line, want))
			fail_msg("'%s' was said, not '%s'", line, want);
	if (got != nr)
		fail_msg("%u complaints, not %u of '%s'", got, nr, want);
	sc_buf_done(&said);
}

/* --- numbers --- */

struct blocks {
	uint64_t at[8][3];
	unsigned nr;
};

static int on_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	struct blocks *b = arg;

	assert_true(b->nr < 8);
	assert_true(!b->nr || first >= b->at[b->nr - 1][0] + b->at[b->nr - 1][1]);
	memcpy(b->at[b->nr++], (uint64_t[]){first, nr, job}, sizeof(b->at[0]));
	return 0;
}

static struct blocks all_blocks(void)
{
	struct blocks b = {0};

	OK(meta_numbers_each(catalog, on_block, &b, &err));
	return b;
}

static int keep_root(void *arg, const struct meta_job_row *row)
{
	((uint64_t *)arg)[row->id] = row->root;
	return 0;
}

static void numbers_tell_their_job(void **unused)
{
	unsigned before = flushes;
	struct meta_job_row one = add_job("one"), two;
	uint64_t first, roots[8] = {0};
	struct blocks b;

	(void)unused;
	assert_true(flushes > before);
	two = add_job("two");
	OK(meta_numbers_take(catalog, one.id, 50, &first, &err));
	OK(meta_job_each(catalog, keep_root, roots, &err));
	assert_true(roots[one.id] == one.root && roots[two.id] == two.root && one.root > 0);
	assert_true(two.root > one.root + SC_RANKS_MAX);
	assert_true(first > two.root + SC_RANKS_MAX);
	b = all_blocks();
	assert_int_equal(3, b.nr);
	assert_memory_equal(b.at[0], ((uint64_t[]){one.root, SC_RANKS_MAX + 1, one.id}), sizeof(b.at[0]));
	assert_memory_equal(b.at[1], ((uint64_t[]){two.root, SC_RANKS_MAX + 1, two.id}), sizeof(b.at[0]));
	assert_memory_equal(b.at[2], ((uint64_t[]){first, 50, one.id}), sizeof(b.at[0]));
	remove_job(one.id);
	b = all_blocks();
	assert_int_equal(1, b.nr);
	assert_int_equal(two.id, b.at[0][2]);
	/* its numbers are not given again */
	one = add_job("one");
	assert_true(one.root >= first + 50);
	expect_complaints(0, "");
}

static void blocks_join_a_transaction(void **unused)
{
	uint64_t first = 0, second = 0;
	unsigned before;

	(void)unused;
	OK(meta_catalog_begin(catalog, false, &err));
	before = flushes;
	OK(meta_numbers_take(catalog, 5, 10, &first, &err));
	OK(meta_numbers_take(catalog, 5, 10, &second, &err));
	assert_int_equal(first + 10, second);
	assert_int_equal(SC_E_CANCELLED, meta_catalog_end(catalog, SC_E_CANCELLED, &err));
	assert_int_equal(before, flushes);
	assert_int_equal(0, all_blocks().nr);
	OK(meta_numbers_take(catalog, 5, 10, &second, &err));
	assert_int_equal(first, second); /* nobody has seen it */
	assert_true(flushes > before);
}

/* A job that gets the number of a removed one does not get its folders that came back. */
static void what_came_back_goes_with_its_job(void **unused)
{
	struct meta_job_row one = add_job("one"), two = add_job("two");
	uint64_t first, other;

	(void)unused;
	OK(meta_numbers_take(catalog, one.id, 10, &first, &err));
	OK(meta_numbers_take(catalog, two.id, 10, &other, &err));
	say((struct meta_change){META_PUT_AGAIN, .again = {first + 9, first + 1}});
	say((struct meta_change){META_PUT_AGAIN, .again = {one.root + 1, first + 2}});
	say((struct meta_change){META_PUT_AGAIN, .again = {(first + 2) | UINT64_C(1) << 61, one.root + 1}}); /* RS_WAS */
	say((struct meta_change){META_PUT_AGAIN, .again = {meta_virtual(one.id, 5, 7), first + 3}});
	say((struct meta_change){META_PUT_AGAIN, .again = {other, other + 1}});
	say((struct meta_change){META_PUT_AGAIN, .again = {meta_virtual(two.id, 5, 7), other + 2}});
	apply();
	remove_job(one.id);
	assert_int_equal(2, ask("SELECT count(*) FROM again"));
	assert_int_equal(2, ask("SELECT count(*) FROM again WHERE number > %" PRIu64, other));
}

/* --- blobs of files that programs may write to --- */

#define FILE_NR(n) ((UINT64_C(1) << 21) + (n))

static bool has_blob(uint64_t blob)
{
	return ask("SELECT count(*) FROM blob WHERE id = %" PRIu64, blob) == 1;
}

static void put_data(uint64_t ino, uint64_t blob, enum meta_data data)
{
	put_inode(ino, S_IFREG, blob);
	record.at[record.nr - 1].inode.data = data;
}

static void drop(uint64_t ino)
{
	say((struct meta_change){META_DROP_INODE, .inode = {.ino = ino}});
	apply();
}

static void own_blobs_come_and_go(void **unused)
{
	(void)unused;
	put_data(FILE_NR(1), 5, META_OWN_DATA);
	apply();
	assert_true(has_blob(5));
	OK(meta_blob_seal(catalog, 5, 99, &err)); /* it keeps its row */
	put_data(FILE_NR(1), 5, META_OWN_DATA);
	put_data(FILE_NR(2), 5, META_OWN_DATA);
	apply();
	assert_int_equal(99, ask("SELECT bytes FROM blob WHERE id = 5"));
	put_data(FILE_NR(1), 6, META_OWN_DATA);
	put_data(FILE_NR(2), 7, META_LOWER_DATA);
	apply();
	assert_true(!has_blob(5) && has_blob(6) && !has_blob(7));
	put_data(FILE_NR(1), 6, META_LOWER_DATA); /* as it is */
	apply();
	assert_true(has_blob(6));
	drop(FILE_NR(1)); /* whose blob is another layer's */
	assert_true(has_blob(6));
	put_data(FILE_NR(3), 8, META_OWN_DATA);
	put_inode(FILE_NR(4), S_IFIFO, 0);
	apply();
	drop(FILE_NR(4));
	assert_true(has_blob(8));
	drop(FILE_NR(3));
	assert_true(!has_blob(8));
	drop(FILE_NR(3)); /* again */
	/* a number that was given stays given */
	put_data(FILE_NR(3), 500, META_OWN_DATA);
	apply();
	drop(FILE_NR(3));
	OK(meta_blob_add(catalog, &(uint64_t){0}, &err));
	assert_true(has_blob(501));
	put_data(FILE_NR(3), SC_BLOBS_MAX, META_OWN_DATA);
	assert_int_equal(SC_E_LIMIT, apply_record());
	assert_int_equal(0, ask("SELECT count(*) FROM inode WHERE ino = %" PRIu64, FILE_NR(3)));
}

/* Each of blobs 1 to 5 is used by something else, too; 6 by nothing, and 7 by another row. */
static void blobs_in_use_stay(void **unused)
{
	struct meta_version_row v;
	uint64_t set, data;

	(void)unused;
	add_layout();
	put_inode(100, S_IFDIR, 0);
	put_data(FILE_NR(9), 5, META_OWN_DATA);
	put_entry(100, "9", FILE_NR(9));
	apply();
	v = commit(0);
	OK(meta_set_reserve(catalog, 40, &err));
	OK(meta_set_reserve(catalog, 0, &err));
	OK(meta_set_add(catalog, &(struct meta_set_row){.file = "f", .format = "plain", .topology = "", .tensors = "",
							.report = ""}, &set, &err));
	assert_int_equal(41, set);
	OK(meta_set_add_blob(catalog, set, &(struct meta_set_blob_row){.rank = 0, .path = 1, .blob = 1}, &err));
	OK(meta_version_add_set(catalog, v.id, set, &err));
	OK(meta_dataset_add(catalog, &(struct meta_dataset_row){.name = "d", .spec = "", .form = ""}, &data, &err));
	OK(meta_dataset_add_source(catalog, data, 0, &(struct meta_data_source_row){.path = "p", .blob = 2, .borders = 3},
				   &err));
	for (uint64_t i = 1; i <= 7; i++)
		put_data(FILE_NR(i), i, META_OWN_DATA);
	put_data(FILE_NR(10), 7, META_LOWER_DATA);
	put_data(FILE_NR(4), 2, META_OWN_DATA); /* two rows with one */
	apply();
	assert_false(has_blob(4));
	for (uint64_t i = 1; i <= 6; i++)
		if (i % 2)
			drop(FILE_NR(i));
		else
			put_data(FILE_NR(i), 20 + i, META_OWN_DATA);
	drop(FILE_NR(7));
	assert_true(has_blob(1) && has_blob(2) && has_blob(3) && has_blob(5) && !has_blob(6) && has_blob(7));
}

static int count_work(void *arg, const struct meta_blob_row *row)
{
	uint64_t *sets = arg;

	sets[0] |= (uint64_t)row->work << row->id;
	sets[1] |= (uint64_t)row->garbage << row->id;
	return 0;
}

static int on_garbage(void *arg, uint64_t blob)
{
	*(uint64_t *)arg |= UINT64_C(1) << blob;
	return 0;
}

static void blobs_say_what_they_are(void **unused)
{
	uint64_t sets[2] = {0}, blob, gone = 0;

	(void)unused;
	put_data(FILE_NR(1), 1, META_OWN_DATA);
	put_data(FILE_NR(2), 2, META_OWN_DATA);
	record.at[1].inode.nlink = 0; /* and somebody holds it */
	apply();
	OK(meta_blob_add(catalog, &blob, &err));
	assert_int_equal(3, blob);
	OK(meta_blob_add(catalog, &blob, &err));
	put_data(FILE_NR(4), 4, META_LOWER_DATA);
	apply();
	OK(meta_blob_each(catalog, count_work, sets, &err));
	assert_int_equal(1 << 1 | 1 << 2, sets[0]);
	assert_int_equal(1 << 3, sets[1]);
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_garbage(catalog, on_garbage, &gone, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	assert_int_equal(1 << 3, gone);
	assert_true(has_blob(1) && has_blob(2) && !has_blob(3) && has_blob(4));
}

/* A copy of a file takes the place of another one everywhere. */
static void a_blob_becomes_another(void **unused)
{
	struct meta_version_row v;
	uint64_t set;

	(void)unused;
	add_layout();
	(void)add_job("one");
	put_inode(100, S_IFDIR, 0);
	put_data(FILE_NR(1), 1, META_OWN_DATA);
	put_data(FILE_NR(2), 2, META_OWN_DATA);
	put_entry(100, "1", FILE_NR(1));
	put_entry(100, "2", FILE_NR(2));
	apply();
	v = commit(0);
	OK(meta_set_add(catalog, &(struct meta_set_row){.file = "f", .format = "plain", .topology = "", .tensors = "",
							.report = "", .layout = 1}, &set, &err));
	OK(meta_set_add_blob(catalog, set, &(struct meta_set_blob_row){.rank = 0, .path = 1, .blob = 2}, &err));
	OK(meta_version_add_set(catalog, v.id, set, &err));
	put_data(FILE_NR(2), 2, META_LOWER_DATA);
	apply();
	OK(meta_blob_become(catalog, 2, 1, &err));
	assert_true(has_blob(1) && !has_blob(2));
	assert_int_equal(1, ask("SELECT blob FROM set_blob"));
	assert_int_equal(2, ask("SELECT count(*) FROM tree_inode WHERE blob = 1"));
	assert_int_equal(1, ask("SELECT blob FROM inode WHERE ino = %" PRIu64, FILE_NR(2)));
	expect_complaints(0, "");
}

/* --- names, and what a tree is --- */

struct named {
	char at[8][32];
	size_t nr;
};

static int on_name(void *arg, const struct meta_entry_row *e)
{
	struct named *n = arg;

	assert_true(n->nr < 8);
	(void)snprintf(n->at[n->nr++], sizeof(n->at[0]), "%" PRIu64 "/%.*s", e->parent, (int)e->name.nr, e->name.at);
	return 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

static void expect_names(uint64_t tree, uint64_t ino, const char *want)
{
	struct meta_tree t = {.id = tree};
	struct named n = {.nr = 0};
	char got[200] = "";

	OK(meta_tree_names(catalog, &t, ino, on_name, &n, &err));
	qsort(n.at, n.nr, sizeof(n.at[0]), by_text);
	for (size_t i = 0; i < n.nr; i++)
		(void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s", i ? " " : "", n.at[i]);
	assert_string_equal(want, got);
}

static void names_of_an_inode(void **unused)
{
	uint64_t a, b, c;
	struct meta_tree_row about;
	struct sc_buf topology = {0};

	(void)unused;
	put_inode(100, S_IFDIR, 0);
	put_inode(101, S_IFDIR, 0);
	put_inode(FILE_NR(1), S_IFLNK, 0);
	put_inode(FILE_NR(2), S_IFLNK, 0);
	put_entry(101, "x", FILE_NR(1));
	put_entry(100, "b", FILE_NR(1));
	put_entry(100, "a", FILE_NR(1));
	put_entry(100, "other", FILE_NR(2));
	apply();
	a = commit(0).tree;
	expect_names(a, FILE_NR(1), "100/a 100/b 101/x");
	expect_names(a, FILE_NR(3), "");
	expect_names(a, 0, "");
	/* one goes, one becomes another file's, one comes; one is said again */
	put_inode(100, S_IFDIR, 0);
	put_inode(101, S_IFDIR, 0);
	put_entry(100, "a", 0);
	put_entry(101, "x", FILE_NR(2));
	put_entry(101, "y", FILE_NR(1));
	put_entry(100, "b", FILE_NR(1));
	apply();
	b = commit(a).tree;
	expect_names(b, FILE_NR(1), "100/b 101/y");
	expect_names(b, FILE_NR(2), "100/other 101/x");
	expect_names(b, 0, "");
	put_inode(100, S_IFDIR, 0);
	put_entry(100, "a", FILE_NR(1)); /* and back */
	put_entry(100, "b", 0);
	apply();
	c = commit(b).tree;
	expect_names(c, FILE_NR(1), "100/a 101/y");
	expect_names(b, FILE_NR(1), "100/b 101/y");
	expect_names(a, FILE_NR(1), "100/a 100/b 101/x");
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_flatten(catalog, c, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	expect_names(c, FILE_NR(1), "100/a 101/y");
	expect_names(c, FILE_NR(2), "100/other 101/x");
	OK(meta_tree_about(catalog, c, &about, &topology, &err));
	assert_int_equal(100, about.root);
	assert_int_equal(1, about.layout);
	assert_string_equal("dp=2", about.topology);
	OK(meta_tree_about(catalog, c, &about, NULL, &err));
	assert_null(about.topology);
	assert_int_equal(SC_E_NOT_FOUND, meta_tree_about(catalog, 77, &about, &topology, &err));
	sc_buf_done(&topology);
	/* nothing was changed: a tree that says what its base says */
	b = commit(c).tree;
	assert_true(b != c);
	expect_names(b, FILE_NR(1), "100/a 101/y");
	/* after a rollback another commit says something else */
	put_inode(100, S_IFDIR, 0);
	put_entry(100, "z", FILE_NR(1));
	put_entry(100, "a", 0);
	apply();
	b = commit(a).tree;
	expect_names(b, FILE_NR(1), "100/b 100/z 101/x");
	expect_names(c, FILE_NR(1), "100/a 101/y");
}

/* Folders of job and ranks without rows, and virtual numbers without names, are not lost when a tree is made flat. */
static void flat_trees_keep_what_needs_no_row(void **unused)
{
	const uint64_t v = meta_virtual(1, 0, 0);
	struct meta_change decided[] = {
		{META_PUT_INODE, .inode = {.ino = FILE_NR(1), .mode = S_IFREG, .nlink = 1}},
		{META_PUT_INODE, .inode = {.ino = FILE_NR(2), .mode = S_IFDIR, .nlink = 2}},
		{META_PUT_INODE, .inode = {.ino = FILE_NR(3), .mode = S_IFREG, .nlink = 1}},
		{META_PUT_INODE, .inode = {.ino = FILE_NR(4), .mode = S_IFREG, .nlink = 1}},
		{META_PUT_INODE, .inode = {.ino = v | 1, .mode = S_IFREG, .nlink = 1}},
		{META_PUT_XATTR, .xattr = {v | 1, text("user.x"), text("1")}},
		{META_PUT_ENTRY, .entry = {102, text("a"), FILE_NR(1)}},
		{META_PUT_ENTRY, .entry = {v | 2, text("folder"), FILE_NR(2)}},
		{META_PUT_ENTRY, .entry = {FILE_NR(2), text("b"), FILE_NR(3)}},
	};
	struct meta_tree_spec spec = {.job = 1, .root = 100, .layout = 1, .topology = "",
				      .rows = {decided, sizeof(decided) / sizeof(*decided), 0}};
	uint64_t base, top;

	(void)unused;
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_commit(catalog, &spec, &base, &err));
	spec.base = base;
	spec.rows.nr = 0;
	OK(meta_tree_commit(catalog, &spec, &top, &err));
	OK(meta_tree_flatten(catalog, top, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	expect_names(top, FILE_NR(1), "102/a");
	expect_names(top, FILE_NR(2), "1152925902653358082/folder");
	expect_names(top, FILE_NR(3), "2097154/b");
	assert_int_equal(4, ask("SELECT count(*) FROM tree_inode WHERE tree = %" PRIu64, top)); /* without 4 */
	assert_int_equal(1, ask("SELECT count(*) FROM tree_xattr WHERE tree = %" PRIu64, top));
	assert_int_equal(3, ask("SELECT count(*) FROM tree_entry WHERE tree = %" PRIu64, top));
}

/* --- checks --- */

static void a_check_names_what_is_missing(void **unused)
{
	static const struct {
		const char *breaks, *mends, *says;
		unsigned nr;
	} faults[] = {
		{"UPDATE version SET tree = 77 WHERE id = 2", "UPDATE version SET tree = 2 WHERE id = 2", "tree 77 is", 1},
		{"UPDATE tree SET base = 77 WHERE id = 2", "UPDATE tree SET base = 1 WHERE id = 2", "tree 77, which it", 1},
		{"UPDATE tree SET layout = 9", "UPDATE tree SET layout = 1", "layout 9 is", 2},
		{"UPDATE tree_inode SET blob = 9 WHERE blob = 1", "UPDATE tree_inode SET blob = 1 WHERE blob = 9",
		 "tree 1: blob 9 is", 1},
		{"UPDATE inode SET blob = 9 WHERE blob = 2", "UPDATE inode SET blob = 2 WHERE blob = 9",
		 "uncommitted file 2097157: blob 9 is", 1},
		{"UPDATE inode SET job = 9 WHERE blob = 2", "UPDATE inode SET job = 1 WHERE blob = 2",
		 "uncommitted inode 2097157: job 9 is", 1},
		{"UPDATE number_block SET job = 9 WHERE first = 8000000", "UPDATE number_block SET job = 1 WHERE first = 8000000",
		 "numbers from 8000000: job 9 is", 1},
		{"UPDATE number_block SET job = 2 WHERE first = 100", "UPDATE number_block SET job = 1 WHERE first = 100",
		 "job one: the numbers from 100 are not", 1},
		{"UPDATE tree_entry SET ino = 5555555 WHERE ino = 2097154",
		 "UPDATE tree_entry SET ino = 2097154 WHERE ino = 5555555", "tree 2: inode 5555555 is missing, which has", 1},
		{"UPDATE entry SET ino = 5555555 WHERE ino = 2097157",
		 "UPDATE entry SET ino = 2097157 WHERE ino = 5555555", "uncommitted inode 5555555 is missing", 1},
		{"UPDATE tree_entry SET parent = 5555555 WHERE parent = 2097155",
		 "UPDATE tree_entry SET parent = 2097155 WHERE parent = 5555555", "folder 5555555 is missing, which", 1},
		{"UPDATE tree_entry SET parent = 2097153 WHERE parent = 2097155",
		 "UPDATE tree_entry SET parent = 2097155 WHERE parent = 2097153", "inode 2097153 has names in it", 1},
		{"UPDATE entry SET parent = 2097157 WHERE ino = 2097157",
		 "UPDATE entry SET parent = 100 WHERE ino = 2097157", "uncommitted inode 2097157 has names in it", 1},
	};
	const uint64_t v = meta_virtual(1, 0, 0);
	uint64_t first;

	(void)unused;
	add_layout();
	(void)add_job("one");
	(void)add_job("two");
	force("UPDATE number_block SET first = 100 WHERE job = 1");
	force("UPDATE job SET root = 100 WHERE id = 1");
	OK(meta_numbers_take(catalog, 1, 10, &first, &err));
	force("UPDATE number_block SET first = 8000000 WHERE job = 1 AND first <> 100");
	/* the folders of rank 0 and 1 have no row, and nothing that is virtual */
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(1), S_IFREG, 1);
	put_inode(FILE_NR(3), S_IFDIR, 0);
	put_entry(100, "1", FILE_NR(1));
	put_entry(100, "3", FILE_NR(3));
	put_entry(100, "virtual", v | 1);
	apply();
	(void)commit(0);
	put_inode(102, S_IFDIR, 0);
	put_inode(FILE_NR(3), S_IFDIR, 0);
	put_inode(v | 2, S_IFDIR, 0);
	put_inode(FILE_NR(2), S_IFLNK, 0);
	put_inode(FILE_NR(6), S_IFLNK, 0);
	put_entry(FILE_NR(3), "2", FILE_NR(2));
	put_entry(102, "6", FILE_NR(6));
	put_entry(v | 2, "6", FILE_NR(6));
	put_entry(102, "none", 0);
	apply();
	(void)commit(1);
	force("DELETE FROM tree_inode WHERE ino = 102 OR ino >= 1 << 60");
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(5), S_IFREG, 2);
	put_entry(100, "5", FILE_NR(5));
	put_entry(100, "below", FILE_NR(1));
	put_entry(100, "rank", 101);
	put_entry(100, "virtual", v | 3);
	put_entry(100, "none", 0);
	apply();
	expect_complaints(0, "");
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		force(faults[i].breaks);
		expect_complaints(faults[i].nr, faults[i].says);
		force(faults[i].mends);
		expect_complaints(0, "");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(numbers_tell_their_job, fresh),
		cmocka_unit_test_setup(blocks_join_a_transaction, fresh),
		cmocka_unit_test_setup(what_came_back_goes_with_its_job, fresh),
		cmocka_unit_test_setup(own_blobs_come_and_go, fresh),
		cmocka_unit_test_setup(blobs_in_use_stay, fresh),
		cmocka_unit_test_setup(blobs_say_what_they_are, fresh),
		cmocka_unit_test_setup(a_blob_becomes_another, fresh),
		cmocka_unit_test_setup(names_of_an_inode, fresh),
		cmocka_unit_test_setup(flat_trees_keep_what_needs_no_row, fresh),
		cmocka_unit_test_setup(a_check_names_what_is_missing, fresh),
	};

	make_place(true);
	return leave_place(cmocka_run_group_tests(tests, NULL, NULL));
}
