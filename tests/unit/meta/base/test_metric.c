/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as text: families, labels, histograms; and that threads that count at once lose nothing. */
#include "meta/base/metric.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/sys.h"

/* cmocka wants four of the above first */
#include <cmocka.h>

SC_METRIC(counted, SC_COUNTER, "b_things_total", "Things.");
SC_METRIC(waited, SC_SECONDS, "b_waited_seconds_total", "Time.");
SC_METRIC(level, SC_GAUGE, "a_level", "How high it is.");
SC_HISTOGRAM(second_kind, "c_seconds", "kind=\"z\"", "How long it took.");
SC_HISTOGRAM(first_kind, "c_seconds", "kind=\"a\"", "How long it took.");
SC_HISTOGRAM(plain, "d_seconds", "", "How long it took.");

#define MS INT64_C(1000000)

static struct sc_buf text;

static void render(void)
{
	sc_buf_done(&text);
	text = (struct sc_buf){0};
	sc_metrics_text(&text);
	assert_false(text.failed);
}

static bool has(const char *line)
{
	const char *at = strstr(text.text, line);

	return at && (at == text.text || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static double value(const char *name)
{
	const char *at = strstr(text.text, name);

	assert_non_null(at);
	return strtod(at + strlen(name) + 1, NULL);
}

static void families_have_one_head_and_are_sorted(void **unused)
{
	const char *a, *b, *c, *z;

	(void)unused;
	sc_metric_add(&counted, 7);
	sc_metric_add(&waited, 1500000000);
	sc_metric_set(&level, 3);
	render();
	assert_true(has("# HELP a_level How high it is."));
	assert_true(has("# TYPE a_level gauge"));
	assert_true(has("a_level 3"));
	assert_true(has("# TYPE b_things_total counter"));
	assert_true(has("b_things_total 7"));
	assert_true(has("# TYPE b_waited_seconds_total counter"));
	assert_true(has("b_waited_seconds_total 1.5"));
	a = strstr(text.text, "# HELP c_seconds ");
	assert_non_null(a);
	assert_null(strstr(a + 1, "# HELP c_seconds "));
	assert_non_null(c = strstr(a, "c_seconds_bucket{kind=\"a\",le=\"0.000001\"} "));
	assert_non_null(z = strstr(a, "c_seconds_bucket{kind=\"z\",le=\"0.000001\"} "));
	b = strstr(text.text, "# HELP b_things_total");
	assert_true(b < a && c < z && z < strstr(text.text, "# HELP d_seconds "));
}

static void a_time_is_in_the_bucket_of_its_bound(void **unused)
{
	double sum;

	(void)unused;
	sc_metric_since(&plain, sc_now_ns() - 3 * MS);		/* between 2 and 5 ms, however slow this machine is: */
	sc_metric_since(&plain, sc_now_ns() - 300000 * MS);	/* longer than all bounds */
	sc_metric_since(&plain, sc_now_ns() + 1000000 * MS);	/* a clock that went back: it took no time */
	render();
	assert_true(has("d_seconds_bucket{le=\"0.000001\"} 1"));
	assert_true(has("d_seconds_bucket{le=\"0.002\"} 1"));
	assert_true(has("d_seconds_bucket{le=\"50\"} 2"));
	assert_true(has("d_seconds_bucket{le=\"+Inf\"} 3"));
	assert_true(has("d_seconds_count 3"));
	sum = value("d_seconds_sum");
	assert_true(sum > 300 && sum < 400);
	assert_true(has("c_seconds_count{kind=\"a\"} 0"));
	assert_true(has("c_seconds_sum{kind=\"a\"} 0"));
}

#define TIMES 20000

static void *count(void *unused)
{
	(void)unused;
	for (int i = 0; i < TIMES; i++)
		sc_metric_since(&first_kind, sc_now_ns());
	return NULL;
}

static void threads_lose_nothing(void **unused)
{
	pthread_t threads[4];

	(void)unused;
	for (int i = 0; i < 4; i++)
		assert_int_equal(0, pthread_create(&threads[i], NULL, count, NULL));
	for (int i = 0; i < 4; i++)
		assert_int_equal(0, pthread_join(threads[i], NULL));
	render();
	assert_true(has("c_seconds_count{kind=\"a\"} 80000"));
	assert_true(has("c_seconds_count{kind=\"z\"} 0"));
}

static void a_label_is_quoted(void **unused)
{
	struct sc_buf buf = {0};

	(void)unused;
	sc_metric_label(&buf, "a\"b\\c\nd");
	assert_string_equal("a\\\"b\\\\c\\nd", buf.text);
	sc_buf_done(&buf);
}

static int done(void **unused)
{
	(void)unused;
	sc_buf_done(&text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(families_have_one_head_and_are_sorted),
		cmocka_unit_test(a_time_is_in_the_bucket_of_its_bound),
		cmocka_unit_test(threads_lose_nothing),
		cmocka_unit_test(a_label_is_quoted),
	};

	(void)second_kind;
	return cmocka_run_group_tests(tests, NULL, done);
}
