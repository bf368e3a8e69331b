/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/prop/reshard/overlay/overlay.h"

#include "meta/base/limits.h"

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

#define TAIL_BYTES (64u << 10) /* small, so that it is often full */

static void run(const char *fmt, ...)
{
	char command[600];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	assert_int_equal(0, system(command));
}

static void ok(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s:%d: %s", err->file, err->line, err->msg);
}

/* --- what the overlay needs from outside --- */

static int apply(void *arg, struct meta_tail_batch *batch, struct sc_err *err)
{
	struct bed *b = arg;
	struct meta_tail_record record;
	struct meta_changes changes = {0};
	int rc = meta_catalog_begin(b->catalog, false, err);

	if (rc < 0)
		return rc;
	while (rc == 0 && (rc = meta_tail_next(batch, &record, err)) > 0) {
		changes.nr = 0;
		rc = meta_changes_decode(record.bytes.at, record.bytes.nr, &changes, err);
		if (rc == 0)
			rc = meta_upper_apply(b->catalog, &changes, err);
	}
	if (rc == 0)
		rc = meta_tail_set_applied(b->catalog, batch->sequence, err);
	meta_changes_done(&changes);
	return meta_catalog_end(b->catalog, rc, err);
}

static int take_number(void *arg, uint64_t *ret, struct sc_err *err)
{
	struct bed *b = arg;

	if (b->next == b->last) {
		int rc = meta_numbers_take(b->catalog, b->job, 4096, &b->next, err);

		if (rc < 0)
			return rc;
		b->last = b->next + 4096;
		assert_true(b->next > ROOT + SC_RANKS_MAX);
	}
	*ret = b->next++;
	return 0;
}

static int write_log(void *arg, const struct meta_changes *record, struct sc_err *err)
{
	struct bed *b = arg;
	struct sc_buf buf = {0};
	uint64_t sequence;
	int rc;

	if (b->log_fails)
		return sc_fail(err, SC_E_NO_SPACE, "the test wants no record");
	meta_changes_encode(record, &buf);
	rc = buf.failed ? sc_nomem(err)
			: meta_tail_append(b->tail, 1, (struct meta_bytes){buf.text, buf.bytes}, &sequence, err);
	sc_buf_done(&buf);
	return rc;
}

/* --- life of a store --- */

static int collect(void *arg, const struct meta_change *change)
{
	struct rs_overlay *o = arg;
	struct meta_changes one = {0};
	struct sc_err err;

	assert_int_equal(0, sc_vec_push(&one, *change));
	ok(rs_overlay_load(o, &one, &err), &err);
	meta_changes_done(&one);
	return 0;
}

static void load(struct bed *b, struct rs_overlay *o)
{
	struct sc_err err;

	ok(meta_upper_each(b->catalog, b->job, collect, o, &err), &err);
	ok(meta_again_each(b->catalog, collect, o, &err), &err);
}

static struct rs_overlay *new_overlay(struct bed *b)
{
	struct rs_overlay_log log = {take_number, write_log, b};
	struct rs_lower lower = rs_committed_lower(&b->below);
	struct rs_overlay *o;
	struct sc_err err;

	ok(rs_overlay_open(b->job, ROOT, &lower, &log, &o, &err), &err);
	return o;
}

void bed_start(struct bed *b)
{
	char path[100];
	uint64_t applied;
	struct sc_err err;

	(void)snprintf(path, sizeof(path), "%s/scalai.db", b->top);
	ok(meta_catalog_open(path, true, &b->catalog, &err), &err);
	ok(meta_tail_applied(b->catalog, &applied, &err), &err);
	ok(meta_tail_open(b->top_fd, "tail", TAIL_BYTES, applied, apply, b, &b->tail, &err), &err);
	ok(meta_tail_drain(b->tail, &err), &err);
	b->next = b->last = 0;
	b->below = (struct rs_committed){
	    b->catalog, {.id = b->trees[b->head]}, b->job, ROOT, RANKS,
	    {.job = b->job, .mode = S_IFDIR | 0755, .atime_ns = 1, .mtime_ns = 1, .ctime_ns = 1}, b->below.floor_ns};
	b->overlay = new_overlay(b);
	load(b, b->overlay);
}

void bed_stop(struct bed *b, bool drain)
{
	struct sc_err err;

	if (drain)
		ok(meta_tail_drain(b->tail, &err), &err);
	b->tail = meta_tail_close(b->tail);
	b->catalog = meta_catalog_close(b->catalog);
	b->overlay = rs_overlay_close(b->overlay);
}

void bed_make(struct bed *b)
{
	struct meta_job_row row = {.name = "job", .mode = 0755, .made_ns = 1};
	struct sc_err err;

	*b = (struct bed){.clock = 1000};
	(void)snprintf(b->top, sizeof(b->top), "%s/overlay.XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	assert_non_null(mkdtemp(b->top));
	(void)snprintf(b->real, sizeof(b->real), "%s/real", b->top);
	b->top_fd = open(b->top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(b->top_fd >= 0);
	run("mkdir -p %s/0 %s/1 %s/2 && chmod 755 %s %s/? && cp -a %s %s/v0", b->real,
	    b->real, b->real, b->real, b->real, b->real, b->top);
	b->job = 1;
	bed_start(b);
	ok(meta_job_add(b->catalog, &row, &err), &err);
	assert_int_equal(ROOT, row.root);
	b->job = row.id;
	ok(meta_layout_put(b->catalog, "", "", &b->layout, &err), &err);
	b->below.job = b->job;
	assert_int_equal(1, b->job);
}

void bed_done(struct bed *b)
{
	bed_stop(b, true);
	(void)close(b->top_fd);
	run("rm -rf %s", b->top);
}

uint64_t bed_home(const struct bed *b, uint64_t ino)
{
	while (ino != ROOT && (ino < ROOT || ino > ROOT + RANKS)) {
		struct meta_inode_row row;
		struct sc_arena texts = {0};
		struct sc_err err;

		assert_int_equal(1, rs_overlay_inode(b->overlay, ino, &texts, &row, &err));
		ino = row.parent;
		sc_arena_done(&texts);
	}
	return ino;
}

/* --- commands --- */

static uint64_t add_version(struct bed *b, uint64_t tree, struct sc_err *err)
{
	struct meta_version_row row = {.job = b->job, .step = -1, .note = "", .made_ns = 1, .made_by = "", .layout = b->layout,
				       .topology = "dp=3", .tree = tree};

	ok(meta_version_add(b->catalog, &row, err), err);
	return row.id;
}

/* Memory becomes what the catalog has after the transaction. */
static void swap_upper(struct bed *b, uint64_t tree)
{
	struct rs_overlay *fresh;

	b->below.tree = (struct meta_tree){.id = tree};
	fresh = new_overlay(b);
	load(b, fresh);
	(void)rs_overlay_close(b->overlay);
	b->overlay = fresh;
}

void bed_commit(struct bed *b)
{
	struct meta_tree_spec spec = {.job = b->job, .base = b->trees[b->head], .root = ROOT, .layout = b->layout,
				      .topology = "dp=3"};
	uint64_t tree;
	struct sc_err err;
	int rc;

	ok(meta_tail_drain(b->tail, &err), &err);
	ok(meta_catalog_begin(b->catalog, true, &err), &err);
	rc = meta_tree_commit(b->catalog, &spec, &tree, &err);
	ok(rc, &err);
	(void)add_version(b, tree, &err);
	ok(meta_catalog_end(b->catalog, 0, &err), &err);
	assert_true(b->versions + 1 < VERSIONS_MAX);
	b->head = ++b->versions;
	b->trees[b->head] = tree;
	swap_upper(b, tree);
	run("cp -a %s %s/v%u && find %s/v%u ! -type f ! -type d ! -type l -delete", b->real, b->top, b->head, b->top,
	    b->head);
}

void bed_back(struct bed *b, unsigned version, const struct rs_held *held)
{
	struct rs_committed to = b->below;
	struct rs_lower lower = rs_committed_lower(&to);
	struct sc_arena texts = {0};
	struct meta_changes rows = {0};
	struct rs_layer *layer;
	struct sc_err err;
	int rc;

	to.tree = (struct meta_tree){.id = b->trees[version]};
	ok(rs_overlay_plan_back(b->overlay, b->clock, &lower, held, &texts, &rows, &err), &err);
	ok(meta_tail_drain(b->tail, &err), &err);
	ok(meta_catalog_begin(b->catalog, true, &err), &err);
	rc = meta_upper_remove(b->catalog, b->job, &err);
	if (rc == 0)
		rc = meta_upper_apply(b->catalog, &rows, &err);
	ok(meta_catalog_end(b->catalog, rc, &err), &err);
	b->head = version;
	b->below.tree = to.tree;
	b->below.floor_ns = b->clock;
	lower = rs_committed_lower(&b->below);
	ok(rs_overlay_layer(&rows, &layer, &err), &err);
	rs_overlay_put(b->overlay, &lower, layer);
	meta_changes_done(&rows);
	sc_arena_done(&texts);
	run("rm -rf %s && cp -a %s/v%u %s", b->real, b->top, version, b->real);
}

bool bed_loses_name(const struct bed *b, uint64_t ino)
{
	struct meta_inode_row row;
	struct sc_arena texts = {0};
	struct sc_err err;
	bool is = rs_overlay_inode(b->overlay, ino, &texts, &row, &err) == 1 && row.data != META_FORGOTTEN &&
		  ((S_ISDIR(row.mode) && row.nlink == 0) || row.data == META_OWN_DATA);

	sc_arena_done(&texts);
	return is;
}

bool bed_has_parted(const struct bed *b, uint64_t ino, uint64_t seen)
{
	uint64_t was = rs_overlay_of_shown(b->overlay, seen), shown = rs_overlay_shown(b->overlay, ino);
	struct meta_inode_row row;
	struct sc_arena texts = {0};
	struct sc_err err;
	bool is;

	assert_int_equal(seen, rs_overlay_shown(b->overlay, was));
	assert_int_equal(1, rs_overlay_inode(b->overlay, was, &texts, &row, &err));
	assert_int_equal(0, row.nlink);
	is = rs_overlay_inode(b->overlay, ino, &texts, &row, &err) == 1 && row.nlink;
	if (is) {
		assert_true(shown != seen && was != ino);
		assert_int_equal(ino, rs_overlay_of_shown(b->overlay, shown));
	}
	sc_arena_done(&texts);
	return is;
}

/* --- comparing --- */

struct names {
	struct {
		char name[256];
		uint64_t ino;
	} at[64];
	size_t nr;
};

static int on_name(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct names *n = arg;

	assert_true(n->nr < 64);
	memcpy(n->at[n->nr].name, name.at, name.nr);
	n->at[n->nr].name[name.nr] = 0;
	n->at[n->nr++].ino = ino;
	return 0;
}

struct pairs { /* inode numbers, real and ours: one to one */
	uint64_t at[4096][2];
	size_t nr;
};

static void pair(struct pairs *p, uint64_t a, uint64_t b, const char *path)
{
	for (size_t i = 0; i < p->nr; i++)
		if (p->at[i][0] == a || p->at[i][1] == b) {
			if (p->at[i][0] != a || p->at[i][1] != b)
				fail_msg("%s: names of one file are names of two", path);
			return;
		}
	assert_true(p->nr < 4096);
	p->at[p->nr][0] = a;
	p->at[p->nr++][1] = b;
}

struct attributes {
	const char *path;
	size_t nr;
};

static int on_attribute(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct attributes *a = arg;
	char key[256], got[256];

	(void)snprintf(key, sizeof(key), "%.*s", (int)name.nr, name.at);
	if (lgetxattr(a->path, key, got, sizeof(got)) != (ssize_t)value.nr ||
	    (value.nr && memcmp(got, value.at, value.nr) != 0))
		fail_msg("%s: attribute %s", a->path, key);
	a->nr++;
	return 0;
}

static size_t count_attributes(const char *path)
{
	char list[1000];
	ssize_t n = llistxattr(path, list, sizeof(list));
	size_t nr = 0;

	assert_true(n >= 0);
	for (const char *p = list; p < list + n; p += strlen(p) + 1)
		nr += strncmp(p, "user.", 5) == 0;
	return nr;
}

static void compare_object(const struct rs_overlay *o, const char *path, uint64_t ino, struct pairs *pairs,
			   struct meta_inode_row *row)
{
	struct attributes a = {path, 0};
	char texts_in[512] SC_SCRATCH;
	struct sc_arena texts = SC_ARENA_IN(texts_in);
	char target[256];
	struct sc_err err;
	struct stat st;

	assert_int_equal(0, lstat(path, &st));
	assert_int_equal(1, rs_overlay_inode(o, ino, &texts, row, &err));
	assert_int_equal(ino, row->ino);
	if (row->mode != st.st_mode || row->nlink != st.st_nlink || row->uid != st.st_uid || row->gid != st.st_gid)
		fail_msg("%s (%llu): mode %o, really %o; nlink %u, %lu; owner %u:%u, %u:%u", path,
			 (unsigned long long)ino, row->mode, st.st_mode, row->nlink, (unsigned long)st.st_nlink,
			 row->uid, row->gid, st.st_uid, st.st_gid);
	if (S_ISLNK(st.st_mode)) {
		assert_int_equal(row->target.nr, readlink(path, target, sizeof(target)));
		assert_memory_equal(row->target.at, target, row->target.nr);
	} else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		assert_int_equal(row->rdev, st.st_rdev);
	}
	pair(pairs, st.st_ino, ino, path);
	ok(rs_overlay_xattrs(o, ino, on_attribute, &a, &err), &err);
	if (a.nr != count_attributes(path))
		fail_msg("%s: %zu attributes", path, a.nr);
	sc_arena_done(&texts);
}

static size_t count_names(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fdopendir(fd);
	const struct dirent *d;
	size_t nr = 0;

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL)
		nr += strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
	(void)closedir(dir);
	return nr;
}

static void compare_tree(const struct rs_overlay *o, const char *path, uint64_t ino, uint64_t parent, struct pairs *pairs)
{
	struct names *names = calloc(1, sizeof(*names));
	struct meta_inode_row row;
	struct sc_err err;

	assert_non_null(names);
	compare_object(o, path, ino, pairs, &row);
	if (S_ISDIR(row.mode)) {
		if (row.parent != parent)
			fail_msg("%s: its parent is %llu", path, (unsigned long long)row.parent);
		ok(rs_overlay_children(o, ino, on_name, names, &err), &err);
		if (names->nr != count_names(path))
			fail_msg("%s: %zu names, really %zu", path, names->nr, count_names(path));
	}
	for (size_t i = 0; i < names->nr; i++) {
		char child[1000];
		uint64_t found;

		(void)snprintf(child, sizeof(child), "%s/%s", path, names->at[i].name);
		ok(rs_overlay_child(o, ino, (struct meta_bytes){names->at[i].name, strlen(names->at[i].name)}, &found,
				    &err), &err);
		assert_int_equal(names->at[i].ino, found);
		compare_tree(o, child, found, ino, pairs);
	}
	free(names);
}

void bed_compare(struct bed *b)
{
	struct pairs *pairs = calloc(1, sizeof(*pairs));

	assert_non_null(pairs);
	compare_tree(b->overlay, b->real, ROOT, 0, pairs);
	free(pairs);
}

void bed_compare_version(struct bed *b, unsigned version)
{
	struct rs_committed below = b->below;
	struct rs_lower lower = rs_committed_lower(&below);
	struct rs_overlay_log log = {0};
	struct pairs *pairs = calloc(1, sizeof(*pairs));
	struct rs_overlay *o;
	struct sc_err err;
	char path[100];

	assert_non_null(pairs);
	below.tree = (struct meta_tree){.id = b->trees[version]};
	ok(rs_overlay_open(b->job, ROOT, &lower, &log, &o, &err), &err);
	(void)snprintf(path, sizeof(path), "%s/v%u", b->top, version);
	compare_tree(o, path, ROOT, 0, pairs);
	(void)rs_overlay_close(o);
	free(pairs);
}
