/* SPDX-License-Identifier: Apache-2.0 */
/* Puts rows of the catalog as objects. */
#include "reshard/exchange/objects/objects_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/catalog/tensor_line.h"
#include "reshard/version/state/state_i.h"

struct put {
	struct meta_catalog *c;
	uint32_t node;
	struct rs_object_io io;
	struct sc_arena arena;		/* texts of the object that is being made */
};

static const char *keep(struct put *p, const char *text)
{
	return sc_arena_copy(&p->arena, text, strlen(text));
}

/* Finds the name that a row has as an object: 1, 0 (none yet), or an error. */
static int known(struct put *p, enum meta_object_kind kind, uint64_t id, struct rs_object_name *ret,
		 uint32_t *ret_depth)
{
	struct meta_object o;
	int rc = meta_object_of(p->c, kind, id, &o, p->io.err);

	if (rc > 0)
		memcpy(ret->at, o.name, sizeof(ret->at));
	if (rc > 0 && ret_depth)
		*ret_depth = o.depth;
	if (rc > 0 && p->io.ops->refer && p->io.ops->refer(p->io.arg, o.name, p->io.err) < 0)
		return p->io.err->code;
	return rc;
}

/* Puts a printed object, and gives its row the name. */
static int finish(struct put *p, enum meta_object_kind kind, uint64_t id, struct sc_buf *text, uint32_t depth,
		  struct rs_object_name *ret)
{
	struct meta_object o = {.kind = kind, .id = id, .depth = depth};
	int rc = rs_object_put(&p->io, text, ret);

	memcpy(o.name, ret->at, sizeof(o.name));
	return rc < 0 ? rc : meta_object_put(p->c, &o, p->io.err);
}

static int name_blob(struct put *p, uint64_t blob, uint64_t bytes, struct rs_object_blob *ret)
{
	int rc = 0;

	*ret = (struct rs_object_blob){.node = blob ? p->node : 0, .number = blob, .bytes = bytes};
	if (blob)
		rc = meta_blob_origin(p->c, blob, &ret->node, &ret->number, p->io.err);
	return rc < 0 ? rc : 0;
}

/* --- layouts, payloads --- */

struct printing {
	struct sc_buf text;
};

static int on_layout(void *arg, uint64_t id, const char *source, const char *flat)
{
	struct printing *x = arg;
	struct rs_object_layout l = {source, flat};

	(void)id;
	rs_object_walk_layout(&(struct rs_text){.to = &x->text}, &l);
	return 0;
}

static int on_payload(void *arg, const void *payload, size_t bytes)
{
	struct printing *x = arg;
	struct meta_bytes b = {payload, bytes};

	rs_object_walk_payload(&(struct rs_text){.to = &x->text}, &b);
	return 0;
}

/* Prints a layout or payload. */
static int print_one(struct meta_catalog *c, enum meta_object_kind kind, uint64_t id, struct printing *x,
		     struct sc_err *err)
{
	return kind == META_OBJECT_LAYOUT ? meta_layout_get(c, id, on_layout, x, err)
					  : meta_payload_get(c, id, on_payload, x, err);
}

/* Puts a layout or payload, of which other objects have the name. */
static int put_text(struct put *p, enum meta_object_kind kind, uint64_t id, struct rs_object_name *ret)
{
	struct printing x = {0};
	int rc = known(p, kind, id, ret, NULL);

	if (rc)
		return rc < 0 ? rc : 0;
	rc = print_one(p->c, kind, id, &x, p->io.err);
	if (rc == 0)
		rc = finish(p, kind, id, &x.text, 1, ret);
	sc_buf_done(&x.text);
	return rc;
}

int rs_objects_put_again(struct rs_service *s, const struct rs_object_name *name, const struct rs_object_ops *ops,
			 void *arg, struct sc_err *err)
{
	struct put p = {.c = s->catalog, .io = {ops, arg, err}};
	struct printing x = {0};
	struct rs_object_name is;
	struct meta_object o;
	int rc = meta_object_named(s->catalog, META_OBJECT_PAYLOAD, name->at, &o, err);

	if (rc == 0)
		rc = meta_object_named(s->catalog, META_OBJECT_LAYOUT, name->at, &o, err);
	if (rc == 0)
		return sc_fail(err, SC_E_NOT_FOUND, "etcd lacks the object %02x%02x%02x%02x... of the version below",
			       name->at[0], name->at[1], name->at[2], name->at[3]);
	if (rc > 0)
		rc = print_one(s->catalog, o.kind, o.id, &x, err);
	if (rc == 0)
		rc = rs_object_put(&p.io, &x.text, &is);
	sc_buf_done(&x.text);
	return rc;
}

/* --- sets --- */

struct files {
	struct put *p;
	struct rs_object_files *to;
	struct sc_map paths;		/* number -> text */
};

static int on_path(void *arg, uint64_t id, const char *text, const char *more)
{
	struct files *f = arg;
	char *key = sc_arena_copy(&f->p->arena, (const char *)&id, sizeof(id)), *copy = (char *)keep(f->p, text);

	(void)more;
	return !key || !copy || sc_map_put(&f->paths, key, sizeof(id), copy) < 0 ? sc_nomem(f->p->io.err) : 0;
}

static int on_file(void *arg, const struct meta_set_blob_row *row)
{
	struct files *f = arg;
	struct put *p = f->p;
	struct rs_object_file file = {.rank = (uint32_t)row->rank, .mode = row->mode, .uid = row->uid, .gid = row->gid,
				      .has_payload = row->payload != 0};
	int rc = name_blob(p, row->blob, row->bytes, &file.blob);

	file.path = sc_map_get(&f->paths, (const char *)&row->path, sizeof(row->path));
	if (rc == 0 && !file.path)
		rc = meta_path_get(p->c, row->path, on_path, f, p->io.err);
	if (rc == 0 && !file.path)
		file.path = sc_map_get(&f->paths, (const char *)&row->path, sizeof(row->path));
	if (rc == 0 && row->payload)
		rc = put_text(p, META_OBJECT_PAYLOAD, row->payload, &file.payload);
	return rc < 0 ? rc : sc_vec_push(f->to, file) < 0 ? sc_nomem(p->io.err) : 0;
}

/* Prints the tensors of a set, without their digests: these are found later, and an object never changes. */
static int print_tensors(struct put *p, const char *lines, struct sc_buf *to)
{
	char *text = sc_strdup(lines), *save = NULL;
	int rc = text ? 0 : sc_nomem(p->io.err);

	for (char *line = rc == 0 ? strtok_r(text, "\n", &save) : NULL; rc == 0 && line;
	     line = strtok_r(NULL, "\n", &save)) {
		struct meta_tensor_line t;

		if (!meta_tensor_line_parse(line, &t))
			rc = sc_fail(p->io.err, SC_E_CORRUPT, "catalog: bad line of a tensor: run 'scalai fsck'");
		t.has_digest = false;
		if (rc == 0)
			meta_tensor_line_add(to, &t);
	}
	sc_sys.release(text);
	return rc < 0 ? rc : to->failed ? sc_nomem(p->io.err) : 0;
}

static int print_set(struct put *p, const struct meta_set_row *row, struct sc_buf *to)
{
	struct rs_object_set s = {
		.file = row->file, .format = row->format, .has_payload = row->payload != NULL, .payload = row->payload,
		.place = {.topology = row->topology, .layers = row->layers, .experts = row->experts},
		.is_given = row->given_topology != NULL,
		.given_place = {.topology = row->given_topology, .layers = row->given_layers,
				.experts = row->given_experts}};
	struct files files = {.p = p, .to = &s.files};
	struct sc_buf tensors = {0};
	int rc = put_text(p, META_OBJECT_LAYOUT, row->layout, &s.place.layout);

	if (rc == 0 && s.is_given)
		rc = put_text(p, META_OBJECT_LAYOUT, row->given_layout, &s.given_place.layout);
	if (rc == 0)
		rc = print_tensors(p, row->tensors, &tensors);
	s.tensors = (struct meta_bytes){tensors.text, tensors.bytes};
	if (rc == 0)
		rc = meta_set_blobs(p->c, row->id, on_file, &files, p->io.err);
	files.to = &s.given;
	if (rc == 0 && s.is_given)
		rc = meta_set_given(p->c, row->id, on_file, &files, p->io.err);
	if (rc == 0)
		rs_object_walk_set(&(struct rs_text){.to = to}, &s);
	rs_object_set_done(&s);
	sc_map_done(&files.paths);
	sc_buf_done(&tensors);
	sc_arena_done(&p->arena);
	return rc;
}

struct sets {
	struct put *p;
	struct rs_object_names *to;
};

static int on_set(void *arg, const struct meta_set_row *row)
{
	const struct sets *x = arg;
	struct put *p = x->p;
	struct sc_buf text = {0};
	struct rs_object_name name;
	int rc = known(p, META_OBJECT_SET, row->id, &name, NULL);

	if (rc == 0) {
		rc = print_set(p, row, &text);
		if (rc == 0)
			rc = finish(p, META_OBJECT_SET, row->id, &text, 1, &name);
		sc_buf_done(&text);
	}
	return rc < 0 ? rc : sc_vec_push(x->to, name) < 0 ? sc_nomem(p->io.err) : 0;
}

/* --- trees --- */

struct rows {
	struct put *p;
	struct rs_object_tree *tree;
	struct sc_buf text;
};

static int on_numbers(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	struct rows *r = arg;

	(void)job;
	return sc_vec_push(&r->tree->numbers, (struct rs_object_numbers){first, nr}) < 0 ? sc_nomem(r->p->io.err) : 0;
}

static int on_path_text(void *arg, uint64_t id, const char *text, const char *more)
{
	struct rows *r = arg;
	struct rs_object_path path = {id, keep(r->p, text)};

	(void)more;
	return !path.text || sc_vec_push(&r->tree->paths, path) < 0 ? sc_nomem(r->p->io.err) : 0;
}

static int on_row(void *arg, const struct meta_change *row)
{
	struct rows *r = arg;
	struct meta_change x = *row;
	struct rs_object_blob blob;
	int rc = 0;

	if (x.kind == META_PUT_INODE) {
		rc = name_blob(r->p, x.inode.blob, x.inode.rdev, &blob);
		x.inode.ino = rs_object_number(x.inode.ino);
		x.inode.parent = rs_object_number(x.inode.parent);
		x.inode.job = blob.node;
		x.inode.blob = blob.number;
		x.inode.rdev = blob.bytes;
	} else if (x.kind == META_PUT_XATTR) {
		x.xattr.ino = rs_object_number(x.xattr.ino);
	} else {
		x.entry.parent = rs_object_number(x.entry.parent);
		x.entry.ino = rs_object_number(x.entry.ino);
	}
	meta_changes_encode(&(struct meta_changes){&x, 1, 1}, &r->text);
	return rc < 0 ? rc : r->text.failed ? sc_nomem(r->p->io.err) : 0;
}

static int print_tree(struct put *p, uint64_t id, struct rs_object_tree *x, uint64_t layout, struct sc_buf *to)
{
	struct rows rows = {.p = p, .tree = x};
	int rc = put_text(p, META_OBJECT_LAYOUT, layout, &x->layout);

	if (rc == 0)
		rc = meta_tree_numbers(p->c, id, on_numbers, &rows, p->io.err);
	if (rc == 0)
		rc = meta_tree_path_texts(p->c, id, on_path_text, &rows, p->io.err);
	if (rc == 0)
		rc = meta_tree_rows(p->c, id, on_row, &rows, p->io.err);
	x->rows = (struct meta_bytes){rows.text.text, rows.text.bytes};
	if (rc == 0)
		rs_object_walk_tree(&(struct rs_text){.to = to}, x);
	sc_buf_done(&rows.text);
	sc_arena_done(&p->arena);
	return rc;
}

/* Puts a tree; all trees below it have names already. */
static int put_tree(struct put *p, uint64_t id, struct rs_object_name *ret)
{
	struct rs_object_tree x = {0};
	struct meta_tree_row about;
	struct sc_buf topology = {0}, text = {0};
	uint32_t depth = 0;
	int rc = meta_tree_about(p->c, id, &about, &topology, p->io.err);

	if (rc == 0 && about.base)
		rc = known(p, META_OBJECT_TREE, about.base, &x.base, &depth);
	x.has_base = rc > 0 && depth < RS_OBJECT_DEPTH_MAX;
	/* others need not take what was removed long ago */
	if (rc > 0 && !x.has_base) {
		rc = meta_tree_flatten(p->c, id, p->io.err);
		depth = 0;
	}
	x.root = about.root;
	x.topology = topology.text;
	if (rc >= 0)
		rc = print_tree(p, id, &x, about.layout, &text);
	if (rc == 0)
		rc = finish(p, META_OBJECT_TREE, id, &text, depth + 1, ret);
	rs_object_tree_done(&x);
	sc_buf_done(&topology);
	sc_buf_done(&text);
	return rc;
}

/* Puts the trees of a chain, from above the newest one that has a name. */
static int put_chain(struct put *p, uint64_t tree, struct rs_object_name *ret)
{
	uint64_t chain[META_CHAIN_MAX];
	struct meta_tree_row about;
	size_t nr = 0;
	int rc = 0;

	while (tree && (rc = known(p, META_OBJECT_TREE, tree, ret, NULL)) == 0) {
		if (nr == META_CHAIN_MAX)
			return sc_fail(p->io.err, SC_E_CORRUPT, "catalog: tree %" PRIu64 " lies over too many: run "
				       "'scalai fsck'", chain[0]);
		chain[nr++] = tree;
		rc = meta_tree_about(p->c, tree, &about, NULL, p->io.err);
		if (rc < 0)
			return rc;
		tree = about.base;
	}
	while (rc >= 0 && nr > 0)
		rc = put_tree(p, chain[--nr], ret);
	return rc < 0 ? rc : 0;
}

/* --- datasets --- */

struct uses {
	struct put *p;
	struct rs_object_version *v;
};

struct sources {
	struct put *p;
	struct rs_object_dataset *to;
};

static int on_source(void *arg, const struct meta_data_source_row *row)
{
	const struct sources *x = arg;
	struct rs_object_source s = {.bytes = row->bytes, .samples = row->samples, .sequences = row->sequences,
				     .first = row->first, .bare = row->bare, .mtime_ns = row->mtime_ns,
				     .path = keep(x->p, row->path)};
	uint64_t table = 0;
	int rc = name_blob(x->p, row->blob, row->bytes, &s.copy);

	memcpy(s.ends, row->ends, sizeof(s.ends));
	if (rc == 0 && row->borders)
		rc = meta_blob_bytes(x->p->c, row->borders, &table, x->p->io.err);
	if (rc == 0)
		rc = name_blob(x->p, row->borders, table, &s.borders);
	return rc < 0 ? rc : !s.path || sc_vec_push(&x->to->sources, s) < 0 ? sc_nomem(x->p->io.err) : 0;
}

static int put_dataset(struct put *p, const struct meta_dataset_row *row, struct rs_object_name *ret)
{
	struct rs_object_dataset d = {.name = row->name, .spec = row->spec, .form = row->form, .uid = row->uid,
				      .gid = row->gid};
	struct sources x = {p, &d};
	struct sc_buf text = {0};
	int rc = known(p, META_OBJECT_DATASET, row->id, ret, NULL);

	if (rc)
		return rc < 0 ? rc : 0;
	rc = meta_dataset_sources(p->c, row->id, on_source, &x, p->io.err);
	if (rc == 0)
		rs_object_walk_dataset(&(struct rs_text){.to = &text}, &d);
	sc_arena_done(&p->arena);
	if (rc == 0)
		rc = finish(p, META_OBJECT_DATASET, row->id, &text, 1, ret);
	rs_object_dataset_done(&d);
	sc_buf_done(&text);
	return rc;
}

static int on_dataset(void *arg, const struct meta_dataset_row *row)
{
	const struct uses *u = arg;
	struct rs_object_use use = {.from_epoch = row->from_epoch, .from_samples = row->from_samples};
	int rc = put_dataset(u->p, row, &use.dataset);

	return rc < 0 ? rc : sc_vec_push(&u->v->data, use) < 0 ? sc_nomem(u->p->io.err) : 0;
}

/* --- versions --- */

struct version {
	struct put *p;
	const struct rs_object_parts *parts;
	struct rs_object_name name;
	struct rs_object_names sets;
};

static int on_parent(void *arg, const struct meta_version_row *row)
{
	*(uint64_t *)arg = row->nr;
	return 0;
}

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct version *x = arg;
	struct put *p = x->p;
	struct rs_object_version v = {
		.nr = row->nr, .step = row->step, .samples = row->samples, .request = row->request,
		.made_ns = row->made_ns, .floor_ns = row->floor_ns, .made_by = row->made_by, .note = row->note,
		.topology = row->topology, .has_tree = row->tree != 0};
	struct sets sets = {p, &v.sets};
	struct uses uses = {p, &v};
	struct sc_buf text = {0};
	int rc = put_text(p, META_OBJECT_LAYOUT, row->layout, &v.layout);

	if (rc == 0 && row->parent)
		rc = meta_version_get(p->c, row->parent, on_parent, &v.parent, p->io.err);
	if (rc == SC_E_NOT_FOUND)
		rc = 0; /* it is dropped */
	if (rc == 0)
		rc = meta_version_sets(p->c, row->id, on_set, &sets, p->io.err);
	if (rc == 0 && row->tree)
		rc = put_chain(p, row->tree, &v.tree);
	if (rc == 0)
		rc = meta_version_data(p->c, row->id, on_dataset, &uses, p->io.err);
	for (size_t i = 0; rc == 0 && x->parts && i < x->parts->nr; i++)
		rc = sc_vec_push(&v.parts, x->parts->at[i]) < 0 ? sc_nomem(p->io.err) : 0;
	if (rc == 0)
		rs_object_walk_version(&(struct rs_text){.to = &text}, &v);
	if (rc == 0)
		rc = rs_object_put(&p->io, &text, &x->name);
	for (size_t i = 0; rc == 0 && i < v.sets.nr; i++)
		rc = sc_vec_push(&x->sets, v.sets.at[i]) < 0 ? sc_nomem(p->io.err) : 0;
	rs_object_version_done(&v);
	sc_buf_done(&text);
	return rc;
}

int rs_objects_put(struct rs_service *s, uint64_t version, uint32_t node, const struct rs_object_parts *parts,
		   const struct rs_object_ops *ops, void *arg,
		   uint8_t ret_name[RS_OBJECT_NAME_BYTES], struct rs_object_names *ret_sets, struct sc_err *err)
{
	struct put p = {.c = s->catalog, .node = node, .io = {ops, arg, err}};
	struct version x = {.p = &p, .parts = parts};
	int rc = meta_version_get(s->catalog, version, on_version, &x, err);

	for (size_t i = 0; rc == 0 && ret_sets && i < x.sets.nr; i++)
		rc = sc_vec_push(ret_sets, x.sets.at[i]) < 0 ? sc_nomem(err) : 0;
	if (rc == 0)
		memcpy(ret_name, x.name.at, RS_OBJECT_NAME_BYTES);
	sc_vec_done(&x.sets);
	sc_arena_done(&p.arena);
	return rc;
}
