/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/zip_frame.h"

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

/* numbers that follow each other, and are appended at once */
struct fields {
	unsigned nr;
	char at[128];
};

static void put(struct fields *f, uint64_t x, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		f->at[f->nr++] = (char)(x >> 8 * i);
}

static void add_piece(struct rs_zip_frame *z, enum rs_piece_kind kind, uint64_t bytes, uint32_t tensor)
{
	const struct rs_piece *last = z->pieces.nr ? &z->pieces.at[z->pieces.nr - 1] : NULL;

	if (bytes && (kind != RS_PIECE_TEXT || !last || last->kind != kind) &&
	    sc_vec_push(&z->pieces, (struct rs_piece){.at = z->at, .kind = kind, .tensor = tensor, .fill = 'Z'}) < 0)
		z->failed = true;
	z->at += bytes;
}

/* Makes a piece of the text that was added since it had `before` bytes. */
static void end_text(struct rs_zip_frame *z, size_t before)
{
	add_piece(z, RS_PIECE_TEXT, z->text.bytes - before, 0);
}

/* --- records --- */

static size_t name_bytes_of(const char *name)
{
	return strlen(FOLDER) + strlen(name);
}

/* Puts the fields that the directory and the header in front of the data both have. */
static void put_fields(struct fields *f, const char *name, uint64_t bytes, uint32_t crc, uint64_t extra_bytes)
{
	put(f, VERSION, 2);
	put(f, 0, 6); /* flags, method, time */
	put(f, DAY, 2);
	put(f, crc, 4);
	put(f, sc_min_u64(bytes, NONE32), 4);
	put(f, sc_min_u64(bytes, NONE32), 4);
	put(f, name_bytes_of(name), 2);
	put(f, extra_bytes, 2);
}

static void add_name(struct sc_buf *to, const struct fields *before, const char *name)
{
	sc_buf_add(to, before->at, before->nr);
	sc_buf_add(to, FOLDER, strlen(FOLDER));
	sc_buf_add(to, name, strlen(name));
}

static void add_entry(struct rs_zip_frame *z, const char *name, uint64_t bytes, uint32_t crc)
{
	const bool is_big = bytes >= NONE32, is_far = z->at >= NONE32;
	const unsigned extra_bytes = (is_big ? 16u : 0) + (is_far ? 8u : 0);
	struct fields f = {0}, extra = {0};

	put(&f, 0x02014b50, 4);
	put(&f, VERSION, 2); /* made by */
	put_fields(&f, name, bytes, crc, extra_bytes ? extra_bytes + 4 : 0);
	put(&f, 0, 6); /* comment, disk, attributes */
	put(&f, 0, 4);
	put(&f, is_far ? NONE32 : z->at, 4);
	add_name(&z->directory, &f, name);
	if (extra_bytes) {
		put(&extra, 1, 2);
		put(&extra, extra_bytes, 2);
	}
	if (is_big) {
		put(&extra, bytes, 8);
		put(&extra, bytes, 8);
	}
	if (is_far)
		put(&extra, z->at, 8);
	sc_buf_add(&z->directory, extra.at, extra.nr);
	z->nr++;
}

/* Writes the header in front of a record's data, so that the data begins at byte `skew` of `align` bytes. */
static void add_header(struct rs_zip_frame *z, const char *name, uint64_t bytes, uint32_t crc, uint32_t align,
		       uint32_t skew)
{
	const bool is_big = bytes >= NONE32;
	const size_t before = z->text.bytes;
	const uint64_t fixed = 30 + name_bytes_of(name) + (is_big ? 20u : 0) + 4;
	const uint32_t pad = (uint32_t)((align + skew - (z->at + fixed) % align) % align);
	struct fields f = {0}, extra = {0};

	add_entry(z, name, bytes, crc);
	put(&f, 0x04034b50, 4);
	put_fields(&f, name, bytes, crc, (is_big ? 20u : 0) + 4 + pad);
	add_name(&z->text, &f, name);
	if (is_big) {
		put(&extra, 1, 2);
		put(&extra, 16, 2);
		put(&extra, bytes, 8);
		put(&extra, bytes, 8);
	}
	put(&extra, PAD, 2);
	put(&extra, pad, 2);
	for (uint32_t i = 0; pad < FILL_BYTES && i < pad; i++)
		put(&extra, 'Z', 1);
	sc_buf_add(&z->text, extra.at, extra.nr);
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
	struct fields f = {0};
	const uint64_t start = z->at, bytes = z->directory.bytes, end = start + bytes;
	const uint64_t nr = z->nr < UINT16_MAX ? z->nr : UINT16_MAX;
	const size_t before = z->text.bytes;

	sc_buf_add(&z->text, z->directory.text, bytes);
	put(&f, 0x06064b50, 4);
	put(&f, 44, 8);
	put(&f, VERSION, 2);
	put(&f, VERSION, 2);
	put(&f, 0, 8); /* disks */
	put(&f, z->nr, 8);
	put(&f, z->nr, 8);
	put(&f, bytes, 8);
	put(&f, start, 8);
	put(&f, 0x07064b50, 4);
	put(&f, 0, 4);
	put(&f, end, 8);
	put(&f, 1, 4);
	put(&f, 0x06054b50, 4);
	put(&f, 0, 4);
	put(&f, nr, 2);
	put(&f, nr, 2);
	put(&f, sc_min_u64(bytes, NONE32), 4);
	put(&f, sc_min_u64(start, NONE32), 4);
	put(&f, 0, 2);
	sc_buf_add(&z->text, f.at, f.nr);
	end_text(z, before);
}

int rs_zip_frame_end(struct rs_zip_frame *z, struct rs_frame *ret, struct sc_err *err)
{
	char *text;

	add_end(z);
	if (!z->failed && !z->text.failed && !z->directory.failed)
		ret->pieces = sc_arena_array(&ret->arena, z->pieces.nr, sizeof(*ret->pieces));
	if (!ret->pieces) {
		rs_zip_frame_drop(z);
		return sc_nomem(err);
	}
	/* the text becomes the frame's, without its spare room */
	text = sc_sys.resize(z->text.text, z->text.bytes);
	ret->text = text ? text : z->text.text;
	ret->text_bytes = z->text.bytes;
	z->text = (struct sc_buf){0};
	ret->nr = (uint32_t)z->pieces.nr;
	ret->bytes = z->at;
	memcpy(ret->pieces, z->pieces.at, z->pieces.nr * sizeof(*ret->pieces));
	text = ret->text;
	for (uint32_t i = 0; i < ret->nr; i++)
		if (ret->pieces[i].kind == RS_PIECE_TEXT) {
			ret->pieces[i].text = text;
			text += (i + 1 < ret->nr ? ret->pieces[i + 1].at : ret->bytes) - ret->pieces[i].at;
		}
	rs_zip_frame_drop(z);
	return 0;
}

void rs_zip_frame_drop(struct rs_zip_frame *z)
{
	sc_buf_done(&z->text);
	sc_buf_done(&z->directory);
	sc_vec_done(&z->pieces);
	*z = (struct rs_zip_frame){0};
}
