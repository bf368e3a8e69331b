/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps committed files open ahead of threads that look again (lookup_again() of op_dir.c opens them).  The kernel
 * looks a path up again after ESTALE, once, and between its lookup and its open a thread may be starved of CPU for as
 * long as it takes to drop more versions than reshard/version/state/leaving.c keeps; a second ESTALE would reach the
 * program.
 *
 *  A1  What the lookup of a retrying thread has found is open until that thread's open is answered, or for
 *      RS_RESERVED_NS.
 *
 * Such an open is a handle that no program has: it keeps view, rows and bytes as every handle does, and opens of the
 * same node find it (fs_handle_find()).  A daemon that takes over does not know of it.
 */
#include "fs/open/open.h"

#include "reshard/worktree/requests/tree.h"

/* Takes entries out, under the lock: those of a thread, or (0) those whose time is over at `now`. */
static size_t take(struct fs *fs, pid_t thread, int64_t now, uint64_t fhs[FS_AHEAD_MAX])
{
	size_t nr = 0;

	for (size_t i = 0; i < FS_AHEAD_MAX; i++) {
		struct fs_ahead *a = &fs->ahead[i];

		if (!a->fh || (thread ? a->thread != thread : now < a->until_ns))
			continue;
		fhs[nr++] = a->fh;
		*a = (struct fs_ahead){0};
	}
	return nr;
}

static void end(struct fs *fs, pid_t thread)
{
	uint64_t fhs[FS_AHEAD_MAX];
	size_t nr;

	(void)pthread_mutex_lock(&fs->lock);
	nr = take(fs, thread, sc_now_ns(), fhs);
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; i < nr; i++)
		fs_handle_free(fs, fs_handle_take(fs, fhs[i]));
}

int64_t fs_ahead_due(struct fs *fs)
{
	int64_t due = 0;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_AHEAD_MAX; i++)
		if (fs->ahead[i].fh && (!due || fs->ahead[i].until_ns < due))
			due = fs->ahead[i].until_ns;
	(void)pthread_mutex_unlock(&fs->lock);
	return due;
}

void fs_ahead_expire(struct fs *fs)
{
	end(fs, 0);
}

void fs_ahead_opened(struct fs *fs, pid_t thread)
{
	if (thread)
		end(fs, thread);
}

void fs_ahead_keep(struct fs *fs, struct fs_handle *h, pid_t thread)
{
	struct fs_ahead *a = fs->ahead;
	uint64_t before;

	fs_handle_committed(fs, h);
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 1; i < FS_AHEAD_MAX; i++)
		if (fs->ahead[i].until_ns < a->until_ns)
			a = &fs->ahead[i];
	before = a->fh;
	*a = (struct fs_ahead){h->number, sc_now_ns() + RS_RESERVED_NS, thread};
	(void)pthread_mutex_unlock(&fs->lock);
	fs_handle_free(fs, before ? fs_handle_take(fs, before) : NULL);
	(void)pthread_mutex_lock(&fs->forget.lock); /* its thread ends those whose time is over */
	(void)pthread_cond_signal(&fs->forget.wake);
	(void)pthread_mutex_unlock(&fs->forget.lock);
}
