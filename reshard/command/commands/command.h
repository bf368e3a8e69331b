/* SPDX-License-Identifier: Apache-2.0 */
/* Commands, which change a job.  Each command is decided when its call returns; a refused command changes nothing. */
#ifndef RS_COMMAND_H
#define RS_COMMAND_H

#include "reshard/version/state/state.h"

/** The caller of a command. */
struct rs_caller {
	struct rs_service *service;
	uid_t uid;
	gid_t gid;
	dev_t own_device;	/* the mount itself: no dataset source may lie in it */
	uint64_t token;		/* random number of the command, stored with the version that it makes; 0: none */
};

/** A caller without a token: a tool, a test. */
#define RS_CALLER(s) (&(struct rs_caller){.service = (s)})

/** Tells whether the command with this token has made its version: 1, 0, or an error of the catalog. */
int rs_requested(struct rs_service *s, uint64_t token, struct sc_err *err);

int rs_job_topology(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_layout(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Commits: "step=N samples=N note=...".  Errors: SC_E_BUSY (names the file that is open or mapped for writing). */
int rs_job_commit(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_discard(struct rs_service *s, struct rs_job *job, struct sc_err *err);
int rs_job_rollback(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
int rs_job_config(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Takes settings of another node: lines KEY=VALUE, which it cuts to pieces.  Passes over settings that it does not
 *  know.  The caller holds job->command. */
int rs_job_config_follow(struct rs_job *job, char *lines, struct sc_err *err);
/** Carries out lines of `add name=... path=...`, `remove name=...`, `refresh name=...`: all of them or none.  Opens
 *  sources as the caller.  May take long. */
int rs_job_data(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);
/** Compares every copy of the head and hashes every logical tensor, against what was recorded. */
int rs_job_verify(struct rs_service *s, struct rs_job *job, struct sc_err *err);

/** Sets or removes a tag: "tag VERSION NAME" (a tagged version is kept whatever keep= says), "untag VERSION". */
int rs_job_tag(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_err *err);

#endif
