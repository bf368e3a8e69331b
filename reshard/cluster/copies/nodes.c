/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the nodes of the cluster, and keeps the list of those that are to be emptied: a key of etcd, of numbers. */
#include "reshard/cluster/copies/copies_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/cluster/jobs/rows_i.h"

/* --- the table --- */

struct table {
	struct {
		size_t nr, room;
		struct node_line {
			uint32_t node;
			char name[256], address[64], domain[80]; /* address "": it is not registered */
		} *at;
	} nodes;
	bool failed;
};

/* Adds a node that has a number but is not registered; registered nodes come before it. */
static void add_away(struct table *t, const struct meta_record *r)
{
	struct node_line line = {.node = (uint32_t)r->value.number.nr};

	for (size_t i = 0; i < t->nodes.nr; i++)
		if (t->nodes.at[i].node == line.node)
			return;
	(void)snprintf(line.name, sizeof(line.name), "%s", r->key.text);
	t->failed |= sc_vec_push(&t->nodes, line) < 0;
}

static int by_number(const void *a, const void *b)
{
	const struct node_line *x = a, *y = b;

	return x->node < y->node ? -1 : x->node > y->node;
}

static void on_nodes(void *arg, const struct meta_answer *answer)
{
	struct table *t = arg;

	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		struct node_line line = {.node = r->key.node};

		if (r->key.kind == META_KEY_NUMBER && r->present)
			add_away(t, r);
		if (r->key.kind != META_KEY_NODE || !r->present)
			continue;
		(void)snprintf(line.name, sizeof(line.name), "%s", r->value.node.name);
		if (r->value.node.addresses.nr)
			(void)snprintf(line.address, sizeof(line.address), "%s", r->value.node.addresses.at[0]);
		if (r->value.node.domain && *r->value.node.domain)
			(void)snprintf(line.domain, sizeof(line.domain), ", domain=%s", r->value.node.domain);
		t->failed |= sc_vec_push(&t->nodes, line) < 0;
	}
}

static bool has(const uint32_t *at, size_t nr, uint32_t node)
{
	for (size_t i = 0; i < nr; i++)
		if (at[i] == node)
			return true;
	return false;
}

bool rs_nodes_keep(const struct rs_member *m)
{
	for (size_t i = 0; i < m->members.nr; i++)
		if (!has(m->drained.at, m->drained.nr, m->members.at[i].node))
			return true;
	return !m->members.nr; /* it is not known who is a member */
}

/* Says of a node that is being emptied whether the others have its files of all jobs.  Under m->lock. */
static const char *drained_text(const struct rs_member *m)
{
	bool lost = false;

	if (!rs_nodes_keep(m))
		return ", draining: all nodes that are here are being emptied, and nobody keeps copies";
	for (size_t i = 0; i < m->jobs.nr; i++) {
		const struct rs_shared *j = m->jobs.at[i];

		if (!j->gone && j->shown && !j->copies.done)
			return ", draining";
		lost |= !j->gone && j->shown && j->copies.all.lost;
	}
	/* which may be its own: it is not known whose they are */
	return lost ? ", draining: a job's status says what is lost" : ", empty";
}

int rs_nodes_table(void *member, struct sc_buf *buf, struct sc_err *err)
{
	struct meta_op lists[] = {{.what = META_LIST, .range = META_RANGE_NODES},
				  {.what = META_LIST, .range = META_RANGE_NUMBERS}};
	struct meta_txn txn = {.nr_then = 2, .then = lists};
	struct rs_member *m = member;
	struct table t = {.failed = false};

	if (rs_member_ask(m, &txn, on_nodes, &t) != META_APPLIED) {
		sc_vec_done(&t.nodes);
		return sc_fail(err, SC_E_SYSTEM, "etcd does not answer: the nodes of cluster '%s' are not known now",
			       m->cluster);
	}
	if (t.nodes.nr)
		qsort(t.nodes.at, t.nodes.nr, sizeof(*t.nodes.at), by_number);
	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < t.nodes.nr; i++) {
		const struct node_line *n = &t.nodes.at[i];
		const bool drained = has(m->drained.at, m->drained.nr, n->node);

		sc_buf_line(buf, "%u %s %s %s%s%s", n->node, n->name, *n->address ? n->address : "-",
			    !*n->address		? "away"
			    : rs_near_is_here(m, n->node) ? "member"
							  : "no member yet", n->domain,
			    drained ? drained_text(m) : "");
	}
	(void)pthread_mutex_unlock(&m->lock);
	sc_vec_done(&t.nodes);
	return t.failed ? sc_nomem(err) : 0;
}

/* --- drain --- */

static void on_number(void *arg, const struct meta_answer *answer)
{
	if (answer->nr && answer->records[0].present)
		*(uint64_t *)arg = answer->records[0].value.number.nr;
}

static int number_of(struct rs_member *m, const char *name, uint32_t *ret, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = {.kind = META_KEY_NUMBER, .text = name}};
	struct meta_txn txn = {.nr_then = 1, .then = &get};
	uint64_t nr = 0;

	if (strlen(name) > 255 || strpbrk(name, "/ \t\n"))
		return sc_fail(err, SC_E_COMMAND, "'%.80s' is no name of a node", name);
	if (rs_member_ask(m, &txn, on_number, &nr) != META_APPLIED)
		return rs_edit_deaf(err);
	*ret = (uint32_t)nr;
	return nr ? 0 : sc_fail(err, SC_E_NOT_FOUND, "cluster '%s' has no node '%s': see .ctl/nodes", m->cluster, name);
}

struct draining {
	struct rs_member *m;
	const char *name;
	uint32_t node;
	bool drains;
};

static const char *next_line(const char *at)
{
	at = strchr(at, '\n');
	return at && at[1] ? at + 1 : NULL;
}

/* Refuses to have a node emptied if no member would keep copies then.  `text`: the nodes that are emptied, with it. */
static int needs_keeper(const struct draining *x, const char *text, struct sc_err *err)
{
	bool is = false;

	(void)pthread_mutex_lock(&x->m->lock);
	for (size_t i = 0; !is && i < x->m->members.nr; i++) {
		char line[16];
		const char *at = text;
		const size_t bytes = (size_t)snprintf(line, sizeof(line), "%u\n", x->m->members.at[i].node);

		while (at && strncmp(at, line, bytes) != 0)
			at = next_line(at);
		is = !at;
	}
	(void)pthread_mutex_unlock(&x->m->lock);
	return is ? 0 : sc_fail(err, SC_E_BUSY, "drain: without node '%s' no node would be left that keeps copies, as "
				"all others that are here are being emptied: mount another one first, or take one of "
				"them back ('-NAME')", x->name);
}

static int drain_once(void *arg, struct sc_err *err)
{
	const struct draining *x = arg;
	const struct meta_key key = {.kind = META_KEY_DRAIN};
	struct rs_edit c = {.nr_then = 0};
	struct sc_buf text = {0};
	struct rs_got got;
	char line[16];
	int rc = rs_member_get(x->m, key, &got, err);
	char *at = rc == 0 ? got.text : NULL;
	bool is = false;

	(void)snprintf(line, sizeof(line), "%u", x->node);
	for (char *next; at && *at; at = next) {
		next = at + strcspn(at, "\n");
		next += *next == '\n' ? (*next = 0, 1) : 0;
		if (strcmp(at, line) == 0)
			is = true;
		else
			sc_buf_printf(&text, "%s\n", at);
	}
	if (x->drains)
		sc_buf_printf(&text, "%s\n", line);
	if (rc == 0 && text.failed)
		rc = sc_nomem(err);
	if (rc == 0 && x->drains && !is)
		rc = needs_keeper(x, text.text, err);
	if (rc == 0 && is != x->drains) {
		rs_edit_expect(&c, key, got.mod);
		rs_edit_op(&c, META_PUT, key)->value.rest = text.text ? text.text : "";
		rc = rs_edit_make(x->m, &c);
	}
	sc_buf_done(&text);
	sc_sys.release(got.text);
	return rc;
}

int rs_nodes_drain(void *member, const char *text, struct sc_err *err)
{
	struct draining x = {.m = member, .name = text, .drains = *text != '-'};
	int rc = number_of(x.m, text + !x.drains, &x.node, err);

	return rc < 0 ? rc : rs_edit_until(x.m, 0, drain_once, &x, SC_E_STALE, err);
}
