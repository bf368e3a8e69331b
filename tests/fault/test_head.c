/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second kind of head: it wraps "local", and refuses the n-th of its calls before anything has happened.  For each
 * command and each n the job's rows and status are as before, the gate is open, and the command that is repeated does all
 * that it says: its job is like a reference job that no call was refused to.  Without a mount.
 */
#include "tests/fault/commands.h"

#include "meta/base/log.h"
#include "reshard/command/commands/head.h"
#include "reshard/worktree/requests/tree.h"
#include "tests/fault/watchdog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants three of the above first */
#include <cmocka.h>

/* --- the kind --- */

static bool armed;
static long left, calls, refused, refused_begin, refused_publish, refused_settle, refused_amend;

static int refuse(long *count, struct sc_err *err)
{
	calls += armed;
	if (!armed || left-- != 0)
		return 0;
	refused++;
	(*count)++;
	return sc_fail(err, SC_E_BUSY, "another node moves the head; try again");
}

static int refusing_requested(void *arg, uint64_t token, struct sc_err *err)
{
	return rs_head_local.requested(arg, token, err);
}

static int refusing_begin(void *arg, struct rs_advance *a, struct sc_err *err)
{
	int rc = refuse(&refused_begin, err);

	return rc < 0 ? rc : rs_head_local.begin(arg, a, err);
}

static int refusing_publish(void *arg, struct rs_advance *a, struct sc_err *err)
{
	int rc = refuse(&refused_publish, err);

	if (rc == 0)
		return rs_head_local.publish(arg, a, err);
	rs_head_local.abort(arg, a);
	return rc;
}

static void refusing_abort(void *arg, struct rs_advance *a)
{
	rs_head_local.abort(arg, a);
}

static int refusing_settle(void *arg, struct rs_view *of, struct rs_view *next, struct rs_set *const *sets,
			   struct sc_err *err)
{
	int rc = refuse(&refused_settle, err);

	return rc < 0 ? rc : rs_head_local.settle(arg, of, next, sets, err);
}

static int refusing_amend(void *arg, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	int rc = refuse(&refused_amend, err);

	return rc < 0 ? rc : rs_head_local.amend(arg, job, change, err);
}

static const struct rs_head_ops refusing = {
	.name = "refusing",
	.requested = refusing_requested,
	.begin = refusing_begin,
	.publish = refusing_publish,
	.abort = refusing_abort,
	.settle = refusing_settle,
	.amend = refusing_amend,
};

/* --- each command --- */

/* Of the commands, those whose rows only the head writes. */
static bool goes_by_head(const struct command *c)
{
	static const char *const names[] = {"layout", "topology", "config", "commit", "tag", "data", "rollback", "clone",
					    "remove"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (strcmp(c->what, names[i]) == 0)
			return true;
	return false;
}

/* Refused once at each call that it makes, then not. */
static void refuse_in_turn(struct rs_job *job, const struct command *c)
{
	long refused_before = refused;
	char *before = rows_of(rs_job_id(job)), *status = status_of(job);
	bool is_work = c->run == do_work || c->run == do_scrub;
	struct sc_err err = {0};
	int rc = -1;

	for (long n = 0, was = -1; rc != 0 || refused != was; n++) {
		char *after, *later;

		watchdog_step();
		was = refused;
		left = n;
		armed = true;
		rc = c->run(job, c->text, &err);
		armed = false;
		if (refused == was && rc != 0)
			fail_msg("%s: %d '%s', and nothing was refused", c->what, rc, err.msg);
		if (refused == was)
			break;
		if (!is_work && rc != SC_E_BUSY)
			fail_msg("%s, call %ld was refused: %d '%s'", c->what, n, rc, err.msg);
		rs_tree_enter(job); /* the gate is open, or the watchdog ends this */
		rs_tree_leave(job);
		after = rows_of(rs_job_id(job));
		later = status_of(job);
		if (!is_work) {
			expect_text(after, before, c->what, n, &err);
			expect_text(later, status, c->what, n, &err);
		}
		sc_sys.release(after);
		sc_sys.release(later);
		rc = -1;
	}
	if (goes_by_head(c) && refused == refused_before)
		fail_msg("%s changed the job without a call of the head", c->what);
	sc_sys.release(before);
	sc_sys.release(status);
}

static void refused_in_turn(void **unused)
{
	struct rs_job *reference = NULL, *job = NULL;
	struct sc_err err = {0};
	char clean[100];

	(void)unused;
	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-head.XXXXXX" : "/tmp/scalai-head.XXXXXX");
	assert_non_null(mkdtemp(dir));
	rs_head_extra = &refusing;
	start_service();
	assert_int_equal(0, rs_job_make(service, "reference", 0755, geteuid(), getegid(), &reference, &err));
	armed = true;
	left = 0;
	assert_int_equal(SC_E_BUSY, rs_job_make(service, "gpt", 0755, geteuid(), getegid(), &job, &err));
	assert_null(rs_job_by_name(service, "gpt"));
	armed = false;
	assert_int_equal(0, rs_job_make(service, "gpt", 0755, geteuid(), getegid(), &job, &err));
	for (size_t i = 0; commands[i].run; i++) {
		const struct command *c = &commands[i];
		char *want, *got;

		/* work in the background is of all jobs */
		if (c->run != do_work && c->run != do_scrub && c->run(reference, c->text, &err) < 0)
			fail_msg("%s: %s", c->what, err.msg);
		refuse_in_turn(job, c);
		want = rows_of(rs_job_id(reference));
		got = rows_of(rs_job_id(job));
		expect_text(got, want, c->what, -1, &err);
		sc_sys.release(want);
		sc_sys.release(got);
		check_store();
	}
	service = rs_service_free(service);
	rs_head_extra = NULL;
	printf("# %ld calls; refused: %ld begin, %ld publish, %ld settle, %ld amend\n", calls, refused_begin,
	       refused_publish, refused_settle, refused_amend);
	assert_true(refused_begin && refused_publish && refused_settle && refused_amend);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_in_turn),
	};

	sc_log_level(SC_LOG_ERROR);
	if (watchdog_start())
		return 1;
	return cmocka_run_group_tests_name("head", tests, NULL, NULL);
}
