/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/digest.h"

#include <isa-l/crc64.h>


/* Reflected: the highest power of x is the lowest bit. */
static const uint64_t polynomials[2] = {UINT64_C(0xC96C5795D7870F42), UINT64_C(0x95AC9329AC4BC9B5)};

/* Goes on with a CRC over more bytes; the library's complements are undone. */
static uint64_t go_on(int k, uint64_t crc, const void *bytes, size_t nr)
{
	return k ? ~crc64_jones_refl(~crc, bytes, nr) : ~crc64_ecma_refl(~crc, bytes, nr);
}

/* The product of two polynomials, modulo that of a CRC. */
static uint64_t multiply(int k, uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (int bit = 63; bit >= 0; bit--) {
		if (b >> bit & 1)
			product ^= a;
		a = a & 1 ? a >> 1 ^ polynomials[k] : a >> 1;
	}
	return product;
}

/* x to the power of so many bytes. */
static uint64_t power(int k, uint64_t bytes)
{
	uint64_t result = UINT64_C(1) << 63, square = UINT64_C(1) << 55;

	for (; bytes; bytes >>= 1) {
		if (bytes & 1)
			result = multiply(k, result, square);
		square = multiply(k, square, square);
	}
	return result;
}

/* A table costs as much as some 60 multiplications: it is made for a gap that comes twice in a row. */
static void make_table(struct rs_digester *d, uint64_t gap)
{
	for (int k = 0; k < 2; k++) {
		uint64_t by = power(k, gap);

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

/* Bytes of zeros follow. */
static void skip(struct rs_digester *d, uint64_t gap)
{
	if (gap == d->gap && gap != d->known_gap)
		make_table(d, gap);
	d->gap = gap;
	for (int k = 0; k < 2; k++) {
		uint64_t crc = d->sum.crc[k], moved = 0;

		if (gap != d->known_gap) {
			d->sum.crc[k] = multiply(k, crc, power(k, gap));
			continue;
		}
		for (int byte = 0; byte < 8; byte++)
			moved ^= d->table[k][byte][crc >> 8 * byte & 255];
		d->sum.crc[k] = moved;
	}
}

void rs_digester_begin(struct rs_digester *d)
{
	d->sum = (struct rs_digest){0};
	d->at = d->gap = d->known_gap = 0;
}

void rs_digester_add(struct rs_digester *d, uint64_t at, const void *bytes, size_t nr)
{
	/* before the first run there is nothing to carry on */
	if (at > d->at && (d->sum.crc[0] | d->sum.crc[1]))
		skip(d, at - d->at);
	for (int k = 0; k < 2; k++)
		d->sum.crc[k] = go_on(k, d->sum.crc[k], bytes, nr);
	d->at = at + nr;
}

struct rs_digest rs_digester_end(struct rs_digester *d, uint64_t bytes)
{
	struct rs_digest sum = d->sum;

	for (int k = 0; k < 2; k++)
		sum.crc[k] = multiply(k, sum.crc[k], power(k, bytes - d->at));
	return sum;
}
