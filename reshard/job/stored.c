/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a version lists and what its storage has.  A set's view, made when it was written, says where its tensors are;
 * a presentation with the same places needs no other storage.
 */
#include "reshard/job/service_i.h"

int rs_view_note_stored(struct rs_view *view, struct sc_err *err)
{
	const struct rs_version *v = view->version;

	view->as_stored = sc_zalloc_array(v->nr_sets + 1, sizeof(*view->as_stored));
	if (!view->as_stored)
		return sc_nomem(err);
	for (size_t i = 0; i < v->nr_sets; i++)
		view->as_stored[i] = v->sets[i]->view && meta_view_agrees(v->sets[i]->view, view->model);
	return 0;
}

bool rs_view_is_materialized(const struct rs_view *view)
{
	const struct rs_version *v = view->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->kind == META_SET_TENSORS && !view->as_stored[i])
			return false;
	return true;
}
