/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole state as a folder that torch.distributed.checkpoint.load() takes: the images of its files.
 *
 *     .metadata           what is where
 *     12/__R_0.distcp     what rank R holds, each box of a tensor an item; of replicas the first one has it
 *
 * 12 is the version's number: who has read one .metadata gets no bytes of another version, though the path of the
 * folder is the head's, which moves.
 *
 * A tensor has the name that it has in its file, with the keys of a torch file's path joined by dots, as DCP flattens
 * them; if two files have one of that name, `FILE:NAME`.  So have objects: those of rank 0's files, as dcp.save()
 * stores those of the coordinator alone.  They are in rank 0's file, behind its tensors.
 */
#include "reshard/form/form.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/dcp/dcp.h"
#include "reshard/format/dcp_frame.h"

#define METADATA ".metadata"

struct chunk {
	uint32_t tensor;
	struct meta_box box;		/* of the tensor; dense */
};

struct chunks {
	size_t nr, room;
	struct chunk *at;
};

/* --- which rank has which chunks --- */

/* Of the entries and ranks that hold the same, the first ones have it. */
static bool is_first(const struct meta_view *view, const struct meta_entry *e, uint32_t rank)
{
	uint32_t coords[SC_AXES_MAX];

	if (e != &view->entries[view->first[e->tensor]])
		return false;
	meta_topology_coords(view->topo, rank, coords);
	return meta_entry_is_first(view, e, coords);
}

static int chunks_of(const struct meta_view *view, uint32_t rank, struct chunks *ret, struct sc_err *err)
{
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	int rc = meta_view_rank(view, rank, NULL, &arena, &list, err);

	for (size_t i = 0; rc == 0 && i < list.nr; i++) {
		const struct meta_stored *s = &list.at[i];

		for (uint32_t b = 0; rc == 0 && is_first(view, s->entry, rank) && b < s->piece.nr_boxes; b++) {
			struct chunk c = {s->entry->tensor, s->piece.boxes[b]};
			uint64_t stride = 1;

			if (c.box.copy)
				continue;
			c.box.at = 0;
			for (int k = c.box.nr - 1; k >= 0; k--) {
				c.box.stride[k] = stride;
				stride *= c.box.ext[k];
			}
			rc = sc_vec_push(ret, c) < 0 ? sc_nomem(err) : 0;
		}
	}
	sc_vec_done(&list);
	sc_arena_done(&arena);
	return rc;
}

/* --- objects --- */

struct objects {
	struct sc_arena arena;
	size_t nr, room;
	struct rs_object *at;
	const char **keys;		/* of each, FILE:NAME as tensors have them */
	size_t keys_room;
	const struct meta_view *view;
	const struct rs_origins *o;
	struct sc_err *err;
};

static int add_objects(void *arg, const char *file, const char *logical)
{
	struct objects *to = arg;
	struct meta_stored_list list = {0};
	struct rs_object *found = NULL;
	const struct meta_tensor *first;
	const struct rs_format_ops *format;
	const char *payload = NULL;
	size_t bytes = 0, nr = 0;
	int rc = meta_view_rank(to->view, 0, file, &to->arena, &list, to->err);

	first = rc == 0 && list.nr ? &to->view->state->tensors[list.at[0].entry->tensor] : NULL;
	sc_vec_done(&list);
	if (!first)
		return rc;
	format = to->o->format_of(to->o->arg, to->o->view_of(to->o->arg, first));
	rc = to->o->payload(to->o, to->o->payload_of(to->o->arg, to->view, 0, file, first), first, &to->arena, &payload,
			    &bytes, to->err);
	if (rc == 0)
		rc = rs_format_objects(format, payload, bytes, &to->arena, &found, &nr, to->err);
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		const char *key = sc_arena_join(&to->arena, logical, ':', found[i].name);

		found[i].name = rs_form_flat_path(&to->arena, found[i].name);
		if (!key || !found[i].name ||
		    sc_vec_grow((void **)&to->keys, to->nr, &to->keys_room, sizeof(*to->keys)) < 0)
			return sc_nomem(to->err);
		to->keys[to->nr] = key;
		if (sc_vec_push(to, found[i]) < 0)
			return sc_nomem(to->err);
	}
	return rc < 0 ? sc_wrap(to->err, rc, "'%s'", file) : 0;
}

static int objects_of(const struct meta_view *view, uint32_t rank, const struct rs_origins *o, struct objects *ret,
		      struct sc_err *err)
{
	*ret = (struct objects){.view = view, .o = o, .err = err};
	return rank == 0 ? meta_view_files(view, 0, add_objects, ret) : 0;
}

static void objects_done(struct objects *objects)
{
	sc_sys.release(objects->keys);
	sc_vec_done(objects);
	sc_arena_done(&objects->arena);
}

static struct rs_wanted wanted_of(const struct meta_view *view, const struct chunk *c)
{
	const struct meta_tensor *t = &view->state->tensors[c->tensor];
	struct rs_wanted w = {.name = t->key, .dtype = t->dtype, .shape.nr = c->box.nr}; /* the name is for errors */

	memcpy(w.shape.dim, c->box.ext, sizeof(w.shape.dim));
	return w;
}

#define NAME_BYTES 64

static void file_of(uint64_t version, uint32_t rank, char ret[NAME_BYTES])
{
	(void)snprintf(ret, NAME_BYTES, "%" PRIu64 "/__%u_0.distcp", version, rank);
}

/* The rank of a file, or -1. */
static int64_t rank_of(const struct meta_view *view, uint64_t version, const char *file)
{
	const char *slash = strrchr(file, '/'), *number = slash ? slash + 3 : "";
	char name[NAME_BYTES];
	uint32_t rank;

	if (!slash || strncmp(slash, "/__", 3) != 0 || !sc_number_parse(number, strcspn(number, "_"), &rank) ||
	    rank >= view->topo->ranks)
		return -1;
	file_of(version, rank, name);
	return strcmp(name, file) == 0 ? rank : -1;
}

static int files(const struct rs_formed *x, uint32_t zero, rs_form_file_fn *each, void *arg, struct sc_err *err)
{
	int rc = each(arg, METADATA);

	(void)zero;
	for (uint32_t rank = 0; rc == 0 && rank < x->view->topo->ranks; rank++) {
		struct chunks chunks = {0};
		struct objects objects = {0};
		char name[NAME_BYTES];

		file_of(x->version, rank, name);
		rc = chunks_of(x->view, rank, &chunks, err);
		if (rc == 0 && !chunks.nr)
			rc = objects_of(x->view, rank, x->origins, &objects, err);
		if (rc == 0 && (chunks.nr || objects.nr))
			rc = each(arg, name);
		sc_vec_done(&chunks);
		objects_done(&objects);
	}
	return rc;
}

/* Its folder's name. */
static bool version_of(const char *name, uint32_t *ret)
{
	return sc_number_parse(name, strlen(name), ret);
}

/* --- a rank's file --- */

static int describe_rank(struct rs_image *im, const struct meta_view *view, const struct chunks *chunks,
			 const struct objects *objects, const struct rs_origins *o, struct sc_err *err)
{
	struct rs_wanted *wanted = sc_zalloc_array(chunks->nr + 1, sizeof(*wanted));
	int rc = wanted ? 0 : sc_nomem(err);

	for (size_t i = 0; rc == 0 && i < chunks->nr; i++)
		wanted[i] = wanted_of(view, &chunks->at[i]);
	if (rc == 0)
		rc = rs_dcp_describe(wanted, (uint32_t)chunks->nr, objects->at, objects->nr, &im->frame, err);
	sc_sys.release(wanted);
	if (rc < 0)
		return rc;
	im->bytes = im->frame.bytes;
	im->nr = (uint32_t)chunks->nr;
	im->gathers = sc_arena_array(&im->frame.arena, chunks->nr + 1, sizeof(*im->gathers));
	if (!im->gathers)
		return sc_nomem(err);
	for (size_t i = 0; rc == 0 && i < chunks->nr; i++) {
		const struct meta_tensor *t = &view->state->tensors[chunks->at[i].tensor];
		struct rs_gather *g = &im->gathers[i];

		g->bytes = meta_box_elements(&chunks->at[i].box) * (meta_dtype_bits(t->dtype) / 8);
		rc = rs_image_plan(im, t, &chunks->at[i].box, g, o, err);
		rs_gather_finish(g);
	}
	rs_plan_done(&im->sources);
	return rc;
}

/* --- .metadata --- */

/* What is needed of a tensor until all its chunks are known. */
struct said {
	struct rs_dcp_tensor tensor;
	struct {
		size_t nr, room;
		struct rs_dcp_chunk *at;
	} chunks;
};

struct saying {
	const struct meta_view *view;
	uint64_t version;
	struct said *of;		/* each tensor of the state */
	struct objects objects;
	struct rs_dcp *dcp;
	struct sc_map lengths;		/* of items, by type and shape -> length */
	struct sc_arena arena;
	struct sc_err *err;
};

static int item_bytes(struct saying *s, const struct chunk *c, uint64_t *ret)
{
	const struct rs_wanted w = wanted_of(s->view, c);
	const size_t n = sizeof(uint64_t) * (1 + (size_t)w.shape.nr);
	uint64_t key[1 + SC_DIMS_MAX] = {(uint64_t)w.dtype}, *kept;

	memcpy(key + 1, w.shape.dim, w.shape.nr * sizeof(uint64_t));
	kept = sc_map_get(&s->lengths, (const char *)key, n);
	if (!kept) {
		uint64_t *at = sc_arena_alloc(&s->arena, n + sizeof(*ret));
		int rc = at ? rs_dcp_item_bytes(&w, &at[1 + w.shape.nr], s->err) : sc_nomem(s->err);

		if (rc < 0)
			return rc;
		memcpy(at, key, n);
		kept = &at[1 + w.shape.nr];
		if (sc_map_put(&s->lengths, (const char *)at, n, kept) < 0)
			return sc_nomem(s->err);
	}
	*ret = *kept;
	return 0;
}

static int say_rank(struct saying *s, uint32_t rank)
{
	struct chunks chunks = {0};
	uint64_t at = 0, bytes = 0;
	char name[NAME_BYTES], *file;
	int rc = chunks_of(s->view, rank, &chunks, s->err);

	file_of(s->version, rank, name);
	file = sc_arena_copy(&s->arena, name, strlen(name));
	for (size_t i = 0; rc == 0 && i < chunks.nr; i++) {
		const struct chunk *c = &chunks.at[i];
		const size_t n = (size_t)c->box.nr * sizeof(uint64_t);
		uint64_t *off = sc_arena_alloc(&s->arena, 2 * n + 1), *ext = off ? off + c->box.nr : NULL;

		rc = file && off ? item_bytes(s, c, &bytes) : sc_nomem(s->err);
		if (rc < 0)
			break;
		memcpy(off, c->box.off, n);
		memcpy(ext, c->box.ext, n);
		at += -at % RS_DCP_ITEM_ALIGN;
		if (sc_vec_push(&s->of[c->tensor].chunks, (struct rs_dcp_chunk){off, ext, file, at, bytes}) < 0)
			rc = sc_nomem(s->err);
		at += bytes;
	}
	for (size_t i = 0; rc == 0 && rank == 0 && i < s->objects.nr; i++) {
		const struct rs_object *o = &s->objects.at[i];

		at += -at % RS_DCP_ITEM_ALIGN;
		if (!file || sc_vec_push(&s->dcp->objects, (struct rs_dcp_object){o->name, file, at, o->bytes}) < 0)
			rc = sc_nomem(s->err);
		at += o->bytes;
	}
	sc_vec_done(&chunks);
	return rc;
}

static size_t names_of(const struct saying *s)
{
	return s->view->state->nr + s->objects.nr;
}

/* The name of a tensor, or after these of an object. */
static const char **name_at(struct saying *s, size_t i)
{
	const size_t nr = s->view->state->nr;

	return i < nr ? &s->of[i].tensor.name : &s->objects.at[i - nr].name;
}

static int refuse_equal(struct saying *s)
{
	struct sc_map names = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char *name = *name_at(s, i);

		if (sc_map_get(&names, name, strlen(name)))
			rc = sc_fail(s->err, SC_E_UNSUPPORTED, "two tensors or objects would have the name '%s'", name);
		else if (sc_map_put(&names, name, strlen(name), s) < 0)
			rc = sc_nomem(s->err);
	}
	sc_map_done(&names);
	return rc;
}

/* Names that two would have become those with their files. */
static int name_all(struct saying *s, const struct rs_origins *o)
{
	const struct meta_state *state = s->view->state;
	struct sc_map times = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < state->nr; i++) {
		s->of[i].tensor.name = rs_form_flat_name(&s->arena, o, &state->tensors[i]);
		rc = s->of[i].tensor.name ? 0 : sc_nomem(s->err);
	}
	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char *name = *name_at(s, i);
		uint32_t *n = sc_map_make(&times, name, strlen(name), &s->arena, sizeof(*n));

		if (n)
			++*n;
		else
			rc = sc_nomem(s->err);
	}
	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char **name = name_at(s, i);

		if (*(uint32_t *)sc_map_get(&times, *name, strlen(*name)) == 1)
			continue;
		*name = i < state->nr ? state->tensors[i].key : s->objects.keys[i - state->nr];
	}
	sc_map_done(&times);
	return rc < 0 ? rc : refuse_equal(s);
}

static int say_all(struct saying *s, const struct rs_origins *o, struct rs_dcp *ret)
{
	int rc = objects_of(s->view, 0, o, &s->objects, s->err);

	s->dcp = ret;
	if (rc == 0)
		rc = name_all(s, o);
	for (uint32_t rank = 0; rc == 0 && rank < s->view->topo->ranks; rank++)
		rc = say_rank(s, rank);
	for (uint32_t i = 0; rc == 0 && i < s->view->state->nr; i++) {
		const struct meta_tensor *t = &s->view->state->tensors[i];
		struct said *said = &s->of[i];

		said->tensor.dtype = t->dtype;
		said->tensor.dims = t->shape.nr;
		said->tensor.shape = t->shape.dim;
		said->tensor.nr = said->chunks.nr;
		said->tensor.chunks = said->chunks.at;
		rc = sc_vec_push(&ret->tensors, said->tensor) < 0 ? sc_nomem(s->err) : 0;
	}
	return rc;
}

static int describe_metadata(struct rs_image *im, const struct meta_view *view, uint64_t version,
			     const struct rs_origins *o, struct sc_err *err)
{
	struct saying s = {.view = view, .version = version, .err = err};
	struct sc_buf text = {0};
	struct rs_dcp dcp = {0};
	int rc;

	s.of = sc_zalloc_array(view->state->nr + 1, sizeof(*s.of));
	rc = s.of ? say_all(&s, o, &dcp) : sc_nomem(err);
	if (rc == 0)
		rc = rs_dcp_emit(&dcp, &text, err);
	if (rc == 0)
		rc = rs_image_text(im, text.text, text.bytes, err);
	for (uint32_t i = 0; s.of && i < view->state->nr; i++)
		sc_vec_done(&s.of[i].chunks);
	sc_sys.release(s.of);
	sc_buf_done(&text);
	rs_dcp_done(&dcp);
	objects_done(&s.objects);
	sc_map_done(&s.lengths);
	sc_arena_done(&s.arena);
	return rc;
}

static int image(const struct rs_formed *x, uint32_t zero, const char *file, bool as_view, struct rs_image **ret,
		 struct sc_err *err)
{
	struct rs_image *im = sc_zalloc(sizeof(*im));
	const int64_t rank = rank_of(x->view, x->version, file);
	struct objects objects = {0};
	struct chunks chunks = {0};
	int rc = im ? 0 : sc_nomem(err);

	(void)zero;
	(void)as_view;
	if (rc == 0 && strcmp(file, METADATA) == 0) {
		rc = describe_metadata(im, x->view, x->version, x->origins, err);
	} else if (rc == 0) {
		rc = rank < 0 ? 0 : chunks_of(x->view, (uint32_t)rank, &chunks, err);
		if (rc == 0 && rank >= 0)
			rc = objects_of(x->view, (uint32_t)rank, x->origins, &objects, err);
		if (rc == 0 && !chunks.nr && !objects.nr)
			rc = sc_fail(err, SC_E_NOT_FOUND, "there is no file '%s'", file);
		if (rc == 0)
			rc = describe_rank(im, x->view, &chunks, &objects, x->origins, err);
	}
	sc_vec_done(&chunks);
	objects_done(&objects);
	if (rc < 0)
		rs_image_free(im);
	else
		*ret = im;
	return rc < 0 ? sc_wrap(err, rc, "'%s'", file) : 0;
}

const struct rs_form rs_form_dcp = {
	.mark = '!', .tensors_alone = true, .one_folder = true, .small_reads = true,
	.files = files, .image = image, .version_of = version_of,
};
