/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd in memory: revisions, leases, transactions, what a watch tells; and the promises that a transaction could
 * break. */
#include "tests/prop/reshard/cluster/protocol/cluster.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_names[] = {
#define X(name, path, bytes) #name,
    META_KEY_KINDS(X)
#undef X
};

#define RECORDS_MAX 100

struct meta_hash set_hash(unsigned job, uint64_t nr)
{
	struct meta_hash h = {{(uint8_t)job, (uint8_t)nr, 7}};

	return h;
}

uint64_t set_nr(const struct meta_hash *h)
{
	return h->at[1];
}

static bool same_key(const struct meta_key *a, const struct meta_key *b)
{
	return a->kind == b->kind && a->job == b->job && a->nr == b->nr && a->node == b->node;
}

struct kv *kv_find(struct world *w, const struct meta_key *key)
{
	for (size_t i = 0; i < w->kv.nr; i++)
		if (same_key(&w->kv.at[i].key, key))
			return &w->kv.at[i];
	return NULL;
}

bool registered(struct world *w, unsigned node, uint64_t epoch)
{
	struct meta_key key = {.kind = META_KEY_NODE, .node = node};
	struct kv *kv = kv_find(w, &key);

	return kv && kv->create == epoch;
}

/* Values go through their text, as they would. */
static struct meta_value copy(struct world *w, const struct meta_value *v)
{
	struct sc_buf buf = {0};
	struct meta_value got;
	struct sc_err err;

	if (meta_value_print(v, &buf, &err) < 0 ||
	    meta_value_parse(v->kind, buf.text ? buf.text : "", buf.bytes, &w->arena, &got, &err) < 0)
		broken(w, "a value is refused: %s", err.msg);
	sc_buf_done(&buf);
	return got;
}

static bool is_watched(enum meta_key_kind kind)
{
	return kind >= META_KEY_MEMBERS && kind <= META_KEY_TAG;
}

static void changed(struct world *w, const struct meta_key *key)
{
	struct kv *kv = kv_find(w, key);
	struct meta_record r = {*key, kv != NULL, kv ? kv->create : 0, w->revision, {.kind = key->kind}};

	if (kv)
		r.value = kv->value;
	if (is_watched(key->kind) && sc_vec_push(&w->changes, r) < 0)
		abort();
	if (key->kind == META_KEY_NODE && sc_vec_push(&w->nodes_past, r) < 0)
		abort();
}

static void put(struct world *w, const struct meta_op *o)
{
	struct kv *kv = kv_find(w, &o->key);

	if (!kv) {
		if (sc_vec_push(&w->kv, (struct kv){.key = o->key, .create = w->revision}) < 0)
			abort();
		kv = &w->kv.at[w->kv.nr - 1];
	}
	kv->mod = w->revision;
	kv->lease = o->lease;
	kv->value = copy(w, &o->value);
	kv->value.kind = o->key.kind;
	if (o->key.kind == META_KEY_STORE)
		sweep_named(w, (unsigned)o->key.job);
	for (uint32_t i = 0; o->key.kind == META_KEY_MEMBERS && i < kv->value.members.nr; i++)
		w->node[kv->value.members.at[i].node].listed = kv->value.members.at[i].epoch;
	changed(w, &o->key);
}

static void erase(struct world *w, const struct meta_key *key)
{
	struct kv *kv = kv_find(w, key);
	struct meta_key k = *key;

	if (!kv)
		return;
	*kv = w->kv.at[--w->kv.nr];
	if (k.kind == META_KEY_STORE)
		sweep_named(w, (unsigned)k.job);
	changed(w, &k);
}

void etcd_put(struct world *w, const struct meta_op *o)
{
	w->revision++;
	put(w, o);
}

/* --- promises --- */

static bool is_listed(struct world *w, unsigned node)
{
	struct meta_key key = {.kind = META_KEY_MEMBERS};
	struct kv *kv = kv_find(w, &key);

	for (uint32_t i = 0; kv && i < kv->value.members.nr; i++)
		if (kv->value.members.at[i].node == node)
			return true;
	return false;
}

/* A bit for each node whose files a commit has: those that are listed, as they have prepared it. */
static unsigned members(struct world *w)
{
	unsigned all = 0;

	for (unsigned k = 0; k < w->nodes; k++)
		all |= !w->leaves_out || is_listed(w, k) ? 1u << k : 0;
	return all;
}

static void check_kept(struct world *w, unsigned job, uint64_t nr, uint64_t token, enum meta_command_kind change)
{
	for (unsigned k = 0; k < w->nodes; k++) {
		struct node *n = &w->node[k];

		/* a node that has left the members was away for long: its files are set aside when it comes back */
		if (!n->disk[job].dirty ||
		    (!is_listed(w, k) && !(n->core && n->state == UP && node_current(w, k, job))))
			continue;
		if (change != META_BY_COMMIT)
			broken(w, "kept: version %lu replaces what node %u has written", nr, k);
		if (n->disk[job].prepared != token && n->now[job].frozen != token)
			broken(w, "kept: version %lu does not have what node %u has written", nr, k);
	}
}

static void check_commit(struct world *w, const struct meta_head_value *h, const struct meta_txn *t)
{
	unsigned job = 0;
	const struct meta_version_value *v = NULL;
	bool presented = false;

	for (uint32_t i = 0; i < t->nr_then; i++)
		if (t->then[i].key.kind == META_KEY_STORE && t->then[i].what == META_PUT)
			presented = set_nr(&t->then[i].value.store.at[0].set) != h->nr;
	for (uint32_t i = 0; i < t->nr_then; i++)
		if (t->then[i].key.kind == META_KEY_VERSION && t->then[i].what == META_PUT) {
			v = &t->then[i].value.version;
			job = (unsigned)t->then[i].key.job;
		}
	if (!v || v->token != h->token)
		broken(w, "a commit without its record");
	for (uint64_t n = 1; n <= w->head[job]; n++)
		if (w->log[job][n].token == h->token)
			broken(w, "truthful: command %lu is committed twice", h->token);
	if (h->nr != w->head[job] + 1 || v->parent != w->head[job])
		broken(w, "chain: version %lu was proposed on %lu, the head is %lu", h->nr, v->parent, w->head[job]);
	if (w->failed[h->token])
		broken(w, "truthful: command %lu was reported as failed and is committed", h->token);
	if (!registered(w, h->node, h->epoch))
		broken(w, "fenced: node %lu commits, its registration has ended", h->node);
	check_kept(w, job, h->nr, h->token, v->change);
	sweep_check(w, job, h->nr);
	if (h->nr == VERSIONS_MAX)
		broken(w, "the test has no room for more versions");
	w->head[job] = h->nr;
	w->log[job][h->nr] = (struct version){h->token, v->parent, v->change, members(w), presented};
	w->commits++;
	for (unsigned r = 0; !presented && r < RANGES; r++) { /* what the ranks wrote, where they did */
		const unsigned at = home(w, r, h->nr);

		w->node[members(w) & 1u << at ? at : h->node].disk[job].have[h->nr][r] = true;
	}
}

static void check_settle(struct world *w, unsigned job, uint64_t nr)
{
	w->settles++;
	for (unsigned k = 0; k < w->nodes; k++)
		for (unsigned r = 0; r < RANGES; r++) {
			struct meta_key key = {.kind = META_KEY_NODE, .node = k};
			const struct kv *kv = kv_find(w, &key);

			/* a node that has lost its disk lacks them, too, until it registers anew */
			if (needs(w, k, r, nr) && w->node[k].state == UP && kv && kv->lease == w->node[k].lease &&
			    !w->node[k].disk[job].have[nr][r])
				broken(w, "durable: version %lu is settled, node %u lacks ranges on disk", nr, k);
		}
}

static void check_txn(struct world *w, const struct meta_txn *t)
{
	bool is_commit = false;

	for (uint32_t i = 0; i < t->nr_then; i++) {
		const struct meta_op *o = &t->then[i];

		if (o->what != META_PUT)
			continue;
		if (o->key.kind == META_KEY_HEAD) {
			check_commit(w, &o->value.head, t);
			is_commit = true;
		}
		if (o->key.kind == META_KEY_PROPOSAL && !registered(w, o->value.proposal.node, o->value.proposal.epoch))
			broken(w, "fenced: node %lu proposes, its registration has ended", o->value.proposal.node);
		if (o->key.kind == META_KEY_READY && !registered(w, o->key.node, o->value.ready.epoch))
			broken(w, "fenced: node %u reports ready, its registration has ended", o->key.node);
		if (o->key.kind == META_KEY_STORE && o->value.store.settled && !is_commit)
			check_settle(w, (unsigned)o->key.job, o->key.nr);
	}
}

void check_durable(struct world *w)
{
	for (size_t i = 0; i < w->kv.nr; i++) {
		const struct kv *kv = &w->kv.at[i];

		if (kv->key.kind != META_KEY_STORE)
			continue;
		for (unsigned r = 0; r < RANGES; r++) {
			uint64_t set = set_nr(&kv->value.store.at[0].set);
			bool held = false;

			for (unsigned k = 0; k < w->nodes; k++)
				held |= w->node[k].disk[kv->key.job].have[set][r];
			if (!held)
				broken(w, "durable: range %u of version %lu (set %lu) has no holder", r, kv->key.nr,
				       set);
		}
	}
}

/* --- requests --- */

static bool holds(struct world *w, const struct meta_compare *x)
{
	const struct kv *kv = kv_find(w, &x->key);
	uint64_t now = !kv ? 0 : x->what == META_MOD_IS ? kv->mod : kv->create;

	return (now == x->revision) == (x->what != META_CREATE_IS_NOT);
}

static bool is_in(const struct meta_op *o, const struct meta_key *key)
{
	switch (o->range) {
	case META_RANGE_NODES:
		return key->kind == META_KEY_NODE;
	case META_RANGE_LOW:
		return key->kind == META_KEY_LOW;
	case META_RANGE_READY:
	case META_RANGE_KEPT:
		return key->kind == (o->range == META_RANGE_READY ? META_KEY_READY : META_KEY_KEPT) &&
		       key->job == o->key.job && key->nr == o->key.nr;
	default:
		return is_watched(key->kind);
	}
}

static void answer_record(struct item *answer, struct meta_record r)
{
	struct meta_record *all = (struct meta_record *)(uintptr_t)answer->event.records;

	if (!all)
		all = sc_arena_array(&answer->arena, RECORDS_MAX, sizeof(*all));
	if (answer->event.nr_records == RECORDS_MAX)
		abort();
	all[answer->event.nr_records++] = r;
	answer->event.records = all;
}

/* As of some revision not long ago. */
static void list_late(struct world *w, struct item *answer)
{
	size_t late = pick(w, 3) ? 0 : pick(w, 6),
	       to = w->nodes_past.nr > late ? w->nodes_past.nr - late : w->nodes_past.nr;

	for (unsigned k = 0; k < w->nodes; k++)
		for (size_t i = to; i-- > 0;)
			if (w->nodes_past.at[i].key.node == k) {
				if (w->nodes_past.at[i].present)
					answer_record(answer, w->nodes_past.at[i]);
				break;
			}
}

static void do_op(struct world *w, const struct meta_op *o, bool late, struct item *answer)
{
	const struct kv *kv;

	switch (o->what) {
	case META_PUT:
		put(w, o);
		break;
	case META_DELETE:
		erase(w, &o->key);
		break;
	case META_CLEAR:
		for (size_t i = w->kv.nr; i-- > 0;)
			if (is_in(o, &w->kv.at[i].key))
				erase(w, &w->kv.at[i].key);
		break;
	case META_GET:
		kv = kv_find(w, &o->key);
		answer_record(answer, (struct meta_record){o->key, kv != NULL, kv ? kv->create : 0, kv ? kv->mod : 0,
							   kv ? kv->value : (struct meta_value){.kind = o->key.kind}});
		break;
	default:
		if (late) {
			list_late(w, answer);
			return;
		}
		for (size_t i = 0; i < w->kv.nr; i++)
			if (is_in(o, &w->kv.at[i].key))
				answer_record(answer, (struct meta_record){w->kv.at[i].key, true, w->kv.at[i].create,
									   w->kv.at[i].mod, w->kv.at[i].value});
	}
}

static void apply_txn(struct world *w, const struct meta_txn *t, struct item *answer)
{
	bool ok = true, changes = false;
	const struct meta_op *ops;
	uint32_t nr;

	for (uint32_t i = 0; i < t->nr_compares; i++)
		ok &= holds(w, &t->compares[i]);
	ops = ok ? t->then : t->otherwise;
	nr = ok ? t->nr_then : t->nr_else;
	for (uint32_t i = 0; i < nr; i++) {
		struct lease *l = NULL;

		changes |= ops[i].what == META_PUT || ops[i].what == META_DELETE || ops[i].what == META_CLEAR;
		for (size_t k = 0; ops[i].what == META_PUT && ops[i].lease && k < w->leases.nr; k++)
			if (w->leases.at[k].id == ops[i].lease && w->leases.at[k].alive)
				l = &w->leases.at[k];
		if (ops[i].what == META_PUT && ops[i].lease && !l) { /* etcd: "requested lease not found" */
			answer->event.outcome = META_REFUSED;
			answer->event.revision = w->revision;
			return;
		}
	}
	answer->event.outcome = ok ? META_APPLIED : META_REFUSED;
	if (ok && changes)
		check_txn(w, t);
	w->revision += changes;
	for (uint32_t i = 0; i < nr; i++)
		if (ops[i].what != META_GET)
			trace(w, "etcd at %lu: %s of %s by a request of node %u", w->revision,
			      (const char *[]){"put", "delete", "clear", "", "list"}[ops[i].what], kind_names[ops[i].key.kind],
			      answer->node);
	for (uint32_t i = 0; i < nr; i++)
		do_op(w, &ops[i], t->any_server, answer);
	answer->event.revision = w->revision;
	if (changes)
		check_durable(w);
}

void etcd_expire(struct world *w, struct lease *l)
{
	bool any = false;

	l->alive = false;
	for (size_t i = w->kv.nr; i-- > 0;)
		if (w->kv.at[i].lease == l->id && l->id) {
			w->revision += !any;
			any = true;
			erase(w, &w->kv.at[i].key);
		}
}

static struct lease *find_lease(struct world *w, uint64_t id)
{
	for (size_t i = 0; i < w->leases.nr; i++)
		if (w->leases.at[i].id == id && w->leases.at[i].alive)
			return &w->leases.at[i];
	return NULL;
}

void etcd_apply(struct world *w, struct item *request, struct item *answer)
{
	struct lease *l = find_lease(w, request->act.lease);
	struct meta_op all = {.what = META_LIST, .range = META_RANGE_ALL};
	struct lease granted;

	answer->event = (struct rs_event){.kind = request->act.kind == RS_ACT_SNAPSHOT ? RS_EV_SNAPSHOT : RS_EV_ANSWER,
					  .id = request->act.id,
					  .outcome = META_APPLIED,
					  .revision = w->revision};
	if (request->act.kind != RS_ACT_TXN)
		trace(w, "etcd: action %d with lease %lu by a request of node %u, sent at %lu ms%s", request->act.kind,
		      request->act.lease, request->node, (unsigned long)(request->born / MS),
		      request->zombie ? ", given up" : "");
	switch (request->act.kind) {
	case RS_ACT_GRANT:
		granted = (struct lease){w->leases.nr + 1, request->node, w->time + TTL, true};
		answer->event.lease = granted.id;
		if (sc_vec_push(&w->leases, granted) < 0)
			abort();
		break;
	case RS_ACT_KEEPALIVE:
		if (l)
			l->ends = w->time + TTL;
		answer->event.outcome = l ? META_APPLIED : META_REFUSED;
		break;
	case RS_ACT_REVOKE:
		answer->event.outcome = l ? META_APPLIED : META_REFUSED;
		if (l)
			etcd_expire(w, l);
		break;
	case RS_ACT_SNAPSHOT:
		do_op(w, &all, false, answer);
		break;
	default:
		apply_txn(w, &request->act.txn, answer);
	}
}

/* Each job has a version 1, shown, on its homes' disks. */
void etcd_begin(struct world *w)
{
	w->etcd_up = true;
	w->revision = 1;
	for (unsigned j = 0; j < w->jobs; j++) {
		struct meta_set_name set = {set_hash(j, 1), 0, "model.safetensors"};
		struct meta_op ops[3] = {{.what = META_PUT, .key = {.kind = META_KEY_HEAD, .job = j}},
					 {.what = META_PUT, .key = {.kind = META_KEY_SHOWN, .job = j}},
					 {.what = META_PUT, .key = {.kind = META_KEY_STORE, .job = j, .nr = 1}}};

		ops[0].value = (struct meta_value){.kind = META_KEY_HEAD, .head = {.nr = 1}};
		ops[1].value = (struct meta_value){.kind = META_KEY_SHOWN, .number = {1}};
		ops[2].value = (struct meta_value){.kind = META_KEY_STORE, .store = {1, &set, true}};
		for (unsigned i = 0; i < 3; i++)
			put(w, &ops[i]);
		w->head[j] = w->seen[j] = 1;
	}
}
