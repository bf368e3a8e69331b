/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which nodes keep copies: always as many as are asked for, or all there are; the same for whoever asks; a node that
 * goes or comes moves only copies of its own; each domain has one before another has two; and each node has its share.
 */
#include "reshard/cluster/peers/holders.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#define NODES 12

static uint64_t state = 7;

static unsigned pick(unsigned n)
{
	state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (unsigned)(state >> 33) % n;
}

/* In some domains, or (a round in four) in none. */
static size_t some_nodes(struct rs_holder *ret)
{
	const unsigned domains = pick(4) ? 1 + pick(5) : 0;
	size_t nr = 0;

	for (uint32_t n = 1; n <= NODES; n++)
		if (pick(3))
			ret[nr++] = (struct rs_holder){n * 5, domains ? pick(domains + 1) : 0};
	for (size_t i = nr; i > 1; i--) { /* in any order */
		size_t k = pick((unsigned)i);
		struct rs_holder other = ret[i - 1];

		ret[i - 1] = ret[k];
		ret[k] = other;
	}
	rs_holders_sort(ret, nr);
	return nr;
}

static bool has(const struct rs_holder *nodes, size_t nr, uint32_t node)
{
	for (size_t i = 0; i < nr; i++)
		if (nodes[i].node == node)
			return true;
	return false;
}

static bool is_one_of(const uint32_t *nodes, size_t nr, uint32_t node)
{
	for (size_t i = 0; i < nr; i++)
		if (nodes[i] == node)
			return true;
	return false;
}

static void as_many_as_asked_for(void **unused)
{
	(void)unused;
	for (int round = 0; round < 20000; round++) {
		uint32_t first[4], origin = 5 * (1 + pick(NODES)), copies = pick(5);
		struct rs_holder nodes[NODES];
		uint64_t number = 1 + pick(1000);
		size_t nr = some_nodes(nodes), n, holders = 0;
		const bool is_there = has(nodes, nr, origin);
		const size_t others = nr - is_there, most = copies > is_there ? copies - is_there : 0;

		n = rs_holders_first(nodes, nr, origin, number, first, 4);
		assert_int_equal(n, nr < 4 ? nr : 4);
		assert_true(!is_there || first[0] == origin);
		for (size_t i = 0; i < nr; i++) {
			const bool is = rs_holder_is(nodes[i].node, nodes, nr, origin, number, copies);

			holders += is;
			/* who reads finds them where they are */
			if (is && copies <= 4)
				assert_true(is_one_of(first, copies < n ? copies : n, nodes[i].node));
		}
		assert_int_equal(holders, others < most ? others : most);
		assert_false(rs_holder_is(999, nodes, nr, origin, number, copies));
	}
}

static bool has_copy(const struct rs_holder *nodes, size_t nr, size_t i, uint32_t origin, uint64_t number,
		     uint32_t copies)
{
	return nodes[i].node == origin || rs_holder_is(nodes[i].node, nodes, nr, origin, number, copies);
}

/* As even as it can be: where one domain has two copies more than another, that one's nodes all have one. */
static void domains_have_one_before_one_has_two(void **unused)
{
	(void)unused;
	for (int round = 0; round < 20000; round++) {
		uint32_t origin = 5 * (1 + pick(NODES)), copies = 1 + pick(6);
		unsigned has_of[8] = {0}, of[8] = {0};
		struct rs_holder nodes[NODES];
		uint64_t number = 1 + pick(1000);
		size_t nr = some_nodes(nodes), alone = 0, lone = 0;
		unsigned most = 0;

		for (size_t i = 0; i < nr; i++) {
			const bool is = has_copy(nodes, nr, i, origin, number, copies);

			has_of[nodes[i].domain] += is;
			of[nodes[i].domain]++;
			alone += !nodes[i].domain;
			lone += !nodes[i].domain && is;
		}
		for (size_t d = 1; d < 8; d++)
			most = has_of[d] > most ? has_of[d] : most;
		for (size_t d = 1; d < 8; d++)
			assert_true(has_of[d] + 1 >= most || has_of[d] == of[d]);
		assert_true(most < 2 || lone == alone);
	}
}

static void nodes_that_go_move_their_own(void **unused)
{
	(void)unused;
	for (int round = 0; round < 20000; round++) {
		uint32_t origin = 5 * (1 + pick(NODES)), copies = 1 + pick(3);
		struct rs_holder nodes[NODES], fewer[NODES];
		uint64_t number = 1 + pick(1000);
		size_t nr = some_nodes(nodes), gone;

		if (nr < 2)
			continue;
		gone = pick((unsigned)nr);
		for (size_t i = 0, k = 0; i < nr; i++)
			if (i != gone)
				fewer[k++] = nodes[i];
		for (size_t i = 0; i < nr; i++) /* who keeps one goes on */
			if (i != gone && rs_holder_is(nodes[i].node, nodes, nr, origin, number, copies))
				assert_true(rs_holder_is(nodes[i].node, fewer, nr - 1, origin, number, copies));
		if (has_copy(nodes, nr, gone, origin, number, copies))
			continue;
		for (size_t i = 0; i < nr; i++)
			if (i != gone)
				assert_int_equal(rs_holder_is(nodes[i].node, nodes, nr, origin, number, copies),
						 rs_holder_is(nodes[i].node, fewer, nr - 1, origin, number, copies));
	}
}

static void share_of_each(uint32_t domains)
{
	struct rs_holder nodes[NODES];
	uint32_t share[NODES] = {0};

	for (uint32_t i = 0; i < NODES; i++)
		nodes[i] = (struct rs_holder){i + 1, domains ? 1 + i % domains : 0};
	rs_holders_sort(nodes, NODES);
	for (uint64_t number = 1; number <= 12000; number++)
		for (uint32_t i = 0; i < NODES; i++)
			share[i] += rs_holder_is(i + 1, nodes, NODES, 1 + number % NODES, number, 2);
	for (uint32_t i = 0; i < NODES; i++)
		assert_true(share[i] > 800 && share[i] < 1200);
}

static void each_has_its_share(void **unused)
{
	(void)unused;
	share_of_each(0);
	share_of_each(3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_many_as_asked_for),
		cmocka_unit_test(domains_have_one_before_one_has_two),
		cmocka_unit_test(nodes_that_go_move_their_own),
		cmocka_unit_test(each_has_its_share),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
