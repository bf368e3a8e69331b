/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/format_i.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

const struct rs_format_ops *const rs_formats[] = {&rs_format_safetensors, &rs_format_torch, &rs_format_plain};
const struct rs_format_ops *rs_format_extra;

#define NR (sizeof(rs_formats) / sizeof(*rs_formats))

const struct rs_format_ops *rs_format_find(const char *name)
{
	if (rs_format_extra && strcmp(rs_format_extra->name, name) == 0)
		return rs_format_extra;
	for (size_t i = 0; i < NR; i++)
		if (strcmp(rs_formats[i]->name, name) == 0)
			return rs_formats[i];
	return NULL;
}

int rs_format_of(const struct rs_file *file, const struct rs_format_ops **ret, struct sc_err *err)
{
	const struct rs_format_ops *format = rs_format_extra;
	int rc = format ? rs_format_is(format, file, err) : 0;

	for (size_t i = 0; rc == 0; i++) {
		assert(i < NR); /* the last one claims every file */
		format = rs_formats[i];
		rc = rs_format_is(format, file, err);
	}
	if (rc < 0)
		return rc;
	*ret = format;
	return 0;
}

int rs_format_is(const struct rs_format_ops *format, const struct rs_file *file, struct sc_err *err)
{
	int rc;

	assert(file->path && file->read);
	rc = format->is(file, err);
	assert(rc == 1 || rc == 0 || err->code == rc);
	return rc;
}

/* Returns the bytes of a tensor that was checked. */
static uint64_t bytes_of(enum meta_dtype dtype, const struct meta_shape *shape)
{
	uint64_t bytes = 0;

	(void)meta_tensor_bytes(dtype, shape, &bytes);
	return bytes;
}

/* --- parse --- */

static uint32_t *find_slot(const struct rs_found *found, const char *name)
{
	const uint32_t mask = found->room - 1;
	uint32_t i = (uint32_t)XXH3_64bits(name, strlen(name)) & mask;

	while (found->slots[i] && strcmp(found->tensors[found->slots[i] - 1].name, name) != 0)
		i = (i + 1) & mask;
	return &found->slots[i];
}

/* Makes the table of names: index + 1 of each tensor by the hash of its name; 0: a free slot. */
static int index_names(struct rs_found *found, struct sc_err *err)
{
	found->room = 4;
	while (found->room / 2 < found->nr)
		found->room *= 2;
	found->slots = sc_arena_array(&found->arena, found->room, sizeof(*found->slots));
	if (!found->slots)
		return sc_nomem(err);
	for (uint32_t i = 0; i < found->nr; i++) {
		uint32_t *slot = find_slot(found, found->tensors[i].name);

		assert(*slot == 0); /* each name once */
		*slot = i + 1;
	}
	return 0;
}

/* Hands over what was found, with its names indexed, unless it failed. */
static int take(struct rs_found *found, int rc, struct rs_found *ret, struct sc_err *err)
{
	if (rc == 0)
		rc = index_names(found, err);
	if (rc < 0)
		rs_found_done(found);
	else
		*ret = *found;
	return rc;
}

static void assert_found(const struct rs_file *file, const struct rs_found *found)
{
	for (uint32_t i = 0; i < found->nr; i++) {
		const struct rs_found_tensor *t = &found->tensors[i], *before = i ? t - 1 : NULL;
		uint64_t bytes = 0;
		bool is_sized = meta_tensor_bytes(t->dtype, &t->shape, &bytes);

		assert(is_sized && t->name);
		assert(t->at <= file->bytes && (t->stride || bytes <= file->bytes - t->at));
		assert(!before || before->at < t->at || (before->at == t->at && strcmp(before->name, t->name) < 0));
	}
	assert(found->payload || !found->payload_bytes);
}

/* Tells whether each element lies once, and nothing lies between elements: then the stride of one dimension is 1, and
 * that of each other one is the product of the extents that lie inside of it. */
static bool is_dense(const struct rs_found_tensor *t)
{
	uint64_t want = 1, left = bytes_of(t->dtype, &t->shape) * 8 / meta_dtype_bits(t->dtype);

	while (left > 1) {
		int k = 0;

		while (k < t->shape.nr && (t->stride[k] != want || t->shape.dim[k] == 1))
			k++;
		if (k == t->shape.nr)
			return false;
		want *= t->shape.dim[k];
		left /= t->shape.dim[k];
	}
	return true;
}

static int refuse_strides(const struct rs_found *found, struct sc_err *err)
{
	for (uint32_t i = 0; i < found->nr; i++) {
		const struct rs_found_tensor *t = &found->tensors[i];

		if (t->stride && (meta_dtype_bits(t->dtype) % 8 || !is_dense(t)))
			return sc_fail(err, SC_E_UNSUPPORTED, "tensor '%s' has gaps between its elements, or several "
				       "in one place; save its .contiguous()", t->name);
	}
	return 0;
}

int rs_format_parse(const struct rs_format_ops *format, const struct rs_file *file, struct rs_found *ret,
		    struct sc_err *err)
{
	struct rs_found found = {0};
	int rc;

	assert(file->read);
	rc = format->parse(file, &found, err);
	assert(rc == 0 || (rc < 0 && err->code == rc));
	if (rc == 0) {
		assert_found(file, &found);
		rc = refuse_strides(&found, err);
	}
	return take(&found, rc, ret, err);
}

int rs_found_row_major(const struct rs_found *found, struct sc_err *err)
{
	for (uint32_t i = 0; i < found->nr; i++)
		if (found->tensors[i].stride)
			return sc_fail(err, SC_E_UNSUPPORTED, "tensor '%s' is not stored row by row; save its "
				       ".contiguous()", found->tensors[i].name);
	return 0;
}

const struct rs_found_tensor *rs_found_tensor(const struct rs_found *found, const char *name)
{
	uint32_t i = *find_slot(found, name);

	return i ? &found->tensors[i - 1] : NULL;
}

const struct rs_found_tensor *rs_found_next(const struct rs_found *found, const char *name, uint32_t *at)
{
	const struct rs_found_tensor *t = *at < found->nr ? &found->tensors[*at] : NULL;

	if (!t || strcmp(t->name, name) != 0)
		t = rs_found_tensor(found, name);
	if (t)
		*at = (uint32_t)(t - found->tensors) + 1;
	return t;
}

uint64_t rs_found_bytes(const struct rs_found_tensor *tensor)
{
	return bytes_of(tensor->dtype, &tensor->shape);
}

int rs_found_copy(const struct rs_found *from, struct rs_found *ret, struct sc_err *err)
{
	struct rs_found found = {.nr = from->nr};
	int rc = 0;

	found.tensors = sc_arena_array(&found.arena, found.nr + 1, sizeof(*found.tensors));
	if (!found.tensors)
		rc = sc_nomem(err);
	for (uint32_t i = 0; rc == 0 && i < found.nr; i++) {
		struct rs_found_tensor *t = &found.tensors[i];

		*t = from->tensors[i];
		t->name = sc_arena_copy(&found.arena, t->name, strlen(t->name));
		if (t->stride)
			t->stride = (const uint64_t *)sc_arena_copy(&found.arena, (const char *)t->stride,
								    t->shape.nr * sizeof(*t->stride));
		rc = t->name && !from->tensors[i].stride == !t->stride ? 0 : sc_nomem(err);
	}
	return take(&found, rc, ret, err);
}

void rs_found_done(struct rs_found *found)
{
	sc_arena_done(&found->arena);
	*found = (struct rs_found){0};
}

/* --- describe --- */

static void assert_frame(const struct rs_wanted *wanted, uint32_t nr, const struct rs_frame *frame)
{
	uint32_t nr_placed = 0, nr_with_bytes = 0;

	assert((frame->bytes > 0) == (frame->nr > 0) && (!frame->nr || frame->pieces[0].at == 0));
	for (uint32_t i = 0; i < frame->nr; i++) {
		const struct rs_piece *p = &frame->pieces[i];

		assert(p->at < rs_piece_end(frame, p));
		assert(p->kind != RS_PIECE_TEXT || p->text);
		assert(p->kind != RS_PIECE_TENSOR || p->tensor < nr);
		if (p->kind != RS_PIECE_TENSOR)
			continue;
		assert(rs_piece_end(frame, p) - p->at == bytes_of(wanted[p->tensor].dtype, &wanted[p->tensor].shape));
		nr_placed++;
	}
	for (uint32_t i = 0; i < nr; i++)
		nr_with_bytes += bytes_of(wanted[i].dtype, &wanted[i].shape) > 0;
	assert(nr_placed == nr_with_bytes);
}

int rs_format_describe(const struct rs_format_ops *format, const struct rs_wanted *wanted, uint32_t nr,
		       const char *payload, size_t payload_bytes, struct rs_frame *ret, struct sc_err *err)
{
	struct rs_frame frame = {0};
	int rc;

	assert((wanted || !nr) && (payload || !payload_bytes));
	for (uint32_t i = 0; i < nr; i++)
		assert(wanted[i].name && wanted[i].skew < SC_DATA_ALIGN);
	rc = format->describe(wanted, nr, payload, payload_bytes, &frame, err);
	assert(rc == 0 || (rc < 0 && err->code == rc));
	if (rc < 0) {
		rs_frame_done(&frame);
		return rc;
	}
	assert_frame(wanted, nr, &frame);
	*ret = frame;
	return 0;
}

const struct rs_piece *rs_frame_piece(const struct rs_frame *frame, uint64_t at)
{
	assert(at < frame->bytes);
	return &frame->pieces[sc_first(frame->nr - 1, i, frame->pieces[i + 1].at > at)];
}

uint64_t rs_piece_end(const struct rs_frame *frame, const struct rs_piece *piece)
{
	return piece + 1 < frame->pieces + frame->nr ? piece[1].at : frame->bytes;
}

void rs_frame_done(struct rs_frame *frame)
{
	sc_arena_done(&frame->arena);
	sc_sys.release(frame->text);
	*frame = (struct rs_frame){0};
}

/* --- payloads --- */

int rs_format_agree(const struct rs_format_ops *format, const char *a, const char *b, char **ret, bool *ret_differ,
		    struct sc_err *err)
{
	char *both = NULL;
	bool differ = false;

	assert(format->agree);
	if (format->agree(a, b, &both, &differ) < 0)
		return sc_nomem(err);
	*ret = both;
	*ret_differ = differ;
	return 0;
}

const char *rs_format_name(const struct rs_format_ops *format, const char *text, struct sc_arena *arena)
{
	return format->name_of ? format->name_of(text, arena) : text;
}

int rs_format_objects(const struct rs_format_ops *format, const char *payload, size_t bytes, struct sc_arena *arena,
		      struct rs_object **ret, size_t *ret_nr, struct sc_err *err)
{
	*ret = NULL;
	*ret_nr = 0;
	return format->objects && payload ? format->objects(payload, bytes, arena, ret, ret_nr, err) : 0;
}

/* --- files --- */

static int read_memory(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)err;
	memcpy(to, (const char *)arg + at, bytes);
	return 0;
}

struct rs_file rs_file_in_memory(const char *path, const void *memory, uint64_t bytes)
{
	return (struct rs_file){path, bytes, (void *)memory, read_memory};
}
