/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/data/index.h"

#include <stdlib.h>

#include "meta/base/guard.h"

struct guarded {
	struct rs_index *x;
	struct sc_err *err;
	int rc;
};

static void run(void *arg)
{
	static int (*const scan[])(struct rs_index *index, struct sc_err *err) = {
		[RS_DATA_LINES] = rs_index_lines, [RS_DATA_RECORDS] = rs_index_records,
		[RS_DATA_NPY] = rs_index_npy, [RS_DATA_TFRECORD] = rs_index_tfrecord,
		[RS_DATA_MEGATRON] = rs_index_megatron};
	struct guarded *g = arg;

	g->rc = scan[g->x->spec->format](g->x, g->err);
}

int rs_index_source(struct rs_index *x, struct sc_err *err)
{
	struct guarded g = {x, err, 0};
	const void *lost;

	if (x->spec->format == RS_DATA_TAR)
		g.rc = rs_index_tar(x, err);
	else if (!sc_guard_run(run, &g, &lost))
		return sc_fail(err, SC_E_SOURCE, "'%s' became shorter while it was read", x->path);
	if (g.rc < 0)
		return g.rc;
	rs_index_flush(x);
	if (x->failed)
		return sc_fail_sys(err, x->error, "store: cannot write the table of '%s'", x->path);
	if (x->form.failed)
		return sc_nomem(err);
	return 0;
}

static int by_hash(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

bool rs_keys_meet(struct rs_keys *keys)
{
	if (keys->nr)
		qsort(keys->at, keys->nr, sizeof(*keys->at), by_hash);
	for (size_t i = 1; i < keys->nr; i++)
		if (keys->at[i] == keys->at[i - 1]) {
			keys->twice = keys->at[i];
			return true;
		}
	return false;
}
