/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that read a range together: each byte once, the first error, nobody at it when it returns; also where no thread starts. */
#include "reshard/engine/gpu/crew.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/mem.h"

#define MOST (20u << 20)

static unsigned threads_left = UINT32_MAX;	/* that can be made */

int __real_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

int __wrap_pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	return threads_left-- ? __real_pthread_create(ret, attr, run, arg) : EAGAIN;
}

static unsigned threads_wanted(void)
{
	return (unsigned)sc_min_u64(RS_CREW_MAX, (uint64_t)sysconf(_SC_NPROCESSORS_ONLN)) - 1;
}

struct range {
	uint64_t fails_at;	/* the byte that cannot be read; UINT64_MAX: none */
	unsigned inside;	/* calls of read() that have not returned; atomic, as those that follow */
	unsigned begun;
	uint64_t read;		/* bytes */
	struct rs_crew *crew;
};

static unsigned char byte_of(uint64_t at)
{
	return (unsigned char)(at * 2654435761u >> 13);
}

static bool has_failed(struct rs_crew *c)
{
	bool has;

	(void)pthread_mutex_lock(&c->lock);
	has = c->first.code;
	(void)pthread_mutex_unlock(&c->lock);
	return has;
}

/* Parts behind the one that fails wait until it has, and fail, too: of these no more are begun than there are threads. */
static int read_some(const void *arg, uint64_t at, uint64_t bytes, unsigned char *to, struct sc_err *err)
{
	struct range *r = *(struct range *const *)arg;
	int rc = 0;

	(void)__atomic_add_fetch(&r->inside, 1, __ATOMIC_ACQ_REL);
	(void)__atomic_add_fetch(&r->begun, 1, __ATOMIC_ACQ_REL);
	(void)__atomic_add_fetch(&r->read, bytes, __ATOMIC_ACQ_REL);
	if (r->fails_at >= at && r->fails_at < at + bytes) {
		rc = sc_fail(err, SC_E_DAMAGED, "the byte at %lu", (unsigned long)r->fails_at);
	} else if (r->fails_at < at) {
		for (unsigned i = 0; i < 100000 && !has_failed(r->crew); i++)
			(void)usleep(100);
		rc = sc_fail(err, SC_E_SYSTEM, "a later one");
	} else {
		for (uint64_t i = 0; i < bytes; i++)
			to[i] = byte_of(at + i);
	}
	(void)__atomic_sub_fetch(&r->inside, 1, __ATOMIC_ACQ_REL);
	return rc;
}

static void try_range(struct rs_crew *crew, uint64_t at, uint64_t bytes, uint64_t fails_at, unsigned char *memory)
{
	struct range r = {.fails_at = fails_at, .crew = crew}, *arg = &r;
	struct sc_err err = {0};
	int rc;

	memory[0] = memory[bytes + 1] = 42;
	rc = rs_crew_read(crew, read_some, &arg, at, bytes, memory + 1, &err);
	assert_int_equal(0, r.inside);
	assert_int_equal(42, memory[0]);
	assert_int_equal(42, memory[bytes + 1]);
	if (fails_at != UINT64_MAX) {
		assert_int_equal(SC_E_DAMAGED, rc);
		assert_int_equal(SC_E_DAMAGED, err.code);
		assert_true(r.begun <= (fails_at - at) / RS_CREW_PART_BYTES + 1 + crew->nr);
		return;
	}
	assert_int_equal(0, rc);
	assert_int_equal(bytes, r.read);
	for (uint64_t k = 0; k < bytes; k++)
		if (memory[1 + k] != byte_of(at + k))
			fail_msg("%lu bytes at %lu: that at %lu is another one", (unsigned long)bytes, (unsigned long)at, (unsigned long)k);
}

static void try_ranges(unsigned nr, unsigned threads)
{
	unsigned char *memory = malloc(MOST + 2);
	struct rs_crew crew = {0};

	assert_non_null(memory);
	srandom(3);
	threads_left = threads;
	for (unsigned i = 0; i < nr; i++) {
		const uint64_t at = (uint64_t)random(), bytes = i ? 1 + (uint64_t)random() % MOST : MOST;

		try_range(&crew, at, bytes, i % 3 ? UINT64_MAX : at + (uint64_t)random() % bytes, memory);
	}
	assert_int_equal(sc_min_u64(threads, threads_wanted()), crew.nr);
	threads_left = UINT32_MAX;
	rs_crew_end(&crew);
	assert_false(crew.started);
	free(memory);
}

static void a_range_is_read_once(void **state)
{
	(void)state;
	try_ranges(150, UINT32_MAX);
}

static void it_is_without_threads_too(void **state)
{
	(void)state;
	try_ranges(30, 0);
	try_ranges(30, 1);
}

/* What is short starts nobody, and ends so. */
static void a_short_range_is_the_callers(void **state)
{
	static unsigned char memory[RS_CREW_PART_BYTES + 2];
	struct rs_crew crew = {0};

	(void)state;
	try_range(&crew, 7, 100, UINT64_MAX, memory);
	try_range(&crew, 7, RS_CREW_PART_BYTES, UINT64_MAX, memory);
	assert_false(crew.started);
	rs_crew_end(&crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_range_is_read_once),
		cmocka_unit_test(it_is_without_threads_too),
		cmocka_unit_test(a_short_range_is_the_callers),
	};

	return cmocka_run_group_tests_name("gpu/crew", tests, NULL, NULL);
}
