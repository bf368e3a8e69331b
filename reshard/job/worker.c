/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker: one thread that, job after job, verifies sets that are not verified yet,
 * materializes heads (steps 21 to 26) and removes garbage.  It is the only one that removes
 * blobs of sets, so a blob that it is writing can't be taken for garbage.
 *
 * When something stops it (no space) the job's status says so, the head stays readable, and it
 * tries again after RETRY_NS or when anything changes.
 */
#include "reshard/job/service_i.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "reshard/engine/host.h"

#define RETRY_NS 2000000000

struct pass {
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *head;
	struct rs_host *host;
	struct sc_err *err;
	int64_t told_ns;
};

void rs_kick(struct rs_service *s, bool garbage)
{
	(void)pthread_mutex_lock(&s->worker_lock);
	s->kick = true;
	s->garbage |= garbage;
	(void)pthread_cond_signal(&s->worker_wake);
	(void)pthread_mutex_unlock(&s->worker_lock);
}

/* --- garbage --- */

struct garbage {
	struct {
		uint64_t *at;
		size_t nr, room;
	} blobs;
	struct rs_service *s;
	struct sc_err *err;
};

static int on_garbage(void *arg, uint64_t blob)
{
	struct garbage *g = arg;

	return sc_vec_push(&g->blobs, blob) < 0 ? sc_nomem(g->err) : 0;
}

static int on_file(void *arg, uint64_t blob)
{
	struct garbage *g = arg;
	int known = meta_blob_known(g->s->catalog, blob, g->err);

	return known < 0 ? known : known == 0 ? on_garbage(g, blob) : 0;
}

static int remove_blobs(struct garbage *g)
{
	int rc = 0;

	for (size_t i = 0; i < g->blobs.nr && rc == 0; i++) {
		rs_blob_forget(g->s->blobs, g->blobs.at[i]);
		rc = meta_store_remove(&g->s->store, g->blobs.at[i], g->err);
	}
	sc_vec_done(&g->blobs);
	return rc;
}

/* Rows first, then files: a crash between leaves files without rows, which the next start finds. */
static int collect_garbage(struct rs_service *s, struct sc_err *err)
{
	struct garbage g = {.s = s, .err = err};
	int rc = meta_catalog_begin(s->catalog, false, err);

	rs_step(RS_STEP_MATERIALIZE_GARBAGE);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, meta_garbage(s->catalog, on_garbage, &g, err), err);
	if (rc < 0) {
		sc_vec_done(&g.blobs);
		return rc;
	}
	return remove_blobs(&g);
}

int rs_garbage(struct rs_service *s, struct sc_err *err)
{
	struct garbage g = {.s = s, .err = err};
	int rc = collect_garbage(s, err);

	if (rc == 0)
		rc = meta_store_each(&s->store, on_file, &g, err);
	if (rc == 0)
		return remove_blobs(&g);
	sc_vec_done(&g.blobs);
	return rc;
}

/* --- progress --- */

static void begin(struct pass *p, const char *what, uint64_t total)
{
	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress = (struct rs_progress){p->head->version->nr, what, 0, total, sc_now_ns()};
	(void)pthread_mutex_unlock(&p->job->state);
	rs_job_tell(p->job);
}

static void finish(struct pass *p)
{
	(void)pthread_mutex_lock(&p->job->state);
	p->job->progress = (struct rs_progress){0};
	(void)pthread_mutex_unlock(&p->job->state);
	rs_job_tell(p->job);
}

static bool is_stale(struct pass *p)
{
	bool stale;

	(void)pthread_mutex_lock(&p->s->worker_lock);
	stale = p->s->stop;
	(void)pthread_mutex_unlock(&p->s->worker_lock);
	(void)pthread_mutex_lock(&p->job->state);
	stale = stale || p->job->head != p->head || p->job->removed;
	(void)pthread_mutex_unlock(&p->job->state);
	return stale;
}

/* Counts, tells readers of status ten times a second, and stops for a newer head. */
static int on_bytes(void *arg, uint64_t bytes)
{
	struct pass *p = arg;
	int64_t now = sc_now_ns();

	(void)__atomic_add_fetch(&p->job->progress.done, bytes, __ATOMIC_RELAXED);
	if (now - p->told_ns > 100000000) {
		p->told_ns = now;
		rs_job_tell(p->job);
	}
	return is_stale(p);
}

static void set_stopped(struct rs_job *job, const char *why)
{
	bool changed;

	(void)pthread_mutex_lock(&job->state);
	changed = (job->stopped != NULL) != (why != NULL) || (why && strcmp(job->stopped, why) != 0);
	if (changed) {
		sc_sys.release(job->stopped);
		job->stopped = why ? sc_strdup(why) : NULL;
	}
	(void)pthread_mutex_unlock(&job->state);
	if (changed && why)
		sc_log(SC_LOG_ERROR, "job '%s': %s; trying again", job->name, why);
	if (changed)
		rs_job_tell(job);
}

/* --- verification --- */

static int keep_verdict(struct pass *p, struct rs_set *set, int verdict, uint8_t (*hashes)[16],
			char *report)
{
	struct sc_buf all = {0}, tensors = {0};
	int rc;

	(void)pthread_mutex_lock(&set->report_lock);
	sc_buf_printf(&all, "%s%s", report ? report : "", set->report);
	sc_sys.release(report);
	if (hashes) {
		sc_sys.release(set->hashes);
		set->hashes = hashes;
	}
	if (!all.failed) {
		sc_sys.release(set->report);
		set->report = all.text;
	}
	rs_set_tensors_text(set, &tensors);
	(void)pthread_mutex_unlock(&set->report_lock);
	rc = tensors.failed ? sc_nomem(p->err)
			    : meta_set_set_verified(p->s->catalog, set->id,
						    verdict == 0 ? META_EQUAL : META_DIFFER,
						    tensors.text ? tensors.text : "", set->report, p->err);
	sc_buf_done(&tensors);
	if (rc == 0)
		__atomic_store_n(&set->verified, verdict == 0 ? META_EQUAL : META_DIFFER, __ATOMIC_RELEASE);
	return rc;
}

static int verify_head(struct pass *p)
{
	int rc = 0;

	for (size_t i = 0; i < p->head->version->nr_sets && rc == 0; i++) {
		struct rs_set *set = p->head->version->sets[i];
		uint8_t (*hashes)[16] = NULL;
		char *report = NULL;
		int verdict;

		if (__atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) != META_UNVERIFIED)
			continue;
		begin(p, "verifying", rs_set_bytes(set));
		verdict = rs_verify_set(p->s, set, on_bytes, p, &hashes, &report, p->err);
		if (verdict == SC_E_COPIES)
			sc_log(SC_LOG_ERROR, "job '%s': version %" PRIu64 ": copies differ: %s", p->job->name,
			       p->head->version->nr, p->err->msg);
		rc = verdict == 0 || verdict == SC_E_COPIES ? keep_verdict(p, set, verdict, hashes, report) : verdict;
		(void)__atomic_add_fetch(&p->s->counters.verified_bytes, rs_set_bytes(set), __ATOMIC_RELAXED);
		finish(p);
	}
	return rc;
}

/* --- materialization --- */

/* One rank file: an existing blob when one has these bytes, else a new one. */
static int write_file(struct pass *p, struct rs_set *set, uint32_t rank, const char *file)
{
	struct rs_set_blob b = {.rank = rank, .mode = 0644};
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_image *im = NULL;
	uint64_t cloned = 0;
	int rc = rs_path_id(p->s, file, &b.path_id, p->err);

	if (rc == 0)
		rc = rs_path_text(p->s, b.path_id, &b.path, p->err);
	if (rc == 0)
		rc = rs_view_image(p->s, p->head, rank, file, false, true, &im, p->err);
	if (rc < 0)
		return rc;
	b.bytes = im->bytes;
	b.blob = im->same_as;
	if (!b.blob) {
		rc = meta_blob_add(p->s->catalog, &b.blob, p->err);
		if (rc == 0)
			rc = meta_store_create(&p->s->store, b.blob, &fd, p->err);
		if (rc == 0)
			rc = rs_host_write(p->host, im, fd, on_bytes, p, &cloned, p->err);
		if (rc == 0 && p->job->config.sync) {
			rs_step(RS_STEP_MATERIALIZE_SYNC);
			if (sc_sys.fsync(fd) < 0)
				rc = sc_fail_sys(p->err, errno, "rank %u: cannot flush '%s'", rank, file);
		}
		(void)__atomic_add_fetch(&p->s->counters.reflinked_bytes, cloned, __ATOMIC_RELAXED);
		(void)__atomic_add_fetch(&p->s->counters.materialized_bytes, im->bytes, __ATOMIC_RELAXED);
	} else if (on_bytes(p, im->bytes)) {
		rc = sc_fail(p->err, SC_E_CANCELLED, "stopped");
	}
	rs_image_unref(p->s, im);
	if (rc == 0 && rs_set_add_blob(set, b) < 0)
		rc = sc_nomem(p->err);
	return rc < 0 ? sc_wrap(p->err, rc, "materializing rank %u '%s'", rank, file) : 0;
}

struct file_walk {
	struct pass *p;
	struct rs_set *set;
	uint32_t rank;
};

static int on_rank_file(void *arg, const char *file, const char *logical)
{
	const struct file_walk *w = arg;

	return strcmp(logical, w->set->file) == 0 ? write_file(w->p, w->set, w->rank, file) : 0;
}

/* The set as the head presents it: same tensors, same hashes, new blobs. */
static int write_set(struct pass *p, struct rs_set *old, struct rs_set **ret)
{
	const struct rs_version *v = p->head->version;
	struct rs_set *set = rs_set_new(old->file, META_SET_TENSORS);
	int rc = set && meta_topology_copy(&p->head->topo, &set->topo) == 0 ? 0 : sc_nomem(p->err);

	if (rc == 0) {
		set->job = old->job;
		set->layout_id = v->layout_id;
		set->layout = v->layout;
		set->verified = META_EQUAL;
		set->metadata = old->metadata ? sc_strdup(old->metadata) : NULL;
		set->hashes = old->hashes ? sc_zalloc_array(old->state.nr + 1, sizeof(*set->hashes)) : NULL;
		if ((old->metadata && !set->metadata) || (old->hashes && !set->hashes))
			rc = sc_nomem(p->err);
		else if (old->hashes)
			memcpy(set->hashes, old->hashes, old->state.nr * sizeof(*set->hashes));
	}
	for (uint32_t t = 0; rc == 0 && t < old->state.nr; t++) {
		const struct meta_tensor *x = &old->state.tensors[t];

		if (meta_state_add(&set->state, x->key, strlen(x->key), x->dtype, &x->shape) < 0)
			rc = sc_nomem(p->err);
	}
	for (uint32_t rank = 0; rc == 0 && rank < p->head->topo.ranks; rank++) {
		struct file_walk w = {p, set, rank};

		rc = meta_view_files(p->head->model, rank, on_rank_file, &w);
	}
	if (rc == 0)
		rc = rs_set_finish(set, p->err);
	if (rc < 0)
		rs_set_unref(set);
	else
		*ret = set;
	return rc;
}

/* All new sets become the version's storage in one transaction: the flip. */
static int flip(struct pass *p, struct rs_set **sets)
{
	const struct rs_version *old = p->head->version;
	struct rs_version *v = rs_version_like(old, sets);
	struct rs_view *view = NULL;
	int rc = v ? 0 : sc_nomem(p->err);

	if (rc == 0) {
		v->id = old->id;
		v->job = old->job;
		v->nr = old->nr;
		v->parent = old->parent;
		v->made_by = sc_strdup(old->made_by);
		if (!v->made_by || meta_topology_copy(&old->topo, &v->topo) < 0)
			rc = sc_nomem(p->err);
	}
	if (rc == 0)
		rc = rs_version_finish(v, p->err);
	if (rc < 0)
		rs_version_unref(v);
	else
		rc = rs_view_new(p->job, v, p->head->id, &p->head->topo, &view, p->err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&p->job->command);
	if (is_stale(p))
		rc = sc_fail(p->err, SC_E_CANCELLED, "a newer head");
	rs_step(RS_STEP_MATERIALIZE_TRANSACT);
	if (rc == 0)
		rc = meta_catalog_begin(p->s->catalog, p->job->config.sync, p->err);
	if (rc == 0) {
		for (size_t i = 0; rc == 0 && i < old->nr_sets; i++) {
			for (size_t k = 0; sets[i] && rc == 0 && k < sets[i]->nr_blobs; k++)
				rc = meta_blob_seal(p->s->catalog, sets[i]->blobs[k].blob, sets[i]->blobs[k].bytes, NULL,
						    p->err);
			if (sets[i] && rc == 0)
				rc = rs_save_set(p->s, sets[i], p->err);
			if (sets[i] && rc == 0)
				rc = meta_version_replace_set(p->s->catalog, old->id, old->sets[i]->id, sets[i]->id,
							      p->err);
		}
		rc = meta_catalog_end(p->s->catalog, rc, p->err);
	}
	if (rc == 0) {
		rs_step(RS_STEP_MATERIALIZE_PUBLISH);
		view->own = true;
		rs_view_forget(p->s, old->id);
		rs_job_publish(p->job, rs_view_ref(view), true);
	}
	(void)pthread_mutex_unlock(&p->job->command);
	rs_view_unref(p->s, view);
	return rc;
}

static uint64_t head_bytes(const struct rs_view *head)
{
	uint64_t n = 0;

	/* an estimate for the progress: replicas of the new topology come on top of the state */
	for (uint32_t rank = 0; rank < head->topo.ranks; rank++) {
		uint32_t coords[SC_AXES_MAX], at = 0;
		const struct meta_entry *e;

		meta_topology_coords(&head->topo, rank, coords);
		while ((e = meta_view_next(head->model, head->model->layout->pp >= 0
							? coords[head->model->layout->pp] : 0, &at))) {
			const struct meta_tensor *t = &head->model->state->tensors[e->tensor];
			uint32_t cut = 0;
			uint64_t bytes;

			if (!meta_entry_is_on(head->model, e, coords) ||
			    !meta_tensor_bytes(t->dtype, &t->shape, &bytes))
				continue;
			for (int i = 0; i < e->rule->nr_cuts; i++)
				cut |= e->rule->cuts[i].axes;
			n += bytes / meta_topology_degree(&head->topo, cut);
		}
	}
	return n;
}

static int materialize(struct pass *p)
{
	const struct rs_version *v = p->head->version;
	struct rs_set **sets = sc_zalloc_array(v->nr_sets, sizeof(*sets));
	int rc = sets ? 0 : sc_nomem(p->err);

	rs_step(RS_STEP_MATERIALIZE_CHECK);
	if (rc == 0)
		rc = rs_version_refuse_bad(v, p->err);
	if (rc == 0)
		rc = rs_host_new(&p->s->store, p->job->config.buffer_bytes, &p->host, p->err);
	if (rc == 0)
		begin(p, "materializing", head_bytes(p->head));
	rs_step(RS_STEP_MATERIALIZE_WRITE);
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (v->sets[i]->kind == META_SET_TENSORS &&
		    (v->sets[i]->layout_id != v->layout_id || strcmp(v->sets[i]->topo.text, v->topo.text) != 0))
			rc = write_set(p, v->sets[i], &sets[i]);
	if (rc == 0)
		rc = flip(p, sets);
	for (size_t i = 0; sets && i < v->nr_sets; i++)
		rs_set_unref(sets[i]);
	sc_sys.release(sets);
	p->host = rs_host_free(p->host);
	finish(p);
	return rc;
}

static bool wants_materialize(struct rs_job *job, const struct rs_view *head)
{
	bool wants;

	(void)pthread_mutex_lock(&job->state);
	wants = job->config.materialize == RS_EAGER ||
		(job->config.materialize == RS_LAZY && job->wanted == head->version->nr);
	(void)pthread_mutex_unlock(&job->state);
	return wants && !rs_version_is_materialized(head->version);
}

/* One job; true when it has to be tried again. */
static bool work_on(struct rs_service *s, struct rs_job *job)
{
	struct sc_err err = {0};
	struct pass p = {.s = s, .job = job, .err = &err, .head = rs_job_head(job)};
	int rc = 0;

	if (!p.head)
		return false;
	rc = verify_head(&p);
	if (rc == 0 && rs_version_verified(p.head->version) == META_EQUAL && wants_materialize(job, p.head)) {
		rc = materialize(&p);
		if (rc == 0)
			sc_log(SC_LOG_INFO, "job '%s': version %" PRIu64 " is materialized", job->name,
			       p.head->version->nr);
		rs_kick(s, true);
	}
	rs_view_unref(s, p.head);
	if (rc == SC_E_CANCELLED)
		return false; /* whoever made the newer head has kicked */
	set_stopped(job, rc < 0 ? err.msg : NULL);
	return rc < 0;
}

static void *worker(void *arg)
{
	struct rs_service *s = arg;
	bool again = false;

	for (;;) {
		struct sc_err err;
		struct rs_job *job;
		bool garbage;

		(void)pthread_mutex_lock(&s->worker_lock);
		while (!s->stop && !s->kick) {
			struct timespec until;

			(void)clock_gettime(CLOCK_REALTIME, &until);
			until.tv_sec += RETRY_NS / 1000000000;
			if (!again)
				(void)pthread_cond_wait(&s->worker_wake, &s->worker_lock);
			else if (pthread_cond_timedwait(&s->worker_wake, &s->worker_lock, &until) == ETIMEDOUT)
				break;
		}
		if (s->stop) {
			(void)pthread_mutex_unlock(&s->worker_lock);
			return NULL;
		}
		s->kick = false;
		garbage = s->garbage;
		s->garbage = false;
		(void)pthread_mutex_unlock(&s->worker_lock);
		if (garbage && collect_garbage(s, &err) < 0)
			sc_log(SC_LOG_WARN, "%s, continuing", err.msg);
		again = false;
		for (size_t i = 0; (job = rs_job_at(s, i)); i++)
			again |= !rs_job_is_removed(job) && work_on(s, job);
		/* what a failed pass has written is of no use */
		if (again && collect_garbage(s, &err) < 0)
			sc_log(SC_LOG_WARN, "%s, continuing", err.msg);
	}
}

int rs_worker_start(struct rs_service *s, struct sc_err *err)
{
	int rc;

	s->kick = true;
	rc = pthread_create(&s->worker, NULL, worker, s);
	if (rc)
		return sc_fail_sys(err, rc, "cannot start the worker");
	(void)pthread_setname_np(s->worker, "scalai-worker");
	s->has_worker = true;
	return 0;
}

void rs_worker_stop(struct rs_service *s)
{
	if (!s->has_worker)
		return;
	(void)pthread_mutex_lock(&s->worker_lock);
	s->stop = true;
	(void)pthread_cond_signal(&s->worker_wake);
	(void)pthread_mutex_unlock(&s->worker_lock);
	(void)pthread_join(s->worker, NULL);
	s->has_worker = false;
}
