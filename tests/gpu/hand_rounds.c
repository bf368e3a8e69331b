/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/hand_rounds.h"

#define COLUMNS 96u
#define GIFT 8u		/* columns of each peer for each */

struct rs_pool pool = {HAND_WINDOW, HAND_BOXES, 1};

static uint64_t rows_of(unsigned k)
{
	return 5 + k;
}

/* Every fourth round has zeros alone. */
static bool reads(unsigned k)
{
	return k % 4 != 3;
}

/* Peer p gives to q; in some rounds the first one has nothing to do with the others. */
static bool gives(unsigned k, unsigned p, unsigned q)
{
	return reads(k) && p != q && p < pool.peers && q < pool.peers && (k % 3 != 1 || (p && q));
}

static unsigned file_of(unsigned k, unsigned p)
{
	return k * HAND_PEERS_MAX + p;
}

static void put_parts(unsigned k, unsigned p, struct share *s, struct rs_share *of)
{
	const uint64_t rows = rows_of(k), gift = (rows * GIFT + 15) / 16 * 16;

	for (unsigned q = 0; q < pool.peers; q++) {
		if (gives(k, p, q)) {
			s->sends[q] = (struct rs_part){of->send_bytes, rows * GIFT};
			s->packs[of->nr_packs++] = (struct rs_copy){.from = 5 + q * GIFT, .to = of->send_bytes, .run = GIFT, .nr = 1,
				.ext = {rows}, .from_stride = {COLUMNS}, .to_stride = {GIFT}};
			of->send_bytes += gift;
		}
		if (gives(k, q, p)) {
			s->recvs[q] = (struct rs_part){of->recv_bytes, rows * GIFT};
			s->unpacks[of->nr_unpacks++] = (struct rs_copy){.from = of->recv_bytes, .to = s->out[2].window + q * GIFT, .run = GIFT,
				.nr = 1, .ext = {rows}, .from_stride = {GIFT}, .to_stride = {GIFT * pool.peers}};
			of->recv_bytes += gift;
		}
	}
}

static void make_share(unsigned k, unsigned p, struct share *s, struct rs_share *of)
{
	const uint64_t rows = rows_of(k), all = rows * COLUMNS, half = COLUMNS / 2, gifts = rows * GIFT * pool.peers;
	const unsigned file = file_of(k, p);

	*s = (struct share){
		.in = {{.file = file, .bytes = all, .window = 5}, {.file = file, .at = all, .bytes = 100, .window = 5 + all + 30}},
		.out = {{.file = file, .zero = true, .bytes = 300, .window = 1}, {.file = file, .at = 300, .bytes = all, .window = 311},
			{.file = file, .zero = true, .at = 300 + all, .bytes = gifts, .window = 311 + all + 1}},
		.copies = {
			{.from = 5, .to = 311, .run = half, .nr = 1, .ext = {rows}, .from_stride = {COLUMNS}, .to_stride = {half}},
			{.from = 5 + half, .to = 311 + rows * half, .run = half, .nr = 1, .ext = {rows}, .from_stride = {COLUMNS},
			 .to_stride = {half}},
			{.from = 5 + all + 30, .to = 51, .run = 100},
		},
	};
	*of = (struct rs_share){
		.in = s->in, .out = s->out, .copies = s->copies, .packs = s->packs, .unpacks = s->unpacks, .sends = s->sends,
		.recvs = s->recvs, .nr_in = 2, .nr_out = 3, .nr_copies = HAND_BOXES, .in_bytes = 5 + all + 30 + 100,
		.out_bytes = 311 + all + 1 + gifts,
	};
	put_parts(k, p, s, of);
	if (!reads(k)) {
		of->nr_in = of->nr_copies = 0;
		of->in_bytes = 0;
		of->nr_out = 1;
		of->out_bytes = 301;
	}
}

const struct rs_round *make_round(unsigned k, struct round *r)
{
	for (unsigned p = 0; p < pool.peers; p++)
		make_share(k, p, &r->shares[p], &r->of_peers[p]);
	r->round = (struct rs_round){pool.peers, r->of_peers};
	return &r->round;
}

unsigned char byte_of(unsigned file, uint64_t at)
{
	return (unsigned char)((at * 2654435761u >> 7) + file * 31 + 1);
}

unsigned char expected(unsigned k, unsigned p, uint64_t at)
{
	const uint64_t rows = rows_of(k), half = COLUMNS / 2;
	const unsigned file = file_of(k, p);

	if (at < 300)
		return reads(k) && at >= 50 && at < 150 ? byte_of(file, rows * COLUMNS + at - 50) : 0;
	at -= 300;
	if (at >= rows * COLUMNS) {
		const uint64_t in_row = (at - rows * COLUMNS) % (GIFT * pool.peers), row = (at - rows * COLUMNS) / (GIFT * pool.peers);
		const unsigned q = (unsigned)(in_row / GIFT);

		return gives(k, q, p) ? byte_of(file_of(k, q), row * COLUMNS + p * GIFT + in_row % GIFT) : 0;
	}
	return byte_of(file, at < rows * half ? at / half * COLUMNS + at % half
					      : (at - rows * half) / half * COLUMNS + half + at % half);
}
