/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files.
 *
 *     view    direct_io with mmap allowed
 *     blob    passthrough: the kernel reads the backing file itself; only ever opened for reading
 *     work    passthrough for reading and writing
 *
 * Where the kernel or privileges do not allow passthrough, reads and writes come to op_io.c.
 */
#include "fs/open/open.h"

#include <errno.h>
#include <fcntl.h>

#include "fs/control/control.h"
#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"
#include "meta/base/metric.h"

#define OPENS(object, kind) \
	SC_HISTOGRAM(object, "scalai_open_seconds", "kind=\"" kind "\"", \
		     "Time until an open was answered, with its waits.")
OPENS(view_opens, "view");
OPENS(stored_opens, "stored");
OPENS(work_opens, "uncommitted");
OPENS(control_opens, "control");

int fs_open_work(fuse_req_t req, struct fs *fs, struct rs_job *job, uint64_t blob, struct fs_handle *h,
		 struct fuse_file_info *fi, struct sc_err *err)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	h->writes = (fi->flags & O_ACCMODE) != O_RDONLY;
	if (fi->flags & O_TRUNC) {
		rc = rs_work_open(fs->service, job, blob, O_RDWR, &fd, err);
		if (rc == 0 && sc_sys.ftruncate(fd, 0) < 0)
			rc = sc_fail_sys(err, errno, "truncate");
		if (rc < 0)
			return rc;
		fs_drop_set_id(req, fd);
		sc_closep(&fd);
	}
	if (h->writes) {
		rc = fs_writer_begin(fs, h, blob, thread, err);
		if (rc < 0)
			return rc;
	}
	fs_redeem(fs, blob, thread);
	rc = rs_work_hold(fs->service, blob, err);
	if (rc < 0)
		return rc;
	h->held = blob;
	h->kind = FS_H_PASS;
	if (fs->passthrough) {
		rc = rs_work_open(fs->service, job, blob, O_RDONLY, &fd, err);
		if (rc < 0 || fs_passthrough(req, fs, h->ino, &fd, fi))
			return rc;
		sc_closep(&fd);
	}
	rc = rs_work_open(fs->service, job, blob, h->writes ? O_RDWR : O_RDONLY, &h->fd, err);
	h->kind = FS_H_FD;
	fi->direct_io = 1;
	return rc;
}

int fs_open_elsewhere(struct fs *fs, const struct fs_node *n, struct fs_handle *h, struct fuse_file_info *fi,
		      struct sc_err *err)
{
	const char *path;
	int rc = rs_path_text(fs->service, n->path, &path, err);

	if (rc == 0)
		rc = rs_view_elsewhere(fs->service, h->view, fs_rank(n, h->view), path, h->blob, h->bytes, &h->image,
				       err);
	h->kind = FS_H_VIEW;
	fi->direct_io = 1; /* of an inode whose bytes come here later, in another way */
	fi->noflush = 1;
	return rc;
}

/* Opens the file of h->blob, of h->bytes. */
static int open_blob(fuse_req_t req, struct fs *fs, struct fs_handle *h, struct fuse_file_info *fi, struct sc_err *err)
{
	int fd = -1, rc = meta_store_open_blob(rs_service_store(fs->service), h->blob, h->bytes, &fd, err);

	if (rc == 0)
		rc = rs_work_hold(fs->service, h->blob, err);
	if (rc < 0) {
		sc_closep(&fd);
		return rc;
	}
	h->held = h->blob;
	h->kind = FS_H_PASS;
	fi->noflush = 1;
	if (!fs_passthrough(req, fs, h->ino, &fd, fi)) {
		h->kind = FS_H_FD;
		h->fd = fd;
		fi->keep_cache = !rs_service_gave_wrong(fs->service); /* sealed: what is cached stays right */
	}
	return 0;
}

static bool changes(const struct fuse_file_info *fi)
{
	return (fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC;
}

/* Opens a file that a commit has sealed since it was looked up: its bytes never change. */
static int open_sealed(fuse_req_t req, struct fs *fs, const struct fs_node *n, struct fs_handle *h,
		       struct fuse_file_info *fi, struct sc_err *err)
{
	int rc;

	h->blob = n->blob;
	h->bytes = UINT64_MAX;
	rc = open_blob(req, fs, h, fi, err);
	fi->keep_cache = 0; /* what is cached may be from before */
	return rc < 0 && err->errnum == ENOENT ? sc_fail(err, SC_E_STALE, "the file is gone") : rc;
}

static int open_work(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, struct fs_handle *h,
		     struct fuse_file_info *fi, struct sc_err *err)
{
	struct fs *fs = fs_of(req);
	struct rs_job *job = fs_job(fs, n);
	bool is_uncommitted;
	int rc = job ? fs_enter(req, job, a, err) : sc_fail(err, SC_E_STALE, "the job is gone");

	if (rc != RS_HERE)
		return rc;
	is_uncommitted = rs_work_is(fs->service, job, n->blob);
	if (is_uncommitted)
		rc = fs_open_work(req, fs, job, n->blob, h, fi, err);
	rs_tree_leave(job);
	/* attributes that the kernel has been given to keep, or is being given, are void from here on */
	if (is_uncommitted && rc == 0 && h->writes)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, h->ino, -1, 0);
	if (is_uncommitted)
		return rc;
	if (!changes(fi))
		return open_sealed(req, fs, n, h, fi, err);
	return fs_work_instead(req, a, n, fi->flags & O_TRUNC, err);
}

int fs_open_image(struct fs *fs, const struct fs_node *n, const char *path, bool again, struct fs_handle *h,
		      struct fuse_file_info *fi, struct sc_err *err)
{
	int rc;

	if (n->kind == FS_VIEW && rs_view_has_data(h->view, path)) {
		rc = rs_data_open(fs->service, h->view, fs_rank(n, h->view), path, &h->data, err);
		h->bytes = rc == 0 ? rs_data_bytes(h->data) : 0;
	} else {
		rc = rs_view_image(fs->service, h->view, fs_rank(n, h->view), path, again, true, &h->image, err);
		if (rc == 0 && !again &&
		    (h->image->same_as || rs_make_real(fs->service, h->view, fs_rank(n, h->view), path, h->image)))
			rc = sc_fail(err, SC_E_STALE, "look again");
		h->bytes = rc == 0 ? h->image->bytes : 0;
	}
	h->kind = FS_H_VIEW;
	/* no other storage comes in their place */
	fi->direct_io = !rs_view_has_small_reads(h->view);
	/* once bytes were wrong, the kernel may have such of any file */
	fi->keep_cache = !fi->direct_io && !rs_service_gave_wrong(fs->service);
	fi->noflush = 1;
	return rc;
}

/* Finds the blob of a node: the one that other processes have open, else the one of its version. */
static int committed_blob(struct fs *fs, const struct fs_node *n, const char *path, struct fs_handle *h,
			  struct sc_err *err)
{
	uint32_t rank = fs_rank(n, h->view);
	struct rs_look look = {0};
	int rc;

	if (fs_handle_find(fs, h->ino, NULL, &h->blob, &h->bytes))
		return 0;
	rc = rs_look(fs->service, rs_view_job(h->view), h->view, rank, path, &look, err);
	/* the version has got another storage since the lookup: its blob was of the one before */
	if (rc == 0 && look.kind != RS_BLOB && rs_view_before(fs->service, &h->view))
		rc = rs_look(fs->service, rs_view_job(h->view), h->view, rank, path, &look, err);
	if (rc == 0 && look.kind != RS_BLOB)
		rc = sc_fail(err, SC_E_STALE, "look again");
	h->blob = look.blob;
	h->bytes = look.bytes;
	return rc;
}

/* Opens the file that a GPU is to have, and loads it; returns what fs_gpu_open() does. */
static int open_for_gpu(fuse_req_t req, struct fs *fs, const struct fs_node *n, const char *path, bool again,
			struct fs_handle *h, struct fuse_file_info *fi, struct sc_err *err)
{
	int rc;

	if (n->kind == FS_VIEW && rs_view_has_data(h->view, path))
		return sc_fail(err, SC_E_UNSUPPORTED, "'%s' is a part of a dataset, which .gpu does not load: read it "
			       "from the rank's folder", path);
	if (n->kind == FS_VIEW) {
		rc = fs_open_image(fs, n, path, again, h, fi, err);
	} else {
		rc = committed_blob(fs, n, path, h, err);
		if (rc == 0 && rs_blob_here(fs->service, h->blob))
			rc = meta_store_open_blob(rs_service_store(fs->service), h->blob, h->bytes, &h->fd, err);
		else if (rc == 0)
			rc = fs_open_elsewhere(fs, n, h, fi, err);
	}
	return rc < 0 ? rc : fs_gpu_open(req, fs, h, fs_rank(n, h->view), fi, err);
}

/*
 * Opens a node as the version that its lookup found a moment ago.  The epoch makes names stale before a command that
 * changes them returns, so an open of an older version's node began before the command returned.
 */
static int open_committed(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, struct fs_handle *h,
			  struct fuse_file_info *fi, struct sc_err *err)
{
	struct fs *fs = fs_of(req);
	bool again = a->told != 0;
	const char *path = NULL;
	int rc;

	if (changes(fi))
		return fs_work_instead(req, a, n, fi->flags & O_TRUNC, err);
	rc = rs_path_text(fs->service, n->path, &path, err);
	if (rc == 0)
		rc = rs_view_at(fs->service, n->place, &h->view, err);
	/* the version is gone, and another program, or this one ahead of its retry, has the file open */
	if (rc == SC_E_NOT_FOUND && fs_handle_find(fs, h->ino, &h->view, NULL, &h->bytes))
		rc = 0;
	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	if (rc == 0 && rs_job_is_removed(rs_view_job(h->view)))
		rc = sc_fail(err, SC_E_STALE, "the job is gone");
	if (rc < 0)
		return rc;
	if (rs_view_is_for_gpus(h->view))
		rc = open_for_gpu(req, fs, n, path, again, h, fi, err);
	else if (n->kind == FS_VIEW)
		rc = fs_open_image(fs, n, path, again, h, fi, err);
	else
		rc = committed_blob(fs, n, path, h, err);
	if (rc == 0 && n->kind != FS_VIEW && h->kind != FS_H_GPU)
		rc = rs_blob_here(fs->service, h->blob) ? open_blob(req, fs, h, fi, err)
							: fs_open_elsewhere(fs, n, h, fi, err);
	/* a blob is missing: its version was dropped meanwhile, or the blob was lost */
	if (rc < 0 && err->errnum == ENOENT) {
		const uint64_t blob = err->blob;

		again = again && h->view && rs_view_is_current(fs->service, h->view);
		rc = again ? sc_fail(err, SC_E_DAMAGED, "'%s' cannot be read: a blob of its version is missing", path)
			   : sc_fail(err, SC_E_STALE, "look again");
		err->blob = again ? blob : 0;
	}
	return rc;
}

int fs_open_control(fuse_req_t req, struct fs *fs, const struct fs_node *n, struct fs_handle *h,
		    struct fuse_file_info *fi, struct sc_err *err)
{
	const struct rs_control *row = fs_control_of(n);
	struct rs_job *job = n->kind == FS_TOP ? NULL : fs_job(fs, n);

	if (!row)
		return sc_fail(err, SC_E_STALE, "this program has no such control file");
	if (n->kind != FS_TOP && !job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	h->kind = FS_H_CONTROL;
	fi->direct_io = 1;
	return fs_control_open(req, fs, job, row, fi->flags, &h->control, err);
}

static struct sc_metric *histogram_of(enum fs_kind kind)
{
	return kind == FS_WORK ? &work_opens : kind == FS_VIEW ? &view_opens
		: kind == FS_TOP || kind == FS_SPECIAL ? &control_opens : &stored_opens;
}

static void open_node(fuse_req_t req, const struct fs_asked *a)
{
	struct fuse_file_info fi = a->fi;
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(a->ino);
	struct sc_err err = {0};
	struct fs_handle *h = fs_open_begin(fs, a->ino, &err);
	const pid_t thread = fuse_req_ctx(req)->pid;
	int rc = SC_E_NO_MEMORY;

	if (h && n.kind == FS_WORK)
		rc = open_work(req, a, &n, h, &fi, &err);
	else if (h && (n.kind == FS_VIEW || n.kind == FS_BLOB || n.kind == FS_SHARED))
		rc = open_committed(req, a, &n, h, &fi, &err);
	else if (h && (n.kind == FS_TOP || n.kind == FS_SPECIAL))
		rc = fs_open_control(req, fs, &n, h, &fi, &err);
	else if (h)
		rc = sc_fail(&err, SC_E_IS_DIR, "a directory");
	if (rc == RS_LATER && (n.kind == FS_WORK || changes(&fi))) {
		fs_open_put_off(fs, h);
		return;
	}
	if (rc <= 0) /* else fs_gpu_open() has parked it */
		fs_open_end(req, fs, h, NULL, &fi, "open", rc, &err);
	if (rc == 0)
		sc_metric_since(histogram_of(n.kind), a->began_ns);
	if (a->told)
		fs_ahead_opened(fs, thread);
	fs_looked_again(fs, thread, a->told);
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_asked a = {.serve = open_node, .ino = ino, .fi = *fi, .began_ns = sc_now_ns()};

	a.told = fs_looks_again(fs_of(req), fuse_req_ctx(req)->pid, &a.copies);
	open_node(req, &a);
}
