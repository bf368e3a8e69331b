/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor as a line of text, as the row of a set has it (blob_set.tensors in schema.sql). */
#ifndef META_TENSOR_LINE_H
#define META_TENSOR_LINE_H

#include "meta/model/state.h"

struct meta_tensor_line {
	const char *key;		/* parsed: in the line */
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint16_t skew;			/* byte of a block at which it began where it was written */
	bool has_digest;
	uint8_t digest[16];		/* of its bytes as a whole */
};

/** Appends the line, with its end. */
void meta_tensor_line_add(struct sc_buf *buf, const struct meta_tensor_line *tensor);
/** Parses, in place, a line without its end.  False: it is no such line. */
bool meta_tensor_line_parse(char *line, struct meta_tensor_line *ret);

#endif
