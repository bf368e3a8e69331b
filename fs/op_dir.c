/* SPDX-License-Identifier: Apache-2.0 */
/* Names: looking up, listing, making, removing, renaming. */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Makes the copy that a retrying thread is about to write to, which its open could not: it found no path. */
static void copy_for_retry(struct fs *fs, fuse_ino_t parent, const char *name, pid_t thread)
{
	struct fs_found found;
	struct rs_job *job;
	struct sc_err ignored;
	uint64_t blob;

	if (fs_lookup(fs, parent, name, &found, &ignored) < 0 ||
	    (found.node.kind != FS_BLOB && found.node.kind != FS_VIEW && found.node.kind != FS_SHARED))
		return;
	/* with its bytes, whatever the open does: it may be another file that is looked up.  Where this fails, the open
	 * fails, too, and says why */
	if (fs_work_begin(fs, &found.node, false, &job, &blob, &ignored) < 0)
		return;
	fs_reserve(fs, blob, thread);
	rs_tree_leave(job);
}

/* Reserves what a retrying thread finds, so that no commit seals it before it is opened. */
static int lookup_again(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name, struct fs_found *found,
			struct sc_err *err)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	struct fs_node n = fs_node_of(parent);
	struct rs_job *job = n.kind == FS_JOB || n.kind == FS_DIR ? fs_job(fs, &n) : NULL;
	bool writes;
	int rc;

	if (!job || !thread || !fs_looks_again(fs, thread, &writes))
		return fs_lookup(fs, parent, name, found, err);
	if (writes)
		copy_for_retry(fs, parent, name, thread);
	rs_tree_enter(job);
	rc = fs_lookup(fs, parent, name, found, err);
	if (rc == 0 && found->node.kind == FS_WORK) {
		fs_redeem(fs, found->node.blob, thread);
		fs_reserve(fs, found->node.blob, thread);
	}
	rs_tree_leave(job);
	return rc;
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(parent);
	struct fuse_entry_param e;
	struct fs_found found;
	struct sc_err err = {0};

	if (lookup_again(req, fs, parent, name, &found, &err) < 0) {
		/* an impossible topology: the reason is in `error` */
		if (n.kind == FS_SPECIAL && n.what == FS_AS_DIR && *err.msg && fs_job(fs, &n))
			rs_job_refused(fs_job(fs, &n), name, &err);
		fs_fail(req, "lookup", &err);
		return;
	}
	fs_entry(fs, &found, &e);
	(void)fuse_reply_entry(req, &e);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(ino);
	struct rs_job *job = fs_job(fs, &n);
	struct rs_view *head = NULL;
	struct sc_err err = {0};
	struct sc_buf text = {0};

	if (!job || n.kind != FS_SPECIAL || n.what != FS_FULL_LINK) {
		(void)fuse_reply_err(req, EINVAL);
		return;
	}
	if (rs_view_head(fs->service, job, &head, &err) < 0) {
		fs_fail(req, "readlink", &err);
		return;
	}
	/* all degrees 1: the first axis says so */
	sc_buf_printf(&text, ".as/%s=1/0", rs_view_first_axis(head));
	(void)fuse_reply_readlink(req, text.text ? text.text : "");
	sc_buf_done(&text);
	rs_view_unref(fs->service, head);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	struct sc_err err = {0};
	int rc = h ? 0 : sc_nomem(&err);

	if (rc == 0) {
		h->kind = FS_H_DIR;
		h->ino = ino;
		rc = fs_list(fs, ino, h, &err);
	}
	fi->fh = rc == 0 ? fs_handle_add(fs, h) : 0;
	if (rc == 0 && !fi->fh)
		rc = sc_nomem(&err);
	if (rc < 0) {
		fs_handle_free(fs, h);
		fs_fail(req, "opendir", &err);
		return;
	}
	(void)fuse_reply_open(req, fi);
}

static void readdir_any(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at,
			struct fuse_file_info *fi, bool plus)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = fs_handle_of(req, fs, ino, fi);
	char *buf = h ? sc_sys.alloc(bytes) : NULL;
	size_t used = 0;

	if (!buf) {
		if (h)
			(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	for (size_t i = (size_t)at; i < h->names.nr; i++) {
		const struct fs_name *n = &h->names.at[i];
		struct fuse_entry_param e = {.attr = {.st_ino = 0xffffffff, .st_mode = n->type}};
		struct fs_found found;
		struct sc_err err;
		size_t more;

		/* "." and ".." are not looked up; a name that was removed meanwhile has no attributes */
		if (plus && i > 1 && fs_lookup(fs, ino, n->name, &found, &err) == 0)
			fs_entry(fs, &found, &e);
		more = plus ? fuse_add_direntry_plus(req, buf + used, bytes - used, n->name, &e, (off_t)i + 1)
			    : fuse_add_direntry(req, buf + used, bytes - used, n->name, &e.attr, (off_t)i + 1);
		if (more > bytes - used)
			break;
		used += more;
	}
	(void)fuse_reply_buf(req, buf, used);
	sc_sys.release(buf);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi)
{
	readdir_any(req, ino, bytes, at, fi, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at,
		    struct fuse_file_info *fi)
{
	readdir_any(req, ino, bytes, at, fi, true);
}

/* Inherits from a folder with S_ISGID: new files and folders get its group, new folders also the bit. */
static struct rs_owner owner_of(fuse_req_t req, struct fs *fs, fuse_ino_t parent, mode_t mode, bool is_dir)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct rs_owner owner = {ctx->uid, ctx->gid, mode & 07777 & ~ctx->umask};
	struct fs_found folder;
	struct sc_err ignored;

	if (fs_stat(fs, parent, &folder, &ignored) == 0 && folder.st.st_mode & S_ISGID) {
		owner.gid = folder.st.st_gid;
		owner.mode |= is_dir ? S_ISGID : 0;
	}
	return owner;
}

/* Answers a resent request that the daemon had carried out before it died: it is done. */
static int done_before(struct fs *fs, int rc, int answer)
{
	return fs->replays && rc == answer ? 0 : rc;
}

static void reply_name(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name, int rc,
		       struct sc_err *err)
{
	struct fuse_entry_param e;
	struct fs_found found;

	if (rc == 0)
		rc = fs_lookup(fs, parent, name, &found, err);
	if (rc < 0) {
		fs_fail(req, "make", err);
		return;
	}
	fs_entry(fs, &found, &e);
	(void)fuse_reply_entry(req, &e);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fs *fs = fs_of(req);
	struct rs_owner owner = owner_of(req, fs, parent, mode, true);
	struct sc_err err = {0};
	struct fs_place place;
	struct rs_job *job;
	int rc;

	if (fs_node_of(parent).kind == FS_ROOT) {
		rc = rs_job_make(fs->service, name, owner.mode, owner.uid, owner.gid, &job, &err);
		if (rc == SC_E_COMMAND) /* no job has an `error` that could tell */
			sc_log(SC_LOG_ERROR, "mkdir: %s", err.msg);
		reply_name(req, fs, parent, name, done_before(fs, rc, SC_E_EXISTS), &err);
		return;
	}
	rc = fs_place(fs, parent, name, &place, &err);
	if (rc == 0 && place.rank == RS_SHARED)
		rc = sc_fail(&err, SC_E_COMMAND, "'%s': a job's folders are its ranks, numbered from 0 to %u; make "
			     "other folders inside of a rank's", name, SC_RANKS_MAX - 1);
	if (rc == 0) {
		rs_tree_enter(place.job);
		rc = rs_work_mkdir(fs->service, place.job, place.rank, place.path, &owner, &err);
		rs_tree_leave(place.job);
		rc = done_before(fs, rc, SC_E_EXISTS);
		if (rc < 0 && rc != SC_E_EXISTS)
			rs_job_refused(place.job, "mkdir", &err);
	} else if (fs_node_of(parent).kind == FS_JOB && place.job) {
		rs_job_refused(place.job, "mkdir", &err);
	}
	reply_name(req, fs, parent, name, rc, &err);
}

/*
 * The name that is to be made exists already.  The kernel has not checked permissions on that file, so the caller must
 * look it up again (SC_E_STALE) and open it.  If the request was resent, it has made the file itself.
 */
static int find_file(fuse_req_t req, struct fs *fs, const char *name, const struct fuse_file_info *fi,
		     const struct fs_found *found, uint64_t *ret_blob, struct sc_err *err)
{
	if (fs->replays && found->node.kind == FS_WORK && found->st.st_uid == fuse_req_ctx(req)->uid) {
		*ret_blob = found->node.blob;
		return 0;
	}
	if (fi && !(fi->flags & O_EXCL) && S_ISREG(found->st.st_mode))
		return sc_fail(err, SC_E_STALE, "look again");
	return sc_fail(err, SC_E_EXISTS, "'%s' exists", name);
}

/* Makes a file of the working tree and opens it (h and fi; both NULL: mknod) before the lock is released. */
static int create_file(fuse_req_t req, struct fs *fs, fuse_ino_t parent, const char *name, mode_t mode,
		       struct fs_handle *h, struct fuse_file_info *fi, struct fs_found *found, struct sc_err *err)
{
	struct rs_owner owner = owner_of(req, fs, parent, mode, false);
	struct fs_place place;
	uint64_t blob = 0;
	int fd = -1, rc = fs_place(fs, parent, name, &place, err);

	if (rc == 0 && !*place.path)
		rc = sc_fail(err, SC_E_COMMAND, "'%s' is the name of a rank, so it must be a folder", name);
	if (rc < 0)
		return rc;
	rs_tree_enter(place.job);
	rc = fs_lookup(fs, parent, name, found, err);
	if (rc == 0) {
		rc = find_file(req, fs, name, fi, found, &blob, err);
	} else if (rc == SC_E_NOT_FOUND) {
		rc = rs_work_create_new(fs->service, place.job, place.rank, place.path, &owner, &blob, &fd,
					err);
		/* somebody else has made it since the lookup */
		if (rc == SC_E_EXISTS && fi && !(fi->flags & O_EXCL))
			rc = sc_fail(err, SC_E_STALE, "look again");
	}
	sc_closep(&fd);
	if (rc == 0) {
		found->node = (struct fs_node){.kind = FS_WORK, .job = rs_job_id(place.job), .blob = blob};
		rc = fs_stat(fs, fs_node_id(found->node), found, err);
	}
	if (rc == 0 && h) {
		h->ino = fs_node_id(found->node);
		rc = fs_open_work(req, fs, place.job, blob, h, fi, err);
	}
	rs_tree_leave(place.job);
	return rc;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e;
	struct fs_found found;
	struct sc_err err = {0};
	struct fs_handle *h = fs_open_begin(fs, 0, &err);
	int rc = h ? create_file(req, fs, parent, name, mode, h, fi, &found, &err) : SC_E_NO_MEMORY;

	if (rc == 0)
		fs_entry(fs, &found, &e);
	fs_open_end(req, fs, h, &e, fi, "create", rc, &err);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e;
	struct fs_found found;
	struct sc_err err = {0};

	(void)dev;
	if (!S_ISREG(mode)) {
		(void)fuse_reply_err(req, EPERM);
		return;
	}
	if (create_file(req, fs, parent, name, mode, NULL, NULL, &found, &err) < 0) {
		fs_fail(req, "mknod", &err);
		return;
	}
	fs_entry(fs, &found, &e);
	(void)fuse_reply_entry(req, &e);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_place place;
	int rc = fs_place(fs, parent, name, &place, &err);

	if (rc == 0) {
		rs_tree_enter(place.job);
		rc = done_before(fs, rs_work_unlink(fs->service, place.job, place.rank, place.path, &err),
				 SC_E_NOT_FOUND);
		rs_tree_leave(place.job);
	}
	if (rc < 0)
		fs_fail(req, "unlink", &err);
	else
		(void)fuse_reply_err(req, 0);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_place place;
	int rc;

	if (fs_node_of(parent).kind == FS_ROOT) {
		struct rs_job *job = rs_job_by_name(fs->service, name);

		rc = job ? rs_job_remove(fs->service, job, &err)
			 : done_before(fs, sc_fail(&err, SC_E_NOT_FOUND, "no job '%s'", name), SC_E_NOT_FOUND);
		if (rc < 0 && job)
			rs_job_refused(job, "rmdir", &err);
	} else {
		rc = fs_place(fs, parent, name, &place, &err);
		if (rc == 0) {
			rs_tree_enter(place.job);
			rc = done_before(fs, rs_work_rmdir(fs->service, place.job, place.rank, place.path, &err),
					 SC_E_NOT_FOUND);
			rs_tree_leave(place.job);
			if (rc == SC_E_BUSY) /* a folder that follows from the topology: rm -rf of the job meets it */
				rs_job_refused(place.job, "rmdir", &err);
		}
	}
	if (rc < 0)
		fs_fail(req, "rmdir", &err);
	else
		(void)fuse_reply_err(req, 0);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_place from, to;
	int rc;

	if (flags & ~(unsigned)RENAME_NOREPLACE) {
		(void)fuse_reply_err(req, EINVAL);
		return;
	}
	if (fs_node_of(parent).kind == FS_ROOT && fs_node_of(new_parent).kind == FS_ROOT) {
		struct rs_job *job = rs_job_by_name(fs->service, name);

		rc = job ? rs_job_rename(fs->service, job, new_name, &err)
			 : done_before(fs, sc_fail(&err, SC_E_NOT_FOUND, "no job '%s'", name), SC_E_NOT_FOUND);
		if (rc < 0 && job)
			rs_job_refused(job, "rename", &err);
	} else {
		rc = fs_place(fs, parent, name, &from, &err);
		if (rc == 0)
			rc = fs_place(fs, new_parent, new_name, &to, &err);
		if (rc == 0 && (from.job != to.job || (!*from.path) || !*to.path))
			rc = sc_fail(&err, SC_E_CROSS, "files cannot be renamed across jobs, and folders of ranks "
				"cannot be renamed");
		if (rc == 0) {
			rs_tree_enter(from.job);
			rc = rs_work_rename(fs->service, from.job, from.rank, from.path, to.rank, to.path,
					    flags & RENAME_NOREPLACE, &err);
			rc = done_before(fs, rc, SC_E_NOT_FOUND);
			rs_tree_leave(from.job);
		}
		/* a folder's number comes from its path: names below the old path become stale */
		if (rc == 0 && fs->epoch)
			(void)fuse_lowlevel_notify_increment_epoch(fs->se);
	}
	if (rc < 0)
		fs_fail(req, "rename", &err);
	else
		(void)fuse_reply_err(req, 0);
}

/* POSIX: a file system without these answers EPERM. */
void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	(void)link;
	(void)parent;
	(void)name;
	(void)fuse_reply_err(req, EPERM);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	(void)ino;
	(void)parent;
	(void)name;
	(void)fuse_reply_err(req, EPERM);
}
