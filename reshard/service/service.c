/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends the service; makes, removes and renames jobs. */
#include "reshard/service/service.h"

#include <string.h>

#include "meta/base/guard.h"
#include "meta/catalog/member.h"
#include "reshard/upkeep/recovery/record.h"
#include "reshard/upkeep/background/upkeep_i.h"

/* --- jobs --- */

static void job_free(struct rs_job *job)
{
	rs_tree_end(job);
	rs_view_unref(job->service, job->head);
	sc_vec_done(&job->made);
	(void)pthread_mutex_destroy(&job->command);
	(void)pthread_rwlock_destroy(&job->tree);
	(void)pthread_rwlock_destroy(&job->names);
	(void)pthread_mutex_destroy(&job->state);
	sc_sys.release(job->name);
	sc_sys.release(job->first_topology);
	sc_sys.release(job->error);
	sc_sys.release(job->stopped);
	sc_sys.release(job->verify_report);
	sc_sys.release(job->uncut.text);
	sc_sys.release(job);
}

static struct rs_job *job_new(struct rs_service *s, const struct meta_job_row *row)
{
	struct rs_job *job = sc_zalloc(sizeof(*job));
	pthread_rwlockattr_t fair;

	if (!job)
		return NULL;
	job->service = s;
	job->id = row->id;
	job->uid = row->uid;
	job->gid = row->gid;
	job->mode = row->mode;
	job->mtime_ns = row->made_ns;
	job->first_layout = row->layout;
	job->root = row->root;
	job->config = rs_config_default();
	(void)pthread_mutex_init(&job->command, NULL);
	(void)pthread_rwlockattr_init(&fair);
	(void)pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	(void)pthread_rwlock_init(&job->tree, &fair);
	(void)pthread_rwlock_init(&job->names, &fair);
	(void)pthread_rwlockattr_destroy(&fair);
	(void)pthread_mutex_init(&job->state, NULL);
	job->name = sc_strdup(row->name);
	job->first_topology = row->topology ? sc_strdup(row->topology) : NULL;
	if (!job->name || (row->topology && !job->first_topology)) {
		job_free(job);
		return NULL;
	}
	return job;
}

/* Reserves memory for one more name or job, so that nothing can fail once the catalog has it.  The caller holds
 * s->jobs.naming. */
static int reserve_job(struct rs_service *s, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&s->lock);
	rc = sc_vec_grow((void **)&s->jobs.at, s->jobs.nr, &s->jobs.room, sizeof(*s->jobs.at)) < 0 ||
	     sc_map_reserve(&s->jobs.by_id, 1) < 0 || sc_map_reserve(&s->jobs.by_name, 1) < 0;
	(void)pthread_mutex_unlock(&s->lock);
	return rc ? sc_nomem(err) : 0;
}

static void add_job(struct rs_service *s, struct rs_job *job)
{
	(void)pthread_mutex_lock(&s->lock);
	s->jobs.at[s->jobs.nr++] = job;
	(void)sc_map_put(&s->jobs.by_id, (const char *)&job->id, sizeof(job->id), job);
	(void)sc_map_put(&s->jobs.by_name, job->name, strlen(job->name), job);
	(void)pthread_mutex_unlock(&s->lock);
}

struct job_rows {
	struct rs_service *s;
	struct sc_err *err;
	struct {
		uint64_t *at;
		size_t nr, room;
	} heads;
};

static int on_job(void *arg, const struct meta_job_row *row)
{
	struct job_rows *r = arg;
	struct rs_job *job = reserve_job(r->s, r->err) < 0 ? NULL : job_new(r->s, row);

	if (!job)
		return sc_nomem(r->err);
	add_job(r->s, job);
	return sc_vec_push(&r->heads, row->head) < 0 ? sc_nomem(r->err) : 0;
}

static int on_config(void *arg, const char *key, const char *value)
{
	struct rs_job *job = arg;

	/* a key of a newer version is no reason not to start */
	if (rs_config_apply(&job->config, key, value) < 0)
		sc_log(SC_LOG_WARN, "job '%s': config '%s=%s' is unknown, continuing", job->name, key, value);
	return 0;
}

static int load_jobs(struct rs_service *s, struct sc_err *err)
{
	struct job_rows r = {.s = s, .err = err};
	int rc = meta_job_each(s->catalog, on_job, &r, err);

	for (size_t i = 0; i < s->jobs.nr && rc == 0; i++) {
		struct rs_job *job = s->jobs.at[i];

		rc = meta_config_each(s->catalog, job->id, on_config, job, err);
		if (rc == 0 && r.heads.at[i])
			rc = rs_view_load_head(s, r.heads.at[i], &job->head, err);
		if (rc == 0)
			rc = rs_homes_load(job, err);
		if (rc == 0)
			rc = rs_tree_begin(job, RS_TREE_LOADED, err);
		if (rc < 0)
			rc = sc_wrap(err, rc, "job '%s'", job->name);
	}
	sc_vec_done(&r.heads);
	return rc;
}

int rs_job_check_name(const char *name, struct sc_err *err)
{
	char shown[SC_NAME_BYTES_MAX + 1];

	if (strlen(name) > SC_NAME_BYTES_MAX)
		return sc_fail(err, SC_E_NAME, "a job's name has at most %d bytes", SC_NAME_BYTES_MAX);
	if (!*name || *name == '.' || strchr(name, '/') || strcmp(name, sc_shown(shown, sizeof(shown), name)) != 0)
		return sc_fail(err, SC_E_COMMAND, "'%s' is no name for a job: it is empty, begins with '.', or has a "
			       "'/' or a character that cannot be printed", name);
	return 0;
}

/* Makes a job.  The caller holds s->jobs.naming. */
static int make(struct rs_service *s, struct meta_job_row *row, struct rs_job **ret, struct sc_err *err)
{
	struct rs_amend change = {.kind = RS_AMEND_MAKE, .row = row};
	struct rs_job *job = NULL;
	int rc = reserve_job(s, err);

	if (rc == 0) {
		job = change.made = job_new(s, row);
		rc = job ? rs_head_amend(s, NULL, &change, err) : sc_nomem(err);
	}
	if (rc == 0)
		add_job(s, *ret = job);
	else if (job)
		job_free(job);
	return rc;
}

int rs_job_make(struct rs_service *s, const char *name, mode_t mode, uid_t uid, gid_t gid,
		struct rs_job **ret, struct sc_err *err)
{
	struct meta_job_row row = {.name = name, .mode = mode & 07777, .uid = uid, .gid = gid,
				   .made_ns = sc_now_wall_ns()};
	int rc = rs_job_check_name(name, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&s->jobs.naming);
	rc = make(s, &row, ret, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	return rc;
}

int rs_job_make_shared(struct rs_service *s, struct meta_job_row *row, struct rs_job **ret, struct sc_err *err)
{
	struct rs_job *job;
	int rc;

	(void)pthread_mutex_lock(&s->jobs.naming);
	job = rs_job_by_name(s, row->name);
	if (job && job->root != row->root)
		rc = sc_fail(err, SC_E_EXISTS, "this node has another job '%s'", row->name);
	else
		rc = job ? 0 : make(s, row, &job, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	*ret = job;
	return rc;
}

/* --- clones --- */

/* Makes a clone of a job.  The caller holds s->jobs.naming and the command lock of the source. */
static int make_clone(struct rs_service *s, struct rs_job *source, const char *name, uint64_t token, struct sc_err *err)
{
	struct meta_job_row row = {.name = name, .uid = source->uid, .gid = source->gid, .mode = source->mode,
				   .made_ns = sc_now_wall_ns(), .layout = source->first_layout,
				   .topology = source->first_topology};
	struct rs_view *head = NULL;
	struct rs_amend clone = {.kind = RS_AMEND_CLONE, .ret_head = &head, .token = token};
	struct rs_job *job;
	int rc = reserve_job(s, err);

	if (rc < 0)
		return rc;
	job = clone.clone = job_new(s, &row);
	if (!job)
		return sc_nomem(err);
	job->config = rs_config_of(source);
	job->config.remove = false;
	rc = rs_head_amend(s, source, &clone, err);
	if (rc < 0) {
		job_free(job);
		return rc;
	}
	add_job(s, job);
	rs_tree_show(job, head);
	return 0;
}

int rs_job_clone(const struct rs_caller *who, struct rs_job *source, const char *text, struct sc_err *err)
{
	struct rs_service *s = who->service;
	struct rs_view *head = NULL;
	char *copy = sc_strdup(text), *name = copy ? sc_trim(copy) : NULL;
	int rc = copy ? rs_job_check_name(name, err) : sc_nomem(err);

	(void)pthread_mutex_lock(&source->command);
	(void)pthread_mutex_lock(&s->jobs.naming);
	if (rc == 0 && source->removed)
		rc = sc_fail(err, SC_E_NOT_FOUND, "the job is gone");
	if (rc == 0 && who->uid != 0 && who->uid != source->uid)
		rc = sc_fail(err, SC_E_PERMISSION, "only the owner of job '%s' and root can clone it", source->name);
	if (rc == 0 && rs_job_by_name(s, name))
		rc = sc_fail(err, SC_E_EXISTS, "there is a job '%s' already", name);
	if (rc == 0)
		rc = rs_view_head(s, source, &head, err);
	if (rc == 0)
		rc = make_clone(s, source, name, who->token, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	(void)pthread_mutex_unlock(&source->command);
	rs_view_unref(s, head);
	if (rc == 0)
		rs_worker_call(s, false);
	sc_sys.release(copy);
	return rc;
}

/* --- the end of a job, other names --- */

/* Refuses to remove a job whose data may be nowhere else, unless its config allows that.  The gate is closed. */
static int refuse_data(struct rs_job *job, struct sc_err *err)
{
	struct rs_dirt dirt;
	int rc = rs_tree_dirt(job, &dirt, NULL, err);

	(void)pthread_mutex_lock(&job->state);
	if (rc == 0 && (job->head || dirt.nr) && !job->config.remove)
		rc = sc_fail(err, SC_E_NOT_EMPTY, "job '%s' has data that may be nowhere else; 'scalai delete' "
			     "removes a job with all its versions (so does rmdir, once 'remove=yes' was written to its "
			     ".ctl/config)", job->name);
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

int rs_job_drop(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_amend remove = {.kind = RS_AMEND_REMOVE, .is_followed = true};
	int rc = rs_log_drain(s, err); /* what waits there would be rows of a job that is gone */

	(void)pthread_mutex_lock(&s->jobs.naming);
	if (rc == 0)
		rc = rs_head_amend(s, job, &remove, err);
	if (rc == 0) {
		(void)pthread_mutex_lock(&job->state);
		job->removed = true;
		(void)pthread_mutex_unlock(&job->state);
		(void)pthread_mutex_lock(&s->lock);
		sc_map_drop(&s->jobs.by_name, job->name, strlen(job->name));
		(void)pthread_mutex_unlock(&s->lock);
	}
	(void)pthread_mutex_unlock(&s->jobs.naming);
	if (rc == 0) {
		rs_tree_show(job, NULL);
		rs_parts_purge(&s->parts);
		rs_worker_call(s, true);
	}
	return rc;
}

int rs_job_remove(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_amend remove = {.kind = RS_AMEND_REMOVE};
	int rc = rs_command_lock(job, err);

	if (rc < 0)
		return rc;
	(void)rs_tree_close(job, false, err);
	rc = refuse_data(job, err);
	if (rc == 0 && !rs_head_waits(s))
		rc = rs_job_drop(s, job, err);
	rs_tree_open(job);
	(void)pthread_mutex_unlock(&job->command);
	if (rc == 0 && rs_head_waits(s)) /* all nodes close their gates for it, this one, too */
		rc = rs_head_amend(s, job, &remove, err);
	return rc;
}

/* Renames a job.  The caller holds s->jobs.naming. */
static int give_name(struct rs_service *s, struct rs_job *job, const char *name, bool is_followed, struct sc_err *err)
{
	struct rs_amend rename = {.kind = RS_AMEND_RENAME, .name = name, .is_followed = is_followed};
	char *copy = sc_strdup(name), *old = job->name;
	int rc = copy ? reserve_job(s, err) : sc_nomem(err);

	if (rc == 0)
		rc = rs_head_amend(s, job, &rename, err);
	if (rc != 0) {
		sc_sys.release(copy);
		return rc < 0 ? rc : 0;
	}
	(void)pthread_mutex_lock(&job->state);
	(void)pthread_mutex_lock(&s->lock);
	sc_map_drop(&s->jobs.by_name, old, strlen(old));
	(void)sc_map_put(&s->jobs.by_name, copy, strlen(copy), job);
	job->name = copy;
	(void)pthread_mutex_unlock(&s->lock);
	(void)pthread_mutex_unlock(&job->state);
	sc_sys.release(old);
	return 0;
}

int rs_job_rename(struct rs_service *s, struct rs_job *job, const char *name, struct sc_err *err)
{
	int rc = rs_job_check_name(name, err);

	(void)pthread_mutex_lock(&s->jobs.naming);
	if (rc == 0 && job->removed)
		rc = sc_fail(err, SC_E_NOT_FOUND, "the job is gone");
	if (rc == 0)
		rc = give_name(s, job, name, false, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	return rc;
}

/* Changes mode and owner of a job.  The caller holds s->jobs.naming. */
static int give_attr(struct rs_service *s, struct rs_job *job, const struct meta_job_row *to, bool is_followed,
		     struct sc_err *err)
{
	struct meta_job_row row = {.mode = to->mode & 07777, .uid = to->uid, .gid = to->gid};
	struct rs_amend attr = {.kind = RS_AMEND_ATTR, .row = &row, .is_followed = is_followed};
	int rc = rs_head_amend(s, job, &attr, err);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	(void)pthread_mutex_lock(&job->state);
	job->mode = row.mode;
	job->uid = row.uid;
	job->gid = row.gid;
	(void)pthread_mutex_unlock(&job->state);
	s->events.names_changed(s->events.arg);
	return 0;
}

int rs_job_chattr(struct rs_service *s, struct rs_job *job, mode_t mode, uid_t uid, gid_t gid,
		  struct sc_err *err)
{
	struct meta_job_row row = {0};
	int rc;

	(void)pthread_mutex_lock(&s->jobs.naming);
	row.mode = mode == RS_SAME_MODE ? job->mode : mode; /* under this lock they change */
	row.uid = uid == RS_SAME_ID ? job->uid : uid;
	row.gid = gid == RS_SAME_ID ? job->gid : gid;
	rc = give_attr(s, job, &row, false, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	return rc;
}

int rs_job_follow(struct rs_service *s, struct rs_job *job, const struct meta_job_row *row, struct sc_err *err)
{
	int rc = 0;

	(void)pthread_mutex_lock(&s->jobs.naming);
	if (!job->removed && (job->mode != (row->mode & 07777) || job->uid != row->uid || job->gid != row->gid))
		rc = give_attr(s, job, row, true, err);
	if (rc == 0 && !job->removed && strcmp(job->name, row->name) != 0)
		rc = give_name(s, job, row->name, true, err);
	(void)pthread_mutex_unlock(&s->jobs.naming);
	return rc;
}

/* --- start and end --- */

static int any_blob(void *arg, uint64_t blob)
{
	(void)arg;
	(void)blob;
	return 1;
}

static int forget(void *arg, struct rs_job *job, uint64_t ino, uint64_t blob)
{
	(void)blob;
	return rs_tree_forget(job->service, job, ino, arg);
}

/* Forgets the objects without a name at a start that takes nothing over: nobody holds them. */
static int forget_nameless(struct rs_service *s, struct sc_err *err)
{
	int rc = rs_tree_each_nameless(s, forget, err);

	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

static int on_member(void *arg, const struct meta_member_row *row)
{
	(void)row;
	*(bool *)arg = true;
	return 0;
}

static int service_new(const struct rs_options *o, struct rs_service *s, struct sc_err *err)
{
	struct sc_buf path = {0};
	struct sc_err ignored;
	int rc = meta_store_open(o->store, o->lock, &s->store, err), blobs = 0;

	if (rc == 0)
		rc = blobs = meta_store_each(&s->store, any_blob, NULL, err);
	if (rc < 0)
		return rc;
	/* until all is in the new one, there is none: a start would take the rest for garbage */
	sc_buf_printf(&path, "%s/%s", o->store, o->rebuild ? "scalai.db.new" : "scalai.db");
	rc = path.failed ? sc_nomem(err) : meta_catalog_open(path.text, !blobs || o->rebuild, &s->catalog, err);
	if (rc == 0 && !o->rebuild)
		rc = rs_records_refuse_newer(s, path.text, err);
	if (rc == SC_E_CORRUPT && s->catalog && o->sets_newer_aside)
		rc = rs_records_set_newer_aside(s, err);
	sc_buf_done(&path);
	if (rc == 0 && !o->rebuild)
		(void)meta_catalog_reserve(s->catalog, &ignored); /* the worker says why not */
	if (rc == 0)
		rc = rs_blobs_new(&s->store, &s->blobs, err);
	s->gave_wrong = o->takes_over; /* the daemon before may have: the kernel keeps what it had */
	if (rc == 0 && !(s->folders = rs_folders_new(s->catalog, s->blobs)))
		rc = sc_nomem(err);
	if (rc == 0)
		rc = rs_log_open(s, o->keep_garbage, err);
	if (rc == 0)
		rc = o->keep_garbage || o->takes_over ? 0 : meta_mount_begins(s->catalog, err);
	if (rc == 0)
		rc = meta_member_get(s->catalog, on_member, &s->shared, err);
	if (rc == 0)
		rc = load_jobs(s, err);
	if (rc == 0 && !o->keep_garbage && !o->takes_over)
		rc = forget_nameless(s, err);
	for (size_t i = 0; rc == 0 && i < o->nr_open; i++)
		rc = o->open[i] ? rs_work_hold(s, o->open[i], err) : 0;
	if (rc == 0 && !o->keep_garbage)
		rc = rs_garbage(s, o->takes_over, err);
	if (rc == 0 && !o->keep_garbage)
		rc = rs_damaged_load(s, err);
	if (rc == 0 && !o->quiet_worker && !o->rebuild)
		rc = rs_log_start(s, err);
	if (rc == 0 && !o->quiet_worker)
		rc = rs_worker_start(s, err);
	if (rc == 0 && !o->quiet_worker)
		rc = rs_scrub_start(s, err);
	return rc;
}

static void no_names(void *arg)
{
	(void)arg;
}

static void no_news(void *arg, uint64_t job)
{
	(void)arg;
	(void)job;
}

static const struct rs_events nobody = {NULL, no_names, no_news};

int rs_service_new(const struct rs_options *options, struct rs_service **ret, struct sc_err *err)
{
	struct rs_service *s = sc_zalloc(sizeof(*s));
	int rc;

	if (!s)
		return sc_nomem(err);
	s->store = (struct meta_store){-1, -1, -1, -1, NULL};
	s->is_held = options->is_held;
	s->events = options->events ? *options->events : nobody;
	(void)pthread_mutex_init(&s->jobs.naming, NULL);
	(void)pthread_mutex_init(&s->lock, NULL);
	(void)pthread_mutex_init(&s->images.lock, NULL);
	(void)pthread_mutex_init(&s->making, NULL);
	(void)pthread_mutex_init(&s->gauges_lock, NULL);
	(void)pthread_mutex_init(&s->met.lock, NULL);
	(void)pthread_mutex_init(&s->parts.lock, NULL);
	sc_guard_install();
	(void)pthread_mutex_init(&s->worker.lock, NULL);
	(void)pthread_cond_init(&s->worker.wake, NULL);
	s->images.idle.idle_before = s->images.idle.idle_after = &s->images.idle;
	s->preset_dir = options->preset_dir ? sc_strdup(options->preset_dir) : NULL;
	rc = rs_requests_new(s, err);
	if (rc == 0)
		rc = rs_upkeep_new(s, options->scrub_every_s, options->scrub_bytes_per_s, err);
	if (rc == 0)
		rc = service_new(options, s, err);
	if (rc < 0)
		rs_service_free(s);
	else
		*ret = s;
	return rc;
}

struct rs_service *rs_service_free(struct rs_service *s)
{
	if (!s)
		return NULL;
	rs_worker_stop(s);
	rs_log_close(s);
	for (size_t i = 0; i < s->jobs.nr; i++)
		job_free(s->jobs.at[i]);
	sc_vec_done(&s->jobs);
	sc_map_done(&s->jobs.by_id);
	sc_map_done(&s->jobs.by_name);
	rs_images_forget(s, NULL);
	rs_parts_done(&s->parts);
	rs_views_left(s, true);
	while (s->views.first) {
		struct rs_view *v = s->views.first;

		s->views.first = v->next;
		rs_view_unref(s, v);
	}
	rs_folders_free(s->folders);
	rs_blobs_free(s->blobs);
	for (size_t i = 0; i < s->layouts.nr; i++)
		meta_layout_free(s->layouts.at[i]->layout);
	sc_vec_done(&s->layouts);
	rs_requests_free(s);
	rs_upkeep_free(s);
	sc_map_done(&s->paths.ids);
	sc_vec_done(&s->paths);
	sc_arena_done(&s->paths.arena);
	meta_catalog_close(s->catalog);
	meta_store_close(&s->store);
	sc_sys.release(s->preset_dir);
	(void)pthread_mutex_destroy(&s->jobs.naming);
	(void)pthread_mutex_destroy(&s->lock);
	(void)pthread_mutex_destroy(&s->images.lock);
	(void)pthread_mutex_destroy(&s->making);
	(void)pthread_mutex_destroy(&s->gauges_lock);
	(void)pthread_mutex_destroy(&s->met.lock);
	(void)pthread_mutex_destroy(&s->parts.lock);
	(void)pthread_mutex_destroy(&s->worker.lock);
	(void)pthread_cond_destroy(&s->worker.wake);
	sc_sys.release(s);
	return NULL;
}

const struct meta_store *rs_service_store(struct rs_service *s)
{
	return &s->store;
}
