/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_PIPELINE_ROUNDS_H
#define TEST_PIPELINE_ROUNDS_H

/** The text of the kernel, for what runs it: the stand-in, or CUDA. */
extern const char *const pipeline_kernel;

#endif
