/* SPDX-License-Identifier: Apache-2.0 */
/* What the service holds in memory, under hands that come at the same time and calls that fail.  Without a mount. */
#include "reshard/job/service.h"

#include "meta/base/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

static unsigned lines_logged;

struct house {
	char dir[40];
	struct rs_service *s;
	struct rs_job *job;
};

static void open_house(struct house *h, bool quiet_worker)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = quiet_worker};
	struct sc_err err = {0};

	(void)strcpy(h->dir, "/tmp/scalai-service.XXXXXX");
	assert_non_null(mkdtemp(h->dir));
	assert_int_equal(0, rs_service_new(&options, &h->s, &err));
	assert_int_equal(0, rs_job_make(h->s, "gpt", 0755, geteuid(), getegid(), &h->job, &err));
	assert_int_equal(0, rs_job_layout(h->s, h->job, "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight", &err));
	assert_int_equal(0, rs_job_topology(h->s, h->job, "tp=2 pp=2", &err));
}

static void close_house(struct house *h)
{
	char clean[80];

	rs_service_free(h->s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", h->dir);
	assert_int_equal(0, system(clean));
}

static void put_file(struct house *h, uint32_t rank, const char *name)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	char path[1000], buf[65536];
	struct sc_err err;
	uint64_t blob;
	int in, out;
	ssize_t n;

	(void)snprintf(path, sizeof(path), "%s/%u/model.safetensors", SAMPLE, rank);
	in = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(in >= 0);
	assert_int_equal(0, rs_work_create(h->s, h->job, rank, name, &owner, &blob, &out, &err));
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(n, write(out, buf, (size_t)n));
	(void)close(in);
	(void)close(out);
}

static void commit_sample(struct house *h)
{
	struct sc_err err;

	for (uint32_t rank = 0; rank < 4; rank++)
		put_file(h, rank, "model.safetensors");
	assert_int_equal(0, rs_job_commit(h->s, h->job, "step=1", &err));
}

/* --- names of jobs: whoever logs one has a copy, for a rename frees it --- */

static struct house *renamed;	/* its job gets another name while a line is logged */

/* In the place of meta/base/log.c. */
void sc_log(enum sc_log_level level, const char *fmt, ...)
{
	static unsigned nr;
	char line[2048], name[40];
	struct sc_err err;
	va_list ap;

	(void)level;
	(void)snprintf(name, sizeof(name), "name%u", nr++);
	if (renamed)
		assert_int_equal(0, rs_job_rename(renamed->s, renamed->job, name, &err));
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	lines_logged++;
}

static void names_are_copied(void **unused)
{
	struct house h;
	struct sc_err err;

	(void)unused;
	open_house(&h, true);
	commit_sample(&h);
	lines_logged = 0;
	renamed = &h;
	assert_int_equal(0, rs_job_topology(h.s, h.job, "tp=1 pp=1", &err));
	assert_int_equal(0, rs_service_work(h.s, &err));
	renamed = NULL;
	assert_true(lines_logged > 0); /* "is materialized" */
	close_house(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_copied),
	};

	return cmocka_run_group_tests_name("service", tests, NULL, NULL);
}
