/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/digest.h"

#include <isa-l/crc64.h>

/* the polynomials of the two CRCs, reflected: the highest power of x is the lowest bit */
static const uint64_t polynomials[2] = {UINT64_C(0xC96C5795D7870F42), UINT64_C(0x95AC9329AC4BC9B5)};

/* Goes on with a CRC over more bytes; the library's complements are undone. */
static uint64_t go_on(int k, uint64_t crc, const void *bytes, size_t nr)
{
	return k ? ~crc64_jones_refl(~crc, bytes, nr) : ~crc64_ecma_refl(~crc, bytes, nr);
}

/* Multiplies two polynomials modulo that of a CRC, without branches, which random bits would mispredict. */
static uint64_t multiply(int k, uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (int bit = 63; bit >= 0; bit--) {
		product ^= a & -(b >> bit & 1);
		a = a >> 1 ^ (polynomials[k] & -(a & 1));
	}
	return product;
}

/* Returns x to the power that so many bytes shift by. */
static uint64_t power(const struct rs_digester *d, int k, uint64_t bytes)
{
	uint64_t result = UINT64_C(1) << 63;

	for (int i = 0; bytes >> i; i++)
		if (bytes >> i & 1)
			result = multiply(k, result, d->powers[k][i]);
	return result;
}

/* Makes a table for a gap that comes twice in a row; it costs as much as some 60 multiplications. */
static void make_table(struct rs_digester *d, uint64_t gap)
{
	for (int k = 0; k < 2; k++) {
		uint64_t by = power(d, k, gap);

		for (int byte = 0; byte < 8; byte++) {
			uint64_t *t = d->table[k][byte];

			/* linear, too: each value is the XOR of its bits' */
			t[0] = 0;
			for (int bit = 0; bit < 8; bit++) {
				uint64_t one = multiply(k, by, UINT64_C(1) << (8 * byte + bit));

				for (int v = 0; v < 1 << bit; v++)
					t[1 << bit | v] = t[v] ^ one;
			}
		}
	}
	d->known_gap = gap;
}

/* Goes on with so many bytes of zeros. */
static void skip(struct rs_digester *d, uint64_t gap)
{
	if (gap == d->gap && gap != d->known_gap)
		make_table(d, gap);
	d->gap = gap;
	for (int k = 0; k < 2; k++) {
		uint64_t crc = d->sum.crc[k], moved = 0;

		if (gap != d->known_gap) {
			d->sum.crc[k] = multiply(k, crc, power(d, k, gap));
			continue;
		}
		for (int byte = 0; byte < 8; byte++)
			moved ^= d->table[k][byte][crc >> 8 * byte & 255];
		d->sum.crc[k] = moved;
	}
}

void rs_digester_init(struct rs_digester *d)
{
	for (int k = 0; k < 2; k++) {
		d->powers[k][0] = UINT64_C(1) << 55;
		for (int i = 1; i < 64; i++)
			d->powers[k][i] = multiply(k, d->powers[k][i - 1], d->powers[k][i - 1]);
	}
	d->known_gap = d->added = 0;
}

void rs_digester_begin(struct rs_digester *d)
{
	d->sum = (struct rs_digest){0};
	d->at = d->gap = 0;
}

void rs_digester_add(struct rs_digester *d, uint64_t at, const void *bytes, size_t nr)
{
	/* before the first run there is nothing to carry on */
	if (at > d->at && (d->sum.crc[0] | d->sum.crc[1]))
		skip(d, at - d->at);
	for (int k = 0; k < 2; k++)
		d->sum.crc[k] = go_on(k, d->sum.crc[k], bytes, nr);
	d->at = at + nr;
	d->added += nr;
}

struct window {
	uint64_t base, lo, hi;		/* lo, hi: of the target */
	const unsigned char *source;
};

/* Adds the part of dimensions k and on that is in the window; visits only indexes that meet it. */
static void add_in(struct rs_digester *d, const struct rs_copy *c, const struct window *w, int k, uint64_t to,
		   uint64_t from)
{
	uint64_t inner = c->run, first, last;

	if (k == c->nr) {
		uint64_t lo = sc_max_u64(to, w->lo), hi = sc_min_u64(to + c->run, w->hi);

		if (lo < hi)
			rs_digester_add(d, w->base + lo, w->source + from + (lo - to), hi - lo);
		return;
	}
	for (int i = k + 1; i < c->nr; i++)
		inner += (c->ext[i] - 1) * c->to_stride[i];
	first = w->lo >= to + inner ? (w->lo - to - inner) / c->to_stride[k] + 1 : 0;
	last = w->hi > to ? sc_min_u64((w->hi - to - 1) / c->to_stride[k] + 1, c->ext[k]) : 0;
	for (uint64_t i = first; i < last; i++)
		add_in(d, c, w, k + 1, to + i * c->to_stride[k], from + i * c->from_stride[k]);
}

void rs_digester_add_copy(struct rs_digester *d, uint64_t base, const struct rs_copy *c, uint64_t at, uint64_t bytes,
			  const unsigned char *source)
{
	add_in(d, c, &(struct window){base, at, at + bytes, source}, 0, c->to, c->from);
}

struct rs_digest rs_digester_end(struct rs_digester *d, uint64_t bytes)
{
	struct rs_digest sum = d->sum;

	for (int k = 0; k < 2; k++)
		sum.crc[k] = multiply(k, sum.crc[k], power(d, k, bytes - d->at));
	return sum;
}

void rs_digest_bytes(const struct rs_digest *digest, uint8_t ret[16])
{
	for (int i = 0; i < 16; i++)
		ret[i] = (uint8_t)(digest->crc[i / 8] >> (56 - i % 8 * 8));
}
