/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sample.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/support/paths.h"

int create_from_sample(struct rs_service *s, struct rs_job *job, const char *from, uint32_t rank, const char *name,
		       mode_t mode, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), mode};
	char path[1000], buf[65536];
	uint64_t blob;
	int in, out, rc = work_create(s, job, rank, name, &owner, &blob, &out, err);
	ssize_t n;

	if (rc < 0)
		return rc;
	(void)snprintf(path, sizeof(path), SAMPLE "/%s", from);
	in = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(in >= 0);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(n, write(out, buf, (size_t)n));
	(void)close(in);
	(void)close(out);
	return 0;
}

void put_sample(struct rs_service *s, struct rs_job *job, const char *from, uint32_t rank, const char *name)
{
	struct sc_err err;

	assert_int_equal(0, create_from_sample(s, job, from, rank, name, 0644, &err));
}

void put_model(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *name)
{
	char from[40];

	(void)snprintf(from, sizeof(from), "%u/model.safetensors", rank);
	put_sample(s, job, from, rank, name);
}
