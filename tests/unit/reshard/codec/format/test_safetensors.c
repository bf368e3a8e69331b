/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of the format, one refusal a row; and what is written is read back. */
#include "reshard/codec/format/format.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>
#include <xxhash.h>

#include "tests/prop/pick.h"

static const struct rs_format_ops *safetensors;

struct row {
	const char *name, *header;
	size_t data;		/* bytes behind the header */
	int64_t length;		/* of the length field, -1: the header's own */
	const char *why;	/* part of the refusal, NULL: it is good */
};

#define T(rest) "{\"a\":{\"dtype\":\"F32\"," rest "}}"

static const struct row rows[] = {
	{"good", T("\"shape\":[2,3],\"data_offsets\":[0,24]"), 24, -1, NULL},
	{"trailing blanks", T("\"shape\":[1],\"data_offsets\":[0,4]") "     ", 4, -1, NULL},
	{"no tensors", "{}", 0, -1, NULL},
	{"scalar", T("\"shape\":[],\"data_offsets\":[0,4]"), 4, -1, NULL},
	{"empty tensor", T("\"shape\":[0,7],\"data_offsets\":[0,0]"), 0, -1, NULL},
	{"metadata", "{\"__metadata__\":{\"format\":\"pt\"}}", 0, -1, NULL},
	{"half bytes", "{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, -1, NULL},
	{"six bits", "{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, -1, NULL},
	{"half bytes, odd", "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, -1, "whole bytes"},
	{"one byte too long", T("\"shape\":[1],\"data_offsets\":[0,4]"), 5, -1, "the file has"},
	{"short file", T("\"shape\":[2],\"data_offsets\":[0,8]"), 7, -1, "ends at byte 8"},
	{"hole", T("\"shape\":[1],\"data_offsets\":[4,8]"), 8, -1, "a hole of 4 bytes"},
	{"overlap", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
		    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6, -1, "overlaps"},
	{"size", T("\"shape\":[2],\"data_offsets\":[0,4]"), 4, -1, "need 8"},
	{"overflow", T("\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]"), 4, -1, "overflows"},
	{"negative", T("\"shape\":[-1],\"data_offsets\":[0,4]"), 4, -1, "not a size"},
	{"float dimension", T("\"shape\":[1.0],\"data_offsets\":[0,4]"), 4, -1, "not a size"},
	{"duplicate", "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
		      "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "not a JSON object"},
	{"unknown dtype", "{\"a\":{\"dtype\":\"F7\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "unknown"},
	{"unknown key", T("\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), 4, -1, "nothing else"},
	{"offsets swapped", T("\"shape\":[1],\"data_offsets\":[4,0]"), 4, -1, "not [begin, end]"},
	{"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, -1, "not a string"},
	{"metadata is a list", "{\"__metadata__\":[]}", 0, -1, "is not an object"},
	{"metadata is null", "{\"__metadata__\":null}", 0, -1, NULL},
	{"no dtype", "{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "has no dtype"},
	{"no JSON", "{\"a\":", 0, -1, "not a JSON object"},
	{"array", "[]", 0, -1, "does not start with"},
	{"blank first", " {}", 0, -1, "does not start with"},
	{"bad UTF-8", "{\"\xff\":{}}", 0, -1, "not a JSON object"},
	{"too many dimensions", T("\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, -1, "at most 8"},
	{"header longer than the file", "{}", 0, 1000, "truncated"},
	{"header over 100 MB", "{}", 0, 100000001, "at most 100000000"},
	{"huge length", "{}", 0, INT64_MAX, "at most 100000000"},
};

static int parse(const void *file, uint64_t bytes, struct rs_found *ret, struct sc_err *err)
{
	struct rs_file f = rs_file_in_memory("model.safetensors", file, bytes);

	return rs_format_parse(safetensors, &f, ret, err);
}

static void one_row(void **state)
{
	const struct row *row = *state;
	size_t n = strlen(row->header);
	unsigned char *file = calloc(1, 8 + n + row->data);
	uint64_t length = row->length < 0 ? n : (uint64_t)row->length;
	struct rs_found found;
	struct sc_err err = {0};
	int rc;

	for (int i = 0; i < 8; i++)
		file[i] = (unsigned char)(length >> 8 * i);
	memcpy(file + 8, row->header, n);
	rc = parse(file, 8 + n + row->data, &found, &err);
	if (!row->why) {
		if (rc < 0)
			fail_msg("refused: %s", err.msg);
		rs_found_done(&found);
	} else {
		assert_true(rc < 0);
		if (!strstr(err.msg, row->why))
			fail_msg("says '%s', want '%s'", err.msg, row->why);
	}
	/* every shorter file is refused, and nothing beyond its end is read (ASan) */
	for (size_t cut = 0; !row->why && cut < 8 + n + row->data; cut++) {
		unsigned char *shorter = malloc(cut ? cut : 1);

		memcpy(shorter, file, cut);
		assert_true(parse(shorter, cut, &found, &err) < 0);
		free(shorter);
	}
	free(file);
}

static void written_is_read_back_at(uint32_t skew)
{
	struct rs_wanted wanted[] = {
		{.name = "b", .dtype = META_DTYPE_F32, .shape = {1, {3}}},
		{.name = "\xc3\xa9\"\n", .dtype = META_DTYPE_U8, .shape = {2, {2, 5}}},
		{.name = "a", .dtype = META_DTYPE_F32, .shape = {0, {0}}},
		{.name = "none", .dtype = META_DTYPE_F32, .shape = {1, {0}}},
		{.name = "step", .dtype = META_DTYPE_I64, .shape = {0, {0}}},
	};
	static const uint32_t order[] = {4, 2, 0, 1};	/* of those with bytes */
	static const char payload[] = "{\"format\":\"pt\"}";
	struct rs_frame frame;
	struct rs_found found;
	struct sc_err err;
	unsigned char *file;

	for (int i = 0; i < 5; i++)
		wanted[i].skew = skew;
	assert_int_equal(0, rs_format_describe(safetensors, wanted, 5, payload, sizeof(payload) - 1, &frame, &err));
	assert_int_equal(5, frame.nr);
	assert_int_equal(RS_PIECE_TEXT, frame.pieces[0].kind);
	assert_int_equal(skew % 8 ? 0 : skew, frame.pieces[1].at % SC_DATA_ALIGN);
	file = calloc(1, frame.bytes);
	memcpy(file, frame.pieces[0].text, frame.pieces[1].at);
	assert_int_equal(0, parse(file, frame.bytes, &found, &err));
	assert_string_equal(payload, found.payload);
	assert_int_equal(5, found.nr);
	for (int i = 0; i < 5; i++) {
		const struct rs_found_tensor *t = rs_found_tensor(&found, wanted[i].name);

		assert_int_equal(wanted[i].dtype, t->dtype);
		assert_true(meta_shape_equal(&wanted[i].shape, &t->shape));
	}
	for (int i = 0; i < 4; i++) {
		const struct rs_piece *p = &frame.pieces[1 + i];

		assert_int_equal(RS_PIECE_TENSOR, p->kind);
		assert_int_equal(order[i], p->tensor);
		assert_int_equal(p->at, rs_found_tensor(&found, wanted[order[i]].name)->at);
	}
	rs_found_done(&found);
	rs_frame_done(&frame);
	free(file);
}

/* What stores have must have the same bytes under every later program: the header says what lies where. */
static void bytes_as_they_were(void **unused)
{
	static const enum meta_dtype types[] = {META_DTYPE_U8, META_DTYPE_BF16, META_DTYPE_F32, META_DTYPE_I64};
	static const char *const payloads[] = {NULL, "{\"format\":\"pt\"}"};
	static struct rs_wanted t[300];
	static char names[300][40];
	XXH64_hash_t all = 0;

	(void)unused;
	random_state = 20261123;
	for (int round = 0; round < 300; round++) {
		uint32_t nr = pick(300);
		struct rs_frame frame;
		const char *payload;
		struct sc_err err;

		for (uint32_t i = 0; i < nr; i++) {
			(void)snprintf(names[i], sizeof(names[i]), "layers.%u.%05u\"%c", pick(40), i, 'a' + (int)pick(26));
			t[i] = (struct rs_wanted){.name = names[i], .dtype = types[pick(4)], .shape = {2, {0}}};
			t[i].shape.dim[0] = pick(3) ? 1 + pick(40) : 0;
			t[i].shape.dim[1] = pick(2) ? 4096 : 1 + pick(5000);
			if (pick(10) == 0)
				t[i].shape = (struct meta_shape){0, {0}};
			t[i].skew = pick(2) ? 1264 : 8 * pick(512);
		}
		payload = payloads[pick(2)];
		assert_int_equal(0, rs_format_describe(safetensors, t, nr, payload, payload ? strlen(payload) : 0, &frame, &err));
		all = XXH3_64bits_withSeed(frame.pieces[0].text, rs_piece_end(&frame, &frame.pieces[0]), all);
		all = XXH3_64bits_withSeed(&frame.bytes, sizeof(frame.bytes), all);
		rs_frame_done(&frame);
	}
	assert_true(all == 0x98801c1cea67ba94);
}

static void written_is_read_back(void **unused)
{
	(void)unused;
	for (uint32_t skew = 0; skew < SC_DATA_ALIGN; skew++)
		written_is_read_back_at(skew);
}

static void names(void **unused)
{
	static char header[SC_TENSOR_NAME_BYTES_MAX + 100], file[sizeof(header) + 8];
	struct rs_found found;
	struct sc_err err;

	(void)unused;
	for (int more = 0; more <= 1; more++) { /* the longest that is taken, and one byte more */
		uint64_t n = (uint64_t)snprintf(header, sizeof(header), "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
						SC_TENSOR_NAME_BYTES_MAX + more, 0);

		memcpy(file, &n, 8);
		memcpy(file + 8, header, n);
		assert_int_equal(more ? SC_E_LIMIT : 0, parse(file, 8 + n, &found, &err));
		if (!more) {
			assert_ptr_equal(&found.tensors[0], rs_found_tensor(&found, found.tensors[0].name));
			assert_null(rs_found_tensor(&found, "another"));
			rs_found_done(&found);
		}
	}
}

/* The name decides: a file that was cut is refused, and does not pass as an opaque one. */
static void files_of_a_format(void **unused)
{
	static const struct {
		const char *path, *format;
	} all[] = {{"a/model.safetensors", "safetensors"}, {"model.safetensors.tmp", "plain"}, {".safetensors", "plain"},
		   {"model.bin", "plain"}, {"model.indexed", "plain"}};

	(void)unused;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct rs_file file = rs_file_in_memory(all[i].path, "abc", 3);
		const struct rs_format_ops *format;
		struct sc_err err;

		assert_int_equal(0, rs_format_of(&file, &format, &err));
		assert_string_equal(all[i].format, format->name);
		assert_ptr_equal(format, rs_format_find(all[i].format));
	}
	assert_null(rs_format_find("indexed"));
}

static int cannot_read(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)bytes;
	(void)to;
	if (at < *(uint64_t *)arg)
		return 0;
	return sc_fail(err, SC_E_DAMAGED, "the disk fails at byte %d", (int)at);
}

static void damage_is_not_another_format(void **unused)
{
	uint64_t good = 0;
	struct rs_file file = {.path = "model.safetensors", .bytes = 100, .arg = &good, .read = cannot_read};
	struct rs_found found;
	struct sc_err err;

	(void)unused;
	assert_int_equal(SC_E_DAMAGED, rs_format_parse(safetensors, &file, &found, &err));
	assert_non_null(strstr(err.msg, "the disk fails"));
}

/* Any bytes are one tensor without a name, and as such they are laid out. */
static void plain_files(void **unused)
{
	struct rs_wanted wanted[2] = {{.name = "", .dtype = META_DTYPE_U8, .shape = {1, {5}}}, {.name = "b"}};
	struct rs_file file = rs_file_in_memory("a", "abcde", 5);
	struct rs_frame frame;
	struct rs_found found;
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_format_parse(&rs_format_plain, &file, &found, &err));
	assert_int_equal(1, found.nr);
	assert_ptr_equal(&found.tensors[0], rs_found_tensor(&found, ""));
	assert_int_equal(5, rs_found_bytes(&found.tensors[0]));
	assert_null(found.payload);
	rs_found_done(&found);
	assert_int_equal(0, rs_format_describe(&rs_format_plain, wanted, 1, NULL, 0, &frame, &err));
	assert_int_equal(5, frame.bytes);
	assert_int_equal(1, frame.nr);
	assert_int_equal(RS_PIECE_TENSOR, frame.pieces[0].kind);
	rs_frame_done(&frame);
	wanted->shape.dim[0] = 0;
	assert_int_equal(0, rs_format_describe(&rs_format_plain, wanted, 1, NULL, 0, &frame, &err));
	assert_int_equal(0, frame.bytes);
	assert_int_equal(0, frame.nr);
	rs_frame_done(&frame);
	assert_int_equal(SC_E_UNSUPPORTED, rs_format_describe(&rs_format_plain, wanted, 2, NULL, 0, &frame, &err));
	assert_int_equal(SC_E_UNSUPPORTED, rs_format_describe(&rs_format_plain, wanted, 1, "x", 1, &frame, &err));
}

static const struct rs_frame frame_of_three = {
	.bytes = 30, .nr = 3, .pieces = (struct rs_piece[]){{.at = 0}, {.at = 10}, {.at = 11}}};

static void pieces_are_found(void **unused)
{
	(void)unused;
	for (uint64_t at = 0; at < 30; at++) {
		const struct rs_piece *p = rs_frame_piece(&frame_of_three, at);

		assert_ptr_equal(&frame_of_three.pieces[at < 10 ? 0 : at < 11 ? 1 : 2], p);
		assert_int_equal(at < 10 ? 10 : at < 11 ? 11 : 30, rs_piece_end(&frame_of_three, p));
	}
}

static void metadata_that_ranks_agree_on(void **unused)
{
	static const struct {
		const char *a, *b, *both;
		bool differ;
	} all[] = {{"{\"a\":\"1\",\"b\":\"2\"}", "{\"b\":\"2\",\"a\":\"3\"}", "{\"b\":\"2\"}", true},
		   {"{\"a\":\"1\"}", "{\"a\":\"1\"}", "{\"a\":\"1\"}", false},
		   {"{\"a\":\"1\"}", NULL, NULL, true},
		   {NULL, NULL, NULL, false}};

	(void)unused;
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct sc_err err;
		char *both = NULL;
		bool differ;

		assert_int_equal(0, rs_format_agree(safetensors, all[i].a, all[i].b, &both, &differ, &err));
		assert_int_equal(all[i].differ, differ);
		if (all[i].both)
			assert_string_equal(all[i].both, both);
		else
			assert_null(both);
		free(both);
	}
}

/* Allocation fails at the n-th call, for every n until the parse passes: no crash, no leak. */
static long allocations_left;

static void *failing_alloc(size_t bytes)
{
	return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

static void *failing_resize(void *p, size_t bytes)
{
	return allocations_left-- > 0 ? realloc(p, bytes) : NULL;
}

static void files_without_memory(void **unused)
{
	static const char header[] = "{\"__metadata__\":{\"a\":\"b\"},\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
				     "\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}";
	char file[8 + sizeof(header) + 3] = {0};
	uint64_t n = sizeof(header) - 1;
	bool passed = false;

	(void)unused;
	memcpy(file, &n, 8);
	memcpy(file + 8, header, n);
	sc_sys.alloc = failing_alloc;
	sc_sys.resize = failing_resize;
	for (long k = 0; !passed && k < 1000; k++) {
		struct rs_found found;
		struct sc_err err;
		int rc;

		allocations_left = k;
		rc = parse(file, 8 + n + 3, &found, &err);
		passed = rc == 0;
		assert_true(passed || rc == SC_E_NO_MEMORY);
		if (passed)
			rs_found_done(&found);
	}
	sc_sys.alloc = malloc;
	sc_sys.resize = realloc;
	assert_true(passed);
}

static void out_of_memory_is_refused(void **unused)
{
	static const char layout[] = "use megatron-gpt vocab=300 glu=1:1 tied=embedding.word_embeddings.weight";
	bool passed = false;

	(void)unused;
	sc_sys.alloc = failing_alloc;
	sc_sys.resize = failing_resize;
	for (long n = 0; !passed && n < 100000; n++) {
		struct meta_layout *l = NULL;
		struct meta_topology topo = {0};
		struct sc_err err;
		int rc;

		allocations_left = n;
		rc = meta_layout_parse(layout, NULL, NULL, &l, &err);
		if (rc == 0)
			rc = meta_topology_parse(l, "tp=2 pp=2 stages=3+1", &topo, &err);
		passed = rc == 0;
		if (rc < 0)
			assert_int_equal(SC_E_NO_MEMORY, rc);
		meta_topology_done(&topo);
		meta_layout_free(l);
	}
	sc_sys.alloc = malloc;
	sc_sys.resize = realloc;
	assert_true(passed);
}

int main(void)
{
	struct CMUnitTest tests[sizeof(rows) / sizeof(*rows) + 10];
	size_t nr = 0;

	safetensors = rs_format_find("safetensors");
	for (; nr < sizeof(rows) / sizeof(*rows); nr++)
		tests[nr] = (struct CMUnitTest){rows[nr].name, one_row, NULL, NULL, (void *)&rows[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(written_is_read_back);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(bytes_as_they_were);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(names);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(files_of_a_format);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(damage_is_not_another_format);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(plain_files);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(pieces_are_found);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(metadata_that_ranks_agree_on);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(files_without_memory);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(out_of_memory_is_refused);
	return _cmocka_run_group_tests("safetensors", tests, nr, NULL, NULL);
}
