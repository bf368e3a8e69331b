/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share with each other and with background work. */
#ifndef RS_COMMAND_I_H
#define RS_COMMAND_I_H

#include "reshard/command/commands/command.h"
#include "reshard/command/commands/head.h"
#include "reshard/command/commands/steps.h"
#include "reshard/engine/io/hash.h"
#include "reshard/worktree/rebase/turn_i.h"
#include "reshard/version/verify/verify.h"

/* lock.c */
/** Takes job->command.  Errors: SC_E_BUSY, in a cluster, if another node's change holds it for too long. */
int rs_command_lock(struct rs_job *job, struct sc_err *err);

/* reshard.c */
/** Saves layout (0: none yet) and topology (NULL: none yet) of a job that has no version, and shows the folders of its
 *  ranks.  The gate is closed.  `is_followed`: all nodes have both already, but for this one. */
int rs_job_first(struct rs_job *job, uint64_t layout, const char *topology, bool is_followed, struct sc_err *err);

/* drafts.c */
/** Makes a version with layout, step, note, time and sets of another one, but for the sets that `sets` (may be NULL)
 *  has; it has no number yet, and no topology.  NULL: out of memory. */
struct rs_version *rs_version_like(const struct rs_version *from, struct rs_set *const *sets);
/** Refuses a version whose copies differ: EBADMSG with the first report. */
int rs_version_refuse_bad(const struct rs_version *v, struct sc_err *err);

/* formless.c */
/** Refuses a draft at whose topology the tensors of a rank have no place among the objects of its file, or whose layout
 *  ties the copy of the last stage to a tensor that does not exist. */
int rs_refuse_formless(const struct rs_advance *a, struct sc_err *err);

/* save.c, inside a transaction */
/** Adds the rows of a set that has no number yet, and numbers it.  Errors: of the catalog, SC_E_NO_MEMORY. */
int rs_save_set(struct rs_service *s, struct rs_set *set, struct sc_err *err);
/** Adds the rows of the datasets that have no number yet, and the rows that say which datasets the version uses. */
int rs_save_data(struct rs_service *s, struct rs_version *v, struct sc_err *err);

/* retention.c */
/** Drops the versions that keep= does not keep, but for one that may be the only right one.  Inside the transaction
 *  that makes `head`. */
int rs_versions_drop_old(struct rs_service *s, struct rs_job *job, const struct rs_version *head, struct sc_err *err);
/** Drops the version that rs_versions_drop_old() has spared, if the head was verified since and is right; *ret_dropped
 *  is set if there was one.  Does nothing while a command of the job is under way. */
int rs_versions_drop_spared(struct rs_service *s, struct rs_job *job, bool *ret_dropped, struct sc_err *err);

/* data.c */
/** Computes the samples consumed, for a commit that names `step` and not `samples`. */
int rs_data_samples(const struct rs_version *next, const struct rs_version *head, int64_t step, uint64_t *ret,
		    struct sc_err *err);
/** Drops a version's uses of datasets whose epochs are over. */
void rs_data_prune(struct rs_version *v);

/* verify.c */
/** Makes the worker look again at the files of a version that nobody may read, as they are damaged: somebody may have
 *  restored them. */
void rs_damaged_again(struct rs_service *s, const struct rs_version *v);

#endif
