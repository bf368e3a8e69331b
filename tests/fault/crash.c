/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon dies at every point where its files change: before a call, after it, and in the middle
 * of a write. Then it starts again, and
 *   - what ranks see is the old state or the new one, entirely, byte for byte;
 *   - fsck has no complaint: every blob's size and hash, every tensor's, no file too many;
 *   - the interrupted command, given again, leads to the new state.
 *
 *     crash [--every N] [--seed S] [SCENARIO...]     a line a scenario; --every N: each N-th point
 *     crash prepare|perform|check SCENARIO STORE FILE   one part, for power.py: the states are kept in FILE;
 *                                                       FILE.acknowledged is made when the command has returned
 *
 * The service runs without a mount, in a child that ends by _exit(): what a SIGKILL leaves. All calls
 * that change files go through sc_sys and SQLite's table of system calls; both are counted.
 */
#include "reshard/job/service.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "meta/base/log.h"

#define KILLED 42

static char root[100], base[128], copy[128], sample_dir[] = SAMPLE;

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	(void)printf("\n");
	(void)fflush(stdout);
	_exit(1);
}

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		die("refused: %s", err->msg);
}

/* --- points at which the daemon dies --- */

static struct sc_sys real;
static struct shared {			/* with the children: this process itself runs no service and stays small */
	long events;			/* counted by a child */
	struct seen {
		uint64_t head, tree;
		bool has_head;
	} before, after;
	bool acknowledged;		/* the command had returned: only the new state will do */
} *shared;
static long left;			/* calls until it does */
static enum { BEFORE, AFTER, TORN } how;

/* One more change of a file; true: this is the one. */
static bool is_it(void)
{
	(void)__atomic_add_fetch(&shared->events, 1, __ATOMIC_RELAXED);
	return __atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) == 0;
}

#define POINT(call)                                                                                \
	({                                                                                         \
		bool it_ = is_it();                                                                \
		if (it_ && how == BEFORE)                                                          \
			_exit(KILLED);                                                             \
		__typeof__(call) rc_ = (call);                                                     \
		if (it_)                                                                           \
			_exit(KILLED);                                                             \
		rc_;                                                                               \
	})

/* A write of which half is there. */
#define POINT_WRITE(fn, fd, p, n, at)                                                              \
	({                                                                                         \
		bool it_ = is_it();                                                                \
		if (it_ && how == BEFORE)                                                          \
			_exit(KILLED);                                                             \
		ssize_t rc_ = fn(fd, p, it_ && how == TORN ? (n) / 2 : (n), at);                   \
		if (it_)                                                                           \
			_exit(KILLED);                                                             \
		rc_;                                                                               \
	})

static int d_openat(int dir, const char *path, int flags, mode_t mode)
{
	return flags & O_CREAT ? POINT(real.openat(dir, path, flags, mode)) : real.openat(dir, path, flags, mode);
}
static ssize_t d_pwrite(int fd, const void *p, size_t n, off_t at)
{
	return POINT_WRITE(real.pwrite, fd, p, n, at);
}
static int d_ftruncate(int fd, off_t n)
{
	return POINT(real.ftruncate(fd, n));
}
static int d_fallocate(int fd, int mode, off_t at, off_t n)
{
	return POINT(real.fallocate(fd, mode, at, n));
}
static int d_fsync(int fd)
{
	return POINT(real.fsync(fd));
}
static int d_unlinkat(int dir, const char *path, int flags)
{
	return POINT(real.unlinkat(dir, path, flags));
}
static int d_linkat(int from_dir, const char *from, int dir, const char *path, int flags)
{
	return POINT(real.linkat(from_dir, from, dir, path, flags));
}
static int d_renameat(int from_dir, const char *from, int dir, const char *path, unsigned flags)
{
	return POINT(real.renameat(from_dir, from, dir, path, flags));
}
static int d_fsetxattr(int fd, const char *name, const void *value, size_t bytes, int flags)
{
	return POINT(real.fsetxattr(fd, name, value, bytes, flags));
}
static int d_fchmod(int fd, mode_t mode)
{
	return POINT(real.fchmod(fd, mode));
}
static int d_clone_range(int to, uint64_t to_at, int from, uint64_t from_at, uint64_t n)
{
	return POINT(real.clone_range(to, to_at, from, from_at, n));
}
static ssize_t d_copy_range(int from, off_t *from_at, int to, off_t *to_at, size_t n)
{
	bool it = is_it();
	ssize_t rc;

	if (it && how == BEFORE)
		_exit(KILLED);
	rc = real.copy_range(from, from_at, to, to_at, it && how == TORN ? n / 2 : n);
	if (it)
		_exit(KILLED);
	return rc;
}
static int d_ring_submit(struct io_uring *ring)
{
	return POINT(real.ring_submit(ring));
}
static void d_step(int nr, const char *name)
{
	(void)nr;
	(void)name;
	if (is_it())
		_exit(KILLED);
}

static ssize_t (*sql_pwrite)(int fd, const void *p, size_t n, off_t at);
static int (*sql_ftruncate)(int fd, off_t n);
static int (*sql_unlink)(const char *path);

static ssize_t s_pwrite(int fd, const void *p, size_t n, off_t at)
{
	return POINT_WRITE(sql_pwrite, fd, p, n, at);
}
static int s_ftruncate(int fd, off_t n)
{
	return POINT(sql_ftruncate(fd, n));
}
static int s_unlink(const char *path)
{
	return POINT(sql_unlink(path));
}

/* In a child: from now on each change of a file counts. */
static void arm(long n, int mode)
{
	sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);

	left = n;
	how = mode;
	real = sc_sys;
	sc_sys.openat = d_openat;
	sc_sys.pwrite = d_pwrite;
	sc_sys.ftruncate = d_ftruncate;
	sc_sys.fallocate = d_fallocate;
	sc_sys.fsync = d_fsync;
	sc_sys.unlinkat = d_unlinkat;
	sc_sys.linkat = d_linkat;
	sc_sys.renameat = d_renameat;
	sc_sys.fchmod = d_fchmod;
	sc_sys.fsetxattr = d_fsetxattr;
	sc_sys.clone_range = d_clone_range;
	sc_sys.copy_range = d_copy_range;
	sc_sys.ring_submit = d_ring_submit;
	sc_sys.step = d_step;
	sql_pwrite = (void *)vfs->xGetSystemCall(vfs, "pwrite64");
	sql_ftruncate = (void *)vfs->xGetSystemCall(vfs, "ftruncate");
	sql_unlink = (void *)vfs->xGetSystemCall(vfs, "unlink");
	vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)s_pwrite);
	vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)s_pwrite);
	vfs->xSetSystemCall(vfs, "ftruncate", (sqlite3_syscall_ptr)s_ftruncate);
	vfs->xSetSystemCall(vfs, "unlink", (sqlite3_syscall_ptr)s_unlink);
}

/* --- the service --- */

static struct rs_service *start(const char *store)
{
	struct rs_options o = {.store = store, .quiet_worker = true};
	struct rs_service *s = NULL;
	struct sc_err err = {0};

	must(rs_service_new(&o, &s, &err), &err);
	return s;
}

/* States are compared as a start finds them: names come in another order from what is in memory. */
static struct rs_service *start_again(struct rs_service *s, const char *store)
{
	rs_service_free(s);
	return start(store);
}

static struct rs_job *job_of(struct rs_service *s)
{
	struct rs_job *job = rs_job_by_name(s, "gpt");

	if (!job)
		die("the job is gone");
	return job;
}

static void put(struct rs_service *s, uint32_t rank, const char *path, const void *data, size_t bytes)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct sc_err err = {0};
	uint64_t blob;
	int fd;

	rs_tree_read_lock(job_of(s));
	must(rs_work_create(s, job_of(s), rank, path, &owner, &blob, &fd, &err), &err);
	rs_tree_unlock(job_of(s));
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

#define COMMAND(s, fn, text)                                                                       \
	do {                                                                                       \
		struct sc_err err_ = {0};                                                          \
		must(fn((s), job_of(s), (text), &err_), &err_);                                    \
	} while (0)

static void work(struct rs_service *s)
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
	must(rs_job_data(s, job_of(s), text, geteuid(), getegid(), 0, &err), &err);
}

/* --- what ranks see --- */

struct signature {
	XXH3_state_t *head, *tree;
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *view;		/* NULL: with the working tree */
	uint32_t rank;
	char folder[300];
};

static void add(XXH3_state_t *x, const void *p, size_t n)
{
	(void)XXH3_64bits_update(x, p, n);
}

static void add_fd(XXH3_state_t *x, int fd)
{
	char buffer[65536];
	ssize_t n;

	for (off_t at = 0; (n = pread(fd, buffer, sizeof(buffer), at)) > 0; at += n)
		add(x, buffer, (size_t)n);
	(void)close(fd);
}

static void add_view(struct signature *g, const char *path, XXH3_state_t *x)
{
	struct rs_image *im = NULL;
	struct rs_view *view = g->view;
	struct sc_err err = {0};
	unsigned char *bytes;

	if (!view)
		must(rs_view_head(g->s, g->job, &view, &err), &err);
	must(rs_view_image(g->s, view, g->rank, path, true, true, &im, &err), &err);
	bytes = malloc(im->bytes + 1);
	must(rs_image_read(im, 0, im->bytes, bytes, &err), &err);
	add(x, bytes, im->bytes);
	free(bytes);
	rs_image_unref(g->s, im);
	if (!g->view)
		rs_view_unref(g->s, view);
}

static void add_data(struct signature *g, const char *path, XXH3_state_t *x)
{
	struct rs_data_file *f = NULL;
	struct sc_err err = {0};
	unsigned char *bytes;

	must(rs_data_open(g->s, g->view, g->rank, path, &f, &err), &err);
	bytes = malloc(rs_data_bytes(f) + 1);
	must(rs_data_read(f, 0, rs_data_bytes(f), bytes, &err), &err);
	add(x, bytes, rs_data_bytes(f));
	free(bytes);
	rs_data_close(g->s, f);
}

static int on_name(void *arg, const char *name, bool is_dir)
{
	struct signature *g = arg;
	XXH3_state_t *x = g->view ? g->head : g->tree;
	struct sc_err err = {0};
	struct rs_look look;
	char path[600], before[300];
	int fd;

	(void)snprintf(path, sizeof(path), "%s%s%s", g->folder, *g->folder ? "/" : "", name);
	add(x, path, strlen(path) + 1);
	must(rs_look(g->s, g->job, g->view, g->rank, path, &look, &err), &err);
	if (is_dir) {
		(void)snprintf(before, sizeof(before), "%s", g->folder);
		(void)snprintf(g->folder, sizeof(g->folder), "%s", path);
		must(rs_list(g->s, g->job, g->view, g->rank, path, on_name, g, &err), &err);
		(void)snprintf(g->folder, sizeof(g->folder), "%s", before);
	} else if (look.kind == RS_VIEW || (look.kind == RS_BLOB && g->rank != RS_SHARED && strstr(path, ".safetensors"))) {
		add_view(g, path, x); /* the bytes of the tensors, in the canonical form, whatever holds them */
	} else if (look.kind == RS_BLOB) {
		must(meta_store_open_blob(rs_service_store(g->s), look.blob, look.bytes, &fd, &err), &err);
		add_fd(x, fd);
	} else if (look.kind == RS_DATA && g->view) {
		add_data(g, path, x);
	} else if (look.kind == RS_WORK) {
		must(rs_work_open(g->s, g->job, look.blob, O_RDONLY, &fd, &err), &err);
		add_fd(x, fd);
	}
	return 0;
}

static int on_rank(void *arg, uint32_t rank)
{
	struct signature *g = arg;
	struct sc_err err = {0};

	g->rank = rank;
	add(g->view ? g->head : g->tree, &rank, sizeof(rank));
	must(rs_list(g->s, g->job, g->view, rank, "", on_name, g, &err), &err);
	return 0;
}

static struct seen look(struct rs_service *s)
{
	struct signature g = {XXH3_createState(), XXH3_createState(), s, job_of(s), NULL, 0, ""};
	struct sc_buf text = {0};
	struct sc_err err = {0};
	struct seen seen;

	(void)XXH3_64bits_reset(g.head);
	(void)XXH3_64bits_reset(g.tree);
	must(rs_render_config(s, g.job, &text, &err), &err);
	must(rs_render_data(s, g.job, &text, &err), &err);
	must(rs_render_topology(s, g.job, &text, &err), &err);
	must(rs_render_layout(s, g.job, &text, &err), &err);
	add(g.head, text.text, text.bytes);
	sc_buf_done(&text);
	seen.has_head = rs_view_head(s, g.job, &g.view, &err) == 0;
	if (seen.has_head) {
		must(rs_ranks(s, g.job, g.view, on_rank, &g, &err), &err);
		(void)on_rank(&g, RS_SHARED);
		rs_view_unref(s, g.view);
		g.view = NULL;
	}
	must(rs_ranks(s, g.job, NULL, on_rank, &g, &err), &err);
	seen.head = XXH3_64bits_digest(g.head);
	seen.tree = XXH3_64bits_digest(g.tree);
	(void)XXH3_freeState(g.head);
	(void)XXH3_freeState(g.tree);
	return seen;
}

static void check_store(struct rs_service *s)
{
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad;

	must(rs_fsck(s, false, &bad, &report, &err), &err);
	if (bad)
		die("fsck:\n%s", report.text);
	sc_buf_done(&report);
}

/* --- scenarios: how the store was, and what is being done when the daemon dies --- */

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

static void committed(struct rs_service *s)
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

static void with_temporary(struct rs_service *s)
{
	committed(s);
	put(s, 1, "logs/a", "a", 1);
	put(s, 1, "logs/b", "b", 1);
	put(s, 1, "notes.txt", "once", 4);
	put(s, 1, "notes.tmp", "twice", 5);
}

#define IN_TREE(s, call)                                                                           \
	do {                                                                                       \
		struct sc_err err = {0};                                                           \
		rs_tree_read_lock(job_of(s));                                                      \
		must(call, &err);                                                                  \
		rs_tree_unlock(job_of(s));                                                         \
	} while (0)

/* As programs save: a temporary file takes the name of the old one. */
static void do_rename(struct rs_service *s)
{
	IN_TREE(s, rs_work_rename(s, job_of(s), 1, "notes.tmp", 1, "notes.txt", false, &err));
}

static void do_rename_away(struct rs_service *s)
{
	IN_TREE(s, rs_work_rename(s, job_of(s), 1, "notes.txt", 1, "notes.old", false, &err));
}

static void do_rename_folder(struct rs_service *s)
{
	IN_TREE(s, rs_work_rename(s, job_of(s), 1, "logs", 1, "old", false, &err));
}

static void do_unlink(struct rs_service *s)
{
	IN_TREE(s, rs_work_unlink(s, job_of(s), 1, "notes.txt", &err));
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

	rs_tree_read_lock(job);
	must(rs_work_copy_up(s, job, 0, "model.safetensors", false, &blob, &err), &err);
	must(rs_work_unlink(s, job, 1, "notes.txt", &err), &err);
	must(rs_work_mkdir(s, job, 2, "logs", &owner, &err), &err);
	rs_tree_unlock(job);
	put(s, 2, "logs/a", "a", 1);
	put(s, 2, "logs/b", "b", 1);
	rs_tree_read_lock(job);
	must(rs_work_rename(s, job, 2, "logs/b", 2, "logs/a", false, &err), &err);
	must(rs_work_unlink(s, job, 2, "logs/a", &err), &err);
	must(rs_work_rmdir(s, job, 2, "logs", &err), &err);
	rs_tree_unlock(job);
}

/* One file, written and flushed. */
static void do_fsync(struct rs_service *s)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	struct sc_err err = {0};
	uint64_t blob;
	int fd;

	must(rs_work_create(s, job_of(s), 1, "flushed", &owner, &blob, &fd, &err), &err);
	if (sc_sys.pwrite(fd, "what was flushed is there", 25, 0) != 25)
		die("write: %s", strerror(errno));
	must(rs_work_sync(s, blob, fd, false, &err), &err);
	(void)close(fd);
}

static void do_commit(struct rs_service *s)
{
	COMMAND(s, rs_job_commit, "step=2 note=again");
}

/* Before there is any version. */
static void do_first(struct rs_service *s)
{
	COMMAND(s, rs_job_topology, "tp=4");
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

static void do_discard(struct rs_service *s)
{
	struct sc_err err = {0};

	must(rs_job_discard(s, job_of(s), &err), &err);
}

static const struct scenario {
	const char *name;
	void (*before)(struct rs_service *s);
	void (*what)(struct rs_service *s);
	bool any_tree;		/* the working tree may be anything between */
	bool steps;		/* of several commands: heads between are right, too */
	bool damaged;		/* fsck complains, until it is done */
} scenarios[] = {
	{"first", make_job, do_first, false, false},
	{"import", make_job, do_import, true, false},
	{"writes", committed, do_writes, true, false},
	{"fsync", committed, do_fsync, true, false},
	{"rename", with_temporary, do_rename, false, false},
	{"rename-away", with_temporary, do_rename_away, false, false},
	{"rename-dir", with_temporary, do_rename_folder, false, false},
	{"unlink", with_temporary, do_unlink, false, false},
	{"commit", dirty, do_commit, false, false},
	{"topology", committed, do_topology, false, false},
	{"materialize", resharded, do_work, false, false},
	{"share", again, do_work, false, false},
	{"mend", damaged, do_scrub, false, false, true},
	{"collect", old_versions, do_collect, false, true},
	{"rollback", materialized, do_rollback, false, false},
	{"config", committed, do_config, false, false},
	{"data", with_data, do_data, false, false},
	{"position", with_data, do_position, false, false},
	{"discard", dirty, do_discard, false, false},
};

/* --- the driver --- */

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *fmt, ...)
{
	char text[1000];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (system(text) != 0)
		die("'%s' failed", text);
}

static void copy_file(int from_dir, int to_dir, const char *name)
{
	int from = openat(from_dir, name, O_RDONLY | O_CLOEXEC), to;
	struct stat st;

	if (from < 0 || fstat(from, &st) < 0)
		die("%s: %s", name, strerror(errno));
	to = openat(to_dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, st.st_mode & 07777);
	if (to < 0)
		die("copy of %s: %s", name, strerror(errno));
	for (off_t left_over = st.st_size; left_over > 0;) {
		ssize_t n = copy_file_range(from, NULL, to, NULL, (size_t)left_over, 0);

		if (n <= 0)
			die("copy of %s: %s", name, n ? strerror(errno) : "it became shorter");
		left_over -= n;
	}
	(void)close(from);
	(void)close(to);
}

/* The files of one folder, and of the folders in it, and no other ones.  Takes the descriptors. */
static void mirror(int from, int to)
{
	DIR *d = fdopendir(to), *e = fdopendir(from);
	struct dirent *x;

	while ((x = readdir(d)))
		if (x->d_type == DT_REG)
			(void)unlinkat(to, x->d_name, 0);
	while ((x = readdir(e))) {
		if (x->d_type == DT_REG) {
			copy_file(from, to, x->d_name);
		} else if (*x->d_name != '.') {
			(void)mkdirat(to, x->d_name, 0700);
			mirror(openat(from, x->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
			       openat(to, x->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		}
	}
	(void)closedir(d);
	(void)closedir(e);
}

static void fresh_copy(void)
{
	(void)mkdir(copy, 0700);
	mirror(open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/* Runs the scenario on the copy in a child that dies at point n; false: it came to its end. */
static bool kill_at(const struct scenario *x, long n, int mode, bool nested)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct rs_service *s;

		if (nested)
			arm(n, mode); /* also while it starts */
		s = start(copy);
		if (!nested)
			arm(n, mode);
		if (!nested)
			x->what(s);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) ||
	    (WEXITSTATUS(status) != KILLED && WEXITSTATUS(status) != 0))
		die("%s: point %ld: the daemon ended with %x", x->name, n, status);
	return WEXITSTATUS(status) == KILLED;
}

static bool same(const struct seen *a, const struct seen *b, bool any_tree)
{
	return a->head == b->head && (any_tree || a->tree == b->tree);
}

/* In a child of its own; its messages are the driver's. */
#define IN_CHILD(call)                                                                             \
	do {                                                                                       \
		pid_t pid_;                                                                        \
		int status_;                                                                       \
		(void)fflush(stdout);                                                              \
		pid_ = fork();                                                                     \
		if (pid_ == 0) {                                                                   \
			call;                                                                      \
			(void)fflush(stdout);                                                      \
			_exit(0);                                                                  \
		}                                                                                  \
		if (pid_ < 0 || waitpid(pid_, &status_, 0) < 0 || status_ != 0)                    \
			die("%s: a check failed", x->name);                                        \
	} while (0)

static void check_copy(const struct scenario *x, long n, int mode)
{
	static const char *const modes[] = {"before", "after", "torn"};
	struct rs_service *s = start(copy);
	struct seen seen = look(s);
	bool is_old = same(&seen, &shared->before, x->any_tree), is_new = same(&seen, &shared->after, x->any_tree);

	if (shared->acknowledged && !same(&seen, &shared->after, false))
		die("%s: acknowledged, and lost", x->name);
	if (!is_old && !is_new && !x->steps)
		die("%s: killed %s point %ld: neither the old state nor the new one", x->name, modes[mode], n);
	if (!x->damaged)
		check_store(s);
	/* the working tree may have come half way: what is done again begins with it */
	if (!x->any_tree && (!is_new || x->damaged)) {
		x->what(s);
		s = start_again(s, copy);
		seen = look(s);
		if (!same(&seen, &shared->after, false))
			die("%s: killed %s point %ld, then done again: not the new state", x->name, modes[mode], n);
		check_store(s);
	}
	rs_service_free(s);
}

static void prepare(const struct scenario *x)
{
	struct rs_service *s = start(base);

	x->before(s);
	rs_service_free(s);
	fresh_copy();
	s = start(copy);
	shared->before = look(s);
	x->what(s);
	s = start_again(s, copy);
	shared->after = look(s);
	check_store(s);
	rs_service_free(s);
}

static long run(const struct scenario *x, long every, unsigned *seed)
{
	long kills = 0, points;

	shell("rm -rf %s %s && mkdir -p %s", base, copy, base);
	IN_CHILD(prepare(x));
	fresh_copy();
	shared->events = 0;
	(void)kill_at(x, -1, BEFORE, false);
	points = shared->events;
	for (int mode = BEFORE; mode <= TORN; mode++)
		for (long n = every > 1 ? (long)(rand_r(seed) % (unsigned)every) : 0; n < points; n += every) {
			fresh_copy();
			if (!kill_at(x, n, mode, false))
				continue; /* threads: this time it had fewer */
			kills++;
			/* and once more, while it starts again: at each call in turn, until that is not reached */
			if (kills % 8 == 0)
				for (long k = 0; kill_at(x, k, mode, true); k += 1 + rand_r(seed) % 3)
					kills++;
			IN_CHILD(check_copy(x, n, mode));
		}
	(void)printf("ok      %-12s %4ld points, %5ld kills, 0 bad states\n", x->name, points, kills);
	(void)fflush(stdout);
	return kills;
}

/* `prepare` makes the store as it is before, `perform` does it, `check` is after the power came back. */
static int part(const char *what, const char *name, const char *store, const char *file)
{
	const struct scenario *x = NULL;
	struct rs_service *s;
	char path[300];
	FILE *f;

	for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++)
		if (strcmp(scenarios[i].name, name) == 0)
			x = &scenarios[i];
	if (!x)
		die("no scenario '%s'", name);
	(void)snprintf(copy, sizeof(copy), "%s", store);
	(void)snprintf(root, sizeof(root), "%.*s", (int)(strrchr(file, '/') - file), file);
	(void)snprintf(path, sizeof(path), "%s.acknowledged", file);
	if (strcmp(what, "prepare") != 0) {
		f = fopen(file, "r");
		if (!f || fread(shared, sizeof(*shared), 1, f) != 1)
			die("cannot read %s", file);
		(void)fclose(f);
	}
	if (strcmp(what, "check") == 0) {
		shared->acknowledged = access(path, F_OK) == 0;
		check_copy(x, 0, AFTER);
		return 0;
	}
	s = start(store);
	if (strcmp(what, "prepare") == 0) {
		x->before(s);
		shared->before = look(s);
	} else {
		x->what(s);
		f = fopen(path, "w");
		if (!f || fclose(f) != 0)
			die("cannot make %s", path);
		s = start_again(s, store);
		shared->after = look(s);
	}
	rs_service_free(s);
	f = fopen(file, "w");
	if (!f || fwrite(shared, sizeof(*shared), 1, f) != 1 || fclose(f) != 0)
		die("cannot write %s", file);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned seed = 1;
	long every = 1, kills = 0;
	int first = 1;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sc_log_level(SC_LOG_ERROR);
	if (argc == 5 && (strcmp(argv[1], "prepare") == 0 || strcmp(argv[1], "perform") == 0 || strcmp(argv[1], "check") == 0))
		return part(argv[1], argv[2], argv[3], argv[4]);
	while (first + 1 < argc && argv[first][0] == '-') {
		if (strcmp(argv[first], "--every") == 0)
			every = atol(argv[first + 1]);
		else if (strcmp(argv[first], "--seed") == 0)
			seed = (unsigned)atol(argv[first + 1]);
		first += 2;
	}
	(void)snprintf(root, sizeof(root), "%s/scalai-crash.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(root))
		die("mkdtemp: %s", strerror(errno));
	(void)snprintf(base, sizeof(base), "%s/base", root);
	(void)snprintf(copy, sizeof(copy), "%s/copy", root);
	shell("seq 20 > %s/lines.txt", root);
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++) {
		bool wanted = first >= argc;

		for (int k = first; k < argc; k++)
			wanted |= strcmp(argv[k], scenarios[i].name) == 0;
		if (wanted)
			kills += run(&scenarios[i], every, &seed);
	}
	(void)printf("%ld kills, 0 bad states (every %ld, seed given by --seed)\n", kills, every);
	shell("rm -rf %s", root);
	return kills ? 0 : 1;
}
