/* SPDX-License-Identifier: Apache-2.0 */
/* Zip archives as torch.save() writes them, made by hand, so that tests can break them. */
#ifndef TESTS_TORCH_ARCHIVE_H
#define TESTS_TORCH_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>

struct archive {
	unsigned char bytes[1 << 18];
	size_t nr;
	size_t entries[8], nr_entries;	/* where the directory's are */
	size_t end;			/* where the end record is */
};

struct archive_record {
	const char *name;
	const void *bytes;
	size_t nr;
};

/** Appends a little-endian number of so many bytes; other bytes. */
void archive_put(struct archive *a, uint64_t x, unsigned bytes);
void archive_put_text(struct archive *a, const void *text, size_t bytes);
void archive_make(struct archive *a, const struct archive_record *records, size_t nr);
/** Makes one of a pickle, and storage 0, of 16 bytes. */
void archive_make_of(struct archive *a, const void *pickle, size_t bytes);

/* Pickles: {"w": _rebuild_tensor_v2(storage, REST: offset, shape, stride, False, OrderedDict())} */
#define ARCHIVE_STORAGE(class, key, elements) "(U\7storagectorch\n" class "\n" key "U\3cpu" elements "tQ"
#define ARCHIVE_TENSOR(storage, rest) "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" storage rest "\x89}tRs."
#define ARCHIVE_GOOD ARCHIVE_STORAGE("FloatStorage", "U\0010", "K\4")

#endif
