/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of the format, one refusal a row; and what is written is read back. */
#include "reshard/format/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

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
		      "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "no JSON object"},
	{"unknown dtype", "{\"a\":{\"dtype\":\"F7\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "unknown"},
	{"unknown key", T("\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), 4, -1, "nothing else"},
	{"offsets swapped", T("\"shape\":[1],\"data_offsets\":[4,0]"), 4, -1, "not [begin, end]"},
	{"metadata of numbers", "{\"__metadata__\":{\"a\":1}}", 0, -1, "not a string"},
	{"metadata is a list", "{\"__metadata__\":[]}", 0, -1, "is not an object"},
	{"metadata is null", "{\"__metadata__\":null}", 0, -1, NULL},
	{"no dtype", "{\"a\":{\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, -1, "has no dtype"},
	{"no JSON", "{\"a\":", 0, -1, "no JSON object"},
	{"array", "[]", 0, -1, "does not start with"},
	{"blank first", " {}", 0, -1, "does not start with"},
	{"bad UTF-8", "{\"\xff\":{}}", 0, -1, "no JSON object"},
	{"too many dimensions", T("\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, -1, "at most 8"},
	{"header longer than the file", "{}", 0, 1000, "truncated"},
	{"header over 100 MB", "{}", 0, 100000001, "at most 100000000"},
	{"huge length", "{}", 0, INT64_MAX, "at most 100000000"},
};

static int parse(const void *file, uint64_t bytes, struct rs_safetensors *ret, struct sc_err *err)
{
	struct rs_file f = rs_file_in_memory(file, bytes);

	return rs_safetensors_parse(&f, ret, err);
}

static void one_row(void **state)
{
	const struct row *row = *state;
	size_t n = strlen(row->header);
	unsigned char *file = calloc(1, 8 + n + row->data);
	uint64_t length = row->length < 0 ? n : (uint64_t)row->length;
	struct rs_safetensors st;
	struct sc_err err = {0};
	int rc;

	for (int i = 0; i < 8; i++)
		file[i] = (unsigned char)(length >> 8 * i);
	memcpy(file + 8, row->header, n);
	rc = parse(file, 8 + n + row->data, &st, &err);
	if (!row->why) {
		if (rc < 0)
			fail_msg("refused: %s", err.msg);
		rs_safetensors_done(&st);
	} else {
		assert_true(rc < 0);
		if (!strstr(err.msg, row->why))
			fail_msg("says '%s', want '%s'", err.msg, row->why);
	}
	/* every shorter file is refused, and nothing beyond its end is read (ASan) */
	for (size_t cut = 0; !row->why && cut < 8 + n + row->data; cut++) {
		unsigned char *shorter = malloc(cut ? cut : 1);

		memcpy(shorter, file, cut);
		assert_true(parse(shorter, cut, &st, &err) < 0);
		free(shorter);
	}
	free(file);
}

static void written_is_read_back_at(uint32_t skew)
{
	struct rs_tensor_at tensors[] = {
		{.name = "b", .dtype = META_DTYPE_F32, .shape = {1, {3}}},
		{.name = "\xc3\xa9\"\n", .dtype = META_DTYPE_U8, .shape = {2, {2, 5}}},
		{.name = "a", .dtype = META_DTYPE_F32, .shape = {0, {0}}},
		{.name = "step", .dtype = META_DTYPE_I64, .shape = {0, {0}}},
	};
	static const char *const order[] = {"step", "a", "b", "\xc3\xa9\"\n"};
	struct sc_buf buf = {0};
	struct rs_safetensors st;
	struct sc_err err;
	unsigned char *file;

	for (int i = 0; i < 4; i++)
		tensors[i].skew = skew;
	assert_int_equal(0, rs_safetensors_header(tensors, 4, "{\"format\":\"pt\"}", &buf, &err));
	assert_int_equal(skew, buf.bytes % SC_DATA_ALIGN);
	assert_int_equal(buf.bytes, tensors[0].begin);
	file = calloc(1, tensors[3].end);
	memcpy(file, buf.text, buf.bytes);
	assert_int_equal(0, parse(file, tensors[3].end, &st, &err));
	assert_string_equal("{\"format\":\"pt\"}", st.metadata);
	for (int i = 0; i < 4; i++)
		assert_string_equal(order[i], st.tensors[i].name);
	rs_safetensors_done(&st);
	free(file);
	sc_buf_done(&buf);
}

static void written_is_read_back(void **unused)
{
	(void)unused;
	for (uint32_t skew = 0; skew < SC_DATA_ALIGN; skew += 8)
		written_is_read_back_at(skew);
}

static void names(void **unused)
{
	static char header[SC_TENSOR_NAME_BYTES_MAX + 100], file[sizeof(header) + 8];
	struct rs_safetensors st;
	struct sc_err err;

	(void)unused;
	for (int more = 0; more <= 1; more++) { /* the longest that is taken, and one byte more */
		uint64_t n = (uint64_t)snprintf(header, sizeof(header), "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
						SC_TENSOR_NAME_BYTES_MAX + more, 0);

		memcpy(file, &n, 8);
		memcpy(file + 8, header, n);
		assert_int_equal(more ? SC_E_LIMIT : 0, parse(file, 8 + n, &st, &err));
		if (!more) {
			assert_non_null(rs_safetensors_find(&st, st.tensors[0].name));
			assert_null(rs_safetensors_find(&st, "another"));
			rs_safetensors_done(&st);
		}
	}
	assert_true(rs_safetensors_is("a/model.safetensors"));
	assert_false(rs_safetensors_is("model.safetensors.tmp"));
	assert_false(rs_safetensors_is(".safetensors"));
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
		char *both = NULL;
		bool differ;

		assert_int_equal(0, rs_safetensors_common_metadata(all[i].a, all[i].b, &both, &differ));
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
		struct rs_safetensors st;
		struct sc_err err;
		int rc;

		allocations_left = k;
		rc = parse(file, 8 + n + 3, &st, &err);
		passed = rc == 0;
		assert_true(passed || rc == SC_E_NO_MEMORY);
		if (passed)
			rs_safetensors_done(&st);
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
	struct CMUnitTest tests[sizeof(rows) / sizeof(*rows) + 5];
	size_t nr = 0;

	for (; nr < sizeof(rows) / sizeof(*rows); nr++)
		tests[nr] = (struct CMUnitTest){rows[nr].name, one_row, NULL, NULL, (void *)&rows[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(written_is_read_back);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(names);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(metadata_that_ranks_agree_on);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(files_without_memory);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(out_of_memory_is_refused);
	return _cmocka_run_group_tests("safetensors", tests, nr, NULL, NULL);
}
