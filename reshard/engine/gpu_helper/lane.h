/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives one GPU of a pipeline: has its memory and its streams, and enqueues the work of a share on them.  A slot has
 * an event for each step that another one waits for:
 *
 *     stream   does                                     waits for                 in the slot's last round    records
 *     IN       copies input, tables                                               LAST                        IN_DONE
 *     RUN      zeros, then boxes in -> out, in -> send  IN_DONE                   OUT_DONE                    RAN
 *     NET      the exchange                             RAN                                                   EXCHANGED
 *     UNPACK   boxes recv -> out                        EXCHANGED                                             UNPACKED
 *     OUT      copies output                            LAST                      (drained, by the host)      OUT_DONE
 *
 * LAST is UNPACKED; where there is one GPU, there is neither NET nor UNPACK, and LAST is RAN.  Windows of bytes to send
 * and to receive are free again when their slot is: IN has waited for UNPACKED, which is behind the exchange.
 *
 * A wait for the last round comes before its event is recorded again.
 */
#ifndef RS_LANE_H
#define RS_LANE_H

#include <cuda_runtime_api.h>

#include "reshard/engine/gpu/boxes.h"
#include "reshard/engine/gpu/pool.h"
#include "reshard/engine/rounds/rounds.h"

enum rs_lane_stream { RS_LANE_IN, RS_LANE_RUN, RS_LANE_OUT, RS_LANE_NET, RS_LANE_UNPACK, RS_LANE_STREAMS };
enum rs_lane_event {
	RS_LANE_IN_DONE, RS_LANE_RAN, RS_LANE_OUT_DONE, RS_LANE_EXCHANGED, RS_LANE_UNPACKED, RS_LANE_EVENTS
};

struct rs_lane {
	int device;		/* as CUDA numbers it */
	const struct rs_pool *pool;
	cudaKernel_t kernel;
	unsigned blocks_max;
	cudaStream_t streams[RS_LANE_STREAMS];
	enum rs_lane_event last;
	struct rs_lane_slot {
		unsigned char *pinned[RS_POOL_PINNED], *device[RS_POOL_PARTS];
		cudaEvent_t events[RS_LANE_EVENTS];
		struct rs_tables tables;	/* pinned */
		uint32_t zeros, boxes;		/* tiles of zeros; of these and what RUN copies; the rest is unpacked */
		bool cleared;			/* the window of output: what no box writes is copied out, too */
	} slots[RS_POOL_SLOTS];
};

/** Memory of a GPU that has a file, which other processes may open, too. */
struct rs_lane_buffer {
	unsigned char *at;	/* NULL: there is none */
	uint64_t bytes, room;	/* of the file; taken */
};

/** Sets the error of a CUDA call that failed, with the name of the call.  Returns its code: SC_E_NO_MEMORY or
 *  SC_E_SYSTEM. */
int rs_lane_failed(const struct rs_lane *l, cudaError_t rc, const char *call, struct sc_err *err);

/** Leaves a function that has `l` and `err` if a call of CUDA fails; the error says the call's name. */
#define RS_LANE_TRY(function, ...)                                                                 \
	do {                                                                                       \
		cudaError_t tried = function(__VA_ARGS__);                                         \
                                                                                                   \
		if (tried != cudaSuccess)                                                          \
			return rs_lane_failed(l, tried, #function "()", err);                      \
	} while (0)

/* Errors of all functions below: SC_E_SYSTEM (a call of CUDA failed), SC_E_NO_MEMORY. */

/** Takes a GPU's memory, streams and events.  The caller zeroes *l but for device, pool and kernel, and calls
 *  rs_lane_end() after errors, too.  `memory` is the pool, which is pinned; `peer` says which part of it the GPU
 *  has. */
int rs_lane_begin(struct rs_lane *l, unsigned char *memory, uint32_t peer, struct sc_err *err);
/** Gives memory, streams and events back; nothing runs any more. */
void rs_lane_end(struct rs_lane *l);

/** Makes a slot's tables of a share, once the slot's last IN_DONE is reached.  Errors: SC_E_STATE (a box is outside),
 *  too. */
int rs_lane_plan(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err);
/** Enqueues IN and RUN, and what NET waits for. */
int rs_lane_run(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err);
/** Enqueues UNPACK, behind the exchange, which has been handed over to NET. */
int rs_lane_unpack(struct rs_lane *l, unsigned slot, struct sc_err *err);
/** Enqueues OUT. */
int rs_lane_out(struct rs_lane *l, unsigned slot, const struct rs_share *share, struct sc_err *err);

/** Takes a buffer, and says how other processes open it.  Nothing is enqueued. */
int rs_lane_take(struct rs_lane *l, uint64_t bytes, struct rs_lane_buffer *ret, char ret_text[RS_POOL_HANDLE_BYTES],
		 struct sc_err *err);
/** Gives a buffer back; no work on it is enqueued. */
int rs_lane_give(struct rs_lane *l, struct rs_lane_buffer *buffer, struct sc_err *err);
/** Enqueues zeros for all of a buffer, and OUT_DONE of a slot that has no round. */
int rs_lane_clear(struct rs_lane *l, unsigned slot, const struct rs_lane_buffer *buffer, struct sc_err *err);
/** Enqueues OUT of a pass that ends in a buffer: ranges go to their places in the file.  Errors: SC_E_STATE, too. */
int rs_lane_keep(struct rs_lane *l, unsigned slot, const struct rs_share *share, const struct rs_lane_buffer *buffer,
		 struct sc_err *err);

#endif
