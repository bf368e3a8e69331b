/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask_helper PROGRAM: starts a helper as a mount does that has no options, and says which GPU it has and after how many
 * milliseconds it was ready; with status 77, in one sentence, why it has none.
 */
#include "reshard/engine/gpu/helper.h"

#include <inttypes.h>
#include <stdio.h>

#include "meta/base/sys.h"
#include "reshard/engine/gpu/remote.h"

int main(int argc, char **argv)
{
	const struct rs_gpu_options d = rs_gpu_options_default();
	const struct rs_pool pool = rs_gpu_pool(&d);
	const struct rs_helper_options o = {.program = argv[1], .pool = pool, .idle_ms = d.idle_ms, .timeout_ms = d.timeout_ms};
	const int64_t began = sc_now_ns();
	struct rs_helper *h = NULL;
	struct sc_err err;
	int64_t ready;

	if (argc != 2)
		return 2;
	if (rs_helper_start(&o, NULL, NULL, &h, &err) < 0) {
		(void)printf("%s\n", err.msg);
		return err.code == SC_E_UNSUPPORTED ? 77 : 1;
	}
	ready = sc_now_ns();
	(void)printf("%s\n%" PRId64 "\n%" PRIu64 "\n", h->device, (ready - began) / 1000000, rs_pool_bytes(&pool));
	if (rs_helper_end(h, 10000))
		return 0;
	(void)printf("it did not end as it should\n");
	return 1;
}
