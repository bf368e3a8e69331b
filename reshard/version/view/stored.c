/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares what a version lists with what its storage has.  The view of a set, made when the set was written, says
 * where its tensors are; a presentation with the same places needs no other storage.
 *
 * Before a storage is dropped because a new one has taken its place, all that the new one lists is looked up: each
 * rank's blob, and in its header each tensor.  No bytes are read.
 */
#include "meta/catalog/nodes.h"
#include "reshard/version/view/shown_i.h"

int rs_view_check_written(const struct rs_view *view, const struct meta_state *inferred, struct sc_err *err)
{
	const struct rs_version *v = view->version;

	for (size_t i = 0; i < v->nr_sets; i++) {
		if (v->sets[i]->id)
			continue;
		if (!view->as_stored[i])
			return sc_fail(err, SC_E_STATE, "'%s': the layout would place tensors elsewhere than the "
				"ranks wrote them",
			v->sets[i]->file);
		__atomic_store_n(&v->sets[i]->found, true, __ATOMIC_RELAXED);
	}
	for (uint32_t t = 0; t < inferred->nr; t++)
		if (!meta_state_find(&v->tensors->all, inferred->tensors[t].key))
			return sc_fail(err, SC_E_STATE, "tensor '%s' would not be in any file of the version",
				inferred->tensors[t].key);
	return 0;
}

int rs_set_is_here(struct rs_service *s, const struct rs_set *set, struct sc_err *err)
{
	uint64_t number;
	uint32_t node;
	int away = 0;

	for (size_t i = 0; !away && i < set->nr_blobs; i++)
		away = meta_blob_away(s->catalog, set->blobs[i].blob, &node, &number, err);
	return away < 0 ? away : !away;
}

static int look_up_tensor(struct rs_service *s, const struct rs_set *set, uint32_t rank, const struct meta_stored *t,
			  struct sc_err *err)
{
	const struct meta_tensor *x = &set->state.tensors[t->entry->tensor];
	const struct rs_set_blob *b = rs_set_find(set, rank, t->file);
	const struct rs_found_tensor *at;
	struct rs_blob *blob = NULL;
	struct sc_err ignored;
	uint64_t number;
	uint32_t node;
	bool good;
	int rc;

	if (!b)
		return sc_fail(err, SC_E_STATE, "rank %u '%s' should hold tensor '%s', but no such file is stored",
			rank,
	       t->file, x->key);
	rc = rs_blob_get(s->blobs, b->blob, set->format, b->bytes, &blob, err);
	/* the node that has the bytes has looked before it told of them */
	if (rc < 0 && meta_blob_away(s->catalog, b->blob, &node, &number, &ignored) > 0)
		return 0;
	if (rc < 0)
		return sc_wrap(err, rc, "rank %u '%s'", rank, t->file);
	at = rs_found_tensor(&blob->found, t->name);
	good = at && at->dtype == x->dtype && meta_shape_equal(&at->shape, &t->piece.shape);
	rs_blob_put(s->blobs, blob);
	return good ? 0
		    : sc_fail(err, SC_E_STATE, "rank %u '%s' should hold tensor '%s', but the stored file %s", rank,
				t->file,
	  x->key, at ? "holds it with another type or shape" : "does not");
}

static int look_up_rank(struct rs_service *s, const struct rs_set *set, uint32_t rank, struct sc_err *err)
{
	struct meta_stored_list list = {0};
	struct sc_arena arena = {0};
	int rc = meta_view_rank(set->view, rank, NULL, &arena, &list, err);

	for (size_t i = 0; rc == 0 && i < list.nr; i++) {
		uint32_t like = meta_view_alike(set->view, rank, list.at[i].file);
		const struct rs_set_blob *mine = rs_set_find(set, rank, list.at[i].file);
		const struct rs_set_blob *other = like == rank ? NULL : rs_set_find(set, like, list.at[i].file);

		/* replicas that share a blob: it was looked at */
		if (!list.at[i].part && (!mine || !other || mine->blob != other->blob))
			rc = look_up_tensor(s, set, rank, &list.at[i], err);
	}
	sc_vec_done(&list);
	sc_arena_done(&arena);
	return rc;
}

int rs_set_look_up(struct rs_service *s, struct rs_set *set, struct sc_err *err)
{
	int rc = 0;

	if (__atomic_load_n(&set->found, __ATOMIC_RELAXED))
		return 0;
	for (uint32_t rank = 0; rc == 0 && rank < set->topo.ranks; rank++)
		rc = look_up_rank(s, set, rank, err);
	if (rc == 0)
		__atomic_store_n(&set->found, true, __ATOMIC_RELAXED);
	return rc;
}

int rs_version_look_up(struct rs_service *s, const struct rs_version *v, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		rc = rs_set_look_up(s, v->sets[i], err);
	return rc;
}
