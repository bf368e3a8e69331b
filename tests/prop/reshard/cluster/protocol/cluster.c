/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules: what comes next, which faults, and how the cluster must come to rest. */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned pick(struct world *w, unsigned below)
{
	w->random = w->random * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((w->random >> 33) % below);
}

void trace(struct world *w, const char *fmt, ...)
{
	char *to = w->trace[w->traced++ % 40];
	int n =
	    snprintf(to, 120, "%lu.%03lu ms  ", (unsigned long)(w->time / MS), (unsigned long)(w->time / 1000 % 1000));
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(to + n, 120 - (size_t)n, fmt, ap);
	va_end(ap);
	if (w->aloud)
		fprintf(stderr, "  %s\n", to);
}

void broken(struct world *w, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(w->broken, sizeof(w->broken), fmt, ap);
	va_end(ap);
	longjmp(w->out, 1);
}

static void set_mood(struct world *w)
{
	w->mood = (enum mood)pick(w, MOODS);
	w->laggard = pick(w, w->nodes);
	switch (w->mood) {
	case SWIFT:
		w->w = (struct weights){.time = 2 + pick(w, 3),
					.item = 80,
					.watch = 40,
					.open = 20,
					.hold = 1,
					.command = 2,
					.fault = 10,
					.repair = 20};
		w->faults = 20;
		break;
	case LOSSY:
		w->w.lose = w->w.late = 10 + pick(w, 20);
		w->w.command = 6;
		break;
	case RENEWALS:
		w->w = (struct weights){
		    .time = 6 + pick(w, 6), .item = 80, .watch = 40, .open = 20, .command = 3, .fault = 1, .repair = 2};
		w->faults = 2;
		break;
	case SETTLES:
		w->w = (struct weights){
		    .time = 4 + pick(w, 6), .item = 60, .watch = 40, .open = 10, .hold = 1, .command = 4, .pull = 30};
		break;
	case DISKS:
		w->w = (struct weights){.time = 10 + pick(w, 8),
					.item = 80,
					.watch = 40,
					.open = 5,
					.command = 1,
					.pull = 1 + pick(w, 3),
					.fault = 20,
					.repair = 20};
		w->faults = 1;
		break;
	case DELAYS:
		w->w = (struct weights){.time = 4 + pick(w, 12),
					.item = 80,
					.watch = 40,
					.open = 20,
					.write = 3,
					.command = 6,
					.commits = true};
		break;
	default:
		break;
	}
}

/* Nodes that write are cut off while others commit, and are back. */
static void leave_out(struct world *w)
{
	w->leaves_out = true;
	w->mood = ANY;
	w->nodes = 3 + pick(w, NODES_MAX - 2);
	w->jobs = 1;
	w->disks = 0;
	w->faults = 20;
	w->w = (struct weights){.time = 6 + pick(w, 10),
				.item = 60,
				.watch = 40,
				.open = 10,
				.write = 6,
				.command = 2,
				.fault = 6,
				.repair = 1,
				.pull = 4,
				.commits = true};
}

void world_init(struct world *w, uint64_t seed)
{
	*w = (struct world){.random = seed * 7919 + 1, .sweep = {.on = seed % 4 == 1, .random = seed}};
	for (int i = 0; i < 8; i++)
		(void)pick(w, 2);
	w->nodes = 2 + pick(w, 3);
	w->jobs = pick(w, 4) ? 1 : 2;
	w->time = 1000 * MS;
	w->disks = 1;
	w->holds = 4;
	w->faults = pick(w, 3) ? pick(w, 10) : 0;
	w->w = (struct weights){.time = 1 + pick(w, 30),
				.item = 60,
				.watch = 10 + pick(w, 60),
				.open = 20,
				.hold = 1,
				.write = pick(w, 3) ? pick(w, 4) : 0,
				.command = 1 + pick(w, 6),
				.fault = pick(w, 3),
				.repair = 1 + pick(w, 8),
				.pull = pick(w, 2) ? 8 : 0,
				.lose = pick(w, 3) ? 0 : pick(w, 15),
				.late = pick(w, 3) ? 0 : pick(w, 15),
				.far = pick(w, 3) ? 0 : pick(w, 20),
				.commits = pick(w, 2)};
	set_mood(w);
	if (seed >= LEFT_OUT_SEEDS)
		leave_out(w);
	etcd_begin(w);
	for (unsigned job = 0; job < w->jobs; job++)
		w->sweep.object[job][1] = w->revision;
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->etcd_link = n->peer_link = n->renew_link = true;
		n->slow_watch = pick(w, w->mood == SWIFT ? 2 : 5) == 0;
		n->rate_ppm = pick(w, 2) ? 0 : (int64_t)pick(w, 2 * DRIFT_PPM * 9 / 20) - DRIFT_PPM * 9 / 20;
		n->offset = (int64_t)pick(w, 1000) * MS;
		for (unsigned job = 0; job < w->jobs; job++) {
			n->disk[job].head = n->disk[job].storage = 1;
			for (unsigned r = 0; r < RANGES; r++)
				n->disk[job].have[1][r] = needs(w, i, r, 1);
		}
	}
}

/* --- one thing happens --- */

void world_wake(struct world *w)
{
	struct rs_event e = {.kind = RS_EV_TIME};

	for (unsigned i = 0; i < w->nodes; i++)
		if (w->node[i].state == UP && node_clock(w, i) >= rs_core_wake(w->node[i].core))
			node_event(w, i, &e);
}

static void pass_time(struct world *w)
{
	w->time += pick(w, 100) < w->w.far ? pick(w, 150) * MS : (pick(w, 8) + 1) * MS;
	world_wake(w);
}

static void answer_unknown(struct world *w, const struct item *request)
{
	struct item *a = pool_add(w, ANSWER, request->node);

	a->life = request->life;
	a->event = (struct rs_event){.kind = request->act.kind == RS_ACT_SNAPSHOT ? RS_EV_SNAPSHOT : RS_EV_ANSWER,
				     .id = request->act.id,
				     .outcome = META_UNKNOWN};
}

/* Applied, lost, or applied without its answer; a request that was given up may be applied later. */
static void take_request(struct world *w, size_t at)
{
	struct item *it = w->pool.at[at], *answer;
	struct node *n = &w->node[it->node];
	bool reach = w->etcd_up && (n->state == UP || n->state == PAUSED || it->zombie) &&
		     (n->etcd_link || it->zombie) && (n->renew_link || it->act.kind != RS_ACT_KEEPALIVE);
	unsigned dice = pick(w, 100);

	if (!it->zombie && (!reach || dice < w->w.lose + w->w.late) && !w->quiet) {
		answer_unknown(w, it);
		it->zombie = true;
		if (dice < w->w.lose || (!reach && pick(w, 2)))
			pool_drop(w, at);
		return;
	}
	if (!reach) {
		if (!it->zombie)
			answer_unknown(w, it);
		pool_drop(w, at);
		return;
	}
	answer = pool_add(w, ANSWER, it->node);
	answer->life = it->life;
	answer->is_fresh =
	    it->act.kind == RS_ACT_TXN && it->act.txn.nr_then && it->act.txn.then[0].key.kind == META_KEY_TICK;
	etcd_apply(w, it, answer);
	if (it->zombie)
		answer->life = 0; /* nobody waits for it */
	else if (!w->quiet && pick(w, 100) < w->w.lose)
		answer->event =
		    (struct rs_event){.kind = answer->event.kind, .id = answer->event.id, .outcome = META_UNKNOWN};
	pool_drop(w, at);
}

/* An item leaves the pool before what it leads to comes into it. */
static void take_out(struct world *w, size_t at)
{
	w->in_hand = w->pool.at[at];
	w->pool.at[at] = w->pool.at[--w->pool.nr];
}

static void drop_in_hand(struct world *w)
{
	if (w->in_hand)
		sc_arena_done(&w->in_hand->arena);
	free(w->in_hand);
	w->in_hand = NULL;
}

static void take_answer(struct world *w, size_t at)
{
	struct item *it = w->pool.at[at];
	struct node *n = &w->node[it->node];

	take_out(w, at);
	if (n->state == UP && n->life == it->life) {
		if (!n->etcd_link)
			it->event.outcome = META_UNKNOWN;
		if (it->event.kind == RS_EV_SNAPSHOT && it->event.outcome == META_APPLIED) {
			n->watching = true;
			for (n->watch_at = 0;
			     n->watch_at < w->changes.nr && w->changes.at[n->watch_at].mod <= it->event.revision;)
				n->watch_at++;
		}
		if (it->event.outcome == META_UNKNOWN)
			it->event.nr_records = 0;
		node_event(w, it->node, &it->event);
	}
	drop_in_hand(w);
}

static void take_message(struct world *w, size_t at)
{
	struct item *it = w->pool.at[at];
	unsigned from = it->node, to = it->act.node;
	struct rs_event e = {.kind = RS_EV_MESSAGE, .from = from, .epoch = it->act.epoch, .message = it->act.message};

	pool_drop(w, at);
	if (w->node[to].state == UP && w->node[to].peer_link && w->node[from].peer_link &&
	    (w->quiet || pick(w, 100) >= w->w.lose))
		node_event(w, to, &e);
}

void world_take_item(struct world *w, size_t at)
{
	struct item *it = w->pool.at[at];
	struct node *n = &w->node[it->node];

	switch (it->kind) {
	case REQUEST:
		if (n->life != it->life)
			it->zombie = true;
		take_request(w, at);
		break;
	case ANSWER:
		if (n->state != PAUSED || n->life != it->life)
			take_answer(w, at);
		break;
	case MESSAGE:
		take_message(w, at);
		break;
	default:
		if (n->state == PAUSED && n->life == it->life)
			break;
		take_out(w, at);
		if (n->state == UP && n->life == it->life)
			node_local(w, it);
		drop_in_hand(w);
	}
}

static void take_any(struct world *w)
{
	size_t at = pick(w, (unsigned)w->pool.nr);

	bool slow = w->pool.at[at]->zombie ||
		    (w->mood == DELAYS && w->pool.at[at]->node == w->laggard && w->pool.at[at]->is_fresh);

	if (!slow || pick(w, 8) == 0)
		world_take_item(w, at);
}

/* Some revisions, each whole. */
void world_take_watch(struct world *w, unsigned i)
{
	struct node *n = &w->node[i];
	size_t to = n->watch_at;
	struct rs_event e = {.kind = RS_EV_WATCH};

	if (n->state != UP || !n->watching || !n->etcd_link || !w->etcd_up || to == w->changes.nr ||
	    ((n->slow_watch || (w->mood == DELAYS && w->laggard == i)) && !w->quiet && pick(w, 20)))
		return;
	do {
		e.revision = w->changes.at[to].mod;
		while (to < w->changes.nr && w->changes.at[to].mod == e.revision)
			to++;
	} while (to < w->changes.nr && pick(w, 4) == 0);
	e.records = &w->changes.at[n->watch_at];
	e.nr_records = (uint32_t)(to - n->watch_at);
	n->watch_at = to;
	trace(w, "node %u is told of revisions to %lu", i, e.revision);
	node_event(w, i, &e);
}

/* --- faults --- */

static bool may_lose_disk(struct world *w, unsigned i)
{
	for (size_t k = 0; k < w->kv.nr; k++) {
		const struct kv *kv = &w->kv.at[k];

		for (unsigned r = 0; kv->key.kind == META_KEY_STORE && r < RANGES; r++) {
			bool other = false;

			for (unsigned x = 0; x < w->nodes; x++)
				other |=
				    x != i && w->node[x].disk[kv->key.job].have[set_nr(&kv->value.store.at[0].set)][r];
			if (!other)
				return false;
		}
	}
	return true;
}

/* A node that has prepared what was written there hears, and says, nothing more. */
static void cut_off(struct world *w)
{
	for (unsigned i = 0; w->faults && i < w->nodes; i++) {
		struct node *n = &w->node[i];

		if (n->state != UP || !n->disk[0].prepared || !n->disk[0].dirty || !n->etcd_link || pick(w, 2))
			continue;
		w->faults--;
		n->etcd_link = n->peer_link = false;
		trace(w, "node %u is cut off", i);
		return;
	}
}

static void fault(struct world *w)
{
	unsigned i = pick(w, w->nodes), kind = w->mood == SWIFT      ? 0
					       : w->mood == RENEWALS ? 5
					       : w->mood == DISKS    ? 7
								     : pick(w, 8);
	struct meta_key ready = {.kind = META_KEY_READY, .job = 0, .nr = w->head[0], .node = i};
	struct rs_event unwatched = {.kind = RS_EV_UNWATCHED};
	struct node *n = &w->node[i];

	if (!w->faults || n->state != UP || (w->mood == SWIFT && n->disk[0].head <= w->seen[0]) ||
	    (w->mood == DISKS && !kv_find(w, &ready)))
		return;
	w->faults--;
	trace(w, "fault %u of node %u", kind, i);
	switch (kind) {
	case 0:
	case 1:
		w->crashes++;
		node_crash(w, i);
		break;
	case 2:
		n->state = PAUSED;
		break;
	case 3:
		n->etcd_link = false;
		break;
	case 4:
		n->peer_link = false;
		break;
	case 5:
		n->renew_link = false;
		break;
	case 6:
		if (pick(w, 2))
			w->etcd_up = false;
		n->watching = false; /* compacted */
		node_event(w, i, &unwatched);
		break;
	default:
		if (!w->disks || !may_lose_disk(w, i))
			return;
		w->disks--;
		node_crash(w, i);
		memset(n->disk, 0, sizeof(n->disk));
		n->lease = 0;
	}
}

static void repair(struct world *w, unsigned i)
{
	struct node *n = &w->node[i];

	if (!w->etcd_up && pick(w, 2)) {
		w->etcd_up = true;
		return;
	}
	switch (pick(w, 5)) {
	case 0:
		if (n->state == PAUSED) {
			n->state = UP;
			trace(w, "node %u goes on", i);
		}
		break;
	case 1:
		if (n->state == DOWN) {
			trace(w, "node %u starts", i);
			node_start(w, i);
		}
		break;
	case 2:
		n->etcd_link = true;
		break;
	case 3:
		n->peer_link = true;
		break;
	default:
		if (pick(w, 8) == 0)
			n->renew_link = true;
	}
}

void world_expire(struct world *w)
{
	for (size_t k = 0; k < w->leases.nr && w->etcd_up; k++) {
		struct lease *l = &w->leases.at[k];

		if (l->alive && l->ends <= w->time && (w->quiet || pick(w, 3) == 0)) {
			trace(w, "lease %lu of node %u ends", l->id, l->node);
			etcd_expire(w, l);
		}
	}
}

void world_step(struct world *w)
{
	unsigned i = pick(w, w->nodes), job = pick(w, w->jobs), dice;
	const struct weights *x = &w->w;

	world_expire(w);
	sweep_step(w);
	dice = pick(w, x->time + x->item + x->watch + x->open + x->hold + x->write + x->command + x->fault + x->repair +
			   x->pull);
#define TAKES(weight) (dice < (weight) || (dice -= (weight), false))
	if (TAKES(x->time)) {
		pass_time(w);
	} else if (TAKES(x->item)) {
		if (w->pool.nr)
			take_any(w);
	} else if (TAKES(x->watch)) {
		world_take_watch(w, i);
	} else if (TAKES(x->open)) {
		user_open(w, i, job);
	} else if (TAKES(x->hold)) {
		user_hold(w, i, job);
	} else if (TAKES(x->write)) {
		user_write(w, i, job);
	} else if (TAKES(x->command)) {
		user_command(w, i, job, false);
	} else if (TAKES(x->fault)) {
		w->leaves_out && pick(w, 12) ? cut_off(w) : fault(w);
	} else if (TAKES(x->repair)) {
		repair(w, i);
	} else if (w->node[i].state == UP && w->node[i].core) {
		if (pick(w, 2))
			node_pull(w, i, job);
		else
			node_sync(w, i, job);
	}
}

void world_done(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		rs_core_free(w->node[i].core);
	drop_in_hand(w);
	while (w->pool.nr)
		pool_drop(w, w->pool.nr - 1);
	sc_vec_done(&w->pool);
	sc_vec_done(&w->kv);
	sc_vec_done(&w->changes);
	sc_vec_done(&w->nodes_past);
	sc_vec_done(&w->leases);
	sc_arena_done(&w->arena);
}
