/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds parameters in the buckets of Megatron's distributed optimizer (`dp_reshardable`).  A bucket is the parameters
 * of one model-parallel rank, flattened, and says neither which nor where:
 *
 *     registered    emb  l.0.norm  l.0.proj ... l.3.fc2  norm     backwards, each start rounded up to 64 elements
 *     bucket        |norm.|fc2......|fc1....|...|emb|             chunks: a part of a parameter, or a gap of any bytes
 *
 * The order is that in which Megatron's GPT registers its parameters, of which there are two (norms before the layers
 * that follow them, or fused with them, as Transformer Engine does).  What tells a wrong one: each parameter begins
 * where a chunk does, and each bucket ends with a parameter.  How tensor parallelism cuts parameters, the chunks of the
 * model's own tensors say.  A parameter that all tensor-parallel ranks have is taken from the first.
 * Source: Megatron-core 0.16: core/optimizer/distrib_optimizer.py, core/distributed/param_and_grad_buffer.py.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"
#include "reshard/checkpoint/folders/folder_i.h"

#define ALIGN 64u
#define BUCKET "optimizer.distributed.dp_group_idx_"
#define LAYERS "decoder.layers."
#define GROUPS_MAX 65536u

/* The names of a layer's tensors, in order of registration; `*` stands for weight, then bias. */
static const char *const separate[] = {
	"input_layernorm.*", "self_attention.linear_qkv.layer_norm_*", "self_attention.linear_proj.*",
	"self_attention.linear_qkv.*", "self_attention.q_layernorm.*", "self_attention.k_layernorm.*",
	"pre_mlp_layernorm.*", "mlp.linear_fc1.layer_norm_*", "mlp.linear_fc1.*", "mlp.linear_fc2.*", NULL};
static const char *const fused[] = {
	"self_attention.linear_proj.*", "self_attention.linear_qkv.layer_norm_*", "self_attention.linear_qkv.*",
	"self_attention.q_layernorm.*", "self_attention.k_layernorm.*", "mlp.linear_fc1.layer_norm_*",
	"mlp.linear_fc1.*", "mlp.linear_fc2.*", NULL};
#define ORDERS 2u
static const char *const *const orders[ORDERS] = {separate, fused};
static const char *const before[] = {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight", NULL};
static const char *const behind[] = {"decoder.final_layernorm.*", "output_layer.weight", NULL};

struct parameter {			/* of one layer, on all ranks */
	const struct rs_dcp_tensor *tensor;
	enum { BEFORE, OF_LAYER, BEHIND } part;
	uint32_t layer, place;		/* place: in the order */
	uint32_t stage;
	uint64_t nr, elements;		/* chunks of this layer, in order of their places; elements on a rank */
	const struct rs_dcp_chunk **chunks;
};

struct bucket {
	uint32_t group, index;
	const char *state;
	const struct rs_dcp_tensor *tensor;
	const struct rs_placed_tensor *flat;
};

struct at {				/* of a parameter in the buckets of its group */
	uint32_t bucket;
	uint64_t start;
};

struct buckets {
	struct rs_folder_reading *r;
	const struct rs_dcp *dcp;
	struct {
		size_t nr, room;
		struct bucket *at;
	} all;				/* by group, state, index */
	struct {
		size_t nr, room;
		struct parameter *at;
	} parameters;			/* in order of registration */
	uint32_t groups, tp, pp, layers;
	struct at *places;		/* of each group's parameters */
};

/* --- names --- */

static const char *after(const char *text, const char *prefix)
{
	const size_t n = strlen(prefix);

	return strncmp(text, prefix, n) == 0 ? text + n : NULL;
}

/* Reads the digits at *text, and `follows` behind them. */
static bool read_number(const char **text, const char *follows, uint32_t *ret)
{
	const size_t n = strspn(*text, "0123456789"), m = strlen(follows);

	if (!sc_number_parse(*text, n, ret) || strncmp(*text + n, follows, m) != 0)
		return false;
	*text += n + m;
	return true;
}

bool rs_folder_is_bucket(const char *name)
{
	return strncmp(name, BUCKET, strlen(BUCKET)) == 0;
}

/* Reads the name of a bucket, of a model with one buffer of one type: other buffers are of experts. */
static bool parse_bucket(const char *name, struct bucket *ret)
{
	const char *at = after(name, BUCKET), *type;
	uint32_t buffer;

	if (!at || !read_number(&at, ".gbuf_idx_", &ret->group) || !read_number(&at, ".dtype_", &buffer) || buffer)
		return false;
	type = strstr(at, ".bucket_idx_");
	if (!type)
		return false;
	at = type + strlen(".bucket_idx_");
	if (!read_number(&at, ".", &ret->index) || !*at || ret->group >= GROUPS_MAX)
		return false;
	ret->state = at;
	return true;
}

/* Gives the place of a name in a list: 2 i for a weight, 2 i + 1 for a bias; -1: the list does not have it. */
static int64_t place_in(const char *const *list, const char *name)
{
	for (int64_t i = 0; list[i]; i++) {
		const size_t n = strlen(list[i]), stem = n - (list[i][n - 1] == '*');

		if (strncmp(list[i], name, stem) != 0)
			continue;
		if (stem == n ? !name[n] : strcmp(name + stem, "weight") == 0)
			return 2 * i;
		if (stem != n && strcmp(name + stem, "bias") == 0)
			return 2 * i + 1;
	}
	return -1;
}

/* --- parameters --- */

static int by_offset(const void *a, const void *b, void *dims)
{
	const struct rs_dcp_chunk *x = *(const struct rs_dcp_chunk *const *)a;
	const struct rs_dcp_chunk *y = *(const struct rs_dcp_chunk *const *)b;

	for (uint32_t k = 0; k < *(uint32_t *)dims; k++)
		if (x->off[k] != y->off[k])
			return x->off[k] < y->off[k] ? -1 : 1;
	return 0;
}

static uint64_t elements_of(const struct rs_dcp_chunk *c, uint32_t dims)
{
	uint64_t n = 1;

	for (uint32_t k = 0; k < dims; k++)
		n *= c->ext[k]; /* the chunks are disjoint parts of a tensor whose size does not overflow */
	return n;
}

static int add_parameter(struct buckets *b, const struct rs_dcp_tensor *t, int part, int64_t place, uint32_t layer,
			 const struct rs_dcp_chunk **chunks, uint64_t nr)
{
	struct parameter p = {.tensor = t, .place = (uint32_t)place, .layer = layer, .nr = nr, .chunks = chunks};

	p.part = part;
	for (uint64_t i = 0; i < nr; i++)
		p.elements += elements_of(chunks[i], t->dims);
	return sc_vec_push(&b->parameters, p) < 0 ? sc_nomem(b->r->err) : 0;
}

/* Adds the parameters of a tensor that holds all layers: each layer has a chunk of the tensor, or several. */
static int add_stacked(struct buckets *b, const struct rs_dcp_tensor *t, int64_t place,
		       const struct rs_dcp_chunk **chunks)
{
	int rc = 0;

	for (uint64_t i = 0, n; rc == 0 && i < t->nr; i += n) {
		for (n = 0; i + n < t->nr && chunks[i + n]->off[0] == chunks[i]->off[0]; n++)
			if (chunks[i + n]->ext[0] != 1 || chunks[i]->off[0] >= SC_TENSORS_MAX)
				return 0; /* not cut by layers: it will not fit */
		rc = add_parameter(b, t, OF_LAYER, place, (uint32_t)chunks[i]->off[0], &chunks[i], n);
	}
	return rc;
}

/* Adds the parameters of a tensor.  A tensor that this order does not have is left out: if it is a parameter of another
 * model, nothing will fit. */
static int add_tensor(struct buckets *b, const struct rs_dcp_tensor *t, const char *const *order)
{
	const struct rs_dcp_chunk **chunks = sc_arena_array(&b->r->arena, t->nr + 1, sizeof(*chunks));
	const char *name = after(t->name, LAYERS);
	int64_t place = place_in(before, t->name), end = place_in(behind, t->name);
	uint32_t dims = t->dims, layer = 0;

	if (!chunks)
		return sc_nomem(b->r->err);
	for (uint64_t i = 0; i < t->nr; i++)
		chunks[i] = &t->chunks[i];
	qsort_r(chunks, t->nr, sizeof(*chunks), by_offset, &dims);
	if (place >= 0 || end >= 0)
		return add_parameter(b, t, place >= 0 ? BEFORE : BEHIND, place >= 0 ? place : end, 0, chunks, t->nr);
	if (!name)
		return 0;
	if (read_number(&name, ".", &layer)) {
		place = place_in(order, name);
		return place < 0 ? 0 : add_parameter(b, t, OF_LAYER, place, layer, chunks, t->nr);
	}
	place = place_in(order, name);
	return place < 0 || !dims ? 0 : add_stacked(b, t, place, chunks);
}

static int by_registration(const void *a, const void *b)
{
	const struct parameter *x = a, *y = b;
	const uint32_t p[] = {x->part, x->layer, x->place}, q[] = {y->part, y->layer, y->place};

	for (int i = 0; i < 3; i++)
		if (p[i] != q[i])
			return p[i] < q[i] ? -1 : 1;
	return 0;
}

/* Lists the parameters in an order: 1, 0 (the tensors are not cut as parameters are) or an error. */
static int list_parameters(struct buckets *b, const char *const *order)
{
	b->parameters.nr = 0;
	b->tp = 1;
	b->layers = 0;
	for (size_t i = 0; i < b->dcp->tensors.nr; i++) {
		const struct rs_dcp_tensor *t = &b->dcp->tensors.at[i];
		int rc = after(t->name, "optimizer.") || !t->nr ? 0 : add_tensor(b, t, order);

		if (rc < 0)
			return rc;
	}
	for (size_t i = 0; i < b->parameters.nr; i++) {
		const struct parameter *p = &b->parameters.at[i];

		/* a gated layer has two chunks on each rank, so what all ranks cut once says how many there are */
		if (p->nr > b->tp && !strstr(p->tensor->name, "linear_fc1"))
			b->tp = p->nr > GROUPS_MAX ? GROUPS_MAX : (uint32_t)p->nr;
		if (p->part == OF_LAYER && b->layers < p->layer + 1)
			b->layers = p->layer + 1;
	}
	if (!b->parameters.nr || b->groups % b->tp)
		return 0;
	b->pp = b->groups / b->tp;
	if (b->layers % b->pp || b->layers < b->pp)
		return 0;
	qsort(b->parameters.at, b->parameters.nr, sizeof(*b->parameters.at), by_registration);
	for (size_t i = 0; i < b->parameters.nr; i++) {
		struct parameter *p = &b->parameters.at[i];

		if (p->nr > 1 && p->nr % b->tp)
			return 0;
		if (p->nr > 1)
			p->elements /= b->tp;
		p->stage = p->part == BEFORE ? 0 : p->part == BEHIND ? b->pp - 1 : p->layer / (b->layers / b->pp);
	}
	return 1;
}

/* --- where they lie --- */

static int by_bucket(const void *a, const void *b)
{
	const struct bucket *x = a, *y = b;
	int states;

	if (x->group != y->group)
		return x->group < y->group ? -1 : 1;
	states = strcmp(x->state, y->state);
	return states ? states : (x->index > y->index) - (x->index < y->index);
}

/* Counts the buckets from the place `at` on that are of the same group and state. */
static size_t next_run(const struct buckets *b, size_t at)
{
	size_t n = at;

	while (n < b->all.nr && b->all.at[n].group == b->all.at[at].group &&
	       strcmp(b->all.at[n].state, b->all.at[at].state) == 0)
		n++;
	return n - at;
}

/* Tells whether a piece of the bucket begins at this element. */
static bool is_border(const struct bucket *x, uint64_t element)
{
	uint64_t lo = 0, hi = x->flat->nr;

	while (lo < hi) {
		const uint64_t mid = (lo + hi) / 2, off = x->flat->boxes[mid].box.off[0];

		if (off == element)
			return true;
		if (off < element)
			lo = mid + 1;
		else
			hi = mid;
	}
	return false;
}

/* Walks over a group's parameters backwards: does each begin and end where the buckets say? */
static bool fits(struct buckets *b, const struct bucket *of, size_t nr)
{
	const uint32_t stage = of->group / b->tp;
	uint64_t at = 0;
	size_t k = 0;

	for (size_t i = b->parameters.nr; i-- > 0;) {
		const struct parameter *p = &b->parameters.at[i];

		if (p->stage != stage)
			continue;
		if (k == nr)
			return false;
		at += (ALIGN - at % ALIGN) % ALIGN;
		if (at > of[k].tensor->shape[0] || p->elements > of[k].tensor->shape[0] - at || !is_border(&of[k], at))
			return false;
		b->places[of->group * b->parameters.nr + i] = (struct at){(uint32_t)k, at};
		at += p->elements;
		if (at == of[k].tensor->shape[0]) {
			k++;
			at = 0;
		}
	}
	return k == nr && at == 0;
}

static int all_fit(struct buckets *b)
{
	if (b->parameters.nr > SC_JOIN_PLACES_MAX / b->groups)
		return 0;
	b->places = sc_arena_array(&b->r->arena, b->parameters.nr * b->groups, sizeof(*b->places));
	if (!b->places)
		return sc_nomem(b->r->err);
	for (size_t i = 0, n; i < b->all.nr; i += n) {
		n = next_run(b, i);
		for (size_t k = 0; k < n; k++)
			if (b->all.at[i + k].index != k)
				return 0;
		if (!fits(b, &b->all.at[i], n))
			return 0;
	}
	return 1;
}

/* --- the result --- */

/* A run of elements of a rank's parameter, whose chunks lie flattened one behind the other, and the run's place. */
struct run {
	const struct parameter *p;
	uint32_t rank;			/* of tensor parallelism */
	unsigned bytes;			/* of an element */
	uint64_t first, nr;
	const struct rs_placed_box *piece;
	uint64_t at;			/* element of the piece */
};

static int add_boxes(struct buckets *b, const struct run *r, struct rs_placed_tensor *to, size_t *room)
{
	const struct parameter *p = r->p;
	const uint32_t step = p->nr == 1 ? 1 : b->tp;
	uint64_t begin = 0;
	int rc = 0;

	for (uint64_t c = p->nr == 1 ? 0 : r->rank; rc == 0 && c < p->nr; c += step) {
		const struct rs_dcp_chunk *chunk = p->chunks[c];
		const uint64_t end = begin + elements_of(chunk, p->tensor->dims);
		const uint64_t lo = sc_max_u64(r->first, begin), hi = sc_min_u64(r->first + r->nr, end);
		struct meta_shape shape = {.nr = (uint8_t)p->tensor->dims};
		struct meta_piece run = {0};

		memcpy(shape.dim, chunk->ext, p->tensor->dims * sizeof(*chunk->ext));
		if (lo < hi)
			rc = meta_run(&b->r->arena, &shape, lo - begin, hi - lo, p->tensor->name, &run, b->r->err);
		for (uint32_t i = 0; rc == 0 && i < run.nr_boxes; i++) {
			struct rs_placed_box x = {.box = run.boxes[i], .file = r->piece->file,
						  .place = r->piece->place};

			x.place.at += (r->at + (lo - r->first) + run.boxes[i].at) * r->bytes;
			x.box.at = 0;
			for (uint32_t k = 0; k < p->tensor->dims; k++)
				x.box.off[k] += chunk->off[k];
			if (sc_vec_grow((void **)&to->boxes, to->nr, room, sizeof(x)) < 0)
				return sc_nomem(b->r->err);
			to->boxes[to->nr++] = x;
		}
		begin = end;
	}
	return rc;
}

/* Adds the elements of a parameter that a group's bucket has. */
static int add_part(struct buckets *b, const struct bucket *x, const struct parameter *p, uint64_t start,
		    struct rs_placed_tensor *to, size_t *room)
{
	int rc = 0;
	const struct rs_placed_box *boxes = x->flat->boxes;
	/* the first piece that ends behind the parameter's start */
	uint64_t first = sc_first(x->flat->nr, i, boxes[i].box.off[0] + boxes[i].box.ext[0] > start);

	for (uint64_t i = first; rc == 0 && i < x->flat->nr && boxes[i].box.off[0] < start + p->elements; i++) {
		const struct rs_placed_box *piece = &boxes[i];
		const uint64_t a = sc_max_u64(piece->box.off[0], start);
		const uint64_t z = sc_min_u64(piece->box.off[0] + piece->box.ext[0], start + p->elements);

		const struct run run = {p, x->group % b->tp, meta_dtype_bits(x->tensor->dtype) / 8, a - start, z - a,
					piece, a - piece->box.off[0]};

		rc = add_boxes(b, &run, to, room);
	}
	return rc;
}

/* Adds one state of a model's tensor: of the parameters of all its layers, on all ranks that have one for
 * themselves. */
static int add_state(struct buckets *b, const char *state, size_t first, size_t nr)
{
	const struct rs_dcp_tensor *t = b->parameters.at[first].tensor;
	struct meta_shape shape = {.nr = (uint8_t)t->dims};
	struct rs_placed_tensor placed = {0};
	size_t room = 0;
	char *name = sc_arena_printf(&b->r->arena, "optimizer.state.%s.%s", state, t->name);
	const struct bucket *of = NULL;
	int rc = name ? 0 : sc_nomem(b->r->err);

	memcpy(shape.dim, t->shape, t->dims * sizeof(*t->shape));
	for (size_t i = 0, n; rc == 0 && i < b->all.nr; i += n) {
		const struct bucket *x = &b->all.at[i];

		n = next_run(b, i);
		if (strcmp(x->state, state) != 0)
			continue;
		if (of && of->tensor->dtype != x->tensor->dtype)
			rc = sc_fail(b->r->err, SC_E_FORMAT, "'%s' and '%s' have different types", of->tensor->name,
				     x->tensor->name);
		of = x;
		for (size_t k = first; rc == 0 && k < first + nr; k++) {
			const struct parameter *p = &b->parameters.at[k];
			const struct at *at = &b->places[x->group * b->parameters.nr + k];

			if (p->stage == x->group / b->tp && (p->nr > 1 || x->group % b->tp == 0))
				rc = add_part(b, &x[at->bucket], p, at->start, &placed, &room);
		}
	}
	return rs_folder_add_boxes(b->r, name, of->tensor->dtype, &shape, placed, rc);
}

static int by_tensor(const void *a, const void *b)
{
	const struct parameter *x = a, *y = b;

	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* Adds all states; the parameters of each tensor are next to each other (group_by_tensor()). */
static int add_states(struct buckets *b)
{
	int rc = 0;

	for (size_t s = 0; rc == 0 && s < b->all.nr && b->all.at[s].group == b->all.at[0].group; s += next_run(b, s))
		for (size_t i = 0, n; rc == 0 && i < b->parameters.nr; i += n) {
			for (n = 1; i + n < b->parameters.nr &&
				    b->parameters.at[i + n].tensor == b->parameters.at[i].tensor; n++)
				;
			rc = add_state(b, b->all.at[s].state, i, n);
		}
	return rc;
}

/* Puts the parameters of a tensor next to each other, and their places, which are by the parameters' numbers, too. */
static int group_by_tensor(struct buckets *b)
{
	const size_t nr = b->parameters.nr;
	struct parameter *from = sc_arena_array(&b->r->arena, nr, sizeof(*from));
	struct at *places = sc_arena_array(&b->r->arena, nr * b->groups, sizeof(*places));

	if (!from || !places)
		return sc_nomem(b->r->err);
	for (size_t i = 0; i < nr; i++) {
		from[i] = b->parameters.at[i];
		b->parameters.at[i].place = (uint32_t)i; /* where it was */
	}
	qsort(b->parameters.at, nr, sizeof(*from), by_tensor);
	for (uint32_t g = 0; g < b->groups; g++)
		for (size_t i = 0; i < nr; i++)
			places[g * nr + i] = b->places[g * nr + b->parameters.at[i].place];
	b->places = places;
	return 0;
}

/* Sorts the pieces of a bucket, and checks that they cover it: 1, 0 (buckets of this form are not read) or an error. */
static int check_bucket(struct buckets *b, const struct rs_dcp_tensor *t, struct rs_placed_tensor *flat)
{
	struct meta_tensor as = {.key = t->name, .name = t->name, .dtype = t->dtype, .shape.nr = (uint8_t)t->dims};

	if (t->dims != 1 || meta_dtype_bits(t->dtype) % 8)
		return 0;
	as.shape.dim[0] = t->shape[0];
	if (rs_placed_check(flat, &as, &b->r->budget, b->r->err) < 0)
		return b->r->err->code;
	for (uint64_t i = 0; i < flat->nr; i++)
		if (flat->boxes[i].box.ext[0] > 1 && flat->boxes[i].box.stride[0] != 1)
			return 0;
	return 1;
}

static int collect(struct buckets *b, struct rs_placed_tensor *flat)
{
	for (size_t i = 0; i < b->dcp->tensors.nr; i++) {
		struct bucket x = {.tensor = &b->dcp->tensors.at[i], .flat = &flat[i]};
		int rc;

		if (!rs_folder_is_bucket(x.tensor->name))
			continue;
		if (!parse_bucket(x.tensor->name, &x))
			return 0;
		rc = check_bucket(b, x.tensor, &flat[i]);
		if (rc <= 0)
			return rc;
		if (sc_vec_push(&b->all, x) < 0)
			return sc_nomem(b->r->err);
		if (b->groups < x.group + 1)
			b->groups = x.group + 1;
	}
	if (b->all.nr)
		qsort(b->all.at, b->all.nr, sizeof(*b->all.at), by_bucket);
	return b->all.nr && b->groups <= b->all.nr;
}

static bool same_order(const struct buckets *x, const struct buckets *y)
{
	for (size_t i = 0; i < x->parameters.nr && x->parameters.nr == y->parameters.nr; i++)
		if (x->parameters.at[i].tensor != y->parameters.at[i].tensor ||
		    x->parameters.at[i].layer != y->parameters.at[i].layer)
			return false;
	return x->parameters.nr == y->parameters.nr;
}

int rs_folder_add_buckets(struct rs_folder_reading *r, const struct rs_dcp *dcp, struct rs_placed_tensor *flat)
{
	struct buckets by[ORDERS] = {{.r = r, .dcp = dcp}}, *found = NULL;
	int rc = collect(&by[0], flat);

	for (size_t i = 0; rc > 0 && i < ORDERS; i++) {
		by[i] = i ? (struct buckets){.r = r, .dcp = dcp, .all = by[0].all, .groups = by[0].groups} : by[0];
		rc = list_parameters(&by[i], orders[i]);
		if (rc > 0)
			rc = all_fit(&by[i]);
		/* of two orders that both fit neither is known to be the one */
		if (rc > 0 && found && !same_order(found, &by[i]))
			break;
		if (rc > 0 && !found)
			found = &by[i];
		rc = rc < 0 ? rc : i + 1 < ORDERS || found;
		if (i + 1 == ORDERS && rc > 0) {
			rc = group_by_tensor(found);
			rc = rc < 0 ? rc : add_states(found);
			rc = rc < 0 ? rc : 2;
		}
	}
	sc_vec_done(&by[0].all);
	for (size_t i = 0; i < ORDERS; i++)
		sc_vec_done(&by[i].parameters);
	return rc < 0 ? rc : rc == 2;
}
