/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Infers logical tensors from files (docs/layout.md, section 6): the tensors that all ranks wrote,
 * under a layout and a topology, make one state, or are refused with a sentence.
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
	uint32_t tensor;		/* set by meta_infer: the tensor of *ret that this is a piece of */
};

/**
 * Makes the state of all written tensors.  `written` is sorted by rank.  `known` (or NULL) are the
 * logical tensors of the previous version: they give the shapes of flat pieces; a file that is
 * written again must hold all of its tensors again; tensors of files that are not written are copied
 * to *ret.  Layers and experts are counted over all of them.
 *
 * Errors: SC_E_STATE with rank, tensor, expected, found; SC_E_TOPOLOGY (stages); SC_E_NO_MEMORY.
 * Owner: *ret (a state that was zeroed) is the caller's.
 */
int meta_infer(const struct meta_layout *layout, const struct meta_topology *topo,
	       struct meta_written *written, size_t nr, const struct meta_state *known,
	       struct meta_state *ret, struct sc_err *err);

#endif
