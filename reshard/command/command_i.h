/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by commands, and by background work. */
#ifndef RS_COMMAND_I_H
#define RS_COMMAND_I_H

#include "reshard/command/command.h"
#include "reshard/command/head.h"
#include "reshard/command/steps.h"
#include "reshard/engine/hash.h"
#include "reshard/turn/turn_i.h"

/* drafts.c */
/** Layout, step, note, time and sets of another version, where `sets` has none for one (or is NULL);
 *  no number yet, no topology.  NULL: memory. */
struct rs_version *rs_version_like(const struct rs_version *from, struct rs_set *const *sets);
/** Refuses a version whose copies differ: EBADMSG with the first report. */
int rs_version_refuse_bad(const struct rs_version *v, struct sc_err *err);

/* formless.c */
/** Refuses a draft at whose topology a rank's tensors have no place among the objects of its file. */
int rs_refuse_formless(const struct rs_advance *a, struct sc_err *err);

/* save.c, inside a transaction */
/** Adds the rows of a set that has no number yet, and numbers it.  Errors: of the catalog, SC_E_NO_MEMORY. */
int rs_save_set(struct rs_service *s, struct rs_set *set, struct sc_err *err);
/** Adds the datasets that have no number yet, and which of them the version uses. */
int rs_save_data(struct rs_service *s, struct rs_version *v, struct sc_err *err);

/* data.c */
/** Computes the samples consumed, for a commit that names `step` and not `samples`. */
int rs_data_samples(const struct rs_version *head, int64_t step, uint64_t *ret, struct sc_err *err);
/** Drops a version's uses of datasets whose epochs are over. */
void rs_data_prune(struct rs_version *v);

/* compare.c */
/** Compares all copies of a tensor set and digests its logical tensors; *ret_report is
 *  lines; SC_E_COPIES when copies differ (the report says which), or an error of reading. */
int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_digests)[16], char **ret_report, struct sc_err *err);
int rs_verify_compare(struct rs_service *s, struct rs_view *view, struct sc_buf *report,
		      struct sc_err *err);
int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err);

#endif
