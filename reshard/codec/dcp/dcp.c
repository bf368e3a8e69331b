/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/dcp/dcp.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"

#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "DCP: " __VA_ARGS__)

static const char metadata[] = "torch.distributed.checkpoint.metadata";
static const char filesystem[] = "torch.distributed.checkpoint.filesystem";

struct item {				/* where an item is stored */
	const char *file;
	uint64_t at, bytes;
};

struct reading {
	struct rs_dcp *to;
	struct sc_arena arena;		/* of the items and their keys */
	struct sc_map items;		/* by item_key() */
	struct sc_map names, texts;
	struct sc_buf key;		/* scratch */
	struct sc_err *err;
};

static bool is_new(const struct rs_pickled *n, const char *module, const char *name)
{
	return n && n->kind == RS_PICKLED_NEW && rs_pickled_is(n->object->what, module, name);
}

/* Gives the fields of an instance of a class, as a dict; NULL: the node is none. */
static const struct rs_pickled *fields(const struct rs_pickled *n, const char *module, const char *name)
{
	if (!is_new(n, module, name) || !n->object->state || n->object->state->kind != RS_PICKLED_DICT)
		return NULL;
	return n->object->state;
}

/* Copies a node's text, or gives the copy that an equal text has. */
static int text_of(struct reading *r, const struct rs_pickled *n, const char *what, const char **ret)
{
	char *copy;

	if (!n || n->kind != RS_PICKLED_TEXT)
		return refuse(r->err, "%s is no text", what);
	if (!n->bytes.nr || memchr(n->bytes.at, 0, n->bytes.nr))
		return sc_fail(r->err, SC_E_UNSUPPORTED, "DCP: %s is empty, or has a zero byte", what);
	if (n->bytes.nr > SC_TENSOR_NAME_BYTES_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "DCP: %s has %" PRIu64 " bytes, at most %d", what, n->bytes.nr,
			       SC_TENSOR_NAME_BYTES_MAX);
	*ret = sc_map_get(&r->texts, n->bytes.at, n->bytes.nr);
	if (*ret)
		return 0;
	*ret = copy = sc_arena_copy(&r->to->arena, n->bytes.at, n->bytes.nr);
	return !copy || sc_map_put(&r->texts, copy, n->bytes.nr, copy) < 0 ? sc_nomem(r->err) : 0;
}

/* Tells whether a file's name stays in the folder. */
static bool stays(const char *path)
{
	if (*path == '/')
		return false;
	for (const char *at = path; at; at = strchr(at, '/')) {
		at += *at == '/';
		if (strncmp(at, "..", 2) == 0 && (!at[2] || at[2] == '/'))
			return false;
	}
	return true;
}

/* --- storage_data: (name, offsets) -> file, byte, length --- */

/*
 * Writes a key of the map of items to r->key: the address of the name, which text_of() keeps once, and the offsets.
 * For an object, dims is 0 and off NULL.
 */
static int item_key(struct reading *r, const char *name, const uint64_t *off, uint32_t dims)
{
	sc_buf_reset(&r->key);
	sc_buf_add(&r->key, &name, sizeof(name));
	sc_buf_byte(&r->key, off ? 't' : 'o');
	if (dims)
		sc_buf_add(&r->key, off, dims * sizeof(*off));
	return r->key.failed ? sc_nomem(r->err) : 0;
}

static int add_item(struct reading *r, const struct rs_pickled *index, const struct rs_pickled *info)
{
	const struct rs_pickled *k = fields(index, metadata, "MetadataIndex");
	const struct rs_pickled *v = fields(info, filesystem, "_StorageInfo"), *off, *changed;
	struct item *item = sc_arena_alloc(&r->arena, sizeof(*item));
	uint64_t *at = NULL;
	uint32_t dims = 0;
	const char *name, *key;

	if (!item)
		return sc_nomem(r->err);
	if (!k || !v)
		return refuse(r->err, "an entry of storage_data is no MetadataIndex and _StorageInfo");
	if (text_of(r, rs_pickled_get(k, "fqn"), "a name in storage_data", &name) < 0 ||
	    text_of(r, rs_pickled_get(v, "relative_path"), "the name of a file", &item->file) < 0 ||
	    rs_torch_size(rs_pickled_get(v, "offset"), "the offset of an item", &item->at, r->err) < 0 ||
	    rs_torch_size(rs_pickled_get(v, "length"), "the length of an item", &item->bytes, r->err) < 0)
		return r->err->code;
	if (!stays(item->file))
		return refuse(r->err, "'%s': the file '%s' is outside of the folder", name, item->file);
	changed = rs_pickled_get(v, "transform_descriptors");
	if (changed && changed->kind != RS_PICKLED_NONE && !(changed->kind == RS_PICKLED_LIST && !changed->items.nr) &&
	    !(changed->kind == RS_PICKLED_TUPLE && !changed->tuple.nr))
		return sc_fail(r->err, SC_E_UNSUPPORTED, "DCP: '%s' is stored through extensions, compressed perhaps: "
			       "such bytes cannot be read in place; save without them", name);
	off = rs_pickled_get(k, "offset");
	if (off && off->kind != RS_PICKLED_NONE && rs_torch_sizes(off, name, &r->arena, &dims, &at, r->err) < 0)
		return r->err->code;
	if (item_key(r, name, at, dims) < 0)
		return r->err->code;
	if (sc_map_get(&r->items, r->key.text, r->key.bytes))
		return refuse(r->err, "an item of '%s' is stored twice", name);
	key = sc_arena_copy(&r->arena, r->key.text, r->key.bytes);
	return !key || sc_map_put(&r->items, key, r->key.bytes, item) < 0 ? sc_nomem(r->err) : 0;
}

/* --- state_dict_metadata: name -> type, shape, chunks --- */

/* Gives the node of the type in TensorProperties: a dict, or the tuple of __getstate__(), in which the type is
 * first. */
static const struct rs_pickled *dtype_node(const struct rs_pickled *n)
{
	const struct rs_pickled *state = is_new(n, metadata, "TensorProperties") ? n->object->state : NULL;

	if (state && state->kind == RS_PICKLED_TUPLE && state->tuple.nr)
		return state->tuple.at[0];
	return rs_pickled_get(state, "dtype");
}

static int find_item(struct reading *r, const struct rs_dcp_tensor *t, struct rs_dcp_chunk *c)
{
	const struct item *item;

	if (item_key(r, t->name, c->off, t->dims) < 0)
		return r->err->code;
	item = sc_map_get(&r->items, r->key.text, r->key.bytes);
	if (!item && t->dims == 0) { /* a scalar may have no offsets */
		if (item_key(r, t->name, NULL, 0) < 0)
			return r->err->code;
		item = sc_map_get(&r->items, r->key.text, r->key.bytes);
	}
	if (!item)
		return refuse(r->err, "'%s': a chunk of it is stored in no file", t->name);
	c->file = item->file;
	c->at = item->at;
	c->bytes = item->bytes;
	return 0;
}

static int read_chunk(struct reading *r, const struct rs_dcp_tensor *t, const struct rs_pickled *n,
		      struct rs_dcp_chunk *c)
{
	const struct rs_pickled *f = fields(n, metadata, "ChunkStorageMetadata");
	uint64_t *off = NULL, *ext = NULL, end;
	uint32_t offs = 0, exts = 0;

	if (rs_torch_sizes(rs_pickled_get(f, "offsets"), t->name, &r->to->arena, &offs, &off, r->err) < 0 ||
	    rs_torch_sizes(rs_pickled_get(f, "sizes"), t->name, &r->to->arena, &exts, &ext, r->err) < 0)
		return r->err->code;
	if (offs != t->dims || exts != t->dims)
		return refuse(r->err, "'%s': a chunk has another number of dimensions", t->name);
	for (uint32_t i = 0; i < t->dims; i++)
		if (!sc_add_u64(off[i], ext[i], &end) || end > t->shape[i])
			return refuse(r->err, "'%s': a chunk is outside of the tensor", t->name);
	c->off = off;
	c->ext = ext;
	return find_item(r, t, c);
}

static int read_tensor(struct reading *r, const char *name, const struct rs_pickled *n)
{
	const struct rs_pickled *f = fields(n, metadata, "TensorStorageMetadata");
	const struct rs_pickled *chunks = rs_pickled_get(f, "chunks");
	const struct rs_pickled *type = dtype_node(rs_pickled_get(f, "properties"));
	struct rs_dcp_tensor t = {.name = name};
	uint64_t *shape = NULL;
	int dtype = rs_torch_dtype(type), rc = 0;
	size_t i = 0;

	if (!f || !chunks || chunks->kind != RS_PICKLED_LIST)
		return refuse(r->err, "'%s' has no list of chunks", name);
	if (!type || type->kind != RS_PICKLED_GLOBAL)
		return refuse(r->err, "'%s' has no type", name);
	if (dtype < 0)
		return sc_fail(r->err, SC_E_UNSUPPORTED, "DCP: '%s' is of type %.*s, which is not known", name,
			       (int)sc_min_u64(type->global.name.nr, 64), type->global.name.at);
	if (rs_torch_sizes(rs_pickled_get(f, "size"), name, &r->to->arena, &t.dims, &shape, r->err) < 0)
		return r->err->code;
	if (t.dims > SC_DIMS_MAX)
		return sc_fail(r->err, SC_E_LIMIT, "DCP: '%s' has %u dimensions, at most %d", name, t.dims,
			       SC_DIMS_MAX);
	t.dtype = (enum meta_dtype)dtype;
	t.shape = shape;
	t.nr = chunks->items.nr;
	t.chunks = sc_arena_array(&r->to->arena, t.nr ? t.nr : 1, sizeof(*t.chunks));
	if (!t.chunks)
		return sc_nomem(r->err);
	for (const struct rs_pickled_cell *c = chunks->items.first; rc == 0 && c; c = c->next)
		rc = read_chunk(r, &t, c->node, &t.chunks[i++]);
	if (rc == 0 && sc_vec_push(&r->to->tensors, t) < 0)
		rc = sc_nomem(r->err);
	return rc;
}

static int read_object(struct reading *r, const char *name)
{
	struct rs_dcp_object o = {.name = name};
	const struct item *item;

	if (item_key(r, name, NULL, 0) < 0)
		return r->err->code;
	item = sc_map_get(&r->items, r->key.text, r->key.bytes);
	if (!item)
		return refuse(r->err, "'%s', which is no tensor, is stored in no file", name);
	o.file = item->file;
	o.at = item->at;
	o.bytes = item->bytes;
	return sc_vec_push(&r->to->objects, o) < 0 ? sc_nomem(r->err) : 0;
}

static int read_named(struct reading *r, const struct rs_pickled *key, const struct rs_pickled *n)
{
	const char *name;

	if (text_of(r, key, "a name in state_dict_metadata", &name) < 0)
		return r->err->code;
	if (sc_map_get(&r->names, name, strlen(name)))
		return refuse(r->err, "'%s' is there twice", name);
	if (sc_map_put(&r->names, name, strlen(name), r) < 0)
		return sc_nomem(r->err);
	if (!is_new(n, metadata, "BytesStorageMetadata") &&
	    !(n->kind == RS_PICKLED_CALL && rs_pickled_is(n->object->what, metadata, "BytesStorageMetadata")))
		return read_tensor(r, name, n);
	return read_object(r, name);
}

/* --- the whole --- */

static int read_root(struct reading *r, const struct rs_pickled *root)
{
	const struct rs_pickled *f = fields(root, metadata, "Metadata");
	const struct rs_pickled *storage = rs_pickled_get(f, "storage_data");
	const struct rs_pickled *state = rs_pickled_get(f, "state_dict_metadata");
	int rc = 0;

	if (!storage || storage->kind != RS_PICKLED_DICT || !state || state->kind != RS_PICKLED_DICT)
		return refuse(r->err, "no state_dict_metadata and storage_data");
	for (const struct rs_pickled_cell *c = storage->items.first; rc == 0 && c; c = c->next->next)
		rc = add_item(r, c->node, c->next->node);
	for (const struct rs_pickled_cell *c = state->items.first; rc == 0 && c; c = c->next->next)
		rc = read_named(r, c->node, c->next->node);
	return rc;
}

int rs_dcp_read(const void *text, uint64_t bytes, struct rs_dcp *ret, struct sc_err *err)
{
	struct reading r = {.to = ret, .err = err};
	struct rs_pickle pickle;
	bool is;
	int rc;

	*ret = (struct rs_dcp){0};
	/* its class is the first thing that such a pickle names */
	if (!memmem(text, sc_min_u64(bytes, 256), metadata, sizeof(metadata) - 1))
		return 0;
	rc = rs_pickle_read(text, bytes, &pickle, err);
	if (rc < 0)
		return sc_wrap(err, rc, "DCP");
	is = is_new(pickle.root, metadata, "Metadata");
	if (is)
		rc = read_root(&r, pickle.root);
	rs_pickle_done(&pickle);
	sc_buf_done(&r.key);
	sc_map_done(&r.items);
	sc_map_done(&r.names);
	sc_map_done(&r.texts);
	sc_arena_done(&r.arena);
	if (rc < 0 || !is)
		rs_dcp_done(ret);
	return rc < 0 ? rc : is;
}

void rs_dcp_done(struct rs_dcp *dcp)
{
	sc_vec_done(&dcp->tensors);
	sc_vec_done(&dcp->objects);
	sc_arena_done(&dcp->arena);
	*dcp = (struct rs_dcp){0};
}
