/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the contents of a folder that .dcp shows: its tensors, the ranks that have boxes of them, its objects. */
#include "reshard/checkpoint/export/form_dcp_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- folders --- */

bool rs_form_is_placed(const struct rs_formed *x, const struct meta_tensor *t)
{
	return !x->origins->view_of(x->origins->arg, t);
}

bool rs_form_folder_has(const struct rs_form_folder *f, const struct meta_tensor *t)
{
	return f->logical ? strcmp(f->logical, t->file) == 0 : !rs_form_is_placed(f->x, t);
}

bool rs_form_folder_at(const struct rs_formed *x, const char *path, size_t bytes, struct rs_form_folder *ret)
{
	const struct meta_state *state = x->view->state;
	const char *last = "";

	*ret = (struct rs_form_folder){x, bytes ? bytes + 1 : 0, path, NULL};
	for (uint32_t i = 0; bytes && !ret->logical && i < state->nr; i++) {
		const char *logical = state->tensors[i].file;

		if (strcmp(last, logical) != 0 && strncmp(path, logical, bytes) == 0 &&
		    strcmp(logical + bytes, RS_FORM_FOLDER_SUFFIX) == 0 && rs_form_is_placed(x, &state->tensors[i]))
			ret->logical = logical;
		last = logical;
	}
	return !bytes || ret->logical;
}

int rs_form_each_folder(const struct rs_formed *x, int (*each)(void *arg, const struct rs_form_folder *folder),
			void *arg)
{
	const struct meta_state *state = x->view->state;
	const struct rs_form_folder own = {.x = x, .path = ""};
	const char *last = "";
	bool any = state->nr == 0;
	int rc = 0;

	for (uint32_t i = 0; !any && i < state->nr; i++)
		any = rs_form_folder_has(&own, &state->tensors[i]);
	if (any)
		rc = each(arg, &own);
	for (uint32_t i = 0; rc == 0 && i < state->nr; i++) {
		const char *logical = state->tensors[i].file;

		if (strcmp(last, logical) != 0 && rs_form_is_placed(x, &state->tensors[i]))
			rc = each(arg, &(struct rs_form_folder){x, strlen(logical) - strlen(RS_FORM_FOLDER_SUFFIX) + 1,
							       logical, logical});
		last = logical;
	}
	return rc;
}

/* --- which rank has which chunks --- */

/* Tells whether an entry and a rank are the first of those that hold a box: these write it. */
static bool is_first(const struct meta_view *view, const struct meta_entry *e, uint32_t rank)
{
	uint32_t coords[SC_AXES_MAX];

	if (e != &view->entries[view->first[e->tensor]])
		return false;
	meta_topology_coords(view->topo, rank, coords);
	return meta_entry_is_first(view, e, coords);
}

int rs_form_chunks_of(const struct rs_form_folder *f, uint32_t rank, struct rs_form_chunks *ret, struct sc_err *err)
{
	const struct meta_view *view = f->x->view;
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	int rc = meta_view_rank(view, rank, f->logical, &arena, &list, err);

	for (size_t i = 0; rc == 0 && i < list.nr; i++) {
		const struct meta_stored *s = &list.at[i];
		const struct meta_tensor *t = &view->state->tensors[s->entry->tensor];
		/* a folder of ranks' files has whole tensors, without padding; a checkpoint had that, and has it */
		const struct meta_tensor *behind = s->entry->behind;
		const bool has = (!behind || f->logical) && is_first(view, s->entry, rank) && rs_form_folder_has(f, t);

		for (uint32_t b = 0; rc == 0 && has && b < s->piece.nr_boxes; b++) {
			struct rs_form_chunk c = {s->entry->tensor, s->piece.boxes[b]};
			uint64_t stride = 1;

			if (c.box.copy)
				continue;
			if (behind) {
				c.tensor = (uint32_t)(behind - view->state->tensors);
				c.box.off[s->entry->dim] += behind->shape.dim[s->entry->dim];
			}
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

static int add_object(struct rs_form_objects *to, const char *logical, const char *path, struct rs_object object)
{
	const char *key = sc_arena_join(&to->arena, logical, ':', path);

	if (!key || !object.name || sc_vec_grow((void **)&to->keys, to->nr, &to->keys_room, sizeof(*to->keys)) < 0)
		return sc_nomem(to->err);
	to->keys[to->nr] = key;
	return sc_vec_push(to, object) < 0 ? sc_nomem(to->err) : 0;
}

static int add_objects(void *arg, const char *file, const char *logical)
{
	struct rs_form_objects *to = arg;
	const struct meta_view *view = to->x->view;
	const bool hidden = meta_file_is_hidden(file);
	const struct rs_origins *o = to->x->origins;
	struct meta_stored_list list = {0};
	struct rs_object *found = NULL;
	const struct meta_tensor *first;
	const struct rs_format_ops *format;
	const char *payload = NULL;
	size_t bytes = 0, nr = 0;
	int rc = hidden ? 0 : meta_view_rank(view, 0, file, &to->arena, &list, to->err);

	first = rc == 0 && list.nr ? &view->state->tensors[list.at[0].entry->tensor] : NULL;
	sc_vec_done(&list);
	if (!first || rs_form_is_placed(to->x, first))
		return rc;
	format = o->format_of(o->arg, o->view_of(o->arg, first));
	rc = o->payload(o, o->payload_of(o->arg, view, 0, file, first), first, &to->arena, &payload, &bytes, to->err);
	if (rc == 0)
		rc = rs_format_objects(format, payload, bytes, &to->arena, &found, &nr, to->err);
	for (size_t i = 0; rc == 0 && i < nr; i++) {
		const char *path = found[i].name;

		found[i].name = rs_form_flat_path(&to->arena, path);
		rc = add_object(to, logical, path, found[i]);
	}
	return rc < 0 ? sc_wrap(to->err, rc, "'%s'", file) : 0;
}

int rs_form_objects_of(const struct rs_form_folder *f, uint32_t rank, struct rs_form_objects *ret, struct sc_err *err)
{
	const struct rs_origins *o = f->x->origins;
	const struct rs_placed_objects *placed;
	int rc = 0;

	*ret = (struct rs_form_objects){.x = f->x, .err = err};
	if (rank == 0 && !f->logical)
		return meta_view_files(f->x->view, 0, add_objects, ret);
	if (rank != 0)
		return 0;
	placed = o->objects_of(o->arg, f->logical);
	ret->placed = placed->at;
	for (size_t i = 0; rc == 0 && i < placed->nr; i++) {
		const struct rs_placed_object *p = &placed->at[i];

		rc = add_object(ret, f->logical, p->name,
				(struct rs_object){.name = p->name, .bytes = p->bytes.box.ext[0]});
	}
	return rc;
}

void rs_form_objects_done(struct rs_form_objects *objects)
{
	sc_sys.release(objects->keys);
	sc_vec_done(objects);
	sc_arena_done(&objects->arena);
}

struct rs_wanted rs_form_wanted_of(const struct meta_view *view, const struct rs_form_chunk *c)
{
	const struct meta_tensor *t = &view->state->tensors[c->tensor];
	struct rs_wanted w = {.name = t->key, .dtype = t->dtype, .shape.nr = c->box.nr}; /* the name is for errors */

	memcpy(w.shape.dim, c->box.ext, sizeof(w.shape.dim));
	return w;
}

void rs_form_dcp_file(uint64_t version, uint32_t rank, char ret[RS_FORM_DCP_NAME_BYTES])
{
	(void)snprintf(ret, RS_FORM_DCP_NAME_BYTES, "%" PRIu64 "/__%u_0.distcp", version, rank);
}
