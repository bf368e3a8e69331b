/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: opened at first use, accepted, given up at their deadlines. */
#include "reshard/net/net_i.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

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

static struct conn *conn_new(struct rs_net *net, int take_fd, bool asks, const char *address)
{
	struct conn *c = net->nr < CONNECTIONS_MAX ? sc_zalloc(sizeof(*c)) : NULL;
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
	uint8_t nonce[32];
	int one = 1;

	if (!c || sc_sys.random(nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce) ||
	    epoll_ctl(net->epoll, EPOLL_CTL_ADD, take_fd, &e) < 0) {
		sc_sys.release(c);
		(void)close(take_fd);
		return NULL;
	}
	(void)setsockopt(take_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->net = net;
	c->fd = take_fd;
	c->asks = asks;
	c->events = EPOLLIN | EPOLLOUT;
	c->last = &c->first;
	c->wait_last = &c->wait;
	c->want = RS_FRAME_HEADER;
	c->deadline = sc_now_ns() + net->config.hello_ms * 1000000;
	(void)snprintf(c->address, sizeof(c->address), "%s", address);
	rs_session_begin(&c->session, asks, &net->config.id, net->config.secrets, net->config.nr_secrets, nonce);
	c->next = net->conns;
	net->conns = c;
	net->nr++;
	rs_conn_hello(c);
	return c;
}

static struct conn *connect_to(struct rs_net *net, const char *address, struct sc_err *err)
{
	struct sockaddr_in to;
	struct conn *c;
	int fd;

	for (c = net->conns; c; c = c->next)
		if (c->asks && !c->dead && strcmp(c->address, address) == 0)
			return c;
	if (strlen(address) >= sizeof(c->address) || parse_address(address, &to) < 0) {
		(void)sc_fail(err, SC_E_LIMIT, "'%.70s' is no ADDRESS:PORT", address);
		return NULL;
	}
	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || (connect(fd, (void *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)) {
		(void)sc_fail_sys(err, errno, "node at %s: cannot connect: %s", address, strerror(errno));
		if (fd >= 0)
			(void)close(fd);
		return NULL;
	}
	c = conn_new(net, fd, true, address);
	if (!c)
		(void)sc_fail(err, SC_E_BUSY, "node at %s: %u connections are open, the limit is %u", address, net->nr,
			      CONNECTIONS_MAX);
	return c;
}

static void accept_some(struct rs_net *net)
{
	for (int i = 0; i < 64; i++) {
		struct sockaddr_in from;
		socklen_t n = sizeof(from);
		char text[64], host[INET_ADDRSTRLEN] = "?";
		int fd = accept4(net->listener, (void *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return;
		(void)inet_ntop(AF_INET, &from.sin_addr, host, sizeof(host));
		(void)snprintf(text, sizeof(text), "%s:%u", host, ntohs(from.sin_port));
		(void)conn_new(net, fd, false, text);
	}
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
	if (rc == 0 && c->dead)
		rc = sc_fail(err, SC_E_SYSTEM, "node at %s: the connection has failed", address);
	if (rc < 0) {
		sc_sys.release(a);
		return rc;
	}
	a->next = c->asked;
	c->asked = a;
	c->nr_asked++;
	return 0;
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
			rs_conn_fail(c, "it has not answered in time");
		else if (!c->dead && first < until)
			until = first;
	}
	return until;
}

void rs_net_run(struct rs_net *net, int ms)
{
	int64_t now = sc_now_ns(), until = look_at_deadlines(net, now, now + ms * INT64_C(1000000));
	struct epoll_event events[64];
	int nr;

	rs_conns_sweep(net);
	nr = epoll_wait(net->epoll, events, 64, (int)((until - now + 999999) / 1000000));
	for (int i = 0; i < nr; i++) {
		struct conn *c = events[i].data.ptr;

		if (!c) {
			accept_some(net);
			continue;
		}
		if (!c->dead && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
			rs_conn_take(c);
		if (!c->dead)
			rs_conn_flush(c);
	}
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

int rs_net_fd(const struct rs_net *net)
{
	return net->epoll;
}

int rs_net_port(const struct rs_net *net)
{
	struct sockaddr_in at;
	socklen_t n = sizeof(at);

	return net->listener >= 0 && getsockname(net->listener, (void *)&at, &n) == 0 ? ntohs(at.sin_port) : -1;
}

static int listen_at(struct rs_net *net, const char *address, struct sc_err *err)
{
	struct epoll_event e = {.events = EPOLLIN};
	struct sockaddr_in at;
	int one = 1;

	if (parse_address(address, &at) < 0)
		return sc_fail(err, SC_E_LIMIT, "'%.70s' is no ADDRESS:PORT", address);
	net->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (net->listener < 0 || setsockopt(net->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(net->listener, (void *)&at, sizeof(at)) < 0 || listen(net->listener, 1024) < 0 ||
	    epoll_ctl(net->epoll, EPOLL_CTL_ADD, net->listener, &e) < 0)
		return sc_fail_sys(err, errno, "cannot listen at %s: %s", address, strerror(errno));
	return 0;
}

int rs_net_new(const struct rs_net_config *config, struct rs_net **ret, struct sc_err *err)
{
	struct rs_net *net = sc_zalloc(sizeof(*net));
	int rc = 0;

	if (!net)
		return sc_nomem(err);
	net->config = *config;
	net->listener = -1;
	net->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (net->epoll < 0)
		rc = sc_fail_sys(err, errno, "cannot make an epoll: %s", strerror(errno));
	if (rc == 0 && config->listen)
		rc = listen_at(net, config->listen, err);
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
	if (net->listener >= 0)
		(void)close(net->listener);
	if (net->epoll >= 0)
		(void)close(net->epoll);
	sc_sys.release(net);
}
