/* SPDX-License-Identifier: Apache-2.0 */
/* Makes files, folders, links and special files. */
#include "fs/calls/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs/cache/cache.h"
#include "fs/handover/handover.h"
#include "fs/lookup/lookup.h"
#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

static struct rs_make make_of(fuse_req_t req, mode_t mode)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	mode_t umask = S_ISLNK(mode) ? 0 : ctx->umask & 0777;

	return (struct rs_make){.mode = mode & ~umask, .uid = ctx->uid, .gid = ctx->gid};
}

/* Finds the object that a request has made in a daemon that died (fs_was_done()). */
static int find_made(struct fs *fs, const struct fs_folder *f, struct rs_look *ret, struct sc_err *err)
{
	int rc = rs_tree_child(fs->service, f->job, f->number, f->name, ret, err);

	/* a command has taken it away since: the kernel asks again, and it is made there */
	return rc == 0 && ret->kind == RS_NONE ? sc_fail(err, SC_E_STALE, "look again") : rc;
}

/* Makes the object of a request, or finds it, if a daemon that died has made it. */
static int make_once(struct fs *fs, const struct fs_folder *f, const struct rs_make *what, struct rs_look *ret,
		     struct sc_err *err)
{
	return fs_was_done() ? find_made(fs, f, ret, err)
			     : rs_tree_make(fs->service, f->job, f->number, f->name, what, ret, NULL, err);
}

static void reply_found(fuse_req_t req, struct fs *fs, const char *op, int rc, const struct fs_found *found,
			const struct sc_err *err)
{
	struct fuse_entry_param e;

	if (rc < 0) {
		fs_fail(req, op, err);
		return;
	}
	fs_entry(fs, found, &e);
	(void)fuse_reply_entry(req, &e);
}

/* Makes an object without bytes, and answers. */
static void make(fuse_req_t req, const struct fs_asked *a, const struct rs_make *what, const char *op)
{
	struct fs *fs = fs_of(req);
	struct fs_folder folder = {0};
	struct fs_found found;
	struct sc_err err = {0};
	struct rs_look look;
	int rc = fs_folder(fs, a->ino, a->name, &folder, &err);

	if (rc == 0)
		rc = fs_enter(req, folder.job, a, &err);
	if (rc == RS_LATER)
		return;
	if (rc == RS_HERE) {
		rc = make_once(fs, &folder, what, &look, &err);
		if (rc == 0)
			rc = fs_stat_look(fs, folder.job, &look, &found, &err);
		rs_tree_leave(folder.job);
	}
	if (rc < 0 && folder.job && rc != SC_E_EXISTS && rc != SC_E_STALE)
		rs_job_refused(folder.job, op, &err);
	fs_folder_changed(req, fs, a->ino);
	reply_found(req, fs, op, rc, &found, &err);
}

static void make_folder(fuse_req_t req, const struct fs_asked *a)
{
	const struct rs_make what = make_of(req, a->mode);

	make(req, a, &what, "mkdir");
}

static void make_link(fuse_req_t req, const struct fs_asked *a)
{
	struct rs_make what = make_of(req, a->mode);

	what.target = (struct meta_bytes){a->text, a->bytes};
	make(req, a, &what, "symlink");
}

static void make_special(fuse_req_t req, const struct fs_asked *a)
{
	struct rs_make what = make_of(req, a->mode);

	what.rdev = S_ISCHR(a->mode) || S_ISBLK(a->mode) ? a->dev : 0;
	make(req, a, &what, "mknod");
}

/* Makes a job: a folder in the mount's own folder. */
static void make_job(fuse_req_t req, const char *name, mode_t mode)
{
	struct fs *fs = fs_of(req);
	struct rs_make what = make_of(req, mode);
	struct fs_found found;
	struct sc_err err = {0};
	struct rs_job *job;
	int rc = rs_job_make(fs->service, name, what.mode & 07777, what.uid, what.gid, &job, &err);

	if (rc == SC_E_COMMAND) /* no job has an `error` that could tell */
		sc_log(SC_LOG_ERROR, "mkdir: %s", err.msg);
	if (rc == SC_E_EXISTS && fs->replays) /* jobs are known by errno: requests.c */
		rc = 0;
	if (rc == 0)
		rc = fs_lookup(fs, FUSE_ROOT_ID, name, &found, &err);
	reply_found(req, fs, "mkdir", rc, &found, &err);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	const struct fs_asked a = {.serve = make_folder, .ino = parent, .name = name, .mode = S_IFDIR | (mode & 07777)};

	if (fs_node_of(parent).kind == FS_ROOT)
		make_job(req, name, mode & 07777);
	else
		make_folder(req, &a);
}

void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	const struct fs_asked a = {.serve = make_link, .ino = parent, .name = name, .text = link, .bytes = strlen(link),
				   .mode = S_IFLNK | 0777};

	make_link(req, &a);
}

/* --- regular files --- */

/*
 * Answers a create whose name exists already.  The kernel has not checked permissions on that file, so the caller must
 * look it up again (SC_E_STALE) and open it.
 */
static int refuse_existing(const char *name, const struct fuse_file_info *fi, struct sc_err *err)
{
	return fi && !(fi->flags & O_EXCL) ? sc_fail(err, SC_E_STALE, "look again")
					   : sc_fail(err, SC_E_EXISTS, "'%s' exists", name);
}

/* Makes a file of the working tree and opens it (h and fi; both NULL: mknod) before the lock is released. */
static int create_file(fuse_req_t req, struct fs *fs, const struct fs_asked *a, struct fs_handle *h,
		       struct fuse_file_info *fi, struct fs_found *found, struct sc_err *err)
{
	struct rs_make what = make_of(req, S_IFREG | (a->mode & 07777));
	struct fs_folder folder = {0};
	struct rs_look look;
	int rc = fs_folder(fs, a->ino, a->name, &folder, err);

	if (rc == 0)
		rc = fs_enter(req, folder.job, a, err);
	if (rc == RS_HERE) {
		rc = make_once(fs, &folder, &what, &look, err);
		if (rc == SC_E_EXISTS || (rc == 0 && look.kind != RS_WORK)) /* was made, and committed meanwhile */
			rc = refuse_existing(a->name, fi, err);
		/* it is empty: a truncation would take SUID and SGID from it */
		if (rc == 0 && fi)
			fi->flags &= ~O_TRUNC;
		if (rc == 0)
			rc = fs_stat_look(fs, folder.job, &look, found, err);
		if (rc == 0 && h) {
			h->ino = fs_node_id(found->node);
			rc = fs_open_work(req, fs, folder.job, look.blob, h, fi, err);
		}
		rs_tree_leave(folder.job);
	}
	if (folder.job && (rc == SC_E_COMMAND || rc == SC_E_PERMISSION || rc == SC_E_NOT_FOUND))
		rs_job_refused(folder.job, "create", err);
	return rc;
}

static void create(fuse_req_t req, const struct fs_asked *a)
{
	struct fuse_file_info fi = a->fi;
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e;
	struct fs_found found;
	struct sc_err err = {0};
	struct fs_handle *h = fs_open_begin(fs, 0, &err);
	int rc = SC_E_NO_MEMORY;

	fs_room_for_file(fs);
	if (h)
		rc = create_file(req, fs, a, h, &fi, &found, &err);
	if (rc == RS_LATER) {
		fs_open_put_off(fs, h);
		return;
	}
	fs_folder_changed(req, fs, a->ino);
	if (rc == 0)
		fs_entry(fs, &found, &e);
	fs_open_end(req, fs, h, &e, &fi, "create", rc, &err);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	const struct fs_asked a = {.serve = create, .ino = parent, .name = name, .mode = mode, .fi = *fi};

	create(req, &a);
}

static void make_file(fuse_req_t req, const struct fs_asked *a)
{
	struct fs *fs = fs_of(req);
	struct fs_found found;
	struct sc_err err = {0};
	int rc = create_file(req, fs, a, NULL, NULL, &found, &err);

	if (rc != RS_LATER)
		reply_found(req, fs, "mknod", rc, &found, &err);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t dev)
{
	const struct fs_asked a = {.serve = S_ISREG(mode) ? make_file : make_special, .ino = parent, .name = name,
				   .mode = mode, .dev = dev};

	a.serve(req, &a);
}

/* --- another name --- */

static int link_file(fuse_req_t req, const struct fs_asked *a, const struct fs_node *n, const struct fs_folder *to,
		     struct fs_found *found, struct sc_err *err)
{
	struct fs *fs = fs_of(req);
	struct rs_service *s = fs->service;
	bool was_committed;
	struct rs_job *job;
	struct rs_look look;
	uint64_t number;
	int rc = fs_number(fs, n, &job, &number, err);

	if (rc == SC_E_SEALED)
		return sc_fail(err, SC_E_CROSS, "files of versions (.v) and other topologies (.as) have no names "
			       "elsewhere; copy them");
	if (rc == 0 && job != to->job)
		rc = sc_fail(err, SC_E_CROSS, "files cannot be linked across jobs; copy them");
	if (rc == 0)
		rc = fs_enter(req, job, a, err);
	if (rc != RS_HERE)
		return rc;
	was_committed = fs_is_committed(fs, job, number);
	rc = fs_was_done() ? 0 : rs_tree_link(s, job, number, to->number, to->name, err);
	if (rc == 0)
		rc = find_made(fs, to, &look, err);
	/* the node of now: if the link has copied the file up, it is another one than the kernel has asked for */
	if (rc == 0)
		rc = fs_stat_look(fs, job, &look, found, err);
	rs_tree_leave(job);
	if (rc == 0)
		fs_changed(fs, n, job, number, was_committed);
	return rc;
}

static void make_name(fuse_req_t req, const struct fs_asked *a)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(a->ino);
	struct fs_folder to = {0};
	struct fs_found found;
	struct sc_err err = {0};
	int rc = fs_folder(fs, a->other, a->name, &to, &err);

	if (rc == 0)
		rc = link_file(req, a, &n, &to, &found, &err);
	if (rc == RS_LATER)
		return;
	if (to.job && (rc == SC_E_PERMISSION || rc == SC_E_CROSS || rc == SC_E_COMMAND))
		rs_job_refused(to.job, "link", &err);
	fs_folder_changed(req, fs, a->other);
	reply_found(req, fs, "link", rc, &found, &err);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
	const struct fs_asked a = {.serve = make_name, .ino = ino, .other = parent, .name = name};

	make_name(req, &a);
}
