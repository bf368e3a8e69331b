/* SPDX-License-Identifier: Apache-2.0 */
/* Reads keys of etcd for a command, and changes them if they are still as they were read. */
#include "reshard/rows/rows_i.h"

#include <errno.h>
#include <string.h>

int rs_member_token(uint64_t *ret, struct sc_err *err)
{
	do {
		if (sc_sys.random(ret, sizeof(*ret), 0) != (ssize_t)sizeof(*ret))
			return sc_fail_sys(err, errno, "cannot get a random number");
		*ret >>= 4;
	} while (!*ret);
	return 0;
}

struct meta_key rs_key_of(enum meta_key_kind kind, uint64_t job)
{
	return (struct meta_key){.kind = kind, .job = job};
}

static void on_got(void *arg, const struct meta_answer *answer)
{
	const struct meta_record *r = answer->records;
	struct rs_got *g = arg;

	g->is = answer->nr && r->present;
	if (!g->is)
		return;
	g->mod = r->mod;
	if (r->key.kind == META_KEY_PROPOSAL)
		g->token = r->value.proposal.token;
	else if (r->key.kind != META_KEY_NAME)
		g->failed = !(g->text = sc_strdup(r->value.rest ? r->value.rest : ""));
}

int rs_member_get(struct rs_member *m, struct meta_key key, struct rs_got *ret, struct sc_err *err)
{
	struct meta_op op = {.what = META_GET, .key = key};
	struct meta_txn txn = {.nr_then = 1, .then = &op};

	*ret = (struct rs_got){.is = false};
	if (rs_member_ask(m, &txn, on_got, ret) != META_APPLIED)
		return sc_fail(err, SC_E_SYSTEM, "etcd does not answer; nothing was changed, try again");
	return ret->failed ? sc_nomem(err) : 0;
}

void rs_edit_expect(struct rs_edit *c, struct meta_key key, uint64_t mod)
{
	c->compares[c->nr_compares++] = (struct meta_compare){.what = META_MOD_IS, .key = key, .revision = mod};
}

struct meta_op *rs_edit_op(struct rs_edit *c, int what, struct meta_key key)
{
	struct meta_op *o = &c->then[c->nr_then++];

	*o = (struct meta_op){.what = what, .key = key, .value = {.kind = key.kind}};
	return o;
}

static void on_revision(void *arg, const struct meta_answer *answer)
{
	*(uint64_t *)arg = answer->revision;
}

enum meta_outcome rs_edit_make(struct rs_member *m, struct rs_edit *c)
{
	struct meta_txn txn = {.compares = c->compares, .then = c->then};

	rs_edit_op(c, META_PUT, (struct meta_key){.kind = META_KEY_TICK})->value.rest = "";
	txn.nr_compares = c->nr_compares;
	txn.nr_then = c->nr_then;
	return rs_member_ask(m, &txn, on_revision, &c->revision);
}

int rs_edit_unknown(struct rs_member *m, struct sc_err *err)
{
	return rs_ask_failed(m, err, "etcd does not answer: the change may come about later, or not");
}

int rs_edit_again(struct sc_err *err)
{
	return sc_fail(err, SC_E_BUSY, "other nodes change the same; try again");
}
