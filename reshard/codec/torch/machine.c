/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a pickle machine's memory, input, stack and memo. */
#include "reshard/codec/torch/machine_i.h"

#include <string.h>

#include "meta/base/text.h"

/* --- memory --- */

int pk_check_memory(struct machine *m)
{
	uint64_t bytes = m->to->arena.bytes + m->stack.room * sizeof(*m->stack.at) + m->memo_room * sizeof(*m->memo) +
			 m->first_room * sizeof(*m->first);

	return bytes <= SC_PICKLE_MEMORY_MAX ? 0 : sc_fail(m->err, SC_E_LIMIT, "pickle: it needs more than %" PRIu64
		" MiB of memory", SC_PICKLE_MEMORY_MAX >> 20);
}

void *pk_get(struct machine *m, size_t nr, size_t bytes)
{
	void *p;

	if (pk_check_memory(m) < 0)
		return NULL;
	p = sc_arena_array(&m->to->arena, nr ? nr : 1, bytes);
	if (!p)
		(void)sc_nomem(m->err);
	return p;
}

struct rs_pickled *pk_node(struct machine *m, enum rs_pickled_kind kind)
{
	struct rs_pickled *n = pk_get(m, 1, sizeof(*n));

	if (n)
		n->kind = kind;
	return n;
}

int pk_put(struct machine *m, struct rs_pickled *n)
{
	if (!n)
		return m->err->code;
	if (m->stack.nr == m->stack.room && pk_check_memory(m) < 0)
		return m->err->code;
	return sc_vec_push(&m->stack, n) < 0 ? sc_nomem(m->err) : 0;
}

int pk_add(struct machine *m, struct rs_pickled_items *items, struct rs_pickled *n)
{
	struct rs_pickled_cell *cell = pk_get(m, 1, sizeof(*cell));

	if (!cell)
		return m->err->code;
	rs_pickled_link(items, cell, n);
	return 0;
}

/* --- what comes in --- */

/* Takes the next bytes of the pickle; NULL: it has fewer. */
const unsigned char *pk_take(struct machine *m, uint64_t bytes)
{
	const unsigned char *at = m->pickle + m->at;

	if (bytes > m->bytes - m->at) {
		(void)refuse(m, "%" PRIu64 " bytes are announced, %" PRIu64 " are there", bytes, m->bytes - m->at);
		return NULL;
	}
	m->at += bytes;
	return at;
}

int pk_number(struct machine *m, unsigned bytes, uint64_t *ret)
{
	const unsigned char *at = pk_take(m, bytes);

	*ret = 0;
	if (!at)
		return m->err->code;
	while (bytes--)
		*ret = *ret << 8 | at[bytes];
	return 0;
}

/* Takes a name that ends with a line feed. */
int pk_line(struct machine *m, struct rs_pickled_bytes *ret)
{
	uint64_t left = sc_min_u64(m->bytes - m->at, SC_PICKLE_NAME_MAX);
	const unsigned char *at = m->pickle + m->at, *end = left ? memchr(at, '\n', left) : NULL;

	if (!end)
		return refuse(m, "a name without an end");
	*ret = (struct rs_pickled_bytes){(const char *)at, (uint64_t)(end - at)};
	m->at += ret->nr + 1;
	return sc_is_utf8(at, ret->nr, false) ? 0 : refuse(m, "text that is not UTF-8");
}

/* --- the stack --- */

struct rs_pickled *pk_top(struct machine *m)
{
	if (m->stack.nr && m->stack.at[m->stack.nr - 1])
		return m->stack.at[m->stack.nr - 1];
	(void)refuse(m, "the stack is empty");
	return NULL;
}

struct rs_pickled *pk_pop(struct machine *m)
{
	struct rs_pickled *n = pk_top(m);

	m->stack.nr -= n != NULL;
	return n;
}

struct rs_pickled **pk_pop_mark(struct machine *m, size_t *ret_nr)
{
	size_t i = m->stack.nr;

	while (i && m->stack.at[i - 1])
		i--;
	if (!i) {
		(void)refuse(m, "no mark on the stack");
		return NULL;
	}
	*ret_nr = m->stack.nr - i;
	m->stack.nr = i - 1;
	return m->stack.at + i;
}

/* --- the memo: programs number its objects from 0, so that an array has most; a file may name any 32-bit number --- */

static struct memo *memo_slot(struct memo *memo, size_t room, uint32_t index)
{
	size_t i = (index * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (room - 1);

	while (memo[i].node && memo[i].index != index)
		i = (i + 1) & (room - 1);
	return &memo[i];
}

static int memo_grow(struct machine *m)
{
	size_t room = m->memo_room ? 2 * m->memo_room : 64;
	struct memo *bigger;

	if (pk_check_memory(m) < 0)
		return m->err->code;
	bigger = sc_zalloc_array(room, sizeof(*bigger));
	if (!bigger)
		return sc_nomem(m->err);
	for (size_t i = 0; i < m->memo_room; i++)
		if (m->memo[i].node)
			*memo_slot(bigger, room, m->memo[i].index) = m->memo[i];
	sc_sys.release(m->memo);
	m->memo = bigger;
	m->memo_room = room;
	return 0;
}

/* Makes the array long enough for an index: 1, 0 (the array would be mostly empty) or an error. */
static int first_has_room(struct machine *m, uint64_t index)
{
	const uint64_t room = m->first_room ? 2 * m->first_room : 64;
	struct rs_pickled **more;

	if (index < m->first_room)
		return 1;
	if (index >= room || room > 4 * (m->memo_nr + 16))
		return 0;
	if (pk_check_memory(m) < 0)
		return m->err->code;
	more = sc_sys.resize(m->first, room * sizeof(*more));
	if (!more)
		return sc_nomem(m->err);
	memset(more + m->first_room, 0, (room - m->first_room) * sizeof(*more));
	m->first = more;
	m->first_room = room;
	return 1;
}

static struct rs_pickled *memo_find(const struct machine *m, uint64_t index)
{
	if (index < m->first_room && m->first[index])
		return m->first[index];
	return m->memo_room ? memo_slot(m->memo, m->memo_room, (uint32_t)index)->node : NULL;
}

int pk_memo_put(struct machine *m, uint64_t index)
{
	struct rs_pickled *n = pk_top(m);
	int in_first = n ? first_has_room(m, index) : m->err->code;
	struct memo *slot;

	if (in_first < 0)
		return in_first;
	m->memo_nr += !memo_find(m, index);
	if (in_first) {
		m->first[index] = n;
		return 0;
	}
	if (2 * (m->sparse_nr + 1) > m->memo_room && memo_grow(m) < 0)
		return m->err->code;
	slot = memo_slot(m->memo, m->memo_room, (uint32_t)index);
	m->sparse_nr += !slot->node;
	*slot = (struct memo){(uint32_t)index, n};
	return 0;
}

int pk_memo_get(struct machine *m, uint64_t index)
{
	struct rs_pickled *n = memo_find(m, index);

	return n ? pk_put(m, n) : refuse(m, "memo %" PRIu64 " was never set", index);
}
