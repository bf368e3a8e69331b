/* SPDX-License-Identifier: Apache-2.0 */
/* What changes a job.  Each command is decided when the call returns; a refusal changes nothing. */
#ifndef RS_COMMAND_H
#define RS_COMMAND_H

#include "reshard/state/state.h"

/** Who commands. */
struct rs_caller {
	struct rs_service *service;
	uid_t uid;
	gid_t gid;
	dev_t own_device;	/* the mount itself: no source of data may lie in it */
	uint64_t token;		/* of this command, in the version that it makes; 0: it has none */
};

/** A caller without a token: a tool, a test. */
#define RS_CALLER(s) (&(struct rs_caller){.service = (s)})

/** Has the command with this token made its version?  1, 0, or an error of the catalog. */
int rs_requested(struct rs_service *s, uint64_t token, struct sc_err *err);

int rs_job_topology(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_layout(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** "step=N samples=N note=..."; `busy_text` of EBUSY names the file. */
int rs_job_commit(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_discard(struct rs_service *s, struct rs_job *job, struct sc_err *err);
int rs_job_rollback(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_config(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Lines of `add name=... path=...`, `remove name=...`, `refresh name=...`: all of them or none.
 *  Sources are opened as the caller.  May take long. */
int rs_job_data(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Compares every copy of the head and hashes every logical tensor, against what was recorded. */
int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err);

/** "tag VERSION NAME": kept, whatever keep= says; "untag VERSION". */
int rs_job_tag(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);

#endif
