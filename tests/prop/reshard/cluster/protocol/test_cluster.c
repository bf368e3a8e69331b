/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol of several daemons: random schedules of cores, an etcd and faults keep all promises (cluster.h); and
 * each rule of the protocol, taken out, breaks one: a rule that nothing misses would be none.
 *
 *     test_cluster [SCHEDULES [SEED]]
 *     test_cluster --rule NAME [SCHEDULES [FIRST]]	the last steps of the schedule that breaks a promise without it
 */
#include "tests/prop/reshard/cluster/protocol/cluster.h"
#include "tests/support/every.h"
#include "tests/support/rule_names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#define STEPS 4000

static unsigned long schedules, seed = 1;
static struct world world;
static struct {
	unsigned long commits, done, refused, opens, settles, deletes, writes, seals, crashes, asides, starved, left_out;
} sum;

static int run(uint64_t s)
{
	int rc;

	world_init(&world, s);
	world.aloud = getenv("ALOUD") != NULL;
	rc = world_run(&world, STEPS);
	sum.commits += world.commits;
	sum.done += world.done;
	sum.refused += world.refused;
	sum.opens += world.opens;
	sum.settles += world.settles;
	sum.deletes += world.deletes;
	sum.writes += world.writes;
	sum.seals += world.seals;
	sum.crashes += world.crashes;
	sum.asides += world.asides;
	sum.starved += world.starved;
	sum.left_out += world.left_out;
	world_done(&world);
	return rc;
}

static void print_trace(void)
{
	for (unsigned long i = world.traced > 40 ? world.traced - 40 : 0; i < world.traced; i++)
		fprintf(stderr, "  %s\n", world.trace[i % 40]);
}

static void holds(uint64_t s)
{
	if (run(s) == 0)
		return;
	print_trace();
	fail_msg("schedule %llu: %s", (unsigned long long)s, world.broken);
}

static void promises_hold(void **unused)
{
	(void)unused;
	for (unsigned long i = 0; i < schedules; i++) {
		holds(seed + i);
		if (seed < LEFT_OUT_SEEDS && i % 3 == 0)
			holds(LEFT_OUT_SEEDS + seed + i);
	}
	fprintf(
	    stderr,
	    "%lu schedules: %lu versions, %lu commands done, %lu refused, %lu opens, %lu writes, %lu sealed, %lu set aside, "
	    "%lu left out, %lu settled, %lu sets deleted, %lu crashes, %lu without memory\n",
	    schedules, sum.commits, sum.done, sum.refused, sum.opens, sum.writes, sum.seals, sum.asides, sum.left_out,
	    sum.settles, sum.deletes, sum.crashes, sum.starved);
	/* schedules that get nowhere would keep all promises */
	assert_true(schedules < 100 || (sum.commits > schedules && sum.seals && sum.crashes && sum.left_out));
	assert_true(schedules < 100 || seed >= LEFT_OUT_SEEDS ||
		    (sum.settles > schedules / 10 && sum.deletes > schedules / 10 && sum.starved));
}

/*
 * Rules that others imply are taken out together with those; the promise that only they keep must then be broken.
 */
static void set_off(const char *name, bool off, const char **ret_promise)
{
	*ret_promise = "";
	for (size_t i = 0; i < RULES_NR; i++)
		if (strcmp(rules[i].name, name) == 0)
			*rules[i].off = off;
	if (strcmp(name, "head_compared") == 0) {
		rs_rules_off.spec_compared = rs_rules_off.epoch_compared = rs_rules_off.members_compared = off;
		*ret_promise = "chain";
	}
	if (strcmp(name, "epoch_compared") == 0) {
		rs_rules_off.spec_leased = off;
		*ret_promise = "fenced";
	}
}

/* Schedules `first` to `most` run without the rule, then those before; until one breaks a promise. */
static bool caught(const char *name, unsigned long first, unsigned long most, unsigned long *ret_schedule)
{
	const uint64_t from = strcmp(name, "left_out_ends") == 0 ? LEFT_OUT_SEEDS : 0;
	bool is_caught = false;
	const char *promise;

	set_off(name, true, &promise);
	for (unsigned long i = 0; i < most && !is_caught; i++) {
		*ret_schedule = (first - 1 + i) % most + 1;
		is_caught = run(from + *ret_schedule) < 0 && strncmp(world.broken, promise, strlen(promise)) == 0;
	}
	set_off(name, false, &promise);
	return is_caught;
}

/* Rules that few schedules miss, and one shortly before the first that does: a short run begins there. */
static unsigned long first_for(const char *name)
{
	static const struct {
		const char *name;
		unsigned long first;
	} rare[] = {{"fresh_from_start", 2440}, {"reads_ordered", 5190}, {"store_compared", 1810}};

	for (size_t i = 0; every() > 1 && i < sizeof(rare) / sizeof(*rare); i++)
		if (strcmp(rare[i].name, name) == 0)
			return rare[i].first;
	return 1;
}

static void each_rule_is_missed(void **unused)
{
	unsigned missed = 0;

	(void)unused;
	for (size_t i = 0; i < RULES_NR; i++) {
		unsigned long at;
		bool ok = caught(rules[i].name, first_for(rules[i].name), 12000, &at);

		missed += !ok;
		fprintf(stderr, "%-22s %s (schedule %lu)\n", rules[i].name, ok ? world.broken : "NOTHING IS BROKEN",
			at);
	}
	assert_int_equal(0, missed);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest promises[] = {cmocka_unit_test(promises_hold)};
	const struct CMUnitTest tests[] = {cmocka_unit_test(promises_hold), cmocka_unit_test(each_rule_is_missed)};
	unsigned long at;

	memory_may_fail();
	if (argc > 2 && strcmp(argv[1], "--rule") == 0) {
		bool ok = caught(argv[2], argc > 4 ? strtoul(argv[4], NULL, 0) : 1,
				 argc > 3 ? strtoul(argv[3], NULL, 0) : 3000, &at);

		if (ok)
			print_trace();
		fprintf(stderr, "%s: %s (schedule %lu)\n", argv[2], ok ? world.broken : "nothing is broken", at);
		return !ok;
	}
	schedules = argc > 1 ? strtoul(argv[1], NULL, 0) : some_of(300);
	if (argc > 2) {
		seed = strtoul(argv[2], NULL, 0);
		return cmocka_run_group_tests_name("promises", promises, NULL, NULL);
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
