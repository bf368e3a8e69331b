/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does what a member does about proposals and heads, its own included.
 *
 * 1. A member goes in this order: gate, check, row on stable storage, answer.  The gate stays until etcd tells the
 *    outcome.
 * 2. When a member learns a head, it hides older versions first, and only then tells anybody so.
 * 3. A row (token, base) is resolved before its files are touched: they are version base + 1, or still uncommitted.
 */
#include "reshard/cluster/protocol/core_i.h"

static bool stands(const struct job *j, uint64_t token)
{
	return j->proposal_cell.present && j->proposal.token == token;
}

/* --- outcomes --- */

/* Lifts the gate of a command whose outcome is known. */
void rs_member_lift(struct rs_core *c, struct job *j, uint64_t token)
{
	if (j->gate.state == GATE_NONE)
		return;
	if (j->gate.token != token) {
		if (!RULE(gate_by_command))
			rs_core_act(c, RS_ACT_UNGATE, j)->token = j->gate.token;
		return;
	}
	if (RULE(gate))
		rs_core_act(c, RS_ACT_UNGATE, j)->token = j->gate.token;
	j->gate = (struct gate){0};
}

static void resolve_row(struct rs_core *c, struct job *j, uint64_t sealed_as)
{
	struct rs_act *a = rs_core_act(c, sealed_as ? RS_ACT_SEAL : RS_ACT_FORGET, j);

	a->token = j->prepared;
	a->nr = sealed_as;
	j->prepared = 0;
}

static void outcome_step(struct rs_core *c, struct job *j)
{
	if (!c->position)
		return;
	if (j->prepared && !stands(j, j->prepared)) {
		/* a version whose record retention has removed may have left its storage to later ones */
		bool is_made = j->head.token == j->prepared || rs_set_made(j, j->prepared);

		resolve_row(c, j, is_made ? j->prepared_base + 1 : 0);
	}
	if (j->aside_due && !j->prepared) {
		j->aside_due = false;
		rs_core_act(c, RS_ACT_ASIDE, j)->nr = j->known;
	}
	if (j->gate.state != GATE_NONE && !stands(j, j->gate.token) && j->prepared != j->gate.token)
		rs_member_lift(c, j, j->gate.token);
	if (!RULE(gate_until_known) && j->gate.state == GATE_PREPARED && j->proposal.node != c->config.node &&
	    c->now > j->gate.since + c->config.times.fresh) {
		if (j->prepared == j->gate.token)
			resolve_row(c, j, 0);
		rs_core_act(c, RS_ACT_UNGATE, j)->token = j->gate.token;
		j->gate.state = GATE_WRITING; /* it has answered, and goes on without a gate */
	}
}

/* --- prepare --- */

static void begin_gate(struct rs_core *c, struct job *j)
{
	struct rs_act *a;

	j->gate = (struct gate){
	    .state = GATE_CHECKING, .token = j->proposal.token, .base = j->proposal.base, .since = c->now};
	if (RULE(gate))
		rs_core_act(c, RS_ACT_GATE, j)->token = j->gate.token;
	a = rs_core_act(c, RS_ACT_CHECK, j);
	a->token = j->gate.token;
	a->base = j->gate.base;
	a->change = j->proposal.change;
}

static void checked(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct rs_act *a;

	if (j->gate.state != GATE_CHECKING || j->gate.token != e->token || !stands(j, e->token))
		return;
	j->gate.state = GATE_PREPARED;
	if (e->code)
		j->gate = (struct gate){GATE_REFUSED, e->token, j->gate.base, j->gate.since, 0, e->code};
	else if (j->proposal.change != META_BY_COMMIT && e->dirty && RULE(dirty_refuses))
		j->gate = (struct gate){GATE_REFUSED, e->token, j->gate.base, j->gate.since, 0, SC_E_BUSY};
	else if (j->proposal.change == META_BY_COMMIT && RULE(prepared_durable)) {
		a = rs_core_act(c, RS_ACT_PREPARE, j);
		a->token = j->prepared = e->token;
		a->base = j->prepared_base = j->gate.base;
		j->gate.state = GATE_WRITING;
	} else if (j->proposal.change == META_BY_COMMIT) {
		j->prepared = e->token;
		j->prepared_base = j->gate.base;
	}
}

static void answer_proposer(struct rs_core *c, struct job *j)
{
	struct rs_message m = {j->gate.code ? RS_MSG_REFUSED : RS_MSG_PREPARED, j->id, j->gate.token, 0, j->gate.code};
	struct rs_act *a;

	if (!c->active || !stands(j, j->gate.token) || j->proposal.node == c->config.node)
		return; /* the proposer itself looks at its gate */
	if (c->now < j->gate.resend) {
		rs_core_wake_at(c, j->gate.resend);
		return;
	}
	j->gate.resend = c->now + c->config.times.resend;
	rs_core_wake_at(c, j->gate.resend);
	a = rs_core_act(c, RS_ACT_SEND, j);
	a->node = (uint32_t)j->proposal.node;
	a->epoch = c->epoch;
	a->message = m;
	if (!RULE(hidden_honest)) {
		a = rs_core_act(c, RS_ACT_SEND, j);
		a->node = (uint32_t)j->proposal.node;
		a->epoch = c->epoch;
		a->message = (struct rs_message){RS_MSG_HIDDEN, j->id, 0, j->gate.base + 1, 0};
	}
}

static void prepare_step(struct rs_core *c, struct job *j)
{
	if (!j->proposal_cell.present || j->proposal.base != j->head.nr || j->known != j->head.nr)
		return;
	/* a row of a life before whose gate this is: the proposal stands, so it is checked anew */
	if (j->gate.token == j->proposal.token && j->gate.state == GATE_REFUSED && !j->gate.code)
		j->gate.state = GATE_NONE;
	if (j->gate.state == GATE_NONE)
		begin_gate(c, j);
	else if (j->gate.token == j->proposal.token &&
		 (j->gate.state == GATE_PREPARED || j->gate.state == GATE_REFUSED))
		answer_proposer(c, j);
}

/* --- heads --- */

static void hide(struct rs_core *c, struct job *j)
{
	struct rs_act *a;

	j->hidden = false;
	j->published = 0;
	j->say_hidden = 0;
	a = rs_core_act(c, RS_ACT_HIDE, j);
	a->nr = j->known;
	a->token = j->head.token;
}

/* Begins another life of the node, which does not know from before what others show. [relearn] */
void rs_member_relearn(struct rs_core *c, struct job *j)
{
	j->gate.resend = 0;
	if (!RULE(relearn))
		return;
	j->learned = c->now;
	if (j->published && j->shown < j->known)
		hide(c, j);
}

static void learn(struct rs_core *c, struct job *j)
{
	if (j->head.nr <= j->known)
		return;
	j->known = j->head.nr;
	j->learned = c->now;
	j->aside_due = true;
	hide(c, j);
	rs_bytes_learn(c, j);
}

static void tell_hidden(struct rs_core *c, struct job *j)
{
	struct rs_act *a;

	if (!c->active || j->head.nr != j->known || j->shown >= j->known || j->head.node == c->config.node)
		return;
	if (c->now >= j->say_hidden) {
		j->say_hidden = c->now + c->config.times.resend;
		a = rs_core_act(c, RS_ACT_SEND, j);
		a->node = (uint32_t)j->head.node;
		a->epoch = c->epoch;
		a->message = (struct rs_message){RS_MSG_HIDDEN, j->id, 0, j->known, 0};
	}
	rs_core_wake_at(c, j->say_hidden);
}

static void show_step(struct rs_core *c, struct job *j)
{
	if (!j->known || !j->hidden || j->published == j->known)
		return;
	if (j->shown < j->known && c->now < j->learned + c->wait && RULE(barrier)) {
		rs_core_wake_at(c, j->learned + c->wait);
		tell_hidden(c, j);
		return;
	}
	j->published = j->known;
	rs_core_act(c, RS_ACT_SHOW, j)->nr = j->known;
}

void rs_member_event(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	switch (e->kind) {
	case RS_EV_CHECKED:
		checked(c, j, e);
		break;
	case RS_EV_PREPARED:
		if (j->gate.state == GATE_WRITING && j->gate.token == e->token && j->prepared == e->token)
			j->gate = (struct gate){e->code ? GATE_REFUSED : GATE_PREPARED, e->token, j->gate.base,
						j->gate.since, 0, e->code};
		break;
	default:
		if (e->nr == j->known)
			j->hidden = true;
	}
}

void rs_member_step(struct rs_core *c, struct job *j)
{
	learn(c, j);
	outcome_step(c, j);
	prepare_step(c, j);
	show_step(c, j);
}
