/* SPDX-License-Identifier: Apache-2.0 */
/* Gives what a view shows to a working tree, as its lower layer: inodes, names, attributes, by number. */
#include "reshard/version/view/below_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "meta/base/text.h"

#define ROWS_AT_ONCE 256

static int get_inode(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err)
{
	struct rs_below *b = arg;
	const int64_t floor_ns = __atomic_load_n(&b->floor_ns, __ATOMIC_RELAXED);
	struct sc_buf target = {0};
	struct rs_where at;
	int rc = rs_below_where(b, ino, &at, err);

	if (rc > 0)
		rc = rs_below_row(b, &at, ret, &target, err);
	if (rc > 0 && S_ISDIR(ret->mode) && !ret->parent && rs_below_parent(b, &at, &ret->parent, err) < 0)
		rc = err->code;
	if (rc > 0) {
		ret->ino = ino;
		ret->job = b->view->job->id;
		if (target.bytes) {
			ret->target.at = sc_arena_copy(texts, target.text, target.bytes);
			ret->target.nr = target.bytes;
			rc = ret->target.at ? rc : sc_nomem(err);
		}
		if (ret->ctime_ns < floor_ns)
			ret->ctime_ns = floor_ns;
	}
	sc_buf_done(&target);
	return rc;
}

/* --- children --- */

struct children {
	struct rs_below *b;
	const struct rs_where *at;
	const struct rs_rank_files *t;
	rs_child_fn *fn;
	void *arg;
	struct sc_err *err;
};

/* Hands over a name of the folder with its number; `ino` is what the tree has under the name (0: nothing). */
static int hand_over(struct children *c, struct meta_bytes name, uint64_t ino)
{
	char scratch[512] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	char *path = meta_path_in(&arena, c->at->path, name);
	int rc = path ? rs_below_number_at(c->b, c->t, path, ino, true, &ino, c->err) : sc_nomem(c->err);

	sc_arena_done(&arena);
	return rc < 0 ? rc : ino ? c->fn(c->arg, name, ino) : 0;
}

/* Collects the names in a folder of which the tree tells.  Names that are shown from another rank's rows have number 0
 * here. */
static int tree_names(struct children *c, uint64_t folder, struct rs_named_list *names)
{
	struct rs_source_names other = {0};
	struct rs_below *b = c->b;
	int rc = 0;

	if (c->t->rows == RS_ROWS_OWN) {
		rc = rs_below_unless_dropped(
		    b, meta_tree_children(b->catalog, &b->tree, folder, rs_on_named, names, c->err));
		for (size_t i = 0; rc == 0 && i < names->nr; i++)
			rs_below_keep_name(b, folder, names->at[i].name, names->at[i].ino);
		return rc;
	}
	if (c->t->rows != RS_ROWS_NONE)
		rc = rs_source_children(b, c->t, c->at->path, &other, c->err);
	for (size_t i = 0; rc == 0 && i < other.nr; i++)
		rc = rs_on_named(names, &(struct meta_entry_row){folder, other.at[i], 0});
	rs_source_names_done(&other);
	return rc;
}

/* Reads the rows of the next names into memory, many at a time: that costs a third of one by one. */
static void keep_next(struct rs_below *b, const struct rs_named_list *names, size_t from)
{
	uint64_t inos[ROWS_AT_ONCE];
	size_t nr = 0;

	if (from % ROWS_AT_ONCE)
		return;
	for (size_t i = from; i < names->nr && nr < ROWS_AT_ONCE; i++)
		if (names->at[i].ino)
			inos[nr++] = names->at[i].ino;
	rs_below_keep_rows(b, inos, nr);
}

static int each_rank(const struct rs_below *b, rs_child_fn *fn, void *arg)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < b->ranks; rank++) {
		char name[16];
		int n = snprintf(name, sizeof(name), "%u", rank);

		rc = fn(arg, (struct meta_bytes){name, (size_t)n}, b->root + 1 + rank);
	}
	return rc;
}

static int each_child(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_below *b = arg;
	struct rs_named_list names = {.err = err};
	const struct rs_below_folder *f;
	struct rs_where at;
	struct children c = {.b = b, .at = &at, .fn = fn, .arg = fn_arg, .err = err};
	uint32_t rank;
	int rc = rs_below_where(b, folder, &at, err);

	if (rc <= 0)
		return rc;
	rc = rs_rank_files(b, at.rank, &c.t, err);
	if (rc == 0)
		rc = tree_names(&c, folder, &names);
	if (rc == 0 && folder == b->root)
		rc = each_rank(b, fn, fn_arg);
	for (size_t i = 0; rc == 0 && i < names.nr; i++) {
		keep_next(b, &names, i);
		if (folder != b->root || !sc_number_parse(names.at[i].name.at, names.at[i].name.nr, &rank) ||
		    rank >= SC_RANKS_MAX)
			rc = hand_over(&c, names.at[i].name, names.at[i].ino);
	}
	f = rc == 0 ? rs_rank_folder(c.t, at.path) : NULL;
	for (size_t i = 0; rc == 0 && f && i < f->nr; i++) {
		const struct rs_named key = {.name = f->at[i]};

		/* names of the catalog are sorted by their bytes */
		if (!names.nr || !bsearch(&key, names.at, names.nr, sizeof(key), rs_by_name))
			rc = hand_over(&c, f->at[i], 0);
	}
	rs_named_done(&names);
	return rc;
}

struct xattrs {
	rs_xattr_fn *fn;
	void *arg;
};

static int on_xattr(void *arg, const struct meta_xattr_row *row)
{
	const struct xattrs *x = arg;

	return x->fn(x->arg, row->name, row->value);
}

static bool is_shard(const struct rs_rank_files *t, const char *path)
{
	const struct rs_below_file *file = rs_rank_file(t, path);

	return file && !file->data;
}

static int each_xattr(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_below *b = arg;
	struct xattrs x = {fn, fn_arg};
	const struct rs_rank_files *t = NULL;
	struct meta_inode_row row;
	struct rs_where at;
	int rc = rs_below_has_tree(b) && b->has_xattrs ? rs_below_where(b, ino, &at, err) : 0;

	if (rc > 0)
		rc = rs_rank_files(b, at.rank, &t, err) < 0 ? err->code : rs_tree_row(b, &at, t, &row, NULL, err);
	if (rc < 0 || !t || t->rows == RS_ROWS_NONE)
		return rc;
	/* a shard without a row has the attributes of what was at its path */
	if (rc == 0 && !is_shard(t, at.path))
		return 0;
	if (rc == 0 || t->rows != RS_ROWS_OWN)
		return rs_source_xattrs(b, t, at.path, fn, fn_arg, err);
	rc = meta_tree_xattrs(b->catalog, &b->tree, ino, on_xattr, &x, err);
	return rc > 0 ? rc : rs_below_unless_dropped(b, rc);
}

struct rs_lower rs_below_lower(struct rs_below *b)
{
	return (struct rs_lower){get_inode, rs_below_child, each_child, each_xattr, b};
}
