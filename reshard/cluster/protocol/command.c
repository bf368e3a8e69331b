/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes a command of this node that makes a version through its phases, which struct command has.
 *
 * 1. One transaction is the atomic point: the commit.  It needs the proposal, so a proposal that is gone can't be
 *    committed any more, wherever the transaction is.
 * 2. A failure is reported once it is certain; until then the command goes on resolving, however long that takes.
 */
#include "reshard/cluster/protocol/core_i.h"

#include <string.h>

void rs_command_done(struct job *j)
{
	struct command *m = &j->command;

	sc_sys.release(m->homes);
	sc_vec_done(&m->acks);
	sc_vec_done(&m->hidden);
	sc_vec_done(&m->members);
	sc_sys.release(m->sets.at);
	*m = (struct command){0};
}

static void end(struct rs_core *c, struct job *j, int code)
{
	struct rs_act *a = rs_core_act(c, RS_ACT_DONE, j);

	a->token = j->command.token;
	a->nr = j->command.base + 1;
	a->code = code;
	rs_member_lift(c, j, j->command.token);
	rs_command_done(j);
}

static void fail(struct job *j, int code)
{
	if (!j->command.code)
		j->command.code = code;
	j->command.phase = PHASE_RESOLVING;
}

/* --- propose --- */

void rs_command_begin(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct command *m = &j->command;
	int64_t until;

	if (m->phase != PHASE_NONE || j->gate.state != GATE_NONE || j->proposal_cell.present ||
	    !rs_core_serves(c, c->now, &until) || j->head.nr != j->known || j->published != j->known) {
		struct rs_act *a = rs_core_act(c, RS_ACT_DONE, j);

		a->token = e->token;
		a->code = SC_E_BUSY;
		return;
	}
	*m = (struct command){.phase = PHASE_PROPOSING,
			      .token = e->token,
			      .base = j->known,
			      .change = e->change,
			      .record = e->record,
			      .deadline = c->now + e->deadline,
			      .allowed = e->deadline,
			      .nr_homes = e->nr_nodes,
			      .base_mod = j->head_cell.present ? j->head_cell.mod : 0};
	m->homes = sc_zalloc_array(e->nr_nodes ? e->nr_nodes : 1, sizeof(*m->homes));
	if (!m->homes) {
		c->failed = true;
		return;
	}
	for (uint32_t i = 0; i < e->nr_nodes; i++)
		m->homes[i] = e->nodes[i];
	*rs_core_request(c, j, SLOT_COMMAND) = (struct request){0};
}

static struct meta_value proposal_value(const struct rs_core *c, const struct command *m)
{
	return (struct meta_value){.kind = META_KEY_PROPOSAL,
				   .proposal = {m->token, c->config.node, c->epoch, m->base,
						(uint64_t)(m->allowed / 1000000000), m->change, m->record}};
}

static void propose(struct rs_core *c, struct job *j)
{
	struct meta_txn *t = rs_txn(c, j, SLOT_COMMAND);
	struct meta_op *put;

	rs_txn_if(t, META_CREATE_IS, rs_key(META_KEY_PROPOSAL, j, 0), 0);
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_HEAD, j, 0), j->command.base_mod);
	put = rs_txn_put(t, rs_key(META_KEY_PROPOSAL, j, 0));
	put->value = proposal_value(c, &j->command);
	put->lease = RULE(spec_leased) ? c->lease : 0;
	rs_txn_tick(t);
	rs_txn_else_get(t, rs_key(META_KEY_PROPOSAL, j, 0));
}

/* Notes that the proposal is this command's, since this revision.  It closes the gate at once. */
static void proposed(struct rs_core *c, struct job *j, uint64_t create)
{
	struct meta_record r = {rs_key(META_KEY_PROPOSAL, j, 0), true, create, create, proposal_value(c, &j->command)};

	j->command.create = create;
	j->command.phase = PHASE_PREPARING;
	if (create > c->position || !RULE(reads_ordered))
		rs_cells_take(c, &r);
}

static void propose_answer(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	const struct meta_record *p = rs_record(e, META_KEY_PROPOSAL);

	if (e->outcome == META_APPLIED)
		proposed(c, j, e->revision);
	else if (e->outcome == META_REFUSED && p && p->value.proposal.token == j->command.token)
		proposed(c, j, p->create); /* put by a request whose answer was lost */
	else if (e->outcome == META_REFUSED)
		end(c, j, SC_E_BUSY);
	else if (e->code)
		end(c, j, e->code); /* nothing of it comes later; if it is there, it is a stray */
}

/* --- prepare, commit --- */

void rs_command_message(struct rs_core *c, struct job *j, const struct rs_message *msg, uint32_t node, uint64_t epoch)
{
	struct command *m = &j->command;

	if (m->phase == PHASE_NONE)
		return;
	if (msg->kind == RS_MSG_HIDDEN && msg->nr == m->base + 1)
		rs_nodes_add(c, &m->hidden, node, epoch);
	if (msg->kind == RS_MSG_HIDDEN || msg->token != m->token)
		return;
	if (msg->kind == RS_MSG_PREPARED)
		rs_nodes_add(c, &m->acks, node, epoch);
	else if (m->phase == PHASE_PREPARING && rs_nodes_have(&c->members, node, epoch))
		fail(j, msg->code);
}

static bool home_has_prepared(const struct rs_core *c, const struct command *m, uint32_t home)
{
	for (size_t i = 0; i < c->members.nr; i++)
		if (c->members.at[i].node == home)
			return rs_nodes_have(&m->acks, home, c->members.at[i].epoch);
	return false;
}

static bool all_prepared(const struct rs_core *c, const struct job *j)
{
	const struct command *m = &j->command;

	if (!c->members.nr || c->position < m->wait || m->acks.nr < c->members.nr)
		return false; /* of 2,000 members all are looked at once, not for each answer */
	for (size_t i = 0; i < c->members.nr; i++)
		if (!rs_nodes_have(&m->acks, c->members.at[i].node, c->members.at[i].epoch))
			return false;
	for (uint32_t i = 0; i < m->nr_homes; i++)
		if (!home_has_prepared(c, m, m->homes[i]))
			return false;
	return true;
}

/* Gives the version whose storage this command's version takes over; NULL: it has its own, or there is none. */
static const struct store_cell *taken_over(const struct job *j, const struct rs_event *e)
{
	switch (j->command.change) {
	case META_BY_COMMIT:
		return NULL;
	case META_BY_ROLLBACK:
		return rs_store_in(j, e->nr_sets, e->sets);
	default:
		return rs_store_of(j, j->command.base);
	}
}

/* Puts the storage of a version: its own sets, those of its base, or those of the version that it goes back to. */
static void put_store(struct rs_core *c, struct job *j, struct meta_txn *t, const struct rs_event *e)
{
	const struct store_cell *base = rs_store_of(j, j->command.base), *from = taken_over(j, e);
	struct meta_op *put = rs_txn_put(t, rs_key(META_KEY_STORE, j, j->command.base + 1));
	struct command *m = &j->command;
	struct sets *sets = &m->sets;

	if (m->change == META_BY_COMMIT)
		rs_sets_copy(c, sets, e->nr_sets, e->sets);
	else
		rs_sets_copy(c, sets, from ? from->sets.nr : 0, from ? from->sets.at : NULL);
	for (uint32_t i = 0; m->change == META_BY_COMMIT && i < sets->nr; i++)
		sets->at[i].token = m->token;
	if (m->change == META_BY_COMMIT)
		m->settled = !(RULE(presented_unsettled) && e->presented);
	else
		m->settled = m->change == META_BY_ROLLBACK && from && from->settled;
	put->value.store = (struct meta_store_value){sets->nr, sets->at, m->settled};
	if (RULE(store_compared) && base)
		rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_STORE, j, base->nr), base->cell.mod);
	if (from && from != base)
		rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_STORE, j, from->nr), from->cell.mod);
}

/* Removes what nodes have said of the base, ready and kept, as nobody asks for it any more.  A list that came after the
 * commit of the base goes with the next commit. */
static void clear_reports(struct meta_txn *t, const struct job *j, uint64_t base)
{
	rs_txn_clear(t, META_RANGE_READY, rs_key(META_KEY_READY, j, base));
	rs_txn_clear(t, META_RANGE_KEPT, rs_key(META_KEY_KEPT, j, base));
	if (base > 1)
		rs_txn_clear(t, META_RANGE_KEPT, rs_key(META_KEY_KEPT, j, base - 1));
}

static void commit(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct command *m = &j->command;
	struct meta_txn *t = rs_txn(c, j, SLOT_COMMAND);
	uint64_t nr = m->base + 1;
	struct meta_op *put;

	if (RULE(spec_compared))
		rs_txn_if(t, META_CREATE_IS, rs_key(META_KEY_PROPOSAL, j, 0), m->create);
	if (RULE(head_compared))
		rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_HEAD, j, 0), j->command.base_mod);
	if (RULE(members_compared))
		rs_txn_if(t, META_MOD_IS, (struct meta_key){.kind = META_KEY_MEMBERS}, c->members_cell.mod);
	if (RULE(sweep_compared))
		rs_txn_if(t, META_MOD_IS, (struct meta_key){.kind = META_KEY_SWEEP}, e->sweep);
	put = rs_txn_put(t, rs_key(META_KEY_HEAD, j, 0));
	put->value.head =
	    (struct meta_head_value){nr, m->token, c->members_cell.mod, e->record, c->config.node, c->epoch};
	put = rs_txn_put(t, rs_key(META_KEY_VERSION, j, nr));
	put->value.version = e->version;
	put->value.version.topology = rs_core_text(c, e->version.topology);
	put->value.version.note = rs_core_text(c, e->version.note);
	put->value.version.parent = m->base;
	put->value.version.token = m->token;
	put->value.version.change = m->change;
	put_store(c, j, t, e);
	rs_txn_delete(t, rs_key(META_KEY_PROPOSAL, j, 0));
	rs_txn_tick(t);
	clear_reports(t, j, m->base);
	rs_txn_else_get(t, rs_key(META_KEY_PROPOSAL, j, 0));
	rs_txn_else_get(t, rs_key_node(META_KEY_NODE, c->config.node));
	m->phase = PHASE_COMMITTING;
	m->record = e->record;
	rs_nodes_copy(c, &m->members, &c->members);
}

void rs_command_composed(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct command *m = &j->command;

	if (m->phase != PHASE_COMPOSING || m->token != e->token)
		return;
	m->phase = PHASE_PREPARING;
	if (e->code)
		fail(j, e->code);
	else if (e->members && e->members != c->members_cell.mod)
		return; /* a member that has come since then may have files of its own: it is made again */
	else if (c->epoch && all_prepared(c, j) && rs_core_may_ask(c, j, SLOT_COMMAND))
		commit(c, j, e);
}

static void committed(struct rs_core *c, struct job *j)
{
	j->command.phase = PHASE_COMMITTED;
	j->command.committed = c->now;
	rs_member_lift(c, j, j->command.token);
}

/* Takes the commit, which was applied at this revision: the node knows of it before its watch does. */
static void applied(struct rs_core *c, struct job *j, uint64_t revision)
{
	struct command *m = &j->command;
	struct meta_record store = {
	    rs_key(META_KEY_STORE, j, m->base + 1), true, revision, revision, {.kind = META_KEY_STORE}};
	struct meta_record head = {rs_key(META_KEY_HEAD, j, 0), true, revision, revision, {.kind = META_KEY_HEAD}};
	struct meta_record gone = {rs_key(META_KEY_PROPOSAL, j, 0), false, 0, revision, {.kind = META_KEY_PROPOSAL}};

	store.value.store = (struct meta_store_value){m->sets.nr, m->sets.at, m->settled};
	head.value.head =
	    (struct meta_head_value){m->base + 1, m->token, c->members_cell.mod, m->record, c->config.node, c->epoch};
	if (revision > c->position || !RULE(reads_ordered)) {
		rs_cells_take(c, &store);
		rs_cells_take(c, &head);
		rs_cells_take(c, &gone);
	}
	m->head_mod = revision;
	rs_member_step(c, j); /* seal, hide, then lift */
	committed(c, j);
}

static void commit_answer(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	const struct meta_record *p = rs_record(e, META_KEY_PROPOSAL), *node = rs_record(e, META_KEY_NODE);
	struct command *m = &j->command;

	if (e->outcome == META_REFUSED && RULE(epoch_compared) && (!node || node->create != c->epoch) && c->epoch)
		rs_core_fence(c);
	if (e->outcome == META_APPLIED) {
		applied(c, j, e->revision);
	} else if (e->outcome == META_UNKNOWN) {
		m->phase = PHASE_RESOLVING;
		m->code = e->code ? e->code : SC_E_SYSTEM;
		if (!RULE(error_unknown))
			end(c, j, SC_E_SYSTEM);
	} else if (p &&
		   p->create == m->create) { /* members or storage have changed: once more, when that is known here */
		m->phase = PHASE_PREPARING;
		m->wait = e->revision;
	} else {
		fail(j, SC_E_CANCELLED);
	}
}

/* --- resolve --- */

/* Puts the tick, too, unless etcd is out of space: then only what puts nothing is done, as when a lease ends. */
static void remove_proposal(struct meta_txn *t, const struct job *j, bool is_full)
{
	rs_txn_delete(t, rs_key(META_KEY_PROPOSAL, j, 0));
	if (!is_full)
		rs_txn_tick(t);
}

/* Removes the proposal, or reads what became of it: the token of its version, in the head or in the version's
 * record. */
static void resolve(struct rs_core *c, struct job *j)
{
	struct command *m = &j->command;
	bool remove = RULE(spec_removed_first) && c->epoch;
	struct meta_txn *t = remove ? rs_txn(c, j, SLOT_COMMAND) : rs_txn_bare(c, j, SLOT_COMMAND);

	if (!RULE(spec_removed_first)) {
		rs_txn_get(t, rs_key(META_KEY_HEAD, j, 0));
		rs_txn_get(t, rs_key(META_KEY_VERSION, j, m->base + 1));
		return;
	}
	rs_txn_if(t, META_CREATE_IS, rs_key(META_KEY_PROPOSAL, j, 0), m->create);
	if (remove) {
		remove_proposal(t, j, m->full);
	} else {
		rs_txn_get(t, rs_key(META_KEY_PROPOSAL, j, 0));
	}
	rs_txn_else_get(t, rs_key(META_KEY_PROPOSAL, j, 0));
	rs_txn_else_get(t, rs_key(META_KEY_HEAD, j, 0));
	rs_txn_else_get(t, rs_key(META_KEY_VERSION, j, m->base + 1));
}

static void resolve_answer(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	const struct meta_record *p = rs_record(e, META_KEY_PROPOSAL), *h = rs_record(e, META_KEY_HEAD),
				 *v = rs_record(e, META_KEY_VERSION);
	struct command *m = &j->command;

	m->full = e->outcome == META_UNKNOWN && e->code;
	if (e->outcome == META_UNKNOWN)
		return;
	if ((h && h->value.head.token == m->token) || (v && v->value.version.token == m->token))
		committed(c, j);
	else if (p && p->create == m->create) /* it stands, and can't be removed before this node is registered again */
		rs_core_request(c, j, SLOT_COMMAND)->again = c->now + c->config.times.resend;
	else if (h && h->value.head.nr > m->base + 1 && !v) /* retention has removed the only record of who made it */
		end(c, j, SC_E_STALE);
	else
		end(c, j, m->code ? m->code : SC_E_CANCELLED);
}

/* --- shown --- */

static bool all_hidden(const struct command *m, uint32_t me)
{
	size_t nr = 0, others = 0;

	if (RULE(barrier_all) && m->hidden.nr + 1 < m->members.nr)
		return false;
	for (size_t i = 0; i < m->members.nr; i++) {
		if (m->members.at[i].node == me)
			continue;
		others++;
		nr += rs_nodes_have(&m->hidden, m->members.at[i].node, m->members.at[i].epoch);
	}
	if (!RULE(barrier_all))
		return nr + 1 > (others + 1) / 2;
	return m->members.nr && nr == others;
}

/* Ends a command that is committed, when nobody shows its base any more. */
static void shown_step(struct rs_core *c, struct job *j)
{
	struct command *m = &j->command;
	bool is_head = j->known == m->base + 1;
	struct meta_txn *t;

	if (j->known <= m->base || !j->hidden)
		return; /* its watch is behind, or its own hide */
	/* a commit whose answer was lost does not know its members: they tell, or WAIT ends */
	if (j->shown <= m->base && c->now < j->learned + c->wait && !all_hidden(m, c->config.node) && RULE(barrier)) {
		rs_core_wake_at(c, j->learned + c->wait);
		return;
	}
	if (is_head && j->shown < j->known) {
		j->shown = j->known; /* this node shows it now, the others when they learn of it */
		if (c->epoch && rs_core_may_ask(c, j, SLOT_SHOWN)) {
			t = rs_txn(c, j, SLOT_SHOWN);
			rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_HEAD, j, 0), j->head_cell.mod);
			rs_txn_put(t, rs_key(META_KEY_SHOWN, j, 0))->value.number.nr = j->known;
			rs_txn_tick(t);
		}
	}
	end(c, j, 0);
}

/* --- a proposal of this node that no command of it has: of a request whose answer was lost --- */

static void stray_step(struct rs_core *c, struct job *j)
{
	struct meta_txn *t;

	if (!j->proposal_cell.present || j->proposal.node != c->config.node || !c->epoch ||
	    (j->command.phase != PHASE_NONE && j->command.token == j->proposal.token) ||
	    !rs_core_may_ask(c, j, SLOT_STRAY))
		return;
	t = rs_txn(c, j, SLOT_STRAY);
	rs_txn_if(t, META_CREATE_IS, rs_key(META_KEY_PROPOSAL, j, 0), j->proposal_cell.create);
	remove_proposal(t, j, j->stray_full);
}

void rs_command_answer(struct rs_core *c, struct job *j, enum slot slot, const struct rs_event *e)
{
	if (slot != SLOT_COMMAND) {
		if (slot == SLOT_STRAY) {
			rs_core_request(c, j, slot)->again = c->now + c->config.times.resend;
			j->stray_full = e->outcome == META_UNKNOWN && e->code;
		}
		return;
	}
	switch (j->command.phase) {
	case PHASE_PROPOSING:
		propose_answer(c, j, e);
		break;
	case PHASE_COMMITTING:
		commit_answer(c, j, e);
		break;
	case PHASE_RESOLVING:
		resolve_answer(c, j, e);
		break;
	default:
		break;
	}
}

static bool stands_at(const struct job *j, uint64_t create)
{
	return j->proposal_cell.present && j->proposal_cell.create == create;
}

static void preparing_step(struct rs_core *c, struct job *j)
{
	struct command *m = &j->command;
	struct rs_act *a;

	if (!stands_at(j, m->create) || c->now >= m->deadline) {
		fail(j, stands_at(j, m->create) ? SC_E_BUSY : SC_E_CANCELLED);
		return;
	}
	rs_core_wake_at(c, m->deadline);
	if (j->gate.token == m->token && j->gate.state == GATE_REFUSED && j->gate.code) {
		fail(j, j->gate.code);
		return;
	}
	if (j->gate.token == m->token && j->gate.state == GATE_PREPARED && c->active)
		rs_nodes_add(c, &m->acks, c->config.node, c->epoch);
	if (m->phase != PHASE_PREPARING || !c->epoch || !all_prepared(c, j) || !rs_core_may_ask(c, j, SLOT_COMMAND))
		return;
	m->phase = PHASE_COMPOSING;
	a = rs_core_act(c, RS_ACT_COMPOSE, j);
	a->token = m->token;
	a->base = m->base;
	a->change = m->change;
}

void rs_command_step(struct rs_core *c, struct job *j)
{
	struct command *m = &j->command;

	stray_step(c, j);
	switch (m->phase) {
	case PHASE_PROPOSING: /* no commit of it is on its way: it may fail at once, and leave a stray */
		if (!c->epoch || c->now >= m->deadline)
			end(c, j, SC_E_CANCELLED);
		else if (rs_core_may_ask(c, j, SLOT_COMMAND))
			propose(c, j);
		break;
	case PHASE_PREPARING:
	case PHASE_COMPOSING:
		preparing_step(c, j);
		break;
	case PHASE_COMMITTED:
		shown_step(c, j);
		break;
	default:
		break;
	}
	if (m->phase == PHASE_RESOLVING && rs_core_may_ask(c, j, SLOT_COMMAND))
		resolve(c, j);
}
