/* SPDX-License-Identifier: Apache-2.0 */
/* What the service reads of a store when it starts, presets among it, with calls that fail.  Without a mount. */
#include "tests/fault/house.h"

#include "meta/base/log.h"
#include "reshard/repair/repair.h"
#include "tests/support/every.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

/* --- presets of the user: one that cannot be read is not another one --- */

static int no_preset(int dir, const char *path, int flags, mode_t mode)
{
	if (!strstr(path, ".layout"))
		return real.openat(dir, path, flags, mode);
	errno = EMFILE;
	return -1;
}

static void presets_are_read(void **unused)
{
	struct rs_options options = {.quiet_worker = true};
	char folder[80], path[100];
	struct sc_err err = {0};
	struct house h;
	FILE *f;

	(void)unused;
	real = sc_sys;
	open_house(&h, true);
	rs_service_free(h.s);
	(void)snprintf(folder, sizeof(folder), "%s/presets", h.dir);
	assert_int_equal(0, mkdir(folder, 0700));
	(void)snprintf(path, sizeof(path), "%s/hf-llama.layout", folder);
	f = fopen(path, "we");
	assert_non_null(f);
	(void)fprintf(f, "mesh tp\nx tp=0\n");
	assert_int_equal(0, fclose(f));
	options.store = h.dir;
	options.preset_dir = folder;
	assert_int_equal(0, rs_service_new(&options, &h.s, &err));
	h.job = rs_job_at(h.s, 0);
	sc_sys.openat = no_preset;
	assert_int_equal(SC_E_SYSTEM, rs_job_layout(RS_CALLER(h.s), h.job, "use hf-llama", &err));
	if (err.errnum != EMFILE || !strstr(err.msg, "hf-llama.layout"))
		fail_msg("%s", err.msg);
	sc_sys = real;
	assert_int_equal(SC_E_LAYOUT, rs_job_layout(RS_CALLER(h.s), h.job, "use hf-llama", &err)); /* it has no pp */
	assert_int_equal(0, truncate(path, (off_t)1 << 30));
	assert_int_equal(SC_E_LIMIT, rs_job_layout(RS_CALLER(h.s), h.job, "use hf-llama", &err));
	assert_int_equal(0, unlink(path));
	assert_int_equal(0, mkfifo(path, 0600));
	assert_int_equal(SC_E_SYSTEM, rs_job_layout(RS_CALLER(h.s), h.job, "use hf-llama", &err));
	assert_int_equal(0, unlink(path));
	if (rs_job_layout(RS_CALLER(h.s), h.job, "use hf-llama", &err) < 0) /* the one that ships */
		fail_msg("%s", err.msg);
	close_house(&h);
}

/* --- listing: what cannot be listed is not empty --- */

static int bad_flock(int fd, int operation)
{
	(void)fd;
	(void)operation;
	errno = EIO;
	return -1;
}

static DIR *bad_fdopendir(int fd)
{
	if (!fails_now())
		return real.fdopendir(fd);
	errno = EMFILE;
	return NULL;
}

static struct dirent *bad_readdir(DIR *dir)
{
	if (!fails_now())
		return real.readdir(dir);
	errno = EIO;
	return NULL;
}

static int bad_clone_mount(int dir)
{
	(void)dir;
	errno = EPERM;
	return -1;
}

static int bad_set_mount(int mount, uint64_t attrs)
{
	(void)mount;
	(void)attrs;
	errno = ENOSYS;
	return -1;
}

static int bad_renameat(int from_dir, const char *from, int dir, const char *path, unsigned flags)
{
	if (flags != RENAME_NOREPLACE)
		return real.renameat(from_dir, from, dir, path, flags);
	errno = EROFS;
	return -1;
}

static void reopen(struct house *h)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = true};
	struct sc_err err = {0};

	if (rs_service_new(&options, &h->s, &err) < 0)
		fail_msg("start: %s", err.msg);
	h->job = rs_job_at(h->s, 0);
}

static int count_blob(void *arg, uint64_t blob)
{
	(void)blob;
	++*(unsigned *)arg;
	return 0;
}

static unsigned count_blobs(struct house *h)
{
	unsigned nr = 0;
	struct sc_err err;

	assert_int_equal(0, meta_store_each(rs_service_store(h->s), count_blob, &nr, &err));
	return nr;
}

/* Each of its calls fails in turn; without a catalog a start is refused in the end, too. */
static void start_with_bad_lists(const struct house *h, bool has_catalog)
{
	struct rs_options options = {.store = h->dir, .quiet_worker = true};

	for (int what = 0; what < 2; what++)
		for (long n = 0;; n = next_point(n)) {
			struct rs_service *s = NULL;
			struct sc_err err = {0};
			int rc;

			left = n;
			failed = false;
			sc_sys.fdopendir = what ? bad_fdopendir : real.fdopendir;
			sc_sys.readdir = what ? real.readdir : bad_readdir;
			rc = rs_service_new(&options, &s, &err);
			sc_sys = real;
			rs_service_free(s);
			if (!failed) {
				assert_int_equal(has_catalog ? 0 : SC_E_CORRUPT, rc);
				break;
			}
			if (rc != SC_E_SYSTEM || err.errnum != (what ? EMFILE : EIO) || !strstr(err.msg, "cannot list"))
				fail_msg("call %ld: %d '%s'", n, rc, err.msg);
		}
}

static void lists_are_whole(void **unused)
{
	char db[80], aside[80];
	struct house h;
	unsigned blobs;

	(void)unused;
	real = sc_sys;
	open_house(&h, true);
	commit_sample(&h);
	blobs = count_blobs(&h);
	rs_service_free(h.s);
	(void)snprintf(db, sizeof(db), "%s/scalai.db", h.dir);
	(void)snprintf(aside, sizeof(aside), "%s/aside.db", h.dir);
	start_with_bad_lists(&h, true);
	assert_int_equal(0, rename(db, aside));
	start_with_bad_lists(&h, false);
	assert_int_equal(0, rename(aside, db));
	reopen(&h);
	assert_int_equal(blobs, count_blobs(&h));
	close_house(&h);
}

static void stores_are_opened(void **unused)
{
	struct rs_options options = {.quiet_worker = true, .keep_garbage = true};
	struct rs_service *none = NULL;
	struct sc_err err = {0};
	struct sc_buf report = {0};
	char orphan[80];
	struct house h;
	uint64_t bad;

	(void)unused;
	real = sc_sys;
	open_house(&h, true);
	rs_service_free(h.s);
	options.store = h.dir;
	sc_sys.flock = bad_flock;
	assert_int_equal(SC_E_SYSTEM, rs_service_new(&options, &none, &err));
	assert_non_null(strstr(err.msg, "cannot lock the store"));
	sc_sys = real;
	sc_sys.clone_mount = bad_clone_mount; /* it only keeps us from our own mistakes */
	reopen(&h);
	rs_service_free(h.s);
	sc_sys = real;
	sc_sys.set_mount = bad_set_mount;
	reopen(&h);
	rs_service_free(h.s);
	sc_sys = real;
	(void)snprintf(orphan, sizeof(orphan), "%s/blobs/03/999", h.dir);
	assert_int_equal(0, close(open(orphan, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)));
	assert_int_equal(0, rs_service_new(&options, &h.s, &err));
	sc_sys.renameat = bad_renameat;
	assert_int_equal(SC_E_SYSTEM, rs_fsck(h.s, true, &bad, &report, &err));
	assert_int_equal(EROFS, err.errnum);
	sc_sys = real;
	sc_buf_done(&report);
	close_house(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(presets_are_read),
		cmocka_unit_test(lists_are_whole),
		cmocka_unit_test(stores_are_opened),
	};

	sc_log_level(SC_LOG_ERROR);
	return cmocka_run_group_tests_name("stores", tests, NULL, NULL);
}
