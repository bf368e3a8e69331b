/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts layers, and the experts of each family, over all tensors of a state (docs/layout.md, section 6).
 * The ranks that a tensor is on depend on both counts.  A family is the experts of one rule that differ
 * only in their number; they are numbered together.
 */
#ifndef META_COUNT_H
#define META_COUNT_H

#include "meta/model/layout.h"
#include "meta/model/state.h"

struct meta_counts {
	struct sc_arena arena;
	uint32_t layers;
	uint32_t experts;		/* minimum for each family that is spread over files */
	struct sc_map families;		/* key -> number */
};

/** Begins with the counts that are known of the whole version, of which `state` may be a part. */
void meta_counts_begin(struct meta_counts *counts, const struct meta_state *state);
void meta_counts_done(struct meta_counts *counts);

/** Adds a logical name by its captures; counts its layer only if `layers`.  *ret_experts points to the count of its
 *  family, which later calls raise (NULL: the tensor is no expert).  Returns -1 when out of memory. */
int meta_counts_add(struct meta_counts *counts, const struct meta_rule *rule, const struct meta_caps *caps,
		    bool layers, const uint32_t **ret_experts);
/** Adds every tensor of a state.  Errors: SC_E_NO_MEMORY. */
int meta_counts_state(struct meta_counts *counts, const struct meta_layout *layout, bool pipelined,
		      const struct meta_state *state, struct sc_err *err);
/** Returns the number of experts of a rule's family, by its key; 0: no tensor of the family was added. */
uint32_t meta_counts_experts(const struct meta_counts *counts, const struct meta_rule *rule, const char *key);

/** Return the capture that is the layer's or the expert's number; NULL: there is none. */
const struct meta_cap *meta_layer_of(const struct meta_caps *caps);
const struct meta_cap *meta_expert_of(const struct meta_caps *caps);
/** Makes the key of a family: the rule and all captures but the expert's number and coordinates.  NULL: out of
 *  memory. */
const char *meta_family_key(const struct meta_rule *rule, const struct meta_caps *caps, struct sc_arena *arena);
/** Tells whether file names of a rule hold the expert's number, so that a family is spread over files. */
bool meta_rule_spreads(const struct meta_rule *rule);
/** Returns a logical tensor's name without the coordinates of an `each` tensor.  NULL: out of memory. */
const char *meta_tensor_plain(const struct meta_tensor *t, struct sc_arena *arena);

#endif
