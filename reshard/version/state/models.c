/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares between versions and views what they have in common: tensors, and models, which are tensors on the ranks of a
 * topology.  With thousands of tensors each of these takes some 500 KiB, and each topology write of a job makes a
 * version, whose views stay for RS_LEAVING_NS (leaving.c).
 */
#include "reshard/version/state/state_i.h"

#include <string.h>

struct rs_tensors *rs_tensors_new(void)
{
	struct rs_tensors *tensors = sc_zalloc(sizeof(*tensors));

	if (tensors)
		tensors->refs = 1;
	return tensors;
}

struct rs_tensors *rs_tensors_ref(struct rs_tensors *tensors)
{
	(void)__atomic_add_fetch(&tensors->refs, 1, __ATOMIC_RELAXED);
	return tensors;
}

void rs_tensors_unref(struct rs_tensors *tensors)
{
	if (!tensors || __atomic_sub_fetch(&tensors->refs, 1, __ATOMIC_ACQ_REL))
		return;
	meta_state_done(&tensors->all);
	sc_sys.release(tensors);
}

uint64_t rs_tensors_bytes(struct rs_tensors *tensors, uint32_t *ret_nr)
{
	const struct meta_state *all = &tensors->all;
	uint64_t known = __atomic_load_n(&tensors->bytes, __ATOMIC_ACQUIRE), sum = 0, bytes;
	uint32_t nr = 0;

	for (uint32_t i = 0; !known && i < all->nr; i++) {
		if (meta_tensor_padding(all->tensors[i].name, NULL))
			continue;
		nr++;
		if (meta_tensor_bytes(all->tensors[i].dtype, &all->tensors[i].shape, &bytes))
			sum += bytes;
	}
	if (!known) {
		__atomic_store_n(&tensors->nr, nr, __ATOMIC_RELAXED);
		__atomic_store_n(&tensors->bytes, known = sum + 1, __ATOMIC_RELEASE);
	}
	*ret_nr = __atomic_load_n(&tensors->nr, __ATOMIC_RELAXED);
	return known - 1;
}

struct rs_model *rs_model_ref(struct rs_model *model)
{
	(void)__atomic_add_fetch(&model->refs, 1, __ATOMIC_RELAXED);
	return model;
}

void rs_model_unref(struct rs_model *model)
{
	if (!model || __atomic_sub_fetch(&model->refs, 1, __ATOMIC_ACQ_REL))
		return;
	meta_view_free(model->view);
	meta_topology_done(&model->topo);
	rs_tensors_unref(model->tensors);
	sc_sys.release(model);
}

static bool is_of(const struct rs_model *model, const struct rs_version *v, const struct meta_topology *topo)
{
	return model->tensors == v->tensors && model->view->layout == v->layout &&
	       strcmp(model->topo.text, topo->text) == 0;
}

/* Finds the model among the views that are kept, and those that leave.  Returns a reference, or NULL. */
static struct rs_model *find(struct rs_service *s, const struct rs_version *v, const struct meta_topology *topo)
{
	struct rs_model *found = NULL;

	(void)pthread_mutex_lock(&s->lock);
	for (const struct rs_view *view = s->views.first; view && !found; view = view->next)
		if (is_of(view->shared, v, topo))
			found = rs_model_ref(view->shared);
	for (size_t i = s->leaving.nr; i > 0 && !found; i--)
		if (is_of(s->leaving.at[i - 1].view->shared, v, topo))
			found = rs_model_ref(s->leaving.at[i - 1].view->shared);
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

int rs_model_of(struct rs_job *job, const struct rs_version *v, const struct meta_topology *topo,
		struct rs_model **ret, struct sc_err *err)
{
	struct rs_model *model = find(job->service, v, topo);
	int rc;

	if (model) {
		*ret = model;
		return 0;
	}
	model = sc_zalloc(sizeof(*model));
	if (!model)
		return sc_nomem(err);
	model->refs = 1;
	model->tensors = rs_tensors_ref(v->tensors);
	rc = meta_topology_copy(topo, &model->topo) < 0 ? sc_nomem(err) : 0;
	if (rc == 0)
		rc = meta_view_new(v->layout, &model->topo, &model->tensors->all, &model->view, err);
	if (rc < 0)
		rs_model_unref(model);
	else
		*ret = model;
	return rc;
}
