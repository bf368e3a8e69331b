/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a tree's object as rows, with inode numbers as numbers.c translates them.
 */
#include "reshard/exchange/objects/objects_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reshard/worktree/requests/tree_i.h"

struct rows {
	struct rs_object_take *t;
	struct rs_object_tree *x;
	struct meta_changes changes;
	struct rs_object_renumbering numbers;
};

/* --- rows --- */

static int order(const struct meta_bytes *a, const struct meta_bytes *b)
{
	int c = a->nr && b->nr ? memcmp(a->at, b->at, a->nr < b->nr ? a->nr : b->nr) : 0;

	return c ? c : (a->nr > b->nr) - (a->nr < b->nr);
}

static int step_of(const struct meta_change *x)
{
	return x->kind == META_PUT_INODE ? 0 : x->kind == META_PUT_XATTR ? 1 : x->kind == META_PUT_ENTRY ? 2 : 3;
}

/* Tells whether `b` comes behind `a` in the order of meta_tree_rows(). */
static bool follows(const struct meta_change *a, const struct meta_change *b)
{
	if (step_of(a) != step_of(b))
		return step_of(a) < step_of(b);
	if (a->kind == META_PUT_INODE)
		return a->inode.ino < b->inode.ino;
	if (a->kind == META_PUT_XATTR)
		return a->xattr.ino != b->xattr.ino ? a->xattr.ino < b->xattr.ino
						    : order(&a->xattr.name, &b->xattr.name) < 0;
	return a->entry.parent != b->entry.parent ? a->entry.parent < b->entry.parent
						  : order(&a->entry.name, &b->entry.name) < 0;
}

static bool is_name(const struct meta_bytes *n)
{
	return n->nr > 0 && n->nr <= SC_NAME_BYTES_MAX && !memchr(n->at, '/', n->nr) && !memchr(n->at, 0, n->nr) &&
	       !(n->at[0] == '.' && (n->nr == 1 || (n->nr == 2 && n->at[1] == '.')));
}

/* Tells whether a row says that nothing is known of a virtual number (reshard/worktree/rebase/put.c). */
static bool is_nothing(const struct meta_inode_row *i)
{
	return i->ino & META_VIRTUAL && i->mode == S_IFREG && !i->nlink && !i->parent && !i->blob;
}

/* Tells whether a commit can have made a row. */
static bool is_inode(const struct meta_inode_row *i)
{
	const bool file = S_ISREG(i->mode);

	return (file || S_ISDIR(i->mode) || S_ISLNK(i->mode)) && !(i->mode & ~(mode_t)(S_IFMT | 07777)) &&
	       (i->nlink > 0 || is_nothing(i)) && i->data == (file ? META_LOWER_DATA : META_NO_DATA) &&
	       (i->job ? file && i->blob : !i->blob && !i->rdev) &&
	       i->job >> META_NODE_BITS == 0 && i->blob < SC_BLOBS_MAX && i->rdev <= INT64_MAX &&
	       (S_ISLNK(i->mode) ? i->target.nr > 0 && !memchr(i->target.at, 0, i->target.nr) : !i->target.nr);
}

/* Makes a row one of this catalog.  1: it is no row of a tree. */
static int take_row(const struct rows *r, struct meta_change *x)
{
	struct meta_inode_row *i = &x->inode;
	struct rs_object_blob blob;

	if (x->kind == META_PUT_XATTR)
		return !x->xattr.name.nr || memchr(x->xattr.name.at, 0, x->xattr.name.nr) ||
		       !rs_object_renumber(&r->numbers, &x->xattr.ino);
	if (x->kind == META_PUT_ENTRY)
		return !is_name(&x->entry.name) || !rs_object_renumber(&r->numbers, &x->entry.parent) ||
		       (x->entry.ino && !rs_object_renumber(&r->numbers, &x->entry.ino));
	if (x->kind != META_PUT_INODE || !is_inode(i) || !rs_object_renumber(&r->numbers, &i->ino) ||
	    (i->parent && !rs_object_renumber(&r->numbers, &i->parent)))
		return 1;
	blob = (struct rs_object_blob){(uint32_t)i->job, i->blob, i->rdev};
	i->job = i->rdev = 0;
	return rs_object_take_blob(r->t, &blob, &i->blob);
}

/* --- names --- */

static int by_ino(const void *key, const void *row)
{
	const struct meta_change *x = row;
	const uint64_t ino = *(const uint64_t *)key;

	return x->kind != META_PUT_INODE || ino < x->inode.ino ? -1 : ino > x->inode.ino;
}

/* Its row in this tree or below: 1, 0 (there is none), or an error.  Those of this tree are sorted, as far as they are
 * not virtual. */
static int find_row(const struct rows *r, struct meta_tree *below, uint64_t ino, struct meta_inode_row *ret)
{
	const struct meta_change *x = bsearch(&ino, r->changes.at, r->changes.nr, sizeof(*x), by_ino);

	if (x)
		*ret = x->inode;
	return x ? 1 : meta_tree_inode(r->t->s->catalog, below, ino, ret, NULL, r->t->io.err);
}

/* Tells whether a folder needs a row: the folders of the job and of its ranks, and those that follow from a topology,
 * do not. */
static bool needs_row(const struct rows *r, uint64_t ino)
{
	return ino < META_VIRTUAL && !(ino >= r->x->root && ino - r->x->root <= SC_RANKS_MAX);
}

/* Checks all names.  1: a name is of no object, or in an object that is no folder. */
static int check_names(const struct rows *r, uint64_t base)
{
	struct meta_tree below = {.id = base};
	struct meta_inode_row row;
	uint64_t last = 0;
	int rc = 1;

	for (size_t i = 0; rc > 0 && i < r->changes.nr; i++) {
		const struct meta_entry_row *e = &r->changes.at[i].entry;

		if (r->changes.at[i].kind != META_PUT_ENTRY || !e->ino)
			continue;
		if (e->parent < META_VIRTUAL && e->parent != last) {
			rc = find_row(r, &below, e->parent, &row);
			if (rc > 0 ? !S_ISDIR(row.mode) : rc == 0 && needs_row(r, e->parent))
				return 1;
			rc = rc < 0 ? rc : 1;
			last = e->parent;
		}
		if (rc > 0 && needs_row(r, e->ino))
			rc = find_row(r, &below, e->ino, &row);
	}
	return rc < 0 ? rc : !rc;
}

static int take_rows(struct rows *r)
{
	struct meta_change before = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->changes.nr; i++) {
		struct meta_change *x = &r->changes.at[i], was = *x;

		rc = i && !follows(&before, x) ? 1 : take_row(r, x);
		before = was;
	}
	return rc;
}

/* --- trees --- */

static int add_tree(struct rs_object_take *t, const struct rs_object_name *name, struct rs_object_tree *x,
		    const struct meta_object *base)
{
	struct rows r = {.t = t, .x = x};
	struct meta_tree_spec spec = {.job = t->job->id, .base = base->id, .root = x->root, .topology = x->topology};
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	uint64_t id = 0;
	int rc = rs_object_take_layout(t, &x->layout, &spec.layout);

	if (rc == 0)
		rc = rs_object_topology(t, spec.layout, x->topology, &topo, &layout);
	if (rc == 0)
		rc = rs_object_renumber_begin(t, &x->numbers, &x->paths, &r.numbers);
	if (rc == 0)
		rc = meta_changes_decode(x->rows.at, x->rows.nr, &r.changes, t->io.err);
	if (rc == SC_E_CORRUPT)
		rc = 1;
	if (rc == 0)
		rc = take_rows(&r);
	if (rc == 0)
		rc = check_names(&r, base->id);
	if (rc > 0)
		rc = rs_object_bad(&t->io, name, "has rows that no tree of this job has");
	spec.rows = r.changes;
	if (rc == 0)
		rc = meta_tree_add(t->s->catalog, &spec, &id, t->io.err);
	if (rc == 0)
		rc = rs_object_name_it(t, META_OBJECT_TREE, id, name, base->depth + 1);
	meta_topology_done(&topo);
	meta_changes_done(&r.changes);
	rs_object_renumber_done(&r.numbers);
	return rc;
}

/* Takes the tree, or finds that the one below it is to be taken first: 1, with its name. */
static int take_one(struct rs_object_take *t, const struct rs_object_name *name, struct rs_object_name *ret_below)
{
	struct meta_object base = {0};
	struct rs_object_tree x = {0};
	struct sc_buf buf = {0};
	struct rs_text text;
	int rc = rs_object_read(&t->io, name, &buf, &t->arena, &text), has = 1;

	if (rc == 0) {
		rs_object_walk_tree(&text, &x);
		rc = rs_object_parsed(&t->io, name, &text, "tree");
	}
	if (rc == 0 && x.root != t->job->root)
		rc = rs_object_bad(&t->io, name, "is a tree of another job");
	if (rc == 0 && x.has_base)
		rc = has = meta_object_named(t->s->catalog, META_OBJECT_TREE, x.base.at, &base, t->io.err);
	if (rc >= 0 && base.depth >= RS_OBJECT_DEPTH_MAX)
		rc = rs_object_bad(&t->io, name, "is a tree over too many");
	if (rc >= 0 && has > 0)
		rc = add_tree(t, name, &x, &base);
	else if (rc == 0)
		rc = 1;
	*ret_below = x.base;
	rs_object_tree_done(&x);
	sc_arena_done(&t->arena);
	sc_buf_done(&buf);
	return rc;
}

int rs_object_take_tree(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id)
{
	struct rs_object_name chain[RS_OBJECT_DEPTH_MAX + 1] = {*name};
	struct meta_object tree;
	size_t nr = 1;
	int rc = meta_object_named(t->s->catalog, META_OBJECT_TREE, name->at, &tree, t->io.err);

	for (nr = rc == 0; rc >= 0 && nr > 0;) {
		rc = take_one(t, &chain[nr - 1], &chain[nr]);
		if (rc > 0 && ++nr > RS_OBJECT_DEPTH_MAX)
			rc = rs_object_bad(&t->io, name, "is a tree over too many");
		else if (rc == 0)
			nr--;
	}
	if (rc >= 0)
		rc = meta_object_named(t->s->catalog, META_OBJECT_TREE, name->at, &tree, t->io.err);
	*ret_id = rc > 0 ? tree.id : 0;
	return rc < 0 ? rc : 0;
}
