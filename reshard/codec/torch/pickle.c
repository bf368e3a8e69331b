/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the opcodes of a pickle: each builds nodes. */
#include "reshard/codec/torch/machine_i.h"

#include <string.h>

#include "meta/base/text.h"

enum op {
	OP_PROTO = 0x80, OP_STOP = '.', OP_MARK = '(', OP_POP = '0', OP_POP_MARK = '1', OP_DUP = '2',
	OP_NONE = 'N', OP_TRUE = 0x88, OP_FALSE = 0x89,
	OP_BININT = 'J', OP_BININT1 = 'K', OP_BININT2 = 'M', OP_LONG1 = 0x8a, OP_LONG4 = 0x8b, OP_BINFLOAT = 'G',
	OP_SHORT_BINSTRING = 'U', OP_BINSTRING = 'T',
	OP_BINUNICODE = 'X', OP_SHORT_BINUNICODE = 0x8c, OP_BINUNICODE8 = 0x8d,
	OP_SHORT_BINBYTES = 'C', OP_BINBYTES = 'B', OP_BINBYTES8 = 0x8e, OP_BYTEARRAY8 = 0x96,
	OP_EMPTY_TUPLE = ')', OP_TUPLE1 = 0x85, OP_TUPLE2 = 0x86, OP_TUPLE3 = 0x87, OP_TUPLE = 't',
	OP_EMPTY_LIST = ']', OP_LIST = 'l', OP_APPEND = 'a', OP_APPENDS = 'e',
	OP_EMPTY_DICT = '}', OP_DICT = 'd', OP_SETITEM = 's', OP_SETITEMS = 'u',
	OP_EMPTY_SET = 0x8f, OP_ADDITEMS = 0x90, OP_FROZENSET = 0x91,
	OP_GLOBAL = 'c', OP_STACK_GLOBAL = 0x93, OP_REDUCE = 'R', OP_NEWOBJ = 0x81, OP_NEWOBJ_EX = 0x92, OP_BUILD = 'b',
	OP_BINPERSID = 'Q',
	OP_BINPUT = 'q', OP_LONG_BINPUT = 'r', OP_MEMOIZE = 0x94, OP_BINGET = 'h', OP_LONG_BINGET = 'j',
	OP_FRAME = 0x95,
};

/* --- values --- */

static int put_number(struct machine *m, int64_t x)
{
	struct rs_pickled *n = pk_node(m, RS_PICKLED_INT);

	if (n)
		n->number = x;
	return pk_put(m, n);
}

static int put_truth(struct machine *m, bool is)
{
	struct rs_pickled *n = pk_node(m, RS_PICKLED_BOOL);

	if (n)
		n->truth = is;
	return pk_put(m, n);
}

/* Pushes an integer of any length; bytes that only repeat its sign do not count. */
static int put_long(struct machine *m, uint64_t bytes)
{
	const unsigned char *at;
	uint64_t x = 0;
	bool negative;
	struct rs_pickled *n;

	if (bytes > SC_PICKLE_INTEGER_MAX)
		return refuse(m, "an integer of %" PRIu64 " bytes, at most %d", bytes, SC_PICKLE_INTEGER_MAX);
	at = pk_take(m, bytes);
	if (!at)
		return m->err->code;
	negative = bytes && at[bytes - 1] & 0x80;
	while (bytes > 1 && at[bytes - 1] == (negative ? 0xff : 0) && (at[bytes - 2] >> 7) == negative)
		bytes--;
	if (bytes > sizeof(x)) {
		n = pk_node(m, RS_PICKLED_BIG);
		if (n)
			n->bytes = (struct rs_pickled_bytes){(const char *)at, bytes};
		return pk_put(m, n);
	}
	for (uint64_t i = 0; i < sizeof(x); i++)
		x |= (uint64_t)(i < bytes ? at[i] : negative ? 0xff : 0) << (8 * i);
	return put_number(m, (int64_t)x);
}

static int put_float(struct machine *m)
{
	const unsigned char *at = pk_take(m, 8);
	struct rs_pickled *n = at ? pk_node(m, RS_PICKLED_FLOAT) : NULL;
	uint64_t x = 0;

	if (!n)
		return m->err->code;
	for (int i = 0; i < 8; i++) /* big-endian */
		x = x << 8 | at[i];
	memcpy(&n->real, &x, sizeof(x));
	return pk_put(m, n);
}

/* Pushes bytes or text, whose length is a number of `width` bytes in front. */
static int put_bytes(struct machine *m, enum rs_pickled_kind kind, unsigned width)
{
	const unsigned char *at;
	struct rs_pickled *n;
	uint64_t bytes;

	if (pk_number(m, width, &bytes) < 0)
		return m->err->code;
	at = pk_take(m, bytes);
	n = at ? pk_node(m, kind) : NULL;
	if (!n)
		return m->err->code;
	n->bytes = (struct rs_pickled_bytes){(const char *)at, bytes};
	if (kind == RS_PICKLED_TEXT && !sc_is_utf8(at, bytes, true))
		return refuse(m, "text that is not UTF-8");
	return pk_put(m, n);
}

static int put_tuple(struct machine *m, struct rs_pickled **items, size_t nr)
{
	struct rs_pickled *n = pk_node(m, RS_PICKLED_TUPLE);

	if (!n)
		return m->err->code;
	n->tuple.nr = nr;
	n->tuple.at = pk_get(m, nr, sizeof(*items));
	if (!n->tuple.at)
		return m->err->code;
	if (nr)
		memcpy(n->tuple.at, items, nr * sizeof(*items));
	return pk_put(m, n);
}

/* Makes a tuple of the last `nr` objects on the stack. */
static int put_short_tuple(struct machine *m, size_t nr)
{
	struct rs_pickled *items[3] = {0};

	for (size_t i = nr; i-- > 0;) {
		items[i] = pk_pop(m);
		if (!items[i])
			return m->err->code;
	}
	return put_tuple(m, items, nr);
}

static int put_tuple_of_mark(struct machine *m)
{
	size_t nr = 0;
	struct rs_pickled **items = pk_pop_mark(m, &nr);

	return items ? put_tuple(m, items, nr) : m->err->code;
}

/* --- lists, dicts, sets --- */

static struct rs_pickled_items *items_of(struct machine *m, struct rs_pickled *n)
{
	if (n->kind == RS_PICKLED_LIST)
		return &n->items;
	if (n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW)
		return &n->object->items;
	(void)refuse(m, "append to what is no list");
	return NULL;
}

static struct rs_pickled_items *pairs_of(struct machine *m, struct rs_pickled *n)
{
	if (n->kind == RS_PICKLED_DICT)
		return &n->items;
	if (n->kind == RS_PICKLED_CALL || n->kind == RS_PICKLED_NEW)
		return &n->object->pairs;
	(void)refuse(m, "items of what is no dict");
	return NULL;
}

static int add_all(struct machine *m, struct rs_pickled_items *to, struct rs_pickled **items, size_t nr)
{
	int rc = to ? 0 : m->err->code;

	for (size_t i = 0; rc == 0 && i < nr; i++)
		rc = pk_add(m, to, items[i]);
	return rc;
}

static int add_pairs(struct machine *m, struct rs_pickled *to, struct rs_pickled **items, size_t nr)
{
	if (nr % 2)
		return refuse(m, "a key without a value");
	return add_all(m, pairs_of(m, to), items, nr);
}

/* Makes a container of the objects above the last mark. */
static int put_of_mark(struct machine *m, enum rs_pickled_kind kind, bool is_frozen)
{
	size_t nr = 0;
	struct rs_pickled **items = pk_pop_mark(m, &nr), *n = items ? pk_node(m, kind) : NULL;
	int rc;

	if (!n)
		return m->err->code;
	n->is_frozen = is_frozen;
	rc = kind == RS_PICKLED_DICT ? add_pairs(m, n, items, nr) : add_all(m, &n->items, items, nr);
	return rc < 0 ? rc : pk_put(m, n);
}

static int op_append(struct machine *m)
{
	struct rs_pickled *item = pk_pop(m), *to = item ? pk_top(m) : NULL;

	return to ? add_all(m, items_of(m, to), &item, 1) : m->err->code;
}

static int op_setitem(struct machine *m)
{
	struct rs_pickled *pair[2], *to;

	pair[1] = pk_pop(m);
	pair[0] = pair[1] ? pk_pop(m) : NULL;
	to = pair[0] ? pk_top(m) : NULL;
	return to ? add_pairs(m, to, pair, 2) : m->err->code;
}

/* Does APPENDS, SETITEMS and ADDITEMS. */
static int op_many(struct machine *m, enum op op)
{
	size_t nr = 0;
	struct rs_pickled **items = pk_pop_mark(m, &nr), *to = items ? pk_top(m) : NULL;

	if (!to)
		return m->err->code;
	if (op == OP_SETITEMS)
		return add_pairs(m, to, items, nr);
	if (op == OP_APPENDS)
		return add_all(m, items_of(m, to), items, nr);
	if (to->kind != RS_PICKLED_SET)
		return refuse(m, "items of what is no set");
	return add_all(m, &to->items, items, nr);
}

/* --- names, calls --- */

static int put_global(struct machine *m, struct rs_pickled_bytes module, struct rs_pickled_bytes name)
{
	struct rs_pickled *n = pk_node(m, RS_PICKLED_GLOBAL);

	if (n) {
		n->global.module = module;
		n->global.name = name;
	}
	return pk_put(m, n);
}

static int op_global(struct machine *m)
{
	struct rs_pickled_bytes module, name;

	return pk_line(m, &module) < 0 || pk_line(m, &name) < 0 ? m->err->code : put_global(m, module, name);
}

static int op_stack_global(struct machine *m)
{
	struct rs_pickled *name = pk_pop(m), *module = name ? pk_pop(m) : NULL;

	if (!module)
		return m->err->code;
	if (name->kind != RS_PICKLED_TEXT || module->kind != RS_PICKLED_TEXT)
		return refuse(m, "a class's name is no text");
	return put_global(m, module->bytes, name->bytes);
}

static int put_object(struct machine *m, enum rs_pickled_kind kind, struct rs_pickled_object object)
{
	struct rs_pickled *n;

	if (object.args->kind != RS_PICKLED_TUPLE || (object.kwargs && object.kwargs->kind != RS_PICKLED_DICT))
		return refuse(m, "arguments are no tuple%s", object.kwargs ? " and dict" : "");
	n = pk_node(m, kind);
	if (!n)
		return m->err->code;
	n->object = pk_get(m, 1, sizeof(*n->object));
	if (!n->object)
		return m->err->code;
	*n->object = object;
	return pk_put(m, n);
}

static int op_call(struct machine *m, enum rs_pickled_kind kind, bool has_kwargs)
{
	struct rs_pickled_object object = {0};

	if (has_kwargs) {
		object.kwargs = pk_pop(m);
		if (!object.kwargs)
			return m->err->code;
	}
	object.args = pk_pop(m);
	object.what = object.args ? pk_pop(m) : NULL;
	return object.what ? put_object(m, kind, object) : m->err->code;
}

static int op_build(struct machine *m)
{
	struct rs_pickled *state = pk_pop(m), *to = state ? pk_top(m) : NULL;

	if (!to)
		return m->err->code;
	if ((to->kind != RS_PICKLED_CALL && to->kind != RS_PICKLED_NEW) || to->object->state)
		return refuse(m, "state of what is no object");
	to->object->state = state;
	return 0;
}

static int op_persid(struct machine *m)
{
	struct rs_pickled *id = pk_pop(m), *n = id ? pk_node(m, RS_PICKLED_PERSIST) : NULL;

	if (n)
		n->id = id;
	return pk_put(m, n);
}

/* Pushes the call bytearray(b"..."). */
static int op_bytearray(struct machine *m)
{
	static const struct rs_pickled_bytes module = {"builtins", 8}, name = {"bytearray", 9};
	struct rs_pickled *bytes;

	if (put_bytes(m, RS_PICKLED_BYTES, 8) < 0)
		return m->err->code;
	bytes = pk_pop(m);
	if (put_global(m, module, name) < 0 || pk_put(m, bytes) < 0 || put_short_tuple(m, 1) < 0)
		return m->err->code;
	return op_call(m, RS_PICKLED_CALL, false);
}

/* --- the loop --- */

static int op_numbers(struct machine *m, enum op op)
{
	uint64_t x;

	switch (op) {
	case OP_BININT1:
	case OP_BININT2:
		return pk_number(m, op == OP_BININT1 ? 1 : 2, &x) < 0 ? m->err->code : put_number(m, (int64_t)x);
	case OP_BININT:
		return pk_number(m, 4, &x) < 0 ? m->err->code : put_number(m, (int32_t)(uint32_t)x);
	case OP_LONG1:
	case OP_LONG4:
		return pk_number(m, op == OP_LONG1 ? 1 : 4, &x) < 0 ? m->err->code : put_long(m, x);
	case OP_PROTO:
		if (pk_number(m, 1, &x) < 0)
			return m->err->code;
		return x >= 2 && x <= 5 ? 0 : refuse(m, "protocol %" PRIu64 ", not 2 to 5", x);
	case OP_FRAME:
		if (pk_number(m, 8, &x) < 0)
			return m->err->code;
		return x <= m->bytes - m->at ? 0 : refuse(m, "a frame of %" PRIu64 " bytes, %" PRIu64 " are there", x,
							  m->bytes - m->at);
	case OP_BINPUT:
	case OP_LONG_BINPUT:
		return pk_number(m, op == OP_BINPUT ? 1 : 4, &x) < 0 ? m->err->code : pk_memo_put(m, x);
	case OP_MEMOIZE:
		return pk_memo_put(m, m->memo_nr);
	case OP_BINGET:
	case OP_LONG_BINGET:
		return pk_number(m, op == OP_BINGET ? 1 : 4, &x) < 0 ? m->err->code : pk_memo_get(m, x);
	default:
		return refuse_at(m, m->at - 1, "opcode 0x%02x is not taken", op);
	}
}

static int op_containers(struct machine *m, enum op op)
{
	size_t nr;

	switch (op) {
	case OP_MARK:
		return sc_vec_push(&m->stack, NULL) < 0 ? sc_nomem(m->err) : pk_check_memory(m);
	case OP_POP:
		return pk_pop(m) ? 0 : m->err->code;
	case OP_POP_MARK:
		return pk_pop_mark(m, &nr) ? 0 : m->err->code;
	case OP_DUP:
		return pk_put(m, pk_top(m));
	case OP_EMPTY_TUPLE:
		return put_tuple(m, NULL, 0);
	case OP_TUPLE1:
	case OP_TUPLE2:
	case OP_TUPLE3:
		return put_short_tuple(m, op - OP_TUPLE1 + 1);
	case OP_TUPLE:
		return put_tuple_of_mark(m);
	case OP_EMPTY_LIST:
		return pk_put(m, pk_node(m, RS_PICKLED_LIST));
	case OP_EMPTY_DICT:
		return pk_put(m, pk_node(m, RS_PICKLED_DICT));
	case OP_EMPTY_SET:
		return pk_put(m, pk_node(m, RS_PICKLED_SET));
	case OP_LIST:
		return put_of_mark(m, RS_PICKLED_LIST, false);
	case OP_DICT:
		return put_of_mark(m, RS_PICKLED_DICT, false);
	case OP_FROZENSET:
		return put_of_mark(m, RS_PICKLED_SET, true);
	case OP_APPEND:
		return op_append(m);
	case OP_SETITEM:
		return op_setitem(m);
	case OP_APPENDS:
	case OP_SETITEMS:
	case OP_ADDITEMS:
		return op_many(m, op);
	default:
		return op_numbers(m, op);
	}
}

static int one(struct machine *m, enum op op)
{
	switch (op) {
	case OP_NONE:
		return pk_put(m, pk_node(m, RS_PICKLED_NONE));
	case OP_TRUE:
	case OP_FALSE:
		return put_truth(m, op == OP_TRUE);
	case OP_BINFLOAT:
		return put_float(m);
	case OP_SHORT_BINUNICODE:
		return put_bytes(m, RS_PICKLED_TEXT, 1);
	case OP_BINUNICODE:
		return put_bytes(m, RS_PICKLED_TEXT, 4);
	case OP_BINUNICODE8:
		return put_bytes(m, RS_PICKLED_TEXT, 8);
	case OP_SHORT_BINBYTES:
	case OP_SHORT_BINSTRING:
		return put_bytes(m, RS_PICKLED_BYTES, 1);
	case OP_BINBYTES:
	case OP_BINSTRING:
		return put_bytes(m, RS_PICKLED_BYTES, 4);
	case OP_BINBYTES8:
		return put_bytes(m, RS_PICKLED_BYTES, 8);
	case OP_BYTEARRAY8:
		return op_bytearray(m);
	case OP_GLOBAL:
		return op_global(m);
	case OP_STACK_GLOBAL:
		return op_stack_global(m);
	case OP_REDUCE:
		return op_call(m, RS_PICKLED_CALL, false);
	case OP_NEWOBJ:
		return op_call(m, RS_PICKLED_NEW, false);
	case OP_NEWOBJ_EX:
		return op_call(m, RS_PICKLED_NEW, true);
	case OP_BUILD:
		return op_build(m);
	case OP_BINPERSID:
		return op_persid(m);
	default:
		return op_containers(m, op);
	}
}

static int run(struct machine *m)
{
	while (m->at < m->bytes) {
		enum op op = m->pickle[m->at++];
		int rc;

		if (op == OP_STOP) {
			m->to->root = pk_pop(m);
			if (!m->to->root)
				return m->err->code;
			return m->stack.nr ? refuse(m, "objects are left on the stack") : 0;
		}
		rc = one(m, op);
		if (rc < 0)
			return rc;
	}
	return refuse(m, "it ends without STOP");
}

int rs_pickle_read(const void *pickle, uint64_t bytes, struct rs_pickle *ret, struct sc_err *err)
{
	struct machine m = {.pickle = pickle, .bytes = bytes, .to = ret, .err = err};
	int rc;

	*ret = (struct rs_pickle){.bytes = bytes};
	rc = run(&m);
	ret->used = m.at;
	sc_vec_done(&m.stack);
	sc_sys.release(m.memo);
	sc_sys.release(m.first);
	if (rc < 0)
		rs_pickle_done(ret);
	return rc;
}

void rs_pickle_done(struct rs_pickle *pickle)
{
	sc_arena_done(&pickle->arena);
	*pickle = (struct rs_pickle){0};
}
