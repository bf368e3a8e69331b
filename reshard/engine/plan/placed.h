/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placed tensors: a table says where each box of a tensor lies, instead of a layout and a topology.  Made from what a
 * checkpoint says of itself (reshard/checkpoint/folders); a source only.  Pure.
 *
 *     tensor [8, 10]   box (0,0)+(2,10)   file A byte 704      box (2,0)+(2,10)   file B byte 7009   ...
 *
 * Boxes of a tensor cover it, each element once.
 */
#ifndef RS_PLACED_H
#define RS_PLACED_H

#include "reshard/engine/plan/plan.h"

struct rs_placed_box {
	struct meta_box box;		/* `at` is 0: the first element is the place's first byte, of any alignment */
	struct rs_place place;		/* without a kind: the store's own file `id` */
	const char *file;		/* for messages */
};

struct rs_placed_tensor {
	uint64_t nr;
	struct rs_placed_box *boxes;	/* by their first elements */
};

/** An object that is no tensor: its bytes are one box. */
struct rs_placed_object {
	const char *name;
	struct rs_placed_box bytes;
};

struct rs_placed_objects {
	struct rs_placed_object *at;
	size_t nr, room;
};

/**
 * Sorts the boxes of a tensor, and checks that they cover it.  Drops boxes that are there twice, or without elements.
 * `budget` is counted down with each comparison; it bounds the work for many tensors together.
 * Errors: SC_E_FORMAT (a gap, an overlap, a box outside of the tensor), SC_E_LIMIT (budget).
 */
int rs_placed_check(struct rs_placed_tensor *placed, const struct meta_tensor *tensor, uint64_t *budget,
		    struct sc_err *err);

/** Adds the copies of one target box to `g`, as rs_plan_box() does.  The sources have no view and no rank. */
int rs_plan_placed(const struct rs_placed_tensor *placed, const struct meta_tensor *tensor,
		   const struct meta_box *target, struct rs_gather *g, struct rs_sources *sources, struct sc_err *err);

#endif
