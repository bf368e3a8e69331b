/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the steps of a version's storage (pull, ready, settle, retire), and says when files of a set that nothing names
 * may go.
 *
 * 1. A node is ready when its files are on disk; a version is settled when all destinations are ready.
 * 2. A set dies with the last storage that names it.  Its files go when every member has said, by its low-water mark,
 * that it knows of the death and reads nothing of the set.
 * 3. Nothing is removed because the catalog remembers so: etcd is asked first.
 * 4. A storage that is made of what nodes keep has no name before etcd has it, and RS_EV_HAVE does not tell of it
 *    before: so a set that a node has said it keeps (ready) cannot be dead while the head may still be stored in it.
 */
#include "reshard/cluster/protocol/core_i.h"

#include <string.h>

/* --- local facts --- */

static void take_place(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	if (e->nr < j->known)
		return;
	j->placed = e->nr;
	j->destinations.nr = 0;
	for (uint32_t i = 0; i < e->nr_nodes; i++)
		rs_nodes_add(c, &j->destinations, e->nodes[i], 0);
	rs_sets_copy(c, &j->future, e->nr_sets, e->sets);
	j->placed_sweep = e->sweep;
	j->kept.nr = 0;
	for (uint32_t i = 0; e->files && i < e->nr_nodes; i++)
		c->failed |= sc_vec_push(&j->kept, e->files[i]) < 0;
}

static void take_bytes(struct job *j, const struct rs_event *e)
{
	if (e->nr != j->known)
		return;
	j->landed = e->landed;
	j->on_disk = e->on_disk;
	if (memcmp(&j->files, &e->set, sizeof(j->files)) != 0)
		j->ready_epoch = 0; /* it keeps other files than it has said */
	j->files = e->set;
}

void rs_bytes_event(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct set_fact *f;

	switch (e->kind) {
	case RS_EV_PLACED:
		take_place(c, j, e);
		break;
	case RS_EV_BYTES:
		take_bytes(j, e);
		break;
	case RS_EV_HAVE:
		rs_facts_set(c, &j->have, &e->set, e->on);
		rs_sets_sweep(c, j);
		break;
	case RS_EV_USING:
		rs_facts_set(c, &j->using, &e->set, e->on);
		f = rs_facts_find(&j->using, &e->set);
		c->low_again |= !f && !rs_set_named(j, &e->set);
		break;
	case RS_EV_KEEP:
		j->keep = (uint32_t)e->nr;
		break;
	case RS_EV_SEEN:
		j->seen = sc_max_u64(j->seen, e->revision);
		break;
	default:
		break;
	}
}

void rs_bytes_learn(struct rs_core *c, struct job *j)
{
	j->landed = j->on_disk = j->told_early = false;
	j->ready_epoch = 0;
	rs_sets_sweep(c, j);
	rs_store_tell(c, j);
	rs_core_act(c, RS_ACT_PULL, j)->nr = j->known;
}

/* --- ready, settle --- */

static void ready_step(struct rs_core *c, struct job *j, const struct store_cell *s)
{
	struct meta_key key = rs_key(META_KEY_READY, j, j->known);
	struct meta_op *put;
	struct meta_txn *t;

	if (!c->epoch || s->settled || j->ready_epoch == c->epoch ||
	    !(j->on_disk || (!RULE(ready_durable) && j->landed)) || !rs_core_may_ask(c, j, SLOT_READY))
		return;
	key.node = c->config.node;
	t = rs_txn(c, j, SLOT_READY);
	/* the next commit clears these keys */
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_HEAD, j, 0), j->head_cell.mod);
	put = rs_txn_put(t, key);
	put->value.ready.epoch = c->epoch;
	put->value.ready.files = j->files;
	put->lease = RULE(ready_epoch) ? c->lease : 0;
	j->ready_epoch = c->epoch;
}

static bool is_caretaker(struct rs_core *c, const struct job *j)
{
	int64_t at = j->learned + c->config.times.care;

	if (j->head.node == c->config.node && j->head.epoch == c->epoch)
		return true;
	if (c->is_keeper && c->now < at)
		rs_core_wake_at(c, at);
	return c->is_keeper && c->now >= at;
}

/* Begins to settle a version: reads which nodes are ready and registered; settle_answer() then puts that it is
 * settled. */
static void settle_step(struct rs_core *c, struct job *j, const struct store_cell *s)
{
	struct meta_op *list;
	struct meta_txn *t;

	if (!c->epoch || s->settled || !is_caretaker(c, j) || !rs_core_may_ask(c, j, SLOT_SETTLE))
		return;
	t = rs_txn_bare(c, j, SLOT_SETTLE);
	list = rs_txn_list(t, META_RANGE_READY);
	list->key = (struct meta_key){.kind = META_KEY_READY, .job = j->id, .nr = j->known};
	list = rs_txn_list(t, META_RANGE_NODES);
	list->keys_only = true;
	rs_txn_get(t, rs_key(META_KEY_STORE, j, j->known));
}

/* Gives the registration in whose life a node is ready, and in *ret_files what it keeps; 0: the node is not ready. */
static uint64_t ready_in(const struct rs_event *e, uint32_t node, struct meta_hash *ret_files)
{
	uint64_t ready = 0, registered = 0;

	for (uint32_t i = 0; i < e->nr_records; i++) {
		const struct meta_record *r = &e->records[i];

		if (r->key.node != node || !r->present)
			continue;
		if (r->key.kind == META_KEY_READY) {
			ready = r->value.ready.epoch;
			*ret_files = r->value.ready.files;
		} else if (r->key.kind == META_KEY_NODE) {
			registered = r->create;
		}
	}
	return ready == registered || !RULE(ready_epoch) ? ready : 0;
}

/* Asks, once all members are ready, to make what they keep the storage. */
static void ask_place(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	struct rs_keep *keep = sc_arena_array(&c->arena, c->members.nr + 1, sizeof(*keep));
	struct request *r = rs_core_request(c, j, SLOT_SETTLE);
	struct rs_act *a;

	if (c->now >= j->learned + 4 * c->config.times.care) /* a node may have nothing for long */
		r->again = c->now + c->config.times.care;
	c->failed |= !keep;
	for (size_t i = 0; keep && i < c->members.nr; i++) {
		keep[i].node = c->members.at[i].node;
		if (ready_in(e, keep[i].node, &keep[i].files) != c->members.at[i].epoch)
			return;
	}
	r->again = c->now + c->config.times.care;
	a = rs_core_act(c, RS_ACT_PLACE, j);
	a->nr = j->known;
	a->nr_keep = (uint32_t)c->members.nr;
	a->keep = keep;
}

/* Counts the destinations that are ready; one that keeps other files than the storage is made of is not. */
static size_t count_ready(const struct job *j, const struct rs_event *e)
{
	struct meta_hash files;
	size_t ready = 0;

	for (size_t i = 0; i < j->destinations.nr; i++)
		ready += ready_in(e, j->destinations.at[i].node, &files) != 0 &&
			 (!j->kept.nr || memcmp(&files, &j->kept.at[i], sizeof(files)) == 0);
	return ready;
}

/* Gives the token of the command that made a set: a set that stays in the storage has it already. */
static uint64_t token_of(const struct job *j, const struct meta_value *store, const struct meta_hash *set)
{
	for (uint32_t i = 0; i < store->store.nr; i++)
		if (memcmp(&store->store.at[i].set, set, sizeof(*set)) == 0)
			return store->store.at[i].token;
	return j->head.token;
}

/* Tells whether a sweep was announced since the new storage was made of what nodes keep: it may remove objects that
 * this names. */
static bool is_swept(const struct rs_core *c, const struct job *j)
{
	return RULE(sweep_compared) && j->kept.nr &&
	       j->placed_sweep != (c->sweep_cell.present ? c->sweep_cell.mod : 0);
}

static void settle_answer(struct rs_core *c, struct job *j, const struct rs_event *e)
{
	const struct meta_record *store = rs_record(e, META_KEY_STORE);
	struct request *r = rs_core_request(c, j, SLOT_SETTLE);
	struct meta_hash ignored;
	struct meta_op *put;
	struct meta_txn *t;
	size_t ready = 0;

	r->again = c->now + c->config.times.resend;
	if (e->outcome != META_APPLIED || !store || store->key.nr != j->known || !c->epoch)
		return;
	if (j->placed == j->known)
		ready = count_ready(j, e);
	if (j->placed != j->known || (j->kept.nr && ready < j->destinations.nr) || is_swept(c, j)) {
		j->placed = 0;
		ask_place(c, j, e);
		return;
	}
	if (ready < j->destinations.nr && (RULE(settle_all) || ready == 0))
		return;
	t = rs_txn(c, j, SLOT_SETTLE);
	/* a head that has moved on took this storage over: its files would have no name */
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_HEAD, j, 0), j->head_cell.mod);
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_STORE, j, j->known), store->mod);
	if (RULE(sweep_compared) && j->kept.nr)
		rs_txn_if(t, META_MOD_IS, (struct meta_key){.kind = META_KEY_SWEEP}, j->placed_sweep);
	for (size_t i = 0; RULE(ready_epoch) && RULE(settle_all) && i < j->destinations.nr && i < META_TXN_NODES_MAX;
	     i++)
		rs_txn_if(t, META_CREATE_IS, rs_key_node(META_KEY_NODE, j->destinations.at[i].node),
			  ready_in(e, j->destinations.at[i].node, &ignored));
	put = rs_txn_put(t, rs_key(META_KEY_STORE, j, j->known));
	for (uint32_t i = 0; i < j->future.nr; i++)
		j->future.at[i].token = token_of(j, &store->value, &j->future.at[i].set);
	put->value.store = (struct meta_store_value){j->future.nr, j->future.at, true};
	rs_txn_tick(t);
}

/* --- retire --- */

static bool is_tagged(const struct job *j, uint64_t nr)
{
	for (size_t i = 0; i < j->tags.nr; i++)
		if (j->tags.at[i].cell.present && j->tags.at[i].nr == nr)
			return true;
	return false;
}

/* Retires the oldest version without a tag, unless something has changed below all/ that is not known here: it may be a
 * tag.  The version's record stays: a node that was away learns by it what became of what it had prepared. */
static void retire_step(struct rs_core *c, struct job *j)
{
	const struct store_cell *first = NULL;
	struct meta_txn *t;
	uint32_t nr = 0;

	if (!j->keep || j->stores.nr <= j->keep || !c->epoch || !c->tick_mod || !is_caretaker(c, j) ||
	    !rs_core_may_ask(c, j, SLOT_RETIRE))
		return;
	for (size_t i = 0; i < j->stores.nr; i++) {
		if (is_tagged(j, j->stores.at[i].nr))
			continue;
		nr++;
		if (!first || j->stores.at[i].nr < first->nr)
			first = &j->stores.at[i];
	}
	if (nr <= j->keep || first->nr >= j->known)
		return;
	t = rs_txn(c, j, SLOT_RETIRE);
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_TICK, NULL, 0), c->tick_mod);
	rs_txn_if(t, META_MOD_IS, rs_key(META_KEY_STORE, j, first->nr), first->cell.mod);
	rs_txn_delete(t, rs_key(META_KEY_STORE, j, first->nr));
	rs_txn_tick(t);
}

void rs_bytes_step(struct rs_core *c, struct job *j)
{
	const struct store_cell *s = rs_store_of(j, j->known);

	if (s && c->position) {
		ready_step(c, j, s);
		settle_step(c, j, s);
	}
	retire_step(c, j);
	if (!RULE(delete_after_settle) && s && !s->settled && j->on_disk && !j->told_early) {
		j->told_early = true;
		for (uint32_t i = 0; i < s->sets.nr; i++)
			if (rs_facts_find(&j->have, &s->sets.at[i].set))
				rs_core_act(c, RS_ACT_DELETE, j)->set = s->sets.at[i].set;
	}
}

/* --- low-water, delete --- */

static bool list_uses(const struct rs_core *c, struct meta_hash *at, uint32_t *ret_nr)
{
	uint32_t nr = 0;

	for (size_t i = 0; i < c->jobs.nr; i++)
		for (size_t k = 0; k < c->jobs.at[i]->using.nr; k++) {
			if (rs_set_named(c->jobs.at[i], &c->jobs.at[i]->using.at[k].set))
				continue;
			if (nr == META_USES_MAX)
				return false;
			at[nr++] = c->jobs.at[i]->using.at[k].set;
		}
	*ret_nr = nr;
	return true;
}

/* Gives the mark as it may be: of a job of which something dead is read still, what died up to `seen` is not.  Where
 * versions die all the time something always is, so the mark does not wait for all of it. */
static uint64_t low_mark(const struct rs_core *c)
{
	uint64_t mark = c->position;

	for (size_t i = 0; i < c->jobs.nr; i++)
		if (c->jobs.at[i]->seen < c->jobs.at[i]->died)
			mark = sc_min_u64(mark, c->jobs.at[i]->seen);
	return sc_max_u64(mark, c->low_put); /* what has died since that was put is behind it */
}

static void low_step(struct rs_core *c)
{
	struct meta_hash *at;
	struct meta_op *put;
	const uint64_t mark = low_mark(c);
	uint32_t nr = 0;

	if (!c->epoch || !c->active || !c->watching ||
	    ((c->low_put >= c->last_death || mark <= c->low_put) && !c->low_again) ||
	    !rs_core_may_ask(c, NULL, SLOT_LOW))
		return;
	at = sc_arena_array(&c->arena, META_USES_MAX, sizeof(*at));
	if (!at) {
		c->failed = true;
		return;
	}
	if (!list_uses(c, at, &nr))
		return; /* too many to name: the mark stays where it is */
	put = rs_txn_put(rs_txn(c, NULL, SLOT_LOW), rs_key_node(META_KEY_LOW, c->config.node));
	put->value.low = (struct meta_low_value){mark, nr, at};
	put->lease = c->lease;
	c->low_put = mark;
	c->low_again = false;
}

static bool reads_it(const struct meta_low_value *low, const struct meta_hash *set)
{
	for (uint32_t i = 0; i < low->nr; i++)
		if (memcmp(&low->at[i], set, sizeof(*set)) == 0)
			return true;
	return false;
}

/* Tells whether every member knows that a set has died, and reads it no more. */
static bool may_go(const struct rs_event *e, const struct set_fact *f)
{
	const struct meta_record *members = rs_record(e, META_KEY_MEMBERS);

	if (!members)
		return false;
	for (uint32_t i = 0; i < members->value.members.nr; i++) {
		bool ok = false;

		for (uint32_t k = 0; k < e->nr_records && !ok; k++) {
			const struct meta_record *r = &e->records[k];

			ok = r->key.kind == META_KEY_LOW && r->key.node == members->value.members.at[i].node &&
			     r->value.low.revision >= f->died && !reads_it(&r->value.low, &f->set);
		}
		if (!ok)
			return false;
	}
	return true;
}

static void remove_dead(struct rs_core *c, const struct rs_event *e)
{
	for (size_t i = 0; i < c->jobs.nr; i++) {
		struct job *j = c->jobs.at[i];

		for (size_t k = j->have.nr; k-- > 0;) {
			struct set_fact *f = &j->have.at[k];

			if (!f->died || (RULE(low_water) && !may_go(e, f)))
				continue;
			rs_core_act(c, RS_ACT_DELETE, j)->set = f->set;
			*f = j->have.at[--j->have.nr];
		}
	}
}

static void delete_step(struct rs_core *c)
{
	bool any = false;
	struct meta_txn *t;

	for (size_t i = 0; i < c->jobs.nr && !any; i++)
		for (size_t k = 0; k < c->jobs.at[i]->have.nr; k++)
			any |= c->jobs.at[i]->have.at[k].died != 0;
	if (!any || !c->epoch || !c->watching || !rs_core_may_ask(c, NULL, SLOT_DELETE))
		return;
	t = rs_txn_bare(c, NULL, SLOT_DELETE);
	rs_txn_list(t, META_RANGE_LOW);
	rs_txn_get(t, (struct meta_key){.kind = META_KEY_MEMBERS});
}

void rs_bytes_node_step(struct rs_core *c)
{
	low_step(c);
	delete_step(c);
}

void rs_bytes_answer(struct rs_core *c, struct job *j, enum slot slot, const struct rs_event *e)
{
	struct request *r = rs_core_request(c, j, slot);

	switch (slot) {
	case SLOT_LOW:
		r->again = c->now + c->config.times.low;
		if (e->outcome != META_APPLIED)
			c->low_put = 0;
		break;
	case SLOT_DELETE:
		r->again = c->now + c->config.times.low;
		if (e->outcome == META_APPLIED && c->epoch)
			remove_dead(c, e);
		break;
	case SLOT_READY:
		if (e->outcome != META_APPLIED)
			j->ready_epoch = 0;
		r->again = c->now + (e->outcome == META_APPLIED ? 0 : c->config.times.resend);
		break;
	case SLOT_SETTLE:
		settle_answer(c, j, e);
		break;
	default: /* the next old version at once, if there is one */
		r->again = c->now + (e->outcome == META_APPLIED ? 0 : c->config.times.resend);
	}
}
