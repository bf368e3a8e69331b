/* SPDX-License-Identifier: Apache-2.0 */
/* `verify`: the digests of the head's logical tensors, as they are now, beside those of its commit. */
#include "reshard/command/command_i.h"

#include <string.h>

/* Digests every logical tensor of a view through its present storage and compares with what was
 * recorded when it was committed; one line a tensor. */
int rs_verify_compare(struct rs_service *s, struct rs_view *view, struct sc_buf *report,
		      struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < view->version->nr_sets; i++) {
		struct rs_set *set = view->version->sets[i];
		const uint8_t (*kept)[16] = rs_set_digests(set);
		uint8_t (*digests)[16] = NULL;
		char *text = NULL;

		rc = rs_verify_set(s, set, NULL, NULL, &digests, &text, err);
		for (uint32_t t = 0; rc == 0 && t < set->state.nr; t++) {
			bool known = kept != NULL;
			bool same = known && memcmp(kept[t], digests[t], 16) == 0;

			sc_buf_printf(report, "%s\t", known ? (same ? "equal" : "DIFFERENT") : "new");
			for (int k = 0; k < 16; k++)
				sc_buf_printf(report, "%02x", digests[t][k]);
			sc_buf_printf(report, "\t%s\n", set->state.tensors[t].key);
			if (known && !same && err->code == 0)
				(void)sc_fail(err, SC_E_COPIES, "'%s' is not what was committed",
					      set->state.tensors[t].key);
		}
		sc_sys.release(digests);
		sc_sys.release(text);
	}
	return rc < 0 ? rc : err->code;
}

int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err)
{
	struct rs_view *head = NULL;
	struct sc_buf report = {0};
	int rc = rs_view_head(s, job, &head, err);

	if (rc < 0)
		return rc;
	err->code = 0;
	rc = rs_verify_compare(s, head, &report, err);
	if (report.failed)
		rc = sc_nomem(err);
	if (report.text) {
		(void)pthread_mutex_lock(&job->state);
		sc_sys.release(job->verify_report);
		job->verify_report = report.text;
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_view_unref(s, head);
	return rc;
}
