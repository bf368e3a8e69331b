/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/house.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

struct sc_sys real;
long left;
bool failed;

bool fails_now(void)
{
	if (left-- != 0)
		return false;
	return failed = true;
}

void open_house(struct house *h, bool quiet_worker)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = quiet_worker};
	struct sc_err err = {0};

	(void)strcpy(h->dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-service.XXXXXX"
							   : "/tmp/scalai-service.XXXXXX");
	assert_non_null(mkdtemp(h->dir));
	assert_int_equal(0, rs_service_new(&options, &h->s, &err));
	assert_int_equal(0, rs_job_make(h->s, "gpt", 0755, geteuid(), getegid(), &h->job, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(h->s), h->job,
					  "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(h->s), h->job, "tp=2 pp=2", &err));
}

void close_house(struct house *h)
{
	char clean[80];

	rs_service_free(h->s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", h->dir);
	assert_int_equal(0, system(clean));
}

void put_file(struct house *h, uint32_t rank, const char *name)
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

void commit_sample(struct house *h)
{
	struct sc_err err;

	for (uint32_t rank = 0; rank < 4; rank++)
		put_file(h, rank, "model.safetensors");
	assert_int_equal(0, rs_job_commit(RS_CALLER(h->s), h->job, "step=1", &err));
}
