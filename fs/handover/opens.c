/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps open files as the next daemon has to know them.  An open file stays what it was, whatever becomes of its
 * version; by these rules also if the daemon is killed meanwhile.
 *
 *  O1  An entry is made before OPEN is answered, and removed before RELEASE is.
 *  O2  A file is not removed while an entry has its blob: the next daemon holds all of them before it looks for
 *      garbage (rs_options.open).  The rows of a version outlive the handles of its views
 *  (reshard/worktree/requests/hidden.c). O3  A daemon that takes over makes a handle of each entry before it serves,
 *  with its view, its blob and its size
 *      (takeover.c), and opens it when the first read comes (reopen.c).
 *
 * An OPEN that was not answered is resent and makes an entry of its own.  So an entry that is neither known to be
 * answered nor named by a request within LOST_NS is nobody's; if it is somebody's all the same (the daemon was killed
 * in the instant after its answer), his file is what its node is from then on.  A file that finds no free entry, too.
 */
#include "fs/handover/handover.h"

#include "fs/handover/hold.h"

void fs_open_keep(struct fs *fs, struct fs_handle *h)
{
	struct fs_kept *kept = fs->kept;
	uint32_t at = FS_OPENS_MAX;

	if (!kept->init_bytes) /* no other daemon follows */
		return;
	(void)pthread_mutex_lock(&fs->lock);
	if (fs->free_opens.nr)
		at = fs->free_opens.at[--fs->free_opens.nr];
	else if (kept->nr_opens < FS_OPENS_MAX)
		at = kept->nr_opens++;
	if (at < FS_OPENS_MAX) {
		kept->opens[at] = (struct fs_open){.ino = h->ino, .bytes = h->bytes, .writes = h->writes,
						   .passes = h->kind == FS_H_PASS};
		kept->open_blobs[at] = h->held;
		__atomic_store_n(&kept->opens[at].fh, h->number, __ATOMIC_RELEASE);
		h->kept = at + 1;
	}
	(void)pthread_mutex_unlock(&fs->lock);
}

void fs_open_answered(struct fs *fs, uint32_t kept, uint64_t fh)
{
	if (!kept)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	if (fs->kept->opens[kept - 1].fh == fh)
		fs->kept->opens[kept - 1].answered = true;
	(void)pthread_mutex_unlock(&fs->lock);
}

void fs_open_forget(struct fs *fs, uint32_t at)
{
	__atomic_store_n(&fs->kept->opens[at].fh, 0, __ATOMIC_RELEASE);
	fs->kept->open_blobs[at] = 0;
	(void)sc_vec_push(&fs->free_opens, at); /* else: the entry is lost until the next daemon */
}

void fs_open_drop(struct fs *fs, struct fs_handle *h)
{
	if (h->kept)
		fs_open_forget(fs, h->kept - 1);
	h->kept = 0;
}
