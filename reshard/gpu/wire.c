/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/gpu/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "meta/base/mem.h"
#include "reshard/plan/gather.h"

static_assert(sizeof(struct rs_wire_message) == 512, "messages have one size");

#define BIT(phase) (1u << (phase))
#define ALL (BIT(RS_WIRE_ENDED) - 1)	/* but for that */

/* When a kind may come, and which phase it begins. */
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
	[RS_WIRE_READY] = {"READY", BIT(RS_WIRE_SETTING), RS_WIRE_IDLE},
	[RS_WIRE_BEGUN] = {"BEGUN", BIT(RS_WIRE_BEGINNING), RS_WIRE_BATCH},
	[RS_WIRE_FILL] = {"FILL", BIT(RS_WIRE_PUTTING), RS_WIRE_FILLING},
	[RS_WIRE_DRAIN] = {"DRAIN", BIT(RS_WIRE_PUTTING) | BIT(RS_WIRE_FINISHING), RS_WIRE_DRAINING},
	[RS_WIRE_TAKEN] = {"TAKEN", BIT(RS_WIRE_PUTTING), RS_WIRE_BATCH},
	[RS_WIRE_FINISHED] = {"FINISHED", BIT(RS_WIRE_FINISHING), RS_WIRE_IDLE},
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

/* What a message says is possible in this state. */
static bool is_possible(const struct rs_wire *w, const struct rs_wire_message *m)
{
	switch ((enum rs_wire_kind)m->kind) {
	case RS_WIRE_SETUP:
		return m->window_bytes && m->window_bytes <= RS_POOL_WINDOW_MAX && m->boxes_max &&
		       m->boxes_max <= RS_POOL_BOXES_MAX && m->device >= 0 && m->idle_ms;
	case RS_WIRE_ROUND:
		return m->nr == w->put && m->nr_in <= w->pool.boxes_max && m->nr_out <= w->pool.boxes_max &&
		       m->nr_copies <= w->pool.boxes_max && m->in_bytes <= w->pool.window_bytes &&
		       m->out_bytes <= w->pool.window_bytes;
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
		w->pool = (struct rs_pool){m->window_bytes, m->boxes_max};
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

static uint64_t extents_bytes(const struct rs_pool *pool)
{
	return pool->boxes_max * sizeof(struct rs_extent);
}

uint64_t rs_wire_bytes(const struct rs_pool *pool)
{
	return rs_pool_bytes(pool) + 2 * extents_bytes(pool) + pool->boxes_max * sizeof(struct rs_copy);
}

/* Where the plan has extents in, extents out, copies: each as long as boxes_max. */
static unsigned char *plan_at(const struct rs_pool *pool, const void *memory, unsigned table)
{
	return (unsigned char *)memory + rs_pool_bytes(pool) + table * extents_bytes(pool);
}

static void copy(void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
}

void rs_wire_put_plan(const struct rs_pool *pool, void *memory, const struct rs_share *share,
		      struct rs_wire_message *m)
{
	assert(share->nr_in <= pool->boxes_max && share->nr_out <= pool->boxes_max);
	assert(share->nr_copies <= pool->boxes_max);
	copy(plan_at(pool, memory, 0), share->in, share->nr_in * sizeof(*share->in));
	copy(plan_at(pool, memory, 1), share->out, share->nr_out * sizeof(*share->out));
	copy(plan_at(pool, memory, 2), share->copies, share->nr_copies * sizeof(*share->copies));
	m->nr_in = share->nr_in;
	m->nr_out = share->nr_out;
	m->nr_copies = share->nr_copies;
	m->in_bytes = share->in_bytes;
	m->out_bytes = share->out_bytes;
}

/* `zero` is a byte until it is known to be a bool. */
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

int rs_wire_take_plan(const struct rs_pool *pool, const void *memory, const struct rs_wire_message *m,
		      struct rs_share *ret, struct sc_err *err)
{
	struct rs_share s = {.in = ret->in, .out = ret->out, .copies = ret->copies, .nr_in = m->nr_in,
			     .nr_out = m->nr_out, .nr_copies = m->nr_copies, .in_bytes = m->in_bytes,
			     .out_bytes = m->out_bytes};

	copy(s.in, plan_at(pool, memory, 0), s.nr_in * sizeof(*s.in));
	copy(s.out, plan_at(pool, memory, 1), s.nr_out * sizeof(*s.out));
	copy(s.copies, plan_at(pool, memory, 2), s.nr_copies * sizeof(*s.copies));
	if (!are_inside(s.in, s.nr_in, s.in_bytes) || !are_inside(s.out, s.nr_out, s.out_bytes))
		return sc_fail(err, SC_E_STATE, "round %" PRIu64 ": a range is not inside of its window", m->nr);
	for (uint32_t i = 0; i < s.nr_copies; i++)
		if (s.copies[i].nr > SC_DIMS_MAX)
			return sc_fail(err, SC_E_STATE, "round %" PRIu64 ": a copy has %u dimensions", m->nr,
				       s.copies[i].nr);
	*ret = s;
	return 0;
}
