/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs change one file of a working tree at the same time.  The second comes at a call of the system that the
 * first makes; afterwards each file of the store has a row, also without another start.
 */
#include "reshard/version/state/state_i.h"
#include "reshard/service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "tests/support/interpose.h"
#include "tests/support/paths.h"

#define PATH "f"
#define BYTES 3000000	/* a copy takes several writes */

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;
static const struct rs_owner owner = {0, 0, 0644};

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void put(const char *path, char fill, size_t bytes)
{
	char *data = malloc(bytes);
	struct sc_err err;
	uint64_t blob;
	int fd;

	memset(data, fill, bytes);
	must(work_create(s, job, 0, path, &owner, &blob, &fd, &err), &err);
	assert_int_equal(bytes, write(fd, data, bytes));
	(void)close(fd);
	free(data);
}

/* 'f' is committed, 'f.tmp' is written. */
static void begin(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err;

	sc_log_level(SC_LOG_ERROR);
	(void)strcpy(dir, "/tmp/scalai-tree.XXXXXX");
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "use replicated", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "dp=1", &err), &err);
	put(PATH, 'a', BYTES);
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	put(PATH ".tmp", 'b', 10);
}

static uint64_t removed;	/* a blob that must not be in the store when nobody can have it open; 0: none */

static int on_file(void *arg, uint64_t blob)
{
	struct sc_err err;
	int known = meta_blob_known(s->catalog, blob, &err);

	must(known, &err);
	*(int *)arg += !known || blob == removed;
	return 0;
}

/* No kernel knows anything of a mount that begins. */
static int on_nameless(void *arg, struct rs_job *of, uint64_t ino, uint64_t blob)
{
	struct sc_err err;

	(void)blob;
	must(rs_tree_forget(arg, of, ino, &err), &err);
	return 0;
}

/* Also in the store that is left when the service has ended; it is opened as fsck does, which removes nothing. */
static void end(void)
{
	struct rs_options look = {.store = dir, .quiet_worker = true, .keep_garbage = true};
	struct sc_err err;
	char clean[100];
	int unknown = 0;

	must(rs_job_discard(s, job, &err), &err);
	must(rs_service_work(s, &err), &err);
	rs_service_free(s);
	must(rs_service_new(&look, &s, &err), &err);
	assert_int_equal(0, rs_tree_each_nameless(s, on_nameless, s));
	must(meta_store_each(&s->store, on_file, &unknown, &err), &err);
	assert_int_equal(0, unknown);
	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static enum rs_kind kind_of(const char *path, uint64_t *ret_blob)
{
	struct rs_look look;
	struct sc_err err;

	must(rs_look(s, job, NULL, 0, path, &look, &err), &err);
	*ret_blob = look.blob;
	return look.kind;
}

/* --- what the second program does, once, when the first makes a file --- */

static void (*second)(void);

static int when_made(enum interpose_call call, long flags)
{
	void (*now)(void) = second;

	if (call == CALL_openat && !(flags & O_CREAT))
		return 0;
	second = NULL;
	if (now)
		now();
	return 0;
}

static uint64_t folder(void)
{
	return rs_job_root(job) + 1;
}

static struct meta_bytes name_of(const char *text)
{
	return (struct meta_bytes){text, strlen(text)};
}

static void rename_to(const char *from, const char *to)
{
	struct sc_err err;

	must(rs_tree_rename(s, job, folder(), name_of(from), folder(), name_of(to), RS_RENAME_OVER, &err), &err);
}

/* Like the next one: the kernel knows the file that the first program opens, so it is not forgotten. */
static void rename_over(void)
{
	rename_to(PATH ".tmp", PATH);
}

static void remove_it(void)
{
	struct sc_err err;

	must(rs_tree_unlink(s, job, folder(), name_of(PATH), &err), &err);
}

static void rename_away(void)
{
	rename_to(PATH, "elsewhere");
}

static void copy_it(void)
{
	struct sc_err err;
	uint64_t blob;

	must(work_copy_up(s, job, 0, PATH, true, &blob, &err), &err);
}

/* What has the file's name then (NULL: none), what has the name 'f', and whether that is the file. */
static const struct {
	void (*change)(void);
	const char *name;
	enum rs_kind at_path;
} seconds[] = {
	{rename_over, NULL, RS_WORK}, {remove_it, NULL, RS_NONE}, {rename_away, "elsewhere", RS_NONE}, {copy_it, PATH, RS_WORK},
};

/* --- tests --- */

/*
 * The copy of an open for writing: what the second program did to names stays, the file that is opened is the one that
 * was found, by whatever name, and no file is left without a row.  If it has no name any more, the kernel looks again.
 */
static void an_open_meets_another_change(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(seconds) / sizeof(*seconds); i++) {
		uint64_t blob = 0, now;
		struct rs_look look;
		struct sc_err err;
		int rc;

		begin();
		must(work_find(s, job, 0, PATH, &look, &err), &err);
		assert_int_equal(RS_BLOB, look.kind);
		second = seconds[i].change;
		interpose_begin(INTERPOSE(openat), when_made);
		rc = rs_tree_copy_up(s, job, look.ino, false, &blob, &err);
		interpose_end();
		assert_null(second);
		assert_int_equal(seconds[i].name ? 0 : SC_E_STALE, rc);
		assert_int_equal(seconds[i].at_path, kind_of(PATH, &now));
		assert_int_equal(!seconds[i].name, rs_tree_is_nameless(s, job, look.ino));
		if (seconds[i].name) {
			assert_int_equal(RS_WORK, kind_of(seconds[i].name, &now));
			assert_true(now == blob && rs_work_is(s, job, blob));
		}
		end();
	}
}

/* A file that loses its name while it is copied is nothing that can be opened by its name. */
static void take_its_name(void)
{
	struct sc_err err;

	/* somebody has it open still: it is not forgotten */
	rs_tree_enter(job);
	must(rs_tree_unlink(s, job, rs_job_root(job) + 1, (struct meta_bytes){PATH, strlen(PATH)}, &err), &err);
	rs_tree_leave(job);
}

static void an_open_meets_the_end_of_its_file(void **unused)
{
	struct rs_look look;
	struct sc_err err;
	uint64_t blob;

	(void)unused;
	begin();
	must(work_find(s, job, 0, PATH, &look, &err), &err);
	second = take_its_name;
	interpose_begin(INTERPOSE(openat), when_made);
	assert_int_equal(SC_E_STALE, rs_tree_copy_up(s, job, look.ino, false, &blob, &err));
	interpose_end();
	assert_null(second);
	end();
}

static int nr_made;

static int when_any(enum interpose_call call, long flags)
{
	nr_made += call != CALL_openat || (flags & O_CREAT);
	return 0;
}

static int nr_owned;

static int when_owned(enum interpose_call call, long flags)
{
	(void)call;
	(void)flags;
	return ++nr_owned == 2 ? -EIO : 0;
}

/* A file in a folder with SGID gets its group before it has a name: if that fails, there is no file. */
static void a_create_without_its_group_leaves_no_name(void **unused)
{
	const struct rs_make folder = {.mode = S_IFDIR | S_ISGID | 0755, .gid = 12345}, file = {.mode = S_IFREG | 0644};
	const struct meta_bytes d = {"d", 1}, x = {"x", 1};
	struct rs_look in, look;
	struct sc_err err;
	struct stat st;
	int fd = -1, rc;

	(void)unused;
	begin();
	rs_tree_enter(job);
	must(rs_tree_make(s, job, rs_job_root(job) + 1, d, &folder, &in, NULL, &err), &err);
	nr_owned = 0;
	interpose_begin(INTERPOSE(fchown), when_owned);
	rc = rs_tree_make(s, job, in.ino, x, &file, &look, &fd, &err);
	interpose_end();
	assert_int_equal(2, nr_owned);
	assert_true(rc < 0);
	must(work_find(s, job, 0, "d/x", &look, &err), &err);
	assert_int_equal(RS_NONE, look.kind);
	must(rs_tree_make(s, job, in.ino, x, &file, &look, &fd, &err), &err);
	assert_int_equal(0, fstat(fd, &st));
	assert_int_equal(12345, st.st_gid);
	rs_tree_leave(job);
	(void)close(fd);
	end();
}

/* A rename of a committed file, or of the folder that it is in, copies no byte; it is still the same file. */
static void a_rename_copies_nothing(void **unused)
{
	struct rs_look before, after;
	struct sc_err err;

	(void)unused;
	begin();
	must(work_unlink(s, job, 0, PATH ".tmp", &err), &err); /* no commit takes such a name */
	put("deep/er/" PATH, 'd', BYTES);
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	for (int is_folder = 0; is_folder < 2; is_folder++) {
		must(work_find(s, job, 0, is_folder ? "deep/er/" PATH : PATH, &before, &err), &err);
		nr_made = 0;
		interpose_begin(INTERPOSE(openat) | INTERPOSE(clone_range) | INTERPOSE(copy_range) | INTERPOSE(pwrite), when_any);
		rename_to(is_folder ? "deep" : PATH, "new");
		interpose_end();
		assert_int_equal(0, nr_made);
		must(work_find(s, job, 0, is_folder ? "new/er/" PATH : "new", &after, &err), &err);
		assert_int_equal(RS_BLOB, after.kind);
		assert_true(before.ino == after.ino && before.blob == after.blob && after.bytes == BYTES);
		must(rs_job_discard(s, job, &err), &err);
	}
	end();
}

static void create_new(void)
{
	put("new", 'c', 10);
}

/* Two programs make one file: one of them, and the other learns that it exists. */
static void a_create_meets_another(void **unused)
{
	struct sc_err err;
	uint64_t blob;
	int fd;

	(void)unused;
	begin();
	second = create_new;
	interpose_begin(INTERPOSE(openat), when_made);
	assert_int_equal(SC_E_EXISTS, work_create_new(s, job, 0, "new", &owner, &blob, &fd, &err));
	interpose_end();
	assert_null(second);
	end();
}

static int nr_looked;

static int when_written(enum interpose_call call, long bytes)
{
	uint64_t blob;

	(void)bytes;
	if (call == CALL_clone_range)
		return -EOPNOTSUPP;
	if (call == CALL_copy_range)
		return -EXDEV;
	nr_looked++;
	assert_int_equal(RS_BLOB, kind_of(PATH, &blob));
	return 0;
}

/* Who opens the path meanwhile finds the committed file, not the beginning of its copy. */
static void nobody_finds_half_a_copy(void **unused)
{
	struct sc_err err;
	uint64_t blob;

	(void)unused;
	begin();
	interpose_begin(INTERPOSE(clone_range) | INTERPOSE(copy_range) | INTERPOSE(pwrite), when_written);
	must(work_copy_up(s, job, 0, PATH, false, &blob, &err), &err);
	interpose_end();
	assert_true(nr_looked >= 3);
	assert_int_equal(RS_WORK, kind_of(PATH, &blob));
	end();
}

/* The kernel sends no RELEASE of what was closed in a mount's last moment. */
static void a_removed_file_goes_with_the_mount(void **unused)
{
	struct sc_err err;
	uint64_t blob;

	(void)unused;
	for (int counted = 0; counted < 3; counted++) {
		begin();
		assert_int_equal(RS_WORK, kind_of(PATH ".tmp", &blob));
		if (counted == 0)
			must(rs_work_hold(s, blob, &err), &err);
		else if (counted == 1)
			must(rs_writer_begin(s, blob, &err), &err);
		else
			must(rs_writer_reserve(s, blob, INT64_MAX, &err), &err);
		must(rs_tree_unlink(s, job, folder(), name_of(PATH ".tmp"), &err), &err);
		removed = blob;
		end();
		removed = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_open_meets_another_change),
		cmocka_unit_test(an_open_meets_the_end_of_its_file),
		cmocka_unit_test(a_rename_copies_nothing),
		cmocka_unit_test(a_create_meets_another),
		cmocka_unit_test(a_create_without_its_group_leaves_no_name),
		cmocka_unit_test(nobody_finds_half_a_copy),
		cmocka_unit_test(a_removed_file_goes_with_the_mount),
	};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
