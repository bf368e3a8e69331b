/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves numbers and names to nodes with attributes: the shape of the tree.
 *
 *     /                    jobs
 *     /.ctl/               metrics, health, version
 *     /JOB/                ranks, files of the job, and (not listed) .ctl .v .as .full
 *     /JOB/RANK/...        the working tree on top of the head
 *     /JOB/.v/N/RANK/...   a version
 *     /JOB/.as/TOPOLOGY/RANK/...
 */
#include "fs/fs_i.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/text.h"

static struct timespec timespec_of(int64_t ns)
{
	return (struct timespec){ns / 1000000000, ns % 1000000000};
}

static int no_entry(struct sc_err *err)
{
	err->code = SC_E_NOT_FOUND;
	err->errnum = ENOENT;
	err->blob = 0;
	err->msg[0] = 0;
	return SC_E_NOT_FOUND;
}

bool fs_rank_number(const char *name, uint32_t *ret)
{
	uint32_t rank;

	if (!sc_number_parse(name, strlen(name), &rank) || rank >= SC_RANKS_MAX)
		return false;
	*ret = rank;
	return true;
}

uint32_t fs_rank(const struct fs_node *n, const struct rs_view *view)
{
	return n->kind == FS_SHARED ? RS_SHARED : rs_view_rank(view, n->place);
}

struct rs_job *fs_job(struct fs *fs, const struct fs_node *n)
{
	struct rs_view *view = NULL;
	struct sc_err ignored;
	struct rs_job *job = NULL;

	if (n->kind == FS_VROOT || n->kind == FS_VDIR || n->kind == FS_VIEW || n->kind == FS_BLOB ||
	    n->kind == FS_SHARED) {
		if (rs_view_at(fs->service, n->place, &view, &ignored) == 0)
			job = rs_view_job(view);
		rs_view_unref(fs->service, view);
	} else {
		job = rs_job_by_id(fs->service, n->job);
	}
	return job && !rs_job_is_removed(job) ? job : NULL;
}

/* --- attributes --- */

static void set_stat(struct fs_found *f, mode_t mode, uid_t uid, gid_t gid, int64_t mtime_ns,
		     uint64_t bytes)
{
	f->st = (struct stat){.st_ino = fs_node_ino(f->node), .st_mode = mode, .st_uid = uid, .st_gid = gid,
			      .st_nlink = S_ISDIR(mode) ? 2 : 1, .st_size = (off_t)bytes, .st_blksize = 1 << 20,
			      .st_blocks = (blkcnt_t)((bytes + 511) / 512)};
	f->st.st_mtim = f->st.st_ctim = f->st.st_atim = timespec_of(mtime_ns);
	f->timeout = FS_FOREVER;
}

/* Returns the mode of files that follow from the job, such as control files: without access to the job's folder,
 * none. */
static mode_t masked(const struct rs_job_attr *a, mode_t mode)
{
	mode_t search = a->mode & 0777;

	return mode & (0700 | (search & 0070 ? 0070 : 0) | (search & 0007 ? 0007 : 0));
}

static int stat_work(struct fs *fs, struct fs_found *f, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	int rc = meta_store_open_work(rs_service_store(fs->service), f->node.blob, O_RDONLY, &fd, err);

	/* the kernel looks again after ESTALE only */
	if (rc < 0)
		return err->errnum == ENOENT ? sc_fail(err, SC_E_STALE, "the file is gone") : rc;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "stat");
	f->st = st;
	f->st.st_ino = fs_node_ino(f->node);
	f->st.st_nlink = !rs_work_is_removed(fs->service, f->node.blob);
	f->timeout = 0; /* stores through mappings change it unseen */
	return 0;
}

static int found_look(struct fs *fs, struct fs_found *f, const struct rs_look *look, struct sc_err *err)
{
	const struct rs_owner *o = &look->owner;

	if (look->kind == RS_WORK)
		return stat_work(fs, f, err);
	if (look->kind == RS_DIR)
		set_stat(f, S_IFDIR | (o->mode & 07777), o->uid, o->gid, look->mtime_ns, 4096);
	else
		set_stat(f, S_IFREG | (o->mode & 07777), o->uid, o->gid, look->mtime_ns, look->bytes);
	return 0;
}

static int look_at(struct fs *fs, struct rs_job *job, struct rs_view *view, uint32_t rank,
		   const char *path, struct fs_found *f, struct sc_err *err)
{
	struct rs_look look;
	uint64_t path_id = 0;
	int rc = rs_look(fs->service, job, view, rank, path, &look, err);

	if (rc < 0)
		return rc;
	if (look.kind == RS_NONE)
		return no_entry(err);
	if (look.kind != RS_WORK)
		rc = rs_path_id(job, path, &path_id, err);
	if (rc < 0)
		return rc;
	f->node = (struct fs_node){.tree_rank = rank, .path = path_id, .blob = look.blob};
	/* the head may be another one by now: the node is of the view that was looked at */
	if (look.kind == RS_VIEW || look.kind == RS_BLOB || look.kind == RS_DATA)
		f->node.place = look.place;
	else if (view)
		f->node.place = rs_view_place(view, rank == RS_SHARED ? 0 : rank);
	else
		f->node.job = rs_job_id(job);
	switch (look.kind) {
	case RS_DIR:
		f->node.kind = view ? FS_VDIR : FS_DIR;
		break;
	case RS_VIEW:
	case RS_DATA:
		f->node.kind = FS_VIEW;
		break;
	case RS_BLOB:
		f->node.kind = rank == RS_SHARED ? FS_SHARED : FS_BLOB;
		break;
	default:
		f->node.kind = FS_WORK;
		f->node.job = rs_job_id(job);
		break;
	}
	return found_look(fs, f, &look, err);
}

const struct rs_control *fs_control_of(const struct fs_node *n)
{
	return n->what < FS_CTL_FILE ? NULL : rs_control_by_nr(n->kind == FS_TOP, n->what - FS_CTL_FILE);
}

static int no_control(struct sc_err *err)
{
	return sc_fail(err, SC_E_STALE, "this program has no such control file");
}

static int stat_special(struct rs_job *job, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row = fs_control_of(&f->node);
	struct rs_job_attr a;

	rs_job_attr(job, &a);
	if (f->node.what == FS_FULL_LINK)
		set_stat(f, S_IFLNK | 0777, a.uid, a.gid, a.mtime_ns, 16);
	else if (f->node.what < FS_CTL_FILE)
		set_stat(f, S_IFDIR | masked(&a, 0555), a.uid, a.gid, a.mtime_ns, 4096);
	else if (row)
		set_stat(f, S_IFREG | masked(&a, rs_control_mode(row, a.mode)), a.uid, a.gid, a.mtime_ns, 0);
	else
		return no_control(err);
	return 0;
}

static void stat_job(struct rs_job *job, struct fs_found *f)
{
	struct rs_job_attr a;

	rs_job_attr(job, &a);
	f->node = (struct fs_node){.kind = FS_JOB, .job = a.id};
	set_stat(f, S_IFDIR | a.mode, a.uid, a.gid, a.mtime_ns, 4096);
}

/*
 * Stats a committed file.  The node of a view is the canonical file and the node of a blob is that blob, even if the
 * version has got another storage since: an open inode keeps one size.
 */
static int stat_file(struct fs *fs, struct rs_view **view, const char *path, struct fs_found *f, struct sc_err *err)
{
	const struct fs_node n = f->node;
	struct rs_image *image = NULL;
	int rc = look_at(fs, rs_view_job(*view), *view, fs_rank(&n, *view), path, f, err);

	if (rc == 0 && n.kind == FS_VIEW && f->node.kind == FS_BLOB) {
		rc = rs_view_image(fs->service, *view, fs_rank(&n, *view), path, true, false, &image, err);
		if (rc == 0)
			f->st.st_size = (off_t)image->bytes;
		rs_image_unref(fs->service, image);
	} else if (rc == 0 && f->node.kind != n.kind &&
		   !fs_handle_find(fs, fs_node_id(n), NULL, NULL, &(uint64_t){0})) {
		/* the version has got another storage since the lookup: its blob was of the one before */
		if (rs_view_before(fs->service, view))
			rc = look_at(fs, rs_view_job(*view), *view, fs_rank(&n, *view), path, f, err);
		if (rc == 0 && f->node.kind != n.kind)
			rc = sc_fail(err, SC_E_STALE, "look again");
	}
	f->node = n;
	f->st.st_ino = fs_node_ino(n);
	return rc;
}

static int stat_in_view(struct fs *fs, struct fs_found *f, struct sc_err *err)
{
	const struct fs_node n = f->node;
	struct rs_view *view = NULL;
	uint64_t bytes = 0;
	bool is_open = fs_handle_find(fs, fs_node_id(n), &view, NULL, &bytes);
	struct rs_job_attr a;
	const char *path;
	int rc = is_open ? 0 : rs_view_at(fs->service, n.place, &view, err);

	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	if (rc < 0)
		return rc;
	rs_job_attr(rs_view_job(view), &a);
	if (n.kind == FS_VROOT) {
		set_stat(f, S_IFDIR | masked(&a, 0555), a.uid, a.gid, rs_view_made_ns(view), 4096);
	} else {
		rc = rs_path_text(fs->service, n.path, &path, err);
		if (rc == 0)
			rc = stat_file(fs, &view, path, f, err);
		if (rc == 0 && is_open)
			f->st.st_size = (off_t)bytes;
	}
	rs_view_unref(fs->service, view);
	return rc;
}

int fs_stat(struct fs *fs, uint64_t ino, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row;
	struct rs_job *job;
	const char *path;
	int rc;

	*f = (struct fs_found){.node = fs_node_of(ino)};
	switch (f->node.kind) {
	case FS_ROOT:
		set_stat(f, S_IFDIR | 01777, fs->uid, fs->gid, fs->began_ns, 4096);
		return 0;
	case FS_TOP:
		row = fs_control_of(&f->node);
		if (f->node.what == FS_CTL_DIR)
			set_stat(f, S_IFDIR | 0555, fs->uid, fs->gid, fs->began_ns, 4096);
		else if (row)
			set_stat(f, S_IFREG | row->mode, fs->uid, fs->gid, fs->began_ns, 0);
		else
			return no_control(err);
		return 0;
	case FS_VROOT:
	case FS_VDIR:
	case FS_VIEW:
	case FS_BLOB:
	case FS_SHARED:
		return stat_in_view(fs, f, err);
	default:
		break;
	}
	job = fs_job(fs, &f->node);
	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	if (f->node.kind == FS_JOB) {
		stat_job(job, f);
		return 0;
	}
	if (f->node.kind == FS_SPECIAL)
		return stat_special(job, f, err);
	if (f->node.kind == FS_WORK)
		return stat_work(fs, f, err);
	rc = rs_path_text(fs->service, f->node.path, &path, err);
	if (rc == 0)
		rc = look_at(fs, job, NULL, f->node.tree_rank, path, f, err);
	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the folder is gone");
	return rc;
}

/* --- names --- */

static int lookup_job(struct fs *fs, struct rs_job *job, const char *name, struct fs_found *f, struct sc_err *err)
{
	static const char *const special[] = {".ctl", ".v", ".as", ".full"};
	uint32_t rank;

	for (uint32_t i = 0; i < 4; i++)
		if (strcmp(name, special[i]) == 0) {
			f->node = (struct fs_node){.kind = FS_SPECIAL, .job = rs_job_id(job), .what = i};
			return stat_special(job, f, err);
		}
	if (fs_rank_number(name, &rank))
		return look_at(fs, job, NULL, rank, "", f, err);
	return look_at(fs, job, NULL, RS_SHARED, name, f, err);
}

static int lookup_special(struct fs *fs, const struct fs_node *n, struct rs_job *job,
			  const char *name, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row;
	struct rs_view *view = NULL;
	int rc;

	if (n->what == FS_CTL_DIR) {
		row = rs_control_find(false, name);
		if (!row)
			return no_entry(err);
		f->node = (struct fs_node){.kind = FS_SPECIAL, .job = n->job, .what = FS_CTL_FILE + row->nr};
		return stat_special(job, f, err);
	}
	rc = n->what == FS_V_DIR ? rs_view_archived(fs->service, job, name, &view, err)
				 : rs_view_as(fs->service, job, name, &view, err);
	if (rc < 0)
		return err->code != SC_E_NOT_FOUND ? rc : no_entry(err);
	f->node = (struct fs_node){.kind = FS_VROOT, .place = rs_view_place(view, 0)};
	rs_view_unref(fs->service, view);
	return stat_in_view(fs, f, err);
}

static int join(const char *folder, const char *name, char *ret, struct sc_err *err)
{
	if (strlen(name) > SC_NAME_BYTES_MAX)
		return sc_fail(err, SC_E_NAME, "a name has at most %d bytes", SC_NAME_BYTES_MAX);
	if (strlen(folder) + 1 + strlen(name) > SC_PATH_BYTES_MAX)
		return sc_fail(err, SC_E_NAME, "a path inside a rank directory has at most %d bytes",
			       SC_PATH_BYTES_MAX);
	(void)snprintf(ret, SC_PATH_BYTES_MAX + 1, "%s%s%s", folder, *folder ? "/" : "", name);
	return 0;
}

static int lookup_view(struct fs *fs, const struct fs_node *n, const char *name, struct fs_found *f,
		       struct sc_err *err)
{
	char path[SC_PATH_BYTES_MAX + 1];
	struct rs_view *view = NULL;
	const char *folder = "";
	uint32_t rank;
	int rc = rs_view_at(fs->service, n->place, &view, err);

	if (rc < 0)
		return rc == SC_E_NOT_FOUND ? sc_fail(err, SC_E_STALE, "the version is gone") : rc;
	rank = fs_rank(n, view);
	if (n->kind == FS_VROOT) {
		if (fs_rank_number(name, &rank))
			name = "";
		else
			rank = RS_SHARED;
	} else {
		rc = rs_path_text(fs->service, n->path, &folder, err);
	}
	if (rc == 0 && *name)
		rc = join(folder, name, path, err);
	else
		path[0] = 0;
	if (rc == 0)
		rc = look_at(fs, rs_view_job(view), view, rank, path, f, err);
	rs_view_unref(fs->service, view);
	return rc;
}

int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_found *f, struct sc_err *err)
{
	struct fs_node n = fs_node_of(parent);
	char path[SC_PATH_BYTES_MAX + 1];
	const struct rs_control *row;
	const char *folder;
	struct rs_job *job;
	int rc;

	*f = (struct fs_found){.timeout = FS_FOREVER};
	if (n.kind == FS_ROOT && strcmp(name, ".ctl") == 0)
		return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_TOP, .what = FS_CTL_DIR}), f, err);
	if (n.kind == FS_ROOT) {
		job = rs_job_by_name(fs->service, name);
		if (!job)
			return no_entry(err);
		stat_job(job, f);
		return 0;
	}
	if (n.kind == FS_TOP) {
		row = n.what == FS_CTL_DIR ? rs_control_find(true, name) : NULL;
		if (!row)
			return no_entry(err);
		return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_TOP, .what = FS_CTL_FILE + row->nr}), f, err);
	}
	if (n.kind == FS_VROOT || n.kind == FS_VDIR)
		return lookup_view(fs, &n, name, f, err);
	job = fs_job(fs, &n);
	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	if (n.kind == FS_JOB)
		return lookup_job(fs, job, name, f, err);
	if (n.kind == FS_SPECIAL)
		return lookup_special(fs, &n, job, name, f, err);
	if (n.kind != FS_DIR)
		return sc_fail(err, SC_E_NOT_DIR, "not a folder");
	rc = rs_path_text(fs->service, n.path, &folder, err);
	if (rc == 0)
		rc = join(folder, name, path, err);
	return rc < 0 ? rc : look_at(fs, job, NULL, n.tree_rank, path, f, err);
}

int fs_place(struct fs *fs, uint64_t parent, const char *name, struct fs_place *ret,
	     struct sc_err *err)
{
	struct fs_node n = fs_node_of(parent);
	const char *folder = "";
	int rc = 0;

	if (n.kind != FS_JOB && n.kind != FS_DIR)
		return sc_fail(err, SC_E_SEALED, "'%s': .v, .as, .full and data/ are read-only; write into JOB/RANK/",
			name);
	ret->job = fs_job(fs, &n);
	if (!ret->job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	ret->rank = n.kind == FS_DIR ? n.tree_rank : RS_SHARED;
	if (n.kind == FS_DIR)
		rc = rs_path_text(fs->service, n.path, &folder, err);
	else if (fs_rank_number(name, &ret->rank))
		name = "";
	else if (strcmp(name, ".ctl") == 0 || strcmp(name, ".v") == 0 || strcmp(name, ".as") == 0 ||
		 strcmp(name, ".full") == 0)
		return sc_fail(err, SC_E_PERMISSION, "'%s' is a name that Scalai uses itself", name);
	ret->path[0] = 0;
	return rc < 0 || !*name ? rc : join(folder, name, ret->path, err);
}

void fs_entry(struct fs *fs, const struct fs_found *found, struct fuse_entry_param *ret)
{
	*ret = (struct fuse_entry_param){.ino = fs_node_id(found->node), .attr = found->st,
					 .attr_timeout = fs->epoch ? found->timeout : 0,
					 .entry_timeout = fs->epoch ? FS_FOREVER : 0};
}

/* --- listing --- */

struct lister {
	struct fs_handle *h;
	struct sc_err *err;
};

static int add_name(struct lister *l, const char *name, mode_t type)
{
	struct fs_name n = {sc_strdup(name), type};

	if (!n.name)
		return sc_nomem(l->err);
	if (sc_vec_push(&l->h->names, n) == 0)
		return 0;
	sc_sys.release(n.name);
	return sc_nomem(l->err);
}

static int on_name(void *arg, const char *name, bool is_dir)
{
	return add_name(arg, name, is_dir ? S_IFDIR : S_IFREG);
}

static int on_rank(void *arg, uint32_t rank)
{
	char name[16];

	(void)snprintf(name, sizeof(name), "%u", rank);
	return add_name(arg, name, S_IFDIR);
}

static int on_nr(void *arg, uint64_t nr)
{
	char name[24];

	(void)snprintf(name, sizeof(name), "%" PRIu64, nr);
	return add_name(arg, name, S_IFDIR);
}

static int list_controls(struct lister *l, bool of_mount)
{
	const struct rs_control *row;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (row = rs_control_at(i)); i++)
		if (of_mount == !!(row->flags & RS_CTL_MOUNT))
			rc = add_name(l, row->name, S_IFREG);
	return rc;
}

static int list_job(struct fs *fs, struct rs_job *job, struct lister *l)
{
	int rc = rs_ranks(fs->service, job, NULL, on_rank, l, l->err);

	if (rc == 0)
		rc = rs_list(fs->service, job, NULL, RS_SHARED, "", on_name, l, l->err);
	if (rc == 0 && rs_job_shows_hidden(job)) {
		rc = add_name(l, ".ctl", S_IFDIR);
		if (rc == 0)
			rc = add_name(l, ".v", S_IFDIR);
		if (rc == 0)
			rc = add_name(l, ".as", S_IFDIR);
		if (rc == 0)
			rc = add_name(l, ".full", S_IFLNK);
	}
	return rc;
}

static int list_view(struct fs *fs, const struct fs_node *n, struct lister *l)
{
	struct rs_view *view = NULL;
	const char *path = "";
	int rc = rs_view_at(fs->service, n->place, &view, l->err);

	if (rc < 0)
		return rc == SC_E_NOT_FOUND ? sc_fail(l->err, SC_E_STALE, "the version is gone") : rc;
	if (n->kind == FS_VROOT) {
		rc = rs_ranks(fs->service, rs_view_job(view), view, on_rank, l, l->err);
		if (rc == 0)
			rc = rs_list(fs->service, rs_view_job(view), view, RS_SHARED, "", on_name, l, l->err);
	} else {
		rc = rs_path_text(fs->service, n->path, &path, l->err);
		if (rc == 0)
			rc = rs_list(fs->service, rs_view_job(view), view, fs_rank(n, view), path, on_name, l, l->err);
	}
	rs_view_unref(fs->service, view);
	return rc;
}

static int list_root(struct fs *fs, struct lister *l)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct rs_job *job;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (job = rs_job_at(fs->service, i)); i++)
		if (!rs_job_is_removed(job))
			rc = add_name(l, rs_job_name(job, name, sizeof(name)), S_IFDIR);
	return rc;
}

int fs_list(struct fs *fs, uint64_t ino, struct fs_handle *h, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);
	struct lister l = {h, err};
	struct rs_job *job;
	const char *path;
	int rc = add_name(&l, ".", S_IFDIR);

	if (rc == 0)
		rc = add_name(&l, "..", S_IFDIR);
	if (rc < 0)
		return rc;
	if (n.kind == FS_ROOT)
		return list_root(fs, &l);
	if (n.kind == FS_TOP)
		return list_controls(&l, true);
	if (n.kind == FS_VROOT || n.kind == FS_VDIR)
		return list_view(fs, &n, &l);
	job = fs_job(fs, &n);
	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	if (n.kind == FS_JOB)
		return list_job(fs, job, &l);
	if (n.kind == FS_SPECIAL && n.what == FS_CTL_DIR)
		return list_controls(&l, false);
	if (n.kind == FS_SPECIAL && n.what == FS_V_DIR)
		return rs_versions_each(fs->service, job, on_nr, &l, err);
	if (n.kind == FS_SPECIAL)
		return 0; /* .as: any topology can be looked up, none is listed */
	rc = rs_path_text(fs->service, n.path, &path, err);
	return rc < 0 ? rc : rs_list(fs->service, job, NULL, n.tree_rank, path, on_name, &l, err);
}
