/* SPDX-License-Identifier: Apache-2.0 */
/* Removes names, and renames. */
#include "fs/fs_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static void reply(fuse_req_t req, const char *op, int rc, const struct sc_err *err)
{
	if (rc < 0)
		fs_fail(req, op, err);
	else
		(void)fuse_reply_err(req, 0);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder f = {0};
	int rc = fs_folder(fs, parent, name, &f, &err);

	if (rc == 0 && !fs_was_done()) {
		rs_tree_enter(f.job);
		rc = rs_tree_unlink(fs->service, f.job, f.number, f.name, &err);
		rs_tree_leave(f.job);
	}
	if (f.job && rc == SC_E_PERMISSION)
		rs_job_refused(f.job, "unlink", &err);
	fs_folder_changed(req, fs, parent);
	reply(req, "unlink", rc, &err);
}

static int remove_job(struct fs *fs, const char *name, struct sc_err *err)
{
	struct rs_job *job = rs_job_by_name(fs->service, name);
	int rc;

	if (!job) /* jobs are known by errno: requests.c */
		return fs->replays ? 0 : sc_fail(err, SC_E_NOT_FOUND, "no job '%s'", name);
	rc = rs_job_remove(fs->service, job, err);
	if (rc < 0)
		rs_job_refused(job, "rmdir", err);
	return rc;
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder f = {0};
	int rc;

	if (fs_node_of(parent).kind == FS_ROOT) {
		reply(req, "rmdir", remove_job(fs, name, &err), &err);
		return;
	}
	rc = fs_folder(fs, parent, name, &f, &err);
	if (rc == 0 && !fs_was_done()) {
		rs_tree_enter(f.job);
		rc = rs_tree_rmdir(fs->service, f.job, f.number, f.name, &err);
		rs_tree_leave(f.job);
	}
	/* a folder that follows from the topology: rm -rf of the job meets it */
	if (f.job && (rc == SC_E_BUSY || rc == SC_E_PERMISSION))
		rs_job_refused(f.job, "rmdir", &err);
	fs_folder_changed(req, fs, parent);
	reply(req, "rmdir", rc, &err);
}

static int rename_job(struct fs *fs, const char *name, const char *new_name, unsigned flags, struct sc_err *err)
{
	struct rs_job *job = rs_job_by_name(fs->service, name);
	int rc;

	if (flags & RENAME_EXCHANGE)
		return sc_fail_sys(err, EINVAL, "jobs cannot be exchanged; rename them one after the other");
	if (!job)
		return fs->replays ? 0 : sc_fail(err, SC_E_NOT_FOUND, "no job '%s'", name);
	rc = rs_job_rename(fs->service, job, new_name, err);
	if (rc < 0)
		rs_job_refused(job, "rename", err);
	return rc;
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags)
{
	const unsigned known = RENAME_NOREPLACE | RENAME_EXCHANGE;
	enum rs_rename how = flags & RENAME_EXCHANGE ? RS_RENAME_EXCHANGE :
			     flags & RENAME_NOREPLACE ? RS_RENAME_NOREPLACE : RS_RENAME_OVER;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder from = {0}, to = {0};
	int rc;

	if (flags & ~known || flags == known) {
		(void)fuse_reply_err(req, EINVAL);
		return;
	}
	if (fs_node_of(parent).kind == FS_ROOT && fs_node_of(new_parent).kind == FS_ROOT) {
		reply(req, "rename", rename_job(fs, name, new_name, flags, &err), &err);
		return;
	}
	rc = fs_folder(fs, parent, name, &from, &err);
	if (rc == 0)
		rc = fs_folder(fs, new_parent, new_name, &to, &err);
	if (rc == 0 && from.job != to.job)
		rc = sc_fail(&err, SC_E_CROSS, "files cannot be renamed across jobs; copy them");
	if (rc == 0 && !fs_was_done()) {
		rs_tree_enter(from.job);
		rc = rs_tree_rename(fs->service, from.job, from.number, from.name, to.number, to.name, how, &err);
		rs_tree_leave(from.job);
	}
	if (from.job && (rc == SC_E_CROSS || rc == SC_E_PERMISSION || rc == SC_E_BUSY || rc == SC_E_COMMAND))
		rs_job_refused(from.job, "rename", &err);
	fs_folder_changed(req, fs, parent);
	if (new_parent != parent)
		fs_folder_changed(req, fs, new_parent);
	reply(req, "rename", rc, &err);
}
