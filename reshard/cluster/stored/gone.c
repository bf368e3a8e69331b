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
 * 2. The mark stays before the first death of what is read here.
 * 3. The newest version here keeps its rows, without which the job cannot be loaded, until there is a newer one, which
 *    may wait for what is uncommitted here.  It is not shown then, and no other node waits for it.
 */
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/catalog/nodes.h"

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
		is |= j->dead.sets.at[i].set == set;
	return is;
}

int rs_gone_replaced(struct rs_member *m, struct rs_shared *j, const struct rs_version *was, struct sc_err *err)
{
	struct telling t = {m, j};

	for (size_t i = 0; i < was->nr_sets; i++) {
		if (is_watched(j, was->sets[i]))
			continue;
		if (sc_vec_push(&j->dead.sets, ((struct rs_left_set){was->sets[i], j->dead.nr_left})) < 0)
			return sc_nomem(err);
		j->dead.nr_left++;
		(void)rs_set_ref(was->sets[i]);
	}
	return meta_held_each(m->s->catalog, j->job->id, on_held, &t, err);
}

/* --- what dies --- */

/* Tells whether a job was removed from the cluster: what is kept of it here stays as it is, all else goes with it. */
static bool is_removed(const struct rs_shared *j)
{
	return j->gone || j->again.end;
}

int rs_gone_died(struct rs_member *m, struct rs_shared *j, uint64_t nr, uint64_t since, uint64_t revision,
		 struct sc_err *err)
{
	struct meta_catalog *c = m->s->catalog;
	const bool is_head = nr && !is_removed(j) && nr == rs_shared_head(m, j);
	uint64_t id = 0;
	int rc = nr && j->job && !is_removed(j) ? meta_version_find(c, j->job->id, nr, &id, err) : 0;

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
	if (sc_vec_push(&j->dead, ((struct rs_gone){since, revision, id, sc_now_ns(), nr == 0, false, 0})) < 0)
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
	rc = rs_gone_died(m, j, nr, j->dead.seen + 1, 0, err);
	tell(m, j, &set); /* if it was to go already, it is again */
	return rc;
}

/* Tells whether an older version that is shown has a set, too: the set dies with that one. */
static bool lives(struct rs_member *m, const struct rs_set *set)
{
	struct sc_err ignored;

	return meta_set_is_shown(m->s->catalog, set->id, &ignored) > 0;
}

/* Forgets sets that are not read any more.  Returns how many of those that there were ever may not be read before the
 * first one that may be. */
static uint64_t forget_sets(struct rs_member *m, struct rs_shared *j)
{
	uint64_t until = j->dead.nr_left;
	size_t kept = 0;

	if (j->dead.sets.nr)
		rs_views_left(m->s, false); /* they have sets */
	for (size_t i = 0; i < j->dead.sets.nr; i++) {
		const struct rs_left_set l = j->dead.sets.at[i];

		if (__atomic_load_n(&l.set->refs, __ATOMIC_ACQUIRE) <= 1) {
			rs_set_unref(l.set);
			continue;
		}
		j->dead.sets.at[kept++] = l;
		if (!lives(m, l.set))
			until = sc_min_u64(until, l.at);
	}
	j->dead.sets.nr = kept;
	return until;
}

/* Tells whether something dead is not read here any more, nor was looked up a moment ago; of a set: nor is what has
 * replaced it still to be taken. */
static bool is_over(struct rs_member *m, const struct rs_shared *j, struct rs_gone *g, uint64_t until)
{
	if (sc_now_ns() - g->since_ns < GRACE_NS)
		return false;
	if (!g->is_set)
		return !g->version || !rs_version_is_open(m->s, g->version);
	if (!g->is_taken && (j->storage.done || !j->storage.nr || is_removed(j))) {
		g->is_taken = true;
		g->until = j->dead.nr_left;
	}
	return g->is_taken && g->until <= until;
}

/* Says up to which revision nothing dead is read: where things die all the time, some of them always are. */
bool rs_gone_step(struct rs_member *m, struct rs_shared *j)
{
	struct rs_event e = {.kind = RS_EV_SEEN, .job = j->id, .revision = j->dead.seen};
	const uint64_t until = forget_sets(m, j);
	uint64_t first = UINT64_MAX;
	size_t kept = 0;

	for (size_t i = 0; i < j->dead.nr; i++) {
		struct rs_gone *g = &j->dead.at[i];

		e.revision = sc_max_u64(e.revision, g->revision);
		if (is_over(m, j, g, until))
			continue;
		first = sc_min_u64(first, sc_max_u64(g->since, 1));
		j->dead.at[kept++] = *g;
	}
	j->dead.nr = kept;
	e.revision = sc_min_u64(e.revision, first - 1);
	if (e.revision > j->dead.seen) {
		j->dead.seen = e.revision;
		rs_member_post(m, &e);
	}
	return kept || j->dead.sets.nr;
}

void rs_gone_done(struct rs_shared *j)
{
	for (size_t i = 0; i < j->dead.sets.nr; i++)
		rs_set_unref(j->dead.sets.at[i].set);
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

int rs_gone_delete(struct rs_member *m, struct rs_shared *j, const struct meta_hash *set, struct sc_err *err)
{
	const uint64_t nr = rs_version_of(set, j->id);
	struct meta_object object;
	int rc;

	if (!j->job || (nr && is_removed(j)))
		return 0;
	rs_cluster_step(RS_DELETE);
	if (nr) {
		rc = remove_version(m, j, nr, err);
	} else {
		rc = meta_object_named(m->s->catalog, META_OBJECT_SET, set->at, &object, err);
		if (rc > 0)
			rc = meta_set_let_go(m->s->catalog, object.id, err);
	}
	rs_worker_call(m->s, true);
	return rc < 0 ? rc : 0;
}
