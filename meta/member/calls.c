/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes single transfers to etcd.  A request that writes, and that may have been sent, is never sent again, not by curl
 * either: curl would repeat it on a connection that it had kept and that turns out to be dead.  A body that can't be
 * rewound forbids that.
 */
#include "meta/member/etcd_i.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define SILENCE_MS 4000 /* of a peer that has not acknowledged what was sent */

void meta_event_free(struct event *v)
{
	if (v)
		sc_arena_done(&v->arena);
	sc_sys.release(v);
}

static size_t give_body(char *to, size_t size, size_t nr, void *arg)
{
	struct call *c = arg;
	size_t n = sc_min_u64(size * nr, c->body.bytes - c->sent);

	memcpy(to, c->body.text + c->sent, n);
	c->sent += n;
	c->begun |= n > 0;
	return n;
}

static int rewind_body(void *arg, curl_off_t at, int origin)
{
	struct call *c = arg;

	if (origin != SEEK_SET || at != 0 || (c->writes && c->begun))
		return CURL_SEEKFUNC_FAIL;
	c->sent = 0;
	return CURL_SEEKFUNC_OK;
}

static size_t take_answer(char *from, size_t size, size_t nr, void *arg)
{
	struct call *c = arg;

	if (c->answer.bytes + size * nr > META_ANSWER_BYTES_MAX)
		return 0;
	sc_buf_add(&c->answer, from, size * nr);
	if (c->answer.failed)
		return 0;
	if (c->came)
		c->came(c);
	return size * nr;
}

static int set_socket(void *arg, curl_socket_t fd, curlsocktype purpose)
{
	unsigned ms = SILENCE_MS;

	(void)arg;
	(void)purpose;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)); /* deadlines hold without it, too */
	return CURL_SOCKOPT_OK;
}

static void call_free(struct call *c)
{
	if (!c)
		return;
	if (c->easy) {
		(void)curl_multi_remove_handle(c->client->multi, c->easy);
		curl_easy_cleanup(c->easy);
	}
	sc_buf_done(&c->body);
	sc_buf_done(&c->answer);
	sc_arena_done(&c->arena);
	meta_event_free(c->event);
	sc_sys.release(c);
}

void meta_call_drop(struct call *c)
{
	struct call **p = &c->client->calls;

	while (*p && *p != c)
		p = &(*p)->next;
	if (*p)
		*p = c->next;
	call_free(c);
}

struct call *meta_call_new(struct meta_etcd *e, enum call_kind kind, uint64_t id)
{
	struct call *c = sc_zalloc(sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct call){
	    .client = e, .kind = kind, .id = id, .endpoint = e->current, .event = sc_zalloc(sizeof(*c->event))};
	if (!c->event) {
		sc_sys.release(c);
		return NULL;
	}
	c->event->event.kind = kind == CALL_PAGE    ? META_ETCD_SNAPSHOT
			       : kind == CALL_WATCH ? META_ETCD_UNWATCHED
						    : META_ETCD_ANSWER;
	c->event->event.id = id;
	return c;
}

static const char *path_of(enum call_kind kind)
{
	switch (kind) {
	case CALL_TXN:
		return "/v3/kv/txn";
	case CALL_GRANT:
		return "/v3/lease/grant";
	case CALL_KEEPALIVE:
		return "/v3/lease/keepalive";
	case CALL_REVOKE:
		return "/v3/lease/revoke";
	case CALL_PAGE:
		return "/v3/kv/range";
	default:
		return "/v3/watch";
	}
}

static bool set_up(struct call *c, const char *url)
{
	struct meta_etcd *e = c->client;
	CURL *h = c->easy;
	bool ok = true;

	ok &= !curl_easy_setopt(h, CURLOPT_URL, url);
	ok &= !curl_easy_setopt(h, CURLOPT_PROXY, "");
	ok &= !curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
	ok &= !curl_easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	ok &= !curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
	ok &= !curl_easy_setopt(h, CURLOPT_POST, 1L);
	ok &= !curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.bytes);
	ok &= !curl_easy_setopt(h, CURLOPT_READFUNCTION, give_body);
	ok &= !curl_easy_setopt(h, CURLOPT_READDATA, c);
	ok &= !curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, rewind_body);
	ok &= !curl_easy_setopt(h, CURLOPT_SEEKDATA, c);
	ok &= !curl_easy_setopt(h, CURLOPT_HTTPHEADER, e->headers);
	ok &= !curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, take_answer);
	ok &= !curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
	ok &= !curl_easy_setopt(h, CURLOPT_SOCKOPTFUNCTION, set_socket);
	ok &= !curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
	ok &= !curl_easy_setopt(h, CURLOPT_TCP_KEEPIDLE, 1L);
	ok &= !curl_easy_setopt(h, CURLOPT_TCP_KEEPINTVL, 1L);
	ok &= !curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT_MS, (long)e->connect_ms);
	ok &= !curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, c->kind == CALL_WATCH ? 0L : (long)e->request_ms);
	ok &= !curl_easy_setopt(h, CURLOPT_PRIVATE, c);
	if (e->ca)
		ok &= !curl_easy_setopt(h, CURLOPT_CAINFO, e->ca);
	if (e->cert)
		ok &= !curl_easy_setopt(h, CURLOPT_SSLCERT, e->cert) && !curl_easy_setopt(h, CURLOPT_SSLKEY, e->key);
	return ok;
}

int meta_call_start(struct call *c, struct sc_err *err)
{
	struct meta_etcd *e = c->client;
	struct sc_buf url = {0};
	bool ok;

	if (c->easy) {
		(void)curl_multi_remove_handle(e->multi, c->easy);
		curl_easy_cleanup(c->easy);
	}
	c->sent = 0;
	c->begun = false;
	c->answer.bytes = 0;
	c->tries++;
	c->easy = curl_easy_init();
	sc_buf_printf(&url, "%s%s", e->endpoints[c->endpoint], path_of(c->kind));
	ok = c->easy && !url.failed && set_up(c, url.text) && curl_multi_add_handle(e->multi, c->easy) == CURLM_OK;
	sc_buf_done(&url);
	return ok ? 0 : sc_nomem(err);
}

int meta_call_begin(struct call *take_call, int rc, struct sc_err *err)
{
	struct meta_etcd *e = take_call->client;

	if (rc == 0 && take_call->body.failed)
		rc = sc_nomem(err);
	if (rc == 0 && take_call->body.bytes > META_VALUE_BYTES_MAX + META_VALUE_BYTES_MAX / 2)
		rc = sc_fail(err, SC_E_LIMIT, "a request to etcd has %zu bytes, the limit is %u", take_call->body.bytes,
			     META_VALUE_BYTES_MAX + META_VALUE_BYTES_MAX / 2);
	if (rc == 0)
		rc = meta_call_start(take_call, err);
	if (rc < 0) {
		call_free(take_call);
		return rc;
	}
	take_call->began_ns = sc_now_ns();
	take_call->next = e->calls;
	e->calls = take_call;
	return 0;
}
