/* SPDX-License-Identifier: Apache-2.0 */
/* host_run() of what nvcc made of the kernel (ptx_to_c.py), in place of its source. */
#include "tests/gpu/host_run.h"

void scalai_copy_ptx(uint64_t boxes, uint64_t tiles, uint32_t nr, uint32_t tid, uint32_t ctaid, uint32_t ntid, uint32_t nctaid,
		     struct host_device *device);

void host_run(struct host_device *device, const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr,
	      uint32_t blocks, uint32_t threads, uint64_t seed)
{
	/* in turns, but not from the first one on */
	for (uint32_t b = 0; b < blocks; b++)
		for (uint32_t t = 0; t < threads; t++)
			scalai_copy_ptx((uintptr_t)boxes, (uintptr_t)tiles, nr, (uint32_t)((t + seed) % threads),
					(uint32_t)((b + seed) % blocks), threads, blocks, device);
}
