/* SPDX-License-Identifier: Apache-2.0 */
/* No storage is dropped before all that its version lists was found in what takes its place. */
#include "reshard/repair/repair.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "reshard/version/view/shown_i.h"
#include "tests/support/paths.h"

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;
static bool spoilt;		/* files that are flushed lose their tensor's name */

static void open_service(bool worker)
{
	struct rs_options options = {.store = dir, .quiet_worker = !worker};
	struct sc_err err;

	assert_int_equal(0, rs_service_new(&options, &s, &err));
	job = rs_job_by_name(s, "j");
}

static void put_header(uint32_t rank, const char *file, char fill, const char *header)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t blob, bytes = strlen(header);
	char data[8];
	struct sc_err err;
	int fd;

	memset(data, fill, sizeof(data));
	assert_int_equal(0, work_create(s, job, rank, file, &owner, &blob, &fd, &err));
	assert_int_equal(8, write(fd, &bytes, 8));
	assert_int_equal(bytes, write(fd, header, bytes));
	if (fill)
		assert_int_equal(8, write(fd, data, 8));
	(void)close(fd);
}

/* One tensor, 'w', on each of two ranks: half of it, or all. */
static void put_file(uint32_t rank, const char *file, char fill)
{
	put_header(rank, file, fill, "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
}

static void begin(const char *config)
{
	struct sc_err err;

	sc_log_level(SC_LOG_ERROR);
	(void)strcpy(dir, "/tmp/scalai-storage.XXXXXX");
	assert_non_null(mkdtemp(dir));
	open_service(false);
	assert_int_equal(0, rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_config(RS_CALLER(s), job, config, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "mesh tp\nw tp=0", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=2", &err));
	for (uint32_t rank = 0; rank < 2; rank++) {
		put_file(rank, "a.safetensors", 'a');
		put_file(rank, "b.safetensors", 'b');
	}
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(0, rs_service_work(s, &err));
}

static void end(void)
{
	char clean[100];

	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static char *status(void)
{
	struct sc_buf buf = {0};
	struct sc_err err;

	assert_int_equal(0, rs_render_status(s, job, &buf, &err));
	return buf.text;
}

static void expect_status(const char *text)
{
	char *now = status();

	if (!strstr(now, text))
		fail_msg("no '%s' in\n%s", text, now);
	free(now);
}

static char *path_of(uint32_t rank, const char *file)
{
	static char path[200];
	struct rs_look look;
	struct sc_err err;
	FILE *found;
	char find[200];

	assert_int_equal(0, rs_look(s, job, NULL, rank, file, &look, &err));
	assert_int_equal(RS_BLOB, look.kind);
	(void)snprintf(find, sizeof(find), "find %s/blobs -name %" PRIu64, dir, look.blob);
	found = popen(find, "r");
	assert_non_null(fgets(path, sizeof(path), found));
	(void)pclose(found);
	path[strcspn(path, "\n")] = 0;
	return path;
}

static int on_nr(void *arg, uint64_t nr)
{
	(void)nr;
	(*(int *)arg)++;
	return 0;
}

static int versions(void)
{
	struct sc_err err;
	int nr = 0;

	assert_int_equal(0, rs_versions_each(s, job, on_nr, &nr, &err));
	return nr;
}

/* --- the flip --- */

/* A file was written. */
static int on_written(int fd)
{
	char header[64] = "";
	ssize_t n = pread(fd, header, sizeof(header), 8);

	if (spoilt && n > 6 && memcmp(header, "{\"w\":", 5) == 0)
		assert_int_equal(1, pwrite(fd, "v", 1, 10));
	return 0;
}

static void a_version_is_not_flipped_to_a_storage_that_lacks_a_tensor(void **unused)
{
	struct sc_sys real = sc_sys;
	struct rs_look look;
	struct sc_err err;
	uint64_t nr;

	(void)unused;
	begin("sync=on");
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=1", &err));
	spoilt = true;
	sc_sys.begin_write_back = on_written;
	assert_true(rs_service_work(s, &err) < 0);
	assert_non_null(strstr(err.msg, "keeps its old storage"));
	assert_int_equal(EINVAL, err.errnum);
	expect_status("\nstate: view\n");
	assert_int_equal(0, rs_look(s, job, NULL, 0, "a.safetensors", &look, &err));
	assert_int_equal(RS_VIEW, look.kind);
	spoilt = false;
	assert_int_equal(0, rs_service_work(s, &err));
	expect_status("\nstate: materialized\n");
	assert_int_equal(0, rs_job_wait_parse(s, job, "", &nr, &err));
	assert_int_equal(1, rs_job_wait_poll(s, job, nr, &err));
	sc_sys = real;
	end();
}

static int wait_for(uint64_t nr, struct sc_err *err)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	int rc = 0;

	for (int i = 0; i < 3000 && rc == 0; i++) {
		rc = rs_job_wait_poll(s, job, nr, err);
		(void)nanosleep(&pause, NULL);
	}
	return rc;
}

static void who_waits_is_told_what_will_not_work_by_itself(void **unused)
{
	struct sc_sys real = sc_sys;
	struct sc_err err = {0};
	uint64_t nr;

	(void)unused;
	begin("sync=on");
	rs_service_free(s);
	spoilt = true;
	sc_sys.begin_write_back = on_written;
	open_service(true);
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=1", &err));
	for (int times = 0; times < 2; times++) {
		assert_int_equal(0, rs_job_wait_parse(s, job, "", &nr, &err));
		assert_int_equal(EINVAL, wait_for(nr, &err) < 0 ? err.errnum : 0);
		assert_non_null(strstr(err.msg, "keeps its old storage"));
	}
	expect_status("\nstopped: version 2 keeps its old storage");
	spoilt = false;
	/* an attempt that has begun before that fails still */
	for (int rc = 0, times = 0; rc != 1; times++) {
		assert_true(times < 3);
		assert_int_equal(0, rs_job_wait_parse(s, job, "", &nr, &err));
		rc = wait_for(nr, &err);
		assert_true(rc == 1 || err.errnum == EINVAL);
	}
	rs_service_free(s);
	sc_sys = real;
	open_service(false);
	end();
}

/* --- keep=N --- */

static void older_versions_are_kept_while_the_head_lacks_a_file(void **unused)
{
	char path[200], aside[220];
	struct sc_buf buf = {0};
	struct sc_err err;

	(void)unused;
	begin("sync=off keep=1");
	rs_service_free(s);
	open_service(false);
	(void)snprintf(path, sizeof(path), "%s", path_of(1, "a.safetensors"));
	(void)snprintf(aside, sizeof(aside), "%s.aside", path);
	assert_int_equal(0, rename(path, aside));
	for (uint32_t rank = 0; rank < 2; rank++)
		put_file(rank, "b.safetensors", 'c');
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(2, versions());
	rs_render_error(job, &buf);
	assert_non_null(buf.text);
	assert_non_null(strstr(buf.text, "older versions are kept"));
	assert_non_null(strstr(buf.text, "rank 1 'a.safetensors'"));
	sc_buf_done(&buf);
	assert_int_equal(0, rename(aside, path));
	for (uint32_t rank = 0; rank < 2; rank++)
		put_file(rank, "b.safetensors", 'd');
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	assert_int_equal(0, rs_service_work(s, &err));
	assert_int_equal(1, versions());
	end();
}

static void commit_copies(char of_0, char of_1)
{
	struct sc_err err;

	put_file(0, "b.safetensors", of_0);
	put_file(1, "b.safetensors", of_1);
	if (rs_job_commit(RS_CALLER(s), job, "", &err) < 0)
		fail_msg("%s", err.msg);
}

static void expect_versions(int nr, bool after_restart)
{
	struct sc_err err;

	if (after_restart) {
		rs_service_free(s);
		open_service(false);
		job = rs_job_by_name(s, "copies");
	}
	if (rs_service_work(s, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(nr, versions());
}

/* Whatever is committed after it, and whenever the daemon ends. */
static void a_right_version_stays_until_a_newer_one_is_verified(void **unused)
{
	struct sc_err err;

	(void)unused;
	begin("keep=4");
	assert_int_equal(0, rs_job_make(s, "copies", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_config(RS_CALLER(s), job, "sync=off keep=1", &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "mesh tp\n* copy", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=2", &err));
	commit_copies('b', 'b');
	commit_copies('c', 'c'); /* nobody has looked at the one before */
	assert_int_equal(2, versions());
	expect_versions(1, false);
	commit_copies('d', 'd');
	assert_int_equal(2, versions());
	expect_versions(1, true); /* what the daemon before has left */
	for (char value = 'e'; value < 'i'; value++) { /* version 3 is right, and none after it */
		commit_copies(value, 'x');
		assert_int_equal(2, versions());
		if (value == 'g') /* nobody has looked at it when the next one comes */
			continue;
		expect_versions(2, value == 'f');
		expect_status("hold different bytes");
	}
	assert_int_equal(0, rs_job_rollback(RS_CALLER(s), job, "3", &err)); /* it is known to be right */
	assert_int_equal(1, versions());
	/* what a larger number keeps stays; a smaller one drops nothing by itself */
	commit_copies('i', 'i');
	assert_int_equal(0, rs_job_config(RS_CALLER(s), job, "keep=2", &err));
	expect_versions(2, false);
	assert_int_equal(0, rs_job_config(RS_CALLER(s), job, "keep=1", &err));
	expect_versions(2, true);
	end();
}

static void a_version_with_a_damaged_file_is_not_right(void **unused)
{
	struct rs_view *first = NULL, *head;
	struct rs_look look;
	struct sc_err err;

	(void)unused;
	begin("sync=off");
	for (uint32_t rank = 0; rank < 2; rank++)
		put_file(rank, "b.safetensors", 'c');
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	expect_versions(2, false);
	assert_int_equal(0, rs_job_config(RS_CALLER(s), job, "keep=1", &err));
	head = rs_job_head(job);
	assert_int_equal(0, rs_version_look_up(s, head->version, &err)); /* it lacks nothing */
	rs_view_unref(s, head);
	assert_int_equal(0, rs_look(s, job, NULL, 1, "b.safetensors", &look, &err));
	assert_int_equal(1, meta_store_set_damaged(rs_service_store(s), look.blob, true, &err));
	assert_int_equal(0, meta_blob_checked(s->catalog, look.blob, NULL, 0, true, &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=1", &err));
	assert_int_equal(2, versions());
	assert_int_equal(0, rs_view_version(s, job, 1, &first, &err));
	rs_view_unref(s, first);
	end();
}

/* --- files of tensors without tensors --- */

#define EMPTY "{\"__metadata__\":{\"frozen\":\"yes\"}}"

/* The first letters of names, in the alphabet's order. */
static int on_listed(void *arg, const char *name, mode_t type)
{
	char *letters = arg, *at = letters;

	(void)type;
	while (*at && *at < *name)
		at++;
	memmove(at + 1, at, strlen(at) + 1);
	*at = *name;
	return 0;
}

/* What a rank has, and that its files without tensors have the bytes that were written. */
static void expect_files(struct rs_view *view, uint32_t rank, const char *names, const char *empty)
{
	char header[100] = {0}, found[20] = "";
	struct rs_look look;
	struct sc_err err;
	int fd;

	assert_int_equal(0, rs_list(s, job, view, rank, "", on_listed, found, &err));
	assert_string_equal(names, found);
	for (const char *name = empty; *name; name += strlen(name) + 1) {
		assert_int_equal(0, rs_look(s, job, view, rank, name, &look, &err));
		assert_int_equal(RS_BLOB, look.kind);
		assert_int_equal(8 + strlen(EMPTY), look.bytes);
		assert_int_equal(0, meta_store_open_blob(rs_service_store(s), look.blob, look.bytes, &fd, &err));
		assert_int_equal(strlen(EMPTY), pread(fd, header, sizeof(header), 8));
		assert_string_equal(EMPTY, header);
		(void)close(fd);
	}
}

static void expect_topology(const char *topology, const char *first, const char *first_empty, const char *last,
			    const char *last_empty)
{
	struct rs_view *view = NULL;
	struct sc_err err;

	assert_int_equal(0, rs_view_as(s, job, topology, &rs_form_ranks, &view, &err));
	expect_files(view, 0, first, first_empty);
	if (last)
		expect_files(view, 1, last, last_empty);
	rs_view_unref(s, view);
}

static void check_empty(void)
{
	expect_topology("pp=2", "now", "none.safetensors\0o.safetensors\0",
			"no", "none.safetensors\0");
	expect_topology("pp=1", "now", "none.safetensors\0", NULL, NULL);
	expect_topology("tp=2 pp=1", "now", "none.safetensors\0",
			"now", "none.safetensors\0");
}

/* Nothing of an optimizer on the first stage, nothing at all in another file. */
static void files_without_tensors_are_kept(void **unused)
{
	struct sc_buf report = {0};
	struct sc_err err;
	uint64_t bad = 1;

	(void)unused;
	begin("keep=1");
	assert_int_equal(0, rs_job_make(s, "empty", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "mesh tp pp\nw stage=first copy\nv stage=last copy\n", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "pp=2", &err));
	for (uint32_t rank = 0; rank < 2; rank++)
		put_header(rank, "none.safetensors", 0, EMPTY);
	put_file(0, "w.safetensors", 'w');
	put_header(0, "o.safetensors", 0, EMPTY);
	put_header(1, "o.safetensors", 'v', "{\"v\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
	if (rs_job_commit(RS_CALLER(s), job, "", &err) < 0)
		fail_msg("%s", err.msg);
	check_empty();
	assert_int_equal(0, rs_service_work(s, &err));
	for (const char *const *to = (const char *const[]){"pp=1", "tp=2 pp=1", "pp=2", NULL}; *to; to++) {
		assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, *to, &err));
		check_empty();
		if (rs_service_work(s, &err) < 0)
			fail_msg("%s", err.msg);
		check_empty();
	}
	put_file(0, "w.safetensors", 'x'); /* the others are taken over */
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	check_empty();
	if (rs_fsck(s, false, &bad, &report, &err) < 0 || bad)
		fail_msg("%s", report.text);
	sc_buf_done(&report);
	/* tensors come, and all that is removed goes */
	put_header(0, "o.safetensors", 0, EMPTY);
	put_header(1, "o.safetensors", 'v', "{\"v\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}");
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(0, work_unlink(s, job, rank, "none.safetensors", &err));
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	expect_topology("pp=2", "ow", "o.safetensors\0", "o", "");
	end();
}

/* --- padding in each of many rows --- */

#define ROWS 4200000

static void padding_of_many_rows_is_looked_at(void **unused)
{
	static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[4200000,4],\"data_offsets\":[0,16800000]}}";
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t blob, bytes = sizeof(header) - 1;
	unsigned char *data = calloc(ROWS, 4);
	struct sc_err err;
	int fd;

	(void)unused;
	begin("keep=1");
	assert_int_equal(0, rs_job_make(s, "padded", 0755, geteuid(), getegid(), &job, &err));
	assert_int_equal(0, rs_job_layout(RS_CALLER(s), job, "mesh tp\nw tp=1 pad=4 size=2\n", &err));
	assert_int_equal(0, rs_job_topology(RS_CALLER(s), job, "tp=1", &err));
	assert_non_null(data);
	memset(data, 7, 2);
	data[4 * (ROWS - 1) + 3] = 1; /* the last two columns are padding, and equal but for this */
	assert_int_equal(0, work_create(s, job, 0, "a.safetensors", &owner, &blob, &fd, &err));
	assert_int_equal(8, write(fd, &bytes, 8));
	assert_int_equal(bytes, write(fd, header, bytes));
	assert_int_equal(4 * ROWS, write(fd, data, 4 * ROWS));
	(void)close(fd);
	free(data);
	if (rs_job_commit(RS_CALLER(s), job, "", &err) < 0 || rs_service_work(s, &err) < 0)
		fail_msg("%s", err.msg);
	expect_status("'a.safetensors:w': the 2 rows of padding from row 2 of dimension 1 on are neither all zero nor all equal");
	end();
}

/* --- what views have in common --- */

static struct rs_view *head_at(const char *topology)
{
	struct sc_err err;

	if (rs_job_topology(RS_CALLER(s), job, topology, &err) < 0)
		fail_msg("%s: %s", topology, err.msg);
	return rs_job_head(job);
}

static void versions_of_the_same_sets_share_tensors_and_models(void **state)
{
	struct rs_view *was, *one, *two, *again, *as, *next;
	struct sc_err err;

	(void)state;
	begin("materialize=never keep=2");
	was = rs_job_head(job);
	one = head_at("tp=1");
	two = head_at("tp=2");
	again = head_at("tp=1");
	assert_true(was->version != one->version && one->version != again->version);
	assert_ptr_equal(was->version->tensors, one->version->tensors);
	assert_ptr_equal(was->version->tensors, again->version->tensors);
	assert_int_equal(2, again->version->tensors->all.nr);
	assert_ptr_equal(was->model, two->model); /* of a version that was dropped a moment ago */
	assert_ptr_equal(one->model, again->model);
	assert_ptr_not_equal(one->model, two->model);
	assert_string_equal("tp=1", again->model->topo->text);
	assert_int_equal(0, rs_view_as(s, job, "tp=2", &rs_form_ranks, &as, &err));
	assert_ptr_equal(two->model, as->model);
	rs_view_unref(s, as);

	/* other sets, though with the same names */
	rs_view_unref(s, head_at("tp=2"));
	put_file(0, "a.safetensors", 'c');
	put_file(1, "a.safetensors", 'c');
	assert_int_equal(0, rs_job_commit(RS_CALLER(s), job, "", &err));
	next = rs_job_head(job);
	assert_ptr_not_equal(next->version->tensors, two->version->tensors);
	assert_ptr_not_equal(next->model, two->model);

	/* a model outlives the view that it was made for */
	rs_view_unref(s, was);
	rs_view_unref(s, one);
	rs_views_left(s, true);
	assert_string_equal("tp=2", two->model->topo->text);
	assert_non_null(meta_state_find(two->model->state, "b.safetensors:w"));
	rs_view_unref(s, two);
	rs_view_unref(s, again);
	rs_view_unref(s, next);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(versions_of_the_same_sets_share_tensors_and_models),
		cmocka_unit_test(a_version_is_not_flipped_to_a_storage_that_lacks_a_tensor),
		cmocka_unit_test(who_waits_is_told_what_will_not_work_by_itself),
		cmocka_unit_test(older_versions_are_kept_while_the_head_lacks_a_file),
		cmocka_unit_test(a_right_version_stays_until_a_newer_one_is_verified),
		cmocka_unit_test(a_version_with_a_damaged_file_is_not_right),
		cmocka_unit_test(files_without_tensors_are_kept),
		cmocka_unit_test(padding_of_many_rows_is_looked_at),
	};

	return cmocka_run_group_tests_name("storage", tests, NULL, NULL);
}
