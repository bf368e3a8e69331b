/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of a tensor, as runs, which slice.c and holders.c share. */
#ifndef META_SLICE_I_H
#define META_SLICE_I_H

#include "meta/model/slice.h"

#define PADDING UINT64_MAX
#define ELSEWHERE (UINT64_MAX - 1)	/* of other members of a joined tensor, or between them */

struct run {
	uint64_t start, length; /* start PADDING: filled with zeros */
	bool copy;		/* the first rank that holds it is another one */
};

struct runs {
	uint32_t nr;
	struct run *at;
};

struct local {
	uint8_t nr;
	struct runs dims[SC_DIMS_MAX];
	bool is_flat;
	struct runs flat;
	const struct meta_padding *padding;	/* the runs are of it; NULL: of the tensor */
};

struct boxes {
	struct sc_arena *arena;
	const struct local *local;
	uint64_t length[SC_DIMS_MAX], stride[SC_DIMS_MAX];
	struct {
		struct meta_box *at;
		size_t nr, room;
	} out;
	uint64_t at, from;	/* the range starts at element `from` of the local tensor, at `at` */
	bool copy;		/* of the range */
	const char *what;
	struct sc_err *err;
};

uint64_t meta_runs_length(const struct runs *runs);
/** Returns the length of all but the last ones of d parts of n. */
uint64_t meta_part_size(const struct meta_cut *cut, uint64_t n, uint64_t d);
/** Appends to `out` the part [lo, hi) of a concatenation of runs. */
void meta_runs_take(const struct runs *runs, uint64_t lo, uint64_t hi, struct runs *out);
/** Adds the padding that a cut in `d` parts needs; `rows` are the rows of it that are known, NULL: none.  Its errors
 *  say what is wrong; its callers say where. */
int meta_runs_pad(struct sc_arena *arena, const struct runs *runs, const struct meta_cut *cut, uint64_t d,
		  const struct meta_padding *rows, struct runs *ret, struct sc_err *err);
/** Returns the padding that is known of a dimension of a local tensor, NULL: none. */
const struct meta_padding *meta_local_padding(const struct local *l, int dim);
int meta_local_dim(const struct meta_cut *cut, const struct meta_shape *shape, const char *what, int *ret,
		   struct sc_err *err);
/** Begins with all of a tensor, or (`padding` not NULL) with the padding that is to come behind it. */
int meta_local_whole(struct sc_arena *arena, const struct meta_shape *shape, const struct meta_padding *padding,
		     struct local *ret, struct sc_err *err);
int meta_local_flatten(struct sc_arena *arena, struct local *l, const char *what, struct sc_err *err);
/** Applies one cut to what the cuts before have left to the rank; the rank gets part `index`. */
int meta_local_cut(struct sc_arena *arena, const struct meta_topology *topo, const struct meta_cut *cut,
		   const struct meta_shape *shape, uint64_t index, const char *what, struct local *l,
		   struct sc_err *err);
/** Puts the rest of a joined tensor in front of a member and behind it. */
int meta_local_join(struct sc_arena *arena, const struct meta_cutting *c, const struct meta_shape *shape,
		    const struct meta_lie *lie, const char *what, struct local *l, struct sc_err *err);
/** Makes the boxes of the whole local tensor, or of its flat runs.  The caller ends b->out. */
int meta_local_boxes(struct boxes *b, uint64_t *ret_length);

#endif
