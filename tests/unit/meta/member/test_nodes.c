/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three cores of reshard/cluster/protocol over a real etcd, each by a client and a proxy of its own: topologies written on each
 * in turn, while answers are lost, a watch is cut, a node dies and comes back.  No node shows an older version than
 * anybody has seen; each version is made once; storage settles and old sets go.  77: there is no etcd.
 */
#include "meta/member/etcd.h"
#include "reshard/cluster/protocol/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/support/etcd_server.h"
#include "tests/support/late.h"

#define NODES 3
#define JOB 7
#define MS INT64_C(1000000)
#define PENDING_MAX 256

static struct node {
	struct rs_core *core;
	struct meta_etcd *etcd;
	struct proxy *proxy;
	char url[64];
	uint64_t lease, head, storage; /* on disk */
	struct meta_hash have[200];
	uint32_t nr_have;
	bool served;
} node[NODES];

static struct pending {
	unsigned to;
	struct rs_event event;
	struct meta_set_name set;
} pending[PENDING_MAX];
static unsigned nr_pending;

static struct servers one;
static uint64_t seen, done_token;
static int done_code;
static unsigned deleted, unknown;

static struct meta_hash set_hash(uint64_t nr)
{
	struct meta_hash h = {{(uint8_t)nr, (uint8_t)(nr >> 8), 9}};

	return h;
}

static void later(unsigned to, struct rs_event e)
{
	assert_true(nr_pending < PENDING_MAX);
	e.job = JOB;
	pending[nr_pending++] = (struct pending){to, e, {{{0}}, 0, NULL}};
}

static void keep_have(unsigned i, struct meta_hash set, bool on)
{
	struct node *n = &node[i];
	uint32_t k = 0;

	while (k < n->nr_have && memcmp(&n->have[k], &set, sizeof(set)) != 0)
		k++;
	if (on && k == n->nr_have)
		n->have[n->nr_have++] = set;
	else if (!on && k < n->nr_have)
		n->have[k] = n->have[--n->nr_have];
}

/* All files of a version are here at once. */
static void pulled(unsigned i, uint64_t nr)
{
	static const uint32_t all[NODES] = {0, 1, 2};

	later(i, (struct rs_event){.kind = RS_EV_PLACED, .nr = nr, .nr_nodes = NODES, .nodes = all, .nr_sets = 1});
	pending[nr_pending - 1].set = (struct meta_set_name){set_hash(nr), 0, "model.safetensors"};
	later(i, (struct rs_event){.kind = RS_EV_HAVE, .set = set_hash(nr), .on = true});
	later(i, (struct rs_event){.kind = RS_EV_BYTES, .nr = nr, .landed = true, .on_disk = true});
	keep_have(i, set_hash(nr), true);
}

static void ask(unsigned i, const struct rs_act *a)
{
	struct meta_etcd *e = node[i].etcd;
	struct sc_err err;
	int rc = 0;

	switch (a->kind) {
	case RS_ACT_TXN:
		rc = meta_etcd_txn(e, a->id, &a->txn, &err);
		break;
	case RS_ACT_GRANT:
		rc = meta_etcd_grant(e, a->id, (uint64_t)(a->ttl / (1000 * MS)), &err);
		break;
	case RS_ACT_KEEPALIVE:
		rc = meta_etcd_keepalive(e, a->id, a->lease, &err);
		break;
	case RS_ACT_REVOKE:
		rc = meta_etcd_revoke(e, a->id, a->lease, &err);
		break;
	case RS_ACT_SNAPSHOT:
		rc = meta_etcd_snapshot(e, a->id, &err);
		break;
	default:
		meta_etcd_rewatch(e);
	}
	if (rc < 0)
		fail_msg("%s", err.msg);
}

static void do_job_act(unsigned i, const struct rs_act *a)
{
	struct node *n = &node[i];

	switch (a->kind) {
	case RS_ACT_CHECK:
		later(i, (struct rs_event){.kind = RS_EV_CHECKED, .token = a->token});
		break;
	case RS_ACT_COMPOSE:
		later(i, (struct rs_event){.kind = RS_EV_COMPOSED, .token = a->token, .version = {.topology = "dp=2"}});
		break;
	case RS_ACT_HIDE:
		n->head = a->nr;
		later(i, (struct rs_event){.kind = RS_EV_HIDDEN, .nr = a->nr});
		break;
	case RS_ACT_STORED:
		n->storage = a->nr_sets ? a->sets[0].set.at[0] : 0;
		break;
	case RS_ACT_PULL:
		pulled(i, a->nr);
		break;
	case RS_ACT_DIED:
		later(i, (struct rs_event){.kind = RS_EV_SEEN, .revision = a->revision});
		break;
	case RS_ACT_DELETE:
		keep_have(i, a->set, false);
		deleted++;
		break;
	case RS_ACT_DONE:
		done_token = a->token;
		done_code = a->code;
		if (!a->code && a->nr > seen)
			seen = a->nr;
		break;
	default:
		break;
	}
}

static void do_act(unsigned i, const struct rs_act *a)
{
	switch (a->kind) {
	case RS_ACT_KEEP_LEASE:
		node[i].lease = a->lease;
		break;
	case RS_ACT_SEND:
		if (node[a->node].core)
			later(a->node, (struct rs_event){
					   .kind = RS_EV_MESSAGE, .from = i, .epoch = a->epoch, .message = a->message});
		break;
	case RS_ACT_SERVE:
	case RS_ACT_FENCE:
		node[i].served |= a->kind == RS_ACT_SERVE;
		break;
	default:
		if (a->kind <= RS_ACT_REWATCH)
			ask(i, a);
		else
			do_job_act(i, a);
	}
}

static void give(unsigned i, const struct rs_event *e)
{
	const struct rs_act *a;
	struct sc_err err;

	if (!node[i].core)
		return;
	assert_int_equal(0, rs_core_event(node[i].core, sc_now_ns(), e, &err));
	while ((a = rs_core_next(node[i].core)))
		do_act(i, a);
}

static void take_etcd(unsigned i)
{
	static const enum rs_event_kind kinds[] = {[META_ETCD_ANSWER] = RS_EV_ANSWER,
						   [META_ETCD_SNAPSHOT] = RS_EV_SNAPSHOT,
						   [META_ETCD_WATCH] = RS_EV_WATCH,
						   [META_ETCD_UNWATCHED] = RS_EV_UNWATCHED};
	const struct meta_etcd_event *v;

	while (node[i].core && meta_etcd_next(node[i].etcd, 0, &v)) {
		struct rs_event e = {.kind = kinds[v->kind],
				     .id = v->id,
				     .outcome = v->answer.outcome,
				     .revision = v->answer.revision,
				     .lease = v->lease,
				     .nr_records = v->answer.nr,
				     .records = v->answer.records};

		unknown += v->answer.outcome == META_UNKNOWN && v->kind == META_ETCD_ANSWER;
		give(i, &e);
	}
}

/* One round of everybody; what anybody shows is never older than what anybody has seen. */
static void turn(void)
{
	struct rs_event time = {.kind = RS_EV_TIME};

	for (unsigned i = 0; i < NODES; i++) {
		int64_t until;
		uint64_t now;

		take_etcd(i);
		if (node[i].core && sc_now_ns() >= rs_core_wake(node[i].core))
			give(i, &time);
		now = node[i].core ? rs_core_current(node[i].core, sc_now_ns(), JOB, &until) : 0;
		if (now && now < seen)
			fail_msg("fresh: node %u shows version %lu after %lu was seen", i, now, seen);
		seen = now > seen ? now : seen;
	}
	while (nr_pending) {
		struct pending p = pending[0];

		memmove(pending, pending + 1, --nr_pending * sizeof(*pending));
		if (p.set.file)
			p.event.sets = &p.set;
		give(p.to, &p.event);
	}
	(void)usleep(200);
}

static void turns(int64_t ms)
{
	for (int64_t until = sc_now_ns() + ms * MS; sc_now_ns() < until;)
		turn();
}

static void start(unsigned i)
{
	struct meta_hash known = set_hash(node[i].storage);
	struct rs_core_job job = {JOB, node[i].head, 0, 0, node[i].storage != 0, node[i].nr_have, &known, node[i].have};
	struct rs_core_config config = {.times = {600 * MS, 10000, 50 * MS, 4000 * MS, 800 * MS, 3000 * MS, 200 * MS,
						  200 * MS, 300 * MS, 1000 * MS},
					.node = i,
					.self = {.name = "n", .store = "s"},
					.lease = node[i].lease,
					.keep_versions = 3,
					.nr_jobs = 1,
					.jobs = &job};
	const char *url = node[i].url;
	struct meta_etcd_config to = {
	    .cluster = "nodes", .endpoints = &url, .nr_endpoints = 1, .request_ms = 1000, .connect_ms = 500};
	const struct rs_act *a;
	struct sc_err err;

	assert_int_equal(0, meta_etcd_new(&to, &node[i].etcd, &err));
	assert_int_equal(0, rs_core_new(&config, sc_now_ns(), &node[i].core, &err));
	while ((a = rs_core_next(node[i].core)))
		do_act(i, a);
	if (node[i].head)
		pulled(i, node[i].head);
}

static void stop(unsigned i)
{
	rs_core_free(node[i].core);
	meta_etcd_free(node[i].etcd);
	node[i].core = NULL;
	for (unsigned k = nr_pending; k-- > 0;)
		if (pending[k].to == i)
			memmove(pending + k, pending + k + 1, (--nr_pending - k) * sizeof(*pending));
}

static uint64_t current(unsigned i)
{
	int64_t until;

	return rs_core_current(node[i].core, sc_now_ns(), JOB, &until);
}

static bool all_show(void)
{
	for (unsigned i = 0; i < NODES; i++)
		if (current(i) != seen)
			return false;
	return true;
}

/* All are members, know what is the newest, and have it stored. */
static bool all_settled(void)
{
	for (unsigned i = 0; i < NODES; i++)
		if (node[i].storage != (uint8_t)seen)
			return false;
	return all_show();
}

static bool some_were_deleted(void)
{
	return deleted > 10;
}

/* Takes turns until it is so: at once then, and a minute is against a hang. */
static void turns_until(bool (*is_so)(void), const char *what)
{
	for (int64_t until = sc_now_ns() + 60000 * MS; !is_so(); turn())
		if (sc_now_ns() >= until)
			fail_msg("not within 60 s: %s: %lu is the newest, nodes show %lu, %lu, %lu and have %lu, %lu, %lu stored",
				 what, seen, current(0), current(1), current(2), node[0].storage, node[1].storage,
				 node[2].storage);
}

static uint64_t tokens;

/* Writes a topology on a node until it is taken; how long the last attempt took, in ms. */
static int64_t change(unsigned i)
{
	for (int64_t until = sc_now_ns() + 60000 * MS; sc_now_ns() < until; turns(20)) {
		struct rs_event e = {.kind = RS_EV_COMMAND,
				     .job = JOB,
				     .token = ++tokens,
				     .change = META_BY_TOPOLOGY,
				     .deadline = 10000 * MS};
		int64_t began = sc_now_ns();

		give(i, &e);
		while (done_token != e.token && sc_now_ns() < until)
			turn();
		if (done_token == e.token && done_code == 0)
			return (sc_now_ns() - began) / MS;
	}
	fail_msg("no topology was taken on node %u within 60 s", i);
	return 0;
}

static int by_size(const void *a, const void *b)
{
	return *(const int64_t *)a < *(const int64_t *)b ? -1 : 1;
}

static void each_writes_topologies_and_all_show_them(void **unused)
{
	int64_t ms[60];

	(void)unused;
	for (unsigned i = 0; i < 60; i++) {
		ms[i] = change(i % NODES);
		turns(5);
	}
	turns_until(all_settled, "all nodes show the newest version and have it stored");
	turns_until(some_were_deleted, "sets of old versions are deleted");
	qsort(ms, 60, sizeof(*ms), by_size);
	fprintf(stderr, "60 topologies: propose to shown p50 %ld ms, longest %ld ms; %u sets deleted\n", (long)ms[30],
		(long)ms[59], deleted);
	assert_true(in_time("a topology of 60, from propose to shown, in the median", ms[30], 200));
}

static void lost_answers_and_cut_watches_change_nothing(void **unused)
{
	uint64_t before = seen, tokens_before = tokens;

	(void)unused;
	unknown = 0;
	for (unsigned i = 0; i < 9; i++) {
		struct rs_event e = {.kind = RS_EV_COMMAND,
				     .job = JOB,
				     .token = ++tokens,
				     .change = META_BY_TOPOLOGY,
				     .deadline = 5000 * MS};

		give(i % NODES, &e);
		turns(2 + 3 * i); /* somewhere between propose and shown */
		proxy_lose_answers(node[i % NODES].proxy, "/v3/kv/txn");
		proxy_cut(node[(i + 1) % NODES].proxy);
		turns(300);
		proxy_lose_answers(node[i % NODES].proxy, NULL);
		for (int64_t until = sc_now_ns() + 60000 * MS; done_token != e.token && sc_now_ns() < until;)
			turn();
		assert_int_equal(e.token, done_token);
		turns_until(all_show, "all nodes show the newest version");
	}
	assert_true(unknown > 0);
	(void)change(0);
	turns_until(all_show, "all nodes show the newest version");
	assert_true(seen > before && seen - before <= tokens - tokens_before);
}

static void a_node_dies_and_comes_back(void **unused)
{
	int64_t ms;

	(void)unused;
	(void)change(1);
	stop(2);
	ms = change(0); /* waits until its registration has ended */
	fprintf(stderr, "a member has died: the next topology takes %ld ms, its registration lasts 4000\n", (long)ms);
	assert_true(in_time("the next topology when a member has died", ms, 8000));
	(void)change(1);
	start(2);
	turns_until(all_show, "who is back shows the newest version");
	(void)change(2);
	turns_until(all_show, "all nodes show the newest version");
}

/* A job with a version 1. */
static void make_job(void)
{
	struct meta_set_name set = {set_hash(1), 0, "model.safetensors"};
	struct meta_op then[4] = {{.what = META_PUT, .key = {.kind = META_KEY_HEAD, .job = JOB}},
				  {.what = META_PUT, .key = {.kind = META_KEY_SHOWN, .job = JOB}},
				  {.what = META_PUT, .key = {.kind = META_KEY_STORE, .job = JOB, .nr = 1}},
				  {.what = META_PUT, .key = {.kind = META_KEY_TICK}}};
	struct meta_txn txn = {0, 4, 0, NULL, then, NULL, false};
	const char *url = one.url[0];
	struct meta_etcd_config to = {
	    .cluster = "nodes", .endpoints = &url, .nr_endpoints = 1, .request_ms = 30000, .connect_ms = 10000};
	const struct meta_etcd_event *v;
	struct meta_etcd *e;
	struct sc_err err;

	then[0].value = (struct meta_value){.kind = META_KEY_HEAD, .head = {.nr = 1}};
	then[1].value = (struct meta_value){.kind = META_KEY_SHOWN, .number = {1}};
	then[2].value = (struct meta_value){.kind = META_KEY_STORE, .store = {1, &set, true}};
	then[3].value = (struct meta_value){.kind = META_KEY_TICK, .rest = ""};
	assert_int_equal(0, meta_etcd_new(&to, &e, &err));
	assert_int_equal(0, meta_etcd_txn(e, 1, &txn, &err));
	assert_int_equal(1, meta_etcd_next(e, 60000, &v));
	assert_int_equal(META_APPLIED, v->answer.outcome);
	meta_etcd_free(e);
}

static int set_up(void **unused)
{
	(void)unused;
	make_job();
	for (unsigned i = 0; i < NODES; i++) {
		node[i].proxy = proxy_start(atoi(strrchr(one.url[0], ':') + 1), node[i].url, sizeof(node[i].url));
		keep_have(i, set_hash(1), true);
		start(i);
	}
	for (int64_t until = sc_now_ns() + 60000 * MS;
	     sc_now_ns() < until && !(current(0) && current(1) && current(2));)
		turn();
	return current(0) && current(1) && current(2) ? 0 : -1;
}

static int tear_down(void **unused)
{
	(void)unused;
	for (unsigned i = 0; i < NODES; i++) {
		if (node[i].core)
			stop(i);
		proxy_stop(node[i].proxy);
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_writes_topologies_and_all_show_them),
	    cmocka_unit_test(lost_answers_and_cut_watches_change_nothing),
	    cmocka_unit_test(a_node_dies_and_comes_back),
	};
	int failed;

	if (!servers_start(&one, 1)) {
		printf("skipped: there is no etcd; install Debian's etcd-server (tools/setup --test does)\n");
		return 77;
	}
	failed = cmocka_run_group_tests(tests, set_up, tear_down);
	servers_stop(&one);
	return failed;
}
