/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets to and from the catalog's rows. */
#include "reshard/job/service_i.h"

#include <string.h>

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
