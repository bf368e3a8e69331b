/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds classes of replicas before the tensors are known: ranks whose files of a name must be equal, because the rules
 * of the tensors' names say so.  meta_view_alike() of view.h finds them by a state.
 */
#ifndef META_CLASSES_H
#define META_CLASSES_H

#include "meta/model/topology.h"

/** Returns the axes that a stored tensor and the names of it and its file depend on, as a bit set; 0 also without a
 *  rule. */
uint32_t meta_name_axes(const struct meta_layout *layout, const struct meta_topology *topo, const char *file,
			const char *name);

/** A class: a rank's coordinates on the axes that its file depends on, 0 on the others.  Compared by memcmp(). */
struct meta_class {
	uint32_t at[SC_AXES_MAX];
};
struct meta_class meta_class_of(const struct meta_topology *topo, uint32_t axes, uint32_t rank);

#endif
