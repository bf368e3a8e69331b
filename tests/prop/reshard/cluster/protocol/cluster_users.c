/* SPDX-License-Identifier: Apache-2.0 */
/* What users do, and the promises that they would see broken. */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

void user_open(struct world *w, unsigned i, unsigned job)
{
	uint64_t got = node_current(w, i, job);

	if (!got)
		return;
	w->opens++;
	if (got < w->seen[job])
		broken(w, "fresh: node %u opens version %lu after %lu was seen", i, got, w->seen[job]);
	if (got > w->seen[job])
		trace(w, "node %u opens version %lu", i, got);
	w->seen[job] = got;
}

void user_hold(struct world *w, unsigned i, unsigned job)
{
	struct node *n = &w->node[i];
	struct rs_event e = {.kind = RS_EV_USING, .job = job};

	if (n->now[job].using && n->state == UP) {
		if (pick(w, 8))
			return;
		e.set = set_hash(job, n->now[job].using);
		n->now[job].using = 0;
		node_event(w, i, &e);
	} else if (w->holds && node_current(w, i, job) && n->now[job].storage) {
		user_open(w, i, job);
		w->holds -= !w->quiet;
		n->now[job].using = n->now[job].storage;
		e.set = set_hash(job, n->now[job].using);
		e.on = true;
		node_event(w, i, &e);
	}
}

void user_write(struct world *w, unsigned i, unsigned job)
{
	uint64_t got = node_current(w, i, job);
	struct node *n = &w->node[i];

	if (!got || n->now[job].gate || n->disk[job].dirty)
		return;
	user_open(w, i, job);
	if (got != w->head[job])
		broken(w, "kept: node %u takes a write to version %lu, the head is %lu", i, got, w->head[job]);
	w->writes++;
	n->disk[job].dirty = true;
	n->disk[job].dirty_on = got;
	trace(w, "node %u writes to version %lu", i, got);
}

void user_command(struct world *w, unsigned i, unsigned job, bool topology)
{
	uint32_t homes[NODES_MAX];
	struct rs_event e = {.kind = RS_EV_COMMAND,
			     .job = job,
			     .change = META_BY_TOPOLOGY,
			     .deadline = (w->quiet                               ? 400
					  : w->mood == DELAYS && pick(w, 3) == 0 ? 30 + pick(w, 60)
										 : 50 + pick(w, 600)) *
					 MS,
			     .nodes = homes};

	if (w->node[i].state != UP || !node_current(w, i, job) || w->head[job] >= VERSIONS_MAX - (w->quiet ? 2 : 12) ||
	    w->tokens + 1 == 4096)
		return;
	e.token = ++w->tokens;
	if (!topology && w->w.commits && pick(w, w->leaves_out ? 8 : 2)) {
		e.change = META_BY_COMMIT;
		for (unsigned k = 0; k < w->nodes && !w->leaves_out; k++)
			homes[e.nr_nodes++] = k;
		e.deadline += w->leaves_out ? 3 * TTL : 0; /* until who is cut off is no member any more */
	}
	trace(w, "node %u: command %lu, %s", i, e.token, e.change ? "topology" : "commit");
	node_event(w, i, &e);
}
