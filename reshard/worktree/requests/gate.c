/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of a job's working tree.  A thread that makes a descriptor which can write to one of its files, or changes
 * a name in it, is inside meanwhile.  A command that moves the head closes the gate, and waits for those inside.
 *
 * A commit also waits until nobody can write to a file that it takes, but for logs: files that `log` lines of the
 * layout name, by all names that they have.  Those that can be written are listed in job->logs.  The commit seals
 * copies of them (reshard/command/commit/logs.c), and they stay files of the working tree
 * (reshard/worktree/rebase/logs.c).  Nobody opens a file while the gate is closed, so a log that is not listed is not
 * written either.
 */
#include "reshard/worktree/requests/tree_i.h"

#include <errno.h>
#include <fcntl.h>

#define QUIET_NS_MAX 1000000000 /* how long a commit waits for files that were just closed */
#define QUIET_POLL_NS 1000000	/* the end of a mapping tells nobody */

void rs_tree_enter(struct rs_job *job)
{
	(void)pthread_rwlock_rdlock(&job->tree);
}

bool rs_tree_try_enter(struct rs_job *job)
{
	return pthread_rwlock_tryrdlock(&job->tree) == 0;
}

void rs_tree_leave(struct rs_job *job)
{
	(void)pthread_rwlock_unlock(&job->tree);
}

struct written {
	uint64_t blob, ino;
};

struct all_written {
	struct written *at;
	size_t nr, room;
};

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct all_written *all = arg;

	/* what has no name is not committed */
	if (row->data != META_OWN_DATA || !row->nlink)
		return 0;
	return sc_vec_push(all, (struct written){row->blob, row->ino}) < 0 ? SC_E_NO_MEMORY : 0;
}

static int collect(struct rs_job *job, struct all_written *all, struct sc_err *err)
{
	int rc;

	all->nr = 0;
	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_overlay_each(job->overlay, on_row, all);
	(void)pthread_rwlock_unlock(&job->names);
	return rc < 0 ? sc_nomem(err) : 0;
}

/* Fails with a sentence about a written file: "rank 3: 'a' WHY". */
static int fail_at(struct rs_job *job, uint64_t ino, int code, int errnum, const char *why, struct sc_err *err)
{
	struct sc_buf name = {0};
	struct sc_err ignored;

	(void)pthread_rwlock_rdlock(&job->names);
	if (rs_tree_name(job, ino, "", &name, &ignored) < 0 || !name.bytes)
		sc_buf_printf(&name, "a file");
	(void)pthread_rwlock_unlock(&job->names);
	if (name.failed)
		code = sc_nomem(err);
	else if (errnum)
		code = sc_fail_sys(err, errnum, "%s %s", name.text, why);
	else
		code = sc_fail(err, code, "%s %s", name.text, why);
	sc_buf_done(&name);
	return code;
}

/* Returns 1 if a mapping, or a program that does not use the mount, can write to the file, and 0 if a lease says that
 * nobody can. */
static int check_lease(struct rs_job *job, uint64_t blob, uint64_t ino, struct sc_err *err)
{
	struct rs_service *s = job->service;
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_work(&s->store, blob, O_RDONLY, &fd, err);

	if (rc < 0)
		return rc;
	if (sc_sys.fcntl_lease(fd, F_RDLCK) == 0) {
		(void)sc_sys.fcntl_lease(fd, F_UNLCK);
		return 0;
	}
	if (errno == EAGAIN)
		return 1;
	if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)
		return 0; /* no leases there, so no passthrough (fs/daemon/mount.c): the counts see all writers */
	return fail_at(job, ino, SC_E_SYSTEM, errno, "cannot be given a lease", err);
}

int rs_tree_is_written(struct rs_job *job, uint64_t blob, struct sc_err *err)
{
	if (rs_work_writers(job->service, blob) != RS_QUIET)
		return 1;
	return check_lease(job, blob, rs_own_find(&job->by_blob, blob), err);
}

/* --- logs --- */

int rs_tree_log_layout(struct rs_job *job, const struct meta_layout **ret, struct sc_err *err)
{
	const struct meta_layout *layout = job->head ? job->head->version->layout : NULL;
	const struct rs_kept_layout *kept;
	int rc = 0;

	if (!layout && job->first_layout) {
		rc = rs_layout_by_id(job->service, job->first_layout, &kept, err);
		layout = rc < 0 ? NULL : kept->layout;
	}
	*ret = layout && layout->has_logs && !job->service->shared ? layout : NULL;
	return rc;
}

bool rs_tree_is_open_log(const struct rs_job *job, uint64_t blob)
{
	for (size_t i = 0; i < job->logs.nr; i++)
		if (job->logs.at[i] == blob)
			return true;
	return false;
}

struct naming {
	const struct meta_layout *layout;
	bool any, others;	/* names that a `log` line has, that none has */
	struct sc_buf glob;	/* of a line that has the first one */
};

static int on_path(void *arg, const char *path)
{
	struct naming *n = arg;

	if (!n->any && !n->others && !meta_layout_propose_log(path, &n->glob))
		n->others = true;
	if (n->layout && meta_layout_is_log(n->layout, path))
		n->any = true;
	else
		n->others = true;
	return 0;
}

static int find_names(struct rs_job *job, const struct written *w, struct naming *n, struct sc_err *err)
{
	int rc;

	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_tree_each_path(job, w->ino, on_path, n, err);
	(void)pthread_rwlock_unlock(&job->names);
	return rc;
}

/* Notes a file that somebody can write in job->logs, if all its names are those of logs: 1, 0 or an error. */
static int note_log(struct rs_job *job, const struct meta_layout *layout, const struct written *w, struct sc_err *err)
{
	struct naming n = {.layout = layout};
	int rc = layout ? find_names(job, w, &n, err) : 0;

	sc_buf_done(&n.glob);
	if (rc < 0 || !n.any || n.others)
		return rc;
	return sc_vec_push(&job->logs, w->blob) < 0 ? sc_nomem(err) : 1;
}

/* --- files that can be written --- */

/*
 * Looks for a file that somebody can write, and that is no log: *ret, or NULL.  All counts are looked at before the
 * first lease is taken: a client's open that is on its way would break the lease, and an open that does not wait would
 * fail.
 */
static int find_busy(struct rs_job *job, const struct meta_layout *layout, const struct all_written *all,
		     const struct written **ret, enum rs_writers *ret_why, struct sc_err *err)
{
	int rc;

	*ret = NULL;
	job->logs.nr = 0;
	for (size_t i = 0; i < all->nr; i++) {
		enum rs_writers why = rs_work_writers(job->service, all->at[i].blob);

		/* one that is open counts more than one that is about to be */
		if (why == RS_QUIET || (*ret && why == RS_RESERVED))
			continue;
		rc = note_log(job, layout, &all->at[i], err);
		if (rc < 0)
			return rc;
		if (rc)
			continue;
		*ret = &all->at[i];
		*ret_why = why;
		if (why == RS_OPEN)
			return 0;
	}
	for (size_t i = 0; !*ret && i < all->nr; i++) {
		const struct written *w = &all->at[i];

		rc = rs_tree_is_open_log(job, w->blob) ? 0 : check_lease(job, w->blob, w->ino, err);
		if (rc == 1) {
			rc = note_log(job, layout, w, err);
			*ret = rc ? NULL : w;
			*ret_why = RS_OPEN;
		}
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int refuse_busy(struct rs_job *job, const struct written *w, struct sc_err *err)
{
	struct naming n = {0};
	struct sc_buf why = {0};
	int rc = find_names(job, w, &n, err);

	sc_buf_printf(&why, "is open or mapped for writing; close it, then commit");
	if (rc == 0 && job->service->shared)
		sc_buf_printf(&why, " (what stays open, as a log does, belongs outside of the job in a cluster; a "
			      "link to it may be here)");
	else if (rc == 0 && n.glob.text)
		sc_buf_printf(&why, " (a log that stays open is taken as it is at that moment, if the layout has the "
			      "line 'log %s')", n.glob.text);
	if (rc == 0)
		rc = why.failed || n.glob.failed ? sc_nomem(err) : fail_at(job, w->ino, SC_E_BUSY, 0, why.text, err);
	sc_buf_done(&n.glob);
	sc_buf_done(&why);
	return rc;
}

void rs_tree_open(struct rs_job *job)
{
	const struct rs_events *events = &job->service->events;

	(void)pthread_rwlock_unlock(&job->tree);
	if (events->opened)
		events->opened(events->arg, job);
}

/* Closes the gate when all files are quiet.  Waits for a reservation, which ends by itself. */
static int close_quiet(struct rs_job *job, struct all_written *all, struct sc_err *err)
{
	int64_t give_up = sc_now_ns() + QUIET_NS_MAX;
	const struct meta_layout *layout;

	for (;;) {
		const struct written *busy = NULL;
		enum rs_writers why = RS_QUIET;
		int rc;

		(void)pthread_rwlock_wrlock(&job->tree);
		rc = rs_tree_log_layout(job, &layout, err);
		if (rc == 0)
			rc = collect(job, all, err);
		if (rc == 0)
			rc = find_busy(job, layout, all, &busy, &why, err);
		if (rc == 0 && !busy)
			return 0;
		if (rc == 0 && sc_now_ns() > (why == RS_OPEN ? give_up : give_up + RS_RESERVED_NS))
			rc = refuse_busy(job, busy, err);
		rs_tree_open(job);
		if (rc < 0)
			return rc;
		rs_work_wait(job->service, QUIET_POLL_NS);
	}
}

int rs_tree_close(struct rs_job *job, bool quiet, struct sc_err *err)
{
	struct all_written all = {0};
	int rc = 0;

	if (quiet)
		rc = close_quiet(job, &all, err);
	else
		(void)pthread_rwlock_wrlock(&job->tree);
	sc_vec_done(&all);
	return rc;
}
