/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upper layers and trees of the catalog, compared with arrays: random records, commits over any version, versions that
 * go, flat trees, transactions that are rolled back, restarts.  After each step all versions are read through chains
 * that were loaded long ago.
 *
 *     test_prop_trees [SEED [LIVES]]
 */
#include "meta/catalog/trees.h"

#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/meta/catalog/trees.h"
#include "tests/support/every.h"

#define VERSIONS 24u
#define STEPS 150u

static struct {
	bool used;
	uint64_t row;			/* of the catalog */
	struct meta_tree tree;
	struct layer world;
} versions[VERSIONS];
static int head;			/* -1: none */
static struct meta_catalog *catalog;
static struct sc_err err;
static char path[64];

#define OK(call) \
	({ \
		if ((call) < 0) \
			fail_msg("%s: %s", #call, err.msg); \
	})

static void change(bool abort)
{
	struct layer was = upper;
	unsigned had = given;

	record.nr = 0;
	for (unsigned k = 1 + pick(4); k; k--)
		one_change();
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_upper_apply(catalog, &record, &err));
	if (pick(3) == 0)
		OK(meta_upper_apply(catalog, &record, &err)); /* again is nothing */
	(void)meta_catalog_end(catalog, abort ? SC_E_CANCELLED : 0, &err);
	if (abort) {
		upper = was;
		given = had;
	}
}

/* --- commits --- */

static bool stays(unsigned i)
{
	return upper.row[i] && (is_special(i) || !upper.inode[i].nlink);
}

static void move(struct layer *world)
{
	for (unsigned i = 0; i < INOS; i++) {
		bool orphan = upper.row[i] && !upper.inode[i].nlink;

		for (unsigned n = 0; n < NAMES && !orphan; n++) {
			if (upper.entry[i][n].has == NOTHING)
				continue;
			world->entry[i][n] = upper.entry[i][n];
			if (upper.entry[i][n].has == HAS && is_special(upper.entry[i][n].ino))
				world->entry[i][n].has = HIDDEN;
			else
				upper.entry[i][n].has = NOTHING;
		}
	}
	for (unsigned i = 0; i < INOS; i++) {
		if (!upper.row[i] || stays(i))
			continue;
		world->row[i] = true;
		world->inode[i] = upper.inode[i];
		(void)memcpy(world->xattr[i], upper.xattr[i], sizeof(upper.xattr[i]));
		upper.row[i] = false;
		(void)memset(upper.xattr[i], 0, sizeof(upper.xattr[i]));
	}
}

/* Of what was moved, and on top of it. */
static void decide(const struct layer *was, struct layer *world, struct meta_tree_spec *spec)
{
	bool live[INOS];

	for (unsigned i = 3; i < given; i++) {
		if (!was->row[i] || stays(i))
			continue;
		switch (pick(5)) {
		case 0: /* a written file as it is on disk */
			world->inode[i] = any_row(i, 3);
			OK(sc_vec_push(&spec->rows, ((struct meta_change){META_PUT_INODE, .inode = world->inode[i]})));
			break;
		case 1:
			world->xattr[i][0] = 3;
			OK(sc_vec_push(&spec->rows, ((struct meta_change){META_PUT_XATTR, .xattr = {NUMBER(i), names[0],
													target_of(3)}})));
			break;
		default:
			break;
		}
	}
	reach(world, false, live);
	for (unsigned k = pick(3); k; k--) { /* names that became shards, and one that was one */
		unsigned p = pick(given), n = pick(NAMES), ino = world->entry[p][n].has == HAS ? world->entry[p][n].ino : 0;

		if (ino && !is_folder(ino)) {
			world->entry[p][n].has = HIDDEN;
			OK(sc_vec_push(&spec->rows, ((struct meta_change){META_PUT_ENTRY, .entry = {NUMBER(p), names[n], 0}})));
			reach(world, false, live);
			if (!live[ino])
				OK(sc_vec_push(&spec->rows, ((struct meta_change){META_DROP_INODE, .inode.ino = NUMBER(ino)})));
		} else if (!ino && is_folder(p) && live[p] && upper.entry[p][n].has == NOTHING && given < INOS) {
			unsigned i = given++;

			world->row[i] = !is_special(i);
			if (is_special(i))
				continue;
			world->entry[p][n].has = HAS;
			world->entry[p][n].ino = i;
			world->inode[i] = any_row(i, 1);
			OK(sc_vec_push(&spec->rows, ((struct meta_change){META_PUT_INODE, .inode = world->inode[i]})));
			OK(sc_vec_push(&spec->rows, ((struct meta_change){META_PUT_ENTRY,
				.entry = {NUMBER(p), names[n], NUMBER(i)}})));
		}
	}
}

static void commit(bool abort)
{
	struct meta_tree_spec spec = {.job = JOB, .base = head < 0 ? 0 : versions[head].tree.id, .root = ROOT,
				      .layout = 1, .topology = "dp=2"};
	struct meta_version_row row = {.job = JOB, .step = -1, .note = "", .made_by = "", .topology = ""};
	struct layer was = upper, world = base;
	unsigned v = 0, had = given;

	while (v < VERSIONS && versions[v].used)
		v++;
	if (v == VERSIONS)
		return;
	move(&world);
	decide(&was, &world, &spec);
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_commit(catalog, &spec, &row.tree, &err));
	OK(meta_version_add(catalog, &row, &err));
	(void)meta_catalog_end(catalog, abort ? SC_E_CANCELLED : 0, &err);
	sc_vec_done(&spec.rows);
	if (abort) {
		upper = was;
		given = had;
		return;
	}
	(void)memset(&versions[v], 0, sizeof(versions[v]));
	versions[v].used = true;
	versions[v].row = row.id;
	versions[v].tree.id = row.tree;
	versions[v].world = world;
	head = (int)v;
	base = world;
}

/* --- comparing --- */

static void same_bytes(struct meta_bytes a, struct meta_bytes b)
{
	if (a.nr != b.nr || (a.nr && memcmp(a.at, b.at, a.nr) != 0))
		fail_msg("'%.*s' is not '%.*s'", (int)a.nr, a.at, (int)b.nr, b.at);
}

static void same_row(const struct meta_inode_row *a, const struct meta_inode_row *b, bool committed)
{
	if (a->ino != b->ino || a->mode != b->mode || a->uid != b->uid || a->gid != b->gid || a->nlink != b->nlink ||
	    a->atime_ns != b->atime_ns || a->mtime_ns != b->mtime_ns || a->ctime_ns != b->ctime_ns ||
	    a->parent != b->parent || a->blob != b->blob)
		fail_msg("rows of %" PRIu64 " and %" PRIu64 " differ", a->ino, b->ino);
	same_bytes(a->target, b->target);
	if (committed)
		assert_int_equal(S_ISREG(a->mode) ? META_LOWER_DATA : META_NO_DATA, a->data);
	else if (a->job != b->job || a->rdev != b->rdev || a->data != b->data)
		fail_msg("upper rows of %" PRIu64 " differ", a->ino);
}

struct seen {
	const struct layer *world;
	unsigned ino, nr;
	struct meta_bytes last;
	char last_text[8];
	bool any;
};

static unsigned name_of(struct meta_bytes name)
{
	for (unsigned n = 0; n < NAMES; n++)
		if (names[n].nr == name.nr && memcmp(names[n].at, name.at ? name.at : "", name.nr) == 0)
			return n;
	fail_msg("nobody made this name");
	return 0;
}

static int on_child(void *arg, const struct meta_entry_row *e)
{
	struct seen *s = arg;
	unsigned n = name_of(e->name);

	assert_int_equal(NUMBER(s->ino), e->parent);
	assert_int_equal(HAS, s->world->entry[s->ino][n].has);
	assert_int_equal(NUMBER(s->world->entry[s->ino][n].ino), e->ino);
	if (s->any) { /* sorted, and each once */
		size_t least = s->last.nr < e->name.nr ? s->last.nr : e->name.nr;
		int way = least ? memcmp(s->last.at, e->name.at, least) : 0;

		assert_true(way < 0 || (way == 0 && s->last.nr < e->name.nr));
	}
	if (e->name.nr)
		(void)memcpy(s->last_text, e->name.at, e->name.nr);
	s->last = (struct meta_bytes){s->last_text, e->name.nr};
	s->any = true;
	s->nr++;
	return 0;
}

static int on_tree_xattr(void *arg, const struct meta_xattr_row *x)
{
	struct seen *s = arg;
	unsigned n = name_of(x->name);

	assert_true(n < XATTRS && s->world->xattr[s->ino][n]);
	same_bytes(x->value, target_of(s->world->xattr[s->ino][n]));
	s->nr++;
	return 0;
}

struct seen_names {
	const struct layer *world;
	const bool *live;
	unsigned ino, nr;
	bool had[INOS][NAMES];
};

/* What was in a removed folder may be there or not. */
static int on_named(void *arg, const struct meta_entry_row *e)
{
	struct seen_names *s = arg;
	unsigned p = index_of(e->parent), n = name_of(e->name);

	assert_int_equal(NUMBER(s->ino), e->ino);
	assert_true(p < INOS && s->world->entry[p][n].has == HAS && s->world->entry[p][n].ino == s->ino);
	assert_false(s->had[p][n]);
	s->had[p][n] = true;
	s->nr += s->live[p];
	return 0;
}

static void compare_names(const struct layer *world, struct meta_tree *tree, const bool *live, unsigned i)
{
	struct seen_names s = {.world = world, .live = live, .ino = i};
	unsigned want = 0;

	for (unsigned p = 0; p < INOS; p++)
		for (unsigned n = 0; n < NAMES; n++)
			want += live[p] && world->entry[p][n].has == HAS && world->entry[p][n].ino == i;
	OK(meta_tree_names(catalog, tree, NUMBER(i), on_named, &s, &err));
	assert_int_equal(want, s.nr);
}

static void compare_world(const struct layer *world, struct meta_tree *tree)
{
	sc_cleanup(sc_buf_done) struct sc_buf target = {0};
	bool live[INOS];

	reach(world, false, live);
	for (unsigned i = 0; i < INOS; i++) {
		struct seen kids = {.world = world, .ino = i}, attrs = kids;
		struct meta_inode_row row;
		unsigned want_kids = 0, want_attrs = 0;

		if (!live[i])
			continue;
		assert_int_equal(1, meta_tree_inode(catalog, tree, NUMBER(i), &row, &target, &err));
		same_row(&row, &world->inode[i], true);
		for (unsigned n = 0; n < NAMES; n++) {
			uint64_t ino, want = world->entry[i][n].has == HAS ? NUMBER(world->entry[i][n].ino) : 0;

			OK(meta_tree_child(catalog, tree, NUMBER(i), names[n], &ino, &err));
			assert_int_equal(want, ino);
			want_kids += want != 0;
			want_attrs += n < XATTRS && world->xattr[i][n];
		}
		OK(meta_tree_children(catalog, tree, NUMBER(i), on_child, &kids, &err));
		assert_int_equal(want_kids, kids.nr);
		OK(meta_tree_xattrs(catalog, tree, NUMBER(i), on_tree_xattr, &attrs, &err));
		assert_int_equal(want_attrs, attrs.nr);
		compare_names(world, tree, live, i);
	}
}

static int on_upper(void *arg, const struct meta_change *x)
{
	struct layer *l = arg;
	unsigned i;

	switch (x->kind) {
	case META_PUT_INODE:
		i = index_of(x->inode.ino);
		assert_true(i < INOS && !l->row[i]);
		l->row[i] = true;
		assert_true(upper.row[i]);
		same_row(&x->inode, &upper.inode[i], false);
		return 0;
	case META_PUT_ENTRY:
		i = index_of(x->entry.parent);
		l->entry[i][name_of(x->entry.name)].has = x->entry.ino ? HAS : HIDDEN;
		l->entry[i][name_of(x->entry.name)].ino = x->entry.ino ? index_of(x->entry.ino) : 0;
		return 0;
	default:
		assert_int_equal(META_PUT_XATTR, x->kind);
		i = index_of(x->xattr.ino);
		l->xattr[i][name_of(x->xattr.name)] = (unsigned)(x->xattr.value.at[0] - '0');
		same_bytes(x->xattr.value, target_of(upper.xattr[i][name_of(x->xattr.name)]));
		return 0;
	}
}

static int count(const char *sql)
{
	sqlite3 *db;
	sqlite3_stmt *stmt;
	int n;

	assert_int_equal(SQLITE_OK, sqlite3_open(path, &db));
	assert_int_equal(SQLITE_OK, sqlite3_prepare_v2(db, sql, -1, &stmt, NULL));
	assert_int_equal(SQLITE_ROW, sqlite3_step(stmt));
	n = sqlite3_column_int(stmt, 0);
	(void)sqlite3_finalize(stmt);
	(void)sqlite3_close(db);
	return n;
}

static void compare_upper(void)
{
	static struct layer got;

	(void)memset(&got, 0, sizeof(got));
	OK(meta_upper_each(catalog, JOB, on_upper, &got, &err));
	for (unsigned i = 0; i < INOS; i++) {
		assert_int_equal(upper.row[i], got.row[i]);
		for (unsigned n = 0; n < NAMES; n++) {
			assert_int_equal(upper.entry[i][n].has, got.entry[i][n].has);
			assert_true(got.entry[i][n].has != HAS || upper.entry[i][n].ino == got.entry[i][n].ino);
			assert_true(n >= XATTRS || upper.xattr[i][n] == got.xattr[i][n]);
		}
	}
	assert_int_equal(0, count("SELECT count(*) FROM inode WHERE data = 1 AND blob NOT IN (SELECT id FROM blob)"));
}

static void compare_all(void)
{
	compare_upper();
	for (unsigned v = 0; v < VERSIONS; v++)
		if (versions[v].used)
			compare_world(&versions[v].world, &versions[v].tree);
}

/* --- the steps of a life --- */

static void restart(void)
{
	catalog = meta_catalog_close(catalog);
	OK(meta_catalog_open(path, true, &catalog, &err));
	for (unsigned v = 0; v < VERSIONS; v++)
		versions[v].tree = (struct meta_tree){.id = versions[v].tree.id};
}

static void discard(void)
{
	unsigned v = pick(VERSIONS);

	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_upper_remove(catalog, JOB, &err));
	OK(meta_catalog_end(catalog, 0, &err));
	(void)memset(&upper, 0, sizeof(upper));
	if (versions[v].used) { /* a rollback */
		head = (int)v;
		base = versions[v].world;
	}
}

static void flatten(bool abort)
{
	unsigned v = pick(VERSIONS), nr = 0;
	bool live[INOS];
	char sql[100];

	if (!versions[v].used)
		return;
	(void)snprintf(sql, sizeof(sql), "SELECT base FROM tree WHERE id = %" PRIu64, versions[v].tree.id);
	if (count(sql) == 0)
		return; /* it is flat */
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_flatten(catalog, versions[v].tree.id, &err));
	if (abort)
		compare_world(&versions[v].world, &versions[v].tree); /* who is inside sees it, too */
	(void)meta_catalog_end(catalog, abort ? SC_E_CANCELLED : 0, &err);
	if (abort)
		return;
	reach(&versions[v].world, false, live);
	for (unsigned i = 0; i < INOS; i++)
		nr += live[i];
	(void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM tree_inode WHERE tree = %" PRIu64, versions[v].tree.id);
	assert_int_equal(nr, count(sql));
}

static void tidy(void)
{
	uint64_t tree;
	unsigned v = pick(VERSIONS);

	if (versions[v].used && (int)v != head) {
		OK(meta_version_remove(catalog, versions[v].row, &err));
		versions[v].used = false;
	}
	OK(meta_catalog_begin(catalog, false, &err));
	OK(meta_tree_to_flatten(catalog, &tree, &err));
	for (bool all = pick(2); all && tree; OK(meta_tree_to_flatten(catalog, &tree, &err)))
		OK(meta_tree_flatten(catalog, tree, &err));
	OK(meta_tree_garbage(catalog, &err));
	OK(meta_catalog_end(catalog, 0, &err));
}

static void clean(void)
{
	char name[80];

	(void)unlink(path);
	(void)snprintf(name, sizeof(name), "%s-wal", path);
	(void)unlink(name);
	(void)snprintf(name, sizeof(name), "%s-shm", path);
	(void)unlink(name);
}

static int on_garbage(void *unused, uint64_t blob)
{
	(void)unused;
	(void)blob;
	return 0;
}

static unsigned longest;

static void one_life(uint64_t seed)
{
	random_state = seed;
	(void)memset(versions, 0, sizeof(versions));
	(void)memset(&upper, 0, sizeof(upper));
	(void)memset(&base, 0, sizeof(base));
	head = -1;
	given = 3;
	clean();
	OK(meta_catalog_open(path, true, &catalog, &err));
	for (unsigned step = 0; step < STEPS; step++) {
		unsigned what = pick(40);

		if (what < 22)
			change(pick(8) == 0);
		else if (what < 32)
			commit(pick(8) == 0);
		else if (what < 34)
			flatten(pick(2));
		else if (what < 36 && seed % 3)
			tidy();
		else if (what == 36)
			restart();
		else if (what == 37)
			discard();
		if (step % (unsigned)every_at_most(3) == 0)
			compare_all(); /* all that has been: most of the time */
		for (unsigned v = 0; v < VERSIONS; v++)
			longest = versions[v].tree.nr > longest ? versions[v].tree.nr : longest;
	}
	for (unsigned v = 0; v < VERSIONS; v++)
		if (versions[v].used)
			OK(meta_version_remove(catalog, versions[v].row, &err));
	assert_int_equal(0, count("SELECT count(*) FROM tree_entry JOIN tree ON id = tree WHERE base = 0 AND ino = 0"));
	OK(meta_tree_garbage(catalog, &err));
	OK(meta_upper_remove(catalog, JOB, &err));
	OK(meta_garbage(catalog, on_garbage, NULL, &err));
	catalog = meta_catalog_close(catalog);
	assert_int_equal(0, count("SELECT (SELECT count(*) FROM tree) + (SELECT count(*) FROM tree_inode) + (SELECT count(*) "
				  "FROM tree_entry) + (SELECT count(*) FROM tree_xattr) + (SELECT count(*) FROM inode) + "
				  "(SELECT count(*) FROM entry) + (SELECT count(*) FROM xattr) + (SELECT count(*) FROM blob)"));
	clean();
}

static uint64_t seed = 1, lives;

static void random_lives(void **unused)
{
	(void)unused;
	(void)snprintf(path, sizeof(path), "%s/scalai-trees.%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp",
		       (int)getpid());
	for (uint64_t i = seed; i < seed + lives; i++) {
		printf("# seed %" PRIu64 "\n", i);
		one_life(i);
	}
	printf("# the longest chain had %u trees\n", longest);
	assert_int_equal(META_CHAIN_MAX, longest); /* and the next commit made it flat */
	sc_vec_done(&record);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_lives)};

	if (argc > 1)
		seed = strtoull(argv[1], NULL, 10);
	lives = argc > 2 ? strtoull(argv[2], NULL, 10) : every() > 1 ? 3 : 6; /* in fewer no chain is as long as it may be */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
