/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps who this node is to the others, and for how long it may tell what it knows.
 *
 *	REVOKING -> GRANTING -> REGISTERING -> HELD -> (fence) -> REVOKING ...
 *
 * 1. An epoch is the revision that made nodes/<me>.  A new epoch begins with a lease of its own; the last lease is
 *    revoked first, and takes the proposal, `ready` and `low` of that life along.
 * 2. An age counts from the time when a request was sent, never from the time when its answer came.
 */
#include "reshard/cluster/protocol/core_i.h"

bool rs_core_serves(const struct rs_core *c, int64_t now, int64_t *ret_until)
{
	int64_t until = NS_MAX;

	if (!c->epoch || !c->active)
		return false;
	if (RULE(self_fence))
		until = c->renewed + c->config.times.fence;
	if (RULE(fresh_limited)) {
		if (!c->fresh)
			return false;
		if (c->fresh_at + c->config.times.fresh < until)
			until = c->fresh_at + c->config.times.fresh;
	}
	*ret_until = until;
	return now <= until;
}

bool rs_core_is_taken(const struct rs_core *c, int64_t now)
{
	return c->taken && now >= c->taken + 2 * c->config.times.ttl;
}

void rs_core_fence(struct rs_core *c)
{
	c->epoch = 0;
	c->active = false;
	c->fresh = c->tick_waits = false;
	c->is_keeper = false;
	c->lease_state = LEASE_REVOKING;
	for (enum slot s = SLOT_LEASE; s <= SLOT_KEEPER; s++)
		if (s != SLOT_SNAPSHOT)
			*rs_core_request(c, NULL, s) = (struct request){0};
}

/* --- registration --- */

static void ask_for_a_lease(struct rs_core *c)
{
	if (!rs_core_may_ask(c, NULL, SLOT_LEASE))
		return;
	if (c->lease) {
		c->lease_state = LEASE_REVOKING;
		rs_core_ask(c, RS_ACT_REVOKE, NULL, SLOT_LEASE);
	} else {
		c->lease_state = LEASE_GRANTING;
		rs_core_ask(c, RS_ACT_GRANT, NULL, SLOT_LEASE)->ttl = c->config.times.ttl;
	}
}

static void put_node(struct rs_core *c)
{
	struct meta_key key = rs_key_node(META_KEY_NODE, c->config.node);
	struct meta_txn *t = rs_txn_bare(c, NULL, SLOT_LEASE);
	struct meta_op *put;

	rs_txn_if(t, META_CREATE_IS, key, 0);
	put = rs_txn_put(t, key);
	put->value.node = c->config.self;
	put->lease = c->lease;
	c->lease_state = LEASE_REGISTERING;
}

static void lease_answer(struct rs_core *c, const struct request *was, const struct rs_event *e)
{
	struct request *r = rs_core_request(c, NULL, SLOT_LEASE);

	switch (c->lease_state) {
	case LEASE_REVOKING: /* refused: it is gone */
		if (e->outcome != META_UNKNOWN)
			c->lease = 0;
		return;
	case LEASE_GRANTING:
		if (e->outcome != META_APPLIED)
			return;
		c->lease = e->lease;
		c->granted = was->sent;
		rs_core_act(c, RS_ACT_KEEP_LEASE, NULL)->lease = c->lease;
		put_node(c);
		return;
	default:
		break;
	}
	if (e->outcome !=
	    META_APPLIED) { /* another life's key is there, or nobody knows: with the lease goes what it put */
		r->again = c->now + c->config.times.resend;
		if (e->outcome == META_REFUSED && !c->taken)
			c->taken = c->now;
		return;
	}
	c->lease_state = LEASE_HELD;
	c->taken = 0;
	c->epoch = e->revision;
	c->renewed = c->granted;
	c->low_put = 0;
	c->low_again = false;
}

static void registration_step(struct rs_core *c)
{
	const struct rs_core_times *t = &c->config.times;

	if (c->epoch && RULE(self_fence) && c->now >= c->renewed + t->fence)
		rs_core_fence(c);
	if (!c->epoch) {
		ask_for_a_lease(c);
		return;
	}
	if (RULE(self_fence))
		rs_core_wake_at(c, c->renewed + t->fence);
	if (c->now < c->renewed + t->renew)
		rs_core_wake_at(c, c->renewed + t->renew);
	else if (rs_core_may_ask(c, NULL, SLOT_KEEPALIVE))
		rs_core_ask(c, RS_ACT_KEEPALIVE, NULL, SLOT_KEEPALIVE);
}

/* --- freshness --- */

static void fresh_step(struct rs_core *c)
{
	const struct rs_core_times *t = &c->config.times;
	struct meta_txn *txn;

	if (c->tick_waits && c->position >= c->tick) {
		c->tick_waits = false;
		if (!c->fresh || c->tick_at > c->fresh_at)
			c->fresh_at = c->tick_at;
		c->fresh = true;
	}
	if (c->tick_waits && c->now < c->tick_at + t->fresh) {
		rs_core_wake_at(c, c->tick_at + t->fresh);
		return;
	}
	if (c->tick_waits && c->watching)
		rs_core_act(c, RS_ACT_REWATCH, NULL);
	c->tick_waits = false;
	if (!c->epoch || !c->watching || !rs_core_may_ask(c, NULL, SLOT_FRESH))
		return;
	txn = rs_txn(c, NULL, SLOT_FRESH);
	rs_txn_get(txn, (struct meta_key){.kind = META_KEY_TICK});
	rs_txn_get(txn, (struct meta_key){.kind = META_KEY_KEEPER});
	rs_txn_else_get(txn, rs_key_node(META_KEY_NODE, c->config.node));
}

static void fresh_answer(struct rs_core *c, const struct request *was, const struct rs_event *e)
{
	const struct meta_record *tick = rs_record(e, META_KEY_TICK), *keeper = rs_record(e, META_KEY_KEEPER);
	struct request *r = rs_core_request(c, NULL, SLOT_FRESH);

	if (e->outcome == META_REFUSED) { /* the registration has ended */
		rs_core_fence(c);
		return;
	}
	if (e->outcome == META_UNKNOWN)
		return;
	r->again = was->sent + c->config.times.fresh / 3;
	c->tick_waits = true;
	c->tick = tick ? tick->mod : 0;
	c->tick_at = RULE(fresh_from_start) ? was->sent : c->now;
	c->is_keeper = keeper && keeper->value.keeper.node == c->config.node && keeper->value.keeper.epoch == c->epoch;
	if (c->is_keeper)
		c->keeper_create = keeper->create;
	if (!keeper && rs_core_may_ask(c, NULL, SLOT_KEEPER)) {
		struct meta_txn *t = rs_txn(c, NULL, SLOT_KEEPER);
		struct meta_op *put;

		rs_txn_if(t, META_CREATE_IS, (struct meta_key){.kind = META_KEY_KEEPER}, 0);
		put = rs_txn_put(t, (struct meta_key){.kind = META_KEY_KEEPER});
		put->value.keeper = (struct meta_keeper_value){c->config.node, c->epoch};
		put->lease = c->lease;
	}
}

/* --- the list of members, by the keeper --- */

/* Reads which nodes are registered.  Any server of etcd may answer, though it lags: a list that is wrong for that is
 * refused. [members_true] */
static void keeper_step(struct rs_core *c)
{
	struct meta_txn *t;

	if (!c->epoch || !c->is_keeper || !c->watching || !rs_core_may_ask(c, NULL, SLOT_KEEPER))
		return;
	t = rs_txn_bare(c, NULL, SLOT_KEEPER);
	t->any_server = true;
	rs_txn_list(t, META_RANGE_NODES)->keys_only = true;
}

static const struct meta_record *registered(const struct rs_event *e, uint32_t node)
{
	for (uint32_t i = 0; i < e->nr_records; i++)
		if (e->records[i].key.kind == META_KEY_NODE && e->records[i].present && e->records[i].key.node == node)
			return &e->records[i];
	return NULL;
}

static void sort(struct meta_member *at, uint32_t nr)
{
	for (uint32_t i = 1; i < nr; i++) {
		struct meta_member m = at[i];
		uint32_t k = i;

		for (; k > 0 && at[k - 1].node > m.node; k--)
			at[k] = at[k - 1];
		at[k] = m;
	}
}

/* Fills `at` with the list as it should be.  Compares the nodes that it takes off in t, of which it takes off as many
 * as a transaction has room for. */
static uint32_t make_list(struct rs_core *c, const struct rs_event *e, struct meta_member *at, struct meta_txn *t,
			  bool *ret_changed)
{
	uint32_t nr = 0, off = 0;

	for (size_t i = 0; i < c->members.nr; i++) {
		const struct meta_member *m = &c->members.at[i];
		const struct meta_record *r = registered(e, m->node);

		if ((r && r->create == m->epoch) || off == META_TXN_NODES_MAX) {
			at[nr++] = *m;
			continue;
		}
		off++;
		*ret_changed = true;
		if (RULE(members_true) && t)
			rs_txn_if(t, META_CREATE_IS_NOT, rs_key_node(META_KEY_NODE, m->node), m->epoch);
	}
	for (uint32_t i = 0; i < e->nr_records && nr < META_MEMBERS_MAX; i++) {
		const struct meta_record *r = &e->records[i];
		bool is_listed = false;

		for (uint32_t k = 0; k < nr; k++)
			is_listed |= at[k].node == r->key.node;
		if (r->key.kind != META_KEY_NODE || !r->present || is_listed)
			continue;
		at[nr++] = (struct meta_member){r->key.node, r->create};
		*ret_changed = true;
	}
	sort(at, nr);
	return nr;
}

static void keeper_answer(struct rs_core *c, const struct request *was, const struct rs_event *e)
{
	struct request *r = rs_core_request(c, NULL, SLOT_KEEPER);
	struct meta_member *at;
	bool changed = false;
	struct meta_txn *t;
	struct meta_op *put;
	uint32_t nr;

	r->again = sc_max_u64((uint64_t)r->again, (uint64_t)(was->sent + c->config.times.keep));
	if (e->outcome != META_APPLIED || !c->is_keeper || e->nr_records == 0 ||
	    e->records[0].key.kind != META_KEY_NODE)
		return; /* of the transaction that made it keeper, or put the list */
	at = sc_arena_array(&c->arena, c->members.nr + e->nr_records, sizeof(*at));
	if (!at) {
		c->failed = true;
		return;
	}
	(void)make_list(c, e, at, NULL, &changed);
	if (!changed)
		return;
	t = rs_txn(c, NULL, SLOT_KEEPER);
	nr = make_list(c, e, at, t, &changed);
	rs_txn_if(t, META_MOD_IS, (struct meta_key){.kind = META_KEY_MEMBERS},
		  c->members_cell.present ? c->members_cell.mod : 0);
	rs_txn_if(t, META_CREATE_IS, (struct meta_key){.kind = META_KEY_KEEPER}, c->keeper_create);
	put = rs_txn_put(t, (struct meta_key){.kind = META_KEY_MEMBERS});
	put->value.members = (struct meta_members_value){nr, at};
	rs_txn_tick(t);
}

void rs_register_answer(struct rs_core *c, enum slot slot, const struct request *was, const struct rs_event *e)
{
	switch (slot) {
	case SLOT_LEASE:
		lease_answer(c, was, e);
		break;
	case SLOT_KEEPALIVE:
		if (e->outcome == META_APPLIED)
			c->renewed = was->sent;
		else if (e->outcome == META_REFUSED)
			rs_core_fence(c);
		break;
	case SLOT_FRESH:
		fresh_answer(c, was, e);
		break;
	default:
		keeper_answer(c, was, e);
	}
}

void rs_register_step(struct rs_core *c)
{
	registration_step(c);
	if (!c->watching && rs_core_may_ask(c, NULL, SLOT_SNAPSHOT))
		rs_core_ask(c, RS_ACT_SNAPSHOT, NULL, SLOT_SNAPSHOT);
	c->active = c->epoch && (!RULE(member_first) || rs_nodes_have(&c->members, c->config.node, c->epoch));
	fresh_step(c);
	keeper_step(c);
}
