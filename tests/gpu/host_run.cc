/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/host_cuda.h"

#include <stdlib.h>

thread_local host_dim threadIdx, blockIdx, blockDim, gridDim;
thread_local struct host_device *host_device;

#include "reshard/engine/gpu_helper/kernels.cu"

static void shuffle(uint32_t *at, uint32_t nr, uint64_t *state)
{
	for (uint32_t i = 0; i < nr; i++)
		at[i] = i;
	for (uint32_t i = nr; i > 1; i--) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		const uint32_t k = (uint32_t)(*state >> 33) % i, last = at[i - 1];

		at[i - 1] = at[k];
		at[k] = last;
	}
}

void host_run(struct host_device *device, const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr,
	      uint32_t blocks, uint32_t threads, uint64_t seed)
{
	uint32_t *block = (uint32_t *)malloc((blocks + threads) * sizeof(*block)), *thread = block + blocks;

	host_device = device;
	gridDim.x = blocks;
	blockDim.x = threads;
	shuffle(block, blocks, &seed);
	for (uint32_t i = 0; i < blocks; i++) {
		blockIdx.x = block[i];
		shuffle(thread, threads, &seed);
		for (uint32_t k = 0; k < threads; k++) {
			threadIdx.x = thread[k];
			scalai_copy(boxes, tiles, nr);
		}
	}
	free(block);
}
