/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and changes extended attributes.  user., trusted. and security. are kept; POSIX ACLs are not supported.
 * Without FUSE_HANDLE_KILLPRIV_V2 the kernel asks for security.capability at each write(2), and is answered at once.
 */
#include "fs/calls/calls.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/handover/handover.h"
#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"

static bool begins(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

static int check_name(const char *name, struct sc_err *err)
{
	if (begins(name, "user.") || begins(name, "trusted.") || begins(name, "security."))
		return 0;
	return sc_fail(err, SC_E_UNSUPPORTED, "'%s': extended attributes are kept in user., trusted. and security.; "
		       "there are no ACLs", name);
}

/* Finds the object whose attributes a node has: 1, 0 (the node is of a version), or an error. */
static int find(struct fs *fs, fuse_ino_t ino, struct rs_job **ret_job, uint64_t *ret, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);
	int rc;

	if (n.kind == FS_ROOT || n.kind == FS_TOP || n.kind == FS_SPECIAL)
		return sc_fail(err, SC_E_UNSUPPORTED, "control files have no extended attributes");
	rc = fs_number(fs, &n, ret_job, ret, err);
	return rc == SC_E_SEALED ? 0 : rc < 0 ? rc : 1;
}

/* Reads one attribute (`name`) of an object in a version, or the names of all (NULL). */
static int read_in_view(struct fs *fs, fuse_ino_t ino, const char *name, struct sc_buf *ret, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);
	struct rs_view *view = NULL;
	const char *path = "";
	uint32_t rank;
	int rc = rs_view_at(fs->service, n.place, &view, err);

	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	if (rc == 0 && !fs_node_is_version(&n))
		rc = rs_path_text(fs->service, n.path, &path, err);
	rank = rc == 0 && !fs_node_is_version(&n) ? fs_rank(&n, view) : RS_SHARED;
	if (rc == 0 && name)
		rc = rs_view_xattr(view, rank, path, (struct meta_bytes){name, strlen(name)}, ret, err);
	else if (rc == 0)
		rc = rs_view_xattrs(view, rank, path, ret, err);
	rs_view_unref(fs->service, view);
	return rc;
}

/* Answers with a text, or with its size alone. */
static void reply(fuse_req_t req, const char *op, int rc, const struct sc_buf *text, size_t bytes,
		  const struct sc_err *err)
{
	if (rc < 0)
		fs_fail(req, op, err);
	else if (!bytes)
		(void)fuse_reply_xattr(req, text->bytes);
	else if (text->bytes > bytes)
		(void)fuse_reply_err(req, ERANGE);
	else
		(void)fuse_reply_buf(req, text->text, text->bytes);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t bytes)
{
	struct fs *fs = fs_of(req);
	struct sc_buf value = {0};
	struct sc_err err = {0};
	struct rs_job *job;
	uint64_t number;
	int rc;

	if (!fs->kills_set_id && strcmp(name, "security.capability") == 0) {
		(void)fuse_reply_err(req, ENODATA);
		return;
	}
	rc = check_name(name, &err);
	if (rc == 0)
		rc = find(fs, ino, &job, &number, &err);
	if (rc > 0)
		rc = rs_tree_xattr(fs->service, job, number, (struct meta_bytes){name, strlen(name)}, &value, &err);
	else if (rc == 0)
		rc = read_in_view(fs, ino, name, &value, &err);
	if (rc == 0)
		(void)fuse_reply_err(req, ENODATA);
	else
		reply(req, "getxattr", rc, &value, bytes, &err);
	sc_buf_done(&value);
}

/* Takes the names that only root may see out of a list. */
static void hide_trusted(struct sc_buf *names)
{
	size_t to = 0;

	for (size_t at = 0, n; at < names->bytes; at += n) {
		n = strlen(names->text + at) + 1;
		if (begins(names->text + at, "trusted."))
			continue;
		memmove(names->text + to, names->text + at, n);
		to += n;
	}
	names->bytes = to;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t bytes)
{
	struct fs *fs = fs_of(req);
	struct sc_buf names = {0};
	struct sc_err err = {0};
	struct rs_job *job;
	uint64_t number;
	int rc = find(fs, ino, &job, &number, &err);

	if (rc > 0)
		rc = rs_tree_xattrs(fs->service, job, number, &names, &err);
	else if (rc == 0)
		rc = read_in_view(fs, ino, NULL, &names, &err);
	if (rc >= 0 && fuse_req_ctx(req)->uid != 0)
		hide_trusted(&names);
	reply(req, "listxattr", rc, &names, bytes, &err);
	sc_buf_done(&names);
}

static int find_to_change(struct fs *fs, fuse_ino_t ino, const char *name, struct rs_job **ret_job, uint64_t *ret,
			  struct sc_err *err)
{
	int rc = check_name(name, err);

	if (rc == 0)
		rc = find(fs, ino, ret_job, ret, err);
	if (rc == 0)
		return fs_fail_sealed(err);
	return rc < 0 ? rc : 0;
}

static void reply_change(fuse_req_t req, struct fs *fs, fuse_ino_t ino, struct rs_job *job, uint64_t number,
			 const char *op, int rc, const struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);

	if (rc < 0) {
		fs_fail(req, op, err);
		return;
	}
	if (fs_node_is_file(&n))
		fs_changed(fs, &n, job, number, false);
	(void)fuse_reply_err(req, 0);
}

static void set_xattr(fuse_req_t req, const struct fs_asked *a)
{
	enum rs_xattr_set how = a->flags & XATTR_CREATE  ? RS_XATTR_NEW :
				a->flags & XATTR_REPLACE ? RS_XATTR_OLD : RS_XATTR_ANY;
	struct meta_bytes is = {a->name, strlen(a->name)}, new_value = {a->text, a->bytes};
	struct fs *fs = fs_of(req);
	struct rs_job *job = NULL;
	struct sc_err err = {0};
	uint64_t number = 0;
	int rc = find_to_change(fs, a->ino, a->name, &job, &number, &err);

	if (rc == 0 && !fs_was_done()) {
		rc = fs_enter(req, job, a, &err);
		if (rc == RS_LATER)
			return;
		if (rc == RS_HERE) {
			rc = rs_tree_set_xattr(fs->service, job, number, is, new_value, how, &err);
			rs_tree_leave(job);
		}
	}
	reply_change(req, fs, a->ino, job, number, "setxattr", rc, &err);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags)
{
	const struct fs_asked a = {.serve = set_xattr, .ino = ino, .name = name, .text = value, .bytes = bytes,
				   .flags = flags};

	set_xattr(req, &a);
}

static void drop_xattr(fuse_req_t req, const struct fs_asked *a)
{
	struct fs *fs = fs_of(req);
	struct rs_job *job = NULL;
	struct sc_err err = {0};
	uint64_t number = 0;
	int rc = find_to_change(fs, a->ino, a->name, &job, &number, &err);

	if (rc == 0 && !fs_was_done()) {
		rc = fs_enter(req, job, a, &err);
		if (rc == RS_LATER)
			return;
		if (rc == RS_HERE) {
			rc = rs_tree_drop_xattr(fs->service, job, number,
						(struct meta_bytes){a->name, strlen(a->name)}, &err);
			rs_tree_leave(job);
		}
	}
	reply_change(req, fs, a->ino, job, number, "removexattr", rc, &err);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	const struct fs_asked a = {.serve = drop_xattr, .ino = ino, .name = name};

	drop_xattr(req, &a);
}
