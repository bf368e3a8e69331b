/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked to tests over rounds (tests/support/kinds/rounds.h): those of one peer go through the pipeline, on the stand-in,
 * or on a GPU (real_cuda.c).
 */
#include "reshard/cuda/pipeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "meta/base/err.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/pipeline_rounds.h"
#include "tests/support/kinds/rounds.h"

static struct {
	struct rs_pipeline *pipeline;
	void *memory;
	uint64_t calls;
} p;

static int fill(void *arg, const struct rs_share *share, unsigned char *in, struct sc_err *err)
{
	for (uint32_t i = 0; i < share->nr_in; i++)
		fake_host_uses(in + share->in[i].window, share->in[i].bytes, true, "a read of a file");
	return rounds_fill(arg, share, in, err);
}

static int drain(void *arg, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes, struct sc_err *err)
{
	for (uint32_t i = 0; i < nr; i++)
		fake_host_uses(bytes + out[i].window, out[i].bytes, false, "a write to a file");
	return rounds_drain(arg, out, nr, bytes, err);
}

static int idle(void *arg, struct sc_err *err)
{
	(void)arg, (void)err;
	return 0; /* the stand-in ends a wait that has no end; on a GPU, the time of the test does */
}

static int begin(void *call, struct sc_err *err)
{
	struct rs_pipeline_options o = {
		.pool = {rounds_options.window_bytes, rounds_options.boxes_max}, .kernel = pipeline_kernel,
		.fill = fill, .drain = drain, .idle = idle, .arg = call,
	};

	fake_begin((enum fake_order)(p.calls % FAKE_ORDERS), p.calls);
	p.calls++;
	o.memory = p.memory = aligned_alloc(4096, rs_pool_bytes(&o.pool));
	return rs_pipeline_new(&o, &p.pipeline, err);
}

static int put(const struct rs_share *share, struct sc_err *err)
{
	return rs_pipeline_put(p.pipeline, share, err);
}

static int end(int rc, struct sc_err *err)
{
	struct fake_findings found;
	struct sc_err ignored;

	if (rc == 0)
		rc = rs_pipeline_finish(p.pipeline, err);
	(void)rs_pipeline_close(p.pipeline, &ignored);
	p.pipeline = NULL;
	found = fake_end();
	free(p.memory);
	if (!found.first[0])
		return rc;
	(void)fprintf(stderr, "pass %lu: %s\n", p.calls - 1, found.first);
	abort();
}

static const struct rounds_device pipeline = {begin, put, end};

__attribute__((constructor)) static void choose(void)
{
	rounds_device = &pipeline;
}
