/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors file format: u64 little-endian header length N, N bytes of JSON, data.
 * A format turns a file into (name, type, shape, offset in the file) and back; nothing else knows
 * safetensors.  Pure: reads by a function that it is given.
 * Source: the format's README and tensor.rs, version 0.8.
 */
#ifndef RS_SAFETENSORS_H
#define RS_SAFETENSORS_H

#include "meta/model/dtype.h"
#include "meta/model/state.h"
#include "reshard/format/file.h"

struct rs_tensor_at {
	const char *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint64_t begin, end;	/* bytes, from the start of the file */
	uint32_t skew;		/* of one to write: byte of a block at which it should begin, a multiple of 8 */
};

struct rs_safetensors {
	struct sc_arena arena;
	uint64_t data_at;	/* where the data section starts: 8 + N */
	uint32_t nr;
	struct rs_tensor_at *tensors; /* by offset */
	struct sc_map by_name;	/* -> tensor */
	const char *metadata;	/* __metadata__ as compact JSON with sorted keys, NULL: none */
};

/** Is this the name of a file in this format? */
bool rs_safetensors_is(const char *path);

/**
 * Parse and check every rule of the format: header length against file size and the limit of
 * 100 MB, a JSON object without duplicate keys in UTF-8, known types, offsets in range, without
 * overlap or hole, type x shape = bytes without overflow, the file's end at the last byte.
 * Only the header of `file` is read, each byte of it once: what is checked is a copy.
 * Errors: SC_E_FORMAT with what is wrong; SC_E_LIMIT (dimensions); SC_E_NO_MEMORY; those of reading.
 */
int rs_safetensors_parse(const struct rs_file *file, struct rs_safetensors *ret, struct sc_err *err);
void rs_safetensors_done(struct rs_safetensors *st);

const struct rs_tensor_at *rs_safetensors_find(const struct rs_safetensors *st, const char *name);

/**
 * Order (reshard/format/arrange.h) and place tensors, and make the header; it is padded with blanks so that the data
 * begins where most tensors' skew wants it: where that of the sources does, blocks can be reflinked and
 * copies are of whole pages.  Sets begin and end of every tensor.  `metadata` is JSON or NULL.
 * Errors: SC_E_LIMIT (header over the format's limit), SC_E_NO_MEMORY.
 */
int rs_safetensors_header(struct rs_tensor_at *tensors, uint32_t nr, const char *metadata,
			  struct sc_buf *ret, struct sc_err *err);

/** Keys that both texts have with equal values, as JSON; NULL when there are none. -1: memory. */
int rs_safetensors_common_metadata(const char *a, const char *b, char **ret, bool *ret_differ);

#endif
