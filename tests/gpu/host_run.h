/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel on the CPU.  Its addresses are those of a device that is made up: each load and store is looked up in a list
 * of regions, so that addresses may be anything, and whatever is touched and should not be is named.
 */
#ifndef TEST_HOST_RUN_H
#define TEST_HOST_RUN_H

#include "reshard/engine/gpu/boxes.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Memory at an address of the device.  It is loaded from, or (`stored` not NULL) stored to. */
struct host_region {
	uint64_t address, bytes;
	unsigned char *memory;
	const uint8_t *readable;	/* of each byte, or NULL: all are */
	uint8_t *stored;		/* of each byte: how often */
};

struct host_device {
	const struct host_region *regions;
	uint32_t nr;
	const char *wrong;		/* the first access that was; NULL: none */
	uint64_t wrong_at;
};

/** Finds what an access touches; if it is wrong, says so and gives other memory. */
void *host_access(struct host_device *device, uint64_t address, uint32_t bytes, int store);

/** Runs scalai_copy() with so many blocks of threads, in an order that `seed` decides. */
void host_run(struct host_device *device, const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr,
	      uint32_t blocks, uint32_t threads, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
