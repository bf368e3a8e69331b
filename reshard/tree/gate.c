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

void rs_tree_leave(struct rs_job *job)
{
	(void)pthread_rwlock_unlock(&job->tree);
}

/* A written file, "rank 3's 'a'", or "'a'" of a file of the job. */
struct written {
	uint32_t rank;
	uint64_t blob;
	const char *path;
};

struct all_written {
	struct written *at;
	size_t nr, room;
};

static int collect(struct rs_job *job, struct all_written *all, struct sc_err *err)
{
	int rc = 0;

	all->nr = 0;
	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; i < job->work.nr && rc == 0; i++)
		for (size_t k = 0; k < job->work.at[i]->nr && rc == 0; k++) {
			const struct rs_work *w = job->work.at[i]->at[k];
			struct written one = {job->work.at[i]->rank, w->blob, w->path};

			if (w->kind == META_WORK_FILE)
				rc = sc_vec_push(all, one) < 0 ? sc_nomem(err) : 0;
		}
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

/* 1: a mapping, or a program that does not use the mount, can write to the file; 0: a lease says that nobody can. */
static int check_lease(struct rs_service *s, const struct written *w, struct sc_err *err)
{
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
	return w->rank == RS_SHARED ? sc_fail_sys(err, errno, "cannot take a lease of '%s'", w->path)
				    : sc_fail_sys(err, errno, "cannot take a lease of rank %u's '%s'", w->rank,
						  w->path);
}

/*
 * Looks for a file that somebody can write: *ret, or NULL.  All counts come before the first lease: a lease that is
 * had while a client's open is on its way would be broken, and fails opens that do not wait.
 */
static int find_busy(struct rs_service *s, const struct all_written *all, const struct written **ret,
		     enum rs_writers *ret_why, struct sc_err *err)
{
	*ret = NULL;
	for (size_t i = 0; i < all->nr; i++) {
		enum rs_writers why = rs_work_writers(s, all->at[i].blob);

		/* one that is open counts more than one that is about to be */
		if (why == RS_QUIET || (*ret && why == RS_RESERVED))
			continue;
		*ret = &all->at[i];
		*ret_why = why;
		if (why == RS_OPEN)
			return 0;
	}
	for (size_t i = 0; !*ret && i < all->nr; i++) {
		int rc = check_lease(s, &all->at[i], err);

		if (rc < 0)
			return rc;
		if (rc == 1) {
			*ret = &all->at[i];
			*ret_why = RS_OPEN;
		}
	}
	return 0;
}

static int refuse_busy(const struct written *w, struct sc_err *err)
{
	if (w->rank == RS_SHARED)
		return sc_fail(err, SC_E_BUSY, "'%s' is open or mapped for writing; close it, then commit", w->path);
	return sc_fail(err, SC_E_BUSY, "rank %u: '%s' is open or mapped for writing; close it, then commit", w->rank,
		       w->path);
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
			rc = find_busy(job->service, all, &busy, &why, err);
		if (rc == 0 && !busy)
			return 0;
		if (rc == 0 && sc_now_ns() > (why == RS_OPEN ? give_up : give_up + RS_RESERVED_NS))
			rc = refuse_busy(busy, err);
		(void)pthread_rwlock_unlock(&job->tree);
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

void rs_tree_open(struct rs_job *job)
{
	(void)pthread_rwlock_unlock(&job->tree);
}
