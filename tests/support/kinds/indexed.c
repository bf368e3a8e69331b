/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second kind of format, linked to tests of the first, and of another build in every respect:
 *
 *     "indexed 1\n" | fill | tensor | fill | tensor | ... | payload | index | where payload and index begin
 *
 * The index has a line for each tensor: its place, the place of its end, type, dimensions (their number is negative if
 * the first one is the innermost), name.  Tensors begin at any byte, and two names may have the same bytes.  A file is
 * one by its first line, whatever its name.  The program fails if no file was described, or none had two names for the
 * same bytes, or none a tensor that is not row-major.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meta/base/limits.h"
#include "reshard/codec/format/format.h"
#include "tests/support/rank_files.h"

#define MAGIC "indexed 1\n"
#define MAGIC_BYTES (sizeof(MAGIC) - 1)
#define END_BYTES 42	/* two numbers: where the payload begins, and the index */
#define APART 7		/* tensors begin at multiples of it */
#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "indexed: " __VA_ARGS__)

static unsigned described, shared, turned;	/* atomic */

static int is_ours(const struct rs_file *file, struct sc_err *err)
{
	const char *suffix = strrchr(file->path, '.');
	char magic[MAGIC_BYTES];
	int rc;

	if (suffix && strcmp(suffix, ".indexed") == 0)
		return 1;
	if (file->bytes < MAGIC_BYTES)
		return 0;
	rc = file->read(file->arg, 0, MAGIC_BYTES, magic, err);
	return rc < 0 ? rc : memcmp(magic, MAGIC, MAGIC_BYTES) == 0;
}

/* --- parse --- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct rs_found_tensor *)a)->name, ((const struct rs_found_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
	const struct rs_found_tensor *x = a, *y = b;

	return x->at != y->at ? (x->at < y->at ? -1 : 1) : by_name(a, b);
}

/* AT END TYPE NR DIM... NAME */
static int parse_line(char *line, uint64_t data_end, struct rs_found *ret, struct sc_err *err)
{
	struct rs_found_tensor t = {0};
	uint64_t end, bytes;
	char type[16];
	int n = 0, dtype, said, nr;

	if (sscanf(line, "%20" SCNu64 " %20" SCNu64 " %15s %d%n", &t.at, &end, type, &said, &n) != 4 || said < -SC_DIMS_MAX ||
	    said > SC_DIMS_MAX)
		return refuse(err, "a bad line");
	nr = said < 0 ? -said : said;
	dtype = meta_dtype_find(type, strlen(type));
	for (int i = 0; i < nr; i++) {
		int more = 0;

		if (sscanf(line + n, " %20" SCNu64 "%n", &t.shape.dim[i], &more) != 1)
			return refuse(err, "a bad dimension");
		n += more;
	}
	if (line[n] != ' ' || dtype < 0 || t.at < MAGIC_BYTES || end < t.at || end > data_end)
		return refuse(err, "a bad tensor");
	t.dtype = (enum meta_dtype)dtype;
	t.shape.nr = (uint8_t)nr;
	t.name = line + n + 1;
	if (!meta_tensor_bytes(t.dtype, &t.shape, &bytes) || bytes != end - t.at)
		return refuse(err, "tensor '%s' has another size", t.name);
	if (said < 0) {
		uint64_t *stride = sc_arena_array(&ret->arena, SC_DIMS_MAX, sizeof(*stride)), next = 1;

		if (!stride)
			return sc_nomem(err);
		for (int i = 0; i < nr; i++) {
			stride[i] = next;
			next *= t.shape.dim[i];
		}
		t.stride = stride;
	}
	ret->tensors[ret->nr++] = t;
	return 0;
}

static int parse_index(char *index, uint64_t data_end, struct rs_found *ret, struct sc_err *err)
{
	size_t lines = 0;
	int rc = 0;

	for (const char *p = index; *p; p++)
		lines += *p == '\n';
	ret->tensors = sc_arena_array(&ret->arena, lines + 1, sizeof(*ret->tensors));
	if (!ret->tensors)
		return sc_nomem(err);
	for (char *end; rc == 0 && (end = strchr(index, '\n')); index = end + 1) {
		*end = 0;
		rc = parse_line(index, data_end, ret, err);
	}
	if (rc == 0 && *index)
		rc = refuse(err, "the index has no end");
	if (rc < 0 || ret->nr == 0)
		return rc;
	qsort(ret->tensors, ret->nr, sizeof(*ret->tensors), by_name);
	for (uint32_t i = 1; i < ret->nr; i++)
		if (by_name(&ret->tensors[i - 1], &ret->tensors[i]) == 0)
			return refuse(err, "two tensors '%s'", ret->tensors[i].name);
	qsort(ret->tensors, ret->nr, sizeof(*ret->tensors), by_place);
	return 0;
}

static int parse(const struct rs_file *file, struct rs_found *ret, struct sc_err *err)
{
	char magic[MAGIC_BYTES], end[END_BYTES + 1] = {0}, *text;
	uint64_t payload, index, n;
	int rc;

	if (file->bytes < MAGIC_BYTES + END_BYTES)
		return refuse(err, "a file of %" PRIu64 " bytes", file->bytes);
	rc = file->read(file->arg, 0, MAGIC_BYTES, magic, err);
	if (rc == 0)
		rc = file->read(file->arg, file->bytes - END_BYTES, END_BYTES, end, err);
	if (rc < 0)
		return rc;
	if (memcmp(magic, MAGIC, MAGIC_BYTES) != 0 ||
	    sscanf(end, "%20" SCNu64 " %20" SCNu64 "\n", &payload, &index) != 2 ||
	    end[END_BYTES - 1] != '\n' || payload < MAGIC_BYTES || payload > index || index > file->bytes - END_BYTES)
		return refuse(err, "no beginning, or no end");
	n = file->bytes - END_BYTES - payload;
	if (n > SC_HEADER_BYTES_MAX)
		return refuse(err, "an index of %" PRIu64 " bytes", n);
	/* each with a 0 behind it */
	text = sc_arena_alloc(&ret->arena, n + 2);
	if (!text)
		return sc_nomem(err);
	rc = file->read(file->arg, payload, index - payload, text, err);
	if (rc == 0)
		rc = file->read(file->arg, index, file->bytes - END_BYTES - index, text + (index - payload) + 1, err);
	if (rc < 0)
		return rc;
	if (index > payload) {
		ret->payload = text;
		ret->payload_bytes = index - payload;
		if (strlen(text) != ret->payload_bytes)
			return refuse(err, "a payload with a zero byte");
	}
	if (strlen(text + (index - payload) + 1) != file->bytes - END_BYTES - index)
		return refuse(err, "an index with a zero byte");
	return parse_index(text + (index - payload) + 1, payload, ret, err);
}

/* --- describe --- */

static void add_line(struct sc_buf *index, uint64_t at, uint64_t end, enum meta_dtype dtype,
		     const struct meta_shape *shape, bool is_turned, const char *name)
{
	sc_buf_printf(index, "%" PRIu64 " %" PRIu64 " %s %s%u", at, end, meta_dtype_name(dtype), is_turned ? "-" : "", shape->nr);
	for (int i = 0; i < shape->nr; i++)
		sc_buf_printf(index, " %" PRIu64, shape->dim[i]);
	sc_buf_printf(index, " %s\n", name);
}

static int wanted_by_name(const void *a, const void *b)
{
	return strcmp((*(const struct rs_wanted *const *)a)->name, (*(const struct rs_wanted *const *)b)->name);
}

static void add_piece(struct rs_frame *frame, struct rs_piece piece, uint64_t bytes)
{
	piece.at = frame->bytes;
	if (bytes)
		frame->pieces[frame->nr++] = piece;
	frame->bytes += bytes;
}

static int place(const struct rs_wanted *const *sorted, const struct rs_wanted *wanted, uint32_t nr,
		 struct rs_frame *ret, struct sc_buf *index, struct sc_err *err)
{
	static const char magic[] = MAGIC;

	add_piece(ret, (struct rs_piece){.kind = RS_PIECE_TEXT, .text = magic}, MAGIC_BYTES);
	for (uint32_t i = 0; i < nr; i++) {
		const struct rs_wanted *w = sorted[i];
		uint64_t bytes;

		if (strchr(w->name, '\n'))
			return sc_fail(err, SC_E_UNSUPPORTED, "indexed: a name with a line feed");
		if (!meta_tensor_bytes(w->dtype, &w->shape, &bytes))
			return sc_fail(err, SC_E_LIMIT, "indexed: '%s' overflows", w->name);
		add_piece(ret, (struct rs_piece){.kind = RS_PIECE_FILL, .fill = 0xee},
			  (APART - ret->bytes % APART) % APART);
		add_line(index, ret->bytes, ret->bytes + bytes, w->dtype, &w->shape, false, w->name);
		add_piece(ret, (struct rs_piece){.kind = RS_PIECE_TENSOR, .tensor = (uint32_t)(w - wanted)}, bytes);
	}
	return 0;
}

static int describe(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
		    struct rs_frame *ret, struct sc_err *err)
{
	const struct rs_wanted **sorted = sc_arena_array(&ret->arena, nr + 1, sizeof(*sorted));
	struct sc_buf index = {0}, end = {0};
	char *text;
	int rc;

	ret->pieces = sc_arena_array(&ret->arena, 2 * (size_t)nr + 3, sizeof(*ret->pieces));
	if (!ret->pieces || !sorted)
		return sc_nomem(err);
	for (uint32_t i = 0; i < nr; i++)
		sorted[i] = &wanted[i];
	qsort(sorted, nr, sizeof(*sorted), wanted_by_name);
	rc = place(sorted, wanted, nr, ret, &index, err);
	sc_buf_add(&end, payload, payload_bytes);
	sc_buf_add(&end, index.text, index.bytes);
	sc_buf_printf(&end, "%020" PRIu64 " %020" PRIu64 "\n", ret->bytes, ret->bytes + payload_bytes);
	text = index.failed || end.failed ? NULL : sc_arena_copy(&ret->arena, end.text, end.bytes);
	if (rc == 0 && !text)
		rc = sc_nomem(err);
	if (rc == 0)
		add_piece(ret, (struct rs_piece){.kind = RS_PIECE_TEXT, .text = text}, end.bytes);
	sc_buf_done(&index);
	sc_buf_done(&end);
	(void)__atomic_fetch_add(&described, 1, __ATOMIC_RELAXED);
	return rc;
}

/* Lines that both have. */
static int agree(const char *a, const char *b, char **ret, bool *ret_differ)
{
	struct sc_buf both = {0};
	bool failed;

	*ret = NULL;
	*ret_differ = strcmp(a ? a : "", b ? b : "") != 0;
	for (const char *p = a; p && *p; p += strcspn(p, "\n") + 1) {
		const char *found = b ? memmem(b, strlen(b), p, strcspn(p, "\n") + 1) : NULL;

		if (found && (found == b || found[-1] == '\n'))
			sc_buf_add(&both, p, strcspn(p, "\n") + 1);
	}
	if (both.bytes)
		*ret = sc_strdup(both.text);
	failed = both.failed || (both.bytes && !*ret);
	sc_buf_done(&both);
	return failed ? -1 : 0;
}

static const struct rs_format_ops indexed = {
	.name = "indexed", .is = is_ours, .parse = parse, .describe = describe, .agree = agree,
};

/* --- by hand --- */

/* Does a rank store tensor i by columns?  Some replicas do, and some do not. */
static bool by_columns(const struct rank_tensor *t, size_t i, uint32_t rank)
{
	return t[i].shape->nr == 2 && (i + rank) % 3 == 2;
}

/* Element i of a matrix that is stored by columns, and is counted by rows. */
static uint64_t by_column(const struct meta_shape *shape, uint64_t i)
{
	return i % shape->dim[1] * shape->dim[0] + i / shape->dim[1];
}

static void add_data(struct sc_buf *to, const struct rank_tensor *t, bool is_turned)
{
	uint32_t *data = malloc(t->bytes + 1);

	for (uint64_t i = 0; i < t->bytes / 4; i++)
		data[is_turned ? by_column(t->shape, i) : i] = t->data[i];
	sc_buf_add(to, data, t->bytes);
	free(data);
}

static void make(const struct rank_tensor *t, size_t nr, uint32_t salt, uint32_t rank, struct sc_buf *ret)
{
	uint64_t *at = calloc(nr + 1, sizeof(*at)), payload, index;
	struct sc_buf lines = {0};

	sc_buf_add(ret, MAGIC, MAGIC_BYTES);
	for (size_t i = 0; i < nr; i++) {
		const bool is_turned = by_columns(t, i, rank);

		at[i] = ret->bytes;
		for (size_t k = 0; k < i && t[i].bytes && !is_turned; k++)
			if (!by_columns(t, k, rank) && t[k].bytes == t[i].bytes && memcmp(t[k].data, t[i].data, t[i].bytes) == 0) {
				at[i] = at[k];
				(void)__atomic_fetch_add(&shared, 1, __ATOMIC_RELAXED);
			}
		if (at[i] == ret->bytes)
			add_data(ret, &t[i], is_turned);
		(void)__atomic_fetch_add(&turned, is_turned, __ATOMIC_RELAXED);
		add_line(&lines, at[i], at[i] + t[i].bytes, META_DTYPE_U32, t[i].shape, is_turned, t[i].name);
		if (i % 3 == 0)
			sc_buf_add(ret, "x", 1);
	}
	payload = ret->bytes;
	sc_buf_printf(ret, "rank=%u\nsalt=%u\n", rank, salt);
	index = ret->bytes;
	sc_buf_add(ret, lines.text, lines.bytes);
	sc_buf_printf(ret, "%020" PRIu64 " %020" PRIu64 "\n", payload, index);
	sc_buf_done(&lines);
	free(at);
}

static bool get(const unsigned char *file, uint64_t bytes, const char *name, uint32_t *to, uint64_t to_bytes)
{
	uint64_t index = strtoull((const char *)file + bytes - 21, NULL, 10), at, end;
	const char *line = (const char *)file + index, *last = (const char *)file + bytes - END_BYTES;

	for (; line < last; line = strchr(line, '\n') + 1) {
		size_t n = strcspn(line, "\n"), name_bytes = strlen(name);
		struct meta_shape shape;
		int nr;

		if (n <= name_bytes || memcmp(line + n - name_bytes, name, name_bytes) != 0 ||
		    line[n - name_bytes - 1] != ' ')
			continue;
		if (sscanf(line, "%" SCNu64 " %" SCNu64 " %*s %d %" SCNu64 " %" SCNu64, &at, &end, &nr, &shape.dim[0], &shape.dim[1]) < 3 ||
		    end > bytes || end - at != to_bytes)
			return false;
		for (uint64_t i = 0; i < to_bytes / 4; i++)
			memcpy(&to[i], file + at + 4 * (nr < 0 ? by_column(&shape, i) : i), 4);
		return true;
	}
	return false;
}

static bool has_salt(const unsigned char *file, uint64_t bytes, uint32_t salt)
{
	char text[40];
	int n = snprintf(text, sizeof(text), "salt=%u\n", salt);

	return memmem(file, bytes, text, (size_t)n) != NULL;
}

/* A name that other files have, too: what is in it decides. */
static const struct rank_files by_hand = {".bin", make, get, has_salt};

__attribute__((constructor)) static void choose(void)
{
	rs_format_extra = &indexed;
	rank_files = &by_hand;
}

__attribute__((destructor)) static void expect_use(void)
{
	if (__atomic_load_n(&described, __ATOMIC_RELAXED) && __atomic_load_n(&shared, __ATOMIC_RELAXED) &&
	    __atomic_load_n(&turned, __ATOMIC_RELAXED))
		return;
	(void)fprintf(stderr, "indexed: %u files were described, %u tensors shared bytes, %u were stored by columns\n", described, shared,
		      turned);
	_exit(1);
}
