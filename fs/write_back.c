/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank has written a file: the device may begin with it, or commit would find all of a job's bytes dirty at
 * once.  Who begins a write-back waits for the device's queue, so one thread does it for all: a session's own
 * would be missed by other requests, and over io_uring a whole core's.
 *
 * Advice: nothing is promised here, and nothing is lost if it fails.
 */
#include "fs/fs_i.h"

#include <fcntl.h>

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
	int rc = pthread_create(&fs->write_back.thread, NULL, write_back, fs);

	if (rc)
		return sc_fail_sys(err, rc, "cannot start the write-back");
	(void)pthread_setname_np(fs->write_back.thread, "scalai-write");
	return 0;
}

void fs_write_back_stop(struct fs *fs)
{
	if (!fs->write_back.thread)
		return;
	(void)pthread_mutex_lock(&fs->write_back.lock);
	fs->write_back.stop = true;
	(void)pthread_cond_signal(&fs->write_back.wake);
	(void)pthread_mutex_unlock(&fs->write_back.lock);
	(void)pthread_join(fs->write_back.thread, NULL);
	sc_vec_done(&fs->write_back.files);
}
