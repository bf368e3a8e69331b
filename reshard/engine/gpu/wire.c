/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/mem.h"
#include "reshard/engine/plan/gather.h"

static_assert(sizeof(struct rs_wire_message) == 512, "messages have one size");

#define BIT(phase) (1u << (phase))
#define ALL (BIT(RS_WIRE_ENDED) - 1)	/* but for that */

/* The kinds of messages: the phases in which each may come, and the phase that it begins. */
static const struct {
	const char *name;
	unsigned phases;
	enum rs_wire_phase to;
} kinds[RS_WIRE_KINDS] = {
	[RS_WIRE_SETUP] = {"SETUP", BIT(RS_WIRE_NEW), RS_WIRE_SETTING},
	[RS_WIRE_BEGIN] = {"BEGIN", BIT(RS_WIRE_IDLE), RS_WIRE_BEGINNING},
	[RS_WIRE_ROUND] = {"ROUND", BIT(RS_WIRE_BATCH), RS_WIRE_PUTTING},
	[RS_WIRE_FILLED] = {"FILLED", BIT(RS_WIRE_FILLING), RS_WIRE_PUTTING},
	[RS_WIRE_DRAINED] = {"DRAINED", BIT(RS_WIRE_DRAINING), RS_WIRE_FINISHING},
	[RS_WIRE_FINISH] = {"FINISH", BIT(RS_WIRE_BATCH), RS_WIRE_FINISHING},
	[RS_WIRE_LOAD] = {"LOAD", BIT(RS_WIRE_IDLE), RS_WIRE_LOADING},
	[RS_WIRE_FREE] = {"FREE", BIT(RS_WIRE_IDLE), RS_WIRE_FREEING},
	[RS_WIRE_ID] = {"ID", BIT(RS_WIRE_IDLE), RS_WIRE_NAMING},
	[RS_WIRE_READY] = {"READY", BIT(RS_WIRE_SETTING), RS_WIRE_IDLE},
	[RS_WIRE_BEGUN] = {"BEGUN", BIT(RS_WIRE_BEGINNING), RS_WIRE_BATCH},
	[RS_WIRE_FILL] = {"FILL", BIT(RS_WIRE_PUTTING), RS_WIRE_FILLING},
	[RS_WIRE_DRAIN] = {"DRAIN", BIT(RS_WIRE_PUTTING) | BIT(RS_WIRE_FINISHING), RS_WIRE_DRAINING},
	[RS_WIRE_TAKEN] = {"TAKEN", BIT(RS_WIRE_PUTTING), RS_WIRE_BATCH},
	[RS_WIRE_FINISHED] = {"FINISHED", BIT(RS_WIRE_FINISHING), RS_WIRE_IDLE},
	[RS_WIRE_LOADED] = {"LOADED", BIT(RS_WIRE_LOADING), RS_WIRE_IDLE},
	[RS_WIRE_REFUSED] = {"REFUSED", BIT(RS_WIRE_LOADING), RS_WIRE_IDLE},
	[RS_WIRE_FREED] = {"FREED", BIT(RS_WIRE_FREEING), RS_WIRE_IDLE},
	[RS_WIRE_NAMED] = {"NAMED", BIT(RS_WIRE_NAMING), RS_WIRE_IDLE},
	[RS_WIRE_FAILED] = {"FAILED", ALL, RS_WIRE_ENDED},
	[RS_WIRE_BYE] = {"BYE", BIT(RS_WIRE_IDLE) | BIT(RS_WIRE_BEGINNING), RS_WIRE_ENDED},
};

struct rs_wire_message rs_wire_message(enum rs_wire_kind kind, uint64_t nr)
{
	return (struct rs_wire_message){.magic = RS_WIRE_MAGIC, .kind = kind, .nr = nr};
}

const char *rs_wire_name(const struct rs_wire_message *m)
{
	return m->kind >= RS_WIRE_SETUP && m->kind < RS_WIRE_KINDS ? kinds[m->kind].name : "?";
}

static uint64_t bit_of(uint64_t buffer)
{
	return buffer && buffer <= RS_POOL_LOADS_MAX ? UINT64_C(1) << (buffer - 1) : 0;
}

/* Tells whether all devices are different: NCCL allows one rank of a device. */
static bool are_apart(const uint8_t *devices, uint32_t nr)
{
	for (uint32_t i = 1; i < nr; i++)
		if (memchr(devices, devices[i], i))
			return false;
	return true;
}

static bool is_id(const char *text)
{
	return memchr(text, 0, RS_WIRE_TEXT_BYTES) && strspn(text, "0123456789abcdef") == RS_POOL_ID_DIGITS;
}

static bool has_others(const struct rs_pool *pool)
{
	return rs_pool_world(pool) > pool->peers;
}

static bool is_pool(const struct rs_wire_message *m)
{
	return m->window_bytes && m->window_bytes <= RS_POOL_WINDOW_MAX && m->boxes_max &&
	       m->boxes_max <= RS_POOL_BOXES_MAX && m->peers && m->peers <= RS_POOL_PEERS_MAX &&
	       m->world <= RS_POOL_WORLD_MAX && (m->world ? m->peers <= m->world && m->first <= m->world - m->peers
							  : !m->first);
}

/* Tells whether a message says what is possible in this state. */
static bool is_possible(const struct rs_wire *w, const struct rs_wire_message *m)
{
	switch ((enum rs_wire_kind)m->kind) {
	case RS_WIRE_SETUP:
		return is_pool(m) && m->idle_ms && are_apart(m->devices, m->peers);
	case RS_WIRE_BEGIN:
		return has_others(&w->pool) ? !m->nr && is_id(m->text)
					    : !m->nr || w->buffers & bit_of(m->nr);
	case RS_WIRE_NAMED:
		return is_id(m->text);
	case RS_WIRE_LOAD:
		return rs_pool_world(&w->pool) == 1 && bit_of(m->nr) && !(w->buffers & bit_of(m->nr)) &&
		       m->window_bytes;
	case RS_WIRE_FREE:
		return w->buffers & bit_of(m->nr);
	case RS_WIRE_BYE:
		return !w->buffers;
	case RS_WIRE_ROUND:
		return m->nr == w->put;
	case RS_WIRE_FILL:
		return m->nr == w->put && !w->filled;
	case RS_WIRE_FILLED:
		return m->nr == w->put;
	case RS_WIRE_DRAIN: /* of a round that has been put; while one is put, of the one that has its slot */
		return m->nr == w->drained && m->nr < w->put &&
		       (w->phase == RS_WIRE_FINISHING || w->put - m->nr == RS_POOL_SLOTS);
	case RS_WIRE_DRAINED:
		return m->nr == w->drained;
	case RS_WIRE_TAKEN:
		return m->nr == w->put && w->filled && w->put - w->drained < RS_POOL_SLOTS;
	case RS_WIRE_FINISHED:
		return w->drained == w->put;
	case RS_WIRE_READY:
	case RS_WIRE_FAILED:
	case RS_WIRE_LOADED:
	case RS_WIRE_REFUSED:
		return *m->text && memchr(m->text, 0, sizeof(m->text));
	default:
		return true;
	}
}

static void advance(struct rs_wire *w, const struct rs_wire_message *m)
{
	const enum rs_wire_phase from = w->phase;

	w->phase = kinds[m->kind].to;
	switch ((enum rs_wire_kind)m->kind) {
	case RS_WIRE_SETUP:
		w->pool = (struct rs_pool){m->window_bytes, m->boxes_max, m->peers, m->world, m->first};
		break;
	case RS_WIRE_BEGIN:
	case RS_WIRE_LOAD:
	case RS_WIRE_FREE:
		w->buffer = m->nr;
		break;
	case RS_WIRE_LOADED:
		w->buffers |= bit_of(w->buffer);
		break;
	case RS_WIRE_FREED:
		w->buffers &= ~bit_of(w->buffer);
		break;
	case RS_WIRE_FILLED:
		w->filled = true;
		break;
	case RS_WIRE_DRAIN:
		w->back = from;
		break;
	case RS_WIRE_DRAINED:
		w->drained++;
		w->phase = w->back;
		break;
	case RS_WIRE_TAKEN:
		w->put++;
		w->filled = false;
		if (w->buffer)
			w->drained = w->put;
		break;
	default:
		break;
	}
}

int rs_wire_step(struct rs_wire *w, const struct rs_wire_message *m, bool by_helper, struct sc_err *err)
{
	if (m->magic != RS_WIRE_MAGIC)
		return sc_fail(err, SC_E_STATE, "a message is none of this version (%08x, not %08x): are scalai and "
			       "scalai-gpu of one build?", m->magic, RS_WIRE_MAGIC);
	if (m->kind < RS_WIRE_SETUP || m->kind >= RS_WIRE_KINDS || (m->kind >= RS_WIRE_READY) != by_helper)
		return sc_fail(err, SC_E_STATE, "a message of kind %u is none that the %s sends", m->kind,
			       by_helper ? "helper" : "daemon");
	if (!(kinds[m->kind].phases & BIT(w->phase)) || !is_possible(w, m))
		return sc_fail(err, SC_E_STATE, "%s %" PRIu64 " cannot come now (phase %d, %" PRIu64 " rounds put, %"
			       PRIu64 " drained)", kinds[m->kind].name, m->nr, w->phase, w->put, w->drained);
	advance(w, m);
	return 0;
}

/* --- plans --- */

/* The beginning of a share in a plan; its tables follow, each with room for as many rows as it can have. */
struct head {
	uint32_t nr[5];		/* as `tables` has them */
	uint32_t unused;
	uint64_t in_bytes, out_bytes, send_bytes, recv_bytes;
	struct rs_part sends[RS_POOL_WORLD_MAX], recvs[RS_POOL_WORLD_MAX];
};

/* The sizes of a row in the tables of a share; packs and unpacks are there only if there are other peers. */
static const size_t tables[] = {sizeof(struct rs_extent), sizeof(struct rs_extent), sizeof(struct rs_copy),
				sizeof(struct rs_copy), sizeof(struct rs_copy)};

#define NR_TABLES(pool) (rs_pool_world(pool) > 1 ? 5u : 3u)

/* Gives the most rows that a table has. */
static uint32_t rows_max(const struct rs_pool *pool, unsigned k)
{
	return k < 2 ? rs_pool_extents(pool) : pool->boxes_max;
}

static uint64_t table_bytes(const struct rs_pool *pool, unsigned k)
{
	return rows_max(pool, k) * tables[k];
}

static uint64_t share_bytes(const struct rs_pool *pool)
{
	uint64_t bytes = sizeof(struct head);

	for (unsigned k = 0; k < NR_TABLES(pool); k++)
		bytes += table_bytes(pool, k);
	return bytes;
}

uint64_t rs_wire_bytes(const struct rs_pool *pool)
{
	return rs_pool_bytes(pool) + pool->peers * share_bytes(pool);
}

static void copy(void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
}

void rs_wire_put_plan(const struct rs_pool *pool, void *memory, const struct rs_round *round)
{
	unsigned char *at = (unsigned char *)memory + rs_pool_bytes(pool);

	assert(round->nr == rs_pool_world(pool));
	for (uint32_t p = 0; p < pool->peers; p++) {
		const struct rs_share *s = &round->shares[pool->first + p];
		const void *from[] = {s->in, s->out, s->copies, s->packs, s->unpacks};
		struct head h = {{s->nr_in, s->nr_out, s->nr_copies, s->nr_packs, s->nr_unpacks}, 0, s->in_bytes,
				 s->out_bytes, s->send_bytes, s->recv_bytes, {{0}}, {{0}}};

		copy(h.sends, s->sends, s->sends ? round->nr * sizeof(*h.sends) : 0);
		copy(h.recvs, s->recvs, s->recvs ? round->nr * sizeof(*h.recvs) : 0);
		memcpy(at, &h, sizeof(h));
		at += sizeof(h);
		for (unsigned k = 0; k < NR_TABLES(pool); at += table_bytes(pool, k++)) {
			assert(h.nr[k] <= rows_max(pool, k));
			copy(at, from[k], h.nr[k] * tables[k]);
		}
	}
}

int rs_wire_make_shares(const struct rs_pool *pool, struct rs_share **ret, struct sc_err *err)
{
	const uint64_t parts = 2 * rs_pool_world(pool) * sizeof(struct rs_part);
	unsigned char *at = sc_zalloc_array(pool->peers, sizeof(**ret) + share_bytes(pool) + parts);

	*ret = (struct rs_share *)at;
	if (!at)
		return sc_nomem(err);
	at += pool->peers * sizeof(**ret);
	for (uint32_t p = 0; p < pool->peers; p++) {
		struct rs_share *s = &(*ret)[p];
		void *to[5] = {NULL};

		for (unsigned k = 0; k < NR_TABLES(pool); at += table_bytes(pool, k++))
			to[k] = at;
		*s = (struct rs_share){.in = to[0], .out = to[1], .copies = to[2], .packs = to[3], .unpacks = to[4]};
		s->sends = (struct rs_part *)at;
		s->recvs = s->sends + rs_pool_world(pool);
		at += parts;
	}
	return 0;
}

/* Tells whether extents are inside of a window.  `zero` is read as a byte, as it may be no bool. */
static bool are_inside(const struct rs_extent *e, uint32_t nr, uint64_t bytes)
{
	for (uint32_t i = 0; i < nr; i++) {
		unsigned char zero;

		memcpy(&zero, &e[i].zero, sizeof(zero));
		if (zero > 1 || e[i].window > bytes || e[i].bytes > bytes - e[i].window)
			return false;
	}
	return true;
}

static bool are_boxes(const struct rs_copy *copies, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		if (copies[i].nr > SC_DIMS_MAX)
			return false;
	return true;
}

/* Checks that the numbers of a share fit tables and windows, then copies the share, and checks its rows. */
static int take_share(const struct rs_pool *pool, const unsigned char *at, struct rs_share *s, struct sc_err *err)
{
	void *to[] = {s->in, s->out, s->copies, s->packs, s->unpacks};
	const uint64_t most = pool->window_bytes, exchanged = rs_pool_world(pool) > 1 ? most : 0;
	struct head h;

	memcpy(&h, at, sizeof(h));
	at += sizeof(h);
	for (unsigned k = 0; k < 5; k++)
		if (h.nr[k] > (k < NR_TABLES(pool) ? rows_max(pool, k) : 0))
			return sc_fail(err, SC_E_STATE, "a table has %u rows", h.nr[k]);
	if (h.in_bytes > most || h.out_bytes > most || h.send_bytes > exchanged || h.recv_bytes > exchanged)
		return sc_fail(err, SC_E_STATE, "a window is too long");
	s->nr_in = h.nr[0];
	s->nr_out = h.nr[1];
	s->nr_copies = h.nr[2];
	s->nr_packs = h.nr[3];
	s->nr_unpacks = h.nr[4];
	s->in_bytes = h.in_bytes;
	s->out_bytes = h.out_bytes;
	s->send_bytes = h.send_bytes;
	s->recv_bytes = h.recv_bytes;
	copy(s->sends, h.sends, rs_pool_world(pool) * sizeof(*s->sends));
	copy(s->recvs, h.recvs, rs_pool_world(pool) * sizeof(*s->recvs));
	for (unsigned k = 0; k < NR_TABLES(pool); at += table_bytes(pool, k++))
		copy(to[k], at, h.nr[k] * tables[k]);
	if (!are_inside(s->in, s->nr_in, s->in_bytes) || !are_inside(s->out, s->nr_out, s->out_bytes))
		return sc_fail(err, SC_E_STATE, "a range is not inside of its window");
	if (!are_boxes(s->copies, s->nr_copies) || !are_boxes(s->packs, s->nr_packs) ||
	    !are_boxes(s->unpacks, s->nr_unpacks))
		return sc_fail(err, SC_E_STATE, "a copy has more dimensions than there are");
	return 0;
}

static bool is_part(const struct rs_part *p, uint64_t bytes)
{
	return p->at <= bytes && p->bytes <= bytes - p->at;
}

/* Tells whether shares agree: parts are inside of windows, each peer of this node receives what others of this node
 * send to it, and none sends to itself. */
static bool agree(const struct rs_share *shares, const struct rs_pool *pool)
{
	for (uint32_t k = 0; k < pool->peers; k++)
		for (uint32_t q = 0; q < rs_pool_world(pool); q++) {
			const struct rs_share *s = &shares[k];
			const uint32_t p = pool->first + k;

			if (!is_part(&s->sends[q], s->send_bytes) || !is_part(&s->recvs[q], s->recv_bytes) ||
			    (p == q && (s->sends[q].bytes || s->recvs[q].bytes)) ||
			    (q >= pool->first && q - pool->first < pool->peers &&
			     s->sends[q].bytes != shares[q - pool->first].recvs[p].bytes))
				return false;
		}
	return true;
}

int rs_wire_take_plan(const struct rs_pool *pool, const void *memory, uint64_t nr, struct rs_share *shares,
		      struct sc_err *err)
{
	const unsigned char *at = (const unsigned char *)memory + rs_pool_bytes(pool);
	struct sc_err why;

	for (uint32_t p = 0; p < pool->peers; p++)
		if (take_share(pool, at + p * share_bytes(pool), &shares[p], &why) < 0)
			return sc_fail(err, SC_E_STATE, "round %" PRIu64 ", peer %u: %s", nr, p, why.msg);
	if (!agree(shares, pool))
		return sc_fail(err, SC_E_STATE, "round %" PRIu64 ": what peers send is not what they receive", nr);
	return 0;
}
