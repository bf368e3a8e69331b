/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes rounds (reshard/engine/rounds/rounds.h) through the GPUs of a node, several at a time: each GPU has the share
 * of one peer.  Only this room calls CUDA and NCCL; the daemon links neither.
 *
 *     fill() ──> pinned ──> device ── boxes ─────────────────────────────> device ──> pinned ──> drain()
 *                              └───── packs ──> ══ exchange ══> ── unpacks ──┘  (of another GPU)
 *
 * Slots are used in turn; in a round all GPUs use the same one.  lane.h says which work is enqueued on a GPU, and which
 * waits for which.  The host itself waits for IN_DONE of the slot's last round before it writes tables and calls
 * fill(), for OUT_DONE before it calls drain(), and until an exchange has been handed over before it enqueues work
 * behind it.
 *
 * rs_pipeline_new() makes and rs_pipeline_close() ends all that synchronizes a device (memory, events); nothing does so
 * in between.  With several GPUs, here or on other nodes, communicators live for a pass: from its first round to
 * rs_pipeline_finish().
 *
 * The first error is kept: every later call gives it.  One thread uses a pipeline.
 */
#ifndef RS_PIPELINE_H
#define RS_PIPELINE_H

#include "reshard/engine/gpu/pool.h"
#include "reshard/engine/rounds/rounds.h"

struct rs_pipeline_options {
	int devices[RS_POOL_PEERS_MAX];	/* of each peer of this node, as CUDA numbers it */
	struct rs_pool pool;
	const char *kernel;	/* PTX that has scalai_copy() */
	void *memory;		/* of the caller, as large as the pool: it is pinned until the end */
	uint32_t exchange_ms;	/* in which what peers exchange arrives */
	/** Fills the windows IN of a slot with what the round reads.  May block. */
	int (*fill)(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err);
	/** Takes what the round that has the slot wrote, from windows OUT.  In the order of rounds.  May block. */
	int (*drain)(void *arg, unsigned slot, struct sc_err *err);
	/** Is called again and again while a device is waited for; an error ends the work.  It has the clock. */
	int (*idle)(void *arg, struct sc_err *err);
	void *arg;
};

struct rs_pipeline;

/** Takes the devices' memory and pins the pool.  The caller ends *ret by rs_pipeline_close().
 *  Errors, which name the call of CUDA: SC_E_NO_MEMORY, SC_E_SYSTEM. */
int rs_pipeline_new(const struct rs_pipeline_options *options, struct rs_pipeline **ret, struct sc_err *err);

/**
 * Copies a round, which has the shares of this node's peers: calls fill(), and drain() for the earlier round whose slot
 * it takes.  When it returns, the caller may release the round.
 * Errors: SC_E_LIMIT (the round does not fit), SC_E_STATE (a box is outside), SC_E_SYSTEM (a call of CUDA or NCCL
 * failed, or a peer is late), SC_E_UNSUPPORTED (several GPUs, and no NCCL), those of fill(), drain(), idle().
 */
int rs_pipeline_put(struct rs_pipeline *p, const struct rs_round *round, struct sc_err *err);

/**
 * Takes buffer `nr`, from 1 to RS_POOL_LOADS_MAX, of a pipeline of one GPU, when no round is on its way, and says in
 * RS_POOL_HANDLE_BYTES how other processes open it.
 * Errors: SC_E_NO_MEMORY (the GPU has no room: the pipeline goes on), SC_E_SYSTEM.
 */
int rs_pipeline_load(struct rs_pipeline *p, uint32_t nr, uint64_t bytes, char *ret_text, struct sc_err *err);
/** Gives a buffer back.  Errors: SC_E_SYSTEM. */
int rs_pipeline_unload(struct rs_pipeline *p, uint32_t nr, struct sc_err *err);
/** Begins a pass.  The output of its rounds goes to buffer `nr`, which is zeroed first; with 0 it is drained.  `id` is
 *  that of a pass of several nodes, which one of them made by rs_exchange_id(); NULL: the pass is of one node.  Errors:
 *  SC_E_SYSTEM. */
int rs_pipeline_begin(struct rs_pipeline *p, uint32_t nr, const unsigned char *id, struct sc_err *err);

/** Drains all rounds that have been put, or waits until a buffer has their output.  Errors: as rs_pipeline_put(). */
int rs_pipeline_finish(struct rs_pipeline *p, struct sc_err *err);

/**
 * Waits until the devices do nothing any more, and gives back all that the pipeline had; the pool is the caller's
 * again.  `p` may be NULL.
 * Errors: those of idle(): a device goes on and may write into the pool.  Nothing was given back; the caller calls it
 * again, or ends the process.
 */
int rs_pipeline_close(struct rs_pipeline *p, struct sc_err *err);

#endif
