/* SPDX-License-Identifier: Apache-2.0 */
/* The state and the functions that the parts of meta_infer() share. */
#ifndef META_INFER_I_H
#define META_INFER_I_H

#include "meta/model/count.h"
#include "meta/model/infer.h"

struct name {		/* a distinct stored name: matched once */
	const struct meta_rule *rule;
	struct meta_caps caps;
};

struct experts {	/* of one family: how many each ep coordinate holds */
	uint32_t nr[1];
};

struct group {		/* the pieces of one logical tensor */
	const char *key;
	uint32_t *rows;
	size_t nr, room;
	bool flat_later;
};

struct row {
	const struct name *name;
	const char *key;	/* of its logical tensor; of several the first */
	uint32_t expert;	/* global, when the rule has one */
};

struct infer {
	const struct meta_layout *layout;
	const struct meta_topology *topo;
	struct meta_written *written;
	size_t nr;
	const struct meta_state *known;
	struct meta_counts counts;	/* counts of `known` */
	struct meta_state *state;
	struct sc_err *err;
	struct sc_arena arena;
	struct sc_map names, families, groups, factors;
	struct row *rows;
	uint32_t *chunk_layers, *starts;
	uint32_t layers;
	bool has_local, has_experts;	/* {L}, {E}: numbers that the count of all decides */
	struct {
		struct group **at;
		size_t nr, room;
	} order;		/* groups as first met */
};

/** Returns the pipeline chunk that a stored name with these captures is on. */
uint32_t meta_infer_chunk(const struct infer *n, const struct meta_caps *caps, const uint32_t coords[SC_AXES_MAX]);
/** Copies the captures of a row, with the number of its layer made global. */
void meta_infer_caps(const struct infer *n, size_t i, const uint32_t coords[SC_AXES_MAX], struct meta_caps *ret);

/* infer_shape.c: add a group's tensor to the state, or note that it is flat (`flat_later`); add the tensor of such a
 * group, when all others are there. */
int meta_infer_shape(struct infer *n, struct group *g);
int meta_infer_flat_shape(struct infer *n, const struct group *g);
/** Adds a tensor of this rule, and the rows of padding that ranks have behind it or that are known. */
int meta_infer_add(struct infer *n, const char *key, const struct meta_rule *rule, enum meta_dtype dtype,
		   const struct meta_shape *shape);
/* Refuses a tensor that a line with `like=` takes, and that has another shape than the tensor which it is like. */
int meta_infer_likes(struct infer *n);
/* scales.c: refuses a tensor that tells how another one is read (`of=`), if that one is not there. */
int meta_infer_scales(struct infer *n);
/* infer_join.c: adds the members of joined tensors to the state, when all others are there. */
int meta_infer_joins(struct infer *n);

/** Does the last step, when `tensor` of each row is known.  Errors: those of meta_infer(). */
int meta_infer_check(const struct meta_layout *layout, const struct meta_topology *topo,
		     const struct meta_written *written, size_t nr, const struct meta_state *state,
		     struct sc_err *err);

#endif
