/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is there before and after a commit is there at every moment in between, for whoever looks.  (A commit that
 * clears the written files and shows the version in two steps is caught nearly always: the moment between is short.)
 */
#include "reshard/service/service.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/support/every.h"
#include "tests/support/paths.h"

#define COMMITS some_of(1000)

static struct rs_service *s;
static struct rs_job *job;
static bool is_there, ends;	/* atomic */
static unsigned long looks, missing, commits;

static void *look(void *unused)
{
	struct rs_look found;
	struct sc_err err;

	(void)unused;
	while (!__atomic_load_n(&ends, __ATOMIC_ACQUIRE)) {
		bool before = __atomic_load_n(&is_there, __ATOMIC_ACQUIRE);
		unsigned long at = __atomic_load_n(&commits, __ATOMIC_ACQUIRE);

		if (rs_look(s, job, NULL, 0, "file", &found, &err) < 0)
			abort();
		if (!before || at != __atomic_load_n(&commits, __ATOMIC_ACQUIRE) ||
		    !__atomic_load_n(&is_there, __ATOMIC_ACQUIRE))
			continue;
		looks++;
		missing += found.kind == RS_NONE;
	}
	return NULL;
}

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void files_do_not_vanish(void **unused)
{
	char dir[] = "/tmp/scalai-lookups.XXXXXX", clean[60];
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	pthread_t thread;
	struct sc_err err = {0};
	uint64_t blob;
	int fd;

	(void)unused;
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_job_make(s, "job", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "use replicated", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "dp=1", &err), &err);
	must(work_create(s, job, 0, "file", &owner, &blob, &fd, &err), &err);
	(void)close(fd);
	assert_int_equal(0, pthread_create(&thread, NULL, look, NULL));
	for (unsigned i = 0; i < COMMITS; i++) {
		/* a version without the file; then it comes back, and is committed */
		must(work_rename(s, job, 0, "file", 0, "away", false, &err), &err);
		must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
		must(work_rename(s, job, 0, "away", 0, "file", false, &err), &err);
		__atomic_store_n(&is_there, true, __ATOMIC_RELEASE);
		must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
		(void)usleep(100);
		__atomic_store_n(&is_there, false, __ATOMIC_RELEASE);
		__atomic_add_fetch(&commits, 1, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&ends, true, __ATOMIC_RELEASE);
	(void)pthread_join(thread, NULL);
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
	print_message("# %lu lookups, %lu found nothing\n", looks, missing);
	assert_true(looks > COMMITS);
	assert_int_equal(0, missing);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(files_do_not_vanish)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
