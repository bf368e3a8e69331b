/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps, for the process, what the mount says about GPUs, and what `status` says of the engine "gpu". */
#ifndef RS_SETTINGS_H
#define RS_SETTINGS_H

#include "meta/base/err.h"
#include "reshard/engine/gpu/pool.h"

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
	uint32_t stop_ms;	/* it ends by then when it is told to; else it is killed */
	uint64_t window_bytes;	/* 0: the largest for which there is memory */
	uint32_t boxes_max;	/* of a round */
	uint64_t run_bytes;	/* what is copied in runs of so many bytes is left to the host */
	char net[RS_POOL_NET_BYTES];	/* by which GPUs of other nodes are reached; empty: they are not */
};

/** Returns the options that are used if nobody sets any. */
struct rs_gpu_options rs_gpu_options_default(void);
/** Returns the windows of a GPU's loader (loads.h). */
struct rs_pool rs_gpu_load_pool(const struct rs_gpu_options *o);
/** Returns the windows of the engine: the largest that leave room for those of each GPU's loader, or, if none do, the
 *  largest that fit; window_bytes is 0 if none fit.  Where GPUs of other nodes are reached, there is room for the
 *  exchange with them. */
struct rs_pool rs_gpu_pool(const struct rs_gpu_options *o);
/** Gives the options, or says why there can be no helper.  Errors: SC_E_UNSUPPORTED. */
int rs_gpu_check(struct rs_gpu_options *ret, struct sc_err *err);
/** Forgets failures: the next call tries again. */
void rs_gpu_forgive(void);

/** The state that `status` and tests show. */
struct rs_gpu_state {
	uint64_t by_gpu, by_host;	/* calls that a GPU helped with; that the host did again */
	unsigned failures;		/* in a row */
	char device[512], why[SC_ERR_BYTES_MAX];	/* used last; of the last failure; empty: none */
};
void rs_gpu_state(struct rs_gpu_state *ret);

/* --- of the engine --- */

/** Sets options, and forgets failures. */
void rs_gpu_set(const struct rs_gpu_options *options);
/** Gives the options. */
void rs_gpu_get(struct rs_gpu_options *ret);
/** As `probe` of engine.h. */
int rs_gpu_probe(struct sc_err *err);
/** Note a call that a GPU helped with, and a call that the host does again. */
void rs_gpu_note_success(const char *device);
void rs_gpu_note_failure(const struct sc_err *err);
/** Note whether a joint call went well, and tell whether joint calls pause, after RS_GPU_FAILURES_MAX in a row that did
 *  not go well. */
void rs_gpu_note_joint(bool well);
bool rs_gpu_joint_pauses(void);

#endif
