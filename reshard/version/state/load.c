/* SPDX-License-Identifier: Apache-2.0 */
/* Loads versions from the rows of the catalog: sets, the files as ranks wrote them, datasets. */
#include "reshard/version/state/state_i.h"

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
	struct rs_set_blob b = {.rank = (uint32_t)row->rank, .path_id = row->path, .blob = row->blob,
				.bytes = row->bytes, .owner = {row->uid, row->gid, row->mode}, .payload = row->payload,
				.step = row->step};
	int rc = rs_path_text(l->s, row->path, &b.path, l->err);

	return rc < 0 ? rc : rs_set_add_blob(l->set, b) < 0 ? sc_nomem(l->err) : 0;
}

/* Loads the files of a set as ranks wrote them. */
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

/* Finds a set that a view in the cache has already; NULL: none has it. */
static struct rs_set *known_set(struct rs_service *s, uint64_t id)
{
	for (struct rs_view *v = s->views.first; v; v = v->next)
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
		l->set = rs_set_new(row->file, format);
		rc = l->set ? load_set(l, row) : sc_nomem(l->err);
	}
	if (rc == 0 && rs_version_add_set(l->v, l->set) < 0)
		rc = sc_nomem(l->err);
	rs_set_unref(l->set);
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
	v->tree = row->tree;
	v->floor_ns = row->floor_ns;
	v->note = sc_strdup(row->note);
	v->made_by = sc_strdup(row->made_by);
	return v->note && v->made_by ? 0 : sc_nomem(l->err);
}

struct data_load {
	struct rs_service *s;
	struct rs_version *v;
	struct rs_corpus *corpus;
	struct sc_err *err;
};

static int on_source(void *arg, const struct meta_data_source_row *row)
{
	struct data_load *l = arg;
	struct rs_data_source_info info = {.path = sc_strdup(row->path), .blob = row->blob, .bytes = row->bytes,
				      .mtime_ns = row->mtime_ns, .samples = row->samples,
				      .sequences = row->sequences, .first = row->first, .bare = row->bare,
				      .borders = row->borders};
	int rc = info.borders ? meta_blob_bytes(l->s->catalog, info.borders, &info.table_bytes, l->err) : 0;

	memcpy(info.ends, row->ends, sizeof(info.ends));
	if (rc == 0 || rc == SC_E_NOT_FOUND) /* damage: who reads it says so */
		rc = rs_corpus_add(l->corpus, &info, l->err);
	sc_sys.release(info.path);
	return rc;
}

static int load_corpus(struct data_load *l, const struct meta_dataset_row *row)
{
	struct rs_corpus *c = l->corpus = rs_corpus_new(&l->s->store, l->s->blobs);
	int rc = c ? rs_data_spec_parse(row->name, row->spec, &c->spec, l->err) : sc_nomem(l->err);

	if (rc == 0) {
		c->id = row->id;
		c->uid = row->uid;
		c->gid = row->gid;
		c->form = sc_strdup(row->form);
		rc = c->form ? meta_dataset_sources(l->s->catalog, row->id, on_source, l, l->err) : sc_nomem(l->err);
	}
	return rc < 0 ? rc : rs_corpus_finish(c, l->err);
}

/* Finds a corpus that a view in the cache has already; NULL: none has it. */
static struct rs_corpus *known_corpus(struct rs_service *s, uint64_t id)
{
	for (struct rs_view *v = s->views.first; v; v = v->next)
		for (size_t i = 0; i < v->version->data.nr; i++)
			if (v->version->data.at[i].corpus->id == id)
				return rs_corpus_ref(v->version->data.at[i].corpus);
	return NULL;
}

static int on_dataset(void *arg, const struct meta_dataset_row *row)
{
	struct data_load *l = arg;
	int rc = 0;

	(void)pthread_mutex_lock(&l->s->lock);
	l->corpus = known_corpus(l->s, row->id);
	(void)pthread_mutex_unlock(&l->s->lock);
	if (!l->corpus)
		rc = load_corpus(l, row);
	if (rc == 0)
		rc = rs_version_use(l->v, l->corpus, row->from_epoch, row->from_samples, l->err);
	rs_corpus_unref(l->corpus);
	return rc;
}

static int load_data(struct rs_service *s, struct rs_version *v, struct sc_err *err)
{
	struct data_load l = {.s = s, .v = v, .err = err};

	return meta_version_data(s->catalog, v->id, on_dataset, &l, err);
}

int rs_version_load(struct rs_service *s, uint64_t id, struct rs_version **ret, struct sc_err *err)
{
	struct set_load l = {.s = s, .v = rs_version_new(), .err = err};
	int rc;

	/* it may be dropped, or get another storage, in between */
	meta_catalog_hold(s->catalog);
	rc = l.v ? meta_version_get(s->catalog, id, on_version, &l, err) : sc_nomem(err);
	if (rc == 0)
		rc = meta_version_sets(s->catalog, id, on_set, &l, err);
	if (rc == 0)
		rc = load_data(s, l.v, err);
	meta_catalog_release(s->catalog);
	if (rc == 0)
		rc = rs_version_finish(l.v, NULL, err);
	if (rc < 0)
		rs_version_unref(l.v);
	else
		*ret = l.v;
	return rc;
}
