/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/torch/torch.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"

#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "torch: " __VA_ARGS__)

#define DIMS_MAX 64
#define SIZE_MAX_TORCH (INT64_C(1) << 62)
#define VERSION_MAX 10
#define NESTED_MAX 16		/* tensors with attributes, of tensors with attributes */
#define NO_TYPE (-1)

enum { MARK_NONE = 1, MARK_TENSOR };	/* of nodes: what they are known to be */

struct type {
	const char *name, *dtype;	/* dtype: safetensors' name */
	unsigned element;
};

/* The classes of storages, and their types. */
static const struct type storages[] = {
	{"DoubleStorage", "F64", 8}, {"FloatStorage", "F32", 4}, {"HalfStorage", "F16", 2},
	{"BFloat16Storage", "BF16", 2}, {"LongStorage", "I64", 8}, {"IntStorage", "I32", 4},
	{"ShortStorage", "I16", 2}, {"CharStorage", "I8", 1}, {"ByteStorage", "U8", 1}, {"BoolStorage", "BOOL", 1},
	{"ComplexFloatStorage", "C64", 8}, {"ComplexDoubleStorage", NULL, 16}, {"UntypedStorage", "U8", 1},
	{"QInt8Storage", "I8", 1}, {"QUInt8Storage", "U8", 1}, {"QInt32Storage", "I32", 4}, {NULL}};

/* The names of types in the module torch. */
static const struct type dtypes[] = {
	{"float64", "F64", 8}, {"double", "F64", 8}, {"float32", "F32", 4}, {"float", "F32", 4}, {"float16", "F16", 2},
	{"half", "F16", 2}, {"bfloat16", "BF16", 2}, {"int64", "I64", 8}, {"long", "I64", 8}, {"int32", "I32", 4},
	{"int", "I32", 4}, {"int16", "I16", 2}, {"short", "I16", 2}, {"int8", "I8", 1}, {"uint8", "U8", 1},
	{"bool", "BOOL", 1}, {"uint16", "U16", 2}, {"uint32", "U32", 4}, {"uint64", "U64", 8}, {"complex64", "C64", 8},
	{"complex128", NULL, 16}, {"float8_e4m3fn", "F8_E4M3", 1}, {"float8_e5m2", "F8_E5M2", 1},
	{"float8_e4m3fnuz", "F8_E4M3FNUZ", 1}, {"float8_e5m2fnuz", "F8_E5M2FNUZ", 1}, {"float8_e8m0fnu", "F8_E8M0", 1},
	{"float4_e2m1fn_x2", NULL, 1}, {NULL}};

struct reading {
	struct rs_torch *to;
	struct sc_map storages;		/* by key */
	struct sc_map made;		/* tensors, by the place of the node that makes them */
	struct sc_err *err;
};

static const struct type *type_of(const struct type *types, const struct rs_pickled_bytes *name)
{
	while (types->name && (strlen(types->name) != name->nr || memcmp(types->name, name->at, name->nr) != 0))
		types++;
	return types->name ? types : NULL;
}

static int dtype_of(const struct type *type)
{
	return type->dtype ? meta_dtype_find(type->dtype, strlen(type->dtype)) : NO_TYPE;
}

int rs_torch_size(const struct rs_pickled *n, const char *what, uint64_t *ret, struct sc_err *err)
{
	if (!n || n->kind != RS_PICKLED_INT || n->number < 0 || n->number >= SIZE_MAX_TORCH)
		return refuse(err, "%s is no size", what);
	*ret = (uint64_t)n->number;
	return 0;
}

int rs_torch_sizes(const struct rs_pickled *n, const char *what, struct sc_arena *arena, uint32_t *ret_nr,
		   uint64_t **ret, struct sc_err *err)
{
	const struct rs_pickled_cell *cell;
	uint64_t nr;
	int rc = 0;

	if (n && n->kind == RS_PICKLED_CALL && rs_pickled_is(n->object->what, "torch", "Size") &&
	    n->object->args->tuple.nr == 1)
		n = rs_pickled_arg(n, 0);
	if (!n || (n->kind != RS_PICKLED_TUPLE && n->kind != RS_PICKLED_LIST))
		return refuse(err, "%s is no tuple", what);
	nr = n->kind == RS_PICKLED_LIST ? n->items.nr : n->tuple.nr;
	if (nr > DIMS_MAX)
		return refuse(err, "%s has %" PRIu64 " dimensions", what, nr);
	*ret_nr = (uint32_t)nr;
	*ret = sc_arena_array(arena, nr ? nr : 1, sizeof(**ret));
	if (!*ret)
		return sc_nomem(err);
	cell = n->kind == RS_PICKLED_LIST ? n->items.first : NULL;
	for (uint64_t i = 0; rc == 0 && i < nr; i++) {
		rc = rs_torch_size(cell ? cell->node : n->tuple.at[i], what, &(*ret)[i], err);
		cell = cell ? cell->next : NULL;
	}
	return rc;
}

/* Gives the type that a node such as torch.float32 names. */
static const struct type *type_of_dtype(const struct rs_pickled *n)
{
	static const char module[] = "torch";

	if (!n || n->kind != RS_PICKLED_GLOBAL || n->global.module.nr != sizeof(module) - 1 ||
	    memcmp(n->global.module.at, module, sizeof(module) - 1) != 0)
		return NULL;
	return type_of(dtypes, &n->global.name);
}

const char *rs_torch_dtype_name(enum meta_dtype dtype)
{
	const struct type *t = dtypes;

	while (t->name && (!t->dtype || strcmp(t->dtype, meta_dtype_name(dtype)) != 0))
		t++;
	return t->name;
}

int rs_torch_dtype(const struct rs_pickled *n)
{
	const struct type *type = type_of_dtype(n);

	return type ? dtype_of(type) : NO_TYPE;
}

/* --- storages --- */

/* Gives the key of a storage: text, or bytes of Python 2. */
static const struct rs_pickled_bytes *key_of(const struct rs_pickled *n)
{
	return n->kind == RS_PICKLED_TEXT || n->kind == RS_PICKLED_BYTES ? &n->bytes : NULL;
}

static int add_storage(struct reading *r, const char *key, const struct type *type, uint64_t bytes,
		       struct rs_torch_storage **ret)
{
	char *name = sc_arena_printf(&r->to->arena, "data/%s", key);
	const struct rs_zip_record *record = name ? rs_zip_find(&r->to->zip, name) : NULL;
	struct rs_torch_storage *s;

	if (!name)
		return sc_nomem(r->err);
	if (!record)
		return refuse(r->err, "storage '%s' has no record", key);
	if (record->bytes != bytes)
		return refuse(r->err, "storage '%s' has %" PRIu64 " bytes, its record %" PRIu64, key, bytes,
			      record->bytes);
	s = sc_arena_alloc(&r->to->arena, sizeof(*s));
	if (!s)
		return sc_nomem(r->err);
	*s = (struct rs_torch_storage){key, dtype_of(type), type->element, record->at, record->bytes};
	*ret = s;
	return sc_map_put(&r->storages, s->key, strlen(s->key), s) < 0 ? sc_nomem(r->err) : 0;
}

/* Reads the persistent id of a storage: ("storage", class, key, location, elements). */
static int storage_of(struct reading *r, const struct rs_pickled *persist, struct rs_torch_storage **ret)
{
	const struct rs_pickled *id = persist->id, *const *at = (const struct rs_pickled *const *)id->tuple.at;
	const struct rs_pickled_bytes *bytes;
	const struct type *type;
	uint64_t elements = 0;
	char *key;

	if (id->kind != RS_PICKLED_TUPLE || id->tuple.nr != 5 || !key_of(at[0]) || at[0]->bytes.nr != 7 ||
	    memcmp(at[0]->bytes.at, "storage", 7) != 0)
		return refuse(r->err, "a persistent id that is no storage");
	bytes = key_of(at[2]);
	if (!bytes && at[2]->kind != RS_PICKLED_INT)
		return refuse(r->err, "a storage without a key");
	key = bytes ? sc_arena_copy(&r->to->arena, bytes->at, bytes->nr)
		    : sc_arena_printf(&r->to->arena, "%" PRId64, at[2]->number);
	if (!key)
		return sc_nomem(r->err);
	type = at[1]->kind == RS_PICKLED_GLOBAL ? type_of(storages, &at[1]->global.name) : NULL;
	if (!type)
		return refuse(r->err, "storage '%s' is of a type that is not known", key);
	if (rs_torch_size(at[4], "the length of a storage", &elements, r->err) < 0)
		return r->err->code;
	if (!sc_mul_u64(elements, type->element, &elements))
		return refuse(r->err, "storage '%s': its size overflows", key);
	*ret = sc_map_get(&r->storages, key, strlen(key));
	if (!*ret)
		return add_storage(r, key, type, elements, ret);
	return (*ret)->bytes == elements && (*ret)->element == type->element && (*ret)->dtype == dtype_of(type)
		       ? 0 : refuse(r->err, "storage '%s' is used as two types or sizes", key);
}

/* --- tensors --- */

/* Checks that a tensor lies in its storage. */
static int check_place(struct reading *r, const struct rs_torch_tensor *t, uint64_t offset)
{
	uint64_t elements = 1, last = offset, more;
	bool fits = true;

	for (uint32_t i = 0; i < t->dims; i++)
		if (t->shape[i] == 0)
			return 0;
	for (uint32_t i = 0; i < t->dims; i++) {
		if (!sc_mul_u64(elements, t->shape[i], &elements) || elements >= SIZE_MAX_TORCH)
			return refuse(r->err, "a tensor of storage '%s': its size overflows", t->storage->key);
		fits = fits && sc_mul_u64(t->shape[i] - 1, t->stride[i], &more) && sc_add_u64(last, more, &last);
	}
	fits = fits && sc_add_u64(last, 1, &last) && sc_mul_u64(last, t->element, &last) && last <= t->storage->bytes;
	return fits ? 0 : refuse(r->err, "a tensor at element %" PRIu64 " runs past its storage '%s', which has %"
				 PRIu64 " bytes", offset, t->storage->key, t->storage->bytes);
}

static bool is_dense(const struct rs_torch_tensor *t)
{
	uint64_t want = 1;

	for (uint32_t i = t->dims; i-- > 0;) {
		if (t->shape[i] != 1 && t->stride[i] != want)
			return false;
		want *= t->shape[i];
	}
	return true;
}

static bool is_empty(const struct rs_torch_tensor *t)
{
	for (uint32_t i = 0; i < t->dims; i++)
		if (t->shape[i] == 0)
			return true;
	return false;
}

/* Tells whether a flag of a tensor's metadata (conj, neg) is true: its bytes are then not its values. */
static bool any_true(const struct rs_pickled *n)
{
	if (!n || n->kind != RS_PICKLED_DICT)
		return false;
	for (const struct rs_pickled_cell *c = n->items.first; c; c = c->next->next)
		if (c->next->node->kind == RS_PICKLED_BOOL && c->next->node->truth)
			return true;
	return false;
}

/* A call: a function and its arguments. */
struct call {
	struct rs_pickled *what, *args;
};

static struct rs_pickled *arg(const struct call *c, uint64_t i)
{
	return i < c->args->tuple.nr ? c->args->tuple.at[i] : NULL;
}

/*
 * Reads the arguments of _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]).  That of
 * v3 has a dtype before metadata, the first version has neither requires_grad nor hooks.
 * Returns 1 (a tensor), 0 (a tensor whose bytes are not its values) or an error.
 */
static int rebuild(struct reading *r, const struct call *c, struct rs_torch_tensor *t)
{
	const bool first = rs_pickled_is(c->what, "torch._utils", "_rebuild_tensor");
	const bool third = rs_pickled_is(c->what, "torch._utils", "_rebuild_tensor_v3");
	struct rs_torch_storage *s = NULL;
	uint64_t offset = 0, *shape = NULL, *stride = NULL;
	uint32_t strides = 0;
	const struct type *type = NULL;

	if (c->args->tuple.nr < (first ? 4 : 6) || arg(c, 0)->kind != RS_PICKLED_PERSIST)
		return refuse(r->err, "a tensor of what is no storage");
	if (storage_of(r, arg(c, 0), &s) < 0 || rs_torch_size(arg(c, 1), "a storage offset", &offset, r->err) < 0 ||
	    rs_torch_sizes(arg(c, 2), "a shape", &r->to->arena, &t->dims, &shape, r->err) < 0 ||
	    rs_torch_sizes(arg(c, 3), "a tuple of strides", &r->to->arena, &strides, &stride, r->err) < 0)
		return r->err->code;
	if (strides != t->dims)
		return refuse(r->err, "a tensor of %u dimensions and %u strides", t->dims, strides);
	if (third)
		type = type_of_dtype(arg(c, 6));
	if (third && !type)
		return refuse(r->err, "a tensor of a type that is not known");
	t->storage = s;
	t->dtype = type ? dtype_of(type) : s->dtype;
	t->element = type ? type->element : s->element;
	t->shape = shape;
	t->stride = stride;
	if (check_place(r, t, offset) < 0)
		return r->err->code;
	t->at = is_empty(t) ? s->at : s->at + offset * t->element;
	t->is_dense = is_empty(t) || is_dense(t);
	return !any_true(first ? NULL : arg(c, third ? 7 : 6));
}

static int made_by(struct reading *r, struct rs_pickled *n, int nested, const struct rs_torch_tensor **ret);

/* Reads the state of a DTensor, of _rebuild_from_type_v2(function, class, arguments, state): gives the part of the
 * tensor that this rank has. */
static int rebuild_dtensor(struct reading *r, const struct rs_pickled *state, int nested, struct rs_torch_tensor *t)
{
	const struct rs_torch_tensor *part;
	int rc;

	if (state && state->kind == RS_PICKLED_TUPLE && state->tuple.nr) /* (None, slots) */
		state = state->tuple.at[state->tuple.nr - 1];
	rc = made_by(r, rs_pickled_get(state, "_local_tensor"), nested + 1, &part);
	if (rc > 0) {
		*t = *part;
		t->spec = rs_pickled_get(state, "_spec");
	}
	return rc;
}

/* Gives the tensor that a call makes: 1, 0 (the call makes none) or an error. */
static int tensor_of(struct reading *r, struct call c, int nested, struct rs_torch_tensor *t)
{
	for (; nested < NESTED_MAX; nested++) {
		const struct rs_torch_tensor *inner;
		int rc;

		if (rs_pickled_is(c.what, "torch._utils", "_rebuild_tensor_v2") ||
		    rs_pickled_is(c.what, "torch._utils", "_rebuild_tensor_v3") ||
		    rs_pickled_is(c.what, "torch._utils", "_rebuild_tensor"))
			return rebuild(r, &c, t);
		if (rs_pickled_is(c.what, "torch._utils", "_rebuild_parameter") ||
		    rs_pickled_is(c.what, "torch._utils", "_rebuild_parameter_with_state")) {
			rc = made_by(r, arg(&c, 0), nested + 1, &inner);
			if (rc > 0) {
				*t = *inner;
				t->spec = NULL;
			}
			return rc;
		}
		if (!rs_pickled_is(c.what, "torch._tensor", "_rebuild_from_type_v2") || c.args->tuple.nr != 4 ||
		    arg(&c, 2)->kind != RS_PICKLED_TUPLE)
			return 0;
		if (rs_pickled_is(arg(&c, 1), "torch.distributed.tensor", "DTensor"))
			return rebuild_dtensor(r, arg(&c, 3), nested, t);
		/* a tensor with attributes of Python's */
		if (!rs_pickled_is(arg(&c, 1), "torch", "Tensor") &&
		    !rs_pickled_is(arg(&c, 1), "torch.nn.parameter", "Parameter") &&
		    !rs_pickled_is(arg(&c, 1), "torch.nn.parameter", "Buffer"))
			return 0;
		c = (struct call){arg(&c, 0), arg(&c, 2)};
	}
	return 0;
}

/* Gives the tensor that a node is: 1, 0 (it is none) or an error.  The node's mark keeps the answer for the next
 * call. */
static int made_by(struct reading *r, struct rs_pickled *n, int nested, const struct rs_torch_tensor **ret)
{
	struct rs_torch_tensor t = {0}, *made;
	int rc;

	*ret = NULL;
	if (!n || n->kind != RS_PICKLED_CALL || n->mark == MARK_NONE)
		return 0;
	if (n->mark == MARK_TENSOR) {
		*ret = sc_map_get(&r->made, (const char *)&n, sizeof(n));
		return 1;
	}
	rc = tensor_of(r, (struct call){n->object->what, n->object->args}, nested, &t);
	if (rc <= 0) {
		n->mark = nested ? 0 : MARK_NONE;
		return rc;
	}
	made = sc_arena_alloc(&r->to->arena, sizeof(*made));
	if (!made)
		return sc_nomem(r->err);
	*made = t;
	made->node = n;
	if (sc_map_put(&r->made, (const char *)&made->node, sizeof(made->node), made) < 0)
		return sc_nomem(r->err);
	n->mark = MARK_TENSOR;
	*ret = made;
	return 1;
}

static int add_tensor(struct reading *r, const struct rs_pickle_walk *walk, const struct rs_torch_tensor *made)
{
	struct rs_torch_tensor t = *made;
	struct sc_buf path = {0};
	int rc = 1;

	rs_pickle_path(walk, &path);
	if (path.bytes > SC_TENSOR_NAME_BYTES_MAX) {
		rc = sc_fail(r->err, SC_E_LIMIT, "torch: a tensor's name has %zu bytes, at most %d", path.bytes,
			     SC_TENSOR_NAME_BYTES_MAX);
	} else {
		t.path = path.failed ? NULL : sc_arena_copy(&r->to->arena, path.text ? path.text : "", path.bytes);
		if (!t.path || sc_vec_push(&r->to->tensors, t) < 0)
			rc = sc_nomem(r->err);
	}
	sc_buf_done(&path);
	return rc;
}

static int on_node(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct reading *r = arg;
	const struct rs_torch_tensor *made;
	int rc = made_by(r, n, 0, &made);

	if (rc <= 0)
		return rc;
	if (!rs_pickle_is_inside(walk))
		return add_tensor(r, walk, made);
	r->to->inside++;
	return 1;
}

/* --- the archive --- */

static int check_beginning(const struct rs_window *w, struct sc_err *err)
{
	static const char old[] = "\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19"; /* a pickled number: torch before 1.6 */
	char head[16] = {0};
	int rc = rs_window_read(w, 0, sc_min_u64(w->bytes, sizeof(head)), head, "its beginning", err);

	if (rc < 0 || memcmp(head, "PK\3\4", 4) == 0)
		return rc;
	if (head[0] != '\x80')
		return refuse(err, "no archive of torch.save()");
	if (memmem(head, sizeof(head), old, sizeof(old) - 1))
		return sc_fail(err, SC_E_UNSUPPORTED, "torch: the format from before torch 1.6: load it and save it "
			       "again with torch.save()");
	return sc_fail(err, SC_E_UNSUPPORTED, "torch: a bare pickle, no archive of torch.save()");
}

/* Reads the text of a small record, without blanks at its end; "": the archive has no such record. */
static int read_text(const struct rs_window *w, const struct rs_zip *zip, const char *name, char text[65],
		     struct sc_err *err)
{
	const struct rs_zip_record *record = rs_zip_find(zip, name);
	uint64_t bytes = record ? sc_min_u64(record->bytes, 64) : 0;
	int rc = record ? rs_window_read(w, record->at, bytes, text, name, err) : 0;

	text[bytes] = 0;
	while (bytes && memchr(" \t\r\n", text[bytes - 1], 4))
		text[--bytes] = 0;
	return rc;
}

static int check_version(const char *text, struct sc_err *err)
{
	unsigned version = 0;
	const char *at = text;

	while (*at >= '0' && *at <= '9' && version <= VERSION_MAX)
		version = 10 * version + (unsigned)(*at++ - '0');
	return !*at && version && version <= VERSION_MAX ? 0 : sc_fail(err, SC_E_UNSUPPORTED, "torch: an archive of "
		"version '%s', not 1 to %d", text, VERSION_MAX);
}

static int check_records(const struct rs_window *w, const struct rs_zip *zip, struct sc_err *err)
{
	const char *name = rs_zip_find(zip, ".data/version") ? ".data/version" : "version";
	const struct rs_zip_record *pickle = rs_zip_find(zip, "data.pkl");
	char text[65];

	if (rs_zip_find(zip, "constants.pkl"))
		return sc_fail(err, SC_E_UNSUPPORTED, "torch: a TorchScript archive holds a program, not only tensors");
	if (!pickle)
		return refuse(err, "no data.pkl: torch.save() did not write it");
	if (pickle->bytes > SC_PICKLE_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "torch: data.pkl has %" PRIu64 " bytes, at most %u", pickle->bytes,
			       SC_PICKLE_BYTES_MAX);
	if (read_text(w, zip, name, text, err) < 0 || (rs_zip_find(zip, name) && check_version(text, err) < 0) ||
	    read_text(w, zip, "byteorder", text, err) < 0)
		return err->code;
	if (rs_zip_find(zip, "byteorder") && strcmp(text, "little") != 0)
		return sc_fail(err, SC_E_UNSUPPORTED, "torch: byte order '%s': only little-endian files are read",
			       text);
	return 0;
}

static int read_pickle(const struct rs_window *w, struct rs_torch *to, struct sc_err *err)
{
	const struct rs_zip_record *record = rs_zip_find(&to->zip, "data.pkl");
	int rc;

	to->text = sc_sys.alloc(record->bytes + 1);
	if (!to->text)
		return sc_nomem(err);
	rc = rs_window_read(w, record->at, record->bytes, to->text, "data.pkl", err);
	return rc < 0 ? rc : rs_pickle_read(to->text, record->bytes, &to->pickle, err);
}

int rs_torch_read(const struct rs_window *window, struct rs_torch *ret, struct sc_err *err)
{
	struct reading r = {.to = ret, .err = err};
	int rc;

	*ret = (struct rs_torch){0};
	rc = check_beginning(window, err);
	if (rc == 0)
		rc = rs_zip_read(window, &ret->zip, err);
	if (rc == 0)
		rc = check_records(window, &ret->zip, err);
	if (rc == 0)
		rc = read_pickle(window, ret, err);
	/* most records are storages of one tensor */
	if (rc == 0 && (sc_map_reserve(&r.storages, ret->zip.nr) < 0 || sc_map_reserve(&r.made, ret->zip.nr) < 0))
		rc = sc_nomem(err);
	if (rc == 0)
		rc = rs_pickle_walk(&ret->pickle, on_node, &r, err);
	sc_map_done(&r.storages);
	sc_map_done(&r.made);
	if (rc < 0)
		rs_torch_done(ret);
	return rc;
}

void rs_torch_done(struct rs_torch *torch)
{
	sc_vec_done(&torch->tensors);
	rs_pickle_done(&torch->pickle);
	rs_zip_done(&torch->zip);
	sc_sys.release(torch->text);
	sc_arena_done(&torch->arena);
	*torch = (struct rs_torch){0};
}
