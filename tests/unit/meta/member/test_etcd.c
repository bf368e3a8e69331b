/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of etcd, against Debian's etcd-server: transactions, leases, snapshot and watch; what it says of lost
 * answers, of a server that is stopped, and while a leader of three is killed.  77: there is no etcd.
 */
#include "meta/member/etcd.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/support/etcd_server.h"
#include "tests/support/late.h"
#include "tests/support/stopped.h"

#define PATIENT_MS 30000	/* against a hang: on a busy machine, etcd may need a second */
#define SHORT_MS 1000		/* where a request is not to be answered */

static struct servers one;
static struct proxy *proxy;
static char proxy_url[64];
static uint64_t next_id;

static struct meta_etcd *client_of(const char *const *urls, uint32_t nr, const char *cluster, uint32_t request_ms)
{
	struct meta_etcd_config config = {.cluster = cluster, .endpoints = urls, .nr_endpoints = nr,
					  .request_ms = request_ms, .connect_ms = request_ms / 2};
	struct meta_etcd *e;
	struct sc_err err;

	if (meta_etcd_new(&config, &e, &err) < 0)
		fail_msg("%s", err.msg);
	return e;
}

static struct meta_etcd *client(const char *cluster)
{
	const char *url = proxy_url;

	return client_of(&url, 1, cluster, PATIENT_MS);
}

static const struct meta_etcd_event *next(struct meta_etcd *e)
{
	const struct meta_etcd_event *v;

	if (!meta_etcd_next(e, 60000, &v))
		fail_msg("nothing has come within 60 s");
	return v;
}

/* The answer to a request; what is watched meanwhile is not looked at. */
static const struct meta_etcd_event *answer(struct meta_etcd *e, uint64_t id)
{
	const struct meta_etcd_event *v;

	do
		v = next(e);
	while (v->kind == META_ETCD_WATCH);
	assert_int_equal(id, v->id);
	return v;
}

static struct meta_key head = {.kind = META_KEY_HEAD, .job = 7};

/* Puts version `nr` if the head's MOD is this. */
static void put_head(struct meta_etcd *e, uint64_t id, uint64_t mod, uint64_t nr, uint64_t token)
{
	struct meta_compare compare = {META_MOD_IS, head, mod};
	struct meta_op then[2] = {{.what = META_PUT, .key = head}, {.what = META_PUT, .key = {.kind = META_KEY_TICK}}};
	struct meta_op otherwise = {.what = META_GET, .key = head};
	struct meta_txn txn = {1, 2, 1, &compare, then, &otherwise, false};
	struct sc_err err;

	then[0].value = (struct meta_value){.kind = META_KEY_HEAD, .head = {.nr = nr, .token = token}};
	then[1].value = (struct meta_value){.kind = META_KEY_TICK, .rest = ""};
	if (meta_etcd_txn(e, id, &txn, &err) < 0)
		fail_msg("%s", err.msg);
}

static void get(struct meta_etcd *e, uint64_t id, struct meta_key key)
{
	struct meta_op then = {.what = META_GET, .key = key};
	struct meta_txn txn = {0, 1, 0, NULL, &then, NULL, false};
	struct sc_err err;

	if (meta_etcd_txn(e, id, &txn, &err) < 0)
		fail_msg("%s", err.msg);
}

static uint64_t snapshot(struct meta_etcd *e, uint32_t *ret_nr)
{
	const struct meta_etcd_event *v;
	struct sc_err err;

	assert_int_equal(0, meta_etcd_snapshot(e, ++next_id, &err));
	v = answer(e, next_id);
	if (v->answer.outcome != META_APPLIED)
		fail_msg("%s", v->err.msg);
	if (ret_nr)
		*ret_nr = v->answer.nr;
	return v->answer.revision;
}

/* --- one server --- */

static void transactions_apply_or_are_refused(void **unused)
{
	struct meta_etcd *e = client("txn");
	const struct meta_etcd_event *v;
	uint64_t first;

	(void)unused;
	get(e, 1, head);
	v = answer(e, 1);
	assert_int_equal(META_APPLIED, v->answer.outcome);
	assert_true(v->answer.nr == 1 && !v->answer.records[0].present && v->answer.records[0].key.job == 7);
	put_head(e, 2, 0, 1, 0xabc);
	v = answer(e, 2);
	assert_int_equal(META_APPLIED, v->answer.outcome);
	first = v->answer.revision;
	put_head(e, 3, 0, 2, 0xdef); /* its compare is stale */
	v = answer(e, 3);
	assert_int_equal(META_REFUSED, v->answer.outcome);
	assert_true(v->answer.nr == 1 && v->answer.records[0].present && v->answer.records[0].mod == first);
	assert_true(v->answer.records[0].value.head.nr == 1 && v->answer.records[0].value.head.token == 0xabc);
	put_head(e, 4, first, 2, 0xdef);
	v = answer(e, 4);
	assert_int_equal(META_APPLIED, v->answer.outcome);
	assert_true(v->answer.revision > first);
	meta_etcd_free(e);
}

static void keys_go_with_their_lease(void **unused)
{
	struct meta_key node = {.kind = META_KEY_NODE, .node = 3};
	struct meta_op put = {.what = META_PUT, .key = node};
	struct meta_op list = {.what = META_LIST, .range = META_RANGE_NODES, .keys_only = true};
	struct meta_txn txn = {0, 1, 0, NULL, &put, NULL, false}, all = {0, 1, 0, NULL, &list, NULL, true};
	struct meta_etcd *e = client("lease");
	const struct meta_etcd_event *v;
	struct sc_err err;
	uint64_t lease;

	(void)unused;
	assert_int_equal(0, meta_etcd_grant(e, 1, 600, &err)); /* it is revoked long before */
	v = answer(e, 1);
	assert_true(v->answer.outcome == META_APPLIED && v->lease && v->ttl_s == 600);
	lease = put.lease = v->lease;
	put.value = (struct meta_value){.kind = META_KEY_NODE, .node = {.name = "a", .store = "b"}};
	assert_int_equal(0, meta_etcd_txn(e, 2, &txn, &err));
	assert_int_equal(META_APPLIED, answer(e, 2)->answer.outcome);
	assert_int_equal(0, meta_etcd_keepalive(e, 3, lease, &err));
	assert_int_equal(META_APPLIED, answer(e, 3)->answer.outcome);
	assert_int_equal(0, meta_etcd_txn(e, 4, &all, &err));
	v = answer(e, 4);
	assert_true(v->answer.nr == 1 && v->answer.records[0].key.node == 3 && v->answer.records[0].create);
	assert_int_equal(0, meta_etcd_revoke(e, 5, lease, &err));
	assert_int_equal(META_APPLIED, answer(e, 5)->answer.outcome);
	get(e, 6, node);
	assert_false(answer(e, 6)->answer.records[0].present);
	/* a lease that is gone: all three are sure to be refused */
	assert_int_equal(0, meta_etcd_revoke(e, 7, lease, &err));
	assert_int_equal(META_REFUSED, answer(e, 7)->answer.outcome);
	assert_int_equal(0, meta_etcd_keepalive(e, 8, lease, &err));
	assert_int_equal(META_REFUSED, answer(e, 8)->answer.outcome);
	assert_int_equal(0, meta_etcd_txn(e, 9, &txn, &err));
	assert_int_equal(META_REFUSED, answer(e, 9)->answer.outcome);
	meta_etcd_free(e);
}

/* Puts so many tags, and ticks. */
static void put_tags(struct meta_etcd *e, unsigned from, unsigned nr)
{
	for (unsigned i = from; i < from + nr; i++) {
		char name[20];
		struct meta_op then[2] = {{.what = META_PUT, .key = {.kind = META_KEY_TAG, .job = 7, .text = name}},
					  {.what = META_PUT, .key = {.kind = META_KEY_TICK}}};
		struct meta_txn txn = {0, 2, 0, NULL, then, NULL, false};
		struct sc_err err;

		(void)snprintf(name, sizeof(name), "t%05u", i);
		then[0].value = (struct meta_value){.kind = META_KEY_TAG, .number = {i}};
		then[1].value = (struct meta_value){.kind = META_KEY_TICK, .rest = ""};
		assert_int_equal(0, meta_etcd_txn(e, ++next_id, &txn, &err));
		assert_int_equal(META_APPLIED, answer(e, next_id)->answer.outcome);
	}
}

/* The watcher must be told of tags [from, from + nr), each once, in order, each revision whole. */
static void see_tags(struct meta_etcd *e, unsigned from, unsigned nr)
{
	uint64_t last = 0;

	for (unsigned seen = 0; seen < nr;) {
		const struct meta_etcd_event *v = next(e);
		unsigned ticks = 0, tags = 0;

		if (v->kind != META_ETCD_WATCH)
			fail_msg("event %d: %s", v->kind, v->err.msg);
		assert_true(v->answer.revision > last);
		last = v->answer.revision;
		for (uint32_t i = 0; i < v->answer.nr; i++) {
			ticks += v->answer.records[i].key.kind == META_KEY_TICK;
			if (v->answer.records[i].key.kind != META_KEY_TAG)
				continue;
			tags++;
			assert_int_equal(from + seen++, v->answer.records[i].value.number.nr);
		}
		assert_int_equal(ticks, tags);
	}
}

static void a_snapshot_has_pages_and_the_watch_goes_on_from_there(void **unused)
{
	struct meta_etcd *writer = client("watch"), *e = client("watch");
	uint32_t nr;

	(void)unused;
	put_tags(writer, 0, 1203); /* three pages */
	(void)snapshot(e, &nr);
	assert_int_equal(1204, nr);
	put_tags(writer, 1203, 50);
	see_tags(e, 1203, 50);
	proxy_cut(proxy); /* it goes on by another connection, and misses nothing */
	put_tags(writer, 1253, 50);
	see_tags(e, 1253, 50);
	meta_etcd_rewatch(e);
	put_tags(writer, 1303, 50);
	see_tags(e, 1303, 50);
	meta_etcd_free(e);
	meta_etcd_free(writer);
}

/* A snapshot in parts is given up in its midst, or a watch with changes that nobody has taken: what comes after the next
 * one was asked for is all of that one, and then each change behind it once. */
static void what_another_snapshot_has_ended_never_comes(void **unused)
{
	const char *url = proxy_url;
	const struct meta_etcd_config whole = {.cluster = "ended", .endpoints = &url, .nr_endpoints = 1,
					       .request_ms = PATIENT_MS, .connect_ms = PATIENT_MS, .whole = true};
	struct meta_etcd *writer = client("ended"), *e;
	const struct meta_etcd_event *v;
	struct sc_err err;

	(void)unused;
	put_tags(writer, 0, 1203); /* three pages */
	assert_int_equal(0, meta_etcd_new(&whole, &e, &err));
	for (unsigned i = 0; i < 3; i++) {
		uint32_t nr = 0;

		assert_int_equal(0, meta_etcd_snapshot(e, 1, &err));
		v = answer(e, 1);
		assert_true(v->more && v->answer.outcome == META_APPLIED);
		if (i) /* the next part may have come */
			(void)meta_etcd_next(e, 50, &v);
		assert_int_equal(0, meta_etcd_snapshot(e, 2, &err));
		do {
			v = answer(e, 2);
			assert_int_equal(META_APPLIED, v->answer.outcome);
			nr += v->answer.nr;
		} while (v->more);
		assert_int_equal(1204 + 20 * i, nr);
		put_tags(writer, 1203 + 20 * i, 10);
		see_tags(e, 1203 + 20 * i, 10);
		put_tags(writer, 1213 + 20 * i, 10);
		assert_int_equal(META_ETCD_WATCH, next(e)->kind); /* and more has come, or will */
	}
	meta_etcd_free(e);
	meta_etcd_free(writer);
}

static void a_watch_whose_revision_is_compacted_says_so(void **unused)
{
	struct meta_etcd *writer = client("compact"), *e = client("compact");
	const struct meta_etcd_event *v;
	char body[100];
	uint64_t now;

	(void)unused;
	put_tags(writer, 0, 3);
	(void)snapshot(e, NULL);
	proxy_cut(proxy); /* before it has begun again, much happens */
	put_tags(writer, 3, 20);
	now = snapshot(writer, NULL);
	(void)snprintf(body, sizeof(body), "{\"revision\":\"%llu\"}", (unsigned long long)now);
	assert_non_null(strstr(servers_post(&one, 0, "/v3/kv/compaction", body), "200 OK"));
	v = next(e);
	assert_int_equal(META_ETCD_UNWATCHED, v->kind);
	assert_int_equal(SC_E_STALE, v->err.code);
	assert_true(snapshot(e, NULL) >= now); /* and from there on again */
	put_tags(writer, 23, 5);
	see_tags(e, 23, 5);
	meta_etcd_free(e);
	meta_etcd_free(writer);
}

static void a_lost_answer_is_unknown_and_sent_once(void **unused)
{
	struct meta_etcd *e = client("lost");
	const struct meta_etcd_event *v;

	(void)unused;
	put_head(e, 1, 0, 1, 1);
	v = answer(e, 1);
	(void)proxy_count(proxy, "");
	proxy_lose_answers(proxy, "/v3/kv/txn");
	put_head(e, 2, v->answer.revision, 2, 2); /* on the connection that is kept: curl itself would repeat it */
	v = answer(e, 2);
	assert_int_equal(META_UNKNOWN, v->answer.outcome);
	assert_true(*v->err.msg && v->err.code == SC_E_SYSTEM && !v->unsent);
	assert_int_equal(1, proxy_count(proxy, "/v3/kv/txn"));
	proxy_lose_answers(proxy, NULL);
	get(e, 3, head);
	v = answer(e, 3);
	assert_int_equal(META_APPLIED, v->answer.outcome);
	assert_int_equal(2, v->answer.records[0].value.head.nr); /* it was done */
	/* the server's side of a kept connection is gone before a request: that is sent, or unknown, never twice */
	proxy_cut(proxy);
	(void)proxy_count(proxy, "");
	put_head(e, 4, v->answer.records[0].mod, 3, 3);
	v = answer(e, 4);
	assert_true(v->answer.outcome == META_APPLIED || v->answer.outcome == META_UNKNOWN);
	assert_true(proxy_count(proxy, "/v3/kv/txn") <= 1);
	meta_etcd_free(e);
}

static void what_no_server_has_heard_of_was_not_done(void **unused)
{
	const char *urls[] = {"http://127.0.0.1:1", "http://127.0.0.1:1"}; /* nobody listens */
	struct meta_etcd *e = client_of(urls, 2, "unsent", PATIENT_MS);
	const struct meta_etcd_event *v;

	(void)unused;
	put_head(e, 1, 0, 1, 1);
	v = answer(e, 1);
	assert_true(v->answer.outcome == META_UNKNOWN && v->unsent);
	meta_etcd_free(e);
}

static int64_t ms_now(void)
{
	return sc_now_ns() / 1000000;
}

static void a_stopped_server_is_unknown_by_the_deadline(void **unused)
{
	const char *url = proxy_url;
	struct meta_etcd *e = client("stopped"), *hasty = client_of(&url, 1, "stopped", SHORT_MS);
	const struct meta_etcd_event *v;
	int64_t began;

	(void)unused;
	put_head(e, 1, 0, 1, 1);
	(void)answer(e, 1);
	stop_child(one.pid[0]);
	began = ms_now();
	put_head(hasty, 2, 0, 9, 9);
	get(hasty, 3, head);
	for (int i = 0; i < 2; i++)
		assert_int_equal(META_UNKNOWN, next(hasty)->answer.outcome);
	assert_true(in_time("two requests to a server that is stopped, with 1 s each", ms_now() - began, 2500));
	(void)kill(one.pid[0], SIGCONT);
	get(e, 4, head);
	v = answer(e, 4);
	assert_int_equal(META_APPLIED, v->answer.outcome);
	assert_int_equal(1, v->answer.records[0].value.head.nr);
	meta_etcd_free(hasty);
	meta_etcd_free(e);
}

static void requests_do_not_wait_for_each_other(void **unused)
{
	struct meta_etcd *e = client("apart");
	const struct meta_etcd_event *v;
	unsigned nr = 0;

	(void)unused;
	for (uint64_t id = 1; id <= 40; id++)
		get(e, id, head);
	for (; nr < 40; nr++)
		assert_int_equal(META_APPLIED, next(e)->answer.outcome);
	assert_int_equal(0, meta_etcd_next(e, 20, &v));
	meta_etcd_wake(e);
	assert_int_equal(0, meta_etcd_next(e, 60000, &v));
	meta_etcd_free(e);
}

static void what_can_not_be_read_is_not_taken(void **unused)
{
	struct meta_etcd *e = client("odd");
	const struct meta_etcd_event *v;
	struct sc_err err;

	(void)unused;
	/* "/scalai/odd/all/jobs/0000000000000007/head" = "nr x\n" */
	(void)servers_post(
	    &one, 0, "/v3/kv/put",
	    "{\"key\":\"L3NjYWxhaS9vZGQvYWxsL2pvYnMvMDAwMDAwMDAwMDAwMDAwNy9oZWFk\",\"value\":\"bnIgeAo=\"}");
	get(e, 1, head);
	v = answer(e, 1);
	assert_int_equal(META_UNKNOWN, v->answer.outcome);
	assert_int_equal(SC_E_FORMAT, v->err.code);
	assert_int_equal(0, meta_etcd_snapshot(e, 2, &err));
	v = answer(e, 2);
	assert_int_equal(META_UNKNOWN, v->answer.outcome);
	/* "/scalai/odd/all/later" of a newer program is passed over */
	(void)servers_post(&one, 0, "/v3/kv/deleterange",
			   "{\"key\":\"L3NjYWxhaS9vZGQvYWxsL2pvYnMvMDAwMDAwMDAwMDAwMDAwNy9oZWFk\"}");
	(void)servers_post(&one, 0, "/v3/kv/put", "{\"key\":\"L3NjYWxhaS9vZGQvYWxsL2xhdGVy\",\"value\":\"eA==\"}");
	(void)snapshot(e, NULL);
	meta_etcd_free(e);
}

/* --- several servers --- */

/* Of a client whose etcd was seen at a revision, the server that is asked first has fewer: the next one's answer counts. */
static void a_server_that_is_behind_is_forgotten_when_another_one_answers(void **unused)
{
	const char *urls[2];
	const struct meta_etcd_event *v;
	struct meta_etcd *e = client("behind");
	struct servers behind;
	struct sc_err err;
	uint64_t now;

	(void)unused;
	assert_true(servers_start(&behind, 1));
	put_tags(e, 0, 30);
	now = snapshot(e, NULL);
	meta_etcd_free(e);
	urls[0] = behind.url[0];
	urls[1] = one.url[0];
	for (int whole = 0; whole < 2; whole++) {
		struct meta_etcd_config config = {.cluster = "behind", .endpoints = urls, .nr_endpoints = 2,
						  .request_ms = PATIENT_MS, .connect_ms = PATIENT_MS, .whole = whole};

		assert_int_equal(0, meta_etcd_new(&config, &e, &err));
		meta_etcd_saw(e, now);
		if (whole)
			assert_int_equal(0, meta_etcd_snapshot(e, 1, &err));
		else
			get(e, 1, head);
		v = answer(e, 1);
		assert_int_equal(META_APPLIED, v->answer.outcome);
		assert_true(v->answer.revision >= now && !v->lost && v->err.code == 0);
		meta_etcd_free(e);
	}
	/* where no other one answers, it is what counts, and its sentence */
	urls[1] = "http://127.0.0.1:1";
	e = client_of(urls, 2, "behind", PATIENT_MS);
	meta_etcd_saw(e, now);
	get(e, 1, head);
	v = answer(e, 1);
	assert_int_equal(META_UNKNOWN, v->answer.outcome);
	assert_true(v->lost && v->err.code == SC_E_STALE && strstr(v->err.msg, "it has lost its data"));
	meta_etcd_free(e);
	servers_stop(&behind);
}

static int wait_for_leader(const struct servers *s)
{
	int leader = servers_leader(s);

	for (int64_t until = ms_now() + 60000; leader < 0 && ms_now() < until; leader = servers_leader(s))
		(void)usleep(10000);
	assert_true(leader >= 0);
	return leader;
}

static void while_a_leader_dies_each_version_is_made_once(void **unused)
{
	const char *urls[SERVERS_MAX];
	const struct meta_etcd_event *v;
	struct meta_etcd *e, *watcher;
	uint64_t mod = 0, nr = 0, unknown = 0, made = 0;
	struct servers three;
	int64_t longest = 0;
	int killed = -1;

	(void)unused;
	assert_true(servers_start(&three, 3));
	for (unsigned i = 0; i < 3; i++)
		urls[i] = three.url[i];
	e = client_of(urls, 3, "three", SHORT_MS);
	watcher = client_of(urls, 3, "three", SHORT_MS);
	(void)snapshot(watcher, NULL);
	for (uint64_t token = 1; nr < 120; token++) {
		int64_t began = ms_now();

		if (nr == 40 && killed < 0) {
			killed = wait_for_leader(&three);
			servers_kill(&three, (unsigned)killed);
		}
		if (nr == 80 && killed >= 0) {
			servers_again(&three, (unsigned)killed);
			killed = -1;
		}
		put_head(e, token, mod, nr + 1, token);
		v = answer(e, token);
		if (v->answer.outcome == META_APPLIED) {
			mod = v->answer.revision;
			nr++;
			made++;
		} else { /* whether it was done: its token says */
			unknown += v->answer.outcome == META_UNKNOWN;
			do {
				get(e, UINT64_C(1) << 40, head);
				v = answer(e, UINT64_C(1) << 40);
			} while (v->answer.outcome != META_APPLIED && ms_now() - began < 120000);
			assert_int_equal(META_APPLIED, v->answer.outcome);
			if (v->answer.records[0].value.head.token == token) {
				nr++;
				made++;
			}
			assert_int_equal(nr, v->answer.records[0].value.head.nr);
			mod = v->answer.records[0].mod;
		}
		longest = sc_max_u64((uint64_t)longest, (uint64_t)(ms_now() - began));
	}
	for (uint64_t seen = 0; seen < 120;) { /* the watch has each of them once, in order */
		v = next(watcher);
		assert_int_equal(META_ETCD_WATCH, v->kind);
		for (uint32_t i = 0; i < v->answer.nr; i++)
			if (v->answer.records[i].key.kind == META_KEY_HEAD)
				assert_int_equal(++seen, v->answer.records[i].value.head.nr);
	}
	fprintf(stderr, "%lu versions, %lu answers unknown, the longest wait %ld ms\n", made, unknown, (long)longest);
	assert_int_equal(120, made);
	assert_true(in_time("a version while a leader of three dies, at most", longest, 8000));
	meta_etcd_free(e);
	meta_etcd_free(watcher);
	servers_stop(&three);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(transactions_apply_or_are_refused),
	    cmocka_unit_test(keys_go_with_their_lease),
	    cmocka_unit_test(a_snapshot_has_pages_and_the_watch_goes_on_from_there),
	    cmocka_unit_test(what_another_snapshot_has_ended_never_comes),
	    cmocka_unit_test(a_watch_whose_revision_is_compacted_says_so),
	    cmocka_unit_test(a_lost_answer_is_unknown_and_sent_once),
	    cmocka_unit_test(what_no_server_has_heard_of_was_not_done),
	    cmocka_unit_test(a_stopped_server_is_unknown_by_the_deadline),
	    cmocka_unit_test(requests_do_not_wait_for_each_other),
	    cmocka_unit_test(what_can_not_be_read_is_not_taken),
	    cmocka_unit_test(a_server_that_is_behind_is_forgotten_when_another_one_answers),
	    cmocka_unit_test(while_a_leader_dies_each_version_is_made_once),
	};
	int failed;

	if (!servers_start(&one, 1)) {
		printf("skipped: there is no etcd; install Debian's etcd-server (tools/setup --test does)\n");
		return 77;
	}
	proxy = proxy_start(atoi(strrchr(one.url[0], ':') + 1), proxy_url, sizeof(proxy_url));
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	proxy_stop(proxy);
	servers_stop(&one);
	return failed;
}
