/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs that are damaged behind the service's back: cut while they are mapped (a mapping then raises SIGBUS, as it
 * does where a disk fails), while they are opened, before their first hash, and blobs that only seem so.  Whoever needs
 * one is refused with SC_E_DAMAGED and a sentence that names it; nobody else notices.  Runs the service without a
 * mount; e2e 25 does the same on one, and on a disk that fails.
 */
#include "reshard/repair/repair.h"

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "reshard/command/commands/steps.h"
#include "tests/support/paths.h"
#include "tests/support/sample.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#define MODEL "model.safetensors"
#define GPT "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight"

static struct sc_sys real;
static char dir[64];
static struct rs_service *s;
static struct rs_job *job;

static void start(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err = {0};

	if (rs_service_new(&options, &s, &err) < 0)
		fail_msg("start: %s", err.msg);
}

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void put_all(void)
{
	for (uint32_t rank = 0; rank < 4; rank++)
		put_model(s, job, rank, MODEL);
}

static void restart(void)
{
	rs_service_free(s);
	start();
	job = rs_job_at(s, 0);
}

/* A store with the sample as version 1, not looked at by the worker yet.  Each test calls it: what is set up before a
 * test begins, cmocka's handler of SIGBUS would replace. */
static void begin(void)
{
	struct sc_err err = {0};

	(void)strcpy(dir, "/tmp/scalai-damage.XXXXXX");
	assert_non_null(mkdtemp(dir));
	start();
	must(rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, GPT, &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2 pp=2", &err), &err);
	must(rs_job_config(RS_CALLER(s), job, "sync=off", &err), &err);
	put_all();
	must(rs_job_commit(RS_CALLER(s), job, "step=1", &err), &err);
}

static int end(void **unused)
{
	char clean[100];

	(void)unused;
	sc_sys = real;
	s = rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean);
}

static uint64_t blob_of(uint32_t rank, const char *path)
{
	struct sc_err err = {0};
	struct rs_look look;

	must(rs_look(s, job, NULL, rank, path, &look, &err), &err);
	assert_true(look.kind == RS_BLOB || look.kind == RS_WORK);
	return look.blob;
}

static void path_of(uint64_t blob, char *path, size_t room)
{
	(void)snprintf(path, room, "%s/blobs/%02x/%" PRIu64, dir, (unsigned)(blob / 256 % 256), blob);
}

static void cut(uint64_t blob, off_t bytes)
{
	char path[200];

	path_of(blob, path, sizeof(path));
	assert_int_equal(0, truncate(path, bytes));
}

/* The refusal names the blob, and what of a rank's it is. */
static void expect_damaged(int rc, const struct sc_err *err, uint64_t blob, const char *what)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "blob %" PRIu64, blob);
	if (rc != SC_E_DAMAGED || err->errnum != EIO || !strstr(err->msg, name) || !strstr(err->msg, what))
		fail_msg("answer %d '%s', want '%s' and '%s'", rc, rc < 0 ? err->msg : "", name, what);
}

static char *status(void)
{
	struct sc_buf buf = {0};
	struct sc_err err = {0};

	must(rs_render_status(s, job, &buf, &err), &err);
	return buf.text;
}

/* Is a rank's file shown as damaged? */
static bool is_shown(uint32_t rank, uint64_t blob)
{
	char want[100], *text = status();
	bool is;

	(void)snprintf(want, sizeof(want), " rank %u '" MODEL "' (blob %" PRIu64 ")\n", rank, blob);
	is = strstr(text, "\ndamaged: version ") && strstr(text, want);
	sc_sys.release(text);
	return is;
}

/* --- cut while it is mapped --- */

static void verify_is_refused(void **unused)
{
	struct sc_err err = {0};
	uint64_t blob;

	(void)unused;
	begin();
	blob = blob_of(1, MODEL);
	cut(blob, 8192); /* commit has mapped it */
	expect_damaged(rs_job_verify(s, job, &err), &err, blob, "rank 1 '" MODEL "'");
	expect_damaged(rs_service_work(s, &err), &err, blob, "rank 1 '" MODEL "'"); /* the worker verifies, too */
}

static void materializing_is_refused(void **unused)
{
	struct sc_err err = {0};
	uint64_t blob;

	(void)unused;
	begin();
	blob = blob_of(1, MODEL);
	must(rs_service_work(s, &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=1 pp=2", &err), &err);
	cut(blob, 8192);
	expect_damaged(rs_service_work(s, &err), &err, blob, "rank 1 '" MODEL "'");
	assert_non_null(strstr(err.msg, "materializing rank "));
}

static void copy_up_is_refused(void **unused)
{
	struct sc_err err = {0};
	uint64_t blob, copy;
	char *before, *after;

	(void)unused;
	begin();
	blob = blob_of(1, MODEL);
	cut(blob, 8192);
	before = status();
	expect_damaged(work_copy_up(s, job, 1, MODEL, false, &copy, &err), &err, blob, "");
	after = status();
	assert_string_equal(before, after);
	sc_sys.release(after);
	must(work_copy_up(s, job, 0, MODEL, false, &copy, &err), &err); /* others are as they were */
	must(rs_job_discard(s, job, &err), &err);
	/* of a view */
	must(rs_job_config(RS_CALLER(s), job, "materialize=never", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=1 pp=2", &err), &err);
	expect_damaged(work_copy_up(s, job, 0, MODEL, false, &copy, &err), &err, blob, "rank 1 '" MODEL "'");
	sc_sys.release(before);
}

static uint64_t to_cut;
static int cut_at;		/* a step */

static void cutting_step(int nr, const char *name)
{
	(void)name;
	if (nr == cut_at)
		cut(to_cut, 8192);
}

static void commit_is_refused(void **unused)
{
	struct sc_err err = {0};
	char *before, *after;

	(void)unused;
	begin();
	put_all();
	to_cut = blob_of(2, MODEL);
	cut_at = RS_STEP_COMMIT_VERIFY; /* headers are read by then, and mapped */
	sc_sys.step = cutting_step;
	before = status();
	must(rs_job_config(RS_CALLER(s), job, "verify=commit", &err), &err);
	expect_damaged(rs_job_commit(RS_CALLER(s), job, "step=2", &err), &err, to_cut, "rank 2 '" MODEL "'");
	sc_sys.step = real.step;
	after = status();
	assert_string_equal(before, after);
	sc_sys.release(before);
	sc_sys.release(after);
	put_sample(s, job, "2/" MODEL, 2, MODEL);
	must(rs_job_commit(RS_CALLER(s), job, "step=2", &err), &err);
}

/* --- cut between being opened and being read --- */

static void *cutting_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
	void *map = real.mmap(at, bytes, prot, flags, fd, off);
	struct stat st;
	char path[200];

	path_of(to_cut, path, sizeof(path));
	if (fd >= 0 && stat(path, &st) == 0) {
		struct stat mine;

		if (fstat(fd, &mine) == 0 && mine.st_ino == st.st_ino)
			assert_int_equal(0, truncate(path, 0));
	}
	return map;
}

static void header_is_refused(void **unused)
{
	struct sc_err err = {0};

	(void)unused;
	begin();
	restart(); /* no mapping is left */
	to_cut = blob_of(3, MODEL);
	sc_sys.mmap = cutting_mmap;
	expect_damaged(rs_job_verify(s, job, &err), &err, to_cut, "rank 3 '" MODEL "'");
	put_sample(s, job, "0/" MODEL, 0, MODEL);
	to_cut = blob_of(0, MODEL);
	expect_damaged(rs_job_commit(RS_CALLER(s), job, "step=2", &err), &err, to_cut, "rank 0: '" MODEL "'");
}

/* --- datasets: tables and copies are blobs, too --- */

static uint64_t with_bytes(uint64_t bytes)
{
	struct sc_err err = {0};
	uint64_t found = 0;

	for (uint64_t blob = 1; blob < 100 && !found; blob++) {
		struct stat st;
		int fd;

		if (meta_store_open_work(rs_service_store(s), blob, O_RDONLY, &fd, &err) < 0)
			continue;
		assert_int_equal(0, fstat(fd, &st));
		if ((uint64_t)st.st_size == bytes)
			found = blob;
		(void)close(fd);
	}
	assert_true(found);
	return found;
}

static void dataset_is_refused(void **unused)
{
	struct rs_data_file *file = NULL, *other = NULL;
	struct rs_view *head = NULL;
	struct sc_err err = {0};
	char source[100], text[300], buf[4096];
	uint64_t table, copy;
	FILE *f;

	(void)unused;
	begin();
	(void)snprintf(source, sizeof(source), "%s/lines.txt", dir);
	f = fopen(source, "w");
	assert_non_null(f);
	for (int i = 0; i < 4000; i++)
		(void)fprintf(f, "line %d\n", i);
	assert_int_equal(0, fclose(f));
	(void)snprintf(text, sizeof(text), "add name=l path=%s format=lines global_batch=8 copy=yes shuffle=none\n", source);
	must(rs_job_data(&(struct rs_caller){s, geteuid(), getegid()}, job, text, &err), &err);
	table = with_bytes(4001 * 8);
	copy = table + 1; /* they are made one after the other */
	must(rs_view_head(s, job, &head, &err), &err);
	must(rs_data_open(s, head, 0, "data/l.txt", &file, &err), &err);
	must(rs_data_read(file, 0, sizeof(buf), (unsigned char *)buf, &err), &err);
	cut(copy, 8192);
	expect_damaged(rs_data_read(file, 16384, sizeof(buf), (unsigned char *)buf, &err), &err, copy, "lines.txt'");
	must(rs_data_read(file, 0, sizeof(buf), (unsigned char *)buf, &err), &err);
	cut(table, 4096);
	expect_damaged(rs_data_read(file, 16384, sizeof(buf), (unsigned char *)buf, &err), &err, table, "lines.txt'");
	expect_damaged(rs_data_open(s, head, 0, "data/l.next/l.txt", &other, &err), &err, table, "lines.txt'");
	rs_data_close(s, file);
	rs_view_unref(s, head);
}

/* --- what is damage, and what is not --- */

static void flip(uint64_t blob)
{
	char path[200], byte;
	int fd;

	path_of(blob, path, sizeof(path));
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(1, pread(fd, &byte, 1, 60000));
	byte ^= 16;
	assert_int_equal(1, pwrite(fd, &byte, 1, 60000));
	(void)close(fd);
}

static uint64_t not_to_open;	/* this blob; 0: any */

static int busy_openat(int at, const char *path, int flags, mode_t mode)
{
	const char *name = strrchr(path, '/');

	if (name && name[1] >= '0' && name[1] <= '9' && (!not_to_open || strtoull(name + 1, NULL, 10) == not_to_open)) {
		errno = EMFILE;
		return -1;
	}
	return real.openat(at, path, flags, mode);
}

static int scrub(struct sc_err *err)
{
	return rs_service_scrub(s, INT64_MAX, err);
}

static uint64_t bytes_scrubbed(void)
{
	static const char name[] = "\nscalai_scrubbed_bytes_total ";
	struct sc_buf metrics = {0};
	const char *found;
	uint64_t nr;

	sc_metrics_text(&metrics);
	found = strstr(metrics.text, name);
	assert_non_null(found);
	nr = strtoull(found + strlen(name), NULL, 10);
	sc_buf_done(&metrics);
	return nr;
}

static void only_damage_is_damage(void **unused)
{
	uint64_t before = bytes_scrubbed();
	struct sc_err err = {0};

	(void)unused;
	begin();
	must(rs_service_work(s, &err), &err);
	not_to_open = 0;
	sc_sys.openat = busy_openat;
	assert_true(scrub(&err) < 0);
	assert_int_equal(EMFILE, err.errnum);
	assert_non_null(strstr(err.msg, "4 blobs could not be checked"));
	sc_sys.openat = real.openat;
	assert_false(rs_service_is_damaged(s));
	must(rs_job_verify(s, job, &err), &err);
	must(scrub(&err), &err);
	assert_true(bytes_scrubbed() > before);
}

static int64_t later_s;

static int later_clock(clockid_t id, struct timespec *ret_now)
{
	int rc = real.clock(id, ret_now);

	ret_now->tv_sec += later_s;
	return rc;
}

static int month(struct sc_err *err)
{
	return rs_service_scrub(s, sc_now_wall_ns() / 1000000000 - INT64_C(30) * 86400, err);
}

/* A disk that fails, and then does not. */
static uint64_t on_bad_disk;

static unsigned reads;

static ssize_t bad_pread(int fd, void *p, size_t n, off_t at)
{
	struct stat mine, bad;
	char path[200];

	reads++;
	path_of(on_bad_disk, path, sizeof(path));
	if (fstat(fd, &mine) == 0 && stat(path, &bad) == 0 && mine.st_ino == bad.st_ino) {
		errno = EIO;
		return -1;
	}
	return real.pread(fd, p, n, at);
}

static void marks_are_tried_hourly(void **unused)
{
	struct sc_err err = {0};
	uint64_t flipped;
	int fd = -1;

	(void)unused;
	begin();
	must(rs_service_work(s, &err), &err);
	flipped = blob_of(1, MODEL);
	on_bad_disk = blob_of(2, MODEL);
	flip(flipped);
	assert_int_equal(SC_E_DAMAGED, rs_job_verify(s, job, &err)); /* from then on it is shown */
	assert_true(is_shown(1, flipped) && rs_service_is_damaged(s));
	assert_false(is_shown(0, blob_of(0, MODEL)));
	sc_sys.pread = bad_pread;
	must(scrub(&err), &err);
	expect_damaged(meta_store_open_blob(rs_service_store(s), flipped, UINT64_MAX, &fd, &err), &err, flipped, "");
	expect_damaged(meta_store_open_blob(rs_service_store(s), on_bad_disk, UINT64_MAX, &fd, &err), &err, on_bad_disk, "");
	sc_sys.clock = later_clock;
	later_s = 3500; /* not yet */
	reads = 0;
	must(month(&err), &err);
	assert_int_equal(0, reads);
	sc_sys.pread = real.pread;
	later_s = 3700; /* the disk gives the one again; the other is as bad as it was, after a start, too */
	restart();
	must(month(&err), &err);
	expect_damaged(rs_job_verify(s, job, &err), &err, flipped, "");
	must(meta_store_open_blob(rs_service_store(s), on_bad_disk, UINT64_MAX, &fd, &err), &err);
	(void)close(fd);
	flip(flipped); /* it is restored */
	later_s = 7400;
	must(month(&err), &err);
	assert_false(rs_service_is_damaged(s));
	must(rs_job_verify(s, job, &err), &err);
}

static void first_look_names_damage(void **unused)
{
	struct sc_err err = {0};
	char path[200], other[200], command[500];
	uint64_t blob, gone;
	int fd = -1;

	(void)unused;
	begin();
	must(rs_job_config(RS_CALLER(s), job, "verify=commit", &err), &err);
	put_all();
	must(rs_job_commit(RS_CALLER(s), job, "step=2", &err), &err);
	blob = blob_of(1, MODEL);
	gone = blob_of(2, MODEL);
	path_of(blob, path, sizeof(path));
	(void)snprintf(command, sizeof(command), "cp %s %s/keep", path, dir);
	assert_int_equal(0, system(command));
	cut(blob, 8192);
	path_of(gone, other, sizeof(other));
	assert_int_equal(0, unlink(other));
	sc_sys.openat = busy_openat; /* which says nothing */
	not_to_open = blob_of(3, MODEL);
	assert_true(rs_service_work(s, &err) < 0);
	assert_int_equal(EMFILE, err.errnum);
	sc_sys.openat = real.openat;
	must(rs_service_work(s, &err), &err);
	assert_true(is_shown(1, blob) && is_shown(2, gone));
	assert_false(is_shown(3, not_to_open));
	assert_true(rs_service_is_damaged(s));
	(void)snprintf(command, sizeof(command), "cp %s/keep %s", dir, path); /* it is restored, and can be read at once */
	assert_int_equal(0, system(command));
	must(meta_store_open_blob(rs_service_store(s), blob, UINT64_MAX, &fd, &err), &err);
	(void)close(fd);
}

static void mending_waits_for_a_twin(void **unused)
{
	struct rs_job *twins = NULL;
	struct sc_err err = {0};
	uint64_t blob, twin;
	char path[200];
	struct stat st;
	int fd;

	(void)unused;
	begin();
	must(rs_job_make(s, "twins", 0755, geteuid(), getegid(), &twins, &err), &err);
	job = twins;
	must(rs_job_layout(RS_CALLER(s), job, "use replicated", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "dp=2", &err), &err);
	put_sample(s, job, "0/optimizer.safetensors", 0, "x");
	put_sample(s, job, "0/optimizer.safetensors", 1, "x");
	put_sample(s, job, "0/" MODEL, 0, MODEL);
	put_sample(s, job, "0/" MODEL, 1, MODEL);
	must(rs_job_commit(RS_CALLER(s), job, "step=1", &err), &err);
	must(rs_service_work(s, &err), &err);
	blob = blob_of(0, MODEL);
	twin = not_to_open = blob_of(1, MODEL);
	flip(blob);
	path_of(1, path, sizeof(path)); /* of the first job: it is another twin, and damaged itself */
	assert_int_equal(0, stat(path, &st));
	cut(1, 100);
	sc_sys.openat = busy_openat;
	assert_true(scrub(&err) < 0);
	assert_int_equal(EMFILE, err.errnum);
	sc_sys.openat = real.openat;
	expect_damaged(meta_store_open_blob(rs_service_store(s), blob, UINT64_MAX, &fd, &err), &err, blob, "");
	must(scrub(&err), &err);
	must(meta_store_open_blob(rs_service_store(s), blob, UINT64_MAX, &fd, &err), &err);
	(void)close(fd);
	must(meta_store_open_blob(rs_service_store(s), twin, UINT64_MAX, &fd, &err), &err);
	(void)close(fd);
	must(rs_job_verify(s, job, &err), &err);
}

static void fsck_clears_marks(void **unused)
{
	struct rs_options options = {.store = dir, .quiet_worker = true, .keep_garbage = true};
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t blob, bad = 1;
	char want[100];

	(void)unused;
	begin();
	blob = blob_of(1, MODEL);
	must(rs_service_work(s, &err), &err);
	flip(blob);
	must(scrub(&err), &err);
	assert_true(rs_service_is_damaged(s));
	flip(blob); /* it is restored */
	restart();
	expect_damaged(rs_job_verify(s, job, &err), &err, blob, "");
	rs_service_free(s);
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_fsck(s, false, &bad, &report, &err), &err);
	assert_int_equal(0, bad);
	(void)snprintf(want, sizeof(want), "intact\tblob %" PRIu64, blob);
	if (!strstr(report.text, want))
		fail_msg("%s", report.text);
	sc_buf_done(&report);
	/* what can't be looked at is no complaint */
	not_to_open = blob;
	sc_sys.openat = busy_openat;
	assert_int_equal(SC_E_SYSTEM, rs_fsck(s, true, &bad, &report, &err));
	assert_int_equal(EMFILE, err.errnum);
	sc_sys.openat = real.openat;
	sc_buf_done(&report);
	restart();
	assert_false(rs_service_is_damaged(s));
	must(rs_job_verify(s, job, &err), &err);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, NULL, end)
	const struct CMUnitTest tests[] = {
		TEST(verify_is_refused),
		TEST(materializing_is_refused),
		TEST(copy_up_is_refused),
		TEST(commit_is_refused),
		TEST(header_is_refused),
		TEST(dataset_is_refused),
		TEST(only_damage_is_damage),
		TEST(marks_are_tried_hourly),
		TEST(first_look_names_damage),
		TEST(mending_waits_for_a_twin),
		TEST(fsck_clears_marks),
	};

	real = sc_sys;
	sc_log_level(SC_LOG_ERROR);
	return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}
