/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A helper, on CUDA itself (SCALAI_TEST_HELPER=PROGRAM) or on the stand-in, is killed after so long: while it starts, in the
 * midst of a call, when it is idle.  It is stopped in the midst of a call.  Its kernel takes an address that is none: on CUDA that
 * is another helper (SCALAI_TEST_ILLEGAL=PROGRAM, tests/gpu/illegal.py), on the stand-in the nth thing that runs.  The files are
 * right, the next call is, too, and no process and no descriptor is left.
 */
#include "reshard/engine/gpu/remote.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/gpu/life.h"
#include "tests/support/every.h"

#define STOPS 3
#define KILLS 16	/* of each kind, over the time that one takes which is not killed, and a quarter more */

static struct {
	pid_t pid;	/* 0: the helper is about to start */
	int64_t after_ns;
	int by;		/* a signal */
} victim = {.by = SIGKILL};

static void *kill_it(void *unused)
{
	const pid_t pid = victim.pid ? victim.pid : helper_pid();

	(void)unused;
	if (pid <= 0)
		return NULL;
	(void)usleep((useconds_t)(victim.after_ns / 1000));
	(void)kill(pid, victim.by);
	return NULL;
}

static int64_t time_of_call(void)
{
	const int64_t began = sc_now_ns();
	struct sc_err err;

	if (call(&err) < 0)
		fail_msg("%s", err.msg);
	return sc_now_ns() - began;
}

/* A call whose helper is killed after so long; that one has been started by a call before, or is not there yet. */
static bool is_right(pid_t pid, int64_t after_ns)
{
	const uint64_t by_host = state().by_host;
	pthread_t killer;

	victim.pid = pid;
	victim.after_ns = after_ns;
	assert_int_equal(0, pthread_create(&killer, NULL, kill_it, NULL));
	(void)time_of_call();
	(void)pthread_join(killer, NULL);
	return state().by_host > by_host;
}

static void a_helper_is_killed(bool warm)
{
	const unsigned before = open_files();
	struct rs_gpu_options o = options();
	unsigned in_time = 0, kills = 0;
	int64_t takes;

	o.timeout_ms = 120000; /* a context takes seconds */
	begin(&o, "2 1");
	takes = time_of_call();
	if (warm)
		takes = time_of_call();
	assert_string_equal("", state().why);
	for (unsigned i = 0; i < KILLS; i += (unsigned)every_at_most(3), kills++) {
		pid_t pid = 0;

		begin(&o, "2 1");
		expect_no_children();
		forget_pid();
		if (warm) {
			(void)time_of_call();
			pid = helper_pid();
			assert_true(pid > 0);
		}
		in_time += is_right(pid, takes * (5 * i) / (4 * KILLS));
		(void)time_of_call();
		(void)rs_gpu_stop();
		expect_no_children();
		assert_int_equal(before, open_files());
	}
	assert_true(in_time > 0);
	(void)printf("# %u of %u killed in the midst of what took %ld ms\n", in_time, kills, (long)(takes / 1000000));
}

static void killed_from_its_start(void **unused)
{
	(void)unused;
	a_helper_is_killed(false);
}

static void killed_in_a_call(void **unused)
{
	(void)unused;
	a_helper_is_killed(true);
}

/* Stopped, it is given up after as long as is enough for one to start. */
static void stopped_in_a_call(void **unused)
{
	const unsigned before = open_files();
	struct rs_gpu_options o = options();
	unsigned in_time = 0;
	int64_t takes;

	(void)unused;
	o.timeout_ms = 120000;
	begin(&o, "2 1");
	takes = time_of_call();
	o.timeout_ms = (unsigned)(1000 + 3 * takes / 1000000);
	takes = time_of_call();
	victim.by = SIGSTOP;
	for (unsigned i = 0; i < STOPS; i++) {
		begin(&o, "2 1");
		expect_no_children();
		forget_pid();
		(void)time_of_call();
		in_time += is_right(helper_pid(), takes * i / STOPS);
		(void)time_of_call();
		(void)rs_gpu_stop();
		expect_no_children();
		assert_int_equal(before, open_files());
	}
	victim.by = SIGKILL;
	assert_true(in_time > 0);
	(void)printf("# %u of %u stopped in the midst of what took %ld ms\n", in_time, STOPS, (long)(takes / 1000000));
}

static void takes_an_address_that_is_none(void **unused)
{
	const char *illegal = getenv("SCALAI_TEST_ILLEGAL"), *set = getenv("SCALAI_TEST_HELPER");
	char *right = set ? strdup(set) : NULL;
	const unsigned before = open_files();
	const struct rs_gpu_options o = options();
	struct rs_gpu_state s;

	(void)unused;
	if (right && !illegal) {
		free(right);
		(void)printf("# there is no SCALAI_TEST_ILLEGAL\n");
		skip();
	}
	if (right)
		(void)setenv("SCALAI_TEST_HELPER", illegal, 1);
	begin(&o, "2 1 run 4");
	(void)time_of_call();
	s = state();
	assert_int_equal(0, s.by_gpu);
	assert_int_equal(1, s.by_host);
	assert_true(strstr(s.why, "llegal") != NULL);
	if (right)
		(void)setenv("SCALAI_TEST_HELPER", right, 1);
	begin(&o, "2 1");
	(void)time_of_call();
	assert_string_equal("", state().why);
	(void)rs_gpu_stop();
	expect_no_children();
	assert_int_equal(before, open_files());
	free(right);
	(void)printf("# it said: %s\n", s.why);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_from_its_start),
		cmocka_unit_test(killed_in_a_call),
		cmocka_unit_test(stopped_in_a_call),
		cmocka_unit_test(takes_an_address_that_is_none),
	};

	return cmocka_run_group_tests_name("killed", tests, life_set_up, life_tear_down);
}
