/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kinds/null_engine.h"

#define BUFFER_BYTES (1u << 20)

struct null {
	struct rs_engine engine;
	unsigned char buffer[BUFFER_BYTES];
};

static int null_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	struct null *n = sc_zalloc(sizeof(*n));

	(void)store;
	(void)budget;
	if (!n)
		return sc_nomem(err);
	*ret = &n->engine;
	return 0;
}

static void null_close(struct rs_engine *e)
{
	sc_sys.release(e);
}

static int null_write(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
		      struct rs_written *ret, struct sc_err *err)
{
	struct null *n = (struct null *)e;

	for (size_t i = 0; i < nr; i++) {
		const struct rs_image *im = targets[i].image;

		ret->failed = i;
		for (uint64_t at = 0, some; at < im->bytes; at += some) {
			int rc;

			some = sc_min_u64(im->bytes - at, BUFFER_BYTES);
			rc = rs_image_fetch(im, at, some, n->buffer, err);
			if (rc < 0)
				return rc;
			ret->copied += some;
			if (how->tick && how->tick(how->arg, some))
				return sc_fail(err, SC_E_CANCELLED, "stopped");
		}
	}
	return 0;
}

const struct rs_engine_ops null_engine = {
	.name = "null",
	.threads = 4,
	.targets = 1,
	.open = null_open,
	.close = null_close,
	.write = null_write,
};
