/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Materializes a head: writes its rank files as real files, which become its storage.
 *
 *     list      every rank file of a set; replicas are listed, and written once
 *     write     some threads, each with an engine of its own, take the next files
 *     flush     files and the folders of their names, many at once
 *     compare   meanwhile: digests of the tensors in the new files with those of the commit
 *     flip      one transaction
 *
 * The blobs belong to nothing until the flip; what a pass leaves behind is garbage.
 */
#include "reshard/upkeep/background/pass.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "reshard/engine/io/engine.h"
#include "reshard/engine/io/flush.h"
#include "reshard/upkeep/recovery/record.h"

/* What the threads share that write the files of one set. */
struct writing {
	struct rs_pass *p;
	struct rs_set *set;	/* its blobs, listed before, get their numbers */
	const struct rs_engine_ops *kind;
	size_t next;		/* atomic */
	pthread_mutex_t lock;	/* of what follows */
	int rc;			/* the first error */
	struct sc_err err;
};

struct writer {
	struct writing *w;
	struct rs_engine *engine;
	/* files begun, to be written in one call; room for w->kind->targets */
	struct begun {
		struct rs_set_blob *b;
		struct rs_image *im;
	} *begun;
	struct rs_target *targets;
	size_t nr;
	int rc;
	struct sc_err err;
	struct rs_flush flush;
	struct meta_store_dirs dirs;
};

/* --- one writer --- */

static int keep_fd(struct writer *me, const struct rs_set_blob *b, int fd)
{
	return rs_pass_keep(me->w->p, &me->flush, &me->dirs, fd, b->blob, (int)b->rank, b->path, &me->err);
}

/* Flushes a blob that an open made and nobody has flushed yet. */
static int keep_blob(struct writer *me, const struct rs_set_blob *b)
{
	int fd, rc = meta_store_open_blob(&me->w->p->s->store, b->blob, b->bytes, &fd, &me->err);

	return rc < 0 ? rc : keep_fd(me, b, fd);
}

static int wrap_file(struct writer *me, int rc, const struct rs_set_blob *b)
{
	return sc_wrap(&me->err, rc, "materializing rank %u '%s'", b->rank, b->path);
}

/* Removes the files that were begun, after an error. */
static void drop_begun(struct writer *me)
{
	struct rs_service *s = me->w->p->s;
	struct sc_err ignored;

	for (size_t i = 0; i < me->nr; i++) {
		sc_closep(&me->targets[i].fd);
		/* on a full disk even the removal of garbage needs room for its rows: these bytes make some */
		if (me->begun[i].b->blob)
			(void)meta_store_remove(&s->store, me->begun[i].b->blob, &ignored);
		rs_image_unref(s, me->begun[i].im);
	}
	me->nr = 0;
}

/* Writes the files that were begun.  After an error they are left for drop_begun(). */
static int write_begun(struct writer *me)
{
	struct rs_pass *p = me->w->p;
	const struct rs_write_options how = {.will_flush = rs_job_syncs(p->job), .tick = rs_pass_bytes, .arg = p};
	struct rs_written written;
	int rc = rs_engine_write(me->engine, me->targets, me->nr, &how, &written, &me->err);

	if (rc < 0)
		return written.failed < me->nr ? wrap_file(me, rc, me->begun[written.failed].b)
					       : sc_wrap(&me->err, rc, "materializing '%s'", me->w->set->file);
	rs_made_count(written.cloned + written.copied, written.cloned);
	for (size_t i = 0; i < me->nr; i++) {
		rc = keep_fd(me, me->begun[i].b, sc_steal_fd(&me->targets[i].fd));
		if (rc < 0)
			return wrap_file(me, rc, me->begun[i].b);
	}
	for (size_t i = 0; i < me->nr; i++)
		rs_image_unref(p->s, me->begun[i].im);
	me->nr = 0;
	return 0;
}

/* Begins the file of an image, which it takes, also on failure. */
static int begin_file(struct writer *me, struct rs_set_blob *b, struct rs_image *im)
{
	struct rs_service *s = me->w->p->s;
	struct rs_target *target = &me->targets[me->nr];
	int rc;

	me->begun[me->nr++] = (struct begun){b, im};
	*target = (struct rs_target){im, -1};
	rc = meta_blob_add(s->catalog, &b->blob, &me->err);
	if (rc == 0)
		rc = meta_store_create(&s->store, b->blob, &target->fd, &me->err);
	return rc;
}

/* Takes one rank file: uses an existing blob if it has these bytes, else begins a new one. */
static int take_file(struct writer *me, struct rs_set_blob *b)
{
	struct rs_pass *p = me->w->p;
	struct rs_image *im = NULL;
	int rc = rs_view_image(p->s, p->head, b->rank, b->path, false, true, &im, &me->err);

	if (rc == 0) {
		b->bytes = im->bytes;
		b->blob = im->same_as;
		if (!b->blob) {
			rc = begin_file(me, b, im);
			return rc < 0 ? wrap_file(me, rc, b) : 0;
		}
		if (rs_made_holds(p->s, b->blob))
			rc = keep_blob(me, b);
		if (rc == 0 && rs_pass_bytes(p, im->bytes))
			rc = sc_fail(&me->err, SC_E_CANCELLED, "stopped");
		rs_image_unref(p->s, im);
	}
	return rc < 0 ? wrap_file(me, rc, b) : 0;
}

static bool is_replica(const struct rs_pass *p, const struct rs_set_blob *b)
{
	return rs_view_alike(p->head, b->rank, b->path) != b->rank;
}

static void end_step(struct writer *me, int rc)
{
	struct writing *w = me->w;

	me->rc = rc;
	(void)pthread_mutex_lock(&w->lock);
	if (rc < 0 && w->rc == 0) {
		w->err = me->err;
		__atomic_store_n(&w->rc, rc, __ATOMIC_RELAXED);
	}
	(void)pthread_mutex_unlock(&w->lock);
}

static int writer_init(struct writer *me)
{
	const struct rs_engine_ops *kind = me->w->kind;

	me->begun = sc_zalloc_array(kind->targets, sizeof(*me->begun));
	me->targets = sc_zalloc_array(kind->targets, sizeof(*me->targets));
	if (!me->begun || !me->targets)
		return sc_nomem(&me->err);
	return rs_engine_open(kind, &me->w->p->s->store, rs_config_of(me->w->p->job).buffer_bytes / kind->threads,
			      &me->engine, &me->err);
}

static void writer_done(struct writer *me)
{
	me->engine = rs_engine_close(me->engine);
	sc_sys.release(me->begun);
	sc_sys.release(me->targets);
}

static void *write_files(void *arg)
{
	struct writer *me = arg;
	struct writing *w = me->w;
	int rc = writer_init(me);

	while (rc == 0 && __atomic_load_n(&w->rc, __ATOMIC_RELAXED) == 0) {
		size_t i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);

		if (i >= w->set->nr_blobs)
			break;
		if (!is_replica(w->p, &w->set->blobs[i]))
			rc = take_file(me, &w->set->blobs[i]);
		if (rc == 0 && me->nr == w->kind->targets)
			rc = write_begun(me);
	}
	if (rc == 0 && me->nr && __atomic_load_n(&w->rc, __ATOMIC_RELAXED) == 0)
		rc = write_begun(me);
	drop_begun(me);
	writer_done(me);
	end_step(me, rc);
	return NULL;
}

/* Flushes the files that a writer has written. */
static void *flush_files(void *arg)
{
	struct writer *me = arg;
	int rc = me->rc;

	if (rc == 0 && me->flush.nr)
		rs_step(RS_STEP_MATERIALIZE_SYNC);
	if (rc == 0)
		rc = rs_flush_add_dirs(&me->flush, &me->w->p->s->store, &me->dirs, &me->err);
	end_step(me, rs_flush_end(&me->flush, rc, &me->err));
	return NULL;
}

/* --- one set --- */

struct writers {
	struct writer *at;
	struct sc_thread *threads;
	unsigned nr;
};

/* Starts the writers from `from` on, each in a thread; runs a writer here if there is no thread for it. */
static void start(struct writers *all, unsigned from, void *(*step)(void *))
{
	struct sc_err ignored;

	for (unsigned i = from; i < all->nr; i++)
		if (sc_thread_start(&all->threads[i], "scalai-writer", step, &all->at[i], &ignored) < 0)
			(void)step(&all->at[i]);
}

static void join(struct writers *all, unsigned from)
{
	for (unsigned i = from; i < all->nr; i++)
		sc_thread_join(&all->threads[i]);
}

/* Writes and flushes the files of a set; this thread writes, too, and calls `meanwhile` (may be NULL) while the disk is
 * busy. */
static int run(struct writing *w, struct writers *all, rs_meanwhile_fn *meanwhile, void *arg)
{
	int rc = 0;

	start(all, 1, write_files);
	(void)write_files(&all->at[0]);
	join(all, 1);
	start(all, 0, flush_files);
	if (__atomic_load_n(&w->rc, __ATOMIC_RELAXED) == 0 && meanwhile)
		rc = meanwhile(arg);
	join(all, 0);
	if (w->rc < 0)
		*w->p->err = w->err;
	return w->rc < 0 ? w->rc : rc;
}

int rs_materialize_files(struct rs_pass *p, struct rs_set *set, rs_meanwhile_fn *meanwhile, void *arg)
{
	const struct rs_config config = rs_config_of(p->job);
	const char *why_not;
	struct writing w = {.p = p, .set = set, .kind = rs_engine_choose(rs_config_engine(&config), &why_not),
			    .lock = PTHREAD_MUTEX_INITIALIZER};
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	const unsigned nr = cores > 0 && cores < w.kind->threads ? (unsigned)cores : w.kind->threads;
	struct writers all = {sc_zalloc_array(nr, sizeof(*all.at)), sc_zalloc_array(nr, sizeof(*all.threads)), nr};
	int rc;

	if (why_not)
		sc_log(SC_LOG_WARN, "'%s': engine=%s: %s, continuing: the host writes these files", set->file,
		       rs_config_engine(&config), why_not);
	for (unsigned i = 0; all.at && i < nr; i++)
		all.at[i].w = &w;
	rc = all.at && all.threads ? run(&w, &all, meanwhile, arg) : sc_nomem(p->err);
	(void)pthread_mutex_destroy(&w.lock);
	sc_sys.release(all.at);
	sc_sys.release(all.threads);
	return rc;
}

struct listing {
	struct rs_pass *p;
	struct rs_set *set;
	uint32_t rank;
};

static int on_rank_file(void *arg, const char *file, const char *logical)
{
	const struct listing *l = arg;
	struct rs_set_blob b = {.rank = l->rank};
	int rc = 0;

	if (strcmp(logical, l->set->file) != 0)
		return 0;
	rc = rs_path_id(l->p->job, file, &b.path_id, l->p->err);
	if (rc == 0)
		rc = rs_path_text(l->p->s, b.path_id, &b.path, l->p->err);
	if (rc == 0)
		rc = rs_view_owner(l->p->head, l->rank, file, &b.owner, l->p->err);
	return rc < 0 ? rc : rs_set_add_blob(l->set, b) < 0 ? sc_nomem(l->p->err) : 0;
}

int rs_set_share(struct rs_pass *p, struct rs_set *set)
{
	for (size_t i = 0; i < set->nr_blobs; i++) {
		struct rs_set_blob *b = &set->blobs[i];
		const struct rs_set_blob *like;

		if (!is_replica(p, b))
			continue;
		like = rs_set_find(set, rs_view_alike(p->head, b->rank, b->path), b->path);
		b->blob = like->blob;
		b->bytes = like->bytes;
		if (rs_pass_bytes(p, b->bytes))
			return sc_fail(p->err, SC_E_CANCELLED, "stopped");
	}
	return 0;
}

/* Checks that the new set holds the tensors of the old one, in the same order, which is that of their digests. */
static int same_tensors(struct rs_pass *p, const struct rs_set *old, const struct rs_set *set)
{
	bool same = old->state.nr == set->state.nr;

	for (uint32_t t = 0; same && t < old->state.nr; t++) {
		const struct meta_tensor *a = &old->state.tensors[t], *b = &set->state.tensors[t];

		same = strcmp(a->key, b->key) == 0 && a->dtype == b->dtype && meta_shape_equal(&a->shape, &b->shape);
	}
	return same ? 0 : sc_fail(p->err, SC_E_STATE, "'%s' would not hold the tensors of version %" PRIu64, old->file,
				  p->head->version->nr);
}

int rs_set_presented(struct rs_pass *p, struct rs_set *old, struct rs_set **ret)
{
	const struct rs_version *v = p->head->version;
	const int64_t oldest = rs_set_oldest(old);
	struct rs_set *set = rs_set_new(old->file, old->format);
	int rc = set && meta_topology_copy(&p->head->topo, &set->topo) == 0 ? 0 : sc_nomem(p->err);

	if (rc == 0) {
		set->layout_id = v->layout_id;
		set->layout = v->layout;
		set->verified = META_EQUAL;
		if (!rs_set_given(old)->one_owner || rs_set_given(old)->has_payloads)
			set->given = rs_set_ref(old->given ? old->given : old);
		set->skews = sc_zalloc_array(old->state.nr + 1, sizeof(*set->skews));
		set->payload = old->payload ? sc_strdup(old->payload) : NULL;
		set->digests = old->digests ? sc_zalloc_array(old->state.nr + 1, sizeof(*set->digests)) : NULL;
		if ((old->payload && !set->payload) || (old->digests && !set->digests) || !set->skews)
			rc = sc_nomem(p->err);
		if (rc == 0 && old->digests)
			memcpy(set->digests, old->digests, old->state.nr * sizeof(*set->digests));
		if (rc == 0 && old->state.nr)
			memcpy(set->skews, old->skews, old->state.nr * sizeof(*set->skews));
	}
	if (rc == 0)
		rc = meta_view_part(p->head->model, old->file, &set->state, p->err);
	if (rc == 0)
		rc = same_tensors(p, old, set);
	for (uint32_t rank = 0; rc == 0 && rank < p->head->topo.ranks; rank++) {
		struct listing l = {p, set, rank};

		rc = meta_view_files(p->head->model, rank, on_rank_file, &l);
	}
	for (size_t i = 0; rc == 0 && i < set->nr_blobs; i++)
		set->blobs[i].step = oldest;
	if (rc == 0)
		rc = rs_set_finish(set, p->err);
	if (rc < 0)
		rs_set_unref(set);
	else
		*ret = set;
	return rc;
}

static int keeps_old(struct rs_pass *p, int rc)
{
	return rc < 0 ? sc_wrap(p->err, rc, "version %" PRIu64 " keeps its old storage", p->head->version->nr) : 0;
}

uint64_t rs_head_bytes(const struct rs_view *head, const bool *ranks)
{
	uint64_t n = 0;

	/* an estimate for the progress: replicas of the new topology come on top of the state */
	for (uint32_t rank = 0; rank < head->topo.ranks; rank++) {
		uint32_t coords[SC_AXES_MAX], at = 0;
		const struct meta_entry *e;

		if (ranks && !ranks[rank])
			continue;
		meta_topology_coords(&head->topo, rank, coords);
		while ((e = meta_view_next(head->model, head->model->layout->pp >= 0
							? coords[head->model->layout->pp] : 0, &at))) {
			const struct meta_tensor *t = &head->model->state->tensors[e->tensor];
			uint64_t bytes;

			if (!meta_entry_is_on(head->model, e, coords) ||
			    !meta_tensor_bytes(t->dtype, &t->shape, &bytes))
				continue;
			n += bytes / meta_topology_degree(&head->topo, meta_entry_cut_axes(e));
		}
	}
	return n;
}

struct made {
	struct rs_pass *p;
	struct rs_set *old, *set;
	bool again;		/* what was wrong has been mended, or is refused by its name from now on */
};

static int on_chunk(void *arg, uint64_t bytes)
{
	(void)bytes;
	return rs_pass_is_stale(arg);
}

/* Checks that the new files have the tensors that were committed.  Bytes that changed on the disk unnoticed would get
 * new hashes in the new files, and the old files, of which there may be a good copy, would go. */
static int compare(void *arg)
{
	struct made *m = arg;
	struct rs_service *s = m->p->s;
	const uint64_t news = meta_store_damage_news(&s->store);
	int rc = rs_set_share(m->p, m->set);

	if (rc == 0)
		rc = keeps_old(m->p, rs_verify_made(s, m->old, m->set, on_chunk, m->p, m->p->err));
	if (rc == SC_E_DAMAGED) {
		rs_met_check(s);
		m->again = meta_store_damage_news(&s->store) != news;
		/* one that an open has made of changed bytes is no better now that those are mended */
		m->again |= rs_made_wrong(m->p->job, m->p->head->id);
	}
	return rc;
}

void rs_set_remove_new(struct rs_service *s, const struct rs_set *set)
{
	struct sc_err ignored;

	for (size_t i = 0; i < set->nr_blobs; i++) {
		const uint64_t blob = set->blobs[i].blob;

		if (!blob || rs_made_holds(s, blob) || rs_blob_is_used(s, blob, &ignored) != 0)
			continue;
		rs_blob_forget(s->blobs, blob);
		(void)meta_store_remove(&s->store, blob, &ignored);
	}
}

static int write_set(struct rs_pass *p, struct rs_set *old, struct rs_set **ret)
{
	struct made m = {.p = p, .old = old};
	int rc = rs_set_presented(p, old, &m.set);

	if (rc == 0)
		rc = rs_materialize_files(p, m.set, compare, &m);
	if (m.again) {
		m.again = false;
		rs_set_remove_new(p->s, m.set);
		rs_pass_begin(p, "materializing", rs_head_bytes(p->head, NULL));
		rc = rs_materialize_files(p, m.set, compare, &m);
	}
	if (rc < 0)
		rs_set_unref(m.set);
	else
		*ret = m.set;
	return rc;
}

/* --- the switch-over --- */

/* Checks that nothing is missing in the new storage, before the old one is dropped. */
static int check_new(struct rs_pass *p, const struct rs_view *view, struct rs_set **sets)
{
	int rc = 0;

	if (!rs_view_is_materialized(view))
		rc = sc_fail(p->err, SC_E_STATE, "the new files would differ from those that ranks see");
	for (size_t i = 0; rc == 0 && i < view->version->nr_sets; i++)
		if (sets[i])
			rc = rs_set_look_up(p->s, sets[i], p->err);
	return keeps_old(p, rc);
}

/* Makes all new sets the storage of the version. */
static int switch_over(struct rs_pass *p, struct rs_set **sets)
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
		rc = rs_version_finish(v, NULL, p->err);
	if (rc < 0)
		rs_version_unref(v);
	else
		rc = rs_view_new(p->job, v, p->head->id, &p->head->topo, &view, p->err);
	if (rc == 0)
		rc = check_new(p, view, sets);
	if (rc < 0) {
		rs_view_unref(p->s, view);
		return rc;
	}
	rc = rs_head_settle(p->head, view, sets, p->err);
	rs_view_unref(p->s, view);
	return rc;
}

int rs_materialize(struct rs_pass *p)
{
	const struct rs_version *v = p->head->version;
	struct rs_set **sets = sc_zalloc_array(v->nr_sets, sizeof(*sets));
	int rc = sets ? 0 : sc_nomem(p->err);

	rs_step(RS_STEP_MATERIALIZE_CHECK);
	if (rc == 0)
		rc = rs_version_refuse_bad(v, p->err);
	if (rc == 0)
		rs_pass_begin(p, "materializing", rs_head_bytes(p->head, NULL));
	rs_step(RS_STEP_MATERIALIZE_WRITE);
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (!p->head->as_stored[i])
			rc = write_set(p, v->sets[i], &sets[i]);
	if (rc == 0)
		rc = switch_over(p, sets);
	for (size_t i = 0; sets && i < v->nr_sets; i++)
		rs_set_unref(sets[i]);
	sc_sys.release(sets);
	rs_pass_end(p);
	return rc;
}
