/* SPDX-License-Identifier: Apache-2.0 */
/* What commands share, and what is done in the background shares with them. */
#ifndef RS_COMMAND_I_H
#define RS_COMMAND_I_H

#include "reshard/command/command.h"
#include "reshard/command/steps.h"
#include "reshard/engine/hash.h"
#include "reshard/tree/tree_i.h"

/* head.c */
/** Inside a transaction: datasets that have no number yet, and what the version uses. */
int rs_save_data(struct rs_service *s, struct rs_version *v, struct sc_err *err);
/** Presents `v` at a topology, and makes that the head.  Takes `v`. */
int rs_new_head(struct rs_service *s, struct rs_job *job, struct rs_version *v,
		const struct meta_topology *topo, uint64_t parent, const char *made_by, struct sc_err *err);
/** The versions that this thread makes from now on carry this number; 0: none. */
void rs_request(uint64_t token);
/* inside a transaction: sets that have no number yet, the version, the head. */
int rs_save_set(struct rs_service *s, struct rs_set *set, struct sc_err *err);
int rs_save_version(struct rs_service *s, struct rs_job *job, struct rs_version *v, uint64_t parent,
		    const char *made_by, struct sc_err *err);
/** Drops the versions that keep=N does not keep beside `head`; inside its transaction. */
int rs_drop_old_versions(struct rs_service *s, struct rs_job *job, const struct rs_version *head,
			 struct sc_err *err);

/* reshard.c */
int rs_refuse_dirty(struct rs_job *job, const char *what, struct sc_err *err);

/* data.c */
/** What a commit that names `step` and not `samples` has consumed. */
int rs_data_samples(const struct rs_version *head, int64_t step, uint64_t *ret, struct sc_err *err);
/** Drops uses that are over. */
void rs_data_prune(struct rs_version *v);

/* compare.c */
/** Compares all copies of a tensor set and hashes its logical tensors; *ret_report is
 *  lines; SC_E_COPIES when copies differ (the report says which), or an error of reading. */
int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_hashes)[16], char **ret_report, struct sc_err *err);
int rs_verify_compare(struct rs_service *s, struct rs_view *view, struct sc_buf *report,
		      struct sc_err *err);
int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err);

#endif
