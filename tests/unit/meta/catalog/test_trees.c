/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees in the catalog: numbers, what a version and a job have of them, garbage, refusals.  tests/prop/meta/catalog/test_trees.c
 * compares what they hold.
 *
 *     test_catalog_trees              the tests
 *     test_catalog_trees bench        microseconds of the processor, a record and a lookup
 */
#include "tests/unit/meta/catalog/rows.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Numbers of files: behind those of the folders of job and ranks, which begin at 100. */
#define FILE_NR(n) ((UINT64_C(1) << 21) + (n))

/* SQLite's, too. */
static unsigned flushes;

int fdatasync(int fd)
{
	flushes++;
	return (int)syscall(SYS_fdatasync, fd);
}

/* --- numbers --- */

static void numbers_are_given_once(void **unused)
{
	uint64_t first, last = 0;

	(void)unused;
	for (int i = 0; i < 20; i++) {
		unsigned before = flushes;

		OK(meta_numbers_take(catalog, 1, 4096, &first, &err));
		assert_true(first > last);
		last = first + 4095;
		assert_true(flushes > before);
		if (i % 5 == 0) {
			catalog = meta_catalog_close(catalog);
			open_catalog();
		}
	}
	assert_int_equal(SC_E_LIMIT, meta_numbers_take(catalog, 1, UINT64_C(1) << 59, &first, &err));
	assert_int_equal(SC_E_LIMIT, meta_numbers_take(catalog, 1, (UINT64_C(1) << 59) - last, &first, &err));
	OK(meta_numbers_take(catalog, 1, 1, &first, &err));
	assert_int_equal(last + 1, first);
}

/* A process takes numbers, tells of each block that it has it, and is killed. */
static void numbers_outlive_kills(void **unused)
{
	uint64_t last = 0, first;

	(void)unused;
	for (int round = 0; round < 10; round++) {
		int ends[2], status;
		pid_t child;

		catalog = meta_catalog_close(catalog);
		assert_int_equal(0, pipe(ends));
		child = fork();
		if (child == 0) {
			open_catalog();
			while (meta_numbers_take(catalog, 1, 7, &first, &err) == 0)
				if (write(ends[1], &first, sizeof(first)) != sizeof(first))
					break;
			_exit(1);
		}
		(void)close(ends[1]);
		for (int i = 0; i < 5 + round; i++) {
			assert_int_equal(sizeof(first), read(ends[0], &first, sizeof(first)));
			assert_true(first > last);
			last = first + 6;
		}
		assert_int_equal(0, kill(child, SIGKILL));
		while (read(ends[0], &first, sizeof(first)) == sizeof(first))
			last = first + 6;
		assert_int_equal(child, waitpid(child, &status, 0));
		(void)close(ends[0]);
		open_catalog();
	}
	OK(meta_numbers_take(catalog, 1, 1, &first, &err));
	assert_true(first > last);
}

static void sequence_of_the_log(void **unused)
{
	uint64_t a, b;

	OK(meta_tail_applied(catalog, &a, &err));
	assert_int_equal(0, a % 64);
	(void)fresh(unused);
	OK(meta_tail_applied(catalog, &b, &err));
	assert_true(a != b); /* the log of one catalog is not the other's */
	OK(meta_tail_set_applied(catalog, b + 320, &err));
	catalog = meta_catalog_close(catalog);
	open_catalog();
	OK(meta_tail_applied(catalog, &a, &err));
	assert_int_equal(b + 320, a);
}

/* --- versions and jobs --- */

static int keep_version(void *arg, const struct meta_version_row *row)
{
	*(struct meta_version_row *)arg = *row;
	return 0;
}

static int count_change(void *arg, const struct meta_change *x)
{
	(void)x;
	(*(unsigned *)arg)++;
	return 0;
}

static void a_version_tells_its_tree(void **unused)
{
	struct meta_job_row job = {.name = "one"};
	struct meta_version_row v, got;
	uint64_t ino;
	unsigned nr = 0;
	struct meta_tree tree;

	(void)unused;
	OK(meta_job_add(catalog, &job, &err));
	assert_int_equal(1, job.id);
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(0), S_IFLNK, 0);
	put_entry(100, "l", FILE_NR(0));
	apply();
	v = commit(0);
	OK(meta_job_set_head(catalog, 1, v.id, &err));
	OK(meta_version_get(catalog, v.id, keep_version, &got, &err));
	assert_int_equal(v.tree, got.tree);
	assert_int_equal(-5, got.floor_ns);
	/* the job goes, with its upper layer; then its tree */
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(1), S_IFIFO, 0);
	put_entry(100, "f", FILE_NR(1));
	apply();
	tree = (struct meta_tree){.id = v.tree};
	OK(meta_tree_child(catalog, &tree, 100, text("l"), &ino, &err));
	assert_int_equal(FILE_NR(0), ino);
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_job_remove(catalog, 1, &err));
	OK(meta_tree_garbage(catalog, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	OK(meta_upper_each(catalog, 1, count_change, &nr, &err));
	assert_int_equal(0, nr);
	assert_int_equal(SC_E_CORRUPT, meta_tree_child(catalog, &tree, 100, text("l"), &ino, &err));
}

/* --- garbage --- */

static int on_garbage(void *arg, uint64_t blob)
{
	*(uint64_t *)arg |= UINT64_C(1) << blob;
	return 0;
}

static uint64_t garbage(void)
{
	uint64_t set = 0, tree;

	OK(meta_catalog_begin(catalog, false, &err));
	for (OK(meta_tree_to_flatten(catalog, &tree, &err)); tree; OK(meta_tree_to_flatten(catalog, &tree, &err)))
		OK(meta_tree_flatten(catalog, tree, &err));
	OK(meta_garbage(catalog, on_garbage, &set, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	return set;
}

/* Blobs 1 and 2 are committed; 2 is removed; 3 is in the upper layer; nothing has 4. */
static void blobs_of_trees_are_used(void **unused)
{
	struct meta_version_row a, b;
	uint64_t blob;

	(void)unused;
	for (uint64_t i = 1; i <= 4; i++) {
		OK(meta_blob_add(catalog, &blob, &err));
		assert_int_equal(i, blob);
	}
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(1), S_IFREG, 1);
	put_inode(FILE_NR(2), S_IFREG, 2);
	put_entry(100, "1", FILE_NR(1));
	put_entry(100, "2", FILE_NR(2));
	apply();
	a = commit(0);
	put_inode(100, S_IFDIR, 0);
	put_entry(100, "2", 0);
	apply();
	b = commit(a.tree);
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(3), S_IFREG, 3);
	put_entry(100, "3", FILE_NR(3));
	apply();
	assert_int_equal(1 << 4, garbage());
	OK(meta_version_remove(catalog, a.id, &err));
	assert_int_equal(1 << 2, garbage());
	OK(meta_version_remove(catalog, b.id, &err));
	assert_int_equal(1 << 1, garbage());
	assert_int_equal(0, garbage());
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_upper_remove(catalog, 1, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	assert_int_equal(1 << 3, garbage());
}

/* --- refusals --- */

static void refused_commits_change_nothing(void **unused)
{
	struct meta_tree_spec spec = {.job = 1, .root = 100, .topology = ""};
	const struct meta_change bad[] = {
		{META_PUT_ENTRY, .entry = {FILE_NR(300), text("x"), FILE_NR(0)}}, /* the folder has no row */
		{META_DROP_ENTRY, .entry = {100, text("l"), 0}},
		{META_DROP_XATTR, .xattr = {100, text("l"), {0}}},
		{META_PUT_AGAIN, .again = {1, 2}},
	};
	uint64_t tree = 0;

	(void)unused;
	put_inode(100, S_IFDIR, 0);
	put_inode(FILE_NR(0), S_IFLNK, 0);
	put_entry(100, "l", FILE_NR(0));
	apply();
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		unsigned nr = 0;

		spec.rows.nr = 0;
		assert_int_equal(0, sc_vec_push(&spec.rows, bad[i]));
		OK(meta_catalog_begin(catalog, false, &err));
		assert_int_equal(SC_E_CORRUPT,
				 meta_catalog_end(catalog, meta_tree_commit(catalog, &spec, &tree, &err), &err));
		assert_int_equal(0, tree);
		OK(meta_upper_each(catalog, 1, count_change, &nr, &err));
		assert_int_equal(3, nr);
	}
	sc_vec_done(&spec.rows);
	spec = (struct meta_tree_spec){.job = 1, .base = 55, .root = 100, .topology = ""};
	OK(meta_catalog_begin(catalog, false, &err));
	assert_int_equal(SC_E_CORRUPT, meta_catalog_end(catalog, meta_tree_commit(catalog, &spec, &tree, &err), &err));
	assert_non_null(strstr(err.msg, "tree 55 of its chain is missing"));
}

/* --- figures --- */

/* Of the processor: others may use the machine. */
static int64_t cpu_ns(void)
{
	struct timespec now;

	(void)sc_sys.clock(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static char names[200000][16];

/* Record i of the creation of a file: its row, its entry, its folder's row. */
static void say_create(unsigned i)
{
	(void)snprintf(names[i], sizeof(names[i]), "file-%07u", i);
	put_inode(FILE_NR(i), S_IFREG | 0644, 1 + i);
	put_entry(root + i / 1000, names[i], FILE_NR(i));
	put_inode(root + i / 1000, S_IFDIR | 0755, 0);
}

static void bench_apply(unsigned files, unsigned batch)
{
	int64_t began = cpu_ns();

	for (unsigned i = 0; i < files; i += batch) {
		OK(meta_catalog_begin(catalog, false, &err));
		for (unsigned k = i; k < i + batch && k < files; k++)
			say_create(k);
		OK(meta_upper_apply(catalog, &record, &err));
		OK(meta_tail_set_applied(catalog, i, &err));
		OK(meta_catalog_end(catalog, 0, &err));
		record.nr = 0;
	}
	printf("%u records of a create, %u in a transaction: %.2f us a record\n", files, batch,
	       (double)(cpu_ns() - began) / files / 1e3);
}

static void bench_lookups(uint64_t id, unsigned files, const char *what)
{
	struct meta_tree tree = {.id = id};
	struct meta_inode_row row;
	int64_t began = cpu_ns();
	uint64_t ino;

	for (unsigned i = 0; i < files; i++)
		OK(meta_tree_child(catalog, &tree, root + i / 1000, text(names[i]), &ino, &err));
	printf("%s: a name of %u: %.2f us\n", what, files, (double)(cpu_ns() - began) / files / 1e3);
	began = cpu_ns();
	for (unsigned i = 0; i < files; i++)
		OK(meta_tree_inode(catalog, &tree, FILE_NR(i), &row, NULL, &err));
	printf("%s: an inode: %.2f us\n", what, (double)(cpu_ns() - began) / files / 1e3);
	began = cpu_ns();
	for (unsigned i = 0; i < files; i++)
		OK(meta_tree_child(catalog, &tree, root + i / 1000, text("absent"), &ino, &err));
	printf("%s: an absent name: %.2f us\n", what, (double)(cpu_ns() - began) / files / 1e3);
}

static int on_entry(void *arg, const struct meta_entry_row *row)
{
	(void)row;
	(*(unsigned *)arg)++;
	return 0;
}

static void bench_listing(uint64_t id, const char *what)
{
	struct meta_tree tree = {.id = id};
	unsigned nr = 0;
	int64_t began = cpu_ns();

	for (unsigned i = 0; i < 100; i++)
		OK(meta_tree_children(catalog, &tree, root + i % 10, on_entry, &nr, &err));
	printf("%s: a listing: %.2f us a name\n", what, (double)(cpu_ns() - began) / nr / 1e3);
}

static void bench_names(uint64_t id, unsigned files)
{
	struct meta_tree tree = {.id = id};
	unsigned nr = 0;
	int64_t began = cpu_ns();

	for (unsigned i = 0; i < files; i++)
		OK(meta_tree_names(catalog, &tree, FILE_NR(i), on_entry, &nr, &err));
	assert_int_equal(files, nr);
	printf("8 trees: the names of an inode: %.2f us\n", (double)(cpu_ns() - began) / files / 1e3);
}

static void time_of(const char *what, int64_t began, unsigned files)
{
	printf("%s: %.0f ms (%.2f us a file)\n", what, (double)(cpu_ns() - began) / 1e6,
	       (double)(cpu_ns() - began) / files / 1e3);
}

static int bench(void)
{
	enum { FILES = 100000 };
	struct meta_job_row job = {.name = "one"};
	struct meta_version_row v;
	uint64_t first, clone;
	unsigned nr = 0;
	int64_t began = sc_now_ns();

	open_catalog();
	for (int i = 0; i < 20; i++)
		OK(meta_numbers_take(catalog, 1, 4096, &first, &err));
	printf("a block of numbers: %.0f us by the clock\n", (double)(sc_now_ns() - began) / 20 / 1e3);
	bench_apply(FILES, 256);
	(void)fresh(NULL);
	OK(meta_job_add(catalog, &job, &err));
	root = job.root;
	bench_apply(FILES, 4096);
	began = cpu_ns();
	OK(meta_upper_each(catalog, 1, count_change, &nr, &err));
	time_of("loading an upper layer", began, FILES);
	began = cpu_ns();
	v = commit(0);
	time_of("commit", began, FILES);
	bench_lookups(v.tree, FILES, "1 tree");
	bench_listing(v.tree, "1 tree");
	for (unsigned t = 1; t < 8; t++) {
		for (unsigned i = t * 1000; i < t * 1000 + 10; i++)
			say_create(i);
		apply();
		v = commit(v.tree);
	}
	bench_lookups(v.tree, FILES, "8 trees");
	bench_listing(v.tree, "8 trees");
	bench_names(v.tree, FILES);
	OK(meta_numbers_take(catalog, 1, UINT64_C(1) << 22, &first, &err)); /* all of these, by now */
	began = cpu_ns();
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_job_clone(catalog, 1, "clone", 0, 0, &clone, &first, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	time_of("a clone of 8 trees", began, FILES);
	began = cpu_ns();
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_flatten(catalog, v.tree, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	time_of("making 8 trees flat", began, FILES);
	bench_lookups(v.tree, FILES, "flat");
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(numbers_are_given_once, fresh),
		cmocka_unit_test_setup(numbers_outlive_kills, fresh),
		cmocka_unit_test_setup(sequence_of_the_log, fresh),
		cmocka_unit_test_setup(a_version_tells_its_tree, fresh),
		cmocka_unit_test_setup(blobs_of_trees_are_used, fresh),
		cmocka_unit_test_setup(refused_commits_change_nothing, fresh),
	};
	int rc;

	(void)argv;
	make_place(argc < 2);
	rc = argc > 1 ? bench() : cmocka_run_group_tests(tests, NULL, NULL);
	return leave_place(rc);
}
