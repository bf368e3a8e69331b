/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, counts and frees versions and views of them, and answers what they say of themselves. */
#include "reshard/version/state/state_i.h"

#include <inttypes.h>
#include <string.h>

/* --- versions --- */

struct rs_version *rs_version_new(void)
{
	struct rs_version *v = sc_zalloc(sizeof(*v));

	if (v)
		v->refs = 1;
	return v;
}

void rs_version_unref(struct rs_version *v)
{
	if (!v || __atomic_sub_fetch(&v->refs, 1, __ATOMIC_ACQ_REL))
		return;
	for (size_t i = 0; i < v->nr_sets; i++)
		rs_set_unref(v->sets[i]);
	sc_sys.release(v->sets);
	for (size_t i = 0; i < v->data.nr; i++)
		rs_corpus_unref(v->data.at[i].corpus);
	sc_vec_done(&v->data);
	rs_tensors_unref(v->tensors);
	meta_topology_done(&v->topo);
	sc_sys.release(v->note);
	sc_sys.release(v->made_by);
	sc_sys.release(v);
}

int rs_version_add_set(struct rs_version *v, struct rs_set *set)
{
	if (sc_vec_grow((void **)&v->sets, v->nr_sets, &v->room_sets, sizeof(*v->sets)) < 0)
		return -1;
	v->sets[v->nr_sets++] = rs_set_ref(set);
	return 0;
}

int rs_version_finish(struct rs_version *v, const struct rs_whole *whole, struct sc_err *err)
{
	const struct rs_whole counts = whole ? *whole : (struct rs_whole){0};
	struct rs_tensors *shared = v->tensors;

	rs_version_note_owner(v);
	if (shared && shared->all.layers == counts.layers && shared->all.experts == counts.experts)
		return 0;
	v->tensors = rs_tensors_new();
	rs_tensors_unref(shared);
	if (!v->tensors)
		return sc_nomem(err);
	v->tensors->all.layers = counts.layers;
	v->tensors->all.experts = counts.experts;
	for (size_t i = 0; i < v->nr_sets; i++)
		if (meta_state_add_all(&v->tensors->all, &v->sets[i]->state) < 0)
			return sc_nomem(err);
	return 0;
}

/* --- views --- */

static const struct rs_set *set_of_view(const struct rs_version *v, const struct meta_view *stored)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->view == stored)
			return v->sets[i];
	return NULL;
}

static const struct meta_view *origin_view(void *arg, const struct meta_tensor *tensor)
{
	return rs_version_set(arg, tensor->file)->view;
}

static const struct rs_placed_tensor *origin_placed(void *arg, const struct meta_tensor *tensor)
{
	const struct rs_folder *folder = rs_version_set(arg, tensor->file)->folder;

	return &folder->tensors.at[meta_state_find(&folder->state, tensor->key) - folder->state.tensors];
}

static const struct rs_placed_objects *origin_objects(void *arg, const char *logical)
{
	return &rs_version_set(arg, logical)->folder->objects;
}

static bool origin_blob(void *arg, const struct meta_view *stored, uint32_t rank, const char *file,
			uint64_t *ret_blob, uint64_t *ret_bytes)
{
	const struct rs_set *set = set_of_view(arg, stored);
	const struct rs_set_blob *b = set ? rs_set_find(set, rank, file) : NULL;

	if (!b)
		return false;
	*ret_blob = b->blob;
	*ret_bytes = b->bytes;
	return true;
}

static const struct rs_format_ops *origin_format(void *arg, const struct meta_view *stored)
{
	/* every view of the version's is of one of its sets; folders have one format */
	return set_of_view(arg, stored)->format;
}

static uint64_t origin_payload_of(void *arg, const struct meta_view *view, uint32_t rank, const char *file,
				  const struct meta_tensor *like)
{
	return rs_payload_of(arg, view, rank, file, like);
}

static uint32_t origin_skew(void *arg, const struct meta_tensor *tensor)
{
	const struct rs_set *set = rs_version_set(arg, tensor->file);

	return set->skews[meta_state_find(&set->state, tensor->key) - set->state.tensors];
}

struct rs_origins rs_origins_of(struct rs_service *s, struct rs_version *v)
{
	return (struct rs_origins){.arg = v, .view_of = origin_view, .placed_of = origin_placed,
				   .objects_of = origin_objects, .format_of = origin_format, .blob_of = origin_blob,
				   .payload_of = origin_payload_of, .payload = rs_payload_read, .catalog = s->catalog,
				   .skew_of = origin_skew, .blobs = s->blobs};
}

static void view_free(struct rs_view *view)
{
	if (view->below)
		view->below_done(view->below);
	rs_model_unref(view->shared);
	sc_sys.release(view->as_stored);
	sc_sys.release(view->options);
	rs_form_plain_done(&view->plain);
	sc_vec_done(&view->data);
	meta_topology_done(&view->topo);
	rs_version_unref(view->version);
	sc_sys.release(view);
}

/* Makes a view; `shared` is its model (NULL: rs_model_of() finds or makes it). */
static int new_view(struct rs_job *job, struct rs_version *v, uint64_t id, const struct meta_topology *topo,
		    struct rs_model *shared, struct rs_view **ret, struct sc_err *err)
{
	struct rs_view *view = sc_zalloc(sizeof(*view));
	int rc = 0;

	if (!view) {
		rs_version_unref(v);
		return sc_nomem(err);
	}
	view->refs = 1;
	view->id = id;
	view->job = job;
	view->version = v;
	view->form = &rs_form_ranks;
	view->origins = rs_origins_of(job->service, v);
	if (meta_topology_copy(topo, &view->topo) < 0)
		rc = sc_nomem(err);
	if (rc == 0 && shared)
		view->shared = rs_model_ref(shared);
	else if (rc == 0)
		rc = rs_model_of(job, v, &view->topo, &view->shared, err);
	if (rc == 0) {
		view->model = view->shared->view;
		rc = rs_view_note_stored(view, err);
	}
	if (rc == 0)
		rc = rs_data_deal(view, err);
	if (rc < 0)
		view_free(view);
	else
		*ret = view;
	return rc;
}

int rs_view_new(struct rs_job *job, struct rs_version *v, uint64_t id, const struct meta_topology *topo,
		struct rs_view **ret, struct sc_err *err)
{
	return new_view(job, v, id, topo, NULL, ret, err);
}

int rs_view_like(struct rs_view *of, uint64_t id, struct rs_view **ret, struct sc_err *err)
{
	(void)__atomic_add_fetch(&of->version->refs, 1, __ATOMIC_RELAXED);
	return new_view(of->job, of->version, id, &of->topo, of->shared, ret, err);
}

struct rs_view *rs_view_ref(struct rs_view *view)
{
	(void)__atomic_add_fetch(&view->refs, 1, __ATOMIC_RELAXED);
	return view;
}

void rs_view_unref(struct rs_service *s, struct rs_view *view)
{
	(void)s;
	if (view && __atomic_sub_fetch(&view->refs, 1, __ATOMIC_ACQ_REL) == 0)
		view_free(view);
}

bool rs_view_has(const struct rs_view *view, uint64_t place)
{
	return rs_has_place(view->id, view->topo.ranks, place);
}

bool rs_view_is_head(const struct rs_view *view)
{
	struct rs_job *job = view->job;
	bool is;

	(void)pthread_mutex_lock(&job->state);
	is = job->head == view;
	(void)pthread_mutex_unlock(&job->state);
	return is;
}

struct rs_formed rs_view_formed(const struct rs_view *view)
{
	return (struct rs_formed){view->model, view->version->nr, &view->origins, view->options, view->archived,
				  &view->plain};
}

int rs_view_stored(const struct rs_view *view, uint32_t rank, const char *file, struct sc_arena *arena,
		   const char **ret, struct sc_err *err)
{
	const struct rs_formed x = rs_view_formed(view);

	return rs_form_stored(view->form, &x, rank, file, arena, ret, err);
}

int rs_view_show_as(struct rs_view *view, const struct rs_form_said *said, struct sc_err *err)
{
	view->form = said->form;
	view->archived = said->archived;
	view->options = sc_strdup(said->options);
	if (!view->options)
		return sc_nomem(err);
	return said->form->plain ? rs_form_plain_files(view->origins.catalog, view->version->tree, view->job->root,
						       &view->plain, err)
				 : 0;
}

bool rs_view_has_others(const struct rs_view *view)
{
	return view->form == &rs_form_ranks && !view->archived;
}

bool rs_view_has_small_reads(const struct rs_view *view)
{
	return view->form->small_reads;
}

bool rs_view_is_folder(const struct rs_view *view)
{
	return view->form->one_folder;
}

bool rs_view_is_own(const struct rs_view *view)
{
	return view->own;
}

uint64_t rs_view_place(const struct rs_view *view, uint32_t rank)
{
	return view->id - rank;
}

uint32_t rs_view_rank(const struct rs_view *view, uint64_t place)
{
	return (uint32_t)(view->id - place);
}

const char *rs_view_first_axis(const struct rs_view *view)
{
	const struct meta_layout *l = view->version->layout;

	return l->axes.name[l->meshes[0].at[0].axis];
}

struct rs_job *rs_view_job(const struct rs_view *view)
{
	return view->job;
}

int64_t rs_view_made_ns(const struct rs_view *view)
{
	return view->version->made_ns;
}

int rs_version_use(struct rs_version *v, struct rs_corpus *c, uint64_t from_epoch, uint64_t from_samples,
		   struct sc_err *err)
{
	struct rs_use use = {c, from_epoch, from_samples};

	if (sc_vec_push(&v->data, use) < 0)
		return sc_nomem(err);
	(void)rs_corpus_ref(c);
	return 0;
}

enum meta_verified rs_version_verified(const struct rs_version *v)
{
	enum meta_verified all = META_EQUAL;

	for (size_t i = 0; i < v->nr_sets; i++) {
		int one = __atomic_load_n(&v->sets[i]->verified, __ATOMIC_ACQUIRE);

		if (one == META_DIFFER)
			return META_DIFFER;
		if (one == META_UNVERIFIED)
			all = META_UNVERIFIED;
	}
	return all;
}

void rs_version_note_owner(struct rs_version *v)
{
	const struct rs_owner *one = NULL;

	v->one_owner = NULL;
	for (size_t i = 0; i < v->nr_sets; i++) {
		const struct rs_set *g = rs_set_given(v->sets[i]);

		if (!g->one_owner || (one && !rs_owner_equal(one, &g->blobs[0].owner)))
			return;
		one = &g->blobs[0].owner;
	}
	v->one_owner = one;
}

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
		if (!view->as_stored[i])
			return false;
	return true;
}
