/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts writing a file to the device when a rank has closed it, so that a commit does not find all of a job's bytes
 * dirty at once.  Starting write-back can block on the device's queue.  A FUSE worker must not block (over io_uring it
 * would stall a whole core), so a dedicated thread does it.
 *
 * Failures are ignored: write-back is only advice, and nothing is lost.
 */
#include "fs/background/background.h"

#include <fcntl.h>

#include "fs/node/node.h"
#include "fs/open/open.h"

static void begin(struct fs *fs, fuse_ino_t ino)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct fs_node n = fs_node_of(ino);
	struct rs_job *job = fs_job(fs, &n);
	struct sc_err err;

	if (job && rs_job_syncs(job) && fs_open_bytes(fs, ino, O_RDONLY, &fd, &err) == 0)
		(void)sc_sys.begin_write_back(fd);
}

static void *write_back(void *arg)
{
	struct fs *fs = arg;

	(void)pthread_mutex_lock(&fs->write_back.lock);
	while (!fs->write_back.stop) {
		struct fs_written all = fs->write_back.files;

		if (!all.nr) {
			(void)pthread_cond_wait(&fs->write_back.wake, &fs->write_back.lock);
			continue;
		}
		fs->write_back.files = (struct fs_written){0};
		for (size_t i = 0; i < all.nr && !fs->write_back.stop; i++) {
			(void)pthread_mutex_unlock(&fs->write_back.lock);
			begin(fs, all.at[i]);
			(void)pthread_mutex_lock(&fs->write_back.lock);
		}
		sc_vec_done(&all);
	}
	(void)pthread_mutex_unlock(&fs->write_back.lock);
	return NULL;
}

void fs_write_back(struct fs *fs, fuse_ino_t ino)
{
	(void)pthread_mutex_lock(&fs->write_back.lock);
	if (sc_vec_push(&fs->write_back.files, ino) == 0)
		(void)pthread_cond_signal(&fs->write_back.wake);
	(void)pthread_mutex_unlock(&fs->write_back.lock);
}

int fs_write_back_start(struct fs *fs, struct sc_err *err)
{
	return sc_thread_start(&fs->write_back.thread, "scalai-write", write_back, fs, err);
}

void fs_write_back_stop(struct fs *fs)
{
	if (!fs->write_back.thread.started)
		return;
	(void)pthread_mutex_lock(&fs->write_back.lock);
	fs->write_back.stop = true;
	(void)pthread_cond_signal(&fs->write_back.wake);
	(void)pthread_mutex_unlock(&fs->write_back.lock);
	sc_thread_join(&fs->write_back.thread);
	sc_vec_done(&fs->write_back.files);
}
