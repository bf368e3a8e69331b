/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine gpu, with a helper on the stand-in for CUDA, in place of others: of the host's (rs_engine_extra), and of the
 * one that executes rounds with memcpy (support/kinds/rounds.h).  The program fails if a call was written by the host.
 */
#include "tests/support/kinds/gpu.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "tests/support/kinds/look.h"

#define JOBS_A_HELPER (getenv("SCALAI_TEST_HELPER") ? 40 : 25) /* a real one starts in more than a second */

static unsigned calls, helpers, by_gpu;
static char script[] = "/tmp/scalai-helper.XXXXXX";

static void expect_order(void)
{
	struct rs_gpu_state state;

	rs_gpu_state(&state);
	by_gpu += (unsigned)state.by_gpu;
	if (!rs_gpu_stop() || state.by_host) {
		(void)fprintf(stderr, "helper %u: %s\n", helpers, state.by_host ? state.why : "it did not end as it should");
		_exit(1);
	}
}

void gpu_begin(const struct rs_gpu_options *options, const char *helper_args)
{
	const char *real = getenv("SCALAI_TEST_HELPER"); /* tests/gpu/on_gpu.py */
	struct rs_gpu_options o = *options;
	FILE *f;

	o.stop_ms = 60000; /* a helper may be starved of CPU; one that hangs takes longer */
	(void)snprintf(o.program, sizeof(o.program), "%s", script);
	f = fopen(script, "w");
	assert(f);
	(void)fprintf(f, "#!/bin/sh\nexec %s %s\n", real ? real : HELPER, helper_args);
	(void)fclose(f);
	(void)chmod(script, 0700);
	helpers++;
	rs_gpu_configure(&o);
}

/* Options of a test change from job to job, a helper's do not: those of one job are those of some. */
static void begin_helper(void)
{
	const char *devices = getenv("SCALAI_TEST_DEVICES"); /* that a real machine has */
	const uint32_t most = devices ? (uint32_t)atoi(devices) : getenv("SCALAI_TEST_HELPER") ? 1 : 4;
	struct rs_gpu_options o = rs_gpu_options_default();
	char args[40];

	expect_order();
	o.window_bytes = rounds_options.window_bytes;
	o.boxes_max = rounds_options.boxes_max;
	o.run_bytes = rounds_options.run_bytes;
	o.nr_devices = sc_min_u64(rounds_options.peers, most);
	for (uint32_t k = 0; k < o.nr_devices; k++)
		o.devices[k] = (uint8_t)((k + helpers) % most);
	(void)snprintf(args, sizeof(args), "%u %u", helpers % 3, helpers);
	gpu_begin(&o, args);
}

static int write_rounds(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
			struct rs_written *ret, struct sc_err *err)
{
	static struct rs_rounds_options mine;

	if (rounds_look) {
		if (calls % JOBS_A_HELPER == 0 || !mine.peers)
			mine = rounds_options;
		rounds_options = mine;
		look_at_rounds(targets, nr);
	}
	if (calls++ % JOBS_A_HELPER == 0)
		begin_helper();
	return rs_engine_gpu.write(e, targets, nr, how, ret, err);
}

static int open_gpu(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	return rs_engine_gpu.open(store, budget, ret, err);
}

static void close_gpu(struct rs_engine *e)
{
	rs_engine_gpu.close(e);
}

/* Without probe(): there is no helper before the first call. */
const struct rs_engine_ops rounds_engine = {
	.name = "gpu-here",
	.threads = 1,
	.targets = 256,
	.open = open_gpu,
	.close = close_gpu,
	.write = write_rounds,
};

__attribute__((constructor)) static void choose(void)
{
	int fd = mkstemp(script);

	assert(fd >= 0);
	(void)close(fd);
	rs_engine_extra = &rounds_engine;
	begin_helper();
}

__attribute__((destructor)) static void expect_use(void)
{
	if (calls)
		expect_order();
	(void)unlink(script);
	if (by_gpu)
		return;
	(void)fprintf(stderr, "no call went through a helper\n");
	_exit(1);
}
