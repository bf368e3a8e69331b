/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places rows of padding that are state (docs/layout.md, section 5).  They are a tensor of their own,
 * `file:name@padding0`, with entries where the tensor is that they are behind.  Always:
 *
 *  1. The known rows are [0, S).  A topology that pads by p rows shows the first min(p, S) of them behind the
 *     tensor, in the same stored tensor; if p is more, the last one is repeated.  No reshard changes a row, or S.
 *  2. Rows [p, S) are hidden: the second entry has them, on one rank, in a file of its own that no program is
 *     shown.  So everything that is done with ranks' files is done with it, and each row is somewhere.
 *  3. A commit makes S what the topology pads by, if that is more: then ranks have written all of these rows.
 *  4. A member of a joined tensor, or a layer of a stack, has its rows there.  Nothing is known of what fills a
 *     flattened or joined tensor itself, or several dimensions: that is zero where it is made.
 */
#include "meta/model/present_i.h"

#include <string.h>

/* Adds the entry of the rows of padding that ranks are not shown: on the first rank that has the shown ones. */
static int place_hidden(struct builder *b, struct meta_entry e)
{
	const struct meta_view *v = b->v;
	uint32_t axes = e.rule->cut_axes, fixed[SC_AXES_MAX];
	struct meta_caps caps = {0};

	for (int i = 0; i < SC_AXES_MAX; i++)
		axes |= e.fixed[i] != META_FREE ? 1u << i : 0;
	axes = meta_layout_mesh_axes(v->layout, axes);
	for (int i = 0; i < SC_AXES_MAX; i++)
		fixed[i] = axes & 1u << i && e.fixed[i] == META_FREE ? 0 : e.fixed[i];
	sc_buf_reset(&b->file);
	sc_buf_reset(&b->name);
	if (e.varies) {
		caps = *e.varies; /* where it is free, a coordinate is 0 in it */
		meta_pattern_render(&e.rule->file, &caps, &b->file);
		meta_pattern_render(&e.rule->name, &caps, &b->name);
		e.name = meta_keep_text(b, &b->name, e.name);
	} else {
		sc_buf_add(&b->file, e.file, strlen(e.file));
	}
	if (e.rule->is_stack) /* its layers have one stored name, and each has rows of its own */
		e.name = e.behind->name;
	sc_buf_printf(&b->file, META_HIDDEN);
	e.file = meta_keep_text(b, &b->file, "");
	e.fixed = meta_keep_fixed(b, fixed);
	e.varies = NULL;
	e.hidden = true;
	return !e.file || !e.name || !e.fixed || sc_vec_push(&b->entries, e) < 0 ? sc_nomem(b->err) : 0;
}

int meta_place_padding(struct builder *b, uint32_t t)
{
	const struct meta_state *state = b->v->state;
	const struct meta_tensor *behind = meta_state_before_padding(state, &state->tensors[t]);
	const size_t before = b->entries.nr;
	uint32_t of;
	int dim = 0, rc = 0;

	(void)meta_tensor_padding(state->tensors[t].name, &dim);
	if (!behind || behind > &state->tensors[t] || behind->shape.nr != state->tensors[t].shape.nr ||
	    dim >= behind->shape.nr)
		return sc_fail(b->err, SC_E_STATE, "'%s' is padding, but no tensor that it is behind comes before it",
			       state->tensors[t].key);
	of = (uint32_t)(behind - state->tensors);
	for (uint32_t i = b->v->first[of]; rc == 0 && i < b->v->first[of + 1]; i++) {
		struct meta_entry e = b->entries.at[i];

		e.tensor = t;
		e.behind = behind;
		e.dim = (int8_t)dim;
		if (sc_vec_push(&b->entries, e) < 0)
			return sc_nomem(b->err);
		if (b->entries.nr == before + 1)
			rc = place_hidden(b, e);
	}
	return rc;
}

int meta_share_padding(struct builder *b)
{
	struct meta_view *v = b->v;
	int rc = 0;

	for (uint32_t t = 0; t < v->state->nr && rc == 0; t++) {
		const uint32_t first = v->first[t], nr = v->first[t + 1] - first;
		const struct meta_tensor *behind = nr ? v->entries[first].behind : NULL;
		const uint64_t all = behind ? v->state->tensors[t].shape.dim[v->entries[first].dim] : 0;

		for (uint32_t i = 0; behind && i < nr && rc == 0; i++) {
			struct meta_entry *e = &v->entries[first + i];
			const uint32_t of = v->first[behind - v->state->tensors] + (i ? i - 1 : 0);
			struct meta_entry *other = &v->entries[of];
			uint32_t last[SC_AXES_MAX];
			int dim = -1;
			uint64_t rows;

			if (e->hidden) {
				e->row = v->entries[first].rows;
				e->rows = all - e->row;
				v->has_hidden |= e->rows > 0;
				continue;
			}
			rows = meta_cuts_padding(v->topo, e->rule->cuts, e->rule->nr_cuts, &behind->shape, &dim);
			if (!rows || dim != e->dim)
				continue;
			e->rows = sc_min_u64(rows, all);
			e->group = other->group;
			e->member = other->member;
			e->name = other->name;
			other->padding = e;
			for (int k = 0; k < SC_AXES_MAX; k++)
				last[k] = v->topo->degree[k] ? v->topo->degree[k] - 1 : 0;
			rc = meta_check_piece(b, e, last);
		}
	}
	return rc;
}
