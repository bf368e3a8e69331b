/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares a weight with its bias, with the other tensors of the model, and the two factors of LoRA with the weight.
 *
 * A rule that cuts the outputs of a layer cuts its weight and its bias, so the dimension of the weight that is cut is
 * as long as the bias.  If it is not, the weight has another order of dimensions than the rule means (a model may have
 * the names of another one, as gpt_bigcode has those of gpt2): its parts would have a right shape and wrong numbers.
 * FSDP cuts rows whatever they are (`chunk`), so that is not judged.  In LoRA, B [rows, rank] times A [rank, columns]
 * has the weight's shape.  If it has not, one of them was cut in another dimension than the rule means.
 *
 * A matrix that ranks cut in the other dimension than the rule says gets a shape that nothing else in the model has:
 * one of its sizes too large and the other one too small, each by the number of parts.  It is refused if the other
 * order gives it the size of a whole vector (a norm's), and more sizes that other tensors have.
 *
 * The first map of an MLP has as many rows as the second one has columns, or twice as many: then it is a gate and what
 * it gates, one behind the other, and a cut that does not cut each on its own mixes them.
 */
#include "reshard/command/changed/items_i.h"

#include <inttypes.h>
#include <string.h>

#define WEIGHT ".weight"
#define LORA_A ".lora_A"
#define LORA_B ".lora_B"

/* Finds the only cut of an entry, if it is by these axes, or any (0); NULL: none, several, or one not judged. */
static const struct meta_cut *only_cut(const struct meta_entry *e, uint32_t axes)
{
	const struct meta_cut *cut = e->rule->nr_cuts == 1 ? &e->rule->cuts[0] : NULL;

	return cut && !e->group && !cut->flat && !cut->chunk && (!axes || cut->axes == axes) ? cut : NULL;
}

/* Refuses a vector of a norm, all of which each rank has, as of a buffer, and which the layout cuts: it has the sum of
 * all in the place of the other vector's size. */
static int judge_norm(struct commit *c, const struct rs_set *set, const struct meta_entry *e)
{
	static const char *const names[][2] = {{WEIGHT, ".bias"}, {".bias", WEIGHT}, {".gamma", ".beta"},
					       {".beta", ".gamma"}};
	const struct meta_tensor *t = &set->state.tensors[e->tensor], *other = NULL;
	const uint64_t parts = meta_topology_degree(set->view->topo, e->rule->cut_axes);
	char a[128], b[128];

	for (size_t i = 0; parts > 1 && t->shape.nr == 1 && !other && i < sizeof(names) / sizeof(*names); i++) {
		const size_t n = strlen(t->key) - (sc_ends_with(t->key, names[i][0]) ? strlen(names[i][0]) : 0);
		const char *key = sc_arena_printf(&c->arena, "%.*s%s", (int)n, t->key, names[i][1]);

		if (!key)
			return sc_nomem(c->err);
		other = t->key[n] ? meta_state_find(&set->state, key) : NULL;
	}
	if (!other || other->shape.nr != 1 || !t->shape.dim[0] || t->shape.dim[0] % parts ||
	    t->shape.dim[0] / parts != other->shape.dim[0])
		return 0;
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s, but the two vectors of a norm are of one size: "
		       "each rank has all of the first one, as of a buffer, and the layout cuts it: write '%s copy' "
		       "above the rules (above 'use'); if it is right, write suspicious=accept to config", t->key,
		       meta_shape_text(&t->shape, a, sizeof(a)), other->key,
		       meta_shape_text(&other->shape, b, sizeof(b)), t->name);
}

/* Refuses q, k and v in one matrix that is cut in three along its shorter side, a third of the other one. */
static int judge_thirds(struct commit *c, const struct meta_tensor *t, const struct meta_cut *cut)
{
	const int at = meta_cut_dim(cut, &t->shape);
	char a[128];

	if (t->shape.nr != 2 || at < 0 || at > 1 || cut->nr_sections != 3 || cut->sections[0] != cut->sections[1] ||
	    cut->sections[1] != cut->sections[2] || !t->shape.dim[at] ||
	    t->shape.dim[1 - at] / 3 != t->shape.dim[at] || t->shape.dim[1 - at] % 3)
		return 0;
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s, and the layout cuts its dimension %d by %s in three, but the "
		       "other one is three times as long: is it a model of another kind with the same names, or is the "
		       "weight transposed? Write a rule that cuts it as it lies (sections=1:1:1 behind its cut); if it "
		       "is right, write suspicious=accept to config", t->key,
		       meta_shape_text(&t->shape, a, sizeof(a)), at, cut->axes_text);
}

static int judge(struct commit *c, const struct rs_set *set, const struct meta_entry *e)
{
	const struct meta_tensor *weight = &set->state.tensors[e->tensor], *bias;
	const size_t n = strlen(weight->key), end = sizeof(WEIGHT) - 1;
	const struct meta_cut *cut = only_cut(e, 0), *other;
	const struct meta_entry *of_bias;
	char a[128], b[128];
	const char *key;
	int at;

	if (!cut || n < end || strcmp(weight->key + n - end, WEIGHT) != 0)
		return 0;
	if (judge_thirds(c, weight, cut) < 0)
		return c->err->code;
	key = sc_arena_printf(&c->arena, "%.*s.bias", (int)(n - end), weight->key);
	if (!key)
		return sc_nomem(c->err);
	bias = meta_state_find(&set->state, key);
	of_bias = bias ? &set->view->entries[set->view->first[bias - set->state.tensors]] : NULL;
	other = of_bias ? only_cut(of_bias, cut->axes) : NULL;
	at = meta_cut_dim(cut, &weight->shape);
	if (!other || at < 0 || at >= weight->shape.nr || bias->shape.nr != 1 ||
	    weight->shape.dim[at] == bias->shape.dim[0])
		return 0;
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s, and the layout cuts its dimension %d by %s, as it cuts '%s' "
		       "%s; the two must be of one size, for they are the outputs of a layer: is it a model of another "
		       "kind with the same names, or is the weight transposed? Write a rule that cuts it as it lies; "
		       "if it is right, write suspicious=accept to config", weight->key,
		       meta_shape_text(&weight->shape, a, sizeof(a)), at, cut->axes_text, bias->key,
		       meta_shape_text(&bias->shape, b, sizeof(b)));
}

/* --- a gate and what it gates, in one tensor --- */

static bool ends_half(const struct meta_cut *cut)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < cut->nr_sections && 2 * sum < cut->section_sum; i++)
		sum += cut->sections[i];
	return 2 * sum == cut->section_sum;
}

static int refuse_gate(struct commit *c, const struct meta_tensor *up, const struct meta_tensor *down,
		       const struct meta_cut *cut, bool is_gated)
{
	char a[128], b[128];

	(void)meta_shape_text(&up->shape, a, sizeof(a));
	(void)meta_shape_text(&down->shape, b, sizeof(b));
	if (is_gated)
		return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s, which has half as many columns: it is a "
			       "gate and what it gates, and the layout cuts them by %s as if they were one, so that "
			       "ranks of another topology would mix them: write glu=1:1 behind the preset "
			       "(sections=1:1 behind the cut); if it is right, write suspicious=accept to config",
			       up->key, a, down->key, b, cut->axes_text);
	if (up->shape.dim[up->shape.nr - 1] == 2 * down->shape.dim[up->shape.nr - 2])
		return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s: both lie the other way than the layout has "
			       "them, which cuts rows of the first one by %s: write up=2 down=1 behind hf-moe or "
			       "hf-vl-moe (use hf-gpt-oss, if gate and up lie in pairs), or rules above the preset "
			       "that cut the last dimension of the first one, in pairs of gate and what it gates as "
			       "the model has them, and the one before the last of the second; if it is right, write "
			       "suspicious=accept to config", up->key, a, down->key, b, cut->axes_text);
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s, which has as many columns: nothing is gated, but "
		       "the layout cuts it by %s in two sections: leave glu=1:1 (sections=1:1) away; if it is right, "
		       "write suspicious=accept to config", up->key, a, down->key, b, cut->axes_text);
}

/* Refuses stacked experts that a layout cuts in the last dimension of the first map, as [experts, columns, rows]. */
static int refuse_order(struct commit *c, const struct meta_tensor *up, const struct meta_tensor *down,
			const struct meta_cut *cut)
{
	char a[128], b[128];

	return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s, which are [experts, rows, columns], but the layout "
		       "cuts the last dimension of the first one by %s: leave up=2 down=1 away (use hf-moe); if it is "
		       "right, write suspicious=accept to config", up->key,
		       meta_shape_text(&up->shape, a, sizeof(a)), down->key,
		       meta_shape_text(&down->shape, b, sizeof(b)), cut->axes_text);
}

/* Compares rows of the first map of an MLP with columns of the second one: twice as many are two matrices. */
static int judge_gate(struct commit *c, const struct rs_set *set, const struct meta_entry *e)
{
	static const char *const names[][2] = {{"linear_fc1.weight", "linear_fc2.weight"},
					       {"gate_up_proj", "down_proj"}};
	const struct meta_tensor *up = &set->state.tensors[e->tensor], *down = NULL;
	const int n = up->shape.nr;
	uint64_t rows, columns;

	for (size_t i = 0; n > 1 && !down && i < sizeof(names) / sizeof(*names); i++) {
		const char *at = strstr(up->key, names[i][0]);
		const char *key = !at ? NULL : sc_arena_printf(&c->arena, "%.*s%s%s", (int)(at - up->key), up->key,
							       names[i][1], at + strlen(names[i][0]));

		if (at && !key)
			return sc_nomem(c->err);
		down = key ? meta_state_find(&set->state, key) : NULL;
	}
	if (!down || down->shape.nr != n || down->dtype != up->dtype || meta_dtype_name(up->dtype)[0] == 'U' ||
	    meta_dtype_name(up->dtype)[0] == 'I')
		return 0;
	rows = up->shape.dim[n - 2];
	columns = down->shape.dim[n - 1];
	for (int i = 0; i < e->rule->nr_cuts && !e->rule->cuts[i].flat; i++) {
		const struct meta_cut *cut = &e->rule->cuts[i];

		if (!cut->chunk && meta_cut_dim(cut, &up->shape) == n - 1 && n > 2 && rows == 2 * columns &&
		    up->shape.dim[n - 1] != 2 * down->shape.dim[n - 2])
			return refuse_order(c, up, down, cut);
		if (meta_cut_dim(cut, &up->shape) != n - 2 || cut->chunk)
			continue;
		if (columns && rows == 2 * columns && !ends_half(cut))
			return refuse_gate(c, up, down, cut, true);
		if (columns && rows == columns && ends_half(cut))
			return refuse_gate(c, up, down, cut, false);
	}
	return 0;
}

/* Finds the tensor of a layer, whose name is the first `n` letters of a tensor's key, by the rest of its name. */
static int find(struct commit *c, const struct rs_set *set, const char *key, size_t n, const char *first,
		const char *rest, const struct meta_tensor **ret)
{
	const char *name = sc_arena_printf(&c->arena, "%.*s%s%s", (int)n, key, first, rest);

	*ret = name ? meta_state_find(&set->state, name) : NULL;
	if (*ret && (*ret)->shape.nr != 2)
		*ret = NULL;
	return name ? 0 : sc_nomem(c->err);
}

/* Tells whether a weight can have so many rows and columns; it may be packed, or transposed. */
static bool has_sides(const struct meta_tensor *weight, uint64_t rows, uint64_t columns)
{
	const uint64_t *dim = weight->shape.dim;

	return dim[0] == 1 || dim[1] == 1 || (dim[0] == rows && dim[1] == columns) ||
	       (dim[0] == columns && dim[1] == rows);
}

static int judge_lora(struct commit *c, const struct rs_set *set, const struct meta_tensor *a)
{
	const char *at = a->shape.nr == 2 ? strstr(a->key, LORA_A) : NULL;
	const size_t n = at ? (size_t)(at - a->key) : 0;
	const struct meta_tensor *b, *base, *wrong;
	char of_a[128], of_b[128], of_base[128];
	int rc;

	if (!at)
		return 0;
	rc = find(c, set, a->key, n, LORA_B, at + strlen(LORA_A), &b);
	if (rc == 0)
		rc = find(c, set, a->key, n, ".base_layer", WEIGHT, &base);
	if (rc == 0 && !base)
		rc = find(c, set, a->key, n, "", WEIGHT, &base);
	if (rc < 0 || !b)
		return rc;
	wrong = base && !has_sides(base, b->shape.dim[0], a->shape.dim[1]) ? base : NULL;
	if (!wrong && a->shape.dim[0] == b->shape.dim[1])
		return 0;
	return sc_fail(c->err, SC_E_STATE, "'%s' is %s and '%s' %s, which are no factors of %s%s: LoRA has [rank, "
		       "columns] and [rows, rank]; is one of them cut in another dimension than the layout says, or "
		       "whole on each rank? Write a rule that cuts it as it lies; if it is right, write "
		       "suspicious=accept to config",
		       a->key, meta_shape_text(&a->shape, of_a, sizeof(of_a)), b->key,
		       meta_shape_text(&b->shape, of_b, sizeof(of_b)), wrong ? "their weight " : "one weight",
		       wrong ? meta_shape_text(&wrong->shape, of_base, sizeof(of_base)) : "");
}

/* --- a matrix among the other tensors --- */

struct size {			/* which tensors have a dimension of this size */
	const char *kind;	/* the first: its name, without the numbers of layers and experts */
	bool several, vector;	/* others, too; one is a vector that is whole on each rank */
};

/* Tells whether an entry is the first one of a tensor of numbers that nothing else decides the shape of. */
static bool is_own(const struct rs_set *set, const struct meta_entry *e)
{
	const struct meta_tensor *t = &set->state.tensors[e->tensor];

	return e == &set->view->entries[set->view->first[e->tensor]] && !e->behind && !e->rule->is_like &&
	       !e->rule->of &&
	       (t->dtype == META_DTYPE_F16 || t->dtype == META_DTYPE_BF16 || t->dtype == META_DTYPE_F32);
}

static const char *kind_of(struct commit *c, const struct meta_tensor *t)
{
	char *kind = sc_arena_copy(&c->arena, t->name, strlen(t->name));
	size_t n = 0, word;

	for (const char *at = kind; at && *at; at += word) {
		word = strcspn(at, ".") + (at[strcspn(at, ".")] == '.');
		if (strspn(at, "0123456789.") < word)
			memmove(kind + n, at, word);
		n += strspn(at, "0123456789.") < word ? word : 0;
	}
	if (kind)
		kind[n] = '\0';
	return kind;
}

static int add_size(struct commit *c, struct sc_map *sizes, const char *kind, uint64_t n, bool is_vector)
{
	struct size *size = sc_map_get(sizes, (const char *)&n, sizeof(n));
	const char *key = size ? NULL : sc_arena_copy(&c->arena, (const char *)&n, sizeof(n));

	if (!size && key)
		size = sc_map_make(sizes, key, sizeof(n), &c->arena, sizeof(*size));
	if (!size)
		return sc_nomem(c->err);
	size->several |= size->kind && strcmp(size->kind, kind) != 0;
	size->kind = size->kind ? size->kind : kind;
	size->vector |= is_vector;
	return 0;
}

/* Adds the sizes of a tensor's dimensions, and of the sections in which one is cut (gate and up). */
static int add_sizes(struct commit *c, struct sc_map *sizes, const struct rs_set *set, const struct meta_entry *e)
{
	const struct meta_tensor *t = &set->state.tensors[e->tensor];
	const struct meta_cut *cut = only_cut(e, 0);
	const char *kind = kind_of(c, t);
	const int at = cut ? meta_cut_dim(cut, &t->shape) : 0;
	int rc = kind ? 0 : sc_nomem(c->err);

	for (int k = 0; rc == 0 && k < t->shape.nr; k++)
		rc = add_size(c, sizes, kind, t->shape.dim[k], t->shape.nr == 1 && e->rule->nr_cuts == 0);
	for (uint32_t i = 0; rc == 0 && cut && cut->nr_sections > 1 && i < cut->nr_sections; i++)
		rc = add_size(c, sizes, kind, t->shape.dim[at] / cut->section_sum * cut->sections[i], false);
	return rc;
}

/* Finds a size that tensors of another kind have; NULL: none has it. */
static const struct size *has_size(const struct sc_map *sizes, const char *kind, uint64_t n)
{
	const struct size *size = sc_map_get(sizes, (const char *)&n, sizeof(n));

	return size && (size->several || strcmp(size->kind, kind) != 0) ? size : NULL;
}

static int judge_order(struct commit *c, const struct sc_map *sizes, const struct rs_set *set,
		       const struct meta_entry *e)
{
	const struct meta_tensor *t = &set->state.tensors[e->tensor];
	const struct meta_cut *cut = only_cut(e, 0);
	const uint64_t d = cut ? meta_topology_degree(set->view->topo, cut->axes) : 1, *dim = t->shape.dim;
	const int at = cut ? meta_cut_dim(cut, &t->shape) : 0;
	const char *kind = d > 1 && t->shape.nr == 2 && !cut->upto ? kind_of(c, t) : "";
	const struct size *width;
	struct meta_shape other = t->shape;
	char a[128], b[128];
	int sizes_now, sizes_then;

	if (!kind)
		return sc_nomem(c->err);
	if (!*kind || dim[at] % d || dim[1 - at] > UINT64_MAX / d)
		return 0;
	other.dim[at] = dim[at] / d;
	other.dim[1 - at] = dim[1 - at] * d;
	width = has_size(sizes, kind, other.dim[1 - at]);
	sizes_now = !!has_size(sizes, kind, dim[0]) + !!has_size(sizes, kind, dim[1]);
	sizes_then = !!width + (other.dim[0] != other.dim[1] && has_size(sizes, kind, other.dim[at]));
	/* what is much narrower than the model is no layer of it */
	if (!width || !width->vector || sizes_then <= sizes_now || other.dim[at] < other.dim[1 - at] / 8)
		return 0;
	return sc_fail(c->err, SC_E_STATE, "'%s' becomes %s by the layout, which cuts its dimension %d by %s=%" PRIu64
		       "; cut in dimension %d it would be %s, and these sizes other tensors of the model have: did the "
		       "ranks cut it so? Write a rule that cuts it as it lies; if it is right, write "
		       "suspicious=accept to config", t->key, meta_shape_text(&t->shape, a, sizeof(a)), at,
		       cut->axes_text, d, 1 - at, meta_shape_text(&other, b, sizeof(b)));
}

/* Compares matrices with all tensors of their file. */
static int judge_orders(struct commit *c, const struct rs_set *set)
{
	struct sc_map sizes = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		if (is_own(set, &set->view->entries[i]))
			rc = add_sizes(c, &sizes, set, &set->view->entries[i]);
	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		if (is_own(set, &set->view->entries[i]))
			rc = judge_order(c, &sizes, set, &set->view->entries[i]);
	sc_map_done(&sizes);
	return rc;
}

int rs_commit_pairs(struct commit *c, const struct rs_set *set)
{
	int rc = judge_orders(c, set);

	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		rc = judge_norm(c, set, &set->view->entries[i]);
	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		rc = judge(c, set, &set->view->entries[i]);
	for (uint32_t i = 0; rc == 0 && i < set->view->nr_entries; i++)
		rc = judge_gate(c, set, &set->view->entries[i]);
	for (uint32_t i = 0; rc == 0 && i < set->state.nr; i++)
		rc = judge_lora(c, set, &set->state.tensors[i]);
	return rc;
}
