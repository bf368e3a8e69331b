/* SPDX-License-Identifier: Apache-2.0 */
/* A set keeps its files' format, one for all ranks, and of their payloads that on which all ranks agree. */
#include "reshard/service/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "reshard/codec/format/format.h"
#include "tests/support/paths.h"
#include "tests/support/rank_files.h"

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;

/* As plain files, but theirs begin with an 'o'. */
static int is_other(const struct rs_file *file, struct sc_err *err)
{
	char first;
	int rc = file->bytes ? file->read(file->arg, 0, 1, &first, err) : 0;

	return rc < 0 ? rc : file->bytes && first == 'o';
}

static int parse_strides(const struct rs_file *file, struct rs_found *ret, struct sc_err *err)
{
	static const uint64_t two = 2;
	int rc = rs_format_plain.parse(file, ret, err);

	if (rc == 0)
		ret->tensors[0].stride = &two;
	return rc;
}

static struct rs_format_ops other;

static void open_service(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err;

	assert_int_equal(0, rs_service_new(&options, &s, &err));
	job = rs_job_by_name(s, "j");
}

static int begin(void **unused)
{
	struct sc_err err;

	(void)unused;
	other = rs_format_plain;
	other.name = "other";
	other.is = is_other;
	rs_format_extra = &other;
	(void)strcpy(dir, "/tmp/scalai-formats.XXXXXX");
	assert_non_null(mkdtemp(dir));
	open_service();
	assert_int_equal(0, rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "mesh tp\nx.dat: tp=0\nw tp=0", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=2", &err));
	return 0;
}

static int end(void **unused)
{
	char clean[100];

	(void)unused;
	rs_service_free(s);
	rs_format_extra = NULL;
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean);
}

static void put_file(uint32_t rank, const char *text)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t blob;
	struct sc_err err;
	int fd;

	assert_int_equal(0, work_create(s, job, rank, "x.dat", &owner, &blob, &fd, &err));
	assert_int_equal(strlen(text), write(fd, text, strlen(text)));
	(void)close(fd);
}

static void expect_refusal(int rc, int code, const char *why, const struct sc_err *err)
{
	assert_int_equal(code, rc);
	if (!strstr(err->msg, why))
		fail_msg("says '%s', want '%s'", err->msg, why);
}

static void ranks_have_one_format(void **unused)
{
	struct sc_err err;

	(void)unused;
	put_file(0, "oooo");
	put_file(1, "pppp");
	expect_refusal(rs_job_commit(RS_CALLER(s), job, "", &err), SC_E_STATE,
		       "rank 1: 'x.dat' has format 'plain', but rank 0: 'x.dat' has format 'other'", &err);
	put_file(1, "oo--");
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
}

static void a_format_that_is_gone(void **unused)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct rs_look look;
	struct sc_err err;

	(void)unused;
	put_file(0, "oooo");
	put_file(1, "oo--");
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=1", &err));
	rs_service_free(s);
	rs_format_extra = NULL;
	expect_refusal(rs_service_new(&options, &s, &err), SC_E_UNSUPPORTED, "'x.dat' is stored in the format 'other'",
		       &err);
	rs_format_extra = &other;
	open_service();
	assert_int_equal(0, rs_look(s, job, NULL, 0, "x.dat", &look, &err));
	assert_int_equal(8, look.bytes);
}

/* Of `salt` and `rank`, which the files of two ranks say, a view that joins them has the first. */
static void payloads_are_joined(void **unused)
{
	static const uint32_t data[2] = {1, 2};
	static const struct meta_shape shape = {1, {2}};
	struct rank_tensor w = {"w", &shape, data, sizeof(data)};
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct rs_image *image;
	struct rs_view *view;
	unsigned char *bytes;
	struct sc_buf status = {0};
	struct sc_err err;
	uint64_t blob;
	char path[60];
	int fd;

	(void)unused;
	(void)snprintf(path, sizeof(path), "m%s", rank_files->suffix);
	for (uint32_t rank = 0; rank < 2; rank++) {
		struct sc_buf file = {0};

		rank_files->make(&w, 1, 77, rank, &file);
		assert_int_equal(0, work_create(s, job, rank, path, &owner, &blob, &fd, &err));
		assert_int_equal(file.bytes, write(fd, file.text, file.bytes));
		(void)close(fd);
		sc_buf_done(&file);
	}
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(0, rs_view_as(s, job, "tp=1", &rs_form_ranks, &view, &err));
	assert_int_equal(0, rs_view_image(s, view, 0, path, false, true, &image, &err));
	bytes = calloc(1, image->bytes + 1);
	assert_int_equal(0, rs_image_read(image, 0, image->bytes, bytes, &err));
	assert_true(rank_files->has_salt(bytes, image->bytes, 77));
	assert_null(memmem(bytes, image->bytes, "rank", 4));
	free(bytes);
	rs_image_unref(s, image);
	rs_view_unref(s, view);
	assert_int_equal(0, rs_render_status(s, job, &status, &err));
	assert_non_null(strstr(status.text, "only what all agree on is kept"));
	sc_buf_done(&status);
}

static void strides_are_refused(void **unused)
{
	struct sc_err err;

	(void)unused;
	other.parse = parse_strides;
	put_file(0, "oooo");
	put_file(1, "oo--");
	expect_refusal(rs_job_commit(RS_CALLER(s), job, "", &err), SC_E_UNSUPPORTED, "save its .contiguous()", &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(ranks_have_one_format, begin, end),
		cmocka_unit_test_setup_teardown(a_format_that_is_gone, begin, end),
		cmocka_unit_test_setup_teardown(payloads_are_joined, begin, end),
		cmocka_unit_test_setup_teardown(strides_are_refused, begin, end),
	};

	return cmocka_run_group_tests_name("set formats", tests, NULL, NULL);
}
