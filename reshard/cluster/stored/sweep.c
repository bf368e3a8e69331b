/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes what dropped versions have put into etcd, once nobody can need it: their records, and objects that nothing
 * else names.  The first of the members does so, from time to time, on its worker.
 *
 * 1. A version goes when its rows and files have gone here, as on all nodes, some time ago; and each node that had
 *    uncommitted files in it is here, and has said that its newest version is no older: it knows that these were
 *    committed.
 * 2. An object goes if no version that stays is made of it, of those that have a record: what names what is read from
 *    etcd, as this catalog may have made a tree flat.  Of storages, and of payloads that are other jobs', too, the
 *    catalog tells, which has all versions that there are.
 * 3. Each removal compares `all/tick`: nothing has changed since this node knew that no command of any job was on its
 *    way.  So no version is made meanwhile that names what goes; who makes one later asks whether what it names is
 *    there (rs_bag_refer()), and puts it again.
 * 4. An object goes before what names it, so that a removal that was cut short can be gone on with.
 */
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/catalog/nodes.h"

#define KEYS_MAX (META_TXN_OPS_MAX - 1)	/* that one transaction removes */
#define SWEEP_TTLS 3	/* between two rounds */

SC_METRIC(swept, SC_COUNTER, "scalai_swept_objects_total", "Objects of dropped versions that were removed from etcd.");

struct sweep {
	struct rs_member *m;
	struct rs_shared *j;		/* the job that is looked at */
	uint64_t tick;
	bool changed;			/* it is another one by now */
	struct rs_object_names stay;	/* of all jobs' versions that stay, sorted */
	struct sc_err *err;
	struct rs_object_parts parts;	/* of one version, as are these */
	struct rs_object_names leaves;
};

/* --- what etcd has --- */

struct listed {
	struct rs_sweep_list *to;
	bool failed;
};

static void on_version(void *arg, const struct meta_answer *answer)
{
	struct listed *l = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		struct rs_sweep_version v = {.nr = r->key.nr};

		if (!r->present || r->key.kind != META_KEY_VERSION)
			continue;
		memcpy(v.object, r->value.version.placement.at, sizeof(v.object));
		l->failed |= sc_vec_push(l->to, v) < 0;
	}
}

static int list(struct sweep *w, struct rs_sweep_list *ret)
{
	struct meta_op op = {.what = META_LIST, .key = {.job = w->j->id}, .range = META_RANGE_VERSIONS};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	struct listed l = {.to = ret};

	if (rs_member_ask(w->m, &txn, on_version, &l) != META_APPLIED)
		return sc_fail(w->err, SC_E_SYSTEM, "etcd has not answered when it was asked for versions");
	return l.failed ? sc_nomem(w->err) : 0;
}

/* The newest versions that members have saved. */
struct saved {
	size_t nr, room;
	struct {
		uint32_t node;
		uint64_t version;
	} *at;
	bool failed;
};

static void on_saved(void *arg, const struct meta_answer *answer)
{
	struct saved *s = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];

		if (r->key.kind == META_KEY_COPIED && r->present)
			s->failed |= sc_vec_push(s, ((typeof(*s->at)){r->key.node, r->value.copied.version})) < 0;
	}
}

static int ask_saved(struct sweep *w, struct saved *ret)
{
	struct meta_op op = {.what = META_LIST, .key = {.job = w->j->id}, .range = META_RANGE_COPIED};
	struct meta_txn txn = {.nr_then = 1, .then = &op};

	if (rs_member_ask(w->m, &txn, on_saved, ret) != META_APPLIED)
		return sc_fail(w->err, SC_E_SYSTEM, "etcd has not answered when it was asked for copies");
	return ret->failed ? sc_nomem(w->err) : 0;
}

/* Tells whether a node is given up: it was drained, and is no member, so nobody needs its uncommitted files. */
static bool is_given_up(struct rs_member *m, uint32_t node)
{
	bool is = false;

	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->drained.nr; i++)
		is |= m->drained.at[i] == node;
	is = is && !rs_core_lists(m->core, node);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

/* Tells whether all nodes that have a part in a version know that it was made (rule 1). */
static bool all_know(const struct sweep *w, const struct saved *saved, const struct rs_sweep_version *v)
{
	for (size_t i = 0; i < v->parts.nr; i++) {
		bool knows = is_given_up(w->m, v->parts.at[i].node);

		for (size_t k = 0; k < saved->nr; k++)
			knows |= saved->at[k].node == v->parts.at[i].node && saved->at[k].version >= v->nr;
		if (!knows)
			return false;
	}
	return true;
}

/* --- what goes, and what stays --- */

static void version_done(struct rs_sweep_version *v)
{
	sc_vec_done(&v->parts);
	sc_vec_done(&v->names);
}

static void versions_done(struct rs_sweep_list *all)
{
	for (size_t i = 0; i < all->nr; i++)
		version_done(&all->at[i]);
	sc_vec_done(all);
}

/* Gets objects that are not here.  If the member is called for other work, that goes first, and the round ends. */
static int get_lacking(struct sweep *w, struct rs_bag *bag)
{
	if (!bag->lacking)
		return 0;
	if (rs_member_is_called(w->m))
		return sc_fail(w->err, SC_E_CANCELLED, "there is something else to do");
	return rs_bag_get_some(w->m, bag, w->err);
}

static int read_version(struct sweep *w, const struct rs_object_stays *stay, const uint8_t object[RS_OBJECT_NAME_BYTES],
			struct rs_bag *bag)
{
	int rc;

	w->parts.nr = w->leaves.nr = 0;
	do
		rc = get_lacking(w, bag);
	while (rc == 0 && (rc = rs_objects_of(stay, object, &rs_bag_ops, bag, &w->parts, &w->leaves, w->err)) < 0 &&
	       bag->lacking);
	return rc;
}

/* Notes, once, the names of all objects that a version is made of. */
static int read_names(struct sweep *w, struct rs_sweep_version *v)
{
	const struct rs_object_names none = {0};
	struct rs_bag bag = {.lacking = false};
	struct rs_object_name name;
	bool failed = false;
	int rc = read_version(w, &(struct rs_object_stays){NULL, &none}, v->object, &bag);

	for (size_t i = 0; rc == 0 && i < bag.all.nr; i++) {
		memcpy(name.at, bag.all.at[i].name, sizeof(name.at));
		failed |= sc_vec_push(&v->names, name) < 0;
	}
	for (size_t i = 0; rc == 0 && i < w->leaves.nr; i++)
		failed |= sc_vec_push(&v->names, w->leaves.at[i]) < 0;
	for (size_t i = 0; rc == 0 && i < w->parts.nr; i++)
		failed |= sc_vec_push(&v->parts, w->parts.at[i]) < 0;
	rs_bag_done(&bag);
	if (rc == 0 && failed)
		rc = sc_nomem(w->err);
	v->is_read = rc == 0 || rc == SC_E_STALE; /* its record is left */
	return v->is_read ? 0 : rc;
}

/* Tells whether rows of a version are here: 1, 0 or an error. */
static int is_here(struct sweep *w, uint64_t nr)
{
	struct meta_catalog *c = w->m->s->catalog;
	uint64_t id = 0;
	int rc = meta_version_find(c, w->j->job->id, nr, &id, w->err);

	if (rc == 0 && !id)
		rc = meta_version_find(c, -w->j->job->id, nr, &id, w->err); /* it has died */
	return rc < 0 ? rc : id != 0;
}

static bool is_dropped(struct rs_member *m, const struct rs_shared *j, uint64_t nr)
{
	bool is;

	(void)pthread_mutex_lock(&m->lock);
	is = nr < rs_core_head(m->core, j->id) && !rs_core_stores(m->core, j->id, nr);
	(void)pthread_mutex_unlock(&m->lock);
	return is;
}

/* Moves what is known of a version from the last round. */
static void take_known(struct rs_sweep_list *known, struct rs_sweep_version *v)
{
	for (size_t i = 0; i < known->nr; i++)
		if (known->at[i].nr == v->nr) {
			*v = known->at[i];
			known->at[i] = (struct rs_sweep_version){0};
			return;
		}
}

static int look_at(struct sweep *w, const struct saved *saved, struct rs_sweep_version *v)
{
	int rc = is_dropped(w->m, w->j, v->nr) ? is_here(w, v->nr) : 1;

	if (rc < 0)
		return rc;
	v->rounds = rc ? 0 : v->rounds + 1;
	rc = v->is_read ? 0 : read_names(w, v);
	v->goes = rc == 0 && v->rounds > 1 && all_know(w, saved, v);
	for (size_t i = 0; rc == 0 && !v->goes && i < v->names.nr; i++)
		if (sc_vec_push(&w->stay, v->names.at[i]) < 0)
			rc = sc_nomem(w->err);
	return rc;
}

static int look(struct sweep *w)
{
	struct rs_sweep_list all = {0};
	struct saved saved = {.nr = 0};
	bool any = false;
	int rc = list(w, &all);

	for (size_t i = 0; rc == 0 && i < all.nr; i++)
		any |= is_dropped(w->m, w->j, all.at[i].nr);
	if (rc == 0 && !any && !w->j->sweep.sets.nr)
		all.nr = 0; /* nothing goes */
	for (size_t i = 0; i < all.nr; i++)
		take_known(&w->j->sweep.versions, &all.at[i]);
	if (rc == 0 && all.nr)
		rc = ask_saved(w, &saved);
	for (size_t i = 0; rc == 0 && i < all.nr; i++)
		rc = look_at(w, &saved, &all.at[i]);
	versions_done(&w->j->sweep.versions);
	w->j->sweep.versions = all;
	sc_vec_done(&saved);
	return rc;
}

/* --- removing --- */

static void on_removed(void *arg, const struct meta_answer *answer)
{
	*(uint64_t *)arg = answer->revision;
}

/* Removes keys: 0, 1 (something has changed meanwhile: w->changed) or an error.  It puts the tick, too, which tells it
 * from a removal by hand (reshard/cluster/peers/backup.c). */
static int remove_keys(struct sweep *w, const struct meta_key *keys, uint32_t nr)
{
	struct meta_compare is = {.what = META_MOD_IS, .key.kind = META_KEY_TICK, .revision = w->tick};
	struct meta_op ops[KEYS_MAX + 1] = {{.what = META_PUT, .key.kind = META_KEY_TICK}};
	struct meta_txn txn = {.nr_compares = 1, .compares = &is, .nr_then = nr + 1, .then = ops};
	uint64_t removed = 0;

	ops[0].value = (struct meta_value){.kind = META_KEY_TICK, .rest = ""};
	for (uint32_t i = 0; i < nr; i++)
		ops[i + 1] = (struct meta_op){.what = META_DELETE, .key = keys[i]};
	rs_cluster_step(RS_SWEEP);
	switch (rs_member_ask(w->m, &txn, on_removed, &removed)) {
	case META_APPLIED:
		w->tick = removed;
		return 0;
	case META_REFUSED:
		w->changed = true;
		return 1;
	default:
		return sc_fail(w->err, SC_E_SYSTEM, "etcd has not answered when objects were removed");
	}
}

/* Removes objects.  A leaf's own name goes first, as a node that asks whether the leaf is there must not take parts of
 * it for all.  Else an object goes before those that name it. */
static int remove_all(struct sweep *w, const struct rs_bag *bag, bool is_leaf)
{
	struct meta_key keys[KEYS_MAX];
	uint32_t nr = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < bag->all.nr; i++) {
		const size_t at = is_leaf ? i : bag->all.nr - 1 - i;

		keys[nr] = (struct meta_key){.kind = META_KEY_OBJECT};
		memcpy(keys[nr++].hash.at, bag->all.at[at].name, RS_OBJECT_NAME_BYTES);
		if (nr < KEYS_MAX && i + 1 < bag->all.nr)
			continue;
		rc = remove_keys(w, keys, nr);
		sc_metric_add(&swept, rc == 0 ? nr : 0);
		nr = 0;
	}
	return rc;
}

static int remove_leaves(struct sweep *w)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < w->leaves.nr; i++) {
		struct rs_bag bag = {.lacking = false};

		do
			rc = get_lacking(w, &bag);
		while (rc == 0 && (rc = rs_objects_of_leaf(&w->leaves.at[i], &rs_bag_ops, &bag, w->err)) < 0 &&
		       bag.lacking);
		if (rc == 0)
			rc = remove_all(w, &bag, true);
		rs_bag_done(&bag);
	}
	return rc;
}

static int remove_version(struct sweep *w, const struct rs_sweep_version *v)
{
	const struct meta_key key = {.kind = META_KEY_VERSION, .job = w->j->id, .nr = v->nr};
	struct rs_bag bag = {.lacking = false};
	int rc = read_version(w, &(struct rs_object_stays){w->m->s, &w->stay}, v->object, &bag);

	if (rc == 0)
		rc = remove_leaves(w);
	if (rc == 0)
		rc = remove_all(w, &bag, false);
	if (rc == 0 || rc == SC_E_STALE)
		rc = remove_keys(w, &key, 1);
	rs_bag_done(&bag);
	return rc;
}

static int remove_set(struct sweep *w, const struct rs_object_name *name)
{
	const struct rs_object_stays stay = {w->m->s, &w->stay};
	struct rs_bag bag = {.lacking = false};
	int rc;

	w->leaves.nr = 0;
	do
		rc = get_lacking(w, &bag);
	while (rc == 0 && (rc = rs_objects_of_set(&stay, name, &rs_bag_ops, &bag, &w->leaves, w->err)) < 0 &&
	       bag.lacking);
	if (rc == 0)
		rc = remove_leaves(w);
	if (rc == 0)
		rc = remove_all(w, &bag, false);
	rs_bag_done(&bag);
	return rc;
}

/* --- of a job --- */

/* Removes storages; those that have rows here stay for now. */
static int remove_sets(struct sweep *w)
{
	struct rs_object_names *sets = &w->j->sweep.sets;
	size_t kept = 0;
	int rc = 0;

	for (size_t i = 0; i < sets->nr; i++) {
		struct meta_object o;
		int is = 1;

		if (rc == 0 && !w->changed)
			is = meta_object_named(w->m->s->catalog, META_OBJECT_SET, sets->at[i].at, &o, w->err);
		if (is == 0)
			is = remove_set(w, &sets->at[i]);
		if (is)
			sets->at[kept++] = sets->at[i];
		rc = is < 0 ? is : rc;
	}
	sets->nr = kept;
	return rc;
}

static int remove_dropped(struct sweep *w)
{
	bool left = false;
	int rc = 0;

	for (size_t i = 0; i < w->j->sweep.versions.nr; i++) {
		struct rs_sweep_version *v = &w->j->sweep.versions.at[i];

		if (rc == 0 && v->goes && !w->changed && !rs_member_is_called(w->m))
			rc = remove_version(w, v);
		else
			left |= is_dropped(w->m, w->j, v->nr);
	}
	if (rc == 0)
		rc = remove_sets(w);
	w->j->sweep.clean = rc == 0 && !w->changed && !left && !w->j->sweep.sets.nr;
	return rc < 0 ? rc : 0;
}

void rs_sweep_done(struct rs_shared *j)
{
	versions_done(&j->sweep.versions);
	sc_vec_done(&j->sweep.sets);
}

/* --- of all --- */

struct heads {
	size_t nr, room;
	struct head {
		struct rs_shared *j;
		uint64_t nr;
		bool is_known;	/* what of the job goes, and stays */
	} *at;
};

static int on_stored(void *arg, const struct meta_hash *set)
{
	struct rs_object_name name;

	memcpy(name.at, set->at, sizeof(name.at));
	return sc_vec_push((struct rs_object_names *)arg, name);
}

/* Checks rules 2 and 3, but for what this catalog has, which is looked at afterwards.  *ret_stored gets the sets that
 * versions are stored in.  Under m->lock. */
static bool is_quiet(struct rs_member *m, struct heads *ret, struct rs_object_names *ret_stored, uint64_t *ret_tick)
{
	uint64_t id;
	bool is = m->serves && !m->stop && !m->todo.nr && rs_core_is_quiet(m->core, ret_tick) &&
		  rs_core_each_set(m->core, on_stored, ret_stored) == 0;

	for (size_t i = 0; is && (id = rs_core_job_at(m->core, i)); i++) {
		struct rs_shared *j = rs_shared_of(m, id);

		is = j && !j->move && !j->wants && !j->again.missed && !j->again.row && !j->again.end &&
		     sc_vec_push(ret, ((struct head){j, rs_core_head(m->core, id)})) == 0;
	}
	return is;
}

/* Tells whether this catalog has all that the core knows of. */
static bool is_taken(struct rs_member *m, const struct heads *heads)
{
	bool is = true;

	for (size_t i = 0; is && i < heads->nr; i++) {
		const struct rs_shared *j = heads->at[i].j;
		struct rs_view *head = j->job && !j->gone ? rs_job_head(j->job) : NULL;

		is = j->gone || !heads->at[i].nr || (head && head->version->nr == heads->at[i].nr);
		rs_view_unref(m->s, head);
	}
	return is;
}

/* Looks at all jobs.  One that cannot be looked at stays as it is; this catalog names the objects that it may share
 * with others. */
static int look_at_jobs(struct sweep *w, struct heads *heads)
{
	int rc, first = 0;

	for (size_t i = 0; i < heads->nr; i++) {
		struct head *h = &heads->at[i];

		w->j = h->j;
		if (!h->nr || w->j->gone || w->j->sweep.clean)
			continue;
		rc = look(w);
		h->is_known = rc == 0;
		first = first ? first : rc;
		if (rc == SC_E_CANCELLED)
			break;
	}
	return first;
}

/* Sweeps all jobs: finds what stays of each before it removes anything. */
static int sweep(struct sweep *w, struct heads *heads)
{
	int rc = look_at_jobs(w, heads), first = rc;

	if (w->stay.nr)
		qsort(w->stay.at, w->stay.nr, sizeof(*w->stay.at), rs_object_name_order);
	for (size_t i = 0; rc != SC_E_CANCELLED && i < heads->nr && !w->changed && !rs_member_is_called(w->m); i++) {
		const struct head *h = &heads->at[i];

		w->j = h->j;
		rc = h->is_known ? remove_dropped(w) : 0;
		first = first ? first : rc;
	}
	sc_vec_done(&w->parts);
	sc_vec_done(&w->leaves);
	return first;
}

static void sweep_all(struct rs_member *m, struct heads *heads, struct rs_object_names *stored, uint64_t tick)
{
	struct sc_err err;
	struct sweep w = {.m = m, .tick = tick, .stay = *stored, .err = &err};
	int rc = sweep(&w, heads);

	*stored = w.stay; /* it has grown */
	if (rc == SC_E_CANCELLED)
		return;
	if (rc < 0 && !m->sweep_said)
		sc_log(SC_LOG_WARN, "what dropped versions have in etcd stays there: %s; trying again", err.msg);
	m->sweep_said = rc < 0;
}

/* Forgets the storages that it noted: only the first member removes them, and only while it is the first. */
static void forget_sets(struct rs_member *m)
{
	for (size_t i = 0; i < m->jobs.nr; i++)
		m->jobs.at[i]->sweep.sets.nr = 0;
}

bool rs_sweep_step(struct rs_member *m)
{
	struct rs_object_names stored = {0};
	struct heads heads = {0};
	uint32_t first = 0;
	uint64_t tick;
	bool is;

	if (!m->sweeps)
		return false;
	(void)pthread_mutex_lock(&m->lock);
	(void)rs_core_members(m->core, &first, 1);
	if (first && first != m->node)
		forget_sets(m);
	is = first == m->node && sc_now_ns() >= m->sweep_ns;
	if (is)
		is = is_quiet(m, &heads, &stored, &tick);
	(void)pthread_mutex_unlock(&m->lock);
	if (is && is_taken(m, &heads)) {
		m->sweep_ns = sc_now_ns() + SWEEP_TTLS * m->times.ttl;
		sweep_all(m, &heads, &stored, tick);
		m->sweeps = false;
		for (size_t i = 0; i < heads.nr; i++)
			m->sweeps |= heads.at[i].nr && !heads.at[i].j->gone && !heads.at[i].j->sweep.clean;
	}
	sc_vec_done(&heads);
	sc_vec_done(&stored);
	return m->sweeps && first == m->node;
}
