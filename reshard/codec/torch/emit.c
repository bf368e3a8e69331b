/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes nodes as a pickle.  Nothing recurses: what is still to be written is a stack of tasks, the next one on top.
 */
#include <inttypes.h>
#include <string.h>

#include "meta/base/limits.h"
#include "reshard/codec/torch/pickle.h"

#define BATCH 1000		/* items between a mark and its opcode, as CPython's pickler has them */
#define TASKS_MAX (8 * SC_PICKLE_DEPTH_MAX)
#define LONG1_MAX 255

struct task {
	enum { NODE, TUPLE, ITEMS, OPCODE, MEMO, SET_CALL } kind;
	struct rs_pickled *node;		/* NODE, TUPLE; MEMO: what is on the stack */
	const struct rs_pickled_cell *cell;	/* ITEMS: the next one */
	uint64_t i;				/* TUPLE: the next item.  ITEMS: how many of a batch are written */
	char opcode;				/* OPCODE; ITEMS: that of a batch */
	bool pairs;
};

struct emitter {
	struct sc_buf *out;
	struct sc_arena arena;
	struct sc_map nodes, texts;	/* -> number in the memo + 1: by the node's place, by the text */
	uint64_t memo;
	struct task *tasks;
	size_t nr;
	rs_pickled_replace_fn *replace;
	void *arg;
	struct sc_err *err;
};

static void put(struct emitter *e, char byte)
{
	sc_buf_byte(e->out, byte);
}

static void add_number(struct sc_buf *to, uint64_t x, unsigned bytes)
{
	while (bytes--) {
		sc_buf_byte(to, (char)x);
		x >>= 8;
	}
}

static void put_number(struct emitter *e, uint64_t x, unsigned bytes)
{
	add_number(e->out, x, bytes);
}

static void put_string(struct emitter *e, const char *text)
{
	sc_buf_add(e->out, text, strlen(text));
}

static int push(struct emitter *e, struct task t)
{
	if (e->nr == TASKS_MAX)
		return sc_fail(e->err, SC_E_LIMIT, "pickle: objects are too deep in each other to be written");
	e->tasks[e->nr++] = t;
	return 0;
}

/* --- the memo: what was written before is named by its number --- */

static int remember(struct emitter *e, struct sc_map *map, const void *key, size_t bytes)
{
	const char *copy = sc_arena_copy(&e->arena, key, bytes);
	uint64_t number = e->memo++;

	if (!copy || sc_map_put(map, copy, bytes, (void *)(uintptr_t)e->memo) < 0)
		return sc_nomem(e->err);
	put(e, number < 256 ? 'q' : 'r');
	put_number(e, number, number < 256 ? 1 : 4);
	return 0;
}

static int remember_node(struct emitter *e, const struct rs_pickled *n)
{
	return n->is_single ? 0 : remember(e, &e->nodes, &n, sizeof(n));
}

/* Writes the number that an object has in the memo; false: the object is not there. */
static bool recall(struct emitter *e, const struct sc_map *map, const void *key, size_t bytes)
{
	uint64_t number = (uint64_t)(uintptr_t)sc_map_get(map, key, bytes);

	if (!number)
		return false;
	put(e, number - 1 < 256 ? 'h' : 'j');
	put_number(e, number - 1, number - 1 < 256 ? 1 : 4);
	return true;
}

/* --- values --- */

/* Gives the opcode that makes a tuple of the top of the stack: of up to 3 objects, or of all above the last mark. */
static char tuple_opcode(uint64_t nr)
{
	static const char opcodes[] = {')', '\x85', '\x86', '\x87'};

	return nr <= 3 ? opcodes[nr] : 't';
}

void rs_pickle_put_int(struct sc_buf *to, int64_t x)
{
	unsigned bytes;

	if (x >= 0 && x < 1 << 16) {
		sc_buf_byte(to, x < 256 ? 'K' : 'M');
		add_number(to, (uint64_t)x, x < 256 ? 1 : 2);
	} else if (x >= INT32_MIN && x <= INT32_MAX) {
		sc_buf_byte(to, 'J');
		add_number(to, (uint64_t)x, 4);
	} else {
		uint64_t size = x < 0 ? -(uint64_t)x : (uint64_t)x;

		/* as CPython counts */
		bytes = (64 - (unsigned)__builtin_clzll(size)) / 8 + 1;
		sc_buf_byte(to, '\x8a');
		sc_buf_byte(to, (char)bytes);
		add_number(to, (uint64_t)x, bytes < 8 ? bytes : 8);
		if (bytes == 9)
			sc_buf_byte(to, x < 0 ? '\xff' : 0);
	}
}

void rs_pickle_put_sizes(struct sc_buf *to, unsigned nr, const uint64_t *sizes)
{
	if (nr > 3)
		sc_buf_byte(to, '(');
	for (unsigned i = 0; i < nr; i++)
		rs_pickle_put_int(to, (int64_t)sizes[i]);
	sc_buf_byte(to, tuple_opcode(nr));
}

void rs_pickle_put_text(struct sc_buf *to, const char *text, uint64_t bytes)
{
	sc_buf_byte(to, 'X');
	add_number(to, bytes, 4);
	sc_buf_add(to, text, bytes);
}

void rs_pickle_put_global(struct sc_buf *to, const char *module, const char *name)
{
	sc_buf_byte(to, 'c');
	sc_buf_add(to, module, strlen(module));
	sc_buf_byte(to, '\n');
	sc_buf_add(to, name, strlen(name));
	sc_buf_byte(to, '\n');
}

/* Tells whether an integer is -2^(8n - 1): CPython writes that one with a byte more than it needs. */
static bool is_least(const struct rs_pickled_bytes *bytes)
{
	for (uint64_t i = 0; i + 1 < bytes->nr; i++)
		if (bytes->at[i])
			return false;
	return bytes->at[bytes->nr - 1] == '\x80';
}

/* Writes an integer whose bytes have at least one bit of sign, and no byte more than that takes. */
static int put_big(struct emitter *e, const struct rs_pickled_bytes *bytes)
{
	bool least = is_least(bytes);

	if (bytes->nr + least > LONG1_MAX)
		return sc_fail(e->err, SC_E_UNSUPPORTED, "pickle: an integer of %" PRIu64 " bytes is too large to be "
			       "written", bytes->nr);
	put(e, '\x8a');
	put(e, (char)(bytes->nr + least));
	sc_buf_add(e->out, bytes->at, bytes->nr);
	if (least)
		put(e, '\xff');
	return 0;
}

static void put_float(struct emitter *e, double real)
{
	uint64_t x;

	memcpy(&x, &real, sizeof(x));
	put(e, 'G');
	for (int i = 56; i >= 0; i -= 8)
		put(e, (char)(x >> i));
}

static int put_text(struct emitter *e, const char *text, uint64_t bytes, bool is_single)
{
	if (!is_single && recall(e, &e->texts, text, bytes))
		return 0;
	rs_pickle_put_text(e->out, text, bytes);
	if (bytes >> 32)
		return sc_fail(e->err, SC_E_UNSUPPORTED, "pickle: a text of 4 GiB cannot be written");
	return is_single ? 0 : remember(e, &e->texts, text, bytes);
}

/* Gives a number of the memo to an object that this file alone makes, and that nothing refers to again. */
static void forget(struct emitter *e)
{
	put(e, e->memo < 256 ? 'q' : 'r');
	put_number(e, e->memo, e->memo < 256 ? 1 : 4);
	e->memo++;
}

/* Writes bytes as the call _codecs.encode(text, "latin1"), since protocol 2 has no bytes. */
static int put_bytes(struct emitter *e, const struct rs_pickled_bytes *bytes)
{
	struct sc_buf text = {0};
	int rc;

	for (uint64_t i = 0; i < bytes->nr; i++) {
		unsigned char c = (unsigned char)bytes->at[i];

		if (c >= 0x80)
			sc_buf_add(&text, (char[]){(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))}, 2);
		else
			sc_buf_add(&text, &bytes->at[i], 1);
	}
	put_string(e, "c_codecs\nencode\n");
	rc = text.failed ? sc_nomem(e->err) : put_text(e, text.text ? text.text : "", text.bytes, false);
	if (rc == 0)
		rc = put_text(e, "latin1", 6, false);
	sc_buf_done(&text);
	put(e, '\x86');
	forget(e);
	put(e, 'R');
	forget(e);
	return rc;
}

static int put_global(struct emitter *e, const struct rs_pickled_bytes *module, const struct rs_pickled_bytes *name)
{
	if (memchr(module->at, '\n', module->nr) || memchr(name->at, '\n', name->nr) || memchr(name->at, '.', name->nr))
		return sc_fail(e->err, SC_E_UNSUPPORTED, "pickle: the class '%.*s.%.*s' has no name in protocol 2",
			       (int)sc_min_u64(module->nr, 100), module->at, (int)sc_min_u64(name->nr, 100), name->at);
	put(e, 'c');
	sc_buf_add(e->out, module->at, module->nr);
	put(e, '\n');
	sc_buf_add(e->out, name->at, name->nr);
	put(e, '\n');
	return 0;
}

/* Writes a node that has no others in it; 1: the node has others, and is not written yet. */
static int put_atom(struct emitter *e, const struct rs_pickled *n)
{
	switch (n->kind) {
	case RS_PICKLED_NONE:
		put(e, 'N');
		return 0;
	case RS_PICKLED_BOOL:
		put(e, n->truth ? '\x88' : '\x89');
		return 0;
	case RS_PICKLED_INT:
		rs_pickle_put_int(e->out, n->number);
		return 0;
	case RS_PICKLED_BIG:
		return put_big(e, &n->bytes);
	case RS_PICKLED_FLOAT:
		put_float(e, n->real);
		return 0;
	case RS_PICKLED_TEXT:
		return put_text(e, n->bytes.at, n->bytes.nr, n->is_single);
	case RS_PICKLED_BYTES:
		return put_bytes(e, &n->bytes);
	case RS_PICKLED_GLOBAL:
		return put_global(e, &n->global.module, &n->global.name);
	case RS_PICKLED_WRITTEN:
		sc_buf_add(e->out, n->bytes.at, n->bytes.nr);
		return 0;
	default:
		if (n->kind != RS_PICKLED_TUPLE || n->tuple.nr)
			return 1;
		put(e, ')');
		return 0;
	}
}

/* --- containers --- */

static struct rs_pickled *replaced(const struct emitter *e, struct rs_pickled *n)
{
	return e->replace ? e->replace(e->arg, n) : n;
}

static int put_container(struct emitter *e, struct rs_pickled *n);

static int push_items(struct emitter *e, const struct rs_pickled_items *items, char opcode, bool pairs)
{
	const struct task t = {.kind = ITEMS, .cell = items->first, .opcode = opcode, .pairs = pairs};

	return t.cell ? push(e, t) : 0;
}

/* Writes items, of a pair the key first, up to the first item that has others in it. */
static int put_items(struct emitter *e, struct task t)
{
	const uint64_t batch = t.pairs ? 2 * BATCH : BATCH;

	while (t.cell) {
		struct rs_pickled *n = t.cell->node;
		int rc;

		if (t.i == batch) {
			put(e, t.opcode);
			t.i = 0;
		}
		if (t.i++ == 0)
			put(e, '(');
		t.cell = t.cell->next;
		n = replaced(e, n);
		rc = put_atom(e, n);
		if (rc)
			return rc < 0 || push(e, t) < 0 ? e->err->code : put_container(e, n);
	}
	if (t.i)
		put(e, t.opcode);
	return 0;
}

static int put_list(struct emitter *e, const struct rs_pickled *n, const struct rs_pickled_items *items, char empty,
		    char opcode, bool pairs)
{
	put(e, empty);
	return remember_node(e, n) < 0 ? e->err->code : push_items(e, items, opcode, pairs);
}

static int put_tuple_items(struct emitter *e, struct task t)
{
	const uint64_t nr = t.node->tuple.nr;

	while (t.i < nr) {
		struct rs_pickled *n = replaced(e, t.node->tuple.at[t.i++]);
		int rc = put_atom(e, n);

		if (rc)
			return rc < 0 || push(e, t) < 0 ? e->err->code : put_container(e, n);
	}
	if (t.node->kind == RS_PICKLED_ROW)
		return 0;
	put(e, tuple_opcode(nr));
	return remember_node(e, t.node);
}

/* Writes frozenset([...]) or set([...]): the list stands in the memo for the node, and is shared as the node is. */
static int put_set(struct emitter *e, struct rs_pickled *n)
{
	put_string(e, n->is_frozen ? "cbuiltins\nfrozenset\n" : "c__builtin__\nset\n");
	if (push(e, (struct task){.kind = SET_CALL}) < 0)
		return e->err->code;
	if (!n->is_single && recall(e, &e->nodes, (const void *)&n, sizeof(n)))
		return 0;
	return put_list(e, n, &n->items, ']', 'e', false);
}

/* Pushes the tasks that write an object, the last one first: function, arguments, call, items, pairs, state. */
static int put_object(struct emitter *e, struct rs_pickled *n)
{
	const struct rs_pickled_object *o = n->object;

	if (o->kwargs)
		return sc_fail(e->err, SC_E_UNSUPPORTED, "pickle: a call with named arguments: not in protocol 2");
	if (o->state && (push(e, (struct task){.kind = OPCODE, .opcode = 'b'}) < 0 ||
			 push(e, (struct task){.kind = NODE, .node = o->state}) < 0))
		return e->err->code;
	if (push_items(e, &o->pairs, 'u', true) < 0 || push_items(e, &o->items, 'e', false) < 0 ||
	    push(e, (struct task){.kind = MEMO, .node = n}) < 0 ||
	    push(e, (struct task){.kind = OPCODE, .opcode = n->kind == RS_PICKLED_CALL ? 'R' : '\x81'}) < 0 ||
	    push(e, (struct task){.kind = NODE, .node = o->args}) < 0)
		return e->err->code;
	return push(e, (struct task){.kind = NODE, .node = o->what});
}

static int put_container(struct emitter *e, struct rs_pickled *n)
{
	if (n->kind == RS_PICKLED_SET)
		return put_set(e, n);
	if (n->kind == RS_PICKLED_PERSIST) {
		if (push(e, (struct task){.kind = OPCODE, .opcode = 'Q'}) < 0)
			return e->err->code;
		return push(e, (struct task){.kind = NODE, .node = n->id});
	}
	if (!n->is_single && recall(e, &e->nodes, (const void *)&n, sizeof(n)))
		return 0;
	if (n->kind == RS_PICKLED_LIST)
		return put_list(e, n, &n->items, ']', 'e', false);
	if (n->kind == RS_PICKLED_DICT)
		return put_list(e, n, &n->items, '}', 'u', true);
	if (n->kind != RS_PICKLED_TUPLE && n->kind != RS_PICKLED_ROW)
		return put_object(e, n);
	if (n->kind == RS_PICKLED_TUPLE && n->tuple.nr > 3)
		put(e, '(');
	return push(e, (struct task){.kind = TUPLE, .node = n});
}

static int put_node(struct emitter *e, struct rs_pickled *n)
{
	int rc;

	n = replaced(e, n);
	rc = put_atom(e, n);
	return rc > 0 ? put_container(e, n) : rc;
}

static int run(struct emitter *e, struct task t)
{
	switch (t.kind) {
	case NODE:
		return put_node(e, t.node);
	case TUPLE:
		return put_tuple_items(e, t);
	case ITEMS:
		return put_items(e, t);
	case OPCODE:
		put(e, t.opcode);
		return 0;
	case MEMO:
		return remember_node(e, t.node);
	default: /* SET_CALL */
		put(e, '\x85');
		forget(e);
		put(e, 'R');
		forget(e);
		return 0;
	}
}

int rs_pickle_emit(struct rs_pickled *root, rs_pickled_replace_fn *replace, void *arg, struct sc_buf *ret,
		   struct sc_err *err)
{
	struct emitter e = {.out = ret, .replace = replace, .arg = arg, .err = err};
	int rc;

	e.tasks = sc_zalloc_array(TASKS_MAX, sizeof(*e.tasks));
	if (!e.tasks)
		return sc_nomem(err);
	put_string(&e, "\x80\2");
	rc = push(&e, (struct task){.kind = NODE, .node = root});
	while (rc == 0 && e.nr) {
		e.nr--;
		rc = run(&e, e.tasks[e.nr]);
	}
	put(&e, '.');
	sc_sys.release(e.tasks);
	sc_map_done(&e.nodes);
	sc_map_done(&e.texts);
	sc_arena_done(&e.arena);
	return rc == 0 && ret->failed ? sc_nomem(err) : rc;
}
