/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses files that torch.save() writes: .pt, .pth, and .bin and .ckpt files that are such.  Tensors are known by the
 * keys that lead to them; all that is no tensor is the payload (torch_i.h).
 */
#include "reshard/codec/format/torch_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/codec/format/format_i.h"

/* --- is it one? --- */

static bool ends_with(const char *path, const char *suffix)
{
	size_t n = strlen(path), m = strlen(suffix);

	return n > m && strcmp(path + n - m, suffix) == 0;
}

/* .pt and .pth are torch's own; .bin and .ckpt others have, too: these are ours if they begin as an archive does, or as
 * torch before 1.6 began, which parse() refuses. */
static int is_ours(const struct rs_file *file, struct sc_err *err)
{
	static const char old[] = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19";
	char head[sizeof(old) - 1];
	int rc;

	if (ends_with(file->path, ".pt") || ends_with(file->path, ".pth"))
		return 1;
	if ((!ends_with(file->path, ".bin") && !ends_with(file->path, ".ckpt")) || file->bytes < sizeof(head))
		return 0;
	rc = file->read(file->arg, 0, sizeof(head), head, err);
	return rc < 0 ? rc : memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, old, sizeof(head)) == 0;
}

/* --- tensors out of objects --- */

struct taking {
	struct rs_torch *torch;
	struct rs_found *found;
	struct sc_map tensors;		/* by the place of the node that makes it */
	struct sc_map names;
	const struct rs_file *file;
	size_t room;
	struct sc_map storages;		/* that the payload carries: by key, number + 1 */
	struct {
		const struct rs_zip_record **at;
		size_t nr, room;
	} carried;
	uint64_t bytes;			/* of these */
	struct {
		const char **at;	/* names of tensors that stay, though nobody said that they are objects */
		size_t nr, room;
	} left;
	struct sc_err *err;
	int rc;				/* of rs_pickle_emit()'s callback, which has none */
};

static int64_t grad_of(const struct rs_pickled *args)
{
	const struct rs_pickled *grad = args->tuple.nr > 4 ? args->tuple.at[4] : NULL;

	return grad && grad->kind == RS_PICKLED_BOOL && grad->truth ? RS_REF_GRAD : 0;
}

static struct rs_pickled *node_with_ref(struct sc_arena *arena, const struct rs_pickled *n, const char *name);

/* Copies a call's arguments, with the reference in them. */
static struct rs_pickled *args_with_ref(struct sc_arena *arena, const struct rs_pickled *what,
					const struct rs_pickled *args, const char *name)
{
	struct rs_pickled *copy = rs_pickled_tuple(arena, args->tuple.nr, args->tuple.at);
	uint64_t at = rs_torch_is_typed(what, args) ? 2 : 0;

	if (!copy)
		return NULL;
	if (at == 0)
		copy->tuple.at[0] = node_with_ref(arena, args->tuple.at[0], name);
	else if (rs_torch_rebuilds(args->tuple.at[0]))
		copy->tuple.at[2] = rs_torch_make_ref(arena, name, RS_REF_ARGS | grad_of(args->tuple.at[2]));
	else
		copy->tuple.at[2] = args_with_ref(arena, args->tuple.at[0], args->tuple.at[2], name);
	return copy->tuple.at[at] ? copy : NULL;
}

/* Tells whether each call down to the one that makes the tensor is known; those of a DTensor are not. */
static bool is_known(const struct rs_pickled *n)
{
	const struct rs_pickled *what = n->object->what, *args = n->object->args;

	for (int i = 0; i < RS_TORCH_AROUND_MAX; i++) {
		if (rs_torch_rebuilds(what))
			return true;
		if (rs_torch_is_typed(what, args) && args->tuple.at[2]->kind == RS_PICKLED_TUPLE) {
			what = args->tuple.at[0];
			args = args->tuple.at[2];
		} else if (rs_torch_is_parameter(what, args) && args->tuple.at[0]->kind == RS_PICKLED_CALL) {
			n = args->tuple.at[0];
			what = n->object->what;
			args = n->object->args;
		} else {
			return false;
		}
	}
	return false;
}

/* What rs_torch_read() took for a tensor, with the reference in the place of the call that makes it from its storage.
 * Calls around it are copied, for others may have them, too; there are a few at most. */
static struct rs_pickled *node_with_ref(struct sc_arena *arena, const struct rs_pickled *n, const char *name)
{
	struct rs_pickled *copy, *args;

	if (rs_torch_rebuilds(n->object->what))
		return rs_torch_make_ref(arena, name, grad_of(n->object->args));
	args = args_with_ref(arena, n->object->what, n->object->args, name);
	copy = rs_pickled_call(arena, n->object->what, args);
	if (copy)
		copy->object->state = n->object->state;
	return copy;
}

static int add_found(struct taking *t, const struct rs_torch_tensor *made, const char *name)
{
	struct rs_found_tensor found = {.name = name, .dtype = (enum meta_dtype)made->dtype, .at = made->at};

	if (!is_known(made->node))
		return sc_fail(t->err, SC_E_UNSUPPORTED, "torch: tensor '%s' is a DTensor, whose placement holds for "
			       "one topology; save its to_local()", name);
	if (made->dims > SC_DIMS_MAX)
		return sc_fail(t->err, SC_E_LIMIT, "torch: tensor '%s' has %u dimensions, at most %d", name, made->dims,
			       SC_DIMS_MAX);
	found.shape.nr = (uint8_t)made->dims;
	for (uint32_t i = 0; i < made->dims; i++)
		found.shape.dim[i] = made->shape[i];
	if (!made->is_dense) {
		uint64_t *stride = sc_arena_array(&t->found->arena, made->dims + 1, sizeof(*stride));

		if (!stride)
			return sc_nomem(t->err);
		memcpy(stride, made->stride, made->dims * sizeof(*stride));
		found.stride = stride;
	}
	if (sc_map_get(&t->names, name, strlen(name)))
		return sc_fail(t->err, SC_E_FORMAT, "torch: there are two tensors '%s'", name);
	if (sc_map_put(&t->names, name, strlen(name), t) < 0 ||
	    sc_vec_grow((void **)&t->found->tensors, t->found->nr, &t->room, sizeof(found)) < 0)
		return sc_nomem(t->err);
	t->found->tensors[t->found->nr++] = found;
	return 0;
}

/* Tells whether a call makes a tensor of a kind that is not cut: a subclass, quantized, sparse, conjugated. */
static bool makes_other(const struct rs_pickled *n)
{
	static const char begin[] = "_rebuild_";
	const struct rs_pickled *what = n->kind == RS_PICKLED_CALL ? n->object->what : NULL;

	return what && what->kind == RS_PICKLED_GLOBAL && what->global.name.nr >= sizeof(begin) &&
	       memcmp(what->global.name.at, begin, sizeof(begin) - 1) == 0 && what->global.module.nr > 5 &&
	       memcmp(what->global.module.at, "torch.", 6) == 0;
}

static int note_left(struct taking *t, struct rs_pickle_walk *walk)
{
	char *name;

	if (rs_pickle_is_inside(walk))
		return 1;
	name = rs_pickle_path_in(walk, &t->found->arena, NULL);
	if (!name)
		return sc_nomem(t->err);
	if (t->file->is_object && t->file->is_object(t->file->arg, name))
		return 1;
	return sc_vec_push(&t->left, name) < 0 ? sc_nomem(t->err) : 1;
}

static int on_node(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct taking *t = arg;
	const struct rs_torch_tensor *made = sc_map_get(&t->tensors, (const char *)&n, sizeof(n));
	struct rs_pickled **slot = rs_pickle_slot(walk), *ref;
	const struct rs_pickled_bytes *path;
	int64_t flags;
	size_t bytes;
	char *name;
	int rc;

	if (!made && rs_torch_ref(n, &path, &flags))
		return 1; /* of a dict that is at two places: named by the first */
	if (made ? made->dtype < 0 : makes_other(n))
		return note_left(t, walk);
	if (!made || rs_pickle_is_inside(walk))
		return made != NULL;
	name = rs_pickle_path_in(walk, &t->found->arena, &bytes);
	if (name && t->file->is_object && t->file->is_object(t->file->arg, name))
		return 1;
	rc = !name ? sc_nomem(t->err)
	     : strlen(name) != bytes ? sc_fail(t->err, SC_E_FORMAT, "torch: '%s': a key has a 0 byte in it", name)
				     : add_found(t, made, name);
	/* what is left behind keeps a dict at two places from being asked twice */
	ref = rc < 0 ? NULL
	      : t->file->tensors_only ? rs_pickled_none(&t->torch->arena)
				      : node_with_ref(&t->torch->arena, n, name);
	if (!ref)
		return rc < 0 ? rc : sc_nomem(t->err);
	*(slot ? slot : &t->torch->pickle.root) = ref;
	return 1;
}

static int take_tensors(struct taking *t)
{
	const size_t nr = t->torch->tensors.nr;
	struct rs_found_tensor *at;
	int rc = sc_map_reserve(&t->tensors, nr) < 0 || sc_map_reserve(&t->names, nr) < 0 ? sc_nomem(t->err) : 0;

	for (size_t i = 0; rc == 0 && i < nr; i++) {
		struct rs_torch_tensor *x = &t->torch->tensors.at[i];

		rc = sc_map_put(&t->tensors, (const char *)&x->node, sizeof(x->node), x) < 0 ? sc_nomem(t->err) : 0;
	}
	if (rc == 0)
		rc = rs_pickle_walk(&t->torch->pickle, on_node, t, t->err);
	if (rc == 0 && t->left.nr) {
		const char **left = sc_arena_array(&t->found->arena, t->left.nr + 1, sizeof(*left));

		if (left)
			memcpy(left, t->left.at, t->left.nr * sizeof(*left));
		t->found->left = left;
		rc = left ? 0 : sc_nomem(t->err);
	}
	/* the array goes into the arena */
	at = rc == 0 ? sc_arena_array(&t->found->arena, t->found->nr + 1, sizeof(*at)) : NULL;
	if (rc == 0 && !at)
		rc = sc_nomem(t->err);
	if (at && t->found->nr) {
		memcpy(at, t->found->tensors, t->found->nr * sizeof(*at));
		qsort(at, t->found->nr, sizeof(*at), rs_found_by_place);
	}
	sc_sys.release(t->found->tensors);
	t->found->tensors = at;
	return rc;
}

/* --- the payload --- */

static int carry(struct taking *t, const struct rs_pickled *id, uint64_t *ret)
{
	const struct rs_pickled *key = id->kind == RS_PICKLED_TUPLE && id->tuple.nr == 5 ? id->tuple.at[2] : NULL;
	const struct rs_zip_record *record;
	char *name;

	if (!key || key->kind != RS_PICKLED_TEXT || !rs_pickled_is_text(id->tuple.at[0], "storage"))
		return sc_fail(t->err, SC_E_FORMAT, "torch: a persistent id that is no storage");
	*ret = (uint64_t)(uintptr_t)sc_map_get(&t->storages, key->bytes.at, key->bytes.nr);
	if (*ret)
		return 0;
	name = sc_arena_printf(&t->torch->arena, "data/%.*s", (int)sc_min_u64(key->bytes.nr, 1000), key->bytes.at);
	record = name ? rs_zip_find(&t->torch->zip, name) : NULL;
	if (!name)
		return sc_nomem(t->err);
	if (!record)
		return sc_fail(t->err, SC_E_FORMAT, "torch: storage '%s' has no record", name + 5);
	if (record->bytes > SC_PAYLOAD_BYTES_MAX - t->bytes)
		return sc_fail(t->err, SC_E_LIMIT, "torch: tensors inside of objects, and of types that safetensors "
			       "has not, have more than %u bytes", SC_PAYLOAD_BYTES_MAX);
	t->bytes += record->bytes;
	*ret = t->carried.nr + 1;
	if (sc_vec_push(&t->carried, record) < 0 ||
	    sc_map_put(&t->storages, key->bytes.at, key->bytes.nr, (void *)(uintptr_t)*ret) < 0)
		return sc_nomem(t->err);
	return 0;
}

/* Gives a storage that stays its number in the payload as key. */
static struct rs_pickled *number_storage(void *arg, struct rs_pickled *n)
{
	struct taking *t = arg;
	struct sc_arena *arena = &t->torch->arena;
	const struct rs_pickled_bytes *name;
	uint64_t number = 0;
	int64_t flags;

	if (t->rc < 0 || n->kind != RS_PICKLED_PERSIST || rs_torch_ref(n, &name, &flags))
		return n;
	t->rc = carry(t, n->id, &number);
	if (t->rc < 0)
		return n;
	n = rs_torch_number(arena, n->id, number - 1);
	if (!n) {
		t->rc = sc_nomem(t->err);
		return rs_pickled_none(arena);
	}
	return n;
}

static void put_u64(char *to, uint64_t x)
{
	for (int i = 0; i < 8; i++)
		to[i] = (char)(x >> 8 * i);
}

static int make_payload(struct taking *t, const struct rs_window *w)
{
	struct rs_found *found = t->found;
	struct sc_buf pickle = {0};
	uint64_t bytes;
	char *at;
	int rc = rs_pickle_emit(t->torch->pickle.root, number_storage, t, &pickle, t->err);

	if (rc == 0)
		rc = t->rc;
	bytes = RS_PAYLOAD_HEAD_BYTES + 8 * t->carried.nr + pickle.bytes + t->bytes;
	if (rc == 0 && bytes > SC_PAYLOAD_BYTES_MAX)
		rc = sc_fail(t->err, SC_E_LIMIT, "torch: what is no tensor has %" PRIu64 " bytes, at most %u", bytes,
			     SC_PAYLOAD_BYTES_MAX);
	at = rc == 0 ? sc_arena_alloc(&found->arena, bytes + 1) : NULL;
	if (rc == 0 && !at)
		rc = sc_nomem(t->err);
	if (rc == 0) {
		found->payload = at;
		found->payload_bytes = bytes;
		put_u64(at, pickle.bytes);
		put_u64(at + 8, t->carried.nr);
		at += RS_PAYLOAD_HEAD_BYTES;
		for (size_t i = 0; i < t->carried.nr; i++, at += 8)
			put_u64(at, t->carried.at[i]->bytes);
		memcpy(at, pickle.text, pickle.bytes);
		at += pickle.bytes;
	}
	for (size_t i = 0; rc == 0 && i < t->carried.nr; i++) {
		const struct rs_zip_record *r = t->carried.at[i];

		rc = rs_window_read(w, r->at, r->bytes, at, r->name, t->err);
		at += r->bytes;
	}
	sc_buf_done(&pickle);
	return rc;
}

static int parse(const struct rs_file *file, struct rs_found *ret, struct sc_err *err)
{
	const struct rs_window w = {.bytes = file->bytes, .arg = file->arg, .read = file->read};
	struct rs_torch torch;
	struct taking t = {.torch = &torch, .found = ret, .file = file, .err = err};
	int rc = rs_torch_read(&w, &torch, err);

	if (rc < 0)
		return rc;
	rc = take_tensors(&t);
	if (rc == 0 && !file->tensors_only)
		rc = make_payload(&t, &w);
	sc_map_done(&t.tensors);
	sc_map_done(&t.names);
	sc_map_done(&t.storages);
	sc_vec_done(&t.carried);
	sc_vec_done(&t.left);
	rs_torch_done(&torch);
	return rc;
}

/* Makes the path of one key. */
static const char *name_of(const char *text, struct sc_arena *arena)
{
	struct sc_buf path = {0};
	const char *name;

	rs_pickle_key(&(struct rs_pickled_bytes){text, strlen(text)}, &path);
	name = path.failed ? NULL : sc_arena_copy(arena, path.text, path.bytes);
	sc_buf_done(&path);
	return name;
}

const struct rs_format_ops rs_format_torch = {
	.name = "torch", .is = is_ours, .parse = parse, .describe = rs_torch_describe, .name_of = name_of,
	.objects = rs_torch_objects,
};
