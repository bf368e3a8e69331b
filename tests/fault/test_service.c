/* SPDX-License-Identifier: Apache-2.0 */
/* What the service holds in memory, under hands that come at the same time and calls that fail.  Without a mount. */
#include "reshard/service/service.h"

#include "meta/base/log.h"
#include "tests/fault/house.h"
#include "tests/support/paths.h"
#include "tests/support/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

static unsigned lines_logged;

/* --- names of jobs: whoever logs one has a copy, for a rename frees it --- */

static struct house *renamed;	/* its job gets another name while a line is logged */

/* In the place of meta/base/log.c. */
void sc_log(enum sc_log_level level, const char *fmt, ...)
{
	static unsigned nr;
	char line[2048], name[40];
	struct sc_err err;
	va_list ap;

	(void)level;
	(void)snprintf(name, sizeof(name), "name%u", nr++);
	if (renamed)
		assert_int_equal(0, rs_job_rename(renamed->s, renamed->job, name, &err));
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	lines_logged++;
}

static void names_are_copied(void **unused)
{
	struct house h;
	struct sc_err err;

	(void)unused;
	open_house(&h, true);
	commit_sample(&h);
	lines_logged = 0;
	renamed = &h;
	assert_int_equal(0, rs_job_topology(RS_CALLER(h.s), h.job, "tp=1 pp=1", &err));
	assert_int_equal(0, rs_service_work(h.s, &err));
	renamed = NULL;
	assert_true(lines_logged > 0); /* "is materialized" */
	close_house(&h);
}

/* --- a row of the working tree that the log, then the catalog, has is in memory, too: memory is had before --- */

static void *bad_alloc(size_t bytes)
{
	return fails_now() ? NULL : real.alloc(bytes);
}

static void *bad_resize(void *p, size_t bytes)
{
	return fails_now() ? NULL : real.resize(p, bytes);
}

static uint64_t count_rows(const struct house *h, const char *sql)
{
	char path[60];
	sqlite3 *db;
	sqlite3_stmt *stmt;
	uint64_t n;

	(void)snprintf(path, sizeof(path), "%s/scalai.db", h->dir);
	assert_int_equal(SQLITE_OK, sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL));
	assert_int_equal(SQLITE_OK, sqlite3_prepare_v2(db, sql, -1, &stmt, NULL));
	assert_int_equal(SQLITE_ROW, sqlite3_step(stmt));
	n = (uint64_t)sqlite3_column_int64(stmt, 0);
	(void)sqlite3_finalize(stmt);
	(void)sqlite3_close(db);
	return n;
}

static int on_listed(void *arg, const char *name, mode_t type)
{
	(void)name;
	(void)type;
	++*(uint64_t *)arg;
	return 0;
}

static void check_tree(const struct house *h, const char *when, long n)
{
	uint64_t listed = 0, rows;
	struct sc_err err = {0};
	char sql[100];

	if (rs_tree_flush(h->s, &err) < 0)
		fail_msg("%s, allocation %ld failed: %s", when, n, err.msg);
	(void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM entry WHERE parent = %" PRIu64, rs_job_root(h->job) + 1);
	rows = count_rows(h, sql);
	assert_int_equal(0, rs_list(h->s, h->job, NULL, 0, "", on_listed, &listed, &err));
	if (listed != rows)
		fail_msg("%s, allocation %ld failed: %d rows, %d files are listed", when, n, (int)rows, (int)listed);
}

static int create(struct house *h, const char *name, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t blob;
	int fd, rc = work_create(h->s, h->job, 0, name, &owner, &blob, &fd, err);

	if (rc == 0)
		(void)close(fd);
	return rc;
}

static void rows_are_in_memory(void **unused)
{
	char name[40], other[40];
	struct house h;
	struct sc_err err;

	(void)unused;
	open_house(&h, true);
	assert_int_equal(0, work_make_rank(h.s, h.job, 0, &err));
	real = sc_sys;
	for (int i = 0; i < 40; i++) {
		(void)snprintf(name, sizeof(name), "file%d", i);
		(void)snprintf(other, sizeof(other), "moved%d", i);
		for (long n = 0;; n++) {
			int rc;

			left = n;
			failed = false;
			sc_sys.alloc = bad_alloc;
			sc_sys.resize = bad_resize;
			rc = create(&h, name, &err);
			sc_sys = real;
			check_tree(&h, "create", n);
			if (rc == 0)
				break;
			assert_true(failed);
		}
		for (long n = 0;; n++) {
			int rc;

			left = n;
			failed = false;
			sc_sys.alloc = bad_alloc;
			sc_sys.resize = bad_resize;
			rc = work_rename(h.s, h.job, 0, name, 0, other, false, &err);
			sc_sys = real;
			check_tree(&h, "rename", n);
			if (rc == 0)
				break;
			assert_true(failed);
		}
	}
	close_house(&h);
}

/* --- a file that is written again and again: what it replaces leaves no rows --- */

static uint64_t count_blobs(const struct house *h)
{
	struct sc_err err = {0};

	/* rows of blobs that nothing has go in the background */
	if (rs_tree_flush(h->s, &err) < 0 || rs_service_work(h->s, &err) < 0)
		fail_msg("%s", err.msg);
	return count_rows(h, "SELECT count(*) FROM blob");
}

static void replaced_rows_go(void **unused)
{
	uint64_t before;
	struct house h;
	struct sc_err err;

	(void)unused;
	open_house(&h, true);
	assert_int_equal(0, create(&h, "a", &err));
	before = count_blobs(&h);
	for (int i = 0; i < 50; i++) {
		assert_int_equal(0, work_unlink(h.s, h.job, 0, "a", &err));
		assert_int_equal(0, create(&h, "a", &err));
		assert_int_equal(0, create(&h, "a.new", &err));
		assert_int_equal(0, work_rename(h.s, h.job, 0, "a.new", 0, "a", false, &err));
	}
	assert_int_equal(before, count_blobs(&h));
	for (uint32_t rank = 0; rank < 4; rank++)
		put_model(h.s, h.job, rank, "model.safetensors");
	assert_int_equal(0, rs_job_commit(RS_CALLER(h.s), h.job, "", &err));
	before = count_blobs(&h);
	for (int i = 0; i < 50; i++) { /* the whiteout of the committed file is replaced, too */
		assert_int_equal(0, work_unlink(h.s, h.job, 0, "a", &err));
		assert_int_equal(0, create(&h, "a", &err));
	}
	assert_int_equal(before + 1, count_blobs(&h));
	close_house(&h);
}

/* --- jobs by name and number --- */

static void jobs_are_found(void **unused)
{
	struct rs_job *jobs[100];
	char name[40];
	struct house h;
	struct sc_err err;

	(void)unused;
	open_house(&h, true);
	for (int i = 0; i < 100; i++) {
		(void)snprintf(name, sizeof(name), "job%d", i);
		assert_int_equal(0, rs_job_make(h.s, name, 0755, 0, 0, &jobs[i], &err));
		assert_int_equal(SC_E_EXISTS, rs_job_make(h.s, name, 0755, 0, 0, &jobs[i], &err));
	}
	for (int i = 0; i < 100; i += 3) {
		(void)snprintf(name, sizeof(name), "other%d", i);
		assert_int_equal(0, rs_job_rename(h.s, jobs[i], name, &err));
	}
	for (int i = 0; i < 100; i += 2)
		assert_int_equal(0, rs_job_remove(h.s, jobs[i], &err));
	assert_int_equal(SC_E_NOT_FOUND, rs_job_rename(h.s, jobs[0], "again", &err));
	for (int i = 0; i < 100; i++) {
		(void)snprintf(name, sizeof(name), "%s%d", i % 3 ? "job" : "other", i);
		assert_ptr_equal(i % 2 ? jobs[i] : NULL, rs_job_by_name(h.s, name));
		(void)snprintf(name, sizeof(name), "%s%d", i % 3 ? "other" : "job", i);
		assert_null(rs_job_by_name(h.s, name));
		assert_ptr_equal(jobs[i], rs_job_by_id(h.s, rs_job_id(jobs[i])));
	}
	close_house(&h);
}

/* --- the worker waits by the clock of sc_sys --- */

static unsigned waits;		/* atomic; of the worker, for another try */
static int64_t waited_ns;	/* atomic; for so long, the longest of them: it also waits for what was met to settle */

static int short_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ns)
{
	int64_t now = sc_now_ns();

	if (ns - now > __atomic_load_n(&waited_ns, __ATOMIC_RELAXED)) /* one thread waits */
		__atomic_store_n(&waited_ns, ns - now, __ATOMIC_RELAXED);
	(void)__atomic_add_fetch(&waits, 1, __ATOMIC_RELEASE);
	return real.wait_until(cond, lock, now + 1000000);
}

/* No descriptor for a new blob, until the worker has waited three times. */
static int busy_openat(int dir, const char *path, int flags, mode_t mode)
{
	if (!(flags & O_CREAT) || __atomic_load_n(&waits, __ATOMIC_ACQUIRE) >= 3)
		return real.openat(dir, path, flags, mode);
	errno = EMFILE;
	return -1;
}

static void worker_waits_by_the_clock(void **unused)
{
	struct house h;
	struct sc_err err;
	int64_t began = sc_now_ns();

	(void)unused;
	real = sc_sys;
	sc_sys.wait_until = short_wait;
	open_house(&h, false);
	commit_sample(&h);
	sc_sys.openat = busy_openat;
	assert_int_equal(0, rs_job_topology(RS_CALLER(h.s), h.job, "tp=4 pp=1", &err));
	while (rs_job_wait_poll(h.s, h.job, 2, &err) != 1)
		if (sc_now_ns() - began > INT64_C(60000000000))
			fail_msg("%u waits", waits);
		else
			(void)usleep(1000);
	assert_true(__atomic_load_n(&waits, __ATOMIC_ACQUIRE) >= 3);
	assert_true(__atomic_load_n(&waited_ns, __ATOMIC_RELAXED) > 1000000000);
	close_house(&h);
	sc_sys = real;
}

/* --- `wait` ends with the error of an attempt, also where the next one may pass --- */

static int cannot_make;		/* blobs, atomic: the errno */
static bool has_room;		/* atomic; more than before */

static int poor_openat(int dir, const char *path, int flags, mode_t mode)
{
	int why = __atomic_load_n(&cannot_make, __ATOMIC_ACQUIRE);

	if (!why || !(flags & O_CREAT))
		return real.openat(dir, path, flags, mode);
	errno = why;
	return -1;
}

static int roomy_fstatvfs(int fd, struct statvfs *st)
{
	int rc = real.fstatvfs(fd, st);

	st->f_bfree = __atomic_load_n(&has_room, __ATOMIC_ACQUIRE) ? 2000 : 1000;
	return rc;
}

/* What fs/ does when a program writes to `wait`; 30 s are for ever. */
static int wait_for_head(struct house *h, struct sc_err *err)
{
	int64_t began = sc_now_ns();
	uint64_t version;
	int rc = rs_job_wait_parse(h->s, h->job, "", &version, err);

	while (rc == 0 && sc_now_ns() - began < INT64_C(30000000000)) {
		rc = rs_job_wait_poll(h->s, h->job, version, err);
		(void)usleep(1000);
	}
	return rc;
}

static void expect_waits(struct house *h, int errnum)
{
	struct sc_err err = {0};
	const char *why;

	assert_true(wait_for_head(h, &err) < 0);
	why = strstr(err.msg, strerror(errnum));
	if (err.errnum != errnum || !why || strstr(why + 1, strerror(errnum)) || /* said once */
	    !strstr(err.msg, "version 2 is not materialized: ") || !strstr(err.msg, "model.safetensors"))
		fail_msg("errno %d: %s", err.errnum, err.msg);
}

static void waits_end_with_errors(void **unused)
{
	struct house h;
	struct sc_err err = {0};

	(void)unused;
	real = sc_sys;
	open_house(&h, false);
	commit_sample(&h);
	assert_int_equal(1, wait_for_head(&h, &err));
	cannot_make = EMFILE;
	sc_sys.openat = poor_openat;
	sc_sys.fstatvfs = roomy_fstatvfs;
	assert_int_equal(0, rs_job_topology(RS_CALLER(h.s), h.job, "tp=4 pp=1", &err));
	expect_waits(&h, EMFILE);
	expect_waits(&h, EMFILE);
	__atomic_store_n(&cannot_make, ENOSPC, __ATOMIC_RELEASE);
	/* an attempt that had begun before ends as those before */
	if (wait_for_head(&h, &err) < 0 && err.errnum != EMFILE)
		assert_int_equal(ENOSPC, err.errnum);
	expect_waits(&h, ENOSPC);
	expect_waits(&h, ENOSPC); /* it is not even tried: there is no more room than before */
	__atomic_store_n(&cannot_make, 0, __ATOMIC_RELEASE);
	expect_waits(&h, ENOSPC);
	__atomic_store_n(&has_room, true, __ATOMIC_RELEASE);
	assert_int_equal(1, wait_for_head(&h, &err));
	close_house(&h);
	sc_sys = real;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_copied),
		cmocka_unit_test(rows_are_in_memory),
		cmocka_unit_test(replaced_rows_go),
		cmocka_unit_test(jobs_are_found),
		cmocka_unit_test(worker_waits_by_the_clock),
		cmocka_unit_test(waits_end_with_errors),
	};

	return cmocka_run_group_tests_name("service", tests, NULL, NULL);
}
