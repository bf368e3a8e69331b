/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/house.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "tests/support/sample.h"

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

void commit_sample(struct house *h)
{
	struct sc_err err;

	for (uint32_t rank = 0; rank < 4; rank++)
		put_model(h->s, h->job, rank, "model.safetensors");
	assert_int_equal(0, rs_job_commit(RS_CALLER(h->s), h->job, "step=1", &err));
}
