/* SPDX-License-Identifier: Apache-2.0 */
/* The helper, a process that has CUDA: takes rounds of the daemon through GPUs (wire.h). */
#ifndef RS_SERVE_H
#define RS_SERVE_H

#include "meta/base/err.h"

/** Gives up what a helper needs none of: all capabilities, and the way back to them. */
void rs_serve_drop_privileges(void);

/**
 * Serves until the daemon closes its end, or asks for nothing for a while.  `kernel`: PTX that has scalai_copy().  An
 * error was told to the daemon.  Whatever is left when this returns ends with the process.
 * Errors: SC_E_UNSUPPORTED (no such GPU, no NCCL), SC_E_STATE (a message is nonsense, a plan leads outside),
 * SC_E_NO_MEMORY, SC_E_SYSTEM, those of pipelines.
 */
int rs_serve(int fd, const char *kernel, struct sc_err *err);

#endif
