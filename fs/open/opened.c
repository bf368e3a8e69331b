/* SPDX-License-Identifier: Apache-2.0 */
/* How each open and create begins, and is answered. */
#include "fs/open/open.h"

#include <errno.h>

#include "fs/handover/handover.h"
#include "fs/handover/hold.h"
#include "fs/node/node.h"
#include "fs/request/request.h"

/* Frees a handle that the kernel has not got. */
static void undo(fuse_req_t req, struct fs *fs, struct fs_handle *h, const struct fuse_file_info *fi)
{
	if (!h)
		return;
	if (h->kind == FS_H_PASS && fi->backing_id)
		fs_passthrough_end(req, fs, h->ino);
	fs_writer_end(fs, h, h->number);
	(void)fs_handle_take(fs, h->number);
	fs_handle_free(fs, h);
}

/* Closes what an earlier daemon had open and no program has, if it is time: LOST_NS of opens.c is over. */
static void check_opens(struct fs *fs)
{
	struct fs_kept *kept = fs->kept;
	int64_t due = __atomic_load_n(&fs->lost_opens_ns, __ATOMIC_RELAXED);

	if (!due || sc_now_ns() < due || !__atomic_compare_exchange_n(&fs->lost_opens_ns, &due, 0, false,
								       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return;
	for (uint32_t i = 0; i < kept->nr_opens; i++) {
		uint64_t fh;

		(void)pthread_mutex_lock(&fs->lock);
		fh = kept->opens[i].answered || fs_handle_is_mine(fs, kept->opens[i].fh) ? 0 : kept->opens[i].fh;
		(void)pthread_mutex_unlock(&fs->lock);
		if (fh)
			fs_handle_free(fs, fs_handle_take(fs, fh));
	}
}

struct fs_handle *fs_open_begin(struct fs *fs, uint64_t ino, struct sc_err *err)
{
	struct fs_handle *h = sc_zalloc(sizeof(*h));

	check_opens(fs);
	if (h) {
		h->ino = ino;
		h->fd = -1;
	}
	if (!h || !fs_handle_add(fs, h)) {
		sc_sys.release(h);
		h = NULL;
		(void)sc_nomem(err);
	}
	return h;
}

void fs_open_put_off(struct fs *fs, struct fs_handle *h)
{
	(void)fs_handle_take(fs, h->number);
	fs_handle_free(fs, h);
}

/* Keeps in the job's `error` why a file cannot be opened, unless the errno says all. */
static void tell_why(struct fs *fs, const struct fs_handle *h, const char *op, const struct sc_err *err)
{
	const struct fs_node node = fs_node_of(h->ino);
	struct rs_job *job;

	if (!h->ino || !*err->msg || err->errnum == ENOENT || err->errnum == ESTALE || err->errnum == EACCES)
		return;
	job = fs_job(fs, &node);
	if (job)
		rs_job_refused(job, op, err);
}

void fs_open_end(fuse_req_t req, struct fs *fs, struct fs_handle *h, const struct fuse_entry_param *e,
		 struct fuse_file_info *fi, const char *op, int rc, const struct sc_err *err)
{
	uint32_t writer, kept;

	if (rc < 0) {
		if (h)
			tell_why(fs, h, op, err);
		undo(req, fs, h, fi);
		fs_fail(req, op, err);
		return;
	}
	if (h->view)
		fs_handle_committed(fs, h);
	if (h->kind != FS_H_CONTROL)
		fs_open_keep(fs, h);
	fi->fh = h->number;
	writer = h->writer;
	kept = h->kept;
	rc = e ? fuse_reply_create(req, e, fi) : fuse_reply_open(req, fi);
	/* the client was killed: there will be no RELEASE */
	if (rc == -ENOENT) {
		undo(NULL, fs, h, fi);
		return;
	}
	fs_writer_answered(fs, writer, fi->fh);
	fs_open_answered(fs, kept, fi->fh);
}
