/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon reads and writes of the pool is seen by the stand-in of another process, or thread: linked with
 * --wrap=rs_pipeline_new.
 */
#include "reshard/cuda/pipeline.h"

#include "tests/gpu/fake_cuda.h"

static struct rs_pipeline_options options;

int __real_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err);
int __wrap_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err);

static int fill(void *arg, const struct rs_share *share, unsigned char *in, struct sc_err *err)
{
	for (uint32_t i = 0; i < share->nr_in; i++)
		fake_host_uses(in + share->in[i].window, share->in[i].bytes, true, "a read of a file");
	return options.fill(arg, share, in, err);
}

static int drain(void *arg, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes, struct sc_err *err)
{
	for (uint32_t i = 0; i < nr; i++)
		fake_host_uses(bytes + out[i].window, out[i].bytes, false, "a write to a file");
	return options.drain(arg, out, nr, bytes, err);
}

int __wrap_rs_pipeline_new(const struct rs_pipeline_options *o, struct rs_pipeline **ret, struct sc_err *err)
{
	struct rs_pipeline_options seen = *o;

	options = *o;
	seen.fill = fill;
	seen.drain = drain;
	return __real_rs_pipeline_new(&seen, ret, err);
}
