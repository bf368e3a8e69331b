/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the .metadata of a folder that .dcp shows. */
#include <string.h>

#include "reshard/codec/dcp/dcp.h"
#include "reshard/codec/format/dcp_frame.h"
#include "reshard/checkpoint/export/form_dcp_i.h"

/* A tensor, as long as its chunks are being collected. */
struct said {
	bool is;			/* it is in this folder */
	struct rs_dcp_tensor tensor;
	struct {
		size_t nr, room;
		struct rs_dcp_chunk *at;
	} chunks;
};

struct saying {
	const struct rs_form_folder *folder;
	const struct meta_view *view;
	struct said *of;		/* each tensor of the state */
	struct rs_form_objects objects;
	struct rs_dcp *dcp;
	struct sc_map lengths;		/* of items, by type and shape -> length */
	struct sc_arena arena;
	struct sc_err *err;
};

static int item_bytes(struct saying *s, const struct rs_form_chunk *c, uint64_t *ret)
{
	const struct rs_wanted w = rs_form_wanted_of(s->view, c);
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
	struct rs_form_chunks chunks = {0};
	uint64_t at = 0, bytes = 0;
	char name[RS_FORM_DCP_NAME_BYTES], *file;
	int rc = rs_form_chunks_of(s->folder, rank, &chunks, s->err);

	rs_form_dcp_file(s->folder->x->version, rank, name);
	file = sc_arena_copy(&s->arena, name, strlen(name));
	for (size_t i = 0; rc == 0 && i < chunks.nr; i++) {
		const struct rs_form_chunk *c = &chunks.at[i];
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

/* Gives the place of a name: of the i-th tensor, or, behind the tensors, of an object; NULL: it is in another
 * folder. */
static const char **name_at(struct saying *s, size_t i)
{
	const size_t nr = s->view->state->nr;

	if (i < nr && !s->of[i].is)
		return NULL;
	return i < nr ? &s->of[i].tensor.name : &s->objects.at[i - nr].name;
}

static int refuse_equal(struct saying *s)
{
	struct sc_map names = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char *name = name_at(s, i) ? *name_at(s, i) : NULL;

		if (!name)
			continue;
		if (sc_map_get(&names, name, strlen(name)))
			rc = sc_fail(s->err, SC_E_UNSUPPORTED, "two tensors or objects would have the name '%s'", name);
		else if (sc_map_put(&names, name, strlen(name), s) < 0)
			rc = sc_nomem(s->err);
	}
	sc_map_done(&names);
	return rc;
}

/* Names all; a name that two would have gets the name of the file in front. */
static int name_all(struct saying *s)
{
	const struct meta_state *state = s->view->state;
	struct sc_map times = {0};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < state->nr; i++) {
		s->of[i].is = rs_form_folder_has(s->folder, &state->tensors[i]) &&
			      !meta_tensor_padding(state->tensors[i].name, NULL);
		if (!s->of[i].is)
			continue;
		s->of[i].tensor.name = rs_form_flat_name(&s->arena, s->folder->x->origins, &state->tensors[i]);
		rc = s->of[i].tensor.name ? 0 : sc_nomem(s->err);
	}
	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char **name = name_at(s, i);
		uint32_t *n = name ? sc_map_make(&times, *name, strlen(*name), &s->arena, sizeof(*n)) : NULL;

		if (n)
			++*n;
		else if (name)
			rc = sc_nomem(s->err);
	}
	for (size_t i = 0; rc == 0 && i < names_of(s); i++) {
		const char **name = name_at(s, i);

		if (!name || *(uint32_t *)sc_map_get(&times, *name, strlen(*name)) == 1)
			continue;
		*name = i < state->nr ? state->tensors[i].key : s->objects.keys[i - state->nr];
	}
	sc_map_done(&times);
	return rc < 0 ? rc : refuse_equal(s);
}

/* The shape of a tensor, with the rows of padding that ranks show of a checkpoint's; NULL: out of memory. */
static const uint64_t *shape_of(struct saying *s, const struct meta_tensor *t)
{
	const struct meta_view *view = s->view;
	struct meta_shape shape = t->shape;
	bool padded = false;

	for (int k = 0; s->folder->logical && k < shape.nr; k++) {
		const struct meta_tensor *p = meta_state_padding(view->state, t->key, k);

		shape.dim[k] += p ? view->entries[view->first[p - view->state->tensors]].rows : 0;
		padded |= p != NULL;
	}
	return padded ? (const uint64_t *)(void *)sc_arena_copy(&s->arena, (const char *)shape.dim, sizeof(shape.dim))
		      : t->shape.dim;
}

static int say_all(struct saying *s, struct rs_dcp *ret)
{
	int rc = rs_form_objects_of(s->folder, 0, &s->objects, s->err);

	s->dcp = ret;
	if (rc == 0)
		rc = name_all(s);
	for (uint32_t rank = 0; rc == 0 && rank < s->view->topo->ranks; rank++)
		rc = say_rank(s, rank);
	for (uint32_t i = 0; rc == 0 && i < s->view->state->nr; i++) {
		const struct meta_tensor *t = &s->view->state->tensors[i];
		struct said *said = &s->of[i];

		if (!said->is)
			continue;
		said->tensor.dtype = t->dtype;
		said->tensor.dims = t->shape.nr;
		said->tensor.shape = shape_of(s, t);
		if (!said->tensor.shape)
			return sc_nomem(s->err);
		said->tensor.nr = said->chunks.nr;
		said->tensor.chunks = said->chunks.at;
		rc = sc_vec_push(&ret->tensors, said->tensor) < 0 ? sc_nomem(s->err) : 0;
	}
	return rc;
}

int rs_form_dcp_metadata(struct rs_image *im, const struct rs_form_folder *folder, struct sc_err *err)
{
	const struct meta_view *view = folder->x->view;
	struct saying s = {.folder = folder, .view = view, .err = err};
	struct sc_buf text = {0};
	struct rs_dcp dcp = {0};
	int rc;

	s.of = sc_zalloc_array(view->state->nr + 1, sizeof(*s.of));
	rc = s.of ? say_all(&s, &dcp) : sc_nomem(err);
	if (rc == 0)
		rc = rs_dcp_emit(&dcp, &text, err);
	if (rc == 0)
		rc = rs_image_text(im, text.text, text.bytes, err);
	for (uint32_t i = 0; s.of && i < view->state->nr; i++)
		sc_vec_done(&s.of[i].chunks);
	sc_sys.release(s.of);
	sc_buf_done(&text);
	rs_dcp_done(&dcp);
	rs_form_objects_done(&s.objects);
	sc_map_done(&s.lengths);
	sc_arena_done(&s.arena);
	return rc;
}
