/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes the working tree: each request is one record of the overlay.  Callers are inside of the gate
 * (rs_tree_enter()), so that no commit seals meanwhile.  Programs change a tree at the same time.  The kernel keeps two
 * changes of one folder apart, but not the copy that an open for writing makes, nor the names of one file in two
 * folders.  Invariants:
 *
 *  N1  A working tree changes under job.names, held from the look that the change follows from to the overlay.
 *  N2  The file of a blob goes when the row that has it goes: who puts another blob in its place, or forgets an object
 *      without a name, removes the file (when it is closed: opened.c).  So a blob that no row has, has no file.
 *  N3  A file is whole before its row comes: nobody opens half a copy, also after a crash.  Only a start meets files
 *      without rows, those that a crash has left, and removes them.
 *  N4  job.by_blob has the files with bytes of their own, also those without a name, and no others.
 */
#include "reshard/worktree/requests/tree_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

/* Begins a change: takes job.names, and returns the overlay's number of the object that programs see as `ino`.  0 if
 * another node has removed the job meanwhile: the change would make rows without a job. */
static uint64_t begin(struct rs_job *job, uint64_t ino)
{
	(void)pthread_rwlock_wrlock(&job->names);
	return rs_job_is_removed(job) ? 0 : rs_overlay_of_shown(job->overlay, ino);
}

static void end(struct rs_job *job, int rc)
{
	if (rc == 0) {
		(void)pthread_mutex_lock(&job->state);
		job->mtime_ns = sc_now_wall_ns();
		(void)pthread_mutex_unlock(&job->state);
	}
	rs_count_nameless(job);
	(void)pthread_rwlock_unlock(&job->names);
	if (rc == 0)
		rs_job_tell(job);
}

/* --- making --- */

static int refuse_rank(uint32_t rank, const char *topology, uint32_t ranks, struct sc_err *err)
{
	return sc_fail(err, SC_E_COMMAND, "'%u' is no rank of topology '%s', which has the ranks 0 to %u", rank,
		       topology, ranks - 1);
}

/* Gives the folder of a rank, in the job's folder, its number.  Refuses other objects with the name of a rank, and a
 * rank that the topology does not have: the head's, or the first one (rebase/first.c).  Until one was written, all
 * ranks may have folders. */
static int check_rank(struct rs_job *job, struct meta_bytes name, const struct rs_make *what,
		      struct meta_inode_row *row, struct sc_err *err)
{
	uint32_t rank;
	int rc = 0;

	if (!sc_number_parse(name.at, name.nr, &rank) || rank >= SC_RANKS_MAX)
		return 0;
	if (!S_ISDIR(what->mode))
		return sc_fail(err, SC_E_COMMAND, "'%u' is the name of a rank, so it must be a folder", rank);
	if (job->head && rank >= job->head->topo.ranks)
		return refuse_rank(rank, job->head->topo.text, job->head->topo.ranks, err);
	(void)pthread_mutex_lock(&job->state);
	if (!job->head && job->nothing.ranks && rank >= job->nothing.ranks)
		rc = refuse_rank(rank, job->first_topology, job->nothing.ranks, err);
	(void)pthread_mutex_unlock(&job->state);
	row->ino = job->root + 1 + rank;
	return rc;
}

/* Gives a new object in the job's folder the group of the folder if that has SGID.  The job says so; the row of its
 * folder does not. */
static void inherit_from_job(struct rs_job *job, struct meta_inode_row *row)
{
	(void)pthread_mutex_lock(&job->state);
	if (job->mode & S_ISGID) {
		row->gid = job->gid;
		row->mode |= S_ISDIR(row->mode) ? S_ISGID : 0;
	}
	(void)pthread_mutex_unlock(&job->state);
}

static int make_row(struct rs_job *job, uint64_t folder, struct meta_bytes name, const struct rs_make *what,
		    struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err)
{
	int rc = folder == job->root ? check_rank(job, name, what, row, err) : 0;

	if (folder == job->root)
		inherit_from_job(job, row);
	if (rc == 0)
		rc = rs_overlay_make(job->overlay, sc_now_wall_ns(), folder, name, row, err);
	if (rc == 0)
		rc = rs_look_at(job, row->ino, ret, err);
	return rc;
}

/* Gives an empty file, before it has a row, the group that its folder says by SGID. */
static int inherit_group(struct rs_job *job, uint64_t folder, int fd, struct rs_owner *owner, const char *shown,
			 struct sc_err *err)
{
	struct meta_inode_row made = {.gid = owner->gid, .mode = S_IFREG}, in = {0};
	struct sc_arena texts = {0};
	int rc = rs_overlay_inode(job->overlay, folder, &texts, &in, err);

	sc_arena_done(&texts);
	if (folder == job->root)
		inherit_from_job(job, &made);
	if (in.mode & S_ISGID)
		made.gid = in.gid;
	if (rc < 0 || made.gid == owner->gid)
		return rc < 0 ? rc : 0;
	owner->gid = made.gid;
	return rs_work_own(fd, owner, shown, err);
}

static int make_file(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		     const struct rs_make *what, struct rs_look *ret, int *ret_fd, struct sc_err *err)
{
	struct meta_inode_row row = {.mode = what->mode, .uid = what->uid, .gid = what->gid};
	struct rs_owner owner = {what->uid, what->gid, what->mode & 07777};
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_own *own = NULL;
	struct sc_err ignored;
	char shown[256];
	int rc;

	(void)snprintf(shown, sizeof(shown), "%.*s", (int)name.nr, name.at);
	rc = rs_file_make(s, shown, &owner, &row.blob, &fd, err);
	if (rc < 0)
		return rc;
	folder = begin(job, folder);
	rc = inherit_group(job, folder, fd, &owner, shown, err);
	if (rc == 0)
		own = rs_own_new(&job->by_blob, row.blob, 0);
	if (rc == 0)
		rc = own ? make_row(job, folder, name, what, &row, ret, err) : sc_nomem(err);
	if (rc == 0) {
		own->ino = row.ino;
		rs_own_put(&job->by_blob, own);
	}
	end(job, rc);
	if (rc < 0) {
		sc_sys.release(own);
		(void)meta_store_remove(&s->store, row.blob, &ignored);
	}
	if (rc == 0 && ret_fd)
		*ret_fd = sc_steal_fd(&fd);
	return rc;
}

int rs_tree_make(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		 const struct rs_make *what, struct rs_look *ret, int *ret_fd, struct sc_err *err)
{
	struct meta_inode_row row = {.mode = what->mode, .uid = what->uid, .gid = what->gid, .rdev = what->rdev,
				     .target = what->target};
	int rc;

	if (S_ISREG(what->mode))
		return make_file(s, job, folder, name, what, ret, ret_fd, err);
	folder = begin(job, folder);
	rc = make_row(job, folder, name, what, &row, ret, err);
	end(job, rc);
	return rc;
}

/* --- names --- */

/* Refuses to change a file that a dataset shows. */
static int refuse_data(struct rs_job *job, uint64_t folder, struct meta_bytes name, struct rs_look *ret,
		       struct sc_err *err)
{
	uint64_t ino = 0;
	int rc = rs_overlay_child(job->overlay, folder, name, &ino, err);

	*ret = (struct rs_look){0};
	if (rc == 0 && ino)
		rc = rs_look_at(job, ino, ret, err);
	if (rc == 0 && ret->kind == RS_DATA)
		rc = sc_fail(err, SC_E_SEALED, "'%.*s' is part of a dataset, which is read-only", (int)name.nr,
			     name.at);
	return rc;
}

int rs_tree_unlink(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		   struct sc_err *err)
{
	struct rs_look look;
	int rc;

	(void)s;
	folder = begin(job, folder);
	rc = refuse_data(job, folder, name, &look, err);
	if (rc == 0)
		rc = rs_overlay_unlink(job->overlay, sc_now_wall_ns(), folder, name, err);
	end(job, rc);
	return rc;
}

int rs_tree_rmdir(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		  struct sc_err *err)
{
	char of[SC_NAME_BYTES_MAX + 1];
	int rc;

	(void)s;
	folder = begin(job, folder);
	rc = rs_overlay_rmdir(job->overlay, sc_now_wall_ns(), folder, name, err);
	if (rc == SC_E_BUSY)
		rc = sc_fail(err, SC_E_BUSY, "rank %.*s is a rank of the job's topology, its folder stays; 'scalai "
			     "delete %s' removes the job, and a write to .ctl/discard brings back what was removed "
			     "since the last version", (int)name.nr, name.at, rs_job_name(job, of, sizeof(of)));
	end(job, rc);
	return rc;
}

static bool is_rank_name(const struct rs_job *job, uint64_t folder, struct meta_bytes name)
{
	uint32_t rank;

	return folder == job->root && sc_number_parse(name.at, name.nr, &rank) && rank < SC_RANKS_MAX;
}

/* Refuses a change that would take the place of a dataset's partition: its path stays, whatever the folder above it is
 * called now. */
static int refuse_data_in(struct rs_job *job, const struct rs_look *folder, struct meta_bytes name, struct sc_err *err)
{
	struct rs_below *below;
	const char *path = NULL;
	uint64_t path_id;
	int rc;

	if (folder->kind != RS_DIR || !job->head || !rs_view_has_data_in(job->head, ""))
		return 0;
	rc = rs_view_below(job->head, &below, err);
	if (rc == 0)
		rc = rs_below_link(below, folder->ino, &path_id, err);
	if (rc > 0)
		rc = rs_path_text(job->service, path_id, &path, err);
	return rc < 0 || !path || !rs_view_has_data_in(job->head, path)
		       ? rc
		       : sc_fail(err, SC_E_SEALED, "'%.*s' holds a dataset, which is read-only", (int)name.nr, name.at);
}

int rs_tree_rename(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		   uint64_t new_folder, struct meta_bytes new_name, enum rs_rename how, struct sc_err *err)
{
	struct rs_look from, to;
	int rc = 0;

	(void)s;
	folder = begin(job, folder);
	new_folder = rs_overlay_of_shown(job->overlay, new_folder);
	if (is_rank_name(job, folder, name) || is_rank_name(job, new_folder, new_name))
		rc = sc_fail(err, SC_E_CROSS, "folders of ranks cannot be renamed");
	if (rc == 0)
		rc = refuse_data(job, folder, name, &from, err);
	if (rc == 0)
		rc = refuse_data(job, new_folder, new_name, &to, err);
	if (rc == 0)
		rc = refuse_data_in(job, &from, name, err);
	if (rc == 0 && how == RS_RENAME_EXCHANGE)
		rc = refuse_data_in(job, &to, new_name, err);
	if (rc == 0)
		rc = rs_overlay_rename(job->overlay, sc_now_wall_ns(), folder, name, new_folder, new_name, how, err);
	end(job, rc);
	return rc;
}

int rs_tree_link(struct rs_service *s, struct rs_job *job, uint64_t ino, uint64_t folder, struct meta_bytes name,
		 struct sc_err *err)
{
	struct rs_look look;
	int rc;

	(void)s;
	ino = begin(job, ino);
	folder = rs_overlay_of_shown(job->overlay, folder);
	rc = rs_look_at(job, ino, &look, err);
	if (rc == 0 && look.kind == RS_DATA)
		rc = sc_fail(err, SC_E_SEALED, "'%.*s' would be part of a dataset, which is read-only", (int)name.nr,
			     name.at);
	if (rc == 0)
		rc = rs_overlay_link(job->overlay, sc_now_wall_ns(), ino, folder, name, err);
	end(job, rc);
	return rc;
}

/* --- bytes and attributes --- */

/* Puts a copy in the place of the committed bytes, if the file still has these; *copy is 0 then. */
static int take_copy(struct rs_job *job, uint64_t ino, uint64_t *copy, uint64_t *ret_blob, struct sc_err *err)
{
	struct rs_own *own;
	struct rs_look look;
	int rc = rs_look_at(job, ino, &look, err);

	if (rc == 0 && look.kind == RS_WORK) { /* somebody else was faster */
		*ret_blob = look.blob;
		return 0;
	}
	if (rc == 0 && (!rs_look_is_committed(&look) || !look.nlink))
		rc = sc_fail(err, SC_E_STALE, "the file is gone");
	if (rc < 0)
		return rc;
	own = rs_own_new(&job->by_blob, *copy, ino);
	rc = own ? rs_overlay_own_data(job->overlay, sc_now_wall_ns(), ino, *copy, err) : sc_nomem(err);
	if (rc < 0) {
		sc_sys.release(own);
		return rc;
	}
	rs_own_put(&job->by_blob, own);
	*ret_blob = *copy;
	*copy = 0;
	return 0;
}

/* Finds the committed file of which a copy is to be made: 1; 0: the file is in the working tree already, *ret_blob. */
static int find_source(struct rs_job *job, uint64_t ino, struct rs_look *ret, struct rs_view **ret_view,
		       uint32_t *ret_rank, const char **ret_path, struct sc_err *err)
{
	uint64_t path_id;
	struct rs_below *b;
	int rc = rs_look_at(job, ino, ret, err);

	if (rc < 0 || ret->kind == RS_WORK)
		return rc;
	if (ret->kind == RS_DIR)
		return sc_fail(err, SC_E_IS_DIR, "a folder");
	if (ret->kind == RS_DATA)
		return sc_fail(err, SC_E_SEALED, "the file is part of a dataset, which is read-only");
	if (!rs_look_is_committed(ret) || !ret->nlink)
		return sc_fail(err, SC_E_STALE, "the file is gone");
	rc = rs_view_below(job->head, &b, err);
	if (rc == 0)
		rc = rs_below_file(b, ino, ret_rank, &path_id, ret_path, err);
	if (rc > 0)
		*ret_view = rs_view_ref(job->head);
	return rc == 0 ? sc_fail(err, SC_E_STALE, "the file is gone") : rc;
}

int rs_tree_copy_up(struct rs_service *s, struct rs_job *job, uint64_t ino, bool truncate, uint64_t *ret_blob,
		    struct sc_err *err)
{
	struct rs_view *view = NULL;
	struct sc_err ignored;
	struct rs_look look;
	const char *path = "";
	uint64_t copy = 0, number;
	uint32_t rank = 0;
	int rc;

	(void)pthread_rwlock_rdlock(&job->names);
	number = rs_overlay_of_shown(job->overlay, ino);
	rc = find_source(job, number, &look, &view, &rank, &path, err);
	(void)pthread_rwlock_unlock(&job->names);
	if (rc <= 0) {
		*ret_blob = look.blob;
		return rc;
	}
	/* without the lock: it may take its time */
	rc = rs_file_copy(s, view, rank, path, &look, truncate, &copy, err);
	rs_view_unref(s, view);
	if (rc < 0)
		return rc;
	number = begin(job, ino);
	rc = take_copy(job, number, &copy, ret_blob, err);
	end(job, rc);
	if (copy)
		(void)meta_store_remove(&s->store, copy, &ignored);
	return rc;
}

static struct timespec time_of(bool has, int64_t ns)
{
	return has ? (struct timespec){ns / 1000000000, ns % 1000000000} : (struct timespec){0, UTIME_OMIT};
}

static int set_file(struct rs_service *s, uint64_t blob, const struct rs_attrs *set, struct sc_err *err)
{
	const struct timespec ts[2] = {time_of(set->has_atime, set->atime_ns), time_of(set->has_mtime, set->mtime_ns)};
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_work(&s->store, blob, O_RDONLY, &fd, err);

	if (rc < 0)
		return rc;
	if ((set->has_uid || set->has_gid) &&
	    sc_sys.fchown(fd, set->has_uid ? set->uid : (uid_t)-1, set->has_gid ? set->gid : (gid_t)-1) < 0)
		return sc_fail_sys(err, errno, "chown");
	if (set->has_mode && sc_sys.fchmod(fd, set->mode & 07777) < 0)
		return sc_fail_sys(err, errno, "chmod");
	if ((set->has_atime || set->has_mtime) && sc_sys.futimens(fd, ts) < 0)
		return sc_fail_sys(err, errno, "utimens");
	return 0;
}

int rs_tree_set_attrs(struct rs_service *s, struct rs_job *job, uint64_t ino, const struct rs_attrs *set,
		      struct sc_err *err)
{
	struct rs_look look;
	int rc;

	ino = begin(job, ino);
	rc = rs_look_at(job, ino, &look, err);
	if (rc == 0 && look.kind == RS_NONE)
		rc = sc_fail(err, SC_E_STALE, "the file is gone");
	if (rc == 0 && look.kind == RS_DATA)
		rc = sc_fail(err, SC_E_SEALED, "the file is part of a dataset, which is read-only");
	if (rc == 0 && look.kind == RS_WORK)
		rc = set_file(s, look.blob, set, err);
	if (rc == 0)
		rc = rs_overlay_set_attrs(job->overlay, sc_now_wall_ns(), ino, set, err);
	end(job, rc);
	return rc;
}

int rs_tree_set_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name,
		      struct meta_bytes value, enum rs_xattr_set how, struct sc_err *err)
{
	struct rs_look look;
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_look_at(job, ino, &look, err);
	if (rc == 0 && look.kind == RS_DATA)
		rc = sc_fail(err, SC_E_SEALED, "the file is part of a dataset, which is read-only");
	if (rc == 0)
		rc = rs_overlay_set_xattr(job->overlay, sc_now_wall_ns(), ino, name, value, how, err);
	end(job, rc);
	return rc;
}

int rs_tree_drop_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name,
		       struct sc_err *err)
{
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_overlay_drop_xattr(job->overlay, sc_now_wall_ns(), ino, name, err);
	end(job, rc);
	return rc;
}

/* --- for fsck --rebuild --- */

/* Finds the folder of a name, and makes it if it is missing. */
static int open_folder(struct rs_job *job, uint64_t folder, struct meta_bytes name, uint64_t number, uint64_t *ret,
		       struct sc_err *err)
{
	struct meta_inode_row row = {.ino = number, .mode = S_IFDIR};
	struct rs_owner owner;
	int rc = rs_overlay_child(job->overlay, folder, name, ret, err);

	if (rc < 0 || *ret)
		return rc;
	rs_owner_of_folder(job, &owner);
	row.mode |= owner.mode & 07777;
	row.uid = owner.uid;
	row.gid = owner.gid;
	rc = rs_overlay_make(job->overlay, sc_now_wall_ns(), folder, name, &row, err);
	*ret = row.ino;
	return rc;
}

static int open_folders(struct rs_job *job, uint32_t rank, const char **path, uint64_t *ret, struct sc_err *err)
{
	char name[16];
	int rc = 0, n = snprintf(name, sizeof(name), "%u", rank);

	*ret = job->root;
	if (rank != RS_SHARED)
		rc = open_folder(job, job->root, (struct meta_bytes){name, (size_t)n}, job->root + 1 + rank, ret, err);
	for (const char *slash; rc == 0 && (slash = strchr(*path, '/')); *path = slash + 1)
		rc = open_folder(job, *ret, (struct meta_bytes){*path, (size_t)(slash - *path)}, 0, ret, err);
	return rc;
}

static int adopt(struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner, uint64_t blob,
		 struct sc_err *err)
{
	struct meta_inode_row row = {.mode = S_IFREG | owner->mode, .uid = owner->uid, .gid = owner->gid, .blob = blob};
	struct rs_own *own = rs_own_new(&job->by_blob, blob, 0);
	uint64_t folder, there = 0;
	struct meta_bytes name;
	int rc = own ? open_folders(job, rank, &path, &folder, err) : sc_nomem(err);

	name = (struct meta_bytes){path, strlen(path)};
	if (rc == 0)
		rc = rs_overlay_child(job->overlay, folder, name, &there, err);
	if (rc == 0 && there) /* of a version that was rebuilt before */
		rc = rs_overlay_unlink(job->overlay, sc_now_wall_ns(), folder, name, err);
	if (rc == 0)
		rc = rs_overlay_make(job->overlay, sc_now_wall_ns(), folder, name, &row, err);
	if (rc < 0) {
		sc_sys.release(own);
		return rc;
	}
	own->ino = row.ino;
	rs_own_put(&job->by_blob, own);
	return 0;
}

int rs_work_adopt(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, uint64_t blob, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	(void)begin(job, 0);
	rc = adopt(job, rank, path, owner, blob, err);
	end(job, rc);
	if (rc == 0)
		rc = meta_store_open_work(&s->store, blob, O_RDWR, &fd, err);
	return rc < 0 ? rc : rs_work_own(fd, owner, path, err);
}

bool rs_work_has(struct rs_job *job, uint32_t rank, const char *path)
{
	struct sc_err ignored;
	struct rs_look look;

	return rs_look(job->service, job, NULL, rank, path, &look, &ignored) == 0 && look.kind == RS_WORK;
}
