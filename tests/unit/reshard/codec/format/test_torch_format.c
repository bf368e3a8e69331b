/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format torch: what it describes it finds again, whatever tensors a payload is given, in whatever order; files
 * that torch 2.13 wrote keep their objects.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "meta/base/limits.h"
#include "reshard/codec/format/format.h"
#include "tests/prop/pick.h"
#include "tests/support/every.h"
#include "tests/support/frames.h"

#define TENSORS_MAX 40

static const struct rs_format_ops *torch;

/* --- a file in memory --- */

struct made {
	struct rs_wanted wanted[TENSORS_MAX];
	char names[TENSORS_MAX][64];
	unsigned char *data[TENSORS_MAX];
	uint32_t nr;
	unsigned char *file;
	uint64_t bytes;
};

static uint64_t bytes_of(const struct rs_wanted *w)
{
	uint64_t bytes = 0;

	assert_true(meta_tensor_bytes(w->dtype, &w->shape, &bytes));
	return bytes;
}

static void put_together(struct made *m, const struct rs_frame *frame)
{
	free(m->file);
	m->bytes = frame->bytes;
	m->file = file_of_frame(frame, m->data);
	assert_non_null(m->file);
}

static void write_file(struct made *m, const struct rs_found *payload)
{
	struct rs_frame frame;
	struct sc_err err;

	if (rs_format_describe(torch, m->wanted, m->nr, payload ? payload->payload : NULL,
			       payload ? payload->payload_bytes : 0, &frame, &err) < 0)
		fail_msg("%s", err.msg);
	put_together(m, &frame);
	rs_frame_done(&frame);
}

static void read_file(const struct made *m, struct rs_found *ret)
{
	struct rs_file file = rs_file_in_memory("x.pt", m->file, m->bytes);
	struct sc_err err;

	assert_int_equal(1, rs_format_is(torch, &file, &err));
	if (rs_format_parse(torch, &file, ret, &err) < 0)
		fail_msg("%s", err.msg);
}

static void expect_found(const struct made *m, const struct rs_found *found)
{
	assert_int_equal(m->nr, found->nr);
	for (uint32_t i = 0; i < m->nr; i++) {
		const struct rs_wanted *w = &m->wanted[i];
		const struct rs_found_tensor *t = rs_found_tensor(found, w->name);

		if (!t || t->dtype != w->dtype || !meta_shape_equal(&t->shape, &w->shape) ||
		    memcmp(m->file + t->at, m->data[i], bytes_of(w)) != 0)
			fail_msg("'%s' is not found, or another", w->name);
		if (bytes_of(w) >= 64 << 10)
			assert_int_equal(w->skew % 64 ? 0 : w->skew, t->at % SC_DATA_ALIGN);
		else if (bytes_of(w))
			assert_int_equal(0, t->at % 64);
	}
}

static void made_done(struct made *m)
{
	for (uint32_t i = 0; i < m->nr; i++)
		free(m->data[i]);
	free(m->file);
	free(m);
}

/* --- what is in it --- */

static void fill(struct made *m, uint32_t i)
{
	static const enum meta_dtype types[] = {META_DTYPE_F32, META_DTYPE_BF16, META_DTYPE_U8, META_DTYPE_BOOL,
						META_DTYPE_U16, META_DTYPE_F8_E4M3, META_DTYPE_I64, META_DTYPE_C64};
	struct rs_wanted *w = &m->wanted[i];

	w->name = m->names[i];
	w->dtype = types[pick(8)];
	w->skew = pick(2) ? 64 * pick(64) : pick(SC_DATA_ALIGN);
	w->shape.nr = (uint8_t)pick(5);
	for (int d = 0; d < w->shape.nr; d++)
		w->shape.dim[d] = pick(8) ? 1 + pick(20) : 0;
	if (pick(6) == 0)
		w->shape = (struct meta_shape){.nr = 1, .dim = {70000 + pick(5000)}};
	m->data[i] = malloc(bytes_of(w) + 1);
	assert_non_null(m->data[i]);
	for (uint64_t k = 0; k < bytes_of(w); k++)
		m->data[i][k] = (unsigned char)pick(256);
}

/* Names whose folders are dicts: texts that look like numbers, numbers, and what a path has to escape. */
static struct made *make(uint32_t nr)
{
	static const char *const folders[] = {"", "model/", "optimizer/state/3/", "a~1b/", "'7/-2/", "\xc3\xa4 b/"};
	struct made *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	for (m->nr = 0; m->nr < nr; m->nr++) {
		static const char *const ends[][2] = {{"layer.", ".weight"}, {"", ""}, {"'", ""}};
		const char *const *end = ends[pick(3)];

		(void)snprintf(m->names[m->nr], sizeof(m->names[0]), "%s%s%u%s", folders[pick(6)], end[0], m->nr + 100,
			       end[1]);
		fill(m, m->nr);
	}
	return m;
}

static void shuffle(struct made *m)
{
	for (uint32_t i = m->nr; i > 1; i--) {
		uint32_t k = pick(i);
		struct rs_wanted w = m->wanted[i - 1];
		unsigned char *data = m->data[i - 1];

		m->wanted[i - 1] = m->wanted[k];
		m->data[i - 1] = m->data[k];
		m->wanted[k] = w;
		m->data[k] = data;
	}
}

/* --- the properties --- */

static void what_is_described_is_found(void **state)
{
	(void)state;
	for (unsigned i = 0; i < some_of(300); i++) {
		struct made *m = make(pick(TENSORS_MAX));
		struct rs_found found, again;
		unsigned char *first;
		uint64_t bytes;

		write_file(m, NULL);
		read_file(m, &found);
		expect_found(m, &found);
		first = m->file;
		bytes = m->bytes;
		m->file = NULL;
		shuffle(m);
		write_file(m, &found); /* with its payload, in any order: the same objects */
		read_file(m, &again);
		expect_found(m, &again);
		assert_int_equal(found.payload_bytes, again.payload_bytes);
		assert_memory_equal(found.payload, again.payload, found.payload_bytes);
		rs_found_done(&again);
		rs_found_done(&found);
		found = (struct rs_found){0};
		write_file(m, NULL);
		assert_int_equal(bytes, m->bytes);
		assert_memory_equal(first, m->file, bytes);
		free(first);
		made_done(m);
	}
}

/* A rank has other tensors than the one whose payload it is. */
static void other_tensors_have_a_place(void **state)
{
	(void)state;
	for (unsigned i = 0; i < some_of(300); i++) {
		struct made *m = make(1 + pick(TENSORS_MAX - 1)), *rank = make(1 + pick(TENSORS_MAX - 1));
		struct rs_found found, of_rank;

		write_file(m, NULL);
		read_file(m, &found);
		write_file(rank, &found);
		read_file(rank, &of_rank);
		expect_found(rank, &of_rank);
		rs_found_done(&of_rank);
		rs_found_done(&found);
		made_done(m);
		made_done(rank);
	}
}

/* --- files of torch --- */

static unsigned char *load(const char *name, uint64_t *ret_bytes)
{
	char path[512];
	unsigned char *bytes = malloc(1 << 20);
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/%s", SAMPLE, name);
	f = fopen(path, "re");
	if (!f || !bytes)
		fail_msg("cannot read %s", path);
	*ret_bytes = fread(bytes, 1, 1 << 20, f);
	(void)fclose(f);
	return bytes;
}

/* Describes the file over: with all its tensors, and without every other one. */
static void write_over(const char *name, unsigned step)
{
	struct made *m = calloc(1, sizeof(*m));
	struct rs_found found, again;
	unsigned char *original;
	uint64_t bytes;

	assert_non_null(m);
	m->file = original = load(name, &m->bytes);
	bytes = m->bytes;
	read_file(m, &found);
	assert_in_range(found.nr, 0, TENSORS_MAX);
	for (uint32_t i = 0; i < found.nr; i += step) {
		const struct rs_found_tensor *t = &found.tensors[i];
		struct rs_wanted *w = &m->wanted[m->nr];

		*w = (struct rs_wanted){.name = t->name, .dtype = t->dtype, .shape = t->shape};
		m->data[m->nr] = malloc(bytes_of(w) + 1);
		assert_in_range(t->at + bytes_of(w), 0, bytes);
		memcpy(m->data[m->nr++], original + t->at, bytes_of(w));
	}
	m->file = NULL;
	write_file(m, &found);
	read_file(m, &again);
	expect_found(m, &again);
	if (step == 1) {
		assert_int_equal(found.payload_bytes, again.payload_bytes);
		assert_memory_equal(found.payload, again.payload, found.payload_bytes);
	}
	rs_found_done(&again);
	rs_found_done(&found);
	free(original);
	made_done(m);
}

static void files_of_torch_keep_their_objects(void **state)
{
	static const char *const samples[] = {"bytes.pt", "empty.pt", "nested.pt", "nocrc.pt", "protocol4.pt", "training.pt",
					      "types.pt", "buffer.pt"};

	(void)state;
	for (size_t i = 0; i < sizeof(samples) / sizeof(*samples); i++)
		for (unsigned step = 1; step < 3; step++)
			write_over(samples[i], step);
}

/* --- refusals --- */

static bool is_odd(void *arg, const char *name)
{
	(void)arg;
	return strlen(name) % 2;
}

static void objects_stay_in_the_payload(void **state)
{
	struct made *m = make(30);
	struct rs_file file;
	struct rs_found found, again;
	struct sc_err err;
	uint32_t nr = 0;

	(void)state;
	write_file(m, NULL);
	file = rs_file_in_memory("x.pt", m->file, m->bytes);
	file.is_object = is_odd;
	/* read_memory takes the file for `arg`, and is_odd none */
	assert_int_equal(0, rs_format_parse(torch, &file, &found, &err));
	for (uint32_t i = 0; i < found.nr; i++)
		assert_int_equal(0, strlen(found.tensors[i].name) % 2);
	/* written without them, all are there again */
	for (uint32_t i = 0; i < m->nr; i++) {
		if (strlen(m->wanted[i].name) % 2) {
			free(m->data[i]);
			continue;
		}
		m->data[nr] = m->data[i];
		m->wanted[nr++] = m->wanted[i];
	}
	assert_int_equal(nr, found.nr);
	m->nr = nr;
	write_file(m, &found);
	read_file(m, &again);
	assert_int_equal(30, again.nr);
	for (uint32_t i = 0; i < m->nr; i++)
		assert_non_null(rs_found_tensor(&again, m->wanted[i].name));
	rs_found_done(&again);
	rs_found_done(&found);
	made_done(m);
}

static void expect_refusal(const char *name, int code, const char *sentence)
{
	uint64_t bytes;
	unsigned char *memory = load(name, &bytes);
	struct rs_file file = rs_file_in_memory(name, memory, bytes);
	struct rs_found found;
	struct sc_err err;

	assert_int_equal(code, rs_format_parse(torch, &file, &found, &err));
	if (!strstr(err.msg, sentence))
		fail_msg("%s", err.msg);
	free(memory);
}

static void what_cannot_be_kept_is_refused(void **state)
{
	struct rs_wanted half = {.name = "x", .dtype = META_DTYPE_F4, .shape = {1, {2}}};
	struct rs_wanted two[] = {{.name = "x", .dtype = META_DTYPE_U8, .shape = {1, {2}}},
				  {.name = "x/y", .dtype = META_DTYPE_U8, .shape = {1, {2}}}};
	struct rs_frame frame;
	struct sc_err err;

	(void)state;
	expect_refusal("dtensor.pt", SC_E_UNSUPPORTED, "is a DTensor");
	expect_refusal("views.pt", SC_E_UNSUPPORTED, "save its .contiguous()");
	assert_int_equal(SC_E_UNSUPPORTED, rs_format_describe(torch, &half, 1, NULL, 0, &frame, &err));
	assert_non_null(strstr(err.msg, "torch has no type F4"));
	for (size_t n = 0; n < 16; n++) {
		assert_int_equal(SC_E_CORRUPT, rs_format_describe(torch, two, 1, "\377\377\377\377\377\377\377\377\1\0\0\0"
								  "\0\0\0\0", n ? n : 16, &frame, &err));
		assert_non_null(strstr(err.msg, "the payload is cut"));
	}
}

static void names_tell_which_files_are_ours(void **state)
{
	static const struct {
		const char *path, *bytes;
		int ours;
	} files[] = {{"a.pt", "anything is read by the parser", 1}, {"b/a.pth", "", 1}, {"pt", "PK\3\4..............", 0},
		     {"a.bin", "PK\3\4..............", 1}, {"a.bin", "a corpus of tokens", 0}, {"a.ckpt", "PK\3\4", 0},
		     {"a.ckpt", "PK\3\4..............", 1}, {"a.safetensors", "PK\3\4..............", 0}};
	struct sc_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		struct rs_file file = rs_file_in_memory(files[i].path, files[i].bytes, strlen(files[i].bytes));

		assert_int_equal(files[i].ours, rs_format_is(torch, &file, &err));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_described_is_found), cmocka_unit_test(other_tensors_have_a_place),
		cmocka_unit_test(files_of_torch_keep_their_objects), cmocka_unit_test(objects_stay_in_the_payload),
		cmocka_unit_test(what_cannot_be_kept_is_refused), cmocka_unit_test(names_tell_which_files_are_ours),
	};

	torch = rs_format_find("torch");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
