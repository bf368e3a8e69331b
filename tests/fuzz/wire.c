/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the daemon and the process that has the GPU, and plans of rounds.  An input is a sequence of messages: the
 * low bit of the first byte of each says who sends it.  A plan that is taken, and of which tables are made, leads nowhere
 * but into its windows.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "meta/base/mem.h"
#include "reshard/engine/gpu/boxes.h"
#include "reshard/engine/gpu/wire.h"

#define WINDOW 4096u
#define BOXES 2u

static const struct rs_pool pool = {WINDOW, BOXES, 2};
#define TILES (12 * BOXES)

/* How far rows go from their first byte. */
static uint64_t reach(const struct rs_box *b, const uint64_t *stride)
{
	uint64_t bytes = b->run;

	for (unsigned k = 0; k < b->nr; k++)
		bytes += (b->ext[k].d - 1) * stride[k];
	return bytes;
}

/* Of copies between two windows; true: tables of them were made, and lead nowhere else. */
static bool are_boxes(const struct rs_copy *copies, uint32_t nr)
{
	static const struct rs_window in = {1u << 20, WINDOW}, out = {1u << 24, WINDOW};
	struct rs_box boxes[2 * BOXES];
	struct rs_tile tiles[TILES];
	struct rs_tables t = {.boxes = boxes, .tiles = tiles, .boxes_max = 2 * BOXES, .tiles_max = TILES};
	struct sc_err err;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < nr; i++)
		rc = rs_tables_add(&t, &copies[i], &in, &out, &err);
	for (uint32_t i = 0; i < t.nr_boxes; i++)
		if (boxes[i].from < in.address || reach(&boxes[i], boxes[i].from_stride) > in.address + WINDOW - boxes[i].from ||
		    boxes[i].to < out.address || reach(&boxes[i], boxes[i].to_stride) > out.address + WINDOW - boxes[i].to)
			abort();
	return rc == 0;
}

static void expect_inside(const struct rs_part *p, uint64_t bytes)
{
	if (bytes > WINDOW || p->at > bytes || p->bytes > bytes - p->at)
		abort();
}

/* The bytes behind a ROUND are its plan. */
static bool take_plan(const struct rs_wire *w, const struct rs_wire_message *m, const uint8_t *p, size_t n)
{
	static unsigned char memory[1 << 20];
	static struct rs_share *s;
	const uint64_t at = rs_pool_bytes(&pool), room = rs_wire_bytes(&pool) - at;
	struct sc_err err;
	bool made = true;

	if (at + room > sizeof(memory) || w->pool.window_bytes != WINDOW || w->pool.boxes_max != BOXES || w->pool.peers != pool.peers ||
	    rs_pool_world(&w->pool) != pool.peers)
		return false;
	if (!s && rs_wire_make_shares(&pool, &s, &err) < 0)
		abort();
	memset(memory + at, 0, room);
	memcpy(memory + at, p, n < room ? n : room);
	if (rs_wire_take_plan(&pool, memory, m->nr, s, &err) < 0)
		return false;
	for (uint32_t k = 0; k < pool.peers; k++) {
		for (uint32_t q = 0; q < pool.peers; q++) {
			expect_inside(&s[k].sends[q], s[k].send_bytes);
			expect_inside(&s[k].recvs[q], s[k].recv_bytes);
			if (s[k].sends[q].bytes != s[q].recvs[k].bytes)
				abort(); /* NCCL would wait, or write too much */
		}
		made &= are_boxes(s[k].copies, s[k].nr_copies) && are_boxes(s[k].packs, s[k].nr_packs) &&
			are_boxes(s[k].unpacks, s[k].nr_unpacks);
	}
	return made;
}

/* Accepted: some round has a plan of which tables can be made. */
int fuzz_wire(const uint8_t *p, size_t n)
{
	struct rs_wire w = {0};
	bool planned = false;

	while (n > sizeof(struct rs_wire_message)) {
		const struct rs_wire before = w;
		struct rs_wire_message m;
		struct sc_err err = {0};
		int rc;

		memcpy(&m, p + 1, sizeof(m));
		rc = rs_wire_step(&w, &m, *p & 1, &err);
		if (rc < 0 && (!*err.msg || memcmp(&w, &before, sizeof(w)) != 0))
			abort(); /* without a sentence, or it has done something */
		if (w.put - w.drained > RS_POOL_SLOTS)
			abort(); /* more rounds than slots */
		p += 1 + sizeof(m);
		n -= 1 + sizeof(m);
		if (rc == 0 && m.kind == RS_WIRE_ROUND) {
			const size_t plan = sc_min_u64(n, rs_wire_bytes(&pool) - rs_pool_bytes(&pool));

			planned |= take_plan(&w, &m, p, n);
			p += plan;
			n -= plan;
		}
	}
	return planned ? 0 : -1;
}

static void say(struct bytes *b, bool by_helper, const struct rs_wire_message *m)
{
	const uint8_t who = by_helper;

	add(b, &who, 1);
	add(b, m, sizeof(*m));
}

static void say_kind(struct bytes *b, enum rs_wire_kind kind, uint64_t nr)
{
	const struct rs_wire_message m = rs_wire_message(kind, nr);

	say(b, kind >= RS_WIRE_READY, &m);
}

static void say_round(struct bytes *b, uint64_t nr)
{
	struct rs_extent e[2] = {{.bytes = 100, .window = 7}, {.bytes = 300, .window = 1000}};
	struct rs_copy c = {.nr = 1, .run = 10, .ext = {5}, .from_stride = {20}, .to_stride = {10}, .from = 7, .to = 1000};
	struct rs_part none[2] = {{0}}, some[2][2] = {{{0}, {16, 50}}, {{32, 50}, {0}}};
	struct rs_share s[2] = {
		{.in = e, .out = e + 1, .copies = &c, .packs = &c, .sends = some[0], .recvs = none, .nr_in = 1, .nr_out = 1, .nr_copies = 1,
		 .nr_packs = 1, .in_bytes = 200, .out_bytes = 2000, .send_bytes = 2000},
		{.out = e + 1, .unpacks = &c, .sends = none, .recvs = some[1], .nr_out = 1, .nr_unpacks = 1, .out_bytes = 2000,
		 .recv_bytes = 200},
	};
	const struct rs_round round = {2, s};
	const struct rs_wire_message m = rs_wire_message(RS_WIRE_ROUND, nr);
	static unsigned char memory[1 << 20];

	rs_wire_put_plan(&pool, memory, &round);
	say(b, false, &m);
	add(b, memory + rs_pool_bytes(&pool), rs_wire_bytes(&pool) - rs_pool_bytes(&pool));
}

/* A conversation with some rounds. */
void seed_wire(struct bytes *b, unsigned which)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_SETUP, 0), ready = rs_wire_message(RS_WIRE_READY, 0);

	which %= 4; /* more do not fit an input */
	m.window_bytes = WINDOW;
	m.boxes_max = BOXES;
	m.peers = pool.peers;
	m.devices[1] = 1;
	m.idle_ms = 1;
	strcpy(ready.text, "a device");
	say(b, false, &m);
	say(b, true, &ready);
	say_kind(b, RS_WIRE_BEGIN, 0);
	say_kind(b, RS_WIRE_BEGUN, 0);
	for (unsigned nr = 0; nr <= which; nr++) {
		say_round(b, nr);
		say_kind(b, RS_WIRE_FILL, nr);
		say_kind(b, RS_WIRE_FILLED, nr);
		if (nr >= RS_POOL_SLOTS) {
			say_kind(b, RS_WIRE_DRAIN, nr - RS_POOL_SLOTS);
			say_kind(b, RS_WIRE_DRAINED, nr - RS_POOL_SLOTS);
		}
		say_kind(b, RS_WIRE_TAKEN, nr);
	}
	say_kind(b, RS_WIRE_FINISH, 0);
	for (unsigned nr = which < RS_POOL_SLOTS ? 0 : which + 1 - RS_POOL_SLOTS; nr <= which; nr++) {
		say_kind(b, RS_WIRE_DRAIN, nr);
		say_kind(b, RS_WIRE_DRAINED, nr);
	}
	say_kind(b, RS_WIRE_FINISHED, 0);
}
