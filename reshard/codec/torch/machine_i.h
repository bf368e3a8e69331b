/* SPDX-License-Identifier: Apache-2.0 */
/* The pickle machine that machine.c (memory, input, stack, memo) and pickle.c (opcodes) share. */
#ifndef RS_MACHINE_I_H
#define RS_MACHINE_I_H

#include <inttypes.h>

#include "meta/base/limits.h"
#include "reshard/codec/torch/pickle.h"

#define refuse(m, ...) refuse_at((m), (m)->at, __VA_ARGS__)
#define refuse_at(m, byte, fmt, ...)                                                                                   \
	sc_fail((m)->err, SC_E_FORMAT, "pickle: byte %" PRIu64 ": " fmt, (uint64_t)(byte), ##__VA_ARGS__)

struct machine {
	const unsigned char *pickle;
	uint64_t bytes, at;
	struct rs_pickle *to;
	struct {
		struct rs_pickled **at;	/* NULL: a mark */
		size_t nr, room;
	} stack;
	struct rs_pickled **first;	/* the memo's first entries, by number; NULL: not set, or in `memo` */
	size_t first_room;
	struct memo {			/* the others: open addressing */
		uint32_t index;
		struct rs_pickled *node;
	} *memo;
	size_t sparse_nr, memo_room;
	size_t memo_nr;			/* of both */
	struct sc_err *err;
};

/* Each of these functions that fails returns NULL or an error, and has filled m->err. */

int pk_check_memory(struct machine *m);
/** Gives zeroed memory that lives as long as the pickle. */
void *pk_get(struct machine *m, size_t nr, size_t bytes);
struct rs_pickled *pk_node(struct machine *m, enum rs_pickled_kind kind);
int pk_add(struct machine *m, struct rs_pickled_items *items, struct rs_pickled *n);

/** Take from the pickle: the next bytes, a little-endian number of so many bytes, a name that ends with a line feed. */
const unsigned char *pk_take(struct machine *m, uint64_t bytes);
int pk_number(struct machine *m, unsigned bytes, uint64_t *ret);
int pk_line(struct machine *m, struct rs_pickled_bytes *ret);

/** Pushes a node; NULL: the node could not be made, and m->err says why. */
int pk_put(struct machine *m, struct rs_pickled *n);
struct rs_pickled *pk_top(struct machine *m);
struct rs_pickled *pk_pop(struct machine *m);
/** Takes the last mark and all nodes above it off the stack; the nodes stay where they lie until the next push. */
struct rs_pickled **pk_pop_mark(struct machine *m, size_t *ret_nr);

int pk_memo_put(struct machine *m, uint64_t index);
int pk_memo_get(struct machine *m, uint64_t index);

#endif
