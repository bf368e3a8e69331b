/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes events in, and gives actions out.
 *
 * 1. An answer counts only for the request that is on its way in its slot: an answer to a request that was given up is
 *    a stranger's.
 * 2. No step depends on which event led to it.
 */
#include "reshard/cluster/protocol/core_i.h"

#include <assert.h>
#include <string.h>

/* --- jobs --- */

static void job_done(struct job *j)
{
	for (size_t i = 0; i < j->stores.nr; i++)
		sc_sys.release(j->stores.at[i].sets.at);
	sc_vec_done(&j->stores);
	for (size_t i = 0; i < j->tags.nr; i++)
		sc_sys.release(j->tags.at[i].name);
	sc_vec_done(&j->tags);
	rs_command_done(j);
	sc_vec_done(&j->destinations);
	sc_vec_done(&j->kept);
	sc_sys.release(j->future.at);
	sc_vec_done(&j->have);
	sc_vec_done(&j->using);
	sc_sys.release(j);
}

static void take_job(struct rs_core *c, const struct rs_core_job *row)
{
	struct job *j = rs_core_job(c, row->job);

	if (!j)
		return;
	j->known = row->head;
	if (!RULE(relearn))
		j->learned = c->now - c->wait;
	if (row->prepared) { /* its files may be a version's by now: nothing touches them until that is known */
		j->prepared = row->prepared;
		j->prepared_base = row->base;
		j->gate =
		    (struct gate){.state = GATE_REFUSED, .token = row->prepared, .base = row->base, .since = c->now};
		rs_core_act(c, RS_ACT_GATE, j)->token = row->prepared;
	}
	for (uint32_t i = 0; i < row->nr_have; i++) {
		bool is_known = false;

		for (uint32_t k = 0; k < row->nr_known; k++)
			is_known |= memcmp(&row->known[k], &row->have[i], sizeof(*row->have)) == 0;
		rs_facts_set(c, &j->have, &row->have[i], true);
		if (!RULE(restart_asks) && !is_known)
			rs_core_act(c, RS_ACT_DELETE, j)->set = row->have[i];
	}
}

/* --- events --- */

static void take_answer(struct rs_core *c, const struct rs_event *e)
{
	enum slot slot;
	struct job *j;
	struct request *r = rs_core_answered(c, e->id, &slot, &j), was;

	if (!r)
		return;
	was = *r;
	*r = (struct request){.again = e->outcome == META_UNKNOWN ? c->now + c->config.times.resend : 0};
	switch (slot) {
	case SLOT_LEASE:
	case SLOT_KEEPALIVE:
	case SLOT_FRESH:
	case SLOT_KEEPER:
		rs_register_answer(c, slot, &was, e);
		for (size_t i = 0; !was.epoch && c->epoch && i < c->jobs.nr; i++)
			rs_member_relearn(c, c->jobs.at[i]);
		break;
	case SLOT_SNAPSHOT:
		if (e->outcome == META_APPLIED)
			rs_cells_snapshot(c, e);
		break;
	case SLOT_COMMAND:
	case SLOT_STRAY:
	case SLOT_SHOWN:
		rs_command_answer(c, j, slot, e);
		break;
	default:
		rs_bytes_answer(c, j, slot, e);
	}
}

static void take_watch(struct rs_core *c, const struct rs_event *e)
{
	if (!c->watching || e->revision <= c->position)
		return;
	for (uint32_t i = 0; i < e->nr_records; i++)
		rs_cells_take(c, &e->records[i]);
	c->position = e->revision;
}

static void take(struct rs_core *c, const struct rs_event *e)
{
	struct job *j;

	switch (e->kind) {
	case RS_EV_TIME:
		return;
	case RS_EV_ANSWER:
	case RS_EV_SNAPSHOT:
		take_answer(c, e);
		return;
	case RS_EV_WATCH:
		take_watch(c, e);
		return;
	case RS_EV_UNWATCHED:
		c->watching = false;
		return;
	default:
		break;
	}
	j = rs_core_job(c, e->kind == RS_EV_MESSAGE ? e->message.job : e->job);
	if (!j)
		return;
	switch (e->kind) {
	case RS_EV_MESSAGE:
		rs_command_message(c, j, &e->message, e->from, e->epoch);
		break;
	case RS_EV_COMMAND:
		rs_command_begin(c, j, e);
		break;
	case RS_EV_COMPOSED:
		rs_command_composed(c, j, e);
		break;
	case RS_EV_CHECKED:
	case RS_EV_PREPARED:
	case RS_EV_HIDDEN:
		rs_member_event(c, j, e);
		break;
	default:
		rs_bytes_event(c, j, e);
	}
}

static void run(struct rs_core *c)
{
	int64_t until;
	bool serves;

	rs_register_step(c);
	for (size_t i = 0; i < c->jobs.nr; i++) {
		rs_member_step(c, c->jobs.at[i]);
		rs_command_step(c, c->jobs.at[i]);
		rs_member_step(c, c->jobs.at[i]); /* a proposal or a commit of this node is one for its member, too */
		rs_bytes_step(c, c->jobs.at[i]);
	}
	rs_bytes_node_step(c);
	serves = rs_core_serves(c, c->now, &until);
	if (serves == c->is_fenced)
		rs_core_act(c, serves ? RS_ACT_SERVE : RS_ACT_FENCE, NULL);
	c->is_fenced = !serves;
	if (serves)
		rs_core_wake_at(c, until + 1);
}

int rs_core_event(struct rs_core *c, int64_t now, const struct rs_event *e, struct sc_err *err)
{
	assert(c->next_act == c->acts.nr);
	if (!c->failed) {
		sc_arena_done(&c->arena);
		c->arena = (struct sc_arena){0};
		c->acts.nr = c->next_act = 0;
		c->now = now > c->now ? now : c->now;
		c->wake = NS_MAX;
		take(c, e);
		run(c);
	}
	if (c->failed) {
		c->next_act = c->acts.nr = 0;
		return sc_nomem(err);
	}
	return 0;
}

const struct rs_act *rs_core_next(struct rs_core *c)
{
	return c->next_act < c->acts.nr ? &c->acts.at[c->next_act++] : NULL;
}

int64_t rs_core_wake(const struct rs_core *c)
{
	return c->wake;
}

static const struct job *job_of(const struct rs_core *c, uint64_t job)
{
	return sc_map_get(&c->by_id, (const char *)&job, sizeof(job));
}

uint64_t rs_core_current(const struct rs_core *c, int64_t now, uint64_t job, int64_t *ret_until)
{
	const struct job *j = job_of(c, job);
	int64_t until;

	*ret_until = 0;
	if (c->failed || !rs_core_serves(c, now, &until) || (j && j->head.nr && !j->published))
		return 0;
	*ret_until = until;
	return j ? j->published : 0;
}

uint64_t rs_core_epoch(const struct rs_core *c)
{
	return c->epoch;
}

uint64_t rs_core_tick(const struct rs_core *c)
{
	return c->epoch && c->active && c->watching ? c->tick_mod : 0;
}

uint64_t rs_core_head(const struct rs_core *c, uint64_t job)
{
	const struct job *j = job_of(c, job);

	return j && j->head_cell.present ? j->head.nr : 0;
}

bool rs_core_stores(const struct rs_core *c, uint64_t job, uint64_t nr)
{
	const struct job *j = job_of(c, job);

	return j && rs_store_of(j, nr);
}

int rs_core_each_set(const struct rs_core *c, int (*fn)(void *arg, const struct meta_hash *set), void *arg)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->jobs.nr; i++)
		for (size_t k = 0; rc == 0 && k < c->jobs.at[i]->stores.nr; k++)
			for (uint32_t n = 0; rc == 0 && n < c->jobs.at[i]->stores.at[k].sets.nr; n++)
				rc = fn(arg, &c->jobs.at[i]->stores.at[k].sets.at[n].set);
	return rc;
}

uint64_t rs_core_job_at(const struct rs_core *c, size_t at)
{
	return at < c->jobs.nr ? c->jobs.at[at]->id : 0;
}

size_t rs_core_members(const struct rs_core *c, uint32_t *ret, size_t room)
{
	for (size_t i = 0; i < c->members.nr && i < room; i++)
		ret[i] = c->members.at[i].node;
	return c->members.nr;
}

uint64_t rs_core_members_mod(const struct rs_core *c)
{
	return c->members_cell.present ? c->members_cell.mod : 0;
}

size_t rs_core_waits_for(const struct rs_core *c, uint64_t job, uint64_t token, struct meta_member *ret, size_t room)
{
	const struct job *j = job_of(c, job);
	size_t nr = 0;

	if (!j || j->command.phase != PHASE_PREPARING || j->command.token != token)
		return 0;
	for (size_t i = 0; i < c->members.nr && nr < room; i++) {
		const struct meta_member *at = &c->members.at[i];

		if (!rs_nodes_have(&j->command.acks, at->node, at->epoch))
			ret[nr++] = *at;
	}
	return nr;
}

bool rs_core_lists(const struct rs_core *c, uint32_t node)
{
	for (size_t i = 0; i < c->members.nr; i++)
		if (c->members.at[i].node == node)
			return true;
	return false;
}

bool rs_core_has_member(const struct rs_core *c, uint32_t node, uint64_t epoch)
{
	return rs_nodes_have(&c->members, node, epoch);
}

static int check_times(const struct rs_core_times *t, struct sc_err *err)
{
	int64_t drifted = t->fence + t->fence / 1000000 * t->drift_ppm + t->slack;

	if (t->fresh <= 0 || t->renew <= 0 || t->keep <= 0 || t->resend <= 0 || t->low <= 0 || t->care < 0 ||
	    t->drift_ppm < 0 || t->slack < 0 || t->renew >= t->fence || drifted >= t->ttl)
		return sc_fail(
		    err, SC_E_LIMIT,
		    "the cluster's times do not hold together: a node stops %lld ms after its last renewal, by a slow "
		    "clock %lld ms, and its registration ends after %lld ms; make the TTL longer",
		    (long long)(t->fence / 1000000), (long long)(drifted / 1000000), (long long)(t->ttl / 1000000));
	return 0;
}

int rs_core_new(const struct rs_core_config *config, int64_t now, struct rs_core **ret, struct sc_err *err)
{
	const struct rs_core_times *t = &config->times;
	struct rs_core *c;
	int rc = check_times(t, err);

	if (rc < 0)
		return rc;
	c = sc_zalloc(sizeof(*c));
	if (!c)
		return sc_nomem(err);
	c->config = *config;
	c->config.jobs = NULL;
	c->now = now;
	c->is_fenced = true;
	c->lease = config->lease;
	c->wait = t->fresh / (RULE(wait) ? 1 : 2) + t->fresh / 1000000 * t->drift_ppm + t->slack;
	for (uint32_t i = 0; i < config->nr_jobs; i++)
		take_job(c, &config->jobs[i]);
	c->wake = NS_MAX;
	run(c);
	if (c->failed) {
		rs_core_free(c);
		return sc_nomem(err);
	}
	*ret = c;
	return 0;
}

void rs_core_free(struct rs_core *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->jobs.nr; i++)
		job_done(c->jobs.at[i]);
	sc_vec_done(&c->jobs);
	sc_map_done(&c->by_id);
	sc_vec_done(&c->members);
	sc_vec_done(&c->acts);
	sc_arena_done(&c->arena);
	sc_sys.release(c);
}
