/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of working trees, as a process leaves it that is killed at any moment: the file is copied while the log is
 * open, whole or with a part of an append's stores, and the copy is opened.  A start finds the records that were not
 * applied, in order, and nothing else.
 */
#include "meta/tree/tail.h"

#include "tests/support/interpose.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/pick.h"

#define RING 4096u
#define FILE_BYTES (4096u + RING)
#define RECORDS_MAX 400u

static char folder[64];
static int dir;
static struct sc_err err;
static int (*real_openat)(int dir, const char *path, int flags, mode_t mode);
static const char *boot;	/* a file that stands for the kernel's, NULL: the kernel's */

static int open_boot(int at, const char *name, int flags, mode_t mode)
{
	return boot && strncmp(name, "/proc/", 6) == 0 ? real_openat(dir, boot, flags, mode)
						       : real_openat(at, name, flags, mode);
}

static void write_file(const char *name, const void *bytes, size_t nr)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(nr, write(fd, bytes, nr));
	(void)close(fd);
}

static void read_log(const char *name, char ret[FILE_BYTES])
{
	int fd = openat(dir, name, O_RDONLY);

	assert_true(fd >= 0);
	assert_int_equal(FILE_BYTES, pread(fd, ret, FILE_BYTES, 0));
	(void)close(fd);
}

/* --- a catalog, and what it should be handed --- */

struct record {
	uint64_t sequence, request;
	size_t nr;
	char bytes[1024];
};
struct side {
	struct meta_tail *tail;
	uint64_t applied;	/* of the catalog */
	bool full;		/* the catalog takes nothing */
	unsigned nr;
	struct record got[RECORDS_MAX];
};

static struct side now, later;	/* `later`: after a kill */
static struct {			/* what was appended and is not in now's catalog */
	unsigned nr;
	struct record at[RECORDS_MAX];
} waiting;

static int take(void *arg, struct meta_tail_batch *batch, struct sc_err *e)
{
	struct side *s = arg;
	struct meta_tail_record r;
	unsigned nr = 0;
	int rc;

	if (s->full)
		return sc_fail(e, SC_E_NO_SPACE, "no room in the catalog");
	while ((rc = meta_tail_next(batch, &r, e)) == 1) {
		struct record *to = &s->got[nr++];

		assert_true(nr < RECORDS_MAX && r.bytes.nr <= sizeof(to->bytes) && r.sequence > s->applied);
		*to = (struct record){.sequence = r.sequence, .request = r.request, .nr = r.bytes.nr};
		memcpy(to->bytes, r.bytes.at, r.bytes.nr);
		assert_true(r.sequence <= batch->sequence);
	}
	s->applied = batch->sequence;
	s->nr = nr;
	return rc;
}

static void open_side(struct side *s, const char *name, uint64_t applied)
{
	*s = (struct side){.applied = applied};
	if (meta_tail_open(dir, name, RING, applied, take, s, &s->tail, &err) < 0)
		fail_msg("%s", err.msg);
}

static void expect(const struct side *s, unsigned nr)
{
	if (s->nr != nr)
		fail_msg("%u records, not %u", s->nr, nr);
	for (unsigned i = 0; i < nr; i++) {
		const struct record *a = &waiting.at[i], *b = &s->got[i];

		if (a->sequence != b->sequence || a->request != b->request || a->nr != b->nr ||
		    memcmp(a->bytes, b->bytes, a->nr) != 0)
			fail_msg("record %u of %u is another one", i, nr);
	}
}

/* Opens these bytes as a start would: the records that it finds are in `later`, whose log stays open. */
static void start(const char file[FILE_BYTES], uint64_t applied)
{
	write_file("copy", file, FILE_BYTES);
	open_side(&later, "copy", applied);
	assert_int_equal(0, meta_tail_drain(later.tail, &err));
}

static void end(void)
{
	later.tail = meta_tail_close(later.tail);
}

static void expect_no_damage(void)
{
	struct meta_tail_damage damage;

	if (meta_tail_is_damaged(later.tail, &damage))
		fail_msg("damage at %" PRIu64 ", %" PRIu64 " records behind it", damage.at, damage.behind);
}

static void check_kill(void)
{
	char file[FILE_BYTES];

	read_log("log", file);
	start(file, now.applied);
	expect(&later, waiting.nr);
	expect_no_damage();
	end();
}

/* Bytes that nobody took for a record, though they look like one: parts of logs. */
static struct meta_bytes any_bytes(void)
{
	static char bytes[FILE_BYTES];
	size_t nr = pick(4) ? pick(200) : pick(1025), at = 4096 + pick(RING / 32 - 32) * 32;

	if (pick(2) && now.tail) {
		read_log("log", bytes);
		return (struct meta_bytes){bytes + at, nr};
	}
	for (size_t i = 0; i < nr; i++)
		bytes[i] = (char)pick(256);
	return (struct meta_bytes){bytes, nr};
}

static void append(struct meta_tail *tail, struct side *s)
{
	struct meta_bytes bytes = any_bytes();
	struct record r = {.request = pick(1000), .nr = bytes.nr};
	uint64_t was = s->applied;

	memcpy(r.bytes, bytes.at, bytes.nr);
	if (meta_tail_append(tail, r.request, bytes, &r.sequence, &err) < 0)
		fail_msg("%s", err.msg);
	if (s->applied != was) { /* it was full */
		expect(s, waiting.nr);
		waiting.nr = 0;
	}
	assert_true(waiting.nr < RECORDS_MAX);
	waiting.at[waiting.nr++] = r;
}

static void drain(void)
{
	now.nr = 0;
	assert_int_equal(0, meta_tail_drain(now.tail, &err));
	expect(&now, waiting.nr);
	waiting.nr = 0;
}

static void new_log(uint64_t seed)
{
	random_state = seed;
	(void)unlinkat(dir, "log", 0);
	waiting.nr = 0;
	open_side(&now, "log", (uint64_t)pick(1000) * 64);
}

static void close_log(void)
{
	now.tail = meta_tail_close(now.tail);
}

/* --- tests --- */

static void kills(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		new_log(seed);
		for (int step = 0; step < 400; step++) {
			unsigned what = pick(20);

			if (what < 14) {
				append(now.tail, &now);
			} else if (what < 16) {
				drain();
			} else if (what == 16) {
				uint64_t applied = now.applied;

				close_log();
				open_side(&now, "log", applied);
			} else if (what == 17 && waiting.nr) { /* after the catalog's transaction, before anybody knows */
				char file[FILE_BYTES];

				read_log("log", file);
				start(file, waiting.at[waiting.nr - 1].sequence);
				assert_int_equal(0, later.nr);
				expect_no_damage();
				end();
			}
			check_kill();
		}
		close_log();
	}
}

/* Some stores of an append were made; which, is told by `made`. */
static void check_torn(const char before[FILE_BYTES], const char after[FILE_BYTES], const bool made[FILE_BYTES / 8],
		       unsigned old, bool all)
{
	char file[FILE_BYTES];
	unsigned nr = waiting.nr;
	uint64_t applied;

	for (unsigned w = 0; w < FILE_BYTES / 8; w++)
		memcpy(file + w * 8, (made[w] ? after : before) + w * 8, 8);
	start(file, now.applied);
	expect(&later, later.nr == nr ? nr : old);
	assert_true(!all || (later.nr == nr && later.applied == waiting.at[nr - 1].sequence));
	/* what is appended from then on is found, and nothing behind it */
	waiting.nr = 0;
	for (unsigned k = pick(3) + 1; k; k--)
		append(later.tail, &later);
	read_log("copy", file);
	applied = later.applied;
	end();
	start(file, applied);
	expect(&later, waiting.nr);
	end();
}

static size_t place_of(uint64_t position)
{
	return 4096 + position % RING;
}

/* Stores before the last one, which makes the record whole, or the filler before it. */
static void check_killed(const char before[FILE_BYTES], const char after[FILE_BYTES], unsigned old)
{
	const struct record *r = &waiting.at[waiting.nr - 1];
	uint64_t was = old ? waiting.at[old - 1].sequence : now.applied, begin = r->sequence - 32 - (r->nr + 31) / 32 * 32;
	char file[FILE_BYTES];

	for (unsigned n = 0; n < 12; n++) {
		for (unsigned w = 0; w < FILE_BYTES / 8; w++)
			memcpy(file + w * 8, (n == 0 || pick(4) ? after : before) + w * 8, 8);
		memcpy(file + place_of(was), before + place_of(was), 8);
		if (n)
			memcpy(file + place_of(begin), before + place_of(begin), 8);
		start(file, now.applied);
		expect(&later, old);
		expect_no_damage();
		end();
	}
}

static void torn_appends(void **unused)
{
	static struct record kept[RECORDS_MAX];

	(void)unused;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		new_log(seed);
		for (int step = 0; step < 12; step++) {
			char before[FILE_BYTES], after[FILE_BYTES];
			unsigned words[FILE_BYTES / 8], nr = 0, old, kept_nr;

			for (unsigned k = pick(6); k; k--)
				append(now.tail, &now);
			if (pick(2))
				drain();
			old = waiting.nr;
			read_log("log", before);
			append(now.tail, &now);
			if (waiting.nr != old + 1)
				continue; /* it drained before */
			read_log("log", after);
			check_killed(before, after, old);
			for (unsigned w = 0; w < FILE_BYTES / 8; w++)
				if (memcmp(before + w * 8, after + w * 8, 8) != 0)
					words[nr++] = w;
			kept_nr = waiting.nr;
			memcpy(kept, waiting.at, kept_nr * sizeof(*kept));
			for (unsigned n = 0; n <= 2 * nr + 20; n++) {
				bool made[FILE_BYTES / 8] = {false};

				for (unsigned i = 0; i < nr; i++)
					made[words[i]] = n <= nr ? i < n : n <= 2 * nr ? i >= n - nr : pick(4) > 0;
				check_torn(before, after, made, old, n == nr);
				waiting.nr = kept_nr;
				memcpy(waiting.at, kept, kept_nr * sizeof(*kept));
			}
		}
		close_log();
	}
}

static void damaged_bytes(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		new_log(seed);
		for (int step = 0; step < 100; step++) {
			char file[FILE_BYTES];

			append(now.tail, &now);
			read_log("log", file);
			file[pick(8) ? 4096 + pick(RING) : pick(100)] ^= (char)(1 << pick(8));
			start(file, now.applied);
			assert_true(later.nr <= waiting.nr);
			expect(&later, later.nr);
			end();
		}
		close_log();
	}
}

/* One bit, or a sector of zeros: all records are found, or where and how many are not is told. */
static void told_damage(void **unused)
{
	unsigned told = 0, most;

	(void)unused;
	for (uint64_t seed = 0; seed < 3600; seed++) {
		struct meta_tail_damage damage;
		char file[FILE_BYTES];
		uint64_t at, end_of;
		bool is;

		if (seed % 60 == 0)
			close_log(), new_log(seed + 1);
		append(now.tail, &now);
		read_log("log", file);
		end_of = waiting.at[waiting.nr - 1].sequence;
		at = now.applied + pick((unsigned)(end_of - now.applied));
		most = pick(3) ? 2 : 18; /* a sector may have been the last records, and a filler's */
		if (most == 2)
			file[4096 + at % RING] ^= (char)(1 << pick(8));
		else
			memset(file + 4096 + at % RING / 512 * 512, 0, 512);
		start(file, now.applied);
		expect(&later, later.nr); /* those before it */
		is = meta_tail_is_damaged(later.tail, &damage);
		assert_true(is || later.nr + most >= waiting.nr);
		assert_true(!is || (later.nr + damage.behind <= waiting.nr && damage.at >= later.applied && damage.at < end_of));
		told += is;
		end();
	}
	close_log();
	assert_true(told > 1000);
}

/* A record that was appended and has one wrong bit is never taken for one that was not, not even the last one. */
static void told_of_the_last(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct meta_tail_damage damage;
		const struct record *r = &waiting.at[1];
		char file[FILE_BYTES];

		new_log(seed);
		append(now.tail, &now);
		append(now.tail, &now);
		if (waiting.nr == 2) {
			read_log("log", file);
			file[4096 + (r->sequence - 32 - (r->nr + 31) / 32 * 32 + pick(32 + (unsigned)r->nr)) % RING] ^=
				(char)(1 << pick(8));
			start(file, now.applied);
			expect(&later, 1);
			assert_true(meta_tail_is_damaged(later.tail, &damage));
			assert_int_equal(0, damage.behind);
			end();
			read_log("log", file);
			file[pick(64)] ^= (char)(1 << pick(8)); /* of the header */
			start(file, now.applied);
			expect(&later, 2);
			expect_no_damage();
			end();
		}
		close_log();
	}
}

/* While the log is open: nothing is applied that was not appended. */
static void damage_under_an_open_log(void **unused)
{
	char byte;
	int fd;

	(void)unused;
	new_log(1);
	append(now.tail, &now);
	fd = openat(dir, "log", O_RDWR);
	assert_int_equal(1, pread(fd, &byte, 1, 4096 + (off_t)(now.applied % RING) + 8));
	byte ^= 1;
	assert_int_equal(1, pwrite(fd, &byte, 1, 4096 + (off_t)(now.applied % RING) + 8));
	(void)close(fd);
	assert_int_equal(SC_E_CORRUPT, meta_tail_drain(now.tail, &err));
	close_log();
}

static void other_boots(void **unused)
{
	(void)unused;
	write_file("boot1", "11111111-1111-1111-1111-111111111111\n", 37);
	write_file("boot2", "22222222-2222-2222-2222-222222222222\n", 37);
	for (uint64_t seed = 1; seed <= 30; seed++) {
		char file[FILE_BYTES];
		uint64_t applied;

		boot = "boot1";
		new_log(seed);
		applied = now.applied;
		for (unsigned k = 1 + pick(60); k; k--)
			append(now.tail, &now);
		read_log("log", file);
		boot = "boot2";
		start(file, pick(2) ? applied : now.applied); /* the catalog lost its last transactions, too, or not */
		assert_int_equal(0, later.nr);
		close_log();
		/* it goes on, and under the boot of now its records are found */
		waiting.nr = 0;
		append(later.tail, &later);
		read_log("copy", file);
		applied = later.applied;
		end();
		start(file, applied);
		expect(&later, 1);
		end();
		boot = "boot1";
		start(file, applied);
		assert_int_equal(0, later.nr);
		end();
	}
	boot = NULL;
}

/* A catalog that was restored from a copy, or made anew, has another sequence. */
static void other_catalogs(void **unused)
{
	(void)unused;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		char file[FILE_BYTES];

		new_log(seed);
		for (unsigned k = 1 + pick(60); k; k--)
			append(now.tail, &now);
		read_log("log", file);
		for (uint64_t i = 1; i < 4; i++) {
			start(file, now.applied + i * RING);
			assert_int_equal(0, later.nr);
			end();
			start(file, now.applied + RING * 1000 + (uint64_t)pick(128) * 32);
			assert_int_equal(0, later.nr);
			end();
		}
		close_log();
	}
}

static void limits(void **unused)
{
	static char bytes[RING];
	uint64_t sequence = 0;
	unsigned nr = 0;
	int rc;

	(void)unused;
	new_log(1);
	assert_int_equal(SC_E_LIMIT, meta_tail_append(now.tail, 1, (struct meta_bytes){bytes, RING / 4 + 1}, NULL, &err));
	assert_int_equal(0, meta_tail_waiting(now.tail));
	now.full = true;
	while ((rc = meta_tail_append(now.tail, 1, (struct meta_bytes){bytes, RING / 4}, &sequence, &err)) == 0)
		nr++;
	assert_int_equal(SC_E_NO_SPACE, rc);
	assert_int_equal(ENOSPC, err.errnum);
	assert_true(nr >= 2);
	assert_int_equal(SC_E_NO_SPACE, meta_tail_drain(now.tail, &err));
	now.full = false;
	assert_int_equal(0, meta_tail_append(now.tail, 2, (struct meta_bytes){bytes, RING / 4}, &sequence, &err));
	assert_int_equal(nr, now.nr); /* what was appended before, and not what was refused */
	assert_int_equal(0, meta_tail_drain(now.tail, &err));
	assert_int_equal(1, now.nr);
	assert_int_equal(2, now.got[0].request);
	assert_int_equal(sequence, now.applied);
	close_log();
}

/* --- calls that fail --- */

static long left;
static int fail_with;

static int fail_one(enum interpose_call call, long arg)
{
	(void)call;
	(void)arg;
	return left-- == 0 ? -fail_with : 0;
}

/* Each call of an open fails once: it is refused, or does without; then all records are there, or, where the log was to
 * be made anew, none. */
static void failing_calls(void **unused)
{
	static const struct {
		uint64_t calls;
		int error;
	} kinds[] = {{INTERPOSE(alloc), ENOMEM}, {INTERPOSE(openat) | INTERPOSE(fstat) | INTERPOSE(pread), EIO},
		     {INTERPOSE(pwrite) | INTERPOSE(ftruncate) | INTERPOSE(fallocate), ENOSPC}, {INTERPOSE(mmap), ENOMEM}};
	unsigned failures = 0;

	(void)unused;
	for (int fresh = 0; fresh < 2; fresh++)
		for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
			for (long n = 0;; n++) {
				char file[FILE_BYTES];
				int rc;

				new_log(5);
				append(now.tail, &now);
				read_log("log", file);
				write_file("copy", file, fresh ? 10 : FILE_BYTES);
				close_log();
				later = (struct side){.applied = now.applied};
				left = n;
				fail_with = kinds[k].error;
				interpose_begin(kinds[k].calls, fail_one);
				rc = meta_tail_open(dir, "copy", RING, now.applied, take, &later, &later.tail, &err);
				interpose_end();
				failures += rc < 0;
				if (rc < 0) {
					assert_int_equal(kinds[k].error, err.errnum);
					assert_null(later.tail);
					open_side(&later, "copy", now.applied);
				}
				assert_int_equal(0, meta_tail_drain(later.tail, &err));
				expect(&later, fresh ? 0 : 1);
				end();
				if (rc == 0)
					break;
			}
	assert_true(failures > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kills), cmocka_unit_test(torn_appends), cmocka_unit_test(damaged_bytes),
		cmocka_unit_test(told_damage), cmocka_unit_test(told_of_the_last),
		cmocka_unit_test(damage_under_an_open_log), cmocka_unit_test(other_boots),
		cmocka_unit_test(other_catalogs), cmocka_unit_test(limits), cmocka_unit_test(failing_calls),
	};
	char clean[100];
	int rc;

	(void)snprintf(folder, sizeof(folder), "%s/scalai-tail.XXXXXX",
		       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/var/tmp");
	if (!mkdtemp(folder) || (dir = open(folder, O_RDONLY | O_DIRECTORY)) < 0)
		return 1;
	real_openat = sc_sys.openat;
	sc_sys.openat = open_boot;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", folder);
	return system(clean) == 0 ? rc : 1;
}
