/* SPDX-License-Identifier: Apache-2.0 */
/* Room in the catalog's log (meta/catalog/reserve.c): its blocks stay from one log to the next, and nothing else of it. */
#include "meta/catalog/catalog.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "tests/support/interpose.h"

#define OK(call) assert_int_equal(0, (call))

static char dir[] = "/tmp/scalai-reserve.XXXXXX";
static struct sc_err err;

static int fresh(void **unused)
{
	(void)unused;
	assert_true(system("rm -f *") == 0);
	return 0;
}

static struct meta_catalog *opened(void)
{
	struct meta_catalog *c;

	OK(meta_catalog_open("db", true, &c, &err));
	return c;
}

static void add_job(struct meta_catalog *c, const char *name)
{
	struct meta_job_row job = {.name = name, .mode = 0755};
	uint64_t layout;

	OK(meta_layout_put(c, "", "", &layout, &err));
	OK(meta_job_add(c, &job, &err));
}

static int on_job(void *arg, const struct meta_job_row *row)
{
	(void)row;
	++*(int *)arg;
	return 0;
}

static int jobs(struct meta_catalog *c)
{
	int nr = 0;

	OK(meta_job_each(c, on_job, &nr, &err));
	return nr;
}

static struct stat stat_of(const char *name)
{
	struct stat st;

	OK(stat(name, &st));
	return st;
}

static void blocks_stay(void **unused)
{
	struct meta_catalog *c = opened();
	ino_t log;

	(void)unused;
	OK(meta_catalog_reserve(c, &err));
	OK(meta_catalog_reserve(c, &err));
	log = stat_of("db-wal").st_ino;
	assert_true((uint64_t)stat_of("db-wal").st_blocks * 512 >= 1 << 20);
	for (int i = 0; i < 3; i++) {
		char name[8];

		(void)snprintf(name, sizeof(name), "job%d", i);
		add_job(c, name);
		(void)meta_catalog_close(c);
		assert_int_equal(-1, access("db-wal", F_OK));
		assert_int_equal(log, stat_of("db-reserve").st_ino);
		assert_true((uint64_t)stat_of("db-reserve").st_blocks * 512 >= 1 << 20);
		c = opened();
		assert_int_equal(i + 1, jobs(c));
		assert_int_equal(log, stat_of("db-wal").st_ino);
		OK(meta_catalog_reserve(c, &err));
	}
	(void)meta_catalog_close(c);
}

/* Enters a folder where the files of a catalog with one job are as they are when its process is killed. */
static void enter_killed(void)
{
	struct meta_catalog *c = opened();

	OK(meta_catalog_reserve(c, &err));
	add_job(c, "one");
	assert_int_equal(0, system("mkdir killed && cp -a db db-wal db-shm db-reserve killed"));
	(void)meta_catalog_close(c);
	OK(chdir("killed"));
}

static void leave_killed(void)
{
	OK(chdir(".."));
	assert_true(system("rm -r killed") == 0);
}

static void a_log_of_one_that_was_killed_is_read(void **unused)
{
	struct meta_catalog *c;

	(void)unused;
	enter_killed();
	assert_int_equal(2, stat_of("db-wal").st_nlink);
	c = opened();
	assert_int_equal(1, jobs(c));
	OK(meta_catalog_reserve(c, &err));
	(void)meta_catalog_close(c);
	c = opened();
	assert_int_equal(1, jobs(c));
	(void)meta_catalog_close(c);
	leave_killed();
}

/* What was left of a log says nothing of the catalog that is beside it. */
static void another_catalog_is_itself(void **unused)
{
	struct meta_catalog *c = opened();

	(void)unused;
	(void)meta_catalog_close(c);
	assert_int_equal(0, system("cp db old"));
	c = opened();
	OK(meta_catalog_reserve(c, &err));
	add_job(c, "one");
	add_job(c, "two");
	(void)meta_catalog_close(c);
	assert_int_equal(0, system("cp old db"));
	c = opened();
	assert_int_equal(0, jobs(c));
	OK(meta_catalog_reserve(c, &err));
	(void)meta_catalog_close(c);
	/* a reserve that was not cleared, as its process was killed between the two */
	c = opened();
	add_job(c, "one");
	assert_int_equal(0, system("cp db-wal log"));
	(void)meta_catalog_close(c);
	assert_int_equal(0, system("cp old db && cp log db-reserve"));
	c = opened();
	assert_int_equal(0, jobs(c));
	(void)meta_catalog_close(c);
}

/* `fsck --rebuild` moves a catalog away with its log, which is as it was then. */
static void a_log_that_was_moved_away_stays_whole(void **unused)
{
	struct meta_catalog *c;

	(void)unused;
	enter_killed();
	assert_int_equal(0, system("mv db bad && mv db-wal bad-wal && rm db-shm && cp bad-wal was"));
	c = opened();
	assert_int_equal(0, jobs(c));
	OK(meta_catalog_reserve(c, &err));
	add_job(c, "other");
	(void)meta_catalog_close(c);
	assert_int_equal(0, system("cmp -s bad-wal was"));
	leave_killed();
}

static enum interpose_call fails;
static int with;

static int judge(enum interpose_call call, long arg)
{
	(void)arg;
	return call == fails ? -with : 0;
}

static void what_fails_is_said_and_tried_again(void **unused)
{
	static const struct {
		enum interpose_call call;
		int with, rc;
	} cases[] = {{CALL_fallocate, ENOSPC, SC_E_NO_SPACE}, {CALL_fallocate, EIO, SC_E_SYSTEM},
		     {CALL_fallocate, EOPNOTSUPP, 0}, {CALL_openat, EMFILE, SC_E_SYSTEM}, {CALL_linkat, EPERM, 0},
		     {CALL_linkat, ENOSPC, SC_E_NO_SPACE}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct meta_catalog *c;

		fresh(unused);
		c = opened();
		fails = cases[i].call;
		with = cases[i].with;
		interpose_begin(UINT64_C(1) << fails, judge);
		assert_int_equal(cases[i].rc, meta_catalog_reserve(c, &err));
		interpose_end();
		OK(meta_catalog_reserve(c, &err));
		add_job(c, "one");
		(void)meta_catalog_close(c);
		c = opened();
		assert_int_equal(1, jobs(c));
		(void)meta_catalog_close(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(blocks_stay, fresh),
		cmocka_unit_test_setup(a_log_of_one_that_was_killed_is_read, fresh),
		cmocka_unit_test_setup(another_catalog_is_itself, fresh),
		cmocka_unit_test_setup(a_log_that_was_moved_away_stays_whole, fresh),
		cmocka_unit_test_setup(what_fails_is_said_and_tried_again, fresh),
	};
	char clean[80];
	int rc;

	sc_log_level(SC_LOG_ERROR);
	if (!mkdtemp(dir) || chdir(dir) < 0)
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return chdir("/") < 0 || system(clean) ? 1 : rc;
}
