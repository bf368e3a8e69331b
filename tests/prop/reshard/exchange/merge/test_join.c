/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random requests on several overlays over one version, and what rs_join() makes of them (reshard/exchange/merge/join.h).  An
 * overlay on which all nodes' requests were played one after the other says what it has to be, where each of them had
 * the same answer there.
 *
 *     test_join [CASES [SEED]]
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "meta/base/limits.h"
#include "reshard/exchange/merge/join.h"
#include "tests/prop/reshard/exchange/merge/nodes.h"

#define NODES_MAX 3u

static unsigned long cases = 6000, seed = 1;
static uint64_t state;

static unsigned pick(unsigned below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % below;
}

/* --- requests --- */

/* `of` 0: any path; else of its own folders alone. */
static struct request any(unsigned of)
{
	static const unsigned from[] = {0, 0, 10, 13}, to[] = {PATHS, 10, 13, PATHS};

	return (struct request){pick(10), from[of] + pick(to[of] - from[of]), from[of] + pick(to[of] - from[of]), pick(1000)};
}

/* --- what there is, as a text --- */

struct printing {
	const struct tree *t;
	struct sc_buf *to;
	const char *above;
	struct sc_map *first;		/* number -> path that was met first */
	struct sc_map *names;		/* number -> how many */
	struct sc_arena *texts;
	struct {
		size_t nr, room;
		struct meta_entry_row *at;
	} all;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct printing *p = arg;
	char *copy = sc_arena_copy(p->texts, name.at, name.nr);

	return sc_vec_push(&p->all, ((struct meta_entry_row){0, {copy, name.nr}, ino})) < 0 ? -1 : 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct meta_entry_row *)a)->name.at, ((const struct meta_entry_row *)b)->name.at);
}

static int on_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	sc_buf_printf(arg, " %.*s=%.*s", (int)name.nr, name.at, (int)value.nr, value.at);
	return 0;
}

static void print_folder(struct printing *p, uint64_t folder, const char *above, unsigned depth);

static void print_one(struct printing *p, const struct meta_entry_row *e, const char *above, unsigned depth)
{
	char *path = sc_arena_printf(p->texts, "%s/%s", above, e->name.at), *first;
	uint64_t *key = sc_arena_alloc(p->texts, sizeof(*key));
	struct meta_inode_row row;
	struct sc_err err;
	uint32_t *names;

	*key = e->ino;
	assert_int_equal(1, rs_overlay_inode(p->t->o, e->ino, p->texts, &row, &err));
	names = sc_map_make(p->names, (const char *)key, sizeof(*key), p->texts, sizeof(*names));
	first = sc_map_get(p->first, (const char *)key, sizeof(*key));
	if (!first)
		assert_int_equal(0, sc_map_put(p->first, (const char *)key, sizeof(*key), path));
	++*names;
	sc_buf_printf(p->to, "%s %o links %u blob %" PRIu64 " is %s", path, row.mode, row.nlink, row.blob,
		      first ? first : path);
	assert_int_equal(0, rs_overlay_xattrs(p->t->o, e->ino, on_xattr, p->to, &err));
	sc_buf_printf(p->to, "\n");
	if (S_ISDIR(row.mode)) {
		assert_int_equal(1, *names);
		print_folder(p, e->ino, path, depth + 1);
	}
}

static void print_folder(struct printing *p, uint64_t folder, const char *above, unsigned depth)
{
	struct printing x = *p;
	struct sc_err err;

	assert_true(depth < 50);
	x.all.at = NULL;
	x.all.nr = x.all.room = 0;
	assert_int_equal(0, rs_overlay_children(p->t->o, folder, on_child, &x, &err));
	if (x.all.nr)
		qsort(x.all.at, x.all.nr, sizeof(*x.all.at), by_name);
	for (size_t i = 0; i < x.all.nr; i++)
		print_one(&x, &x.all.at[i], above, depth);
	sc_vec_done(&x.all);
}

/* Prints it, and checks its link counts. */
static void print(const struct tree *t, struct sc_buf *to)
{
	struct sc_map first = {0}, names = {0};
	struct sc_arena texts = {0};
	struct printing p = {.t = t, .to = to, .first = &first, .names = &names, .texts = &texts};

	sc_buf_reset(to);
	print_folder(&p, ROOT, "", 0);
	for (size_t i = 0; i < names.room; i++) {
		struct meta_inode_row row;
		struct sc_err err;

		if (!names.slots[i].value)
			continue;
		assert_int_equal(1, rs_overlay_inode(t->o, *(const uint64_t *)names.slots[i].key, &texts, &row, &err));
		if (!S_ISDIR(row.mode))
			assert_int_equal(*(uint32_t *)names.slots[i].value, row.nlink);
	}
	sc_map_done(&first);
	sc_map_done(&names);
	sc_arena_done(&texts);
}

static int on_counted(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct printing *p = arg;
	struct meta_inode_row row;
	struct sc_err err;

	(void)name;
	assert_int_equal(1, rs_overlay_inode(p->t->o, ino, p->texts, &row, &err));
	p->all.nr += S_ISDIR(row.mode);
	return 0;
}

/* Folders have a link for each folder in them. */
static void check_folders(const struct tree *t, uint64_t folder)
{
	struct sc_arena texts = {0};
	struct printing p = {.t = t, .texts = &texts}, in = {.t = t, .texts = &texts};
	struct meta_inode_row row;
	struct sc_err err;

	assert_int_equal(1, rs_overlay_inode(t->o, folder, &texts, &row, &err));
	assert_int_equal(0, rs_overlay_children(t->o, folder, on_counted, &p, &err));
	assert_int_equal(2 + p.all.nr, row.nlink);
	assert_int_equal(0, rs_overlay_children(t->o, folder, on_child, &in, &err));
	for (size_t i = 0; i < in.all.nr; i++) {
		assert_int_equal(1, rs_overlay_inode(t->o, in.all.at[i].ino, &texts, &row, &err));
		if (S_ISDIR(row.mode))
			assert_int_equal(folder, row.parent);
		if (S_ISDIR(row.mode))
			check_folders(t, in.all.at[i].ino);
	}
	sc_vec_done(&in.all);
	sc_arena_done(&texts);
}

/* --- parts --- */

struct part {
	struct meta_changes all;
	struct sc_arena texts;
	const struct tree *t;
	uint64_t ino;
	bool whole;			/* with what has no name */
};

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct part *p = arg;
	struct meta_inode_row x = *row, below;
	struct sc_err err;

	if (!p->whole && (!row->nlink || row->data == META_FORGOTTEN)) {
		if (p->t->lower.inode(p->t->lower.arg, row->ino, &p->texts, &below, &err) <= 0)
			return 0;
		x.nlink = 0;
		x.data = S_ISREG(x.mode) ? META_LOWER_DATA : META_NO_DATA;
	}
	return sc_vec_push(&p->all, ((struct meta_change){META_PUT_INODE, .inode = x})) < 0 ? -1 : 0;
}

static int by_ino(const void *a, const void *b)
{
	const uint64_t x = ((const struct meta_change *)a)->inode.ino, y = ((const struct meta_change *)b)->inode.ino;

	return (x > y) - (x < y);
}

static int on_part_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct part *p = arg;
	struct meta_xattr_row x = {p->ino, {sc_arena_copy(&p->texts, name.at, name.nr), name.nr},
				   {sc_arena_copy(&p->texts, value.at, value.nr), value.nr}};

	return sc_vec_push(&p->all, ((struct meta_change){META_PUT_XATTR, .xattr = x})) < 0 ? -1 : 0;
}

static int on_part_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct part *p = arg;
	struct meta_entry_row x = {p->ino, {sc_arena_copy(&p->texts, name.at, name.nr), name.nr}, ino};

	return sc_vec_push(&p->all, ((struct meta_change){META_PUT_ENTRY, .entry = x})) < 0 ? -1 : 0;
}

static void part_of(const struct tree *t, bool whole, struct part *p)
{
	struct sc_err err;
	size_t rows;

	*p = (struct part){.t = t, .whole = whole};
	assert_int_equal(0, rs_overlay_each(t->o, on_row, p));
	rows = p->all.nr;
	if (rows)
		qsort(p->all.at, rows, sizeof(*p->all.at), by_ino);
	for (size_t i = 0; i < rows; i++) {
		p->ino = p->all.at[i].inode.ino;
		if (p->all.at[i].inode.nlink)
			assert_int_equal(0, rs_overlay_xattrs(t->o, p->ino, on_part_xattr, p, &err));
	}
	for (size_t i = 0; i < rows; i++) {
		p->ino = p->all.at[i].inode.ino;
		if (p->all.at[i].inode.nlink)
			assert_int_equal(0, rs_overlay_entries(t->o, p->ino, on_part_entry, p));
	}
}

static int name_it(void *arg, uint64_t ino, const char *more, struct sc_buf *to, struct sc_err *err)
{
	(void)arg;
	(void)err;
	sc_buf_printf(to, "object %" PRIu64 "%s%s", ino, *more ? ": " : "", more);
	return 0;
}

/* Joins the parts in an order to the overlay of the first node. */
static int join(struct rs_overlay *below, const struct tree *nodes, const struct part *parts, const unsigned *order,
		unsigned nr, struct sc_buf *ret, struct sc_err *err)
{
	struct tree t;
	struct rs_joining j = {.root = ROOT, .node = order[0] + 1, .name = name_it};
	struct meta_changes rows = {0};
	struct part first;
	int rc;

	tree_open(&t, 9, below);
	j.o = t.o;
	j.lower = &t.lower;
	part_of(&nodes[order[0]], true, &first);
	rc = rs_overlay_load(t.o, &first.all, err);
	meta_changes_done(&first.all);
	sc_arena_done(&first.texts);
	for (unsigned i = 1; rc == 0 && i < nr; i++)
		rc = rs_join(&j, order[i] + 1, &parts[order[i]].all, &rows, err);
	if (rc == 0) {
		print(&t, ret);
		check_folders(&t, ROOT);
	}
	meta_changes_done(&rows);
	rs_joining_done(&j);
	(void)rs_overlay_close(t.o);
	return rc;
}

/* What nodes did, for a failure's sentence. */
static char said[8192];

static void say(unsigned node, const struct request *r, int rc)
{
	static const char *const what[] = {"make", "mkdir", "symlink", "unlink", "rmdir", "rename", "link", "write", "chmod",
					   "setxattr"};
	const size_t n = strlen(said);

	if (rc == 0)
		(void)snprintf(said + n, sizeof(said) - n, "\n  node %u: %s %s %s %u", node, what[r->what], paths[r->a],
			       r->what == 5 || r->what == 6 ? paths[r->b] : "", r->value);
}

/* Notes that a node has touched a path: is it the only one? */
static bool is_own(unsigned touched[PATHS], unsigned path, unsigned node)
{
	touched[path] |= 1u << node;
	return touched[path] == 1u << node;
}

struct counts {
	unsigned long joined, refused, as_played;
};

static void one_case(struct counts *c)
{
	static const unsigned orders[][NODES_MAX] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
	const unsigned nodes = 1 + pick(NODES_MAX), apart = pick(3) == 0;
	struct tree base, node[NODES_MAX], all;
	struct part parts[NODES_MAX];
	struct sc_buf is = {0}, other = {0}, must = {0};
	unsigned touched[PATHS] = {0};
	bool same = true;
	struct sc_err err, err2;
	int64_t now = 1;
	int rc;

	*said = 0;
	tree_open(&base, 8, NULL);
	for (unsigned i = pick(120); i > 0; i--) {
		const struct request r = any(0);

		say(0, &r, play(&base, now++, &r));
	}
	tree_open(&all, 7, base.o);
	for (unsigned n = 0; n < nodes; n++) {
		tree_open(&node[n], n + 1, base.o);
		for (unsigned i = pick(20); i > 0; i--) {
			const struct request r = any(apart ? n + 1 : 0);
			const int a = play(&node[n], now, &r), b = play(&all, now, &r);

			say(n + 1, &r, a);
			now++;
			/* what one has made and undone is no change, but not if another did something in between */
			same &= a == b && (a || (is_own(touched, r.a, n) && is_own(touched, r.b, n)));
		}
		part_of(&node[n], false, &parts[n]);
	}
	rc = join(base.o, node, parts, orders[0], nodes, &is, &err);
	c->joined += rc == 0;
	c->refused += rc != 0;
	assert_true(rc == 0 || rc == SC_E_BUSY);
	assert_false(rc && nodes == 1);
	/* of two nodes: each order; of three: those of the first ones */
	for (unsigned k = 1; nodes > 1 && k < 3; k++) {
		unsigned order[NODES_MAX], nr = 0;

		for (unsigned i = 0; i < NODES_MAX; i++)
			if (orders[k][i] < nodes)
				order[nr++] = orders[k][i];
		if (join(base.o, node, parts, order, nr, &other, &err2) != rc)
			fail_msg("in one order: %s; in another: %s; %s", rc ? err.msg : "joined", rc ? "joined" : err2.msg,
				 said);
		if (rc == 0)
			if (strcmp(is.text ? is.text : "", other.text ? other.text : "") != 0)
				fail_msg("%s\nin one order\n%s\nin another\n%s", said, is.text, other.text);
	}
	print(nodes == 1 ? &node[0] : &all, &must);
	if (rc == 0 && (nodes == 1 || same)) {
		if (strcmp(must.text ? must.text : "", is.text ? is.text : "") != 0)
			fail_msg("%s\nis\n%s\nmust be\n%s", said, is.text, must.text);
		c->as_played++;
	}
	if (apart && rc) /* each has changed folders of its own alone */
		fail_msg("refused: %s; %s", err.msg, said);
	for (unsigned n = 0; n < nodes; n++) {
		meta_changes_done(&parts[n].all);
		sc_arena_done(&parts[n].texts);
		(void)rs_overlay_close(node[n].o);
	}
	(void)rs_overlay_close(all.o);
	(void)rs_overlay_close(base.o);
	sc_buf_done(&is);
	sc_buf_done(&other);
	sc_buf_done(&must);
}

/* Each of two moves is possible alone; after both, two folders would be in one another, and no path would lead there. */
static void circle(void **unused)
{
	static const struct request below[] = {{1, 2, 0, 0}, {1, 7, 0, 0}}, moves[] = {{5, 2, 9, 0}, {5, 7, 5, 0}};
	static const unsigned order[] = {0, 1};
	struct tree base, node[2];
	struct part parts[2];
	struct sc_buf ignored = {0};
	struct sc_err err;

	(void)unused;
	tree_open(&base, 8, NULL);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(0, play(&base, 1, &below[i]));
	for (unsigned i = 0; i < 2; i++) {
		tree_open(&node[i], i + 1, base.o);
		assert_int_equal(0, play(&node[i], 2, &moves[i]));
		part_of(&node[i], false, &parts[i]);
	}
	assert_int_equal(SC_E_BUSY, join(base.o, node, parts, order, 2, &ignored, &err));
	assert_non_null(strstr(err.msg, "into one another"));
	for (unsigned i = 0; i < 2; i++) {
		meta_changes_done(&parts[i].all);
		sc_arena_done(&parts[i].texts);
		(void)rs_overlay_close(node[i].o);
	}
	(void)rs_overlay_close(base.o);
	sc_buf_done(&ignored);
}

static void random_parts(void **unused)
{
	struct counts c = {0};

	(void)unused;
	for (unsigned long i = 0; i < cases; i++) {
		state = seed * 1000003 + i;
		(void)pick(2);
		(void)pick(2);
		one_case(&c);
	}
	printf("# %lu joined, %lu refused, %lu as if played one after the other\n", c.joined, c.refused, c.as_played);
	assert_true(cases < 1000 || (c.joined > cases / 3 && c.refused > cases / 20 && c.as_played > cases / 4));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(circle), cmocka_unit_test(random_parts)};

	if (argc > 1)
		cases = strtoul(argv[1], NULL, 10);
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
