/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of CUDA C++ as a compiler of the host needs to read kernels.cu.  A kernel whose threads meet (shared memory,
 * barriers, warps) does not compile here.
 */
#ifndef TEST_HOST_CUDA_H
#define TEST_HOST_CUDA_H

#include <string.h>

#include "tests/gpu/host_run.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define UNROLL
#define LOAD(p) load_checked(p)
#define STORE(p, v) store_checked(p, v)

struct host_dim {
	uint32_t x;
};
extern thread_local host_dim threadIdx, blockIdx, blockDim, gridDim;
extern thread_local struct host_device *host_device;

struct alignas(16) uint4 {
	uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
	uint32_t x, y;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return uint4{x, y, z, w};
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
	return (uint32_t)((uint64_t)a * b >> 32);
}

static inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t bits)
{
	return (uint32_t)(((uint64_t)hi << 32 | lo) >> (bits & 31));
}

template <typename T> static inline T load_checked(const T *p)
{
	T v;

	memcpy(&v, host_access(host_device, (uint64_t)(uintptr_t)p, sizeof(T), 0), sizeof(T));
	return v;
}

template <typename T> static inline void store_checked(T *p, T v)
{
	memcpy(host_access(host_device, (uint64_t)(uintptr_t)p, sizeof(T), 1), &v, sizeof(T));
}

#endif
