/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the stand-in: CUDA itself, with the kernel as nvcc made it.  Without a driver the test is skipped. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/pipeline_rounds.h"

extern const char rs_kernel_text[];	/* made by tools/ptx */
const char *const pipeline_kernel = rs_kernel_text;

void fake_begin(enum fake_order order, uint64_t seed)
{
	(void)order, (void)seed;
}

struct fake_findings fake_end(void)
{
	return (struct fake_findings){0};
}

void fake_host_uses(const void *p, size_t bytes, bool write, const char *what)
{
	(void)p, (void)bytes, (void)write, (void)what;
}

/* Its version is 0 where there is none; every other call says the same of none as of one that is too old. */
__attribute__((constructor)) static void ask_for_driver(void)
{
	int version = 0;

	if (cudaDriverGetVersion(&version) != cudaSuccess || !version) {
		(void)printf("1..0 # SKIP there is no NVIDIA driver\n");
		(void)fflush(stdout);
		_exit(0);
	}
}
