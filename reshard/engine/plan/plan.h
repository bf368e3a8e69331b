/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans copies: finds the ranks that each piece of a target comes from.  Pure: no I/O, no clock, no thread.
 *
 * Source: the reconfiguration plan of Tenplex (SOSP '24): split, move, merge; here every target
 * box is intersected with the boxes of its holders (docs/decisions.md, "Plans are made by classes").
 */
#ifndef RS_PLAN_H
#define RS_PLAN_H

#include "reshard/engine/plan/gather.h"

/** How near a file is to this node: the largest is best. */
enum rs_near {
	RS_GONE,	/* the node that has written it is not there; others may have copies */
	RS_ELSEWHERE,	/* that node can be asked */
	RS_ON_NODE,
};

/** Ranks with the same rank / ranks_per_node share a node.  0: there is one node. */
struct rs_nodes {
	uint32_t ranks_per_node;
	/** Of a cluster: tells how near what a rank's file stores is; NULL: ranks_per_node says where. */
	enum rs_near (*near)(void *arg, const struct meta_view *view, uint32_t rank, const char *file);
	void *arg;
};

/** Where the bytes of a source are (reshard/engine/io/source.h): in the file `id` of the kind `ops`, which has `bytes`
 *  bytes; the first byte of the source is at `at`. */
struct rs_place {
	const struct rs_source_ops *ops;	/* NULL: not known yet; the plan leaves all of it zero */
	void *arg;
	uint64_t id, bytes, at;
};

#define RS_NO_RANK UINT32_MAX

/** A source of copies: the stored tensor of a rank, or a box of a placed one (placed.h). */
struct rs_source {
	const struct meta_view *view;	/* NULL: placed */
	uint32_t rank;			/* RS_NO_RANK: placed */
	const char *file, *name;
	struct rs_place place;
};

struct rs_sources {
	struct sc_arena arena;
	size_t nr, room;
	struct rs_source *at;
	struct rs_likes *likes;	/* of rs_plan_box(): boxes that others are planned like */
};

void rs_sources_done(struct rs_sources *sources);

/**
 * Adds to `g` the copies of one target box of tensor `key`, whose bytes are held as `view` says.
 * The source of each copy is a rank of `node` where one holds the bytes; otherwise replica `turn`,
 * so that callers who count turns load replicas evenly.
 * Geometry is computed once for tensors of one rule and shape: `sources` keep it, until rs_plan_done(), and the view
 * must live as long.
 * Errors: SC_E_STATE (a part is on no rank), SC_E_NO_MEMORY.
 */
int rs_plan_box(const struct meta_view *view, const char *key, const struct meta_box *target,
		const struct rs_nodes *nodes, uint32_t node, uint32_t turn, struct rs_gather *g,
		struct rs_sources *sources, struct sc_err *err);

/** Frees what only further plans would need. */
void rs_plan_done(struct rs_sources *sources);

/** How much a reshard moves. */
struct rs_cost {
	uint32_t source_nodes, target_nodes;
	uint64_t bytes;		/* of all distinct pieces that target nodes need */
	uint64_t local;		/* part of them that is already on the node */
	uint64_t moved;		/* between nodes, as planned */
	uint64_t bound;		/* lower bound of any plan: what nodes need and do not have */
	uint64_t pieces;	/* boxes planned */
	size_t nr_pairs, room;
	struct rs_pair {
		uint32_t from, to;
		uint64_t bytes;
	} *pairs;		/* sorted */
};

/** Returns the view under which a tensor is stored. */
typedef const struct meta_view *rs_origin_fn(void *arg, const struct meta_tensor *tensor);

/**
 * Computes the cost of presenting `target` with the least movement between nodes: every node fetches
 * each element that it needs and does not have once, and replicas send in turn.
 * Owner: ret->pairs is the caller's, rs_cost_done().
 */
int rs_plan_cost(const struct meta_view *target, rs_origin_fn *source_of, void *arg,
		 const struct rs_nodes *nodes, struct rs_cost *ret, struct sc_err *err);
void rs_cost_done(struct rs_cost *cost);

#endif
