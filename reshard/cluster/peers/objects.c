/* SPDX-License-Identifier: Apache-2.0 */
/* Puts objects, of which versions are made, into etcd, and gets them from there. */
#include "reshard/cluster/peers/pack.h"
#include "reshard/cluster/peers/peers_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int name(void *arg, const void *at, size_t bytes, uint8_t ret[RS_OBJECT_NAME_BYTES], struct sc_err *err)
{
	(void)arg;
	(void)err;
	rs_sha256(at, bytes, ret);
	return 0;
}

static int put(void *arg, const uint8_t named[RS_OBJECT_NAME_BYTES], const void *at, size_t bytes, struct sc_err *err)
{
	struct rs_bag *bag = arg;

	if (sc_vec_push(&bag->all, (typeof(*bag->all.at)){.bytes = {0}}) < 0)
		return sc_nomem(err);
	memcpy(bag->all.at[bag->all.nr - 1].name, named, RS_OBJECT_NAME_BYTES);
	sc_buf_add(&bag->all.at[bag->all.nr - 1].bytes, at, bytes);
	return bag->all.at[bag->all.nr - 1].bytes.failed ? sc_nomem(err) : 0;
}

static int refer(void *arg, const uint8_t named[RS_OBJECT_NAME_BYTES], struct sc_err *err)
{
	struct rs_bag *bag = arg;
	struct rs_object_name name;

	for (size_t i = 0; i < bag->all.nr; i++)
		if (memcmp(bag->all.at[i].name, named, RS_OBJECT_NAME_BYTES) == 0)
			return 0; /* a moment ago */
	memcpy(name.at, named, sizeof(name.at));
	return sc_vec_push(&bag->referred, name) < 0 ? sc_nomem(err) : 0;
}

static int get(void *arg, const uint8_t named[RS_OBJECT_NAME_BYTES], struct sc_buf *to, struct sc_err *err)
{
	struct rs_bag *bag = arg;

	for (size_t i = 0; i < bag->all.nr; i++)
		if (memcmp(bag->all.at[i].name, named, RS_OBJECT_NAME_BYTES) == 0) {
			sc_buf_add(to, bag->all.at[i].bytes.text, bag->all.at[i].bytes.bytes);
			return to->failed ? sc_nomem(err) : 0;
		}
	memcpy(bag->lacks, named, RS_OBJECT_NAME_BYTES);
	bag->lacking = true;
	return sc_fail(err, SC_E_NOT_FOUND, "an object was not fetched yet");
}

const struct rs_object_ops rs_bag_ops = {.name = name, .put = put, .refer = refer, .get = get};

void rs_bag_done(struct rs_bag *bag)
{
	for (size_t i = 0; i < bag->all.nr; i++)
		sc_buf_done(&bag->all.at[i].bytes);
	sc_vec_done(&bag->all);
	sc_vec_done(&bag->referred);
	sc_buf_done(&bag->sweeping);
}

/* Gives the key of an object of a bag. */
static struct meta_key key_of(const struct rs_bag *bag, const uint8_t named[RS_OBJECT_NAME_BYTES])
{
	struct meta_key key = {.kind = META_KEY_OBJECT};

	if (bag->kept.kind == META_KEY_KEPT)
		key = bag->kept;
	memcpy(key.hash.at, named, RS_OBJECT_NAME_BYTES);
	return key;
}

/* Puts an object, whose name says what it is: again where the answer is lost, as nothing changes by that. */
static int put_one(struct rs_member *m, const struct rs_bag *bag, size_t i, struct sc_err *err)
{
	const int64_t give_up = sc_now_ns() + m->times.ttl;
	const struct sc_buf *bytes = &bag->all.at[i].bytes;
	struct meta_op op = {.what = META_PUT, .key = key_of(bag, bag->all.at[i].name), .lease = bag->lease};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	enum meta_outcome outcome = META_UNKNOWN;
	enum rs_unanswered why = RS_LOST;
	struct sc_buf text = {0};

	op.value.kind = op.key.kind;
	if (rs_pack(bytes->text, bytes->bytes, &text) < 0) {
		sc_buf_done(&text);
		return sc_nomem(err);
	}
	op.value.rest = text.text ? text.text : "";
	do
		outcome = rs_member_ask_why(m, &txn, NULL, NULL, &why);
	while (outcome == META_UNKNOWN && why != RS_NO_ROOM && rs_ask_pause(m, give_up));
	sc_buf_done(&text);
	if (outcome != META_APPLIED && why == RS_NO_ROOM)
		return sc_fail(err, SC_E_NO_SPACE, RS_FULL);
	return outcome == META_APPLIED ? 0 : sc_fail(err, SC_E_BUSY, "etcd has not taken what a version is made of: "
						     "nothing was changed; try again");
}

int rs_bag_put(struct rs_member *m, const struct rs_bag *bag, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < bag->all.nr; i++)
		rc = put_one(m, bag, i, err);
	return rc;
}

struct getting {
	struct sc_buf to;
	bool found, failed;
};

static void on_object(void *arg, const struct meta_answer *answer)
{
	struct getting *g = arg;
	const char *text = answer->nr && answer->records[0].present ? answer->records[0].value.rest : NULL;

	g->found = text != NULL;
	g->failed = text && rs_unpack(text, &g->to) <= 0;
}

int rs_bag_get(struct rs_member *m, struct rs_bag *bag, struct sc_err *err)
{
	struct meta_op op = {.what = META_GET, .key = key_of(bag, bag->lacks)};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	struct getting g = {.found = false};
	int rc = 0;

	bag->lacking = false;
	if (rs_member_ask(m, &txn, on_object, &g) != META_APPLIED)
		rc = sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for an object");
	else if (!g.found)
		rc = sc_fail(err, SC_E_NOT_FOUND, "etcd lacks the object %02x%02x%02x%02x... of a version",
			     bag->lacks[0], bag->lacks[1], bag->lacks[2], bag->lacks[3]);
	else if (g.failed || g.to.failed)
		rc = sc_fail(err, SC_E_FORMAT, "an object of a version in etcd cannot be read");
	if (rc == 0)
		rc = put(bag, bag->lacks, g.to.text, g.to.bytes, err);
	sc_buf_done(&g.to);
	return rc;
}

/* --- what was put before --- */

/* Tells whether etcd has all objects of some names: 1, 0 or an error.  It reads a key, too: a transaction of compares
 * alone is answered by what the asked server of etcd knows, which may lag behind the others. */
static int are_there(struct rs_member *m, const struct rs_object_name *names, size_t nr, struct sc_err *err)
{
	struct meta_compare is[META_TXN_NODES_MAX];
	struct meta_op get = {.what = META_GET, .key.kind = META_KEY_TICK};
	struct meta_txn txn = {.nr_compares = (uint32_t)nr, .compares = is, .nr_then = 1, .then = &get, .nr_else = 1,
			       .otherwise = &get};

	for (size_t i = 0; i < nr; i++) {
		is[i] = (struct meta_compare){.what = META_CREATE_IS_NOT, .key.kind = META_KEY_OBJECT};
		memcpy(is[i].key.hash.at, names[i].at, sizeof(names[i].at));
	}
	switch (rs_member_ask(m, &txn, NULL, NULL)) {
	case META_APPLIED:
		return 1;
	case META_REFUSED:
		return 0;
	default:
		return sc_fail(err, SC_E_BUSY, "etcd has not answered when it was asked for what versions are made of: "
			       "nothing was changed; try again");
	}
}

static void unify(struct rs_object_names *names)
{
	size_t kept = 0;

	if (names->nr)
		qsort(names->at, names->nr, sizeof(*names->at), rs_object_name_order);
	for (size_t i = 0; i < names->nr; i++)
		if (!kept || rs_object_name_order(&names->at[i], &names->at[kept - 1]) != 0)
			names->at[kept++] = names->at[i];
	names->nr = kept;
}

struct sweeping {
	struct rs_bag *bag;
	bool failed;
};

static void on_sweeping(void *arg, const struct meta_answer *answer)
{
	struct sweeping *x = arg;

	x->bag->sweep = 0;
	sc_buf_reset(&x->bag->sweeping);
	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];

		if (r->present && r->key.kind == META_KEY_SWEEP)
			x->bag->sweep = r->mod;
		else if (r->present && r->value.rest)
			sc_buf_printf(&x->bag->sweeping, "%s", r->value.rest);
	}
	x->failed = x->bag->sweeping.failed;
}

/* Reads which objects the sweep has announced that it removes. */
static int read_sweeping(struct rs_member *m, struct rs_bag *bag, struct sc_err *err)
{
	struct meta_op gets[] = {{.what = META_GET, .key.kind = META_KEY_SWEEP},
				 {.what = META_GET, .key.kind = META_KEY_SWEEPING}};
	struct meta_txn txn = {.nr_then = 2, .then = gets};
	struct sweeping x = {.bag = bag};

	if (rs_member_ask(m, &txn, on_sweeping, &x) != META_APPLIED)
		return sc_fail(err, SC_E_BUSY, "etcd has not answered when it was asked for what versions are made of: "
			       "nothing was changed; try again");
	return x.failed ? sc_nomem(err) : 0;
}

void rs_sweeping_line(const struct rs_object_name *name, char ret[RS_SWEEPING_LINE + 1])
{
	(void)sc_hex(ret, name->at, RS_SWEEPING_LINE / 2);
	(void)snprintf(ret + RS_SWEEPING_LINE - 1, 2, "\n");
}

static int line_order(const void *a, const void *b)
{
	return memcmp(a, b, RS_SWEEPING_LINE);
}

/* Tells whether the sweep may remove an object next: lines are in order. */
static bool is_swept(const struct rs_bag *bag, const struct rs_object_name *name)
{
	char line[RS_SWEEPING_LINE + 1];

	if (!bag->sweeping.bytes)
		return false;
	rs_sweeping_line(name, line);
	return bsearch(line, bag->sweeping.text, bag->sweeping.bytes / RS_SWEEPING_LINE, RS_SWEEPING_LINE,
		       line_order) != NULL;
}

/*
 * Puts an object again, if etcd lacks it, or the sweep has announced it.  Sets, trees and datasets are not put again:
 * the version below has them, or the one that a rollback is to, and who names them compares the head, as of which these
 * were not dropped.  So an announced one that is there stays: the sweep has looked once more.  It is one that a command
 * had put which failed, and that was named when the command was tried again with the same files.
 */
static int stay(struct rs_member *m, struct rs_bag *bag, const struct rs_object_name *name, struct sc_err *err)
{
	const bool swept = is_swept(bag, name);
	int rc = swept ? 0 : are_there(m, name, 1, err);

	if (rc)
		return rc < 0 ? rc : 0;
	rc = rs_objects_put_again(m->s, name, &rs_bag_ops, bag, err);
	if (rc == SC_E_NOT_FOUND && swept) {
		struct sc_err lacks = *err;

		rc = are_there(m, name, 1, err);
		if (rc == 0) {
			*err = lacks;
			return SC_E_NOT_FOUND;
		}
	}
	return rc < 0 ? rc : 0;
}

int rs_bag_refer(struct rs_member *m, struct rs_bag *bag, struct sc_err *err)
{
	int rc = read_sweeping(m, bag, err);

	unify(&bag->referred);
	for (size_t i = 0, n; rc >= 0 && i < bag->referred.nr; i += n) {
		const struct rs_object_name *names = bag->referred.at + i;
		bool any = false;

		n = sc_min_u64(bag->referred.nr - i, META_TXN_NODES_MAX);
		for (size_t k = 0; k < n; k++)
			any |= is_swept(bag, &names[k]);
		rc = any ? 0 : are_there(m, names, n, err);
		for (size_t k = 0; rc == 0 && k < n; k++)
			rc = stay(m, bag, &names[k], err);
	}
	return rc < 0 ? rc : 0;
}
