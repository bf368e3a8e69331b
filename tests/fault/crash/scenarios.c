/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/crash/crash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/paths.h"

static char sample_dir[] = SAMPLE;

struct rs_service *start(const char *store)
{
	struct rs_options o = {.store = store, .quiet_worker = true};
	struct rs_service *s = NULL;
	struct sc_err err = {0};

	must(rs_service_new(&o, &s, &err), &err);
	return s;
}

/* States are compared as a start finds them: names come in another order from what is in memory. */
struct rs_service *start_again(struct rs_service *s, const char *store)
{
	rs_service_free(s);
	return start(store);
}

struct rs_job *job_of(struct rs_service *s)
{
	struct rs_job *job = rs_job_by_name(s, "gpt");

	if (!job)
		die("the job is gone");
	return job;
}

void put(struct rs_service *s, uint32_t rank, const char *path, const void *data, size_t bytes)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct sc_err err = {0};
	uint64_t blob;
	int fd;

	rs_tree_enter(job_of(s));
	must(work_create(s, job_of(s), rank, path, &owner, &blob, &fd, &err), &err);
	rs_tree_leave(job_of(s));
	if (sc_sys.pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
		die("write: %s", strerror(errno));
	(void)close(fd);
}

static void put_sample(struct rs_service *s, uint32_t rank, const char *name)
{
	static char buffer[1 << 20];
	char path[400];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%u/%s", sample_dir, rank, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, buffer, sizeof(buffer));
	if (n <= 0)
		die("%s: %s", path, strerror(errno));
	(void)close(fd);
	put(s, rank, name, buffer, (size_t)n);
}

void work(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_service_work(s, &err), &err);
}

static void data(struct rs_service *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void data(struct rs_service *s, const char *fmt, ...)
{
	struct sc_err err = {0};
	char text[600];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	must(rs_job_data(&(struct rs_caller){s, geteuid(), getegid()}, job_of(s), text, &err), &err);
}

/* --- how the store was, and what is being done --- */

static void make_job(struct rs_service *s)
{
	struct rs_job *job;
	struct sc_err err = {0};

	must(rs_job_make(s, "gpt", 0755, geteuid(), getegid(), &job, &err), &err);
	COMMAND(s, rs_job_layout, "use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight");
	COMMAND(s, rs_job_topology, "tp=2 pp=2");
	COMMAND(s, rs_job_config, getenv("CRASH_CONFIG") ? getenv("CRASH_CONFIG") : "sync=on");
}

static void write_ranks(struct rs_service *s)
{
	for (uint32_t r = 0; r < 4; r++) {
		put_sample(s, r, "model.safetensors");
		put(s, r, "notes.txt", "the same on all ranks", 21);
	}
	put(s, RS_SHARED, "job.json", "{}", 2);
}

void committed(struct rs_service *s)
{
	make_job(s);
	write_ranks(s);
	COMMAND(s, rs_job_commit, "step=1");
	work(s);
}

static void resharded(struct rs_service *s)
{
	committed(s);
	COMMAND(s, rs_job_topology, "tp=4 dp=2");
}

static void materialized(struct rs_service *s)
{
	resharded(s);
	work(s);
}

static void with_data(struct rs_service *s)
{
	committed(s);
	data(s, "add name=notes path=%s/lines.txt global_batch=4 format=lines", root);
}

static void dirty(struct rs_service *s)
{
	committed(s);
	write_ranks(s);
}

/* The same files once more. */
static void again(struct rs_service *s)
{
	dirty(s);
	COMMAND(s, rs_job_commit, "step=2");
}

/* A flipped bit in a file, and another one has the same bytes. */
static void damaged(struct rs_service *s)
{
	struct sc_err err = {0};
	struct rs_look look;
	char byte;
	int fd;

	committed(s);
	put(s, 1, "copy.txt", "the same on all ranks", 21);
	COMMAND(s, rs_job_commit, "step=2");
	work(s);
	must(rs_look(s, job_of(s), NULL, 1, "notes.txt", &look, &err), &err);
	must(meta_store_open_work(rs_service_store(s), look.blob, O_RDWR, &fd, &err), &err);
	if (pread(fd, &byte, 1, 7) != 1 || (byte ^= 4, pwrite(fd, &byte, 1, 7) != 1))
		die("cannot damage a blob: %s", strerror(errno));
	(void)close(fd);
}

static void old_versions(struct rs_service *s)
{
	materialized(s);
	COMMAND(s, rs_job_topology, "tp=1 pp=2");
	work(s);
	COMMAND(s, rs_job_topology, "tp=2 pp=1");
}

/* A version that nobody has verified yet, and the one before it, which keep= drops after that. */
static void unverified(struct rs_service *s)
{
	dirty(s);
	COMMAND(s, rs_job_config, "keep=1");
	COMMAND(s, rs_job_commit, "step=2");
}

static void with_temporary(struct rs_service *s)
{
	committed(s);
	put(s, 1, "logs/a", "a", 1);
	put(s, 1, "logs/b", "b", 1);
	put(s, 1, "notes.txt", "once", 4);
	put(s, 1, "notes.tmp", "twice", 5);
}

void flush_tree(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_tree_flush(s, &err), &err);
}

/* As programs save: a temporary file takes the name of the old one. */
static void do_rename(struct rs_service *s)
{
	IN_TREE(s, work_rename(s, job_of(s), 1, "notes.tmp", 1, "notes.txt", false, &err));
	flush_tree(s);
}

static void do_rename_away(struct rs_service *s)
{
	IN_TREE(s, work_rename(s, job_of(s), 1, "notes.txt", 1, "notes.old", false, &err));
	flush_tree(s);
}

static void do_rename_folder(struct rs_service *s)
{
	IN_TREE(s, work_rename(s, job_of(s), 1, "logs", 1, "old", false, &err));
	flush_tree(s);
}

static void do_unlink(struct rs_service *s)
{
	IN_TREE(s, work_unlink(s, job_of(s), 1, "notes.txt", &err));
	flush_tree(s);
}

/* The copy of a committed file that is opened for writing. */
static void do_copy_up(struct rs_service *s)
{
	uint64_t blob;

	IN_TREE(s, work_copy_up(s, job_of(s), 0, "model.safetensors", false, &blob, &err));
}

static void do_import(struct rs_service *s)
{
	write_ranks(s);
	COMMAND(s, rs_job_commit, "step=1");
}

static void do_writes(struct rs_service *s)
{
	struct rs_job *job = job_of(s);
	struct rs_owner owner = {geteuid(), getegid(), 0755};
	struct sc_err err = {0};
	uint64_t blob;

	rs_tree_enter(job);
	must(work_copy_up(s, job, 0, "model.safetensors", false, &blob, &err), &err);
	must(work_unlink(s, job, 1, "notes.txt", &err), &err);
	must(work_mkdir(s, job, 2, "logs", &owner, &err), &err);
	rs_tree_leave(job);
	put(s, 2, "logs/a", "a", 1);
	put(s, 2, "logs/b", "b", 1);
	rs_tree_enter(job);
	must(work_rename(s, job, 2, "logs/b", 2, "logs/a", false, &err), &err);
	must(work_unlink(s, job, 2, "logs/a", &err), &err);
	must(work_rmdir(s, job, 2, "logs", &err), &err);
	rs_tree_leave(job);
}

/* One file, written and flushed. */
static void do_fsync(struct rs_service *s)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct sc_err err = {0};
	uint64_t blob;
	int fd;

	must(work_create(s, job_of(s), 1, "flushed", &owner, &blob, &fd, &err), &err);
	if (sc_sys.pwrite(fd, "what was flushed is there", 25, 0) != 25)
		die("write: %s", strerror(errno));
	must(rs_work_sync(s, blob, fd, false, &err), &err);
	(void)close(fd);
}

void do_commit(struct rs_service *s)
{
	COMMAND(s, rs_job_commit, "step=2 note=again");
}

/* Before there is any version. */
static void do_first(struct rs_service *s)
{
	COMMAND(s, rs_job_topology, "tp=4");
}

static void with_ranks(struct rs_service *s)
{
	make_job(s);
	write_ranks(s);
}

/* Two ranks are no more, but have files. */
static void do_fewer(struct rs_service *s)
{
	COMMAND(s, rs_job_topology, "tp=2");
}

static void do_topology(struct rs_service *s)
{
	COMMAND(s, rs_job_topology, "tp=4 dp=2");
}

static void do_work(struct rs_service *s)
{
	work(s);
}

static void do_scrub(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_service_scrub(s, INT64_MAX, &err), &err);
}

static void do_collect(struct rs_service *s)
{
	COMMAND(s, rs_job_config, "keep=1");
	COMMAND(s, rs_job_topology, "tp=4 pp=1");
	work(s);
}

static void do_rollback(struct rs_service *s)
{
	COMMAND(s, rs_job_rollback, "1");
}

static void do_clone(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_job_clone(&(struct rs_caller){s, geteuid(), getegid()}, job_of(s), "clone", &err), &err);
}

static void cloned(struct rs_service *s)
{
	materialized(s);
	do_clone(s);
}

/* The work that follows removes what only the clone has had: nothing. */
static void do_delete(struct rs_service *s)
{
	struct rs_job *clone = rs_job_by_name(s, "clone");
	struct sc_err err = {0};

	must(rs_job_config(RS_CALLER(s), clone, "remove=yes", &err), &err);
	must(rs_job_remove(s, clone, &err), &err);
	work(s);
}

static void do_config(struct rs_service *s)
{
	COMMAND(s, rs_job_config, "keep=7 materialize=lazy sync=off verify=commit");
}

static void do_data(struct rs_service *s)
{
	data(s, "remove name=notes\nadd name=other path=%s/lines.txt global_batch=2 seed=3 format=lines copy=yes", root);
}

static void do_position(struct rs_service *s)
{
	COMMAND(s, rs_job_commit, "samples=8");
}

void do_discard(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_job_discard(s, job_of(s), &err), &err);
}

const struct scenario scenarios[] = {
	{"first", make_job, do_first, false, false},
	{"first-fewer", with_ranks, do_fewer, false, false},
	{"import", make_job, do_import, true, false},
	{"writes", committed, do_writes, true, false},
	{"fsync", committed, do_fsync, true, false},
	{"rename", with_temporary, do_rename, false, false},
	{"rename-away", with_temporary, do_rename_away, false, false},
	{"rename-dir", with_temporary, do_rename_folder, false, false},
	{"unlink", with_temporary, do_unlink, false, false},
	{"copy-up", committed, do_copy_up, false, false},
	{"commit", dirty, do_commit, false, false},
	{"topology", committed, do_topology, false, false},
	{"materialize", resharded, do_work, false, false},
	{"share", again, do_work, false, false},
	{"mend", damaged, do_scrub, false, false, true},
	{"collect", old_versions, do_collect, false, true},
	{"outgrown", unverified, do_work, false, false},
	{"rollback", materialized, do_rollback, false, false},
	{"clone", materialized, do_clone, false, false},
	{"delete", cloned, do_delete, false, true},
	{"config", committed, do_config, false, false},
	{"data", with_data, do_data, false, false},
	{"position", with_data, do_position, false, false},
	{"discard", dirty, do_discard, false, false},
	{"mkdir", with_tree, do_mkdir, false, false},
	{"rename-tree", with_tree, do_rename_committed, false, false},
	{"link", with_tree, do_link, false, false},
	{"symlink", with_tree, do_symlink, false, false},
	{"setxattr", with_tree, do_setxattr, false, false},
	{"rmdir", with_tree, do_rmdir, false, false},
	{"rmtree", with_tree, do_rmtree, true, false},
	{"commit-tree", with_dirty_tree, do_commit, false, false},
	{"discard-tree", with_dirty_tree, do_discard, false, false},
	{"exchange", with_tree, do_exchange, false, false},
	{"commit-links", with_turned_links, do_commit, false, false},
	{"commit-brought", with_moved_brought, do_commit, false, false},
	{"commit-kinds", with_both_kinds, do_commit, false, false},
	{"rollback-tree", with_other_tree, do_rollback_tree, false, false},
	{"discard-held", with_tree, do_discard_held, true, false},
	{"commit-log", with_log, do_commit_log, false, false},
	{"again-log", with_kept_log, do_commit_log, false, false},
	{"topology-log", with_kept_log, do_topology, false, false},
	{"rollback-log", with_kept_log, do_rollback_log, false, false},
	{"discard-log", with_kept_log, do_discard_log, true, false},
};

const size_t scenarios_nr = sizeof(scenarios) / sizeof(*scenarios);
