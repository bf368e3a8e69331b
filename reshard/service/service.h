/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service: jobs, their versions, their working trees, and the commands that change them.
 * fs/ turns files into calls of this header; nothing here knows FUSE.
 *
 *     job ── head ──> version ── sets ──> set ── rank, file ──> blob
 *      │                 │                 └ view under which it was written
 *      │                 └ view: presentation (a version at a topology)
 *      └ working tree: what ranks have written since
 *
 * Thread: any, but for rs_service_new/free.  Objects with _ref/_unref are immutable and shared.
 * Lock order: job.command, job.tree, job.names, the log (meta/tree/tail.h), jobs.naming, service.making, catalog (a
 * transaction holds it), job.state, service.lock, blobs; nothing calls the catalog while it holds job.state or
 * service.lock.
 */
#ifndef RS_SERVICE_H
#define RS_SERVICE_H

#include "reshard/command/commands/command.h"
#include "reshard/version/state/state.h"
#include "reshard/worktree/requests/tree.h"
#include "reshard/upkeep/background/upkeep.h"

struct rs_options {
	const char *store;
	const char *preset_dir;		/* of the user's own presets, or NULL */
	const struct rs_events *events;	/* NULL: nobody listens */
	bool quiet_worker;		/* no background work: rs_service_work() does it */
	bool keep_garbage;		/* fsck looks at it first */
	bool sets_newer_aside;		/* fsck --repair: rs_records_set_newer_aside() */
	int lock;			/* of the store, taken by an earlier daemon (fs/handover/hold.h); 0: take it */
	bool is_held;			/* another daemon may take over when this one dies */
	bool takes_over;		/* of a daemon that died: the kernel remembers its numbers */
	const uint64_t *open;		/* then, blobs that programs have open (or 0): each gets an rs_work_hold() */
	size_t nr_open;
	bool rebuild;			/* for rs_rebuild(): a new catalog, STORE/scalai.db.new, over blobs */
	int64_t scrub_every_s;		/* each blob is read again so often; 0: never */
	uint64_t scrub_bytes_per_s;	/* 0: no limit */
};

int rs_service_new(const struct rs_options *options, struct rs_service **ret, struct sc_err *err);
struct rs_service *rs_service_free(struct rs_service *s);

const struct meta_store *rs_service_store(struct rs_service *s);

/* --- jobs --- */

/** Refuses a name that no job can have.  Errors: SC_E_COMMAND, SC_E_NAME (too long). */
int rs_job_check_name(const char *name, struct sc_err *err);
int rs_job_make(struct rs_service *s, const char *name, mode_t mode, uid_t uid, gid_t gid,
		struct rs_job **ret, struct sc_err *err);
/** Finds or makes a job that another node made: `row` is all but its `id`.  Errors: SC_E_EXISTS (another one has the
 *  name). */
int rs_job_make_shared(struct rs_service *s, struct meta_job_row *row, struct rs_job **ret, struct sc_err *err);
int rs_job_remove(struct rs_service *s, struct rs_job *job, struct sc_err *err);
/** Removes a job from this store, with all that it has: other nodes know that it is removed, or there are none.  The
 *  caller has closed its gate. */
int rs_job_drop(struct rs_service *s, struct rs_job *job, struct sc_err *err);
/** Makes a second job, with this name, of the versions of a job, which share their bytes; files that are not committed
 *  are not in it.  Errors: SC_E_PERMISSION, neither the owner nor root asks; SC_E_EXISTS. */
int rs_job_clone(const struct rs_caller *who, struct rs_job *source, const char *text, struct sc_err *err);
int rs_job_rename(struct rs_service *s, struct rs_job *job, const char *name, struct sc_err *err);
/** Changes a job's mode and owner; RS_SAME_MODE and RS_SAME_ID leave them. */
#define RS_SAME_MODE ((mode_t)-1)
#define RS_SAME_ID ((uid_t)-1)
int rs_job_chattr(struct rs_service *s, struct rs_job *job, mode_t mode, uid_t uid, gid_t gid,
		  struct sc_err *err);
/** Gives a job name, mode and owner of `row`, as another node has changed them.  SC_E_EXISTS (another one has the
 *  name). */
int rs_job_follow(struct rs_service *s, struct rs_job *job, const struct meta_job_row *row, struct sc_err *err);

/* --- wait --- */

/** Parses the text written to `wait`: a version's number, or nothing for the head. */
int rs_job_wait_parse(struct rs_service *s, struct rs_job *job, const char *text,
		      uint64_t *ret_version, struct sc_err *err);
/** Returns 1 if the version is materialized, 0 if not yet, negative if the last attempt failed or there will be
 *  none. */
int rs_job_wait_poll(struct rs_service *s, struct rs_job *job, uint64_t version,
		     struct sc_err *err);

/* --- texts of control files, rendered at open --- */

int rs_render_topology(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err);
int rs_render_layout(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
int rs_render_versions(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		       struct sc_err *err);
/** Adds lines about the classes of replicas of a view's files. */
void rs_render_replicas(const struct meta_view *view, struct sc_buf *buf);
/** Adds lines about files of tensors that are of another step than the version. */
void rs_render_older(const struct rs_view *view, struct sc_buf *buf);
/** Adds lines about files of tensors that lie in the job's folder itself. */
int rs_render_uncut(struct rs_view *view, struct sc_buf *buf, struct sc_err *err);
int rs_render_status(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
int rs_render_plan(struct rs_service *s, struct rs_job *job, const char *topology,
		   struct sc_buf *buf, struct sc_err *err);
/** Adds the same as a drawing. */
int rs_render_plan_svg(struct rs_service *s, struct rs_job *job, const char *topology, struct sc_buf *buf,
		       struct sc_err *err);
int rs_render_data(struct rs_service *s, struct rs_job *job, struct sc_buf *buf, struct sc_err *err);
/** Adds a table of the tensors and files that differ between two versions, which `text` names. */
int rs_render_diff(struct rs_service *s, struct rs_job *job, const char *text, struct sc_buf *buf,
		   struct sc_err *err);
int rs_render_verify(struct rs_service *s, struct rs_job *job, struct sc_buf *buf,
		     struct sc_err *err);
void rs_render_error(struct rs_job *job, struct sc_buf *buf);
/** Adds metrics of jobs and of the store, in Prometheus' text format.  Waits for no command. */
int rs_render_gauges(struct rs_service *s, struct sc_buf *buf, struct sc_err *err);
struct rs_version;
/** Return what `status` and metrics say of a version: bytes of its ranks' files of tensors; state, by its own view. */
uint64_t rs_version_bytes(const struct rs_version *v);
struct rs_progress;
/** Adds lines bytes_done, bytes_total, bytes_per_second and eta_seconds, each with `prefix` before it. */
void rs_render_progress(const struct rs_progress *p, const char *prefix, struct sc_buf *buf);
const char *rs_state_text(const struct rs_view *own);

#endif
