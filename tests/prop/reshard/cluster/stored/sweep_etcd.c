/* SPDX-License-Identifier: Apache-2.0 */
/* Keys are in order, as etcd lists them.  What fails here is a mistake of the test: it ends the program. */
#include "tests/prop/reshard/cluster/stored/sweep_etcd.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLUSTER "t"

static char *print(const struct meta_key *key)
{
	struct sc_buf text = {0};
	struct sc_err err;

	if (meta_key_print(CLUSTER, key, &text, &err) < 0)
		abort();
	return text.text;
}

/* The first key that is not before this one. */
static size_t find(const struct fake_etcd *e, const char *key)
{
	size_t low = 0, high = e->keys.nr;

	while (low < high) {
		const size_t middle = (low + high) / 2;

		if (strcmp(e->keys.at[middle].key, key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct fake_key *look(const struct fake_etcd *e, const struct meta_key *key)
{
	char *text = print(key);
	const size_t at = find(e, text);
	struct fake_key *k = at < e->keys.nr && strcmp(e->keys.at[at].key, text) == 0 ? &e->keys.at[at] : NULL;

	free(text);
	return k;
}

uint64_t fake_mod(const struct fake_etcd *e, const struct meta_key *key)
{
	const struct fake_key *k = look(e, key);

	return k ? k->mod : 0;
}

static void drop(struct fake_etcd *e, size_t at)
{
	free(e->keys.at[at].key);
	free(e->keys.at[at].value);
	memmove(&e->keys.at[at], &e->keys.at[at + 1], (--e->keys.nr - at) * sizeof(*e->keys.at));
}

static void put(struct fake_etcd *e, const struct meta_op *o, uint64_t revision)
{
	struct meta_value value = o->value;
	struct sc_buf text = {0};
	struct sc_err err;
	char *key = print(&o->key);
	size_t at = find(e, key);

	value.kind = o->key.kind;
	if (meta_value_print(&value, &text, &err) < 0)
		abort();
	sc_buf_printf(&text, "%s", "");
	if (at < e->keys.nr && strcmp(e->keys.at[at].key, key) == 0) {
		free(key);
		free(e->keys.at[at].value);
	} else {
		if (sc_vec_push(&e->keys, ((struct fake_key){.key = NULL})) < 0)
			abort();
		memmove(&e->keys.at[at + 1], &e->keys.at[at], (e->keys.nr - 1 - at) * sizeof(*e->keys.at));
		e->keys.at[at] = (struct fake_key){.key = key, .create = revision};
	}
	e->keys.at[at].value = text.text;
	e->keys.at[at].mod = revision;
}

static void prefix(const struct meta_op *o, char *to, size_t room)
{
	static const char *const names[] = {[META_RANGE_ALL] = "all", [META_RANGE_RECORDS] = "v", [META_RANGE_OBJECTS] = "obj"};

	if (o->range == META_RANGE_JOB)
		(void)snprintf(to, room, "/scalai/" CLUSTER "/%.*s%016" PRIx64 "/", (int)strcspn(meta_kinds[o->key.kind].path, "%"),
			       meta_kinds[o->key.kind].path, o->key.job);
	else if (o->range == META_RANGE_COPIED)
		(void)snprintf(to, room, "/scalai/" CLUSTER "/copied/%016" PRIx64 "/", o->key.job);
	else if (o->range == META_RANGE_STORES || o->range == META_RANGE_TAGS)
		(void)snprintf(to, room, "/scalai/" CLUSTER "/all/jobs/%016" PRIx64 "/%s/", o->key.job,
			       o->range == META_RANGE_TAGS ? "tag" : "store");
	else
		(void)snprintf(to, room, "/scalai/" CLUSTER "/%s/", names[o->range]);
}

struct answer {
	struct sc_arena arena;
	struct {
		size_t nr, room;
		struct meta_record *at;
	} records;
};

static void add(struct answer *a, const struct fake_key *k, bool keys_only)
{
	struct meta_record r = {.present = true, .create = k->create, .mod = k->mod};
	struct sc_err err;

	if (meta_key_parse(CLUSTER, k->key, strlen(k->key), &a->arena, &r.key, &err) < 0 ||
	    (!keys_only && meta_value_parse(r.key.kind, k->value, strlen(k->value), &a->arena, &r.value, &err) < 0) ||
	    sc_vec_push(&a->records, r) < 0)
		abort();
}

static void do_op(struct fake_etcd *e, const struct meta_op *o, uint64_t revision, struct answer *a)
{
	char from[META_KEY_BYTES_MAX];
	const struct fake_key *k;
	size_t at;

	switch (o->what) {
	case META_PUT:
		put(e, o, revision);
		return;
	case META_DELETE:
		k = look(e, &o->key);
		if (k)
			drop(e, (size_t)(k - e->keys.at));
		return;
	case META_GET:
		k = look(e, &o->key);
		if (k)
			add(a, k, false);
		else if (sc_vec_push(&a->records, ((struct meta_record){.key = o->key})) < 0)
			abort();
		return;
	default:
		prefix(o, from, sizeof(from));
		at = find(e, from);
		while (at < e->keys.nr && strncmp(e->keys.at[at].key, from, strlen(from)) == 0)
			if (o->what == META_CLEAR)
				drop(e, at);
			else
				add(a, &e->keys.at[at++], o->keys_only);
	}
}

static bool holds(const struct fake_etcd *e, const struct meta_compare *c)
{
	const struct fake_key *k = look(e, &c->key);

	switch (c->what) {
	case META_MOD_IS:
		return (k ? k->mod : 0) == c->revision;
	case META_CREATE_IS:
		return (k ? k->create : 0) == c->revision;
	default:
		return (k ? k->create : 0) != c->revision;
	}
}

enum meta_outcome fake_txn(struct fake_etcd *e, const struct meta_txn *txn, rs_answer_fn *take, void *arg)
{
	struct answer a = {.records = {0}};
	bool all = true, changes = false;

	for (uint32_t i = 0; i < txn->nr_compares; i++)
		all = all && holds(e, &txn->compares[i]);
	for (uint32_t i = 0; all && i < txn->nr_then; i++)
		changes |= txn->then[i].what < META_GET;
	for (uint32_t i = 0; all && i < txn->nr_then; i++)
		do_op(e, &txn->then[i], e->revision + 1, &a);
	e->revision += changes;
	if (all && take) {
		const struct meta_answer answer = {.revision = e->revision, .nr = (uint32_t)a.records.nr, .records = a.records.at};

		take(arg, &answer);
	}
	sc_vec_done(&a.records);
	sc_arena_done(&a.arena);
	return all ? META_APPLIED : META_REFUSED;
}

void fake_copy(const struct fake_etcd *e, struct fake_etcd *to)
{
	to->revision = e->revision;
	for (size_t i = 0; i < e->keys.nr; i++) {
		struct fake_key k = e->keys.at[i];

		k.key = strdup(k.key);
		k.value = strdup(k.value);
		if (!k.key || !k.value || sc_vec_push(&to->keys, k) < 0)
			abort();
	}
}

void fake_done(struct fake_etcd *e)
{
	while (e->keys.nr)
		drop(e, e->keys.nr - 1);
	sc_vec_done(&e->keys);
	e->revision = 0;
}
