/* SPDX-License-Identifier: Apache-2.0 */
/* Open files by number, and the backing files of passthrough inodes. */
#include "fs/fs_i.h"

#include <errno.h>
#include <string.h>

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

/* Its place in the table, under the lock; 0: none.  Those of earlier daemons lie where there was room. */
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

static struct fs_handle *adopt(struct fs *fs, uint64_t ino, struct fuse_file_info *fi, struct sc_err *err)
{
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	int rc = h ? 0 : sc_nomem(err);

	if (rc == 0) {
		h->ino = ino;
		h->fd = -1;
		rc = fs_reopen(fs, h, fi->fh, fi->flags, err);
	}
	if (rc == 0 && !fs_handle_add(fs, h))
		rc = sc_nomem(err);
	if (rc < 0) {
		fs_handle_free(fs, h);
		return NULL;
	}
	if (h->view)
		fs_handle_committed(fs, h);
	(void)pthread_mutex_lock(&fs->lock);
	h->number = fi->fh;
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

struct fs_handle *fs_handle_of(fuse_req_t req, struct fs *fs, uint64_t ino, struct fuse_file_info *fi)
{
	struct fs_handle *h = fs_handle_get(fs, fi->fh);
	struct sc_err err = {0};

	if (h)
		return h;
	if (!fi->fh || fs_handle_is_mine(fs, fi->fh)) {
		(void)fuse_reply_err(req, EBADF);
		return NULL;
	}
	(void)pthread_mutex_lock(&fs->adopt_lock);
	h = fs_handle_get(fs, fi->fh);
	if (!h)
		h = adopt(fs, ino, fi, &err);
	(void)pthread_mutex_unlock(&fs->adopt_lock);
	if (!h)
		fs_fail(req, "taking over an open file", &err);
	return h;
}

static struct fs_handle **bucket(struct fs *fs, uint64_t ino)
{
	return &fs->committed[(ino ^ ino >> 20 ^ ino >> 40) % FS_COMMITTED_BUCKETS];
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
		if (kept->nr_backings < FS_BACKINGS_MAX)
			fresh.id = fuse_passthrough_open(req, *fd);
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
 * The daemon may be killed at any point of these, and the next one goes on with the table: an entry is
 * there only while its number is the kernel's.  What is lost is a number that nobody closes.
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
		if (kept->backings[i - 1].opens == 0)
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
}
