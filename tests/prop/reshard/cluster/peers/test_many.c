/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a large cluster costs, by one real node of it (many.h): the plan of its ranks, what etcd has, and what a change
 * of version takes.
 *
 *     test_many [NODES]	64 if it does not say; a multiple of 16
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "reshard/cluster/peers/pack.h"
#include "tests/prop/reshard/cluster/peers/many.h"
#include "tests/prop/pick.h"

size_t many_bytes;

static unsigned nodes = 64;
static struct many_job *job;

static void *alloc(size_t bytes)
{
	void *p = malloc(bytes);

	many_bytes += p ? malloc_usable_size(p) : 0;
	return p;
}

static void *resize(void *p, size_t bytes)
{
	size_t before = p ? malloc_usable_size(p) : 0;
	void *now = realloc(p, bytes);

	many_bytes += now ? malloc_usable_size(now) - before : 0;
	return now;
}

static void release(void *p)
{
	many_bytes -= p ? malloc_usable_size(p) : 0;
	free(p);
}

static void a_plan_is_small(void **unused)
{
	char same[100], fewer[100], narrow[100], wide[100];
	const char *const to[] = {same, fewer, narrow, wide};

	(void)unused;
	(void)snprintf(same, sizeof(same), "tp=8 dp=%u pp=16 stages=7x2+8x14", nodes / 16);
	(void)snprintf(fewer, sizeof(fewer), "tp=8 dp=%u pp=16 stages=8x14+7x2", nodes / 16 - 1);
	(void)snprintf(narrow, sizeof(narrow), "tp=4 dp=%u pp=16 stages=8x14+7x2", nodes / 8);
	(void)snprintf(wide, sizeof(wide), "tp=8 dp=%u pp=8 stages=16x7+14", nodes / 8);
	for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
		size_t all = 0, bytes = 0, regions = 0;
		uint64_t moved = 0;

		for (unsigned node = 0; node < nodes; node += 1 + nodes / 7) {
			struct many_plan p;

			if (!many_plan(job, to[i], node, &p))
				continue;
			all = sc_max_u64(all, p.all);
			bytes = sc_max_u64(bytes, p.bytes);
			regions = sc_max_u64(regions, p.regions);
			moved = sc_max_u64(moved, p.moved);
		}
		fprintf(stderr, "%s to %s: a node's plan has at most %zu regions in %zu bytes, %zu with headers, sources and "
			"names, and moves %.2f GB\n", many_topology(job), to[i], regions, bytes, all, (double)moved / 1e9);
		assert_true(bytes < 1000000 && all < 2000000);

	}
}

/*
 * A quarter of the data-parallel ranks goes: what each node's plan pulls is, to the byte, what the planner says that
 * the node has to, which is the least that it can.  With 2,048 nodes these are 16,384 ranks that become 12,288.
 */
static void a_node_pulls_its_bound(void **unused)
{
	const double wire = 400e9 / 8; /* bytes a second */
	unsigned looked = 0;
	uint64_t most = 0, given = 0;
	struct many_cost c;
	char fewer[100];

	(void)unused;
	(void)snprintf(fewer, sizeof(fewer), "tp=8 dp=%u pp=16 stages=8x14+7x2", nodes / 16 * 3 / 4);
	many_cost(job, fewer, nodes, &c);
	for (unsigned node = 0; node < nodes; node++) {
		most = sc_max_u64(most, c.into[node]);
		given = sc_max_u64(given, c.out[node]);
	}
	for (unsigned node = 0; node < nodes; node += nodes > 1000 ? nodes / 31 : nodes / 3) {
		struct many_plan p;

		if (!many_plan(job, fewer, node, &p))
			continue;
		assert_int_equal(c.into[node], p.distinct);
		looked++;
	}
	fprintf(stderr, "%u ranks of %s to %u: %.1f GB move, the least that can; a node takes at most %.2f GB and gives "
		"%.2f: %.0f ms at 400 Gb/s; %u nodes' plans pull what the planner says\n", many_ranks(job),
		many_topology(job), c.ranks, (double)c.bound / 1e9, (double)most / 1e9, (double)given / 1e9,
		(double)sc_max_u64(most, given) / wire * 1e3, looked);
	assert_true(looked > 2);
	many_cost_done(&c);
}

/* Objects come back from their texts, and what is no such text is refused, whatever it is. */
static void objects_are_texts(void **unused)
{
	unsigned refused = 0;

	(void)unused;
	random_state = 3;
	for (unsigned round = 0; round < 3000; round++) {
		size_t bytes = pick(round % 100 ? 300 : 60000);
		unsigned kinds = 1 + pick(256);
		char *at = malloc(bytes + 1);
		struct sc_buf text = {0}, again = {0}, other = {0};

		for (size_t i = 0; i < bytes; i++)
			at[i] = (char)pick(kinds);
		assert_int_equal(0, rs_pack(at, bytes, &text));
		assert_true(text.bytes <= (bytes + 2) / 3 * 4 + 2);
		assert_int_equal(1, rs_unpack(text.text ? text.text : "", &again));
		assert_int_equal(bytes, again.bytes);
		assert_memory_equal(at, again.text ? again.text : "", bytes);
		for (unsigned n = 1 + pick(3); text.bytes && n; n--)
			text.text[pick((unsigned)text.bytes)] = (char)(1 + pick(255));
		refused += text.bytes && rs_unpack(text.text, &other) == 0;
		free(at);
		sc_buf_done(&text);
		sc_buf_done(&again);
		sc_buf_done(&other);
	}
	assert_true(refused > 1000);
}

static void etcd_has_little(void **unused)
{
	(void)unused;
	assert_true(many_etcd(job, nodes, 10) < 6000000);
}

static void a_change_takes_few_messages(void **unused)
{
	struct many_change c;

	(void)unused;
	many_change(nodes, &c);
	fprintf(stderr,
		"a topology: %u messages to the node that commits, %u of each other one; %u transactions, of which each of %u "
		"watches is told %u records in %zu bytes; the list of members has %zu bytes, a settle reads %zu; the "
		"committer's state machine took %.1f ms for all, %.1f at most at once\n",
		c.to, c.from, c.txns, nodes, c.records, c.told, c.members, c.settle, c.core_ms, c.longest_ms);
	assert_int_equal(2 * (nodes - 1), c.to);
	assert_int_equal(2, c.from);
	assert_int_equal(3, c.txns);
	assert_true(c.told / c.records < 500);
	assert_true(c.members < 65 * 1024);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(a_plan_is_small), cmocka_unit_test(a_node_pulls_its_bound),
					   cmocka_unit_test(objects_are_texts),
					   cmocka_unit_test(etcd_has_little),
					   cmocka_unit_test(a_change_takes_few_messages)};
	int rc;

	sc_sys.alloc = alloc;
	sc_sys.resize = resize;
	sc_sys.release = release;
	if (argc > 1)
		nodes = (unsigned)strtoul(argv[1], NULL, 0) / 16 * 16;
	job = many_job_new(nodes);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	many_job_free(job);
	return rc;
}
