/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the type and the shape of each logical tensor from its pieces. */
#include "meta/model/infer_i.h"

#include <string.h>

/* Sorts tied copies to the end: they do not define a tensor that also has others. */
static size_t primary_rows(const struct infer *n, struct group *g)
{
	size_t nr = 0;

	for (size_t i = 0; i < g->nr; i++)
		if (!n->rows[g->rows[i]].name->rule->tied) {
			uint32_t row = g->rows[i];

			g->rows[i] = g->rows[nr];
			g->rows[nr++] = row;
		}
	return nr ? nr : g->nr;
}

/* Gives the shape of a row's piece of its tensor; for a stack, that of each layer. */
static struct meta_shape shape_of(const struct infer *n, uint32_t row)
{
	struct meta_shape shape = n->written[row].shape;

	if (n->rows[row].name->rule->is_stack)
		memmove(&shape.dim[0], &shape.dim[1], --shape.nr * sizeof(*shape.dim));
	return shape;
}

/* Takes the copies out of a total: parts that neighbours share in a cut by `upto` were added several times. */
static uint64_t without_copies(const struct infer *n, const struct meta_cut *cut, uint64_t total)
{
	uint64_t d = meta_topology_degree(n->topo, cut->axes), sum = 0, all;

	for (uint32_t s = 0; s < cut->nr_sections; s++)
		sum += cut->sections[s] * (d / meta_cut_parts(cut, s, d));
	return cut->upto && sc_mul_u64(total, cut->section_sum, &all) ? all / sum : total;
}

/* Finds the size of dimension k: the sum over the coordinates of the axes that cut it. */
static int whole_dim(struct infer *n, const struct group *g, size_t nr, int k, uint64_t *ret)
{
	const struct meta_shape first = shape_of(n, g->rows[0]);
	const struct meta_rule *r = n->rows[g->rows[0]].name->rule;
	uint32_t axes = 0, parts, found = 0;
	uint64_t size = 0, total = 0;
	struct {
		uint64_t size;
		uint32_t rank;
		bool seen;
	} *at;

	for (int i = r->nr_cuts - 1; i >= 0; i--) {
		int dim = r->cuts[i].dim < 0 ? r->cuts[i].dim + first.nr : r->cuts[i].dim;

		if (dim < 0 || dim >= first.nr)
			return sc_fail(n->err, SC_E_STATE, "'%s': the rule cuts dimension %d, but the tensor has %d "
				"dimensions",
				       g->key, r->cuts[i].dim, first.nr);
		if (dim != k)
			continue;
		axes |= r->cuts[i].axes;
		size = r->cuts[i].size;
	}
	parts = meta_topology_degree(n->topo, axes);
	at = sc_zalloc_array(parts, sizeof(*at));
	if (!at)
		return sc_nomem(n->err);
	for (size_t i = 0; i < nr; i++) {
		const struct meta_written *w = &n->written[g->rows[i]];
		const uint64_t dim = shape_of(n, g->rows[i]).dim[k];
		uint32_t coords[SC_AXES_MAX], x;

		meta_topology_coords(n->topo, w->rank, coords);
		x = meta_topology_index(n->topo, axes, coords);
		if (at[x].seen && at[x].size != dim) {
			int rc = sc_fail(n->err, SC_E_STATE, "'%s' dimension %d: rank %u has %llu and rank %u has "
				"%llu, but "
					 "both hold the same part", g->key, k, at[x].rank,
					 (unsigned long long)at[x].size, w->rank,
					 (unsigned long long)dim);

			sc_sys.release(at);
			return rc;
		}
		if (!at[x].seen) {
			found++;
			if (!sc_add_u64(total, dim, &total))
				total = UINT64_MAX;
			at[x].size = dim;
			at[x].rank = w->rank;
			at[x].seen = true;
		}
	}
	sc_sys.release(at);
	if (found != parts)
		return sc_fail(n->err, SC_E_STATE, "'%s': the ranks hold only %u of the %u parts of dimension %d",
			g->key,
			       found, parts, k);
	for (int i = 0; i < r->nr_cuts; i++)
		if ((r->cuts[i].dim < 0 ? r->cuts[i].dim + first.nr : r->cuts[i].dim) == k)
			total = without_copies(n, &r->cuts[i], total);
	*ret = size ? size : total;
	return 0;
}

static bool is_flat(const struct meta_rule *r)
{
	for (int i = 0; i < r->nr_cuts; i++)
		if (r->cuts[i].flat)
			return true;
	return false;
}

int meta_infer_add(struct infer *n, const char *key, const struct meta_rule *rule, enum meta_dtype dtype,
		   const struct meta_shape *shape)
{
	const struct meta_tensor *t;
	int padded = -1, rc = 0;
	uint64_t rows = 0;

	if (meta_state_add(n->state, key, strlen(key), dtype, shape) < 0)
		return sc_nomem(n->err);
	t = meta_state_find(n->state, key);
	if (meta_dtype_bits(dtype) % 8 == 0)
		rows = meta_cuts_padding(n->topo, rule->cuts, rule->nr_cuts, shape, &padded);
	for (int k = 0; k < shape->nr && rc == 0; k++) {
		const struct meta_tensor *known = n->known ? meta_state_padding(n->known, key, k) : NULL;
		uint64_t nr = sc_max_u64(k == padded ? rows : 0, known ? known->shape.dim[k] : 0);
		struct meta_tensor of = *t; /* the state's array may move */

		if (nr && meta_state_add_padding(n->state, &of, k, nr) < 0)
			rc = sc_nomem(n->err);
		t = meta_state_find(n->state, key);
	}
	return rc;
}

/* Adds the tensor of a group. */
static int add_tensor(struct infer *n, const struct group *g, const struct meta_shape *shape)
{
	return meta_infer_add(n, g->key, n->rows[g->rows[0]].name->rule, n->written[g->rows[0]].dtype, shape);
}

int meta_infer_shape(struct infer *n, struct group *g)
{
	size_t nr = primary_rows(n, g);
	const struct meta_written *first = &n->written[g->rows[0]];
	const struct meta_tensor *known = n->known ? meta_state_find(n->known, g->key) : NULL;
	struct meta_shape shape = shape_of(n, g->rows[0]);
	char a[200], b[200];
	int rc = 0;

	for (size_t i = 1; i < nr; i++) {
		const struct meta_written *w = &n->written[g->rows[i]];

		if (w->dtype != first->dtype || w->shape.nr != first->shape.nr)
			return sc_fail(n->err, SC_E_STATE, "'%s': rank %u has %s %s, but rank %u has %s %s", g->key,
				       first->rank, meta_dtype_name(first->dtype),
				       meta_shape_text(&first->shape, a, sizeof(a)), w->rank,
				       meta_dtype_name(w->dtype), meta_shape_text(&w->shape, b, sizeof(b)));
	}
	if (known) {
		shape = known->shape;
	} else if (is_flat(n->rows[g->rows[0]].name->rule)) {
		g->flat_later = true;
		return 0;
	} else {
		for (int k = 0; rc == 0 && k < shape.nr; k++)
			rc = whole_dim(n, g, nr, k, &shape.dim[k]);
	}
	return rc < 0 ? rc : add_tensor(n, g, &shape);
}

static const struct meta_tensor *find_by_name(const struct meta_state *s, const char *name)
{
	for (uint32_t i = 0; s && i < s->nr; i++)
		if (strcmp(s->tensors[i].name, name) == 0)
			return &s->tensors[i];
	return NULL;
}

/* Finds the shape of a flat tensor: that of the tensor which its `like` line copies. */
int meta_infer_flat_shape(struct infer *n, const struct group *g)
{
	const struct meta_rule *r = n->rows[g->rows[0]].name->rule;
	const struct meta_tensor *base = NULL;
	struct sc_buf buf = {0};
	struct meta_caps caps = {0};
	const char *colon = strchr(g->key, ':');
	char *file = sc_arena_copy(&n->arena, g->key, (size_t)(colon - g->key));
	int rc = 0;

	if (!file)
		return sc_nomem(n->err);
	if (r->is_like && meta_rule_match(r, true, file, colon + 1, &caps)) {
		meta_pattern_render(&r->base, &caps, &buf);
		base = buf.text ? find_by_name(n->state, buf.text) : NULL;
		base = base || !buf.text ? base : find_by_name(n->known, buf.text);
	}
	if (!base)
		rc = sc_fail(n->err, SC_E_STATE, "'%s' is stored flat, so its shape is not known; also store '%s', "
			"whole",
			     g->key, buf.text ? buf.text : g->key);
	else {
		const struct meta_shape shape = base->shape; /* the state's array may move */

		rc = add_tensor(n, g, &shape);
	}
	sc_buf_done(&buf);
	return rc;
}

/* Tells whether the rule makes this shape of a tensor of the other one, which it is like. */
static bool is_like(const struct meta_rule *r, const struct meta_shape *base, const struct meta_shape *shape)
{
	struct meta_shape want;

	return meta_factor_shape(r, base, &want) && meta_shape_equal(&want, shape);
}

/* Tells whether a tensor of this name that makes the shape is there; *other: one that has the name, and does not. */
static bool has_shape(const struct meta_state *s, const struct meta_rule *r, const char *name,
		      const struct meta_shape *shape, const struct meta_tensor **other)
{
	for (uint32_t i = 0; i < s->nr; i++)
		if (strcmp(s->tensors[i].name, name) == 0) {
			if (is_like(r, &s->tensors[i].shape, shape))
				return true;
			*other = &s->tensors[i];
		}
	return false;
}

/* Checks one tensor against the one that it is like; `by_name` has a tensor of each name.  `buf` is for its name. */
static int check_like(struct infer *n, const struct group *g, const struct sc_map *by_name, struct sc_buf *buf)
{
	const struct meta_rule *r = n->rows[g->rows[0]].name->rule;
	const struct meta_tensor *t = meta_state_find(n->state, g->key), *base;
	struct meta_caps caps = {0};
	uint64_t elements = 0;
	char a[200], b[200];

	if (!t || r->nr_each || r->is_stack || r->factor == META_BLOCKS || r->factor == META_WHOLE ||
	    !meta_rule_match(r, true, t->file, t->name, &caps))
		return 0;
	if (meta_shape_elements(&t->shape, &elements) && elements <= 1) /* a number of steps */
		return 0;
	sc_buf_reset(buf);
	meta_pattern_render(&r->base, &caps, buf);
	if (buf->failed)
		return sc_nomem(n->err);
	base = buf->text && strcmp(buf->text, t->name) != 0 ? sc_map_get(by_name, buf->text, buf->bytes) : NULL;
	if (!base || is_like(r, &base->shape, &t->shape) || has_shape(n->state, r, base->name, &t->shape, &base))
		return 0;
	if (r->factor)
		return sc_fail(n->err, SC_E_STATE, "'%s' is %s, but '%s', of which it is the factor of %s by '%s', is "
			       "%s, and that factor has %s: it cannot be cut with these; write a rule for it above "
			       "this one, such as '%s copy' (each rank has all of it)", t->key,
			       meta_shape_text(&t->shape, a, sizeof(a)), base->key,
			       r->factor == META_ROWS ? "rows" : "columns", r->text,
			       meta_shape_text(&base->shape, b, sizeof(b)),
			       r->factor == META_ROWS ? "all dimensions but the last"
						      : "all but the one before the last", t->name);
	return sc_fail(n->err, SC_E_STATE, "'%s' is %s, but '%s', which it is like by '%s', is %s; what has another "
		       "shape (a row, a column, scales of blocks) is cut in another way: write a rule for it above "
		       "this one, such as '%s copy' (each rank has all of it)", t->key,
		       meta_shape_text(&t->shape, a, sizeof(a)), base->key, r->text,
		       meta_shape_text(&base->shape, b, sizeof(b)), t->name);
}

int meta_infer_likes(struct infer *n)
{
	struct sc_map by_name = {0};
	struct sc_buf buf = {0};
	bool any = false;
	int rc = 0;

	for (size_t i = 0; i < n->order.nr; i++)
		any |= n->rows[n->order.at[i]->rows[0]].name->rule->is_like;
	for (uint32_t i = 0; any && rc == 0 && i < n->state->nr; i++) {
		struct meta_tensor *t = &n->state->tensors[i];

		if (sc_map_put(&by_name, t->name, strlen(t->name), t) < 0)
			rc = sc_nomem(n->err);
	}
	for (size_t i = 0; any && rc == 0 && i < n->order.nr; i++)
		if (n->rows[n->order.at[i]->rows[0]].name->rule->is_like)
			rc = check_like(n, n->order.at[i], &by_name, &buf);
	sc_buf_done(&buf);
	sc_map_done(&by_name);
	return rc;
}
