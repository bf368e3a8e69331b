/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that GPUs of several nodes make together, on the stand-in for CUDA and NCCL: whatever one of the nodes does, each has
 * either the right files or an error, in time.
 */
#include "tests/gpu/far.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/gpu/by_hand.h"
#include "tests/support/every.h"

#define TARGETS (BY_HAND_IMAGES + 1)
#define WINDOW (270u << 10)
#define TIMEOUT_MS 1000
#define LATE_MS 30000		/* the machine may be busy */
#define MESSAGES 24		/* that a helper sends in a call, or more */

static struct far two(const char *first, const char *second, uint32_t timeout_ms)
{
	return (struct far){.nr = 2, .window_bytes = WINDOW, .boxes_max = 4096, .timeout_ms = timeout_ms,
			    .nodes = {{.devices = 1, .args = first}, {.devices = 1, .args = second}}};
}

/* Files of nodes that had no error are right, and nobody took too long. */
static void expect_right(struct far *f, const char *what)
{
	struct rs_target targets[TARGETS];

	for (unsigned i = 0; i < TARGETS; i++)
		targets[i] = (struct rs_target){by_hand_image(i), memfd_create("target", MFD_CLOEXEC)};
	far_write(f, targets, TARGETS);
	for (unsigned i = 0; i < TARGETS; i++) {
		const struct far_node *n = &f->nodes[i % f->nr];

		if (n->args && n->rc == 0 && !by_hand_is_right(i, targets[i].fd))
			fail_msg("%s: node %u has other bytes in file %u", what, i % f->nr, i);
		(void)close(targets[i].fd);
	}
	for (uint32_t k = 0; k < f->nr; k++)
		if (f->nodes[k].args && f->nodes[k].ms > LATE_MS + f->timeout_ms)
			fail_msg("%s: node %u took %lu ms", what, k, (unsigned long)f->nodes[k].ms);
}

static void expect_error(const struct far *f, uint32_t node, const char *what, const char *words)
{
	if (f->nodes[node].rc != SC_E_UNSUPPORTED || !strstr(f->nodes[node].why, words))
		fail_msg("%s: node %u: error %d: '%s', not '%s'", what, node, f->nodes[node].rc, f->nodes[node].why, words);
}

/* --- tests --- */

static void nodes_write_the_right_bytes(void **unused)
{
	(void)unused;
	for (unsigned seed = 0; seed < 6; seed++) {
		struct far f = {.nr = 2 + seed % 2, .window_bytes = WINDOW, .boxes_max = 4096, .timeout_ms = 120000};
		char args[FAR_NODES_MAX][40], what[20];
		uint64_t copied = 0, all = 0;

		for (uint32_t k = 0; k < f.nr; k++) {
			(void)snprintf(args[k], sizeof(args[k]), "%u %u", (seed + k) % 3, seed);
			f.nodes[k] = (struct far_node){.devices = 1 + (seed + k) % 2, .args = args[k]};
		}
		(void)snprintf(what, sizeof(what), "seed %u", seed);
		expect_right(&f, what);
		for (uint32_t k = 0; k < f.nr; k++) {
			if (f.nodes[k].rc < 0 || !f.nodes[k].ended_well)
				fail_msg("%s: node %u: %s", what, k, f.nodes[k].why);
			copied += f.nodes[k].copied;
		}
		for (unsigned i = 0; i < TARGETS; i++)
			all += by_hand_bytes(i);
		assert_int_equal(all, copied);
	}
}

static void a_node_that_does_not_come_is_an_error_in_time(void **unused)
{
	struct far f = two("0 1", NULL, TIMEOUT_MS);

	(void)unused;
	expect_right(&f, "nobody");
	expect_error(&f, 0, "nobody", "has not ended for 500 ms: a peer is gone, or far");
}

static void windows_that_are_none_are_refused(void **unused)
{
	struct far f = two("0 1", "0 2", TIMEOUT_MS);

	(void)unused;
	f.nodes[1].window_bytes = WINDOW / 2;
	expect_right(&f, "windows");
	expect_error(&f, 1, "windows", "other ones than it said");
	expect_error(&f, 0, "windows", "a peer is gone, or far");
}

static void without_an_id_nobody_begins(void **unused)
{
	struct far f = two("0 1 no-nccl 1", "0 2", TIMEOUT_MS);

	(void)unused;
	expect_right(&f, "no NCCL");
	expect_error(&f, 0, "no NCCL", "NCCL 2.22 or later");
	expect_error(&f, 1, "no NCCL", "there is no id");
}

/* Of both nodes, in turn, one misbehaves. */
static unsigned misbehave(const char *misdeed, unsigned from, unsigned end, unsigned step)
{
	unsigned errors = 0;

	for (unsigned n = from; n < end; n += step) {
		char args[60], what[80];
		struct far f = two(n % 2 ? args : "1 7", n % 2 ? "2 7" : args, TIMEOUT_MS);

		(void)snprintf(args, sizeof(args), "%u %u %s %u", n % 3, n, misdeed, n);
		(void)snprintf(what, sizeof(what), "%s %u of node %u", misdeed, n, n % 2 ? 0 : 1);
		expect_right(&f, what);
		errors += f.nodes[0].rc < 0;
		errors += f.nodes[1].rc < 0;
	}
	return errors;
}

static void a_helper_that_ends_at_a_message_harms_nobody(void **unused)
{
	(void)unused;
	assert_true(misbehave("kill", 1, MESSAGES, (unsigned)every_at_most(9)) >= 4);
	assert_true(misbehave("silent", 1, MESSAGES, 2 * (unsigned)every_at_most(9)) >= 2);
	assert_true(misbehave("noise", 1, MESSAGES, 2 * (unsigned)every_at_most(9)) >= 2);
}

static void calls_and_exchanges_that_fail_harm_nobody(void **unused)
{
	(void)unused;
	assert_true(misbehave("call", 30, 330, 10 * (unsigned)every_at_most(9)) >= 4);
	assert_true(misbehave("run", 1, 60, 3 * (unsigned)every_at_most(9)) >= 4);
	assert_true(misbehave("hang", 1, 60, 6 * (unsigned)every_at_most(9)) >= 2);
	assert_true(misbehave("peer-dies", 1, 4, 1) >= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_write_the_right_bytes),
		cmocka_unit_test(a_node_that_does_not_come_is_an_error_in_time),
		cmocka_unit_test(windows_that_are_none_are_refused),
		cmocka_unit_test(without_an_id_nobody_begins),
		cmocka_unit_test(a_helper_that_ends_at_a_message_harms_nobody),
		cmocka_unit_test(calls_and_exchanges_that_fail_harm_nobody),
	};

	by_hand_make();
	return cmocka_run_group_tests_name("gpu/joint", tests, NULL, NULL);
}
