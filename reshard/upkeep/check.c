/* SPDX-License-Identifier: Apache-2.0 */
/* Verification of a head in the background: the verdict on each set is kept in its row. */
#include "reshard/upkeep/pass.h"

#include <inttypes.h>

SC_METRIC(bytes_verified, SC_COUNTER, "scalai_verified_bytes_total", "Bytes of rank files verified.");

static int keep_verdict(struct rs_pass *p, struct rs_set *set, int verdict, uint8_t (*digests)[16],
			char *report)
{
	struct sc_buf all = {0}, tensors = {0};
	int rc;

	(void)pthread_mutex_lock(&set->report_lock);
	sc_buf_printf(&all, "%s%s", report ? report : "", set->report);
	sc_sys.release(report);
	/* once, for who reads them; again when the verdict could not be saved: they are the same */
	if (set->digests)
		sc_sys.release(digests);
	else if (digests)
		__atomic_store_n(&set->digests, digests, __ATOMIC_RELEASE);
	if (all.failed) {
		sc_buf_done(&all);
	} else {
		sc_sys.release(set->report);
		set->report = all.text;
	}
	rs_set_tensors_text(set, &tensors);
	(void)pthread_mutex_unlock(&set->report_lock);
	rc = tensors.failed ? sc_nomem(p->err)
			    : meta_set_set_verified(p->s->catalog, set->id,
						    verdict == 0 ? META_EQUAL : META_DIFFER,
						    tensors.text ? tensors.text : "", set->report, p->err);
	sc_buf_done(&tensors);
	if (rc == 0)
		__atomic_store_n(&set->verified, verdict == 0 ? META_EQUAL : META_DIFFER, __ATOMIC_RELEASE);
	return rc;
}

int rs_verify_head(struct rs_pass *p)
{
	char name[SC_NAME_BYTES_MAX + 1];
	int rc = 0;

	for (size_t i = 0; i < p->head->version->nr_sets && rc == 0; i++) {
		struct rs_set *set = p->head->version->sets[i];
		uint8_t (*digests)[16] = NULL;
		char *report = NULL;
		int verdict;

		if (__atomic_load_n(&set->verified, __ATOMIC_ACQUIRE) != META_UNVERIFIED)
			continue;
		/* of what other nodes have they look at their part */
		rc = rs_set_is_here(p->s, set, p->err);
		if (rc <= 0)
			continue;
		rs_pass_begin(p, "verifying", rs_set_bytes(set));
		verdict = rs_verify_set(p->s, set, rs_pass_bytes, p, &digests, &report, p->err);
		if (verdict == SC_E_COPIES)
			sc_log(SC_LOG_ERROR, "job '%s' version %" PRIu64 ": copies differ: %s",
			       rs_job_name(p->job, name, sizeof(name)), p->head->version->nr, p->err->msg);
		rc = verdict == 0 || verdict == SC_E_COPIES ? keep_verdict(p, set, verdict, digests, report) : verdict;
		sc_metric_add(&bytes_verified, rs_set_bytes(set));
		rs_pass_end(p);
	}
	return rc;
}
