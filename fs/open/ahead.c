/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps committed files open, and folders of versions where they are, ahead of threads that look again (lookup_again()
 * of op_dir.c finds them).  The kernel looks a path up again after ESTALE, once, and between two lookups of it, or the
 * last one and its open, a thread may be starved of CPU for as long as it takes to drop more versions than
 * reshard/version/state/leaving.c keeps; a second ESTALE would reach the program.
 *
 *  A1  What the lookup of a retrying thread has found is open until that thread's open is answered, or for
 *      RS_RESERVED_NS.
 *  A2  A folder of a version that the lookup of a retrying thread has found can be looked into, and listed, until that
 *      thread has found a file, or for RS_RESERVED_NS.
 *
 * An open file is a handle that no program has: it keeps view, rows and bytes as every handle does, and opens of the
 * same node find it (fs_handle_find()).  A folder keeps its view.  A daemon that takes over does not know of both.
 */
#include "fs/open/open.h"

#include "fs/node/node.h"
#include "reshard/worktree/requests/tree.h"

/* Takes entries out, under the lock: those of a thread, or (0) those whose time is over at `now`. */
static size_t take(struct fs *fs, pid_t thread, int64_t now, struct fs_ahead taken[FS_AHEAD_MAX])
{
	size_t nr = 0;

	for (size_t i = 0; i < FS_AHEAD_MAX; i++) {
		struct fs_ahead *a = &fs->ahead[i];

		if (!a->until_ns || (thread ? a->thread != thread : now < a->until_ns))
			continue;
		taken[nr++] = *a;
		*a = (struct fs_ahead){0};
	}
	return nr;
}

static void drop(struct fs *fs, const struct fs_ahead *a)
{
	if (a->fh)
		fs_handle_free(fs, fs_handle_take(fs, a->fh));
	if (a->view)
		rs_view_unpin(fs->service, a->view);
	rs_view_unref(fs->service, a->view);
}

static void end(struct fs *fs, pid_t thread, int64_t now)
{
	struct fs_ahead taken[FS_AHEAD_MAX];
	size_t nr;

	(void)pthread_mutex_lock(&fs->lock);
	nr = take(fs, thread, now, taken);
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; i < nr; i++)
		drop(fs, &taken[i]);
}

int64_t fs_ahead_due(struct fs *fs)
{
	int64_t due = 0;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_AHEAD_MAX; i++)
		if (fs->ahead[i].until_ns && (!due || fs->ahead[i].until_ns < due))
			due = fs->ahead[i].until_ns;
	(void)pthread_mutex_unlock(&fs->lock);
	return due;
}

void fs_ahead_expire(struct fs *fs)
{
	end(fs, 0, sc_now_ns());
}

void fs_ahead_end(struct fs *fs)
{
	end(fs, 0, INT64_MAX);
}

void fs_ahead_opened(struct fs *fs, pid_t thread)
{
	if (thread)
		end(fs, thread, 0);
}

/* Keeps an entry in the place of the same folder's (then *entry is what is to be dropped), or of the oldest one. */
static void keep(struct fs *fs, struct fs_ahead *entry)
{
	struct fs_ahead *a = fs->ahead, before;

	entry->until_ns = sc_now_ns() + RS_RESERVED_NS;
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 1; i < FS_AHEAD_MAX; i++)
		if (fs->ahead[i].until_ns < a->until_ns)
			a = &fs->ahead[i];
	for (size_t i = 0; i < FS_AHEAD_MAX; i++) /* threads of another process namespace share the number 0 */
		if (entry->view && fs->ahead[i].view == entry->view && fs->ahead[i].thread == entry->thread)
			a = &fs->ahead[i];
	before = *a;
	*a = *entry;
	(void)pthread_mutex_unlock(&fs->lock);
	drop(fs, &before);
	(void)pthread_mutex_lock(&fs->forget.lock); /* its thread ends those whose time is over */
	(void)pthread_cond_signal(&fs->forget.wake);
	(void)pthread_mutex_unlock(&fs->forget.lock);
}

void fs_ahead_keep(struct fs *fs, struct fs_handle *h, pid_t thread)
{
	fs_handle_committed(fs, h);
	keep(fs, &(struct fs_ahead){.fh = h->number, .thread = thread});
}

void fs_ahead_keep_folder(struct fs *fs, const struct fs_node *n, pid_t thread)
{
	struct rs_view *view = NULL;
	struct sc_err ignored;

	if (rs_view_at(fs->service, n->place, &view, &ignored) < 0)
		return; /* what is looked up in it fails, too, and says why */
	rs_view_pin(fs->service, view);
	keep(fs, &(struct fs_ahead){.view = view, .thread = thread});
}
