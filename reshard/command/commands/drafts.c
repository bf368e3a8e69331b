/* SPDX-License-Identifier: Apache-2.0 */
/* Makes versions out of other versions. */
#include "reshard/command/commands/command_i.h"

#include <inttypes.h>
#include <string.h>

struct rs_version *rs_version_like(const struct rs_version *from, struct rs_set *const *sets)
{
	struct rs_version *v = rs_version_new();
	struct sc_err ignored;
	bool good = v != NULL;

	if (good) {
		v->layout_id = from->layout_id;
		v->layout = from->layout;
		v->step = from->step;
		v->made_ns = from->made_ns;
		v->samples = from->samples;
		v->tree = from->tree;
		v->floor_ns = from->floor_ns;
		v->tensors = sets ? NULL : rs_tensors_ref(from->tensors);
		v->note = sc_strdup(from->note);
		good = v->note != NULL;
	}
	for (size_t i = 0; good && i < from->data.nr; i++) {
		const struct rs_use *use = &from->data.at[i];

		good = rs_version_use(v, use->corpus, use->from_epoch, use->from_samples, &ignored) == 0;
	}
	for (size_t i = 0; good && i < from->nr_sets; i++)
		good = rs_version_add_set(v, sets && sets[i] ? sets[i] : from->sets[i]) == 0;
	if (good)
		return v;
	rs_version_unref(v);
	return NULL;
}

int rs_version_refuse_bad(const struct rs_version *v, struct sc_err *err)
{
	for (size_t i = 0; i < v->nr_sets; i++) {
		struct rs_set *set = v->sets[i];
		int rc;

		if (__atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) != META_DIFFER)
			continue;
		(void)pthread_mutex_lock(&set->report_lock);
		rc = sc_fail(err, SC_E_COPIES, "version %" PRIu64 " cannot be used, because copies differ or have "
			     "changed: %.*s; write '%s' again with equal copies, or remove it on all ranks, and commit",
			     v->nr, (int)strcspn(set->report, "\n"), set->report, set->file);
		(void)pthread_mutex_unlock(&set->report_lock);
		return rc;
	}
	return 0;
}
