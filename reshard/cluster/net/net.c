/* SPDX-License-Identifier: Apache-2.0 */
/* Opens connections at first use, accepts others, and gives up those that pass their deadlines. */
#include "reshard/cluster/net/net_i.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/mem.h"

#define CONNECTIONS_MAX 4096u /* of both directions */
#define ASKED_MAX 64u         /* requests on their way to one node */

static int parse_address(const char *text, struct sockaddr_in *ret)
{
	char host[64];
	const char *colon = strrchr(text, ':');
	char *end;
	unsigned long port;

	if (!colon || (size_t)(colon - text) >= sizeof(host))
		return -1;
	(void)snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	port = strtoul(colon + 1, &end, 10);
	*ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	return *end || port > 65535 || inet_pton(AF_INET, host, &ret->sin_addr) != 1 ? -1 : 0;
}

static struct conn *conn_new(struct rs_net *net, bool asks, const char *address)
{
	struct conn *c = net->nr < CONNECTIONS_MAX ? sc_zalloc(sizeof(*c)) : NULL;
	uint8_t nonce[32];

	if (!c || sc_sys.random(nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
		sc_sys.release(c);
		return NULL;
	}
	c->net = net;
	c->asks = asks;
	c->last = &c->first;
	c->wait_last = &c->wait;
	c->want = RS_FRAME_HEADER;
	c->deadline = sc_now_ns() + net->config.hello_ms * 1000000;
	(void)snprintf(c->address, sizeof(c->address), "%s", address);
	rs_session_begin(&c->session, asks, &net->config.id, net->config.secrets, net->config.nr_secrets, nonce);
	return c;
}

static void conn_begin(struct conn *c)
{
	c->next = c->net->conns;
	c->net->conns = c;
	c->net->nr++;
	rs_conn_hello(c);
}

static struct conn *connect_to(struct rs_net *net, const char *address, struct sc_err *err)
{
	struct sockaddr_in to;
	struct conn *c;

	for (c = net->conns; c; c = c->next)
		if (c->asks && !c->dead && strcmp(c->address, address) == 0)
			return c;
	if (strlen(address) >= sizeof(c->address) || parse_address(address, &to) < 0) {
		(void)sc_fail(err, SC_E_LIMIT, "'%.70s' is no ADDRESS:PORT", address);
		return NULL;
	}
	c = conn_new(net, true, address);
	if (!c) {
		(void)sc_fail(err, SC_E_BUSY, "node at %s: %u connections are open, the limit is %u", address, net->nr,
			      CONNECTIONS_MAX);
		return NULL;
	}
	if (net->kind->connect(net->fabric, &to, c, &c->wire, err) < 0) {
		(void)sc_wrap(err, err->code, "node at %s", address);
		sc_sys.release(c);
		return NULL;
	}
	conn_begin(c);
	return c;
}

static void on_accepted(void *arg, struct rs_wire *take_wire, const struct sockaddr_in *from)
{
	char text[64], host[INET_ADDRSTRLEN] = "?";
	struct rs_net *net = arg;
	struct conn *c;

	(void)inet_ntop(AF_INET, &from->sin_addr, host, sizeof(host));
	(void)snprintf(text, sizeof(text), "%s:%u", host, ntohs(from->sin_port));
	c = conn_new(net, false, text);
	if (!c) {
		net->kind->close(take_wire);
		return;
	}
	c->wire = take_wire;
	take_wire->user = c;
	conn_begin(c);
}

static void on_ready(void *user, bool may_take)
{
	struct conn *c = user;

	if (!c->dead && may_take)
		rs_conn_take(c);
	if (!c->dead)
		rs_conn_flush(c);
}

/* --- the interface --- */

static int send_frame(struct conn *c, const struct rs_net_frame *f, struct sc_err *err)
{
	struct out *o;

	if (c->net->out_bytes > OUT_BYTES_MAX)
		return sc_fail(err, SC_E_BUSY, "node at %s: %zu bytes wait to be sent already", c->address,
			       c->net->out_bytes);
	o = rs_out_make(c, f, err);
	if (!o)
		return err->code;
	rs_conn_put(c, o, o->bytes);
	rs_conn_flush(c);
	return 0;
}

int rs_net_send(struct rs_net *net, const char *address, const struct rs_net_frame *f, struct sc_err *err)
{
	struct conn *c = connect_to(net, address, err);

	return c ? send_frame(c, f, err) : err->code;
}

int rs_net_pull(struct rs_net *net, const char *address, const struct rs_pull *p, uint8_t *to, rs_pulled_fn *done,
		void *arg, struct sc_err *err)
{
	struct rs_net_frame *f = &net->frame;
	struct conn *c = connect_to(net, address, err);
	struct asked *a;
	int rc;

	if (!c)
		return err->code;
	if (c->nr_asked == ASKED_MAX)
		return sc_fail(err, SC_E_BUSY, "node at %s: %u requests are on their way already", address, ASKED_MAX);
	a = sc_zalloc(sizeof(*a));
	if (!a)
		return sc_nomem(err);
	*a = (struct asked){NULL, ++c->next_id, p->bytes, to, sc_now_ns() + p->deadline_ms * INT64_C(1000000),
			    done, arg};
	memset(f, 0, offsetof(struct rs_net_frame, hello));
	f->kind = RS_FRAME_PULL;
	f->id = a->id;
	f->pull = *p;
	rc = send_frame(c, f, err);
	if (rc == 0 && c->dead) {
		*err = c->why;
		rc = err->code;
	}
	if (rc < 0) {
		sc_sys.release(a);
		return rc;
	}
	a->next = c->asked;
	c->asked = a;
	c->nr_asked++;
	return 0;
}

/* Says why a connection is late: a listener of another fabric says nothing to a frame that it does not understand. */
static const char *late(const struct conn *c)
{
	return !c->asks || c->session.open ? "it has not answered in time"
		: "it has not said in time who it is; is only one of the two nodes mounted with fabric=ucx?";
}

static int64_t look_at_deadlines(struct rs_net *net, int64_t now, int64_t until)
{
	for (struct conn *c = net->conns; c; c = c->next) {
		int64_t first = c->session.open ? until : c->deadline;

		for (const struct asked *a = c->asked; a; a = a->next)
			first = a->deadline < first ? a->deadline : first;
		if (c->answered && c->answered->deadline < first)
			first = c->answered->deadline;
		if (!c->dead && now >= first && first < until)
			rs_conn_fail(c, late(c));
		else if (!c->dead && first < until)
			until = first;
	}
	return until;
}

void rs_net_run(struct rs_net *net, int ms)
{
	int64_t now = sc_now_ns(), until = look_at_deadlines(net, now, now + ms * INT64_C(1000000));

	rs_conns_sweep(net);
	net->kind->wait(net->fabric, (int)((until - now + 999999) / 1000000));
	(void)look_at_deadlines(net, sc_now_ns(), INT64_MAX);
	rs_conns_sweep(net);
}

void rs_net_set_epoch(struct rs_net *net, uint64_t epoch)
{
	net->config.id.epoch = epoch;
	for (struct conn *c = net->conns; c; c = c->next)
		if (c->asks && !c->dead)
			rs_conn_fail(c, "this node is registered anew");
}

void rs_net_set_protocol(struct rs_net *net, uint8_t max)
{
	net->config.id.protocol_max = max;
}

int rs_net_fd(const struct rs_net *net)
{
	return net->kind->fd(net->fabric);
}

int rs_net_port(const struct rs_net *net)
{
	return net->kind->port(net->fabric);
}

int rs_net_load_ucx(struct sc_err *err)
{
#ifdef RS_HAS_UCX
	return rs_wire_ucx_load(err);
#else
	return sc_fail(err, SC_E_UNSUPPORTED, "this scalai was built without UCX's headers and has no fabric=ucx");
#endif
}

static const struct rs_wire_kind *kind_of(const struct rs_net_config *config)
{
#ifdef RS_HAS_UCX
	if (config->ucx)
		return &rs_wire_ucx;
#endif
	(void)config;
	return &rs_wire_tcp;
}

int rs_net_new(const struct rs_net_config *config, struct rs_net **ret, struct sc_err *err)
{
	struct rs_net *net = sc_zalloc(sizeof(*net));
	struct rs_fabric_config g = {.listen = config->listen, .tls = config->tls, .on = {net, on_accepted, on_ready}};
	int rc = 0;

	if (!net)
		return sc_nomem(err);
	net->config = *config;
	net->kind = kind_of(config);
	if (config->ucx)
		rc = rs_net_load_ucx(err);
	if (rc == 0 && g.listen && parse_address(g.listen, &g.at) < 0)
		rc = sc_fail(err, SC_E_LIMIT, "'%.70s' is no ADDRESS:PORT", g.listen);
	if (rc == 0)
		rc = net->kind->begin(&g, &net->fabric, err);
	if (rc < 0) {
		rs_net_free(net);
		return rc;
	}
	*ret = net;
	return 0;
}

void rs_net_free(struct rs_net *net)
{
	if (!net)
		return;
	for (struct conn *c = net->conns; c; c = c->next)
		rs_conn_fail(c, "this node goes");
	rs_conns_sweep(net);
	while (net->spare) {
		struct out *o = net->spare;

		net->spare = o->next;
		sc_sys.release(o);
	}
	if (net->fabric)
		net->kind->end(net->fabric);
	sc_sys.release(net);
}
