/* SPDX-License-Identifier: Apache-2.0 */
/* Joint calls (reshard/engine/io/engine.h) of some nodes, each a process with a helper of its own on the stand-in for CUDA. */
#ifndef TEST_FAR_H
#define TEST_FAR_H

#include "reshard/engine/gpu/remote.h"

#define FAR_NODES_MAX 3
#define FAR_TARGETS_MAX 256

struct far_node {
	uint32_t devices;		/* 1 to 4 */
	const char *args;		/* of its helper (tests/gpu/fake_helper.c); NULL: the node never begins */
	uint64_t window_bytes;		/* that it may have; 0: as the call */
	/* afterwards: */
	int rc;
	char why[SC_ERR_BYTES_MAX];
	uint64_t copied, ms;
	bool ended_well;		/* its helper */
};

struct far {
	struct far_node nodes[FAR_NODES_MAX];
	uint32_t nr;
	uint64_t window_bytes;
	uint32_t boxes_max, timeout_ms;
};

/** Makes a call: node k % nr writes target k, by its GPUs in turn, and each GPU reads some of the sources. */
void far_write(struct far *f, const struct rs_target *targets, size_t nr);
/** Which peer reads a place, and which writes target i, of so many. */
uint32_t far_reader(const struct far *f, const struct rs_place *place);
uint32_t far_writer(const struct far *f, size_t target);
uint32_t far_world(const struct far *f);

#endif
