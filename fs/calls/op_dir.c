/* SPDX-License-Identifier: Apache-2.0 */
/* Looks names up, reads links, lists folders. */
#include "fs/calls/calls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "fs/cache/cache.h"
#include "fs/handover/handover.h"
#include "fs/lookup/lookup.h"
#include "fs/node/node.h"
#include "fs/open/open.h"
#include "fs/request/parked.h"
#include "fs/request/request.h"
#include "meta/base/metric.h"

SC_HISTOGRAM(lookups, "scalai_lookup_seconds", "", "Time until a name that there is was looked up, with its waits.");

#define OFFSET_HIDDEN (UINT64_C(1) << 62) /* of .ctl and so on: behind all names that a listing has */

/* --- looking up --- */

/* Opens a committed file; NULL: it cannot be, or is none. */
static struct fs_handle *open_committed(struct fs *fs, const struct fs_node *n)
{
	struct sc_err ignored = {0};
	struct fs_handle *h;
	int rc;

	h = fs_node_has_place(n) && fs_node_is_file(n) ? fs_open_begin(fs, fs_node_id(*n), &ignored) : NULL;
	if (!h)
		return NULL;
	rc = fs_reopen_committed(fs, h, n, &ignored);
	if (rc == 0 && h->kind == FS_H_FD)
		rc = rs_work_hold(fs->service, h->blob, &ignored);
	if (rc < 0) {
		fs_open_put_off(fs, h);
		return NULL;
	}
	if (h->kind == FS_H_FD)
		h->held = h->blob;
	return h;
}

/* Keeps what a thread that looks again has found (A1, A2 of open/ahead.c).  Where this fails, the thread's open fails,
 * too, and says why. */
static void keep_ahead(struct fs *fs, const struct fs_node *n, pid_t thread)
{
	struct fs_handle *h;

	if (fs_node_has_place(n) && !fs_node_is_file(n)) {
		fs_ahead_keep_folder(fs, n, thread);
		return;
	}
	h = open_committed(fs, n);
	fs_ahead_opened(fs, thread); /* it opens what it has looked up last */
	if (h)
		fs_ahead_keep(fs, h, thread);
}

/* Reserves what a retrying thread finds, so that no commit seals it before it is opened. */
static int lookup_again(fuse_req_t req, const struct fs_asked *a, struct fs_found *found, struct sc_err *err)
{
	const pid_t thread = fuse_req_ctx(req)->pid;
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(a->ino);
	struct rs_job *job = NULL, *same;
	struct sc_err ignored;
	uint64_t blob;
	bool copies;
	int rc = fs_lookup(fs, a->ino, a->name, found, err);

	if (thread && a->told && fs_is_listed_by_number(&n))
		job = fs_job(fs, &n);
	/* threads of another process namespace share the number 0: what an open has reserved must do for them */
	if (rc == 0 && a->told)
		keep_ahead(fs, &found->node, thread);
	if (rc < 0 || !job)
		return rc;
	/* nothing is reserved of a folder, or of what is committed: that does not wait for the job */
	copies = a->copies && fs_node_has_place(&found->node);
	if (!copies && found->node.kind != FS_WORK)
		return 0;
	/* with its bytes, whatever the open does; where this fails, the open fails, too, and says why */
	if (copies)
		rc = fs_work_begin(req, a, &found->node, false, &same, &blob, &ignored);
	if (copies && rc == RS_HERE) {
		fs_reserve(fs, blob, thread);
		rs_tree_leave(same);
	}
	if (rc != RS_LATER)
		rc = fs_enter(req, job, a, err);
	if (rc != RS_HERE)
		return rc;
	rc = fs_lookup(fs, a->ino, a->name, found, err);
	if (rc == 0 && found->node.kind == FS_WORK) {
		fs_redeem(fs, found->node.blob, thread);
		fs_reserve(fs, found->node.blob, thread);
	}
	rs_tree_leave(job);
	return rc;
}

/* Looks up "." and "..": a program that has only a handle (open_by_handle_at) asks for the node itself, and for the
 * folder above it. */
static int lookup_dots(struct fs *fs, fuse_ino_t ino, const char *name, struct fs_found *found, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino), above = n;
	int rc = name[1] ? fs_parent(fs, &n, &above, err) : 0;

	if (rc == 0)
		rc = fs_stat(fs, fs_node_id(above), found, err);
	/* the kernel does not know the node: if it has no name, it is about to be dropped (forget.c) */
	if (rc == 0 && !found->st.st_nlink)
		rc = sc_fail(err, SC_E_STALE, "the file was removed");
	return rc;
}

/* Keeps the reason in `error` if a topology is impossible, or a form cannot hold a file. */
static void tell_why(struct fs *fs, const struct fs_node *folder, const char *name, const struct sc_err *err)
{
	const bool is_ours = folder->kind == FS_VSPECIAL ||
			     (folder->kind == FS_SPECIAL && folder->what != FS_CTL_DIR && folder->what != FS_V_DIR);
	struct rs_job *job;

	if (!*err->msg || !(is_ours || (fs_node_has_place(folder) && err->code == SC_E_UNSUPPORTED)))
		return;
	job = fs_job(fs, folder);
	if (job)
		rs_job_refused(job, name, err);
}

static void lookup(fuse_req_t req, const struct fs_asked *a)
{
	const fuse_ino_t parent = a->ino;
	const char *name = a->name;
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(parent);
	struct fuse_entry_param e;
	struct fs_found found;
	struct sc_err err = {0};
	int rc;

	rc = fs_current(fs, parent, name, &err);
	if (rc == 0 && (strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
		rc = lookup_dots(fs, parent, name, &found, &err);
	else if (rc == 0)
		rc = lookup_again(req, a, &found, &err);
	if (rc == RS_LATER)
		return;
	if (rc == 0) /* it may be of a newer version, which nobody shows yet */
		rc = fs_current(fs, parent, name, &err);
	if (rc < 0) {
		tell_why(fs, &n, name, &err);
		fs_fail(req, "lookup", &err);
		return;
	}
	fs_folder_told(req, fs, &found);
	fs_entry(fs, &found, &e);
	(void)fuse_reply_entry(req, &e);
	sc_metric_since(&lookups, a->began_ns);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_asked a = {.serve = lookup, .ino = parent, .name = name, .began_ns = sc_now_ns()};

	a.told = fs_looks_again(fs_of(req), fuse_req_ctx(req)->pid, &a.copies);
	lookup(req, &a);
}

/* --- links --- */

static int full_link(struct fs *fs, const struct fs_node *n, struct sc_buf *ret, struct sc_err *err)
{
	struct rs_job *job = fs_job(fs, n);
	struct rs_view *head = NULL;
	int rc = job ? rs_view_head(fs->service, job, &head, err) : sc_fail(err, SC_E_STALE, "the job is gone");

	if (rc < 0)
		return rc;
	/* all degrees 1: the first axis says so */
	sc_buf_printf(ret, ".as/%s=1/0", rs_view_first_axis(head));
	rs_view_unref(fs->service, head);
	return 0;
}

static int read_link(struct fs *fs, const struct fs_node *n, struct sc_buf *ret, struct sc_err *err)
{
	struct rs_view *view = NULL;
	struct rs_job *job;
	const char *path;
	uint64_t number;
	int rc;

	if (n->kind == FS_SPECIAL && n->what == FS_FULL_LINK)
		return full_link(fs, n, ret, err);
	if (n->kind == FS_VLINK || n->kind == FS_VSLINK) {
		rc = fs_view(fs, n, &view, &path, err);
		if (rc == 0)
			rc = rs_view_link(fs->service, view, fs_rank(n, view), path, ret, err);
		rs_view_unref(fs->service, view);
		return rc;
	}
	if (n->kind != FS_INODE && n->kind != FS_IMPLIED)
		return sc_fail_sys(err, EINVAL, "not a symbolic link");
	rc = fs_number(fs, n, &job, &number, err);
	return rc < 0 ? rc : rs_tree_link_text(fs->service, job, number, ret, err);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct fs *fs = fs_of(req);
	struct fs_node n = fs_node_of(ino);
	struct sc_buf text = {0};
	struct sc_err err = {0};
	int rc = read_link(fs, &n, &text, &err);

	sc_buf_add(&text, "", 1);
	if (rc == 0 && text.failed)
		rc = sc_nomem(&err);
	if (rc < 0)
		fs_fail(req, "readlink", &err);
	else
		(void)fuse_reply_readlink(req, text.text);
	sc_buf_done(&text);
}

/* --- listing --- */

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = sc_zalloc(sizeof(*h));
	struct fs_found found;
	struct sc_err err = {0};
	int rc = h ? fs_current(fs, ino, NULL, &err) : sc_nomem(&err);

	if (rc == 0)
		rc = fs_stat(fs, ino, &found, &err);
	if (rc == 0) {
		h->kind = FS_H_DIR;
		h->ino = ino;
		h->fd = -1;
	}
	fi->fh = rc == 0 ? fs_handle_add(fs, h) : 0;
	if (rc == 0 && !fi->fh)
		rc = sc_nomem(&err);
	if (rc < 0) {
		fs_handle_free(fs, h);
		fs_fail(req, "opendir", &err);
		return;
	}
	fs_listing_opened(fs, h, fi);
	(void)fuse_reply_open(req, fi);
}

/* A reply that is being filled. */
struct filling {
	fuse_req_t req;
	struct fs *fs;
	fuse_ino_t folder;
	char *to;
	size_t used, bytes;
};

/* Adds a name, with its number (0: look it up) and type; false: there is no room. */
static bool add(struct filling *r, const char *name, uint64_t ino, mode_t type, uint64_t next)
{
	struct stat st = {.st_ino = ino, .st_mode = type};
	struct fs_found found;
	struct sc_err ignored;
	size_t more;

	if (!ino && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
	    fs_lookup(r->fs, r->folder, name, &found, &ignored) == 0)
		st.st_ino = found.st.st_ino;
	if (!st.st_ino)
		st.st_ino = XXH3_64bits(name, strlen(name)) >> 4 | 1;
	more = fuse_add_direntry(r->req, r->to + r->used, r->bytes - r->used, name, &st, (off_t)next);
	if (more > r->bytes - r->used)
		return false;
	r->used += more;
	return true;
}

static bool add_dots(struct filling *r, uint64_t at)
{
	struct fs_node n = fs_node_of(r->folder), above;
	struct fs_found self = {.st.st_ino = 1}, parent = {.st.st_ino = 1};
	struct sc_err ignored;

	if (at < 2) {
		(void)fs_stat(r->fs, r->folder, &self, &ignored);
		if (fs_parent(r->fs, &n, &above, &ignored) == 0)
			(void)fs_stat(r->fs, fs_node_id(above), &parent, &ignored);
	}
	return (at >= 1 || add(r, ".", self.st.st_ino, S_IFDIR, 1)) &&
	       (at >= 2 || add(r, "..", parent.st.st_ino, S_IFDIR, 2));
}

/* Adds the names in a job's folder that are listed if the job's config says so. */
static void add_hidden(struct filling *r, const struct fs_node *n, struct rs_job *job, uint64_t at)
{
	const char *name;

	if (n->kind != FS_JOB || !rs_job_shows_hidden(job))
		return;
	for (uint32_t i = 0, what; (name = fs_special_name(i, &what)); i++) {
		struct fs_node special = {.kind = FS_SPECIAL, .job = n->job, .what = what};

		if (at < OFFSET_HIDDEN + i + 1 && !add(r, name, fs_node_ino(special),
						       what == FS_FULL_LINK ? S_IFLNK : S_IFDIR, OFFSET_HIDDEN + i + 1))
			return;
	}
}

/* Fills a reply with names of a folder of a working tree. */
static int fill_by_number(struct filling *r, struct fs_handle *h, uint64_t at, struct sc_err *err)
{
	struct fs_node n = fs_node_of(h->ino);
	struct rs_service *s = r->fs->service;
	struct rs_job *job;
	uint64_t number;
	int rc = fs_number(r->fs, &n, &job, &number, err);

	if (rc == 0 && (at == 0 || !h->is_listed || rs_tree_list_is_old(job, &h->listing)))
		rc = rs_tree_list(s, job, number, &h->listing, err);
	if (rc < 0)
		return rc;
	h->is_listed = true;
	if (!add_dots(r, at))
		return 0;
	for (size_t i = rs_listing_after(&h->listing, at < 2 ? 2 : at); i < h->listing.nr; i++) {
		const struct rs_listed *x = &h->listing.at[i];
		char name[SC_NAME_BYTES_MAX + 1];
		mode_t type;

		(void)snprintf(name, sizeof(name), "%.*s", (int)x->name.nr, x->name.at);
		rc = rs_tree_type(s, job, x->ino, &type, err);
		if (rc < 0)
			return r->used ? 0 : rc;
		if (!add(r, name, x->ino, type, x->offset))
			return 0;
	}
	add_hidden(r, &n, job, at);
	return 0;
}

static int fill_by_name(struct filling *r, struct fs_handle *h, uint64_t at, struct sc_err *err)
{
	int rc = 0;

	if (at == 0 || !h->is_listed)
		rc = fs_list(r->fs, h->ino, &h->names, err);
	if (rc < 0)
		return rc;
	h->is_listed = true;
	if (!add_dots(r, at))
		return 0;
	for (size_t i = at < 2 ? 0 : at - 2; i < h->names.nr; i++)
		if (!add(r, h->names.at[i].name, h->names.at[i].ino, h->names.at[i].type, i + 3))
			break;
	return 0;
}

/*
 * Lists a folder.  There is no READDIRPLUS: the kernel takes the names of its answer for current when it reads them,
 * not when it asked, so an answer from before a command that is read after it would show the older version from then
 * on.
 */
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t at, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct fs_handle *h = fs_handle_of(req, fs, ino, fi);
	struct filling r = {.req = req, .fs = fs, .folder = ino, .bytes = bytes};
	struct fs_node n = fs_node_of(ino);
	struct sc_err err = {0};
	int rc;

	if (!h)
		return;
	r.to = sc_sys.alloc(bytes);
	if (!r.to)
		rc = sc_nomem(&err);
	else if (fs_is_listed_by_number(&n))
		rc = fill_by_number(&r, h, (uint64_t)at, &err);
	else
		rc = fill_by_name(&r, h, (uint64_t)at, &err);
	if (rc < 0) {
		tell_why(fs, &n, "readdir", &err);
		fs_fail(req, "readdir", &err);
	} else {
		(void)fuse_reply_buf(req, r.to, r.used);
	}
	sc_sys.release(r.to);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct sc_err err = {0};

	(void)ino;
	(void)data_only;
	(void)fi;
	if (rs_tree_flush(fs->service, &err) < 0)
		fs_fail(req, "fsync", &err);
	else
		(void)fuse_reply_err(req, 0);
}
