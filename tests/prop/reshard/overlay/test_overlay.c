/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random requests on an overlay and the same on a real folder: each errno, whole trees, link counts, which names are one
 * inode, attributes, whether times move; across commits, rollbacks, kills and restarts, with folders and files held.
 * The whole stack below a mount takes part: records, log, catalog, trees.
 *
 *     test_overlay [OPERATIONS [SEED]]
 */
#include "tests/prop/reshard/overlay/overlay.h"
#include "tests/support/every.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#define HELD_MAX 8
#define NOBODY 65534

static unsigned long operations, seed = 1;

struct held {
	int fd;			/* O_PATH; of folders O_RDONLY */
	uint64_t ino;
	bool is_dir;
};

struct run {
	struct bed bed;
	uint64_t random;
	struct held held[HELD_MAX];
	unsigned nr_held;
	bool was_refused;	/* the last request */
	unsigned long refused, commits, backs, kills, trees, parted;
};

static unsigned pick(struct run *r, unsigned below)
{
	r->random = r->random * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(r->random >> 33) % below;
}

static const char *const names[] = {"a", "b", "c", "d", "model.safetensors"};

static struct meta_bytes bytes(const char *text)
{
	return (struct meta_bytes){text, strlen(text)};
}

/* A folder of both sides, and a name in it. */
struct where {
	int fd;
	uint64_t ino;
	const char *name;
	bool close;
};

static void leave(struct where *w)
{
	if (w->close)
		(void)close(w->fd);
}

/* Walks down: from a held folder, the job's, or a rank's. */
static struct where find(struct run *r)
{
	struct where w = {.name = names[pick(r, 5)]};
	const struct held *h = r->nr_held ? &r->held[pick(r, r->nr_held)] : NULL;
	unsigned from = pick(r, 10);
	char rank[2] = {(char)('0' + pick(r, RANKS)), 0};
	struct sc_err err;

	if (h && h->is_dir && from < 4) {
		w.fd = h->fd;
		w.ino = h->ino;
	} else {
		char path[100];

		(void)snprintf(path, sizeof(path), "%s/%s", r->bed.real, from < 5 ? "." : rank);
		w.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(w.fd >= 0);
		w.ino = from < 5 ? ROOT : ROOT + 1 + (uint64_t)(rank[0] - '0');
		w.close = true;
	}
	for (unsigned depth = pick(r, 4); depth > 1; depth--) {
		const char *name = names[pick(r, 4)];
		int fd = openat(w.fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		uint64_t ino;

		if (fd < 0)
			break;
		if (rs_overlay_child(r->bed.overlay, w.ino, bytes(name), &ino, &err) < 0 || !ino)
			fail_msg("the overlay has no '%s'", name);
		leave(&w);
		w.fd = fd;
		w.ino = ino;
		w.close = true;
	}
	if (pick(r, 40) == 0 && w.ino == ROOT)
		w.name = pick(r, 2) ? "0" : "2";
	return w;
}

/* --- both sides say the same --- */

static void same(struct run *r, const char *what, int real_rc, int rc, const struct sc_err *err)
{
	int want = real_rc < 0 ? errno : 0, got = rc < 0 ? err->errnum : 0;

	r->was_refused = want != 0;
	r->refused += r->was_refused;
	if (want != got)
		fail_msg("%s: %s, the overlay says %s (%s)", what, want ? strerrorname_np(want) : "done",
			 got ? strerrorname_np(got) : "done", got ? err->msg : "");
}

/* Names of ranks are the mount's business: a real folder knows no EBUSY and no EXDEV. */
static bool is_rank_name(const struct where *w)
{
	return w->ino == ROOT && w->name[0] <= '9';
}

struct times {
	int64_t real[2], ours[2];
};

static struct times times_of(struct run *r, const struct where *w)
{
	char texts_in[512] SC_SCRATCH;
	struct sc_arena texts = SC_ARENA_IN(texts_in);
	struct meta_inode_row row;
	struct sc_err err;
	struct stat st;

	assert_int_equal(0, fstat(w->fd, &st));
	assert_int_equal(1, rs_overlay_inode(r->bed.overlay, w->ino, &texts, &row, &err));
	return (struct times){{st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
			       st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec},
			      {row.mtime_ns, row.ctime_ns}};
}

static void check_times(struct run *r, const char *what, const struct where *w, const struct times *before)
{
	struct times now = times_of(r, w);

	/* two changes within a tick of the kernel's clock may leave the real time as it was */
	for (int i = 0; i < 2; i++)
		if (r->was_refused ? now.ours[i] != before->ours[i]
				   : now.real[i] != before->real[i] && now.ours[i] == before->ours[i])
			fail_msg("%s: %s of the folder %s", what, i ? "ctime" : "mtime",
				 r->was_refused ? "changes" : "stays");
}

/* --- requests --- */

static void make(struct run *r)
{
	static const mode_t types[] = {S_IFREG, S_IFREG, S_IFREG, S_IFDIR, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR};
	struct where w = find(r);
	struct times before = times_of(r, &w);
	struct meta_inode_row what = {.mode = types[pick(r, 9)] | (pick(r, 2) ? 0644 : 02755)};
	const char *target = pick(r, 2) ? "a/b" : "../c";
	struct sc_err err;
	int rc, real;

	if (S_ISDIR(what.mode)) {
		what.mode &= ~(mode_t)S_ISGID;
		real = mkdirat(w.fd, w.name, what.mode & 07777);
	} else if (S_ISLNK(what.mode)) {
		what.mode = S_IFLNK | 0777;
		what.target = bytes(target);
		real = symlinkat(target, w.fd, w.name);
	} else {
		what.rdev = S_ISCHR(what.mode) ? makedev(1, 3) : 0;
		real = mknodat(w.fd, w.name, what.mode, what.rdev);
	}
	if (S_ISREG(what.mode))
		what.blob = 1 + pick(r, 1000);
	rc = rs_overlay_make(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &what, &err);
	same(r, "make", real, rc, &err);
	check_times(r, "make", &w, &before);
	leave(&w);
}

static void unlink_or_rmdir(struct run *r, bool is_rmdir)
{
	struct where w = find(r);
	struct times before = times_of(r, &w);
	struct sc_err err;
	int rc, real;

	if (!is_rank_name(&w)) {
		real = unlinkat(w.fd, w.name, is_rmdir ? AT_REMOVEDIR : 0);
		rc = is_rmdir ? rs_overlay_rmdir(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &err)
			      : rs_overlay_unlink(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &err);
		same(r, is_rmdir ? "rmdir" : "unlink", real, rc, &err);
	} else {
		assert_int_equal(SC_E_BUSY, rs_overlay_rmdir(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &err));
		r->was_refused = true;
	}
	check_times(r, is_rmdir ? "rmdir" : "unlink", &w, &before);
	leave(&w);
}

/* Both names are one object's: the kernel, which knows it, asks nobody, and nothing happens. */
static bool is_one_object(const struct where *a, const struct where *b)
{
	struct stat x, y;

	return fstatat(a->fd, a->name, &x, AT_SYMLINK_NOFOLLOW) == 0 &&
	       fstatat(b->fd, b->name, &y, AT_SYMLINK_NOFOLLOW) == 0 && x.st_ino == y.st_ino;
}

static void rename_one(struct run *r)
{
	static const unsigned flags[] = {0, 1 /* RENAME_NOREPLACE */, 2 /* RENAME_EXCHANGE */};
	struct where a = find(r), b = find(r);
	struct times before[2] = {times_of(r, &a), times_of(r, &b)};
	unsigned how = pick(r, 5) % 3;
	bool crosses = bed_home(&r->bed, a.ino) != bed_home(&r->bed, b.ino), ranks = is_rank_name(&a) || is_rank_name(&b);
	struct sc_err err;
	int rc, real;

	if (how != RS_RENAME_NOREPLACE && is_one_object(&a, &b)) {
		leave(&a);
		leave(&b);
		return;
	}
	rc = rs_overlay_rename(r->bed.overlay, r->bed.clock, a.ino, bytes(a.name), b.ino, bytes(b.name), how, &err);
	if (crosses || ranks) {
		/* which of several errors comes first is not compared */
		assert_true(rc < 0);
		r->was_refused = true;
	} else {
		real = renameat2(a.fd, a.name, b.fd, b.name, flags[how]);
		same(r, "rename", real, rc, &err);
	}
	check_times(r, "rename: old", &a, &before[0]);
	check_times(r, "rename: new", &b, &before[1]);
	leave(&a);
	leave(&b);
}

static void link_one(struct run *r)
{
	struct where a = find(r), b = find(r);
	struct times before = times_of(r, &b);
	struct sc_err err = {0};
	struct stat st;
	uint64_t ino = 0;
	int rc, real;

	if (is_rank_name(&a) || is_rank_name(&b) || bed_home(&r->bed, a.ino) != bed_home(&r->bed, b.ino) ||
	    fstatat(a.fd, a.name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		leave(&a);
		leave(&b);
		return;
	}
	assert_int_equal(0, rs_overlay_child(r->bed.overlay, a.ino, bytes(a.name), &ino, &err));
	assert_true(ino);
	real = linkat(a.fd, a.name, b.fd, b.name, 0);
	rc = rs_overlay_link(r->bed.overlay, r->bed.clock, ino, b.ino, bytes(b.name), &err);
	same(r, "link", real, rc, &err);
	check_times(r, "link", &b, &before);
	leave(&a);
	leave(&b);
}

/* An object of both sides: something held, or what a name is. */
static uint64_t object(struct run *r, char path[64])
{
	struct where w = find(r);
	const struct held *h;
	struct sc_err err;
	uint64_t ino = 0;
	int fd = openat(w.fd, w.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	assert_int_equal(0, rs_overlay_child(r->bed.overlay, w.ino, bytes(w.name), &ino, &err));
	assert_true((fd >= 0) == (ino != 0));
	leave(&w);
	if (ino) {
		(void)snprintf(path, 64, "/proc/self/fd/%d", fd);
		return ino;
	}
	if (!r->nr_held)
		return 0;
	h = &r->held[pick(r, r->nr_held)];
	(void)snprintf(path, 64, "/proc/self/fd/%d", dup(h->fd));
	return h->ino;
}

static void done_with(const char *path)
{
	(void)close(atoi(path + strlen("/proc/self/fd/")));
}

static void set_attrs(struct run *r)
{
	char path[64];
	uint64_t ino = object(r, path);
	struct rs_attrs set = {0};
	struct sc_err err;
	struct stat st;
	int real = 0;

	if (!ino)
		return;
	assert_int_equal(0, stat(path, &st));
	if (pick(r, 2) && !S_ISLNK(st.st_mode)) {
		static const mode_t modes[] = {0600, 0755, 02775, 01777, 0};

		set.has_mode = true;
		set.mode = modes[pick(r, 5)];
		real = chmod(path, set.mode);
	} else if (S_ISDIR(st.st_mode) || !(st.st_mode & 06000)) { /* which the kernel takes from files */
		set.has_uid = set.has_gid = true;
		set.uid = pick(r, 2) ? NOBODY : 0;
		set.gid = pick(r, 2) ? NOBODY : 0;
		real = fchownat(atoi(path + strlen("/proc/self/fd/")), "", set.uid, set.gid, AT_EMPTY_PATH);
	}
	same(r, "setattr", real, rs_overlay_set_attrs(r->bed.overlay, r->bed.clock, ino, &set, &err), &err);
	done_with(path);
}

static void set_xattr(struct run *r)
{
	static const char *const keys[] = {"user.x", "user.y", "user.empty"};
	const char *key = keys[pick(r, 3)], *value = key[5] == 'e' ? "" : pick(r, 2) ? "some" : "another value";
	char path[64];
	uint64_t ino = object(r, path);
	unsigned how = pick(r, 4);
	struct sc_err err;
	struct stat st;

	if (!ino)
		return;
	assert_int_equal(0, stat(path, &st));
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		done_with(path); /* the kernel allows user attributes of files and folders only */
		return;
	}
	if (how == 3)
		same(r, "removexattr", removexattr(path, key),
		     rs_overlay_drop_xattr(r->bed.overlay, r->bed.clock, ino, bytes(key), &err), &err);
	else
		same(r, "setxattr", setxattr(path, key, value, strlen(value), (int)how),
		     rs_overlay_set_xattr(r->bed.overlay, r->bed.clock, ino, bytes(key), bytes(value), how, &err),
		     &err);
	done_with(path);
}

/* The bytes of a committed file become its own: nothing else may change. */
static void write_one(struct run *r)
{
	char path[64];
	uint64_t ino = object(r, path);
	struct sc_err err;
	struct stat st;
	int rc;

	if (!ino)
		return;
	assert_int_equal(0, stat(path, &st));
	if (S_ISREG(st.st_mode)) {
		rc = rs_overlay_own_data(r->bed.overlay, r->bed.clock, ino, 1 + pick(r, 1000), &err);
		assert_true(rc == 0 || (rc == SC_E_EXISTS && rs_overlay_has(r->bed.overlay, ino)));
	}
	done_with(path);
}

/* --- holding --- */

static void let_go(struct run *r, unsigned i)
{
	struct meta_inode_row row;
	struct sc_arena texts = {0};
	struct sc_err err;

	(void)close(r->held[i].fd);
	if (rs_overlay_inode(r->bed.overlay, r->held[i].ino, &texts, &row, &err) == 1 && row.nlink == 0 &&
	    row.data != META_FORGOTTEN) {
		assert_int_equal(0, rs_overlay_forget(r->bed.overlay, r->held[i].ino, &err));
		/* what is below is hidden still: a number is asked for by handles, too */
		if (rs_overlay_inode(r->bed.overlay, r->held[i].ino, &texts, &row, &err) == 1) {
			assert_int_equal(META_FORGOTTEN, row.data);
			assert_int_equal(0, row.nlink);
		}
		for (unsigned k = 0; k < r->nr_held; k++) /* held twice */
			if (k != i && r->held[k].ino == r->held[i].ino) {
				(void)close(r->held[k].fd);
				r->held[k] = r->held[--r->nr_held];
				if (i == r->nr_held)
					i = k;
				k--;
			}
	}
	sc_arena_done(&texts);
	r->held[i] = r->held[--r->nr_held];
}

static void hold(struct run *r)
{
	char path[64];
	uint64_t ino;
	struct stat st;

	if (r->nr_held == HELD_MAX) {
		let_go(r, pick(r, HELD_MAX));
		return;
	}
	ino = object(r, path);
	if (!ino)
		return;
	assert_int_equal(0, stat(path, &st));
	r->held[r->nr_held++] = (struct held){S_ISDIR(st.st_mode) ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
								  : open(path, O_PATH | O_CLOEXEC),
					      ino, S_ISDIR(st.st_mode)};
	assert_true(r->held[r->nr_held - 1].fd >= 0);
	done_with(path);
}

/* What is held, and maybe removed, has the attributes that it had. */
static void compare_held(struct run *r)
{
	for (unsigned i = 0; i < r->nr_held; i++) {
		struct meta_inode_row row;
		struct sc_arena texts = {0};
		struct sc_err err;
		struct stat st;

		assert_int_equal(0, fstat(r->held[i].fd, &st));
		assert_int_equal(1, rs_overlay_inode(r->bed.overlay, r->held[i].ino, &texts, &row, &err));
		assert_int_equal(st.st_mode, row.mode);
		assert_int_equal(st.st_nlink, row.nlink);
		sc_arena_done(&texts);
	}
}

/* --- commands, and ends of the daemon --- */

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void go_back(struct run *r)
{
	uint64_t held[HELD_MAX], parts[HELD_MAX], seen[HELD_MAX];
	unsigned nr_parts = 0;
	struct rs_held all = {held, r->nr_held};

	for (unsigned i = 0; i < r->nr_held; i++) {
		held[i] = r->held[i].ino;
		if (bed_loses_name(&r->bed, held[i])) {
			parts[nr_parts] = held[i];
			seen[nr_parts++] = rs_overlay_shown(r->bed.overlay, held[i]);
		}
	}
	qsort(held, r->nr_held, sizeof(*held), by_number);
	bed_back(&r->bed, pick(r, 3) ? r->bed.head : pick(r, r->bed.versions + 1), &all);
	for (unsigned i = 0; i < nr_parts; i++)
		r->parted += bed_has_parted(&r->bed, parts[i], seen[i]);
	/* the real folder is another one now */
	while (r->nr_held)
		let_go(r, 0);
	r->backs++;
}

static void restart(struct run *r)
{
	bool drain = pick(r, 2);

	bed_stop(&r->bed, drain);
	bed_start(&r->bed);
	r->kills += !drain;
}

/* A record that cannot be logged: the request fails, and nothing has changed. */
static void fail_log(struct run *r)
{
	char path[64];
	uint64_t ino = object(r, path);
	struct where w = find(r);
	struct meta_inode_row what = {.mode = S_IFDIR | 0755};
	struct rs_attrs set = {.has_mode = true, .mode = 0111};
	struct sc_err err;

	r->bed.log_fails = true;
	assert_true(rs_overlay_make(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &what, &err) < 0);
	assert_true(rs_overlay_rmdir(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &err) < 0);
	assert_true(rs_overlay_unlink(r->bed.overlay, r->bed.clock, w.ino, bytes(w.name), &err) < 0);
	if (ino)
		assert_int_equal(SC_E_NO_SPACE, rs_overlay_set_attrs(r->bed.overlay, r->bed.clock, ino, &set, &err));
	r->bed.log_fails = false;
	if (ino)
		done_with(path);
	leave(&w);
}

static void step(struct run *r)
{
	unsigned what = pick(r, 1000);

	r->bed.clock += 1000;
	if (what < 280)
		make(r);
	else if (what < 430)
		unlink_or_rmdir(r, false);
	else if (what < 530)
		unlink_or_rmdir(r, true);
	else if (what < 700)
		rename_one(r);
	else if (what < 770)
		link_one(r);
	else if (what < 830)
		set_attrs(r);
	else if (what < 890)
		set_xattr(r);
	else if (what < 930)
		write_one(r);
	else if (what < 980)
		hold(r);
	else if (what < 985)
		fail_log(r);
	else if (what < 990) {
		bed_commit(&r->bed);
		r->commits++;
	} else if (what < 992)
		go_back(r);
	else if (what < 996)
		restart(r);
	else {
		bed_compare(&r->bed);
		compare_held(r);
		bed_compare_version(&r->bed, pick(r, r->bed.versions + 1));
		r->trees++;
	}
}

static void random_requests(void **unused)
{
	struct run r = {.random = seed};

	(void)unused;
	bed_make(&r.bed);
	for (unsigned long i = 0; i < operations; i++)
		step(&r);
	bed_compare(&r.bed);
	for (unsigned v = 0; v <= r.bed.versions; v++)
		bed_compare_version(&r.bed, v);
	while (r.nr_held)
		let_go(&r, 0);
	print_message("# %lu operations, %lu refused, %lu commits, %lu rollbacks (%lu objects came back while held), "
		      "%lu kills, %lu trees compared\n",
		      operations, r.refused, r.commits, r.backs, r.parted, r.kills, r.trees);
	bed_done(&r.bed);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_requests)};

	(void)umask(0);
	operations = argc > 1 ? strtoul(argv[1], NULL, 10) : some_of(40000);
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
