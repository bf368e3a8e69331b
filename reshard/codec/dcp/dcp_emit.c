/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a .metadata, as the classes of torch.distributed.checkpoint are pickled. */
#include <string.h>

#include "reshard/codec/dcp/dcp.h"

#define METADATA "torch.distributed.checkpoint.metadata"

/* Nodes that the pickle has once, and refers to again. */
struct words {
	struct sc_arena arena;
	struct rs_pickled *tensor, *properties, *chunk, *index, *info, *size, *layout, *format, *bytes, *none;
	struct rs_pickled *k_properties, *k_size, *k_chunks, *k_offsets, *k_sizes, *k_fqn, *k_offset, *k_index, *k_path,
		*k_length;
	struct sc_map files;		/* their names, as nodes */
};

static struct rs_pickled *often(struct rs_pickled *n)
{
	if (n)
		n->is_single = false;
	return n;
}

static struct rs_pickled *text(struct words *w, const char *at)
{
	return rs_pickled_text(&w->arena, at, strlen(at));
}

static struct rs_pickled *word(struct words *w, const char *at)
{
	return often(text(w, at));
}

static struct rs_pickled *class(struct words *w, const char *module, const char *name)
{
	return often(rs_pickled_global(&w->arena, module, name));
}

static struct rs_pickled *call1(struct words *w, struct rs_pickled *what, struct rs_pickled *arg)
{
	return rs_pickled_call(&w->arena, what, rs_pickled_tuple(&w->arena, 1, &arg));
}

static void begin(struct words *w)
{
	*w = (struct words){0};
	w->tensor = class(w, METADATA, "TensorStorageMetadata");
	w->properties = class(w, METADATA, "TensorProperties");
	w->chunk = class(w, METADATA, "ChunkStorageMetadata");
	w->index = class(w, METADATA, "MetadataIndex");
	w->info = class(w, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
	w->bytes = class(w, METADATA, "BytesStorageMetadata");
	w->none = often(rs_pickled_none(&w->arena));
	w->size = class(w, "torch", "Size");
	w->layout = often(call1(w, class(w, "torch.serialization", "_get_layout"), text(w, "torch.strided")));
	w->format = often(call1(w, class(w, METADATA, "_MEM_FORMAT_ENCODING"), rs_pickled_int(&w->arena, 0)));
	w->k_properties = word(w, "properties");
	w->k_size = word(w, "size");
	w->k_chunks = word(w, "chunks");
	w->k_offsets = word(w, "offsets");
	w->k_sizes = word(w, "sizes");
	w->k_fqn = word(w, "fqn");
	w->k_offset = word(w, "offset");
	w->k_index = word(w, "index");
	w->k_path = word(w, "relative_path");
	w->k_length = word(w, "length");
}

/* Adds a pair to a dict, and gives the dict; NULL: one of the nodes is NULL, or there is no memory. */
static struct rs_pickled *with(struct words *w, struct rs_pickled *to, struct rs_pickled *key, struct rs_pickled *value)
{
	return to && rs_pickled_add(&w->arena, &to->items, key) && rs_pickled_add(&w->arena, &to->items, value) ? to
														: NULL;
}

static struct rs_pickled *dict(struct words *w)
{
	return rs_pickled_dict(&w->arena);
}

/* Makes a torch.Size. */
static struct rs_pickled *sizes(struct words *w, const uint64_t *at, uint32_t nr)
{
	struct rs_pickled *parts[64];

	for (uint32_t i = 0; i < nr; i++)
		parts[i] = rs_pickled_int(&w->arena, (int64_t)at[i]);
	return call1(w, w->size, rs_pickled_tuple(&w->arena, nr, parts));
}

static struct rs_pickled *file(struct words *w, const char *name)
{
	struct rs_pickled *n = sc_map_get(&w->files, name, strlen(name));

	if (n)
		return n;
	n = word(w, name);
	return n && sc_map_put(&w->files, name, strlen(name), n) == 0 ? n : NULL;
}

static struct rs_pickled *tensor(struct words *w, const struct rs_dcp_tensor *t)
{
	struct rs_pickled *properties[] = {rs_pickled_global(&w->arena, "torch", rs_torch_dtype_name(t->dtype)),
					   w->layout, rs_pickled_bool(&w->arena, false), w->format,
					   rs_pickled_bool(&w->arena, false)};
	struct rs_pickled *chunks = rs_pickled_list(&w->arena), *d;

	for (uint64_t i = 0; chunks && i < t->nr; i++) {
		const struct rs_dcp_chunk *c = &t->chunks[i];

		d = with(w, dict(w), w->k_offsets, sizes(w, c->off, t->dims));
		d = with(w, d, w->k_sizes, sizes(w, c->ext, t->dims));
		if (!rs_pickled_add(&w->arena, &chunks->items, rs_pickled_new(&w->arena, w->chunk, d)))
			chunks = NULL;
	}
	d = with(w, dict(w), w->k_properties, rs_pickled_new(&w->arena, w->properties,
							     rs_pickled_tuple(&w->arena, 5, properties)));
	d = with(w, d, w->k_size, sizes(w, t->shape, t->dims));
	return rs_pickled_new(&w->arena, w->tensor, with(w, d, w->k_chunks, chunks));
}

/* Adds the place of an item to storage_data; for an object, offset and index are None. */
static struct rs_pickled *with_item(struct words *w, struct rs_pickled *storage, struct rs_pickled *name,
				    struct rs_pickled *offset, struct rs_pickled *index, const struct rs_dcp_object *o)
{
	struct rs_pickled *key = with(w, dict(w), w->k_fqn, name), *info;

	key = with(w, key, w->k_offset, offset);
	key = with(w, key, w->k_index, index);
	info = with(w, dict(w), w->k_path, file(w, o->file));
	info = with(w, info, w->k_offset, rs_pickled_int(&w->arena, (int64_t)o->at));
	info = with(w, info, w->k_length, rs_pickled_int(&w->arena, (int64_t)o->bytes));
	return with(w, storage, rs_pickled_new(&w->arena, w->index, key), rs_pickled_new(&w->arena, w->info, info));
}

static struct rs_pickled *add_stored(struct words *w, struct rs_pickled *storage, struct rs_pickled *name,
				     const struct rs_dcp_tensor *t)
{
	for (uint64_t i = 0; i < t->nr; i++) {
		const struct rs_dcp_chunk *c = &t->chunks[i];

		storage = with_item(w, storage, name, sizes(w, c->off, t->dims),
				    rs_pickled_int(&w->arena, (int64_t)i),
				    &(struct rs_dcp_object){.file = c->file, .at = c->at, .bytes = c->bytes});
	}
	return storage;
}

/* Makes the whole description; NULL: no memory. */
static struct rs_pickled *root(struct words *w, const struct rs_dcp *dcp)
{
	struct rs_pickled *state = dict(w), *paths = dict(w), *storage = dict(w), *about = dict(w), *all = dict(w);

	for (size_t i = 0; i < dcp->tensors.nr; i++) {
		const struct rs_dcp_tensor *t = &dcp->tensors.at[i];
		struct rs_pickled *name = word(w, t->name);

		state = with(w, state, name, tensor(w, t));
		paths = with(w, paths, name, rs_pickled_tuple(&w->arena, 1, &name));
		storage = add_stored(w, storage, name, t);
	}
	for (size_t i = 0; i < dcp->objects.nr; i++) {
		const struct rs_dcp_object *o = &dcp->objects.at[i];
		struct rs_pickled *name = word(w, o->name);

		state = with(w, state, name, rs_pickled_new(&w->arena, w->bytes, dict(w)));
		paths = with(w, paths, name, rs_pickled_tuple(&w->arena, 1, &name));
		storage = with_item(w, storage, name, w->none, w->none, o);
	}
	about = with(w, about, text(w, "checkpoint_id"), w->none);
	about = with(w, about, text(w, "save_id"), w->none);
	about = with(w, about, text(w, "load_id"), w->none);
	about = with(w, about, text(w, "modules"), rs_pickled_list(&w->arena));
	all = with(w, all, text(w, "state_dict_metadata"), state);
	all = with(w, all, text(w, "planner_data"), paths);
	all = with(w, all, text(w, "storage_data"), storage);
	all = with(w, all, text(w, "storage_meta"),
		   rs_pickled_new(&w->arena, class(w, METADATA, "StorageMeta"), about));
	all = with(w, all, text(w, "version"), text(w, "1.0.0"));
	return rs_pickled_new(&w->arena, class(w, METADATA, "Metadata"), all);
}

int rs_dcp_emit(const struct rs_dcp *dcp, struct sc_buf *ret, struct sc_err *err)
{
	struct words w;
	struct rs_pickled *all;
	int rc;

	for (size_t i = 0; i < dcp->tensors.nr; i++)
		if (!rs_torch_dtype_name(dcp->tensors.at[i].dtype))
			return sc_fail(err, SC_E_UNSUPPORTED, "torch has no type %s, which tensor '%s' has",
				       meta_dtype_name(dcp->tensors.at[i].dtype), dcp->tensors.at[i].name);
	begin(&w);
	all = root(&w, dcp);
	rc = all ? rs_pickle_emit(all, NULL, NULL, ret, err) : sc_nomem(err);
	sc_map_done(&w.files);
	sc_arena_done(&w.arena);
	return rc;
}
