/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and takes the storage of versions.  Each node says what it keeps of a head that is stored otherwise
 * (background/homes.c); when all have, one of them makes sets of that; when etcd has these as the version's storage,
 * each node takes them in its time.
 *
 * 1. What etcd says is the storage of a version is final once there is a newer one, of which the core tells later.  A
 *    node takes it before it leaves the version as its head: files that it has made may be part of it.
 * 2. A set that is no more the storage of a version here is held until all nodes let it go.
 * 3. A head gets another storage while its gate is open; a command that is over it has the sets that it began with.
 */
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/nodes.h"
#include "reshard/upkeep/background/pass.h"

/* --- what this node keeps --- */

struct listing {
	struct rs_member *m;
	struct rs_view *head;
	uint32_t rank;
	struct rs_object_keep *keep;
	struct sc_err *err;
};

static bool is_as_stored(const struct rs_view *head, const char *logical)
{
	for (size_t i = 0; i < head->version->nr_sets; i++)
		if (strcmp(head->version->sets[i]->file, logical) == 0)
			return head->as_stored[i];
	return true;
}

static bool is_head(const struct rs_view *view)
{
	bool is;

	(void)pthread_mutex_lock(&view->job->state);
	is = view->job->head == view;
	(void)pthread_mutex_unlock(&view->job->state);
	return is;
}

static int on_file(void *arg, const char *file, const char *logical)
{
	const struct listing *l = arg;
	struct rs_service *s = l->m->s;
	struct rs_object_kept k = {.rank = rs_view_alike(l->head, l->rank, file), .node = l->m->node};
	struct rs_image *im = NULL;
	uint64_t path;
	int rc;

	if (is_as_stored(l->head, logical) || (k.rank != l->rank && rs_home(l->head, k.rank)))
		return 0;
	rc = rs_path_id(l->head->job, file, &path, l->err);
	if (rc == 0)
		rc = rs_path_text(s, path, &k.path, l->err);
	/* one that a reader had begun to make before the file was here may have been found after it */
	for (int i = 0; rc == 0 && !k.number && i < 2; i++) {
		rc = rs_view_image(s, l->head, l->rank, file, false, false, &im, l->err);
		if (rc < 0)
			break;
		k.number = im->same_as;
		k.bytes = im->bytes;
		if (!k.number)
			rs_image_supersede(s, im);
		rs_image_unref(s, im);
	}
	if (rc == 0 && !k.number)
		rc = sc_fail(l->err, is_head(l->head) ? SC_E_BUSY : SC_E_CANCELLED,
			     "rank %u '%s' is not kept here any more", l->rank, file);
	if (rc < 0)
		return rc;
	rc = meta_blob_origin(s->catalog, k.number, &k.node, &k.number, l->err);
	return rc < 0 ? rc : sc_vec_push(l->keep, k) < 0 ? sc_nomem(l->err) : 0;
}

int rs_storage_kept(void *arg, struct rs_view *head, struct sc_err *err)
{
	struct rs_service *s = arg;
	struct rs_member *m = s->member;
	struct rs_object_keep keep = {0};
	struct listing l = {.m = m, .head = head, .keep = &keep, .err = err};
	struct rs_event e = {.kind = RS_EV_BYTES, .nr = head->version->nr, .landed = true, .on_disk = true};
	struct rs_object_name name = {{0}};
	struct rs_bag bag = {.lacking = false};
	const struct rs_shared *j;
	int rc = 0;

	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_find(m, head->job);
	bag.lease = m->registration;
	(void)pthread_mutex_unlock(&m->lock);
	if (!j)
		return 0;
	bag.kept = (struct meta_key){.kind = META_KEY_KEPT, .job = j->id, .nr = e.nr, .node = m->node};
	for (l.rank = 0; rc == 0 && l.rank < head->topo.ranks; l.rank++)
		if (rs_home(head, l.rank))
			rc = meta_view_files(head->model, l.rank, on_file, &l);
	if (rc == 0 && keep.nr)
		rc = rs_objects_put_keep(e.nr, &keep, &rs_bag_ops, &bag, &name, err);
	if (rc == 0)
		rc = rs_bag_put(m, &bag, err);
	rs_bag_done(&bag);
	sc_vec_done(&keep);
	e.job = j->id;
	memcpy(e.set.at, name.at, sizeof(e.set.at));
	if (rc < 0)
		return rc;
	rs_cluster_step(RS_READY);
	rs_member_post(m, &e);
	return 0;
}

void rs_storage_registered(struct rs_member *m)
{
	struct rs_job *job;

	for (size_t i = 0; (job = rs_job_at(m->s, i)); i++) {
		(void)pthread_mutex_lock(&job->state);
		job->homes.view = 0;
		job->homes.again++;
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_worker_call(m->s, false);
}

/* --- of what all keep, the storage --- */

struct placing {
	struct rs_member *m;
	struct rs_pass p;
	struct rs_object_keep all;	/* by rank, path, then node */
	struct sc_arena arena;
	struct rs_set **sets;		/* NULL where one stays */
	struct rs_object_names names;
	struct sc_buf files;		/* of them, each with its 0 */
	struct rs_bag bag;
};

static int by_file(const void *a, const void *b)
{
	const struct rs_object_kept *x = a, *y = b;
	int order;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	order = strcmp(x->path, y->path);
	return order ? order : x->node < y->node ? -1 : x->node > y->node;
}

static int get_lists(struct placing *x, uint64_t job, uint64_t nr, const struct rs_keep *keep, uint32_t nr_keep)
{
	static const struct meta_hash nothing;
	struct rs_bag bag = {.lacking = false};
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < nr_keep; i++) {
		struct rs_object_name name;

		if (memcmp(&keep[i].files, &nothing, sizeof(nothing)) == 0)
			continue;
		memcpy(name.at, keep[i].files.at, sizeof(name.at));
		bag.kept = (struct meta_key){.kind = META_KEY_KEPT, .job = job, .nr = nr, .node = keep[i].node};
		do {
			bag.lacking = false;
			rc = rs_objects_take_keep(nr, &name, &rs_bag_ops, &bag, &x->arena, &x->all, x->p.err);
			if (rc < 0 && bag.lacking)
				rc = rs_bag_get(x->m, &bag, x->p.err) < 0 ? x->p.err->code : 1;
		} while (rc > 0);
	}
	rs_bag_done(&bag);
	if (x->all.nr)
		qsort(x->all.at, x->all.nr, sizeof(*x->all.at), by_file);
	return rc;
}

static const struct rs_object_kept *find(const struct rs_object_keep *all, uint32_t rank, const char *path)
{
	const struct rs_object_kept key = {.rank = rank, .path = path};
	const size_t at = sc_first(all->nr, i, by_file(&all->at[i], &key) >= 0);

	return at < all->nr && all->at[at].rank == rank && strcmp(all->at[at].path, path) == 0 ? &all->at[at] : NULL;
}

/* Gives the files of a set their blobs, inside the trial: 1, 0 (nobody keeps one of the files) or an error. */
static int fill(struct placing *x, struct rs_set *set)
{
	for (size_t i = 0; i < set->nr_blobs; i++) {
		struct rs_set_blob *b = &set->blobs[i];
		const struct rs_object_kept *k = find(&x->all, b->rank, b->path);
		int rc = 0;

		if (rs_view_alike(x->p.head, b->rank, b->path) != b->rank)
			continue;
		if (!k)
			return 0;
		b->bytes = k->bytes;
		b->blob = k->number;
		if (k->node != x->m->node)
			rc = meta_blob_put_away(x->m->s->catalog, k->node, k->number, k->bytes, &b->blob, x->p.err);
		if (rc < 0)
			return rc;
	}
	return rs_set_share(&x->p, set) < 0 ? x->p.err->code : 1;
}

static int on_set_file(void *arg, uint64_t id, const char *file, const char *more)
{
	struct placing *x = arg;

	(void)id;
	(void)more;
	sc_buf_add(&x->files, file, strlen(file) + 1);
	return x->files.failed ? sc_nomem(x->p.err) : 0;
}

/* Saves the version with these sets, to get their objects and names, then undoes all of it: 1, 0 (as fill()) or an
 * error. */
static int try_sets(struct placing *x)
{
	const struct rs_version *v = x->p.head->version;
	struct rs_service *s = x->m->s;
	struct meta_catalog *c = s->catalog;
	uint8_t version[RS_OBJECT_NAME_BYTES];
	struct sc_err trial;
	int rc = meta_catalog_begin(c, false, x->p.err);

	if (rc < 0)
		return rc;
	rc = 1;
	for (size_t i = 0; rc > 0 && i < v->nr_sets; i++) {
		int saved = 0;

		rc = x->sets[i] ? fill(x, x->sets[i]) : 1;
		if (rc > 0 && x->sets[i])
			saved = rs_save_set(s, x->sets[i], x->p.err);
		if (rc > 0 && saved == 0 && x->sets[i])
			saved = meta_version_replace_set(c, v->id, v->sets[i]->id, x->sets[i]->id, x->p.err);
		rc = saved < 0 ? saved : rc;
	}
	if (rc > 0 && rs_objects_put(s, v->id, x->m->node, NULL, &rs_bag_ops, &x->bag, version, &x->names,
				     x->p.err) < 0)
		rc = x->p.err->code;
	if (rc > 0 && meta_version_files(c, v->id, on_set_file, x, x->p.err) < 0)
		rc = x->p.err->code;
	(void)meta_catalog_end(c, SC_E_CANCELLED, &trial);
	if (rc > 0) /* the version's own object is the last */
		sc_buf_done(&x->bag.all.at[--x->bag.all.nr].bytes);
	return rc;
}

/* Posts the event that tells the core where the sets are kept.  The event owns its arrays until rs_storage_placed()
 * frees them. */
static int post(struct placing *x, const struct rs_shared *j, const struct rs_keep *keep, uint32_t nr_keep)
{
	struct rs_event e = {.kind = RS_EV_PLACED, .job = j->id, .nr = x->p.head->version->nr, .nr_nodes = nr_keep,
			     .nr_sets = (uint32_t)x->names.nr, .sweep = x->bag.sweep};
	uint32_t *nodes = sc_zalloc_array(nr_keep + 1, sizeof(*nodes));
	struct meta_hash *files = sc_zalloc_array(nr_keep + 1, sizeof(*files));
	struct meta_set_name *sets = sc_zalloc(x->names.nr * sizeof(*sets) + x->files.bytes + 1);
	char *file = (char *)(sets + x->names.nr);

	e.nodes = nodes;
	e.files = files;
	e.sets = sets;
	if (!nodes || !files || !sets) {
		rs_storage_placed(&e);
		return sc_nomem(x->p.err);
	}
	for (uint32_t i = 0; i < nr_keep; i++) {
		nodes[i] = keep[i].node;
		files[i] = keep[i].files;
	}
	if (x->files.bytes)
		memcpy(file, x->files.text, x->files.bytes);
	for (size_t i = 0; i < x->names.nr; i++) {
		sets[i].file = file;
		memcpy(sets[i].set.at, x->names.at[i].at, sizeof(sets[i].set.at));
		file += strlen(file) + 1;
	}
	rs_cluster_step(RS_SETTLE);
	rs_member_post(x->m, &e);
	return 0;
}

void rs_storage_placed(const struct rs_event *e)
{
	if (e->kind != RS_EV_PLACED)
		return;
	sc_sys.release((void *)(uintptr_t)e->nodes);
	sc_sys.release((void *)(uintptr_t)e->files);
	sc_sys.release((void *)(uintptr_t)e->sets);
}

int rs_storage_place(struct rs_member *m, struct rs_shared *j, uint64_t nr, const struct rs_keep *keep,
		     uint32_t nr_keep, struct sc_err *err)
{
	struct placing x = {.m = m, .p = {.s = m->s, .job = j->job, .err = err}};
	uint8_t tried[RS_OBJECT_NAME_BYTES];
	const struct rs_version *v;
	int rc = 0;

	rs_sha256(keep, nr_keep * sizeof(*keep), tried); /* lists name their version */
	x.p.head = j->job && memcmp(tried, j->storage.tried, sizeof(tried)) != 0 ? rs_job_head(j->job) : NULL;
	if (!x.p.head)
		return 0;
	v = x.p.head->version;
	x.sets = sc_zalloc_array(v->nr_sets + 1, sizeof(*x.sets));
	rc = !x.sets ? sc_nomem(err) : v->nr == nr ? get_lists(&x, j->id, nr, keep, nr_keep) : 1;
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (!x.p.head->as_stored[i])
			rc = rs_set_presented(&x.p, v->sets[i], &x.sets[i]);
	if (rc == 0) {
		rc = try_sets(&x);
		if (rc == 0)
			memcpy(j->storage.tried, tried, sizeof(tried));
	}
	if (rc > 0 && x.names.nr)
		rc = rs_bag_refer(m, &x.bag, err) < 0 || rs_bag_put(m, &x.bag, err) < 0
			     ? err->code : post(&x, j, keep, nr_keep);
	for (size_t i = 0; x.sets && i < v->nr_sets; i++)
		rs_set_unref(x.sets[i]);
	sc_sys.release(x.sets);
	rs_view_unref(m->s, x.p.head);
	rs_bag_done(&x.bag);
	sc_buf_done(&x.files);
	sc_vec_done(&x.names);
	sc_vec_done(&x.all);
	sc_arena_done(&x.arena);
	return rc < 0 ? rc : 0;
}

/* --- what etcd says is the storage --- */

/* Tries once to make rows say that a version is stored in these sets: 1 (it was stored otherwise here), 0 or an
 * error. */
static int settle(struct rs_member *m, struct rs_job *job, uint64_t version, const struct rs_object_names *sets,
		  struct rs_bag *bag, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	struct rs_same same = {0};
	int rc = meta_catalog_begin(c, true, err), any = 0;

	if (rc < 0)
		return rc;
	for (size_t i = 0; rc >= 0 && i < sets->nr; i++) {
		uint64_t set;

		rc = rs_objects_take_set(m->s, job, &sets->at[i], m->node, &rs_bag_ops, bag, &set, err);
		if (rc == 0)
			rc = meta_version_settle(c, version, set, err);
		any |= rc > 0;
	}
	if (rc >= 0 && any)
		rc = rs_same_take(m->s, version, rs_job_syncs(job), &same, err);
	if (rc >= 0 && any)
		rc = meta_home_drop(c, version, err);
	rc = meta_catalog_end(c, rc < 0 ? rc : 0, err);
	rs_same_end(m->s, &same, rc);
	return rc < 0 ? rc : any;
}

/* Makes rows say that a version is stored in these sets: 1, 0 (they did, or it is not here, *ret_version 0), or an
 * error. */
static int take(struct rs_member *m, struct rs_job *job, uint64_t nr, const struct rs_object_names *sets,
		uint64_t *ret_version, struct sc_err *err)
{
	struct rs_bag bag = {.lacking = false};
	int rc = meta_version_find(m->s->catalog, job->id, nr, ret_version, err);
	bool again = rc == 0 && *ret_version;

	while (again) {
		bag.lacking = false;
		rc = settle(m, job, *ret_version, sets, &bag, err);
		again = rc < 0 && bag.lacking && rs_bag_get(m, &bag, err) == 0;
	}
	rs_bag_done(&bag);
	return rc < 0 ? err->code : rc;
}

/* Shows the head as it is stored now; no command is over it. */
static int show(struct rs_member *m, struct rs_shared *j, uint64_t version, struct sc_err *err)
{
	struct rs_job *job = j->job;
	struct rs_view *next = NULL, *head;
	struct rs_version *v = NULL;
	struct rs_below *below;
	bool same;
	int rc = rs_version_load(m->s, version, &v, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->command);
	head = rs_job_head(job);
	same = !head || head->version->id != version || head->version->nr_sets != v->nr_sets;
	for (size_t i = 0; !same && i < v->nr_sets; i++)
		same = v->sets[i]->id != head->version->sets[i]->id ? false : i + 1 == v->nr_sets;
	if (same)
		rs_version_unref(v);
	else
		rc = rs_view_new(job, v, head->id, &head->topo, &next, err);
	if (rc == 0 && next)
		rc = rs_gone_replaced(m, j, head->version, err);
	if (rc == 0 && next)
		rc = rs_view_below(next, &below, err);
	if (rc == 0 && next) {
		next->own = true;
		rs_views_leave(m->s, version);
		rs_tree_show(job, rs_view_ref(next));
		(void)pthread_mutex_lock(&job->state);
		job->homes.view = 0;
		(void)pthread_mutex_unlock(&job->state);
		rs_worker_call(m->s, true);
	}
	(void)pthread_mutex_unlock(&job->command);
	rs_view_unref(m->s, next);
	rs_view_unref(m->s, head);
	return rc;
}

int rs_storage_note(struct rs_member *m, struct rs_shared *j, const struct rs_todo *todo, struct sc_err *err)
{
	struct rs_object_names sets = {0};
	const struct rs_object_name *at = todo->more;

	for (uint32_t i = 0; i < todo->act.nr_sets; i++)
		if (sc_vec_push(&sets, at[i]) < 0) {
			sc_vec_done(&sets);
			return sc_nomem(err);
		}
	(void)pthread_mutex_lock(&m->lock);
	sc_vec_done(&j->storage.sets);
	j->storage.nr = todo->act.nr;
	j->storage.sets = sets;
	j->storage.done = false;
	(void)pthread_mutex_unlock(&m->lock);
	return 0;
}

int rs_storage_finish(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	struct rs_view *head;
	uint64_t version;
	int rc = 0;

	if (j->storage.nr && !j->storage.done)
		rc = take(m, j->job, j->storage.nr, &j->storage.sets, &version, err);
	if (rc <= 0)
		return rc;
	/* views that are kept of it have the former sets: what is read of them is waited for, and no more */
	head = rs_job_head(j->job);
	rc = head && head->version->id == version ? rs_gone_replaced(m, j, head->version, err) : 0;
	rs_view_unref(m->s, head);
	rs_views_leave(m->s, version);
	return rc;
}

bool rs_storage_step(struct rs_member *m, struct rs_shared *j)
{
	struct sc_err err = {0};
	uint64_t version = 0;
	int rc;

	if (!j->storage.nr || j->storage.done || j->gate || j->wants || !j->job || j->gone)
		return false;
	rc = take(m, j->job, j->storage.nr, &j->storage.sets, &version, &err);
	if (rc >= 0 && version)
		rc = show(m, j, version, &err);
	if (rc < 0)
		sc_log(SC_LOG_WARN, "the new storage of version %" PRIu64 " is not taken yet: %s; trying again",
		       j->storage.nr, err.msg);
	(void)pthread_mutex_lock(&m->lock);
	j->storage.done = rc >= 0;
	(void)pthread_mutex_unlock(&m->lock);
	return rc < 0;
}

/* --- asking --- */

struct asked {
	struct rs_object_names *sets;
	bool found, failed;
};

static void on_store(void *arg, const struct meta_answer *answer)
{
	struct asked *a = arg;
	const struct meta_record *r = answer->nr ? &answer->records[0] : NULL;

	a->found = r && r->present;
	for (uint32_t i = 0; a->found && i < r->value.store.nr; i++) {
		struct rs_object_name name;

		memcpy(name.at, r->value.store.at[i].set.at, sizeof(name.at));
		a->failed |= sc_vec_push(a->sets, name) < 0;
	}
}

int rs_storage_ask(struct rs_member *m, uint64_t id, uint64_t nr, struct rs_object_names *ret, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_STORE, .job = id, .nr = nr}};
	struct meta_txn txn = {.nr_then = 1, .then = &get};
	struct asked a = {.sets = ret};

	if (rs_member_ask(m, &txn, on_store, &a) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked where version %" PRIu64 " is "
			       "stored", nr);
	return a.failed ? sc_nomem(err) : a.found;
}
