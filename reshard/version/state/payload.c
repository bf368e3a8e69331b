/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the payload that a rank's file has in a view, if each rank has given its file a payload of its own. */
#include "reshard/engine/io/image.h"
#include "reshard/version/state/state_i.h"

#include <string.h>

uint64_t rs_payload_of(const struct rs_version *v, const struct meta_view *view, uint32_t rank, const char *file,
		       const struct meta_tensor *like)
{
	const struct rs_set *given = rs_set_given(rs_version_set(v, like->file));
	const struct rs_set_blob *b;
	uint32_t from;

	if (!given->has_payloads)
		return 0;
	from = rs_same_coordinates(view, rank, given->view, false);
	b = rs_set_find(given, from, file);
	if (!b) /* a replica whose file was not written */
		b = rs_set_find(given, meta_view_alike(given->view, from, file), file);
	/* coordinates are in its name, or the stage had no such file */
	for (size_t i = 0; !b && i < given->nr_blobs; i++)
		b = given->blobs[i].rank == from ? &given->blobs[i] : NULL;
	return b ? b->payload : given->blobs[0].payload;
}

struct copying {
	struct sc_arena *arena;
	const char **ret;
	size_t *ret_bytes;
	struct sc_err *err;
};

static int on_payload(void *arg, const void *payload, size_t bytes)
{
	struct copying *c = arg;

	*c->ret = sc_arena_copy(c->arena, payload, bytes);
	*c->ret_bytes = bytes;
	return *c->ret ? 0 : sc_nomem(c->err);
}

int rs_payload_read(const struct rs_origins *o, uint64_t number, const struct meta_tensor *like, struct sc_arena *arena,
		    const char **ret, size_t *ret_bytes, struct sc_err *err)
{
	struct copying c = {arena, ret, ret_bytes, err};

	if (number)
		return meta_payload_get(o->catalog, number, on_payload, &c, err);
	*ret = rs_version_set(o->arg, like->file)->payload;
	*ret_bytes = *ret ? strlen(*ret) : 0;
	return 0;
}

uint32_t rs_view_alike(const struct rs_view *view, uint32_t rank, const char *file)
{
	const struct rs_version *v = view->version;
	uint32_t like = meta_view_alike(view->model, rank, file);
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	struct sc_err ignored;
	bool differ = false;

	for (size_t i = 0; like != rank && i < v->nr_sets; i++)
		differ |= rs_set_given(v->sets[i])->has_payloads;
	if (!differ)
		return like;
	if (meta_view_rank(view->model, rank, file, &arena, &list, &ignored) == 0 && list.nr) {
		const struct meta_tensor *t = &v->tensors->all.tensors[list.at[0].entry->tensor];

		differ = rs_payload_of(v, view->model, rank, file, t) != rs_payload_of(v, view->model, like, file, t);
	}
	sc_vec_done(&list);
	sc_arena_done(&arena);
	return differ ? rank : like;
}
