/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/engine.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "reshard/engine/io/host.h"

const struct rs_engine_ops *rs_engines[RS_ENGINES_MAX + 1] = {&rs_engine_host};
const struct rs_engine_ops *rs_engine_extra;

void rs_engine_add(const struct rs_engine_ops *ops)
{
	unsigned nr = 0;

	while (rs_engines[nr])
		nr++;
	assert(nr < RS_ENGINES_MAX);
	rs_engines[nr] = ops;
}

static _Thread_local char why_not[SC_ERR_BYTES_MAX];

static bool can_run(const struct rs_engine_ops *ops)
{
	struct sc_err err = {0};
	int rc = ops->probe ? ops->probe(&err) : 0;

	assert(rc == 0 || (rc == SC_E_UNSUPPORTED && err.code == rc));
	if (rc < 0)
		memcpy(why_not, err.msg, sizeof(why_not));
	return rc == 0;
}

const struct rs_engine_ops *rs_engine_choose(const char *wanted, const char **ret_why)
{
	const struct rs_engine_ops *found = rs_engine_extra;

	if (found && wanted && strcmp(found->name, wanted) != 0)
		found = NULL;
	for (size_t i = 0; wanted && !found && rs_engines[i]; i++)
		if (strcmp(rs_engines[i]->name, wanted) == 0)
			found = rs_engines[i];
	if (!found && wanted)
		(void)snprintf(why_not, sizeof(why_not), "this program has no engine '%s'", wanted);
	*ret_why = NULL;
	if (found && can_run(found))
		return found;
	if (found || wanted)
		*ret_why = why_not;
	return rs_engines[0];
}

int rs_engine_open(const struct rs_engine_ops *ops, const struct meta_store *store, uint64_t budget,
		   struct rs_engine **ret, struct sc_err *err)
{
	int rc;

	assert(ops->threads >= 1 && ops->targets >= 1);
	err->code = 0;
	rc = ops->open(store, budget, ret, err);
	assert(rc == 0 || (rc < 0 && err->code == rc));
	if (rc == 0)
		(*ret)->ops = ops;
	return rc;
}

struct rs_engine *rs_engine_close(struct rs_engine *e)
{
	if (e)
		e->ops->close(e);
	return NULL;
}

int rs_engine_write(struct rs_engine *e, const struct rs_target *targets, size_t nr,
		    const struct rs_write_options *how, struct rs_written *ret, struct sc_err *err)
{
	uint64_t bytes = 0;
	int rc;

	assert(nr >= 1 && nr <= e->ops->targets);
	for (size_t i = 0; i < nr; i++) {
		assert((targets[i].fd >= 0 || how->joint) && !targets[i].image->same_as);
		assert(targets[i].image->mapped.data);
		bytes += targets[i].fd < 0 ? 0 : targets[i].image->bytes;
	}
	*ret = (struct rs_written){.failed = nr};
	err->code = 0;
	if (how->joint && !e->ops->joins)
		return sc_fail(err, SC_E_UNSUPPORTED, "engine %s makes no calls with other nodes", e->ops->name);
	rc = e->ops->write(e, targets, nr, how, ret, err);
	assert(rc == 0 || (rc < 0 && err->code == rc && ret->failed <= nr));
	assert(rc < 0 || ret->cloned + ret->copied == bytes);
	assert(rc != SC_E_CANCELLED || how->tick);
	assert(rc != SC_E_UNSUPPORTED || how->clones_only || how->joint);
	return rc;
}
