/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Factors of a weight's rows and of its columns, as Adafactor has them in place of a tensor of its shape (`rows`,
 * `columns` of a `like` line): one has a number for each row, so it lacks the last dimension, one for each column, and
 * lacks the one before it; or has 1 there.  They are cut as the weight is, in the dimensions that they have: which
 * these are is known by the tensor's own dimensions alone, so its rule is made when it is met.
 *
 * So are numbers of blocks (`blocks`), as 8-bit optimizers have them: one for each N elements of the flattened tensor.
 * Their rule cuts them by each axis that cuts the tensor.  That is right only if each rank's part of the tensor is a
 * run of whole blocks, which scales.c checks of every view.  A number, as of steps, is whole where the weight is.
 */
#include "meta/model/layout_i.h"
#include "meta/model/slice.h"

#include <string.h>

static const uint32_t one_section[] = {1};

static const char *next_word(const char *word)
{
	const char *bar = strchr(word, '|');

	return bar ? bar + 1 : NULL;
}

static bool is_captured(const struct meta_caps *caps, const char *word, size_t bytes)
{
	for (uint16_t i = 0; i < caps->nr; i++)
		if (!caps->at[i].is_number && caps->at[i].bytes == bytes && memcmp(caps->at[i].text, word, bytes) == 0)
			return true;
	return false;
}

/* Finds a captured text among words between bars; NULL: none of them is one. */
static const char *find_word(const char *words, const struct meta_caps *caps)
{
	const char *at = words;

	while (at && !is_captured(caps, at, strcspn(at, "|:")))
		at = next_word(at);
	return at;
}

/* As find_word(); without words all names are meant. */
static bool has_word(const char *words, const struct meta_caps *caps, bool *ret_has_one)
{
	const char *at = find_word(words, caps);

	*ret_has_one = at && at[strcspn(at, "|:")] == ':';
	return at || (words && !*words);
}

const char *meta_rule_blocks_of(const struct meta_rule *rule, const struct meta_caps *caps)
{
	const char *at = rule->blocks;

	for (; at; at = next_word(at)) {
		const char *of = at + strcspn(at, ":") + 1;

		if (is_captured(caps, of, strcspn(of, "|")))
			break;
	}
	return at;
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

static bool makes_flat(const struct meta_rule *rule)
{
	bool flat = false;

	for (int i = 0; i < rule->nr_cuts; i++)
		flat |= rule->cuts[i].flat;
	return flat;
}

static int check_block(const struct meta_rule *rule, bool is_block, int dims, struct sc_err *err)
{
	if (rule->is_stack)
		return sc_fail(err, SC_E_STATE, "by the rule '%s' it has what its layers have each, stacked, but that "
			       "has no row for each: write a rule for it above this one", rule->text);
	if (!is_block || dims == 1)
		return 0;
	return sc_fail(err, SC_E_STATE, "by the rule '%s' it has a number for each block, which is one dimension, but "
		       "it has %d: write a rule for it above this one", rule->text, dims);
}

/* Makes the rule of numbers of blocks, by the word and what it is of. */
static int make_blocks(const struct meta_layout *layout, const struct meta_rule *rule, const char *word,
		       struct sc_arena *arena, struct meta_rule *r, struct sc_err *err)
{
	const size_t n = strcspn(word, ":");
	uint8_t nr = 0;

	*r = *rule;
	r->factor = META_BLOCKS;
	r->of_word = sc_arena_copy(arena, word, n);
	r->of = sc_arena_copy(arena, word + n + 1, strcspn(word + n + 1, "|"));
	if (!r->of_word || !r->of)
		return sc_nomem(err);
	for (int i = 0; i < rule->nr_cuts; i++) {
		const struct meta_cut *cut = &rule->cuts[i];

		if (cut->flat)
			continue;
		r->cuts[nr] = (struct meta_cut){.axes = cut->axes, .axes_text = cut->axes_text, .chunk = cut->chunk};
		r->cuts[nr].nr_sections = 1;
		r->cuts[nr].sections = one_section;
		r->cuts[nr].section_sum = 1;
		if (cut->nr_upto == 1) {
			r->cuts[nr].upto = cut->upto;
			r->cuts[nr].nr_upto = 1;
		}
		nr++;
	}
	r->nr_cuts = nr;
	meta_rule_set_axes(layout, r);
	return 0;
}

/* Finds a rule that was made, or gives it a place in the map: *ret_new says so. */
static struct meta_rule *find_made(const uint64_t key[4], struct sc_arena *arena, struct sc_map *made, bool *ret_new)
{
	struct meta_rule *r = sc_map_get(made, (const char *)key, 4 * sizeof(*key));
	const char *kept;

	*ret_new = !r;
	if (r)
		return r;
	kept = sc_arena_copy(arena, (const char *)key, 4 * sizeof(*key));
	r = sc_arena_alloc(arena, sizeof(*r));
	return kept && r && sc_map_put(made, kept, 4 * sizeof(*key), r) == 0 ? r : NULL;
}

int meta_rule_of_rows(const struct meta_rule *rule, uint64_t unit, struct sc_arena *arena, struct sc_map *made,
		      const struct meta_rule **ret, struct sc_err *err)
{
	const uint64_t key[4] = {rule->index, (uintptr_t)rule, META_BLOCKS, unit};
	bool is_new;
	struct meta_rule *r = find_made(key, arena, made, &is_new);

	if (!r)
		return sc_nomem(err);
	if (is_new) {
		*r = *rule;
		for (int i = 0; i < r->nr_cuts; i++)
			r->cuts[i].unit = r->cuts[i].chunk ? unit : 0;
	}
	*ret = r;
	return 0;
}

int meta_rule_of_factor(const struct meta_layout *layout, const struct meta_rule *rule, const struct meta_caps *caps,
			int dims, struct sc_arena *arena, struct sc_map *made, const struct meta_rule **ret,
			struct sc_err *err)
{
	const char *block = find_word(rule->blocks, caps);
	enum meta_factor factor = META_NO_FACTOR;
	bool has_one = false, is_new = false;
	uint64_t key[4] = {rule->index, (uint32_t)dims};
	const bool number = rule->is_like && dims == 0 && rule->nr_cuts && !rule->is_stack && !makes_flat(rule);
	const bool whole = number || find_word(rule->whole, caps);
	struct meta_rule *r;

	*ret = rule;
	if ((block || whole) && check_block(rule, block, dims, err) < 0)
		return err->code;
	if (block) {
		key[2] = (uintptr_t)block;
		r = find_made(key, arena, made, &is_new);
		*ret = r;
		return !r ? sc_nomem(err) : is_new ? make_blocks(layout, rule, block, arena, r, err) : 0;
	}
	if (whole) {
		key[3] = META_WHOLE;
		r = find_made(key, arena, made, &is_new);
		if (r && is_new) {
			*r = *rule;
			r->factor = META_WHOLE;
			r->nr_cuts = 0;
			meta_rule_set_axes(layout, r);
		}
		*ret = r;
		return r ? 0 : sc_nomem(err);
	}
	if (rule->rows && has_word(rule->rows, caps, &has_one))
		factor = META_ROWS;
	else if (rule->columns && has_word(rule->columns, caps, &has_one))
		factor = META_COLUMNS;
	if (factor == META_NO_FACTOR)
		return 0;
	if (makes_flat(rule))
		return sc_fail(err, SC_E_STATE, "the rule '%s' makes a factor of %s flat, which says nothing of its "
			       "parts: write a rule for it", rule->text, factor == META_ROWS ? "rows" : "columns");
	key[3] = (uint64_t)factor + has_one * 16u;
	r = find_made(key, arena, made, &is_new);
	if (!r)
		return sc_nomem(err);
	if (is_new) {
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
	if (weight->nr < 2 || rule->factor == META_BLOCKS || rule->factor == META_WHOLE)
		return false;
	if (rule->has_one)
		ret->dim[lacks] = 1;
	else
		memmove(&ret->dim[lacks], &ret->dim[lacks + 1], (size_t)(--ret->nr - lacks) * sizeof(*ret->dim));
	return true;
}

uint64_t meta_block_size(uint64_t elements, uint64_t blocks)
{
	const uint64_t least = blocks ? elements / blocks + (elements % blocks != 0) : 1;
	uint64_t size = 1;

	if (!elements || !blocks)
		return elements == blocks;
	while (size < least && size <= UINT64_MAX / 2)
		size *= 2;
	return elements / size + (elements % size != 0) == blocks ? size : 0;
}
