/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares scales of blocks with the tensors that they are of.  A tensor [R, C] has ceil(R / b) by ceil(C / b) blocks
 * of b by b elements: nothing in a file says b, but it is one number for all of a model.  Ranks that each save the
 * scales of a block which they share, or scales that are cut otherwise than the layout says, make a table that no b
 * explains.
 *
 *     [1, 1], [R, 1], [1, C]	one scale for all, for each row, for each column
 *     [R, C / g]		groups in one dimension, each element on its own in the other: any g
 *     [R / b, C / b]		blocks: one b for both, a power of two, and for all tensors that have such scales
 *				under this name
 *     [ceil(E / b)]		of all E elements one behind the other (`blocks=`): one b, a power of two, for all
 *				tensors that have such numbers under this name
 *
 * Not judged: integers (zero points, packed words), scales of more or fewer dimensions than their tensor, and those
 * that are not beside it under the same stem (`k_scale`).
 */
#include "meta/model/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct sizes {			/* of blocks that are possible, all of them */
	uint64_t least, most;
	const struct meta_tensor *told;	/* by which they became so few */
};

struct judging {
	const struct meta_view *view;
	const uint64_t *block;
	struct sc_arena arena;
	struct sc_map names, kinds;	/* kinds: struct sizes, by the last word of names */
	struct sc_err *err;
};

static const char *last_word(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? dot + 1 : name;
}

static bool is_float(enum meta_dtype dtype)
{
	const char *name = meta_dtype_name(dtype);

	return name[0] == 'F' || strncmp(name, "BF", 2) == 0;
}

static struct sizes sizes_of(uint64_t elements, uint64_t blocks)
{
	return (struct sizes){elements / blocks + (elements % blocks != 0),
			      blocks > 1 ? (elements - 1) / (blocks - 1) : UINT64_MAX, NULL};
}

static bool meet(struct sizes *a, const struct sizes *b)
{
	a->least = sc_max_u64(a->least, b->least);
	a->most = sc_min_u64(a->most, b->most);
	return a->least <= a->most;
}

/* Leaves the powers of two. */
static void round_up(struct sizes *s)
{
	uint64_t power = 1;

	while (power < s->least && power <= UINT64_MAX / 2)
		power *= 2;
	s->least = sc_max_u64(s->least, power);
}

static bool is_judged(const struct meta_entry *e, const struct meta_tensor *t, const struct meta_tensor *of)
{
	bool judged = t->shape.nr == of->shape.nr && t->shape.nr > 1 && is_float(t->dtype) &&
		      !strchr(e->rule->of, '.');

	for (int k = 0; judged && k < t->shape.nr; k++) /* of packed words a scale may have several */
		judged = t->shape.dim[k] && t->shape.dim[k] <= of->shape.dim[k];
	return judged;
}

static int refuse(const struct judging *j, const struct meta_tensor *t, const struct meta_tensor *of,
		  const struct sizes *others)
{
	char mine[128], its[128], why[512] = "blocks of no one size make so many of it";

	if (j->block)
		(void)snprintf(why, sizeof(why), "config.json says blocks of %" PRIu64 " by %" PRIu64, j->block[0],
			       j->block[1]);
	else if (others)
		(void)snprintf(why, sizeof(why), "blocks of another size than those of '%.300s' would make so many",
			       others->told->name);
	return sc_fail(j->err, SC_E_STATE, "'%s' is %s and tells how '%s' %s is read, but %s: if each rank has saved "
		       "the scales of blocks that it shares, or all of them, write a rule with 'copy of=%s' for it; a "
		       "cut has to leave whole blocks to each rank; if it is right, write suspicious=accept to config",
		       t->key, meta_shape_text(&t->shape, mine, sizeof(mine)), of->key,
		       meta_shape_text(&of->shape, its, sizeof(its)), why, last_word(of->name));
}

/* Judges a table by the size that config.json says. */
static int judge_by_config(const struct judging *j, const struct meta_tensor *t, const struct meta_tensor *of)
{
	static const char known[] = "weight_scale_inv";

	if (strcmp(last_word(t->name), known) != 0)
		return 0;
	for (int i = 0; i < 2; i++)
		if (t->shape.dim[t->shape.nr - 2 + i] !=
		    sizes_of(of->shape.dim[of->shape.nr - 2 + i], j->block[i]).least)
			return refuse(j, t, of, NULL);
	return 0;
}

/* Judges a table; `single`: those of one block, of which the others must have been judged. */
static int judge(struct judging *j, const struct meta_tensor *t, const struct meta_tensor *of, bool single)
{
	const char *word = last_word(t->name);
	struct sizes mine = {1, UINT64_MAX, t}, *kind;
	bool grouped = false, blocks = false;

	for (int k = 0; k < t->shape.nr; k++) {
		const uint64_t n = of->shape.dim[k], nr = t->shape.dim[k];
		const struct sizes along = sizes_of(n, nr);

		if (along.least > along.most)
			return refuse(j, t, of, NULL);
		grouped |= nr == n && n > 1;
		blocks |= nr > 1 && nr < n;
		(void)meet(&mine, &along);
	}
	if (grouped || blocks == single)
		return 0;
	round_up(&mine);
	if (mine.least > mine.most)
		return refuse(j, t, of, NULL);
	kind = single ? sc_map_get(&j->kinds, word, strlen(word)) :
			sc_map_make(&j->kinds, word, strlen(word), &j->arena, sizeof(*kind));
	if (!kind)
		return single ? 0 : sc_nomem(j->err);
	if (!kind->told) {
		*kind = mine;
		return 0;
	}
	if (!meet(&mine, kind))
		return refuse(j, t, of, kind);
	if (!single && (mine.least > kind->least || mine.most < kind->most))
		*kind = mine;
	return 0;
}

/* Judges numbers of blocks of a flattened tensor.  That a size makes so many of them is known of each view. */
static int judge_run(struct judging *j, const char *word, const struct meta_tensor *t, const struct meta_tensor *of)
{
	size_t bytes = strlen(word);
	char mine[128], its[128];
	uint64_t elements = 0;
	struct sizes *kind;

	if (t->shape.dim[0] < 2 || !meta_shape_elements(&of->shape, &elements))
		return 0;
	elements = meta_block_size(elements, t->shape.dim[0]);
	while (bytes > 1 && word[bytes - 1] >= '0' && word[bytes - 1] <= '9')
		bytes--;
	kind = sc_map_make(&j->kinds, word, bytes, &j->arena, sizeof(*kind));
	if (!kind)
		return sc_nomem(j->err);
	if (!kind->told)
		*kind = (struct sizes){elements, elements, t};
	if (kind->least == elements)
		return 0;
	return sc_fail(j->err, SC_E_STATE, "'%s' %s has a number for each block of %" PRIu64 " elements of '%s' %s, "
		       "but '%s' for each of %" PRIu64 ": a part of it, or another tensor's; if it is right, write "
		       "suspicious=accept to config", t->key, meta_shape_text(&t->shape, mine, sizeof(mine)), elements,
		       of->key, meta_shape_text(&of->shape, its, sizeof(its)), kind->told->key, kind->least);
}

static int judge_all(struct judging *j, bool single)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < j->view->nr_entries; i++) {
		const struct meta_entry *e = &j->view->entries[i], *other = NULL;
		const struct meta_tensor *t = &j->view->state->tensors[e->tensor], *of;

		if (!e->rule->of || e->behind)
			continue;
		if (meta_view_told(j->view, e, &j->names, &j->arena, &other) < 0)
			return sc_nomem(j->err);
		of = other ? &j->view->state->tensors[other->tensor] : NULL;
		if (of && e->rule->factor == META_BLOCKS)
			rc = single || j->block ? 0 : judge_run(j, e->rule->of_word, t, of);
		else if (of && is_judged(e, t, of))
			rc = j->block ? judge_by_config(j, t, of) : judge(j, t, of, single);
	}
	return rc;
}

int meta_view_check_blocks(const struct meta_view *view, const uint64_t block[2], struct sc_err *err)
{
	struct judging j = {.view = view, .block = block, .err = err};
	int rc = judge_all(&j, false);

	if (rc == 0 && !block)
		rc = judge_all(&j, true);
	sc_map_done(&j.names);
	sc_map_done(&j.kinds);
	sc_arena_done(&j.arena);
	return rc;
}
