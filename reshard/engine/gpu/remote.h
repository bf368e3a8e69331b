/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine "gpu".  Rounds of all files of a call go through a GPU, in a helper process (wire.h), or through several
 * GPUs, to which the files that are read and those that are written are dealt.  The host writes what no round writes.
 *
 *     files ── read ──> pool ──> scalai-gpu: devices, kernel, exchange ──> pool ── write ──> files
 *
 * If anything of a GPU fails, the helper ends, and the host writes the files of the call from the beginning.  A failure
 * of a file is an error, as in other engines.  After RS_GPU_FAILURES_MAX calls in a row that failed, the kind cannot
 * run for RS_GPU_PAUSE_S.  A process has one helper at most, and one call at a time uses it.
 */
#ifndef RS_REMOTE_H
#define RS_REMOTE_H

#include "reshard/engine/io/engine.h"
#include "reshard/engine/gpu/settings.h"

extern const struct rs_engine_ops rs_engine_gpu;

/**
 * A call that several nodes of a cluster make at the same time, with the same images in the same order.  Its peers are
 * the GPUs of all of them: each node reads files that it has, and writes targets that are its own; other targets have
 * fd -1, and are not counted.  If a GPU or a node fails, the call ends with SC_E_UNSUPPORTED, and each node makes its
 * files in another way.
 */
struct rs_joint {
	uint32_t world, first;		/* peers of all nodes; the first of this one */
	const uint32_t *writers;	/* the peer that writes each target */
	/** Tells which peer reads a file. */
	uint32_t (*reader)(void *arg, const struct rs_place *place);
	void *arg;
	uint64_t window_bytes;		/* the same on all nodes */
	uint32_t boxes_max;
	const char *id;			/* that the nodes' processes find each other by */
};

/** Sets options, for all calls that begin from now on.  Ends the helper, and forgets failures. */
void rs_gpu_configure(const struct rs_gpu_options *options);
/**
 * Starts a helper for joint calls like this one, whose `id` has no meaning, and gives the id of the next call, which
 * each of its nodes then has as `id`; the helper that gave the id makes that call.
 * Errors: SC_E_UNSUPPORTED, SC_E_SYSTEM, SC_E_NO_MEMORY, SC_E_STATE, SC_E_CANCELLED (how->tick).
 */
int rs_gpu_joint_id(const struct rs_write_options *how, char ret[RS_POOL_ID_DIGITS + 1], struct sc_err *err);
/** Ends the helper, if there is one; false: it did not end as it should. */
bool rs_gpu_stop(void);

#endif
