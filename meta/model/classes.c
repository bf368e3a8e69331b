/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/classes.h"

uint32_t meta_name_axes(const struct meta_layout *layout, const struct meta_topology *topo, const char *file,
			const char *name)
{
	struct meta_caps caps;
	const struct meta_rule *r = meta_layout_first(layout, topo->pp > 1, file, name, &caps);
	uint32_t axes = r ? r->axes : 0;

	/* what is joined depends on all that its members do, and these are not known by its name */
	for (uint32_t i = 0; r && r->join && i < layout->nr_rules; i++)
		axes |= layout->rules[i].axes;
	for (uint16_t i = 0; r && i < caps.nr; i++)
		if (caps.at[i].axis >= 0)
			axes |= 1u << caps.at[i].axis;
	return axes;
}

struct meta_class meta_class_of(const struct meta_topology *topo, uint32_t axes, uint32_t rank)
{
	struct meta_class c = {{0}};

	for (int i = 0; i < topo->nr_axes; i++)
		if (axes & 1u << i)
			c.at[i] = rank / topo->stride[i] % topo->degree[i];
	return c;
}
