/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working tree in memory: the rows of the catalog's table `work`.  Owner: job.state, which the caller holds; none
 * of these functions calls the catalog.  What follows a transaction may not fail: its memory is reserved before.
 * Folders among them limit who may read what is committed below them.
 */
#include "reshard/tree/tree_i.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static size_t rank_slot(const struct rs_job *job, uint32_t rank)
{
	size_t lo = 0, hi = job->work.nr;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (job->work.at[mid]->rank < rank)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct rs_work_rank *rs_work_rank(struct rs_job *job, uint32_t rank)
{
	size_t i = rank_slot(job, rank);

	return i < job->work.nr && job->work.at[i]->rank == rank ? job->work.at[i] : NULL;
}

static struct rs_work_rank *make_rank(struct rs_job *job, uint32_t rank)
{
	size_t at = rank_slot(job, rank);
	struct rs_work_rank *r = rs_work_rank(job, rank);

	if (r)
		return r;
	r = sc_zalloc(sizeof(*r));
	if (!r || sc_vec_push(&job->work, r) < 0) {
		sc_sys.release(r);
		return NULL;
	}
	r->rank = rank;
	memmove(&job->work.at[at + 1], &job->work.at[at], (job->work.nr - 1 - at) * sizeof(r));
	return job->work.at[at] = r;
}

struct rs_work *rs_work_find(struct rs_job *job, uint32_t rank, const char *path)
{
	const struct rs_work_rank *r = rs_work_rank(job, rank);

	return r ? sc_map_get(&r->by_path, path, strlen(path)) : NULL;
}

bool rs_work_is_file(struct rs_job *job, uint64_t blob)
{
	const struct rs_work *w;
	bool is;

	(void)pthread_mutex_lock(&job->state);
	w = sc_map_get(&job->by_blob, (const char *)&blob, sizeof(blob));
	is = w && w->kind == META_WORK_FILE;
	(void)pthread_mutex_unlock(&job->state);
	return is;
}

static void trim_spare(struct rs_job *job)
{
	while (job->spare.nr > job->promised)
		sc_sys.release(job->spare.at[--job->spare.nr]);
}

int rs_work_reserve(struct rs_job *job, uint32_t rank, size_t more)
{
	struct rs_work_rank *r = make_rank(job, rank);
	size_t all = job->promised + more;	/* also of other ranks: they are few */

	if (!r || sc_map_reserve(&r->by_path, all) < 0 || sc_map_reserve(&job->by_blob, all) < 0)
		return -1;
	while (r->room < r->nr + all)
		if (sc_vec_grow((void **)&r->at, r->room, &r->room, sizeof(*r->at)) < 0)
			return -1;
	while (job->spare.nr < all) {
		struct rs_work *w = sc_zalloc(sizeof(*w));

		if (!w || sc_vec_push(&job->spare, w) < 0) {
			sc_sys.release(w);
			trim_spare(job);
			return -1;
		}
	}
	job->promised = all;
	return 0;
}

void rs_work_unreserve(struct rs_job *job, size_t nr)
{
	job->promised -= nr;
	trim_spare(job);
}

static bool is_dirty(const struct rs_work *w)
{
	return w->kind == META_WORK_FILE || w->kind == META_WORK_GONE;
}

void rs_work_put(struct rs_job *job, uint32_t rank, struct rs_work w)
{
	struct rs_work *mine = rs_work_find(job, rank, w.path);

	if (mine) {
		sc_map_drop(&job->by_blob, (const char *)&mine->blob, sizeof(mine->blob));
		job->dirty -= is_dirty(mine);
		w.slot = mine->slot;
	} else {
		struct rs_work_rank *r = rs_work_rank(job, rank);

		assert(job->spare.nr && r->nr < r->room); /* reserved */
		mine = job->spare.at[--job->spare.nr];
		w.slot = r->nr;
		r->at[r->nr++] = mine;
		(void)sc_map_put(&r->by_path, w.path, strlen(w.path), mine);
	}
	*mine = w;
	if (!*w.path)
		job->rank_folders = (struct rs_rank_folders){0};
	(void)sc_map_put(&job->by_blob, (const char *)&mine->blob, sizeof(mine->blob), mine);
	job->dirty += is_dirty(mine);
}

void rs_work_drop(struct rs_job *job, uint32_t rank, const char *path)
{
	struct rs_work *w = rs_work_find(job, rank, path), *last;
	struct rs_work_rank *r = rs_work_rank(job, rank);

	if (!w)
		return;
	job->dirty -= is_dirty(w);
	if (!*path)
		job->rank_folders = (struct rs_rank_folders){0};
	sc_map_drop(&job->by_blob, (const char *)&w->blob, sizeof(w->blob));
	sc_map_drop(&r->by_path, path, strlen(path));
	last = r->at[--r->nr];
	last->slot = w->slot;
	r->at[w->slot] = last;
	sc_sys.release(w);
}

static void clear(struct rs_job *job, bool all)
{
	size_t nr = 0;

	for (size_t i = 0; i < job->work.nr; i++) {
		struct rs_work_rank *r = job->work.at[i];

		for (size_t k = r->nr; k-- > 0;)
			if (all || !r->at[k]->stays)
				rs_work_drop(job, r->rank, r->at[k]->path);
	}
	for (size_t i = 0; i < job->work.nr; i++) {
		struct rs_work_rank *r = job->work.at[i];

		if (r->nr) {
			job->work.at[nr++] = r;
			continue;
		}
		sc_vec_done(r);
		sc_map_done(&r->by_path);
		sc_sys.release(r);
	}
	job->work.nr = nr;
	if (nr == 0)
		sc_map_done(&job->by_blob);
	trim_spare(job);
}

void rs_work_clear(struct rs_job *job, bool all)
{
	(void)pthread_mutex_lock(&job->state);
	clear(job, all);
	(void)pthread_mutex_unlock(&job->state);
}

void rs_work_show(struct rs_job *job, struct rs_view *head)
{
	struct rs_view *old;

	(void)pthread_mutex_lock(&job->state);
	clear(job, false);
	old = rs_job_set_head(job, head);
	(void)pthread_mutex_unlock(&job->state);
	rs_job_head_was_set(job, head, old);
}

int rs_work_rows(struct rs_job *job, uint32_t rank, struct rs_work_rows *ret, struct sc_err *err)
{
	const struct rs_work_rank *r;
	int rc = 0;

	(void)pthread_mutex_lock(&job->state);
	r = rs_work_rank(job, rank);
	for (size_t i = 0; r && i < r->nr && rc == 0; i++)
		rc = sc_vec_push(ret, *r->at[i]) < 0 ? sc_nomem(err) : 0;
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

/* The permission bits of a class of users.  Those who are in different classes of the two are taken for both. */
static void limit(struct rs_owner *file, const struct rs_owner *folder)
{
	bool group = folder->mode & 0010, others = folder->mode & 0001;

	if (folder->gid != file->gid)
		group = others = group && others;
	file->mode &= ~(mode_t)((group ? 0 : 0070) | (others ? 0 : 0007));
}

/* The folder of a rank that came with a topology is like those that ranks have made. */
static bool rank_folders(struct rs_job *job, struct rs_owner *ret)
{
	struct rs_rank_folders *f = &job->rank_folders;

	for (size_t i = 0; !f->known && i < job->work.nr; i++) {
		const struct rs_work *w = rs_work_find(job, job->work.at[i]->rank, "");

		if (!w || w->kind != META_WORK_DIR)
			continue;
		if (!f->any)
			f->all = (struct rs_owner){w->uid, w->gid, w->mode};
		f->any = true;
		f->all.mode &= w->mode;
		if (f->all.uid != w->uid)
			f->all.uid = job->uid;
		if (f->all.gid != w->gid) {
			f->all.gid = job->gid;
			f->all.mode &= 0700;
		}
	}
	f->known = true;
	*ret = f->all;
	return f->any;
}

void rs_owner_of_folder(struct rs_job *job, bool is_rank, struct rs_owner *ret)
{
	if (is_rank && rank_folders(job, ret))
		return;
	ret->uid = job->uid;
	ret->gid = job->gid;
	ret->mode = 0700 | (job->mode & 0010 ? 0050 : 0) | (job->mode & 0001 ? 0005 : 0);
	ret->mode |= job->mode & (S_ISGID | 0020); /* a job that its group may write */
}

void rs_owner_limit(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner)
{
	struct rs_work_rank *rows;
	bool made = rank == RS_SHARED;
	struct rs_owner folder;

	(void)pthread_mutex_lock(&job->state);
	rows = rs_work_rank(job, rank);
	for (size_t i = 0; rows && i < rows->nr; i++) {
		const struct rs_work *w = rows->at[i];
		size_t n = strlen(w->path);

		if (w->kind != META_WORK_DIR || (n && (strncmp(w->path, path, n) != 0 || path[n] != '/')))
			continue;
		folder = (struct rs_owner){w->uid, w->gid, w->mode};
		limit(owner, &folder);
		made |= n == 0;
	}
	if (!made && rank_folders(job, &folder))
		limit(owner, &folder);
	(void)pthread_mutex_unlock(&job->state);
}

int rs_work_own(int fd, const struct rs_owner *owner, const char *path, struct sc_err *err)
{
	/* without the privilege files stay the daemon's own */
	if (sc_sys.fchown(fd, owner->uid, owner->gid) < 0 && errno != EPERM)
		return sc_fail_sys(err, errno, "'%s': cannot set the owner", path);
	if (sc_sys.fchmod(fd, owner->mode & 07777) < 0)
		return sc_fail_sys(err, errno, "'%s': cannot set the mode", path);
	return 0;
}
