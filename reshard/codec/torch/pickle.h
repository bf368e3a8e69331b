/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pickle machine that builds a description of the objects and calls nothing: a class's name is a node, a call is a
 * node with its arguments.  os.system("...") is an object of no meaning.
 *
 * Protocols 2 to 5.  Text opcodes, INST and OBJ, the extension registry and out-of-band buffers are refused: no
 * framework writes them.  Shared objects stay shared, and cycles stay cycles: whoever follows nodes must count his
 * steps, as rs_pickle_walk() does, since 400 bytes make a list with 2^60 paths.
 *
 * Each opcode makes a bounded number of nodes, and no length is believed beyond the bytes that are there, so memory is
 * linear in the pickle.
 * Source: CPython's Lib/pickle.py and pickletools.py, 3.11.
 */
#ifndef RS_PICKLE_H
#define RS_PICKLE_H

#include "meta/base/err.h"
#include "meta/base/mem.h"

enum rs_pickled_kind {
	RS_PICKLED_NONE,
	RS_PICKLED_BOOL,
	RS_PICKLED_INT,
	RS_PICKLED_BIG,		/* an integer beyond 64 bits: its bytes, little-endian */
	RS_PICKLED_FLOAT,
	RS_PICKLED_TEXT,
	RS_PICKLED_BYTES,
	RS_PICKLED_TUPLE,
	RS_PICKLED_LIST,
	RS_PICKLED_DICT,
	RS_PICKLED_SET,
	RS_PICKLED_GLOBAL,	/* the name of a class or function */
	RS_PICKLED_CALL,	/* what a function, called with arguments, would have made */
	RS_PICKLED_NEW,		/* what a class's __new__ would have made */
	RS_PICKLED_PERSIST,	/* what the saver gave a name of its own: torch's storages */
	RS_PICKLED_WRITTEN,	/* to be emitted: opcodes as they are, which do not use the memo */
	RS_PICKLED_ROW,		/* to be emitted: what a tuple has, without the tuple */
};

struct rs_pickled;

struct rs_pickled_cell {
	struct rs_pickled_cell *next;
	struct rs_pickled *node;
};

/** A list of nodes, in order; pairs are key, value, key, value... */
struct rs_pickled_items {
	struct rs_pickled_cell *first, *last;
	uint64_t nr;
};

struct rs_pickled_bytes {
	const char *at;		/* in the pickle */
	uint64_t nr;
};

struct rs_pickled_object {	/* of CALL and NEW */
	struct rs_pickled *what, *args, *kwargs; /* args: a tuple; kwargs: a dict, or NULL */
	struct rs_pickled *state;	/* NULL: none was set */
	struct rs_pickled_items items, pairs; /* appended, set */
};

struct rs_pickled {
	enum rs_pickled_kind kind;
	uint32_t mark;		/* the caller's: 0 at first */
	bool is_open;		/* rs_pickle_walk() is in it */
	bool is_frozen;		/* of a SET */
	bool is_single;		/* nothing else has it: what is written need not name it again */
	union {
		bool truth;
		int64_t number;
		double real;
		struct rs_pickled_bytes bytes;	/* BIG, TEXT (UTF-8, maybe with lone surrogates), BYTES, WRITTEN */
		struct {
			struct rs_pickled **at;
			uint64_t nr;
		} tuple;
		struct rs_pickled_items items;	/* LIST, SET; DICT: pairs */
		struct {
			struct rs_pickled_bytes module, name;
		} global;
		struct rs_pickled_object *object;
		struct rs_pickled *id;		/* PERSIST */
	};
};

/** Owns all nodes until rs_pickle_done(); nodes point into the pickle's bytes, which must live longer. */
struct rs_pickle {
	struct sc_arena arena;
	struct rs_pickled *root;
	uint64_t used;		/* bytes of the pickle, up to and with its STOP */
	uint64_t bytes;		/* of the pickle: a walk's budget follows from it */
};

/** Reads a pickle.  Errors: SC_E_FORMAT (says the byte), SC_E_LIMIT, SC_E_NO_MEMORY; nothing is to be freed then. */
int rs_pickle_read(const void *pickle, uint64_t bytes, struct rs_pickle *ret, struct sc_err *err);
void rs_pickle_done(struct rs_pickle *pickle);

/** Tells whether a node is the name of this class or function; a module of Python 2 has the name that it has today. */
bool rs_pickled_is(const struct rs_pickled *node, const char *module, const char *name);
bool rs_pickled_is_text(const struct rs_pickled *node, const char *text);
/** Gives the last value that a dict has for a text key; NULL: the dict has no such key, or the node is no dict. */
struct rs_pickled *rs_pickled_get(const struct rs_pickled *node, const char *key);
/** Gives the i-th argument of a CALL or NEW; NULL: the node has fewer. */
struct rs_pickled *rs_pickled_arg(const struct rs_pickled *node, uint64_t i);

/* --- make.c: makes nodes that no pickle had; NULL: no memory, or a part of the node is NULL.  Bytes are borrowed.
 * Each node is marked single: a caller who puts it at two places takes the mark away. --- */

struct rs_pickled *rs_pickled_none(struct sc_arena *arena);
struct rs_pickled *rs_pickled_bool(struct sc_arena *arena, bool truth);
struct rs_pickled *rs_pickled_int(struct sc_arena *arena, int64_t number);
struct rs_pickled *rs_pickled_text(struct sc_arena *arena, const char *text, uint64_t bytes);
struct rs_pickled *rs_pickled_tuple(struct sc_arena *arena, uint64_t nr, struct rs_pickled *const *nodes);
struct rs_pickled *rs_pickled_dict(struct sc_arena *arena);
struct rs_pickled *rs_pickled_global(struct sc_arena *arena, const char *module, const char *name);
struct rs_pickled *rs_pickled_call(struct sc_arena *arena, struct rs_pickled *what, struct rs_pickled *args);
struct rs_pickled *rs_pickled_list(struct sc_arena *arena);
/** Makes an object of a class as __new__ does, without arguments, with a state. */
struct rs_pickled *rs_pickled_new(struct sc_arena *arena, struct rs_pickled *what, struct rs_pickled *state);
struct rs_pickled *rs_pickled_persist(struct sc_arena *arena, struct rs_pickled *id);
/** Appends a node, by a cell that the caller has. */
void rs_pickled_link(struct rs_pickled_items *items, struct rs_pickled_cell *cell, struct rs_pickled *node);
/** Appends a node; false: no memory, or the node is NULL. */
bool rs_pickled_add(struct sc_arena *arena, struct rs_pickled_items *items, struct rs_pickled *node);

/* --- emit.c --- */

/** Append opcodes for a number, a tuple of numbers, a text of less than 4 GiB, the name of a class; none of these goes
 *  into the memo. */
void rs_pickle_put_int(struct sc_buf *to, int64_t number);
void rs_pickle_put_sizes(struct sc_buf *to, unsigned nr, const uint64_t *sizes);
void rs_pickle_put_text(struct sc_buf *to, const char *text, uint64_t bytes);
void rs_pickle_put_global(struct sc_buf *to, const char *module, const char *name);

/** Gives the node that is written in place of another one: that one itself, or one that lives as long. */
typedef struct rs_pickled *rs_pickled_replace_fn(void *arg, struct rs_pickled *node);
/**
 * Appends a pickle of protocol 2, in opcodes that CPython's pickler uses for it and torch's restricted reader takes.
 * The same nodes always make the same bytes.  `replace` may be NULL: nothing is replaced.
 * Errors: SC_E_UNSUPPORTED (what protocol 2 cannot say), SC_E_LIMIT (too deep), SC_E_NO_MEMORY.
 */
int rs_pickle_emit(struct rs_pickled *root, rs_pickled_replace_fn *replace, void *arg, struct sc_buf *ret,
		   struct sc_err *err);

/* --- walk.c --- */

struct rs_pickle_walk;
/**
 * Is called for each node, before the nodes in it.  Returns 0, 1 (the walk does not go into this node), or an error,
 * which ends the walk.
 */
typedef int rs_pickled_fn(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *node);
/**
 * Goes through dicts, lists and tuples, and through items, pairs, arguments and state of objects, as often as there are
 * paths to them.  Errors: SC_E_FORMAT (a node is in itself; too many steps or levels), SC_E_NO_MEMORY, those of `fn`.
 */
int rs_pickle_walk(const struct rs_pickle *pickle, rs_pickled_fn *fn, void *arg, struct sc_err *err);
/**
 * Appends the path of the node for which `fn` is called: the keys of dicts and places in lists, with "/" between.  In a
 * text key / and ~ are written as in JSON pointers (RFC 6901); a key that could be taken for a number or for one of the
 * following gets a quote in front: #3 a key that is neither text nor number, by its place; @2 an argument; @state.
 */
void rs_pickle_path(const struct rs_pickle_walk *walk, struct sc_buf *ret);
/** Appends a text key as rs_pickle_path() writes it. */
void rs_pickle_key(const struct rs_pickled_bytes *text, struct sc_buf *ret);
/** Copies the path of rs_pickle_path() into an arena, with a 0 at its end; *ret_bytes may be NULL.  NULL: no memory. */
char *rs_pickle_path_in(const struct rs_pickle_walk *walk, struct sc_arena *arena, size_t *ret_bytes);
/** Gives the place of the node for which `fn` is called; `fn` may put another node there.  NULL: the node is the
 *  root. */
struct rs_pickled **rs_pickle_slot(const struct rs_pickle_walk *walk);
/** Tells whether the node for which `fn` is called is in an object's arguments or state, or below a key that is neither
 *  text nor number. */
bool rs_pickle_is_inside(const struct rs_pickle_walk *walk);

#endif
