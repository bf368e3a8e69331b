/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets to and from the catalog's rows. */
#include "reshard/job/service_i.h"

#include <string.h>

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
	int rc = info.path ? 0 : sc_nomem(l->err);

	memcpy(info.ends, row->ends, sizeof(info.ends));
	if (rc == 0)
		rc = rs_corpus_add(l->corpus, &info, l->err);
	sc_sys.release(info.path);
	return rc;
}

static int load_corpus(struct data_load *l, const struct meta_dataset_row *row)
{
	struct rs_corpus *c = l->corpus = rs_corpus_new(&l->s->store);
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

/* A corpus that a view in the cache has already, or NULL. */
static struct rs_corpus *known_corpus(struct rs_service *s, uint64_t id)
{
	for (struct rs_view *v = s->views; v; v = v->next)
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

int rs_data_load(struct rs_service *s, struct rs_version *v, struct sc_err *err)
{
	struct data_load l = {.s = s, .v = v, .err = err};

	return meta_version_data(s->catalog, v->id, on_dataset, &l, err);
}

static int save_corpus(struct rs_service *s, struct rs_corpus *corpus, struct sc_err *err)
{
	struct sc_buf spec = {0};
	struct meta_dataset_row row = {.name = corpus->spec.name, .form = corpus->form ? corpus->form : "",
				       .uid = corpus->uid, .gid = corpus->gid};
	uint64_t id = 0;
	int rc;

	rs_data_spec_text(&corpus->spec, &spec);
	row.spec = spec.text;
	rc = spec.failed ? sc_nomem(err) : meta_dataset_add(s->catalog, &row, &id, err);
	sc_buf_done(&spec);
	for (size_t i = 0; rc == 0 && i < corpus->nr; i++) {
		const struct rs_data_source_info *info = &corpus->at[i].info;
		struct meta_data_source_row source = {
			.path = info->path, .blob = info->blob, .bytes = info->bytes, .mtime_ns = info->mtime_ns,
			.samples = info->samples, .sequences = info->sequences, .first = info->first,
			.bare = info->bare, .borders = info->borders};

		memcpy(source.ends, info->ends, sizeof(source.ends));
		rc = meta_dataset_add_source(s->catalog, id, i, &source, err);
		if (rc == 0 && info->borders)
			rc = meta_blob_seal(s->catalog, info->borders, info->table_bytes, err);
		if (rc == 0 && info->blob)
			rc = meta_blob_seal(s->catalog, info->blob, info->bytes, err);
	}
	if (rc == 0)
		corpus->id = id;
	return rc;
}

int rs_save_data(struct rs_service *s, struct rs_version *v, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < v->data.nr; i++) {
		const struct rs_use *use = &v->data.at[i];

		if (!use->corpus->id)
			rc = save_corpus(s, use->corpus, err);
		if (rc == 0)
			rc = meta_version_add_data(s->catalog, v->id, use->corpus->id, use->from_epoch, use->from_samples,
						   err);
	}
	return rc;
}
