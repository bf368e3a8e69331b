/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/torch/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"

#define refuse(err, ...) sc_fail((err), SC_E_FORMAT, "zip: " __VA_ARGS__)

#define END_BYTES 22
#define COMMENT_MAX 65535
#define LOCATOR_BYTES 20
#define END64_BYTES 56
#define ENTRY_BYTES 46
#define HEADER_BYTES 30
#define NONE16 0xffffu
#define NONE32 0xffffffffu
#define NAME_MAX_BYTES 65535
#define AHEAD_BYTES 4096	/* read at a time of small records */

static uint64_t le(const unsigned char *at, unsigned bytes)
{
	uint64_t x = 0;

	while (bytes--)
		x = x << 8 | at[bytes];
	return x;
}

static bool is(const unsigned char *at, const char *magic)
{
	return memcmp(at, magic, 4) == 0;
}

int rs_window_read(const struct rs_window *window, uint64_t at, uint64_t bytes, void *to, const char *what,
		   struct sc_err *err)
{
	if (at > window->bytes || bytes > window->bytes - at)
		return refuse(err, "%s lies outside of the file (byte %" PRIu64 ", %" PRIu64 " bytes; the file has %"
			      PRIu64 ")", what, at, bytes, window->bytes);
	return bytes ? window->read(window->arg, window->base + at, bytes, to, err) : 0;
}

/* --- where the directory is --- */

struct end {
	uint64_t at;		/* of the first of its records: the directory ends before */
	uint64_t nr, bytes, start;
};

/* Finds the last end record whose comment ends where the file ends. */
static const unsigned char *find_end(const unsigned char *tail, size_t bytes)
{
	for (size_t i = bytes - END_BYTES + 1; i-- > 0;)
		if (is(tail + i, "PK\5\6") && i + END_BYTES + le(tail + i + 20, 2) == bytes)
			return tail + i;
	return NULL;
}

/* Reads the 64-bit end record, if there is one: it says what the small one cannot, and else must say the same. */
static int read_end64(const struct rs_window *w, struct end *e, struct sc_err *err)
{
	unsigned char locator[LOCATOR_BYTES], end[END64_BYTES];
	uint64_t at, nr, bytes, start;
	int rc;

	if (e->at < LOCATOR_BYTES)
		return 0;
	rc = rs_window_read(w, e->at - LOCATOR_BYTES, LOCATOR_BYTES, locator, "the zip64 locator", err);
	if (rc < 0 || !is(locator, "PK\6\7"))
		return rc;
	at = le(locator + 8, 8);
	rc = rs_window_read(w, at, END64_BYTES, end, "the zip64 end record", err);
	if (rc < 0)
		return rc;
	if (!is(end, "PK\6\6"))
		return refuse(err, "the zip64 end record is not where its locator says");
	if (le(end + 16, 4) || le(end + 20, 4))
		return refuse(err, "an archive of several volumes");
	nr = le(end + 32, 8);
	bytes = le(end + 40, 8);
	start = le(end + 48, 8);
	if ((e->nr != nr && e->nr != NONE16) || (e->bytes != bytes && e->bytes != NONE32) ||
	    (e->start != start && e->start != NONE32))
		return refuse(err, "its two end records disagree");
	*e = (struct end){at, nr, bytes, start};
	return 0;
}

static int check_end(const struct end *e, struct sc_err *err)
{
	uint64_t end;

	if (e->nr > SC_ZIP_RECORDS_MAX || e->bytes > SC_ZIP_DIRECTORY_MAX)
		return sc_fail(err, SC_E_LIMIT, "zip: %" PRIu64 " records in a directory of %" PRIu64 " bytes, at most "
			       "%u and %u", e->nr, e->bytes, SC_ZIP_RECORDS_MAX, SC_ZIP_DIRECTORY_MAX);
	if (e->nr * ENTRY_BYTES > e->bytes || !sc_add_u64(e->start, e->bytes, &end) || end > e->at)
		return refuse(err, "a directory of %" PRIu64 " records and %" PRIu64 " bytes at byte %" PRIu64
			      " does not fit", e->nr, e->bytes, e->start);
	return 0;
}

/* Reads the end record from the last `bytes` of the file: 1, 0 (the record is not there) or an error. */
static int find_end_in(const struct rs_window *w, unsigned char *tail, uint64_t bytes, struct end *ret,
		       struct sc_err *err)
{
	int rc = rs_window_read(w, w->bytes - bytes, bytes, tail, "its end", err);
	const unsigned char *at = rc == 0 ? find_end(tail, bytes) : NULL;

	if (!at)
		return rc;
	if (le(at + 4, 2) || le(at + 6, 2))
		return refuse(err, "an archive of several volumes");
	*ret = (struct end){w->bytes - bytes + (uint64_t)(at - tail), le(at + 10, 2), le(at + 12, 4), le(at + 16, 4)};
	return 1;
}

static int read_end(const struct rs_window *w, struct end *ret, struct sc_err *err)
{
	uint64_t bytes = sc_min_u64(w->bytes, END_BYTES + COMMENT_MAX);
	unsigned char last[END_BYTES], *tail;
	int rc;

	if (w->bytes < END_BYTES)
		return refuse(err, "the file has %" PRIu64 " bytes", w->bytes);
	rc = find_end_in(w, last, END_BYTES, ret, err);
	if (rc == 0) { /* a comment is behind it */
		tail = sc_sys.alloc(bytes);
		if (!tail)
			return sc_nomem(err);
		rc = find_end_in(w, tail, bytes, ret, err);
		sc_sys.release(tail);
	}
	if (rc == 0)
		return refuse(err, "no end of a directory: the file is cut short, or no zip archive");
	if (rc > 0)
		rc = read_end64(w, ret, err);
	return rc < 0 ? rc : check_end(ret, err);
}

/* --- records --- */

struct reading {
	const struct rs_window *w;
	struct rs_zip *zip;
	uint64_t start;			/* of the directory */
	const char *folder;		/* of all records; not known before the first one */
	size_t folder_bytes;
	unsigned char *ahead;		/* of the window: `ahead_bytes` from `ahead_at` on */
	uint64_t ahead_at, ahead_bytes;
	struct sc_err *err;
};

struct entry {
	uint64_t flags, method, stored, bytes, at;
	const char *name;		/* with the folder; ends with a 0 */
	size_t name_bytes;
};

/* Reads the sizes and the place that do not fit into 32 bits; an extra field has them, in this order. */
static int read_extra(struct entry *e, const unsigned char *extra, size_t bytes, struct sc_err *err)
{
	uint64_t *const wide[] = {&e->bytes, &e->stored, &e->at};

	for (size_t at = 0; at + 4 <= bytes;) {
		size_t tag = le(extra + at, 2), nr = le(extra + at + 2, 2), end = at + 4 + nr;

		if (end > bytes)
			return refuse(err, "'%s': an extra field is damaged", e->name);
		at += 4;
		for (size_t i = 0; tag == 1 && i < sizeof(wide) / sizeof(*wide); i++) {
			if (*wide[i] != NONE32)
				continue;
			if (at + 8 > end)
				return refuse(err, "'%s': its zip64 field is short", e->name);
			*wide[i] = le(extra + at, 8);
			at += 8;
		}
		at = end;
	}
	return 0;
}

/* Gives bytes of the window, which stay until the next call; a call that has to read reads `more` bytes, too. */
static int look_at(struct reading *r, uint64_t at, uint64_t bytes, uint64_t more, const unsigned char **ret)
{
	const uint64_t left = at < r->w->bytes ? r->w->bytes - at : 0;
	int rc = 0;

	if (at < r->ahead_at || bytes > r->ahead_bytes || at - r->ahead_at > r->ahead_bytes - bytes) {
		r->ahead_at = at;
		r->ahead_bytes = sc_max_u64(bytes, sc_min_u64(left, bytes + more));
		rc = rs_window_read(r->w, at, r->ahead_bytes, r->ahead, "the header of a record", r->err);
	}
	*ret = r->ahead + (at - r->ahead_at);
	return rc;
}

/* Reads a record's own header, whose lengths say where the data begins; sizes and checksum may be missing in it. */
static int read_header(struct reading *r, const struct entry *e, uint64_t *ret_data)
{
	const unsigned char *h;
	uint64_t data;
	/* the next one's is close if this one is small; else more bytes are only slower */
	int rc = look_at(r, e->at, HEADER_BYTES + e->name_bytes, e->bytes < AHEAD_BYTES / 2 ? AHEAD_BYTES : 0, &h);

	if (rc < 0)
		return rc;
	if (!is(h, "PK\3\4") || le(h + 8, 2))
		return refuse(r->err, "the header of '%s' is damaged", e->name);
	if (le(h + 26, 2) != e->name_bytes || memcmp(h + HEADER_BYTES, e->name, e->name_bytes) != 0)
		return refuse(r->err, "'%s' has another name in its own header", e->name);
	data = e->at + HEADER_BYTES + e->name_bytes + le(h + 28, 2);
	if (data > r->start || e->bytes > r->start - data)
		return refuse(r->err, "'%s' runs into the directory, or past the end", e->name);
	*ret_data = data;
	return 0;
}

static int add_record(struct reading *r, const struct entry *e, uint64_t data, struct sc_err *err)
{
	const char *slash = strchr(e->name, '/');
	size_t folder = slash ? (size_t)(slash - e->name) : 0;
	struct rs_zip_record *record = &r->zip->records[r->zip->nr];

	if (!slash || (r->folder && (folder != r->folder_bytes || memcmp(e->name, r->folder, folder) != 0)))
		return refuse(err, "'%s' is not in the archive's folder", e->name);
	r->folder = e->name;
	r->folder_bytes = folder;
	*record = (struct rs_zip_record){slash + 1, data, e->bytes, e->at};
	if (sc_map_get(&r->zip->by_name, record->name, strlen(record->name)))
		return refuse(err, "'%s' is there twice", e->name);
	if (sc_map_put(&r->zip->by_name, record->name, strlen(record->name), record) < 0)
		return sc_nomem(err);
	r->zip->nr++;
	return 0;
}

static int check_entry(const struct entry *e, struct sc_err *err)
{
	if (e->method)
		return refuse(err, "'%s' is compressed (method %" PRIu64 "): it cannot be read where it lies", e->name,
			      e->method);
	if (e->flags & 1)
		return refuse(err, "'%s' is encrypted", e->name);
	if (e->stored != e->bytes)
		return refuse(err, "'%s' has two sizes, %" PRIu64 " and %" PRIu64, e->name, e->stored, e->bytes);
	return 0;
}

/* Reads the k-th entry of the directory, which has `bytes` left; returns its length, or an error. */
static int64_t read_entry(struct reading *r, const unsigned char *d, uint64_t bytes, uint64_t k)
{
	size_t name_bytes, extra_bytes, all;
	struct entry e;
	uint64_t data = 0;
	char *name;

	if (bytes < ENTRY_BYTES || !is(d, "PK\1\2"))
		return refuse(r->err, "entry %" PRIu64 " of the directory is damaged", k);
	name_bytes = le(d + 28, 2);
	extra_bytes = le(d + 30, 2);
	all = ENTRY_BYTES + name_bytes + extra_bytes + le(d + 32, 2);
	if (all > bytes)
		return refuse(r->err, "entry %" PRIu64 " of the directory is damaged", k);
	if (!sc_is_utf8(d + ENTRY_BYTES, name_bytes, false) || memchr(d + ENTRY_BYTES, 0, name_bytes))
		return refuse(r->err, "the name of entry %" PRIu64 " is not UTF-8", k);
	name = sc_arena_copy(&r->zip->arena, (const char *)d + ENTRY_BYTES, name_bytes);
	if (!name)
		return sc_nomem(r->err);
	e = (struct entry){le(d + 8, 2), le(d + 10, 2), le(d + 20, 4), le(d + 24, 4), le(d + 42, 4), name, name_bytes};
	if (read_extra(&e, d + ENTRY_BYTES + name_bytes, extra_bytes, r->err) < 0 || check_entry(&e, r->err) < 0 ||
	    read_header(r, &e, &data) < 0 || add_record(r, &e, data, r->err) < 0)
		return r->err->code;
	return (int64_t)all;
}

static int by_header(const void *a, const void *b)
{
	const struct rs_zip_record *const *x = a, *const *y = b;

	return ((*x)->header_at > (*y)->header_at) - ((*x)->header_at < (*y)->header_at);
}

static int check_overlaps(struct reading *r)
{
	struct rs_zip *zip = r->zip;
	const struct rs_zip_record **sorted = sc_zalloc_array(zip->nr ? zip->nr : 1, sizeof(*sorted));
	int rc = sorted ? 0 : sc_nomem(r->err);

	for (uint32_t i = 0; rc == 0 && i < zip->nr; i++)
		sorted[i] = &zip->records[i];
	if (rc == 0 && zip->nr)
		qsort(sorted, zip->nr, sizeof(*sorted), by_header);
	for (uint32_t i = 1; rc == 0 && i < zip->nr; i++)
		if (sorted[i - 1]->at + sorted[i - 1]->bytes > sorted[i]->header_at)
			rc = refuse(r->err, "'%s' and '%s' overlap", sorted[i - 1]->name, sorted[i]->name);
	sc_sys.release(sorted);
	return rc;
}

static int read_directory(struct reading *r, const struct end *end, const unsigned char *d)
{
	uint64_t at = 0;
	int rc;

	for (uint64_t k = 0; k < end->nr; k++) {
		int64_t bytes = read_entry(r, d + at, end->bytes - at, k);

		if (bytes < 0)
			return (int)bytes;
		at += (uint64_t)bytes;
	}
	rc = at == end->bytes ? 0 : refuse(r->err, "bytes are left behind the last entry of the directory");
	return rc < 0 ? rc : check_overlaps(r);
}

int rs_zip_read(const struct rs_window *window, struct rs_zip *ret, struct sc_err *err)
{
	struct reading r = {.w = window, .zip = ret, .err = err};
	unsigned char *directory = NULL;
	struct end end = {0};
	int rc;

	*ret = (struct rs_zip){0};
	rc = read_end(window, &end, err);
	if (rc < 0)
		return rc;
	r.start = end.start;
	directory = sc_sys.alloc(end.bytes + 1);
	r.ahead = sc_sys.alloc(HEADER_BYTES + NAME_MAX_BYTES + AHEAD_BYTES);
	ret->records = sc_arena_array(&ret->arena, end.nr ? end.nr : 1, sizeof(*ret->records));
	if (!directory || !r.ahead || !ret->records || sc_map_reserve(&ret->by_name, end.nr) < 0)
		rc = sc_nomem(err);
	if (rc == 0)
		rc = rs_window_read(window, end.start, end.bytes, directory, "the directory", err);
	if (rc == 0)
		rc = read_directory(&r, &end, directory);
	sc_sys.release(directory);
	sc_sys.release(r.ahead);
	if (rc < 0)
		rs_zip_done(ret);
	return rc;
}

const struct rs_zip_record *rs_zip_find(const struct rs_zip *zip, const char *name)
{
	return sc_map_get(&zip->by_name, name, strlen(name));
}

void rs_zip_done(struct rs_zip *zip)
{
	sc_map_done(&zip->by_name);
	sc_arena_done(&zip->arena);
	*zip = (struct rs_zip){0};
}
