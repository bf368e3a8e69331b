/* SPDX-License-Identifier: Apache-2.0 */
/* The engine gpu with its helper on the stand-in for CUDA, linked to tests of other engines in their place. */
#ifndef TEST_KIND_GPU_H
#define TEST_KIND_GPU_H

#include "reshard/engine/gpu/remote.h"

/** Begins with other options, and with a helper that is run with these arguments (tests/gpu/fake_helper.c); the one before
 *  ends, and the test with it if it did not end as it should. */
void gpu_begin(const struct rs_gpu_options *options, const char *helper_args);

#endif
