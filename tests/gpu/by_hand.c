/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/by_hand.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SOURCES BY_HAND_SOURCES
#define IMAGES BY_HAND_IMAGES
#define ROWS BY_HAND_ROWS
#define COLUMNS BY_HAND_COLUMNS
#define THIRD (COLUMNS / IMAGES)
#define TEXT BY_HAND_TEXT
#define ALL (IMAGES + 1)	/* and the wide one */

static struct source {
	struct rs_bytes bytes;
	int fd;
} sources[SOURCES];

static struct image {
	struct rs_image image;
	struct rs_piece pieces[2];
	struct rs_gather gather;
	struct rs_copy copies[SOURCES];
	struct rs_source sources[SOURCES];
	const unsigned char *data[SOURCES];
	struct rs_bytes *bytes[SOURCES];
} images[ALL];

static char text[TEXT];
bool by_hand_no_descriptors;

static int source_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	*ret_fd = by_hand_no_descriptors ? -1 : dup(((struct source *)b)->fd);
	return *ret_fd >= 0 ? 0 : sc_fail(err, SC_E_DAMAGED, "blob: it is gone");
}

static const struct rs_source_ops ops = {.name = "memory", .fd = source_fd};

static uint32_t width(unsigned i)
{
	return i == BY_HAND_WIDE ? 2 * THIRD : THIRD;
}

static uint32_t first_column(unsigned i)
{
	return i == BY_HAND_WIDE ? THIRD / 2 : i * THIRD;
}

uint32_t by_hand_bytes(unsigned i)
{
	return TEXT + SOURCES * ROWS * width(i);
}

void by_hand_make(void)
{
	memset(text, 't', sizeof(text));
	for (unsigned k = 0; k < SOURCES; k++) {
		unsigned char *map;

		sources[k].fd = memfd_create("source", MFD_CLOEXEC);
		if (ftruncate(sources[k].fd, ROWS * COLUMNS) < 0)
			abort();
		map = mmap(NULL, ROWS * COLUMNS, PROT_READ | PROT_WRITE, MAP_SHARED, sources[k].fd, 0);
		for (unsigned i = 0; i < ROWS * COLUMNS; i++)
			map[i] = (unsigned char)((i * 2654435761u >> 9) + k);
		sources[k].bytes = (struct rs_bytes){.ops = &ops, .map = map, .bytes = ROWS * COLUMNS, .blob = k + 1};
	}
	for (unsigned i = 0; i < ALL; i++) {
		struct image *m = &images[i];
		const uint32_t wide = width(i), bytes = by_hand_bytes(i);

		m->pieces[0] = (struct rs_piece){.kind = RS_PIECE_TEXT, .text = text};
		m->pieces[1] = (struct rs_piece){.at = TEXT, .kind = RS_PIECE_TENSOR};
		m->gather = (struct rs_gather){.bytes = bytes - TEXT, .nr = SOURCES, .copies = m->copies};
		m->image = (struct rs_image){.bytes = bytes, .nr = 1, .gathers = &m->gather};
		m->image.frame = (struct rs_frame){.bytes = bytes, .nr = 2, .pieces = m->pieces};
		m->image.sources = (struct rs_sources){.nr = SOURCES, .at = m->sources};
		m->image.mapped = (struct rs_mapped){.data = m->data, .bytes = m->bytes};
		for (unsigned k = 0; k < SOURCES; k++) {
			m->copies[k] = (struct rs_copy){.source = k, .nr = 1, .turns = 1, .to = k * ROWS * wide, .from = first_column(i),
							.run = wide, .ext = {ROWS}, .to_stride = {wide}, .from_stride = {COLUMNS},
							.row = k * ROWS, .rows = ROWS};
			m->sources[k] = (struct rs_source){.file = "f", .name = "t",
							   .place = {.ops = &ops, .id = k, .bytes = ROWS * COLUMNS}};
			m->data[k] = sources[k].bytes.map;
			m->bytes[k] = &sources[k].bytes;
		}
	}
}

const struct rs_image *by_hand_image(unsigned i)
{
	return &images[i].image;
}

bool by_hand_is_right(unsigned i, int fd)
{
	const uint32_t wide = width(i), bytes = by_hand_bytes(i);
	unsigned char *got = malloc(bytes + 1);
	bool right = pread(fd, got, bytes + 1, 0) == bytes && memcmp(got, text, TEXT) == 0;

	for (unsigned k = 0; k < SOURCES; k++)
		for (unsigned r = 0; r < ROWS; r++)
			right &= memcmp(got + TEXT + (k * ROWS + r) * wide, sources[k].bytes.map + r * COLUMNS + first_column(i), wide) == 0;
	free(got);
	return right;
}
