/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/format/zip_frame.h"

#include <isa-l/crc.h>
#include <string.h>

#include "meta/base/limits.h"

#define FOLDER "archive/"
#define ALIGN 64u		/* of data, as torch has it */
#define LARGE_BYTES (64u << 10)	/* data of so many bytes begins in a block where its source does */
#define FILL_BYTES 64u		/* less is cheaper as text */
#define NONE32 UINT32_MAX	/* the value is in the extra field of 64 bits */
#define VERSION 45u		/* of zip that is needed: sizes of 64 bits */
#define DAY 0x21u		/* 1980-01-01, the first one that zip has */
#define PAD 0x4246u		/* "FB", torch's own field of padding */

/* --- numbers and pieces --- */

static void put(struct sc_buf *buf, uint64_t x, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		sc_buf_byte(buf, (char)(x >> 8 * i));
}

static void add_piece(struct rs_zip_frame *z, enum rs_piece_kind kind, uint64_t bytes, uint32_t tensor)
{
	const struct rs_piece *last = z->pieces.nr ? &z->pieces.at[z->pieces.nr - 1] : NULL;

	if (bytes && (kind != RS_PIECE_TEXT || !last || last->kind != kind) &&
	    sc_vec_push(&z->pieces, (struct rs_piece){.at = z->at, .kind = kind, .tensor = tensor, .fill = 'Z'}) < 0)
		z->failed = true;
	z->at += bytes;
}

/* What was added to the text since it had `before` bytes. */
static void end_text(struct rs_zip_frame *z, size_t before)
{
	add_piece(z, RS_PIECE_TEXT, z->text.bytes - before, 0);
}

/* --- records --- */

static size_t name_bytes_of(const char *name)
{
	return strlen(FOLDER) + strlen(name);
}

/* What the directory and the header in front of the data both say. */
static void put_fields(struct sc_buf *buf, const char *name, uint64_t bytes, uint32_t crc, uint64_t extra_bytes)
{
	put(buf, VERSION, 2);
	put(buf, 0, 2); /* flags, method, time */
	put(buf, 0, 2);
	put(buf, 0, 2);
	put(buf, DAY, 2);
	put(buf, crc, 4);
	put(buf, sc_min_u64(bytes, NONE32), 4);
	put(buf, sc_min_u64(bytes, NONE32), 4);
	put(buf, name_bytes_of(name), 2);
	put(buf, extra_bytes, 2);
}

static void add_entry(struct rs_zip_frame *z, const char *name, uint64_t bytes, uint32_t crc)
{
	struct sc_buf *d = &z->directory;
	const bool is_big = bytes >= NONE32, is_far = z->at >= NONE32;
	const unsigned extra = (is_big ? 16u : 0) + (is_far ? 8u : 0);

	put(d, 0x02014b50, 4);
	put(d, VERSION, 2); /* made by */
	put_fields(d, name, bytes, crc, extra ? extra + 4 : 0);
	put(d, 0, 2); /* comment, disk, attributes */
	put(d, 0, 2);
	put(d, 0, 2);
	put(d, 0, 4);
	put(d, is_far ? NONE32 : z->at, 4);
	sc_buf_add(d, FOLDER, strlen(FOLDER));
	sc_buf_add(d, name, strlen(name));
	if (extra) {
		put(d, 1, 2);
		put(d, extra, 2);
	}
	if (is_big) {
		put(d, bytes, 8);
		put(d, bytes, 8);
	}
	if (is_far)
		put(d, z->at, 8);
	z->nr++;
}

/* Writes what is in front of a record's data, which begins at byte `skew` of each `align` bytes. */
static void add_header(struct rs_zip_frame *z, const char *name, uint64_t bytes, uint32_t crc, uint32_t align,
		       uint32_t skew)
{
	struct sc_buf *t = &z->text;
	const bool is_big = bytes >= NONE32;
	const size_t before = t->bytes;
	const uint64_t fixed = 30 + name_bytes_of(name) + (is_big ? 20u : 0) + 4;
	const uint32_t pad = (uint32_t)((align + skew - (z->at + fixed) % align) % align);

	add_entry(z, name, bytes, crc);
	put(t, 0x04034b50, 4);
	put_fields(t, name, bytes, crc, (is_big ? 20u : 0) + 4 + pad);
	sc_buf_add(t, FOLDER, strlen(FOLDER));
	sc_buf_add(t, name, strlen(name));
	if (is_big) {
		put(t, 1, 2);
		put(t, 16, 2);
		put(t, bytes, 8);
		put(t, bytes, 8);
	}
	put(t, PAD, 2);
	put(t, pad, 2);
	for (uint32_t i = 0; pad < FILL_BYTES && i < pad; i++)
		sc_buf_byte(t, 'Z');
	end_text(z, before);
	if (pad >= FILL_BYTES)
		add_piece(z, RS_PIECE_FILL, pad, 0);
}

void rs_zip_frame_record(struct rs_zip_frame *z, const char *name, const void *data, uint64_t bytes)
{
	size_t before;

	add_header(z, name, bytes, crc32_gzip_refl(0, data, bytes), ALIGN, 0);
	before = z->text.bytes;
	if (bytes)
		sc_buf_add(&z->text, data, bytes);
	end_text(z, before);
}

void rs_zip_frame_tensor(struct rs_zip_frame *z, const char *name, uint32_t tensor, uint64_t bytes, uint32_t skew)
{
	if (bytes >= LARGE_BYTES)
		add_header(z, name, bytes, 0, SC_DATA_ALIGN, skew % ALIGN ? 0 : skew);
	else
		add_header(z, name, bytes, 0, ALIGN, 0);
	add_piece(z, RS_PIECE_TENSOR, bytes, tensor);
}

/* --- the end --- */

static void add_end(struct rs_zip_frame *z)
{
	struct sc_buf *t = &z->text;
	const uint64_t start = z->at, bytes = z->directory.bytes, end = start + bytes;
	const uint64_t nr = z->nr < UINT16_MAX ? z->nr : UINT16_MAX;
	const size_t before = t->bytes;

	sc_buf_add(t, z->directory.text, bytes);
	put(t, 0x06064b50, 4);
	put(t, 44, 8);
	put(t, VERSION, 2);
	put(t, VERSION, 2);
	put(t, 0, 8); /* disks */
	put(t, z->nr, 8);
	put(t, z->nr, 8);
	put(t, bytes, 8);
	put(t, start, 8);
	put(t, 0x07064b50, 4);
	put(t, 0, 4);
	put(t, end, 8);
	put(t, 1, 4);
	put(t, 0x06054b50, 4);
	put(t, 0, 4);
	put(t, nr, 2);
	put(t, nr, 2);
	put(t, sc_min_u64(bytes, NONE32), 4);
	put(t, sc_min_u64(start, NONE32), 4);
	put(t, 0, 2);
	end_text(z, before);
}

int rs_zip_frame_end(struct rs_zip_frame *z, struct rs_frame *ret, struct sc_err *err)
{
	uint64_t at = 0;
	char *text = NULL;

	add_end(z);
	if (!z->failed && !z->text.failed && !z->directory.failed) {
		text = sc_arena_copy(&ret->arena, z->text.text, z->text.bytes);
		ret->pieces = sc_arena_array(&ret->arena, z->pieces.nr, sizeof(*ret->pieces));
	}
	if (text && ret->pieces) {
		ret->nr = (uint32_t)z->pieces.nr;
		ret->bytes = z->at;
		memcpy(ret->pieces, z->pieces.at, z->pieces.nr * sizeof(*ret->pieces));
		for (uint32_t i = 0; i < ret->nr; i++)
			if (ret->pieces[i].kind == RS_PIECE_TEXT) {
				ret->pieces[i].text = text + at;
				at += (i + 1 < ret->nr ? ret->pieces[i + 1].at : ret->bytes) - ret->pieces[i].at;
			}
	}
	rs_zip_frame_drop(z);
	return text && ret->pieces ? 0 : sc_nomem(err);
}

void rs_zip_frame_drop(struct rs_zip_frame *z)
{
	sc_buf_done(&z->text);
	sc_buf_done(&z->directory);
	sc_vec_done(&z->pieces);
	*z = (struct rs_zip_frame){0};
}
