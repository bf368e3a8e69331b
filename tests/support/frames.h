/* SPDX-License-Identifier: Apache-2.0 */
/* A file put together of the pieces of its frame. */
#ifndef TESTS_FRAMES_H
#define TESTS_FRAMES_H

#include <stdlib.h>
#include <string.h>

#include "reshard/codec/format/format.h"

/** The caller frees it.  `data`: the bytes of each tensor. */
static inline unsigned char *file_of_frame(const struct rs_frame *frame, unsigned char *const *data)
{
	unsigned char *file = malloc(frame->bytes ? frame->bytes : 1);

	for (uint32_t i = 0; file && i < frame->nr; i++) {
		const struct rs_piece *p = &frame->pieces[i];
		uint64_t n = rs_piece_end(frame, p) - p->at;

		if (p->kind == RS_PIECE_TENSOR)
			memcpy(file + p->at, data[p->tensor], n);
		else if (p->kind == RS_PIECE_TEXT)
			memcpy(file + p->at, p->text, n);
		else
			memset(file + p->at, p->fill, n);
	}
	return file;
}

#endif
