/* SPDX-License-Identifier: Apache-2.0 */
/* Versions and views as objects: loading them from the catalog, keeping them while used. */
#include "reshard/job/service_i.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


struct set_load {
	struct rs_service *s;
	struct rs_version *v;
	struct rs_set *set;
	struct sc_err *err;
};

static int on_set_blob(void *arg, const struct meta_set_blob_row *row)
{
	struct set_load *l = arg;
	struct rs_set_blob b = {.rank = row->rank == META_SHARED ? RS_SHARED : (uint32_t)row->rank,
				.path_id = row->path, .blob = row->blob, .bytes = row->bytes,
				.owner = {row->uid, row->gid, row->mode}};
	int rc = rs_path_text(l->s, row->path, &b.path, l->err);

	return rc < 0 ? rc : rs_set_add_blob(l->set, b) < 0 ? sc_nomem(l->err) : 0;
}

/* The files as ranks wrote them. */
static int load_given(struct set_load *l, const struct meta_set_row *row)
{
	struct set_load given = {.s = l->s, .err = l->err};
	int rc = rs_set_begin_given(l->s, l->set, row, l->err);

	given.set = l->set->given;
	if (rc == 0)
		rc = meta_set_given(l->s->catalog, l->set->id, on_set_blob, &given, l->err);
	return rc < 0 ? rc : rs_set_finish(given.set, l->err);
}

static int load_set(struct set_load *l, const struct meta_set_row *row)
{
	struct rs_set *set = l->set;
	const struct rs_kept_layout *kept;
	char *text = sc_strdup(row->tensors), *save = NULL;
	int rc = text ? rs_layout_by_id(l->s, row->layout, &kept, l->err) : sc_nomem(l->err);

	set->id = row->id;
	set->job = row->job;
	set->layout_id = row->layout;
	set->verified = row->verified;
	set->state.layers = row->layers;
	set->state.experts = row->experts;
	if (rc == 0) {
		set->layout = kept->layout;
		rc = meta_topology_parse(set->layout, row->topology, &set->topo, l->err);
	}
	for (char *line = rc == 0 ? strtok_r(text, "\n", &save) : NULL; rc == 0 && line;
	     line = strtok_r(NULL, "\n", &save))
		rc = rs_set_parse_tensor(set, line, l->err);
	sc_sys.release(text);
	sc_sys.release(set->report);
	set->report = sc_strdup(row->report);
	set->payload = row->payload ? sc_strdup(row->payload) : NULL;
	if (rc == 0 && (!set->report || (row->payload && !set->payload)))
		rc = sc_nomem(l->err);
	if (rc == 0)
		rc = meta_set_blobs(l->s->catalog, set->id, on_set_blob, l, l->err);
	if (rc == 0 && row->given_topology)
		rc = load_given(l, row);
	return rc < 0 ? rc : rs_set_finish(set, l->err);
}

/* A set that a view in the cache has already, or NULL. */
static struct rs_set *known_set(struct rs_service *s, uint64_t id)
{
	for (struct rs_view *v = s->views; v; v = v->next)
		for (size_t i = 0; i < v->version->nr_sets; i++)
			if (v->version->sets[i]->id == id)
				return rs_set_ref(v->version->sets[i]);
	return NULL;
}

static int on_set(void *arg, const struct meta_set_row *row)
{
	struct set_load *l = arg;
	const struct rs_format_ops *format = rs_format_find(row->format);
	int rc = 0;

	if (!format)
		return sc_fail(l->err, SC_E_UNSUPPORTED, "'%s' is stored in the format '%s', which this program does "
			       "not have; use the Scalai that committed it", row->file, row->format);
	(void)pthread_mutex_lock(&l->s->lock);
	l->set = known_set(l->s, row->id);
	(void)pthread_mutex_unlock(&l->s->lock);
	if (!l->set) {
		l->set = rs_set_new(row->file, row->kind, format);
		rc = l->set ? load_set(l, row) : sc_nomem(l->err);
	}
	if (rc == 0 && rs_version_add_set(l->v, l->set) < 0)
		rc = sc_nomem(l->err);
	rs_set_unref(l->set);
	return rc;
}

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
	meta_state_done(&v->state);
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

struct rs_version *rs_version_like(const struct rs_version *from, struct rs_set *const *sets)
{
	struct rs_version *v = rs_version_new();
	struct sc_err ignored;
	bool good = v != NULL;

	if (good) {
		v->layout_id = from->layout_id;
		v->layout = from->layout;
		v->step = from->step;
		v->made_ns = from->made_ns;
		v->samples = from->samples;
		v->note = sc_strdup(from->note);
		good = v->note != NULL;
	}
	for (size_t i = 0; good && i < from->data.nr; i++) {
		const struct rs_use *use = &from->data.at[i];

		good = rs_version_use(v, use->corpus, use->from_epoch, use->from_samples, &ignored) == 0;
	}
	for (size_t i = 0; good && i < from->nr_sets; i++)
		good = rs_version_add_set(v, sets && sets[i] ? sets[i] : from->sets[i]) == 0;
	if (good)
		return v;
	rs_version_unref(v);
	return NULL;
}

int rs_version_finish(struct rs_version *v, const struct rs_whole *whole, struct sc_err *err)
{
	int rc = 0;

	if (whole) {
		v->state.layers = whole->layers;
		v->state.experts = whole->experts;
	}
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		rc = rs_set_add_state(v->sets[i], &v->state, err);
	rs_version_note_owner(v);
	return rc;
}

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct set_load *l = arg;
	struct rs_version *v = l->v;
	const struct rs_kept_layout *kept;
	int rc = rs_layout_by_id(l->s, row->layout, &kept, l->err);

	if (rc == 0)
		rc = meta_topology_parse(kept->layout, row->topology, &v->topo, l->err);
	if (rc < 0)
		return rc;
	v->id = row->id;
	v->job = row->job;
	v->nr = row->nr;
	v->parent = row->parent;
	v->layout_id = row->layout;
	v->layout = kept->layout;
	v->step = row->step;
	v->samples = row->samples;
	v->made_ns = row->made_ns;
	v->note = sc_strdup(row->note);
	v->made_by = sc_strdup(row->made_by);
	return v->note && v->made_by ? 0 : sc_nomem(l->err);
}

static int load_version(struct rs_service *s, uint64_t id, struct rs_version **ret,
			struct sc_err *err)
{
	struct set_load l = {.s = s, .v = rs_version_new(), .err = err};
	int rc;

	/* it may be dropped, or get another storage, in between */
	meta_catalog_hold(s->catalog);
	rc = l.v ? meta_version_get(s->catalog, id, on_version, &l, err) : sc_nomem(err);
	if (rc == 0)
		rc = meta_version_sets(s->catalog, id, on_set, &l, err);
	if (rc == 0)
		rc = rs_data_load(s, l.v, err);
	meta_catalog_release(s->catalog);
	if (rc == 0)
		rc = rs_version_finish(l.v, NULL, err);
	if (rc < 0)
		rs_version_unref(l.v);
	else
		*ret = l.v;
	return rc;
}

/* --- views --- */

static const struct rs_set *set_of_view(const struct rs_version *v, const struct meta_view *stored)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->view == stored)
			return v->sets[i];
	return NULL;
}

static const struct rs_set *set_of_file(const struct rs_version *v, const char *logical_file)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->kind == META_SET_TENSORS && strcmp(v->sets[i]->file, logical_file) == 0)
			return v->sets[i];
	assert(!"a tensor of a version is in one of its sets");
	return NULL;
}

static const struct meta_view *origin_view(void *arg, const struct meta_tensor *tensor)
{
	return set_of_file(arg, tensor->file)->view;
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
	const struct rs_set *set = set_of_view(arg, stored);

	assert(set);
	return set->format;
}

static const char *origin_payload(void *arg, const char *logical_file)
{
	return set_of_file(arg, logical_file)->payload;
}

static uint32_t origin_skew(void *arg, const struct meta_tensor *tensor)
{
	const struct rs_set *set = set_of_file(arg, tensor->file);

	return set->skews[meta_state_find(&set->state, tensor->key) - set->state.tensors];
}

struct rs_origins rs_origins_of(struct rs_version *v)
{
	return (struct rs_origins){v, origin_view, origin_format, origin_blob, origin_payload, origin_skew};
}

static void view_free(struct rs_view *view)
{
	meta_view_free(view->model);
	sc_sys.release(view->as_stored);
	sc_vec_done(&view->data);
	meta_topology_done(&view->topo);
	rs_version_unref(view->version);
	sc_sys.release(view);
}

int rs_view_new(struct rs_job *job, struct rs_version *v, uint64_t id,
		const struct meta_topology *topo, struct rs_view **ret, struct sc_err *err)
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
	view->origins = rs_origins_of(v);
	if (meta_topology_copy(topo, &view->topo) < 0)
		rc = sc_nomem(err);
	if (rc == 0)
		rc = meta_view_new(v->layout, &view->topo, &v->state, &view->model, err);
	if (rc == 0)
		rc = rs_view_note_stored(view, err);
	if (rc == 0)
		rc = rs_data_deal(view, err);
	if (rc < 0)
		view_free(view);
	else
		*ret = view;
	return rc;
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

/* Is this one of the places that a view of so many ranks has, the last of which is `id`? */
static bool has_place(uint64_t id, uint32_t ranks, uint64_t place)
{
	return place <= id && id - place < ranks;
}

bool rs_view_has(const struct rs_view *view, uint64_t place)
{
	return has_place(view->id, view->topo.ranks, place);
}

static struct rs_view *find_view(struct rs_service *s, uint64_t place)
{
	for (struct rs_view **at = &s->views; *at; at = &(*at)->next)
		if (rs_view_has(*at, place)) {
			struct rs_view *v = *at;

			*at = v->next;
			v->next = s->views;
			s->views = v;
			return rs_view_ref(v);
		}
	return NULL;
}

/* A view of a version at a topology ('' is its own), which must have this place. */
static int make_view(struct rs_service *s, uint64_t version, const char *topology, uint64_t id, uint64_t place,
		     struct rs_view **ret, struct sc_err *err)
{
	struct rs_version *v = NULL;
	struct meta_topology topo = {0};
	struct rs_job *job;
	int rc = load_version(s, version, &v, err);

	if (rc < 0)
		return rc;
	job = rs_job_by_id(s, v->job);
	if (!job)
		rc = sc_fail(err, SC_E_NOT_FOUND, "version %" PRIu64 " has no job", version);
	if (rc == 0)
		rc = meta_topology_parse(v->layout, *topology ? topology : v->topo.text, &topo, err);
	if (rc == 0 && !has_place(id, topo.ranks, place))
		rc = sc_fail(err, SC_E_NOT_FOUND, "no view has the place %" PRIu64, place);
	if (rc == 0)
		rc = rs_view_new(job, v, id, &topo, ret, err);
	else
		rs_version_unref(v);
	meta_topology_done(&topo);
	if (rc == 0)
		(*ret)->own = !*topology;
	return rc;
}

struct view_row {
	uint64_t id, version;
	char topology[SC_COMMAND_BYTES_MAX + 1];
};

static int on_view(void *arg, const struct meta_view_row *found)
{
	struct view_row *row = arg;

	row->id = found->id;
	row->version = found->version;
	(void)snprintf(row->topology, sizeof(row->topology), "%s", found->topology);
	return 0;
}

int rs_view_at(struct rs_service *s, uint64_t place, struct rs_view **ret, struct sc_err *err)
{
	struct rs_view *view;
	struct view_row row;
	int rc;

	(void)pthread_mutex_lock(&s->lock);
	view = find_view(s, place);
	(void)pthread_mutex_unlock(&s->lock);
	if (view) {
		*ret = view;
		return 0;
	}
	for (;;) {
		uint64_t loaded = __atomic_load_n(&s->leaving.times, __ATOMIC_ACQUIRE);

		rc = meta_view_at(s->catalog, place, on_view, &row, err);
		if (rc == 0)
			rc = make_view(s, row.version, row.topology, row.id, place, ret, err);
		if (rc < 0 || rs_view_keep_loaded(s, *ret, loaded))
			break;
		rs_view_unref(s, *ret); /* it may be of a storage that is gone */
	}
	return rc == SC_E_NOT_FOUND && (*ret = rs_view_leaving(s, place)) ? 0 : rc;
}

int rs_view_load(struct rs_service *s, struct rs_job *job, uint64_t version, struct rs_view **ret,
		 struct sc_err *err)
{
	uint64_t id;
	int rc = meta_view_own(s->catalog, version, &id, err);

	(void)job;
	return rc < 0 ? rc : rs_view_at(s, id, ret, err);
}

int rs_view_head(struct rs_service *s, struct rs_job *job, struct rs_view **ret, struct sc_err *err)
{
	(void)s;
	*ret = rs_job_head(job);
	return *ret ? 0 : sc_fail(err, SC_E_NOT_FOUND, "the job has no version yet; write ranks, then commit");
}

bool rs_view_is_head(const struct rs_view *view)
{
	struct rs_job *job = view->job;
	bool is;

	(void)pthread_mutex_lock(&job->state);
	is = job->head && job->head->id == view->id;
	(void)pthread_mutex_unlock(&job->state);
	return is;
}

bool rs_view_is_own(const struct rs_view *view)
{
	return view->own;
}

int rs_view_present(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret,
		    struct sc_err *err)
{
	struct meta_topology topo = {0};
	struct rs_view *head = NULL;
	int rc = rs_view_head(s, job, &head, err);

	if (rc == 0)
		rc = meta_topology_parse(head->version->layout, topology, &topo, err);
	if (rc == 0) {
		(void)__atomic_add_fetch(&head->version->refs, 1, __ATOMIC_RELAXED);
		rc = rs_view_new(job, head->version, 0, &topo, ret, err);
	}
	meta_topology_done(&topo);
	rs_view_unref(s, head);
	return rc;
}

int rs_view_as(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret, struct sc_err *err)
{
	struct rs_view *good, *head; /* good: before it gets a number */
	uint64_t id;
	bool again;
	int rc;

	do {
		good = NULL;
		rc = rs_view_present(s, job, topology, &good, err);
		if (rc == 0)
			rc = meta_view_put(s->catalog, good->version->id, good->topo.text, good->topo.ranks, &id, err);
		if (rc == 0)
			rc = rs_view_at(s, id, ret, err);
		/* newer versions may have come meanwhile, and this one may have been dropped */
		head = rs_job_head(job);
		again = rc < 0 && good && head && head->version->id != good->version->id;
		rs_view_unref(s, head);
		rs_view_unref(s, good);
	} while (again);
	return rc;
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
