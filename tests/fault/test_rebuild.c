/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery records of trees, and catalogs made of them, with calls that fail.  Without a mount. */
#include "tests/fault/house.h"

#include "meta/base/log.h"
#include "reshard/repair/repair.h"
#include "reshard/upkeep/recovery/tree_join.h"
#include "tests/support/paths.h"

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

static struct sc_err err;

#define OK(call) \
	({ \
		if ((call) < 0) \
			fail_msg("%s: %s", #call, err.msg); \
	})

/* In the place of meta/base/log.c. */
void sc_log(enum sc_log_level level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}

/* --- a job without tensors --- */

static void open_plain(struct house *h)
{
	real = sc_sys;
	open_house(h, true);
	OK(rs_job_make(h->s, "plain", 0750, geteuid(), getegid(), &h->job, &err));
	OK(rs_job_layout(RS_CALLER(h->s), h->job, "use replicated", &err));
	OK(rs_job_topology(RS_CALLER(h->s), h->job, "dp=2", &err));
	OK(rs_job_config(RS_CALLER(h->s), h->job, "keep=2", &err));
}

static void put(struct house *h, const char *path, const char *text)
{
	const struct rs_owner owner = {geteuid(), getegid(), 0640};
	uint64_t blob;
	int fd = -1;

	OK(work_create(h->s, h->job, 1, path, &owner, &blob, &fd, &err));
	assert_int_equal(strlen(text), write(fd, text, strlen(text)));
	assert_int_equal(0, close(fd));
}

static void commit(struct house *h)
{
	OK(rs_job_commit(RS_CALLER(h->s), h->job, "", &err));
}

static uint64_t tree_of(struct house *h)
{
	struct rs_view *head = rs_job_head(h->job);
	uint64_t tree = head->version->tree;

	rs_view_unref(h->s, head);
	return tree;
}

static bool has(struct house *h, const char *path, const char *text)
{
	char bytes[32] = "";
	struct rs_look look;
	int fd;

	OK(work_find(h->s, h->job, 1, path, &look, &err));
	if (look.kind == RS_NONE)
		return false;
	assert_int_equal(RS_BLOB, look.kind);
	OK(meta_store_open_blob(rs_service_store(h->s), look.blob, strlen(text), &fd, &err));
	assert_int_equal(strlen(text), pread(fd, bytes, sizeof(bytes), 0));
	assert_int_equal(0, close(fd));
	assert_string_equal(text, bytes);
	return true;
}

static int count(void *arg, uint64_t tree)
{
	(void)tree;
	++*(unsigned *)arg;
	return 0;
}

static unsigned records(struct house *h)
{
	unsigned nr = 0;

	OK(meta_store_each_tree(rs_service_store(h->s), count, &nr, &err));
	return nr;
}

/* --- a catalog that is lost --- */

static void move_catalog(const struct house *h, const char *from, const char *to)
{
	static const char *const ends[] = {"", "-wal", "-shm"};
	char a[120], b[120];

	for (int i = 0; i < 3; i++) {
		(void)snprintf(a, sizeof(a), "%s/%s%s", h->dir, from, ends[i]);
		(void)snprintf(b, sizeof(b), "%s/%s%s", h->dir, to, ends[i]);
		if (*to)
			(void)rename(a, b);
		else
			(void)unlink(a);
	}
}

static int make_catalog(struct house *h, uint64_t *ret_bad, struct sc_buf *report)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = true, .keep_garbage = true, .rebuild = true};
	int rc = rs_service_new(&options, &h->s, &err);

	if (rc == 0)
		rc = rs_rebuild(h->s, ret_bad, report, &err);
	sc_sys = real;
	h->s = rc < 0 && !h->s ? NULL : rs_service_free(h->s);
	return rc;
}

static void reopen(struct house *h)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = true};

	move_catalog(h, "scalai.db.new", "scalai.db");
	OK(rs_service_new(&options, &h->s, &err));
	h->job = rs_job_by_name(h->s, "plain");
	assert_non_null(h->job);
}

/* Returns the number of problems. */
static uint64_t lose_catalog(struct house *h, const char *says)
{
	struct sc_buf report = {0};
	uint64_t bad;

	h->s = rs_service_free(h->s);
	move_catalog(h, "scalai.db", "");
	OK(make_catalog(h, &bad, &report));
	if (!strstr(report.text, says))
		fail_msg("'%s' is not in: %s", says, report.text);
	sc_buf_done(&report);
	reopen(h);
	return bad;
}

/* --- calls that fail --- */

static int bad_openat(int dir, const char *path, int flags, mode_t mode)
{
	if (!fails_now())
		return real.openat(dir, path, flags, mode);
	errno = EMFILE;
	return -1;
}

static ssize_t bad_pwrite(int fd, const void *p, size_t bytes, off_t at)
{
	if (!fails_now())
		return real.pwrite(fd, p, bytes, at);
	errno = ENOSPC;
	return -1;
}

static int bad_fsync(int fd)
{
	if (!fails_now())
		return real.fsync(fd);
	errno = EIO;
	return -1;
}

static int bad_renameat(int from_dir, const char *from, int dir, const char *path, unsigned flags)
{
	if (!fails_now())
		return real.renameat(from_dir, from, dir, path, flags);
	errno = EROFS;
	return -1;
}

static int bad_mkdirat(int dir, const char *path, mode_t mode)
{
	if (!fails_now())
		return real.mkdirat(dir, path, mode);
	errno = EROFS;
	return -1;
}

static void *bad_alloc(size_t bytes)
{
	return fails_now() ? NULL : real.alloc(bytes);
}

static void *bad_resize(void *p, size_t bytes)
{
	return fails_now() ? NULL : real.resize(p, bytes);
}

enum { KINDS = 7 };

static int begin_kind(int kind, long n)
{
	static const int errors[KINDS] = {EMFILE, ENOSPC, EIO, EROFS, EROFS, ENOMEM, ENOMEM};

	left = n;
	failed = false;
	sc_sys.openat = kind == 0 ? bad_openat : real.openat;
	sc_sys.pwrite = kind == 1 ? bad_pwrite : real.pwrite;
	sc_sys.fsync = kind == 2 ? bad_fsync : real.fsync;
	sc_sys.renameat = kind == 3 ? bad_renameat : real.renameat;
	sc_sys.mkdirat = kind == 4 ? bad_mkdirat : real.mkdirat;
	sc_sys.alloc = kind == 5 ? bad_alloc : real.alloc;
	sc_sys.resize = kind == 6 ? bad_resize : real.resize;
	return errors[kind];
}

/* --- tests --- */

/* Each call of a writer fails in turn: the record is whole or as before, and written the next time. */
static void records_are_written_again(void **unused)
{
	struct rs_joined joined;
	unsigned long faults = 0;
	struct house h;

	(void)unused;
	open_plain(&h);
	for (int kind = 0; kind < KINDS; kind++)
		for (long n = 0;; n++) {
			char text[16];
			int want, rc;

			(void)snprintf(text, sizeof(text), "%d %ld", kind, n);
			put(&h, "file", text);
			commit(&h);
			want = begin_kind(kind, n);
			rc = rs_trees_keep(h.s, &err);
			sc_sys = real;
			if (!failed) {
				assert_int_equal(0, rc);
				break;
			}
			faults++;
			if (rc < 0 && (err.errnum != want && (want != ENOMEM || err.code != SC_E_NO_MEMORY)))
				fail_msg("call %ld of kind %d: %d '%s'", n, kind, rc, err.msg);
			OK(rs_trees_keep(h.s, &err));
			OK(rs_tree_join(h.s, tree_of(&h), &joined, &err));
			assert_string_equal("plain", joined.chain[0].job);
			assert_string_equal("dp=2", joined.chain[0].topology);
			rs_joined_done(&joined);
			OK(rs_service_work(h.s, &err));
		}
	assert_true(faults > 15);
	close_house(&h);
}

/* A record of a flat tree replaces those of the trees below it, which are removed then. */
static void flat_trees_have_one_record(void **unused)
{
	struct rs_joined joined;
	struct house h;
	char text[16];

	(void)unused;
	open_plain(&h);
	for (int i = 0; i < 6; i++) {
		(void)snprintf(text, sizeof(text), "%d", i);
		put(&h, text, text);
		commit(&h);
		OK(rs_service_work(h.s, &err));
	}
	assert_int_equal(2, records(&h)); /* keep=2 */
	OK(rs_tree_join(h.s, tree_of(&h), &joined, &err));
	assert_true(joined.nr_chain <= 2);
	rs_joined_done(&joined);
	assert_int_equal(0, lose_catalog(&h, "rebuilt\tjob 'plain'"));
	for (int i = 0; i < 6; i++) {
		(void)snprintf(text, sizeof(text), "%d", i);
		assert_true(has(&h, text, text));
	}
	assert_int_equal(1, records(&h));
	close_house(&h);
}

static void spoil(const struct house *h, uint64_t tree)
{
	char path[100];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/trees/%" PRIu64, h->dir, tree);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(1, pwrite(fd, "?", 1, 60));
	assert_int_equal(0, close(fd));
}

/* What is not whole is not taken: the version before is. */
static void the_newest_whole_tree_is_taken(void **unused)
{
	struct rs_look look;
	struct house h;
	uint64_t tree;

	(void)unused;
	open_plain(&h);
	put(&h, "one", "1");
	put(&h, "empty", "");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	put(&h, "one", "two");
	commit(&h); /* whose record was not written any more */
	assert_int_equal(0, lose_catalog(&h, "rebuilt\tjob 'plain'"));
	assert_true(has(&h, "one", "1"));
	assert_true(has(&h, "empty", ""));
	OK(rs_service_work(h.s, &err));
	put(&h, "one", "three");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	tree = tree_of(&h);
	spoil(&h, tree);
	assert_int_equal(1, lose_catalog(&h, "may not be its newest one"));
	assert_true(has(&h, "one", "1"));
	/* a record that is missing breaks the chain of those over it */
	put(&h, "one", "four");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	put(&h, "one", "five");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	OK(meta_store_remove_tree(rs_service_store(h.s), tree_of(&h) - 1, &err));
	assert_int_equal(1, lose_catalog(&h, "cannot be used: the recovery record of tree"));
	assert_true(has(&h, "one", "1"));
	OK(work_find(h.s, h.job, 1, "two", &look, &err));
	assert_int_equal(RS_NONE, look.kind);
	close_house(&h);
}

/* Records say what the job is called, and whose it is, when that changed after the last commit. */
static void a_job_has_its_last_name_and_mode(void **unused)
{
	struct rs_job_attr attr;
	struct house h;

	(void)unused;
	open_plain(&h);
	put(&h, "one", "1");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	OK(rs_job_rename(h.s, h.job, "was", &err));
	OK(rs_job_chattr(h.s, h.job, 0705, RS_SAME_ID, RS_SAME_ID, &err));
	OK(rs_service_work(h.s, &err));
	OK(rs_job_rename(h.s, h.job, "plain", &err));
	OK(rs_service_work(h.s, &err));
	assert_int_equal(0, lose_catalog(&h, "rebuilt\tjob 'plain'"));
	assert_true(has(&h, "one", "1"));
	assert_null(rs_job_by_name(h.s, "was"));
	rs_job_attr(h.job, &attr);
	assert_int_equal(0705, attr.mode & 07777);
	close_house(&h);
}

/* Each call of a rebuild fails in turn; after that another one has all that there was. */
static void rebuilds_fail_cleanly(void **unused)
{
	struct house h;

	(void)unused;
	open_plain(&h);
	put(&h, "one", "1");
	put(&h, "two", "22");
	commit(&h);
	OK(rs_service_work(h.s, &err));
	for (int kind = 0; kind < KINDS; kind++)
		for (long n = 0;; n += 1 + n / 8) {
			struct sc_buf report = {0};
			uint64_t bad = 0;
			int want, rc;

			h.s = rs_service_free(h.s);
			move_catalog(&h, "scalai.db", "");
			want = begin_kind(kind, n);
			rc = make_catalog(&h, &bad, &report);
			sc_buf_done(&report);
			if (rc < 0 && err.errnum != want && (want != ENOMEM || err.code != SC_E_NO_MEMORY))
				fail_msg("call %ld of kind %d: %d '%s'", n, kind, rc, err.msg);
			move_catalog(&h, "scalai.db.new", "");
			OK(make_catalog(&h, &bad, &report));
			if (bad)
				fail_msg("call %ld of kind %d: %s", n, kind, report.text);
			sc_buf_done(&report);
			reopen(&h);
			assert_true(has(&h, "one", "1") && has(&h, "two", "22"));
			OK(rs_service_work(h.s, &err));
			if (!failed)
				break;
		}
	close_house(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_are_written_again),
		cmocka_unit_test(flat_trees_have_one_record),
		cmocka_unit_test(the_newest_whole_tree_is_taken),
		cmocka_unit_test(a_job_has_its_last_name_and_mode),
		cmocka_unit_test(rebuilds_fail_cleanly),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
