/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts, asks and ends the process that has CUDA, which has a pool of its own.  A device may write into a pool until
 * its driver has torn the process down, so a pool goes with its helper and is never used again.
 * Nothing here waits for a process that does not end.
 */
#ifndef RS_HELPER_H
#define RS_HELPER_H

#include <sys/types.h>

#include "reshard/engine/gpu/wire.h"

#define RS_HELPER_SOCKET 3	/* the descriptor of its end, in the helper; it has no other but stderr */

struct rs_helper_options {
	const char *program;	/* an absolute path */
	const char *net;	/* by which NCCL reaches other nodes, as NCCL_SOCKET_IFNAME has it; NULL: none */
	struct rs_pool pool;
	uint8_t devices[RS_POOL_PEERS_MAX];	/* of each peer of the pool */
	uint32_t idle_ms;	/* without work for so long, it ends by itself */
	uint32_t timeout_ms;	/* it answers by then */
};

struct rs_helper {
	int fd;
	uint32_t timeout_ms;
	struct rs_wire wire;
	unsigned char *memory;	/* pool and plan */
	uint64_t bytes;
	struct rs_child *child;
	char device[RS_WIRE_TEXT_BYTES];	/* as the helper describes it, or all of them */
};

/** Is called while the daemon waits for a helper; a result other than 0 ends the wait with SC_E_CANCELLED. */
typedef int rs_helper_tick_fn(void *arg);

/**
 * Starts a helper, and returns when it has its device.  *ret is the caller's, who ends it by rs_helper_end().
 * Errors: SC_E_SYSTEM (it cannot be started, ended, or is late), SC_E_UNSUPPORTED (its own sentence), SC_E_CANCELLED,
 * SC_E_NO_MEMORY, SC_E_STATE.
 */
int rs_helper_start(const struct rs_helper_options *o, rs_helper_tick_fn *tick, void *arg, struct rs_helper **ret,
		    struct sc_err *err);
/** Sends a message to the helper.  Errors: SC_E_SYSTEM, SC_E_STATE. */
int rs_helper_say(struct rs_helper *h, const struct rs_wire_message *m, struct sc_err *err);
/** Waits for a message of the helper.  Errors: as rs_helper_start(), and the error that a helper says when it
 *  failed. */
int rs_helper_hear(struct rs_helper *h, rs_helper_tick_fn *tick, void *arg, struct rs_wire_message *ret,
		   struct sc_err *err);
/** Ends a helper: waits wait_ms until it ends by itself (0: does not wait), then sends SIGKILL.  False: it did not end
 *  by itself, or not as it should. */
bool rs_helper_end(struct rs_helper *h, unsigned wait_ms);

#endif
