/* SPDX-License-Identifier: Apache-2.0 */
/* Makes what all files of the core use: actions, requests, transactions, lists, jobs. */
#include "reshard/cluster/protocol/core_i.h"

#include <assert.h>
#include <string.h>

#include "meta/base/limits.h"

#ifdef RS_RULES_CAN_BE_OFF
struct rs_rules_off rs_rules_off;
#endif

#define SLOT_BITS 4
#define JOB_BITS 18
_Static_assert(SLOT_NR <= 1 << SLOT_BITS && SC_JOBS_MAX <= 1 << JOB_BITS, "an id of a request has room for both");

/* --- actions --- */

void rs_core_wake_at(struct rs_core *c, int64_t at)
{
	if (at < c->wake)
		c->wake = at;
}

struct rs_act *rs_core_act(struct rs_core *c, enum rs_act_kind kind, const struct job *j)
{
	static struct rs_act nowhere; /* after a failure nothing is done any more */

	if (sc_vec_push(&c->acts, (struct rs_act){.kind = kind, .job = j ? j->id : 0}) < 0) {
		c->failed = true;
		return &nowhere;
	}
	return &c->acts.at[c->acts.nr - 1];
}

struct request *rs_core_request(const struct rs_core *c, const struct job *j, enum slot slot)
{
	return (struct request *)(uintptr_t)(j ? &j->requests[slot - SLOT_COMMAND] : &c->requests[slot]);
}

bool rs_core_may_ask(struct rs_core *c, const struct job *j, enum slot slot)
{
	const struct request *r = rs_core_request(c, j, slot);

	if (r->id)
		return false;
	if (c->now < r->again)
		rs_core_wake_at(c, r->again);
	return c->now >= r->again;
}

struct rs_act *rs_core_ask(struct rs_core *c, enum rs_act_kind kind, struct job *j, enum slot slot)
{
	struct request *r = rs_core_request(c, j, slot);
	struct rs_act *a = rs_core_act(c, kind, j);

	r->id = ++c->counter << (SLOT_BITS + JOB_BITS) | (uint64_t)(j ? j->index : 0) << SLOT_BITS | slot;
	r->sent = c->now;
	r->epoch = c->epoch;
	a->id = r->id;
	a->lease = c->lease;
	return a;
}

const char *rs_core_text(struct rs_core *c, const char *text)
{
	char *copy = text ? sc_arena_copy(&c->arena, text, strlen(text)) : NULL;

	c->failed |= text && !copy;
	return copy;
}

struct meta_txn *rs_txn_bare(struct rs_core *c, struct job *j, enum slot slot)
{
	struct rs_act *a = rs_core_ask(c, RS_ACT_TXN, j, slot);

	a->txn.compares = sc_arena_array(&c->arena, META_TXN_COMPARES_MAX, sizeof(*a->txn.compares));
	a->txn.then = sc_arena_array(&c->arena, META_TXN_OPS_MAX, sizeof(*a->txn.then));
	a->txn.otherwise = sc_arena_array(&c->arena, META_TXN_OPS_MAX, sizeof(*a->txn.otherwise));
	if (!a->txn.compares || !a->txn.then || !a->txn.otherwise) {
		static struct meta_compare compares[META_TXN_COMPARES_MAX];
		static struct meta_op ops[META_TXN_OPS_MAX];

		c->failed = true;
		a->txn = (struct meta_txn){.compares = compares, .then = ops, .otherwise = ops};
	}
	return &a->txn;
}

struct meta_txn *rs_txn(struct rs_core *c, struct job *j, enum slot slot)
{
	struct meta_txn *t = rs_txn_bare(c, j, slot);

	if (RULE(epoch_compared))
		rs_txn_if(t, META_CREATE_IS, rs_key_node(META_KEY_NODE, c->config.node), c->epoch);
	return t;
}

void rs_txn_if(struct meta_txn *t, int what, struct meta_key key, uint64_t revision)
{
	struct meta_compare *x = &t->compares[t->nr_compares++];

	assert(t->nr_compares <= META_TXN_COMPARES_MAX);
	x->what = what;
	x->key = key;
	x->revision = revision;
}

static struct meta_op *op(struct meta_op *ops, uint32_t *nr, int what, struct meta_key key)
{
	struct meta_op *o = &ops[(*nr)++];

	assert(*nr <= META_TXN_OPS_MAX);
	*o = (struct meta_op){.what = what, .key = key, .value = {.kind = key.kind}};
	return o;
}

struct meta_op *rs_txn_put(struct meta_txn *t, struct meta_key key)
{
	return op(t->then, &t->nr_then, META_PUT, key);
}

void rs_txn_delete(struct meta_txn *t, struct meta_key key)
{
	op(t->then, &t->nr_then, META_DELETE, key);
}

void rs_txn_clear(struct meta_txn *t, enum meta_range range, struct meta_key key)
{
	op(t->then, &t->nr_then, META_CLEAR, key)->range = range;
}

void rs_txn_get(struct meta_txn *t, struct meta_key key)
{
	op(t->then, &t->nr_then, META_GET, key);
}

void rs_txn_else_get(struct meta_txn *t, struct meta_key key)
{
	op(t->otherwise, &t->nr_else, META_GET, key);
}

struct meta_op *rs_txn_list(struct meta_txn *t, enum meta_range range)
{
	struct meta_op *o = op(t->then, &t->nr_then, META_LIST, (struct meta_key){0});

	o->range = range;
	return o;
}

void rs_txn_tick(struct meta_txn *t)
{
	rs_txn_put(t, (struct meta_key){.kind = META_KEY_TICK})->value.rest = "";
}

const struct meta_record *rs_record(const struct rs_event *e, enum meta_key_kind kind)
{
	for (uint32_t i = 0; i < e->nr_records; i++)
		if (e->records[i].key.kind == kind)
			return e->records[i].present ? &e->records[i] : NULL;
	return NULL;
}

/* --- versions as sets --- */

struct meta_hash rs_version_life(uint64_t job, uint64_t nr)
{
	struct meta_hash h = {"version"};

	memcpy(h.at + 8, &job, sizeof(job));
	memcpy(h.at + 16, &nr, sizeof(nr));
	return h;
}

uint64_t rs_version_of(const struct meta_hash *set, uint64_t job)
{
	struct meta_hash its;
	uint64_t nr;

	memcpy(&nr, set->at + 16, sizeof(nr));
	its = rs_version_life(job, nr);
	return memcmp(&its, set, sizeof(its)) == 0 ? nr : 0;
}

/* --- lists --- */

bool rs_nodes_have(const struct nodes *v, uint32_t node, uint64_t epoch)
{
	for (size_t i = 0; i < v->nr; i++)
		if (v->at[i].node == node && v->at[i].epoch == epoch)
			return true;
	return false;
}

bool rs_nodes_add(struct rs_core *c, struct nodes *v, uint32_t node, uint64_t epoch)
{
	if (rs_nodes_have(v, node, epoch))
		return false;
	c->failed |= sc_vec_push(v, (struct meta_member){node, epoch}) < 0;
	return true;
}

void rs_nodes_copy(struct rs_core *c, struct nodes *to, const struct nodes *from)
{
	to->nr = 0;
	for (size_t i = 0; i < from->nr; i++)
		c->failed |= sc_vec_push(to, from->at[i]) < 0;
}

void rs_sets_copy(struct rs_core *c, struct sets *to, uint32_t nr, const struct meta_set_name *from)
{
	size_t bytes = nr * sizeof(*from);
	struct meta_set_name *at;
	char *text;

	for (uint32_t i = 0; i < nr; i++)
		bytes += strlen(from[i].file) + 1;
	at = nr ? sc_zalloc(bytes) : NULL;
	if (nr && !at) {
		c->failed = true;
		return;
	}
	text = (char *)(at + nr);
	for (uint32_t i = 0; i < nr; i++) {
		at[i] = (struct meta_set_name){from[i].set, from[i].token, text};
		text = stpcpy(text, from[i].file) + 1;
	}
	sc_sys.release(to->at);
	*to = (struct sets){nr, at};
}

struct set_fact *rs_facts_find(const struct set_facts *v, const struct meta_hash *set)
{
	for (size_t i = 0; i < v->nr; i++)
		if (memcmp(&v->at[i].set, set, sizeof(*set)) == 0)
			return &v->at[i];
	return NULL;
}

void rs_facts_set(struct rs_core *c, struct set_facts *v, const struct meta_hash *set, bool on)
{
	struct set_fact *f = rs_facts_find(v, set);

	if (on && !f)
		c->failed |= sc_vec_push(v, (struct set_fact){.set = *set}) < 0;
	else if (!on && f)
		*f = v->at[--v->nr];
}

/* --- jobs --- */

struct job *rs_core_job(struct rs_core *c, uint64_t id)
{
	struct job *j = sc_map_get(&c->by_id, (const char *)&id, sizeof(id));

	if (j)
		return j;
	j = c->jobs.nr < SC_JOBS_MAX ? sc_zalloc(sizeof(*j)) : NULL;
	if (!j || sc_map_reserve(&c->by_id, 1) < 0 || sc_vec_push(&c->jobs, j) < 0) {
		sc_sys.release(j);
		c->failed = true;
		return NULL;
	}
	*j = (struct job){.id = id, .index = c->jobs.nr - 1, .hidden = true, .learned = c->now,
			  .keep = c->config.keep_versions};
	(void)sc_map_put(&c->by_id, (const char *)&j->id, sizeof(j->id), j);
	return j;
}

struct request *rs_core_answered(struct rs_core *c, uint64_t id, enum slot *ret_slot, struct job **ret_job)
{
	enum slot slot = (enum slot)(id & ((1u << SLOT_BITS) - 1));
	size_t index = id >> SLOT_BITS & ((1u << JOB_BITS) - 1);
	struct request *r;

	if (slot >= SLOT_NR || (slot >= SLOT_COMMAND && index >= c->jobs.nr))
		return NULL;
	*ret_slot = slot;
	*ret_job = slot >= SLOT_COMMAND ? c->jobs.at[index] : NULL;
	r = rs_core_request(c, *ret_job, slot);
	return r->id == id ? r : NULL;
}
