/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what the config.json of a Hugging Face model says of the shapes of its tensors.  Only models whose names are
 * known have facts (tests/names/by_transformers.py compares each with transformers), and only facts that are sure: of a
 * model that consists of parts (`vision_config`) the heads of its text model alone, of a draft of another model none.
 * Quantized tensors have shapes of packed types, of which nothing is said.
 */
#ifndef RS_FACTS_H
#define RS_FACTS_H

#include "meta/model/view.h"

struct rs_facts {		/* 0: unknown */
	uint64_t vocab, hidden, intermediate, layers;
	uint64_t q, kv;			/* rows of a layer's query, and of its key or value */
	uint64_t head;			/* rows of one head */
	uint64_t heads;			/* of a layer's query; of gpt2 and MLA, too */
	uint64_t block[2];		/* rows and columns of an FP8 block (`weight_block_size`); of any model */
	bool act_order;			/* GPTQ: columns are of groups by activations (`desc_act`); of any model */
	bool tied;			/* the head for words has the memory of their embeddings; of any model */
};

#define RS_FUSED_MAX 3

/** Reads the text of a config.json; one that is no JSON, or of another model, has no facts.  Errors: SC_E_NO_MEMORY. */
int rs_facts_read(const char *text, size_t bytes, struct rs_facts *ret, struct sc_err *err);
/** Tells whether facts speak of a tensor of this name.  Cheap. */
bool rs_facts_know(const char *name);
/** Tells whether a name is of a layer of such a model. */
bool rs_facts_in_layer(const char *name);
/**
 * Tells whether a tensor is as the facts say, or they say nothing of it.  If it is not: *key is the line of config.json
 * that it disagrees with, *want the shape by it, or of no dimensions: the model has no such layer.
 */
bool rs_facts_agree(const struct rs_facts *facts, const struct meta_tensor *tensor, const char **key,
		    struct meta_shape *want);
/**
 * Gives the rows of the matrices that a tensor is made of, one behind the other (q, k and v; gate and up), by the facts
 * and its shape.  Returns how many they are, 0: it is one, or nothing is known of it; *what: their names, for messages.
 */
int rs_facts_fused(const struct rs_facts *facts, const struct meta_tensor *tensor, uint64_t rows[RS_FUSED_MAX],
		   const char **what);
/**
 * Refuses a view that cuts heads of q, k or v (of their own, in one tensor, or latent), or groups of GPTQ's act-order,
 * apart.
 * `shared`: as vLLM has them: key heads that there are fewer of than ranks are whole, and shared by neighbours, else
 * each rank has its part of them.  Errors: SC_E_STATE with what to write.
 */
int rs_facts_heads(const struct rs_facts *facts, const struct meta_view *view, bool shared, struct sc_err *err);
/** Tells whether a view cuts tensors that have heads, so that facts may say something of them. */
bool rs_facts_has_heads(const struct meta_view *view);

#endif
