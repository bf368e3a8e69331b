/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensors of a state tell together: how many layers there are, and how many experts each family
 * has (docs/layout.md, section 6).  Where a tensor is depends on both.  A family is numbered in one go:
 * experts of one rule that differ in their number alone.
 */
#ifndef META_COUNT_H
#define META_COUNT_H

#include "meta/model/layout.h"
#include "meta/model/state.h"

struct meta_counts {
	struct sc_arena arena;
	uint32_t layers;
	uint32_t experts;		/* at least, of each family that is spread over files */
	struct sc_map families;		/* key -> number */
};

/** Begins with what the state's whole is known to have. */
void meta_counts_begin(struct meta_counts *counts, const struct meta_state *state);
void meta_counts_done(struct meta_counts *counts);

/** Of a logical name's captures; `layers`: its layer counts, too.  *ret_experts (NULL: it is no expert): what all
 *  tensors that are added tell of its family.  -1: out of memory. */
int meta_counts_add(struct meta_counts *counts, const struct meta_rule *rule, const struct meta_caps *caps,
		    bool layers, const uint32_t **ret_experts);
/** Adds every tensor.  Errors: SC_E_NO_MEMORY. */
int meta_counts_state(struct meta_counts *counts, const struct meta_layout *layout, bool pipelined,
		      const struct meta_state *state, struct sc_err *err);
/** Experts of a rule's family, by its key; 0: nobody has told of it. */
uint32_t meta_counts_experts(const struct meta_counts *counts, const struct meta_rule *rule, const char *key);

/** The capture that is a layer's or an expert's number; NULL: there is none. */
const struct meta_cap *meta_layer_of(const struct meta_caps *caps);
const struct meta_cap *meta_expert_of(const struct meta_caps *caps);
/** Which family: the rule and all captures but the expert's number and those that only say where.  NULL: memory. */
const char *meta_family_key(const struct meta_rule *rule, const struct meta_caps *caps, struct sc_arena *arena);
/** Do its files' names have the expert's number, so that a family is spread over files? */
bool meta_rule_spreads(const struct meta_rule *rule);
/** A logical tensor's name, without the coordinates of an `each` tensor.  NULL: out of memory. */
const char *meta_tensor_plain(const struct meta_tensor *t, struct sc_arena *arena);

#endif
