/* SPDX-License-Identifier: Apache-2.0 */
/* Removes names, and renames. */
#include "fs/calls/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fs/cache/cache.h"
#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

static void reply(fuse_req_t req, const char *op, int rc, const struct sc_err *err)
{
	if (rc < 0)
		fs_fail(req, op, err);
	else
		(void)fuse_reply_err(req, 0);
}

static void unlink_name(fuse_req_t req, const struct fs_asked *a)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder f = {0};
	int rc = fs_folder(fs, a->ino, a->name, &f, &err);

	if (rc == 0 && !fs_was_done()) {
		rc = fs_enter(req, f.job, a, &err);
		if (rc == RS_LATER)
			return;
		if (rc == RS_HERE) {
			rc = rs_tree_unlink(fs->service, f.job, f.number, f.name, &err);
			rs_tree_leave(f.job);
		}
	}
	if (f.job && rc == SC_E_PERMISSION)
		rs_job_refused(f.job, "unlink", &err);
	fs_folder_changed(req, fs, a->ino);
	reply(req, "unlink", rc, &err);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct fs_asked a = {.serve = unlink_name, .ino = parent, .name = name};

	unlink_name(req, &a);
}

static int remove_job(struct fs *fs, const char *name, struct sc_err *err)
{
	struct rs_job *job = rs_job_by_name(fs->service, name);
	int rc;

	if (!job) /* jobs are known by errno: requests.c */
		return fs->replays ? 0 : sc_fail(err, SC_E_NOT_FOUND, "no job '%s'", name);
	rc = fs_order_here(job, err);
	if (rc == 0) {
		rc = rs_job_remove(fs->service, job, err);
		fs_order_ends(job);
	}
	if (rc < 0)
		rs_job_refused(job, "rmdir", err);
	return rc;
}

static void remove_folder(fuse_req_t req, const struct fs_asked *a)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder f = {0};
	int rc = fs_folder(fs, a->ino, a->name, &f, &err);

	if (rc == 0 && !fs_was_done()) {
		rc = fs_enter(req, f.job, a, &err);
		if (rc == RS_LATER)
			return;
		if (rc == RS_HERE) {
			rc = rs_tree_rmdir(fs->service, f.job, f.number, f.name, &err);
			rs_tree_leave(f.job);
		}
	}
	/* a folder that follows from the topology: rm -rf of the job meets it */
	if (f.job && (rc == SC_E_BUSY || rc == SC_E_PERMISSION))
		rs_job_refused(f.job, "rmdir", &err);
	fs_folder_changed(req, fs, a->ino);
	reply(req, "rmdir", rc, &err);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct fs_asked a = {.serve = remove_folder, .ino = parent, .name = name};
	struct sc_err err = {0};

	if (fs_node_of(parent).kind == FS_ROOT)
		reply(req, "rmdir", remove_job(fs_of(req), name, &err), &err);
	else
		remove_folder(req, &a);
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

static void rename_name(fuse_req_t req, const struct fs_asked *a)
{
	enum rs_rename how = a->flags & RENAME_EXCHANGE ? RS_RENAME_EXCHANGE :
			     a->flags & RENAME_NOREPLACE ? RS_RENAME_NOREPLACE : RS_RENAME_OVER;
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};
	struct fs_folder from = {0}, to = {0};
	int rc = fs_folder(fs, a->ino, a->name, &from, &err);

	if (rc == 0)
		rc = fs_folder(fs, a->other, a->text, &to, &err);
	if (rc == 0 && from.job != to.job)
		rc = sc_fail(&err, SC_E_CROSS, "files cannot be renamed across jobs; copy them");
	if (rc == 0 && !fs_was_done()) {
		rc = fs_enter(req, from.job, a, &err);
		if (rc == RS_LATER)
			return;
		if (rc == RS_HERE) {
			rc = rs_tree_rename(fs->service, from.job, from.number, from.name, to.number, to.name, how,
					    &err);
			rs_tree_leave(from.job);
		}
	}
	if (from.job && (rc == SC_E_CROSS || rc == SC_E_PERMISSION || rc == SC_E_BUSY || rc == SC_E_COMMAND))
		rs_job_refused(from.job, "rename", &err);
	fs_folder_changed(req, fs, a->ino);
	if (a->other != a->ino)
		fs_folder_changed(req, fs, a->other);
	reply(req, "rename", rc, &err);
}

void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags)
{
	const struct fs_asked a = {.serve = rename_name, .ino = parent, .name = name, .other = new_parent,
				   .text = new_name, .bytes = strlen(new_name), .flags = (int)flags};
	const unsigned known = RENAME_NOREPLACE | RENAME_EXCHANGE;
	struct sc_err err = {0};

	if (flags & ~known || flags == known)
		(void)fuse_reply_err(req, EINVAL);
	else if (fs_node_of(parent).kind == FS_ROOT && fs_node_of(new_parent).kind == FS_ROOT)
		reply(req, "rename", rename_job(fs_of(req), name, new_name, flags, &err), &err);
	else
		rename_name(req, &a);
}
