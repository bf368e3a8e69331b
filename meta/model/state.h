/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a job: its logical tensors, whatever the topology.  One tensor is `file:name`; that
 * of an `each` rule carries coordinates, `file:name@tp=0,pp=1`.
 */
#ifndef META_STATE_H
#define META_STATE_H

#include "meta/model/dtype.h"
#include "meta/model/slice.h"

struct meta_tensor {
	const char *key;	/* "file:name" */
	const char *file, *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
};

struct meta_state {
	struct sc_arena arena;
	uint32_t layers, experts;	/* of a part: counts of its whole (meta_view_part); 0: count the tensors */
	uint32_t nr;
	size_t room;
	struct meta_tensor *tensors;
	struct sc_map by_key;	/* -> index + 1 */
};

/** Adds a tensor; replaces one of the same key.  -1: out of memory. */
int meta_state_add(struct meta_state *state, const char *key, size_t key_bytes,
		   enum meta_dtype dtype, const struct meta_shape *shape);
/** Adds all tensors of another state.  -1: out of memory. */
int meta_state_add_all(struct meta_state *state, const struct meta_state *from);
const struct meta_tensor *meta_state_find(const struct meta_state *state, const char *key);
void meta_state_done(struct meta_state *state);

/** Computes the bytes of a whole tensor; false on overflow or if they are not whole bytes. */
bool meta_tensor_bytes(enum meta_dtype dtype, const struct meta_shape *shape, uint64_t *ret);

/** Returns the "@axis=index,..." of an `each` tensor, NULL if there is none. */
const char *meta_tensor_each(const char *name);

/*
 * Rows of padding behind a tensor are a tensor of their own: `file:name@padding0`, where 0 is the dimension that is
 * padded.  It has the shape of the other one, but for that dimension: the rows that are known.
 */

/** Returns the "@padding0" of a name, NULL if it is of no padding; *ret_dim (or NULL) is the dimension. */
const char *meta_tensor_padding(const char *name, int *ret_dim);
/** Finds the tensor that the padding is behind; NULL: the state has none. */
const struct meta_tensor *meta_state_before_padding(const struct meta_state *state, const struct meta_tensor *padding);
/** Finds the padding of a tensor in a dimension; NULL: none is known. */
const struct meta_tensor *meta_state_padding(const struct meta_state *state, const char *key, int dim);
/** Adds rows of padding to a tensor of the state.  -1: out of memory. */
int meta_state_add_padding(struct meta_state *state, const struct meta_tensor *of, int dim, uint64_t rows);

#endif
