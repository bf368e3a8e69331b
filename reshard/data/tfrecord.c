/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TFRecord: u64 length, CRC of it, data, CRC of the data; little-endian, CRC-32C "masked":
 * ((c >> 15) | (c << 17)) + 0xa282ead8.  Records are dealt with their CRCs as they are.
 */
#include "reshard/data/index.h"

#include <inttypes.h>
#include <isa-l/crc.h>
#include <string.h>

static uint32_t masked(const unsigned char *at, uint64_t bytes)
{
	uint32_t c = 0xffffffff;

	while (bytes) { /* the library counts in int */
		int n = bytes > 1u << 30 ? 1 << 30 : (int)bytes;

		c = crc32_iscsi((unsigned char *)at, n, c);
		at += n;
		bytes -= (uint64_t)n;
	}
	c = ~c;
	return (c >> 15 | c << 17) + 0xa282ead8;
}

static uint32_t u32(const unsigned char *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return v;
}

int rs_index_tfrecord(struct rs_index *x, struct sc_err *err)
{
	uint64_t at = 0;

	while (at < x->bytes) {
		uint64_t left = x->bytes - at, n;

		if (left < 16)
			return sc_fail(err, SC_E_FORMAT, "'%s' ends in record %" PRIu64 ": from byte %" PRIu64 " on "
				"there are %" PRIu64
				       " bytes, but a record has 16 and its data", x->path, x->info->samples, at, left);
		memcpy(&n, x->map + at, 8);
		if (masked(x->map + at, 8) != u32(x->map + at + 8))
			return sc_fail(err, SC_E_FORMAT,
				       "'%s': record %" PRIu64 " at byte %" PRIu64 ": the CRC of its length is %08x, "
				       "expected %08x",
				       x->path, x->info->samples, at, u32(x->map + at + 8), masked(x->map + at, 8));
		if (n > left - 16)
			return sc_fail(err, SC_E_FORMAT, "'%s' ends in record %" PRIu64 " at byte %" PRIu64 ": it has "
				"%" PRIu64
				       " bytes of data, but only %" PRIu64 " follow", x->path, x->info->samples, at, n,
				       left - 16);
		if (masked(x->map + at + 12, n) != u32(x->map + at + 12 + n))
			return sc_fail(err, SC_E_FORMAT,
				       "'%s': record %" PRIu64 " at byte %" PRIu64 ": the CRC of its %" PRIu64
				       " bytes is %08x, expected %08x",
				       x->path, x->info->samples, at, n, u32(x->map + at + 12 + n),
				       masked(x->map + at + 12, n));
		rs_index_push(x, at);
		x->info->samples++;
		at += 16 + n;
	}
	rs_index_push(x, at);
	x->info->sequences = x->info->samples;
	return 0;
}
