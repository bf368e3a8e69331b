/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files a new presentation could not lay out.  Where each rank has given its file objects of its own, tensors
 * have a place among them; other tensors than those that were there may find none.
 */
#include "reshard/command/command_i.h"

#include "reshard/engine/image.h"

#include <string.h>

struct formless {
	struct rs_version *draft;
	struct rs_origins origins;
	const struct meta_view *view;
	uint32_t rank;
	struct sc_err *err;
};

/* Which tensors a rank has follows from its stage and its experts, and from the names in the layout. */
static bool has_same_names(const struct rs_set *given, const struct rs_version *draft)
{
	const struct meta_topology *a = &given->topo, *b = &draft->topo;

	return given->layout_id == draft->layout_id && a->pp == b->pp && a->ep == b->ep && a->vp == b->vp &&
	       a->nr_stages == b->nr_stages &&
	       (!a->nr_stages || memcmp(a->stages, b->stages, a->chunks * sizeof(*a->stages)) == 0);
}

static int on_file(void *arg, const char *file, const char *logical)
{
	struct formless *f = arg;
	const struct rs_set *given = rs_set_given(rs_version_set(f->draft, logical));
	struct rs_image *im = NULL;
	int rc;

	if (!given->has_payloads || has_same_names(given, f->draft))
		return 0;
	rc = rs_image_new(f->view, f->rank, file, true, &f->origins, &im, f->err);
	rs_image_free(im);
	return rc < 0 ? sc_wrap(f->err, rc, "rank %u", f->rank) : 0;
}

int rs_refuse_formless(const struct rs_advance *a, struct sc_err *err)
{
	struct rs_version *draft = a->draft;
	struct formless f = {.draft = draft, .origins = rs_origins_of(a->job->service, draft), .err = err};
	struct meta_view *view = NULL;
	bool any = false;
	int rc;

	for (size_t i = 0; i < draft->nr_sets; i++) {
		const struct rs_set *given = rs_set_given(draft->sets[i]);

		any |= given->has_payloads && !has_same_names(given, draft);
	}
	if (!any)
		return 0;
	rc = meta_view_new(draft->layout, &draft->topo, &a->base->version->state, &view, err);
	f.view = view;
	for (f.rank = 0; rc == 0 && f.rank < draft->topo.ranks; f.rank++)
		rc = meta_view_files(view, f.rank, on_file, &f);
	meta_view_free(view);
	return rc;
}
