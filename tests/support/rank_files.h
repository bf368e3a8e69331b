/* SPDX-License-Identifier: Apache-2.0 */
/* Rank files as a framework writes them, of tensors of U32: made and read by hand, not by what is tested. */
#ifndef TEST_RANK_FILES_H
#define TEST_RANK_FILES_H

#include "meta/base/mem.h"
#include "meta/model/state.h"

struct rank_tensor {
	const char *name;
	const struct meta_shape *shape;
	const uint32_t *data;
	uint64_t bytes;
};

struct rank_files {
	const char *suffix;
	/** The bytes of a file, with a payload that says `salt`, which all ranks agree on, and `rank`. */
	void (*make)(const struct rank_tensor *tensors, size_t nr, uint32_t salt, uint32_t rank, struct sc_buf *ret);
	/** Fills `to` with a tensor, row by row; false: it is not there, or has another size. */
	bool (*get)(const unsigned char *file, uint64_t bytes, const char *name, uint32_t *to, uint64_t to_bytes);
	/** Does the payload say this salt? */
	bool (*has_salt)(const unsigned char *file, uint64_t bytes, uint32_t salt);
};

/** safetensors, where no kind put its own in the place. */
extern const struct rank_files *rank_files;

#endif
