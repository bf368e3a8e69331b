/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether the kernel may keep the attributes of a folder.  When a program makes or removes a name, the kernel
 * takes the attributes that it knows of the folder for old.  But if it was told attributes before that, and a process
 * takes the answer only afterwards, the kernel would keep these: time and link count from before, for ever.  So
 *
 *  F1  what was told of a folder is noted before it is certain that nothing has changed since it was looked up (else
 *      the kernel may not keep it), and
 *  F2  who changes a folder looks, after the change and before his reply, whether the kernel was told of it a moment
 *      ago for somebody else, and then makes it ask again: what is under way then comes too late and is dropped.
 *  F3  What is told while one program changes a folder and another asks for it, within a tenth of a second, is not
 *      kept.  The kernel takes an answer in several steps and marks the attributes as new in the first one, so who
 *      reads them beside it would see the ones of before his own change (1 in 25,000 times).
 *
 * A thread that only changes a folder itself has taken its answers before, and pays nothing.
 */
#include "fs/cache/cache.h"

#include <xxhash.h>

#include "fs/node/node.h"

#define MOMENT_NS INT64_C(10000000000)	/* longer than a process waits for a processor */
#define CLOSE_NS INT64_C(100000000)	/* longer than the kernel takes to take an answer */

static bool is_folder(const struct fs_node *n)
{
	return n->kind == FS_INODE || n->kind == FS_IMPLIED || n->kind == FS_JOB;
}

static struct fs_folder_told *told_of(struct fs *fs, fuse_ino_t ino)
{
	return &fs->told[XXH3_64bits(&ino, sizeof(ino)) % FS_FOLDERS_TOLD];
}

static bool is_live(const struct fs_folder_told *told, int64_t now)
{
	return now - told->ns < MOMENT_NS;
}

static struct fs_folder_told nothing_told(fuse_ino_t ino, pid_t thread, int64_t now)
{
	return (struct fs_folder_told){.ino = ino, .ns = now, .thread = thread, .other_ns = now - MOMENT_NS,
				       .changed_ns = now - MOMENT_NS};
}

/* Notes which thread asks for a folder (F1).  Returns whether the kernel may keep the answer (F3). */
static bool note(struct fs_folder_told *told, fuse_ino_t ino, pid_t thread, int64_t now)
{
	if (!is_live(told, now))
		*told = nothing_told(ino, thread, now);
	told->is_shared |= told->ino != ino;
	/* 0: of another process namespace, so it may be anybody */
	if (!thread || told->thread != thread) {
		told->is_other = true;
		told->other_ns = now;
	}
	told->thread = thread;
	told->ns = now;
	return now - told->other_ns >= CLOSE_NS || now - told->changed_ns >= CLOSE_NS;
}

/* Notes which thread has changed a folder.  Returns whether the kernel may keep the attributes that it was told for
 * another thread (F2): none that it was told within CLOSE_NS before the change. */
static bool note_change(struct fs_folder_told *told, fuse_ino_t ino, pid_t thread, int64_t now)
{
	bool is_kept;

	if (!is_live(told, now))
		*told = nothing_told(ino, thread, now);
	if (told->ino != ino && !told->is_shared)
		return false;
	is_kept = told->is_shared ||
		  ((told->is_other || told->thread != thread) && now - told->changed_ns >= CLOSE_NS);
	told->is_other = false;
	told->thread = thread;
	told->changed_ns = now;
	return is_kept;
}

void fs_folder_told(fuse_req_t req, struct fs *fs, struct fs_found *found)
{
	const fuse_ino_t ino = fs_node_id(found->node);
	struct rs_job *job;

	if (!is_folder(&found->node) || !S_ISDIR(found->st.st_mode) || found->timeout <= 0)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	if (!note(told_of(fs, ino), ino, fuse_req_ctx(req)->pid, sc_now_ns()))
		found->timeout = 0;
	(void)pthread_mutex_unlock(&fs->lock);
	job = fs_job(fs, &found->node);
	if (!job || rs_tree_applied(job) != found->changes)
		found->timeout = 0;
}

void fs_folder_changed(fuse_req_t req, struct fs *fs, fuse_ino_t ino)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	int64_t now;
	bool tell;

	(void)pthread_mutex_lock(&fs->lock);
	now = sc_now_ns();
	tell = note_change(told_of(fs, ino), ino, thread, now);
	/* the daemon before this one may have told it */
	tell |= now - fs->took_over_ns < MOMENT_NS;
	(void)pthread_mutex_unlock(&fs->lock);
	if (tell)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
}
