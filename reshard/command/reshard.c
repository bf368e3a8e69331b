/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that make a new head out of what is there: topology, layout, rollback; and discard.
 * A reshard is a new version with a new presentation and the same storage: steps 11 to 13.
 */
#include "reshard/command/command_i.h"

#include <string.h>

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

/* Layout and topology of a job that has no version yet. */
static int save_first(struct rs_service *s, struct rs_job *job, uint64_t layout, const char *topology,
		      struct sc_err *err)
{
	int rc = meta_catalog_begin(s->catalog, rs_job_syncs(job), err);

	return rc < 0
		   ? rc
		   : meta_catalog_end(s->catalog, meta_job_set_first(s->catalog, job->id, layout, topology, err), err);
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
