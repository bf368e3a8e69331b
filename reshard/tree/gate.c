/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of a job's working tree.  A thread that makes a descriptor which can write to one of its files, or changes
 * a name in it, is inside meanwhile.  A command that moves the head closes the gate, and waits for those inside.
 */
#include "reshard/tree/tree_i.h"

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
static int fail_at(struct rs_job *job, const struct written *w, int code, int errnum, const char *why,
		   struct sc_err *err)
{
	struct sc_buf name = {0};
	struct sc_err ignored;

	(void)pthread_rwlock_rdlock(&job->names);
	if (rs_tree_name(job, w->ino, "", &name, &ignored) < 0 || !name.bytes)
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

/* 1: a mapping, or a program that does not use the mount, can write to the file; 0: a lease says that nobody can. */
static int check_lease(struct rs_job *job, const struct written *w, struct sc_err *err)
{
	struct rs_service *s = job->service;
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_work(&s->store, w->blob, O_RDONLY, &fd, err);

	if (rc < 0)
		return rc;
	if (sc_sys.fcntl_lease(fd, F_RDLCK) == 0) {
		(void)sc_sys.fcntl_lease(fd, F_UNLCK);
		return 0;
	}
	if (errno == EAGAIN)
		return 1;
	if (errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)
		return 0; /* no leases there, and then no passthrough either (fs/mount.c): the counts see all writers */
	return fail_at(job, w, SC_E_SYSTEM, errno, "cannot be given a lease", err);
}

/*
 * Looks for a file that somebody can write: *ret, or NULL.  All counts come before the first lease: a lease that is
 * had while a client's open is on its way would be broken, and fails opens that do not wait.
 */
static int find_busy(struct rs_job *job, const struct all_written *all, const struct written **ret,
		     enum rs_writers *ret_why, struct sc_err *err)
{
	*ret = NULL;
	for (size_t i = 0; i < all->nr; i++) {
		enum rs_writers why = rs_work_writers(job->service, all->at[i].blob);

		/* one that is open counts more than one that is about to be */
		if (why == RS_QUIET || (*ret && why == RS_RESERVED))
			continue;
		*ret = &all->at[i];
		*ret_why = why;
		if (why == RS_OPEN)
			return 0;
	}
	for (size_t i = 0; !*ret && i < all->nr; i++) {
		int rc = check_lease(job, &all->at[i], err);

		if (rc < 0)
			return rc;
		if (rc == 1) {
			*ret = &all->at[i];
			*ret_why = RS_OPEN;
		}
	}
	return 0;
}

void rs_tree_open(struct rs_job *job)
{
	const struct rs_events *events = &job->service->events;

	(void)pthread_rwlock_unlock(&job->tree);
	if (events->opened)
		events->opened(events->arg, job);
}

/* Closes the gate when all files are quiet.  A reservation ends by itself, and is waited for. */
static int close_quiet(struct rs_job *job, struct all_written *all, struct sc_err *err)
{
	int64_t give_up = sc_now_ns() + QUIET_NS_MAX;

	for (;;) {
		const struct written *busy = NULL;
		enum rs_writers why = RS_QUIET;
		int rc;

		(void)pthread_rwlock_wrlock(&job->tree);
		rc = collect(job, all, err);
		if (rc == 0)
			rc = find_busy(job, all, &busy, &why, err);
		if (rc == 0 && !busy)
			return 0;
		if (rc == 0 && sc_now_ns() > (why == RS_OPEN ? give_up : give_up + RS_RESERVED_NS))
			rc = fail_at(job, busy, SC_E_BUSY, 0,
				     "is open or mapped for writing; close it, then commit (a log that stays open "
				     "belongs outside of the job; a link to it may be here)", err);
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
