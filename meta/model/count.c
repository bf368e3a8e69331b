/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/count.h"

#include <string.h>

const struct meta_cap *meta_layer_of(const struct meta_caps *caps)
{
	const struct meta_cap *c = meta_caps_find(caps, META_CAP_L);

	return c ? c : meta_caps_find(caps, META_CAP_G);
}

const struct meta_cap *meta_expert_of(const struct meta_caps *caps)
{
	const struct meta_cap *c = meta_caps_find(caps, META_CAP_E);

	return c ? c : meta_caps_find(caps, META_CAP_X);
}

const char *meta_family_key(const struct meta_rule *rule, const struct meta_caps *caps, struct sc_arena *arena)
{
	struct sc_buf buf = {0};
	const char *key;

	sc_buf_printf(&buf, "%u", rule->index);
	for (uint16_t i = 0; i < caps->nr; i++) {
		const struct meta_cap *c = &caps->at[i];

		if (c->id == META_CAP_E || c->id == META_CAP_X || c->id == META_CAP_V || c->axis >= 0)
			continue;
		if (c->is_number)
			sc_buf_printf(&buf, "|%u=%u", c->id, c->number);
		else
			sc_buf_printf(&buf, "|%u=%.*s", c->id, (int)c->bytes, c->text);
	}
	key = buf.failed ? NULL : sc_arena_copy(arena, buf.text, buf.bytes);
	sc_buf_done(&buf);
	return key;
}

bool meta_rule_spreads(const struct meta_rule *rule)
{
	return meta_pattern_has(&rule->file, META_CAP_E) || meta_pattern_has(&rule->file, META_CAP_X);
}

const char *meta_tensor_plain(const struct meta_tensor *t, struct sc_arena *arena)
{
	const char *each = meta_tensor_each(t->name);

	return each ? sc_arena_copy(arena, t->name, (size_t)(each - t->name)) : t->name;
}

void meta_counts_begin(struct meta_counts *counts, const struct meta_state *state)
{
	*counts = (struct meta_counts){.layers = state->layers, .experts = state->experts};
}

void meta_counts_done(struct meta_counts *counts)
{
	sc_map_done(&counts->families);
	sc_arena_done(&counts->arena);
}

int meta_counts_add(struct meta_counts *counts, const struct meta_rule *rule, const struct meta_caps *caps,
		    bool layers, const uint32_t **ret_experts)
{
	const struct meta_cap *layer = layers ? meta_layer_of(caps) : NULL, *x = meta_expert_of(caps);
	const char *key;
	uint32_t *nr;

	*ret_experts = NULL;
	if (layer && counts->layers < layer->number + 1)
		counts->layers = layer->number + 1;
	if (!x)
		return 0;
	key = meta_family_key(rule, caps, &counts->arena);
	nr = key ? sc_map_make(&counts->families, key, strlen(key), &counts->arena, sizeof(*nr)) : NULL;
	if (!nr)
		return -1;
	if (meta_rule_spreads(rule) && *nr < counts->experts)
		*nr = counts->experts;
	if (*nr < x->number + 1)
		*nr = x->number + 1;
	*ret_experts = nr;
	return 0;
}

int meta_counts_state(struct meta_counts *counts, const struct meta_layout *layout, bool pipelined,
		      const struct meta_state *state, struct sc_err *err)
{
	for (uint32_t t = 0; t < state->nr; t++) {
		const struct meta_tensor *tensor = &state->tensors[t];
		const char *plain = meta_tensor_plain(tensor, &counts->arena);
		const struct meta_rule *r;
		const uint32_t *experts;
		struct meta_caps caps;
		bool told = false;
		uint32_t at = 0;

		if (!plain)
			return sc_nomem(err);
		if (meta_tensor_padding(tensor->name, NULL))
			continue; /* it has no number of its own */
		while ((r = meta_layout_next(layout, true, tensor->file, plain, &at, &caps))) {
			if ((r->tied && !pipelined) || (r->nr_each > 0) != (plain != tensor->name))
				continue;
			if (meta_counts_add(counts, r, &caps, !r->tied && !told, &experts) < 0)
				return sc_nomem(err);
			told |= !r->tied;
		}
	}
	return 0;
}

uint32_t meta_counts_experts(const struct meta_counts *counts, const struct meta_rule *rule, const char *key)
{
	const uint32_t *nr = sc_map_get(&counts->families, key, strlen(key));

	return nr ? *nr : meta_rule_spreads(rule) ? counts->experts : 0;
}
