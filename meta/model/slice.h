/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices tensors into boxes: which part of a logical tensor a rank stores, and which ranks hold a region.
 *
 * Shape:  logical tensors are [d0, d1, ...], C order, counted in elements.
 * Box:    off, ext are the region of the logical tensor; element off + x lies at
 *         at + sum(x[k] * stride[k]) of the stored one.  All in elements.
 * Source: the slicing functions of Tenplex's parallelizable tensor collection (SOSP '24);
 *         docs/layout.md section 5.
 */
#ifndef META_SLICE_H
#define META_SLICE_H

#include "meta/model/topology.h"

struct meta_shape {
	uint8_t nr;
	uint64_t dim[SC_DIMS_MAX];
};

struct meta_box {
	uint8_t nr;
	uint64_t off[SC_DIMS_MAX], ext[SC_DIMS_MAX], stride[SC_DIMS_MAX];
	uint64_t at;
	bool copy;		/* `upto`: another rank's piece holds it, too, and is the first that does */
};

/** A stored piece: its shape and the boxes in it; elements in no box are padding. */
struct meta_piece {
	struct meta_shape shape;
	uint32_t nr_boxes;
	struct meta_box *boxes;
};

/** Computes the number of elements; false on overflow of 64 bits. */
bool meta_shape_elements(const struct meta_shape *shape, uint64_t *ret);
bool meta_shape_equal(const struct meta_shape *a, const struct meta_shape *b);
/** Writes "[2, 3]", for messages. */
const char *meta_shape_text(const struct meta_shape *shape, char *buf, size_t bytes);

/** Makes of the shape of a weight that of what the rule is of: of one like it, or of a factor.  False: it has none. */
bool meta_factor_shape(const struct meta_rule *rule, const struct meta_shape *weight, struct meta_shape *ret);

/** Finds the size of blocks, a power of two, by which so many elements one behind the other make so many blocks; of one
 *  block the least.  0: there is none. */
uint64_t meta_block_size(uint64_t elements, uint64_t blocks);

bool meta_box_equal(const struct meta_box *a, const struct meta_box *b);
uint64_t meta_box_elements(const struct meta_box *box);
/** Intersects a box with a region, as a box of the same stored tensor; false if it is empty. */
bool meta_box_meet(const struct meta_box *box, const uint64_t *off, const uint64_t *ext,
		   struct meta_box *ret);

/** Returns the dimension that a cut is of, counted from the front.  The cut is of a dimension that the shape has. */
static inline int meta_cut_dim(const struct meta_cut *cut, const struct meta_shape *shape)
{
	return cut->dim < 0 ? cut->dim + shape->nr : cut->dim;
}

/** Returns the number of parts into which a cut by `upto` cuts a section, by an axis of degree `d`: neighbours share a
 *  part. */
uint64_t meta_cut_parts(const struct meta_cut *cut, uint32_t section, uint64_t d);

/** The place where a member of a joined tensor begins, and the length of the joined tensor before it is cut: in
 *  elements, rows or layers. */
struct meta_lie {
	uint64_t before, total;
};

/**
 * Rows of padding that are kept, of one dimension.  Where a cut pads that dimension by as many or fewer, the first of
 * them lie there; where it pads by more, the last one is repeated.  Boxes are of these rows then: they begin at 0.
 */
struct meta_padding {
	uint64_t rows;			/* 1 or more */
	int8_t dim;
	bool once;			/* those that are repeated are in no box */
};

/**
 * How a tensor is cut, and what is made of its pieces.  The pieces of several tensors may be stored as one: a joined
 * tensor lies before and behind its member, and the member sees nothing else of it.
 */
struct meta_cutting {
	const struct meta_cut *cuts;
	uint8_t nr_cuts;
	enum { META_ALONE, META_JOINED, META_JOINED_OVER, META_STACKED } how;
	int8_t dim;			/* META_JOINED_OVER: along which, negative from the end */
	bool strip;			/* padding at the end is not stored */
	const struct meta_cut *more;	/* of what is joined */
	uint8_t nr_more;
	/* Finds it on the rank with these coordinates; NULL: the rank has none of the tensor. */
	const struct meta_lie *(*lie)(void *arg, const uint32_t coords[SC_AXES_MAX]);
	void *arg;
	const struct meta_padding *padding;	/* slice this, behind the tensor; NULL: the tensor */
};

/** Returns how many rows of padding the cuts add at a topology (NULL: how many of the shape lie behind the size that a
 *  cut says), and in which dimension.  0: none, or in several dimensions: zeros, and no padding of them is known. */
uint64_t meta_cuts_padding(const struct meta_topology *topo, const struct meta_cut *cuts, uint8_t nr_cuts,
			   const struct meta_shape *shape, int *ret_dim);

/**
 * Computes the piece that the rank with these coordinates stores.  Looks at no other rank.
 * Owner: boxes are in `arena`.  `what` names the tensor in messages.
 * Errors: SC_E_STATE (does not divide), SC_E_LIMIT, SC_E_NO_MEMORY.
 */
int meta_slice(struct sc_arena *arena, const struct meta_topology *topo, const struct meta_cutting *cutting,
	       const struct meta_shape *shape, const uint32_t coords[SC_AXES_MAX], const char *what,
	       struct meta_piece *ret, struct sc_err *err);

/**
 * Computes the boxes of a run: elements [first, first + nr) of a tensor that is flattened row-major, which lie one
 * behind the other.  At most 2N-1 boxes.  The run is inside of the tensor, which has elements.  Owner and errors: as
 * meta_slice().
 */
int meta_run(struct sc_arena *arena, const struct meta_shape *shape, uint64_t first, uint64_t nr, const char *what,
	     struct meta_piece *ret, struct sc_err *err);

/**
 * Calls `each` with the coordinates (of the axes that cut; the others are 0) of every rank that
 * may hold some of a region, in time proportional to their number; of those that hold the same by `upto` the
 * first.  After a `flat` cut some of them may hold nothing of it.  Stops at the first negative return value.
 */
typedef int meta_holder_fn(void *arg, const uint32_t coords[SC_AXES_MAX]);
int meta_holders(const struct meta_topology *topo, const struct meta_cutting *cutting, const struct meta_shape *shape,
		 const uint64_t *off, const uint64_t *ext, const char *what, meta_holder_fn *each, void *arg,
		 struct sc_err *err);

#endif
