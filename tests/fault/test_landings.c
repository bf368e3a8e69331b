/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings are made, read, and give way to each other, while each allocation and each system call of that fails once: what is
 * needed has the true bytes, an error is a sentence, and what failed is there when it is asked for again.
 */
#include "reshard/landing/landing.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "tests/support/interpose.h"
#include "tests/support/puller.h"

#define FAILING (INTERPOSE(alloc) | INTERPOSE(resize) | INTERPOSE(openat) | INTERPOSE(mmap) | INTERPOSE(ftruncate) | \
		 INTERPOSE(fallocate) | INTERPOSE(pwrite))

static const struct rs_away blobs[] = {{1, 1, 9 * RS_CHUNK_BYTES + 3}, {2, 1, 4 * RS_CHUNK_BYTES}};
static struct meta_store store;
static long left; /* calls that are made */
static int failures;

static int judge(enum interpose_call call, long arg)
{
	(void)arg;
	if (left-- != 0)
		return 0;
	return call == CALL_alloc || call == CALL_resize ? -ENOMEM : call == CALL_pwrite ? -ENOSPC : -EIO;
}

static int true_bytes(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)err;
	for (uint64_t i = 0; i < bytes; i++)
		((unsigned char *)to)[i] = (unsigned char)((at + i) * 31 >> 4 ^ what->node);
	return 0;
}

/* What fails is asked for again, once. */
static int again(int rc, const struct sc_err *err)
{
	if (rc >= 0)
		return 0;
	assert_true(err->code == rc && *err->msg);
	failures++;
	return 1;
}

static void look(struct rs_bytes *b, const struct rs_away *what, uint64_t at, uint64_t bytes)
{
	static unsigned char want[8 * RS_CHUNK_BYTES];
	struct sc_err err;

	if (again(rs_bytes_need(b, at, bytes, NULL, &err), &err))
		assert_int_equal(0, rs_bytes_need(b, at, bytes, NULL, &err));
	(void)true_bytes(what, at, bytes, want, &err);
	assert_memory_equal(want, b->map + at, bytes);
	rs_bytes_release(b, at, bytes);
}

static void read_blob(struct rs_landings *set, const struct rs_away *what)
{
	struct rs_place place;
	struct rs_bytes *b;
	struct sc_err err;
	int fd = -1;

	assert_int_equal(0, rs_landing_place(set, what, 0, &place, &err));
	if (again(rs_place_open(&place, &b, &err), &err))
		assert_int_equal(0, rs_place_open(&place, &b, &err));
	for (uint64_t at = 0; at + RS_CHUNK_BYTES <= what->bytes; at += RS_CHUNK_BYTES)
		look(b, what, at, 100);
	look(b, what, RS_CHUNK_BYTES - 1, 2 * RS_CHUNK_BYTES);
	look(b, what, what->bytes - 1, 1);
	if (again(rs_bytes_fd(b, &fd, &err), &err))
		assert_int_equal(0, rs_bytes_fd(b, &fd, &err));
	(void)close(fd);
	rs_place_close(&place, b);
}

static void each_call_fails_once(void **unused)
{
	long n = 0;

	(void)unused;
	do {
		struct fake_puller *p = fake_puller_new(true_bytes, 0, 0, 0);
		const struct rs_landing_config config = {&store, fake_puller_of(p), 2 * RS_CHUNK_BYTES, 2};
		struct rs_landings *set = NULL;
		struct sc_err err;

		left = n++;
		interpose_begin(FAILING, judge);
		if (again(rs_landings_new(&config, &set, &err), &err))
			assert_int_equal(0, rs_landings_new(&config, &set, &err));
		for (size_t i = 0; i < 4; i++)
			read_blob(set, &blobs[i % 2]);
		rs_landings_stop(set);
		(void)rs_landings_free(set);
		interpose_end();
		(void)fake_puller_free(p);
	} while (left < 0);
	print_message("%ld calls, %d failures\n", n - 1, failures);
	assert_true(failures > 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails_once)};
	char dir[] = "/tmp/scalai-landings.XXXXXX", clean[80];
	struct sc_err err;
	int rc;

	sc_log_level(SC_LOG_ERROR);
	if (!mkdtemp(dir) || meta_store_open(dir, 0, &store, &err) < 0)
		return 1;
	rc = cmocka_run_group_tests_name("landings", tests, NULL, NULL);
	meta_store_close(&store);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return rc || system(clean);
}
