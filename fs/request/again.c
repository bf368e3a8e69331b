/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After ESTALE the kernel looks a path up again, once; a second ESTALE would reach the program.  So threads that got
 * ESTALE are remembered for a moment: what their next lookup finds is reserved for them (op_lookup), and their next
 * open gets it as it was found.  The entries are in memory that the next daemon has, too, and end after the open is
 * answered: an open that is resent because its daemon died is still the open of a retry.
 *
 * Clients in another process namespace have no thread id (0): nobody can tell who of them retries.  So an entry of
 * theirs lasts for RS_RESERVED_NS, and the open of any of them counts as a retry meanwhile.
 */
#include "fs/request/request.h"

#include "fs/handover/hold.h"

void fs_told_stale(struct fs *fs, pid_t thread, bool copies)
{
	struct fs_told_stale *told = fs->kept->told_stale;
	size_t at = 0;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 1; i < FS_TOLD_STALE; i++)
		if (told[i].ns < told[at].ns)
			at = i;
	told[at] = (struct fs_told_stale){sc_now_ns(), thread, copies};
	__atomic_store_n(&fs->are_told_stale, true, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
}

int64_t fs_looks_again(struct fs *fs, pid_t thread, bool *ret_copies)
{
	int64_t now, told = 0;

	*ret_copies = false;
	if (!__atomic_load_n(&fs->are_told_stale, __ATOMIC_ACQUIRE))
		return 0;
	now = sc_now_ns();
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_TOLD_STALE; i++) {
		const struct fs_told_stale *t = &fs->kept->told_stale[i];

		if (t->thread != thread || !t->ns || now - t->ns >= RS_RESERVED_NS)
			continue;
		told = t->ns > told ? t->ns : told;
		*ret_copies |= t->copies;
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return told;
}

void fs_looked_again(struct fs *fs, pid_t thread, int64_t told)
{
	bool others = false;

	if (!told || !thread)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < FS_TOLD_STALE; i++) {
		struct fs_told_stale *t = &fs->kept->told_stale[i];

		if (t->thread == thread && t->ns <= told)
			t->ns = 0;
		others |= t->ns != 0;
	}
	__atomic_store_n(&fs->are_told_stale, others, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
}
