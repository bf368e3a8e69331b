/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void *sc_zalloc(size_t bytes)
{
	void *p = sc_sys.alloc(bytes ? bytes : 1);

	if (p)
		memset(p, 0, bytes);
	return p;
}

void *sc_zalloc_array(size_t nr, size_t bytes)
{
	size_t all;

	return __builtin_mul_overflow(nr, bytes, &all) ? NULL : sc_zalloc(all);
}

char *sc_strdup(const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *p = sc_sys.alloc(bytes);

	if (p)
		memcpy(p, text, bytes);
	return p;
}

#define ARENA_CHUNK (32u << 10)

struct sc_chunk {
	struct sc_chunk *next;
	size_t used, room;
	char bytes[] __attribute__((aligned(16)));
};

/* Gives memory that is not zeroed, and in *ret_bytes how many bytes it has. */
static void *take(struct sc_arena *arena, size_t bytes, size_t *ret_bytes)
{
	struct sc_chunk *c = arena->chunk;
	size_t want;
	void *p;

	if (__builtin_add_overflow(bytes, (size_t)15, &want))
		return NULL;
	want &= ~(size_t)15;
	*ret_bytes = want;
	if (want <= arena->scratch_bytes) {
		p = arena->scratch;
		arena->scratch += want;
		arena->scratch_bytes -= want;
		arena->bytes += want;
		return p;
	}
	if (!c || c->room - c->used < want) {
		size_t room = want > ARENA_CHUNK ? want : ARENA_CHUNK;

		c = sc_sys.alloc(sizeof(*c) + room);
		if (!c)
			return NULL;
		c->used = 0;
		c->room = room;
		c->next = arena->chunk;
		arena->chunk = c;
	}
	p = c->bytes + c->used;
	c->used += want;
	arena->bytes += want;
	return p;
}

void *sc_arena_alloc(struct sc_arena *arena, size_t bytes)
{
	size_t want;
	void *p = take(arena, bytes, &want);

	return p ? memset(p, 0, want) : NULL;
}

void *sc_arena_array(struct sc_arena *arena, size_t nr, size_t bytes)
{
	size_t all;

	return __builtin_mul_overflow(nr, bytes, &all) ? NULL : sc_arena_alloc(arena, all);
}

char *sc_arena_copy(struct sc_arena *arena, const char *text, size_t bytes)
{
	size_t want;
	char *p = take(arena, bytes + 1, &want);

	if (!p)
		return NULL;
	if (bytes)
		memcpy(p, text, bytes);
	p[bytes] = 0;
	return p;
}

char *sc_arena_join(struct sc_arena *arena, const char *a, char between, const char *b)
{
	size_t na = strlen(a), nb = strlen(b);
	char *p = sc_arena_alloc(arena, na + nb + 2);

	if (p) {
		memcpy(p, a, na);
		p[na] = between;
		memcpy(p + na + 1, b, nb);
	}
	return p;
}

char *sc_arena_printf(struct sc_arena *arena, const char *fmt, ...)
{
	va_list ap, again;
	char *p = NULL;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n >= 0)
		p = sc_arena_alloc(arena, (size_t)n + 1);
	if (p)
		(void)vsnprintf(p, (size_t)n + 1, fmt, again);
	va_end(again);
	va_end(ap);
	return p;
}

void sc_arena_done(struct sc_arena *arena)
{
	while (arena->chunk) {
		struct sc_chunk *next = arena->chunk->next;

		sc_sys.release(arena->chunk);
		arena->chunk = next;
	}
	arena->bytes = arena->scratch_bytes = 0;
}

static bool buf_room(struct sc_buf *buf, size_t more)
{
	size_t want = buf->bytes + more + 1, room = buf->room ? buf->room : 256;
	char *p;

	if (buf->failed)
		return false;
	if (want <= buf->room)
		return true;
	while (room < want)
		room *= 2;
	p = sc_sys.resize(buf->text, room);
	buf->failed = !p;
	if (!p)
		return false;
	buf->text = p;
	buf->room = room;
	return true;
}

void sc_buf_add(struct sc_buf *buf, const void *text, size_t bytes)
{
	if (!buf_room(buf, bytes))
		return;
	if (bytes)
		memcpy(buf->text + buf->bytes, text, bytes);
	buf->bytes += bytes;
	buf->text[buf->bytes] = 0;
}

size_t sc_decimal(uint64_t number, char ret[21])
{
	size_t bytes = 1;

	for (uint64_t x = number; x >= 10; x /= 10)
		bytes++;
	ret[bytes] = 0;
	for (size_t i = bytes; i > 0; i--, number /= 10)
		ret[i - 1] = (char)('0' + number % 10);
	return bytes;
}

void sc_buf_number(struct sc_buf *buf, uint64_t number)
{
	char digits[21];

	sc_buf_add(buf, digits, sc_decimal(number, digits));
}

void sc_buf_printf(struct sc_buf *buf, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0 || !buf_room(buf, (size_t)n))
		return;
	va_start(ap, fmt);
	(void)vsnprintf(buf->text + buf->bytes, (size_t)n + 1, fmt, ap);
	va_end(ap);
	buf->bytes += (size_t)n;
}

void sc_buf_reset(struct sc_buf *buf)
{
	buf->bytes = 0;
	if (buf->text)
		buf->text[0] = 0;
}

void sc_buf_done(struct sc_buf *buf)
{
	sc_sys.release(buf->text);
	*buf = (struct sc_buf){0};
}

int sc_vec_grow(void **at, size_t nr, size_t *room, size_t bytes)
{
	size_t more = *room ? *room * 2 : 8, all;
	void *p;

	if (nr < *room)
		return 0;
	if (__builtin_mul_overflow(more, bytes, &all))
		return -1;
	p = sc_sys.resize(*at, all);
	if (!p)
		return -1;
	*at = p;
	*room = more;
	return 0;
}

static uint64_t hash_of(const char *key, size_t bytes)
{
	return XXH3_64bits(key, bytes);
}

static struct sc_map_slot *find_slot(const struct sc_map *map, const char *key, size_t bytes,
				     uint64_t hash)
{
	size_t i = hash >> 20 & (map->room - 1);

	while (map->slots[i].key &&
	       (map->slots[i].hash != hash || map->slots[i].key_bytes != bytes ||
		(bytes && memcmp(map->slots[i].key, key, bytes) != 0)))
		i = (i + 1) & (map->room - 1);
	return &map->slots[i];
}

void *sc_map_get(const struct sc_map *map, const char *key, size_t key_bytes)
{
	return map->room ? find_slot(map, key, key_bytes, hash_of(key, key_bytes))->value : NULL;
}

int sc_map_reserve(struct sc_map *map, size_t more)
{
	struct sc_map bigger = {.nr = map->nr, .room = map->room ? map->room : 64};

	while (bigger.room < 2 * (map->nr + more))
		bigger.room *= 2;
	if (bigger.room == map->room)
		return 0;
	bigger.slots = sc_zalloc_array(bigger.room, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -1;
	for (size_t i = 0; i < map->room; i++) {
		struct sc_map_slot *s = &map->slots[i];

		if (s->key)
			*find_slot(&bigger, s->key, s->key_bytes, s->hash) = *s;
	}
	sc_sys.release(map->slots);
	*map = bigger;
	return 0;
}

int sc_map_put(struct sc_map *map, const char *key, size_t key_bytes, void *value)
{
	uint64_t hash = hash_of(key, key_bytes);
	struct sc_map_slot *slot = map->room ? find_slot(map, key, key_bytes, hash) : NULL;

	if (!slot || !slot->key) {
		if (sc_map_reserve(map, 1) < 0)
			return -1;
		slot = find_slot(map, key, key_bytes, hash);
		map->nr++;
	}
	*slot = (struct sc_map_slot){key, key_bytes, hash, value};
	return 0;
}

/* Empties the key's slot, and moves those behind it up, unless a slot would come before the one that its hash names. */
void sc_map_drop(struct sc_map *map, const char *key, size_t key_bytes)
{
	struct sc_map_slot *gap = map->room ? find_slot(map, key, key_bytes, hash_of(key, key_bytes)) : NULL;
	size_t mask = map->room - 1, to, i;

	if (!gap || !gap->key)
		return;
	to = i = (size_t)(gap - map->slots);
	for (;;) {
		i = (i + 1) & mask;
		if (!map->slots[i].key)
			break;
		if (((i - (map->slots[i].hash >> 20)) & mask) < ((i - to) & mask))
			continue;
		map->slots[to] = map->slots[i];
		to = i;
	}
	map->slots[to] = (struct sc_map_slot){0};
	map->nr--;
}

void *sc_map_make(struct sc_map *map, const char *key, size_t key_bytes, struct sc_arena *arena,
		  size_t value_bytes)
{
	void *value = sc_map_get(map, key, key_bytes);

	if (value)
		return value;
	value = sc_arena_alloc(arena, value_bytes);
	return value && sc_map_put(map, key, key_bytes, value) == 0 ? value : NULL;
}

void sc_map_release(struct sc_map *map)
{
	for (size_t i = 0; i < map->room; i++)
		sc_sys.release(map->slots[i].value);
	sc_map_done(map);
}

void sc_map_done(struct sc_map *map)
{
	sc_sys.release(map->slots);
	*map = (struct sc_map){0};
}
