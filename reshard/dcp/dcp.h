/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch.distributed.checkpoint says of a folder, in its file .metadata: the shape of each whole tensor, and in
 * which file each box of it is.
 *
 *     ckpt/.metadata        a pickle; this is it
 *     ckpt/__R_N.distcp     items of writer R, one behind the other: each is an archive of torch.save() of one tensor
 *                           or object
 *
 * Nothing is executed.  Megatron's torch_dist has the same files.
 * Source: pytorch 2.13: torch/distributed/checkpoint/metadata.py, filesystem.py.
 */
#ifndef RS_DCP_H
#define RS_DCP_H

#include "reshard/archive/torch.h"

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

/** Owns all that it points to; rs_dcp_done(). */
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
 * Reads a .metadata.  1: it is one; 0: it is another pickle, or none at all.
 * Errors: SC_E_FORMAT (what says where), SC_E_UNSUPPORTED (a type that safetensors has not, compressed items),
 * SC_E_LIMIT, SC_E_NO_MEMORY.  Nothing is to be freed unless it is 1.
 */
int rs_dcp_read(const void *metadata, uint64_t bytes, struct rs_dcp *ret, struct sc_err *err);
void rs_dcp_done(struct rs_dcp *dcp);

/**
 * Appends a .metadata that says the same: rs_dcp_read() and torch's reader take it.  The same tensors and objects
 * always have the same bytes.  Errors: SC_E_UNSUPPORTED (torch has no such type), SC_E_NO_MEMORY.
 */
int rs_dcp_emit(const struct rs_dcp *dcp, struct sc_buf *ret, struct sc_err *err);

#endif
