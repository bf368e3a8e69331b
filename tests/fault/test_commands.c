/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation, open, fstat, fsync and mmap of a commit and of a topology write fails in turn, through the
 * one replaceable table: the command is refused with a sentence, the job is exactly as before, and
 * the same command passes once nothing fails.  Runs the service without a mount.
 */
#include "reshard/job/service.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

static struct sc_sys real;
static long left;		/* calls until one fails */
static int failures;		/* that happened */
static pthread_t victim;	/* only this thread's calls fail */

static bool fails_now(void)
{
	if (!pthread_equal(victim, pthread_self()) || left-- != 0)
		return false;
	failures++;
	return true;
}

#define FAIL(value)                                                                                \
	do {                                                                                       \
		if (fails_now()) {                                                                 \
			errno = EIO;                                                               \
			return value;                                                              \
		}                                                                                  \
	} while (0)

static void *bad_alloc(size_t bytes)
{
	return fails_now() ? NULL : real.alloc(bytes);
}

static void *bad_resize(void *p, size_t bytes)
{
	return fails_now() ? NULL : real.resize(p, bytes);
}

static int bad_openat(int dir, const char *path, int flags, mode_t mode)
{
	FAIL(-1);
	return real.openat(dir, path, flags, mode);
}

static int bad_fstat(int fd, struct stat *st)
{
	FAIL(-1);
	return real.fstat(fd, st);
}

static int bad_fsync(int fd)
{
	FAIL(-1);
	return real.fsync(fd);
}

static void *bad_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
	FAIL(MAP_FAILED);
	return real.mmap(at, bytes, prot, flags, fd, off);
}

static void break_all(long n)
{
	left = n;
	failures = 0;
	victim = pthread_self();
	sc_sys.alloc = bad_alloc;
	sc_sys.resize = bad_resize;
	sc_sys.openat = bad_openat;
	sc_sys.fstat = bad_fstat;
	sc_sys.fsync = bad_fsync;
	sc_sys.mmap = bad_mmap;
}

static void mend_all(void)
{
	sc_sys = real;
}

static void ignore_names(void *arg)
{
	(void)arg;
}

static void ignore_news(void *arg, uint64_t job)
{
	(void)arg;
	(void)job;
}

static void put_file(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *name)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	char path[1000], buf[65536];
	struct sc_err err;
	uint64_t blob;
	int in, out;
	ssize_t n;

	(void)snprintf(path, sizeof(path), "%s/%u/%s", SAMPLE, rank, name);
	in = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(in >= 0);
	assert_int_equal(0, rs_work_create(s, job, rank, name, &owner, &blob, &out, &err));
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(n, write(out, buf, (size_t)n));
	(void)close(in);
	(void)close(out);
}

static char *status_of(struct rs_service *s, struct rs_job *job)
{
	struct sc_buf buf = {0};
	struct sc_err err;

	assert_int_equal(0, rs_render_status(s, job, &buf, &err));
	return buf.text;
}

/* The command with its n-th call failing, for every n until none does. */
static void fail_in_turn(struct rs_service *s, struct rs_job *job, const char *what,
			 int (*command)(struct rs_service *, struct rs_job *, const char *, struct sc_err *),
			 const char *text)
{
	char *before = status_of(s, job);
	int refused = 0;

	for (long n = 0;; n++) {
		struct sc_err err = {0};
		int rc;

		assert_true(n < 1000000);
		break_all(n);
		rc = command(s, job, text, &err);
		mend_all();
		if (rc == 0)
			break; /* nothing failed, or what failed could be done without */
		assert_true(failures > 0);
		assert_true(strlen(err.msg) > 0 && err.errnum > 0);
		char *after = status_of(s, job);

		if (strcmp(before, after) != 0)
			fail_msg("%s, call %ld failed (%s): before\n%s\nafter\n%s", what, n, err.msg, before, after);
		sc_sys.release(after);
		refused++;
	}
	sc_sys.release(before);
	printf("# %s: refused %d times, then taken\n", what, refused);
	assert_true(refused > 50);
}

/* The rank's own files serve as sources: bytes of records, lines of json. */
static int add_data(struct rs_service *s, struct rs_job *job, const char *sample, struct sc_err *err)
{
	char text[2000];

	(void)snprintf(text, sizeof(text), "add name=r path=%s/0/model.safetensors format=records record=8 global_batch=8\n"
		       "add name=l path=%s/job.json format=lines global_batch=8 copy=yes\n", sample, sample);
	return rs_job_data(s, job, text, geteuid(), getegid(), 0, err);
}

static void commands_fail_cleanly(void **unused)
{
	static const struct rs_events events = {NULL, ignore_names, ignore_news};
	char dir[] = "/tmp/scalai-fault.XXXXXX", clean[100];
	struct rs_options options = {.store = dir, .events = &events, .quiet_worker = true};
	struct rs_service *s = NULL;
	struct rs_job *job = NULL;
	struct sc_err err;

	(void)unused;
	real = sc_sys;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(0, rs_service_new(&options, &s, &err));
	assert_int_equal(0, rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_layout(s, job, "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight",
					  &err));
	assert_int_equal(0, rs_job_topology(s, job, "tp=2 pp=2", &err));
	for (uint32_t rank = 0; rank < 4; rank++)
		put_file(s, job, rank, "model.safetensors");
	fail_in_turn(s, job, "commit", rs_job_commit, "step=1");
	fail_in_turn(s, job, "topology", rs_job_topology, "tp=4 dp=2");
	fail_in_turn(s, job, "data", add_data, SAMPLE);
	fail_in_turn(s, job, "position", rs_job_commit, "samples=8");
	assert_int_equal(0, rs_job_verify(s, job, &err));
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(commands_fail_cleanly)};

	return cmocka_run_group_tests_name("commands", tests, NULL, NULL);
}
