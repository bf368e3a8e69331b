/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/torch_archive.h"

#include <string.h>

void archive_put(struct archive *a, uint64_t x, unsigned bytes)
{
	while (bytes--) {
		a->bytes[a->nr++] = (unsigned char)x;
		x >>= 8;
	}
}

void archive_put_text(struct archive *a, const void *text, size_t bytes)
{
	memcpy(a->bytes + a->nr, text, bytes);
	a->nr += bytes;
}

static void put_header(struct archive *a, const char *magic, const struct archive_record *r, size_t at)
{
	archive_put_text(a, magic, 4);
	if (magic[2] == '\1')
		archive_put(a, 0, 2);
	archive_put(a, 0, 2), archive_put(a, 0x800, 2), archive_put(a, 0, 2), archive_put(a, 0, 4), archive_put(a, 0, 4);
	archive_put(a, r->nr, 4), archive_put(a, r->nr, 4), archive_put(a, strlen(r->name), 2), archive_put(a, 0, 2);
	if (magic[2] == '\1')
		archive_put(a, 0, 2), archive_put(a, 0, 2), archive_put(a, 0, 2), archive_put(a, 0, 4), archive_put(a, at, 4);
	archive_put_text(a, r->name, strlen(r->name));
}

void archive_make(struct archive *a, const struct archive_record *records, size_t nr)
{
	size_t at[8], directory;

	*a = (struct archive){.nr_entries = nr};
	for (size_t i = 0; i < nr; i++) {
		at[i] = a->nr;
		put_header(a, "PK\3\4", &records[i], 0);
		archive_put_text(a, records[i].bytes, records[i].nr);
	}
	directory = a->nr;
	for (size_t i = 0; i < nr; i++) {
		a->entries[i] = a->nr;
		put_header(a, "PK\1\2", &records[i], at[i]);
	}
	a->end = a->nr;
	archive_put_text(a, "PK\5\6", 4), archive_put(a, 0, 4), archive_put(a, nr, 2), archive_put(a, nr, 2);
	archive_put(a, a->end - directory, 4), archive_put(a, directory, 4), archive_put(a, 0, 2);
}

void archive_make_of(struct archive *a, const void *pickle, size_t bytes)
{
	static const char zeros[16];
	const struct archive_record records[] = {
		{"archive/data.pkl", pickle, bytes}, {"archive/version", "3\n", 2}, {"archive/data/0", zeros, 16}};

	archive_make(a, records, 3);
}
