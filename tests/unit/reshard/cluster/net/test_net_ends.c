/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that end in the midst of it: the holder dies, stops, or says nothing from the first on; the asker goes.
 * Nobody writes to a pull's memory after its end.  With the argument `ucx`, over UCX; nodes of different fabrics, too.
 */
#include "tests/support/late.h"
#include "tests/support/net_sides.h"
#include "tests/support/stopped.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/sys.h"

#define NR_LARGE 40
static uint8_t *large[NR_LARGE];
static struct end large_ends[NR_LARGE];

static struct rs_pull large_pull(uint32_t ms)
{
	return (struct rs_pull){.file = "a", .run = TENSOR_BYTES, .at = 777, .bytes = 1u << 20, .deadline_ms = ms};
}

/* Begins pulls of 1 MiB to memory of their own, and sees the first end: others are on their way. */
static void begin_large(uint32_t ms)
{
	struct rs_pull p = large_pull(ms);

	for (unsigned i = 0; i < NR_LARGE; i++) {
		large[i] = malloc(p.bytes);
		begin(&p, large[i], &large_ends[i]);
	}
	wait_for(&large_ends[0], 10000);
	assert_int_equal(RS_CODE_OK, large_ends[0].code);
	assert_false(large_ends[NR_LARGE - 1].ended);
}

/* All have ended, and their memory goes: a sanitizer sees who writes there later. */
static void end_large(void)
{
	for (unsigned i = 0; i < NR_LARGE; i++) {
		assert_true(large_ends[i].ended);
		if (large_ends[i].code == RS_CODE_OK)
			assert_memory_equal(tensor + 777, large[i], 1u << 20);
		else
			assert_int_equal(RS_CODE_IO, large_ends[i].code);
		free(large[i]);
	}
	assert_int_equal(RS_CODE_IO, large_ends[NR_LARGE - 1].code);
}

static void a_holder_that_dies_in_the_midst_ends_its_pulls(void **unused)
{
	(void)unused;
	begin_large(5000);
	kill_holder();
	for (unsigned i = 0; i < NR_LARGE; i++)
		wait_for(&large_ends[i], 6000);
	end_large();
	start_holder();
}

static void a_holder_that_stops_in_the_midst_ends_its_pulls(void **unused)
{
	struct rs_pull p = large_pull(5000);
	struct end e;
	int64_t began;

	(void)unused;
	begin_large(700);
	stop_child(holder);
	began = sc_now_ns();
	for (unsigned i = 0; i < NR_LARGE; i++)
		wait_for(&large_ends[i], 6000);
	assert_true(in_time("pulls of a holder that is stopped", (sc_now_ns() - began) / 1000000, 1500));
	end_large();
	(void)kill(holder, SIGCONT);
	large[0] = malloc(p.bytes);
	for (unsigned i = 0; i < 5; i++) { /* while the holder sends to where nobody is */
		begin(&p, large[0], &e);
		wait_for(&e, 6000);
		assert_int_equal(RS_CODE_OK, e.code);
		assert_memory_equal(tensor + 777, large[0], p.bytes);
	}
	free(large[0]);
}

static void a_net_that_goes_ends_its_pulls(void **unused)
{
	struct rs_net *mine = net;
	struct rs_net_config g = config(1, EPOCH, 9);
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_net_new(&g, &net, &err));
	begin_large(5000);
	rs_net_free(net);
	end_large();
	net = mine;
}

/* Accepts, by the kernel, and says nothing. */
static void a_peer_that_says_nothing_is_noticed(void **unused)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct rs_pull p = pull_of(0, 200, 30000);
	socklen_t n = sizeof(a);
	int64_t began = sc_now_ns();
	char real[64];
	uint8_t to[200];
	struct end e;

	(void)unused;
	(void)snprintf(real, sizeof(real), "%s", address);
	assert_true(bind(listener, (void *)&a, n) == 0 && listen(listener, 5) == 0);
	assert_int_equal(0, getsockname(listener, (void *)&a, &n));
	(void)snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(a.sin_port));
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_IO, e.code);
	assert_non_null(strstr(e.why, "it has not said in time who it is"));
	assert_true(sc_now_ns() - began < 2000000000ll); /* hello_ms */
	(void)close(listener);
	(void)snprintf(address, sizeof(address), "%s", real);
}

/* An asker over one fabric, a holder over the other one. */
static void nodes_of_different_fabrics_are_told_so(void **unused)
{
	char why[200];

	(void)unused;
	ucx = false;
	assert_int_equal(RS_CODE_IO, pull_with(NULL, why));
	if (!strstr(why, "fabric=ucx")) fail_msg("%s", why);
	kill_holder();
	holders_ucx = false;
	start_holder();
	assert_int_equal(RS_CODE_OK, pull_with(NULL, why));
	ucx = true;
	assert_int_equal(RS_CODE_IO, pull_with(NULL, why));
	if (!strstr(why, "fabric=ucx")) fail_msg("%s", why);
	kill_holder();
	holders_ucx = true;
	start_holder();
	assert_int_equal(RS_CODE_OK, pull_with(NULL, why));
}

#define OF_BOTH                                                                                                        \
	cmocka_unit_test(a_holder_that_dies_in_the_midst_ends_its_pulls),                                               \
	    cmocka_unit_test(a_holder_that_stops_in_the_midst_ends_its_pulls),                                          \
	    cmocka_unit_test(a_net_that_goes_ends_its_pulls), cmocka_unit_test(a_peer_that_says_nothing_is_noticed)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {OF_BOTH};
	const struct CMUnitTest ucx_tests[] = {OF_BOTH, cmocka_unit_test(nodes_of_different_fabrics_are_told_so)};
	int failed;

	if (sides_begin(argc, argv, &failed))
		return failed;
	failed = ucx ? cmocka_run_group_tests(ucx_tests, set_up, tear_down)
		     : cmocka_run_group_tests(tests, set_up, tear_down);
	free(tensor);
	return failed;
}
