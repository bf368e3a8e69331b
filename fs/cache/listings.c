/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which listings of folders of a working tree the kernel keeps (FOPEN_CACHE_DIR).
 *
 *  D1  At most one open folder fills the listing that the kernel keeps of it.  With two, a reply to the first one, from
 *      before a name was removed, can become the beginning of what the second one reads after it.
 *  D2  Who opens a folder is shown the kept listing only if no name has come or gone since its last filler opened it,
 *      neither by programs (the kernel notices these itself) nor by a command.
 *  D3  A command makes the kernel forget the listings of folders that are open (fs_names_changed()).  (Who goes back to
 *      the beginning of a folder that he holds open, while a command ends, may see the names from before it once more
 *      if the folder has the same mtime after it.)
 *
 * A daemon does not know who fills for the daemon before it, so under -o hold the kernel keeps nothing.
 */
#include "fs/cache/cache.h"

#include <xxhash.h>

#include "fs/node/node.h"
#include "reshard/command/commands/head.h"

static struct fs_listed *listed(struct fs *fs, fuse_ino_t ino)
{
	return &fs->listed[XXH3_64bits(&ino, sizeof(ino)) % FS_LISTED_MAX];
}

void fs_listing_opened(struct fs *fs, struct fs_handle *h, struct fuse_file_info *fi)
{
	struct fs_node n = fs_node_of(h->ino);
	struct fs_listed *x = listed(fs, h->ino);
	struct rs_job *job = n.kind == FS_INODE && !fs->is_held && rs_head_until(fs->service) == INT64_MAX
				     ? fs_job(fs, &n) : NULL;
	uint64_t now = job ? rs_tree_list_changes(job, n.number) : 0;

	if (!job)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	if (!x->filler) {
		fi->cache_readdir = 1;
		fi->keep_cache = x->ino == h->ino && x->changes == now;
		h->fills = true;
		*x = (struct fs_listed){h->ino, now, h->number};
	}
	(void)pthread_mutex_unlock(&fs->lock);
}

void fs_listing_closed(struct fs *fs, const struct fs_handle *h)
{
	struct fs_listed *x = listed(fs, h->ino);

	(void)pthread_mutex_lock(&fs->lock);
	if (x->filler == h->number)
		x->filler = 0;
	(void)pthread_mutex_unlock(&fs->lock);
}
