/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds or makes, before there is a thread, the cluster's own key and secret, which the first node makes, and this
 * node's number, which it has for ever.  A transaction that finds a key absent makes it; then it is read, whoever made
 * it.
 *
 * 1. A number belongs to one store, for ever: etcd's `bound` names it.  A store that is in a cluster makes none of
 *    these keys but the secret: what etcd lacks of the others, it has lost.
 * 2. One daemon at a time has a number, with whatever copy of its store.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TRIES 20
#define PAUSE_MS 500			/* between tries of a mount that waits for etcd as long as it takes */
#define ANSWER_MS 3000
#define FRESH_MS 1000
#define TTL_MS 10000
#define ALONE_MS 100
#define LOOK_MS 50			/* for a signal, while etcd is waited for */
#define SILENT_NS (1000 * MEMBER_MS)	/* of etcd, until it is said */
#define ASKED (UINT64_C(1) << 32)	/* numbers of requests here are larger, those of the node's thread smaller */

static int check_end(const struct rs_member *m, struct sc_err *err)
{
	if (!m->boot.ends || !m->boot.ends(m->boot.arg))
		return 0;
	return sc_fail(err, SC_E_CANCELLED, "a signal or umount has ended the mount while it waited for etcd");
}

/* Tells who looks at the mount that it waits, from a second without an answer on. */
static void tell_silent(struct rs_member *m)
{
	char text[1024];

	if (sc_now_ns() - m->silent_ns < SILENT_NS)
		return;
	(void)snprintf(text, sizeof(text), "etcd at %s does not answer: the mount of node '%s' waits for it",
		       m->servers, m->name);
	if (!m->told_silent)
		sc_log(SC_LOG_WARN, "%s", text);
	m->told_silent = true;
	if (m->boot.waits)
		m->boot.waits(text);
}

static void answered(struct rs_member *m)
{
	if (m->told_silent && m->boot.waits)
		m->boot.waits("");
	m->told_silent = false;
	m->silent_ns = 0;
}

/* Waits for the answer to a request: 1 and *ret, which lives until the next one; 0 (no answer has come); or an error,
 * also when a signal has come. */
static int wait_for(struct rs_member *m, uint64_t id, const struct meta_etcd_event **ret, struct sc_err *err)
{
	const int64_t until = sc_now_ns() + ANSWER_MS * MEMBER_MS;
	int rc = 0;

	m->silent_ns = m->silent_ns ? m->silent_ns : sc_now_ns();
	while ((rc = check_end(m, err)) == 0 && sc_now_ns() < until) {
		if (meta_etcd_next(m->etcd, LOOK_MS, ret) && (*ret)->kind == META_ETCD_ANSWER && (*ret)->id == id) {
			if ((*ret)->answer.outcome != META_UNKNOWN)
				answered(m);
			return 1;
		}
		tell_silent(m);
	}
	return rc;
}

/* Waits until the next try, of a mount that waits as long as it takes. */
static int pause_tries(struct rs_member *m, struct sc_err *err)
{
	const int64_t until = sc_now_ns() + PAUSE_MS * MEMBER_MS;
	const struct meta_etcd_event *ignored;
	int rc;

	while ((rc = check_end(m, err)) == 0 && sc_now_ns() < until)
		(void)meta_etcd_next(m->etcd, LOOK_MS, &ignored);
	tell_silent(m);
	return rc;
}

/* Carries out a transaction, and waits for its answer, which lives until the next one. */
static int ask(struct rs_member *m, const struct meta_txn *txn, const struct meta_answer **ret, struct sc_err *err)
{
	struct sc_err why = {0};

	for (int i = 0; m->boot.is_patient || i < TRIES; i++) {
		const uint64_t id = ASKED + ++m->asked;
		const struct meta_etcd_event *v;
		int rc = i && m->boot.is_patient ? pause_tries(m, err) : 0;

		if (rc == 0)
			rc = meta_etcd_txn(m->etcd, id, txn, err);
		if (rc == 0)
			rc = wait_for(m, id, &v, err);
		if (rc < 0)
			return rc;
		if (rc && v->lost) {
			*err = v->err;
			return err->code;
		}
		if (rc && v->answer.outcome != META_UNKNOWN) {
			*ret = &v->answer;
			return 0;
		}
		if (rc)
			why = v->err;
	}
	return sc_fail(err, SC_E_SYSTEM, "etcd does not answer%s%s: look at etcd=, and whether it has a majority",
		       why.code ? ": " : "", why.code ? why.msg : "");
}

/* Reads a key: *ret lives until the next answer; NULL: it is absent. */
static int read_key(struct rs_member *m, struct meta_key key, const struct meta_record **ret, struct sc_err *err)
{
	struct meta_op get = {.what = META_GET, .key = key};
	struct meta_txn read = {.nr_then = 1, .then = &get};
	const struct meta_answer *answer;
	int rc = ask(m, &read, &answer, err);

	if (rc == 0)
		*ret = answer->nr && answer->records[0].present ? &answer->records[0] : NULL;
	return rc;
}

/* Reads a key; if it is absent, puts `value` there.  *ret lives until the next answer. */
static int make(struct rs_member *m, struct meta_key key, const struct meta_value *value,
		const struct meta_record **ret, struct sc_err *err)
{
	struct meta_compare none = {.what = META_CREATE_IS, .key = key};
	struct meta_op put = {.what = META_PUT, .key = key, .value = *value};
	struct meta_txn txn = {.nr_compares = 1, .compares = &none, .nr_then = 1, .then = &put};
	const struct meta_answer *ignored;
	int rc = ask(m, &txn, &ignored, err);

	if (rc == 0)
		rc = read_key(m, key, ret, err);
	return rc == 0 && !*ret ? sc_fail(err, SC_E_SYSTEM, "etcd lacks a key that was just made: does somebody "
					  "remove keys?") : rc;
}

static int random_bytes(void *to, size_t bytes, struct sc_err *err)
{
	return sc_sys.random(to, bytes, 0) == (ssize_t)bytes ? 0 : sc_fail_sys(err, errno, "cannot get random bytes");
}

/* Keys that were made anew from a backup begin with another era, in which etcd's revisions are others.  The catalog
 * learns of it when all else is right. */
static int boot_era(struct rs_member *m, uint64_t era, struct sc_err *err)
{
	m->era = era;
	if (m->joined.is && era < m->joined.era)
		return sc_fail(err, SC_E_STALE, "etcd has the keys of cluster '%s' in era %" PRIu64 ", and this store "
			       "knows those of era %" PRIu64 ": it is an older copy; give it the newest copy of its "
			       "data; nothing was changed", m->cluster, era, m->joined.era);
	if (era == m->joined.era)
		meta_etcd_saw(m->etcd, m->joined.revision);
	return 0;
}

static int boot_cluster(struct rs_member *m, struct sc_err *err)
{
	struct meta_value v = {.kind = META_KEY_CLUSTER,
			       .cluster = {.protocol_min = rs_protocols.max, .protocol_max = rs_protocols.max,
					   .copies = 2, .fresh_ms = FRESH_MS, .ttl_ms = TTL_MS, .domains = ""}};
	const struct meta_record *r;
	const struct meta_cluster_value *c;
	struct rs_core_times *t = &m->times;
	const struct meta_key key = {.kind = META_KEY_CLUSTER};
	int rc = random_bytes(v.cluster.id, sizeof(v.cluster.id), err);

	if (rc == 0)
		rc = m->joined.is ? read_key(m, key, &r, err) : make(m, key, &v, &r, err);
	if (rc == 0 && m->joined.is && !r)
		rc = sc_fail(err, SC_E_STATE, "etcd has no cluster '%s', of which this store is node %u: it has "
			     "lost its data, or is another one; look at etcd=, give etcd the newest copy of its "
			     "data, or make its keys anew: 'scalai cluster rebuild'; nothing was changed",
			     m->cluster, m->joined.node);
	if (rc < 0)
		return rc;
	c = &r->value.cluster;
	if (m->joined.is && memcmp(c->id, m->joined.id, sizeof(c->id)) != 0)
		return sc_fail(err, SC_E_STATE, "this store is node %u of another cluster '%s', which had another "
			       "id: look at etcd=, give etcd the newest copy of its data, or make its keys anew: "
			       "'scalai cluster rebuild'; nothing was changed", m->joined.node, m->cluster);
	m->protocol = m->protocol_made = (uint8_t)sc_min_u64(c->protocol_max, UINT8_MAX);
	if (c->ttl_ms < 1000 || c->ttl_ms > 600000 || !c->fresh_ms || c->fresh_ms > c->ttl_ms)
		return sc_fail(err, SC_E_LIMIT, "cluster '%s' has a TTL of %" PRIu64 " ms and tells what it knows for "
			       "%" PRIu64 " ms; a TTL is 1 to 600 s, and longer", m->cluster, c->ttl_ms,
			       c->fresh_ms);
	memcpy(m->id, c->id, sizeof(m->id));
	m->copies = (uint32_t)sc_min_u64(c->copies ? c->copies : 1, 16);
	*t = (struct rs_core_times){.fresh = (int64_t)c->fresh_ms * MEMBER_MS, .drift_ppm = 10000,
				    .slack = 50 * MEMBER_MS, .ttl = (int64_t)c->ttl_ms * MEMBER_MS};
	t->renew = t->ttl / 5;
	t->fence = t->ttl / 4 * 3;
	t->keep = t->ttl / 20;
	t->resend = 200 * MEMBER_MS;
	t->low = t->care = t->ttl / 4;
	return boot_era(m, c->era, err);
}

/* Reads the number of the protocol: that of `meta`, unless it was changed. */
static int boot_protocol(struct rs_member *m, struct sc_err *err)
{
	const struct meta_record *r;
	int rc = read_key(m, (struct meta_key){.kind = META_KEY_PROTOCOL}, &r, err);

	if (rc < 0)
		return rc;
	if (r)
		m->protocol = rs_protocol_in(r);
	return rs_protocol_check(m, m->protocol, err);
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int boot_secret(struct rs_member *m, struct sc_err *err)
{
	uint8_t made[RS_SECRET_BYTES];
	char text[2 * RS_SECRET_BYTES + 1];
	struct meta_value v = {.kind = META_KEY_SECRET, .rest = text};
	const struct meta_record *r;
	int rc = random_bytes(made, sizeof(made), err);

	if (rc == 0) {
		(void)sc_hex(text, made, sizeof(made));
		rc = make(m, (struct meta_key){.kind = META_KEY_SECRET, .nr = 1}, &v, &r, err);
	}
	if (rc == 0 && (!r->value.rest || strlen(r->value.rest) != 2 * RS_SECRET_BYTES))
		rc = sc_fail(err, SC_E_FORMAT, "the secret of cluster '%s' is not 64 hexadecimal digits",
			     m->cluster);
	for (size_t i = 0; rc == 0 && i < RS_SECRET_BYTES; i++) {
		int high = hex(r->value.rest[2 * i]), low = hex(r->value.rest[2 * i + 1]);

		if (high < 0 || low < 0)
			return sc_fail(err, SC_E_FORMAT, "the secret of cluster '%s' is not 64 hexadecimal digits",
				       m->cluster);
		m->secret[i] = (uint8_t)(high << 4 | low);
	}
	return rc;
}

static int refuse_store(const struct rs_member *m, uint32_t node, struct sc_err *err)
{
	if (m->joined.is)
		return sc_fail(err, SC_E_STATE, "this store is another node's, number %u: a store belongs to one "
			       "node of one cluster for ever; mount it with the cluster= and node= that it was first "
			       "mounted with", m->joined.node);
	return sc_fail(err, SC_E_STATE, "node '%s' (number %u) has, or had, another store, and its files may be in "
		       "that one only: mount that; if it is lost, write '%s' to .ctl/drain on another node, and mount "
		       "this one under a name that no node had", m->name, node, m->name);
}

/* Checks that the node's number belongs to this store. */
static int boot_store(struct rs_member *m, const struct meta_bound_value *mine, struct sc_err *err)
{
	const struct meta_key key = {.kind = META_KEY_BOUND, .node = m->node};
	const struct meta_record *r;
	int rc;

	if (m->joined.is && m->joined.node != m->node)
		return refuse_store(m, m->node, err);
	rc = read_key(m, key, &r, err);
	if (rc < 0)
		return rc;
	if (r && memcmp(r->value.bound.store, mine->store, sizeof(mine->store)) == 0)
		return 0;
	if (!m->joined.is)
		return refuse_store(m, m->node, err);
	if (!r)
		return sc_fail(err, SC_E_STALE, "etcd has lost the key that says which store node '%s' (number %u) "
			       "has: give it the newest copy of its data, or make its keys anew: 'scalai cluster "
			       "rebuild'; nothing was changed", m->name, m->node);
	return sc_fail(err, SC_E_STATE, "node '%s' (number %u) has another store than this one: mount that", m->name,
		       m->node);
}

/* Takes away the registration of the daemon that had this store before, if it was killed.  An answer of any kind will
 * do, as the core does the same. */
static void end_last_life(struct rs_member *m)
{
	const uint64_t id = ASKED + ++m->asked;
	const struct meta_etcd_event *ignored;
	struct sc_err err;

	if (m->lease && meta_etcd_revoke(m->etcd, id, m->lease, &err) == 0)
		(void)wait_for(m, id, &ignored, &err);
}

/* Waits until no other daemon is registered.  A registration that is not of this store's last life is of a daemon that
 * lives, or of one that died before it could note it in its catalog: that one goes by itself. */
static int boot_alone(struct rs_member *m, struct sc_err *err)
{
	/* an etcd that was started lets it begin anew */
	const int64_t until = sc_now_ns() + 2 * m->times.ttl + 10 * ALONE_MS * MEMBER_MS;
	const struct meta_key key = {.kind = META_KEY_NODE, .node = m->node};
	const struct meta_etcd_event *ignored;
	const struct meta_record *r;
	const char *at;
	int rc;

	end_last_life(m);
	for (;;) {
		rc = read_key(m, key, &r, err);
		if (rc < 0 || !r)
			return rc;
		if (sc_now_ns() >= until)
			break;
		(void)meta_etcd_next(m->etcd, ALONE_MS, &ignored);
	}
	at = r->value.node.addresses.nr ? r->value.node.addresses.at[0] : "an unknown address";
	return sc_fail(err, SC_E_BUSY, "node '%s' (number %u) is mounted already, at %s: a node has one store, of "
		       "which one copy is mounted at a time; unmount it there, or give this node another name and a "
		       "store of its own", m->name, m->node, at);
}

/* Reads the number of this node's name, and gives the name the next number if it has none. */
static int boot_number(struct rs_member *m, const struct meta_bound_value *mine, struct sc_err *err)
{
	struct meta_key name = {.kind = META_KEY_NUMBER, .text = m->name}, last = {.kind = META_KEY_NUMBERS};
	struct meta_op get[] = {{.what = META_GET, .key = name}, {.what = META_GET, .key = last}};
	struct meta_txn read = {.nr_then = 2, .then = get};

	for (int i = 0; i < TRIES; i++) {
		const struct meta_answer *a;
		uint64_t n;
		int rc = ask(m, &read, &a, err);

		if (rc < 0)
			return rc;
		if (a->nr == 2 && a->records[1].present)
			m->last = (uint32_t)a->records[1].value.number.nr;
		if (a->nr == 2 && a->records[0].present) {
			m->node = (uint32_t)a->records[0].value.number.nr;
			return boot_store(m, mine, err);
		}
		if (m->joined.is)
			return refuse_store(m, 0, err);
		n = a->nr == 2 && a->records[1].present ? a->records[1].value.number.nr + 1 : 1;
		if (n >= META_NODES_MAX)
			return sc_fail(err, SC_E_LIMIT, "cluster '%s' has had %u nodes, which is the limit",
				       m->cluster, META_NODES_MAX - 1);
		{
			const struct meta_key bound = {.kind = META_KEY_BOUND, .node = (uint32_t)n};
			struct meta_compare compares[] = {
				{.what = META_CREATE_IS, .key = name},
				{.what = META_MOD_IS, .key = last, .revision = n > 1 ? a->records[1].mod : 0}};
			struct meta_op put[] = {
				{.what = META_PUT, .key = name, .value = {.kind = META_KEY_NUMBER, .number = {n}}},
				{.what = META_PUT, .key = last, .value = {.kind = META_KEY_NUMBERS, .number = {n}}},
				{.what = META_PUT, .key = bound, .value = {.kind = META_KEY_BOUND, .bound = *mine}}};
			struct meta_txn txn = {.nr_compares = 2, .compares = compares, .nr_then = 3, .then = put};

			rc = ask(m, &txn, &a, err); /* whatever came of it, the next reading tells */
		}
		if (rc < 0)
			return rc;
	}
	return sc_fail(err, SC_E_BUSY, "other nodes join at the same time; try again");
}

/* Makes the list of domains as it is to be: without this node's line, or with another one.  1: the list is so
 * already. */
static int with_domain(const struct rs_member *m, const char *is, struct sc_buf *to)
{
	const size_t bytes = strlen(m->domain);
	const char *p = is, *name;
	unsigned long node;
	bool has = !bytes;

	for (const char *from = p; rs_domain_line(&p, &node, &name); from = p) {
		const bool same = bytes && (size_t)(p - name) == bytes + 1 && memcmp(name, m->domain, bytes) == 0;

		if (node != m->node || same)
			sc_buf_add(to, from, (size_t)(p - from));
		has |= node == m->node && same;
	}
	if (!has)
		sc_buf_printf(to, "%u %s\n", m->node, m->domain);
	return !to->failed && strcmp(to->text ? to->text : "", is) == 0;
}

/* Puts this node's domain into the list before it matters: all nodes have to agree who is in which domain, also of
 * nodes that are away. */
static int boot_domain(struct rs_member *m, struct sc_err *err)
{
	struct meta_key key = {.kind = META_KEY_DOMAINS};

	for (int i = 0; i < TRIES; i++) {
		const struct meta_answer *ignored;
		const struct meta_record *r;
		struct sc_buf text = {0};
		int rc = read_key(m, key, &r, err), is = 0;

		if (rc < 0)
			return rc;
		is = with_domain(m, r && r->value.rest ? r->value.rest : "", &text);
		if (!is && text.failed)
			rc = sc_nomem(err);
		if (rc == 0 && !is) {
			struct meta_compare same = {.what = META_MOD_IS, .key = key};
			struct meta_op put[] = {{.what = META_PUT, .key = key, .value = {.kind = META_KEY_DOMAINS}},
						{.what = META_PUT, .key = {.kind = META_KEY_TICK},
						 .value = {.kind = META_KEY_TICK, .rest = ""}}};
			struct meta_txn txn = {.nr_compares = 1, .compares = &same, .nr_then = 2, .then = put};

			same.revision = r ? r->mod : 0;
			put[0].value.rest = text.text ? text.text : "";
			rc = ask(m, &txn, &ignored, err);
		}
		sc_buf_done(&text);
		if (rc < 0 || is)
			return rc;
	}
	return sc_fail(err, SC_E_BUSY, "other nodes change their domains at the same time; try again");
}

int rs_member_boot(struct rs_member *m, struct sc_err *err)
{
	struct meta_bound_value mine = {.blob = 1};
	int rc = meta_store_identity(m->s->catalog, (uint8_t *)mine.store, err);

	if (rc == 0)
		rc = boot_cluster(m, err);
	if (rc == 0)
		rc = boot_protocol(m, err);
	if (rc == 0)
		rc = boot_secret(m, err);
	if (rc == 0)
		rc = boot_number(m, &mine, err);
	if (rc == 0)
		rc = boot_alone(m, err);
	return rc < 0 ? rc : boot_domain(m, err);
}

int rs_member_boot_numbers(struct rs_member *m, struct sc_err *err)
{
	const struct meta_key key = {.kind = META_KEY_BOUND, .node = m->node};
	const struct meta_answer *answer;
	const struct meta_record *r;
	struct meta_numbers first, end;
	struct rs_bound_edit e;
	int rc = 0;

	for (int i = 0; rc == 0 && i < TRIES; i++) {
		rc = meta_numbers_next(m->s->catalog, &first, err);
		if (rc == 0)
			rc = read_key(m, key, &r, err);
		if (rc == 0 && !r)
			rc = sc_fail(err, SC_E_SYSTEM, "etcd lacks a key that was just read: does somebody remove "
				     "keys?");
		if (rc < 0)
			return rc;
		rs_bound_after(m, &r->value.bound, &first, &end);
		rs_bound_edit(m, &r->value.bound, r->mod, &end, &e);
		rc = ask(m, &e.txn, &answer, err);
		if (rc < 0 || answer->outcome != META_APPLIED)
			continue;
		m->bound.is = e.put.value.bound;
		m->bound.jobs = m->bound.is.jobs;
		m->bound.mod = answer->revision;
		return meta_numbers_from(m->s->catalog, &first, &end, err);
	}
	return rc < 0 ? rc : sc_fail(err, SC_E_BUSY, "node '%s' is being mounted elsewhere, too; try again", m->name);
}

/* --- another era --- */

struct newest {
	struct rs_member *m;
	struct sc_arena arena;
	struct {
		size_t nr, room;
		struct meta_key *at;	/* of the newest version of each job, as the store knew etcd */
	} keys;
	struct sc_err *err;
};

static int on_newest(void *arg, const char *text, const char *value)
{
	struct newest *n = arg;
	struct meta_value v;
	struct meta_key key;
	int rc = meta_key_parse(n->m->cluster, text, strlen(text), &n->arena, &key, n->err);

	if (rc < 0 || key.kind != META_KEY_HEAD)
		return rc;
	rc = meta_value_parse(META_KEY_HEAD, value, strlen(value), &n->arena, &v, n->err);
	if (rc < 0)
		return rc;
	key = (struct meta_key){.kind = META_KEY_VERSION, .job = key.job, .nr = v.head.nr};
	return sc_vec_push(&n->keys, key) < 0 ? sc_nomem(n->err) : 0;
}

static int on_record(void *arg, const char *text, const char *value)
{
	(void)text;
	sc_buf_add(arg, value, strlen(value));
	return 0;
}

/* Checks that etcd has no other version of a number than this store's backup. */
static int check_version(struct newest *n, const struct meta_key *key, struct sc_err *err)
{
	sc_cleanup(sc_buf_done) struct sc_buf name = {0}, mine = {0}, its = {0};
	const struct meta_record *r;
	int rc = meta_key_print(n->m->cluster, key, &name, err);

	if (rc == 0)
		rc = meta_backup_each(n->m->s->catalog, name.text, on_record, &mine, err);
	if (rc == 0)
		rc = read_key(n->m, *key, &r, err);
	if (rc < 0 || !r || !mine.text) /* it was dropped; where etcd has fewer versions, they are looked at later */
		return rc;
	rc = meta_value_print(&r->value, &its, err);
	if (rc == 0 && (mine.failed || its.failed))
		rc = sc_nomem(err);
	if (rc == 0 && strcmp(mine.text, its.text) != 0)
		rc = sc_fail(err, SC_E_STALE, "etcd has another version %" PRIu64 " of a job than this store: its keys "
			     "were made anew from backups without this store's, and others went on from there; make "
			     "them anew from this store's to see what it has, or mount this node under another name "
			     "with a new store; nothing was changed", key->nr);
	return rc;
}

int rs_member_boot_era(struct rs_member *m, struct sc_err *err)
{
	struct newest n = {.m = m, .err = err};
	int rc = meta_backup_each(m->s->catalog, NULL, on_newest, &n, err);

	for (size_t i = 0; rc == 0 && i < n.keys.nr; i++)
		rc = check_version(&n, &n.keys.at[i], err);
	sc_vec_done(&n.keys);
	sc_arena_done(&n.arena);
	return rc < 0 ? rc : meta_member_set_era(m->s->catalog, m->era, err);
}

void rs_member_end_numbers(struct rs_member *m)
{
	const uint64_t id = ASKED + ++m->asked;
	const int64_t until = sc_now_ns() + ANSWER_MS / 3 * MEMBER_MS;
	const struct meta_etcd_event *v;
	struct meta_numbers next;
	struct rs_bound_edit e;
	struct sc_err ignored;
	bool done = !m->bound.mod || meta_numbers_next(m->s->catalog, &next, &ignored) < 0;

	if (done)
		return;
	rs_bound_edit(m, &m->bound.is, m->bound.mod, &next, &e);
	done = meta_etcd_txn(m->etcd, id, &e.txn, &ignored) < 0;
	while (!done && sc_now_ns() < until)
		while (!done && meta_etcd_next(m->etcd, 20, &v))
			done = v->kind == META_ETCD_ANSWER && v->id == id;
}
