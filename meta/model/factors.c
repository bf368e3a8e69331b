/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Factors of a weight's rows and of its columns, as Adafactor has them in place of a tensor of its shape (`rows`,
 * `columns` of a `like` line): one has a number for each row, so it lacks the last dimension, one for each column, and
 * lacks the one before it; or has 1 there.  They are cut as the weight is, in the dimensions that they have: which
 * these are is known by the tensor's own dimensions alone, so its rule is made when it is met.
 */
#include "meta/model/layout_i.h"
#include "meta/model/slice.h"

#include <string.h>

/* Finds a captured text among words between bars. */
static bool has_word(const char *words, const struct meta_caps *caps, bool *ret_has_one)
{
	for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
		const size_t n = strcspn(at, "|:");

		*ret_has_one = at[n] == ':';
		for (uint16_t i = 0; i < caps->nr; i++)
			if (!caps->at[i].is_number && caps->at[i].bytes == n && memcmp(caps->at[i].text, at, n) == 0)
				return true;
	}
	*ret_has_one = false;
	return words && !*words;
}

/* Returns the dimension of a weight that a factor lacks; negative: the weight has too few. */
static int lacking(const struct meta_rule *r, int dims)
{
	return dims - (r->factor == META_ROWS ? 1 : 2);
}

/* Leaves those cuts that are in dimensions of the factor. */
static void leave_cuts(struct meta_rule *r, int dims)
{
	const int weight = dims + !r->has_one, lacks = lacking(r, weight);
	uint8_t nr = 0;

	for (int i = 0; i < r->nr_cuts; i++) {
		const int dim = r->cuts[i].dim < 0 ? r->cuts[i].dim + weight : r->cuts[i].dim;

		if (dim == lacks)
			continue;
		r->cuts[nr] = r->cuts[i];
		if (lacks >= 0 && dim >= 0 && dim < weight)
			r->cuts[nr].dim = (int8_t)(dim - (!r->has_one && dim > lacks));
		nr++;
	}
	r->nr_cuts = nr;
}

int meta_rule_of_factor(const struct meta_layout *layout, const struct meta_rule *rule, const struct meta_caps *caps,
			int dims, struct sc_arena *arena, struct sc_map *made, const struct meta_rule **ret,
			struct sc_err *err)
{
	uint32_t key[3] = {rule->index, (uint32_t)dims};
	enum meta_factor factor = META_NO_FACTOR;
	struct meta_rule *r;
	bool has_one = false;

	*ret = rule;
	if (rule->rows && has_word(rule->rows, caps, &has_one))
		factor = META_ROWS;
	else if (rule->columns && has_word(rule->columns, caps, &has_one))
		factor = META_COLUMNS;
	if (factor == META_NO_FACTOR)
		return 0;
	for (int i = 0; i < rule->nr_cuts; i++)
		if (rule->cuts[i].flat)
			return sc_fail(err, SC_E_STATE, "the rule '%s' makes a factor of %s flat, which says nothing "
				       "of its parts: write a rule for it", rule->text,
				       factor == META_ROWS ? "rows" : "columns");
	key[2] = (uint32_t)factor * 2 + has_one;
	r = sc_map_get(made, (const char *)key, sizeof(key));
	if (!r) {
		const char *kept = sc_arena_copy(arena, (const char *)key, sizeof(key));

		r = sc_arena_alloc(arena, sizeof(*r));
		if (!kept || !r || sc_map_put(made, kept, sizeof(key), r) < 0)
			return sc_nomem(err);
		*r = *rule;
		r->factor = factor;
		r->has_one = has_one;
		leave_cuts(r, dims);
		meta_rule_set_axes(layout, r);
	}
	*ret = r;
	return 0;
}

bool meta_factor_shape(const struct meta_rule *rule, const struct meta_shape *weight, struct meta_shape *ret)
{
	const int lacks = lacking(rule, weight->nr);

	*ret = *weight;
	if (rule->factor == META_NO_FACTOR)
		return true;
	if (weight->nr < 2)
		return false;
	if (rule->has_one)
		ret->dim[lacks] = 1;
	else
		memmove(&ret->dim[lacks], &ret->dim[lacks + 1], (size_t)(--ret->nr - lacks) * sizeof(*ret->dim));
	return true;
}
