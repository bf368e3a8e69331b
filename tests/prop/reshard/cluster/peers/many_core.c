/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One change of version in a large cluster, as one node sees it: the real state machine, over an etcd in memory, is told
 * what all other nodes would say.  First it is the node that commits, and the keeper; then one of those that prepare.
 */
#include "tests/prop/reshard/cluster/peers/many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reshard/cluster/protocol/core.h"

#define MS INT64_C(1000000)
#define CLUSTER "production-1"
#define JOB 7u
#define ME 1u

struct cell {
	struct meta_record r;
	uint64_t lease;
};

static struct {
	struct rs_core *core;
	unsigned nodes;
	int64_t now;
	uint64_t revision, lease;
	struct {
		size_t nr, room;
		struct cell *at;
	} cells;
	struct {
		size_t nr, room;
		struct meta_record *at;
	} watch;			/* what it was not told yet */
	struct {
		size_t nr, room;
		struct rs_event *at;
	} later;
	struct sc_arena arena;
	bool counts;
	unsigned sent, txns, told_records, deleted, settled, clears;
	uint64_t proposal, head, done;	/* token of it; version; token of what ended well */
	size_t told, members, settle;
	double total, most;
	struct meta_set_name set;
	uint32_t *all;
	struct meta_hash *files;
} w;

static bool watched(enum meta_key_kind kind)
{
	return kind >= META_KEY_MEMBERS && kind <= META_KEY_TAG;
}

static struct cell *find(const struct meta_key *k)
{
	for (size_t i = 0; i < w.cells.nr; i++) {
		const struct meta_key *x = &w.cells.at[i].r.key;

		if (x->kind == k->kind && x->job == k->job && x->nr == k->nr && x->node == k->node)
			return &w.cells.at[i];
	}
	return NULL;
}

static size_t print(const struct meta_key *key, struct meta_value value, struct meta_value *ret)
{
	struct sc_buf buf = {0};
	struct sc_err err;
	size_t name, bytes;

	value.kind = key->kind;
	MUST(meta_key_print(CLUSTER, key, &buf, &err));
	name = buf.bytes;
	MUST(meta_value_print(&value, &buf, &err));
	if (ret)
		MUST(meta_value_parse(key->kind, buf.text + name, buf.bytes - name, &w.arena, ret, &err));
	bytes = buf.bytes;
	sc_buf_done(&buf);
	return bytes;
}

static size_t name_bytes(const struct meta_key *key)
{
	struct sc_buf buf = {0};
	struct sc_err err;
	size_t bytes;

	MUST(meta_key_print(CLUSTER, key, &buf, &err));
	bytes = buf.bytes;
	sc_buf_done(&buf);
	return bytes;
}

static void changed(const struct meta_record *r)
{
	if (!watched(r->key.kind))
		return;
	assert_int_equal(0, sc_vec_push(&w.watch, *r));
	if (w.counts) {
		w.told_records++;
		w.told += r->present ? print(&r->key, r->value, NULL) : name_bytes(&r->key);
	}
}

static void put(const struct meta_key *key, struct meta_value value, uint64_t lease)
{
	struct cell *c = find(key);
	size_t bytes;

	if (!c) {
		assert_int_equal(0, sc_vec_push(&w.cells, (struct cell){.r = {.key = *key, .create = w.revision}}));
		c = &w.cells.at[w.cells.nr - 1];
	}
	c->r.present = true;
	c->r.mod = w.revision;
	c->lease = lease;
	bytes = print(key, value, &c->r.value);
	c->r.value.kind = key->kind;
	if (key->kind == META_KEY_MEMBERS)
		w.members = bytes;
	if (key->kind == META_KEY_PROPOSAL)
		w.proposal = c->r.value.proposal.token;
	if (key->kind == META_KEY_HEAD)
		w.head = c->r.value.head.nr;
	w.settled += key->kind == META_KEY_STORE && c->r.value.store.settled && w.counts;
	changed(&c->r);
}

static void erase(size_t i)
{
	struct meta_record r = {w.cells.at[i].r.key, false, 0, w.revision, {.kind = w.cells.at[i].r.key.kind}};

	w.cells.at[i] = w.cells.at[--w.cells.nr];
	changed(&r);
}

/* --- requests --- */

static bool holds(const struct meta_compare *x)
{
	const struct cell *c = find(&x->key);
	uint64_t now = !c ? 0 : x->what == META_MOD_IS ? c->r.mod : c->r.create;

	return (now == x->revision) == (x->what != META_CREATE_IS_NOT);
}

static bool is_in(const struct meta_op *o, const struct meta_key *k)
{
	switch (o->range) {
	case META_RANGE_NODES:
		return k->kind == META_KEY_NODE;
	case META_RANGE_LOW:
		return k->kind == META_KEY_LOW;
	case META_RANGE_READY:
		return k->kind == META_KEY_READY && k->job == o->key.job && k->nr == o->key.nr;
	case META_RANGE_KEPT:
		return k->kind == META_KEY_KEPT && k->job == o->key.job && k->nr == o->key.nr;
	default:
		return watched(k->kind);
	}
}

struct answer {
	size_t nr, room;
	struct meta_record *at;
	size_t bytes;
};

static void answer_with(struct answer *a, struct meta_record r, bool keys_only)
{
	a->bytes += r.present && !keys_only ? print(&r.key, r.value, NULL) : name_bytes(&r.key);
	assert_int_equal(0, sc_vec_push(a, r));
}

static void do_op(const struct meta_op *o, struct answer *a)
{
	const struct cell *c = find(&o->key);

	switch (o->what) {
	case META_PUT:
		put(&o->key, o->value, o->lease);
		return;
	case META_DELETE:
		if (c)
			erase((size_t)(c - w.cells.at));
		return;
	case META_GET:
		answer_with(a, c ? c->r : (struct meta_record){.key = o->key, .value = {.kind = o->key.kind}}, !c);
		return;
	default:
		for (size_t i = w.cells.nr; i-- > 0;)
			if (is_in(o, &w.cells.at[i].r.key)) {
				w.clears += o->what == META_CLEAR;
				if (o->what == META_CLEAR)
					erase(i);
				else
					answer_with(a, w.cells.at[i].r, o->keys_only);
			}
	}
}

static void give(struct rs_event e);

static void tell_watch(void)
{
	struct rs_event e = {.kind = RS_EV_WATCH, .revision = w.revision, .nr_records = (uint32_t)w.watch.nr,
			     .records = w.watch.at};

	if (!w.watch.nr)
		return;
	give(e);
	w.watch.nr = 0;
}

static void transact(uint64_t id, const struct meta_txn *t)
{
	struct rs_event e = {.kind = RS_EV_ANSWER, .id = id, .outcome = META_APPLIED};
	struct answer a = {0};
	const struct meta_op *ops;
	bool ok = true, changes = false, reads_ready = false;
	uint32_t nr;

	for (uint32_t i = 0; i < t->nr_compares; i++)
		ok &= holds(&t->compares[i]);
	ops = ok ? t->then : t->otherwise;
	nr = ok ? t->nr_then : t->nr_else;
	for (uint32_t i = 0; i < nr; i++) {
		changes |= ops[i].what <= META_CLEAR;
		reads_ready |= ops[i].what == META_LIST && ops[i].range == META_RANGE_READY;
	}
	w.revision += changes;
	for (uint32_t i = 0; i < nr; i++)
		do_op(&ops[i], &a);
	if (w.counts)
		w.txns += changes;
	if (reads_ready)
		w.settle = sc_max_u64(w.settle, a.bytes);
	e.outcome = ok ? META_APPLIED : META_REFUSED;
	e.revision = w.revision;
	e.nr_records = (uint32_t)a.nr;
	e.records = a.at;
	give(e);
	sc_vec_done(&a);
	tell_watch();
}

static void snapshot(uint64_t id)
{
	struct meta_op all = {.what = META_LIST, .range = META_RANGE_ALL};
	struct rs_event e = {.kind = RS_EV_SNAPSHOT, .id = id, .outcome = META_APPLIED, .revision = w.revision};
	struct answer a = {0};

	do_op(&all, &a);
	e.nr_records = (uint32_t)a.nr;
	e.records = a.at;
	give(e);
	sc_vec_done(&a);
	w.watch.nr = 0;
}

/* --- actions --- */

static void later(struct rs_event e)
{
	assert_int_equal(0, sc_vec_push(&w.later, e));
}

static void do_act(const struct rs_act *a)
{
	struct rs_event e = {.job = a->job, .token = a->token, .nr = a->nr};

	switch (a->kind) {
	case RS_ACT_GRANT:
		e = (struct rs_event){.kind = RS_EV_ANSWER, .id = a->id, .outcome = META_APPLIED, .lease = 1, .revision = w.revision};
		break;
	case RS_ACT_KEEPALIVE:
	case RS_ACT_REVOKE:
		e = (struct rs_event){.kind = RS_EV_ANSWER, .id = a->id, .outcome = META_APPLIED, .revision = w.revision};
		break;
	case RS_ACT_CHECK:
		e.kind = RS_EV_CHECKED;
		break;
	case RS_ACT_PREPARE:
		e.kind = RS_EV_PREPARED;
		break;
	case RS_ACT_COMPOSE:
		e.kind = RS_EV_COMPOSED;
		e.version.topology = "tp=8 dp=125 pp=16";
		break;
	case RS_ACT_HIDE:
		e.kind = RS_EV_HIDDEN;
		break;
	case RS_ACT_DIED:
		e.kind = RS_EV_SEEN;
		e.revision = a->revision;
		break;
	case RS_ACT_PLACE: /* each keeps its part */
		e.kind = RS_EV_PLACED;
		e.nr_nodes = a->nr_keep;
		for (uint32_t i = 0; i < a->nr_keep; i++) {
			w.all[i] = a->keep[i].node;
			w.files[i] = a->keep[i].files;
		}
		e.nodes = w.all;
		e.files = w.files;
		e.nr_sets = 1;
		e.sets = &w.set;
		break;
	case RS_ACT_DONE:
		assert_int_equal(0, a->code);
		w.done = a->token;
		return;
	case RS_ACT_SEND:
		w.sent += w.counts;
		return;
	case RS_ACT_DELETE:
		w.deleted += w.counts;
		return;
	default:
		return;
	}
	later(e);
}

static double seconds(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct ask {
	uint64_t id;
	struct meta_txn txn;
	bool snapshot;
};

/* Memory of the core goes with the next event. */
static void copy_txn(const struct meta_txn *from, struct meta_txn *to)
{
	struct meta_compare *compares = sc_arena_array(&w.arena, from->nr_compares + 1, sizeof(*compares));
	struct meta_op *then = sc_arena_array(&w.arena, from->nr_then + 1, sizeof(*then));
	struct meta_op *otherwise = sc_arena_array(&w.arena, from->nr_else + 1, sizeof(*otherwise));

	memcpy(compares, from->compares, from->nr_compares * sizeof(*compares));
	memcpy(then, from->then, from->nr_then * sizeof(*then));
	memcpy(otherwise, from->otherwise, from->nr_else * sizeof(*otherwise));
	for (uint32_t i = 0; i < from->nr_then; i++)
		if (then[i].what == META_PUT)
			(void)print(&then[i].key, then[i].value, &then[i].value);
	*to = *from;
	to->compares = compares;
	to->then = then;
	to->otherwise = otherwise;
}

/* All that it asks for is answered before the next thing happens. */
static void do_acts(void)
{
	struct {
		size_t nr, room;
		struct ask *at;
	} asks = {0};
	const struct rs_act *a;

	while ((a = rs_core_next(w.core))) {
		struct ask x = {.id = a->id, .snapshot = a->kind == RS_ACT_SNAPSHOT};

		if (a->kind == RS_ACT_TXN)
			copy_txn(&a->txn, &x.txn);
		if (a->kind == RS_ACT_TXN || x.snapshot)
			assert_int_equal(0, sc_vec_push(&asks, x));
		else
			do_act(a);
	}
	for (size_t i = 0; i < asks.nr; i++)
		if (asks.at[i].snapshot)
			snapshot(asks.at[i].id);
		else
			transact(asks.at[i].id, &asks.at[i].txn);
	sc_vec_done(&asks);
}

static void give(struct rs_event e)
{
	double begin = seconds(), took;
	struct sc_err err;

	MUST(rs_core_event(w.core, w.now, &e, &err));
	took = seconds() - begin;
	w.total += w.counts ? took : 0;
	w.most = w.counts && took > w.most ? took : w.most;
	do_acts();
}

/* Until nothing is left to be told, and some time has passed. */
static void pass(int64_t ms)
{
	for (int64_t until = w.now + ms * MS;;) {
		while (w.later.nr) {
			struct rs_event e = w.later.at[0];

			memmove(w.later.at, w.later.at + 1, --w.later.nr * sizeof(e));
			give(e);
		}
		if (w.now >= until)
			return;
		w.now += 5 * MS;
		if (w.now >= rs_core_wake(w.core))
			give((struct rs_event){.kind = RS_EV_TIME});
	}
}

/* --- the others --- */

static void begin(unsigned nodes)
{
	struct rs_core_config config = {
		.times = {3000 * MS, 10000, 50 * MS, 10000 * MS, 3000 * MS, 8000 * MS, 1000 * MS, 100 * MS, 5000 * MS, 2000 * MS},
		.node = ME, .self = {.name = "gpu-node-0001", .store = "store"}, .keep_versions = 2};
	struct meta_key head = {.kind = META_KEY_HEAD, .job = JOB}, shown = {.kind = META_KEY_SHOWN, .job = JOB},
			store = {.kind = META_KEY_STORE, .job = JOB, .nr = 1};
	struct sc_err err;

	memset(&w, 0, sizeof(w));
	w.nodes = nodes;
	w.now = 1000 * MS;
	w.revision = 1000;
	w.all = calloc(nodes + 1, sizeof(*w.all));
	w.files = calloc(nodes + 1, sizeof(*w.files));
	w.set = (struct meta_set_name){.set = {{9}}, .file = FILE_NAME};
	put(&head, (struct meta_value){.head = {.nr = 1}}, 0);
	put(&shown, (struct meta_value){.number = {1}}, 0);
	put(&store, (struct meta_value){.store = {1, &w.set, true}}, 0);
	for (unsigned i = 2; i <= nodes; i++) {
		struct meta_key key = {.kind = META_KEY_NODE, .node = i};

		w.revision++;
		put(&key, (struct meta_value){.node = {.name = "gpu-node", .store = "store", .domain = ""}}, 1000 + i);
	}
	MUST(rs_core_new(&config, w.now, &w.core, &err));
	do_acts();
	pass(4000);
	assert_int_equal(nodes, rs_core_members(w.core, NULL, 0));
	assert_int_not_equal(0, rs_core_epoch(w.core));
}

static void end(void)
{
	rs_core_free(w.core);
	sc_vec_done(&w.cells);
	sc_vec_done(&w.watch);
	sc_vec_done(&w.later);
	sc_arena_done(&w.arena);
	free(w.all);
	free(w.files);
}

static uint64_t epoch_of(unsigned node)
{
	struct meta_key key = {.kind = META_KEY_NODE, .node = node};

	return find(&key)->r.create;
}

static unsigned all_say(struct rs_message m)
{
	for (unsigned i = 2; i <= w.nodes; i++)
		give((struct rs_event){.kind = RS_EV_MESSAGE, .from = i, .epoch = epoch_of(i), .message = m});
	return w.nodes - 1;
}

/* Each node says that it is ready, or how far it has seen. */
static void all_put(enum meta_key_kind kind, uint64_t nr)
{
	for (unsigned i = 2; i <= w.nodes; i++) {
		struct meta_key key = {.kind = kind, .job = kind == META_KEY_READY ? JOB : 0, .nr = nr, .node = i};
		struct meta_value v = {.kind = kind};

		if (kind == META_KEY_READY)
			v.ready = (struct meta_ready_value){.epoch = epoch_of(i), .files = {{1, (uint8_t)i}}};
		else
			v.low.revision = w.revision;
		put(&key, v, 1000 + i);
	}
}

/* A topology of this node; returns the messages that have come. */
static unsigned change(uint64_t token)
{
	struct rs_event e = {.kind = RS_EV_COMMAND, .job = JOB, .token = token, .change = META_BY_TOPOLOGY, .deadline = 15000 * MS};
	uint64_t base = w.head;
	unsigned to;

	give(e);
	pass(0);
	assert_int_equal(token, w.proposal);
	to = all_say((struct rs_message){.kind = RS_MSG_PREPARED, .job = JOB, .token = token});
	pass(0);
	assert_int_equal(base + 1, w.head);
	to += all_say((struct rs_message){.kind = RS_MSG_HIDDEN, .job = JOB, .nr = base + 1});
	pass(0);
	assert_int_equal(token, w.done);
	return to;
}

/* The head's files come together on all nodes; then what it replaces goes. */
static void settle(void)
{
	unsigned before = w.settled;

	later((struct rs_event){.kind = RS_EV_BYTES, .job = JOB, .nr = w.head, .landed = true, .on_disk = true, .set = {{1, 1}}});
	pass(0);
	all_put(META_KEY_READY, w.head);
	pass(4000);
	assert_int_equal(before + 1, w.settled);
}

/* This node is one of those that prepare: messages that it sends. */
static unsigned take_part(void)
{
	struct meta_proposal_value p = {.token = 77, .node = 2, .epoch = epoch_of(2), .base = w.head, .deadline_s = 15,
					.change = META_BY_TOPOLOGY};
	struct meta_key proposal = {.kind = META_KEY_PROPOSAL, .job = JOB}, head = {.kind = META_KEY_HEAD, .job = JOB},
			store = {.kind = META_KEY_STORE, .job = JOB, .nr = w.head + 1}, shown = {.kind = META_KEY_SHOWN, .job = JOB};
	unsigned before = w.sent;

	w.revision++;
	put(&proposal, (struct meta_value){.proposal = p}, 1002);
	tell_watch();
	pass(20);
	w.revision++;
	put(&head, (struct meta_value){.head = {.nr = w.head + 1, .token = 77, .node = 2, .epoch = epoch_of(2)}}, 0);
	put(&store, (struct meta_value){.store = {1, &w.set, false}}, 0);
	erase((size_t)(find(&proposal) - w.cells.at));
	tell_watch();
	pass(20);
	w.revision++;
	put(&shown, (struct meta_value){.number = {w.head}}, 0);
	tell_watch();
	pass(20);
	return w.sent - before;
}

void many_change(unsigned nodes, struct many_change *ret)
{
	unsigned before;

	begin(nodes);
	w.counts = true;
	ret->to = change(11);
	ret->txns = w.txns;
	ret->records = w.told_records;
	ret->told = w.told;
	assert_int_equal(0, w.sent);
	settle();
	ret->settle = w.settle;
	before = w.clears;
	(void)change(12);
	assert_int_equal(nodes, w.clears - before); /* what all had said of the one before */
	settle();
	all_put(META_KEY_LOW, 0);
	pass(6000);
	ret->from = take_part();
	ret->core_ms = w.total * 1000;
	ret->longest_ms = w.most * 1000;
	ret->members = w.members;
	end();
}
