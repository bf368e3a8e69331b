/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs change one path of a working tree at the same time (N1 to N3 of reshard/tree/work.c).  The second comes
 * at a call of the system that the first makes; afterwards each file of the store has a row, also without another start.
 */
#include "reshard/state/state_i.h"
#include "reshard/job/service.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "tests/support/interpose.h"

#define PATH "f"
#define BYTES 3000000	/* a copy takes several writes */

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;
static const struct rs_owner owner = {0, 0, 0644};

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void put(const char *path, char fill, size_t bytes)
{
	char *data = malloc(bytes);
	struct sc_err err;
	uint64_t blob;
	int fd;

	memset(data, fill, bytes);
	must(rs_work_create(s, job, 0, path, &owner, &blob, &fd, &err), &err);
	assert_int_equal(bytes, write(fd, data, bytes));
	(void)close(fd);
	free(data);
}

/* 'f' is committed, 'f.tmp' is written. */
static void begin(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err;

	sc_log_level(SC_LOG_ERROR);
	(void)strcpy(dir, "/tmp/scalai-tree.XXXXXX");
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "use replicated", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "dp=1", &err), &err);
	put(PATH, 'a', BYTES);
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	put(PATH ".tmp", 'b', 10);
}

static int on_file(void *arg, uint64_t blob)
{
	struct sc_err err;
	int known = meta_blob_known(s->catalog, blob, &err);

	must(known, &err);
	*(int *)arg += !known;
	return 0;
}

/* Also in the store that is left when the service has ended; it is opened as fsck does, which removes nothing. */
static void end(void)
{
	struct rs_options look = {.store = dir, .quiet_worker = true, .keep_garbage = true};
	struct sc_err err;
	char clean[100];
	int unknown = 0;

	must(rs_job_discard(s, job, &err), &err);
	must(rs_service_work(s, &err), &err);
	rs_service_free(s);
	must(rs_service_new(&look, &s, &err), &err);
	must(meta_store_each(&s->store, on_file, &unknown, &err), &err);
	assert_int_equal(0, unknown);
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static enum rs_kind kind_of(const char *path, uint64_t *ret_blob)
{
	struct rs_look look;
	struct sc_err err;

	must(rs_look(s, job, NULL, 0, path, &look, &err), &err);
	*ret_blob = look.blob;
	return look.kind;
}

/* --- what the second program does, once, when the first makes a file --- */

static void (*second)(void);

static int when_made(enum interpose_call call, long flags)
{
	void (*now)(void) = second;

	if (call == CALL_openat && !(flags & O_CREAT))
		return 0;
	second = NULL;
	if (now)
		now();
	return 0;
}

static void rename_over(void)
{
	struct sc_err err;

	must(rs_work_rename(s, job, 0, PATH ".tmp", 0, PATH, false, &err), &err);
}

static void remove_it(void)
{
	struct sc_err err;

	must(rs_work_unlink(s, job, 0, PATH, &err), &err);
}

static void rename_away(void)
{
	struct sc_err err;

	must(rs_work_rename(s, job, 0, PATH, 0, "elsewhere", false, &err), &err);
}

static void copy_it(void)
{
	struct sc_err err;
	uint64_t blob;

	must(rs_work_copy_up(s, job, 0, PATH, true, &blob, &err), &err);
}

static void (*const seconds[])(void) = {rename_over, remove_it, rename_away, copy_it};

/* --- tests --- */

/* The copy of an open for writing: what the second program did stays, and no file is left without a row. */
static void an_open_meets_another_change(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(seconds) / sizeof(*seconds); i++) {
		uint64_t blob = 0, now;
		struct sc_err err;
		int rc;

		begin();
		second = seconds[i];
		interpose_begin(INTERPOSE(openat), when_made);
		rc = rs_work_copy_up(s, job, 0, PATH, false, &blob, &err);
		interpose_end();
		assert_null(second);
		if (seconds[i] == remove_it || seconds[i] == rename_away) {
			assert_int_equal(SC_E_STALE, rc);
			assert_int_equal(RS_NONE, kind_of(PATH, &now));
		} else {
			must(rc, &err);
			assert_int_equal(RS_WORK, kind_of(PATH, &now));
			assert_true(now == blob);
		}
		end();
	}
}

/* A rename copies a committed file, too. */
static void a_rename_meets_another_change(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(seconds) / sizeof(*seconds); i++) {
		bool is_gone = seconds[i] == remove_it || seconds[i] == rename_away;
		uint64_t blob;
		struct sc_err err;
		int rc;

		begin();
		second = seconds[i];
		interpose_begin(INTERPOSE(openat), when_made);
		rc = rs_work_rename(s, job, 0, PATH, 0, "new", false, &err);
		interpose_end();
		assert_null(second);
		assert_int_equal(is_gone ? SC_E_NOT_FOUND : 0, rc);
		assert_int_equal(RS_NONE, kind_of(PATH, &blob));
		assert_int_equal(is_gone ? RS_NONE : RS_WORK, kind_of("new", &blob));
		end();
	}
}

static void create_new(void)
{
	put("new", 'c', 10);
}

/* Two programs make one file: one of them, and the other learns that it exists. */
static void a_create_meets_another(void **unused)
{
	struct sc_err err;
	uint64_t blob;
	int fd;

	(void)unused;
	begin();
	second = create_new;
	interpose_begin(INTERPOSE(openat), when_made);
	assert_int_equal(SC_E_EXISTS, rs_work_create_new(s, job, 0, "new", &owner, &blob, &fd, &err));
	interpose_end();
	assert_null(second);
	end();
}

static int nr_looked;

static int when_written(enum interpose_call call, long bytes)
{
	uint64_t blob;

	(void)bytes;
	if (call == CALL_clone_range)
		return -EOPNOTSUPP;
	if (call == CALL_copy_range)
		return -EXDEV;
	nr_looked++;
	assert_int_equal(RS_BLOB, kind_of(PATH, &blob));
	return 0;
}

/* Who opens the path meanwhile finds the committed file, not the beginning of its copy. */
static void nobody_finds_half_a_copy(void **unused)
{
	struct sc_err err;
	uint64_t blob;

	(void)unused;
	begin();
	interpose_begin(INTERPOSE(clone_range) | INTERPOSE(copy_range) | INTERPOSE(pwrite), when_written);
	must(rs_work_copy_up(s, job, 0, PATH, false, &blob, &err), &err);
	interpose_end();
	assert_true(nr_looked >= 3);
	assert_int_equal(RS_WORK, kind_of(PATH, &blob));
	end();
}

/* The kernel sends no RELEASE of what was closed in a mount's last moment. */
static void a_removed_file_goes_with_the_mount(void **unused)
{
	struct sc_err err;
	uint64_t blob;

	(void)unused;
	for (int counted = 0; counted < 3; counted++) {
		begin();
		assert_int_equal(RS_WORK, kind_of(PATH ".tmp", &blob));
		if (counted == 0)
			must(rs_work_hold(s, blob, &err), &err);
		else if (counted == 1)
			must(rs_writer_begin(s, blob, &err), &err);
		else
			must(rs_writer_reserve(s, blob, INT64_MAX, &err), &err);
		must(rs_work_unlink(s, job, 0, PATH ".tmp", &err), &err);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_open_meets_another_change),
		cmocka_unit_test(a_rename_meets_another_change),
		cmocka_unit_test(a_create_meets_another),
		cmocka_unit_test(nobody_finds_half_a_copy),
		cmocka_unit_test(a_removed_file_goes_with_the_mount),
	};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
