/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes versions and sets that no node needs any more.  A version that etcd retires dies for all nodes; its rows and
 * files go when every node has said, by its low-water mark, that nothing there reads them.
 *
 *	DIED	a version is shown no more; when none of its files is open here, nor was looked up a moment ago, SEEN
 *		says so
 *	DELETE	the version's rows go, and its sets are held; a set that is held is let go, and becomes garbage
 *
 * 1. Nobody opens a file of a version after it has died here: it has no view any more.
 * 2. While anything dead is read here, the mark stays where it is, for all that died since then.
 * 3. The newest version here keeps its rows, without which the job cannot be loaded, until there is a newer one, which
 *    may wait for what is uncommitted here.  It is not shown then, and no other node waits for it.
 */
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/catalog/nodes.h"

#define SWEPT_SETS_MAX 4096u
#define GRACE_NS (RS_LEAVING_NS + 1000 * MEMBER_MS) /* who has looked a file up may open it */

static void tell(struct rs_member *m, const struct rs_shared *j, const struct meta_hash *set)
{
	const struct rs_event e = {.kind = RS_EV_HAVE, .job = j->id, .set = *set, .on = true};

	rs_member_post(m, &e);
}

/* --- what is here --- */

struct telling {
	struct rs_member *m;
	const struct rs_shared *j;
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	const struct telling *t = arg;
	const struct meta_hash set = rs_version_life(t->j->id, row->nr);

	tell(t->m, t->j, &set);
	return 0;
}

static int on_held(void *arg, const uint8_t name[32])
{
	const struct telling *t = arg;
	struct meta_hash set;

	memcpy(set.at, name, sizeof(set.at));
	tell(t->m, t->j, &set);
	return 0;
}

int rs_gone_start(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	struct telling t = {m, j};
	int rc = meta_version_each(m->s->catalog, j->job->id, on_version, &t, err);

	if (rc == 0) /* those that had died */
		rc = meta_version_each(m->s->catalog, -j->job->id, on_version, &t, err);
	return rc < 0 ? rc : meta_held_each(m->s->catalog, j->job->id, on_held, &t, err);
}

void rs_gone_taken(struct rs_member *m, struct rs_shared *j, uint64_t nr)
{
	const struct meta_hash set = rs_version_life(j->id, nr);
	const struct rs_event keep = {.kind = RS_EV_KEEP, .job = j->id, .nr = rs_config_of(j->job).keep};

	tell(m, j, &set);
	rs_member_post(m, &keep);
}

/* Tells whether a set is watched already: two watches would wait for each other's reference. */
static bool is_watched(const struct rs_shared *j, const struct rs_set *set)
{
	bool is = false;

	for (size_t i = 0; i < j->dead.sets.nr; i++)
		is |= j->dead.sets.at[i] == set;
	return is;
}

int rs_gone_replaced(struct rs_member *m, struct rs_shared *j, const struct rs_version *was, struct sc_err *err)
{
	struct telling t = {m, j};

	for (size_t i = 0; i < was->nr_sets; i++) {
		if (is_watched(j, was->sets[i]))
			continue;
		if (sc_vec_push(&j->dead.sets, was->sets[i]) < 0)
			return sc_nomem(err);
		(void)rs_set_ref(was->sets[i]);
	}
	return meta_held_each(m->s->catalog, j->job->id, on_held, &t, err);
}

/* --- what dies --- */

int rs_gone_died(struct rs_member *m, struct rs_shared *j, uint64_t nr, uint64_t revision, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	const bool is_head = nr && nr == rs_shared_head(m, j);
	uint64_t id = 0;
	int rc = nr && j->job ? meta_version_find(c, j->job->id, nr, &id, err) : 0;

	if (is_head)
		j->dead.head = nr;
	if (rc == 0 && id && !is_head) {
		rc = meta_catalog_begin(c, true, err);
		if (rc == 0)
			rc = meta_catalog_end(c, meta_version_retire(c, id, err), err);
		if (rc == 0)
			rs_views_leave(m->s, id);
	}
	if (rc < 0)
		return rc;
	j->sweep.clean = false;
	m->sweeps = true;
	if (sc_vec_push(&j->dead, ((struct rs_gone){revision, id, sc_now_ns()})) < 0)
		return sc_nomem(err);
	m->s->events.names_changed(m->s->events.arg);
	return 0;
}

int rs_gone_followed(struct rs_member *m, struct rs_shared *j, struct sc_err *err)
{
	const uint64_t nr = j->dead.head;
	const struct meta_hash set = rs_version_life(j->id, nr);
	int rc;

	if (!nr || nr == rs_shared_head(m, j))
		return 0;
	j->dead.head = 0;
	rc = rs_gone_died(m, j, nr, 0, err);
	tell(m, j, &set); /* if it was to go already, it is again */
	return rc;
}

static bool is_over(struct rs_member *m, const struct rs_gone *g)
{
	return !g->version || (sc_now_ns() - g->since_ns >= GRACE_NS && !rs_version_is_open(m->s, g->version));
}

/* Tells whether an older version that is shown has a set, too: the set dies with that one. */
static bool lives(struct rs_member *m, const struct rs_set *set)
{
	struct sc_err ignored;

	return meta_set_is_shown(m->s->catalog, set->id, &ignored) > 0;
}

bool rs_gone_step(struct rs_member *m, struct rs_shared *j)
{
	struct rs_event e = {.kind = RS_EV_SEEN, .job = j->id};
	bool over = j->storage.done || !j->storage.nr;
	size_t kept = 0;

	if (j->dead.sets.nr)
		rs_views_left(m->s, false); /* they have sets */
	for (size_t i = 0; i < j->dead.sets.nr; i++) {
		struct rs_set *set = j->dead.sets.at[i];

		if (__atomic_load_n(&set->refs, __ATOMIC_ACQUIRE) > 1) {
			j->dead.sets.at[kept++] = set;
			over = over && lives(m, set);
		} else {
			rs_set_unref(set);
		}
	}
	j->dead.sets.nr = kept;
	for (size_t i = 0; i < j->dead.nr; i++) {
		over = over && is_over(m, &j->dead.at[i]);
		e.revision = sc_max_u64(e.revision, j->dead.at[i].revision);
	}
	if (j->dead.nr && over) {
		j->dead.nr = 0;
		rs_member_post(m, &e);
	}
	return j->dead.nr || kept;
}

void rs_gone_done(struct rs_shared *j)
{
	for (size_t i = 0; i < j->dead.sets.nr; i++)
		rs_set_unref(j->dead.sets.at[i]);
	sc_vec_done(&j->dead.sets);
	sc_vec_done(&j->dead.later);
	sc_vec_done(&j->dead);
}

/* --- what goes --- */

static int remove_version(struct rs_member *m, struct rs_shared *j, uint64_t nr, struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	struct telling t = {m, j};
	uint64_t id;
	int rc = meta_version_find(c, -j->job->id, nr, &id, err);

	if (rc < 0 || !id)
		return rc;
	rc = meta_catalog_begin(c, true, err);
	if (rc == 0)
		rc = meta_catalog_end(c, meta_version_let_go(c, id, err), err);
	return rc < 0 ? rc : meta_held_each(c, j->job->id, on_held, &t, err);
}

/* Notes a storage, which no version's record names, for the sweep.  One that is not noted, or is forgotten by a
 * restart, leaves its object in etcd. */
static void note_swept(struct rs_member *m, struct rs_shared *j, const struct meta_hash *set)
{
	struct rs_object_name name;

	memcpy(name.at, set->at, sizeof(name.at));
	if (j->sweep.sets.nr < SWEPT_SETS_MAX)
		(void)sc_vec_push(&j->sweep.sets, name);
	j->sweep.clean = false;
	m->sweeps = true;
}

int rs_gone_delete(struct rs_member *m, struct rs_shared *j, const struct meta_hash *set, struct sc_err *err)
{
	const uint64_t nr = rs_version_of(set, j->id);
	struct meta_object object;
	int rc;

	if (!j->job)
		return 0;
	rs_cluster_step(RS_DELETE);
	if (nr) {
		rc = remove_version(m, j, nr, err);
	} else {
		rc = meta_object_named(m->s->catalog, META_OBJECT_SET, set->at, &object, err);
		if (rc > 0)
			rc = meta_set_let_go(m->s->catalog, object.id, err);
		if (rc >= 0)
			note_swept(m, j, set);
	}
	rs_kick(m->s, true);
	return rc < 0 ? rc : 0;
}
