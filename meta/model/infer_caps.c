/* SPDX-License-Identifier: Apache-2.0 */
/* Turns numbers that ranks give for themselves into numbers of the whole model. */
#include "meta/model/infer_i.h"

uint32_t meta_infer_chunk(const struct infer *n, const struct meta_caps *caps, const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_cap *v = meta_caps_find(caps, META_CAP_V);
	uint32_t stage = n->layout->pp >= 0 ? coords[n->layout->pp] : 0;

	return (v && !v->is_empty ? v->number : 0) * n->topo->pp + stage;
}

void meta_infer_caps(const struct infer *n, size_t i, const uint32_t coords[SC_AXES_MAX], struct meta_caps *ret)
{
	const struct meta_cap *layer;

	*ret = n->rows[i].name->caps;
	layer = meta_caps_find(ret, META_CAP_L);
	if (layer)
		meta_caps_set_number(ret, META_CAP_L, -1,
				     layer->number + n->starts[meta_infer_chunk(n, ret, coords)]);
}
