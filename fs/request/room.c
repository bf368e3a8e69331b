/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for space in the store.  The daemon frees the bytes of a removed file when the kernel has forgotten the file
 * (forget.c), a moment after unlink(2) has returned.  A program that removes a file because there is no space, and then
 * asks how much there is or writes another file, would come too early without these waits.  The daemon cannot tell a
 * file that a process still holds from one that the kernel is about to forget, so it waits shortly for files without a
 * name, and longer for those that the kernel has forgotten.
 */
#include "fs/request/request.h"

#include "meta/base/turns.h"

#define FORGOTTEN_NS INT64_C(100000000)
#define HELD_NS INT64_C(50000000)
#define TURN_NS INT64_C(10000000)
#define LOW_BYTES (UINT64_C(256) << 20)	/* takes longer to be written */

/* Waits for the bytes of removed files; returns whether there was anything to wait for. */
static bool wait_for(struct fs *fs, int64_t held_ns)
{
	struct sc_turns turns = {.turn_ns = TURN_NS};
	bool any = false;

	if (!fs->forget.thread.started)
		return false;
	(void)pthread_mutex_lock(&fs->forget.lock);
	while (!fs->forget.stop) {
		const bool is_forgotten = fs->forget.nodes.nr || fs->forget.is_busy;

		if (!is_forgotten && !rs_tree_any_nameless(fs->service))
			break;
		any = true;
		if (turns.waited_ns >= (is_forgotten ? FORGOTTEN_NS : held_ns))
			break;
		(void)sc_sys.wait_until(&fs->forget.settled, &fs->forget.lock, sc_turn_begin(&turns));
		sc_turn_end(&turns);
	}
	(void)pthread_mutex_unlock(&fs->forget.lock);
	return any;
}

bool fs_room_for_command(struct fs *fs)
{
	return wait_for(fs, FORGOTTEN_NS);
}

void fs_room_for_file(struct fs *fs)
{
	struct statvfs st;

	if (rs_tree_any_nameless(fs->service) && sc_sys.fstatvfs(rs_service_store(fs->service)->dir, &st) == 0 &&
	    (uint64_t)st.f_bavail * st.f_frsize < LOW_BYTES)
		(void)wait_for(fs, HELD_NS);
}

void fs_room_to_show(struct fs *fs)
{
	(void)wait_for(fs, HELD_NS);
}
