/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of working trees under threads, and under processes that are killed; test_tail.c has what a kill can leave.
 *
 *     test_tree_tail_live         the tests
 *     test_tree_tail_live bench   nanoseconds an append
 */
#include "meta/tree/tail.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

static int dir;
static struct sc_err err;

/* --- processes that are killed --- */

struct seen {
	uint64_t nr;
	bool bad;
};

static int take_next(void *arg, struct meta_tail_batch *batch, struct sc_err *e)
{
	struct seen *s = arg;
	struct meta_tail_record r;
	int rc;

	while ((rc = meta_tail_next(batch, &r, e)) == 1) {
		s->bad |= r.request != ++s->nr || r.bytes.nr != r.request % 200;
		for (size_t i = 0; i < r.bytes.nr; i++)
			s->bad |= r.bytes.at[i] != (char)r.request;
	}
	return rc;
}

/* Appends records, and says of each that its append returned. */
static void append_until_killed(int to)
{
	struct meta_tail *tail;
	char bytes[200];

	if (meta_tail_open(dir, "log", 4u << 20, 0, take_next, NULL, &tail, &err) < 0)
		_exit(1);
	for (uint64_t i = 1;; i++) {
		memset(bytes, (int)(char)i, sizeof(bytes));
		if (meta_tail_append(tail, i, (struct meta_bytes){bytes, i % 200}, NULL, &err) < 0 ||
		    write(to, &i, sizeof(i)) != sizeof(i))
			_exit(1);
	}
}

static void what_was_answered_outlives_the_process(void **unused)
{
	(void)unused;
	for (unsigned round = 0; round < 60; round++) {
		struct seen seen = {0};
		struct meta_tail *tail;
		uint64_t said = 0;
		int ends[2];
		pid_t child;

		(void)unlinkat(dir, "log", 0);
		assert_int_equal(0, pipe(ends));
		child = fork();
		if (child == 0)
			append_until_killed(ends[1]);
		(void)close(ends[1]);
		for (unsigned n = 1 + round * 37; n && read(ends[0], &said, sizeof(said)) == sizeof(said); n--)
			;
		assert_int_equal(0, kill(child, SIGKILL));
		while (read(ends[0], &said, sizeof(said)) == sizeof(said))
			;
		(void)close(ends[0]);
		assert_int_equal(child, waitpid(child, NULL, 0));
		assert_int_equal(0, meta_tail_open(dir, "log", 4u << 20, 0, take_next, &seen, &tail, &err));
		assert_int_equal(0, meta_tail_drain(tail, &err));
		assert_false(seen.bad);
		assert_in_range(seen.nr, said, said + 1);
		(void)meta_tail_close(tail);
	}
}

/* --- threads --- */

#define THREADS 4u
#define EACH 30000u

static struct {
	struct meta_tail *tail;
	uint64_t last, nr[THREADS];
	bool over;		/* atomic */
} crowd;

static int take_in_order(void *arg, struct meta_tail_batch *batch, struct sc_err *e)
{
	struct meta_tail_record r;
	int rc;

	(void)arg;
	while ((rc = meta_tail_next(batch, &r, e)) == 1) {
		unsigned thread = (unsigned)(r.request >> 32);

		if (r.sequence <= crowd.last || thread >= THREADS || (uint32_t)r.request != crowd.nr[thread])
			return sc_fail(e, SC_E_CORRUPT, "out of order");
		for (size_t i = 0; i < r.bytes.nr; i++)
			if (r.bytes.at[i] != (char)(r.request >> 32 | r.request))
				return sc_fail(e, SC_E_CORRUPT, "other bytes");
		crowd.nr[thread]++;
		crowd.last = r.sequence;
	}
	return rc;
}

static void *append_many(void *arg)
{
	uint64_t thread = (uint64_t)(uintptr_t)arg, state = thread;
	struct sc_err e;
	char bytes[300];

	for (uint64_t i = 0; i < EACH; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		memset(bytes, (int)(char)(thread | i), sizeof(bytes));
		if (meta_tail_append(crowd.tail, thread << 32 | i, (struct meta_bytes){bytes, state >> 33 & 255}, NULL, &e) < 0)
			return (void *)"an append failed";
	}
	return NULL;
}

static void *drain_often(void *unused)
{
	struct sc_err e;

	(void)unused;
	while (!__atomic_load_n(&crowd.over, __ATOMIC_ACQUIRE))
		if (meta_tail_drain(crowd.tail, &e) < 0)
			return (void *)"a drain failed";
	return NULL;
}

static void threads(void **unused)
{
	pthread_t thread[THREADS], drainer;
	void *complaint;

	(void)unused;
	(void)unlinkat(dir, "log", 0);
	assert_int_equal(0, meta_tail_open(dir, "log", 16384, 0, take_in_order, NULL, &crowd.tail, &err));
	assert_int_equal(0, pthread_create(&drainer, NULL, drain_often, NULL));
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(0, pthread_create(&thread[i], NULL, append_many, (void *)i));
	for (unsigned i = 0; i < THREADS; i++) {
		assert_int_equal(0, pthread_join(thread[i], &complaint));
		assert_null(complaint);
	}
	__atomic_store_n(&crowd.over, true, __ATOMIC_RELEASE);
	assert_int_equal(0, pthread_join(drainer, &complaint));
	assert_null(complaint);
	assert_int_equal(0, meta_tail_drain(crowd.tail, &err));
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(EACH, crowd.nr[i]);
	crowd.tail = meta_tail_close(crowd.tail);
}

/* --- figures --- */

static int take_all(void *arg, struct meta_tail_batch *batch, struct sc_err *e)
{
	(void)arg;
	(void)batch;
	(void)e;
	return 0;
}

static int bench(void)
{
	static char bytes[200];
	struct meta_tail *tail;
	int64_t all = 0;
	enum { ROUNDS = 200, NR = 10000 };

	if (meta_tail_open(dir, "bench", 4u << 20, 0, take_all, NULL, &tail, &err) < 0)
		return 1;
	for (int round = 0; round < ROUNDS; round++) {
		int64_t began = sc_now_ns();

		for (uint64_t i = 0; i < NR; i++)
			if (meta_tail_append(tail, i, (struct meta_bytes){bytes, sizeof(bytes)}, NULL, &err) < 0)
				return 1;
		all += sc_now_ns() - began;
		if (meta_tail_drain(tail, &err) < 0)
			return 1;
	}
	printf("append of 200 bytes: %.0f ns\n", (double)all / ROUNDS / NR);
	(void)meta_tail_close(tail);
	return unlinkat(dir, "bench", 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_answered_outlives_the_process),
		cmocka_unit_test(threads),
	};
	char folder[64], clean[100];
	int rc;

	(void)argv;
	(void)snprintf(folder, sizeof(folder), "%s/scalai-tail.XXXXXX",
		       argc < 2 && access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/var/tmp");
	if (!mkdtemp(folder) || (dir = open(folder, O_RDONLY | O_DIRECTORY)) < 0)
		return 1;
	rc = argc > 1 ? bench() : cmocka_run_group_tests(tests, NULL, NULL);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", folder);
	return system(clean) == 0 ? rc : 1;
}
