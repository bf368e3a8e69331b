/* SPDX-License-Identifier: Apache-2.0 */
/* How a schedule ends: without faults, all comes to rest. */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

static bool all_show(struct world *w, unsigned job)
{
	for (unsigned i = 0; i < w->nodes; i++)
		if (w->node[i].state == UP && node_current(w, i, job) != w->head[job])
			return false;
	return true;
}

/* A moment without faults. */
static void rest(struct world *w)
{
	world_expire(w);
	sweep_step(w);
	for (unsigned i = 0; i < w->nodes; i++) {
		world_take_watch(w, i);
		user_open(w, i, 0);
	}
	if (w->pool.nr) {
		world_take_item(w, 0);
		if (w->pool.nr < 500 && pick(w, 6))
			return;
	}
	w->time += MS;
	world_wake(w);
}

/* Faults have ended, but for nodes that never come back: false, there are such. */
static bool repair_all(struct world *w)
{
	struct meta_key key = {.kind = META_KEY_PROPOSAL};
	const struct kv *proposal = kv_find(w, &key);
	bool gone = false;

	if (proposal && w->nodes > 2 && w->node[proposal->value.proposal.node].core && pick(w, 2)) {
		gone = true; /* a proposer dies for good */
		node_crash(w, (unsigned)proposal->value.proposal.node);
		w->node[proposal->value.proposal.node].state = GONE;
	}
	w->quiet = true;
	w->etcd_up = true;
	for (unsigned i = 0; i < w->nodes; i++) {
		struct node *n = &w->node[i];

		n->etcd_link = n->peer_link = n->renew_link = true;
		if (n->state == PAUSED)
			n->state = UP;
		if (n->state == DOWN && w->nodes > 2 && !gone && pick(w, 2)) {
			n->state = GONE;
			gone = true;
		} else if (n->state == DOWN) {
			node_start(w, i);
		}
	}
	return !gone;
}

/* A user writes a topology until it is taken. */
static void come_to_rest(struct world *w)
{
	const uint64_t before = w->head[0];

	for (int64_t until = w->time + 4000 * MS; w->time < until;) {
		rest(w);
		for (unsigned i = 0; i < w->nodes; i++)
			w->node[i].disk[0].dirty &= w->head[0] == before && w->node[i].now[0].gate;
		if (w->head[0] > before && all_show(w, 0))
			return;
		if (w->head[0] == before && pick(w, 20) == 0)
			user_command(w, pick(w, w->nodes), 0, true);
	}
	broken(w, "progress: no new topology within 4 s without faults");
}

/* Tells whether the head is stored as it is shown, each range where it is to be. */
static bool is_settled(struct world *w)
{
	const struct meta_key key = {.kind = META_KEY_STORE, .nr = w->head[0]};
	const struct kv *store = kv_find(w, &key);

	return store && store->value.store.settled && set_nr(&store->value.store.at[0].set) == w->head[0];
}

/* All nodes are there: the storage of the head settles, and that of a commit over it which saves no tensor. */
static void come_to_settle(struct world *w)
{
	const uint64_t before = w->head[0];

	for (int64_t until = w->time + 8000 * MS; w->time < until;) {
		rest(w);
		for (unsigned i = 0; i < w->nodes; i++) {
			node_pull(w, i, 0);
			node_sync(w, i, 0);
		}
		if (!all_show(w, 0) || (w->head[0] > before && !is_settled(w)))
			continue;
		if (w->head[0] > before || (!w->w.commits && is_settled(w)))
			return;
		if (w->w.commits && pick(w, 20) == 0)
			user_command(w, pick(w, w->nodes), 0, false);
	}
	broken(w, "progress: the storage of version %lu does not settle within 8 s without faults", w->head[0]);
}

int world_run(struct world *w, unsigned long steps)
{
	bool all_there;

	if (setjmp(w->out))
		return -1;
	for (unsigned i = 0; i < w->nodes; i++)
		node_start(w, i);
	for (unsigned long i = 0; i < steps; i++)
		world_step(w);
	all_there = repair_all(w);
	come_to_rest(w);
	if (all_there)
		come_to_settle(w);
	return 0;
}
