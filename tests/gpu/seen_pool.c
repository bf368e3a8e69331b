/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon reads and writes of the pool is seen by the stand-in of another process, or thread: linked with
 * --wrap=rs_pipeline_new, rs_pipeline_begin.
 */
#include "reshard/engine/gpu_helper/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "tests/gpu/fake_cuda.h"

static struct rs_pipeline_options options;

/* Of each slot: the round that is to be drained, and the one that is put in its place. */
static struct outs {
	uint32_t nr;
	struct rs_extent *at;
} outs[RS_POOL_SLOTS][2][RS_POOL_PEERS_MAX];

int __real_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err);
int __wrap_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err);

static unsigned char *window(uint32_t peer, unsigned slot, enum rs_pool_part part)
{
	return (unsigned char *)options.memory + rs_pool_place(&options.pool, peer, slot, part);
}

static void forget(struct outs *of)
{
	free(of->at);
	*of = (struct outs){0};
}

static bool keeps;	/* the pass ends in a buffer: nothing is drained */

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	for (uint32_t k = 0; k < round->nr; k++) {
		const struct rs_share *s = &round->shares[k];
		struct outs *to = &outs[slot][outs[slot][0][k].at != NULL][k];

		for (uint32_t i = 0; i < s->nr_in; i++)
			fake_host_uses(window(k, slot, RS_POOL_IN) + s->in[i].window, s->in[i].bytes, true, "a read of a file");
		if (keeps)
			continue;
		*to = (struct outs){s->nr_out, malloc((s->nr_out + 1) * sizeof(*s->out))};
		memcpy(to->at, s->out, s->nr_out * sizeof(*s->out));
	}
	return options.fill(arg, round, slot, err);
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	for (uint32_t k = 0; k < options.pool.peers; k++) {
		struct outs *of = &outs[slot][0][k];

		for (uint32_t i = 0; i < of->nr; i++)
			fake_host_uses(window(k, slot, RS_POOL_OUT) + of->at[i].window, of->at[i].bytes, false, "a write to a file");
		forget(of);
		*of = outs[slot][1][k];
		outs[slot][1][k] = (struct outs){0};
	}
	return options.drain(arg, slot, err);
}

int __wrap_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err)
{
	struct rs_pipeline_options seen = *o;

	for (unsigned i = 0; i < RS_POOL_SLOTS; i++)
		for (uint32_t k = 0; k < 2 * RS_POOL_PEERS_MAX; k++)
			forget(&outs[i][k / RS_POOL_PEERS_MAX][k % RS_POOL_PEERS_MAX]);
	options = *o;
	seen.fill = fill;
	seen.drain = drain;
	return __real_rs_pipeline_new(&seen, ret, err);
}

int __real_rs_pipeline_begin(struct rs_pipeline *p, uint32_t nr, const unsigned char *id, struct sc_err *err);
int __wrap_rs_pipeline_begin(struct rs_pipeline *p, uint32_t nr, const unsigned char *id, struct sc_err *err);

int __wrap_rs_pipeline_begin(struct rs_pipeline *p, uint32_t nr, const unsigned char *id, struct sc_err *err)
{
	keeps = nr != 0;
	return __real_rs_pipeline_begin(p, nr, id, err);
}
