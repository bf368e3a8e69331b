/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked to tests over rounds (tests/support/kinds/rounds.h): they go through the pipeline, a GPU for each peer, on
 * the stand-in, or those of one peer on a GPU (real_cuda.c).
 */
#include "reshard/engine/gpu_helper/pipeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "meta/base/err.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/pipeline_rounds.h"
#include "tests/support/kinds/rounds.h"

static struct {
	struct rs_pipeline *pipeline;
	struct rs_pool pool;
	unsigned char *memory;
	struct rs_share *outs[RS_POOL_SLOTS];	/* of rounds that are not drained: their extents out */
	uint64_t calls;
} p;

static unsigned char *window(uint32_t peer, unsigned slot, enum rs_pool_part part)
{
	return p.memory + rs_pool_place(&p.pool, peer, slot, part);
}

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < round->nr; k++) {
		const struct rs_share *share = &round->shares[k];
		unsigned char *in = window(k, slot, RS_POOL_IN);

		for (uint32_t i = 0; i < share->nr_in; i++)
			fake_host_uses(in + share->in[i].window, share->in[i].bytes, true, "a read of a file");
		rc = rounds_fill(arg, share, in, err);
	}
	return rc;
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < p.pool.peers; k++) {
		const struct rs_share *s = &p.outs[slot][k];
		const unsigned char *bytes = window(k, slot, RS_POOL_OUT);

		for (uint32_t i = 0; i < s->nr_out; i++)
			fake_host_uses(bytes + s->out[i].window, s->out[i].bytes, false, "a write to a file");
		rc = rounds_drain(arg, s->out, s->nr_out, bytes, err);
	}
	return rc;
}

static int idle(void *arg, struct sc_err *err)
{
	(void)arg, (void)err;
	return 0; /* the stand-in ends a wait that has no end; on a GPU, the time of the test does */
}

static int begin(void *call, struct sc_err *err)
{
	struct rs_pipeline_options o = {.kernel = pipeline_kernel, .exchange_ms = 60000, .fill = fill, .drain = drain, .idle = idle,
					.arg = call};

	fake_begin((enum fake_order)(p.calls % FAKE_ORDERS), p.calls);
	p.calls++;
	p.pool = (struct rs_pool){rounds_options.window_bytes, rounds_options.boxes_max, rounds_options.peers};
	for (uint32_t k = 0; k < p.pool.peers; k++)
		o.devices[k] = (int)((k + p.calls) % FAKE_DEVICES);
	if (p.pool.peers == 1)
		o.devices[0] = 0;
	o.pool = p.pool;
	o.memory = p.memory = aligned_alloc(4096, rs_pool_bytes(&p.pool));
	return rs_pipeline_new(&o, &p.pipeline, err);
}

static void keep_outs(struct rs_share **outs, const struct rs_round *round)
{
	*outs = realloc(*outs, p.pool.peers * sizeof(**outs));
	for (uint32_t k = 0; k < round->nr; k++) {
		const struct rs_share *s = &round->shares[k];

		(*outs)[k] = (struct rs_share){.out = calloc(s->nr_out + 1, sizeof(*s->out)), .nr_out = s->nr_out};
		for (uint32_t i = 0; i < s->nr_out; i++)
			(*outs)[k].out[i] = s->out[i];
	}
}

static void drop_outs(struct rs_share **outs)
{
	for (uint32_t k = 0; *outs && k < p.pool.peers; k++)
		free((*outs)[k].out);
	free(*outs);
	*outs = NULL;
}

static unsigned nr_put;

static int put(const struct rs_round *round, struct sc_err *err)
{
	const unsigned slot = nr_put++ % RS_POOL_SLOTS;
	int rc = rs_pipeline_put(p.pipeline, round, err);

	drop_outs(&p.outs[slot]);
	keep_outs(&p.outs[slot], round);
	return rc;
}

static int end(int rc, struct sc_err *err)
{
	struct fake_findings found;
	struct sc_err ignored;

	if (rc == 0)
		rc = rs_pipeline_finish(p.pipeline, err);
	(void)rs_pipeline_close(p.pipeline, &ignored);
	p.pipeline = NULL;
	nr_put = 0;
	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		drop_outs(&p.outs[i]);
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
