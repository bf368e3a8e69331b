/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers attributes.  Objects of a head are asked by number, whichever node the kernel names: a node that a file had
 * before shows the object as it is now, but for the size, which is that of the bytes that the node reads.  The kernel
 * may keep attributes under the node of now only, and not those of a file that somebody has open for writing: nobody
 * sees stores through mappings.
 */
#include "fs/lookup/lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fs/node/node.h"
#include "fs/open/open.h"

#define NAMES_SETTLE_NS INT64_C(10000000000)

static struct timespec timespec_of(int64_t ns)
{
	struct timespec ts = {ns / 1000000000, ns % 1000000000};

	if (ts.tv_nsec < 0) { /* before 1970 */
		ts.tv_sec--;
		ts.tv_nsec += 1000000000;
	}
	return ts;
}

int fs_no_entry(struct sc_err *err)
{
	err->code = SC_E_NOT_FOUND;
	err->errnum = ENOENT;
	err->blob = 0;
	err->msg[0] = 0;
	return SC_E_NOT_FOUND;
}

/* Returns the block size that a file shows.  Programs read in pieces of it, and some allocate it for each file: a
 * commit does not change it. */
static blksize_t block_size(uint64_t bytes)
{
	return bytes >= 1 << 20 ? 1 << 20 : 4096;
}

static void set_size(struct fs_found *f, uint64_t bytes)
{
	f->st.st_size = (off_t)bytes;
	f->st.st_blocks = (blkcnt_t)((bytes + 4095) / 4096 * 8);
	f->st.st_blksize = block_size(bytes);
}

static void set_stat(struct fs_found *f, mode_t mode, uid_t uid, gid_t gid, int64_t mtime_ns,
		     uint64_t bytes)
{
	f->st = (struct stat){.st_ino = fs_node_ino(f->node), .st_mode = mode, .st_uid = uid, .st_gid = gid,
			      .st_nlink = S_ISDIR(mode) ? 2 : 1};
	f->st.st_mtim = f->st.st_ctim = f->st.st_atim = timespec_of(mtime_ns);
	set_size(f, bytes);
	/* a text that is written to a control file comes in one piece */
	if (S_ISREG(mode))
		f->st.st_blksize = 1 << 20;
	f->timeout = FS_FOREVER;
}

/* Sets a small block size for files that are read in small pieces: Python reads through a buffer of this size, which it
 * fills anew whenever it has sought. */
static void set_block_size(const struct rs_view *view, struct fs_found *f)
{
	if (rs_view_has_small_reads(view))
		f->st.st_blksize = 4096;
}

/* Returns the mode of files that follow from the job, such as control files: without access to the job's folder,
 * none. */
static mode_t masked(const struct rs_job_attr *a, mode_t mode)
{
	mode_t search = a->mode & 0777;

	return mode & (0700 | (search & 0070 ? 0070 : 0) | (search & 0007 ? 0007 : 0));
}

/* --- a working tree --- */

static bool is_later(struct timespec a, struct timespec b)
{
	return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/*
 * Tells whether a file has lost one of its names a moment ago.  The kernel counts a name down when it gets the answer
 * to UNLINK.  If an answer to GETATTR that knows of it has come before, the kernel counts once too often, takes a file
 * with one name for one without, and would refuse link(2) of it with ENOENT; it asks again for attributes that it may
 * not keep.
 */
static bool has_lost_name(const struct rs_look *look)
{
	return look->lost_ns && !S_ISDIR(look->type) && sc_now_wall_ns() - look->lost_ns < NAMES_SETTLE_NS;
}

/* Stats a file that programs may write to: the attributes are those of its blob's file, but for the link count and the
 * changes of names. */
static int stat_work(struct fs *fs, const struct rs_look *look, struct fs_found *f, struct sc_err *err)
{
	struct timespec changed = timespec_of(look->ctime_ns);
	/* first: an open for writing that comes later makes the kernel ask again (open_work()) */
	const bool is_written = rs_work_is_written(fs->service, look->blob);
	struct stat st;
	int rc = meta_store_stat_work(rs_service_store(fs->service), look->blob, &st, err);

	/* the kernel looks again after ESTALE only */
	if (rc < 0)
		return err->errnum == ENOENT ? sc_fail(err, SC_E_STALE, "the file is gone") : rc;
	f->st = st;
	f->st.st_ino = look->ino;
	f->st.st_nlink = look->nlink;
	f->st.st_blksize = block_size((uint64_t)st.st_size);
	if (is_later(changed, st.st_ctim))
		f->st.st_ctim = changed;
	/* stores through mappings change it unseen; an empty file has no page to store to */
	if ((is_written && st.st_size > 0) || has_lost_name(look))
		f->timeout = 0;
	/* for a moment, while it allocates what waited to be written, a disk counts no blocks */
	if (st.st_size > 0 && st.st_blocks == 0)
		f->timeout = 0;
	return 0;
}

int fs_stat_look(struct fs *fs, struct rs_job *job, const struct rs_look *look, struct fs_found *f,
		 struct sc_err *err)
{
	struct rs_job_attr a;

	if (look->kind == RS_NONE)
		return sc_fail(err, SC_E_STALE, "the file is gone");
	*f = (struct fs_found){.node = fs_node_of_look(job, look), .timeout = FS_FOREVER};
	if (look->kind == RS_WORK)
		return stat_work(fs, look, f, err);
	f->changes = look->changes;
	f->st = (struct stat){.st_ino = look->ino, .st_mode = look->type | (look->owner.mode & 07777),
			      .st_uid = look->owner.uid, .st_gid = look->owner.gid, .st_nlink = look->nlink,
			      .st_rdev = look->rdev, .st_atim = timespec_of(look->atime_ns),
			      .st_mtim = timespec_of(look->mtime_ns),
			      .st_ctim = timespec_of(look->ctime_ns)};
	set_size(f, look->kind == RS_DIR ? 4096 : look->kind == RS_SPECIAL ? 0 : look->bytes);
	if (has_lost_name(look))
		f->timeout = 0;
	if (f->node.kind == FS_JOB) {
		rs_job_attr(job, &a);
		f->st.st_mode = S_IFDIR | a.mode;
		f->st.st_uid = a.uid;
		f->st.st_gid = a.gid;
	}
	return 0;
}

static int stat_number(struct fs *fs, struct rs_job *job, uint64_t number, struct fs_found *f, struct sc_err *err)
{
	struct rs_look look;
	int rc = rs_tree_get(fs->service, job, number, &look, err);

	return rc < 0 ? rc : fs_stat_look(fs, job, &look, f, err);
}

static bool stat_blob(struct fs *fs, uint64_t blob, struct stat *ret)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err ignored;

	return meta_store_open_blob(rs_service_store(fs->service), blob, UINT64_MAX, &fd, &ignored) == 0 &&
	       sc_sys.fstat(fd, ret) == 0;
}

/* Gives the size of the bytes that a file of the working tree had, for who has it open. */
static void set_size_of_blob(struct fs *fs, uint64_t blob, struct fs_found *f)
{
	struct stat st;

	if (stat_blob(fs, blob, &st))
		set_size(f, (uint64_t)st.st_size);
}

/* Stats a file that no version has any more, for programs that have it open. */
static int stat_vanished(struct fs *fs, const struct fs_node *n, uint64_t blob, struct fs_found *f, struct sc_err *err)
{
	struct stat st;

	if (!stat_blob(fs, blob, &st))
		return sc_fail(err, SC_E_STALE, "the file is gone");
	*f = (struct fs_found){.node = *n, .st = st};
	f->st.st_ino = fs_node_ino(*n);
	f->st.st_nlink = 0;
	f->st.st_blksize = block_size((uint64_t)st.st_size);
	return 0;
}

/* Stats a written file under the node of its bytes: these may have been committed, and copied up again. */
static int stat_written(struct fs *fs, struct rs_job *job, const struct fs_node *n, struct fs_found *f,
			struct sc_err *err)
{
	uint64_t number;
	int rc = fs_number_of_bytes(fs, job, n, &number, err);

	if (rc == 0 && !number)
		rc = sc_fail(err, SC_E_STALE, "the file is gone");
	if (rc == 0)
		rc = stat_number(fs, job, number, f, err);
	if (rc == SC_E_STALE && rs_work_is_open(fs->service, n->blob))
		return stat_vanished(fs, n, n->blob, f, err);
	if (rc < 0 || fs_node_id(f->node) == fs_node_id(*n))
		return rc;
	set_size_of_blob(fs, n->blob, f);
	f->node = *n;
	f->timeout = 0;
	return 0;
}

/* --- versions --- */

int fs_stat_path(struct fs *fs, struct rs_view *view, uint32_t rank, const char *path, struct fs_found *f,
		 struct sc_err *err)
{
	struct rs_job *job = rs_view_job(view);
	const bool of_job = rank == RS_SHARED;
	struct rs_look look;
	int rc = rs_look(fs->service, job, view, rank, path, &look, err);

	if (rc == 0 && (look.kind == RS_NONE || look.kind == RS_WORK || look.kind == RS_SPECIAL))
		rc = fs_no_entry(err);
	if (rc == 0 && (look.kind == RS_DIR || look.kind == RS_LINK)) {
		/* of a version nothing but files is known by number */
		f->node = (struct fs_node){.kind = look.kind == RS_DIR ? (of_job ? FS_VSDIR : FS_VDIR)
								       : (of_job ? FS_VSLINK : FS_VLINK),
					   .place = rs_view_place(view, of_job ? 0 : rank)};
		f->node.path = look.path_id;
		if (!look.path_id)
			rc = rs_path_id(job, path, &f->node.path, err);
	} else if (rc == 0) {
		f->node = fs_node_of_look(job, &look);
	}
	if (rc < 0)
		return rc;
	set_stat(f, look.type | (look.owner.mode & 07777), look.owner.uid, look.owner.gid, look.mtime_ns,
		 look.kind == RS_DIR ? 4096 : look.bytes);
	f->st.st_nlink = look.nlink;
	f->st.st_atim = timespec_of(look.atime_ns);
	f->st.st_ctim = timespec_of(look.ctime_ns);
	set_block_size(view, f);
	if (rs_view_is_for_gpus(view) && S_ISREG(look.type))
		set_size(f, 0); /* its text is made when it is open */
	return 0;
}

/*
 * Stats a committed file.  The node of a view is the canonical file and the node of a blob is that blob, even if the
 * version has got another storage since: an open inode keeps one size.
 */
static int stat_file(struct fs *fs, struct rs_view **view, const char *path, struct fs_found *f, struct sc_err *err)
{
	const struct fs_node n = f->node;
	struct rs_image *image = NULL;
	int rc = fs_stat_path(fs, *view, fs_rank(&n, *view), path, f, err);

	if (rc == 0 && n.kind == FS_VIEW && f->node.kind == FS_BLOB) {
		rc = rs_view_image(fs->service, *view, fs_rank(&n, *view), path, true, false, &image, err);
		if (rc == 0)
			set_size(f, image->bytes);
		rs_image_unref(fs->service, image);
	} else if (rc == 0 && f->node.kind != n.kind &&
		   !fs_handle_find(fs, fs_node_id(n), NULL, NULL, &(uint64_t){0})) {
		/* the version has got another storage since the lookup: its blob was of the one before */
		if (rs_view_before(fs->service, view))
			rc = fs_stat_path(fs, *view, fs_rank(&n, *view), path, f, err);
		if (rc == 0 && f->node.kind != n.kind)
			rc = sc_fail(err, SC_E_STALE, "look again");
	}
	if (rc == SC_E_NOT_FOUND)
		rc = sc_fail(err, SC_E_STALE, "the version has no such file");
	f->node = n;
	f->st.st_ino = fs_node_ino(n);
	return rc;
}

/* Stats a committed file of a head, of now or before, as the object that has its number now.  Returns 1, 0 (nothing has
 * the number any more, or it is not known), or an error. */
static int stat_as_object(struct fs *fs, struct rs_view **view, const char *path, struct fs_found *f,
			  uint64_t *ret_number, struct sc_err *err)
{
	struct rs_job *job = rs_view_job(*view);
	const struct fs_node n = f->node;
	struct fs_found bytes = {.node = n};
	struct rs_look look = {0};
	int rc = rs_tree_of_file(fs->service, *view, fs_rank(&n, *view), path, ret_number, err);

	if (rc == 0 && *ret_number)
		rc = rs_tree_get(fs->service, job, *ret_number, &look, err);
	if (rc == SC_E_STALE || (rc == 0 && look.kind == RS_NONE))
		return 0;
	if (rc == 0)
		rc = fs_stat_look(fs, job, &look, f, err);
	if (rc < 0 || fs_node_id(f->node) == fs_node_id(n))
		return rc < 0 ? rc : 1;
	f->timeout = 0;
	f->node = n;
	rc = stat_file(fs, view, path, &bytes, err);
	if (rc == 0)
		set_size(f, (uint64_t)bytes.st.st_size);
	return rc < 0 ? rc : 1;
}

static int stat_in_view(struct fs *fs, struct fs_found *f, struct sc_err *err)
{
	const struct fs_node n = f->node;
	struct rs_view *view = NULL;
	uint64_t bytes = 0, number = 0, blob = 0;
	bool is_open = fs_handle_find(fs, fs_node_id(n), &view, &blob, &bytes);
	struct rs_job_attr a;
	const char *path = "";
	int rc = 0;

	if (!is_open)
		rc = fs_view(fs, &n, &view, &path, err);
	else
		rc = rs_path_text(fs->service, n.path, &path, err);
	if (rc < 0) {
		rs_view_unref(fs->service, view);
		return rc;
	}
	if (fs_node_is_version(&n)) {
		rs_job_attr(rs_view_job(view), &a);
		set_stat(f, S_IFDIR | masked(&a, 0555), a.uid, a.gid, rs_view_made_ns(view), 4096);
	} else if (!fs_node_is_file(&n)) {
		rc = fs_stat_path(fs, view, fs_rank(&n, view), path, f, err);
		if (rc == SC_E_NOT_FOUND || (rc == 0 && f->node.kind != n.kind))
			rc = sc_fail(err, SC_E_STALE, "the version has no such file");
	} else {
		if (rs_view_is_own(view))
			rc = stat_as_object(fs, &view, path, f, &number, err);
		if (rc == 0)
			rc = stat_file(fs, &view, path, f, err);
		else
			number = 0;
		if (rc == 0 && number) { /* it was removed */
			f->st.st_ino = number;
			f->st.st_nlink = 0;
			f->timeout = 0;
		}
		if (rc >= 0 && is_open) {
			set_size(f, bytes);
			set_block_size(view, f);
		}
		if (rs_view_is_for_gpus(view))
			set_size(f, 0);
		rc = rc < 0 ? rc : 0;
	}
	if (rc == SC_E_STALE && is_open && blob)
		rc = stat_vanished(fs, &n, blob, f, err);
	rs_view_unref(fs->service, view);
	return rc;
}

/* --- what is ours --- */

static int no_control(struct sc_err *err)
{
	return sc_fail(err, SC_E_STALE, "this program has no such control file");
}

static int stat_top(struct fs *fs, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row = fs_control_of(&f->node);

	if (f->node.what == FS_CTL_DIR)
		set_stat(f, S_IFDIR | 0555, fs->uid, fs->gid, fs->began_ns, 4096);
	else if (row)
		set_stat(f, S_IFREG | row->mode, fs->uid, fs->gid, fs->began_ns, 0);
	else
		return no_control(err);
	return 0;
}

static int stat_special(struct rs_job *job, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row = fs_control_of(&f->node);
	struct rs_job_attr a;

	rs_job_attr(job, &a);
	if (f->node.what == FS_FULL_LINK)
		set_stat(f, S_IFLNK | 0777, a.uid, a.gid, a.mtime_ns, 16);
	else if (!fs_is_control(f->node.what))
		set_stat(f, S_IFDIR | masked(&a, 0555), a.uid, a.gid, a.mtime_ns, 4096);
	else if (row)
		set_stat(f, S_IFREG | masked(&a, rs_control_mode(row, a.mode)), a.uid, a.gid, a.mtime_ns, 0);
	else
		return no_control(err);
	return 0;
}

int fs_stat(struct fs *fs, uint64_t ino, struct fs_found *f, struct sc_err *err)
{
	const struct fs_node n = fs_node_of(ino);
	struct rs_job *job;

	*f = (struct fs_found){.node = n};
	if (n.kind == FS_ROOT) {
		set_stat(f, S_IFDIR | 01777, fs->uid, fs->gid, fs->began_ns, 4096);
		return 0;
	}
	if (n.kind == FS_TOP)
		return stat_top(fs, f, err);
	if (fs_node_has_place(&n))
		return stat_in_view(fs, f, err);
	job = fs_job(fs, &n);
	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	switch (n.kind) {
	case FS_SPECIAL:
		return stat_special(job, f, err);
	case FS_WORK:
		return stat_written(fs, job, &n, f, err);
	default:
		return stat_number(fs, job, n.kind == FS_JOB ? rs_job_root(job) : n.number, f, err);
	}
}
