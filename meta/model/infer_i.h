/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of meta_infer(). */
#ifndef META_INFER_I_H
#define META_INFER_I_H

#include "meta/model/infer.h"

/** Does the last step, when `tensor` of each row is known.  Errors: those of meta_infer(). */
int meta_infer_check(const struct meta_layout *layout, const struct meta_topology *topo,
		     const struct meta_written *written, size_t nr, const struct meta_state *state,
		     struct sc_err *err);

#endif
