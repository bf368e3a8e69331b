/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors file format: u64 little-endian header length N, N bytes of JSON, data.
 * Source: the format's README and tensor.rs, version 0.8.
 */
#include "reshard/codec/format/arrange.h"
#include "reshard/codec/format/format_i.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "safetensors: " __VA_ARGS__)

typedef unsigned long long ull;

/* Tells whether a file is of this format: by its name alone. */
static int is_ours(const struct rs_file *file, struct sc_err *err)
{
	static const char suffix[] = ".safetensors";
	size_t n = strlen(file->path);

	(void)err;
	return n > sizeof(suffix) - 1 && strcmp(file->path + n - (sizeof(suffix) - 1), suffix) == 0;
}

/* --- parse --- */

struct parsing {
	struct rs_found *found;
	uint64_t data_at;	/* where the data section starts: 8 + N */
	uint64_t file_bytes;
	bool some_are_empty;
};

static int parse_metadata(json_t *meta, struct rs_found *found, struct sc_err *err)
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
	found->payload_bytes = text ? strlen(text) : 0;
	found->payload = text ? sc_arena_copy(&found->arena, text, found->payload_bytes) : NULL;
	free(text);
	return found->payload ? 0 : sc_nomem(err);
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

static int parse_offsets(struct parsing *p, const char *name, json_t *at, struct rs_found_tensor *t, struct sc_err *err)
{
	json_t *first = json_array_get(at, 0), *last = json_array_get(at, 1);
	const uint64_t data_bytes = p->file_bytes - p->data_at;
	uint64_t begin, end, bytes;

	if (json_array_size(at) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
	    json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
		return refuse(err, "tensor '%s': data_offsets are not [begin, end]", name);
	begin = (uint64_t)json_integer_value(first);
	end = (uint64_t)json_integer_value(last);
	if (end > data_bytes)
		return refuse(err, "tensor '%s' ends at byte %llu of the data, but the file has %llu", name, (ull)end,
			      (ull)data_bytes);
	if (!meta_tensor_bytes(t->dtype, &t->shape, &bytes))
		return refuse(err, "tensor '%s': the size overflows or is not whole bytes", name);
	if (bytes != end - begin)
		return refuse(err, "tensor '%s' has %llu bytes, but its type and shape need %llu", name,
			(ull)(end - begin),
			      (ull)bytes);
	t->at = p->data_at + begin;
	p->some_are_empty |= bytes == 0;
	return 0;
}

static int parse_tensor(struct parsing *p, const char *name, json_t *value, struct sc_err *err)
{
	json_t *dtype = json_object_get(value, "dtype");
	struct rs_found_tensor t = {0};
	int rc, type;

	if (!json_is_object(value) || json_object_size(value) != 3)
		return refuse(err, "tensor '%s': expected dtype, shape and data_offsets, and nothing else", name);
	if (!json_is_string(dtype))
		return refuse(err, "tensor '%s' has no dtype", name);
	if (strlen(name) > SC_TENSOR_NAME_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: a tensor's name has %zu bytes, at most %d",
			       strlen(name), SC_TENSOR_NAME_BYTES_MAX);
	type = meta_dtype_find(json_string_value(dtype), json_string_length(dtype));
	if (type < 0)
		return refuse(err, "tensor '%s': dtype '%s' is unknown", name, json_string_value(dtype));
	t.dtype = (enum meta_dtype)type;
	rc = parse_shape(name, json_object_get(value, "shape"), &t.shape, err);
	if (rc == 0)
		rc = parse_offsets(p, name, json_object_get(value, "data_offsets"), &t, err);
	if (rc < 0)
		return rc;
	t.name = sc_arena_copy(&p->found->arena, name, strlen(name));
	if (!t.name)
		return sc_nomem(err);
	p->found->tensors[p->found->nr++] = t;
	return 0;
}

static uint64_t found_bytes(const struct rs_found_tensor *t)
{
	uint64_t bytes = 0;

	(void)meta_tensor_bytes(t->dtype, &t->shape, &bytes);
	return bytes;
}

/* Orders tensors by where they begin; of tensors that begin at one byte the empty ones come first. */
static int by_end(const void *a, const void *b)
{
	const struct rs_found_tensor *x = a, *y = b;
	uint64_t m = x->at == y->at ? found_bytes(x) : 0, n = x->at == y->at ? found_bytes(y) : 0;

	return m != n ? (m < n ? -1 : 1) : rs_found_by_place(a, b);
}

static int check_cover(struct parsing *p, struct sc_err *err)
{
	struct rs_found *found = p->found;
	uint64_t at = p->data_at;

	if (found->nr)
		qsort(found->tensors, found->nr, sizeof(*found->tensors), by_end);
	for (uint32_t i = 0; i < found->nr; i++) {
		const struct rs_found_tensor *t = &found->tensors[i];

		if (t->at < at)
			return refuse(err, "tensor '%s' overlaps the one before it", t->name);
		if (t->at > at)
			return refuse(err, "there is a hole of %llu bytes before tensor '%s'", (ull)(t->at - at),
				t->name);
		at += found_bytes(t);
	}
	if (at != p->file_bytes)
		return refuse(err, "the tensors end at byte %llu, but the file has %llu", (ull)at, (ull)p->file_bytes);
	if (p->some_are_empty)
		qsort(found->tensors, found->nr, sizeof(*found->tensors), rs_found_by_place);
	return 0;
}

/* Reads the header, which the caller releases; *ret_bytes without its length field. */
static int read_header(const struct rs_file *file, char **ret, uint64_t *ret_bytes, struct sc_err *err)
{
	unsigned char length[8];
	uint64_t n = 0;
	int rc;

	if (file->bytes < sizeof(length))
		return refuse(err, "the file has %llu bytes, less than the field for its header's length",
			(ull)file->bytes);
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

static int parse_header(struct parsing *p, const char *header, uint64_t bytes, struct sc_err *err)
{
	sc_cleanup(json_decrefp) json_t *root = NULL;
	struct rs_found *found = p->found;
	json_error_t why;
	const char *key;
	json_t *value;

	if (bytes == 0 || *header != '{')
		return refuse(err, "the header does not start with '{'");
	root = json_loadb(header, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (!json_is_object(root))
		return refuse(err, "the header is not a JSON object: %s at byte %d", root ? "" : why.text,
			      root ? 0 : why.position);
	p->data_at = 8 + bytes;
	found->tensors = sc_arena_array(&found->arena, json_object_size(root) + 1, sizeof(*found->tensors));
	if (!found->tensors)
		return sc_nomem(err);
	json_object_foreach(root, key, value) {
		bool is_tensor = strcmp(key, METADATA) != 0;
		int rc = is_tensor ? parse_tensor(p, key, value, err) : parse_metadata(value, found, err);

		if (rc < 0)
			return rc;
	}
	return check_cover(p, err);
}

/*
 * Parses a file, and checks every rule of the format: header length against file size and the limit of 100 MB, a JSON
 * object without duplicate keys in UTF-8, known types, offsets in range, without overlap or hole, type x shape = bytes
 * without overflow, the file's end at the last byte.
 */
static int parse(const struct rs_file *file, struct rs_found *ret, struct sc_err *err)
{
	struct parsing p = {.found = ret, .file_bytes = file->bytes};
	char *header = NULL;
	uint64_t bytes = 0;
	int rc = read_header(file, &header, &bytes, err);

	if (rc == 0)
		rc = parse_header(&p, header, bytes, err);
	sc_sys.release(header);
	return rc;
}

/* --- describe --- */

/* Adds a JSON string.  Names seldom need more than quotes, and there are thousands: the library's own way to build and
 * print them took half of the time of an open. */
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

/*
 * Orders (arrange.h) and places tensors, and makes the header; it is padded with blanks so that the data begins where
 * most tensors' skew wants it: where that of the sources does, blocks can be reflinked and copies are of whole pages.
 */
static int make_header(struct rs_tensor_at *tensors, uint32_t nr, const char *metadata, struct sc_buf *ret,
		       struct sc_err *err)
{
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
	sc_buf_printf(ret, "%*s", (int)((skew + SC_DATA_ALIGN - ret->bytes % SC_DATA_ALIGN) % SC_DATA_ALIGN), "");
	if (ret->failed)
		return sc_nomem(err);
	n = ret->bytes - 8;
	for (int i = 0; i < 8; i++)
		ret->text[i] = (char)(n >> 8 * i);
	if (n > SC_HEADER_BYTES_MAX)
		return sc_fail(err, SC_E_LIMIT, "safetensors: a header of %llu bytes, at most %d", (ull)n,
			       SC_HEADER_BYTES_MAX);
	return 0;
}

/* Makes the pieces of the file: the header, then each tensor. */
static int make_frame(const struct rs_tensor_at *tensors, uint32_t nr, const struct sc_buf *header,
		      struct rs_frame *ret, struct sc_err *err)
{
	char *text = sc_arena_copy(&ret->arena, header->text, header->bytes);

	ret->pieces = sc_arena_array(&ret->arena, nr + 1, sizeof(*ret->pieces));
	if (!text || !ret->pieces)
		return sc_nomem(err);
	ret->pieces[ret->nr++] = (struct rs_piece){.kind = RS_PIECE_TEXT, .text = text};
	for (uint32_t i = 0; i < nr; i++) {
		const struct rs_tensor_at *t = &tensors[i];

		if (t->begin < t->end)
			ret->pieces[ret->nr++] = (struct rs_piece){.at = header->bytes + t->begin,
								   .kind = RS_PIECE_TENSOR, .tensor = t->wanted};
	}
	ret->bytes = header->bytes + (nr ? tensors[nr - 1].end : 0);
	return 0;
}

static int describe(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
		    struct rs_frame *ret, struct sc_err *err)
{
	struct rs_tensor_at *tensors = sc_zalloc_array(nr, sizeof(*tensors));
	struct sc_buf header = {0};
	int rc = tensors ? 0 : sc_nomem(err);

	(void)payload_bytes; /* a text */
	for (uint32_t i = 0; rc == 0 && i < nr; i++) {
		const struct rs_wanted *w = &wanted[i];

		tensors[i] = (struct rs_tensor_at){.name = w->name, .dtype = w->dtype, .shape = w->shape, .wanted = i,
						   .skew = w->skew % RS_SKEW_UNIT ? 0 : w->skew};
	}
	if (rc == 0)
		rc = make_header(tensors, nr, payload, &header, err);
	if (rc == 0)
		rc = make_frame(tensors, nr, &header, ret, err);
	sc_buf_done(&header);
	sc_sys.release(tensors);
	return rc;
}

/* --- payloads --- */

/* Keeps the keys of two payloads that both have with equal values. */
static int agree(const char *a, const char *b, char **ret, bool *ret_differ)
{
	sc_cleanup(json_decrefp) json_t *x = json_loads(a ? a : "{}", JSON_ALLOW_NUL, NULL);
	sc_cleanup(json_decrefp) json_t *y = json_loads(b ? b : "{}", JSON_ALLOW_NUL, NULL);
	const char *key;
	json_t *value;
	void *next;
	char *text;

	*ret = NULL;
	if (!x || !y)
		return -1;
	*ret_differ = !json_equal(x, y);
	json_object_foreach_safe(x, next, key, value)
		if (!json_equal(value, json_object_get(y, key)))
			json_object_del(x, key);
	if (json_object_size(x) == 0)
		return 0;
	text = json_dumps(x, JSON_COMPACT | JSON_SORT_KEYS);
	*ret = text ? sc_strdup(text) : NULL;
	free(text);
	return *ret ? 0 : -1;
}

const struct rs_format_ops rs_format_safetensors = {
	.name = "safetensors", .is = is_ours, .parse = parse, .describe = describe, .agree = agree,
};
