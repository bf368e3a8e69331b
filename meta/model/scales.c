/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks tensors that tell how another tensor is read (`of=`): its scales by rows, columns or blocks, zero points,
 * packed words.  A rank must have those of its part, and whole ones: an axis that cuts the other tensor cuts this one
 * in the same dimension, where one is a power of two longer than the other; or this one has nothing along that
 * dimension.  Blocks have a power of two of elements, so that is not so where the last block is not full, of which
 * two ranks might have a part.
 *
 * Numbers of blocks of a flattened tensor (`blocks=`, factors.c) have one dimension, so no cut says what a rank has of
 * them: the boxes of both tensors do, at each rank.  The tensor's elements have to be a run [a, b) with whole blocks
 * at both ends, or with the last one, and the numbers those of these blocks, and no others.
 */
#include "meta/model/infer_i.h"
#include "meta/model/present_i.h"

#include <string.h>

static bool is_between(char c)
{
	return !c || c == '.' || c == '/';
}

/* Puts a word in place of the last one that is `old`; NULL: there is none, or no memory. */
static char *with_word(const char *name, const char *old, size_t bytes, const char *new_, size_t new_bytes,
		       struct sc_arena *arena)
{
	const char *at = name + strlen(name);

	while (at-- > name)
		if (strncmp(at, old, bytes) == 0 && is_between(at[bytes]) && is_between(at > name ? at[-1] : 0))
			return sc_arena_printf(arena, "%.*s%.*s%s", (int)(at - name), name, (int)new_bytes, new_,
					       at + bytes);
	return NULL;
}

/* Gives the name of the tensor of which one of this name tells something. */
static char *name_of(const struct meta_rule *rule, const char *name, struct sc_arena *arena)
{
	const char *dot = strrchr(name, '.');

	if (rule->of_word)
		return with_word(name, rule->of_word, strlen(rule->of_word), rule->of, strlen(rule->of), arena);
	return sc_arena_printf(arena, "%.*s%s", dot ? (int)(dot + 1 - name) : 0, name, rule->of);
}

/* Makes a map of all tensors by name, when it is asked for the first time. */
static int map_names(struct sc_map *names, const struct meta_state *state)
{
	for (uint32_t i = 0, had = (uint32_t)names->nr; !had && i < state->nr; i++) {
		const struct meta_tensor *t = &state->tensors[i];

		if (sc_map_put(names, t->name, strlen(t->name), (void *)t) < 0)
			return -1;
	}
	return 0;
}

int meta_view_told(const struct meta_view *v, const struct meta_entry *e, struct sc_map *names, struct sc_arena *arena,
		   const struct meta_entry **ret)
{
	const struct meta_tensor *t = &v->state->tensors[e->tensor], *other;
	const char *name = name_of(e->rule, t->name, arena);
	const char *key = name ? sc_arena_join(arena, t->file, ':', name) : NULL;

	*ret = NULL;
	if (!key)
		return -1;
	other = meta_state_find(v->state, key);
	if (!other && map_names(names, v->state) < 0)
		return -1;
	if (!other)
		other = sc_map_get(names, name, strlen(name));
	if (other)
		*ret = &v->entries[v->first[other - v->state->tensors]];
	return 0;
}

/* Finds the cut of an entry by these axes that makes parts to compute with: FSDP's are put together before. */
static const struct meta_cut *cut_by(const struct builder *b, const struct meta_entry *e, uint32_t axes)
{
	for (int i = 0; i < e->rule->nr_cuts && !e->rule->cuts[i].flat; i++) {
		const struct meta_cut *cut = &e->rule->cuts[i];

		if (cut->axes == axes && !cut->chunk && meta_topology_degree(b->v->topo, axes) > 1)
			return cut;
	}
	return NULL;
}

static bool is_power_of_two_of(uint64_t a, uint64_t b)
{
	return b && a % b == 0 && (a / b & (a / b - 1)) == 0;
}

/* Tells whether two cuts by the same axes leave whole blocks to each rank. */
static bool agree(const struct builder *b, const struct meta_cut *mine, const struct meta_shape *my,
		  const struct meta_cut *other, const struct meta_shape *its)
{
	const uint64_t d = meta_topology_degree(b->v->topo, mine->axes);
	const int k = meta_cut_dim(mine, my);

	if (k != meta_cut_dim(other, its) || mine->nr_sections != other->nr_sections || mine->pad || other->pad)
		return false;
	for (uint32_t s = 0; s < mine->nr_sections; s++)
		if (meta_cut_parts(mine, s, d) != meta_cut_parts(other, s, d) ||
		    mine->sections[s] * other->section_sum != other->sections[s] * mine->section_sum)
			return false;
	return is_power_of_two_of(its->dim[k], my->dim[k]) || is_power_of_two_of(my->dim[k], its->dim[k]);
}

static int check(struct builder *b, const struct meta_entry *e, const struct meta_entry *other)
{
	const struct meta_tensor *t = &b->v->state->tensors[e->tensor], *of = &b->v->state->tensors[other->tensor];
	const struct meta_entry *both[] = {other, e};
	char mine[128], its[128];

	for (int i = 0; i < 2 * SC_CUTS_MAX; i++) {
		const struct meta_rule *r = both[i / SC_CUTS_MAX]->rule;
		const struct meta_cut *cut = i % SC_CUTS_MAX < r->nr_cuts ? &r->cuts[i % SC_CUTS_MAX] : NULL;
		const struct meta_cut *a = cut ? cut_by(b, other, cut->axes) : NULL;
		const struct meta_cut *c = cut ? cut_by(b, e, cut->axes) : NULL;
		const int k = a ? meta_cut_dim(a, &of->shape) : 0;
		const char *why = "cuts it otherwise, or inside of a block (blocks have a power of two of elements)";

		if ((!a && !c) || (a && c && agree(b, c, &t->shape, a, &of->shape)) ||
		    (!c && (k >= t->shape.nr || t->shape.dim[k] == 1)))
			continue;
		if (!c)
			why = "leaves all of it to each rank";
		return sc_fail(b->err, SC_E_STATE, "'%s' is %s and tells how '%s' %s is read, of which %s=%u gives "
			       "each rank a part, but the layout %s: choose a topology whose parts are whole "
			       "blocks, or write a rule for it", t->key,
			       meta_shape_text(&t->shape, mine, sizeof(mine)), of->key,
			       meta_shape_text(&of->shape, its, sizeof(its)), cut->axes_text,
			       meta_topology_degree(b->v->topo, cut->axes), why);
	}
	return 0;
}

/* --- numbers of blocks --- */

static const struct meta_tensor *beside(const struct meta_state *state, const struct meta_rule *rule,
					const struct meta_tensor *t, struct sc_arena *arena)
{
	const char *name = name_of(rule, t->name, arena);
	const char *key = name ? sc_arena_join(arena, t->file, ':', name) : NULL;

	return key ? meta_state_find(state, key) : NULL;
}

int meta_place_blocks(struct builder *b, uint32_t t, const struct meta_rule **rule)
{
	const struct meta_tensor *blocks = &b->v->state->tensors[t];
	const struct meta_tensor *of = beside(b->v->state, *rule, blocks, &b->arena);
	uint64_t elements = 0, size, row;

	for (int i = 0; of && i < b->v->layout->rules[(*rule)->index].nr_cuts; i++)
		if (b->v->layout->rules[(*rule)->index].cuts[i].flat)
			return 0;
	if (!of || !of->shape.nr || !of->shape.dim[0] || !meta_shape_elements(&of->shape, &elements))
		return 0;
	size = meta_block_size(elements, blocks->shape.dim[0]);
	row = elements / of->shape.dim[0];
	if (!size || row <= size || row % size) /* parts of `chunk` are as many blocks as any have */
		return 0;
	return meta_rule_of_rows(*rule, row / size, &b->v->arena, &b->factors, rule, b->err);
}

/* Finds the elements of a flattened tensor that a piece has, if they are one run, as they lie there. */
static bool is_run(const struct meta_piece *p, const struct meta_shape *shape, uint64_t *first, uint64_t *end)
{
	uint64_t all = 0, elements = 0;

	*first = p->nr_boxes ? UINT64_MAX : 0;
	*end = 0;
	for (int again = 0; again < 2; again++)
		for (uint32_t i = 0; i < p->nr_boxes; i++) {
			const struct meta_box *box = &p->boxes[i];
			uint64_t stride = 1, at = 0, last = 0;

			if (!meta_box_elements(box))
				continue;
			for (int k = shape->nr; k-- > 0; stride *= shape->dim[k]) {
				at += box->off[k] * stride;
				last += (box->off[k] + box->ext[k] - 1) * stride;
			}
			if (again && box->at != at - *first)
				return false;
			*first = sc_min_u64(*first, at);
			*end = sc_max_u64(*end, last + 1);
			all += again ? 0 : meta_box_elements(box);
		}
	return all == *end - *first && meta_shape_elements(&p->shape, &elements) && elements == all;
}

/* Tells whether a rank has the numbers of the blocks whose elements it has, all of each: 1, 0 or an error. */
static int has_whole(struct builder *b, const struct meta_entry *e, const struct meta_entry *other, uint64_t size,
		     const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_shape *shape = &b->v->state->tensors[e->tensor].shape;
	const struct meta_shape *its = &b->v->state->tensors[other->tensor].shape;
	char scratch[1024] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	uint64_t first, end, block, end_block, elements = 0;
	struct meta_piece mine, of;
	int rc = meta_entry_piece(b->v, other, coords, &arena, &of, b->err);
	bool whole = false;

	if (rc == 0)
		rc = meta_entry_piece(b->v, e, coords, &arena, &mine, b->err);
	if (rc == 0 && meta_shape_elements(its, &elements) && is_run(&of, its, &first, &end) &&
	    is_run(&mine, shape, &block, &end_block)) {
		if (first == end)
			whole = block == end_block;
		else if (first % size == 0 && (end % size == 0 || end == elements))
			whole = block == first / size && end_block == end / size + (end % size != 0);
	}
	sc_arena_done(&arena);
	return rc == SC_E_NO_MEMORY ? rc : whole; /* what does not divide is not whole */
}

static int refuse_blocks(struct builder *b, const struct meta_tensor *t, const struct meta_tensor *of, uint64_t size)
{
	char mine[128], its[128];

	meta_shape_text(&t->shape, mine, sizeof(mine));
	meta_shape_text(&of->shape, its, sizeof(its));
	if (!size)
		return sc_fail(b->err, SC_E_STATE, "'%s' is %s, but blocks of no size (a power of two) make so many of "
			       "the elements of '%s' %s, one behind the other: at '%s' ranks have parts of blocks, or "
			       "it is of another tensor; the line 'plain %s' keeps the file as it is", t->key, mine,
			       of->key, its, b->v->topo->text, t->file);
	return sc_fail(b->err, SC_E_STATE, "'%s' %s has a number for each block of %llu elements of '%s' %s, "
		       "one behind the other, but at '%s' a rank's part is no run of whole blocks: take a topology "
		       "that cuts it along its first dimension alone, into whole blocks; before it is committed, the "
		       "line 'plain %s' keeps the file as it is", t->key, mine, (unsigned long long)size, of->key, its,
		       b->v->topo->text, t->file);
}

static int check_blocks(struct builder *b, const struct meta_entry *e, const struct meta_entry *other)
{
	const struct meta_tensor *t = &b->v->state->tensors[e->tensor], *of = &b->v->state->tensors[other->tensor];
	const uint32_t axes = e->rule->cut_axes | other->rule->cut_axes;
	const uint32_t nr = meta_topology_degree(b->v->topo, axes);
	uint64_t elements, size = 0;
	int whole;

	if (meta_shape_elements(&of->shape, &elements))
		size = meta_block_size(elements, t->shape.dim[0]);
	whole = size && !e->group && !other->group; /* of what is joined a rank has other tensors, too */
	for (uint32_t x = 0; whole == 1 && x < nr; x++) {
		uint32_t coords[SC_AXES_MAX] = {0};

		meta_topology_split(b->v->topo, axes, x, coords);
		whole = has_whole(b, e, other, size, coords);
	}
	return whole < 0 ? whole : whole ? 0 : refuse_blocks(b, t, of, size);
}

/* Checks numbers of blocks of an entry; of those that are cut alike and have one shape one, as `seen` says. */
static int check_alike(struct builder *b, struct sc_map *seen, const struct meta_entry *e,
		       const struct meta_entry *other)
{
	const struct meta_view *v = b->v;
	const struct meta_tensor *t = &v->state->tensors[e->tensor];
	const struct meta_tensor *of = other ? &v->state->tensors[other->tensor] : t;
	const uint32_t nth = (uint32_t)(e - &v->entries[v->first[e->tensor]]); /* of tied copies */
	uint64_t key[3 + SC_DIMS_MAX] = {(uintptr_t)e->rule, 0, t->shape.dim[0]};
	const char *kept;
	int rc;

	if (!other || strcmp(of->file, t->file) != 0)
		return sc_fail(b->err, SC_E_STATE, "'%s' has a number for each block of a '%s', which is not in its "
			       "file: save both in one file", t->key, e->rule->of);
	if (nth < v->first[other->tensor + 1] - v->first[other->tensor])
		other = &v->entries[v->first[other->tensor] + nth];
	key[1] = (uintptr_t)other->rule;
	memcpy(&key[3], of->shape.dim, of->shape.nr * sizeof(*key));
	if (!e->group && sc_map_get(seen, (const char *)key, sizeof(key)))
		return 0;
	rc = check_blocks(b, e, other);
	kept = rc == 0 ? sc_arena_copy(&b->arena, (const char *)key, sizeof(key)) : NULL;
	if (rc == 0 && (!kept || sc_map_put(seen, kept, sizeof(key), b) < 0))
		return sc_nomem(b->err);
	return rc;
}

int meta_check_scales(struct builder *b)
{
	struct sc_map names = {0}, seen = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < b->v->nr_entries; i++) {
		const struct meta_entry *e = &b->v->entries[i], *other = NULL;

		if (!e->rule->of || e->behind)
			continue;
		rc = meta_view_told(b->v, e, &names, &b->arena, &other) < 0 ? sc_nomem(b->err) : 0;
		if (rc == 0 && e->rule->factor == META_BLOCKS)
			rc = check_alike(b, &seen, e, other);
		else if (rc == 0 && other)
			rc = check(b, e, other);
	}
	sc_map_done(&names);
	sc_map_done(&seen);
	return rc;
}

/* Refuses a tensor of as few bits as blocks are quantized to whose numbers of blocks are not beside it. */
static int check_quantized(struct infer *n, const struct name *name, const struct meta_tensor *t)
{
	const char *word = name->rule->blocks ? meta_rule_blocks_of(name->rule, &name->caps) : NULL;
	const size_t bytes = word ? strcspn(word, ":") : 0;
	const char *of = word ? word + bytes + 1 : NULL, *other, *key;

	if (!word || meta_dtype_bits(t->dtype) > 8)
		return 0;
	other = with_word(t->name, of, strcspn(of, "|"), word, bytes, &n->arena);
	key = other ? sc_arena_join(&n->arena, t->file, ':', other) : NULL;
	if (!key)
		return sc_nomem(n->err);
	if (meta_state_find(n->state, key))
		return 0;
	return sc_fail(n->err, SC_E_STATE, "'%s' is %s, so it is quantized by blocks, but '%s', the numbers of its "
		       "blocks, is not there: save both in one file", t->key, meta_dtype_name(t->dtype), key);
}

/* Refuses numbers of blocks of which no rank has two: then a part of a block looks as a whole one of half the size. */
static int check_sized(struct infer *n, const struct group *g, const struct meta_tensor *t)
{
	uint64_t most = 0;

	for (size_t i = 0; i < g->nr; i++)
		most = sc_max_u64(most, n->written[g->rows[i]].shape.dim[0]);
	if (most > 1 || t->shape.dim[0] < 2 || (n->known && meta_state_find(n->known, g->key)))
		return 0;
	return sc_fail(n->err, SC_E_STATE, "'%s' has one number on each rank, so nothing says of how many elements a "
		       "block is: commit it first at a topology whose ranks have several; the line 'plain %s' keeps "
		       "the file as it is", t->key, t->file);
}

int meta_infer_scales(struct infer *n)
{
	struct sc_map names = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < n->order.nr; i++) {
		const struct group *g = n->order.at[i];
		const struct name *own = n->rows[g->rows[0]].name;
		const struct meta_rule *r = own->rule;
		const struct meta_tensor *t = r->of || r->blocks ? meta_state_find(n->state, g->key) : NULL;
		const char *name;

		if (t && r->factor == META_BLOCKS)
			rc = check_sized(n, g, t);
		if (t && !r->of)
			rc = check_quantized(n, own, t);
		if (rc < 0 || !t || !r->of)
			continue;
		name = name_of(r, t->name, &n->arena);
		if (!name || map_names(&names, n->state) < 0)
			rc = sc_nomem(n->err);
		else if (!sc_map_get(&names, name, strlen(name)))
			rc = sc_fail(n->err, SC_E_STATE, "'%s' tells how '%s' is read, which is in no file: nothing "
				     "says in which parts it may be cut; save both", t->key, name);
	}
	sc_map_done(&names);
	return rc;
}
