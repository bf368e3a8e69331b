/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/commands.h"

#include "reshard/repair/repair.h"
#include "tests/support/paths.h"
#include "tests/support/sample.h"

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

char dir[64];
struct rs_service *service;

/* --- what a job is --- */

static const char *const rows[] = {
	"SELECT 'job', j.uid, j.gid, j.mode, (SELECT nr FROM version WHERE id = j.head), (SELECT source FROM layout WHERE "
	"id = j.layout), j.topology FROM job j WHERE j.id = ?",
	"SELECT 'config', key, value FROM config WHERE job = ? ORDER BY key",
	"SELECT 'version', v.nr, (SELECT nr FROM version WHERE id = v.parent), v.step, v.note, v.made_by, v.topology, "
	"v.samples, v.tag, v.request, (SELECT source FROM layout WHERE id = v.layout) FROM version v WHERE v.job = ? "
	"ORDER BY v.nr",
	"SELECT 'set', v.nr, s.file, s.topology, s.format, s.tensors, s.payload, s.verified, s.report, s.layers, s.experts, "
	"s.given_topology, s.given_layers, s.given_experts FROM version v JOIN version_set ON version = v.id JOIN blob_set s "
	"ON s.id = blob_set WHERE v.job = ? ORDER BY v.nr, s.file, s.id",
	"SELECT 'file', v.nr, s.file, f.rank, path.text, f.mode, f.uid, f.gid, b.bytes, hex(b.hash), b.damaged FROM "
	"version v JOIN version_set ON version = v.id JOIN blob_set s ON s.id = version_set.blob_set JOIN set_blob f ON "
	"f.blob_set = s.id JOIN path ON path.id = f.path LEFT JOIN blob b ON b.id = f.blob WHERE v.job = ? ORDER BY v.nr, "
	"s.file, f.rank, path.text",
	/* numbers of ranks' folders count from the root's; another one's is not told, but by the names in it */
	"SELECT 'folder', i.mode, i.uid, i.gid, i.nlink, iif(i.ino - j.root BETWEEN 0 AND 1048576, i.ino - j.root, 'other'), "
	"(SELECT count(*) FROM entry e WHERE e.parent = i.ino), (SELECT group_concat(CAST(name AS TEXT)) FROM (SELECT name FROM "
	"entry e WHERE e.parent = i.ino ORDER BY name)) FROM job j JOIN inode i ON i.job = j.id WHERE j.id = ? AND "
	"i.mode / 4096 = 4 AND i.nlink > 0 ORDER BY 6, 2, 7, 8",
	"SELECT 'name', iif(p.ino - j.root BETWEEN 0 AND 1048576, p.ino - j.root, 'other'), CAST(e.name AS TEXT), e.ino = 0, "
	"i.mode, i.uid, i.gid, i.nlink, i.rdev, i.data, hex(i.target), i.ino IS NULL, b.bytes FROM job j JOIN inode p ON "
	"p.job = j.id JOIN entry e ON e.parent = p.ino LEFT JOIN inode i ON i.ino = e.ino LEFT JOIN blob b ON b.id = i.blob "
	"WHERE j.id = ? AND p.nlink > 0 ORDER BY 2, 3, 5, 12",
	"SELECT 'xattr', CAST(x.name AS TEXT), hex(x.value) FROM inode i JOIN xattr x ON x.ino = i.ino WHERE i.job = ? AND "
	"i.nlink > 0 ORDER BY 2, 3",
	"SELECT 'tree', v.nr, v.tree IS NULL, CAST(e.name AS TEXT), e.ino = 0, i.mode, i.uid, i.gid, i.nlink, hex(i.target), "
	"i.ino IS NULL, b.bytes FROM version v LEFT JOIN tree_entry e ON e.tree = v.tree LEFT JOIN tree_inode i ON i.tree = "
	"v.tree AND i.ino = e.ino LEFT JOIN blob b ON b.id = i.blob WHERE v.job = ? ORDER BY v.nr, 4, 6, 11, 12",
	"SELECT 'tree xattr', v.nr, CAST(x.name AS TEXT), hex(x.value) FROM version v JOIN tree_xattr x ON x.tree = v.tree "
	"WHERE v.job = ? ORDER BY v.nr, 3, 4",
	"SELECT 'data', v.nr, d.name, d.spec, d.form, d.uid, d.gid, x.from_epoch, x.from_samples, f.nr, f.path, f.bytes, "
	"f.mtime_ns, hex(f.ends), f.samples, f.sequences, f.blob IS NULL, f.borders IS NULL FROM version v JOIN version_data "
	"x ON x.version = v.id JOIN dataset d ON d.id = x.dataset JOIN data_source f ON f.dataset = d.id WHERE v.job = ? "
	"ORDER BY v.nr, d.name, f.nr",
};

/* The rows of a job, as another program sees them: none of them has a number that another job's would not have. */
char *rows_of(uint64_t job)
{
	struct sc_buf buf = {0};
	struct sc_err err = {0};
	char path[100];
	sqlite3 *db;

	if (rs_tree_flush(service, &err) < 0) /* what was changed comes to the catalog later */
		fail_msg("%s", err.msg);
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

char *status_of(struct rs_job *job)
{
	struct sc_buf buf = {0};
	struct sc_err err = {0};

	assert_int_equal(0, rs_render_topology(service, job, &buf, &err));
	assert_int_equal(0, rs_render_config(service, job, &buf, &err));
	assert_int_equal(0, rs_render_data(service, job, &buf, &err));
	if (rs_render_status(service, job, &buf, &err) < 0)
		sc_buf_printf(&buf, "%s", err.msg);
	return buf.text;
}

/* --- commands, in their order --- */

static int layout(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_layout(RS_CALLER(service), job, text, err);
}

static int topology(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_topology(RS_CALLER(service), job, text, err);
}

static int config(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_config(RS_CALLER(service), job, text, err);
}

static int commit(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_commit(RS_CALLER(service), job, text, err);
}

int do_tag(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_tag(RS_CALLER(service), job, text, err);
}

static int roll_back(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_rollback(RS_CALLER(service), job, text, err);
}

static int discard(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_discard(service, job, err);
}

int do_add_data(struct rs_job *job, const char *text, struct sc_err *err)
{
	char lines[2000];

	(void)text;
	(void)snprintf(lines, sizeof(lines), "add name=r path=" SAMPLE "/0/" MODEL " format=records record=8 global_batch=8\n"
		       "add name=l path=" SAMPLE "/job.json format=lines global_batch=8 copy=yes\n");
	return rs_job_data(&(struct rs_caller){service, geteuid(), getegid()}, job, lines, err);
}

static int data(struct rs_job *job, const char *text, struct sc_err *err)
{
	return rs_job_data(&(struct rs_caller){service, geteuid(), getegid()}, job, text, err);
}

/* "RANK PATH", with the bytes of the sample's model of this rank */
int do_create(struct rs_job *job, const char *text, struct sc_err *err)
{
	char from[] = "?/" MODEL;

	*from = *text;
	return create_from_sample(service, job, from, (uint32_t)atoi(text), text + 2, 0640, err);
}

static int copy_up(struct rs_job *job, const char *text, struct sc_err *err)
{
	uint64_t blob;

	return work_copy_up(service, job, 0, text, false, &blob, err);
}

static int make_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0750};

	return work_mkdir(service, job, 0, text, &owner, err);
}

static int make_rank(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_make_rank(service, job, (uint32_t)atoi(text), err);
}

static int make_symlink(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_symlink(service, job, "notes/a", 0, text, err);
}

static int make_link(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_link(service, job, 0, "notes/a", 0, text, err);
}

static int set_xattr(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_set_xattr(service, job, 0, text, "user.by", "a test", err);
}

static int change_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_owner owner = {geteuid(), getegid(), 0700};

	return work_chattr(service, job, 0, text, &owner, 1000000000, err);
}

static int move(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_rename(service, job, 0, text, 0, "moved", false, err);
}

static int unlink_file(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_unlink(service, job, 0, text, err);
}

static int remove_dir(struct rs_job *job, const char *text, struct sc_err *err)
{
	return work_rmdir(service, job, 0, text, err);
}

static int verify(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_verify(service, job, err);
}

static int change_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_chattr(service, job, 0750, 5, 6, err);
}

static int rename_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	char name[40];

	(void)snprintf(name, sizeof(name), "%s%" PRIu64, text, rs_job_id(job));
	return rs_job_rename(service, job, name, err);
}

static int clone_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	char name[40];
	int rc;

	(void)snprintf(name, sizeof(name), "%s%" PRIu64, text, rs_job_id(job));
	rc = rs_job_clone(&(struct rs_caller){service, geteuid(), getegid()}, job, name, err);
	assert_true((rc == 0) == (rs_job_by_name(service, name) != NULL));
	return rc;
}

static int remove_job(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)text;
	return rs_job_remove(service, job, err);
}

/* In the background, for all jobs: what it has done when something fails, it has done. */
int do_work(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)job;
	(void)text;
	return rs_service_work(service, err);
}

int do_scrub(struct rs_job *job, const char *text, struct sc_err *err)
{
	(void)job;
	(void)text;
	return rs_service_scrub(service, INT64_MAX, err);
}

const struct command commands[] = {
	{"layout", layout, GPT},
	{"topology", topology, "tp=2 pp=2"},
	{"config", config, "buffer_mib=2 keep=9 sync=off"},
	{"mkdir", make_rank, "0"},
	{"mkdir", make_rank, "1"},
	{"mkdir", make_rank, "2"},
	{"mkdir", make_rank, "3"},
	{"create", do_create, "0 " MODEL},
	{"create", do_create, "1 " MODEL},
	{"create", do_create, "2 " MODEL},
	{"create", do_create, "3 " MODEL},
	{"mkdir", make_dir, "notes"},
	{"chmod", change_dir, "notes"},
	{"create", do_create, "0 notes/a"},
	{"symlink", make_symlink, "latest"},
	{"link", make_link, "notes/b"},
	{"setxattr", set_xattr, "notes/a"},
	{"commit", commit, "step=1 samples=8 note=the first one"},
	{"work", do_work, ""},
	{"copy up", copy_up, "notes/a"},
	{"setxattr", set_xattr, "notes"},
	{"link", make_link, "linked"},
	{"rename", move, "notes/a"},
	{"unlink", unlink_file, "notes/b"},
	{"rmdir", remove_dir, "notes"},
	{"commit", commit, "step=2 note=another one, which was made after the first"},
	{"tag", do_tag, "tag 2 best"},
	{"work", do_work, ""},
	{"topology", topology, "tp=4 dp=2"},
	{"work", do_work, ""},
	{"data", do_add_data, ""},
	{"commit", commit, "samples=8"},
	{"data", data, "remove name=l\nrefresh name=r"},
	{"layout", layout, "use megatron-gpt vocab=301 tied=embedding.word_embeddings.weight"},
	{"create", do_create, "0 b"},
	{"unlink", unlink_file, "b"},
	{"unlink", unlink_file, MODEL},
	{"discard", discard, ""},
	{"tag", do_tag, "untag 2"},
	{"rollback", roll_back, "1"},
	{"work", do_work, ""},
	{"verify", verify, ""},
	{"scrub", do_scrub, ""},
	{"chmod", change_job, ""},
	{"rename", rename_job, "other"},
	{"clone", clone_job, "clone"},
	{"work", do_work, ""},
	{"config", config, "keep=2 remove=yes"},
	{"topology", topology, "tp=1"},
	{"work", do_work, ""},
	{"remove", remove_job, ""},
	{"work", do_work, ""},
	{0},
};

void expect_text(const char *got, const char *want, const char *what, long n, const struct sc_err *err)
{
	if (strcmp(got, want) == 0)
		return;
	(void)fprintf(stderr, "%s, failure %ld (%s): expected\n%s\nfound\n%s\n", what, n, err->msg, want, got);
	fail();
}

void start_service(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err = {0};

	assert_int_equal(0, rs_service_new(&options, &service, &err));
}

void restart_service(struct rs_job **job, struct rs_job **reference)
{
	uint64_t id = rs_job_id(*job), other = rs_job_id(*reference);

	service = rs_service_free(service);
	start_service();
	*job = rs_job_by_id(service, id);
	*reference = rs_job_by_id(service, other);
}

void check_store(void)
{
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad = 1;

	if (rs_fsck(service, false, &bad, &report, &err) < 0 || bad)
		fail_msg("fsck: %s %s", report.text, err.msg);
	sc_buf_done(&report);
}
