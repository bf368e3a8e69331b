/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room in the store.  Bytes of a removed file are given back when the kernel has forgotten it (forget.c), a moment
 * after unlink(2) has returned.  Who removes a file because there is no room, and then tries again, must not come too
 * early.
 */
#include "fs/fs_i.h"

#include <errno.h>

#define MOMENT_NS INT64_C(100000000)

static bool is_any_left(const struct fs *fs)
{
	return rs_tree_any_nameless(fs->service) || fs->forget.nodes.nr || fs->forget.is_busy;
}

bool fs_room_wait(struct fs *fs)
{
	const int64_t until = sc_now_ns() + MOMENT_NS;
	bool any;

	if (!fs->forget.started)
		return false;
	(void)pthread_mutex_lock(&fs->forget.lock);
	any = is_any_left(fs);
	while (is_any_left(fs) && !fs->forget.stop)
		if (sc_sys.wait_until(&fs->forget.settled, &fs->forget.lock, until) == ETIMEDOUT)
			break;
	(void)pthread_mutex_unlock(&fs->forget.lock);
	return any;
}
