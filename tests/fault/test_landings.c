/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings are made, read, and give way to each other, while each allocation and each system call of that fails once: what is
 * needed has the true bytes, an error is a sentence, and what failed is there when it is asked for again.
 */
#include "reshard/engine/remote/landing.h"

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
#include "meta/base/xxh.h"
#include "tests/support/interpose.h"
#include "tests/support/puller.h"

#define FAILING (INTERPOSE(alloc) | INTERPOSE(resize) | INTERPOSE(openat) | INTERPOSE(mmap) | INTERPOSE(ftruncate) | \
		 INTERPOSE(fallocate) | INTERPOSE(pwrite) | INTERPOSE(linkat))

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

static struct rs_bytes *open_blob(struct rs_landings *set, const struct rs_away *what, struct rs_place *ret_place)
{
	struct rs_bytes *b;
	struct sc_err err;

	assert_int_equal(0, rs_landing_place(set, what, 0, ret_place, &err));
	if (again(rs_place_open(ret_place, &b, &err), &err))
		assert_int_equal(0, rs_place_open(ret_place, &b, &err));
	return b;
}

static void read_blob(struct rs_landings *set, const struct rs_away *what)
{
	struct rs_place place;
	struct rs_bytes *b = open_blob(set, what, &place);
	struct sc_err err;
	int fd = -1;

	for (uint64_t at = 0; at + RS_CHUNK_BYTES <= what->bytes; at += RS_CHUNK_BYTES)
		look(b, what, at, 100);
	look(b, what, RS_CHUNK_BYTES - 1, 2 * RS_CHUNK_BYTES);
	look(b, what, what->bytes - 1, 1);
	if (again(rs_bytes_fd(b, &fd, &err), &err))
		assert_int_equal(0, rs_bytes_fd(b, &fd, &err));
	(void)close(fd);
	rs_place_close(&place, b);
}

/* Of all bytes of a blob of 10 chunks at most. */
static int tell_hash(void *arg, const struct rs_away *what, uint8_t ret[RS_AWAY_HASH_BYTES])
{
	unsigned char all[10 * RS_CHUNK_BYTES];
	XXH128_canonical_t hash;

	(void)arg;
	(void)true_bytes(what, 0, what->bytes, all, NULL);
	XXH128_canonicalFromHash(&hash, XXH3_128bits(all, what->bytes));
	memcpy(ret, hash.digest, RS_AWAY_HASH_BYTES);
	return 1;
}

static void nobody_complains(void *arg, const struct rs_away *what)
{
	(void)arg;
	fail_msg("blob %lu came with other bytes", (unsigned long)what->blob);
}

/* Its file gets a name, and the bytes are all of it; who has it open reads on. */
static void keep_blob(struct rs_landings *set, const struct rs_away *what)
{
	unsigned char got[10 * RS_CHUNK_BYTES], want[10 * RS_CHUNK_BYTES];
	struct rs_place place;
	struct rs_bytes *b = open_blob(set, what, &place);
	struct rs_landing_kept kept;
	struct sc_err err;
	int fd = -1;

	look(b, what, 0, 100);
	if (again(rs_landing_keep(&place, &store, 7, NULL, NULL, &kept, &err), &err))
		assert_int_equal(0, rs_landing_keep(&place, &store, 7, NULL, NULL, &kept, &err));
	assert_true(kept.has_hash);
	(void)true_bytes(what, 0, what->bytes, want, &err);
	assert_int_equal(what->bytes, pread(kept.fd, got, sizeof(got), 0));
	assert_memory_equal(want, got, what->bytes);
	assert_int_equal(0, close(kept.fd));
	look(b, what, what->bytes - 1, 1);
	rs_place_close(&place, b);
	if (again(meta_store_open_blob(&store, 7, what->bytes, &fd, &err), &err))
		assert_int_equal(0, meta_store_open_blob(&store, 7, what->bytes, &fd, &err));
	assert_int_equal(0, close(fd));
	assert_int_equal(0, meta_store_remove(&store, 7, &err));
}

static void each_call_fails_once(void **unused)
{
	long n = 0;

	(void)unused;
	do {
		struct fake_puller *p = fake_puller_new(true_bytes, 0, 0, 0);
		struct rs_landing_config config = {&store, fake_puller_of(p), 2 * RS_CHUNK_BYTES, 2};
		struct rs_landings *set = NULL;
		struct sc_err err;

		config.puller.hash = tell_hash;
		config.puller.differs = nobody_complains;
		left = n++;
		interpose_begin(FAILING, judge);
		if (again(rs_landings_new(&config, &set, &err), &err))
			assert_int_equal(0, rs_landings_new(&config, &set, &err));
		for (size_t i = 0; i < 4; i++)
			read_blob(set, &blobs[i % 2]);
		for (size_t i = 0; i < 2; i++)
			keep_blob(set, &blobs[i]);
		rs_landings_stop(set);
		(void)rs_landings_free(set);
		interpose_end();
		(void)fake_puller_free(p);
	} while (left < 0);
	print_message("%ld calls, %d failures\n", n - 1, failures);
	assert_true(failures > 40);
}

static int count_holes(enum interpose_call call, long arg)
{
	(void)arg;
	left += call == CALL_fallocate;
	return 0;
}

static int any_bytes(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)what;
	(void)err;
	for (uint64_t i = 0; i < bytes; i += RS_CHUNK_BYTES)
		memset((char *)to + i, (int)((at + i) / RS_CHUNK_BYTES), RS_CHUNK_BYTES);
	return 0;
}

/* What was read from one end to the other goes in large holes: each is a transaction of the file system. */
static void holes_are_few(void **unused)
{
	struct fake_puller *p = fake_puller_new(any_bytes, 0, 0, 0);
	const struct rs_landing_config config = {&store, fake_puller_of(p), 512 * RS_CHUNK_BYTES, 2};
	const struct rs_away what = {3, 1, 2048 * RS_CHUNK_BYTES};
	struct rs_landings *set;
	struct rs_place place;
	struct rs_bytes *b;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	left = 0;
	interpose_begin(INTERPOSE(fallocate), count_holes);
	assert_int_equal(0, rs_landing_place(set, &what, 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	for (uint64_t at = 0; at < what.bytes; at += RS_CHUNK_BYTES) {
		assert_int_equal(0, rs_bytes_need(b, at, RS_CHUNK_BYTES, NULL, &err));
		assert_int_equal(b->map[at], (unsigned char)(at / RS_CHUNK_BYTES));
		rs_bytes_release(b, at, RS_CHUNK_BYTES);
	}
	interpose_end();
	print_message("%ld holes\n", left);
	assert_true(left >= (2048 - 512) / 64 && left <= (2048 - 512) / 8);
	rs_place_close(&place, b);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(p);
}

static int given = 1;

static int given_bytes(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)what;
	(void)at;
	(void)err;
	memset(to, given, bytes);
	return 0;
}

/* Whoever has it open gets nothing more, and whoever opens it gets what the others have now. */
static void wrong_bytes_are_not_given(void **unused)
{
	struct fake_puller *p = fake_puller_new(given_bytes, 0, 0, 0);
	const struct rs_landing_config config = {&store, fake_puller_of(p), 64 * RS_CHUNK_BYTES, 2};
	const struct rs_away what = {3, 1, 4 * RS_CHUNK_BYTES};
	struct rs_place place, again;
	struct rs_landings *set;
	struct rs_bytes *b, *now;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	assert_int_equal(0, rs_landing_place(set, &what, 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	assert_int_equal(0, rs_bytes_need(b, 0, 10, NULL, &err));
	given = 2;
	rs_landing_forget(set, 3, 1, true);
	rs_landing_forget(set, 3, 1, true); /* there is none now */
	assert_int_equal(SC_E_SYSTEM, rs_bytes_need(b, 0, 10, NULL, &err));
	assert_int_equal(EIO, err.errnum);
	assert_int_equal(SC_E_SYSTEM, rs_bytes_need(b, 2 * RS_CHUNK_BYTES, 10, NULL, &err));
	rs_bytes_release(b, 0, 10); /* was needed before */
	assert_int_equal(0, rs_landing_place(set, &what, 0, &again, &err));
	assert_int_equal(0, rs_place_open(&again, &now, &err));
	assert_int_equal(0, rs_bytes_need(now, 0, 10, NULL, &err));
	assert_int_equal(2, now->map[0]);
	rs_bytes_release(now, 0, 10);
	/* what only may have changed is read on */
	rs_landing_forget(set, 3, 1, false);
	assert_int_equal(0, rs_bytes_need(now, 0, 10, NULL, &err));
	rs_bytes_release(now, 0, 10);
	rs_place_close(&again, now);
	rs_place_close(&place, b);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails_once), cmocka_unit_test(holes_are_few),
					   cmocka_unit_test(wrong_bytes_are_not_given)};
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
