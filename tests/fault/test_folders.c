/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint folder (tests/sample/dcp) is committed, presented and read, and its tensors are presented as such a folder
 * again, while each allocation and each system call of that fails once: an answer is right, or an error with a sentence, and
 * nothing is lost or leaks.
 */
#include "reshard/service/service.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "reshard/engine/io/image.h"
#include "reshard/version/state/state_i.h"
#include "tests/support/interpose.h"
#include "tests/support/paths.h"
#include "tests/support/sample_file.h"

#define FAILING (INTERPOSE(alloc) | INTERPOSE(resize) | INTERPOSE(openat) | INTERPOSE(pread) | INTERPOSE(mmap))
#define LAYOUT "mesh dp\n*step copy\n*more.* copy\n* dp=0 chunk"
#define FILE_NAME "ckpt.safetensors"

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;
static long left; /* calls that are made */

static int judge(enum interpose_call call, long arg)
{
	(void)arg;
	if (left-- != 0)
		return 0;
	return call == CALL_alloc || call == CALL_resize ? -ENOMEM : -EIO;
}

static void put_file(const char *name)
{
	static const struct rs_owner owner = {.mode = 0644};
	size_t nr;
	char path[512], *bytes = load_sample(name, &nr);
	struct sc_err err;
	uint64_t blob;
	int fd;

	(void)snprintf(path, sizeof(path), "ckpt/%s", name);
	if (work_create(s, job, RS_SHARED, path, &owner, &blob, &fd, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(nr, write(fd, bytes, nr));
	(void)close(fd);
	free(bytes);
}

static int begin(void **unused)
{
	static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"};
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err;

	(void)unused;
	(void)snprintf(dir, sizeof(dir), "/tmp/scalai-folders.XXXXXX");
	assert_non_null(mkdtemp(dir));
	sc_log_level(SC_LOG_ERROR);
	if (rs_service_new(&options, &s, &err) < 0 || rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err) < 0 ||
	    rs_job_layout(RS_CALLER(s), job, LAYOUT, &err) < 0 || rs_job_topology(RS_CALLER(s), job, "dp=3", &err) < 0)
		fail_msg("%s", err.msg);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		put_file(names[i]);
	return 0;
}

static int end(void **unused)
{
	char clean[80];

	(void)unused;
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean);
}

/* All bytes of a file of a presentation; NULL: an error. */
static unsigned char *read_all(const char *topology, const struct rs_form *form, uint32_t rank, const char *file,
			       uint64_t *ret_bytes, struct sc_err *err)
{
	struct rs_view *view = NULL;
	struct rs_image *im = NULL;
	unsigned char *bytes = NULL;
	int rc = rs_view_as(s, job, topology, form, &view, err);

	if (rc == 0)
		rc = rs_view_image(s, view, rank, file, true, true, &im, err);
	if (rc == 0) {
		*ret_bytes = im->bytes;
		bytes = malloc(im->bytes);
		rc = rs_image_fetch(im, 0, im->bytes, bytes, err);
	}
	if (im)
		rs_image_unref(s, im);
	rs_view_unref(s, view);
	if (rc < 0) {
		free(bytes);
		bytes = NULL;
	}
	return bytes;
}

/* A refused commit of the folder leaves all as it was; the same commit passes afterwards. */
static void a_commit_is_made_or_refused(void **unused)
{
	struct sc_err err = {0};
	int rc = -1;

	(void)unused;
	for (long n = 0; rc < 0; n += 1 + n / 40) {
		struct rs_view *head = NULL;

		left = n;
		interpose_begin(FAILING, judge);
		rc = rs_job_commit(RS_CALLER(s), job, "", &err);
		interpose_end();
		if (rc == 0 && left >= 0)
			break;
		if (rc == 0) /* what failed did not matter: a cache that stays empty */
			break;
		assert_true(err.msg[0]);
		assert_true(rs_view_head(s, job, &head, &err) < 0);
	}
	assert_int_equal(rc, 0);
}

/* Has each call of a read fail once, from the first one on, until one passes that makes fewer. */
static void fail_reads(const char *topology, const struct rs_form *form, uint32_t rank, const char *file)
{
	struct sc_err err = {0};
	uint64_t bytes = 0, got_bytes;
	unsigned char *want, *got;
	unsigned failed = 0;

	for (long n = 0;; n += 1 + n / 100) {
		left = n;
		interpose_begin(FAILING, judge);
		got = read_all(topology, form, rank, file, &got_bytes, &err);
		interpose_end();
		want = read_all(topology, form, rank, file, &bytes, &err);
		if (!want)
			fail_msg("%s: %s", file, err.msg);
		if (got) {
			assert_int_equal(got_bytes, bytes);
			assert_memory_equal(got, want, bytes);
		} else {
			failed++;
		}
		free(want);
		free(got);
		if (got && left >= 0)
			break;
		rs_images_forget(s, NULL);
		rs_views_left(s, true);
	}
	assert_true(failed > 0);
}

static void a_read_is_right_or_an_error(void **unused)
{
	(void)unused;
	fail_reads("dp=2", &rs_form_ranks, 1, FILE_NAME);
	fail_reads("dp=1", &rs_form_ranks, 0, FILE_NAME);
	fail_reads("dp=2", &rs_form_dcp, 0, "ckpt/.metadata");
	fail_reads("dp=2", &rs_form_dcp, 0, "ckpt/1/__0_0.distcp"); /* its objects, too */
}

/* The tensors of the folder become rank files, which .dcp shows as a folder. */
static void a_folder_of_ranks_is_right_or_an_error(void **unused)
{
	static const struct rs_owner owner = {.mode = 0644};
	struct sc_err err;

	(void)unused;
	/* rows of what torch's optimizer made of a loss that is a sum are the same */
	if (rs_job_config(RS_CALLER(s), job, "suspicious=accept", &err) < 0)
		fail_msg("%s", err.msg);
	for (uint32_t rank = 0; rank < 3; rank++) {
		uint64_t bytes, blob;
		unsigned char *text = read_all("dp=3", &rs_form_ranks, rank, FILE_NAME, &bytes, &err);
		int fd;

		if (!text || work_create(s, job, rank, "m.safetensors", &owner, &blob, &fd, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(bytes, write(fd, text, bytes));
		(void)close(fd);
		free(text);
	}
	if (rs_job_commit(RS_CALLER(s), job, "", &err) < 0)
		fail_msg("%s", err.msg);
	fail_reads("dp=2", &rs_form_pt, 1, "m.pt");
	if (rs_job_config(RS_CALLER(s), job, "hf=m.safetensors", &err) < 0)
		fail_msg("%s", err.msg);
	fail_reads(NULL, &rs_form_hf, 0, "model.safetensors");
	fail_reads("dp=2", &rs_form_dcp, 0, ".metadata");
	fail_reads("dp=3", &rs_form_dcp, 0, "2/__1_0.distcp");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_commit_is_made_or_refused),
		cmocka_unit_test(a_read_is_right_or_an_error),
		cmocka_unit_test(a_folder_of_ranks_is_right_or_an_error),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
