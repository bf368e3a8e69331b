/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what torch.save() wrote: a zip archive of a pickle and a record for each storage.  It finds where tensors lie;
 * it executes nothing, and reads no byte of a tensor.
 * Source: pytorch 2.13: torch/serialization.py, torch/_utils.py, torch/_tensor.py.
 */
#ifndef RS_TORCH_H
#define RS_TORCH_H

#include "meta/model/dtype.h"
#include "reshard/codec/torch/pickle.h"
#include "reshard/codec/torch/zip.h"

struct rs_torch_storage {
	const char *key;		/* of its record, data/KEY */
	int dtype;			/* enum meta_dtype; -1: one that safetensors has not (complex128) */
	unsigned element;		/* bytes */
	uint64_t at, bytes;		/* in the window */
};

struct rs_torch_tensor {
	const char *path;		/* keys with "/" between (rs_pickle_path()) */
	const struct rs_torch_storage *storage;
	int dtype;			/* as above; of a view of another type not that of the storage */
	unsigned element;
	uint32_t dims;
	const uint64_t *shape, *stride;	/* strides in elements */
	uint64_t at;			/* byte of the window where element 0 is */
	bool is_dense;			/* row by row, without gaps */
	const struct rs_pickled *node;	/* the call that makes it */
	const struct rs_pickled *spec;	/* of a DTensor: where it lies in the whole; NULL: of another */
};

/** An archive that was read.  Owns all that it points to, until rs_torch_done(). */
struct rs_torch {
	struct sc_arena arena;
	struct rs_zip zip;
	char *text;			/* of the pickle */
	struct rs_pickle pickle;
	struct {			/* in the order of the pickle; not those inside of objects that are not known */
		struct rs_torch_tensor *at;
		size_t nr, room;
	} tensors;
	uint64_t inside;		/* so many of those there are */
};

/**
 * Reads an archive.
 * Errors: SC_E_FORMAT, SC_E_LIMIT, SC_E_UNSUPPORTED (TorchScript, the format from before 1.6, big-endian),
 * SC_E_NO_MEMORY, those of reading.  Nothing is to be freed then.
 */
int rs_torch_read(const struct rs_window *window, struct rs_torch *ret, struct sc_err *err);
void rs_torch_done(struct rs_torch *torch);

/** Reads a size or an offset, below 2^62.  Errors: SC_E_FORMAT, which says `what`. */
int rs_torch_size(const struct rs_pickled *node, const char *what, uint64_t *ret, struct sc_err *err);
/** Reads a tuple or list of sizes, or a torch.Size of one, of 64 dimensions at most; *ret is in `arena`.
 *  Errors: SC_E_FORMAT, which says `what`, SC_E_NO_MEMORY. */
int rs_torch_sizes(const struct rs_pickled *node, const char *what, struct sc_arena *arena, uint32_t *ret_nr,
		   uint64_t **ret, struct sc_err *err);
/** Gives the type that a name such as torch.float32 stands for; -1: safetensors has no such type. */
int rs_torch_dtype(const struct rs_pickled *node);
/** Gives the name of a type in the module torch; NULL: torch has none. */
const char *rs_torch_dtype_name(enum meta_dtype dtype);

#endif
