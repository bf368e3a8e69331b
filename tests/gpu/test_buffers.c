/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes of a pipeline that end in a buffer of the GPU, on the stand-in: the bytes are there in each order of running, and
 * zeros between them; each call fails once and each operation fails and hangs once: an error comes back, nothing is left.
 */
#include "reshard/engine/gpu_helper/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "meta/base/err.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/hand_rounds.h"
#include "tests/support/every.h"

#define ROUNDS 8u
#define APART 4096u	/* bytes of the buffer for each round */
#define BYTES (ROUNDS * APART)

static struct {
	struct rs_pipeline *p;
	unsigned char *memory;
	unsigned filled, idle, idle_max;
	uint64_t beyond;	/* added to each place in the buffer */
} w;

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	const struct rs_share *s = &round->shares[0];
	unsigned char *in = w.memory + rs_pool_place(&pool, 0, slot, RS_POOL_IN);

	(void)arg, (void)err;
	w.filled++;
	for (uint32_t i = 0; i < s->nr_in; i++) {
		fake_host_uses(in + s->in[i].window, s->in[i].bytes, true, "a read of a file");
		for (uint64_t k = 0; k < s->in[i].bytes; k++)
			in[s->in[i].window + k] = byte_of(s->in[i].file, s->in[i].at + k);
	}
	return 0;
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	(void)arg, (void)slot, (void)err;
	fail_msg("a pass that ends in a buffer is drained");
	return 0;
}

static int idle(void *arg, struct sc_err *err)
{
	(void)arg;
	return ++w.idle >= w.idle_max ? sc_fail(err, SC_E_CANCELLED, "the device takes too long") : 0;
}

static int begin(struct sc_err *err)
{
	const struct rs_pipeline_options o = {
		.devices = {2}, .pool = pool, .kernel = ".version 8.0", .exchange_ms = 60000, .fill = fill, .drain = drain, .idle = idle,
		.memory = w.memory = aligned_alloc(4096, rs_pool_bytes(&pool)),
	};

	return rs_pipeline_new(&o, &w.p, err);
}

static int put(unsigned k, struct sc_err *err)
{
	struct round r;

	make_round(k, &r);
	for (unsigned i = 0; i < 3; i++)
		r.shares[0].out[i].at += k * APART + w.beyond;
	return rs_pipeline_put(w.p, &r.round, err);
}

/* Of each round: where its ranges end. */
static uint64_t end_of(unsigned k)
{
	struct round r;
	const struct rs_share *s = make_round(k, &r)->shares;

	return s->out[s->nr_out - 1].at + s->out[s->nr_out - 1].bytes;
}

static void expect_bytes(const char *text)
{
	struct fake_handle h;
	const unsigned char *at;

	assert_memory_equal("0000:00:20.0 ", text, 13);
	assert_int_equal(13 + 2 * 64, strlen(text));
	for (size_t i = 0; i < sizeof(h); i++)
		assert_int_equal(1, sscanf(text + 13 + 2 * i, "%2hhx", (unsigned char *)&h + i));
	assert_int_equal(FAKE_HANDLE_MAGIC, h.magic);
	assert_int_equal(2u << 20, h.bytes);
	at = (const unsigned char *)(uintptr_t)h.at;
	for (unsigned k = 0; k < ROUNDS; k++)
		for (uint64_t i = 0; i < APART; i++)
			assert_int_equal(at[k * APART + i], i < end_of(k) ? expected(k, 0, i) : 0);
	for (uint64_t i = BYTES; i < h.bytes; i++)
		assert_int_equal(0, at[i]);
}

/* A pass into buffer `nr`. */
static int load(uint32_t nr, char *text, struct sc_err *err)
{
	int rc = rs_pipeline_load(w.p, nr, BYTES, text, err);

	if (rc == 0)
		rc = rs_pipeline_begin(w.p, nr, NULL, err);
	for (unsigned k = 0; rc == 0 && k < ROUNDS; k++)
		rc = put(k, err);
	return rc == 0 ? rs_pipeline_finish(w.p, err) : rc;
}

static int work(struct sc_err *err)
{
	char first[RS_POOL_HANDLE_BYTES], second[RS_POOL_HANDLE_BYTES];
	int rc = begin(err);

	if (rc == 0)
		rc = load(1, first, err);
	if (rc == 0)
		rc = load(RS_POOL_LOADS_MAX, second, err);
	if (rc == 0) {
		expect_bytes(first);
		expect_bytes(second);
		rc = rs_pipeline_unload(w.p, 1, err);
	}
	return rc == 0 ? load(1, first, err) : rc; /* two are left: the end gives them back */
}

static void reset(enum fake_order order, uint64_t seed)
{
	memset(&w, 0, sizeof(w));
	w.idle_max = 1000;
	fake_begin(order, seed);
}

static void expect_nothing_left(void)
{
	struct fake_findings found;
	struct sc_err err;

	w.idle = 0;
	assert_int_equal(rs_pipeline_close(w.p, &err), 0);
	found = fake_end();
	free(w.memory);
	assert_string_equal(found.first, "");
}

static void every_order_gives_the_right_bytes(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (uint64_t seed = 0; seed < some_of(60); seed++) {
		reset((enum fake_order)(seed % FAKE_ORDERS), seed);
		assert_int_equal(work(&err), 0);
		assert_true(fake_most(false) <= rs_pool_device_bytes(&pool) + 2 * (2u << 20));
		expect_nothing_left();
	}
}

static void fail_calls(enum fake_order order)
{
	unsigned refused = 0, no_room = 0;
	struct sc_err err;

	/* each call until all that allocate have failed, which come first */
	for (unsigned n = 1;; n += no_room < 3 ? 1 : (unsigned)every_at_most(9)) {
		int rc;

		reset(order, 1);
		fake_fail_call(n);
		rc = work(&err);
		refused += rc < 0;
		no_room += rc == SC_E_NO_MEMORY && strstr(err.msg, "GPU 2 has no 2097152 bytes left");
		expect_nothing_left();
		if (fake_calls() < n)
			break;
	}
	assert_true(refused > 100 / every_at_most(9));
	assert_int_equal(3, no_room);
}

static void each_call_fails_once(void **unused)
{
	(void)unused;
	fail_calls(FAKE_LATE);
	fail_calls(FAKE_RANDOM);
}

static void each_operation_fails_or_hangs_once(void **unused)
{
	const unsigned step = (unsigned)every_at_most(4);
	struct sc_err err;
	unsigned nr = 0;

	(void)unused;
	for (unsigned n = 1;; n += step) {
		int rc;

		reset((enum fake_order)(n % FAKE_ORDERS), n);
		fake_fail_run(n);
		rc = work(&err);
		expect_nothing_left();
		if (fake_ran() < n)
			break;
		nr++;
		assert_int_equal(rc, SC_E_SYSTEM);
		reset((enum fake_order)(n % FAKE_ORDERS), n);
		w.idle_max = 200;
		fake_hang_run(n);
		assert_int_equal(work(&err), SC_E_CANCELLED);
		w.idle = 0;
		assert_int_equal(rs_pipeline_close(w.p, &err), SC_E_CANCELLED); /* it may still write there */
		fake_hang_run(0);
		w.idle_max = 1000;
		expect_nothing_left();
	}
	assert_true(nr > 60 / step);
}

/* A GPU without room refuses one file, and has the next one. */
static void without_room_the_pipeline_goes_on(void **unused)
{
	char text[RS_POOL_HANDLE_BYTES];
	struct sc_err err;

	(void)unused;
	reset(FAKE_LATE, 1);
	assert_int_equal(begin(&err), 0);
	fake_fail_call(fake_calls() + 3); /* cudaMalloc() */
	assert_int_equal(rs_pipeline_load(w.p, 1, BYTES, text, &err), SC_E_NO_MEMORY);
	assert_int_equal(rs_pipeline_load(w.p, 1, UINT64_MAX, text, &err), SC_E_NO_MEMORY);
	assert_int_equal(load(1, text, &err), 0);
	expect_bytes(text);
	expect_nothing_left();
}

static void places_beyond_the_file_are_refused(void **unused)
{
	char text[RS_POOL_HANDLE_BYTES];
	const uint64_t beyond[] = {BYTES, BYTES - 10, UINT64_MAX - 100};
	struct sc_err err;

	(void)unused;
	for (size_t i = 0; i < sizeof(beyond) / sizeof(*beyond); i++) {
		reset(FAKE_EAGER, 1);
		assert_int_equal(begin(&err), 0);
		w.beyond = beyond[i];
		assert_int_equal(load(1, text, &err), SC_E_STATE);
		expect_nothing_left();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_gives_the_right_bytes),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(each_operation_fails_or_hangs_once),
		cmocka_unit_test(without_room_the_pipeline_goes_on),
		cmocka_unit_test(places_beyond_the_file_are_refused),
	};

	return cmocka_run_group_tests_name("buffers", tests, NULL, NULL);
}
