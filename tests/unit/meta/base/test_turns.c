/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting by turns: what of a turn counts. */
#include "meta/base/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#define MS INT64_C(1000000)

static void stand_still(int64_t ns)
{
	const struct timespec ts = {.tv_nsec = (long)ns};

	(void)nanosleep(&ts, NULL);
}

static void a_pause_counts_as_one_turn(void **unused)
{
	struct sc_turns turns = {.turn_ns = 10 * MS};

	(void)unused;
	for (int i = 1; i <= 3; i++) {
		const int64_t until = sc_turn_begin(&turns);

		assert_int_equal(10 * MS, until - turns.began_ns);
		stand_still(50 * MS);
		sc_turn_end(&turns);
		assert_int_equal(i * 10 * MS, turns.waited_ns);
	}
}

/* One that something has ended early counts as long as it was; what is done between turns does not. */
static void a_short_turn_counts_as_it_was(void **unused)
{
	struct sc_turns turns = {.turn_ns = 60 * 1000 * MS};
	const int64_t began = sc_now_ns();

	(void)unused;
	(void)sc_turn_begin(&turns);
	stand_still(20 * MS);
	sc_turn_end(&turns);
	assert_true(turns.waited_ns >= 20 * MS);
	assert_true(turns.waited_ns <= sc_now_ns() - began);
	stand_still(20 * MS);
	(void)sc_turn_begin(&turns);
	sc_turn_end(&turns);
	assert_true(turns.waited_ns <= sc_now_ns() - began - 20 * MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pause_counts_as_one_turn),
		cmocka_unit_test(a_short_turn_counts_as_it_was),
	};

	return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
