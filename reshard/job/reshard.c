/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that make a new head out of what is there: topology, layout, rollback; and discard.
 * A reshard is a new version with a new presentation and the same storage: steps 11 to 13.
 */
#include "reshard/job/service_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

SC_METRIC(reshards_made, SC_COUNTER, "scalai_reshards_total", "Versions made by topology, layout or rollback.");

/* --- keep=N --- */

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
			rc = meta_version_remove(s->catalog, o.ids.at[i], err);
			if (rc == 0)
				rs_views_leave(s, o.ids.at[i]);
		}
	sc_vec_done(&o.ids);
	return rc;
}

/* --- a new head --- */

int rs_refuse_dirty(struct rs_job *job, const char *what, struct sc_err *err)
{
	size_t dirty;

	(void)pthread_mutex_lock(&job->state);
	dirty = job->dirty;
	(void)pthread_mutex_unlock(&job->state);
	if (!dirty)
		return 0;
	return sc_fail(err, SC_E_BUSY, "%zu files were written or removed since the last version; commit or "
		       "discard them before a new %s", dirty, what);
}

/* A version that is yet to be: the storage of another one, made now. */
static struct rs_version *copy_version(const struct rs_version *from)
{
	struct rs_version *v = rs_version_like(from, NULL);

	if (v)
		v->made_ns = sc_now_wall_ns();
	return v;
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

/* Layout and topology of a job that has no version yet. */
static int save_first(struct rs_service *s, struct rs_job *job, uint64_t layout, const char *topology,
		      struct sc_err *err)
{
	int rc = meta_catalog_begin(s->catalog, rs_job_syncs(job), err);

	return rc < 0 ? rc : meta_catalog_end(s->catalog, meta_job_set_first(s->catalog, job->id, layout, topology, err), err);
}

/* The topology of a job that has no version yet. */
static int first_topology(struct rs_service *s, struct rs_job *job, const char *text,
			  struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	struct meta_topology topo = {0};
	char *copy;
	int rc;

	if (!job->first_layout)
		return sc_fail(err, SC_E_COMMAND, "the job has no layout, which says what axes there are; write one to "
			       ".ctl/layout first, for example 'use replicated'");
	rc = rs_layout_by_id(s, job->first_layout, &kept, err);
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, text, &topo, err);
	if (rc < 0)
		return rc;
	copy = sc_strdup(topo.text);
	meta_topology_done(&topo);
	rc = copy ? save_first(s, job, job->first_layout, copy, err) : sc_nomem(err);
	if (rc < 0) {
		sc_sys.release(copy);
		return rc;
	}
	(void)pthread_mutex_lock(&job->state);
	sc_sys.release(job->first_topology);
	job->first_topology = copy;
	(void)pthread_mutex_unlock(&job->state);
	rs_job_tell(job);
	return 0;
}

static int set_topology(struct rs_service *s, struct rs_job *job, struct rs_view *head,
			const char *text, struct sc_err *err)
{
	struct meta_topology topo = {0};
	struct rs_version *v;
	int rc = meta_topology_parse(head->version->layout, text, &topo, err);

	if (rc == 0 && strcmp(topo.text, head->topo.text) == 0) {
		meta_topology_done(&topo);
		return 0; /* it has this topology */
	}
	if (rc == 0)
		rc = rs_refuse_dirty(job, "topology", err);
	if (rc == 0)
		rc = rs_version_refuse_bad(head->version, err);
	v = rc == 0 ? copy_version(head->version) : NULL;
	if (rc == 0 && !v)
		rc = sc_nomem(err);
	if (rc == 0)
		rc = rs_new_head(s, job, v, &topo, head->version->id, "topology", err);
	meta_topology_done(&topo);
	return rc;
}

int rs_job_topology(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_view *head;
	char *copy = sc_strdup(text);
	int rc = 0;

	if (!copy)
		return sc_nomem(err);
	(void)pthread_mutex_lock(&job->command);
	(void)pthread_rwlock_wrlock(&job->tree);
	head = rs_job_head(job);
	rc = head ? set_topology(s, job, head, sc_trim(copy), err) : first_topology(s, job, sc_trim(copy), err);
	rs_view_unref(s, head);
	(void)pthread_rwlock_unlock(&job->tree);
	(void)pthread_mutex_unlock(&job->command);
	sc_sys.release(copy);
	if (rc == 0)
		rs_kick(s, true);
	return rc;
}

/* A first layout, or another before the first commit; a topology that it cannot express goes. */
static int first_layout(struct rs_service *s, struct rs_job *job, const char *text,
			struct sc_err *err)
{
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	struct sc_err ignored;
	uint64_t id;
	bool fits;
	int rc = rs_layout_keep(s, text, &id, &layout, err);

	if (rc < 0)
		return rc;
	fits = job->first_topology && meta_topology_parse(layout, job->first_topology, &topo, &ignored) == 0;
	if (job->first_topology && !fits)
		return sc_fail(err, SC_E_LAYOUT, "the layout does not fit the topology '%s' that was written: %s",
			       job->first_topology, ignored.msg);
	meta_topology_done(&topo);
	rc = save_first(s, job, id, job->first_topology, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->state);
	job->first_layout = id;
	(void)pthread_mutex_unlock(&job->state);
	rs_job_tell(job);
	return 0;
}

static int set_layout(struct rs_service *s, struct rs_job *job, struct rs_view *head,
		      const char *text, struct sc_err *err)
{
	const struct meta_layout *layout;
	struct meta_topology topo = {0};
	struct rs_version *v = NULL;
	uint64_t id;
	int rc = rs_refuse_dirty(job, "layout", err);

	if (rc == 0)
		rc = rs_version_refuse_bad(head->version, err);
	if (rc == 0)
		rc = rs_layout_keep(s, text, &id, &layout, err);
	if (rc == 0 && id == head->version->layout_id)
		return 0;
	if (rc == 0)
		rc = meta_topology_parse(layout, head->topo.text, &topo, err);
	if (rc == 0) {
		v = copy_version(head->version);
		rc = v ? 0 : sc_nomem(err);
	}
	if (rc == 0) {
		v->layout = layout;
		v->layout_id = id;
		rc = rs_new_head(s, job, v, &topo, head->version->id, "layout", err);
	}
	meta_topology_done(&topo);
	return rc;
}

int rs_job_layout(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_view *head;
	int rc;

	(void)pthread_mutex_lock(&job->command);
	(void)pthread_rwlock_wrlock(&job->tree);
	head = rs_job_head(job);
	rc = head ? set_layout(s, job, head, text, err) : first_layout(s, job, text, err);
	rs_view_unref(s, head);
	(void)pthread_rwlock_unlock(&job->tree);
	(void)pthread_mutex_unlock(&job->command);
	if (rc == 0)
		rs_kick(s, true);
	return rc;
}

int rs_job_rollback(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err)
{
	struct rs_view *old = NULL, *head;
	struct rs_version *v = NULL;
	char *copy = sc_strdup(text);
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->command);
	(void)pthread_rwlock_wrlock(&job->tree);
	head = rs_job_head(job);
	if (rc == 0)
		rc = rs_refuse_dirty(job, "head", err);
	if (rc == 0)
		rc = rs_view_named(s, job, sc_trim(copy), &old, err);
	if (rc == 0)
		rc = rs_version_refuse_bad(old->version, err);
	if (rc == 0) {
		v = copy_version(old->version);
		rc = v ? rs_new_head(s, job, v, &old->topo, head ? head->version->id : 0, "rollback", err)
		       : sc_nomem(err);
	}
	rs_view_unref(s, old);
	rs_view_unref(s, head);
	(void)pthread_rwlock_unlock(&job->tree);
	(void)pthread_mutex_unlock(&job->command);
	sc_sys.release(copy);
	if (rc == 0)
		rs_kick(s, true);
	return rc;
}

int rs_job_discard(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_view *head;
	int rc;

	(void)pthread_mutex_lock(&job->command);
	(void)pthread_rwlock_wrlock(&job->tree);
	head = rs_job_head(job);
	rc = rs_work_settle(job, head, err);
	rs_view_unref(s, head);
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, false, err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, rs_work_clear_rows(job, err), err);
	if (rc == 0) {
		rs_work_clear(job, false);
		s->events.names_changed(s->events.arg);
		rs_job_tell(job);
		rs_kick(s, true);
	}
	(void)pthread_rwlock_unlock(&job->tree);
	(void)pthread_mutex_unlock(&job->command);
	return rc;
}

/* --- wait --- */

int rs_job_wait_parse(struct rs_service *s, struct rs_job *job, const char *text,
		      uint64_t *ret_version, struct sc_err *err)
{
	struct rs_view *view = NULL;
	char *copy = sc_strdup(text), *word, *end;
	uint64_t nr = 0;
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	word = sc_trim(copy);
	if (*word) {
		nr = strtoull(word, &end, 10);
		if (*word < '0' || *word > '9' || *end)
			rc = sc_fail(err, SC_E_COMMAND, "'%s' is not a version's number", word);
		else
			rc = rs_view_version(s, job, nr, &view, err);
	} else {
		rc = rs_view_head(s, job, &view, err);
	}
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && job->config.materialize == RS_NEVER && !rs_view_is_materialized(view))
		rc = sc_fail(err, SC_E_COMMAND, "materialize=never: version %" PRIu64 " will not be materialized",
			     view->version->nr);
	if (rc == 0) {
		*ret_version = view->version->nr;
		job->wanted = view->version->nr;
		job->stopped_head = 0; /* it is tried now */
	}
	(void)pthread_mutex_unlock(&job->state);
	rs_view_unref(s, view);
	sc_sys.release(copy);
	if (rc == 0)
		rs_kick(s, false);
	return rc;
}

int rs_job_wait_poll(struct rs_service *s, struct rs_job *job, uint64_t version, struct sc_err *err)
{
	struct rs_view *view = NULL, *head;
	int rc = rs_view_version(s, job, version, &view, err);

	if (rc < 0)
		return rc;
	head = rs_job_head(job);
	if (rs_view_is_materialized(view))
		rc = 1;
	else if (!head || head->version->nr != version)
		rc = sc_fail(err, SC_E_COMMAND, "version %" PRIu64 " is not the head any more and will not be "
			     "materialized", version);
	else
		rc = rs_version_refuse_bad(view->version, err);
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && job->stopped && job->stopped_head == head->id)
		rc = sc_fail_at(err, job->stopped_code, job->stopped_errnum, __FILE__, __LINE__,
				"version %" PRIu64 " is not materialized: %s", version, job->stopped);
	(void)pthread_mutex_unlock(&job->state);
	rs_view_unref(s, head);
	rs_view_unref(s, view);
	return rc;
}

/* --- verify --- */

int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_view *head = NULL;
	struct sc_buf report = {0};
	int rc = rs_view_head(s, job, &head, err);

	if (rc < 0)
		return rc;
	err->code = 0;
	rc = rs_verify_compare(s, head, &report, err);
	if (report.failed)
		rc = sc_nomem(err);
	if (report.text) {
		(void)pthread_mutex_lock(&job->state);
		sc_sys.release(job->verify_report);
		job->verify_report = report.text;
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_view_unref(s, head);
	return rc;
}
