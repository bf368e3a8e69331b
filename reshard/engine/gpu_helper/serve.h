/* SPDX-License-Identifier: Apache-2.0 */
/* Serves as the helper, the process that has CUDA: takes rounds of the daemon through GPUs (wire.h). */
#ifndef RS_SERVE_H
#define RS_SERVE_H

#include "meta/base/err.h"

/** Gives up all capabilities, and the way back to them, as a helper needs none. */
void rs_serve_drop_privileges(void);

/**
 * Serves until the daemon closes its end, or asks for nothing for a while.  `kernel` is PTX that has scalai_copy().
 * The daemon was told of an error before this returns it.  Memory that is left then ends with the process.
 * Errors: SC_E_UNSUPPORTED (no such GPU, no NCCL), SC_E_STATE (a message is nonsense, a plan leads outside),
 * SC_E_NO_MEMORY, SC_E_SYSTEM, those of pipelines.
 */
int rs_serve(int fd, const char *kernel, struct sc_err *err);

#endif
