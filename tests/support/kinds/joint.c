/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine gpu on two or three nodes, which make each call together (tests/gpu/far.h), in place of the engine that executes
 * rounds with memcpy (support/kinds/rounds.h).  The test fails if a call is not made so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "tests/gpu/far.h"
#include "tests/support/kinds/look.h"

static unsigned calls;

static uint32_t reader(void *arg, const struct rs_place *place)
{
	return far_reader(arg, place);
}

static void show(struct far *f, const struct rs_target *targets, size_t nr)
{
	const struct rs_rounds_options was = rounds_options;
	uint32_t writers[FAR_TARGETS_MAX];

	for (size_t i = 0; i < nr; i++)
		writers[i] = far_writer(f, i);
	rounds_options.peers = far_world(f);
	rounds_options.writers = writers;
	rounds_options.reader = reader;
	rounds_options.arg = f;
	rounds_options.run_bytes = 0;
	look_at_rounds(targets, nr);
	rounds_options = was;
}

static int write_far(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
		     struct rs_written *ret, struct sc_err *err)
{
	struct far f = {.nr = 2 + calls % 2, .window_bytes = rounds_options.window_bytes, .boxes_max = rounds_options.boxes_max,
			.timeout_ms = 120000};
	char args[FAR_NODES_MAX][40];

	(void)e, (void)how;
	for (uint32_t k = 0; k < f.nr; k++) {
		(void)snprintf(args[k], sizeof(args[k]), "%u %u", (calls + k) % 3, 3 * calls + k);
		f.nodes[k] = (struct far_node){.devices = 1 + (calls / 2 + k) % 2, .args = args[k]};
	}
	calls++;
	if (rounds_look)
		show(&f, targets, nr);
	far_write(&f, targets, nr);
	for (uint32_t k = 0; k < f.nr; k++) {
		if (f.nodes[k].rc < 0 || !f.nodes[k].ended_well)
			return sc_fail(err, SC_E_SYSTEM, "node %u of %u: %s%s", k, f.nr, f.nodes[k].why,
				       f.nodes[k].ended_well ? "" : "; its helper did not end as it should");
		ret->copied += f.nodes[k].copied;
	}
	return 0;
}

static int open_far(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	(void)store, (void)budget;
	*ret = sc_zalloc(sizeof(**ret));
	return *ret ? 0 : sc_nomem(err);
}

static void close_far(struct rs_engine *e)
{
	sc_sys.release(e);
}

const struct rs_engine_ops rounds_engine = {
	.name = "gpus-of-nodes",
	.threads = 1,
	.targets = FAR_TARGETS_MAX,
	.open = open_far,
	.close = close_far,
	.write = write_far,
};
