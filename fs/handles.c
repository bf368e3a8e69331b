/* SPDX-License-Identifier: Apache-2.0 */
/* Open files by number, and the backing files of passthrough inodes. */
#include "fs/fs_i.h"

#include <string.h>

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
	if (at)
		fs->handles.at[at] = h;
	(void)pthread_mutex_unlock(&fs->lock);
	return at;
}

struct fs_handle *fs_handle_get(struct fs *fs, uint64_t fh)
{
	struct fs_handle *h;

	(void)pthread_mutex_lock(&fs->lock);
	h = fh && fh < fs->handles.nr ? fs->handles.at[fh] : NULL;
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

struct rs_view *fs_handle_view(struct fs *fs, uint64_t ino)
{
	struct rs_view *view = NULL;

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; !view && i < fs->handles.nr; i++)
		if (fs->handles.at[i] && fs->handles.at[i]->ino == ino && fs->handles.at[i]->view)
			view = rs_view_ref(fs->handles.at[i]->view);
	(void)pthread_mutex_unlock(&fs->lock);
	return view;
}

struct fs_handle *fs_handle_take(struct fs *fs, uint64_t fh)
{
	struct fs_handle *h;

	(void)pthread_mutex_lock(&fs->lock);
	h = fh && fh < fs->handles.nr ? fs->handles.at[fh] : NULL;
	if (h) {
		fs->handles.at[fh] = NULL;
		(void)sc_vec_push(&fs->free_handles, fh);
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

void fs_handle_free(struct fs *fs, struct fs_handle *h)
{
	if (!h)
		return;
	for (size_t i = 0; i < h->names.nr; i++)
		sc_sys.release(h->names.at[i].name);
	sc_vec_done(&h->names);
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

static struct fs_backing *find_backing(struct fs *fs, uint64_t ino)
{
	for (size_t i = 0; i < fs->backings.nr; i++)
		if (fs->backings.at[i].ino == ino)
			return &fs->backings.at[i];
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
		struct fs_backing fresh = {.ino = ino, .id = fuse_passthrough_open(req, *fd)};

		/* a refusal is of this open only; the reason may be gone at the next */
		if (fresh.id > 0 && sc_vec_push(&fs->backings, fresh) == 0)
			b = &fs->backings.at[fs->backings.nr - 1];
		else if (fresh.id > 0)
			(void)fuse_passthrough_close(req, fresh.id);
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

bool fs_passthrough_join(struct fs *fs, uint64_t ino, struct fuse_file_info *fi)
{
	struct fs_backing *b;

	(void)pthread_mutex_lock(&fs->lock);
	b = find_backing(fs, ino);
	if (b) {
		b->opens++;
		fi->backing_id = b->id;
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return b != NULL;
}

void fs_passthrough_end(fuse_req_t req, struct fs *fs, uint64_t ino)
{
	struct fs_backing *b;

	(void)pthread_mutex_lock(&fs->lock);
	b = find_backing(fs, ino);
	if (b && --b->opens == 0) {
		(void)fuse_passthrough_close(req, b->id);
		*b = fs->backings.at[--fs->backings.nr];
	}
	(void)pthread_mutex_unlock(&fs->lock);
}
