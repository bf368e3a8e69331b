/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the position of a version in each of its datasets, and how ranks share the samples that come next. */
#include "reshard/version/state/state_i.h"

#include <string.h>

int rs_data_at(const struct rs_version *v, size_t first, size_t *ret_next, struct rs_data_at *ret,
	       struct sc_err *err)
{
	const char *name = v->data.at[first].corpus->spec.name;
	const struct rs_use *use = &v->data.at[first], *later = NULL;
	uint64_t consumed;
	struct meta_at at;
	size_t i = first + 1;
	int rc;

	/* of one name, the last that has begun; and what comes after it */
	for (; i < v->data.nr && strcmp(v->data.at[i].corpus->spec.name, name) == 0; i++) {
		if (v->data.at[i].from_samples <= v->samples)
			use = &v->data.at[i];
		else if (!later)
			later = &v->data.at[i];
	}
	*ret_next = i;
	consumed = v->samples > use->from_samples ? v->samples - use->from_samples : 0;
	rc = meta_deal_seek(&use->corpus->spec.deal, use->corpus->samples, consumed, &at, err);
	if (rc < 0)
		return sc_wrap(err, rc, "dataset '%s'", name);
	*ret = (struct rs_data_at){.corpus = use->corpus, .epoch = use->from_epoch + at.epoch, .position = at.position,
				   .next = use->corpus, .epoch_begin = use->from_samples + consumed - at.position};
	if (later && later->from_epoch == ret->epoch + 1)
		ret->next = later->corpus;
	return 0;
}

static int deal(struct rs_view *view, struct rs_view_data *d, struct sc_err *err)
{
	struct meta_share share;
	int rc;

	d->ranks = meta_topology_degree(&view->topo, d->axes);
	rc = meta_share_init(&d->at.corpus->spec.deal, d->at.corpus->samples, d->at.position, d->ranks, 0, &share, err);
	if (rc == 0)
		rc = meta_share_init(&d->at.next->spec.deal, d->at.next->samples, 0, d->ranks, 0, &share, err);
	return rc < 0 ? sc_wrap(err, rc, "dataset '%s'", d->at.corpus->spec.name) : 0;
}

int rs_data_deal(struct rs_view *view, struct sc_err *err)
{
	const struct rs_version *v = view->version;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->data.nr;) {
		struct rs_view_data d = {0};

		rc = rs_data_axes(&v->data.at[i].corpus->spec, v->layout, &d.axes, err);
		if (rc == 0)
			rc = rs_data_at(v, i, &i, &d.at, err);
		if (rc == 0)
			rc = deal(view, &d, err);
		if (rc == 0 && sc_vec_push(&view->data, d) < 0)
			rc = sc_nomem(err);
	}
	return rc;
}
