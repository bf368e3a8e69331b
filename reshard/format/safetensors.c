/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/format/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "safetensors: " __VA_ARGS__)

typedef unsigned long long ull;

bool rs_safetensors_is(const char *path)
{
	static const char suffix[] = ".safetensors";
	size_t n = strlen(path);

	return n > sizeof(suffix) - 1 && strcmp(path + n - (sizeof(suffix) - 1), suffix) == 0;
}

static int parse_metadata(json_t *meta, struct rs_safetensors *st, struct sc_err *err)
{
	const char *key;
	json_t *value;
	char *text;

	if (!json_is_object(meta))
		return refuse(err, METADATA " is not an object");
	json_object_foreach(meta, key, value)
		if (!json_is_string(value))
			return refuse(err, METADATA ": '%s' is not a string", key);
	text = json_dumps(meta, JSON_COMPACT | JSON_SORT_KEYS);
	st->metadata = text ? sc_arena_copy(&st->arena, text, strlen(text)) : NULL;
	free(text);
	return st->metadata ? 0 : sc_nomem(err);
}

static int parse_shape(const char *name, json_t *shape, struct meta_shape *ret, struct sc_err *err)
{
	json_t *dim;
	size_t i;

	if (!json_is_array(shape))
		return refuse(err, "tensor '%s' has no shape", name);
	if (json_array_size(shape) > SC_DIMS_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: tensor '%s' has %zu dimensions, at most %d", name,
			       json_array_size(shape), SC_DIMS_MAX);
	json_array_foreach(shape, i, dim) {
		if (!json_is_integer(dim) || json_integer_value(dim) < 0)
			return refuse(err, "tensor '%s': dimension %zu is not a size", name, i);
		ret->dim[i] = (uint64_t)json_integer_value(dim);
	}
	ret->nr = (uint8_t)json_array_size(shape);
	return 0;
}

static int parse_tensor(struct rs_safetensors *st, const char *name, json_t *value,
			uint64_t data_bytes, struct sc_err *err)
{
	json_t *dtype = json_object_get(value, "dtype"), *at = json_object_get(value, "data_offsets");
	json_t *first = json_array_get(at, 0), *last = json_array_get(at, 1);
	struct rs_tensor_at t = {0};
	uint64_t bytes;
	int rc, type;

	if (!json_is_object(value) || json_object_size(value) != 3)
		return refuse(err, "tensor '%s': want dtype, shape and data_offsets, nothing else", name);
	if (!json_is_string(dtype))
		return refuse(err, "tensor '%s' has no dtype", name);
	if (strlen(name) > SC_TENSOR_NAME_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: a tensor's name has %zu bytes, at most %d",
			       strlen(name), SC_TENSOR_NAME_BYTES_MAX);
	type = meta_dtype_find(json_string_value(dtype), json_string_length(dtype));
	if (type < 0)
		return refuse(err, "tensor '%s': dtype '%s' is unknown", name, json_string_value(dtype));
	rc = parse_shape(name, json_object_get(value, "shape"), &t.shape, err);
	if (rc < 0)
		return rc;
	if (json_array_size(at) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
	    json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
		return refuse(err, "tensor '%s': data_offsets are not [begin, end]", name);
	t.dtype = (enum meta_dtype)type;
	t.begin = (uint64_t)json_integer_value(first);
	t.end = (uint64_t)json_integer_value(last);
	if (t.end > data_bytes)
		return refuse(err, "tensor '%s' ends at byte %llu of the data, the file has %llu", name,
			      (ull)t.end, (ull)data_bytes);
	if (!meta_tensor_bytes(t.dtype, &t.shape, &bytes))
		return refuse(err, "tensor '%s': its size overflows or is not of whole bytes", name);
	if (bytes != t.end - t.begin)
		return refuse(err, "tensor '%s' has %llu bytes, its type and shape need %llu", name,
			      (ull)(t.end - t.begin), (ull)bytes);
	t.begin += st->data_at;
	t.end += st->data_at;
	t.name = sc_arena_copy(&st->arena, name, strlen(name));
	if (!t.name)
		return sc_nomem(err);
	st->tensors[st->nr++] = t;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct rs_tensor_at *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int check_cover(struct rs_safetensors *st, uint64_t file_bytes, struct sc_err *err)
{
	uint64_t at = st->data_at;

	if (st->nr)
		qsort(st->tensors, st->nr, sizeof(*st->tensors), by_offset);
	for (uint32_t i = 0; i < st->nr; i++) {
		const struct rs_tensor_at *t = &st->tensors[i];

		if (t->begin < at)
			return refuse(err, "tensor '%s' overlaps the one before it", t->name);
		if (t->begin > at)
			return refuse(err, "a hole of %llu bytes before tensor '%s'", (ull)(t->begin - at), t->name);
		at = t->end;
		if (sc_map_put(&st->by_name, t->name, strlen(t->name), &st->tensors[i]) < 0)
			return sc_nomem(err);
	}
	if (at != file_bytes)
		return refuse(err, "the tensors end at byte %llu, the file has %llu", (ull)at, (ull)file_bytes);
	return 0;
}

static int parse(const unsigned char *file, uint64_t file_bytes, struct rs_safetensors *st,
		 struct sc_err *err)
{
	sc_cleanup(json_decrefp) json_t *root = NULL;
	json_error_t why;
	uint64_t n = 0;
	const char *key;
	json_t *value;
	int rc = 0;

	if (file_bytes < 8)
		return refuse(err, "the file has %llu bytes, less than its length field", (ull)file_bytes);
	for (int i = 7; i >= 0; i--)
		n = n << 8 | file[i];
	if (n > SC_HEADER_BYTES_MAX)
		return refuse(err, "the header has %llu bytes, at most %d", (ull)n, SC_HEADER_BYTES_MAX);
	if (n > file_bytes - 8)
		return refuse(err, "the header has %llu bytes, the file has %llu: it is truncated", (ull)n,
			      (ull)file_bytes);
	if (n == 0 || file[8] != '{')
		return refuse(err, "the header does not start with '{'");
	root = json_loadb((const char *)file + 8, n, JSON_REJECT_DUPLICATES, &why);
	if (!json_is_object(root))
		return refuse(err, "the header is no JSON object: %s at byte %d", root ? "" : why.text,
			      root ? 0 : why.position);
	st->data_at = 8 + n;
	st->tensors = sc_arena_array(&st->arena, json_object_size(root) + 1, sizeof(*st->tensors));
	if (!st->tensors)
		return sc_nomem(err);
	json_object_foreach(root, key, value) {
		rc = strcmp(key, METADATA) == 0 ? parse_metadata(value, st, err)
						: parse_tensor(st, key, value, file_bytes - st->data_at, err);
		if (rc < 0)
			return rc;
	}
	return check_cover(st, file_bytes, err);
}

int rs_safetensors_parse(const void *file, uint64_t file_bytes, struct rs_safetensors *ret,
			 struct sc_err *err)
{
	int rc;

	*ret = (struct rs_safetensors){0};
	rc = parse(file, file_bytes, ret, err);
	if (rc < 0)
		rs_safetensors_done(ret);
	return rc;
}

void rs_safetensors_done(struct rs_safetensors *st)
{
	sc_map_done(&st->by_name);
	sc_arena_done(&st->arena);
	*st = (struct rs_safetensors){0};
}

const struct rs_tensor_at *rs_safetensors_find(const struct rs_safetensors *st, const char *name)
{
	return sc_map_get(&st->by_name, name, strlen(name));
}

static int canonical(const void *a, const void *b)
{
	const struct rs_tensor_at *x = a, *y = b;

	return x->dtype != y->dtype ? (int)y->dtype - (int)x->dtype : strcmp(x->name, y->name);
}

static int add_tensor(json_t *root, const struct rs_tensor_at *t, struct sc_err *err)
{
	json_t *shape = json_array(), *one;

	for (int i = 0; shape && i < t->shape.nr; i++)
		if (json_array_append_new(shape, json_integer((json_int_t)t->shape.dim[i])) < 0)
			return sc_nomem(err);
	one = json_pack("{s:s, s:o, s:[I, I]}", "dtype", meta_dtype_name(t->dtype), "shape", shape,
			"data_offsets", (json_int_t)t->begin, (json_int_t)t->end);
	return one && json_object_set_new(root, t->name, one) == 0 ? 0 : sc_nomem(err);
}

int rs_safetensors_header(struct rs_tensor_at *tensors, uint32_t nr, const char *metadata,
			  struct sc_buf *ret, struct sc_err *err)
{
	sc_cleanup(json_decrefp) json_t *root = json_object();
	uint64_t at = 0, n;
	unsigned char length[8];
	char *text;
	int rc = root ? 0 : sc_nomem(err);

	if (nr)
		qsort(tensors, nr, sizeof(*tensors), canonical);
	if (rc == 0 && metadata &&
	    json_object_set_new(root, METADATA, json_loads(metadata, 0, NULL)) < 0)
		return sc_nomem(err);
	for (uint32_t i = 0; i < nr && rc == 0; i++) {
		uint64_t bytes;

		if (!meta_tensor_bytes(tensors[i].dtype, &tensors[i].shape, &bytes))
			return sc_fail(err, SC_E_LIMIT, "safetensors: tensor '%s' overflows", tensors[i].name);
		tensors[i].begin = at;
		tensors[i].end = at += bytes;
		rc = add_tensor(root, &tensors[i], err);
	}
	text = rc == 0 ? json_dumps(root, JSON_COMPACT) : NULL;
	if (!text)
		return rc < 0 ? rc : sc_nomem(err);
	n = (strlen(text) + 8 + SC_DATA_ALIGN - 1) / SC_DATA_ALIGN * SC_DATA_ALIGN - 8;
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(n >> 8 * i);
	sc_buf_add(ret, length, 8);
	sc_buf_add(ret, text, strlen(text));
	sc_buf_printf(ret, "%*s", (int)(n - strlen(text)), "");
	free(text);
	if (n > SC_HEADER_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: a header of %llu bytes, at most %d", (ull)n,
			       SC_HEADER_BYTES_MAX);
	for (uint32_t i = 0; i < nr; i++) {
		tensors[i].begin += n + 8;
		tensors[i].end += n + 8;
	}
	return ret->failed ? sc_nomem(err) : 0;
}

int rs_safetensors_common_metadata(const char *a, const char *b, char **ret, bool *ret_differ)
{
	sc_cleanup(json_decrefp) json_t *x = json_loads(a ? a : "{}", 0, NULL);
	sc_cleanup(json_decrefp) json_t *y = json_loads(b ? b : "{}", 0, NULL);
	const char *key;
	json_t *value;
	void *next;

	*ret = NULL;
	if (!x || !y)
		return -1;
	*ret_differ = !json_equal(x, y);
	json_object_foreach_safe(x, next, key, value)
		if (!json_equal(value, json_object_get(y, key)))
			json_object_del(x, key);
	if (json_object_size(x) == 0)
		return 0;
	*ret = json_dumps(x, JSON_COMPACT | JSON_SORT_KEYS);
	return *ret ? 0 : -1;
}
