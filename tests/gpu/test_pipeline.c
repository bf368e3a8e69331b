/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline on the stand-in, on one to four GPUs, with shares made by hand: in each order of running it writes the right
 * bytes and nothing is out of order; each call of CUDA and NCCL fails once, each copy, kernel and exchange fails and hangs
 * once, a peer does not come, dies, is late, and fill() and drain() fail: an error comes back, nothing hangs, nothing is left.
 */
#include "reshard/engine/gpu_helper/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "meta/base/err.h"
#include "meta/base/sys.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/hand_rounds.h"
#include "tests/support/every.h"

#define WINDOW HAND_WINDOW
#define BOXES HAND_BOXES
#define PEERS_MAX HAND_PEERS_MAX
#define IDLE_MAX 1000
#define STEP ((unsigned)every_at_most(3))	/* to the next call, copy or kernel that fails or hangs */

/* --- a pass --- */

static struct {
	unsigned filled, drained, idle, idle_max, fail_fill, fail_drain;
	uint32_t exchange_ms;
	unsigned char *memory;
	struct rs_pipeline *p;
} w;

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	assert_ptr_equal(arg, &w);
	assert_int_equal(slot, w.filled % RS_POOL_SLOTS);
	if (++w.filled == w.fail_fill)
		return sc_fail(err, SC_E_DAMAGED, "a read failed");
	for (unsigned p = 0; p < round->nr; p++) {
		const struct rs_share *s = &round->shares[p];
		unsigned char *in = w.memory + rs_pool_place(&pool, p, slot, RS_POOL_IN);

		for (uint32_t i = 0; i < s->nr_in; i++) {
			fake_host_uses(in + s->in[i].window, s->in[i].bytes, true, "a read of a file");
			for (uint64_t k = 0; k < s->in[i].bytes; k++)
				in[s->in[i].window + k] = byte_of(s->in[i].file, s->in[i].at + k);
		}
	}
	return 0;
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	struct round r;

	assert_ptr_equal(arg, &w);
	assert_int_equal(slot, w.drained % RS_POOL_SLOTS);
	if (w.drained + 1 == w.fail_drain)
		return sc_fail(err, SC_E_NO_SPACE, "a write failed");
	make_round(w.drained, &r);
	for (unsigned p = 0; p < pool.peers; p++) {
		const unsigned char *bytes = w.memory + rs_pool_place(&pool, p, slot, RS_POOL_OUT);

		for (uint32_t i = 0; i < r.of_peers[p].nr_out; i++) {
			const struct rs_extent *e = &r.of_peers[p].out[i];

			fake_host_uses(bytes + e->window, e->bytes, false, "a write to a file");
			for (uint64_t k = 0; k < e->bytes; k++)
				assert_int_equal(bytes[e->window + k], expected(w.drained, p, e->at + k));
		}
	}
	w.drained++;
	return 0;
}

static int idle(void *arg, struct sc_err *err)
{
	assert_ptr_equal(arg, &w);
	if (w.idle_max == UINT32_MAX)
		(void)usleep(20); /* there is a clock */
	return ++w.idle >= w.idle_max ? sc_fail(err, SC_E_CANCELLED, "the device takes too long") : 0;
}

static int begin(struct sc_err *err)
{
	const struct rs_pipeline_options o = {
		.devices = {3, 1, 0, 2}, .pool = pool, .kernel = ".version 8.0", .exchange_ms = w.exchange_ms, .fill = fill, .drain = drain,
		.idle = idle, .arg = &w, .memory = w.memory = aligned_alloc(4096, rs_pool_bytes(&pool)),
	};

	return rs_pipeline_new(&o, &w.p, err);
}

/* With several GPUs it is the second pass that shows whether communicators of the first have ended. */
static unsigned passes(void)
{
	return pool.peers > 1 ? 2 : 1;
}

static unsigned rounds(void)
{
	return pool.peers > 1 ? 5 : 8;
}

/* Passes of the same pipeline, or what of them there is before an error. */
static int work(struct sc_err *err)
{
	struct sc_err again;
	int rc = begin(err);

	for (unsigned pass = 0; rc == 0 && pass < passes(); pass++) {
		for (unsigned k = 0; rc == 0 && k < rounds(); k++) {
			struct round *r = malloc(sizeof(*r));

			rc = rs_pipeline_put(w.p, make_round(pass * rounds() + k, r), err);
			free(r); /* the pipeline needs it no more */
		}
		if (rc == 0)
			rc = rs_pipeline_finish(w.p, err);
	}
	if (rc < 0 && w.p) { /* the first error is kept */
		assert_int_equal(rs_pipeline_finish(w.p, &again), rc);
		assert_string_equal(again.msg, err->msg);
		assert_int_equal(rs_pipeline_put(w.p, NULL, &again), rc);
	}
	return rc;
}

static void reset(enum fake_order order, uint64_t seed)
{
	memset(&w, 0, sizeof(w));
	w.idle_max = IDLE_MAX;
	w.exchange_ms = 60000;
	fake_begin(order, seed);
}

/* A whole pass.  Whatever becomes of it, everything is in order and given back. */
static int pass(struct sc_err *err)
{
	struct fake_findings found;
	struct sc_err late;
	int rc = work(err);

	w.idle = 0;
	assert_int_equal(rs_pipeline_close(w.p, &late), 0);
	found = fake_end();
	free(w.memory);
	assert_string_equal(found.first, "");
	if (rc == 0)
		assert_int_equal(w.drained, passes() * rounds());
	return rc;
}

/* --- tests --- */

static void every_order_writes_the_right_bytes(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (uint64_t seed = 0; seed < some_of(1200); seed++) {
		pool.peers = 1 + seed / FAKE_ORDERS % PEERS_MAX;
		reset((enum fake_order)(seed % FAKE_ORDERS), seed);
		assert_int_equal(pass(&err), 0);
	}
	pool.peers = 1;
}

/* A pass of which a read fails ends while the device has work. */
static void fail_calls(enum fake_order order, unsigned fail_fill, unsigned *refused, unsigned *late)
{
	struct sc_err err;

	for (unsigned n = 1;; n += STEP) {
		int rc;

		reset(order, n);
		fake_fail_call(n);
		w.fail_fill = fail_fill;
		rc = pass(&err);
		if (fake_calls() < n)
			break;
		*refused += rc < 0;
		*late += rc == 0; /* of what was left, only the end could fail */
		if (rc < 0 && rc != SC_E_DAMAGED)
			assert_true(strstr(err.msg, "GPU ") || strstr(err.msg, "NCCL") || strstr(err.msg, "ncclGetUniqueId()"));
	}
}

static void each_call_fails_once(void **unused)
{
	unsigned refused = 0, late = 0;

	(void)unused;
	for (unsigned order = 0; order < FAKE_ORDERS; order++) {
		fail_calls((enum fake_order)order, 0, &refused, &late);
		fail_calls((enum fake_order)order, 6, &refused, &late);
	}
	pool.peers = 2;
	fail_calls(FAKE_RANDOM, 0, &refused, &late);
	pool.peers = 1;
	print_message("# %u calls failed: %u passes were refused, %u had ended\n", refused + late, refused, late);
	assert_true(refused > 500 / STEP && late > 30 / STEP);
}

static void each_copy_and_kernel_fails_once(void **unused)
{
	unsigned failed = 0;
	struct sc_err err;

	(void)unused;
	for (unsigned i = 0; i < 2 * FAKE_ORDERS; i++)
		for (unsigned n = 1;; n += STEP) {
			const unsigned order = i % FAKE_ORDERS;
			int rc;

			pool.peers = 1 + i / FAKE_ORDERS;
			reset((enum fake_order)order, n);
			fake_fail_run(n);
			rc = pass(&err);
			if (fake_ran() < n)
				break;
			failed++;
			assert_int_equal(rc, SC_E_SYSTEM);
			assert_non_null(strstr(err.msg, pool.peers == 1 ? "cudaErrorIllegalAddress" : "GPU "));
		}
	pool.peers = 1;
	assert_true(failed > 100 / STEP);
}

static void each_copy_and_kernel_hangs_once(void **unused)
{
	struct fake_findings found;
	struct sc_err err;

	(void)unused;
	for (unsigned i = 0; i < 2 * FAKE_ORDERS; i++)
		for (unsigned n = 1;; n += STEP) {
			const unsigned order = i % FAKE_ORDERS;
			int rc;

			pool.peers = 1 + i / FAKE_ORDERS;
			reset((enum fake_order)order, n);
			w.idle_max = 200;
			fake_hang_run(n);
			rc = work(&err);
			if (fake_ran() < n) {
				assert_int_equal(rc, 0);
				n = 0;
			} else {
				assert_int_equal(rc, SC_E_CANCELLED);
				/* the device may still write: nothing is given back until it has ended; an exchange is aborted */
				w.idle = 0;
				rc = rs_pipeline_close(w.p, &err);
				if (rc == 0)
					w.p = NULL;
				assert_int_equal(rc, fake_hangs_exchange() ? 0 : SC_E_CANCELLED);
				fake_hang_run(0);
				w.idle_max = IDLE_MAX;
			}
			w.idle = 0;
			assert_int_equal(rs_pipeline_close(w.p, &err), 0);
			found = fake_end();
			free(w.memory);
			assert_string_equal(found.first, "");
			if (!n)
				break;
		}
	pool.peers = 1;
}

/* Whatever becomes of the last peer: an error in time, or the right bytes. */
static void a_peer_is_not_there(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (unsigned n = 1; n < 60; n += (unsigned)every_at_most(2)) {
		pool.peers = 2 + n % 3;
		reset((enum fake_order)(n % FAKE_ORDERS), n);
		w.idle_max = UINT32_MAX;
		w.exchange_ms = 20;
		fake_peer(n % 3 == 0 ? FAKE_PEER_NEVER : n % 3 == 1 ? FAKE_PEER_DIES : FAKE_PEER_IS_HEARD, 1 + n / 9);
		assert_int_equal(pass(&err), SC_E_SYSTEM);
		assert_non_null(strstr(err.msg, n % 3 == 2 ? "a peer is gone" : "a peer is gone, or far"));
		reset((enum fake_order)(n % FAKE_ORDERS), n);
		w.idle_max = UINT32_MAX;
		fake_peer(FAKE_PEER_LATE, 0);
		assert_int_equal(pass(&err), 0);
		assert_true(fake_groups() > 0);
	}
	pool.peers = 1;
}

static void several_gpus_need_nccl(void **unused)
{
	struct fake_machine machine = {.driver = 12090, .devices = FAKE_DEVICES, .major = 9};
	struct sc_err err;

	(void)unused;
	pool.peers = 2;
	reset(FAKE_EAGER, 1);
	fake_machine(&machine);
	assert_int_equal(pass(&err), SC_E_UNSUPPORTED);
	assert_string_equal(err.msg, "several GPUs need NCCL 2.22 or later: libnccl.so.2: it is not here");
	reset(FAKE_EAGER, 1);
	machine.nccl = 21805;
	fake_machine(&machine);
	assert_int_equal(pass(&err), SC_E_UNSUPPORTED);
	assert_string_equal(err.msg, "several GPUs need NCCL 2.22 or later: libnccl.so.2 is of version 21805");
	pool.peers = 1;
}

static unsigned allocations;	/* that succeed */

static void *failing_alloc(size_t bytes)
{
	return allocations-- ? malloc(bytes) : NULL;
}

static void memory_is_short(void **unused)
{
	struct sc_err err;
	int rc = SC_E_NO_MEMORY;

	(void)unused;
	for (unsigned n = 0; rc < 0; n++) {
		pool.peers = 2;
		reset(FAKE_RANDOM, n);
		allocations = n;
		sc_sys.alloc = failing_alloc;
		rc = pass(&err);
		sc_sys.alloc = malloc;
		assert_int_equal(rc, n < 1 + passes() ? SC_E_NO_MEMORY : 0);
	}
	pool.peers = 1;
}

static void who_waits_without_an_end_is_named(void **unused)
{
	struct fake_findings found;
	struct sc_err err;

	(void)unused;
	reset(FAKE_LATE, 1);
	w.idle_max = UINT32_MAX;
	fake_hang_run(9);
	assert_int_equal(work(&err), SC_E_SYSTEM);
	assert_int_equal(rs_pipeline_close(w.p, &err), 0);
	found = fake_end();
	free(w.memory);
	assert_int_equal(found.deadlocks, 1);
	assert_int_equal(found.races + found.misuse + found.leaks, 0);
	assert_non_null(strstr(found.first, "deadlock"));
}

static void files_fail_at_each_share(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (unsigned n = 1; n <= passes() * rounds(); n++)
		for (unsigned order = 0; order < FAKE_ORDERS; order++) {
			reset((enum fake_order)order, n);
			w.fail_fill = n;
			assert_int_equal(pass(&err), SC_E_DAMAGED);
			assert_int_equal(w.filled, n);
			reset((enum fake_order)order, n);
			w.fail_drain = n;
			assert_int_equal(pass(&err), SC_E_NO_SPACE);
			assert_int_equal(w.drained, n - 1);
		}
}

static int put_changed(void (*change)(struct rs_share *s), struct sc_err *err)
{
	struct fake_findings found;
	struct sc_err ignored;
	struct round r;
	int rc;

	reset(FAKE_EAGER, 1);
	assert_int_equal(begin(err), 0);
	make_round(0, &r);
	change(&r.of_peers[pool.peers - 1]);
	rc = rs_pipeline_put(w.p, &r.round, err);
	assert_int_equal(w.filled + w.drained, 0);
	assert_int_equal(fake_ran(), 0);
	assert_int_equal(rs_pipeline_close(w.p, &ignored), 0);
	found = fake_end();
	free(w.memory);
	assert_string_equal(found.first, "");
	return rc;
}

static void reads_too_much(struct rs_share *s)
{
	s->in_bytes = WINDOW + 1;
}

static void writes_too_much(struct rs_share *s)
{
	s->out_bytes = WINDOW + 1;
}

static void has_too_many_copies(struct rs_share *s)
{
	s->nr_copies = BOXES + 1;
}

static void has_too_many_extents(struct rs_share *s)
{
	s->nr_out = rs_pool_extents(&pool) + 1;
}

static void reads_outside(struct rs_share *s)
{
	s->copies[2].from = s->in_bytes - 99;
}

static void zeros_outside(struct rs_share *s)
{
	s->out[0].bytes = s->out_bytes;
}

static void sends(struct rs_share *s)
{
	s->send_bytes = 1;
}

static void sends_too_much(struct rs_share *s)
{
	s->send_bytes = WINDOW + 1;
}

static void receives_too_much(struct rs_share *s)
{
	s->recv_bytes = WINDOW + 1;
}

static void packs_outside(struct rs_share *s)
{
	s->packs[0].to = s->send_bytes;
}

static void unpacks_outside(struct rs_share *s)
{
	s->unpacks[0].from = s->recv_bytes - 1;
}

static void has_too_many_unpacks(struct rs_share *s)
{
	s->nr_unpacks = BOXES + 1;
}

static void shares_that_do_not_fit_are_refused(void **unused)
{
	struct sc_err err;

	(void)unused;
	assert_int_equal(put_changed(reads_too_much, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(writes_too_much, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(has_too_many_copies, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(has_too_many_extents, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(reads_outside, &err), SC_E_STATE);
	assert_int_equal(put_changed(zeros_outside, &err), SC_E_STATE);
	assert_int_equal(put_changed(sends, &err), SC_E_LIMIT);
	pool.peers = 3;
	assert_int_equal(put_changed(sends_too_much, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(receives_too_much, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(has_too_many_unpacks, &err), SC_E_LIMIT);
	assert_int_equal(put_changed(packs_outside, &err), SC_E_STATE);
	assert_int_equal(put_changed(unpacks_outside, &err), SC_E_STATE);
	pool.peers = 1;
}

static void windows_fit_both_budgets(void **unused)
{
	const uint64_t mib = 1 << 20;

	(void)unused;
	assert_int_equal(rs_pool_window(8192 * mib, 8192 * mib, (struct rs_pool){0, 4096, 1}), RS_POOL_WINDOW_MAX);
	assert_int_equal(rs_pool_window(8192 * mib, 8192 * mib, (struct rs_pool){0, 4096, 4}), RS_POOL_WINDOW_MAX);
	assert_int_equal(rs_pool_window(4 * mib, 8192 * mib, (struct rs_pool){0, 4096, 1}), 0);
	for (uint64_t have = 16 * mib; have < 512 * mib; have += 5 * mib + 4711) {
		const uint64_t window = rs_pool_window(8192 * mib, have, (struct rs_pool){0, 4096, 1}), of_four = rs_pool_window(8192 * mib, have, (struct rs_pool){0, 4096, 4});

		assert_int_equal(window, rs_pool_window(have, 8192 * mib, (struct rs_pool){0, 4096, 1}));
		assert_true(rs_pool_bytes(&(struct rs_pool){window, 4096, 1}) <= have);
		assert_true(rs_pool_bytes(&(struct rs_pool){of_four, 4096, 4}) <= have || !of_four);
		assert_true(window == RS_POOL_WINDOW_MAX || rs_pool_bytes(&(struct rs_pool){window + mib, 4096, 1}) > have);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_writes_the_right_bytes),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(each_copy_and_kernel_fails_once),
		cmocka_unit_test(each_copy_and_kernel_hangs_once),
		cmocka_unit_test(a_peer_is_not_there),
		cmocka_unit_test(several_gpus_need_nccl),
		cmocka_unit_test(memory_is_short),
		cmocka_unit_test(who_waits_without_an_end_is_named),
		cmocka_unit_test(files_fail_at_each_share),
		cmocka_unit_test(shares_that_do_not_fit_are_refused),
		cmocka_unit_test(windows_fit_both_budgets),
	};

	return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
