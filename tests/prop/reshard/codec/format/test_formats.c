/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reshard/codec/format/format.h promises of every format, for safetensors and for the kind that is linked
 * (tests/support/kinds), over random tensors:
 *   - what is described and put together is found again: names, types, shapes, bytes, payload;
 *   - the same tensors in any order give the same bytes;
 *   - a header is read once, each byte of it; errors of reading are passed on as they are;
 *   - a file that was cut is refused; one that was changed is refused, or all that is found lies within it;
 *   - without memory there is an error, no crash and no leak (sanitizers).
 * Prints the seed when one fails; SEED=n repeats it.
 */
#include "reshard/codec/format/format.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/limits.h"
#include "tests/prop/pick.h"
#include "tests/support/frames.h"
#include "tests/support/rank_files.h"

#define TENSORS_MAX 40
#define ROUNDS 200

static unsigned long seed = 1;
static const struct rs_format_ops *format;

#define broken(fmt, ...) fail_msg("seed %lu: " fmt, seed, ##__VA_ARGS__)

/* --- a file of random tensors --- */

struct made {
	uint32_t nr;
	struct rs_wanted wanted[TENSORS_MAX];
	unsigned char *data[TENSORS_MAX];
	char names[TENSORS_MAX][40];
	uint64_t bytes;
	unsigned char *file;	/* of its size, so that sanitizers see what is read behind it */
};

static uint64_t bytes_of(const struct rs_wanted *w)
{
	uint64_t n = 0;

	assert_true(meta_tensor_bytes(w->dtype, &w->shape, &n));
	return n;
}

static void make_tensors(struct made *m)
{
	static const enum meta_dtype types[] = {META_DTYPE_U8, META_DTYPE_BF16, META_DTYPE_F32, META_DTYPE_I64,
						META_DTYPE_BOOL};

	*m = (struct made){.nr = pick(TENSORS_MAX)};
	for (uint32_t i = 0; i < m->nr; i++) {
		struct rs_wanted *w = &m->wanted[i];

		(void)snprintf(m->names[i], sizeof(m->names[0]), "%s%u.%u", pick(4) ? "layer" : "a \"\\quoted\\\" ", pick(9),
			       i);
		*w = (struct rs_wanted){.name = m->names[i], .dtype = types[pick(5)], .skew = pick(SC_DATA_ALIGN)};
		w->shape.nr = (uint8_t)pick(4);
		for (int d = 0; d < w->shape.nr; d++)
			w->shape.dim[d] = pick(6);
		m->data[i] = malloc(bytes_of(w) + 1);
		for (uint64_t k = 0; k < bytes_of(w); k++)
			m->data[i][k] = (unsigned char)pick(256);
	}
}

static void put_together(struct made *m, const struct rs_frame *frame)
{
	m->bytes = frame->bytes;
	m->file = file_of_frame(frame, m->data);
}

static void made_done(struct made *m)
{
	for (uint32_t i = 0; i < m->nr; i++)
		free(m->data[i]);
	free(m->file);
}

/* A payload as the format itself makes it of what ranks wrote; NULL: it has none. */
static void payload_of(struct rs_found *found)
{
	struct sc_buf bytes = {0};
	struct rs_file file;
	struct sc_err err;

	rank_files->make(NULL, 0, pick(100), pick(100), &bytes);
	file = rs_file_in_memory("payload", bytes.text, bytes.bytes);
	assert_int_equal(0, rs_format_parse(format, &file, found, &err));
	assert_non_null(found->payload);
	sc_buf_done(&bytes);
}

static int describe(const struct made *m, const struct rs_found *payload, struct rs_frame *ret, struct sc_err *err)
{
	return rs_format_describe(format, m->wanted, m->nr, payload ? payload->payload : NULL,
				  payload ? payload->payload_bytes : 0, ret, err);
}

/* Each piece is found by every byte of it. */
static void expect_pieces(const struct rs_frame *frame)
{
	uint32_t i = 0;

	for (uint64_t at = 0; at < frame->bytes; at++) {
		while (i + 1 < frame->nr && frame->pieces[i + 1].at <= at)
			i++;
		if (rs_frame_piece(frame, at) != &frame->pieces[i])
			broken("byte %" PRIu64 " is said to be of another piece", at);
	}
}

static void expect_found(const struct made *m, const struct rs_found *payload, const struct rs_found *found)
{
	if (found->nr != m->nr)
		broken("%u tensors, found %u", m->nr, found->nr);
	for (uint32_t i = 0; i < m->nr; i++) {
		const struct rs_wanted *w = &m->wanted[i];
		const struct rs_found_tensor *t = rs_found_tensor(found, w->name);

		if (!t || t->dtype != w->dtype || !meta_shape_equal(&t->shape, &w->shape) ||
		    rs_found_bytes(t) != bytes_of(w) || memcmp(m->file + t->at, m->data[i], bytes_of(w)) != 0)
			broken("'%s' is not found, or another", w->name);
	}
	if (!payload != !found->payload || (payload && strcmp(payload->payload, found->payload) != 0))
		broken("another payload: %s", found->payload ? found->payload : "none");
}

/* --- reading --- */

struct reading {
	const struct made *of;
	unsigned char *times;	/* that each byte was read */
	int calls, fails_at;	/* 0: none */
};

static int read_counting(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	struct reading *r = arg;

	if (at > r->of->bytes || bytes > r->of->bytes - at)
		broken("%" PRIu64 " bytes at %" PRIu64 " are read of a file of %" PRIu64, bytes, at, r->of->bytes);
	if (++r->calls == r->fails_at)
		return sc_fail(err, SC_E_DAMAGED, "the disk fails");
	for (uint64_t i = at; i < at + bytes; i++)
		if (r->times[i]++)
			broken("byte %" PRIu64 " is read twice", i);
	memcpy(to, r->of->file + at, bytes);
	return 0;
}

static void expect_reading(const struct made *m)
{
	struct reading r = {.of = m, .times = calloc(m->bytes + 1, 1)};
	struct rs_file file = {.path = "file", .bytes = m->bytes, .arg = &r, .read = read_counting};
	struct rs_found found;
	struct sc_err err;
	int calls;

	assert_int_equal(0, rs_format_parse(format, &file, &found, &err));
	rs_found_done(&found);
	calls = r.calls;
	for (int i = 1; i <= calls; i++) {
		memset(r.times, 0, m->bytes);
		r.calls = 0;
		r.fails_at = i;
		assert_int_equal(SC_E_DAMAGED, rs_format_parse(format, &file, &found, &err));
		assert_string_equal("the disk fails", err.msg);
	}
	free(r.times);
}

/* --- the properties --- */

static void one_file(void)
{
	struct rs_found payload = {0}, found;
	struct rs_frame frame, again;
	struct made m, other = {0};
	bool has_payload = pick(2);
	struct rs_file file;
	struct sc_err err;

	make_tensors(&m);
	payload_of(&payload);
	if (describe(&m, has_payload ? &payload : NULL, &frame, &err) < 0)
		broken("%s", err.msg);
	expect_pieces(&frame);
	put_together(&m, &frame);
	file = rs_file_in_memory("file", m.file, m.bytes);
	if (rs_format_parse(format, &file, &found, &err) < 0)
		broken("%s", err.msg);
	expect_found(&m, has_payload ? &payload : NULL, &found);
	expect_reading(&m);
	other.nr = m.nr;
	for (uint32_t i = 0; i < m.nr; i++) {
		uint32_t k = pick(i + 1);

		other.wanted[i] = other.wanted[k];
		other.data[i] = other.data[k];
		other.wanted[k] = m.wanted[i];
		other.data[k] = m.data[i];
	}
	assert_int_equal(0, describe(&other, has_payload ? &payload : NULL, &again, &err));
	put_together(&other, &again);
	if (other.bytes != m.bytes || memcmp(other.file, m.file, m.bytes) != 0)
		broken("another order gives other bytes");
	free(other.file);
	rs_frame_done(&again);
	rs_frame_done(&frame);
	rs_found_done(&found);
	rs_found_done(&payload);
	made_done(&m);
}

static void files_of_random_tensors(void **unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS; i++, seed++) {
		random_state = seed * 1000003u;
		one_file();
	}
}

/* By a framework, not by us: names that share bytes, other orders, gaps. */
static void files_made_by_hand(void **unused)
{
	uint32_t data[3][6] = {{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}, {1, 2, 3, 4, 5, 6}};
	struct meta_shape shape = {2, {2, 3}}, none = {1, {0}};
	struct rank_tensor t[] = {{"b", &shape, data[0], 24}, {"empty", &none, data[0], 0}, {"c", &shape, data[1], 24},
				  {"a", &shape, data[2], 24}};
	struct sc_buf bytes = {0};
	struct rs_found found;
	struct rs_file file;
	struct sc_err err;

	(void)unused;
	rank_files->make(t, 4, 7, 3, &bytes);
	file = rs_file_in_memory("file", bytes.text, bytes.bytes);
	if (rs_format_parse(format, &file, &found, &err) < 0)
		broken("%s", err.msg);
	assert_int_equal(4, found.nr);
	for (int i = 0; i < 4; i++) {
		const struct rs_found_tensor *x = rs_found_tensor(&found, t[i].name);

		assert_non_null(x);
		assert_true(meta_shape_equal(t[i].shape, &x->shape));
		for (uint64_t k = 0; k < t[i].bytes / 4; k++)
			assert_memory_equal(&t[i].data[k], bytes.text + x->at + 4 * (x->stride ? k / 3 * x->stride[0] + k % 3 * x->stride[1] : k), 4);
	}
	assert_null(rs_found_tensor(&found, "d"));
	rs_found_done(&found);
	sc_buf_done(&bytes);
}

static void cut_and_changed_files(void **unused)
{
	unsigned taken = 0;

	(void)unused;
	for (int round = 0; round < 20; round++, seed++) {
		struct rs_frame frame;
		struct sc_err err;
		struct made m;

		random_state = seed * 1000003u;
		make_tensors(&m);
		assert_int_equal(0, describe(&m, NULL, &frame, &err));
		put_together(&m, &frame);
		for (uint64_t cut = 0; cut < m.bytes; cut += 1 + pick(9)) {
			unsigned char *shorter = malloc(cut + 1);
			struct rs_file file = rs_file_in_memory("file", shorter, cut);
			struct rs_found found;

			memcpy(shorter, m.file, cut);
			if (rs_format_parse(format, &file, &found, &err) == 0)
				broken("%" PRIu64 " of %" PRIu64 " bytes are taken", cut, m.bytes);
			free(shorter);
		}
		for (int i = 0; i < 2000 && m.bytes; i++) {
			struct rs_file file = rs_file_in_memory("file", m.file, m.bytes);
			uint64_t last = pick((unsigned)sc_min_u64(m.bytes, 200)); /* an index may be there */
			uint64_t at = pick(2) ? pick((unsigned)m.bytes) : m.bytes - 1 - last;
			unsigned char was = m.file[at];
			struct rs_found found;

			/* what it finds lies within the file: rs_format_parse() asserts it */
			m.file[at] = pick(2) ? (unsigned char)("0123456789 \n"[pick(12)]) : (unsigned char)pick(256);
			if (rs_format_parse(format, &file, &found, &err) == 0) {
				taken++;
				rs_found_done(&found);
			}
			m.file[at] = was;
		}
		rs_frame_done(&frame);
		made_done(&m);
	}
	assert_true(taken > 0);
}

static long allocations_left;

static void *failing_alloc(size_t bytes)
{
	return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

static void *failing_resize(void *p, size_t bytes)
{
	return allocations_left-- > 0 ? realloc(p, bytes) : NULL;
}

static int all_of_it(const struct made *m, const struct rs_found *payload, struct sc_err *err)
{
	struct rs_file file = rs_file_in_memory("file", m->file, m->bytes);
	struct rs_frame frame = {0};
	struct rs_found found = {0};
	char *both = NULL;
	bool differ;
	int rc = describe(m, payload, &frame, err);

	rs_frame_done(&frame);
	if (rc == 0)
		rc = rs_format_parse(format, &file, &found, err);
	if (rc == 0)
		rc = rs_format_agree(format, found.payload, payload->payload, &both, &differ, err);
	assert_true(rc < 0 || (both && !differ));
	sc_sys.release(both);
	rs_found_done(&found);
	return rc;
}

static void without_memory(void **unused)
{
	struct rs_found payload = {0};
	struct rs_frame frame;
	bool passed = false;
	struct sc_err err;
	struct made m;

	(void)unused;
	random_state = seed;
	make_tensors(&m);
	payload_of(&payload);
	assert_int_equal(0, describe(&m, &payload, &frame, &err));
	put_together(&m, &frame);
	rs_frame_done(&frame);
	sc_sys.alloc = failing_alloc;
	sc_sys.resize = failing_resize;
	for (long n = 0; !passed && n < 10000; n++) {
		int rc;

		allocations_left = n;
		rc = all_of_it(&m, &payload, &err);
		passed = rc == 0;
		assert_true(passed || rc == SC_E_NO_MEMORY);
	}
	sc_sys.alloc = malloc;
	sc_sys.resize = realloc;
	assert_true(passed);
	rs_found_done(&payload);
	made_done(&m);
}

/* The name, or what is in the file, says what it is; a cut file of this format is not an opaque one. */
static void is_recognized(void **unused)
{
	struct sc_buf bytes = {0};
	const struct rs_format_ops *found;
	char path[60];
	struct rs_file file;
	struct sc_err err;

	(void)unused;
	rank_files->make(NULL, 0, 1, 1, &bytes);
	(void)snprintf(path, sizeof(path), "a/model%s", rank_files->suffix);
	file = rs_file_in_memory(path, bytes.text, bytes.bytes);
	assert_int_equal(0, rs_format_of(&file, &found, &err));
	assert_ptr_equal(format, found);
	assert_ptr_equal(format, rs_format_find(format->name));
	(void)snprintf(path, sizeof(path), "a/model.%s", format->name);
	file = rs_file_in_memory(path, "", 0);
	assert_int_equal(0, rs_format_of(&file, &found, &err));
	assert_ptr_equal(format, found);
	file = rs_file_in_memory("a/model.bin", "some bytes", 10);
	assert_int_equal(0, rs_format_of(&file, &found, &err));
	assert_ptr_equal(&rs_format_plain, found);
	sc_buf_done(&bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_of_random_tensors), cmocka_unit_test(files_made_by_hand),
		cmocka_unit_test(cut_and_changed_files),   cmocka_unit_test(without_memory),
		cmocka_unit_test(is_recognized),
	};

	format = rs_format_extra ? rs_format_extra : rs_format_find("safetensors");
	if (getenv("SEED"))
		seed = strtoul(getenv("SEED"), NULL, 10);
	return cmocka_run_group_tests_name(format->name, tests, NULL, NULL);
}
