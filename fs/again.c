/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel looks a path up again after ESTALE, once; a second ESTALE is the program's.  So who was
 * told to look again, a moment ago, gets what the name leads to when it is looked up: the version of
 * that moment, entirely, though another one may be the head, and that one be gone, when it is opened.
 */
#include "fs/fs_i.h"

#define AGAIN_NS 1000000000

void fs_told_stale(struct fs *fs, pid_t thread)
{
	struct rs_view *old;
	size_t at = 0;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 1; i < FS_TOLD_STALE; i++)
		if (fs->told_stale[i].ns < fs->told_stale[at].ns)
			at = i;
	old = fs->told_stale[at].found;
	fs->told_stale[at] = (struct fs_told_stale){thread, sc_now_ns(), NULL};
	__atomic_store_n(&fs->are_told_stale, true, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
	rs_view_unref(fs->service, old);
}

void fs_found_again(struct fs *fs, pid_t thread, struct rs_view *view)
{
	bool taken = false;

	if (!__atomic_load_n(&fs->are_told_stale, __ATOMIC_ACQUIRE)) {
		rs_view_unref(fs->service, view);
		return;
	}
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; !taken && i < FS_TOLD_STALE; i++)
		if (fs->told_stale[i].thread == thread && fs->told_stale[i].ns) {
			struct rs_view *old = fs->told_stale[i].found;

			fs->told_stale[i].found = view;
			view = old;
			taken = true;
		}
	(void)pthread_mutex_unlock(&fs->lock);
	rs_view_unref(fs->service, view);
}

struct rs_view *fs_again_view(struct fs *fs, uint64_t id)
{
	struct rs_view *view = NULL;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; !view && i < FS_TOLD_STALE; i++)
		if (fs->told_stale[i].found && rs_view_id(fs->told_stale[i].found) == id)
			view = rs_view_ref(fs->told_stale[i].found);
	(void)pthread_mutex_unlock(&fs->lock);
	return view;
}

bool fs_looks_again(struct fs *fs, pid_t thread, struct rs_view **ret)
{
	bool again = false, others = false;
	int64_t now;

	*ret = NULL;
	if (!__atomic_load_n(&fs->are_told_stale, __ATOMIC_ACQUIRE))
		return false;
	now = sc_now_ns();
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_TOLD_STALE; i++) {
		struct fs_told_stale *t = &fs->told_stale[i];

		if (!t->ns || t->thread != thread || *ret) {
			others |= t->ns != 0;
			continue;
		}
		again |= now - t->ns < AGAIN_NS;
		*ret = sc_steal(&t->found);
		t->ns = 0;
	}
	__atomic_store_n(&fs->are_told_stale, others, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
	return again;
}

void fs_again_done(struct fs *fs)
{
	for (size_t i = 0; i < FS_TOLD_STALE; i++)
		rs_view_unref(fs->service, fs->told_stale[i].found);
}
