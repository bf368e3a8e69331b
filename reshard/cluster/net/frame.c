/* SPDX-License-Identifier: Apache-2.0 */
/* Formats and parses frames, by one walk over the fields of each kind. */
#include "reshard/cluster/net/frame.h"

#include <string.h>

#include "meta/base/mem.h"

struct rs_protocols rs_protocols = {1, RS_PROTOCOL_SWEEPS};

#define MAGIC 0x6353u /* 'S', 'c' */

struct walk {
	uint8_t *to; /* NULL: it reads */
	const uint8_t *from;
	size_t at, end;
	bool bad;
};

static bool room(struct walk *w, size_t bytes)
{
	w->bad |= bytes > w->end - w->at;
	return !w->bad;
}

static void raw(struct walk *w, void *field, size_t bytes)
{
	if (!room(w, bytes))
		return;
	if (w->to)
		memcpy(w->to + w->at, field, bytes);
	else
		memcpy(field, w->from + w->at, bytes);
	w->at += bytes;
}

static uint64_t number(struct walk *w, uint64_t value, size_t bytes)
{
	uint64_t v = w->to ? value : 0;

	if (!room(w, bytes))
		return 0;
	for (size_t i = 0; i < bytes; i++)
		if (w->to)
			w->to[w->at + i] = (uint8_t)(v >> 8 * i);
		else
			v |= (uint64_t)w->from[w->at + i] << 8 * i;
	w->at += bytes;
	return v;
}

#define FIELD(w, field) ((field) = (__typeof__(field))number((w), (field), sizeof(field)))

/* Walks over a text without zero bytes, which has its length before it. */
static void text(struct walk *w, char *field, size_t max)
{
	size_t bytes = w->to ? strnlen(field, max + 1) : 0;

	bytes = (size_t)number(w, bytes, 2);
	w->bad |= bytes > max;
	if (!room(w, bytes))
		return;
	raw(w, field, bytes);
	field[bytes] = 0;
	w->bad |= strlen(field) != bytes;
}

static void walk_hello(struct walk *w, struct rs_hello *h)
{
	FIELD(w, h->step);
	raw(w, h->cluster, sizeof(h->cluster));
	FIELD(w, h->node);
	FIELD(w, h->boot);
	FIELD(w, h->protocol_min);
	FIELD(w, h->protocol_max);
	raw(w, h->nonce, sizeof(h->nonce));
	raw(w, h->mac, sizeof(h->mac));
	w->bad |= h->step < 1 || h->step > 3 || h->node > 0xffff || h->protocol_min > h->protocol_max;
}

static void walk_pull(struct walk *w, struct rs_pull *p)
{
	FIELD(w, p->job);
	raw(w, p->set, sizeof(p->set));
	FIELD(w, p->rank);
	text(w, p->file, RS_FRAME_FILE_MAX);
	text(w, p->tensor, RS_FRAME_TENSOR_MAX);
	FIELD(w, p->from);
	FIELD(w, p->run);
	FIELD(w, p->nr);
	w->bad |= p->nr > RS_FRAME_DIMS_MAX;
	for (unsigned i = 0; !w->bad && i < p->nr; i++) {
		FIELD(w, p->extent[i]);
		FIELD(w, p->stride[i]);
	}
	FIELD(w, p->at);
	FIELD(w, p->bytes);
	FIELD(w, p->deadline_ms);
	w->bad |= p->bytes == 0 || p->bytes > RS_FRAME_PAYLOAD_MAX || !*p->file;
}

static void walk_message(struct walk *w, struct rs_frame_message *m, uint8_t kind)
{
	FIELD(w, m->job);
	if (kind == RS_FRAME_HIDDEN) {
		FIELD(w, m->nr);
		return;
	}
	FIELD(w, m->token);
	if (kind == RS_FRAME_REFUSED) {
		FIELD(w, m->code);
		text(w, m->text, RS_FRAME_TEXT_MAX);
		w->bad |= m->code == 0 || m->code > 255;
	}
}

static void walk_body(struct walk *w, struct rs_net_frame *f)
{
	switch (f->kind) {
	case RS_FRAME_HELLO:
		walk_hello(w, &f->hello);
		break;
	case RS_FRAME_PREPARED:
	case RS_FRAME_REFUSED:
	case RS_FRAME_HIDDEN:
		walk_message(w, &f->message, f->kind);
		break;
	case RS_FRAME_PULL:
		walk_pull(w, &f->pull);
		break;
	case RS_FRAME_DATA:
	case RS_FRAME_ACK:
		FIELD(w, f->data.code);
		FIELD(w, f->data.again_ms);
		FIELD(w, f->data.xxh3);
		w->bad |= f->data.code >= RS_CODES_NR;
		break;
	case RS_FRAME_OBJECT:
		raw(w, f->object, sizeof(f->object));
		break;
	default: /* CANCEL */
		FIELD(w, f->cancelled);
	}
}

static void walk_header(struct walk *w, struct rs_net_frame *f)
{
	uint16_t magic = MAGIC;

	FIELD(w, magic);
	FIELD(w, f->protocol);
	FIELD(w, f->kind);
	FIELD(w, f->body_bytes);
	FIELD(w, f->payload_bytes);
	FIELD(w, f->id);
	FIELD(w, f->epoch);
	FIELD(w, f->mac);
	w->bad |= magic != MAGIC || f->body_bytes > RS_FRAME_BODY_MAX || f->payload_bytes > RS_FRAME_PAYLOAD_MAX ||
		  (f->payload_bytes && f->kind != RS_FRAME_DATA && rs_frame_is_known(f->kind));
}

bool rs_frame_is_known(uint8_t kind)
{
	return (kind >= RS_FRAME_HELLO && kind <= RS_FRAME_HIDDEN) ||
	       (kind >= RS_FRAME_PULL && kind <= RS_FRAME_OBJECT) || kind == RS_FRAME_CANCEL || kind == RS_FRAME_ACK;
}

int rs_frame_format(struct rs_net_frame *f, uint8_t *to, struct sc_err *err)
{
	struct walk body = {.to = to, .at = RS_FRAME_HEADER, .end = RS_FRAME_HEADER + RS_FRAME_BODY_MAX};
	struct walk header = {.to = to, .end = RS_FRAME_HEADER};

	walk_body(&body, f);
	f->body_bytes = (uint32_t)(body.at - RS_FRAME_HEADER);
	f->mac = 0;
	walk_header(&header, f);
	if (body.bad || header.bad)
		return sc_fail(err, SC_E_LIMIT, "a frame of kind %u for another node is longer than frames may be",
			       f->kind);
	return (int)body.at;
}

int rs_frame_header(const uint8_t header[RS_FRAME_HEADER], struct rs_net_frame *ret, struct sc_err *err)
{
	struct walk w = {.from = header, .end = RS_FRAME_HEADER};

	memset(ret, 0, offsetof(struct rs_net_frame, hello));
	walk_header(&w, ret);
	if (w.bad)
		return sc_fail(err, SC_E_FORMAT,
			       "another node sends what is no frame: kind %u, body %u bytes, payload %u bytes",
			       ret->kind, ret->body_bytes, ret->payload_bytes);
	return 0;
}

int rs_frame_body(struct rs_net_frame *f, const uint8_t *body, struct sc_err *err)
{
	struct walk w = {.from = body, .end = f->body_bytes};

	if (!rs_frame_is_known(f->kind))
		return sc_fail(err, SC_E_FORMAT,
			       "another node sends a frame of kind %u, which this program does not know", f->kind);
	walk_body(&w, f);
	if (w.bad || w.at != w.end)
		return sc_fail(err, SC_E_FORMAT,
			       "another node sends a frame of kind %u that does not fit its own limits", f->kind);
	return 0;
}

/* --- regions --- */

bool rs_pull_fits(const struct rs_pull *p, uint64_t bytes)
{
	uint64_t packed = p->run, last = p->from, end, reach;

	if (p->run == 0 || p->nr > RS_FRAME_DIMS_MAX || p->bytes == 0 || p->bytes > RS_FRAME_PAYLOAD_MAX)
		return false;
	for (unsigned i = 0; i < p->nr; i++)
		if (p->extent[i] == 0 || !sc_mul_u64(packed, p->extent[i], &packed) ||
		    !sc_mul_u64(p->extent[i] - 1, p->stride[i], &reach) || !sc_add_u64(last, reach, &last))
			return false;
	return sc_add_u64(last, p->run, &end) && end <= bytes && sc_add_u64(p->at, p->bytes, &end) && end <= packed;
}

/* Gives the place where the run with this number begins. */
static uint64_t run_at(const struct rs_pull *p, uint64_t run)
{
	uint64_t at = p->from;

	for (unsigned i = p->nr; i-- > 0; run /= p->extent[i])
		at += run % p->extent[i] * p->stride[i];
	return at;
}

void rs_pull_gather(const struct rs_pull *p, const uint8_t *tensor, uint8_t *to)
{
	uint64_t at = p->at, left = p->bytes;

	while (left) {
		uint64_t skip = at % p->run, n = sc_min_u64(p->run - skip, left);

		memcpy(to, tensor + run_at(p, at / p->run) + skip, n);
		to += n;
		at += n;
		left -= n;
	}
}

void rs_pull_of_file(struct rs_pull *p, uint64_t from, uint32_t bytes, uint64_t whole)
{
	p->from = from;
	p->run = p->bytes = bytes;
	p->nr = 1;
	p->extent[0] = 1;
	p->stride[0] = whole;
}

uint64_t rs_pull_whole(const struct rs_pull *p)
{
	return p->nr == 1 && p->extent[0] == 1 ? p->stride[0] : 0;
}

bool rs_pull_is_run(const struct rs_pull *p, uint64_t *ret_at)
{
	if (!rs_pull_fits(p, UINT64_MAX) || p->at / p->run != (p->at + p->bytes - 1) / p->run)
		return false;
	*ret_at = run_at(p, p->at / p->run) + p->at % p->run;
	return true;
}
