/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After ESTALE the kernel looks a path up again, once; a second ESTALE would reach the program.  So threads that got
 * ESTALE are remembered for a moment: what their next lookup finds is reserved for them (op_lookup), and their next
 * open gets it as it was found.  Clients in another process namespace have no thread id (0), so they all share one
 * entry.
 */
#include "fs/fs_i.h"

#define AGAIN_NS 1000000000

void fs_told_stale(struct fs *fs, pid_t thread)
{
	struct fs_told_stale *told = fs->kept->told_stale;
	size_t at = 0;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 1; i < FS_TOLD_STALE; i++)
		if (told[i].ns < told[at].ns)
			at = i;
	told[at] = (struct fs_told_stale){sc_now_ns(), thread};
	__atomic_store_n(&fs->are_told_stale, true, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
}

bool fs_looks_again(struct fs *fs, pid_t thread, bool ends)
{
	bool again = false, others = false;
	int64_t now;

	if (!__atomic_load_n(&fs->are_told_stale, __ATOMIC_ACQUIRE))
		return false;
	now = sc_now_ns();
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_TOLD_STALE; i++) {
		struct fs_told_stale *t = &fs->kept->told_stale[i];
		bool is_mine = t->ns && t->thread == thread;

		again |= is_mine && now - t->ns < AGAIN_NS;
		if (is_mine && ends)
			t->ns = 0;
		others |= t->ns != 0;
	}
	__atomic_store_n(&fs->are_told_stale, others, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
	return again;
}
