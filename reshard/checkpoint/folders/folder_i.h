/* SPDX-License-Identifier: Apache-2.0 */
/* The state and the functions that readers of all kinds of checkpoint folders share. */
#ifndef RS_FOLDER_I_H
#define RS_FOLDER_I_H

#include "reshard/codec/torch/torch.h"
#include "reshard/codec/dcp/dcp.h"
#include "reshard/checkpoint/folders/folder.h"

struct rs_folder_reading {
	struct rs_blobs *blobs;
	rs_folder_find_fn *find;
	void *arg;
	struct rs_folder *to;
	struct sc_map files;		/* by path -> struct rs_folder_open */
	struct sc_arena arena;		/* of the reading */
	uint64_t budget;		/* of rs_placed_check() */
	struct sc_err *err;
};

/** An open file of the folder; the end of the reading closes it. */
struct rs_folder_open {
	struct rs_folder_file info;
	struct rs_place place;
	struct rs_bytes *bytes;
};

/** Opens a file: 1, 0 (there is none; *ret is NULL) or an error. */
int rs_folder_open(struct rs_folder_reading *r, const char *path, struct rs_folder_open **ret);
/** Gives a run of a file's bytes as a window. */
struct rs_window rs_folder_window(struct rs_folder_open *file, uint64_t at, uint64_t bytes);
void rs_folder_close(struct rs_folder_reading *r);
/** Adds a tensor, whose boxes are in the folder's arena, and checks that they cover it. */
int rs_folder_add(struct rs_folder_reading *r, const char *name, enum meta_dtype dtype, const struct meta_shape *shape,
		  struct rs_placed_tensor placed);
/** As rs_folder_add(), with boxes from sc_sys.alloc(), which it always releases.  An `rc` that is an error already is
 *  returned, and nothing is added. */
int rs_folder_add_boxes(struct rs_folder_reading *r, const char *name, enum meta_dtype dtype,
			const struct meta_shape *shape, struct rs_placed_tensor placed, int rc);

/** Tells whether a tensor is a bucket of Megatron's distributed optimizer. */
bool rs_folder_is_bucket(const char *name);
/**
 * Adds the parameters that lie in the buckets of a DCP folder; `flat` are the pieces of each of its tensors.  Sorts the
 * pieces of buckets, and leaves others alone.  Returns 1, 0 (the buckets fit no order that is known) or an error.
 */
int rs_folder_add_buckets(struct rs_folder_reading *r, const struct rs_dcp *dcp, struct rs_placed_tensor *flat);

/* Read a folder of one kind: 1 (its tensors were added), 0 (the folder is of another kind) or an error. */
int rs_folder_read_dcp(struct rs_folder_reading *r);
int rs_folder_read_zero(struct rs_folder_reading *r);

#endif
