/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the number of the protocol that all nodes of a cluster speak.  A program may speak several, and each node says
 * which; all nodes change at one revision of etcd.
 *
 * 1. All members speak the new number when it is put, and no node has become a member since they were looked at.
 * 2. A node that becomes one later knows the number by then: it is below all/, as the list of members is.
 */
#include "reshard/cluster/copies/copies_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "reshard/cluster/jobs/rows_i.h"

struct speaks {
	uint64_t members_mod, protocol_mod, min, max;	/* min, max: of what all members speak */
	uint8_t is;			/* that they speak, 0: nobody has changed it */
	uint32_t first;			/* a member that does not speak `wanted`, 0: all do */
	uint8_t wanted;
	char name[256];			/* of that node */
};

static const struct meta_node_value *node_in(const struct meta_answer *answer, const struct meta_member *m)
{
	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];

		if (r->key.kind == META_KEY_NODE && r->present && r->key.node == m->node && r->create == m->epoch)
			return &r->value.node;
	}
	return NULL;
}

static void on_members(struct speaks *s, const struct meta_answer *answer, const struct meta_members_value *all)
{
	for (uint32_t i = 0; i < all->nr; i++) {
		const struct meta_node_value *n = node_in(answer, &all->at[i]);
		const bool does = n && n->protocol_min <= s->wanted && s->wanted <= n->protocol_max;

		if (n) {
			s->min = sc_max_u64(s->min, n->protocol_min);
			s->max = sc_min_u64(s->max, n->protocol_max);
		}
		if (!does && !s->first) { /* one that has just gone, too: it may come back */
			s->first = all->at[i].node;
			(void)snprintf(s->name, sizeof(s->name), "%s", n ? n->name : "");
		}
	}
}

static void on_read(void *arg, const struct meta_answer *answer)
{
	struct speaks *s = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];

		if (r->key.kind == META_KEY_MEMBERS && r->present) {
			s->members_mod = r->mod;
			on_members(s, answer, &r->value.members);
		} else if (r->key.kind == META_KEY_PROTOCOL && r->present) {
			s->protocol_mod = r->mod;
			s->is = rs_protocol_in(r);
		}
	}
}

/* RS_EDIT_DONE, RS_EDIT_DEAF or an error. */
static int look(struct rs_member *m, uint8_t wanted, struct speaks *ret, struct sc_err *err)
{
	struct meta_op ops[] = {{.what = META_LIST, .range = META_RANGE_NODES},
				{.what = META_GET, .key = {.kind = META_KEY_MEMBERS}},
				{.what = META_GET, .key = {.kind = META_KEY_PROTOCOL}}};
	struct meta_txn txn = {.nr_then = 3, .then = ops};

	*ret = (struct speaks){.wanted = wanted, .max = UINT8_MAX};
	if (rs_member_ask(m, &txn, on_read, ret) != META_APPLIED)
		return RS_EDIT_DEAF;
	return ret->members_mod ? 0 : sc_fail(err, SC_E_BUSY, "no node is a member now; try again");
}

int rs_cluster_text(void *member, struct sc_buf *buf, struct sc_err *err)
{
	struct rs_member *m = member;
	struct speaks s;
	int rc = look(m, 0, &s, err);

	if (rc)
		return rc < 0 ? rc : sc_fail(err, SC_E_SYSTEM, "etcd does not answer: what the nodes of cluster '%s' "
					     "speak is not known now", m->cluster);
	sc_buf_line(buf, "cluster: '%s'", m->cluster);
	sc_buf_line(buf, "protocol: %u", m->protocol);
	sc_buf_line(buf, "all_speak: %" PRIu64 " to %" PRIu64, s.min, s.max);
	sc_buf_line(buf, "registrations_ms: %" PRId64, m->times.ttl / MEMBER_MS);
	sc_buf_line(buf, "fresh_ms: %" PRId64, m->times.fresh / MEMBER_MS);
	return 0;
}

struct speaking {
	struct rs_member *m;
	uint8_t wanted;
};

static int speak_once(void *arg, struct sc_err *err)
{
	const struct speaking *x = arg;
	const struct meta_key key = {.kind = META_KEY_PROTOCOL};
	const uint8_t wanted = x->wanted;
	struct rs_edit c = {.nr_then = 0};
	struct speaks s;
	char text[16];
	int rc = look(x->m, wanted, &s, err);

	if (rc || s.is == wanted)
		return rc;
	if (s.first)
		return sc_fail(err, SC_E_BUSY, "node '%s' (number %u) does not speak protocol %u: start a program "
			       "there that does, or end that node, and try again", s.name, s.first, wanted);
	rs_edit_expect(&c, (struct meta_key){.kind = META_KEY_MEMBERS}, s.members_mod);
	rs_edit_expect(&c, key, s.protocol_mod);
	(void)snprintf(text, sizeof(text), "%u", wanted);
	rs_edit_op(&c, META_PUT, key)->value.rest = text;
	return rs_edit_make(x->m, &c);
}

int rs_cluster_set(void *member, const char *text, struct sc_err *err)
{
	static const char word[] = "protocol=";
	struct speaking x = {.m = member};
	uint32_t wanted;

	if (strncmp(text, word, sizeof(word) - 1) != 0 ||
	    !sc_number_parse(text + sizeof(word) - 1, strlen(text) - sizeof(word) + 1, &wanted) || !wanted ||
	    wanted > UINT8_MAX)
		return sc_fail(err, SC_E_COMMAND, "'%.40s': write protocol=N, a number of 1 to %u", text, UINT8_MAX);
	x.wanted = (uint8_t)wanted;
	return rs_edit_until(x.m, 0, speak_once, &x, SC_E_STALE, err);
}
