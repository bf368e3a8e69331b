/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes: asked for, and changed. */
#include "fs/calls/calls.h"

#include <errno.h>
#include <fcntl.h>

#include "fs/cache/cache.h"
#include "fs/lookup/lookup.h"
#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_found found;
	struct sc_err err = {0};

	(void)fi;
	if (fs_stat(fs, ino, &found, &err) < 0)
		fs_fail(req, "getattr", &err);
	else {
		fs_folder_told(req, fs, &found);
		(void)fuse_reply_attr(req, &found.st, fs_keep(fs, found.timeout));
	}
}

static int64_t ns_of(struct timespec ts)
{
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static struct rs_attrs attrs_of(const struct stat *attr, int set)
{
	const int64_t now = sc_now_wall_ns();

	return (struct rs_attrs){
		.has_mode = set & FUSE_SET_ATTR_MODE, .mode = attr->st_mode & 07777,
		.has_uid = set & FUSE_SET_ATTR_UID, .uid = attr->st_uid,
		.has_gid = set & FUSE_SET_ATTR_GID, .gid = attr->st_gid,
		.has_atime = set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW),
		.atime_ns = set & FUSE_SET_ATTR_ATIME_NOW ? now : ns_of(attr->st_atim),
		.has_mtime = set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW),
		.mtime_ns = set & FUSE_SET_ATTR_MTIME_NOW ? now : ns_of(attr->st_mtim),
	};
}

static bool is_any(const struct rs_attrs *a)
{
	return a->has_mode || a->has_uid || a->has_gid || a->has_atime || a->has_mtime;
}

/*
 * Adds the end of SUID and SGID to what is set.  With FUSE_HANDLE_KILLPRIV_V2 the kernel leaves it to us: at a chown
 * always, at a truncation it says when.  Where a write takes the bits, it sends a request that sets nothing, also for
 * a passthrough file, which it writes itself.
 */
static int kill_set_id(fuse_req_t req, struct fs *fs, struct rs_job *job, uint64_t number, int set,
		       struct rs_attrs *attrs, struct sc_err *err)
{
	const int chown = FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;
	const bool sets_size = set & FUSE_SET_ATTR_SIZE;
	struct fs_found found;
	struct rs_look look;
	int rc;

	if (set & (chown | FUSE_SET_ATTR_KILL_SUID | FUSE_SET_ATTR_KILL_SGID) ? !fs->kills_set_id || attrs->has_mode
									      : is_any(attrs) || sets_size)
		return 0;
	rc = rs_tree_get(fs->service, job, number, &look, err);
	if (rc == 0)
		rc = fs_stat_look(fs, job, &look, &found, err);
	if (rc < 0 || S_ISDIR(found.st.st_mode) || !(found.st.st_mode & (S_ISUID | S_ISGID)))
		return rc;
	attrs->mode = fs_killed_mode(req, found.st.st_mode & 07777, found.st.st_gid);
	attrs->has_mode = attrs->mode != (found.st.st_mode & 07777);
	return 0;
}

/* Changes the size of a file of the working tree.  The caller is inside the gate. */
static int set_size(struct fs *fs, struct rs_job *job, uint64_t blob, off_t bytes, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = rs_work_open(fs->service, job, blob, O_RDWR, &fd, err);

	if (rc == 0 && sc_sys.ftruncate(fd, bytes) < 0)
		rc = sc_fail_sys(err, errno, "truncate");
	return rc;
}

/* Sets mode and owner of the job's folder, which are the job's. */
static int set_job(fuse_req_t req, struct rs_job *job, const struct fs_asked *a, struct sc_err *err)
{
	struct rs_attrs attrs = attrs_of(&a->attr, a->flags);
	struct fs *fs = fs_of(req);
	int rc = 0;

	if (attrs.has_mode || attrs.has_uid || attrs.has_gid)
		rc = rs_job_chattr(fs->service, job, attrs.has_mode ? attrs.mode : RS_SAME_MODE,
				   attrs.has_uid ? attrs.uid : RS_SAME_ID, attrs.has_gid ? attrs.gid : RS_SAME_ID, err);
	attrs.has_mode = attrs.has_uid = attrs.has_gid = false;
	if (rc == 0 && is_any(&attrs))
		rc = fs_enter(req, job, a, err);
	if (rc != RS_HERE || !is_any(&attrs))
		return rc;
	rc = rs_tree_set_attrs(fs->service, job, rs_job_root(job), &attrs, err);
	rs_tree_leave(job);
	return rc;
}

/*
 * Changes the attributes of an object that has a number, by its name or by a descriptor.  Another size copies a
 * committed file up: the next lookup finds the copy, and programs that have the committed file open go on reading that.
 */
static int set_object(fuse_req_t req, const struct fs_node *n, const struct fs_asked *a, struct sc_err *err)
{
	struct rs_attrs attrs = attrs_of(&a->attr, a->flags);
	struct fs *fs = fs_of(req);
	bool was_committed = false;
	struct rs_job *job = fs_job(fs, n);
	uint64_t number = 0, blob;
	int rc = 0;

	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	rc = a->flags & FUSE_SET_ATTR_SIZE ? fs_work_begin(req, a, n, a->attr.st_size == 0, &job, &blob, err)
					   : fs_enter(req, job, a, err);
	if (rc != RS_HERE)
		return rc;
	if (a->flags & FUSE_SET_ATTR_SIZE)
		rc = set_size(fs, job, blob, a->attr.st_size, err);
	if (rc == 0)
		rc = fs_number(fs, n, &job, &number, err);
	if (rc == 0)
		rc = kill_set_id(req, fs, job, number, a->flags, &attrs, err);
	if (rc == 0 && is_any(&attrs)) {
		was_committed = fs_is_committed(fs, job, number);
		rc = rs_tree_set_attrs(fs->service, job, number, &attrs, err);
	}
	rs_tree_leave(job);
	if (rc == 0 && fs_node_is_file(n))
		fs_changed(fs, n, job, number, was_committed);
	return rc;
}

static void set_attrs(fuse_req_t req, const struct fs_asked *a)
{
	const int owner_or_mode = FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(a->ino);
	struct rs_job *job = fs_job(fs, &n);
	struct sc_err err = {0};
	struct fs_found now;
	int rc = 0;

	if (n.kind == FS_ROOT || n.kind == FS_TOP)
		rc = sc_fail(&err, SC_E_PERMISSION, "attributes of control files and of the mount cannot be changed");
	else if (!job)
		rc = sc_fail(&err, SC_E_STALE, "the job is gone");
	else if (n.kind == FS_JOB)
		rc = set_job(req, job, a, &err);
	else if (n.kind == FS_INODE || n.kind == FS_IMPLIED || fs_node_is_file(&n))
		rc = set_object(req, &n, a, &err);
	else if (n.kind != FS_SPECIAL || a->flags & owner_or_mode) /* `echo x > topology` truncates first */
		rc = sc_fail(&err, SC_E_SEALED, "read-only");
	if (rc == RS_LATER)
		return;
	if (rc == 0)
		rc = fs_stat(fs, a->ino, &now, &err);
	if (rc < 0)
		fs_fail(req, "setattr", &err);
	else
		(void)fuse_reply_attr(req, &now.st, S_ISDIR(now.st.st_mode) ? 0 : fs_keep(fs, now.timeout));
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int set,
		struct fuse_file_info *fi)
{
	const struct fs_asked a = {.serve = set_attrs, .ino = ino, .attr = *attr, .flags = set};

	(void)fi;
	set_attrs(req, &a);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct statvfs st;

	(void)ino;
	fs_room_to_show(fs);
	if (sc_sys.fstatvfs(rs_service_store(fs->service)->dir, &st) < 0)
		(void)fuse_reply_err(req, errno);
	else
		(void)fuse_reply_statfs(req, &st);
}
