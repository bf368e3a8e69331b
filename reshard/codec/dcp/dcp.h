/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes what torch.distributed.checkpoint says of a folder, in its file .metadata: the shape of each whole
 * tensor, and the file that each box of the tensor is in.
 *
 *     ckpt/.metadata        a pickle; this is it
 *     ckpt/__R_N.distcp     items of writer R, one behind the other: each is an archive of torch.save() of one tensor
 *                           or object
 *
 * The reader executes nothing.  Megatron's torch_dist has the same files.
 * Source: pytorch 2.13: torch/distributed/checkpoint/metadata.py, filesystem.py.
 */
#ifndef RS_DCP_H
#define RS_DCP_H

#include "reshard/codec/torch/torch.h"

struct rs_dcp_chunk {			/* elements off ... off + ext of the whole tensor */
	const uint64_t *off, *ext;
	const char *file;		/* in the folder; does not climb out of it */
	uint64_t at, bytes;		/* of its item, in the file */
};

struct rs_dcp_tensor {
	const char *name;
	enum meta_dtype dtype;
	uint32_t dims;
	const uint64_t *shape;
	uint64_t nr;
	struct rs_dcp_chunk *chunks;
};

struct rs_dcp_object {			/* what is no tensor: pickled */
	const char *name, *file;
	uint64_t at, bytes;
};

/** A .metadata that was read.  Owns all that it points to, until rs_dcp_done(). */
struct rs_dcp {
	struct sc_arena arena;
	struct {
		struct rs_dcp_tensor *at;
		size_t nr, room;
	} tensors;			/* as the pickle has them */
	struct {
		struct rs_dcp_object *at;
		size_t nr, room;
	} objects;
};

/**
 * Reads a .metadata: 1, 0 (the bytes are another pickle, or none) or an error.
 * Errors: SC_E_FORMAT (what says where), SC_E_UNSUPPORTED (a type that safetensors has not, compressed items),
 * SC_E_LIMIT, SC_E_NO_MEMORY.  Only after 1 is there something to free.
 */
int rs_dcp_read(const void *metadata, uint64_t bytes, struct rs_dcp *ret, struct sc_err *err);
void rs_dcp_done(struct rs_dcp *dcp);

/**
 * Appends a .metadata that says the same, which rs_dcp_read() and torch's reader take.  The same tensors and objects
 * always make the same bytes.  Errors: SC_E_UNSUPPORTED (torch has no such type), SC_E_NO_MEMORY.
 */
int rs_dcp_emit(const struct rs_dcp *dcp, struct sc_buf *ret, struct sc_err *err);

#endif
