/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep (reshard/cluster/stored/sweep.c) beside the cores, at any pace: it looks which objects nothing names, announces them,
 * looks once more, and removes those that are as they were.  A node asks for objects and commits later.  And a node sees late
 * that what has died is not read there any more, one thing before the other.
 *
 *	named	a version that is stored is made of objects that etcd has
 */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

#include <string.h>

static unsigned draw(struct world *w, unsigned below)
{
	w->sweep.random = w->sweep.random * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((w->sweep.random >> 33) % below);
}

static bool is_named(struct world *w, unsigned job, unsigned object)
{
	for (size_t i = 0; i < w->kv.nr; i++)
		if (w->kv.at[i].key.kind == META_KEY_STORE && w->kv.at[i].key.job == job &&
		    w->kv.at[i].key.nr % OBJECTS == object)
			return true;
	return false;
}

uint64_t sweep_announced(struct world *w)
{
	const struct meta_key key = {.kind = META_KEY_SWEEP};
	const struct kv *kv = kv_find(w, &key);

	return kv ? kv->mod : 0;
}

void sweep_ask(struct world *w, unsigned i, unsigned job, uint64_t nr)
{
	const unsigned o = (unsigned)(nr % OBJECTS);

	w->node[i].now[job].sweep = sweep_announced(w);
	if (!w->sweep.on || (w->sweep.object[job][o] && !w->sweep.said[job][o].is))
		return;
	w->sweep.put_again++;
	w->sweep.object[job][o] = ++w->revision;
	trace(w, "node %u puts object %u of version %lu", i, o, nr);
}

void sweep_check(struct world *w, unsigned job, uint64_t nr)
{
	if (w->sweep.on && !w->sweep.object[job][nr % OBJECTS])
		broken(w, "named: version %lu is made of an object that etcd lacks", nr);
}

static void look(struct world *w)
{
	for (unsigned job = 0; job < w->jobs; job++)
		for (unsigned o = 0; o < OBJECTS; o++) {
			w->sweep.goes[job][o].is = w->sweep.object[job][o] && !is_named(w, job, o);
			w->sweep.goes[job][o].mod = w->sweep.object[job][o];
		}
}

static void announce(struct world *w)
{
	const struct meta_op put = {.what = META_PUT, .key = {.kind = META_KEY_SWEEP},
				    .value = {.kind = META_KEY_SWEEP, .number = {1}}};

	etcd_put(w, &put);
	w->sweep.announced = w->revision;
	memcpy(w->sweep.said, w->sweep.goes, sizeof(w->sweep.said));
	trace(w, "etcd at %lu: a sweep is announced", w->revision);
}

static void remove_one(struct world *w)
{
	const unsigned job = draw(w, w->jobs), o = draw(w, OBJECTS);

	if (!w->sweep.goes[job][o].is || w->sweep.goes[job][o].mod != w->sweep.object[job][o])
		return;
	if (is_named(w, job, o))
		broken(w, "named: the sweep removes object %u of job %u, which is named", o, job);
	w->sweep.object[job][o] = 0;
	w->sweep.removed++;
	w->revision++;
	trace(w, "etcd at %lu: object %u is swept", w->revision, o);
}

/* Tells of the first of the deaths that are still to be seen. */
static void tell_seen(struct world *w, unsigned i, unsigned job, uint64_t most)
{
	struct rs_event e = {.kind = RS_EV_SEEN, .job = job, .revision = most};

	for (unsigned k = 0; k < w->node[i].now[job].nr_dead; k++)
		if (w->node[i].now[job].dead[k].since <= e.revision)
			e.revision = w->node[i].now[job].dead[k].since - 1;
	if (e.revision <= w->node[i].now[job].told)
		return;
	w->node[i].now[job].told = e.revision;
	node_event(w, i, &e);
}

static void see_one(struct world *w)
{
	const unsigned i = draw(w, w->nodes), job = draw(w, w->jobs);
	struct node *n = &w->node[i];
	uint64_t most = n->now[job].told;
	unsigned at;

	if (n->state != UP || !n->core || !n->now[job].nr_dead)
		return;
	for (unsigned k = 0; k < n->now[job].nr_dead; k++)
		most = n->now[job].dead[k].revision > most ? n->now[job].dead[k].revision : most;
	at = draw(w, n->now[job].nr_dead);
	n->now[job].dead[at] = n->now[job].dead[--n->now[job].nr_dead];
	tell_seen(w, i, job, most);
}

void sweep_died(struct world *w, unsigned i, unsigned job, uint64_t since, uint64_t revision)
{
	struct node *n = &w->node[i];

	if (!w->sweep.on || n->now[job].nr_dead == DEAD_MAX) {
		for (unsigned k = 0; k < n->now[job].nr_dead; k++)
			revision = n->now[job].dead[k].revision > revision ? n->now[job].dead[k].revision : revision;
		n->now[job].nr_dead = 0;
		n->now[job].told = revision;
		node_event(w, i, &(struct rs_event){.kind = RS_EV_SEEN, .job = job, .revision = revision});
		return;
	}
	n->now[job].dead[n->now[job].nr_dead++] = (struct death){since, revision};
}

void sweep_deleted(struct world *w, unsigned job, uint64_t set)
{
	const uint64_t died = w->sweep.died[job][set];

	for (unsigned i = 0; w->sweep.on && died && i < w->nodes; i++) {
		const struct meta_key key = {.kind = META_KEY_NODE, .node = i};

		const struct kv *kv = kv_find(w, &key);

		/* nobody waits for a node that is registered anew, and no member yet */
		if (w->node[i].state == DOWN || w->node[i].state == GONE || !kv || kv->create != w->node[i].listed)
			continue;
		for (unsigned k = 0; k < w->node[i].now[job].nr_dead; k++)
			if (w->node[i].now[job].dead[k].since <= died && died <= w->node[i].now[job].dead[k].revision)
				broken(w, "referenced: set %lu is deleted, and node %u has not seen its death", set, i);
	}
}

void sweep_named(struct world *w, unsigned job)
{
	bool named[VERSIONS_MAX + 1] = {false};

	for (size_t i = 0; i < w->kv.nr; i++)
		if (w->kv.at[i].key.kind == META_KEY_STORE && w->kv.at[i].key.job == job)
			named[set_nr(&w->kv.at[i].value.store.at[0].set)] = true;
	for (unsigned v = 1; v <= VERSIONS_MAX; v++)
		if (named[v])
			w->sweep.died[job][v] = UINT64_MAX;
		else if (w->sweep.died[job][v] == UINT64_MAX)
			w->sweep.died[job][v] = w->revision;
}

void sweep_step(struct world *w)
{
	if (!w->sweep.on)
		return;
	if (draw(w, 3) == 0)
		see_one(w);
	if (!w->etcd_up || draw(w, 6))
		return;
	switch (w->sweep.state) {
	case SWEEP_IDLE:
		look(w);
		break;
	case SWEEP_LOOKED:
		announce(w);
		break;
	case SWEEP_ANNOUNCED:
		for (unsigned job = 0; job < w->jobs; job++)
			for (unsigned o = 0; o < OBJECTS; o++)
				w->sweep.goes[job][o].is &= !is_named(w, job, o);
		break;
	default:
		remove_one(w);
		if (draw(w, 4 * OBJECTS))
			return;
		w->sweep.state = SWEEP_IDLE;
		return;
	}
	w->sweep.state++;
}
