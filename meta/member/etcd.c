/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of etcd has one curl multi handle, and an easy handle for each request.  It uses HTTP/1.1, so
 * requests that are on their way at the same time have connections of their own: none waits behind another.
 *
 * The watch's position moves when a line was taken whole.  It begins again from there, or, where etcd has forgotten
 * that revision, is over.
 */
#include "meta/member/etcd_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/metric.h"

SC_METRIC(requests, SC_COUNTER, "scalai_etcd_requests_total", "Requests to etcd that have ended.");
SC_METRIC(requests_ns, SC_SECONDS, "scalai_etcd_seconds_total", "Time that they took.");
SC_METRIC(unknown, SC_COUNTER, "scalai_etcd_unknown_total", "Requests to etcd that were not answered.");
SC_HISTOGRAM(request_times, "scalai_etcd_request_seconds", "", "Time of requests to etcd that have ended.");

#define BACKOFF_MS_MAX 1000
#define CONNECTIONS_KEPT 8L
#define NOT_FOUND 5 /* code of gRPC */

/* --- events --- */

static void push(struct meta_etcd *e, struct event *v)
{
	*e->last = v;
	e->last = &v->next;
}

/* --- requests --- */

/* Keeps the operations of a transaction by which its answer is read: their keys, not their values. */
static int keep_ops(struct call *c, const struct meta_op *from, uint32_t nr, struct meta_op **ret, struct sc_err *err)
{
	*ret = sc_arena_array(&c->arena, nr ? nr : 1, sizeof(**ret));
	if (!*ret)
		return sc_nomem(err);
	for (uint32_t i = 0; i < nr; i++) {
		struct meta_op *o = &(*ret)[i];

		*o = (struct meta_op){
		    .what = from[i].what, .key = from[i].key, .range = from[i].range, .keys_only = from[i].keys_only};
		if (o->key.text && !(o->key.text = sc_arena_copy(&c->arena, o->key.text, strlen(o->key.text))))
			return sc_nomem(err);
		c->writes |= o->what == META_PUT || o->what == META_DELETE || o->what == META_CLEAR;
	}
	return 0;
}

int meta_etcd_txn(struct meta_etcd *e, uint64_t id, const struct meta_txn *txn, struct sc_err *err)
{
	struct call *c = meta_call_new(e, CALL_TXN, id);
	int rc;

	if (!c)
		return sc_nomem(err);
	c->since = txn->any_server ? 0 : e->seen; /* one that lags behind may be asked */
	c->txn.nr_then = txn->nr_then;
	c->txn.nr_else = txn->nr_else;
	for (uint32_t i = 0; i < txn->nr_then; i++)
		c->puts |= txn->then[i].what == META_PUT;
	rc = keep_ops(c, txn->then, txn->nr_then, &c->txn.then, err);
	if (rc == 0)
		rc = keep_ops(c, txn->otherwise, txn->nr_else, &c->txn.otherwise, err);
	if (rc == 0)
		rc = meta_wire_txn(e->cluster, txn, &c->body, err);
	return meta_call_begin(c, rc, err);
}

static int lease_call(struct meta_etcd *e, enum call_kind kind, uint64_t id, const char *name, uint64_t value,
		      struct sc_err *err)
{
	struct call *c = meta_call_new(e, kind, id);

	if (!c)
		return sc_nomem(err);
	c->writes = true;
	sc_buf_printf(&c->body, "{\"%s\":\"%llu\"}", name, (unsigned long long)value);
	return meta_call_begin(c, 0, err);
}

int meta_etcd_grant(struct meta_etcd *e, uint64_t id, uint64_t ttl_s, struct sc_err *err)
{
	return lease_call(e, CALL_GRANT, id, "TTL", ttl_s, err);
}

int meta_etcd_keepalive(struct meta_etcd *e, uint64_t id, uint64_t lease, struct sc_err *err)
{
	return lease_call(e, CALL_KEEPALIVE, id, "ID", lease, err);
}

int meta_etcd_revoke(struct meta_etcd *e, uint64_t id, uint64_t lease, struct sc_err *err)
{
	return lease_call(e, CALL_REVOKE, id, "ID", lease, err);
}

static void end_watch(struct meta_etcd *e)
{
	if (e->watch)
		e->watch->over = true;
	e->watch = NULL;
}

/* Ends the snapshot or watch that there is, and drops what has come of it and nobody has taken. */
static void end_reading(struct meta_etcd *e)
{
	struct event **p = &e->first, *v;

	e->watching = false;
	end_watch(e);
	for (struct call *c = e->calls, *next; c; c = next) {
		next = c->next;
		if (c->kind == CALL_PAGE)
			meta_call_drop(c);
	}
	while ((v = *p)) {
		if (v->event.kind == META_ETCD_ANSWER) {
			p = &v->next;
			continue;
		}
		*p = v->next;
		meta_event_free(v);
	}
	e->last = p;
}

int meta_etcd_snapshot(struct meta_etcd *e, uint64_t id, struct sc_err *err)
{
	struct call *c = meta_call_new(e, CALL_PAGE, id);

	if (!c)
		return sc_nomem(err);
	c->since = e->seen;
	end_reading(e);
	return meta_call_begin(c, meta_wire_page(e->cluster, e->whole, NULL, 0, &c->body, err), err);
}

void meta_etcd_watch(struct meta_etcd *e, uint64_t revision)
{
	end_reading(e);
	e->position = revision;
	e->watching = true;
	e->watch_at = 0;
}

/* --- the watch --- */

static void watch_fails(struct call *c, const struct sc_err *err)
{
	struct meta_etcd *e = c->client;

	e->watching = false;
	end_watch(e);
	c->event->event.err = *err;
	push(e, sc_steal(&c->event));
}

static void take_watched(struct call *c, const char *line, size_t bytes)
{
	struct meta_etcd *e = c->client;
	struct event *v = sc_zalloc(sizeof(*v));
	struct meta_watched w = {0};
	struct sc_err err;
	int rc = v ? meta_wire_watched(e->cluster, line, bytes, &v->arena, &w, &err) : sc_nomem(&err);

	if (rc == 0 && w.compacted)
		rc = sc_fail(&err, SC_E_STALE,
			     "etcd has forgotten changes since revision %llu; it has those from %llu on",
			     (unsigned long long)e->position, (unsigned long long)w.compacted);
	if (rc < 0) {
		meta_event_free(v);
		watch_fails(c, &err);
		return;
	}
	e->backoff_ms = 0;
	if (w.cancelled) /* of a server that stops: the connection ends, and another one goes on */
		c->over = true;
	if (!w.revision || w.revision <= e->position) {
		meta_event_free(v);
		return;
	}
	e->position = w.revision;
	meta_etcd_saw(e, w.revision);
	v->event =
	    (struct meta_etcd_event){.kind = META_ETCD_WATCH, .answer = {META_APPLIED, w.revision, w.nr, w.records}};
	push(e, v);
}

static void take_lines(struct call *c)
{
	const char *p = c->answer.text, *end = p + c->answer.bytes, *to;
	size_t rest;

	while (c->client->watch == c && p < end && (to = memchr(p, '\n', (size_t)(end - p)))) {
		take_watched(c, p, (size_t)(to - p));
		p = to + 1;
	}
	rest = (size_t)(end - p);
	memmove(c->answer.text, p, rest);
	c->answer.bytes = rest;
}

static void begin_watch(struct meta_etcd *e)
{
	struct call *c = meta_call_new(e, CALL_WATCH, 0);
	struct sc_err err;

	if (c)
		c->came = take_lines;
	if (!c || meta_call_begin(c, meta_wire_watch(e->cluster, e->whole, e->position + 1, &c->body, &err),
				  &err) < 0) {
		e->watch_at = sc_now_ns() + BACKOFF_MS_MAX * 1000000ll; /* once more, later */
		return;
	}
	e->watch = c;
}

static void watch_again(struct meta_etcd *e, bool other)
{
	end_watch(e);
	e->watch_at = sc_now_ns() + e->backoff_ms * 1000000;
	e->backoff_ms = sc_min_u64((uint64_t)(e->backoff_ms ? e->backoff_ms * 2 : 20), BACKOFF_MS_MAX);
	if (other)
		e->current = (e->current + 1) % e->nr_endpoints;
}

void meta_etcd_rewatch(struct meta_etcd *e)
{
	if (e->watch)
		watch_again(e, true);
}

/* --- ends of transfers --- */

static int read_lease(struct call *c, struct meta_etcd_event *v, struct sc_err *err)
{
	int rc = meta_wire_lease_answer(c->answer.text, c->answer.bytes, &v->lease, &v->ttl_s, err);

	v->answer.outcome = v->ttl_s ? META_APPLIED : META_REFUSED;
	return rc;
}

/* Fails if etcd's revision is lower than the one that was known when it was asked.  Answers that say their revision go
 * through etcd's majority. */
static int check_revision(struct call *c, uint64_t revision, struct sc_err *err)
{
	if (revision < c->since && c->since && revision) {
		c->event->event.lost = true;
		return sc_fail(err, SC_E_STALE, "etcd at %s is at revision %llu, and was at %llu: it has lost its "
			       "data, or is an older copy, or another one; give it the newest copy of its data, and "
			       "mount again",
			       c->client->endpoints[c->endpoint], (unsigned long long)revision,
			       (unsigned long long)c->since);
	}
	meta_etcd_saw(c->client, revision);
	c->event->event.lost = false; /* one that was asked before this one only lagged behind */
	return 0;
}

/* Gives the caller a part of a snapshot, of which more parts come. */
static int push_part(struct call *c, const struct meta_answer *page, struct sc_err *err)
{
	struct event *v = c->event, *next = sc_zalloc(sizeof(*next));

	if (!next)
		return sc_nomem(err);
	next->event.kind = v->event.kind;
	next->event.id = v->event.id;
	v->event.answer = (struct meta_answer){META_APPLIED, c->revision, page->nr, page->records};
	v->event.more = true;
	push(c->client, v);
	c->event = next;
	return 0;
}

static int add_page(struct call *c, const struct meta_answer *page, struct sc_err *err)
{
	struct meta_answer *all = &c->event->event.answer;
	struct meta_record *records = sc_arena_array(&c->event->arena, all->nr + page->nr + 1, sizeof(*records));

	if (!records)
		return sc_nomem(err);
	if (all->nr)
		memcpy(records, all->records, all->nr * sizeof(*records));
	if (page->nr)
		memcpy(records + all->nr, page->records, page->nr * sizeof(*records));
	*all = (struct meta_answer){META_APPLIED, c->revision, all->nr + page->nr, records};
	return 0;
}

/* Reads a page of a snapshot: 0, 1 (the request of the next page is ready) or an error. */
static int read_page(struct call *c, struct sc_err *err)
{
	struct meta_etcd *e = c->client;
	struct meta_answer page;
	const char *next;
	int rc = meta_wire_page_answer(e->cluster, c->answer.text, c->answer.bytes, &c->event->arena, &page, &next,
				       err);

	if (rc == 0)
		rc = check_revision(c, page.revision, err);
	if (rc < 0)
		return rc;
	c->revision = c->revision ? c->revision : page.revision;
	rc = e->whole && next ? push_part(c, &page, err) : add_page(c, &page, err);
	if (rc < 0 || !next)
		return rc;
	c->body.bytes = 0;
	c->tries = 0;
	rc = meta_wire_page(e->cluster, e->whole, next, c->revision, &c->body, err);
	return rc < 0 ? rc : 1;
}

static int read_answer(struct call *c, struct sc_err *err)
{
	struct meta_etcd_event *v = &c->event->event;
	int rc;

	switch (c->kind) {
	case CALL_TXN:
		rc = meta_wire_txn_answer(c->client->cluster, &c->txn, c->answer.text, c->answer.bytes,
					  &c->event->arena, &v->answer, err);
		return rc < 0 ? rc : check_revision(c, v->answer.revision, err);
	case CALL_GRANT:
	case CALL_KEEPALIVE:
		return read_lease(c, v, err);
	case CALL_REVOKE:
		v->answer.outcome = META_APPLIED;
		return 0;
	default:
		return read_page(c, err);
	}
}

/* Reads a refusal.  One is sure: the lease is gone.  All others tell nothing of what was, or will be, done. */
static int read_refusal(struct call *c, long status, struct sc_err *err)
{
	char text[200] = "";
	int code = 0;

	if (!meta_wire_error(c->answer.text ? c->answer.text : "", c->answer.bytes, &code, text, sizeof(text)))
		return sc_fail(err, SC_E_SYSTEM, "etcd at %s: status %ld of HTTP, and no sentence that says why",
			       c->client->endpoints[c->endpoint], status);
	if (strstr(text, "database space exceeded"))
		return sc_fail(err, SC_E_NO_SPACE, "etcd at %s: %s", c->client->endpoints[c->endpoint], text);
	if (code != NOT_FOUND || !strstr(text, "lease not found"))
		return sc_fail(err, SC_E_SYSTEM, "etcd at %s: %s", c->client->endpoints[c->endpoint], text);
	c->event->event.answer.outcome = META_REFUSED;
	return 0;
}

/* Answers the call, or sends it once more. */
static void finish(struct call *c, CURLcode result, long status)
{
	struct meta_etcd *e = c->client;
	bool sent = c->begun && result != CURLE_COULDNT_CONNECT;
	struct meta_etcd_event *v = &c->event->event;
	struct sc_err why;
	int rc;

	if (result != CURLE_OK)
		rc = sc_fail(&why, SC_E_SYSTEM, "etcd at %s: %s", e->endpoints[c->endpoint],
			     curl_easy_strerror(result));
	else if (status == 200)
		rc = read_answer(c, &why);
	else
		rc = read_refusal(c, status, &why);
	v = &c->event->event; /* of a snapshot in parts it is the next one */
	if (rc < 0 && (!v->lost || why.code == SC_E_STALE)) /* what says that etcd has lost its data stays */
		v->err = why;
	if (rc == 1) {
		rc = meta_call_start(c, &v->err);
		if (rc == 0)
			return;
	} else if (rc < 0) {
		if (e->current == c->endpoint)
			e->current = (e->current + 1) % e->nr_endpoints;
		c->endpoint = (c->endpoint + 1) % e->nr_endpoints;
		if (c->tries < e->nr_endpoints && !(c->writes && sent) && meta_call_start(c, &(struct sc_err){0}) == 0)
			return;
	}
	if (rc < 0) {
		v->answer = (struct meta_answer){.outcome = META_UNKNOWN};
		v->unsent = !sent;
		sc_metric_add(&unknown, 1);
	} else {
		v->err = (struct sc_err){0};
		v->put = c->puts && v->answer.outcome == META_APPLIED;
		if (c->kind == CALL_PAGE) {
			e->position = v->answer.revision;
			e->watching = true;
			e->watch_at = 0;
		}
	}
	sc_metric_add(&requests, 1);
	sc_metric_add(&requests_ns, (uint64_t)(sc_now_ns() - c->began_ns));
	sc_metric_since(&request_times, c->began_ns);
	push(e, sc_steal(&c->event));
	meta_call_drop(c);
}

static void finished(struct call *c, CURLcode result)
{
	struct meta_etcd *e = c->client;
	long status = 0;

	(void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
	if (c->kind != CALL_WATCH) {
		finish(c, result, status);
		return;
	}
	if (e->watch == c)
		watch_again(e, result != CURLE_OK || status != 200);
	meta_call_drop(c);
}

static void sweep(struct meta_etcd *e)
{
	CURLMsg *m;
	int left;

	while ((m = curl_multi_info_read(e->multi, &left)))
		if (m->msg == CURLMSG_DONE) {
			struct call *c = NULL;
			CURLcode result = m->data.result;

			(void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
			finished(c, result);
		}
	for (struct call *c = e->calls, *next; c; c = next) {
		next = c->next;
		if (!c->over)
			continue;
		if (e->watch == c)
			watch_again(e, false);
		meta_call_drop(c);
	}
}

void meta_etcd_also(struct meta_etcd *e, int fd)
{
	e->also = fd;
}

int meta_etcd_next(struct meta_etcd *e, int ms, const struct meta_etcd_event **ret)
{
	struct curl_waitfd also = {.fd = e->also, .events = CURL_WAIT_POLLIN};
	int64_t until = sc_now_ns() + ms * 1000000ll, now, wait;
	int running;

	meta_event_free(e->taken);
	e->taken = NULL;
	for (;;) {
		now = sc_now_ns();
		if (e->watching && !e->watch && now >= e->watch_at)
			begin_watch(e);
		(void)curl_multi_perform(e->multi, &running);
		sweep(e);
		if (e->first || now >= until || __atomic_exchange_n(&e->woken, false, __ATOMIC_ACQ_REL))
			break;
		wait = until - now;
		if (e->watching && !e->watch && e->watch_at - now < wait)
			wait = e->watch_at > now ? e->watch_at - now : 0;
		(void)curl_multi_poll(e->multi, &also, e->also >= 0, (int)(wait / 1000000 + 1), NULL);
		if (also.revents) /* the next call comes back to it */
			until = now;
	}
	if (!e->first)
		return 0;
	e->taken = e->first;
	e->first = e->taken->next;
	if (!e->first)
		e->last = &e->first;
	*ret = &e->taken->event;
	return 1;
}

void meta_etcd_saw(struct meta_etcd *e, uint64_t revision)
{
	e->seen = sc_max_u64(e->seen, revision);
}

uint64_t meta_etcd_seen(const struct meta_etcd *e)
{
	return e->seen;
}

void meta_etcd_wake(struct meta_etcd *e)
{
	__atomic_store_n(&e->woken, true, __ATOMIC_RELEASE);
	(void)curl_multi_wakeup(e->multi);
}

/* --- the client --- */

void meta_etcd_free(struct meta_etcd *e)
{
	if (!e)
		return;
	while (e->calls)
		meta_call_drop(e->calls);
	while (e->first) {
		struct event *v = e->first;

		e->first = v->next;
		meta_event_free(v);
	}
	meta_event_free(e->taken);
	curl_slist_free_all(e->headers);
	if (e->multi)
		(void)curl_multi_cleanup(e->multi);
	for (uint32_t i = 0; e->endpoints && i < e->nr_endpoints; i++)
		sc_sys.release(e->endpoints[i]);
	sc_sys.release(e->endpoints);
	sc_sys.release(e->cluster);
	sc_sys.release(e->ca);
	sc_sys.release(e->cert);
	sc_sys.release(e->key);
	sc_sys.release(e);
}

static bool copy(char **to, const char *from)
{
	return !from || (*to = sc_strdup(from)) != NULL;
}

int meta_etcd_new(const struct meta_etcd_config *config, struct meta_etcd **ret, struct sc_err *err)
{
	static const char *const lines[] = {"Content-Type: application/json", "Expect:"};
	struct meta_etcd *e;
	bool ok;

	if (!meta_cluster_name_ok(config->cluster) || !config->nr_endpoints || !config->cert != !config->key)
		return sc_fail(err, SC_E_LIMIT, "cluster '%.70s': %s", config->cluster,
			       !config->nr_endpoints ? "no endpoint of etcd is given"
			       : !config->cert != !config->key
				   ? "a certificate needs its key, and a key its certificate"
				   : "this is no name of a cluster: it has letters, digits, '-', '_' and '.'");
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return sc_fail(err, SC_E_UNSUPPORTED, "libcurl %s can't be used", curl_version());
	e = sc_zalloc(sizeof(*e));
	if (!e)
		return sc_nomem(err);
	e->last = &e->first;
	e->also = -1;
	e->request_ms = config->request_ms;
	e->connect_ms = config->connect_ms;
	e->whole = config->whole;
	e->nr_endpoints = config->nr_endpoints;
	e->endpoints = sc_zalloc_array(config->nr_endpoints, sizeof(*e->endpoints));
	e->multi = curl_multi_init();
	ok = e->endpoints && e->multi && copy(&e->cluster, config->cluster) && copy(&e->ca, config->ca) &&
	     copy(&e->cert, config->cert) && copy(&e->key, config->key);
	for (uint32_t i = 0; ok && i < e->nr_endpoints; i++)
		ok = copy(&e->endpoints[i], config->endpoints[i]);
	for (size_t i = 0; ok && i < 2; i++) {
		struct curl_slist *more = curl_slist_append(e->headers, lines[i]);

		ok = more != NULL;
		e->headers = more ? more : e->headers;
	}
	ok = ok && curl_multi_setopt(e->multi, CURLMOPT_MAXCONNECTS, CONNECTIONS_KEPT) == CURLM_OK;
	if (!ok) {
		meta_etcd_free(e);
		return sc_nomem(err);
	}
	*ret = e;
	return 0;
}
