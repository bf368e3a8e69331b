/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline on the stand-in, with shares made by hand: in each order of running it writes the right bytes and nothing
 * is out of order; each call of CUDA fails once, each copy and kernel fails and hangs once, and so do fill() and drain():
 * an error comes back, nothing hangs, nothing is left.
 */
#include "reshard/cuda/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "meta/base/err.h"
#include "meta/base/sys.h"
#include "tests/gpu/fake_cuda.h"

#define SHARES 8
#define WINDOW 8192
#define BOXES 3
#define COLUMNS 96u
#define IDLE_MAX 1000

static const struct rs_pool pool = {WINDOW, BOXES};

/* --- shares: rows become their left and their right halves; another range has bytes in the midst of zeros --- */

struct share {
	struct rs_extent in[2], out[2];
	struct rs_copy copies[BOXES];
	struct rs_share share;
};

static uint64_t rows_of(unsigned k)
{
	return 5 + k;
}

/* Every fourth share has zeros alone. */
static bool reads(unsigned k)
{
	return k % 4 != 3;
}

static struct share *make_share(unsigned k, struct share *s)
{
	const uint64_t rows = rows_of(k), all = rows * COLUMNS, half = COLUMNS / 2;

	*s = (struct share){
		.in = {{.file = k, .bytes = all, .window = 5}, {.file = k, .at = all, .bytes = 100, .window = 5 + all + 30}},
		.out = {{.file = k, .zero = true, .bytes = 300, .window = 1}, {.file = k, .at = 300, .bytes = all, .window = 311}},
		.copies = {
			{.from = 5, .to = 311, .run = half, .nr = 1, .ext = {rows}, .from_stride = {COLUMNS}, .to_stride = {half}},
			{.from = 5 + half, .to = 311 + rows * half, .run = half, .nr = 1, .ext = {rows}, .from_stride = {COLUMNS},
			 .to_stride = {half}},
			{.from = 5 + all + 30, .to = 51, .run = 100},
		},
	};
	s->share = (struct rs_share){
		.in = s->in, .out = s->out, .copies = s->copies, .nr_in = 2, .nr_out = 2, .nr_copies = BOXES,
		.in_bytes = 5 + all + 30 + 100, .out_bytes = 311 + all,
	};
	if (!reads(k)) {
		s->share.nr_in = s->share.nr_copies = 0;
		s->share.in_bytes = 0;
		s->share.nr_out = 1;
		s->share.out_bytes = 301;
	}
	return s;
}

static unsigned char byte_of(unsigned k, uint64_t at)
{
	return (unsigned char)((at * 2654435761u >> 7) + k * 31 + 1);
}

/* What byte `at` of a share's file is to be. */
static unsigned char expected(unsigned k, uint64_t at)
{
	const uint64_t rows = rows_of(k), half = COLUMNS / 2;

	if (at < 300)
		return reads(k) && at >= 50 && at < 150 ? byte_of(k, rows * COLUMNS + at - 50) : 0;
	at -= 300;
	return byte_of(k, at < rows * half ? at / half * COLUMNS + at % half
					   : (at - rows * half) / half * COLUMNS + half + at % half);
}

/* --- a pass --- */

static struct {
	unsigned filled, drained, idle, idle_max, fail_fill, fail_drain;
	void *memory;
	struct rs_pipeline *p;
} w;

static int fill(void *arg, const struct rs_share *s, unsigned char *in, struct sc_err *err)
{
	assert_ptr_equal(arg, &w);
	if (++w.filled == w.fail_fill)
		return sc_fail(err, SC_E_DAMAGED, "a read failed");
	for (uint32_t i = 0; i < s->nr_in; i++) {
		fake_host_uses(in + s->in[i].window, s->in[i].bytes, true, "a read of a file");
		for (uint64_t k = 0; k < s->in[i].bytes; k++)
			in[s->in[i].window + k] = byte_of(s->in[i].file, s->in[i].at + k);
	}
	return 0;
}

static int drain(void *arg, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes, struct sc_err *err)
{
	assert_ptr_equal(arg, &w);
	if (w.drained + 1 == w.fail_drain)
		return sc_fail(err, SC_E_NO_SPACE, "a write failed");
	assert_int_equal(nr, reads(w.drained) ? 2 : 1);
	for (uint32_t i = 0; i < nr; i++) {
		assert_int_equal(out[i].file, w.drained);
		fake_host_uses(bytes + out[i].window, out[i].bytes, false, "a write to a file");
		for (uint64_t k = 0; k < out[i].bytes; k++)
			assert_int_equal(bytes[out[i].window + k], expected(w.drained, out[i].at + k));
	}
	w.drained++;
	return 0;
}

static int idle(void *arg, struct sc_err *err)
{
	assert_ptr_equal(arg, &w);
	return ++w.idle >= w.idle_max ? sc_fail(err, SC_E_CANCELLED, "the device takes too long") : 0;
}

static int begin(struct sc_err *err)
{
	const struct rs_pipeline_options o = {
		.pool = pool, .kernel = ".version 8.0", .fill = fill, .drain = drain, .idle = idle, .arg = &w,
		.memory = w.memory = aligned_alloc(4096, rs_pool_bytes(&pool)),
	};

	return rs_pipeline_new(&o, &w.p, err);
}

static int work(struct sc_err *err)
{
	struct sc_err again;
	int rc = begin(err);

	for (unsigned k = 0; rc == 0 && k < SHARES; k++) {
		struct share *s = make_share(k, malloc(sizeof(*s)));

		rc = rs_pipeline_put(w.p, &s->share, err);
		free(s); /* the pipeline needs it no more */
	}
	if (rc == 0)
		rc = rs_pipeline_finish(w.p, err);
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
		assert_int_equal(w.drained, SHARES);
	return rc;
}

/* --- tests --- */

static void every_order_writes_the_right_bytes(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (uint64_t seed = 0; seed < 600; seed++) {
		reset((enum fake_order)(seed % FAKE_ORDERS), seed);
		assert_int_equal(pass(&err), 0);
	}
}

/* A pass of which a read fails ends while the device has work. */
static void fail_calls(enum fake_order order, unsigned fail_fill, unsigned *refused, unsigned *late)
{
	struct sc_err err;

	for (unsigned n = 1;; n++) {
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
			assert_non_null(strstr(err.msg, "GPU 0: "));
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
	print_message("# %u calls failed: %u passes were refused, %u had ended\n", refused + late, refused, late);
	assert_true(refused > 500 && late > 30);
}

static void each_copy_and_kernel_fails_once(void **unused)
{
	unsigned failed = 0;
	struct sc_err err;

	(void)unused;
	for (unsigned order = 0; order < FAKE_ORDERS; order++)
		for (unsigned n = 1;; n++) {
			int rc;

			reset((enum fake_order)order, n);
			fake_fail_run(n);
			rc = pass(&err);
			if (fake_ran() < n)
				break;
			failed++;
			assert_int_equal(rc, SC_E_SYSTEM);
			assert_non_null(strstr(err.msg, "cudaErrorIllegalAddress"));
		}
	assert_true(failed > 100);
}

static void each_copy_and_kernel_hangs_once(void **unused)
{
	struct fake_findings found;
	struct sc_err err;

	(void)unused;
	for (unsigned order = 0; order < FAKE_ORDERS; order++)
		for (unsigned n = 1;; n++) {
			int rc;

			reset((enum fake_order)order, n);
			fake_hang_run(n);
			rc = work(&err);
			if (fake_ran() < n) {
				assert_int_equal(rc, 0);
				n = 0;
			} else {
				assert_int_equal(rc, SC_E_CANCELLED);
				/* the device may still write: nothing is given back until it has ended */
				assert_int_equal(rs_pipeline_close(w.p, &err), SC_E_CANCELLED);
				fake_hang_run(0);
			}
			w.idle = 0;
			assert_int_equal(rs_pipeline_close(w.p, &err), 0);
			found = fake_end();
			free(w.memory);
			assert_string_equal(found.first, "");
			if (!n)
				break;
		}
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
		reset(FAKE_RANDOM, n);
		allocations = n;
		sc_sys.alloc = failing_alloc;
		rc = pass(&err);
		sc_sys.alloc = malloc;
		assert_int_equal(rc, n < 1 + RS_POOL_SLOTS ? SC_E_NO_MEMORY : 0);
	}
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
	for (unsigned n = 1; n <= SHARES; n++)
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
	struct share s;
	int rc;

	reset(FAKE_EAGER, 1);
	assert_int_equal(begin(err), 0);
	make_share(0, &s);
	change(&s.share);
	rc = rs_pipeline_put(w.p, &s.share, err);
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
	s->nr_out = BOXES + 1;
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
	assert_int_equal(put_changed(sends, &err), SC_E_UNSUPPORTED);
}

static void windows_fit_both_budgets(void **unused)
{
	const uint64_t mib = 1 << 20;

	(void)unused;
	assert_int_equal(rs_pool_window(8192 * mib, 8192 * mib, 4096), RS_POOL_WINDOW_MAX);
	assert_int_equal(rs_pool_window(4 * mib, 8192 * mib, 4096), 0);
	for (uint64_t have = 16 * mib; have < 512 * mib; have += 5 * mib + 4711) {
		const uint64_t window = rs_pool_window(8192 * mib, have, 4096);

		assert_int_equal(window, rs_pool_window(have, 8192 * mib, 4096));
		assert_true(rs_pool_bytes(&(struct rs_pool){window, 4096}) <= have);
		assert_true(window == RS_POOL_WINDOW_MAX || rs_pool_bytes(&(struct rs_pool){window + mib, 4096}) > have);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_writes_the_right_bytes),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(each_copy_and_kernel_fails_once),
		cmocka_unit_test(each_copy_and_kernel_hangs_once),
		cmocka_unit_test(memory_is_short),
		cmocka_unit_test(who_waits_without_an_end_is_named),
		cmocka_unit_test(files_fail_at_each_share),
		cmocka_unit_test(shares_that_do_not_fit_are_refused),
		cmocka_unit_test(windows_fit_both_budgets),
	};

	return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
