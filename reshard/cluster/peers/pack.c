/* SPDX-License-Identifier: Apache-2.0 */
/* Packs objects as texts, and unpacks them. */
#include "reshard/cluster/peers/pack.h"

#include <isa-l/igzip_lib.h>
#include <string.h>

#include "meta/member/wire.h"
#include "reshard/exchange/objects/objects.h"

#define DEFLATED "z:"

/* Deflates to `to`, which has room for as many bytes.  Returns how many bytes that made; 0: they would not be fewer. */
static size_t deflate(const void *at, size_t bytes, uint8_t *to, uint8_t *level)
{
	struct isal_zstream s;

	isal_deflate_stateless_init(&s);
	s.level = 3;
	s.level_buf = level;
	s.level_buf_size = ISAL_DEF_LVL3_DEFAULT;
	s.end_of_stream = 1;
	s.gzip_flag = IGZIP_ZLIB;
	s.next_in = (uint8_t *)(uintptr_t)at;
	s.avail_in = (uint32_t)bytes;
	s.next_out = to;
	s.avail_out = (uint32_t)bytes;
	return isal_deflate_stateless(&s) == COMP_OK && s.avail_in == 0 ? s.total_out : 0;
}

int rs_pack(const void *at, size_t bytes, struct sc_buf *to)
{
	uint8_t *room = sc_zalloc(bytes + 1), *level = sc_zalloc(ISAL_DEF_LVL3_DEFAULT);
	size_t n = room && level ? deflate(at, bytes, room, level) : 0;

	if (n)
		sc_buf_add(to, DEFLATED, strlen(DEFLATED));
	meta_add_base64(to, n ? room : at, n ? n : bytes);
	if (!room || !level)
		to->failed = true;
	sc_sys.release(room);
	sc_sys.release(level);
	return to->failed ? -1 : 0;
}

/* Inflates into `to`; false: the bytes were not deflated, or make more than there is room for. */
static bool inflate(const uint8_t *at, size_t bytes, uint8_t *to, size_t room, size_t *ret)
{
	struct inflate_state s;

	isal_inflate_init(&s);
	s.crc_flag = ISAL_ZLIB;
	s.next_in = (uint8_t *)(uintptr_t)at;
	s.avail_in = (uint32_t)bytes;
	s.next_out = to;
	s.avail_out = (uint32_t)room;
	if (isal_inflate_stateless(&s) != ISAL_DECOMP_OK || s.block_state != ISAL_BLOCK_FINISH || s.avail_in)
		return false;
	*ret = s.total_out;
	return true;
}

int rs_unpack(const char *text, struct sc_buf *to)
{
	bool deflated = strncmp(text, DEFLATED, strlen(DEFLATED)) == 0, good;
	size_t bytes = strlen(text) - (deflated ? strlen(DEFLATED) : 0), n = 0;
	uint8_t *at = sc_zalloc(3 * bytes / 4 + 4), *whole = deflated ? sc_zalloc(RS_OBJECT_BYTES_MAX) : NULL;

	if (!at || (deflated && !whole))
		to->failed = true;
	good = at && meta_read_base64(text + (deflated ? strlen(DEFLATED) : 0), bytes, at, &n) &&
	       (deflated || n <= RS_OBJECT_BYTES_MAX);
	if (good && deflated)
		good = whole && inflate(at, n, whole, RS_OBJECT_BYTES_MAX, &n);
	if (good)
		sc_buf_add(to, deflated ? whole : at, n);
	sc_sys.release(at);
	sc_sys.release(whole);
	return to->failed ? -1 : good;
}
