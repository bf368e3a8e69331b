/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what state/load.c reads: the rows of a set, and of the datasets that a version uses. */
#include "reshard/command/commands/command_i.h"

#include <string.h>

/* Saves the payload with which a file was committed. */
static int save_payload(struct rs_service *s, struct rs_set_blob *b, struct sc_err *err)
{
	int rc = 0;

	if (b->found && b->found->payload)
		rc = meta_payload_put(s->catalog, b->found->payload, b->found->payload_bytes, &b->payload, err);
	return rc;
}

int rs_save_set(struct rs_service *s, struct rs_set *set, struct sc_err *err)
{
	struct sc_buf tensors = {0};
	struct meta_set_row row = {.file = set->file, .format = set->format->name,
				   .layout = set->layout_id, .topology = set->topo.text,
				   .payload = set->payload, .layers = set->state.layers,
				   .experts = set->state.experts, .verified = (enum meta_verified)set->verified,
				   .report = set->report};
	const struct rs_set *given = set->given;
	uint64_t id = 0;
	int rc;

	if (given) {
		row.given_layout = given->layout_id;
		row.given_topology = given->topo.text;
		row.given_layers = given->state.layers;
		row.given_experts = given->state.experts;
	}
	rs_set_tensors_text(set, &tensors);
	row.tensors = tensors.text ? tensors.text : "";
	rc = tensors.failed ? sc_nomem(err) : meta_set_add(s->catalog, &row, &id, err);
	sc_buf_done(&tensors);
	for (size_t i = 0; i < set->nr_blobs && rc == 0; i++) {
		struct rs_set_blob *b = &set->blobs[i];
		struct meta_set_blob_row br = {
			.rank = b->rank, .path = b->path_id, .blob = b->blob, .mode = b->owner.mode,
			.uid = b->owner.uid, .gid = b->owner.gid, .step = b->step};

		rc = set->has_payloads ? save_payload(s, b, err) : 0;
		br.payload = b->payload;
		if (rc == 0)
			rc = meta_set_add_blob(s->catalog, id, &br, err);
	}
	for (size_t i = 0; given && i < given->nr_blobs && rc == 0; i++) {
		const struct rs_set_blob *b = &given->blobs[i];
		struct meta_set_blob_row br = {.rank = b->rank, .path = b->path_id, .mode = b->owner.mode,
					       .uid = b->owner.uid, .gid = b->owner.gid,
					       .payload = b->payload};

		rc = meta_set_add_given(s->catalog, id, &br, err);
	}
	if (rc == 0)
		rc = meta_stale_note_set(s->catalog, id, err);
	if (rc == 0)
		set->id = id;
	return rc;
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
			rc = meta_version_add_data(s->catalog, v->id, use->corpus->id, use->from_epoch,
						   use->from_samples, err);
	}
	return rc;
}
