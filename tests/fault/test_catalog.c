/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite's allocations fail one by one, in each command and in the start of a service.  A command is refused with
 * "out of memory", and rows and status are as before; or it does all that it says: its job's rows are those of a
 * reference job, which was given the same command without a fault.  The reference goes first, so that statements are
 * prepared already and what fails is their use; with `cold` a new service prepares them.  Without a mount.
 */
#include "tests/fault/commands.h"

#include "meta/base/log.h"
#include "tests/fault/sqlite_memory.h"
#include "tests/fault/watchdog.h"
#include "tests/support/every.h"

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

static void arm(long n)
{
	watchdog_step();
	sqlite_memory.left = n;
	sqlite_memory.failures = 0;
	sqlite_memory.armed = true;
}

static long total, swallowed;
static bool cold;	/* statements are new */

/* In the gate one in six of the first thirty, others in each of the three runs. */
static long first_fault(void)
{
	return every() == 1 ? 0 : cold ? 2 : sqlite_memory.lasts ? 4 : 0;
}

static long next_fault(long n)
{
	return n + (n < 30 ? every_at_most(6) : every());
}

static void fail_in_turn(struct rs_job *job, const struct command *c)
{
	char *before = rows_of(rs_job_id(job)), *status = status_of(job);
	bool is_work = c->run == do_work || c->run == do_scrub;
	struct sc_err err = {0};
	int rc = -1;

	for (long n = first_fault(); rc != 0 || (is_work && sqlite_memory.failures); n = next_fault(n)) {
		arm(n);
		rc = c->run(job, c->text, &err);
		sqlite_memory.armed = false;
		total += sqlite_memory.failures;
		swallowed += rc == 0 ? sqlite_memory.failures : 0;
		if (rc != 0 && (rc != SC_E_NO_MEMORY || !sqlite_memory.failures))
			fail_msg("%s, allocation %ld: %d '%s' after %ld failures", c->what, n, rc, err.msg, sqlite_memory.failures);
		if (rc != 0 && !is_work) {
			char *after = rows_of(rs_job_id(job)), *later = status_of(job);

			expect_text(after, before, c->what, n, &err);
			expect_text(later, status, c->what, n, &err);
			sc_sys.release(after);
			sc_sys.release(later);
		}
	}
	sc_sys.release(before);
	sc_sys.release(status);
}

static void all_commands(void)
{
	struct rs_job *reference = NULL, *job = NULL;
	struct sc_err err = {0};
	char clean[100];

	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-catalog.XXXXXX" : "/tmp/scalai-catalog.XXXXXX");
	assert_non_null(mkdtemp(dir));
	start_service();
	assert_int_equal(0, rs_job_make(service, "reference", 0755, geteuid(), getegid(), &reference, &err));
	for (long n = 0; !job; n++) {
		arm(n);
		if (rs_job_make(service, "gpt", 0755, geteuid(), getegid(), &job, &err) < 0 && err.code != SC_E_NO_MEMORY)
			fail_msg("job, allocation %ld: %s", n, err.msg);
		sqlite_memory.armed = false;
	}
	for (size_t i = 0; commands[i].run; i++) {
		const struct command *c = &commands[i];
		char *want, *got;

		if (c->run(reference, c->text, &err) < 0)
			fail_msg("%s: %s", c->what, err.msg);
		if (cold && !rs_job_is_removed(reference)) /* it is removed in the end */
			restart_service(&job, &reference);
		fail_in_turn(job, c);
		want = rows_of(rs_job_id(reference));
		got = rows_of(rs_job_id(job));
		expect_text(got, want, c->what, -1, &err);
		sc_sys.release(want);
		sc_sys.release(got);
		check_store();
	}
	service = rs_service_free(service);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static void prepared_statements(void **unused)
{
	(void)unused;
	all_commands();
}

static void memory_stays_away(void **unused)
{
	(void)unused;
	sqlite_memory.lasts = true;
	all_commands();
	sqlite_memory.lasts = false;
}

static void new_statements(void **unused)
{
	(void)unused;
	cold = true;
	all_commands();
	cold = false;
}

/* A store with a version, a dataset and a working tree: a start has all of it or is refused. */
static void starts(void **unused)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err = {0};
	struct rs_job *job = NULL;
	char clean[100], *want;
	int rc;

	(void)unused;
	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-catalog.XXXXXX" : "/tmp/scalai-catalog.XXXXXX");
	assert_non_null(mkdtemp(dir));
	start_service();
	assert_int_equal(0, rs_job_make(service, "gpt", 0755, geteuid(), getegid(), &job, &err));
	for (size_t i = 0; commands[i].run != do_tag; i++)
		assert_int_equal(0, commands[i].run(job, commands[i].text, &err));
	assert_int_equal(0, do_add_data(job, "", &err));
	assert_int_equal(0, do_create(job, "0 b", &err));
	service = rs_service_free(service);
	start_service();
	want = status_of(rs_job_at(service, 0));
	for (long n = 0;; n = next_point(n)) {
		service = rs_service_free(service);
		arm(n);
		rc = rs_service_new(&options, &service, &err);
		sqlite_memory.armed = false;
		total += sqlite_memory.failures;
		if (rc == 0) {
			char *got;

			job = rs_job_at(service, 0);
			assert_non_null(job);
			got = status_of(job);
			expect_text(got, want, "start", n, &err);
			sc_sys.release(got);
			if (!sqlite_memory.failures)
				break;
			swallowed++;
		} else if (rc != SC_E_NO_MEMORY || !sqlite_memory.failures) {
			fail_msg("start, allocation %ld: %d '%s' after %ld failures", n, rc, err.msg, sqlite_memory.failures);
		}
	}
	sc_sys.release(want);
	service = rs_service_free(service);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static int say(void **unused)
{
	(void)unused;
	printf("# %ld faults, %ld of them could be done without\n", total, swallowed);
	assert_true(total > 1000 / every_at_most(3));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prepared_statements),
		cmocka_unit_test(new_statements),
		cmocka_unit_test(memory_stays_away),
		cmocka_unit_test(starts),
	};

	sc_log_level(SC_LOG_ERROR);
	if (watchdog_start())
		return 1;
	return cmocka_run_group_tests_name("catalog", tests, sqlite_memory_take, say);
}
