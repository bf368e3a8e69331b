/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files -> logical tensors (docs/layout.md, section 6): what all ranks wrote, under a layout and a
 * topology, is one state, or is refused with a sentence.
 */
#ifndef META_INFER_H
#define META_INFER_H

#include "meta/model/view.h"

/** A tensor that a rank wrote. */
struct meta_written {
	uint32_t rank;
	const char *file, *name;
	enum meta_dtype dtype;
	struct meta_shape shape;
	uint32_t tensor;		/* that it is a piece of, a number in *ret: meta_infer says it */
};

/**
 * `written` is sorted by rank.  `known` (or NULL) are the logical tensors of the version before:
 * they give the shapes that flat pieces do not tell, and those of a file that is written again
 * must be there again; tensors of files that are not written are taken over into *ret.  Layers and
 * experts are those of all of them.
 *
 * Errors: SC_E_STATE with rank, tensor, expected, found; SC_E_TOPOLOGY (stages); SC_E_NO_MEMORY.
 * Owner: *ret (a state that was zeroed) is the caller's.
 */
int meta_infer(const struct meta_layout *layout, const struct meta_topology *topo,
	       struct meta_written *written, size_t nr, const struct meta_state *known,
	       struct meta_state *ret, struct sc_err *err);

#endif
