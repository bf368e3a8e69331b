/* SPDX-License-Identifier: Apache-2.0 */
/* Open files by number. */
#include "fs/open/open.h"

#include "fs/cache/cache.h"
#include "fs/control/control.h"
#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "reshard/engine/loads/loads.h"

#define NO_OBJECT UINT64_MAX /* of an open node of a version, or of what is nothing any more */

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

void fs_names_changed(struct fs *fs)
{
	struct fs_nodes open = {0}, listed = {0};

	if (!fs->se)
		return;
	if (fs->epoch)
		(void)fuse_lowlevel_notify_increment_epoch(fs->se);
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->handles.nr; i++) {
		struct fs_handle *h = fs->handles.at[i];

		if (!h)
			continue;
		h->object = 0; /* a rollback may have given its number to something else */
		if (h->kind == FS_H_CONTROL)
			continue;
		/* without memory: what the kernel knows is old */
		if (h->fills)
			(void)sc_vec_push(&listed, h->ino);
		else
			(void)sc_vec_push(&open, h->ino);
	}
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; i < open.nr; i++)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, open.at[i], -1, 0);
	for (size_t i = 0; i < listed.nr; i++) /* with the names that it keeps */
		(void)fuse_lowlevel_notify_inval_inode(fs->se, listed.at[i], 0, 0);
	sc_vec_done(&open);
	sc_vec_done(&listed);
}

static bool is_of_head(uint64_t ino)
{
	const struct fs_node n = fs_node_of(ino);

	return fs_node_is_file(&n) || n.kind == FS_INODE || n.kind == FS_IMPLIED;
}

struct open_nodes {
	size_t nr, room;
	struct open_node {
		uint64_t ino, fh;
	} *at;
};

/* Finds the objects of open nodes, where nobody has asked for them yet; without memory it finds only some. */
static void find_objects(struct fs *fs)
{
	struct open_nodes open = {0};

	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->handles.nr; i++) {
		const struct fs_handle *h = fs->handles.at[i];

		if (h && !h->object && is_of_head(h->ino))
			(void)sc_vec_push(&open, (struct open_node){h->ino, h->number});
	}
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; i < open.nr; i++) {
		struct fs_node n = fs_node_of(open.at[i].ino);
		uint64_t number = 0;
		struct sc_err ignored;
		struct rs_job *job;
		size_t at;

		if (fs_number(fs, &n, &job, &number, &ignored) < 0)
			number = NO_OBJECT;
		(void)pthread_mutex_lock(&fs->lock);
		at = find(fs, open.at[i].fh);
		if (at)
			fs->handles.at[at]->object = number;
		(void)pthread_mutex_unlock(&fs->lock);
	}
	sc_vec_done(&open);
}

int fs_handle_each(void *arg, struct rs_job *job, int (*fn)(void *arg, uint64_t number), void *fn_arg)
{
	struct fs *fs = arg;
	struct fs_nodes objects = {0};
	int rc = 0;

	find_objects(fs);
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; i < fs->handles.nr; i++)
		if (fs->handles.at[i] && fs->handles.at[i]->object)
			(void)sc_vec_push(&objects, fs->handles.at[i]->object);
	(void)pthread_mutex_unlock(&fs->lock);
	for (size_t i = 0; rc == 0 && i < objects.nr; i++)
		if (objects.at[i] != NO_OBJECT && rs_job_of_number(fs->service, objects.at[i]) == job)
			rc = fn(fn_arg, objects.at[i]);
	sc_vec_done(&objects);
	return rc;
}

bool fs_handle_has(struct fs *fs, uint64_t number)
{
	bool has = false;

	find_objects(fs);
	(void)pthread_mutex_lock(&fs->lock);
	for (size_t i = 0; !has && i < fs->handles.nr; i++)
		has = fs->handles.at[i] && fs->handles.at[i]->object == number;
	(void)pthread_mutex_unlock(&fs->lock);
	return has;
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
		fs_open_drop(fs, h);
	}
	(void)pthread_mutex_unlock(&fs->lock);
	return h;
}

void fs_handle_committed(struct fs *fs, struct fs_handle *h)
{
	rs_view_opened(fs->service, h->view);
	h->is_committed = true;
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

void fs_names_done(struct fs_names *names)
{
	for (size_t i = 0; i < names->nr; i++)
		sc_sys.release(names->at[i].name);
	sc_vec_done(names);
	*names = (struct fs_names){0};
}

void fs_handle_free(struct fs *fs, struct fs_handle *h)
{
	if (!h)
		return;
	if (h->fills)
		fs_listing_closed(fs, h);
	fs_names_done(&h->names);
	rs_listing_done(&h->listing);
	if (h->control)
		fs_control_close(fs, h->control);
	rs_image_unref(fs->service, h->image);
	rs_data_close(fs->service, h->data);
	if (h->is_committed)
		rs_view_closed(fs->service, h->view);
	rs_view_unref(fs->service, h->view);
	rs_load_end(h->load);
	if (h->kind == FS_H_FD || h->kind == FS_H_GPU)
		sc_closep(&h->fd);
	if (h->held)
		rs_work_release(fs->service, h->held);
	sc_sys.release(h);
}
