/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .metadata of torch.distributed.checkpoint: one that torch 2.13 wrote (tests/sample/dcp; expected.txt says what torch
 * finds in it), refusals, and ones with changed bytes, whose chunks lie inside of their tensors or which are refused with
 * a sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "reshard/codec/dcp/dcp.h"
#include "tests/prop/pick.h"
#include "tests/support/sample_file.h"

#define CHANGED 4000

static void add_list(struct sc_buf *buf, const uint64_t *at, uint32_t nr)
{
	sc_buf_add(buf, "[", 1);
	for (uint32_t i = 0; i < nr; i++)
		sc_buf_printf(buf, "%s%llu", i ? ", " : "", (unsigned long long)at[i]);
	sc_buf_add(buf, "]", 1);
}

static void add_text(struct sc_buf *buf, const struct rs_dcp *dcp)
{
	for (size_t i = 0; i < dcp->tensors.nr; i++) {
		const struct rs_dcp_tensor *t = &dcp->tensors.at[i];

		sc_buf_printf(buf, "%s %s ", t->name, meta_dtype_name(t->dtype));
		add_list(buf, t->shape, t->dims);
		for (uint64_t k = 0; k < t->nr; k++) {
			sc_buf_add(buf, " ", 1);
			add_list(buf, t->chunks[k].off, t->dims);
			sc_buf_add(buf, "+", 1);
			add_list(buf, t->chunks[k].ext, t->dims);
		}
		sc_buf_add(buf, "\n", 1);
	}
}

static void test_sample(void **state)
{
	size_t nr, expected_nr;
	char *bytes = load_sample(".metadata", &nr), *expected = load_sample("expected.txt", &expected_nr);
	struct sc_buf text = {0};
	struct rs_dcp dcp;
	struct sc_err err;

	(void)state;
	if (rs_dcp_read(bytes, nr, &dcp, &err) != 1)
		fail_msg("%s", err.msg);
	add_text(&text, &dcp);
	assert_string_equal(text.text, expected);
	assert_true(dcp.objects.nr > 0);
	for (size_t i = 0; i < dcp.tensors.nr; i++)
		for (uint64_t k = 0; k < dcp.tensors.at[i].nr; k++)
			assert_non_null(strstr(dcp.tensors.at[i].chunks[k].file, ".distcp"));
	sc_buf_done(&text);
	rs_dcp_done(&dcp);
	free(bytes);
	free(expected);
}

/* What is written again says the same, chunk for chunk, and is written as the same bytes. */
static void test_emit(void **state)
{
	size_t nr;
	char *bytes = load_sample(".metadata", &nr);
	struct sc_buf first = {0}, second = {0}, before = {0}, after = {0};
	struct rs_dcp dcp, again;
	struct sc_err err;

	(void)state;
	assert_int_equal(rs_dcp_read(bytes, nr, &dcp, &err), 1);
	if (rs_dcp_emit(&dcp, &first, &err) < 0 || rs_dcp_read(first.text, first.bytes, &again, &err) != 1 ||
	    rs_dcp_emit(&again, &second, &err) < 0)
		fail_msg("%s", err.msg);
	add_text(&before, &dcp);
	add_text(&after, &again);
	assert_string_equal(before.text, after.text);
	assert_int_equal(first.bytes, second.bytes);
	assert_memory_equal(first.text, second.text, first.bytes);
	for (size_t i = 0; i < dcp.tensors.nr; i++)
		for (uint64_t k = 0; k < dcp.tensors.at[i].nr; k++) {
			const struct rs_dcp_chunk *a = &dcp.tensors.at[i].chunks[k], *b = &again.tensors.at[i].chunks[k];

			assert_string_equal(a->file, b->file);
			assert_int_equal(a->at, b->at);
			assert_int_equal(a->bytes, b->bytes);
		}
	assert_int_equal(dcp.objects.nr, again.objects.nr);
	for (size_t i = 0; i < dcp.objects.nr; i++) {
		const struct rs_dcp_object *a = &dcp.objects.at[i], *b = &again.objects.at[i];

		assert_string_equal(a->name, b->name);
		assert_string_equal(a->file, b->file);
		assert_int_equal(a->at, b->at);
		assert_int_equal(a->bytes, b->bytes);
	}
	rs_dcp_done(&dcp);
	rs_dcp_done(&again);
	sc_buf_done(&first);
	sc_buf_done(&second);
	sc_buf_done(&before);
	sc_buf_done(&after);
	free(bytes);
}

/* Puts a text of the same length in the place of another one, wherever that is. */
static void replace(char *bytes, size_t nr, const char *old, const char *new)
{
	bool any = false;

	assert_int_equal(strlen(old), strlen(new));
	for (char *at = bytes; (at = memmem(at, (size_t)(bytes + nr - at), old, strlen(old))); any = true)
		memcpy(at, new, strlen(old));
	assert_true(any);
}

static void test_refusals(void **state)
{
	static const struct {
		const char *old, *new, *why;
	} cases[] = {
		{"float32", "complex", "is of type complex, which is not known"},
		{"__0_0.distcp", "/etc/.shadow", "is outside of the folder"},
		{"__0_0.distcp", "../../shadow", "is outside of the folder"},
		{"__0_0.distcp", "a/../../../b", "is outside of the folder"},
		{"more.half", "more.none", "is there twice"},
		{"_StorageInfo", "_StorageINFO", "no MetadataIndex and _StorageInfo"},
		{"storage_data", "storage_DATA", "no state_dict_metadata and storage_data"},
		{"ChunkStorageMetadata", "chunkStorageMetadata", "is no tuple"},
		{"TensorStorageMetadata", "tensorStorageMetadata", "has no list of chunks"},
		{"relative_path", "relative_PATH", "the name of a file is no text"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		size_t nr;
		char *bytes = load_sample(".metadata", &nr);
		struct rs_dcp dcp;
		struct sc_err err = {0};

		replace(bytes, nr, cases[i].old, cases[i].new);
		if (rs_dcp_read(bytes, nr, &dcp, &err) >= 0)
			fail_msg("'%s' was taken", cases[i].new);
		if (!strstr(err.msg, cases[i].why))
			fail_msg("'%s': %s", cases[i].new, err.msg);
		free(bytes);
	}
}

static void test_others(void **state)
{
	static const char *const others[] = {"", "\x80\2}.", "\x80\2N.", "text", "\x80\4\x95"};
	struct rs_dcp dcp;
	struct sc_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
		assert_int_equal(rs_dcp_read(others[i], strlen(others[i]), &dcp, &err), 0);
}

static void test_changed(void **state)
{
	size_t nr, taken = 0;
	char *bytes = load_sample(".metadata", &nr), *changed = malloc(nr);

	(void)state;
	random_state = 1;
	for (int i = 0; i < CHANGED; i++) {
		size_t length = pick(8) ? nr : pick((unsigned)nr);
		struct rs_dcp dcp;
		struct sc_err err = {0};
		int rc;

		memcpy(changed, bytes, nr);
		for (unsigned k = 1 + pick(4); k; k--)
			changed[pick((unsigned)nr)] = (char)(pick(3) ? pick(256) : pick(16));
		rc = rs_dcp_read(changed, length, &dcp, &err);
		assert_true(rc >= 0 || err.msg[0]);
		if (rc <= 0)
			continue;
		taken++;
		for (size_t t = 0; t < dcp.tensors.nr; t++)
			for (uint64_t k = 0; k < dcp.tensors.at[t].nr; k++)
				for (uint32_t d = 0; d < dcp.tensors.at[t].dims; d++)
					assert_true(dcp.tensors.at[t].chunks[k].off[d] +
							    dcp.tensors.at[t].chunks[k].ext[d] <=
						    dcp.tensors.at[t].shape[d]);
		rs_dcp_done(&dcp);
	}
	assert_true(taken > 10);
	free(bytes);
	free(changed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample), cmocka_unit_test(test_emit), cmocka_unit_test(test_refusals), cmocka_unit_test(test_others),
		cmocka_unit_test(test_changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
