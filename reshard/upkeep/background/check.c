/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a head in the background, and keeps the verdict on each set in its row. */
#include "reshard/upkeep/background/pass.h"

#include <inttypes.h>

SC_METRIC(bytes_verified, SC_COUNTER, "scalai_verified_bytes_total", "Bytes of rank files verified.");

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
		if (verdict == SC_E_DAMAGED) { /* it is mended, or refused by its name */
			rs_met_check(p->s);
			verdict = rs_verify_set(p->s, set, rs_pass_bytes, p, &digests, &report, p->err);
		}
		if (verdict == SC_E_COPIES)
			sc_log(SC_LOG_ERROR, "job '%s' version %" PRIu64 ": copies differ: %s",
			       rs_job_name(p->job, name, sizeof(name)), p->head->version->nr, p->err->msg);
		rc = verdict;
		if (verdict == 0 || verdict == SC_E_COPIES)
			rc = rs_verify_keep(p->s, set, verdict, digests, report, p->err);
		sc_metric_add(&bytes_verified, rs_set_bytes(set));
		rs_pass_end(p);
	}
	return rc;
}
