/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults: each call of each kind that a command makes fails in turn, until one run has none: memory,
 * reading, writing, descriptors, and what SQLite writes and reads.  The command is refused with a
 * sentence, the job is exactly as before, and the same command passes once nothing fails.  Short and
 * interrupted calls change nothing at all.  Runs the service without a mount.
 */
#include "reshard/repair/repair.h"

#include "meta/base/log.h"
#include "tests/fault/faults.h"
#include "tests/fault/watchdog.h"
#include "tests/support/every.h"
#include "tests/support/sample.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

static int discard(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_discard(who->service, job, err);
}

static char *status_of(struct rs_service *s, struct rs_job *job)
{
	struct sc_buf buf = {0};
	struct sc_err err;

	assert_int_equal(0, rs_render_status(s, job, &buf, &err));
	return buf.text;
}

typedef int command_fn(const struct rs_caller *, struct rs_job *, const char *, struct sc_err *);

static long total, swallowed, first;

/* The command with its n-th call failing, for every n until none does. */
static void fail_in_turn(struct rs_service *s, struct rs_job *job, enum kind kind, const char *what, command_fn *command,
			 const char *text)
{
	char *before = status_of(s, job);

	for (long n = first;; n = kind == MEMORY ? next_point(n) : n + every()) {
		struct sc_err err = {0};
		int rc;

		assert_true(n < 1000000);
		watchdog_step();
		break_all(kind, n);
		rc = command(RS_CALLER(s), job, text, &err);
		mend_all();
		total += failures;
		if (rc == 0) {
			/* a call may fail that can be done without (a hint, a cache); the next one then has its turn */
			swallowed += failures;
			break;
		}
		if (kind == ODD || failures == 0 || *err.msg == 0 || err.errnum <= 0)
			fail_msg("%s, %s, call %ld: refused with '%s' (errno %d) after %d failures", kind_names[kind], what, n, err.msg,
				 err.errnum, failures);
		char *after = status_of(s, job);

		if (strcmp(before, after) != 0)
			fail_msg("%s, %s, call %ld failed (%s): before\n%s\nafter\n%s", kind_names[kind], what, n, err.msg, before, after);
		sc_sys.release(after);
	}
	sc_sys.release(before);
}

/* The rank's own files serve as sources: bytes of records, lines of json. */
static int add_data(const struct rs_caller *who, struct rs_job *job, const char *sample, struct sc_err *err)
{
	char text[2000];

	(void)snprintf(text, sizeof(text), "add name=r path=%s/0/model.safetensors format=records record=8 global_batch=8\n"
		       "add name=l path=%s/job.json format=lines global_batch=8 copy=yes\n", sample, sample);
	return rs_job_data(&(struct rs_caller){who->service, geteuid(), getegid()}, job, text, err);
}

static int remove_data(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_data(&(struct rs_caller){who->service, geteuid(), getegid()}, job, text, err);
}

static int clone_job(const struct rs_caller *who, struct rs_job *job, const char *name, struct sc_err *err)
{
	int rc = rs_job_clone(&(struct rs_caller){who->service, geteuid(), getegid()}, job, name, err);

	assert_true((rc == 0) == (rs_job_by_name(who->service, name) != NULL));
	return rc;
}

static int scrub(struct rs_service *s, struct sc_err *err)
{
	return rs_service_scrub(s, INT64_MAX, err);
}

/* What is done in the background, in this thread; what it has done when something fails, it has done. */
static void fail_work(struct rs_service *s, enum kind kind, int work(struct rs_service *s, struct sc_err *err))
{
	/* without a ring all is done otherwise: other calls of it fail only when the first does not */
	for (long n = kind == RING || kind == RING_FULL ? first : 0;; n = next_point(n)) {
		struct sc_err err = {0};
		int rc;

		assert_true(n < 1000000);
		watchdog_step();
		break_all(kind, n);
		rc = work(s, &err);
		mend_all();
		total += failures;
		if (rc == 0 && failures == 0)
			break;
		swallowed += rc == 0;
		if (kind == ODD) {
			assert_int_equal(rc, 0);
			break;
		}
	}
}

/* A read error is damage; afterwards all can be read, and a scrub says so. */
static void work_and_scrub(struct rs_service *s, enum kind kind)
{
	struct sc_err err = {0};

	fail_work(s, kind, rs_service_work);
	if (kind != READING)
		assert_false(rs_service_is_damaged(s));
	assert_int_equal(0, scrub(s, &err));
	assert_false(rs_service_is_damaged(s));
}

/* A job with the same bytes in other files. */
static void make_twin(struct rs_service *s)
{
	struct rs_job *job = NULL;
	struct sc_err err = {0};

	assert_int_equal(0, rs_job_make(s, "twin", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "use replicated", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "dp=2", &err));
	put_model(s, job, 0, "x.bin");
	put_model(s, job, 1, "x.bin");
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(0, rs_service_work(s, &err));
}

/* A flipped bit in a file of which there is a copy: scrubbing mends it, now or the next time. */
static void damage(struct rs_service *s, struct rs_job *job)
{
	struct sc_err err;
	struct rs_look look;
	char byte;
	int fd;

	assert_int_equal(0, rs_look(s, job, NULL, 1, "model.safetensors", &look, &err));
	assert_int_equal(RS_BLOB, look.kind);
	assert_int_equal(0, meta_store_open_work(rs_service_store(s), look.blob, O_RDWR, &fd, &err));
	assert_int_equal(1, pread(fd, &byte, 1, 70000));
	byte ^= 16;
	assert_int_equal(1, pwrite(fd, &byte, 1, 70000));
	(void)close(fd);
}

static void check_store(struct rs_service *s)
{
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 1;

	if (rs_fsck(s, false, &bad, &report, &err) < 0 || bad)
		fail_msg("fsck: %s %s", report.text, err.msg);
	sc_buf_done(&report);
}

static void all_commands(enum kind kind)
{
	char dir[40], clean[100];
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct rs_service *s = NULL;
	struct rs_job *job = NULL;
	struct sc_err err = {0};

	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-fault.XXXXXX" : "/tmp/scalai-fault.XXXXXX");
	assert_non_null(mkdtemp(dir));
	assert_int_equal(0, rs_service_new(&options, &s, &err));
	assert_int_equal(0, rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err));
	fail_in_turn(s, job, kind, "layout", rs_job_layout, "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight");
	fail_in_turn(s, job, kind, "topology", rs_job_topology, "tp=2 pp=2");
	fail_in_turn(s, job, kind, "config", rs_job_config, "buffer_mib=2 keep=3");
	for (uint32_t rank = 0; rank < 4; rank++)
		put_model(s, job, rank, "model.safetensors");
	fail_in_turn(s, job, kind, "commit", rs_job_commit, "step=1");
	work_and_scrub(s, kind);
	for (uint32_t rank = 0; rank < 4; rank++) /* unchanged: shared */
		put_model(s, job, rank, "model.safetensors");
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "step=2", &err));
	work_and_scrub(s, kind);
	make_twin(s);
	fail_in_turn(s, job, kind, "clone", clone_job, "clone");
	work_and_scrub(s, kind);
	damage(s, job);
	fail_work(s, kind, scrub);
	assert_int_equal(0, scrub(s, &err));
	check_store(s);
	fail_in_turn(s, job, kind, "topology", rs_job_topology, "tp=4 dp=2");
	work_and_scrub(s, kind);
	check_store(s);
	fail_in_turn(s, job, kind, "data", add_data, SAMPLE);
	fail_in_turn(s, job, kind, "position", rs_job_commit, "samples=8");
	fail_in_turn(s, job, kind, "layout", rs_job_layout, "use megatron-gpt vocab=301 tied=embedding.word_embeddings.weight");
	fail_in_turn(s, job, kind, "topology", rs_job_topology, "tp=1 pp=4");
	work_and_scrub(s, kind);
	fail_in_turn(s, job, kind, "data", remove_data, "remove name=l\nrefresh name=r");
	fail_in_turn(s, job, kind, "rollback", rs_job_rollback, "7");
	put_model(s, job, 0, "model.safetensors.copy");
	fail_in_turn(s, job, kind, "discard", discard, "");
	work_and_scrub(s, kind);
	check_store(s);
	assert_int_equal(0, rs_job_verify(s, job, &err));
	assert_int_equal(0, rs_job_verify(s, rs_job_by_name(s, "clone"), &err));
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static long firsts(enum kind kind)
{
	return kind == MEMORY ? 2 : kind == RING || kind == RING_FULL ? 4 : 24;
}

static void commands_fail_cleanly(void **unused)
{
	(void)unused;
	assert_int_equal(0, watchdog_start());
	sc_log_level(SC_LOG_ERROR);
	for (enum kind kind = 0; kind < KINDS; kind++) {
		long before = total;

		/* from another call on each time: the first that can be done without ends a turn */
		for (first = 0; first < firsts(kind); first += (kind == ODD ? 4 : 1) * every_at_most(kind == MEMORY ? 1 : 4))
			all_commands(kind);
		printf("# %s: %ld faults\n", kind_names[kind], total - before);
		assert_true(total > before);
	}
	printf("# %ld faults, %ld of them could be done without\n", total, swallowed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(commands_fail_cleanly)};

	return cmocka_run_group_tests_name("commands", tests, NULL, NULL);
}
