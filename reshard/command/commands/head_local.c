/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kind "local" of head.h: one catalog, one node.  The gate is job.command, and job.tree taken for writing.  The
 * rows of a version, with its sets and datasets, are saved in one transaction with the head itself, and the versions
 * that keep= does not keep are dropped in the same (retention.c).
 */
#include "reshard/command/commands/command_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/catalog/nodes.h"
#include "reshard/exchange/merge/part.h"

/* Saves the rows of sets that have no number yet, of the version, and of the head. */
static int save_version(struct rs_service *s, const struct rs_advance *a, struct rs_turn *turn, struct rs_version *v,
			struct sc_err *err)
{
	static const char *const made_by[] = {
		[RS_BY_COMMIT] = "commit", [RS_BY_TOPOLOGY] = "topology", [RS_BY_LAYOUT] = "layout",
		[RS_BY_ROLLBACK] = "rollback", [RS_BY_DATA] = "data",
	};
	struct meta_version_row row = {
		.job = a->job->id, .parent = a->base ? a->base->version->id : 0, .step = v->step, .note = v->note,
		.made_ns = v->made_ns, .made_by = made_by[a->change], .layout = v->layout_id, .topology = v->topo.text,
		.samples = v->samples, .request = a->token};
	int rc = rs_turn_save(turn, err);

	row.tree = v->tree;
	row.floor_ns = v->floor_ns;

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
		rc = meta_job_set_head(s->catalog, a->job->id, row.id, err);
	if (rc == 0 && a->change != RS_BY_COMMIT && v->tree)
		rc = meta_tree_set_unkept(s->catalog, v->tree, err);
	if (rc == 0 && a->change == RS_BY_ROLLBACK)
		rc = meta_stale_note_version(s->catalog, row.id, err);
	if (rc == 0)
		rc = rs_versions_drop_old(s, a->job, v, err);
	if (rc < 0)
		return rc;
	v->job = a->job->id;
	v->parent = row.parent;
	v->made_by = sc_strdup(row.made_by);
	return v->made_by ? 0 : sc_nomem(err);
}

/* --- the kind --- */

static int local_requested(void *arg, uint64_t token, struct sc_err *err)
{
	struct rs_service *s = arg;

	return meta_version_requested(s->catalog, token, err);
}

static void open_gate(struct rs_job *job)
{
	rs_tree_open(job);
	(void)pthread_mutex_unlock(&job->command);
}

static int advise_dirty(struct rs_job *job, bool logs, const char *advice, struct sc_err *err)
{
	struct sc_buf names = {0};
	struct rs_dirt dirt;
	int rc = logs ? rs_tree_dirt(job, &dirt, &names, err) : rs_tree_dirt_but_logs(job, &dirt, &names, err);

	if (rc == 0 && dirt.nr && names.failed)
		rc = sc_nomem(err);
	else if (rc == 0 && dirt.nr)
		rc = sc_fail(err, SC_E_BUSY, "%zu of the folders, links and files %s written or removed since the "
			     "last version (%s); %s", dirt.nr, dirt.nr == 1 ? "was" : "were",
			     names.text ? names.text : "", advice);
	sc_buf_done(&names);
	return rc;
}

int rs_local_advise_dirty(struct rs_job *job, const char *advice, struct sc_err *err)
{
	return advise_dirty(job, true, advice, err);
}

int rs_local_refuse_dirty(struct rs_job *job, const char *what, struct sc_err *err)
{
	char advice[80];

	(void)snprintf(advice, sizeof(advice), "commit or discard them %s%s", what ? "before a new " : "first",
		       what ? what : "");
	return advise_dirty(job, !what, advice, err);
}

static int refuse_dirty(const struct rs_advance *a, struct sc_err *err)
{
	static const char *const what[] = {
		[RS_BY_TOPOLOGY] = "topology", [RS_BY_LAYOUT] = "layout", [RS_BY_ROLLBACK] = "head",
		[RS_BY_DATA] = "dataset",
	};

	return rs_local_refuse_dirty(a->job, what[a->change], err);
}

/* Makes the new version, or refuses it.  Uncommitted files are the first reason that a refused topology gives: other
 * reasons may be gone once they are committed. */
static int present(struct rs_advance *a, struct sc_err *err)
{
	int rc = a->present(a, err), dirty;
	struct sc_err busy;

	if (rc > 0 || (rc == 0 && a->keeps) || (rc < 0 && (!a->base || a->change != RS_BY_TOPOLOGY)))
		return rc;
	dirty = refuse_dirty(a, &busy);
	if (dirty < 0)
		*err = busy;
	return dirty < 0 ? dirty : rc;
}

static int local_begin(void *arg, struct rs_advance *a, struct sc_err *err)
{
	int rc;

	(void)arg;
	(void)pthread_mutex_lock(&a->job->command);
	if (a->change == RS_BY_COMMIT)
		rs_step(RS_STEP_COMMIT_QUIET);
	rc = rs_tree_close(a->job, a->change == RS_BY_COMMIT, err);
	if (rc < 0) {
		(void)pthread_mutex_unlock(&a->job->command);
		return rc;
	}
	a->base = rs_job_head(a->job);
	if (a->change != RS_BY_COMMIT)
		rc = present(a, err);
	if (rc != 0)
		open_gate(a->job);
	return rc;
}

struct rs_job *rs_advance_tree(const struct rs_advance *a)
{
	return a->joined ? a->joined->tree : a->job;
}

int rs_local_plan(struct rs_advance *a, struct rs_turn **ret, struct sc_err *err)
{
	static const enum rs_turn_by by[] = {
		[RS_BY_COMMIT] = RS_TURN_COMMIT, [RS_BY_TOPOLOGY] = RS_TURN_STAY, [RS_BY_LAYOUT] = RS_TURN_STAY,
		[RS_BY_ROLLBACK] = RS_TURN_BACK, [RS_BY_DATA] = RS_TURN_STAY,
	};

	return rs_turn_plan(rs_advance_tree(a), a->next, a->keeps ? RS_TURN_KEEP : by[a->change], a->rows, a->leaves,
			    ret, err);
}

/* Saves what other nodes wrote as rows of the working tree of this node, too, until the commit takes them. */
static int save_joined(struct meta_catalog *c, const struct rs_joined *joined, struct sc_err *err)
{
	int rc = meta_upper_apply(c, &joined->rows, err);

	for (size_t i = 0; rc == 0 && i < joined->aways.nr; i++) {
		const struct rs_away_file *f = &joined->aways.at[i];

		rc = meta_blob_is_away(c, f->blob, f->node, f->number, f->bytes, err);
	}
	return rc;
}

static int save_next(struct rs_advance *a, struct rs_turn *turn, struct sc_err *err)
{
	struct rs_service *s = a->job->service;
	int rc = a->joined ? save_joined(s->catalog, a->joined, err) : 0;

	for (size_t i = 0; rc == 0 && i < a->nr_seals; i++)
		rc = meta_blob_seal(s->catalog, a->seals[i].blob, a->seals[i].bytes, err);
	if (rc == 0)
		rc = save_version(s, a, turn, a->next->version, err);
	if (rc == 0)
		rc = meta_view_put(s->catalog, a->next->version->id, "", a->next->topo.ranks, &a->next->id, err);
	return rc;
}

/* Takes the numbers of a trial back: new sets, datasets and the version have none again. */
static void undo(struct rs_advance *a, uint64_t last_set, uint64_t last_data)
{
	struct rs_version *v = a->next->version;

	if (a->change == RS_BY_COMMIT && a->next->below) { /* of the tree that is not there now */
		a->next->below_done(a->next->below);
		a->next->below = NULL;
	}
	a->next->id = 0;
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->id > last_set)
			v->sets[i]->id = 0;
	for (size_t i = 0; i < v->data.nr; i++)
		if (v->data.at[i].corpus->id > last_data)
			v->data.at[i].corpus->id = 0;
	sc_sys.release(v->made_by);
	v->made_by = NULL;
	v->id = v->nr = v->parent = 0;
}

int rs_local_save(struct rs_advance *a, struct rs_turn *turn,
		  int (*in)(void *arg, uint64_t version, struct sc_err *err), void *arg, struct sc_err *err)
{
	struct rs_service *s = a->job->service;
	struct rs_version *v = a->next->version;
	uint64_t last_set = 0, last_data = 0;
	struct sc_err trial;
	int rc, more = 0;

	for (size_t i = 0; i < v->nr_sets; i++)
		last_set = sc_max_u64(last_set, v->sets[i]->id);
	for (size_t i = 0; i < v->data.nr; i++)
		last_data = sc_max_u64(last_data, v->data.at[i].corpus->id);
	rc = meta_catalog_begin(s->catalog, rs_job_syncs(a->job), err);
	if (rc < 0)
		return rc;
	rc = save_next(a, turn, err);
	if (rc == 0 && in)
		more = in(arg, v->id, err);
	if (more > 0)
		(void)meta_catalog_end(s->catalog, SC_E_CANCELLED, &trial);
	else
		rc = meta_catalog_end(s->catalog, rc < 0 ? rc : more, err);
	if (more > 0 || rc < 0)
		undo(a, last_set, last_data);
	return rc;
}

void rs_local_show(struct rs_advance *a, struct rs_turn *turn)
{
	const struct rs_version *v = a->next->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		for (size_t k = 0; k < v->sets[i]->nr_blobs; k++)
			v->sets[i]->blobs[k].found = NULL; /* it is the command's */
	a->next->own = true;
	rs_turn_show(turn, a->job, a->next);
	a->next = NULL;
}

/* Publishes: plans the turn, saves all in one transaction, shows it.  After the transaction nothing can fail. */
static int local_publish(void *arg, struct rs_advance *a, struct sc_err *err)
{
	bool commit = a->change == RS_BY_COMMIT;
	struct rs_turn *turn = NULL;
	int rc = rs_local_plan(a, &turn, err);

	(void)arg;
	if (rc == 0) {
		rs_step(commit ? RS_STEP_COMMIT_TRANSACT : RS_STEP_RESHARD_TRANSACT);
		rc = rs_local_save(a, turn, NULL, NULL, err);
	}
	if (rc == 0) {
		rs_step(commit ? RS_STEP_COMMIT_PUBLISH : RS_STEP_RESHARD_PUBLISH);
		rs_local_show(a, turn);
	}
	rs_turn_done(turn);
	open_gate(a->job);
	return rc;
}

static void local_abort(void *arg, struct rs_advance *a)
{
	(void)arg;
	open_gate(a->job);
}

/* Puts new sets, with their files, in the place of old ones, in one transaction. */
static int replace_sets(struct rs_service *s, const struct rs_version *old, struct rs_set *const *sets, bool sync,
			struct sc_err *err)
{
	int rc = meta_catalog_begin(s->catalog, sync, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc == 0 && i < old->nr_sets; i++) {
		for (size_t k = 0; sets[i] && rc == 0 && k < sets[i]->nr_blobs; k++)
			rc = meta_blob_seal(s->catalog, sets[i]->blobs[k].blob, sets[i]->blobs[k].bytes, err);
		if (sets[i] && rc == 0)
			rc = rs_save_set(s, sets[i], err);
		if (sets[i] && rc == 0)
			rc = meta_version_replace_set(s->catalog, old->id, old->sets[i]->id, sets[i]->id, err);
	}
	return meta_catalog_end(s->catalog, rc, err);
}

static int local_settle(void *arg, struct rs_view *of, struct rs_view *next, struct rs_set *const *sets,
			struct sc_err *err)
{
	struct rs_service *s = arg;
	struct rs_job *job = of->job;
	struct rs_below *below;
	bool stale;
	int rc;

	(void)pthread_mutex_lock(&job->command);
	(void)pthread_mutex_lock(&job->state);
	stale = job->head != of || job->removed;
	(void)pthread_mutex_unlock(&job->state);
	rs_step(RS_STEP_MATERIALIZE_TRANSACT);
	rc = stale ? sc_fail(err, SC_E_CANCELLED, "a newer head") : rs_view_below(next, &below, err);
	if (rc == 0)
		rc = replace_sets(s, of->version, sets, rs_job_syncs(job), err);
	if (rc == 0) {
		rs_step(RS_STEP_MATERIALIZE_PUBLISH);
		next->own = true;
		rs_views_leave(s, of->version->id);
		rs_tree_show(job, rs_view_ref(next));
	}
	(void)pthread_mutex_unlock(&job->command);
	return rc;
}

/* --- clones --- */

struct clone {
	struct rs_service *s;
	uint64_t head_nr, head;		/* its number in both jobs, and the new row */
	struct {
		size_t nr, room;
		struct {
			uint64_t id;
			uint32_t ranks;
		} *at;
	} versions;
	struct sc_err *err;
};

static int on_clone(void *arg, const struct meta_version_row *row)
{
	struct clone *c = arg;
	const struct rs_kept_layout *kept;
	struct meta_topology topo = {0};
	int rc = rs_layout_by_id(c->s, row->layout, &kept, c->err);

	if (rc == 0)
		rc = meta_topology_parse(kept->layout, row->topology, &topo, c->err);
	if (rc == 0 && sc_vec_push(&c->versions, (typeof(*c->versions.at)){row->id, topo.ranks}) < 0)
		rc = sc_nomem(c->err);
	if (row->nr == c->head_nr)
		c->head = row->id;
	meta_topology_done(&topo);
	return rc;
}

/* Saves the rows of a clone and loads its head, so that a clone which cannot be loaded is not made. */
static int save_clone(struct clone *c, struct rs_job *source, const struct rs_amend *change)
{
	struct meta_catalog *catalog = c->s->catalog;
	struct rs_job *job = change->clone;
	struct rs_version *v = NULL;
	uint64_t view, head_view = 0;
	struct rs_below *below;
	int rc = meta_job_clone(catalog, source->id, job->name, job->mtime_ns, change->token, &job->id, &job->root,
				c->err);

	if (rc == 0)
		rc = meta_version_each(catalog, job->id, on_clone, c, c->err);
	for (size_t i = 0; rc == 0 && i < c->versions.nr; i++) {
		rc = meta_view_put(catalog, c->versions.at[i].id, "", c->versions.at[i].ranks, &view, c->err);
		if (c->versions.at[i].id == c->head)
			head_view = view;
	}
	if (rc == 0)
		rc = rs_version_load(c->s, c->head, &v, c->err);
	if (rc == 0)
		rc = rs_view_new(job, v, head_view, &v->topo, change->ret_head, c->err);
	if (rc == 0)
		rc = meta_stale_note_job(catalog, job->id, 0, c->err);
	/* what can fail, while it can */
	if (rc == 0)
		rc = rs_tree_begin(job, RS_TREE_CLONED, c->err);
	if (rc == 0)
		rc = rs_view_below(*change->ret_head, &below, c->err);
	if (rc == 0)
		(*change->ret_head)->own = true;
	return rc;
}

static int clone_job(struct rs_service *s, struct rs_job *source, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_view *head = rs_job_head(source);
	struct clone c = {.s = s, .head_nr = head->version->nr, .err = err};
	/* durable: numbers are given once, whatever is lost */
	int rc = meta_catalog_begin(s->catalog, true, err);

	if (rc == 0)
		rc = meta_catalog_end(s->catalog, save_clone(&c, source, change), err);
	sc_vec_done(&c.versions);
	rs_view_unref(s, head);
	if (rc == 0)
		return 0;
	rs_view_unref(s, *change->ret_head);
	*change->ret_head = NULL;
	return rc;
}

/* --- rows of jobs --- */

/* Makes a job with its working tree: all of it, so that nothing of it is still to fail when others know of it. */
static int make_job(struct rs_service *s, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_job *job = change->made;
	struct rs_amend remove = {.kind = RS_AMEND_REMOVE};
	struct sc_err why;
	int rc = meta_job_add(s->catalog, change->row, err);

	if (rc < 0)
		return rc;
	job->id = change->row->id;
	job->root = change->row->root;
	rc = rs_tree_begin(job, RS_TREE_NEW, err);
	if (rc < 0 && rs_head_local.amend(s, job, &remove, &why) < 0)
		sc_log(SC_LOG_ERROR, "job '%s' was not made (%s), but its rows stay (%s): the next start shows it",
		       job->name, err->msg, why.msg);
	return rc;
}

static int amend(struct rs_service *s, uint64_t job, const struct rs_amend *change, struct sc_err *err)
{
	struct meta_catalog *c = s->catalog;
	int rc = 0;

	switch (change->kind) {
	case RS_AMEND_MAKE:
	case RS_AMEND_CLONE:
		break; /* have transactions of their own */
	case RS_AMEND_REMOVE:
		rc = meta_stale_note_job(c, job, 0, err);
		return rc < 0 ? rc : meta_job_remove(c, job, err);
	case RS_AMEND_RENAME:
		rc = meta_job_set_name(c, job, change->name, err);
		return rc < 0 ? rc : meta_stale_note_named(c, job, err);
	case RS_AMEND_ATTR:
		rc = meta_job_set_attr(c, job, change->row->mode, change->row->uid, change->row->gid, err);
		return rc < 0 ? rc : meta_stale_note_named(c, job, err);
	case RS_AMEND_FIRST:
		rc = meta_job_set_first(c, job, change->layout, change->topology, err);
		return rc < 0 ? rc : meta_upper_apply(c, change->rows, err);
	case RS_AMEND_CONFIG:
		for (size_t i = 0; rc == 0 && i < change->nr_settings; i++)
			rc = meta_config_set(c, job, change->settings[i].key, change->settings[i].value, err);
		return rc;
	case RS_AMEND_TAG:
		return meta_version_set_tag(c, change->version, change->tag, err);
	}
	return rc;
}

static int local_amend(void *arg, struct rs_job *job, const struct rs_amend *change, struct sc_err *err)
{
	struct rs_service *s = arg;
	bool durable = change->kind == RS_AMEND_REMOVE || change->kind == RS_AMEND_CONFIG;
	int rc;

	if (change->kind == RS_AMEND_MAKE)
		return make_job(s, change, err);
	if (change->kind == RS_AMEND_CLONE)
		return clone_job(s, job, change, err);
	if (change->kind == RS_AMEND_FIRST || change->kind == RS_AMEND_TAG)
		durable = rs_job_syncs(job);
	rc = meta_catalog_begin(s->catalog, durable, err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, amend(s, job->id, change, err), err);
	if (rc == 0 && (change->kind == RS_AMEND_RENAME || change->kind == RS_AMEND_ATTR))
		rs_worker_call(s, false); /* records are written anew */
	return rc;
}

const struct rs_head_ops rs_head_local = {
	.name = "local",
	.requested = local_requested,
	.begin = local_begin,
	.publish = local_publish,
	.abort = local_abort,
	.settle = local_settle,
	.amend = local_amend,
};
