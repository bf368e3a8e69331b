/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges bytes between GPUs, by NCCL.  Ranks are the GPUs of this process and those of others, on other nodes.  One
 * thread drives all GPUs of this process; each has a communicator from rs_exchange_new() to rs_exchange_finish(), which
 * is a pass.
 *
 * Communicators do not block: a call hands its work over to a thread of NCCL, and until that thread has put the work on
 * the streams, nothing may be enqueued behind it.  So each function here asks again and again, with idle() in between,
 * and returns when everything has been handed over; a wait longer than timeout_ms is an error.
 *
 * After any error rs_exchange_abort() is the only way on: a peer may wait for what never comes.
 */
#ifndef RS_EXCHANGE_H
#define RS_EXCHANGE_H

#include <cuda_runtime_api.h>

#include "meta/base/err.h"
#include "reshard/engine/rounds/rounds.h"

#define RS_EXCHANGE_ID_BYTES 128

struct rs_exchange_options {
	uint32_t world;		/* ranks in all */
	uint32_t peers, first;	/* of this process: [first, first + peers) */
	const int *devices;	/* of each of these, as CUDA numbers it */
	unsigned char id[RS_EXCHANGE_ID_BYTES];	/* of this pass; rs_exchange_id().  Whoever has it can join */
	uint32_t timeout_ms;
	int (*idle)(void *arg, struct sc_err *err);
	void *arg;
};

struct rs_exchange;

/** Makes the id of a pass; one of its processes does so, and hands the id to the others.
 *  Errors: SC_E_UNSUPPORTED (there is no NCCL), SC_E_SYSTEM. */
int rs_exchange_id(unsigned char *ret, struct sc_err *err);
/** Joins a pass.  The caller ends *ret by rs_exchange_finish() or rs_exchange_abort(); options->devices must live
 *  longer.
 *  Errors: SC_E_SYSTEM (it fails, or a peer does not come in time), SC_E_UNSUPPORTED, SC_E_NO_MEMORY, idle()'s. */
int rs_exchange_new(const struct rs_exchange_options *options, struct rs_exchange **ret, struct sc_err *err);

/** The bytes that a peer of this process sends and receives, and the stream of its GPU that does so. */
struct rs_exchange_peer {
	cudaStream_t stream;
	unsigned char *send, *recv;	/* windows */
	const struct rs_share *share;
};

/** Puts the exchange of a round on the streams: all of it or an error.  Errors: SC_E_SYSTEM, those of idle(). */
int rs_exchange_put(struct rs_exchange *e, const struct rs_exchange_peer *peers, struct sc_err *err);
/** Checks that the bytes that were put can still arrive.  Errors: SC_E_SYSTEM. */
int rs_exchange_check(struct rs_exchange *e, struct sc_err *err);
/** Leaves the pass, when all bytes that were put have arrived.  Releases `e`, after an error, too.
 *  Errors: SC_E_SYSTEM, those of idle(). */
int rs_exchange_finish(struct rs_exchange *e, struct sc_err *err);
/** Leaves the pass at once: work on streams ends without its bytes.  `e` may be NULL. */
void rs_exchange_abort(struct rs_exchange *e);

#endif
