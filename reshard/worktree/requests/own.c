/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Begins and ends a working tree; knows its files with bytes of their own, by blob, and its objects that have no name
 * any more but are held (work.c has the invariants).
 */
#include "reshard/worktree/requests/requests_i.h"

#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "meta/catalog/trees.h"

#define KEY(number) (const char *)&(number), sizeof(number)

/* --- files with bytes of their own: N4 --- */

struct rs_own *rs_own_new(struct sc_map *map, uint64_t blob, uint64_t ino)
{
	struct rs_own *own = sc_map_reserve(map, 1) < 0 ? NULL : sc_zalloc(sizeof(*own));

	if (own)
		*own = (struct rs_own){blob, ino};
	return own;
}

void rs_own_put(struct sc_map *map, struct rs_own *own)
{
	(void)sc_map_put(map, KEY(own->blob), own); /* reserved */
}

static void own_drop(struct sc_map *map, uint64_t blob)
{
	struct rs_own *own = sc_map_get(map, KEY(blob));

	sc_map_drop(map, KEY(blob));
	sc_sys.release(own);
}

uint64_t rs_own_find(const struct sc_map *map, uint64_t blob)
{
	const struct rs_own *own = sc_map_get(map, KEY(blob));

	return own ? own->ino : 0;
}

int rs_own_of_rows(const struct meta_changes *rows, struct sc_map *ret, struct sc_err *err)
{
	for (size_t i = 0; i < rows->nr; i++) {
		const struct meta_change *x = &rows->at[i];
		struct rs_own *own;

		if (x->kind != META_PUT_INODE || x->inode.data != META_OWN_DATA)
			continue;
		own = rs_own_new(ret, x->inode.blob, x->inode.ino);
		if (!own)
			return sc_nomem(err);
		rs_own_put(ret, own);
	}
	return 0;
}

#define SEALED_MAX 65536

void rs_own_sealed(struct rs_job *job, const struct sc_map *stay)
{
	struct sc_map *now = &job->sealed[0];

	if (now->nr + job->by_blob.nr > SEALED_MAX) {
		sc_map_release(&job->sealed[1]);
		job->sealed[1] = *now;
		*now = (struct sc_map){0};
	}
	for (size_t i = 0; i < job->by_blob.room; i++) {
		const struct rs_own *own = job->by_blob.slots[i].value;
		const bool is_new = own && !rs_own_find(now, own->blob) && !rs_own_find(stay, own->blob);
		struct rs_own *copy = is_new ? rs_own_new(now, own->blob, own->ino) : NULL;

		if (copy) /* else: who has it open by this blob is told to look again */
			rs_own_put(now, copy);
	}
}

void rs_tree_was_of(struct rs_job *job, uint64_t blob, uint64_t ino)
{
	struct rs_own *own;

	(void)pthread_rwlock_wrlock(&job->names);
	if (!rs_own_find(&job->by_blob, blob) && !rs_own_find(&job->sealed[0], blob)) {
		own = rs_own_new(&job->sealed[0], blob, ino);
		if (own)
			rs_own_put(&job->sealed[0], own);
	}
	(void)pthread_rwlock_unlock(&job->names);
}

bool rs_work_is(struct rs_service *s, struct rs_job *job, uint64_t blob)
{
	bool is;

	(void)s;
	(void)pthread_rwlock_rdlock(&job->names);
	is = rs_own_find(&job->by_blob, blob) != 0;
	(void)pthread_rwlock_unlock(&job->names);
	return is;
}

int rs_tree_of_blob(struct rs_service *s, struct rs_job *job, uint64_t blob, uint64_t *ret, struct sc_err *err)
{
	uint64_t ino;

	(void)s;
	(void)err;
	(void)pthread_rwlock_rdlock(&job->names);
	ino = rs_own_find(&job->by_blob, blob);
	for (int i = 0; !ino && i < 2; i++)
		ino = rs_own_find(&job->sealed[i], blob);
	*ret = ino ? rs_overlay_shown(job->overlay, ino) : 0;
	(void)pthread_rwlock_unlock(&job->names);
	return 0;
}

/* --- what has no name --- */

void rs_count_nameless(struct rs_job *job)
{
	size_t now = rs_overlay_nameless(job->overlay);

	(void)__atomic_add_fetch(&job->service->requests->nameless, now - job->nameless, __ATOMIC_RELAXED);
	job->nameless = now;
}

void rs_uncount_nameless(struct rs_job *job)
{
	(void)__atomic_sub_fetch(&job->service->requests->nameless, job->nameless, __ATOMIC_RELAXED);
}

bool rs_tree_any_nameless(struct rs_service *s)
{
	return __atomic_load_n(&s->requests->nameless, __ATOMIC_RELAXED) != 0;
}

static bool row_is_nameless(const struct meta_inode_row *row)
{
	return row->nlink == 0 && row->data != META_FORGOTTEN;
}

static bool nameless_row(struct rs_job *job, uint64_t ino, struct meta_inode_row *ret)
{
	struct sc_arena texts = {0};
	struct sc_err ignored;
	int rc = rs_overlay_has(job->overlay, ino) ? rs_overlay_inode(job->overlay, ino, &texts, ret, &ignored) : 0;

	sc_arena_done(&texts);
	return rc > 0 && row_is_nameless(ret);
}

bool rs_tree_is_nameless(struct rs_service *s, struct rs_job *job, uint64_t ino)
{
	struct meta_inode_row row;
	bool is;

	(void)s;
	(void)pthread_rwlock_rdlock(&job->names);
	is = nameless_row(job, rs_overlay_of_shown(job->overlay, ino), &row);
	(void)pthread_rwlock_unlock(&job->names);
	return is;
}

int rs_tree_forget(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_err *err)
{
	struct meta_inode_row row = {0};
	bool is;
	int rc = 0;

	(void)pthread_rwlock_wrlock(&job->names);
	ino = rs_overlay_of_shown(job->overlay, ino);
	is = nameless_row(job, ino, &row);
	if (is)
		rc = rs_overlay_forget(job->overlay, ino, err);
	if (is && rc == 0 && row.data == META_OWN_DATA)
		own_drop(&job->by_blob, row.blob);
	rs_count_nameless(job);
	(void)pthread_rwlock_unlock(&job->names);
	if (is && rc == 0 && row.data == META_OWN_DATA)
		rc = rs_remove_bytes(s, row.blob, err);
	return rc;
}

struct nameless {
	struct {
		size_t nr, room;
		struct rs_own *at;
	} all;
	struct rs_overlay *o;
};

static int on_nameless(void *arg, const struct meta_inode_row *row)
{
	struct nameless *n = arg;
	struct rs_own x = {row->data == META_OWN_DATA ? row->blob : 0, rs_overlay_shown(n->o, row->ino)};

	return row_is_nameless(row) && sc_vec_push(&n->all, x) < 0 ? SC_E_NO_MEMORY : 0;
}

int rs_tree_each_nameless(struct rs_service *s, int (*each)(void *arg, struct rs_job *job, uint64_t ino, uint64_t blob),
			  void *arg)
{
	struct rs_job *job;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (job = rs_job_at(s, i)); i++) {
		struct nameless n = {.o = job->overlay};

		if (rs_job_is_removed(job))
			continue;
		(void)pthread_rwlock_rdlock(&job->names);
		rc = rs_overlay_each(job->overlay, on_nameless, &n);
		(void)pthread_rwlock_unlock(&job->names);
		for (size_t k = 0; rc == 0 && k < n.all.nr; k++)
			rc = each(arg, job, n.all.at[k].ino, n.all.at[k].blob);
		sc_vec_done(&n.all);
	}
	return rc;
}
