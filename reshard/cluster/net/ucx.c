/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes wires over UCX: each is an endpoint, and its stream of bytes.  Only this file and ucx_load.c use UCX.
 *
 * 1. UCX receives into memory of its own, from which recv() copies: no request of UCX knows memory of a user.
 * 2. UCX sends from slabs, one for each endpoint that sends.  A slab is UCX's until UCX has given it back, also after
 *    close(); when all are out, send() says EAGAIN.
 * 3. UCX's callbacks note what has happened, and turn() tells it: nobody calls UCX from within one of its callbacks.
 * 4. UCX says when a peer has died, but not when it is silent.  The net has deadlines, and closes the wire by force.
 */
#include "reshard/cluster/net/ucx_i.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/mem.h"
#include "meta/base/sys.h"
#include "reshard/cluster/net/wire.h"

#define SLAB_BYTES (256u << 10)
#define SLABS_MAX 256u		/* that UCX has */
#define SLABS_KEPT_MAX 16u	/* that nobody has */
#define ACCEPTED_MAX 1024u	/* connections that wait for a turn */
#define TURNS_MAX 64
#define END_NS (INT64_C(1) << 30) /* in which UCX gives back what it has */

struct slab {
	struct slab *next;
	uint8_t at[SLAB_BYTES];
};

struct ucx_wire {
	struct rs_wire wire;
	struct ucx *fabric;
	struct ucx_wire *next;	 /* closed */
	struct ucx_wire *to_tell, *starved; /* the next ones of the lists */
	ucp_ep_h ep;
	ucs_status_t failed;	 /* UCS_OK: it has not */
	struct slab *slab;	 /* UCX's while `sending` */
	void *sending, *closing; /* requests of UCX */
	uint8_t *in;		 /* UCX's memory with bytes that have come; NULL: none */
	size_t in_bytes, in_at;
	bool closed, is_to_tell, is_starved;
};

struct ucx {
	struct rs_fabric fabric;
	struct rs_wire_events on;
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_listener_h listener;
	int fd;
	ucp_conn_request_h accepted[ACCEPTED_MAX];
	unsigned nr_accepted;
	struct ucx_wire *to_tell, *closed;
	struct ucx_wire *starved; /* these wait for a slab */
	struct slab *slabs;	/* that nobody has */
	unsigned nr_slabs, nr_slabs_out;
	bool in_turn;
};

static struct ucx_wire *of(struct rs_wire *w)
{
	return (struct ucx_wire *)w;
}

static int fail(struct sc_err *err, ucs_status_t status, const char *what)
{
	return sc_fail(err, status == UCS_ERR_NO_MEMORY ? SC_E_NO_MEMORY : SC_E_SYSTEM, "%s: UCX says: %s", what,
		       rs_ucx.text(status));
}

/* --- a wire --- */

/* Notes that turn() is to tell the user of the wire. */
static void tell(struct ucx_wire *w)
{
	if (w->is_to_tell)
		return;
	w->is_to_tell = true;
	w->to_tell = w->fabric->to_tell;
	w->fabric->to_tell = w;
}

/* Lets the descriptor tell of what comes next.  False: there is something to do already.  UCX is asked twice, as its
 * first refusal may be due to an earlier signal, which that call has taken. */
static bool arm(struct ucx *f)
{
	return rs_ucx.worker_arm(f->worker) == UCS_OK || rs_ucx.worker_arm(f->worker) == UCS_OK;
}

/* Has the descriptor tell of work that a call outside of wait() may have left. */
static void wake(struct ucx *f)
{
	if (!f->in_turn && !arm(f))
		(void)rs_ucx.worker_signal(f->worker);
}

static void on_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	struct ucx_wire *w = arg;

	(void)ep;
	w->failed = status;
	tell(w);
}

static struct slab *take_slab(struct ucx *f)
{
	struct slab *s = f->slabs;

	if (f->nr_slabs_out == SLABS_MAX)
		return NULL;
	if (s) {
		f->slabs = s->next;
		f->nr_slabs--;
	} else {
		s = sc_sys.alloc(sizeof(*s));
	}
	f->nr_slabs_out += s != NULL;
	return s;
}

static void give_slab(struct ucx *f, struct slab *take_slab)
{
	struct ucx_wire *w = f->starved;

	if (!take_slab)
		return;
	if (w) { /* one goes on */
		f->starved = w->starved;
		w->is_starved = false;
		tell(w);
	}
	f->nr_slabs_out--;
	if (f->nr_slabs == SLABS_KEPT_MAX) {
		sc_sys.release(take_slab);
		return;
	}
	take_slab->next = f->slabs;
	f->slabs = take_slab;
	f->nr_slabs++;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
	struct ucx_wire *w = arg;

	rs_ucx.request_free(request);
	w->sending = NULL;
	give_slab(w->fabric, sc_steal(&w->slab));
	if (status != UCS_OK && w->failed == UCS_OK)
		w->failed = status;
	tell(w);
}

/* Makes a wire to the address of a peer, or, if `to` is NULL, by a peer's request. */
static int wire_new(struct ucx *f, const struct sockaddr_in *to, ucp_conn_request_h request, struct ucx_wire **ret,
		    struct sc_err *err)
{
	struct ucx_wire *w = sc_zalloc(sizeof(*w));
	ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER |
					   UCP_EP_PARAM_FIELD_USER_DATA,
			     .err_mode = UCP_ERR_HANDLING_MODE_PEER,
			     .err_handler = {.cb = on_failed, .arg = w},
			     .user_data = w};
	ucs_status_t status;

	if (to) {
		p.field_mask |= UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
		p.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
		p.sockaddr.addr = (const struct sockaddr *)to;
		p.sockaddr.addrlen = sizeof(*to);
	} else {
		p.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		p.conn_request = request;
	}
	if (!w)
		return sc_nomem(err);
	w->fabric = f;
	status = rs_ucx.ep_create(f->worker, &p, &w->ep);
	if (status != UCS_OK) {
		sc_sys.release(w);
		return fail(err, status, "cannot connect");
	}
	*ret = w;
	return 0;
}

static int ucx_connect(struct rs_fabric *fabric, const struct sockaddr_in *to, void *user, struct rs_wire **ret,
		       struct sc_err *err)
{
	struct ucx *f = (struct ucx *)fabric;
	struct ucx_wire *w;
	int rc = wire_new(f, to, NULL, &w, err);

	if (rc < 0)
		return rc;
	w->wire.user = user;
	*ret = &w->wire;
	wake(f);
	return 0;
}

/* Says why a wire is of no use: as recv(2), with errno. */
static ssize_t nothing(const struct ucx_wire *w, const char **why)
{
	static char text[100];

	(void)snprintf(text, sizeof(text), "UCX says: %s", rs_ucx.text(w->failed));
	switch (w->failed) {
	case UCS_OK:
		*why = NULL;
		errno = EAGAIN;
		return -1;
	case UCS_ERR_CONNECTION_RESET:
	case UCS_ERR_REJECTED:
		*why = NULL;
		errno = ECONNRESET;
		return -1;
	default:
		*why = text;
		errno = EIO;
		return -1;
	}
}

static ssize_t ucx_send(struct rs_wire *wire, const void *from, size_t bytes, const char **why)
{
	struct ucx_wire *w = of(wire);
	struct ucx *f = w->fabric;
	ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
				 .cb.send = on_sent,
				 .user_data = w};
	size_t n = sc_min_u64(bytes, SLAB_BYTES);
	ucs_status_ptr_t r;

	if (w->failed != UCS_OK || w->sending)
		return nothing(w, why);
	w->slab = take_slab(f);
	if (!w->slab) {
		if (!w->is_starved) {
			w->starved = f->starved;
			f->starved = w;
		}
		w->is_starved = true;
		return nothing(w, why);
	}
	memcpy(w->slab->at, from, n);
	r = rs_ucx.stream_send(w->ep, w->slab->at, n, &p);
	if (UCS_PTR_IS_PTR(r)) {
		w->sending = r;
	} else {
		give_slab(f, sc_steal(&w->slab));
		if (UCS_PTR_IS_ERR(r)) {
			w->failed = UCS_PTR_STATUS(r);
			return nothing(w, why);
		}
	}
	wake(f);
	return (ssize_t)n;
}

/* Takes the next bytes that UCX has for this wire. */
static void take_in(struct ucx_wire *w)
{
	ucs_status_ptr_t p = rs_ucx.stream_recv(w->ep, &w->in_bytes);

	w->in_at = 0;
	w->in = UCS_PTR_IS_ERR(p) ? NULL : p;
	if (UCS_PTR_IS_ERR(p) && w->failed == UCS_OK)
		w->failed = UCS_PTR_STATUS(p);
}

static ssize_t ucx_recv(struct rs_wire *wire, void *to, size_t bytes, const char **why)
{
	struct ucx_wire *w = of(wire);
	size_t n;

	if (!w->in && w->failed == UCS_OK)
		take_in(w);
	if (!w->in)
		return nothing(w, why);
	n = sc_min_u64(bytes, w->in_bytes - w->in_at);
	memcpy(to, w->in + w->in_at, n);
	w->in_at += n;
	if (w->in_at == w->in_bytes) {
		rs_ucx.stream_release(w->ep, w->in);
		w->in = NULL;
		if (w->failed == UCS_OK)
			take_in(w); /* has_more() knows then */
	}
	return (ssize_t)n;
}

static bool ucx_has_more(const struct rs_wire *wire)
{
	return ((const struct ucx_wire *)wire)->in != NULL;
}

static int ucx_wants(struct rs_wire *wire, bool to_send)
{
	(void)wire; /* on_sent() tells, or who has given a slab back */
	(void)to_send;
	return 0;
}

static void ucx_close(struct rs_wire *wire)
{
	const ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
	struct ucx_wire *w = of(wire);
	ucs_status_ptr_t r;

	w->closed = true;
	w->wire.user = NULL;
	if (w->in)
		rs_ucx.stream_release(w->ep, w->in);
	w->in = NULL;
	for (struct ucx_wire **s = &w->fabric->starved; w->is_starved; s = &(*s)->starved)
		if (*s == w) {
			*s = w->starved;
			break;
		}
	r = rs_ucx.ep_close(w->ep, &p);
	w->closing = UCS_PTR_IS_PTR(r) ? r : NULL;
	w->next = w->fabric->closed;
	w->fabric->closed = w;
	wake(w->fabric);
}

/* --- all of them --- */

static void on_request(ucp_conn_request_h request, void *arg)
{
	struct ucx *f = arg;

	if (f->nr_accepted < ACCEPTED_MAX)
		f->accepted[f->nr_accepted++] = request;
	else
		(void)rs_ucx.listener_reject(f->listener, request);
}

static void accept_all(struct ucx *f)
{
	for (unsigned i = 0; i < f->nr_accepted; i++) {
		ucp_conn_request_attr_t a = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
		struct sockaddr_in from = {.sin_family = AF_INET};
		struct ucx_wire *w;
		struct sc_err err;

		if (rs_ucx.request_query(f->accepted[i], &a) == UCS_OK && a.client_address.ss_family == AF_INET)
			memcpy(&from, &a.client_address, sizeof(from));
		if (wire_new(f, NULL, f->accepted[i], &w, &err) == 0)
			f->on.accepted(f->on.arg, &w->wire, &from);
	}
	f->nr_accepted = 0;
}

/* Releases closed wires that UCX does not know any more. */
static void release_closed(struct ucx *f)
{
	for (struct ucx_wire **p = &f->closed, *w; (w = *p);) {
		if (w->closing && rs_ucx.status_of(w->closing) != UCS_INPROGRESS) {
			rs_ucx.request_free(w->closing);
			w->closing = NULL;
		}
		if (w->closing || w->sending || w->is_to_tell) {
			p = &w->next;
			continue;
		}
		*p = w->next;
		give_slab(f, w->slab);
		sc_sys.release(w);
	}
}

static bool turn(struct ucx *f)
{
	bool did = rs_ucx.worker_progress(f->worker) != 0 || f->nr_accepted || f->to_tell;
	struct ucx_wire *list;
	ucp_stream_poll_ep_t eps[64];
	ssize_t nr;

	accept_all(f);
	do {
		nr = rs_ucx.stream_poll(f->worker, eps, 64, 0);
		for (ssize_t i = 0; i < nr; i++) {
			struct ucx_wire *w = eps[i].user_data;

			did = true;
			if (!w->closed)
				f->on.ready(w->wire.user, true);
		}
	} while (nr == 64);
	list = sc_steal(&f->to_tell);
	while (list) {
		struct ucx_wire *w = list;

		list = w->to_tell;
		w->is_to_tell = false;
		if (!w->closed)
			f->on.ready(w->wire.user, w->failed != UCS_OK);
	}
	release_closed(f);
	return did;
}

/* Does what there is to do, and then lets the descriptor tell of more.  False: there was nothing to do. */
static bool turns(struct ucx *f)
{
	bool did = false;
	int nr = 0;

	f->in_turn = true;
	do {
		while (nr < TURNS_MAX && turn(f)) {
			did = true;
			nr++;
		}
	} while (!arm(f) && nr++ < TURNS_MAX);
	f->in_turn = false;
	if (nr >= TURNS_MAX)
		(void)rs_ucx.worker_signal(f->worker);
	return did;
}

static void ucx_wait(struct rs_fabric *fabric, int ms)
{
	struct ucx *f = (struct ucx *)fabric;
	struct pollfd fd = {.fd = f->fd, .events = POLLIN};

	if (!turns(f) && ms > 0 && poll(&fd, 1, ms) > 0)
		(void)turns(f);
}

static int ucx_fd(const struct rs_fabric *fabric)
{
	return ((const struct ucx *)fabric)->fd;
}

static int ucx_port(const struct rs_fabric *fabric)
{
	const struct ucx *f = (const struct ucx *)fabric;
	ucp_listener_attr_t a = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};

	if (!f->listener || rs_ucx.listener_query(f->listener, &a) != UCS_OK)
		return -1;
	return ntohs(((const struct sockaddr_in *)&a.sockaddr)->sin_port);
}

static void ucx_end(struct rs_fabric *fabric)
{
	struct ucx *f = (struct ucx *)fabric;
	const int64_t until = sc_now_ns() + END_NS;

	for (unsigned i = 0; i < f->nr_accepted; i++)
		(void)rs_ucx.listener_reject(f->listener, f->accepted[i]);
	f->nr_accepted = 0;
	if (f->listener)
		rs_ucx.listener_destroy(f->listener);
	while (f->closed && sc_now_ns() < until) {
		(void)rs_ucx.worker_progress(f->worker);
		for (struct ucx_wire *w = sc_steal(&f->to_tell); w; w = w->to_tell)
			w->is_to_tell = false;
		release_closed(f);
	}
	if (f->closed)
		return; /* UCX has some of it for ever */
	if (f->worker)
		rs_ucx.worker_destroy(f->worker);
	if (f->context)
		rs_ucx.cleanup(f->context);
	while (f->slabs) {
		struct slab *s = f->slabs;

		f->slabs = s->next;
		sc_sys.release(s);
	}
	sc_sys.release(f);
}

/* Makes UCX use TCP, unless the environment says something else: by itself UCX would take shared memory between
 * containers. */
static int begin_context(struct ucx *f, struct sc_err *err)
{
	/* name here, without the transport's own prefix; in the environment */
	static const char *const settings[][3] = {{"TLS", "UCX_TLS", "tcp"},
						  /* else 1.13 aborts when a peer dies while it sends */
						  {"ZCOPY_THRESH", "UCX_ZCOPY_THRESH", "inf"},
						  {"TX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE", "64k"}, /* as peers take */
						  {"CONN_NB", "UCX_TCP_CONN_NB", "y"}, /* else a connect() blocks */
						  {"MAX_NUM_EPS", "UCX_TCP_MAX_NUM_EPS", "4096"},
						  {"CM_REUSEADDR", "UCX_TCP_CM_REUSEADDR", "y"}};
	ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES,
			  .features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP};
	ucp_config_t *config;
	ucs_status_t status = rs_ucx.config_read(NULL, NULL, &config);

	if (status != UCS_OK)
		return fail(err, status, "fabric=ucx");
	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++)
		if (!getenv(settings[i][1]))
			(void)rs_ucx.config_modify(config, settings[i][0], settings[i][2]);
	status = rs_ucx.init(UCP_API_MAJOR, UCP_API_MINOR, &p, config, &f->context);
	rs_ucx.config_release(config);
	return status == UCS_OK ? 0 : fail(err, status, "fabric=ucx");
}

static int begin_worker(struct ucx *f, const struct rs_fabric_config *g, struct sc_err *err)
{
	ucp_worker_params_t p = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				 .thread_mode = UCS_THREAD_MODE_SERIALIZED};
	ucp_listener_params_t l = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
						 UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
				   .sockaddr = {(const struct sockaddr *)&g->at, sizeof(g->at)},
				   .conn_handler = {on_request, f}};
	ucs_status_t status = rs_ucx.worker_create(f->context, &p, &f->worker);
	char what[100];

	if (status == UCS_OK)
		status = rs_ucx.worker_efd(f->worker, &f->fd);
	if (status != UCS_OK)
		return fail(err, status, "fabric=ucx");
	(void)snprintf(what, sizeof(what), "cannot listen at %s", g->listen ? g->listen : "");
	if (g->listen)
		status = rs_ucx.listener_create(f->worker, &l, &f->listener);
	if (status != UCS_OK)
		return fail(err, status, what);
	wake(f);
	return 0;
}

static int ucx_begin(const struct rs_fabric_config *config, struct rs_fabric **ret, struct sc_err *err)
{
	struct ucx *f;
	int rc = rs_wire_ucx_load(err);

	if (rc < 0)
		return rc;
	f = sc_zalloc(sizeof(*f));
	if (!f)
		return sc_nomem(err);
	f->fabric.kind = &rs_wire_ucx;
	f->on = config->on;
	rc = begin_context(f, err);
	if (rc == 0)
		rc = begin_worker(f, config, err);
	if (rc < 0)
		ucx_end(&f->fabric);
	else
		*ret = &f->fabric;
	return rc;
}

const struct rs_wire_kind rs_wire_ucx = {
	.begin = ucx_begin,
	.end = ucx_end,
	.port = ucx_port,
	.fd = ucx_fd,
	.wait = ucx_wait,
	.connect = ucx_connect,
	.send = ucx_send,
	.recv = ucx_recv,
	.has_more = ucx_has_more,
	.wants = ucx_wants,
	.close = ucx_close,
};
