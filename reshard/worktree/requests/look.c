/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up objects of a working tree, by number and by path, and lists folders. */
#include "reshard/worktree/requests/tree_i.h"

#include <string.h>
#include <sys/stat.h>

int rs_look_at(struct rs_job *job, uint64_t ino, struct rs_look *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	int rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);

	*ret = (struct rs_look){0};
	if (rc > 0) {
		rc = rs_look_row(job->head, &row, ret, err);
		ret->ino = rs_overlay_shown(job->overlay, ino);
		ret->lost_ns = rs_overlay_lost_ns(job->overlay, ino);
		ret->changes = rs_overlay_applied(job->overlay);
	}
	sc_arena_done(&texts);
	return rc;
}

/* --- by path --- */

int rs_find_path(struct rs_job *job, uint32_t rank, const char *path, uint64_t *ret, struct sc_err *err)
{
	uint64_t ino = rank == RS_SHARED ? job->root : job->root + 1 + rank;
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	int rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);

	if (rc == 0)
		ino = 0;
	while (rc >= 0 && ino && *path) {
		size_t n = strcspn(path, "/");

		rc = rs_overlay_child(job->overlay, ino, (struct meta_bytes){path, n}, &ino, err);
		path += n + (path[n] == '/');
	}
	sc_arena_done(&texts);
	*ret = ino;
	return rc < 0 ? rc : 0;
}

int rs_look(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank, const char *path,
	    struct rs_look *ret, struct sc_err *err)
{
	uint64_t ino;
	int rc;

	(void)s;
	if (view)
		return rs_view_look(view, rank, path, ret, err);
	*ret = (struct rs_look){0};
	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_find_path(job, rank, path, &ino, err);
	if (rc == 0 && ino)
		rc = rs_look_at(job, ino, ret, err);
	(void)pthread_rwlock_unlock(&job->names);
	return rc;
}

struct path_list {
	struct rs_job *job;
	struct sc_arena texts;
	int (*each)(void *arg, const char *name, mode_t type);
	void *arg;
	struct sc_err *err;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct path_list *l = arg;
	struct meta_inode_row row = {0};
	char text[256];
	int rc = rs_overlay_inode(l->job->overlay, ino, &l->texts, &row, l->err);

	if (rc <= 0)
		return rc;
	memcpy(text, name.at, name.nr);
	text[name.nr] = 0;
	return l->each(l->arg, text, row.mode & S_IFMT);
}

int rs_list(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank, const char *path,
	    int (*each)(void *arg, const char *name, mode_t type), void *arg, struct sc_err *err)
{
	struct path_list l = {.job = job, .each = each, .arg = arg, .err = err};
	uint64_t ino = 0;
	int rc;

	(void)s;
	if (view)
		return rs_view_list(view, rank, path, each, arg, err);
	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_find_path(job, rank, path, &ino, err);
	if (rc == 0 && ino)
		rc = rs_overlay_children(job->overlay, ino, on_child, &l, err);
	(void)pthread_rwlock_unlock(&job->names);
	sc_arena_done(&l.texts);
	return rc;
}

/* --- a working tree by number --- */

uint64_t rs_job_root(const struct rs_job *job)
{
	return job->root;
}

static uint64_t begin(struct rs_job *job, uint64_t ino)
{
	(void)pthread_rwlock_rdlock(&job->names);
	return rs_overlay_of_shown(job->overlay, ino);
}

static void end(struct rs_job *job)
{
	(void)pthread_rwlock_unlock(&job->names);
}

int rs_tree_get(struct rs_service *s, struct rs_job *job, uint64_t ino, struct rs_look *ret, struct sc_err *err)
{
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_look_at(job, ino, ret, err);
	end(job);
	return rc;
}

int rs_tree_type(struct rs_service *s, struct rs_job *job, uint64_t ino, mode_t *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);
	end(job);
	*ret = rc > 0 ? row.mode & S_IFMT : 0;
	sc_arena_done(&texts);
	return rc < 0 ? rc : 0;
}

/* Fails if a folder is gone: that is another error than a folder without the name. */
static int check_folder(struct rs_job *job, uint64_t folder, struct meta_inode_row *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	int rc = rs_overlay_inode(job->overlay, folder, &texts, ret, err);

	sc_arena_done(&texts);
	if (rc == 0)
		return sc_fail(err, SC_E_STALE, "the folder is gone");
	if (rc > 0 && !S_ISDIR(ret->mode))
		return sc_fail(err, SC_E_NOT_DIR, "not a folder");
	return rc < 0 ? rc : 0;
}

int rs_tree_child(struct rs_service *s, struct rs_job *job, uint64_t folder, struct meta_bytes name,
		  struct rs_look *ret, struct sc_err *err)
{
	struct meta_inode_row row;
	uint64_t ino = 0;
	int rc;

	(void)s;
	*ret = (struct rs_look){0};
	folder = begin(job, folder);
	rc = rs_overlay_child(job->overlay, folder, name, &ino, err);
	if (rc == 0 && ino)
		rc = rs_look_at(job, ino, ret, err);
	else if (rc == 0)
		rc = check_folder(job, folder, &row, err);
	end(job);
	return rc;
}

int rs_tree_parent(struct rs_service *s, struct rs_job *job, uint64_t folder, uint64_t *ret, struct sc_err *err)
{
	struct meta_inode_row row;
	int rc;

	(void)s;
	folder = begin(job, folder);
	rc = check_folder(job, folder, &row, err);
	*ret = rc == 0 ? rs_overlay_shown(job->overlay, folder == job->root ? folder : row.parent) : 0;
	end(job);
	return rc;
}

int rs_tree_of_file(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path, uint64_t *ret,
		    struct sc_err *err)
{
	struct rs_job *job = view->job;
	struct rs_below *b;
	int rc = rs_view_below(view, &b, err);

	(void)s;
	*ret = 0;
	if (rc == 0)
		rc = rs_below_find(b, rank, path, ret, err);
	if (rc == 0 && *ret) {
		uint64_t ino = *ret;

		(void)begin(job, ino);
		*ret = rs_overlay_shown(job->overlay, ino);
		end(job);
	}
	return rc;
}

int rs_tree_list(struct rs_service *s, struct rs_job *job, uint64_t folder, struct rs_listing *ret, struct sc_err *err)
{
	struct meta_inode_row row;
	int rc;

	(void)s;
	folder = begin(job, folder);
	rc = check_folder(job, folder, &row, err);
	if (rc == 0)
		rc = rs_listing_make(job->overlay, folder, ret, err);
	for (size_t i = 0; rc == 0 && i < ret->nr; i++)
		ret->at[i].ino = rs_overlay_shown(job->overlay, ret->at[i].ino);
	end(job);
	return rc;
}

bool rs_tree_list_is_old(struct rs_job *job, const struct rs_listing *l)
{
	bool is;

	(void)begin(job, 0);
	is = rs_listing_is_old(job->overlay, l);
	end(job);
	return is;
}

uint64_t rs_tree_applied(const struct rs_job *job)
{
	return rs_overlay_applied(job->overlay);
}

uint64_t rs_tree_list_changes(struct rs_job *job, uint64_t folder)
{
	uint64_t changes = rs_overlay_changes(job->overlay, begin(job, folder));

	end(job);
	return changes;
}

int rs_tree_link_text(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_buf *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row = {0};
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);
	end(job);
	if (rc >= 0 && !S_ISLNK(row.mode))
		rc = sc_fail(err, SC_E_STALE, "the link is gone");
	if (rc > 0)
		sc_buf_add(ret, row.target.at, row.target.nr);
	sc_arena_done(&texts);
	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : 0;
}

int rs_tree_xattr(struct rs_service *s, struct rs_job *job, uint64_t ino, struct meta_bytes name, struct sc_buf *ret,
		  struct sc_err *err)
{
	struct rs_xattr_search x = {name, ret, false};
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_overlay_xattrs(job->overlay, ino, rs_on_xattr_value, &x, err);
	end(job);
	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : x.found;
}

int rs_tree_xattrs(struct rs_service *s, struct rs_job *job, uint64_t ino, struct sc_buf *ret, struct sc_err *err)
{
	int rc;

	(void)s;
	ino = begin(job, ino);
	rc = rs_overlay_xattrs(job->overlay, ino, rs_on_xattr_name, ret, err);
	end(job);
	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : 0;
}
