/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of removed jobs as text: in any order they become as few ranges as can be, and each is found again, and no other. */
#include "reshard/cluster/peers/peers_i.h"
#include "tests/support/every.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#define NUMBERS 40

static void ranges_are_few(const char *text, const bool *has)
{
	size_t lines = 0, runs = 0;

	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	for (unsigned i = 1; i <= NUMBERS; i++)
		runs += has[i] && !has[i - 1];
	assert_int_equal(runs, lines);
}

static void any_order(void **unused)
{
	struct sc_err err;

	(void)unused;
	srandom(5);
	for (unsigned long turn = 0; turn < some_of(3000); turn++) {
		bool has[NUMBERS + 2] = {false};
		struct sc_buf text = {0};

		for (unsigned k = 0; k < NUMBERS; k++) {
			const unsigned number = 1 + (unsigned)random() % NUMBERS;
			struct sc_buf next = {0};

			assert_int_equal(0, rs_ended_add(text.text, number, &next, &err));
			sc_buf_done(&text);
			text = next;
			has[number] = true;
			ranges_are_few(text.text, has);
			for (unsigned i = 1; i <= NUMBERS + 1; i++)
				assert_int_equal(has[i], rs_ended_has(text.text, i));
		}
		sc_buf_done(&text);
	}
}

static void what_is_none(void **unused)
{
	static const char *const bad[] = {"x\n", "1-\n", "0\n", "1", "1-2-3\n", "1 \n", "-1\n", "1\n\n2\n", "5-3\n", "4294967296\n"};
	struct sc_err err;

	(void)unused;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct sc_buf to = {0};

		assert_int_equal(SC_E_FORMAT, rs_ended_add(bad[i], 7, &to, &err));
		assert_false(rs_ended_has(bad[i], 7));
		sc_buf_done(&to);
	}
	assert_false(rs_ended_has(NULL, 1));
}

static void ids(void **unused)
{
	(void)unused;
	assert_int_equal(0, rs_job_number(UINT64_MAX >> 4)); /* as programs from before have made them */
	for (uint64_t number = 1; number <= RS_JOB_NUMBERS_MAX; number = number * 3 + 1)
		assert_true(rs_job_number(rs_job_with_number(number, UINT64_MAX >> 4)) == number);
	assert_true(rs_job_with_number(RS_JOB_NUMBERS_MAX, UINT32_MAX) < META_LOST);
}

static void covered(void **unused)
{
	const uint64_t id = rs_job_with_number(4, 99);
	struct meta_record r = {.key.kind = META_KEY_ENDED, .present = true, .value.rest = "2-4\n9\n"};
	const struct meta_answer answer = {.nr = 1, .records = &r};

	(void)unused;
	assert_true(rs_ended_covers(&answer, id));
	assert_false(rs_ended_covers(&answer, rs_job_with_number(5, 99)));
	assert_false(rs_ended_covers(&answer, 4));
	r.present = false;
	assert_false(rs_ended_covers(&answer, id));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(any_order), cmocka_unit_test(what_is_none), cmocka_unit_test(ids),
					   cmocka_unit_test(covered)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
