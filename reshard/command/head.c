/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves a job's head: a version's rows, with its sets and datasets, are saved in one transaction with the head
 * itself, and versions that keep= does not keep are dropped in the same.
 */
#include "reshard/command/command_i.h"

#include <inttypes.h>
#include <string.h>

SC_METRIC(reshards_made, SC_COUNTER, "scalai_reshards_total", "Versions made by topology, layout or rollback.");

/* Of the command that this thread is carrying out. */
static _Thread_local uint64_t request;

void rs_request(uint64_t token)
{
	request = token;
}

int rs_requested(struct rs_service *s, uint64_t token, struct sc_err *err)
{
	return meta_version_requested(s->catalog, token, err);
}

int rs_save_version(struct rs_service *s, struct rs_job *job, struct rs_version *v, uint64_t parent,
		    const char *made_by, struct sc_err *err)
{
	struct meta_version_row row = {
		.job = job->id, .parent = parent, .step = v->step, .note = v->note, .made_ns = v->made_ns,
		.made_by = made_by, .layout = v->layout_id, .topology = v->topo.text,
		.samples = v->samples, .request = request};
	int rc = 0;

	for (size_t i = 0; i < v->nr_sets && rc == 0; i++)
		if (!v->sets[i]->id)
			rc = rs_save_set(s, v->sets[i], err);
	if (rc == 0)
		rc = meta_version_add(s->catalog, &row, err);
	for (size_t i = 0; i < v->nr_sets && rc == 0; i++)
		rc = meta_version_add_set(s->catalog, row.id, v->sets[i]->id, err);
	v->id = row.id;
	v->nr = row.nr;
	if (rc == 0)
		rc = rs_save_data(s, v, err);
	if (rc == 0)
		rc = meta_job_set_head(s->catalog, job->id, row.id, err);
	if (rc == 0)
		rc = rs_drop_old_versions(s, job, v, err);
	if (rc < 0)
		return rc;
	v->job = job->id;
	v->parent = parent;
	v->made_by = sc_strdup(made_by);
	return v->made_by ? 0 : sc_nomem(err);
}

int rs_save_set(struct rs_service *s, struct rs_set *set, struct sc_err *err)
{
	struct sc_buf tensors = {0};
	struct meta_set_row row = {.file = set->file, .kind = set->kind, .format = set->format->name,
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
			.rank = b->rank == RS_SHARED ? META_SHARED : (int64_t)b->rank, .path = b->path_id,
			.blob = b->blob, .mode = b->owner.mode, .uid = b->owner.uid, .gid = b->owner.gid};

		rc = meta_set_add_blob(s->catalog, id, &br, err);
	}
	for (size_t i = 0; given && i < given->nr_blobs && rc == 0; i++) {
		const struct rs_set_blob *b = &given->blobs[i];
		struct meta_set_blob_row br = {.rank = b->rank, .path = b->path_id, .mode = b->owner.mode,
					       .uid = b->owner.uid, .gid = b->owner.gid};

		rc = meta_set_add_given(s->catalog, id, &br, err);
	}
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

struct old_versions {
	struct {
		uint64_t *at;
		size_t nr, room;
	} ids;
	struct sc_err *err;
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct old_versions *o = arg;

	return row->tag ? 0 : sc_vec_push(&o->ids, row->id) < 0 ? sc_nomem(o->err) : 0;
}

/* What they have may be nowhere else, if the head lacks anything that it lists. */
static bool may_drop(struct rs_service *s, struct rs_job *job, const struct rs_version *head)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct sc_err lacks;

	if (rs_version_look_up(s, head, &lacks) == 0)
		return true;
	sc_log(SC_LOG_ERROR, "job '%s': version %" PRIu64 ": %s; older versions are kept, continuing",
	       rs_job_name(job, name, sizeof(name)), head->nr, lacks.msg);
	rs_job_complain(job, "keep: older versions are kept", &lacks);
	return false;
}

int rs_drop_old_versions(struct rs_service *s, struct rs_job *job, const struct rs_version *head, struct sc_err *err)
{
	struct old_versions o = {.err = err};
	uint32_t keep = rs_config_of(job).keep;
	int rc;

	if (!keep)
		return 0;
	rc = meta_version_each(s->catalog, job->id, on_version, &o, err);
	if (rc == 0 && o.ids.nr > keep && !may_drop(s, job, head))
		o.ids.nr = 0;
	for (size_t i = 0; rc == 0 && i + keep < o.ids.nr; i++)
		if (o.ids.at[i] != head->id) {
			rc = rs_stale_note(s, job->id, o.ids.at[i], err);
			if (rc == 0)
				rc = meta_version_remove(s->catalog, o.ids.at[i], err);
			if (rc == 0)
				rs_views_leave(s, o.ids.at[i]);
		}
	sc_vec_done(&o.ids);
	return rc;
}

int rs_new_head(struct rs_service *s, struct rs_job *job, struct rs_version *v,
		const struct meta_topology *topo, uint64_t parent, const char *made_by, struct sc_err *err)
{
	struct rs_view *view = NULL;
	uint64_t id = 0;
	int rc = rs_version_finish(v, &job->whole, err);

	rs_step(RS_STEP_RESHARD_PRESENT);
	if (rc == 0)
		rc = meta_topology_copy(topo, &v->topo) < 0 ? sc_nomem(err) : 0;
	if (rc < 0) {
		rs_version_unref(v);
		return rc;
	}
	rc = rs_view_new(job, v, 0, topo, &view, err);
	if (rc < 0)
		return rc;
	rc = rs_work_settle(job, view, err);
	if (rc < 0) {
		rs_view_unref(s, view);
		return rc;
	}
	rs_step(RS_STEP_RESHARD_TRANSACT);
	rc = meta_catalog_begin(s->catalog, rs_job_syncs(job), err);
	if (rc == 0) {
		rc = rs_save_version(s, job, v, parent, made_by, err);
		if (rc == 0)
			rc = meta_view_put(s->catalog, v->id, "", topo->ranks, &id, err);
		/* folders of ranks that may be gone */
		if (rc == 0)
			rc = rs_work_clear_rows(job, err);
		rc = meta_catalog_end(s->catalog, rc, err);
	}
	if (rc < 0) {
		rs_view_unref(s, view);
		return rc;
	}
	view->id = id;
	view->own = true;
	rs_step(RS_STEP_RESHARD_PUBLISH);
	rs_work_clear(job, false);
	rs_job_publish(job, view, true);
	sc_metric_add(&reshards_made, 1);
	return 0;
}
