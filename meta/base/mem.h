/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the control path: an arena that is freed as a whole, a growable text, a growable array
 * and a map from strings to pointers.  Nothing here aborts: NULL or -1 means out of memory.
 */
#ifndef SC_MEM_H
#define SC_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/base/sys.h"

void *sc_zalloc(size_t bytes);
void *sc_zalloc_array(size_t nr, size_t bytes);	/* NULL on overflow, too */
char *sc_strdup(const char *text);

static inline uint64_t sc_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/** Mixes 64 bits, as a permutation (splitmix64's output function): each bit of `x` reaches each bit of the result. */
static inline uint64_t sc_mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static inline uint64_t sc_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline bool sc_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret);
}

static inline bool sc_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
	return !__builtin_add_overflow(a, b, ret);
}

/* --- arena: everything allocated from it lives until sc_arena_done --- */

struct sc_arena {
	struct sc_chunk *chunk;
	size_t bytes;		/* handed out, for limits and status */
	char *scratch;		/* the caller's memory, handed out first */
	size_t scratch_bytes;
};

/* An arena for a moment: small answers need no malloc.  struct sc_arena a = SC_ARENA_IN(buffer); */
#define SC_SCRATCH __attribute__((aligned(16)))
#define SC_ARENA_IN(buffer) {.scratch = (buffer), .scratch_bytes = sizeof(buffer)}

void *sc_arena_alloc(struct sc_arena *arena, size_t bytes);	/* zeroed, aligned to 16 */
void *sc_arena_array(struct sc_arena *arena, size_t nr, size_t bytes);
char *sc_arena_copy(struct sc_arena *arena, const char *text, size_t bytes); /* adds a 0 */
char *sc_arena_join(struct sc_arena *arena, const char *a, char between, const char *b);
char *sc_arena_printf(struct sc_arena *arena, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void sc_arena_done(struct sc_arena *arena);

/** Writes a number as text, with a 0 at its end; returns how many digits it has. */
size_t sc_decimal(uint64_t number, char ret[21]);

/* --- growable text: after a failed append `failed` stays set; check once at the end --- */

struct sc_buf {
	char *text;		/* always 0-terminated once anything was added */
	size_t bytes, room;
	bool failed;
};

void sc_buf_add(struct sc_buf *buf, const void *text, size_t bytes);
static inline void sc_buf_byte(struct sc_buf *buf, char byte)
{
	if (buf->bytes + 1 < buf->room && !buf->failed) {
		buf->text[buf->bytes++] = byte;
		buf->text[buf->bytes] = 0;
	} else {
		sc_buf_add(buf, &byte, 1);
	}
}
void sc_buf_printf(struct sc_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sc_buf_number(struct sc_buf *buf, uint64_t number); /* decimal; ten times as fast as printf */
void sc_buf_reset(struct sc_buf *buf);
void sc_buf_done(struct sc_buf *buf);

/* --- growable array: `struct { T *at; size_t nr, room; } v; if (sc_vec_push(&v, x) < 0) ... --- */

#define sc_vec_push(v, ...)                                                                        \
	(sc_vec_grow((void **)&(v)->at, (v)->nr, &(v)->room, sizeof(*(v)->at)) < 0                 \
		 ? -1                                                                              \
		 : ((v)->at[(v)->nr++] = (__VA_ARGS__), 0))
int sc_vec_grow(void **at, size_t nr, size_t *room, size_t bytes);
#define sc_vec_done(v) (sc_sys.release((v)->at), (v)->at = NULL, (v)->nr = (v)->room = 0)

/** Finds the first `i` below `end` for which `holds`, an expression of `i` that is false up to a place and true from
 *  there on; `end`: there is none.  As in sc_first(v->nr, i, v->at[i].id >= id). */
#define sc_first(end, i, holds)                                                                    \
	({                                                                                         \
		size_t from_ = 0, to_ = (end);                                                     \
		while (from_ < to_) {                                                              \
			const size_t i = from_ + (to_ - from_) / 2;                                \
			if (holds)                                                                 \
				to_ = i;                                                           \
			else                                                                       \
				from_ = i + 1;                                                     \
		}                                                                                  \
		from_;                                                                             \
	})

/* --- map from byte strings to pointers; keys are borrowed and must outlive it --- */

struct sc_map {
	struct sc_map_slot {
		const char *key;
		size_t key_bytes;
		uint64_t hash;
		void *value;
	} *slots;
	size_t nr, room;
};

void *sc_map_get(const struct sc_map *map, const char *key, size_t key_bytes);
int sc_map_put(struct sc_map *map, const char *key, size_t key_bytes, void *value);
/** Makes room, so that putting the next `more` keys cannot fail. */
int sc_map_reserve(struct sc_map *map, size_t more);
void sc_map_drop(struct sc_map *map, const char *key, size_t key_bytes);
/** Returns the value of a key; if there is none, puts a zeroed one that lives in `arena`.  NULL: out of memory. */
void *sc_map_make(struct sc_map *map, const char *key, size_t key_bytes, struct sc_arena *arena,
		  size_t value_bytes);
void sc_map_done(struct sc_map *map);
/** Releases the values by sc_sys.release(), too. */
void sc_map_release(struct sc_map *map);

#endif
