/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the objects of which a version or a set is made, for the sweep that removes them. */
#include "reshard/exchange/objects/objects_i.h"

#include <stdlib.h>
#include <string.h>

#include "reshard/version/state/state_i.h"

struct naming {
	struct meta_catalog *c;			/* what it has stays; NULL: that does not count */
	const struct rs_object_names *but;	/* likewise; sorted */
	struct rs_object_io io;
	struct sc_arena arena;
	struct rs_object_names *leaves;
};

int rs_object_name_order(const void *a, const void *b)
{
	return memcmp(a, b, RS_OBJECT_NAME_BYTES);
}

/* Tells whether an object stays, with all that it names. */
static int stays(struct naming *n, enum meta_object_kind kind, const struct rs_object_name *name)
{
	struct meta_object o;

	if (n->but->nr && bsearch(name, n->but->at, n->but->nr, sizeof(*name), rs_object_name_order))
		return 1;
	return n->c ? meta_object_named(n->c, kind, name->at, &o, n->io.err) : 0;
}

/* Reads an object: 0, 1 (it was removed already, SC_E_STALE), or an error. */
static int read_gone(struct naming *n, const struct rs_object_name *name, struct sc_buf *buf, struct rs_text *ret)
{
	int rc = rs_object_read(&n->io, name, buf, &n->arena, ret);

	return rc == SC_E_STALE ? 1 : rc;
}

static int add_payloads(struct naming *n, const struct rs_object_files *files)
{
	for (size_t i = 0; i < files->nr; i++) {
		int rc = files->at[i].has_payload ? stays(n, META_OBJECT_PAYLOAD, &files->at[i].payload) : 1;

		if (rc == 0 && sc_vec_push(n->leaves, files->at[i].payload) < 0)
			rc = sc_nomem(n->io.err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int walk_set(struct naming *n, const struct rs_object_name *name)
{
	struct rs_object_set x = {0};
	struct sc_buf buf = {0};
	struct rs_text text;
	int rc = stays(n, META_OBJECT_SET, name);

	if (rc == 0)
		rc = read_gone(n, name, &buf, &text);
	if (rc == 0) {
		rs_object_walk_set(&text, &x);
		rc = rs_object_parsed(&n->io, name, &text, "set");
	}
	if (rc == 0)
		rc = add_payloads(n, &x.files);
	if (rc == 0)
		rc = add_payloads(n, &x.given);
	rs_object_set_done(&x);
	sc_buf_done(&buf);
	return rc < 0 ? rc : 0;
}

/* Walks over the trees of a chain, down to one that stays. */
static int walk_trees(struct naming *n, struct rs_object_name name)
{
	int rc = 0;

	for (bool more = true; rc == 0 && more;) {
		struct rs_object_tree x = {0};
		struct sc_buf buf = {0};
		struct rs_text text;

		rc = stays(n, META_OBJECT_TREE, &name);
		if (rc == 0)
			rc = read_gone(n, &name, &buf, &text);
		if (rc == 0) {
			rs_object_walk_tree(&text, &x);
			rc = rs_object_parsed(&n->io, &name, &text, "tree");
		}
		more = x.has_base;
		name = x.base;
		rs_object_tree_done(&x);
		sc_buf_done(&buf);
		sc_arena_done(&n->arena);
	}
	return rc < 0 ? rc : 0;
}

int rs_objects_of(const struct rs_object_stays *stay, const uint8_t version[RS_OBJECT_NAME_BYTES],
		  const struct rs_object_ops *ops, void *arg, struct rs_object_parts *ret_parts,
		  struct rs_object_names *ret_leaves, struct sc_err *err)
{
	struct naming n = {.c = stay->s ? stay->s->catalog : NULL, .but = stay->names, .io = {ops, arg, err},
			   .leaves = ret_leaves};
	struct rs_object_version v = {0};
	struct sc_arena arena = {0};
	int rc = rs_object_read_version(&n.io, version, &arena, &v);

	ret_parts->nr = ret_leaves->nr = 0;
	for (size_t i = 0; rc == 0 && i < v.parts.nr; i++)
		rc = sc_vec_push(ret_parts, v.parts.at[i]) < 0 ? sc_nomem(err) : 0;
	for (size_t i = 0; rc == 0 && i < v.sets.nr; i++)
		rc = walk_set(&n, &v.sets.at[i]);
	if (rc == 0 && v.has_tree)
		rc = walk_trees(&n, v.tree);
	rs_object_version_done(&v);
	sc_arena_done(&n.arena);
	sc_arena_done(&arena);
	return rc;
}

int rs_objects_of_set(const struct rs_object_stays *stay, const struct rs_object_name *set,
		      const struct rs_object_ops *ops, void *arg, struct rs_object_names *ret_leaves,
		      struct sc_err *err)
{
	struct naming n = {.c = stay->s ? stay->s->catalog : NULL, .but = stay->names, .io = {ops, arg, err},
			   .leaves = ret_leaves};
	int rc;

	ret_leaves->nr = 0;
	rc = walk_set(&n, set);
	sc_arena_done(&n.arena);
	return rc;
}

int rs_objects_of_leaf(const struct rs_object_name *leaf, const struct rs_object_ops *ops, void *arg,
		       struct sc_err *err)
{
	const struct rs_object_io io = {ops, arg, err};
	struct sc_buf buf = {0};
	int rc = rs_object_get(&io, leaf, &buf);

	sc_buf_done(&buf);
	return rc == SC_E_STALE ? 0 : rc;
}
