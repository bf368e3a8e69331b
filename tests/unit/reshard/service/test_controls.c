/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control files by their rows, without a mount: those of the program and two more (tests/support/kinds/controls.c), by
 * the same calls.  tests/e2e/cases/32_control_files does it on a mount.
 */
#include "reshard/service/control.h"

#include "meta/base/metric.h"
#include "tests/support/paths.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;
static struct rs_caller who;

static void describe(void *arg, const char *name, struct sc_buf *buf)
{
	sc_buf_printf(buf, "%s of %s\n", name, (const char *)arg);
}

static void ignore(void *arg)
{
	(void)arg;
}

static void ignore_news(void *arg, uint64_t job_id)
{
	(void)arg, (void)job_id;
}

static const struct rs_events events = {(void *)(uintptr_t)"a test", ignore, ignore_news, describe};

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

/* Half of the tensor 'w'. */
static void put(uint32_t rank)
{
	char text[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}abcdefgh";
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t blob, bytes = sizeof(text) - 1 - 8;
	struct sc_err err = {0};
	int fd;

	text[sizeof(text) - 2] = (char)(text[sizeof(text) - 2] + (char)rank);
	must(work_create(s, job, rank, "model.safetensors", &owner, &blob, &fd, &err), &err);
	assert_int_equal(8, write(fd, &bytes, 8));
	assert_int_equal(sizeof(text) - 1, write(fd, text, sizeof(text) - 1));
	(void)close(fd);
}

static void begin(const struct rs_events *listener)
{
	struct rs_options options = {.store = dir, .quiet_worker = true, .events = listener};
	struct sc_err err = {0};

	(void)strcpy(dir, "/tmp/scalai-controls.XXXXXX");
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	who = (struct rs_caller){.service = s, .uid = 7, .gid = 8};
	must(rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "mesh tp\n* tp=0", &err), &err);
	must(rs_job_config(RS_CALLER(s), job, "sync=off", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2", &err), &err);
	put(0);
	put(1);
	must(rs_job_commit(RS_CALLER(s), job, "step=1", &err), &err);
}

static int end(void **unused)
{
	char clean[100];

	(void)unused;
	s = rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	return system(clean);
}

static int command_by(const struct rs_caller *caller, const char *name, const char *text, struct sc_buf *answer,
		      uint64_t *ret_held, struct sc_err *err)
{
	const struct rs_control *c = rs_control_find(false, name);

	assert_non_null(c);
	return rs_control_write(c, caller, job, text, c->flags & RS_CTL_ANSWER ? answer : NULL,
				c->flags & RS_CTL_HELD ? ret_held : NULL, err);
}

static int command(const char *name, const char *text)
{
	struct sc_buf answer = {0};
	struct sc_err err = {0};
	uint64_t held;
	int rc = command_by(&who, name, text, &answer, &held, &err);

	sc_buf_done(&answer);
	return rc;
}

/* Numbers are in nodeids, which a kernel keeps while daemons change: these never change. */
static void numbers_and_modes_are_as_ever(void **unused)
{
	static const struct {
		const char *name;
		unsigned nr;
		mode_t mode;
		bool of_mount;
	} all[] = {
		{"topology", 0, 0644}, {"layout", 1, 0644}, {"commit", 2, 0200}, {"discard", 3, 0200},
		{"rollback", 4, 0200}, {"versions", 5, 0644}, {"status", 6, 0444}, {"wait", 7, 0666},
		{"plan", 8, 0666}, {"error", 9, 0444}, {"config", 10, 0644}, {"verify", 11, 0644},
		{"data", 12, 0644}, {"diff", 13, 0666}, {"clone", 14, 0200}, {"plan.svg", 15, 0666},
		{"metrics", 0, 0444, true}, {"health", 1, 0444, true}, {"version", 2, 0444, true},
		{"nodes", 3, 0444, true}, {"drain", 4, 0200, true}, {"cluster", 5, 0644, true},
	};
	const size_t nr = sizeof(all) / sizeof(*all);
	const struct rs_control *c;

	(void)unused;
	for (size_t i = 0; i < nr; i++) {
		c = rs_control_by_nr(all[i].of_mount, all[i].nr);
		assert_non_null(c);
		assert_string_equal(all[i].name, c->name);
		assert_ptr_equal(c, rs_control_find(all[i].of_mount, all[i].name));
		assert_ptr_equal(c, rs_control_at(i));
		assert_int_equal(all[i].mode, c->mode);
		assert_int_equal(c->mode, rs_control_mode(c, 0755));
		assert_int_equal(c->mode | (c->mode & 0200) >> 3, rs_control_mode(c, 0775));
	}
	assert_ptr_equal(rs_control_at(nr), rs_control_find(false, "mirror"));
	assert_ptr_equal(rs_control_at(nr + 1), rs_control_by_nr(false, 1001));
	assert_null(rs_control_at(nr + 2));
	assert_null(rs_control_find(true, "mirror"));
	assert_null(rs_control_find(false, "metrics"));
	assert_null(rs_control_by_nr(true, 6));
	for (size_t i = 0; (c = rs_control_at(i)); i++)
		for (size_t k = 0; k < i; k++) {
			const struct rs_control *other = rs_control_at(k);

			if ((c->flags ^ other->flags) & RS_CTL_MOUNT)
				continue;
			assert_int_not_equal(c->nr, other->nr);
			assert_string_not_equal(c->name, other->name);
		}
}

/* All that a job's control files say. */
static char *everything(void)
{
	const struct rs_control *c;
	struct sc_buf all = {0};
	struct sc_err err = {0};

	for (size_t i = 0; (c = rs_control_at(i)); i++) {
		size_t before = all.bytes;

		if (c->flags & RS_CTL_MOUNT)
			continue;
		must(rs_control_read(c, &who, job, &all, &err), &err);
		if (!c->read)
			assert_int_equal(before, all.bytes);
	}
	return all.text;
}

/* `errnum` 0: any. */
static void refused(const struct rs_control *c, const char *text, int errnum, const char *why)
{
	char *before = everything(), *after;
	struct sc_buf answer = {0};
	struct sc_err err = {0};
	uint64_t held = 12345;
	int rc = command_by(&who, c->name, text, &answer, &held, &err);

	if (rc >= 0 || err.code >= 0 || err.errnum <= 0 || (errnum && err.errnum != errnum) || !strstr(err.msg, why))
		fail_msg("%s: '%.20s': answer %d, error %d '%s'; want '%s'", c->name, text, rc, err.errnum, err.msg, why);
	assert_int_equal(12345, held);
	after = everything();
	assert_string_equal(before, after);
	sc_buf_done(&answer);
	sc_sys.release(before);
	sc_sys.release(after);
}

static void refusals_change_nothing(void **unused)
{
	static char long_text[SC_LAYOUT_BYTES_MAX + 2];
	const struct rs_control *c;

	(void)unused;
	begin(NULL);
	memset(long_text, 'x', sizeof(long_text) - 1);
	for (size_t i = 0; (c = rs_control_at(i)); i++) {
		if (c->flags & RS_CTL_MOUNT)
			continue;
		if (!c->write)
			refused(c, "x", EPERM, "is read-only");
		else if (strcmp(c->name, "discard") != 0 && strcmp(c->name, "verify") != 0) /* they take any text */
			refused(c, "no = such ? word\nnor this\n", 0, "");
		if (c->write && rs_control_bytes_max(c) < sizeof(long_text) - 1)
			refused(c, long_text, E2BIG, c->name);
	}
}

/* The same command is answered in the same way, whoever makes the answer; a refused one is not answered. */
static void answers(const char *name, const char *text, const char *want)
{
	struct sc_buf first = {0}, second = {0};
	struct sc_err err = {0};

	must(command_by(&who, name, text, &first, NULL, &err), &err);
	must(command_by(&who, name, text, &second, NULL, &err), &err);
	assert_non_null(strstr(first.text, want));
	assert_string_equal(first.text, second.text);
	sc_buf_done(&first);
	sc_buf_done(&second);
}

static void a_write_is_answered(void **unused)
{
	(void)unused;
	begin(NULL);
	assert_int_equal(0, command("topology", "tp=4"));
	answers("diff", "1 2\n", "\n");
	answers("mirror", "abc\n", "7: cba\n");
	assert_int_equal(SC_E_COMMAND, command("mirror", "two\nlines\n"));
}

/* Held before it happens, and done from then on. */
static void is_held_until(const char *name, const char *text, int (*happens)(struct sc_err *err))
{
	const struct rs_control *c = rs_control_find(false, name);
	struct sc_err err = {0};
	uint64_t held = 0;

	must(command_by(&who, name, text, NULL, &held, &err), &err);
	assert_int_equal(0, rs_control_held(c, job, held, &err));
	assert_int_equal(0, rs_control_held(c, job, held, &err));
	must(happens(&err), &err);
	assert_int_equal(1, rs_control_held(c, job, held, &err));
	assert_int_equal(1, rs_control_held(c, job, held, &err));
}

static int materialize(struct sc_err *err)
{
	return rs_service_work(s, err);
}

static int change_twice(struct sc_err *err)
{
	int rc = rs_job_config(RS_CALLER(s), job, "materialize=never", err);

	return rc < 0 ? rc : rs_job_config(RS_CALLER(s), job, "materialize=eager", err);
}

static void a_write_is_held(void **unused)
{
	struct sc_err err = {0};
	uint64_t held;

	(void)unused;
	begin(NULL);
	must(rs_service_work(s, &err), &err);
	assert_int_equal(0, command("topology", "tp=4"));
	is_held_until("wait", "", materialize);
	is_held_until("changes", "2\n", change_twice);
	must(command_by(&who, "changes", "1", NULL, &held, &err), &err);
	assert_int_equal(0, command("config", "remove=yes"));
	must(rs_job_remove(s, job, &err), &err);
	assert_int_equal(SC_E_STALE, rs_control_held(rs_control_find(false, "changes"), job, held, &err));
	assert_int_equal(ESTALE, err.errnum);
}

/* The token of a command is that of the version that it makes, and of no other. */
static void a_token_marks_one_version(void **unused)
{
	struct rs_caller first, second;
	struct sc_err err = {0};

	(void)unused;
	begin(NULL);
	first = second = who;
	first.token = 1111;
	second.token = 2222;
	assert_int_equal(0, rs_requested(s, first.token, &err));
	must(command_by(&first, "topology", "tp=4", NULL, NULL, &err), &err);
	assert_int_equal(1, rs_requested(s, first.token, &err));
	assert_true(command_by(&second, "topology", "nonsense", NULL, NULL, &err) < 0);
	assert_int_equal(0, command("topology", "tp=8"));
	assert_int_equal(0, rs_requested(s, second.token, &err));
	must(command_by(&second, "rollback", "1", NULL, NULL, &err), &err);
	assert_int_equal(1, rs_requested(s, second.token, &err));
}

static char *read_top(const char *name)
{
	const struct rs_control *c = rs_control_find(true, name);
	struct sc_err err = {0};
	struct sc_buf buf = {0};

	assert_non_null(c);
	must(rs_control_read(c, &who, NULL, &buf, &err), &err);
	return buf.text;
}

static void facts_of_the_mount_come_from_above(void **unused)
{
	char *health, *version;

	(void)unused;
	begin(&events);
	health = read_top("health");
	version = read_top("version");
	assert_string_equal("ok\nhealth of a test\n", health);
	assert_string_equal("scalai " SC_VERSION "\nversion of a test\n", version);
	sc_sys.release(health);
	sc_sys.release(version);
	(void)end(NULL);
	begin(NULL);
	health = read_top("health");
	assert_string_equal("ok\n", health);
	sc_sys.release(health);
}

SC_METRIC(warmth, SC_GAUGE, "a_test_celsius", "Of this test.");

static void metrics_are_listed_by_name(void **unused)
{
	static const char *const names[] = {
		"scalai_commits_total", "scalai_materialized_bytes_total", "scalai_mended_blobs_total",
		"scalai_reflinked_bytes_total", "scalai_refusals_total", "scalai_reshards_total",
		"scalai_scrubbed_bytes_total", "scalai_shared_bytes_total", "scalai_verified_bytes_total",
	};
	/* what tests wait for: settled in tests/e2e/lib.sh */
	static const char *const owed[] = {
		"scalai_background_busy", "scalai_hashes_owed", "scalai_records_owed", "scalai_trees_owed",
	};
	char *text, *at, line[200];

	(void)unused;
	begin(NULL);
	sc_metric_add(&warmth, 21);
	text = at = read_top("metrics");
	assert_ptr_equal(text, strstr(text, "# HELP a_test_celsius Of this test.\n# TYPE a_test_celsius gauge\n"
					    "a_test_celsius 21\n"));
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		(void)snprintf(line, sizeof(line), "\n# TYPE %s counter\n%s ", names[i], names[i]);
		at = strstr(at, line);
		if (!at)
			fail_msg("%s is not in its place of:\n%s", names[i], text);
	}
	assert_null(strstr(text, "scalai_commits_total 0\n"));
	for (size_t i = 0; i < sizeof(owed) / sizeof(*owed); i++) {
		(void)snprintf(line, sizeof(line), "\n# TYPE %s gauge\n%s ", owed[i], owed[i]);
		if (!strstr(text, line))
			fail_msg("%s is not in:\n%s", owed[i], text);
	}
	sc_sys.release(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_and_modes_are_as_ever),
		cmocka_unit_test_teardown(refusals_change_nothing, end),
		cmocka_unit_test_teardown(a_write_is_answered, end),
		cmocka_unit_test_teardown(a_write_is_held, end),
		cmocka_unit_test_teardown(a_token_marks_one_version, end),
		cmocka_unit_test_teardown(facts_of_the_mount_come_from_above, end),
		cmocka_unit_test_teardown(metrics_are_listed_by_name, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
