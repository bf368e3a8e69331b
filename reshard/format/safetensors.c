/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/format/safetensors.h"
#include "reshard/format/arrange.h"

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

	if (json_is_null(meta))
		return 0; /* as the reference takes it: none */
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

/* The header, which the caller releases; *ret_bytes without its length field. */
static int read_header(const struct rs_file *file, char **ret, uint64_t *ret_bytes, struct sc_err *err)
{
	unsigned char length[8];
	uint64_t n = 0;
	int rc;

	if (file->bytes < sizeof(length))
		return refuse(err, "the file has %llu bytes, less than its length field", (ull)file->bytes);
	rc = file->read(file->arg, 0, sizeof(length), length, err);
	if (rc < 0)
		return rc;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | length[i];
	if (n > SC_HEADER_BYTES_MAX)
		return refuse(err, "the header has %llu bytes, at most %d", (ull)n, SC_HEADER_BYTES_MAX);
	if (n > file->bytes - sizeof(length))
		return refuse(err, "the header has %llu bytes, the file has %llu: it is truncated", (ull)n,
			      (ull)file->bytes);
	*ret = sc_sys.alloc(n + 1);
	if (!*ret)
		return sc_nomem(err);
	*ret_bytes = n;
	return file->read(file->arg, sizeof(length), n, *ret, err);
}

static int parse(const char *header, uint64_t bytes, uint64_t file_bytes, struct rs_safetensors *st, struct sc_err *err)
{
	sc_cleanup(json_decrefp) json_t *root = NULL;
	json_error_t why;
	const char *key;
	json_t *value;
	int rc = 0;

	if (bytes == 0 || *header != '{')
		return refuse(err, "the header does not start with '{'");
	root = json_loadb(header, bytes, JSON_REJECT_DUPLICATES, &why);
	if (!json_is_object(root))
		return refuse(err, "the header is no JSON object: %s at byte %d", root ? "" : why.text,
			      root ? 0 : why.position);
	st->data_at = 8 + bytes;
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

int rs_safetensors_parse(const struct rs_file *file, struct rs_safetensors *ret, struct sc_err *err)
{
	char *header = NULL;
	uint64_t bytes = 0;
	int rc = read_header(file, &header, &bytes, err);

	*ret = (struct rs_safetensors){0};
	if (rc == 0)
		rc = parse(header, bytes, file->bytes, ret, err);
	if (rc < 0)
		rs_safetensors_done(ret);
	sc_sys.release(header);
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

/* A JSON string.  Names seldom need more than quotes, and there are thousands: the library's own
 * building and printing of them took half of the time of an open. */
static int add_string(struct sc_buf *buf, const char *text, struct sc_err *err)
{
	size_t plain = 0;
	json_t *string;
	char *dumped;

	while (text[plain] >= ' ' && text[plain] != '"' && text[plain] != '\\' && text[plain] != 0x7f)
		plain++;
	if (!text[plain]) {
		sc_buf_add(buf, "\"", 1);
		sc_buf_add(buf, text, plain);
		sc_buf_add(buf, "\"", 1);
		return 0;
	}
	string = json_string(text);
	dumped = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
	if (dumped)
		sc_buf_add(buf, dumped, strlen(dumped));
	free(dumped);
	json_decref(string);
	return dumped ? 0 : sc_nomem(err);
}

static void add(struct sc_buf *buf, const char *text)
{
	sc_buf_add(buf, text, strlen(text));
}

static int add_tensor(struct sc_buf *buf, const struct rs_tensor_at *t, struct sc_err *err)
{
	int rc = add_string(buf, t->name, err);

	add(buf, ":{\"dtype\":\"");
	add(buf, meta_dtype_name(t->dtype));
	add(buf, "\",\"shape\":[");
	for (int i = 0; i < t->shape.nr; i++) {
		if (i)
			add(buf, ",");
		sc_buf_number(buf, t->shape.dim[i]);
	}
	add(buf, "],\"data_offsets\":[");
	sc_buf_number(buf, t->begin);
	add(buf, ",");
	sc_buf_number(buf, t->end);
	add(buf, "]}");
	return rc;
}

int rs_safetensors_header(struct rs_tensor_at *tensors, uint32_t nr, const char *metadata,
			  struct sc_buf *ret, struct sc_err *err)
{
	const size_t begin = ret->bytes;
	uint64_t at = 0, n;
	uint32_t skew;
	int rc = rs_arrange_tensors(tensors, nr, &skew, err);

	if (rc < 0)
		return rc;
	sc_buf_add(ret, "\0\0\0\0\0\0\0\0{", 9);
	if (metadata)
		sc_buf_printf(ret, "\"%s\":%s%s", METADATA, metadata, nr ? "," : "");
	for (uint32_t i = 0; i < nr; i++) {
		const uint64_t bytes = tensors[i].end;

		tensors[i].begin = at;
		tensors[i].end = at += bytes;
		if (i)
			sc_buf_add(ret, ",", 1);
		rc = add_tensor(ret, &tensors[i], err);
		if (rc < 0)
			return rc;
	}
	sc_buf_add(ret, "}", 1);
	if (ret->failed)
		return sc_nomem(err);
	n = ret->bytes - begin;
	sc_buf_printf(ret, "%*s", (int)((skew + SC_DATA_ALIGN - n % SC_DATA_ALIGN) % SC_DATA_ALIGN), "");
	if (ret->failed)
		return sc_nomem(err);
	n = ret->bytes - begin - 8;
	for (int i = 0; i < 8; i++)
		ret->text[begin + (size_t)i] = (char)(n >> 8 * i);
	if (n > SC_HEADER_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: a header of %llu bytes, at most %d", (ull)n,
			       SC_HEADER_BYTES_MAX);
	for (uint32_t i = 0; i < nr; i++) {
		tensors[i].begin += n + 8;
		tensors[i].end += n + 8;
	}
	return 0;
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
