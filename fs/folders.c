/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes of folders that the kernel keeps.  When a program makes or removes a name, the kernel takes what it knows
 * of the folder for old.  But where it was told attributes before that, and a process takes its answer only after it,
 * these become what it knows, and it would keep them: time and link count of before, for ever.  So
 *
 *  F1  what was told of a folder is noted before it is certain that nothing has changed since it was looked up (else
 *      the kernel may not keep it), and
 *  F2  who changes a folder looks, after the change and before his reply, whether the kernel was told of it a moment
 *      ago for somebody else, and then makes it ask again: what is under way then comes too late and is dropped.
 *
 * A thread that only changes a folder itself has taken its answers before, and pays nothing.
 */
#include "fs/fs_i.h"

#include <xxhash.h>

#define MOMENT_NS INT64_C(10000000000)	/* longer than a process waits for a processor */

static bool is_folder(const struct fs_node *n)
{
	return n->kind == FS_INODE || n->kind == FS_IMPLIED || n->kind == FS_JOB;
}

static struct fs_folder_told *told_of(struct fs *fs, fuse_ino_t ino)
{
	return &fs->told[XXH3_64bits(&ino, sizeof(ino)) % FS_FOLDERS_TOLD];
}

void fs_folder_told(fuse_req_t req, struct fs *fs, struct fs_found *found)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	struct fs_folder_told *told;
	struct rs_job *job;
	int64_t now;

	if (!is_folder(&found->node) || !S_ISDIR(found->st.st_mode) || found->timeout <= 0)
		return;
	told = told_of(fs, fs_node_id(found->node));
	now = sc_now_ns();
	(void)pthread_mutex_lock(&fs->lock);
	if (now - told->ns >= MOMENT_NS)
		told->several = false;
	else
		told->several |= told->thread != thread;
	told->several |= !thread; /* of another process namespace: it may be anybody */
	told->thread = thread;
	told->ns = now;
	(void)pthread_mutex_unlock(&fs->lock);
	job = fs_job(fs, &found->node);
	if (!job || rs_tree_applied(job) != found->changes)
		found->timeout = 0;
}

void fs_folder_changed(fuse_req_t req, struct fs *fs, fuse_ino_t ino)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	const int64_t now = sc_now_ns();
	struct fs_folder_told *told = told_of(fs, ino);
	bool tell;

	(void)pthread_mutex_lock(&fs->lock);
	tell = now - told->ns < MOMENT_NS && (told->several || told->thread != thread);
	/* the daemon before this one may have told it */
	tell |= now - fs->took_over_ns < MOMENT_NS;
	if (tell)
		*told = (struct fs_folder_told){.ns = now - MOMENT_NS};
	(void)pthread_mutex_unlock(&fs->lock);
	if (tell)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
}
