/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the files of the working tree, before their rows come (N3 of work.c), opens and flushes them.
 */
#include "reshard/worktree/requests/tree_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "reshard/engine/io/copy.h"
#include "reshard/version/verify/verify.h"

int rs_file_make(struct rs_service *s, const char *path, const struct rs_owner *owner, uint64_t *ret_blob,
		 int *ret_fd, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err ignored;
	uint64_t blob;
	int rc = meta_blob_take(s->catalog, &blob, err);

	if (rc == 0)
		rc = meta_store_create(&s->store, blob, &fd, err);
	if (rc < 0)
		return rc;
	rc = rs_work_own(fd, owner, path, err);
	if (rc < 0) {
		(void)meta_store_remove(&s->store, blob, &ignored);
		return rc;
	}
	*ret_blob = blob;
	*ret_fd = sc_steal_fd(&fd);
	return 0;
}

static int copy_image(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		      const struct rs_look *look, int to, struct sc_err *err)
{
	struct rs_image *im = NULL;
	unsigned char *buffer = sc_sys.alloc(1u << 20);
	int rc = !buffer ? sc_nomem(err)
		 : look->kind == RS_BLOB
			 ? rs_view_elsewhere(s, view, rank, path, look->blob, look->bytes, &im, err)
			 : rs_view_image(s, view, rank, path, true, true, &im, err);

	for (uint64_t at = 0; rc == 0 && at < im->bytes;) {
		uint64_t n = im->bytes - at < 1u << 20 ? im->bytes - at : 1u << 20;

		rc = rs_image_fetch(im, at, n, buffer, err);
		if (rc == 0 && sc_pwrite_all(to, buffer, n, at) < 0)
			rc = sc_fail_sys(err, errno, "cannot copy '%s'", path);
		at += n;
	}
	rs_image_unref(s, im);
	sc_sys.release(buffer);
	return rc;
}

/* Gives a copy the times of the committed file: a program that only opens the file to write to it has not changed it
 * yet. */
static int keep_times(int fd, const struct rs_look *look, const char *path, struct sc_err *err)
{
	const struct timespec ts[2] = {{look->atime_ns / 1000000000, look->atime_ns % 1000000000},
				       {look->mtime_ns / 1000000000, look->mtime_ns % 1000000000}};

	return sc_sys.futimens(fd, ts) < 0 ? sc_fail_sys(err, errno, "'%s': cannot set times", path) : 0;
}

int rs_file_copy(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 const struct rs_look *look, bool truncate, uint64_t *ret_blob, struct sc_err *err)
{
	sc_cleanup(sc_closep) int to = -1;
	sc_cleanup(sc_closep) int from = -1;
	struct sc_err ignored;
	char quoted[SC_ERR_BYTES_MAX];
	uint64_t blob = 0;
	int rc = rs_file_make(s, path, &look->owner, &blob, &to, err);

	*ret_blob = 0;
	if (rc < 0)
		return rc;
	if (!truncate && look->kind == RS_BLOB && rs_blob_here(s, look->blob)) {
		rc = meta_store_open_blob(&s->store, look->blob, look->bytes, &from, err);
		if (rc == 0)
			rc = rs_copy_file(to, from, look->blob, look->bytes, path, err);
		if (rc == 0) /* or a commit of the copy would give a hash to changed bytes */
			rc = rs_verify_suspect(s, look->blob, NULL, NULL, err);
		if (rc > 0) {
			(void)snprintf(quoted, sizeof(quoted), "'%s'", path);
			rc = rs_verify_refuse(rc, quoted, err);
		}
	} else if (!truncate) {
		rc = copy_image(s, view, rank, path, look, to, err);
	}
	if (rc == 0 && !truncate)
		rc = keep_times(to, look, path, err);
	if (rc < 0)
		(void)meta_store_remove(&s->store, blob, &ignored);
	else
		*ret_blob = blob;
	return rc;
}

int rs_work_open(struct rs_service *s, struct rs_job *job, uint64_t blob, int flags, int *ret_fd,
		 struct sc_err *err)
{
	if (!rs_work_is(s, job, blob))
		return sc_fail(err, SC_E_STALE, "this file is not in the working tree any more");
	return meta_store_open_work(&s->store, blob, flags, ret_fd, err);
}

int rs_work_sync(struct rs_service *s, uint64_t blob, int fd, bool data_only, struct sc_err *err)
{
	struct meta_store_dirs dirs = {{0}};
	int rc;

	if ((data_only ? sc_sys.fdatasync(fd) : sc_sys.fsync(fd)) < 0)
		return sc_fail_sys(err, errno, "fsync");
	meta_store_note_dir(&dirs, blob);
	rc = meta_store_sync_dirs(&s->store, &dirs, err);
	return rc < 0 ? rc : rs_tree_flush(s, err);
}
