/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine "gpu": rounds of all files of a call go through a GPU, in a helper process (wire.h), or through several,
 * which are dealt the files that are read and those that are written; what no round writes, the host writes.
 *
 *     files ── read ──> pool ──> scalai-gpu: devices, kernel, exchange ──> pool ── write ──> files
 *
 * Whatever of a GPU fails, the host writes the files of the call from the beginning, and the helper ends.  What fails
 * of files is an error, as in other engines.  After RS_GPU_FAILURES_MAX calls in a row that failed, the kind cannot run
 * for RS_GPU_PAUSE_S.  A process has one helper at most, and one call at a time uses it.
 */
#ifndef RS_REMOTE_H
#define RS_REMOTE_H

#include "reshard/engine/engine.h"
#include "reshard/gpu/pool.h"

#define RS_GPU_FAILURES_MAX 2
#define RS_GPU_PAUSE_S 3600
#define RS_GPU_DEVICE_MAX 255

struct rs_gpu_options {
	bool off;
	char program[4096];	/* of the helper; empty: `scalai-gpu` beside this program */
	uint32_t nr_devices;	/* 1 to RS_POOL_PEERS_MAX: each writes some of the files */
	uint8_t devices[RS_POOL_PEERS_MAX];	/* as CUDA numbers them by PCI place; no two are one */
	uint64_t device_bytes, pinned_bytes;	/* at most: of each, and for all */
	uint32_t timeout_ms;	/* the helper answers by then */
	uint32_t idle_ms;	/* without work for so long, it ends */
	uint64_t window_bytes;	/* 0: the largest for which there is memory */
	uint32_t boxes_max;	/* of a round */
	uint64_t run_bytes;	/* what is copied in runs of so many bytes is left to the host */
};

extern const struct rs_engine_ops rs_engine_gpu;

/** Returns what is used if nobody says anything. */
struct rs_gpu_options rs_gpu_options_default(void);
/** Takes options, for all calls that begin from now on.  Ends a helper; a failure is forgotten. */
void rs_gpu_configure(const struct rs_gpu_options *options);
/** Ends the helper, if there is one; false: it did not end as it should. */
bool rs_gpu_stop(void);
/** Forgets failures: the next call tries again. */
void rs_gpu_forgive(void);

/** For `status` and tests. */
struct rs_gpu_state {
	uint64_t by_gpu, by_host;	/* calls that a GPU helped with; that the host did again */
	unsigned failures;		/* in a row */
	char device[512], why[SC_ERR_BYTES_MAX];	/* used last; of the last failure; empty: none */
};
void rs_gpu_state(struct rs_gpu_state *ret);

#endif
