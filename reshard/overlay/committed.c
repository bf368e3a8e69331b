/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/overlay/committed.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

static bool is_rank(const struct rs_committed *c, uint64_t ino)
{
	return ino > c->root && ino - c->root <= c->ranks;
}

static int get_inode(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err)
{
	struct rs_committed *c = arg;
	struct sc_buf target = {0};
	int rc = c->tree.id ? meta_tree_inode(c->catalog, &c->tree, ino, ret, &target, err) : 0;

	if (rc == 0 && (ino == c->root || is_rank(c, ino))) {
		*ret = c->folder;
		ret->ino = ino;
		ret->nlink = 2 + (ino == c->root ? c->ranks : 0);
		ret->parent = ino == c->root ? 0 : c->root;
		if (ino != c->root && c->own_rank)
			c->own_rank(c->arg, ret);
		rc = 1;
	}
	if (rc > 0 && ret->target.nr) {
		ret->target.at = sc_arena_copy(texts, ret->target.at, ret->target.nr);
		if (!ret->target.at)
			rc = sc_nomem(err);
	}
	sc_buf_done(&target);
	if (rc > 0) {
		ret->job = c->job;
		if (ret->ctime_ns < c->floor_ns)
			ret->ctime_ns = c->floor_ns;
	}
	return rc;
}

static int get_child(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err)
{
	struct rs_committed *c = arg;
	uint32_t rank;

	*ret = 0;
	if (folder == c->root && sc_number_parse(name.at, name.nr, &rank) && rank < c->ranks) {
		*ret = c->root + 1 + rank;
		return 0;
	}
	return c->tree.id ? meta_tree_child(c->catalog, &c->tree, folder, name, ret, err) : 0;
}

struct walk {
	rs_child_fn *child;
	rs_xattr_fn *xattr;
	void *arg;
};

static int on_entry(void *arg, const struct meta_entry_row *row)
{
	const struct walk *w = arg;

	return w->child(w->arg, row->name, row->ino);
}

static int each_child(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_committed *c = arg;
	struct walk w = {.child = fn, .arg = fn_arg};
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && folder == c->root && rank < c->ranks; rank++) {
		char name[16];
		int n = snprintf(name, sizeof(name), "%u", rank);

		rc = fn(fn_arg, (struct meta_bytes){name, (size_t)n}, c->root + 1 + rank);
	}
	return rc || !c->tree.id ? rc : meta_tree_children(c->catalog, &c->tree, folder, on_entry, &w, err);
}

static int on_xattr(void *arg, const struct meta_xattr_row *row)
{
	const struct walk *w = arg;

	return w->xattr(w->arg, row->name, row->value);
}

static int each_xattr(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_committed *c = arg;
	struct walk w = {.xattr = fn, .arg = fn_arg};

	return c->tree.id ? meta_tree_xattrs(c->catalog, &c->tree, ino, on_xattr, &w, err) : 0;
}

struct rs_lower rs_committed_lower(struct rs_committed *c)
{
	return (struct rs_lower){get_inode, get_child, each_child, each_xattr, c, c->lets_ranks_go};
}
