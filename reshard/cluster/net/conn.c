/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and takes the frames of a connection.
 *
 * 1. A payload goes straight to the memory where it is wanted; one that nobody waits for closes the connection.
 * 2. The bytes that wait to be sent are bounded: beyond that a holder answers BUSY.
 * 3. A peer that breaks a rule of the frames, or does not prove who it is, is closed without a word.
 */
#include "reshard/cluster/net/net_i.h"

#include <errno.h>
#include <string.h>

#include "meta/base/mem.h"
#include "meta/base/xxh.h"

#define BUSY_MS 20

/* --- ends --- */

static void end_asked(struct asked *a, int code, const struct sc_err *err)
{
	a->done(a->arg, code, err);
	sc_sys.release(a);
}

static struct out *make_out(struct rs_net *net, size_t bytes)
{
	const bool large = bytes >= SPARE_MIN && bytes <= SPARE_ROOM;
	const size_t room = large ? SPARE_ROOM : bytes;
	struct out *o = large ? net->spare : NULL;

	if (o) {
		net->spare = o->next;
		net->nr_spare--;
	} else {
		o = sc_sys.alloc(sizeof(*o) + room);
	}
	if (o)
		*o = (struct out){.bytes = bytes, .room = room};
	return o;
}

static void drop_outs(struct conn *c, struct out *o)
{
	struct rs_net *net = c->net;

	while (o) {
		struct out *next = o->next;

		net->out_bytes -= o->bytes;
		if (o->room == SPARE_ROOM && net->nr_spare < SPARE_MAX) {
			o->next = net->spare;
			net->spare = o;
			net->nr_spare++;
		} else {
			sc_sys.release(o);
		}
		o = next;
	}
}

void rs_conn_fail(struct conn *c, const char *why)
{
	if (c->dead)
		return;
	if (!why)
		why = c->session.open ? "the connection was closed"
				      : "it closed the connection and did not say who it is: it has another secret, or "
					"only one of the two nodes is mounted with tls= or with fabric=ucx";
	c->dead = true;
	if (c->wire)
		c->net->kind->close(sc_steal(&c->wire));
	(void)sc_fail(&c->why, SC_E_SYSTEM, "node at %s: %s", c->address, why);
	if (c->answered)
		end_asked(sc_steal(&c->answered), RS_CODE_IO, &c->why);
	while (c->asked) {
		struct asked *a = c->asked;

		c->asked = a->next;
		end_asked(a, RS_CODE_IO, &c->why);
	}
}

void rs_conns_sweep(struct rs_net *net)
{
	for (struct conn **p = &net->conns, *c; (c = *p);) {
		if (!c->dead) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		drop_outs(c, c->first);
		drop_outs(c, c->wait);
		sc_sys.release(c);
		net->nr--;
	}
}

/* --- sending --- */

void rs_conn_flush(struct conn *c)
{
	int bad;

	while (!c->dead && c->first) {
		struct out *o = c->first;
		const char *why;
		ssize_t n = c->net->kind->send(c->wire, o->at + o->sent, o->bytes - o->sent, &why);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n < 0) {
			rs_conn_fail(c, why);
			return;
		}
		o->sent += (size_t)n;
		if (o->sent < o->bytes)
			continue;
		c->first = o->next;
		if (!c->first)
			c->last = &c->first;
		o->next = NULL;
		drop_outs(c, o);
	}
	bad = c->dead ? 0 : c->net->kind->wants(c->wire, c->first != NULL);
	if (bad)
		rs_conn_fail(c, strerror(bad));
}

struct out *rs_out_make(struct conn *c, const struct rs_net_frame *f, struct sc_err *err)
{
	struct rs_net *net = c->net;
	struct out *o;
	int n;

	if (f != &net->frame)
		net->frame = *f;
	net->frame.epoch = c->session.me.epoch;
	n = rs_frame_format(&net->frame, net->bytes, err);
	if (n < 0)
		return NULL;
	o = make_out(net, (size_t)n + f->payload_bytes);
	if (!o) {
		(void)sc_nomem(err);
		return NULL;
	}
	memcpy(o->at, net->bytes, (size_t)n);
	net->out_bytes += o->bytes;
	return o;
}

void rs_conn_put(struct conn *c, struct out *take_out, size_t signed_bytes)
{
	if (c->session.open) {
		rs_session_seal(&c->session, take_out->at, signed_bytes);
		*c->last = take_out;
		c->last = &take_out->next;
	} else { /* signed when there is a key */
		*c->wait_last = take_out;
		c->wait_last = &take_out->next;
	}
}

void rs_conn_hello(struct conn *c)
{
	struct sc_err err;
	struct out *o;

	if (!rs_session_hello(&c->session, &c->net->frame))
		return;
	o = rs_out_make(c, &c->net->frame, &err);
	if (!o) {
		rs_conn_fail(c, err.msg);
		return;
	}
	*c->last = o;
	c->last = &o->next;
}

/* Signs and queues the frames that waited for the session's key; they are requests, which have no payload. */
static void session_is_open(struct conn *c)
{
	struct out *o = sc_steal(&c->wait);

	c->wait_last = &c->wait;
	while (o) {
		struct out *next = o->next;

		o->next = NULL;
		rs_conn_put(c, o, o->bytes);
		o = next;
	}
}

/* --- taking --- */

static void answer(struct conn *c, uint32_t id, uint8_t kind, int code, struct out **ret_room, uint32_t payload)
{
	struct rs_net_frame *f = &c->net->frame;
	struct sc_err err;
	struct out *o;

	memset(f, 0, offsetof(struct rs_net_frame, hello));
	f->kind = kind;
	f->id = id;
	f->payload_bytes = payload;
	f->data = (struct rs_data){(uint8_t)code, code == RS_CODE_BUSY ? BUSY_MS : 0, 0};
	o = rs_out_make(c, f, &err);
	if (!o)
		rs_conn_fail(c, err.msg);
	else if (ret_room)
		*ret_room = o;
	else
		rs_conn_put(c, o, o->bytes);
}

static bool may_ask(const struct conn *c)
{
	const struct rs_net_config *g = &c->net->config;

	return !g->is_member || g->is_member(g->arg, c->session.peer.node, c->session.peer.epoch);
}

static void serve(struct conn *c, const struct rs_net_frame *f)
{
	const struct rs_net_config *g = &c->net->config;
	struct out *o = NULL;
	uint8_t *payload;
	uint64_t hash;
	int code;

	if (c->net->out_bytes + f->pull.bytes > OUT_BYTES_MAX) {
		answer(c, f->id, RS_FRAME_DATA, RS_CODE_BUSY, NULL, 0);
		return;
	}
	answer(c, f->id, RS_FRAME_DATA, RS_CODE_OK, &o, f->pull.bytes);
	if (!o)
		return;
	payload = o->at + o->bytes - f->pull.bytes;
	code = g->serve(g->arg, &c->session.peer, &f->pull, payload);
	if (code != RS_CODE_OK) {
		drop_outs(c, o);
		answer(c, f->id, RS_FRAME_DATA, code, NULL, 0);
		return;
	}
	hash = XXH3_64bits(payload, f->pull.bytes);
	memcpy(o->at + RS_FRAME_HEADER + 5, &hash, sizeof(hash)); /* code, again_ms, xxh3 */
	rs_conn_put(c, o, o->bytes - f->pull.bytes);
}

static void take_request(struct conn *c, const struct rs_net_frame *f)
{
	const struct rs_net_config *g = &c->net->config;

	if (!may_ask(c))
		answer(c, f->id, f->kind == RS_FRAME_PULL ? RS_FRAME_DATA : RS_FRAME_ACK, RS_CODE_FENCED, NULL, 0);
	else if (f->kind == RS_FRAME_PULL && g->serve)
		serve(c, f);
	else if (f->kind >= RS_FRAME_PREPARED && f->kind <= RS_FRAME_HIDDEN && g->message)
		g->message(g->arg, &c->session.peer, f);
	else
		answer(c, f->id, RS_FRAME_ACK, RS_CODE_VERSION, NULL, 0);
}

/* Takes the DATA of a pull of this side: 0, or -1 (the connection is to be closed). */
static int take_data(struct conn *c, const struct rs_net_frame *f)
{
	struct asked **p = &c->asked, *a;

	while (*p && (*p)->id != f->id)
		p = &(*p)->next;
	a = *p;
	if (!a || f->payload_bytes != (f->data.code == RS_CODE_OK ? a->bytes : 0))
		return -1;
	*p = a->next;
	a->next = NULL;
	c->nr_asked--;
	if (f->data.code != RS_CODE_OK) {
		end_asked(a, f->data.code, &(struct sc_err){0});
		return 0;
	}
	c->answered = a;
	c->payload = a->to;
	return 0;
}

static void take_frame(struct conn *c)
{
	struct rs_net_frame *f = &c->frame;
	struct sc_err err;
	int rc = 0;

	if (f->kind == RS_FRAME_HELLO) {
		rc = rs_frame_body(f, c->in + RS_FRAME_HEADER, &err);
		if (rc == 0)
			rc = rs_session_take_hello(&c->session, f, &err);
		if (rc == 0)
			rs_conn_hello(c);
		if (rc == 0 && c->session.open)
			session_is_open(c);
	} else if (!c->session.open) {
		rc = sc_fail(&err, SC_E_PERMISSION, "it asks before it has said who it is");
	} else {
		rc = rs_session_check(&c->session, c->in, RS_FRAME_HEADER + f->body_bytes, &err);
		if (rc == 0 && !rs_frame_is_known(f->kind)) {
			answer(c, f->id, RS_FRAME_ACK, RS_CODE_VERSION, NULL, 0);
		} else if (rc == 0) {
			rc = rs_frame_body(f, c->in + RS_FRAME_HEADER, &err);
			if (rc == 0 && c->asks && f->kind == RS_FRAME_DATA)
				rc = take_data(c, f) < 0 ? sc_fail(&err, SC_E_FORMAT, "an answer to nothing") : 0;
			else if (rc == 0 && !c->asks)
				take_request(c, f);
		}
	}
	if (rc < 0)
		rs_conn_fail(c, err.msg);
}

static void payload_is_whole(struct conn *c)
{
	struct asked *a = sc_steal(&c->answered);
	struct sc_err err = {0};

	c->payload = NULL;
	if (!a)
		return;
	if (XXH3_64bits(a->to, a->bytes) == c->frame.data.xxh3) {
		end_asked(a, RS_CODE_OK, &err);
		return;
	}
	(void)sc_fail(&err, SC_E_DAMAGED, "node at %s: %u bytes that it sent are not those that it meant", c->address,
		      a->bytes);
	end_asked(a, RS_CODE_DAMAGED, &err);
}

/* Moves on when the part that is wanted next is there: header, body, payload. */
static void step(struct conn *c)
{
	struct sc_err err;

	if (!c->has_header) {
		if (rs_frame_header(c->in, &c->frame, &err) < 0) {
			rs_conn_fail(c, err.msg);
			return;
		}
		c->has_header = true;
		c->want = RS_FRAME_HEADER + c->frame.body_bytes;
		if (c->got < c->want)
			return;
	}
	if (!c->in_payload) {
		take_frame(c);
		c->in_payload = c->frame.payload_bytes > 0;
		c->payload_got = 0;
		if (c->in_payload)
			return;
	}
	payload_is_whole(c);
	c->got = 0;
	c->want = RS_FRAME_HEADER;
	c->has_header = c->in_payload = false;
}

static ssize_t take_some(struct conn *c, const char **why)
{
	static uint8_t nowhere[1 << 16];
	const struct rs_wire_kind *k = c->net->kind;
	size_t left;

	if (!c->in_payload)
		return k->recv(c->wire, c->in + c->got, c->want - c->got, why);
	left = c->frame.payload_bytes - c->payload_got;
	return c->payload ? k->recv(c->wire, c->payload + c->payload_got, left, why)
			  : k->recv(c->wire, nowhere, sc_min_u64(left, sizeof(nowhere)), why);
}

void rs_conn_take(struct conn *c)
{
	/* others wait, too */
	for (int turns = 0; !c->dead && (turns < 64 || c->net->kind->has_more(c->wire)); turns++) {
		const char *why = NULL;
		ssize_t n = take_some(c, &why);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			rs_conn_fail(c, why);
			return;
		}
		if (c->in_payload)
			c->payload_got += (size_t)n;
		else
			c->got += (size_t)n;
		if (c->in_payload ? c->payload_got == c->frame.payload_bytes : c->got == c->want)
			step(c);
		if (c->first && !c->dead) /* one answer is on its way while the next one is made */
			rs_conn_flush(c);
	}
}
