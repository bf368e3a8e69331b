/* SPDX-License-Identifier: Apache-2.0 */
/* The backing files of passthrough inodes: one for each inode that the kernel reads and writes by itself. */
#include "fs/open/open.h"

#include "fs/handover/hold.h"
#include "fs/node/node.h"

/* Holds a file of a working tree that the kernel reads or writes: it is open, also if a daemon before this one opened
 * it. */
static int hold(struct fs *fs, uint64_t ino)
{
	struct fs_node n = fs_node_of(ino);
	struct sc_err ignored;

	return n.kind == FS_WORK ? rs_work_hold(fs->service, n.blob, &ignored) : 0;
}

static void release(struct fs *fs, uint64_t ino)
{
	struct fs_node n = fs_node_of(ino);

	if (n.kind == FS_WORK)
		rs_work_release(fs->service, n.blob);
}

static struct fs_backing *find_backing(struct fs *fs, uint64_t ino)
{
	for (size_t i = 0; i < fs->kept->nr_backings; i++)
		if (fs->kept->backings[i].ino == ino)
			return &fs->kept->backings[i];
	return NULL;
}

bool fs_passthrough(fuse_req_t req, struct fs *fs, uint64_t ino, int *fd, struct fuse_file_info *fi)
{
	struct fs_backing *b;
	bool done = false;

	if (!fs->passthrough)
		return false;
	(void)pthread_mutex_lock(&fs->lock);
	b = find_backing(fs, ino);
	if (!b) {
		struct fs_kept *kept = fs->kept;
		struct fs_backing fresh = {.ino = ino, .id = -1};

		/* a refusal is of this open only; the reason may be gone at the next */
		if (kept->nr_backings < FS_BACKINGS_MAX && hold(fs, ino) == 0) {
			fresh.id = fuse_passthrough_open(req, *fd);
			if (fresh.id <= 0)
				release(fs, ino);
		}
		if (fresh.id > 0) {
			fresh.opens = 1;
			kept->backings[kept->nr_backings] = fresh;
			__atomic_store_n(&kept->nr_backings, kept->nr_backings + 1, __ATOMIC_SEQ_CST);
			fi->backing_id = fresh.id;
			done = true;
		}
	}
	if (b) {
		b->opens++;
		fi->backing_id = b->id;
		done = true;
	}
	(void)pthread_mutex_unlock(&fs->lock);
	if (done)
		sc_closep(fd); /* the kernel has its own reference */
	return done;
}

/*
 * The daemon may be killed at any point of the functions below, and the next one goes on with the table.  So an entry
 * is there only while the kernel knows its number; at worst a number is lost that nobody closes.
 */
static void drop_backing(struct fs_kept *kept, struct fs_backing *b)
{
	b->opens = 0;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*b = kept->backings[kept->nr_backings - 1];
	__atomic_store_n(&kept->nr_backings, kept->nr_backings - 1, __ATOMIC_SEQ_CST);
}

void fs_backings_check(struct fs *fs)
{
	struct fs_kept *kept = fs->kept;

	/* the last one, copied to where another was, and still there */
	for (uint32_t i = 0; kept->nr_backings && i + 1 < kept->nr_backings; i++)
		if (kept->backings[i].ino == kept->backings[kept->nr_backings - 1].ino)
			kept->nr_backings--;
	for (uint32_t i = kept->nr_backings; i > 0; i--)
		if (kept->backings[i - 1].opens == 0 || hold(fs, kept->backings[i - 1].ino) < 0)
			drop_backing(kept, &kept->backings[i - 1]);
}

void fs_passthrough_end(fuse_req_t req, struct fs *fs, uint64_t ino)
{
	struct fs_backing *b;
	int id = -1;

	(void)pthread_mutex_lock(&fs->lock);
	b = find_backing(fs, ino);
	if (b && b->opens > 1) {
		b->opens--;
	} else if (b) {
		id = b->id;
		drop_backing(fs->kept, b);
		if (req)
			(void)fuse_passthrough_close(req, id);
	}
	(void)pthread_mutex_unlock(&fs->lock);
	if (id > 0)
		release(fs, ino);
}
