/* SPDX-License-Identifier: Apache-2.0 */
/* Open files by number. */
#include "fs/fs_i.h"

static size_t index_of(uint64_t number)
{
	return number & ((UINT64_C(1) << FS_GENERATION_SHIFT) - 1);
}

uint64_t fs_handle_add(struct fs *fs, struct fs_handle *h)
{
	size_t at = 0;

	(void)pthread_mutex_lock(&fs->lock);
	if (fs->free_handles.nr) {
		at = fs->free_handles.at[--fs->free_handles.nr];
	} else {
		if (fs->handles.nr == 0)
			(void)sc_vec_push(&fs->handles, NULL); /* number 0 is none */
		at = fs->handles.nr;
		if (at == 0 || sc_vec_push(&fs->handles, NULL) < 0)
			at = 0;
	}
	if (at) {
		fs->handles.at[at] = h;
		h->number = (uint64_t)fs->kept->generation << FS_GENERATION_SHIFT | at;
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return at ? h->number : 0;
}

/* Finds a handle's place in the table, under the lock; 0: none.  Handles of earlier daemons lie in any free place. */
static size_t find(struct fs *fs, uint64_t fh)
{
	size_t at = index_of(fh);

	if (at && at < fs->handles.nr && fs->handles.at[at] && fs->handles.at[at]->number == fh)
		return at;
	if (fs_handle_is_mine(fs, fh))
		return 0;
	for (at = 1; at < fs->handles.nr; at++)
		if (fs->handles.at[at] && fs->handles.at[at]->number == fh)
			return at;
	return 0;
}

struct fs_handle *fs_handle_get(struct fs *fs, uint64_t fh)
{
	struct fs_handle *h;
	size_t at;

	(void)pthread_mutex_lock(&fs->lock);
	at = find(fs, fh);
	h = at ? fs->handles.at[at] : NULL;
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

static struct fs_handle **bucket(struct fs *fs, uint64_t ino)
{
	return &fs->committed[(ino ^ ino >> 20 ^ ino >> 40) % FS_COMMITTED_BUCKETS];
}

void fs_handle_folders_changed(struct fs *fs)
{
	struct fs_nodes open = {0};

	if (!fs->se)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->handles.nr; i++)
		if (fs->handles.at[i] && fs->handles.at[i]->kind == FS_H_DIR)
			(void)sc_vec_push(&open, fs->handles.at[i]->ino); /* without memory: what it knows is old */
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; i < open.nr; i++)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, open.at[i], -1, 0);
	sc_vec_done(&open);
}

struct fs_handle *fs_handle_take(struct fs *fs, uint64_t fh)
{
	struct fs_handle *h = NULL;
	size_t at;

	(void)pthread_mutex_lock(&fs->lock);
	at = find(fs, fh);
	if (at) {
		h = fs->handles.at[at];
		fs->handles.at[at] = NULL;
		(void)sc_vec_push(&fs->free_handles, at);
		for (struct fs_handle **x = bucket(fs, h->ino); *x; x = &(*x)->next)
			if (*x == h) {
				*x = h->next;
				break;
			}
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

void fs_handle_committed(struct fs *fs, struct fs_handle *h)
{
	(void)pthread_mutex_lock(&fs->lock);
	h->next = *bucket(fs, h->ino);
	*bucket(fs, h->ino) = h;
	(void)pthread_mutex_unlock(&fs->lock);
}

bool fs_handle_find(struct fs *fs, uint64_t ino, struct rs_view **ret_view, uint64_t *ret_blob, uint64_t *ret_bytes)
{
	struct fs_handle *h;

	(void)pthread_mutex_lock(&fs->lock);
	h = *bucket(fs, ino);
	while (h && h->ino != ino)
		h = h->next;
	if (h && ret_view)
		*ret_view = rs_view_ref(h->view);
	if (h && ret_blob)
		*ret_blob = h->blob;
	if (h)
		*ret_bytes = h->bytes;
	(void)pthread_mutex_unlock(&fs->lock);
	return h != NULL;
}

void fs_handle_free(struct fs *fs, struct fs_handle *h)
{
	if (!h)
		return;
	fs_names_done(&h->names);
	rs_listing_done(&h->listing);
	if (h->control)
		fs_control_close(fs, h->control);
	rs_image_unref(fs->service, h->image);
	rs_data_close(fs->service, h->data);
	rs_view_unref(fs->service, h->view);
	if (h->kind == FS_H_FD)
		sc_closep(&h->fd);
	if (h->held)
		rs_work_release(fs->service, h->held);
	sc_sys.release(h);
}
