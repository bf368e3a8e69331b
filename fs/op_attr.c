/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes.  Changing those of a committed file copies the file up to the working tree first. */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_found found;
	struct sc_err err = {0};

	(void)fi;
	if (fs_stat(fs, ino, &found, &err) < 0)
		fs_fail(req, "getattr", &err);
	else
		(void)fuse_reply_attr(req, &found.st, fs->epoch ? found.timeout : 0);
}

static void new_times(const struct stat *attr, int set, struct timespec ts[2])
{
	ts[0] = set & FUSE_SET_ATTR_ATIME ? attr->st_atim : (struct timespec){0, UTIME_OMIT};
	ts[1] = set & FUSE_SET_ATTR_MTIME ? attr->st_mtim : (struct timespec){0, UTIME_OMIT};
	if (set & FUSE_SET_ATTR_ATIME_NOW)
		ts[0].tv_nsec = UTIME_NOW;
	if (set & FUSE_SET_ATTR_MTIME_NOW)
		ts[1].tv_nsec = UTIME_NOW;
}

/* Under rs_tree_enter(). */
static int set_work(struct fs *fs, struct rs_job *job, uint64_t blob, const struct stat *attr,
		    int set, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct timespec ts[2];
	int rc = rs_work_open(fs->service, job, blob, set & FUSE_SET_ATTR_SIZE ? O_RDWR : O_RDONLY, &fd, err);

	if (rc < 0)
		return rc;
	if (set & FUSE_SET_ATTR_SIZE && sc_sys.ftruncate(fd, attr->st_size) < 0)
		return sc_fail_sys(err, errno, "truncate");
	if (set & FUSE_SET_ATTR_MODE && sc_sys.fchmod(fd, attr->st_mode & 07777) < 0)
		return sc_fail_sys(err, errno, "chmod");
	if (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) &&
	    sc_sys.fchown(fd, set & FUSE_SET_ATTR_UID ? attr->st_uid : (uid_t)-1,
			  set & FUSE_SET_ATTR_GID ? attr->st_gid : (gid_t)-1) < 0)
		return sc_fail_sys(err, errno, "chown");
	new_times(attr, set, ts);
	if (set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW |
		   FUSE_SET_ATTR_MTIME_NOW) &&
	    sc_sys.futimens(fd, ts) < 0)
		return sc_fail_sys(err, errno, "utimens");
	return 0;
}

static int set_job(struct fs *fs, struct rs_job *job, const struct stat *attr, int set,
		   struct sc_err *err)
{
	struct rs_job_attr a;

	rs_job_attr(job, &a);
	if (!(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)))
		return 0; /* its times are those of its newest file */
	return rs_job_chattr(fs->service, job, set & FUSE_SET_ATTR_MODE ? attr->st_mode : a.mode,
			     set & FUSE_SET_ATTR_UID ? attr->st_uid : a.uid,
			     set & FUSE_SET_ATTR_GID ? attr->st_gid : a.gid, err);
}

static int set_dir(struct fs *fs, struct rs_job *job, const struct fs_node *n,
		   const struct fs_found *now, const struct stat *attr, int set, struct sc_err *err)
{
	struct rs_owner owner = {set & FUSE_SET_ATTR_UID ? attr->st_uid : now->st.st_uid,
				 set & FUSE_SET_ATTR_GID ? attr->st_gid : now->st.st_gid,
				 (set & FUSE_SET_ATTR_MODE ? attr->st_mode : now->st.st_mode) & 07777};
	int64_t mtime = set & FUSE_SET_ATTR_MTIME
				? (int64_t)attr->st_mtim.tv_sec * 1000000000 + attr->st_mtim.tv_nsec
				: sc_now_wall_ns();
	const char *path;
	int rc = rs_path_text(fs->service, n->path, &path, err);

	if (rc < 0)
		return rc;
	rs_tree_enter(job);
	rc = rs_work_chattr_dir(fs->service, job, n->tree_rank, path, &owner, mtime, err);
	rs_tree_leave(job);
	return rc;
}

/*
 * Changes the attributes of a file, by its path or by a descriptor.  If the file is committed, a copy of it gets them
 * and the next lookup finds the copy; *now stays the attributes of the committed file, for processes that have it
 * open.
 */
static int set_file(struct fs *fs, const struct fs_node *n, const struct stat *attr, int set, struct fs_found *now,
		    struct sc_err *err)
{
	bool truncates = set & FUSE_SET_ATTR_SIZE && attr->st_size == 0;
	struct rs_job *job;
	uint64_t blob;
	int rc = fs_work_begin(fs, n, truncates, &job, &blob, err);

	if (rc < 0)
		return rc;
	rc = set_work(fs, job, blob, attr, set, err);
	if (rc == 0 && n->kind == FS_WORK && blob == n->blob)
		rc = fs_stat(fs, fs_node_id(*n), now, err);
	rs_tree_leave(job);
	return rc;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set,
		struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(ino);
	struct rs_job *job = n.kind == FS_ROOT || n.kind == FS_TOP ? NULL : fs_job(fs, &n);
	struct sc_err err = {0};
	struct fs_found now;
	int rc = fs_stat(fs, ino, &now, &err);

	(void)fi;
	if (rc == 0 && !job)
		rc = sc_fail(&err, SC_E_PERMISSION, "attributes of control files, views and versions cannot be "
			"changed");
	if (rc == 0 && (n.kind == FS_WORK || n.kind == FS_VIEW || n.kind == FS_BLOB || n.kind == FS_SHARED))
		rc = set_file(fs, &n, attr, set, &now, &err);
	else if (rc == 0 && n.kind == FS_JOB)
		rc = set_job(fs, job, attr, set, &err);
	else if (rc == 0 && n.kind == FS_DIR)
		rc = set_dir(fs, job, &n, &now, attr, set, &err);
	else if (rc == 0 && n.kind == FS_SPECIAL &&
		 !(set & (FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)))
		rc = 0; /* `echo x > topology` truncates first */
	else if (rc == 0)
		rc = sc_fail(&err, SC_E_SEALED, "read-only");
	if (rc == 0 && (n.kind == FS_JOB || n.kind == FS_DIR || n.kind == FS_SPECIAL))
		rc = fs_stat(fs, ino, &now, &err);
	if (rc < 0)
		fs_fail(req, "setattr", &err);
	else
		(void)fuse_reply_attr(req, &now.st, fs->epoch ? now.timeout : 0);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct statvfs st;

	(void)ino;
	if (sc_sys.fstatvfs(rs_service_store(fs->service)->dir, &st) < 0)
		(void)fuse_reply_err(req, errno);
	else
		(void)fuse_reply_statfs(req, &st);
}
