/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SQLite's allocations fail one by one, in each command and in the start of a service.  A command is refused with
 * "out of memory", and rows and status are as before; or it does all that it says: its job's rows are those of a
 * reference job, which was given the same command without a fault.  The reference goes first, so that statements are
 * prepared already and what fails is their use; with `cold` a new service prepares them.  Without a mount.
 */
#include "reshard/job/service.h"

#include "meta/base/log.h"
#include "tests/fault/watchdog.h"

#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#define MODEL "model.safetensors"
#define GPT "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight"

static char dir[64];
static struct rs_service *s;

/* --- SQLite's memory --- */

static sqlite3_mem_methods real;
static bool armed;		/* calls are counted */
static bool lasts;		/* all after it fail, too */
static long left, failures;	/* calls until one fails; that did */
static int benign;		/* SQLite goes on without these, and says so before */

static bool fails_now(void)
{
	if (!armed || benign || left-- > 0 || (failures && !lasts))
		return false;
	failures++;
	return true;
}

static void *bad_malloc(int bytes)
{
	return fails_now() ? NULL : real.xMalloc(bytes);
}

static void *bad_realloc(void *p, int bytes)
{
	return fails_now() ? NULL : real.xRealloc(p, bytes);
}

static void benign_begin(void)
{
	benign++;
}

static void benign_end(void)
{
	benign--;
}

static int take_memory(void **unused)
{
	sqlite3_mem_methods bad;

	(void)unused;
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real));
	bad = real;
	bad.xMalloc = bad_malloc;
	bad.xRealloc = bad_realloc;
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_MALLOC, &bad));
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0)); /* each is a call */
	assert_int_equal(SQLITE_OK, sqlite3_test_control(SQLITE_TESTCTRL_BENIGN_MALLOC_HOOKS, benign_begin, benign_end));
	return 0;
}

static void arm(long n)
{
	watchdog_step();
	left = n;
	failures = 0;
	armed = true;
}

/* --- what a job is --- */

static const char *const rows[] = {
	"SELECT 'job', j.uid, j.gid, j.mode, (SELECT nr FROM version WHERE id = j.head), (SELECT source FROM layout WHERE "
	"id = j.layout), j.topology FROM job j WHERE j.id = ?",
	"SELECT 'config', key, value FROM config WHERE job = ? ORDER BY key",
	"SELECT 'version', v.nr, (SELECT nr FROM version WHERE id = v.parent), v.step, v.note, v.made_by, v.topology, "
	"v.samples, v.tag, v.request, (SELECT source FROM layout WHERE id = v.layout) FROM version v WHERE v.job = ? "
	"ORDER BY v.nr",
	"SELECT 'set', v.nr, s.file, s.kind, s.topology, s.format, s.tensors, s.payload, s.verified, s.report, s.layers, s.experts, "
	"s.given_topology, s.given_layers, s.given_experts FROM version v JOIN version_set ON version = v.id JOIN blob_set s "
	"ON s.id = blob_set WHERE v.job = ? ORDER BY v.nr, s.kind, s.file, s.id",
	"SELECT 'file', v.nr, s.kind, s.file, f.rank, path.text, f.mode, f.uid, f.gid, b.bytes, hex(b.hash), b.damaged FROM "
	"version v JOIN version_set ON version = v.id JOIN blob_set s ON s.id = version_set.blob_set JOIN set_blob f ON "
	"f.blob_set = s.id JOIN path ON path.id = f.path LEFT JOIN blob b ON b.id = f.blob WHERE v.job = ? ORDER BY v.nr, "
	"s.kind, s.file, f.rank, path.text",
	"SELECT 'work', w.rank, path.text, w.kind, w.target, w.mode, w.uid, w.gid, b.bytes FROM work w LEFT JOIN path ON "
	"path.id = w.path LEFT JOIN blob b ON b.id = w.id WHERE w.job = ? ORDER BY w.rank, path.text",
	"SELECT 'data', v.nr, d.name, d.spec, d.form, d.uid, d.gid, x.from_epoch, x.from_samples, f.nr, f.path, f.bytes, "
	"f.mtime_ns, hex(f.ends), f.samples, f.sequences, f.blob IS NULL, f.borders IS NULL FROM version v JOIN version_data "
	"x ON x.version = v.id JOIN dataset d ON d.id = x.dataset JOIN data_source f ON f.dataset = d.id WHERE v.job = ? "
	"ORDER BY v.nr, d.name, f.nr",
};

/* The rows of a job, as another program sees them: none of them has a number that another job's would not have. */
static char *rows_of(uint64_t job)
{
	struct sc_buf buf = {0};
	char path[100];
	sqlite3 *db;

	(void)snprintf(path, sizeof(path), "%s/scalai.db", dir);
	assert_int_equal(SQLITE_OK, sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL));
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		sqlite3_stmt *stmt;
		int step;

		if (sqlite3_prepare_v2(db, rows[i], -1, &stmt, NULL) != SQLITE_OK)
			fail_msg("%s: %s", rows[i], sqlite3_errmsg(db));
		assert_int_equal(SQLITE_OK, sqlite3_bind_int64(stmt, 1, (sqlite3_int64)job));
		while ((step = sqlite3_step(stmt)) == SQLITE_ROW)
			for (int k = 0; k < sqlite3_column_count(stmt); k++) {
				const char *text = (const char *)sqlite3_column_text(stmt, k);

				sc_buf_printf(&buf, "%s%c", text ? text : "NULL", k + 1 < sqlite3_column_count(stmt) ? '|' : '\n');
			}
		assert_int_equal(SQLITE_DONE, step);
		(void)sqlite3_finalize(stmt);
	}
	(void)sqlite3_close(db);
	sc_buf_printf(&buf, "%s", "");
	return buf.text;
}

static char *status_of(struct rs_job *job)
{
	struct sc_buf buf = {0};
	struct sc_err err = {0};

	assert_int_equal(0, rs_render_topology(s, job, &buf, &err));
	assert_int_equal(0, rs_render_config(s, job, &buf, &err));
	assert_int_equal(0, rs_render_data(s, job, &buf, &err));
	if (rs_render_status(s, job, &buf, &err) < 0)
		sc_buf_printf(&buf, "%s", err.msg);
	return buf.text;
}

/* --- commands, in their order --- */

typedef int command_fn(struct rs_job *job, const char *text, struct sc_err *err);

static int layout(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_layout(RS_CALLER(s), job, text, err);
}

static int topology(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_topology(RS_CALLER(s), job, text, err);
}

static int config(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_config(RS_CALLER(s), job, text, err);
}

static int commit(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_commit(RS_CALLER(s), job, text, err);
}

static int tag(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_tag(RS_CALLER(s), job, text, err);
}

static int roll_back(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_rollback(RS_CALLER(s), job, text, err);
}

static int discard(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_discard(s, job, err);
}

static int add_data(struct rs_job *job, const char *text, struct sc_err *err)
{
	char lines[2000];

	(void)text;
	(void)snprintf(lines, sizeof(lines), "add name=r path=" SAMPLE "/0/" MODEL " format=records record=8 global_batch=8\n"
		       "add name=l path=" SAMPLE "/job.json format=lines global_batch=8 copy=yes\n");
	return rs_job_data(&(struct rs_caller){s, geteuid(), getegid()}, job, lines, err);
}

static int data(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_data(&(struct rs_caller){s, geteuid(), getegid()}, job, text, err);
}

/* "RANK PATH", with the bytes of the sample's model of this rank */
static int create(struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0640};
	char from[1000], buf[65536];
	uint64_t blob;
	int in, out, rc = rs_work_create(s, job, (uint32_t)atoi(text), text + 2, &owner, &blob, &out, err);
	ssize_t n;

	if (rc < 0)
		return rc;
	(void)snprintf(from, sizeof(from), SAMPLE "/%c/" MODEL, *text);
	in = open(from, O_RDONLY | O_CLOEXEC);
	assert_true(in >= 0);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		assert_int_equal(n, write(out, buf, (size_t)n));
	(void)close(in);
	(void)close(out);
	return 0;
}

static int copy_up(struct rs_job *job, const char *text, struct sc_err *err)
{
	uint64_t blob;

	return rs_work_copy_up(s, job, 0, text, false, &blob, err);
}

static int make_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0750};

	return rs_work_mkdir(s, job, 0, text, &owner, err);
}

static int change_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0700};

	return rs_work_chattr_dir(s, job, 0, text, &owner, 1000000000, err);
}

static int move(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_work_rename(s, job, 0, text, 1, "moved", false, err);
}

static int unlink_file(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_work_unlink(s, job, 0, text, err);
}

static int remove_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_work_rmdir(s, job, 0, text, err);
}

static int verify(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_verify(s, job, err);
}

static int change_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_chattr(s, job, 0750, 5, 6, err);
}

static int rename_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	char name[40];

	(void)snprintf(name, sizeof(name), "%s%" PRIu64, text, rs_job_id(job));
	return rs_job_rename(s, job, name, err);
}

static int clone_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	char name[40];
	int rc;

	(void)snprintf(name, sizeof(name), "%s%" PRIu64, text, rs_job_id(job));
	rc = rs_job_clone(&(struct rs_caller){s, geteuid(), getegid()}, job, name, err);
	assert_true((rc == 0) == (rs_job_by_name(s, name) != NULL));
	return rc;
}

static int remove_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_remove(s, job, err);
}

/* In the background, for all jobs: what it has done when something fails, it has done. */
static int work(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)job;
	(void)text;
	return rs_service_work(s, err);
}

static int scrub(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)job;
	(void)text;
	return rs_service_scrub(s, INT64_MAX, err);
}

static const struct command {
	const char *what;
	command_fn *run;
	const char *text;
} commands[] = {
	{"layout", layout, GPT},
	{"topology", topology, "tp=2 pp=2"},
	{"config", config, "buffer_mib=2 keep=9 sync=off"},
	{"create", create, "0 " MODEL},
	{"create", create, "1 " MODEL},
	{"create", create, "2 " MODEL},
	{"create", create, "3 " MODEL},
	{"mkdir", make_dir, "notes"},
	{"chmod", change_dir, "notes"},
	{"create", create, "0 notes/a"},
	{"commit", commit, "step=1 samples=8 note=the first one"},
	{"work", work, ""},
	{"copy up", copy_up, "notes/a"},
	{"rename", move, "notes/a"},
	{"rmdir", remove_dir, "notes"},
	{"commit", commit, "step=2 note=another one, which was made after the first"},
	{"tag", tag, "tag 2 best"},
	{"work", work, ""},
	{"topology", topology, "tp=4 dp=2"},
	{"work", work, ""},
	{"data", add_data, ""},
	{"commit", commit, "samples=8"},
	{"data", data, "remove name=l\nrefresh name=r"},
	{"layout", layout, "use megatron-gpt vocab=301 tied=embedding.word_embeddings.weight"},
	{"create", create, "0 b"},
	{"unlink", unlink_file, "b"},
	{"unlink", unlink_file, MODEL},
	{"discard", discard, ""},
	{"tag", tag, "untag 2"},
	{"rollback", roll_back, "1"},
	{"work", work, ""},
	{"verify", verify, ""},
	{"scrub", scrub, ""},
	{"chmod", change_job, ""},
	{"rename", rename_job, "other"},
	{"clone", clone_job, "clone"},
	{"work", work, ""},
	{"config", config, "keep=2 remove=yes"},
	{"topology", topology, "tp=1"},
	{"work", work, ""},
	{"remove", remove_job, ""},
	{"work", work, ""},
};

static long total, swallowed;

static void expect(const char *got, const char *want, const char *what, long n, const struct sc_err *err)
{
	if (strcmp(got, want) == 0)
		return;
	(void)fprintf(stderr, "%s, allocation %ld failed (%s): expected\n%s\nfound\n%s\n", what, n, err->msg, want, got);
	fail();
}

static void start(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err = {0};

	assert_int_equal(0, rs_service_new(&options, &s, &err));
}

static void restart(struct rs_job **job, struct rs_job **reference)
{
	uint64_t id = rs_job_id(*job), other = rs_job_id(*reference);

	s = rs_service_free(s);
	start();
	*job = rs_job_by_id(s, id);
	*reference = rs_job_by_id(s, other);
}

static void fail_in_turn(struct rs_job *job, const struct command *c)
{
	char *before = rows_of(rs_job_id(job)), *status = status_of(job);
	bool is_work = c->run == work || c->run == scrub;
	struct sc_err err = {0};
	int rc = -1;

	for (long n = 0; rc != 0 || (is_work && failures); n++) {
		arm(n);
		rc = c->run(job, c->text, &err);
		armed = false;
		total += failures;
		swallowed += rc == 0 ? failures : 0;
		if (rc != 0 && (rc != SC_E_NO_MEMORY || !failures))
			fail_msg("%s, allocation %ld: %d '%s' after %ld failures", c->what, n, rc, err.msg, failures);
		if (rc != 0 && !is_work) {
			char *after = rows_of(rs_job_id(job)), *later = status_of(job);

			expect(after, before, c->what, n, &err);
			expect(later, status, c->what, n, &err);
			sc_sys.release(after);
			sc_sys.release(later);
		}
	}
	sc_sys.release(before);
	sc_sys.release(status);
}

static void check_store(void)
{
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 1;

	if (rs_fsck(s, false, &bad, &report, &err) < 0 || bad)
		fail_msg("fsck: %s %s", report.text, err.msg);
	sc_buf_done(&report);
}

static void all_commands(bool cold)
{
	struct rs_job *reference = NULL, *job = NULL;
	struct sc_err err = {0};
	char clean[100];

	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-catalog.XXXXXX" : "/tmp/scalai-catalog.XXXXXX");
	assert_non_null(mkdtemp(dir));
	start();
	assert_int_equal(0, rs_job_make(s, "reference", 0755, geteuid(), getegid(), &reference, &err));
	for (long n = 0; !job; n++) {
		arm(n);
		if (rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err) < 0 && err.code != SC_E_NO_MEMORY)
			fail_msg("job, allocation %ld: %s", n, err.msg);
		armed = false;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		const struct command *c = &commands[i];
		char *want, *got;

		if (c->run(reference, c->text, &err) < 0)
			fail_msg("%s: %s", c->what, err.msg);
		if (cold && !rs_job_is_removed(reference)) /* it is removed in the end */
			restart(&job, &reference);
		fail_in_turn(job, c);
		want = rows_of(rs_job_id(reference));
		got = rows_of(rs_job_id(job));
		expect(got, want, c->what, -1, &err);
		sc_sys.release(want);
		sc_sys.release(got);
		check_store();
	}
	s = rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static void prepared_statements(void **unused)
{
	(void)unused;
	all_commands(false);
}

static void memory_stays_away(void **unused)
{
	(void)unused;
	lasts = true;
	all_commands(false);
	lasts = false;
}

static void new_statements(void **unused)
{
	(void)unused;
	all_commands(true);
}

/* A store with a version, a dataset and a working tree: a start has all of it or is refused. */
static void starts(void **unused)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err = {0};
	struct rs_job *job = NULL;
	char clean[100], *want;
	int rc;

	(void)unused;
	(void)strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/scalai-catalog.XXXXXX" : "/tmp/scalai-catalog.XXXXXX");
	assert_non_null(mkdtemp(dir));
	start();
	assert_int_equal(0, rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err));
	for (size_t i = 0; commands[i].run != tag; i++)
		assert_int_equal(0, commands[i].run(job, commands[i].text, &err));
	assert_int_equal(0, add_data(job, "", &err));
	assert_int_equal(0, create(job, "0 b", &err));
	s = rs_service_free(s);
	start();
	want = status_of(rs_job_at(s, 0));
	for (long n = 0;; n++) {
		s = rs_service_free(s);
		arm(n);
		rc = rs_service_new(&options, &s, &err);
		armed = false;
		total += failures;
		if (rc == 0) {
			char *got;

			job = rs_job_at(s, 0);
			assert_non_null(job);
			got = status_of(job);
			expect(got, want, "start", n, &err);
			sc_sys.release(got);
			if (!failures)
				break;
			swallowed++;
		} else if (rc != SC_E_NO_MEMORY || !failures) {
			fail_msg("start, allocation %ld: %d '%s' after %ld failures", n, rc, err.msg, failures);
		}
	}
	sc_sys.release(want);
	s = rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static int say(void **unused)
{
	(void)unused;
	printf("# %ld faults, %ld of them could be done without\n", total, swallowed);
	assert_true(total > 1000);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prepared_statements),
		cmocka_unit_test(new_statements),
		cmocka_unit_test(memory_stays_away),
		cmocka_unit_test(starts),
	};

	sc_log_level(SC_LOG_ERROR);
	if (watchdog_start())
		return 1;
	return cmocka_run_group_tests_name("catalog", tests, take_memory, say);
}
