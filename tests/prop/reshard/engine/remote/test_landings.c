/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings: many threads need ranges of blobs of other nodes, over a puller that answers in any order, late, and not always,
 * with room for few chunks.  What is needed has the true bytes until its release, by the mapping and by a descriptor; a byte is
 * never on its way twice; failures name blob and node; afterwards no more is here than may be.
 */
#include "reshard/engine/remote/landing.h"

#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "meta/base/mem.h"
#include "meta/base/xxh.h"
#include "tests/support/puller.h"

#define READERS 8
#define BLOBS 7
#define PULLS_MAX 5

static const struct rs_away blobs[BLOBS] = {
	{1, 1, 40 * RS_CHUNK_BYTES}, {1, 2, 1}, {2, 1, 25 * RS_CHUNK_BYTES + 17}, {2, 3, RS_CHUNK_BYTES - 1},
	{65535, (UINT64_C(1) << 40) - 1, 70 * RS_CHUNK_BYTES - 1}, {0, 9, 0}, {3, 4, 3 * RS_CHUNK_BYTES + 5},
};
static struct meta_store store;
static char dir[] = "/tmp/scalai-landings.XXXXXX";

static unsigned char true_byte(const struct rs_away *what, uint64_t at)
{
	return (unsigned char)((at * 0x9e3779b97f4a7c15u + what->node * 77u + what->blob * 13u) >> 40);
}

static int true_bytes(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)err;
	for (uint64_t i = 0; i < bytes; i++)
		((unsigned char *)to)[i] = true_byte(what, at + i);
	return 0;
}

/* Threads can't use cmocka's assertions. */
static void check(bool good, const char *why, const struct rs_away *what, uint64_t at)
{
	if (good)
		return;
	(void)fprintf(stderr, "%s: blob %" PRIu64 " of node %u, byte %" PRIu64 "\n", why, what->blob, what->node, at);
	abort();
}

struct waiting {
	struct rs_done done;
	pthread_mutex_t lock;
	pthread_cond_t called;
	int calls;
	struct sc_err err;
};

static void on_done(struct rs_done *done, const struct sc_err *err)
{
	struct waiting *w = (struct waiting *)done;

	(void)pthread_mutex_lock(&w->lock);
	w->calls++;
	if (err)
		w->err = *err;
	(void)pthread_cond_signal(&w->called);
	(void)pthread_mutex_unlock(&w->lock);
}

/* Asks until the bytes are there, or can't come; `gives_up`: not more than once. */
static int need_later(struct rs_bytes *b, uint64_t at, uint64_t bytes, bool gives_up, struct sc_err *err)
{
	struct waiting w = {{on_done}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, {0}};
	int rc, later = 0;

	while ((rc = rs_bytes_need(b, at, bytes, &w.done, err)) == RS_LATER) {
		later++;
		(void)pthread_mutex_lock(&w.lock);
		while (w.calls < later)
			(void)pthread_cond_wait(&w.called, &w.lock);
		(void)pthread_mutex_unlock(&w.lock);
		if (w.err.code) {
			*err = w.err;
			return err->code;
		}
		if (gives_up)
			return RS_LATER;
	}
	return rc;
}

struct reader {
	pthread_t thread;
	struct rs_landings *set;
	unsigned seed;
	int rounds, failures, later, kept, wrong;
};

static void look(struct rs_bytes *b, const struct rs_away *what, uint64_t at, uint64_t bytes, unsigned *seed)
{
	unsigned char got[64];
	struct sc_err err;
	int fd;

	for (int again = 0; again < 2; again++) {
		for (uint64_t i = 0; i < bytes; i += 1 + (unsigned)rand_r(seed) % 997)
			check(b->map[at + i] == true_byte(what, at + i), "a wrong byte", what, at + i);
		check(b->map[at + bytes - 1] == true_byte(what, at + bytes - 1), "a wrong byte", what, at + bytes - 1);
		if (!again && rand_r(seed) % 3 == 0)
			(void)usleep((unsigned)rand_r(seed) % 500); /* others come and go meanwhile */
	}
	if (rand_r(seed) % 8)
		return;
	check(rs_bytes_fd(b, &fd, &err) == 0, "no descriptor", what, at);
	bytes = sc_min_u64(bytes, sizeof(got));
	check(pread(fd, got, bytes, (off_t)at) == (ssize_t)bytes, "no read", what, at);
	for (uint64_t i = 0; i < bytes; i++)
		check(got[i] == true_byte(what, at + i), "a wrong byte by a descriptor", what, at + i);
	(void)close(fd);
}

static int stop_sometimes(void *arg, uint64_t bytes)
{
	struct reader *r = arg;

	(void)bytes;
	return rand_r(&r->seed) % 3 == 0;
}

/* What is known of a blob's hash; one is kept at a time. */
static enum { NOBODY, RIGHT, WRONG } known;
static unsigned complaints;

static int tell_hash(void *arg, const struct rs_away *what, uint8_t ret[RS_AWAY_HASH_BYTES])
{
	unsigned char *all = malloc(what->bytes + 1);
	XXH128_canonical_t hash;

	(void)arg;
	(void)true_bytes(what, 0, what->bytes, all, NULL);
	XXH128_canonicalFromHash(&hash, XXH3_128bits(all, what->bytes));
	memcpy(ret, hash.digest, RS_AWAY_HASH_BYTES);
	ret[3] ^= known == WRONG;
	free(all);
	return known != NOBODY;
}

static void complain(void *arg, const struct rs_away *what)
{
	(void)arg;
	(void)what;
	complaints++;
}

/* A whole blob becomes a file of the store, while others read it, and then has all bytes, which have its hash; or not. */
static void keep_one(struct reader *r, const struct rs_away *what)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	unsigned char *got = malloc(what->bytes + 1);
	struct rs_landing_kept kept = {.fd = -1};
	struct rs_place place;
	struct sc_err err;
	unsigned was;
	bool wrong;
	int rc;

	check(rs_landing_place(r->set, what, 0, &place, &err) == 0, err.msg, what, 0);
	(void)pthread_mutex_lock(&one);
	known = (unsigned)rand_r(&r->seed) % 3;
	was = complaints;
	rc = rs_landing_keep(&place, &store, 1, stop_sometimes, r, &kept, &err);
	wrong = rc == SC_E_SYSTEM && strstr(err.msg, "other bytes");
	check(rc < 0 ? !wrong || known == WRONG : known != WRONG, "a hash was not compared", what, 0);
	check(rc < 0 || kept.has_hash == (known == RIGHT), "a hash that nobody knows", what, 0);
	check(complaints == was + wrong, "nobody was told of other bytes", what, 0);
	check(rc < 0 || meta_store_remove(&store, 1, &err) == 0, err.msg, what, 0);
	(void)pthread_mutex_unlock(&one);
	if (rc == 0) {
		check(pread(kept.fd, got, what->bytes + 1, 0) == (ssize_t)what->bytes, "another size", what, 0);
		for (uint64_t i = 0; i < what->bytes; i += 97)
			check(got[i] == true_byte(what, i), "a wrong byte of a file that is kept", what, i);
		(void)close(kept.fd);
		r->kept++;
	} else if (wrong) {
		r->wrong++;
	} else {
		check(rc == SC_E_CANCELLED || strstr(err.msg, "the wire is cut"), err.msg, what, 0);
		r->failures += rc != SC_E_CANCELLED;
	}
	free(got);
}

static void read_one(struct reader *r)
{
	const struct rs_away *what = &blobs[(unsigned)rand_r(&r->seed) % BLOBS];
	uint64_t at = what->bytes ? (unsigned)rand_r(&r->seed) % what->bytes : 0, bytes = 0;
	struct rs_place place;
	struct rs_bytes *b;
	struct sc_err err;
	int rc;

	if (rand_r(&r->seed) % 40 == 0) {
		keep_one(r, what);
		return;
	}
	if (what->bytes)
		bytes = 1 + (unsigned)rand_r(&r->seed) % sc_min_u64(what->bytes - at, (rand_r(&r->seed) % 4 ? 1 : 20) * 65536u);
	check(rs_landing_place(r->set, what, 0, &place, &err) == 0, err.msg, what, 0);
	check(rs_place_open(&place, &b, &err) == 0, err.msg, what, 0);
	if (rand_r(&r->seed) % 8 == 0)
		rs_bytes_ahead(b, at, what->bytes - at);
	rc = rand_r(&r->seed) % 3 ? need_later(b, at, bytes, rand_r(&r->seed) % 9 == 0, &err)
				  : rs_bytes_need(b, at, bytes, NULL, &err);
	if (rc == RS_HERE && bytes) {
		look(b, what, at, bytes, &r->seed);
		rs_bytes_release(b, at, bytes);
	} else if (rc < 0 && strstr(err.msg, "was found to be wrong")) {
		check(complaints > 0, "nobody has found it", what, at); /* L7 */
	} else if (rc < 0) {
		char name[64];

		(void)snprintf(name, sizeof(name), "blob %" PRIu64 " of node %u, at byte ", what->blob, what->node);
		check(strncmp(err.msg, name, strlen(name)) == 0 && strstr(err.msg, "the wire is cut"), err.msg, what, at);
		r->failures++;
	}
	r->later += rc == RS_LATER;
	rs_place_close(&place, b);
}

static void *read_many(void *arg)
{
	struct reader *r = arg;

	for (int i = 0; i < r->rounds; i++)
		read_one(r);
	return NULL;
}

/* The bytes of a file that are no hole.  (Its blocks may be more: those of the file system's own.) */
static uint64_t bytes_in(int fd)
{
	uint64_t sum = 0;

	for (off_t at = lseek(fd, 0, SEEK_DATA), end; at >= 0; at = lseek(fd, end, SEEK_DATA)) {
		end = lseek(fd, at, SEEK_HOLE);
		sum += (uint64_t)(end - at);
	}
	return sum;
}

/* What files of the set have on disk, once nobody waits for it any more. */
static uint64_t bytes_on_disk(struct rs_landings *set)
{
	struct rs_place place[BLOBS];
	struct rs_bytes *b[BLOBS];
	struct sc_err err;
	uint64_t sum = 0;
	int fd;

	(void)usleep(1100000); /* L2 */
	for (int i = 0; i < BLOBS; i++) {
		assert_int_equal(0, rs_landing_place(set, &blobs[i], 0, &place[i], &err));
		assert_int_equal(0, rs_place_open(&place[i], &b[i], &err));
		if (i == 0) { /* the release looks how much there is */
			while (rs_bytes_need(b[0], 0, 1, NULL, &err) < 0)
				;
			rs_bytes_release(b[0], 0, 1);
			(void)usleep(1100000);
			while (rs_bytes_need(b[0], 0, 1, NULL, &err) < 0)
				;
			rs_bytes_release(b[0], 0, 1);
		}
		assert_int_equal(0, rs_bytes_fd(b[i], &fd, &err));
		sum += bytes_in(fd);
		(void)close(fd);
	}
	for (int i = 0; i < BLOBS; i++)
		rs_place_close(&place[i], b[i]);
	return sum;
}

static void run(uint64_t chunks, unsigned fails, unsigned delay_us, int rounds)
{
	struct fake_puller *p = fake_puller_new(true_bytes, 3, fails, delay_us);
	struct rs_landing_config config = {&store, fake_puller_of(p), chunks * RS_CHUNK_BYTES, PULLS_MAX};
	struct reader readers[READERS];
	struct rs_landings *set;
	int failures = 0, later = 0, kept = 0, wrong = 0;
	uint64_t disk;
	struct sc_err err;

	config.puller.hash = tell_hash;
	config.puller.differs = complain;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	for (unsigned i = 0; i < READERS; i++) {
		readers[i] = (struct reader){.set = set, .seed = i + (unsigned)chunks * 100, .rounds = rounds};
		assert_int_equal(0, pthread_create(&readers[i].thread, NULL, read_many, &readers[i]));
	}
	for (unsigned i = 0; i < READERS; i++) {
		(void)pthread_join(readers[i].thread, NULL);
		failures += readers[i].failures;
		later += readers[i].later;
		kept += readers[i].kept;
		wrong += readers[i].wrong;
	}
	assert_true(later > 0 && kept > 0 && wrong > 0 && (failures > 0) == (fails > 0));
	disk = bytes_on_disk(set);
	print_message("%" PRIu64 " KiB of %" PRIu64 "\n", disk >> 10, chunks * RS_CHUNK_BYTES >> 10);
	assert_true(disk <= chunks * RS_CHUNK_BYTES && (!chunks || disk > 0));
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	assert_true(fake_puller_free(p) <= PULLS_MAX);
}

static void with_room_for_all(void **unused)
{
	(void)unused;
	run(1000, 0, 200, 300);
}

static void with_little_room(void **unused)
{
	(void)unused;
	run(24, 20, 200, 400);
}

static void with_room_for_three_chunks(void **unused)
{
	(void)unused;
	run(3, 15, 100, 300);
}

static void without_room(void **unused)
{
	(void)unused;
	run(0, 0, 0, 150);
}

static void who_waits_at_the_end_is_told(void **unused)
{
	struct fake_puller *p = fake_puller_new(true_bytes, 2, 0, 0);
	const struct rs_landing_config config = {&store, fake_puller_of(p), 1 << 20, 2};
	struct waiting w[BLOBS];
	struct rs_place place;
	struct rs_landings *set;
	struct rs_bytes *b;
	struct sc_err err;

	(void)unused;
	fake_puller_hold(p, true);
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	assert_int_equal(0, rs_landing_place(set, &blobs[0], 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	for (uint64_t i = 0; i < BLOBS; i++) { /* two are on their way, others wait */
		w[i] = (struct waiting){{on_done}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, {0}};
		assert_int_equal(RS_LATER, rs_bytes_need(b, i * 3 * RS_CHUNK_BYTES, 2 * RS_CHUNK_BYTES, &w[i].done, &err));
	}
	rs_landings_stop(set);
	for (int i = 0; i < BLOBS; i++) {
		assert_int_equal(1, w[i].calls);
		assert_non_null(strstr(w[i].err.msg, "the mount ends"));
	}
	assert_int_equal(SC_E_CANCELLED, rs_bytes_need(b, 0, 1, NULL, &err));
	rs_place_close(&place, b);
	(void)rs_landings_free(set);
	(void)fake_puller_free(p);
}

static uint64_t brought;

static int count_bytes(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	brought += bytes;
	return true_bytes(what, at, bytes, to, err);
}

/* Reads that go on bring what comes next, so far ahead; others bring what they need. */
static void who_reads_on_is_read_ahead_of(void **unused)
{
	static const uint64_t MIB = 1 << 20;
	const struct rs_away what = {4, 4, 64 * MIB};
	struct fake_puller *puller = fake_puller_new(count_bytes, 0, 0, 0); /* it answers at once */
	struct rs_landing_config config = {&store, fake_puller_of(puller), 1024 * MIB, PULLS_MAX};
	struct rs_landings *set;
	struct rs_place place;
	struct rs_bytes *b;
	struct sc_err err;
	unsigned char byte;

	(void)unused;
	brought = 0;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	assert_int_equal(0, rs_landing_place(set, &what, 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	for (unsigned i = 0; i < 16; i++) /* backwards, and with gaps: nothing more */
		assert_int_equal(0, rs_bytes_read(b, (60 - 3 * i) * MIB, 1, &byte, &err));
	assert_int_equal(16 * RS_CHUNK_BYTES, brought);
	assert_int_equal(0, rs_bytes_read(b, 0, 1, &byte, &err));
	assert_int_equal(17 * RS_CHUNK_BYTES, brought);
	for (uint64_t at = RS_CHUNK_BYTES; at < what.bytes; at += RS_CHUNK_BYTES) {
		unsigned char got[RS_CHUNK_BYTES];

		assert_int_equal(0, rs_bytes_read(b, at, RS_CHUNK_BYTES, got, &err));
		assert_int_equal(true_byte(&what, at), got[0]);
		/* of what is behind, and of what is ahead 32 MiB at most; at first 4 */
		assert_true(brought <= at + 33 * MIB + 17 * RS_CHUNK_BYTES);
		assert_true(at > RS_CHUNK_BYTES || (brought >= 4 * MIB && brought < 6 * MIB));
		assert_true(at < 20 * MIB || brought >= at + 14 * MIB || brought >= what.bytes);
	}
	assert_int_equal(what.bytes, brought);
	rs_place_close(&place, b);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(puller);
}

/* Who says what he reads next gets that, as far as there is room, and nothing is guessed. */
static void what_is_said_to_be_read_next_comes(void **unused)
{
	static const uint64_t MIB = 1 << 20;
	const struct rs_away what = {4, 5, 64 * MIB};
	struct fake_puller *puller = fake_puller_new(count_bytes, 0, 0, 0);
	struct rs_landing_config config = {&store, fake_puller_of(puller), 128 * MIB, PULLS_MAX};
	struct rs_landings *set;
	struct rs_place place;
	struct rs_bytes *b;
	struct sc_err err;
	unsigned char byte;

	(void)unused;
	brought = 0;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	assert_int_equal(0, rs_landing_place(set, &what, 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	rs_bytes_ahead(b, 2 * MIB + 5, 3 * MIB); /* 49 chunks */
	assert_int_equal(49 * RS_CHUNK_BYTES, brought);
	for (uint64_t at = 2 * MIB; at < 5 * MIB; at += RS_CHUNK_BYTES) {
		assert_int_equal(0, rs_bytes_read(b, at, 1, &byte, &err));
		assert_int_equal(true_byte(&what, at), byte);
	}
	assert_int_equal(49 * RS_CHUNK_BYTES, brought);
	rs_bytes_ahead(b, 20 * MIB, 40 * MIB); /* a sixteenth of what may be here */
	assert_int_equal(49 * RS_CHUNK_BYTES + 8 * MIB, brought);
	rs_bytes_ahead(b, what.bytes - 1, 1);
	assert_int_equal(50 * RS_CHUNK_BYTES + 8 * MIB, brought);
	rs_place_close(&place, b);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(puller);
}

static void what_no_store_has_is_refused(void **unused)
{
	static const struct rs_away bad[] = {{65536, 1, 1}, {1, UINT64_C(1) << 40, 1}, {1, 1, UINT64_C(1) << 48}};
	struct fake_puller *p = fake_puller_new(true_bytes, 0, 0, 0);
	const struct rs_landing_config config = {&store, fake_puller_of(p), 1 << 20, 2};
	struct rs_place place, other;
	struct rs_landings *set;
	struct rs_bytes *b, *c;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_landings_new(&config, &set, &err));
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(SC_E_LIMIT, rs_landing_place(set, &bad[i], 0, &place, &err));
	assert_int_equal(SC_E_LIMIT, rs_landing_place(set, &blobs[1], 2, &place, &err));
	assert_int_equal(0, rs_landing_place(set, &blobs[0], 0, &place, &err));
	assert_int_equal(0, rs_place_open(&place, &b, &err));
	other = place;
	other.bytes--;
	assert_int_equal(SC_E_DAMAGED, rs_place_open(&other, &c, &err));
	assert_non_null(strstr(err.msg, "blob 1 of node 1"));
	rs_place_close(&place, b);
	rs_landings_stop(set);
	(void)rs_landings_free(set);
	(void)fake_puller_free(p);
}

static int begin(void **unused)
{
	struct sc_err err;

	(void)unused;
	sc_log_level(SC_LOG_ERROR);
	return mkdtemp(dir) ? meta_store_open(dir, 0, &store, &err) : -1;
}

static int end(void **unused)
{
	char clean[80];

	(void)unused;
	meta_store_close(&store);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_room_for_all),
		cmocka_unit_test(with_little_room),
		cmocka_unit_test(with_room_for_three_chunks),
		cmocka_unit_test(without_room),
		cmocka_unit_test(who_waits_at_the_end_is_told),
		cmocka_unit_test(who_reads_on_is_read_ahead_of),
		cmocka_unit_test(what_is_said_to_be_read_next_comes),
		cmocka_unit_test(what_no_store_has_is_refused),
	};

	return cmocka_run_group_tests_name("landings", tests, begin, end);
}
