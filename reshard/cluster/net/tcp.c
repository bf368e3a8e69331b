/* SPDX-License-Identifier: Apache-2.0 */
/* Makes wires over TCP, with TLS or without: each is a socket, and epoll waits for all. */
#include "reshard/cluster/net/wire.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "reshard/cluster/net/tls.h"

struct tcp_wire {
	struct rs_wire wire;
	struct tcp *tcp;
	struct tcp_wire *next;	/* closed */
	int fd;			/* -1: closed */
	struct ssl_st *tls;	/* NULL: without */
	uint32_t events;
};

struct tcp {
	struct rs_fabric fabric;
	struct rs_wire_events on;
	struct rs_tls *tls;	/* NULL: without */
	int epoll, listener;
	struct tcp_wire *closed; /* events that were fetched already may name them */
};

static struct tcp_wire *of(struct rs_wire *w)
{
	return (struct tcp_wire *)w;
}

/* --- a wire --- */

static struct tcp_wire *wire_new(struct tcp *t, int take_fd, bool asks)
{
	struct tcp_wire *w = sc_zalloc(sizeof(*w));
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = w};
	int one = 1;

	if (w && t->tls)
		w->tls = rs_tls_begin(t->tls, take_fd, asks);
	if (!w || (t->tls && !w->tls) || epoll_ctl(t->epoll, EPOLL_CTL_ADD, take_fd, &e) < 0) {
		rs_tls_end(w ? w->tls : NULL);
		sc_sys.release(w);
		(void)close(take_fd);
		return NULL;
	}
	(void)setsockopt(take_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	w->tcp = t;
	w->fd = take_fd;
	w->events = EPOLLIN | EPOLLOUT;
	return w;
}

static int tcp_connect(struct rs_fabric *fabric, const struct sockaddr_in *to, void *user, struct rs_wire **ret,
		       struct sc_err *err)
{
	struct tcp_wire *w;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || (connect(fd, (const void *)to, sizeof(*to)) < 0 && errno != EINPROGRESS)) {
		(void)sc_fail_sys(err, errno, "cannot connect");
		if (fd >= 0)
			(void)close(fd);
		return err->code;
	}
	w = wire_new((struct tcp *)fabric, fd, true);
	if (!w)
		return sc_nomem(err);
	w->wire.user = user;
	*ret = &w->wire;
	return 0;
}

static ssize_t reason_of(ssize_t n, const char **why)
{
	int number = errno;

	*why = n < 0 && number != ECONNRESET && number != EPIPE ? strerror(number) : NULL;
	errno = number == ENOTCONN ? EAGAIN : number;
	return n;
}

static ssize_t tcp_send(struct rs_wire *wire, const void *from, size_t bytes, const char **why)
{
	struct tcp_wire *w = of(wire);

	if (w->tls)
		return rs_tls_send(w->tls, from, bytes, why);
	return reason_of(send(w->fd, from, bytes, MSG_NOSIGNAL), why);
}

static ssize_t tcp_recv(struct rs_wire *wire, void *to, size_t bytes, const char **why)
{
	struct tcp_wire *w = of(wire);

	if (w->tls)
		return rs_tls_recv(w->tls, to, bytes, why);
	return reason_of(recv(w->fd, to, bytes, 0), why);
}

/* Tells whether TLS has bytes that it took from the socket already, of which no event tells. */
static bool tcp_has_more(const struct rs_wire *wire)
{
	const struct tcp_wire *w = (const struct tcp_wire *)wire;

	return w->tls && rs_tls_has_more(w->tls);
}

static int tcp_wants(struct rs_wire *wire, bool to_send)
{
	struct tcp_wire *w = of(wire);
	bool out = w->tls ? rs_tls_wants_out(w->tls) : to_send;
	struct epoll_event e = {.events = out ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = w};

	if (w->events == e.events)
		return 0;
	w->events = e.events;
	return epoll_ctl(w->tcp->epoll, EPOLL_CTL_MOD, w->fd, &e) < 0 ? errno : 0;
}

static void tcp_close(struct rs_wire *wire)
{
	struct tcp_wire *w = of(wire);

	rs_tls_end(sc_steal(&w->tls));
	(void)close(w->fd);
	w->fd = -1;
	w->next = w->tcp->closed;
	w->tcp->closed = w;
}

/* --- all of them --- */

static void accept_some(struct tcp *t)
{
	for (int i = 0; i < 64; i++) {
		struct sockaddr_in from;
		socklen_t n = sizeof(from);
		struct tcp_wire *w;
		int fd = accept4(t->listener, (void *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return;
		w = wire_new(t, fd, false);
		if (w)
			t->on.accepted(t->on.arg, &w->wire, &from);
	}
}

static void release_closed(struct tcp *t)
{
	while (t->closed) {
		struct tcp_wire *w = t->closed;

		t->closed = w->next;
		sc_sys.release(w);
	}
}

static void tcp_wait(struct rs_fabric *fabric, int ms)
{
	struct tcp *t = (struct tcp *)fabric;
	struct epoll_event events[64];
	int nr;

	release_closed(t);
	nr = epoll_wait(t->epoll, events, 64, ms);
	for (int i = 0; i < nr; i++) {
		struct tcp_wire *w = events[i].data.ptr;

		if (!w)
			accept_some(t);
		else if (w->fd >= 0)
			t->on.ready(w->wire.user, events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP));
	}
	release_closed(t);
}

static int tcp_fd(const struct rs_fabric *fabric)
{
	return ((const struct tcp *)fabric)->epoll;
}

static int tcp_port(const struct rs_fabric *fabric)
{
	const struct tcp *t = (const struct tcp *)fabric;
	struct sockaddr_in at;
	socklen_t n = sizeof(at);

	return t->listener >= 0 && getsockname(t->listener, (void *)&at, &n) == 0 ? ntohs(at.sin_port) : -1;
}

static int listen_at(struct tcp *t, const struct rs_fabric_config *g, struct sc_err *err)
{
	struct epoll_event e = {.events = EPOLLIN};
	int one = 1;

	t->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (t->listener < 0 || setsockopt(t->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(t->listener, (const void *)&g->at, sizeof(g->at)) < 0 || listen(t->listener, 1024) < 0 ||
	    epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener, &e) < 0)
		return sc_fail_sys(err, errno, "cannot listen at %s, which is to be an address of this machine with a "
				   "free port", g->listen);
	return 0;
}

static void tcp_end(struct rs_fabric *fabric)
{
	struct tcp *t = (struct tcp *)fabric;

	release_closed(t);
	rs_tls_free(t->tls);
	if (t->listener >= 0)
		(void)close(t->listener);
	if (t->epoll >= 0)
		(void)close(t->epoll);
	sc_sys.release(t);
}

static int tcp_begin(const struct rs_fabric_config *config, struct rs_fabric **ret, struct sc_err *err)
{
	struct tcp *t = sc_zalloc(sizeof(*t));
	int rc = 0;

	if (!t)
		return sc_nomem(err);
	t->fabric.kind = &rs_wire_tcp;
	t->on = config->on;
	t->listener = -1;
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll < 0)
		rc = sc_fail_sys(err, errno, "cannot make an epoll");
	if (rc == 0 && config->tls)
		rc = rs_tls_new(config->tls, &t->tls, err);
	if (rc == 0 && config->listen)
		rc = listen_at(t, config, err);
	if (rc < 0)
		tcp_end(&t->fabric);
	else
		*ret = &t->fabric;
	return rc;
}

const struct rs_wire_kind rs_wire_tcp = {
	.begin = tcp_begin,
	.end = tcp_end,
	.port = tcp_port,
	.fd = tcp_fd,
	.wait = tcp_wait,
	.connect = tcp_connect,
	.send = tcp_send,
	.recv = tcp_recv,
	.has_more = tcp_has_more,
	.wants = tcp_wants,
	.close = tcp_close,
};
