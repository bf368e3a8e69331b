/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what objects name, for the sweep, which removes those that nothing names any more. */
#include "reshard/exchange/objects/objects_i.h"

#include <string.h>

int rs_object_name_order(const void *a, const void *b)
{
	return memcmp(a, b, RS_OBJECT_NAME_BYTES);
}

struct naming {
	struct rs_object_io io;
	struct sc_arena arena;
	struct rs_object_links *to;
	struct rs_object_parts *parts;
	bool failed;
};

static void add(struct naming *n, enum rs_object_kind kind, const struct rs_object_name *name)
{
	n->failed |= sc_vec_push(n->to, ((struct rs_object_link){*name, kind})) < 0;
}

static void add_payloads(struct naming *n, const struct rs_object_files *files)
{
	for (size_t i = 0; i < files->nr; i++)
		if (files->at[i].has_payload)
			add(n, RS_OBJECT_LEAF, &files->at[i].payload);
}

static int of_version(struct naming *n, const struct rs_object_name *name)
{
	struct rs_object_version v = {0};
	int rc = rs_object_read_version(&n->io, name->at, &n->arena, &v);

	if (rc == 0) {
		add(n, RS_OBJECT_LEAF, &v.layout);
		for (size_t i = 0; i < v.sets.nr; i++)
			add(n, RS_OBJECT_SET, &v.sets.at[i]);
		if (v.has_tree)
			add(n, RS_OBJECT_TREE, &v.tree);
		for (size_t i = 0; i < v.data.nr; i++)
			add(n, RS_OBJECT_LEAF, &v.data.at[i].dataset);
		for (size_t i = 0; i < v.parts.nr; i++)
			n->failed |= sc_vec_push(n->parts, v.parts.at[i]) < 0;
	}
	rs_object_version_done(&v);
	return rc;
}

static int of_set(struct naming *n, const struct rs_object_name *name, struct sc_buf *buf)
{
	struct rs_object_set x = {0};
	struct rs_text text;
	int rc = rs_object_read(&n->io, name, buf, &n->arena, &text);

	if (rc == 0) {
		rs_object_walk_set(&text, &x);
		rc = rs_object_parsed(&n->io, name, &text, "set");
	}
	if (rc == 0) {
		add(n, RS_OBJECT_LEAF, &x.place.layout);
		add_payloads(n, &x.files);
		if (x.is_given)
			add(n, RS_OBJECT_LEAF, &x.given_place.layout);
		add_payloads(n, &x.given);
	}
	rs_object_set_done(&x);
	return rc;
}

static int of_tree(struct naming *n, const struct rs_object_name *name, struct sc_buf *buf)
{
	struct rs_object_tree x = {0};
	struct rs_text text;
	int rc = rs_object_read(&n->io, name, buf, &n->arena, &text);

	if (rc == 0) {
		rs_object_walk_tree(&text, &x);
		rc = rs_object_parsed(&n->io, name, &text, "tree");
	}
	if (rc == 0)
		add(n, RS_OBJECT_LEAF, &x.layout);
	if (rc == 0 && x.has_base)
		add(n, RS_OBJECT_TREE, &x.base);
	rs_object_tree_done(&x);
	return rc;
}

int rs_objects_named_by(const struct rs_object_link *object, const struct rs_object_ops *ops, void *arg,
			struct rs_object_links *ret, struct rs_object_parts *ret_parts, struct sc_err *err)
{
	struct naming n = {.io = {ops, arg, err}, .to = ret, .parts = ret_parts};
	struct sc_buf buf = {0};
	int rc;

	switch (object->kind) {
	case RS_OBJECT_VERSION:
		rc = of_version(&n, &object->name);
		break;
	case RS_OBJECT_SET:
		rc = of_set(&n, &object->name, &buf);
		break;
	case RS_OBJECT_TREE:
		rc = of_tree(&n, &object->name, &buf);
		break;
	default:
		rc = rs_object_get(&n.io, &object->name, &buf);
	}
	sc_buf_done(&buf);
	sc_arena_done(&n.arena);
	return rc == 0 && n.failed ? sc_nomem(err) : rc;
}
