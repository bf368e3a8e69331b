/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes between GPUs, by NCCL.  Ranks are the GPUs of this process and those of others, on other nodes; one thread
 * drives all of this one, and each has a communicator, from rs_exchange_new() to rs_exchange_finish(): a pass.
 *
 * Communicators do not block: a call hands its work over to a thread of NCCL, and until that has put it on the streams,
 * nothing may be enqueued behind it.  So each function here asks again and again, with idle() in between, and returns
 * when everything has been handed over; what takes longer than timeout_ms is an error.
 *
 * After any error rs_exchange_abort() is the only way on: a peer may wait for what never comes.
 */
#ifndef RS_EXCHANGE_H
#define RS_EXCHANGE_H

#include <cuda_runtime_api.h>

#include "meta/base/err.h"
#include "reshard/rounds/rounds.h"

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

/** Makes the id of a pass, by the one of its processes that hands it to the others.
 *  Errors: SC_E_UNSUPPORTED (there is no NCCL), SC_E_SYSTEM. */
int rs_exchange_id(unsigned char *ret, struct sc_err *err);
/** Joins.  *ret is the caller's, rs_exchange_finish() or rs_exchange_abort(); options->devices outlives it.
 *  Errors: SC_E_SYSTEM (it fails, or a peer does not come in time), SC_E_UNSUPPORTED, SC_E_NO_MEMORY, idle()'s. */
int rs_exchange_new(const struct rs_exchange_options *options, struct rs_exchange **ret, struct sc_err *err);

/** What a peer of this process sends and receives, and on which stream of its GPU. */
struct rs_exchange_peer {
	cudaStream_t stream;
	unsigned char *send, *recv;	/* windows */
	const struct rs_share *share;
};

/** Puts the exchange of a round on the streams: all of it or an error.  Errors: SC_E_SYSTEM, those of idle(). */
int rs_exchange_put(struct rs_exchange *e, const struct rs_exchange_peer *peers, struct sc_err *err);
/** Tells whether what was put can still arrive.  Errors: SC_E_SYSTEM. */
int rs_exchange_check(struct rs_exchange *e, struct sc_err *err);
/** Leaves, when all that was put has arrived.  After an error, too, nothing is left.
 *  Errors: SC_E_SYSTEM, those of idle(). */
int rs_exchange_finish(struct rs_exchange *e, struct sc_err *err);
/** Leaves at once: what is on streams ends without its bytes.  NULL is fine. */
void rs_exchange_abort(struct rs_exchange *e);

#endif
