/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run(), which test_boxes.c calls in place of host_run() (-Dhost_run=device_run): the kernel on a GPU, or on the stand-in.
 * Sources lie together in its memory, each at the byte of 256 that its made-up address has; so does the target, whose bytes go in
 * and come back whole: one that is stored to beside its rows is seen.
 */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/host_run.h"
#include "tests/gpu/must.h"
#include "tests/gpu/pipeline_rounds.h"

#define APART 256u
#define SIDES 3			/* tables, sources, the target */
#define RUNS_A_LIFE 64u		/* the stand-in keeps what it had until its end */

static struct {
	cudaLibrary_t library;
	cudaKernel_t kernel;
	cudaStream_t stream;
	unsigned char *host;	/* pinned */
	size_t host_bytes;
	unsigned runs, lives;
} gpu;

/* Bytes of a side on the device, and where their copy is on the host. */
struct side {
	unsigned char *device, *host;
	size_t bytes;
};

static void end_life(void)
{
	struct fake_findings found;

	if (!gpu.stream)
		return;
	MUST(cudaStreamDestroy(gpu.stream));
	MUST(cudaHostUnregister(gpu.host));
	(void)munmap(gpu.host, gpu.host_bytes);
	MUST(cudaLibraryUnload(gpu.library));
	gpu.stream = NULL;
	gpu.host_bytes = 0;
	found = fake_end();
	if (!found.first[0])
		return;
	(void)fprintf(stderr, "%s\n", found.first);
	_exit(1);
}

static void begin_life(size_t bytes)
{
	fake_begin(FAKE_RANDOM, ++gpu.lives);
	MUST(cudaSetDevice(0));
	MUST(cudaLibraryLoadData(&gpu.library, pipeline_kernel, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cudaLibraryGetKernel(&gpu.kernel, gpu.library, "scalai_copy"));
	MUST(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
	gpu.host_bytes = bytes + (16u << 20);
	gpu.host = pinned(gpu.host_bytes);
}

/* The place of a region behind so many bytes of its side. */
static size_t place(size_t behind, uint64_t address)
{
	return (behind + APART - 1) / APART * APART + address % APART;
}

/* Where regions of a kind are in their side; returns its bytes. */
static size_t place_all(const struct host_device *d, bool stored, size_t *at)
{
	size_t bytes = 0;

	for (uint32_t i = 0; i < d->nr; i++)
		if (stored == (d->regions[i].stored != NULL)) {
			at[i] = place(bytes, d->regions[i].address);
			bytes = at[i] + d->regions[i].bytes;
		}
	return bytes + APART;
}

/* The device's address of a made-up one. */
static uint64_t moved(const struct host_device *d, const size_t *at, const struct side *sides, uint64_t address)
{
	for (uint32_t i = 0; i < d->nr; i++) {
		const struct host_region *r = &d->regions[i];

		if (address >= r->address && address - r->address < r->bytes)
			return (uint64_t)(uintptr_t)sides[r->stored ? 2 : 1].device + at[i] + (address - r->address);
	}
	(void)printf("a box is in no region\n");
	exit(1);
}

static void copy_all(const struct host_device *d, const size_t *at, const struct side *sides, bool back)
{
	for (uint32_t i = 0; i < d->nr; i++) {
		unsigned char *there = sides[d->regions[i].stored ? 2 : 1].host + at[i];

		if (back && d->regions[i].stored)
			memcpy(d->regions[i].memory, there, d->regions[i].bytes);
		if (!back)
			memcpy(there, d->regions[i].memory, d->regions[i].bytes);
	}
}

static void take(struct side *sides)
{
	size_t all = 0;

	for (unsigned k = 0; k < SIDES; k++)
		all += sides[k].bytes + APART;
	if (gpu.runs++ % RUNS_A_LIFE == 0 || all > gpu.host_bytes) {
		end_life();
		begin_life(all);
	}
	all = 0;
	for (unsigned k = 0; k < SIDES; k++) {
		sides[k].host = gpu.host + all;
		all += (sides[k].bytes + APART - 1) / APART * APART;
		MUST(cudaMalloc((void **)&sides[k].device, sides[k].bytes));
	}
	fake_host_uses(gpu.host, all, true, "what is copied in");
	memset(gpu.host, 0, all);
}

static void launch(const struct side *tables, uint32_t nr_boxes, uint32_t nr, uint32_t blocks, uint32_t threads)
{
	void *boxes = tables->device, *tiles = tables->device + nr_boxes * sizeof(struct rs_box);
	void *args[] = {(void *)&boxes, (void *)&tiles, &nr};

	MUST(cudaLaunchKernel((const void *)gpu.kernel, (dim3){blocks, 1, 1}, (dim3){threads, 1, 1}, args, 0, gpu.stream));
}

void device_run(struct host_device *device, const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr,
		uint32_t blocks, uint32_t threads, uint64_t seed)
{
	size_t *at = calloc(device->nr, sizeof(*at));
	uint32_t nr_boxes = 0;
	struct side sides[SIDES];
	struct rs_box *there;

	(void)seed; /* a GPU has an order of its own */
	for (uint32_t i = 0; i < nr; i++)
		nr_boxes = tiles[i].box >= nr_boxes ? tiles[i].box + 1 : nr_boxes;
	sides[0].bytes = nr_boxes * sizeof(*boxes) + nr * sizeof(*tiles);
	sides[1].bytes = place_all(device, false, at);
	sides[2].bytes = place_all(device, true, at);
	take(sides);
	copy_all(device, at, sides, false);
	there = (void *)sides[0].host;
	memcpy(there, boxes, nr_boxes * sizeof(*boxes));
	memcpy(there + nr_boxes, tiles, nr * sizeof(*tiles));
	for (uint32_t i = 0; i < nr_boxes; i++) {
		there[i].to = moved(device, at, sides, boxes[i].to);
		there[i].from = boxes[i].kind == RS_BOX_ZERO ? 0 : moved(device, at, sides, boxes[i].from);
	}
	for (unsigned k = 0; k < SIDES; k++)
		MUST(cudaMemcpyAsync(sides[k].device, sides[k].host, sides[k].bytes, cudaMemcpyHostToDevice, gpu.stream));
	launch(&sides[0], nr_boxes, nr, blocks, threads);
	MUST(cudaMemcpyAsync(sides[2].host, sides[2].device, sides[2].bytes, cudaMemcpyDeviceToHost, gpu.stream));
	wait_for(gpu.stream);
	fake_host_uses(sides[2].host, sides[2].bytes, false, "what came back");
	copy_all(device, at, sides, true);
	for (unsigned k = 0; k < SIDES; k++)
		MUST(cudaFree(sides[k].device));
	free(at);
}

__attribute__((destructor)) static void end(void)
{
	end_life();
}
