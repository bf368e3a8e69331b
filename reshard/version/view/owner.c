/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modes and owners of committed files.
 *
 *   1 A file that a rank wrote keeps the mode and the owner that the rank gave it, but that the folders above it limit
 *     who may read it (rs_owner_limit()): at another topology there are not all of these.
 *   2 A file that joins the bytes of several (another topology) has the bits that all of them have.  Where their owners
 *     differ it is the job owner's, without bits for group and others.
 *   3 Both follow from rows that the commit has made, never from where the bytes are: replicas and equal files share
 *     blobs, and materialization moves them.  A set that was materialized keeps the rows of the ranks that wrote it
 *     (`given`).
 */
#include "reshard/version/view/shown_i.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

void rs_owner_join(struct rs_job *job, struct rs_owner *all, const struct rs_owner *more)
{
	all->mode &= more->mode;
	if (all->uid == more->uid && all->gid == more->gid)
		return;
	(void)pthread_mutex_lock(&job->state);
	all->uid = all->uid == more->uid ? all->uid : job->uid;
	all->gid = job->gid;
	(void)pthread_mutex_unlock(&job->state);
	all->mode &= 0700;
}

/* --- files of tensors: an image says what a file is made of, here of files as ranks wrote them --- */

static const struct meta_view *given_view(void *arg, const struct meta_tensor *tensor)
{
	const struct rs_version *v = arg;

	for (size_t i = 0; i < v->nr_sets; i++)
		if (strcmp(v->sets[i]->file, tensor->file) == 0)
			return rs_set_given(v->sets[i])->view;
	assert(!"a tensor of a version is in one of its sets");
	return NULL;
}

static const struct rs_format_ops *given_format(void *arg, const struct meta_view *stored)
{
	const struct rs_version *v = arg;

	for (size_t i = 0; i < v->nr_sets; i++)
		if (rs_set_given(v->sets[i])->view == stored)
			return v->sets[i]->format;
	assert(!"a tensor of a version is in one of its sets");
	return NULL;
}

static const struct rs_set_blob *given_file(const struct rs_version *v, const struct meta_view *stored, uint32_t rank,
					    const char *file)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (rs_set_given(v->sets[i])->view == stored)
			return rs_set_find(rs_set_given(v->sets[i]), rank, file);
	return NULL;
}

/* Gives the row of a file in place of its blob: the image that is made so tells from which rows a file is made. */
static bool given_row(void *arg, const struct meta_view *stored, uint32_t rank, const char *file, uint64_t *ret_blob,
		      uint64_t *ret_bytes)
{
	*ret_blob = (uintptr_t)given_file(arg, stored, rank, file);
	*ret_bytes = 0;
	return *ret_blob != 0;
}

static const struct rs_set_blob *as_written(const struct rs_view *view, uint32_t rank, const char *file)
{
	const struct rs_version *v = view->version;
	const struct rs_set_blob *b = NULL;

	for (size_t i = 0; !b && i < v->nr_sets; i++) {
		const struct rs_set *g = rs_set_given(v->sets[i]);

		if (g->layout_id == v->layout_id &&
		    strcmp(g->topo.text, view->topo.text) == 0)
			b = rs_set_find(g, rank, file);
	}
	return b;
}

/* Joins mode and owner of all files of a set into *all; `first`: nothing is in *all yet.  Returns whether that still
 * holds. */
static bool join_set(struct rs_job *job, const struct rs_set *set, bool first, struct rs_owner *all)
{
	for (size_t i = 0; i < set->nr_blobs; i++) {
		if (first)
			*all = set->blobs[i].owner;
		else
			rs_owner_join(job, all, &set->blobs[i].owner);
		first = false;
	}
	return first;
}

/* Joins mode and owner of all files of the checkpoint folders that have a blob: bytes in it mean nothing without their
 * .metadata. */
static bool join_folders(const struct rs_view *view, uint64_t blob, bool first, struct rs_owner *all)
{
	const struct rs_version *v = view->version;

	for (size_t i = 0; i < v->nr_sets; i++)
		for (size_t k = 0; v->sets[i]->folder && k < v->sets[i]->nr_blobs; k++)
			if (v->sets[i]->blobs[k].blob == blob) {
				first = join_set(view->job, v->sets[i], first, all);
				break;
			}
	return first;
}

static void join_sources(const struct rs_view *view, const struct rs_sources *sources, struct rs_owner *ret)
{
	const struct rs_version *v = view->version;
	bool first = true;
	uint64_t last = 0;

	for (size_t i = 0; i < sources->nr; i++) {
		const struct rs_source *from = &sources->at[i];
		const struct rs_set_blob *b = from->view ? given_file(v, from->view, from->rank, from->file) : NULL;

		if (!from->view && from->place.id != last)
			first = join_folders(view, last = from->place.id, first, ret);
		if (b && first)
			*ret = b->owner;
		else if (b)
			rs_owner_join(view->job, ret, &b->owner);
		first = first && !b;
	}
	/* a header alone, of tensors without elements */
	for (size_t i = 0; sources->nr == 0 && i < v->nr_sets; i++)
		first = join_set(view->job, rs_set_given(v->sets[i]), first, ret);
}

/* Finds mode and owner of a file by its stored name. */
static int owner_of_file(const struct rs_view *view, uint32_t rank, const char *file, struct rs_owner *ret,
			 struct sc_err *err)
{
	struct rs_origins origins = view->origins;
	const struct rs_set_blob *b = as_written(view, rank, file);
	struct rs_image *im = NULL;
	int rc;

	if (b) {
		*ret = b->owner;
		return 0;
	}
	origins.view_of = given_view;
	origins.format_of = given_format;
	origins.blob_of = given_row;
	rc = rs_image_new(view->model, rs_view_alike(view, rank, file), file, false, &origins, &im, err);
	if (rc < 0)
		return rc;
	*ret = (struct rs_owner){0};
	if (im->same_as)
		*ret = ((const struct rs_set_blob *)(uintptr_t)im->same_as)->owner;
	else
		join_sources(view, &im->sources, ret);
	rs_image_free(im);
	return 0;
}

int rs_view_owner(const struct rs_view *view, uint32_t rank, const char *file, struct rs_owner *ret,
		  struct sc_err *err)
{
	const struct rs_formed x = rs_view_formed(view);
	const struct rs_plain *plain = rs_form_plain(&x, file);
	const struct rs_version *v = view->version;
	struct sc_arena arena = {0};
	bool first = true;
	int rc;

	if (plain) {
		*ret = (struct rs_owner){plain->uid, plain->gid, plain->mode};
		return 0;
	}

	if (v->one_owner) {
		*ret = *v->one_owner;
		return 0;
	}
	for (size_t i = 0; view->form->one_folder && i < v->nr_sets; i++)
		if (rs_form_is_of(view->form, &x, file, v->sets[i]->file)) /* one file speaks of all */
			first = join_set(view->job, rs_set_given(v->sets[i]), first, ret);
	if (!first)
		return 0;
	rc = rs_view_stored(view, rank, file, &arena, &file, err);
	if (rc == 0)
		rc = owner_of_file(view, rank, file, ret, err);
	sc_arena_done(&arena);
	return rc;
}

/* --- folders above --- */

void rs_owner_limit_by(struct rs_owner *file, const struct meta_inode_row *folder)
{
	file->mode = meta_mode_below(file->mode, file->gid, folder);
}

void rs_owner_of_folder(struct rs_job *job, struct rs_owner *ret)
{
	(void)pthread_mutex_lock(&job->state);
	ret->uid = job->uid;
	ret->gid = job->gid;
	ret->mode = 0700 | (job->mode & 0010 ? 0050 : 0) | (job->mode & 0001 ? 0005 : 0);
	ret->mode |= job->mode & (S_ISGID | S_ISVTX | 0022); /* who may make folders in the job may write there */
	(void)pthread_mutex_unlock(&job->state);
}
