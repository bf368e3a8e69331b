/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses a new presentation that no file could lay out.  If each rank has given its file objects of its own, tensors
 * have places among these objects, and tensors that were not in the file may find no place.  And the last stage of a
 * pipeline has a tied copy only of a tensor that exists.
 */
#include "reshard/command/commands/command_i.h"

#include "reshard/engine/io/image.h"

#include <string.h>

struct formless {
	struct rs_version *draft;
	struct rs_origins origins;
	const struct meta_view *view;
	uint32_t rank;
	struct sc_err *err;
};

/* Tells whether ranks of a draft have tensors of the same names as when the set was written: these follow from the
 * stage and the experts of a rank, and from the layout. */
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

/* Finds the first rule that says tied= with a plain name; NULL: no rule does, or the pipeline has one stage. */
static const struct meta_rule *tied_rule(const struct rs_version *draft)
{
	const struct meta_layout *l = draft->layout;

	for (uint32_t i = 0; draft->topo.pp > 1 && draft->nr_sets && i < l->nr_rules; i++)
		if (l->rules[i].tied && l->rules[i].goal.nr == 1 && l->rules[i].goal.tokens->kind == META_TOKEN_LIT)
			return &l->rules[i];
	return NULL;
}

/* Refuses tied= rules of which none places a copy.  One that places nothing beside one that does is no mistake: a
 * version may have no optimizer. */
static int refuse_lost_tie(const struct meta_view *view, const struct meta_rule *tied, struct sc_err *err)
{
	for (uint32_t i = 0; i < view->nr_entries; i++)
		if (view->entries[i].rule->tied)
			return 0;
	return sc_fail(err, SC_E_STATE, "tied= of the layout's rule '%s' names a tensor that this version does not "
		       "have, so the last stage of pp=%u would get no copy; correct the name, leave tied= out, or "
		       "write suspicious=accept to config", tied->text, view->topo->pp);
}

int rs_refuse_formless(const struct rs_advance *a, struct sc_err *err)
{
	const struct meta_rule *tied = rs_config_of(a->job).accept_suspicious ? NULL : tied_rule(a->draft);
	struct rs_version *draft = a->draft;
	struct formless f = {.draft = draft, .origins = rs_origins_of(a->job->service, draft), .err = err};
	struct meta_view *view = NULL;
	bool any = false;
	int rc;

	for (size_t i = 0; i < draft->nr_sets; i++) {
		const struct rs_set *given = rs_set_given(draft->sets[i]);

		any |= given->has_payloads && !has_same_names(given, draft);
	}
	if (!any && !tied)
		return 0;
	rc = meta_view_new(draft->layout, &draft->topo, &a->base->version->tensors->all, &view, err);
	f.view = view;
	if (rc == 0 && tied)
		rc = refuse_lost_tie(view, tied, err);
	for (f.rank = 0; any && rc == 0 && f.rank < draft->topo.ranks; f.rank++)
		rc = meta_view_files(view, f.rank, on_file, &f);
	meta_view_free(view);
	return rc;
}
