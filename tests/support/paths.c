/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meta/base/sys.h"

/* A name, and the folder that has it, or would have it. */
struct place {
	uint64_t folder;
	struct meta_bytes name;
	char text[4096 + 16];
};

/* The folder of that name; `make`: it is made if there is none. */
static int step(struct rs_service *s, struct rs_job *job, struct place *at, bool make, struct sc_err *err)
{
	struct rs_look look;
	int rc = rs_tree_child(s, job, at->folder, at->name, &look, err);

	if (rc == 0 && look.kind == RS_NONE && make) {
		struct rs_job_attr attr;
		struct rs_make what;

		rs_job_attr(job, &attr);
		what = (struct rs_make){.mode = S_IFDIR | (attr.mode & 07777), .uid = attr.uid, .gid = attr.gid};
		rc = rs_tree_make(s, job, at->folder, at->name, &what, &look, NULL, err);
	}
	if (rc < 0)
		return rc;
	if (look.kind == RS_NONE)
		return sc_fail(err, SC_E_NOT_FOUND, "'%.*s' does not exist", (int)at->name.nr, at->name.at);
	if (look.kind != RS_DIR)
		return sc_fail(err, SC_E_NOT_DIR, "'%.*s' is not a folder", (int)at->name.nr, at->name.at);
	at->folder = look.ino;
	return 0;
}

/* Where a path's last name is; `make`: with the folders above. */
static int find_place(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, bool make,
		      struct place *ret, struct sc_err *err)
{
	int n = rank == RS_SHARED ? snprintf(ret->text, sizeof(ret->text), "%s", path)
				  : snprintf(ret->text, sizeof(ret->text), "%" PRIu32 "%s%s", rank, *path ? "/" : "", path);

	if (n < 0 || (size_t)n >= sizeof(ret->text))
		return sc_fail(err, SC_E_NAME, "a path is longer than %zu bytes", sizeof(ret->text) - 1);
	ret->folder = rs_job_root(job);
	for (char *name = ret->text;;) {
		size_t bytes = strcspn(name, "/");
		int rc;

		ret->name = (struct meta_bytes){name, bytes};
		if (!name[bytes])
			return 0;
		rc = step(s, job, ret, make, err);
		if (rc < 0)
			return rc;
		name += bytes + 1;
	}
}

int work_find(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct rs_look *ret,
	      struct sc_err *err)
{
	struct place at;
	int rc;

	*ret = (struct rs_look){0};
	if (rank == RS_SHARED && !*path)
		return rs_tree_get(s, job, rs_job_root(job), ret, err);
	rc = find_place(s, job, rank, path, false, &at, err);
	if (rc == SC_E_NOT_FOUND || rc == SC_E_NOT_DIR)
		return 0;
	return rc < 0 ? rc : rs_tree_child(s, job, at.folder, at.name, ret, err);
}

/* The number of what must be there. */
static int find_there(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, int code,
		      uint64_t *ret, struct sc_err *err)
{
	struct rs_look look;
	int rc = work_find(s, job, rank, path, &look, err);

	*ret = look.ino;
	if (rc == 0 && look.kind == RS_NONE)
		rc = sc_fail(err, code, "'%s' does not exist", path);
	return rc;
}

int work_make_rank(struct rs_service *s, struct rs_job *job, uint32_t rank, struct sc_err *err)
{
	struct place at;
	int rc = find_place(s, job, rank, "", true, &at, err);

	return rc < 0 ? rc : step(s, job, &at, true, err);
}

static struct rs_make file_of(const struct rs_owner *owner)
{
	return (struct rs_make){.mode = S_IFREG | owner->mode, .uid = owner->uid, .gid = owner->gid};
}

int work_create_new(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	struct rs_make what = file_of(owner);
	struct rs_look look;
	struct place at;
	int rc = find_place(s, job, rank, path, true, &at, err);

	if (rc == 0)
		rc = rs_tree_make(s, job, at.folder, at.name, &what, &look, ret_fd, err);
	*ret_blob = rc < 0 ? 0 : look.blob;
	return rc;
}

int work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
		uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	struct rs_look there;
	int rc = work_find(s, job, rank, path, &there, err);

	if (rc == 0 && there.kind == RS_NONE)
		return work_create_new(s, job, rank, path, owner, ret_blob, ret_fd, err);
	if (rc == 0)
		rc = rs_tree_copy_up(s, job, there.ino, true, ret_blob, err);
	if (rc == 0)
		rc = rs_work_open(s, job, *ret_blob, O_RDWR, ret_fd, err);
	if (rc == 0 && sc_sys.ftruncate(*ret_fd, 0) < 0) {
		rc = sc_fail_sys(err, errno, "emptying '%s': %s", path, strerror(errno));
		(void)close(*ret_fd);
	}
	return rc;
}

int work_copy_up(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, bool truncate,
		 uint64_t *ret_blob, struct sc_err *err)
{
	uint64_t ino;
	int rc = find_there(s, job, rank, path, SC_E_STALE, &ino, err);

	return rc < 0 ? rc : rs_tree_copy_up(s, job, ino, truncate, ret_blob, err);
}

/* In a folder that is there. */
static int make(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_make *what,
		struct sc_err *err)
{
	struct rs_look look;
	struct place at;
	int rc = find_place(s, job, rank, path, false, &at, err);

	return rc < 0 ? rc : rs_tree_make(s, job, at.folder, at.name, what, &look, NULL, err);
}

int work_mkdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
	       struct sc_err *err)
{
	struct rs_make what = {.mode = S_IFDIR | owner->mode, .uid = owner->uid, .gid = owner->gid};

	return make(s, job, rank, path, &what, err);
}

int work_symlink(struct rs_service *s, struct rs_job *job, const char *target, uint32_t rank, const char *path,
		 struct sc_err *err)
{
	struct rs_make what = {.mode = S_IFLNK | 0777, .uid = geteuid(), .gid = getegid(),
			       .target = {target, strlen(target)}};

	return make(s, job, rank, path, &what, err);
}

int work_mkfifo(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err)
{
	struct rs_make what = {.mode = S_IFIFO | 0600, .uid = geteuid(), .gid = getegid()};

	return make(s, job, rank, path, &what, err);
}

int work_link(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, uint32_t new_rank,
	      const char *new_path, struct sc_err *err)
{
	struct place to;
	uint64_t ino;
	int rc = find_there(s, job, rank, path, SC_E_NOT_FOUND, &ino, err);

	if (rc == 0)
		rc = find_place(s, job, new_rank, new_path, false, &to, err);
	return rc < 0 ? rc : rs_tree_link(s, job, ino, to.folder, to.name, err);
}

/* As a kernel that knows nothing any more of what had a name before. */
static void forget(struct rs_service *s, struct rs_job *job, uint64_t ino)
{
	struct sc_err ignored;

	if (ino && rs_tree_is_nameless(s, job, ino))
		(void)rs_tree_forget(s, job, ino, &ignored);
}

static int remove_name(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, bool is_dir,
		       struct sc_err *err)
{
	struct rs_look look;
	struct place at;
	int rc = work_find(s, job, rank, path, &look, err);

	if (rc == 0)
		rc = find_place(s, job, rank, path, false, &at, err);
	if (rc == 0)
		rc = is_dir ? rs_tree_rmdir(s, job, at.folder, at.name, err)
			    : rs_tree_unlink(s, job, at.folder, at.name, err);
	if (rc == 0)
		forget(s, job, look.ino);
	return rc;
}

int work_unlink(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err)
{
	return remove_name(s, job, rank, path, false, err);
}

int work_rmdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err)
{
	return remove_name(s, job, rank, path, true, err);
}

int work_rename(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, uint32_t new_rank,
		const char *new_path, bool no_replace, struct sc_err *err)
{
	struct rs_look replaced;
	struct place from, to;
	int rc = work_find(s, job, new_rank, new_path, &replaced, err);

	if (rc == 0)
		rc = find_place(s, job, rank, path, false, &from, err);
	if (rc == 0)
		rc = find_place(s, job, new_rank, new_path, false, &to, err);
	if (rc == 0)
		rc = rs_tree_rename(s, job, from.folder, from.name, to.folder, to.name,
				    no_replace ? RS_RENAME_NOREPLACE : RS_RENAME_OVER, err);
	if (rc == 0)
		forget(s, job, replaced.ino);
	return rc;
}

int work_chattr(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
		int64_t mtime_ns, struct sc_err *err)
{
	struct rs_attrs set = {.has_mode = true, .has_uid = true, .has_gid = true, .has_mtime = true,
			       .mode = owner->mode, .uid = owner->uid, .gid = owner->gid, .mtime_ns = mtime_ns};
	uint64_t ino;
	int rc = find_there(s, job, rank, path, SC_E_NOT_FOUND, &ino, err);

	return rc < 0 ? rc : rs_tree_set_attrs(s, job, ino, &set, err);
}

int work_set_xattr(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const char *name,
		   const char *value, struct sc_err *err)
{
	uint64_t ino;
	int rc = find_there(s, job, rank, path, SC_E_NOT_FOUND, &ino, err);

	return rc < 0 ? rc
		      : rs_tree_set_xattr(s, job, ino, (struct meta_bytes){name, strlen(name)},
					  (struct meta_bytes){value, strlen(value)}, RS_XATTR_ANY, err);
}
