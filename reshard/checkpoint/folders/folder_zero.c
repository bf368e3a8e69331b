/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a DeepSpeed folder of ZeRO stages 1, 2 and 3: master weights and moments of the optimizer.  A parameter is
 * flattened, and runs of it lie in flat tensors of the ranks:
 *
 *     stages 1, 2   rank 0 |w...........b..|  rank 1 |..b|c.........|pad|    a group's parameters one behind the other,
 *                                                                             cut into parts of one length
 *     stage 3       rank 0 |w....|b..|c...|   rank 1 |w...p|b.p|c...|        each parameter is cut, and padded (p)
 *
 * Order, shapes and padding are in the files; what stages 1 and 2 say of each slice must agree with them.
 * Names: PARAMETER is the master weight, state.PARAMETER.exp_avg a moment, and so on.
 * Source: DeepSpeed 0.19: runtime/engine.py, runtime/zero/stage_1_and_2.py, stage3.py, checkpoint/ds_to_universal.py.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/checkpoint/folders/folder_i.h"

#define OPTIMIZER "optimizer_state_dict"
#define RANKS_MAX 65536

struct optimizer {			/* a rank's file */
	struct rs_folder_open *file;
	struct rs_torch torch;
};

struct parameter {
	const char *name;
	struct meta_shape shape;
	uint64_t elements;
	uint64_t start;			/* in its group; stages 1 and 2 */
};

struct group {
	uint32_t index;
	size_t nr, room;
	struct parameter *at;
	uint64_t end;		/* where its last parameter ends */
};

struct zero {
	struct rs_folder_reading *r;
	int64_t stage;
	uint32_t ranks;
	struct optimizer *optimizers;
	struct group group;		/* that is read */
};

#define refuse(z, ...) sc_fail((z)->r->err, SC_E_FORMAT, "DeepSpeed: " __VA_ARGS__)

/* --- nodes --- */

static const struct rs_pickled_items *pairs_of(const struct rs_pickled *n)
{
	if (n && n->kind == RS_PICKLED_DICT)
		return &n->items;
	return n && (n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW) ? &n->object->pairs : NULL;
}

/* Gives the value of a key in a dict, or in an object that is like one. */
static const struct rs_pickled *get(const struct rs_pickled *n, const char *key)
{
	const struct rs_pickled_items *pairs = pairs_of(n);
	const struct rs_pickled *found = NULL;

	for (const struct rs_pickled_cell *c = pairs ? pairs->first : NULL; c; c = c->next->next)
		if (rs_pickled_is_text(c->node, key))
			found = c->next->node;
	return found;
}

/* Gives the i-th item of a list or tuple. */
static const struct rs_pickled *item(const struct rs_pickled *n, uint64_t i)
{
	if (n && n->kind == RS_PICKLED_TUPLE)
		return i < n->tuple.nr ? n->tuple.at[i] : NULL;
	for (const struct rs_pickled_cell *c = n && n->kind == RS_PICKLED_LIST ? n->items.first : NULL; c; c = c->next)
		if (!i--)
			return c->node;
	return NULL;
}

/* Gives the value of a number or of an enum's member; -1: the node is neither. */
static int64_t number_of(const struct rs_pickled *n)
{
	if (n && (n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW))
		n = rs_pickled_arg(n, 0);
	return n && n->kind == RS_PICKLED_INT && n->number >= 0 ? n->number : -1;
}

/* --- files --- */

/* Opens and reads a file of torch.save(): 1, 0 (there is no such file) or an error. */
static int open_torch(struct zero *z, const char *name, struct rs_folder_open **ret_file, struct rs_torch *ret)
{
	struct rs_window window;
	int rc = rs_folder_open(z->r, name, ret_file);

	if (rc <= 0)
		return rc;
	window = rs_folder_window(*ret_file, 0, (*ret_file)->info.bytes);
	rc = rs_torch_read(&window, ret, z->r->err);
	return rc < 0 ? sc_wrap(z->r->err, rc, "'%s'", name) : 1;
}

/* Opens the optimizer's file of a rank, which has one of several names: 1, 0 (there is none) or an error. */
static int open_optimizer(struct zero *z, uint32_t rank, struct optimizer *ret)
{
	static const char *const kinds[] = {"bf16_", "fp16_", ""};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(kinds) / sizeof(*kinds); i++) {
		char name[96];

		(void)snprintf(name, sizeof(name), "%szero_pp_rank_%u_mp_rank_00_optim_states.pt", kinds[i], rank);
		rc = open_torch(z, name, &ret->file, &ret->torch);
	}
	return rc;
}

static const struct rs_torch_tensor *find_tensor(const struct rs_torch *torch, const char *path)
{
	for (size_t i = 0; i < torch->tensors.nr; i++)
		if (strcmp(torch->tensors.at[i].path, path) == 0)
			return &torch->tensors.at[i];
	return NULL;
}

/* Opens the files of the other ranks: the first rank's file says how many there are, and there must be no more. */
static int open_others(struct zero *z)
{
	const struct rs_pickled *o = get(z->optimizers[0].torch.pickle.root, OPTIMIZER);
	const struct rs_pickled *counts = get(o, "partition_count");
	int64_t ranks = number_of(item(counts, 0) ? item(counts, 0) : counts);
	struct optimizer more = {0};
	int rc = 1;

	for (uint64_t i = 0; item(counts, i); i++)
		if (number_of(item(counts, i)) != ranks)
			return sc_fail(z->r->err, SC_E_UNSUPPORTED, "DeepSpeed: parameter groups that are cut by "
				       "different numbers of ranks, as experts' are, cannot be read");
	if (ranks < 1 || ranks > RANKS_MAX)
		return refuse(z, "no number of ranks in partition_count");
	z->optimizers = sc_arena_array(&z->r->arena, (size_t)ranks, sizeof(*z->optimizers));
	for (uint32_t i = 0; z->optimizers && rc > 0 && i < ranks; i++, z->ranks += rc > 0)
		rc = open_optimizer(z, i, &z->optimizers[i]);
	if (!z->optimizers)
		return sc_nomem(z->r->err);
	if (rc == 0)
		return refuse(z, "%" PRId64 " ranks have saved it, but the file of rank %u is not there", ranks,
			      z->ranks);
	if (rc > 0)
		rc = open_optimizer(z, (uint32_t)ranks, &more);
	if (rc > 0) {
		rs_torch_done(&more.torch);
		return refuse(z, "%" PRId64 " ranks have saved it, but rank %" PRId64 " has a file, too, of another "
			      "save", ranks, ranks);
	}
	return rc;
}

/* --- groups --- */

static int add_parameter(struct zero *z, const struct rs_pickled *key, const struct rs_pickled *size,
			 const struct rs_pickled *padding)
{
	struct parameter p = {.start = z->group.end};
	uint64_t *dims = NULL;
	uint32_t nr = 0;
	int64_t pad = padding ? number_of(padding) : 0;

	if (key->kind != RS_PICKLED_TEXT || memchr(key->bytes.at, 0, key->bytes.nr) ||
	    key->bytes.nr > SC_TENSOR_NAME_BYTES_MAX)
		return refuse(z, "a parameter's name in param_shapes is no text");
	p.name = sc_arena_copy(&z->r->arena, key->bytes.at, key->bytes.nr);
	if (!p.name)
		return sc_nomem(z->r->err);
	if (rs_torch_sizes(size, p.name, &z->r->arena, &nr, &dims, z->r->err) < 0)
		return z->r->err->code;
	if (nr > SC_DIMS_MAX)
		return sc_fail(z->r->err, SC_E_LIMIT, "DeepSpeed: '%s' has %u dimensions, at most %d", p.name, nr,
			       SC_DIMS_MAX);
	p.shape.nr = (uint8_t)nr;
	memcpy(p.shape.dim, dims, nr * sizeof(*dims));
	if (!meta_shape_elements(&p.shape, &p.elements) || pad < 0 ||
	    !sc_add_u64(z->group.end, p.elements, &z->group.end) ||
	    !sc_add_u64(z->group.end, (uint64_t)pad, &z->group.end) || z->group.end > INT64_MAX)
		return refuse(z, "'%s': the size overflows", p.name);
	return sc_vec_push(&z->group, p) < 0 ? sc_nomem(z->r->err) : 0;
}

static int read_group(struct zero *z, const struct rs_pickled *shapes)
{
	const struct rs_pickled *o = get(z->optimizers[0].torch.pickle.root, OPTIMIZER);
	const struct rs_pickled *all = z->stage < 3 ? get(o, "param_alignment_paddings") : NULL;
	const struct rs_pickled *paddings = item(all, z->group.index);
	const struct rs_pickled_items *pairs = pairs_of(shapes);
	uint64_t i = 0;
	int rc = pairs ? 0 : refuse(z, "param_shapes: a group is no dict");

	z->group.nr = 0;
	z->group.end = 0;
	for (const struct rs_pickled_cell *c = rc == 0 ? pairs->first : NULL; rc == 0 && c; c = c->next->next)
		rc = add_parameter(z, c->node, c->next->node, item(paddings, i++));
	return rc;
}

/* --- runs --- */

/* Adds the boxes of a parameter's elements [first, first + nr), which begin at element `at` of a rank's flat tensor. */
static int add_run(struct zero *z, const struct parameter *p, uint64_t first, uint64_t nr, const struct optimizer *o,
		   const struct rs_torch_tensor *flat, uint64_t at, struct rs_placed_tensor *placed, size_t *room)
{
	struct meta_piece piece;
	int rc = meta_run(&z->r->arena, &p->shape, first, nr, p->name, &piece, z->r->err);

	for (uint32_t i = 0; rc == 0 && i < piece.nr_boxes; i++) {
		struct rs_placed_box b = {.box = piece.boxes[i], .file = o->file->info.path,
					  .place = {.id = o->file->info.blob, .bytes = o->file->info.bytes}};

		b.place.at = flat->at + (at + b.box.at) * flat->element;
		b.box.at = 0;
		if (sc_vec_grow((void **)&placed->boxes, placed->nr, room, sizeof(b)) < 0)
			return sc_nomem(z->r->err);
		placed->boxes[placed->nr++] = b;
	}
	return rc;
}

/* One state (weights, or a moment) of the group on all ranks. */
struct state {
	const char *name;		/* "fp32": the weights themselves */
	const struct rs_torch_tensor **flat; /* of each rank */
	uint64_t *from;			/* stage 3: where the next parameter begins on each rank */
	uint64_t part;			/* stages 1, 2: elements of a rank, but for the last one */
};

/* Stages 1 and 2: adds the runs of a parameter, from parts into which the whole group is cut. */
static int place_in_parts(struct zero *z, const struct state *s, const struct parameter *p,
			  struct rs_placed_tensor *placed, size_t *room)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && p->elements && rank < z->ranks; rank++) {
		const uint64_t begin = rank * s->part, end = begin + s->flat[rank]->shape[0];
		const uint64_t lo = sc_max_u64(begin, p->start), hi = sc_min_u64(end, p->start + p->elements);

		if (lo < hi)
			rc = add_run(z, p, lo - p->start, hi - lo, &z->optimizers[rank], s->flat[rank], lo - begin,
				     placed, room);
	}
	return rc;
}

/* Stage 3: adds the runs of a parameter that is cut for itself. */
static int place_by_itself(struct zero *z, const struct state *s, const struct parameter *p,
			   struct rs_placed_tensor *placed, size_t *room)
{
	const uint64_t each = p->elements / z->ranks + (p->elements % z->ranks != 0);
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < z->ranks; rank++) {
		const uint64_t first = sc_min_u64(rank * each, p->elements);
		const uint64_t have = sc_min_u64(each, p->elements - first);

		if (s->from[rank] > s->flat[rank]->shape[0] || each > s->flat[rank]->shape[0] - s->from[rank])
			return refuse(z, "rank %u, group %u: '%s' ends before '%s'", rank, z->group.index, s->name,
				      p->name);
		if (have)
			rc = add_run(z, p, first, have, &z->optimizers[rank], s->flat[rank], s->from[rank], placed,
				     room);
		s->from[rank] += each;
	}
	return rc;
}

static int add_parameter_of(struct zero *z, const struct state *s, const struct parameter *p)
{
	const bool is_weight = strcmp(s->name, "fp32") == 0;
	char *name = is_weight ? sc_arena_printf(&z->r->arena, "%s", p->name)
			       : sc_arena_printf(&z->r->arena, "state.%s.%s", p->name, s->name);
	struct rs_placed_tensor placed = {0};
	size_t room = 0;
	int rc = !name ? sc_nomem(z->r->err)
	       : z->stage == 3 ? place_by_itself(z, s, p, &placed, &room) : place_in_parts(z, s, p, &placed, &room);

	return rs_folder_add_boxes(z->r, name, (enum meta_dtype)s->flat[0]->dtype, &p->shape, placed, rc);
}

/* --- states --- */

/* Finds a state of the group in the files, at a path: 1, 0 (the files keep it elsewhere) or an error. */
static int find_flat(struct zero *z, const char *path, struct state *s)
{
	s->flat = sc_arena_array(&z->r->arena, z->ranks, sizeof(*s->flat));
	s->from = sc_arena_array(&z->r->arena, z->ranks, sizeof(*s->from));
	if (!s->flat || !s->from)
		return sc_nomem(z->r->err);
	for (uint32_t rank = 0; rank < z->ranks; rank++) {
		const struct rs_torch_tensor *t = s->flat[rank] = find_tensor(&z->optimizers[rank].torch, path);

		if (!t || t->dims != 1 || !t->is_dense || t->dtype < 0 || t->dtype != s->flat[0]->dtype)
			return refuse(z, "rank %u, group %u: '%s' is not one flat tensor, as on the other ranks", rank,
				      z->group.index, s->name);
	}
	return 1;
}

/* Checks that the elements behind the last parameter are so few that they are padding of the group, and no parameter
 * that param_shapes forgot. */
static int check_rest(struct zero *z, const struct state *s, uint32_t rank, uint64_t rest)
{
	if (rest < 2 * (uint64_t)z->ranks + 2)
		return 0;
	return refuse(z, "rank %u, group %u: '%s' has %" PRIu64 " elements more than its parameters", rank,
		      z->group.index, s->name, rest);
}

static int check_parts(struct zero *z, struct state *s)
{
	uint64_t total;

	s->part = s->flat[0]->shape[0];
	for (uint32_t rank = 1; rank < z->ranks; rank++)
		if (rank + 1 < z->ranks ? s->flat[rank]->shape[0] != s->part : s->flat[rank]->shape[0] > s->part)
			return refuse(z, "group %u: the parts of '%s' have different lengths", z->group.index, s->name);
	if (!sc_mul_u64(s->part, z->ranks - 1, &total) || !sc_add_u64(total, s->flat[z->ranks - 1]->shape[0], &total))
		return refuse(z, "group %u: the parts of '%s' overflow", z->group.index, s->name);
	for (size_t i = 0; i < z->group.nr; i++)
		if (z->group.at[i].start + z->group.at[i].elements > total)
			return refuse(z, "group %u: the ranks hold %" PRIu64 " elements of '%s', and '%s' ends at %"
				      PRIu64, z->group.index, total, s->name, z->group.at[i].name,
				      z->group.at[i].start + z->group.at[i].elements);
	return total > z->group.end ? check_rest(z, s, 0, total - z->group.end) : 0;
}

static int add_state(struct zero *z, const char *name, const char *path)
{
	struct state s = {.name = name};
	int rc = find_flat(z, path, &s);

	if (rc < 0)
		return rc;
	rc = z->stage < 3 ? check_parts(z, &s) : 0;
	for (size_t i = 0; rc == 0 && i < z->group.nr; i++)
		rc = add_parameter_of(z, &s, &z->group.at[i]);
	for (uint32_t rank = 0; rc == 0 && z->stage == 3 && rank < z->ranks; rank++)
		rc = check_rest(z, &s, rank, s.flat[rank]->shape[0] - s.from[rank]);
	return rc;
}

/* Adds the moments of the optimizer: all flat tensors below a path, by their names. */
static int add_moments(struct zero *z, const char *below)
{
	const struct rs_torch *first = &z->optimizers[0].torch;
	const size_t n = strlen(below);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < first->tensors.nr; i++) {
		const struct rs_torch_tensor *t = &first->tensors.at[i];

		if (strncmp(t->path, below, n) == 0 && !strchr(t->path + n, '/') && t->dims == 1)
			rc = add_state(z, t->path + n, t->path);
	}
	return rc;
}

/* Stages 1 and 2: checks what each rank says of the place of its slice of a parameter. */
static int check_slices(struct zero *z)
{
	char path[96];
	int rc = 0;

	(void)snprintf(path, sizeof(path), OPTIMIZER "/single_partition_of_fp32_groups/%u", z->group.index);
	for (uint32_t rank = 0; rc == 0 && rank < z->ranks; rank++) {
		const struct rs_torch *torch = &z->optimizers[rank].torch;
		const struct rs_pickled *table =
			item(get(get(torch->pickle.root, OPTIMIZER), "param_slice_mappings"), z->group.index);
		const uint64_t part = find_tensor(&z->optimizers[0].torch, path)->shape[0];

		for (size_t i = 0; rc == 0 && table && i < z->group.nr; i++) {
			const struct parameter *p = &z->group.at[i];
			const struct rs_pickled *slice = get(table, p->name);
			const uint64_t begin = rank * part, end = begin + find_tensor(torch, path)->shape[0];
			const uint64_t lo = sc_max_u64(begin, p->start), hi = sc_min_u64(end, p->start + p->elements);
			const struct rs_pickled *f = slice && slice->kind >= RS_PICKLED_CALL &&
						     slice->kind <= RS_PICKLED_NEW ? slice->object->state : NULL;

			if (lo >= hi && !slice)
				continue;
			if (lo >= hi || !f || number_of(get(f, "start")) != (int64_t)(lo - begin) ||
			    number_of(get(f, "numel")) != (int64_t)(hi - lo))
				rc = refuse(z, "rank %u: its slice of '%s' is not where it lies by the order of "
					    "param_shapes; round_robin_gradients is not read", rank, p->name);
		}
	}
	return rc;
}

static int add_group(struct zero *z)
{
	static const char *const weights[] = {"single_partition_of_fp32_groups", "fp32_flat_groups"};
	char path[96];
	int rc;

	(void)snprintf(path, sizeof(path), OPTIMIZER "/%s/%u", weights[z->stage == 3], z->group.index);
	rc = add_state(z, "fp32", path);
	if (rc == 0 && z->stage < 3)
		rc = check_slices(z);
	(void)snprintf(path, sizeof(path), OPTIMIZER "/%s/state/%u/",
		       z->stage == 3 ? OPTIMIZER : "base_optimizer_state", z->group.index);
	if (rc == 0)
		rc = add_moments(z, path);
	(void)snprintf(path, sizeof(path), OPTIMIZER "/base_optimizer_state/%u/", z->group.index);
	return rc < 0 || z->stage == 3 ? rc : add_moments(z, path);
}

/* --- the folder --- */

static int add_groups(struct zero *z, const struct rs_torch *model)
{
	const struct rs_pickled *shapes = get(model->pickle.root, "param_shapes");
	int rc = item(shapes, 0) ? 0 : refuse(z, "no param_shapes, which say how parameters lie in the groups");

	for (; rc == 0 && item(shapes, z->group.index); z->group.index++) {
		rc = read_group(z, item(shapes, z->group.index));
		if (rc == 0)
			rc = add_group(z);
	}
	sc_vec_done(&z->group);
	return rc;
}

static int read_optimizers(struct zero *z, const struct rs_torch *model)
{
	struct optimizer first = {0};
	int rc = open_optimizer(z, 0, &first);

	if (rc <= 0) /* stage 0, or another kind of folder */
		return rc;
	z->optimizers = &first;
	z->stage = number_of(get(get(first.torch.pickle.root, OPTIMIZER), "zero_stage"));
	if (z->stage < 1 || z->stage > 3)
		rc = sc_fail(z->r->err, SC_E_UNSUPPORTED, "DeepSpeed: no stage 1, 2 or 3 of ZeRO");
	else
		rc = open_others(z);
	if (rc >= 0)
		rc = add_groups(z, model);
	for (uint32_t i = 0; i < z->ranks; i++)
		rs_torch_done(&z->optimizers[i].torch);
	rs_torch_done(&first.torch);
	return rc < 0 ? rc : 1;
}

int rs_folder_read_zero(struct rs_folder_reading *r)
{
	struct zero z = {.r = r};
	struct rs_folder_open *file;
	struct rs_torch model;
	int rc = open_torch(&z, RS_FOLDER_ZERO12, &file, &model), more;

	if (rc == 0)
		rc = open_torch(&z, RS_FOLDER_ZERO3, &file, &model);
	if (rc <= 0)
		return rc;
	rc = read_optimizers(&z, &model);
	rs_torch_done(&model);
	if (rc <= 0)
		return rc;
	more = rs_folder_open(r, "mp_rank_01_model_states.pt", &file);
	if (more == 0)
		more = rs_folder_open(r, "zero_pp_rank_0_mp_rank_01_model_states.pt", &file);
	return more <= 0 ? (more < 0 ? more : rc)
			 : sc_fail(r->err, SC_E_UNSUPPORTED, "DeepSpeed: it is of several model-parallel ranks, which "
				   "do not say how they were cut");
}
