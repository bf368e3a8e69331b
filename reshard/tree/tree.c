/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees: what a path inside a rank directory is.  A view's files follow from the model and from
 * the plain sets; a job's head has its working tree on top, like the upper layer of an overlay:
 * written files, folders that were made, and marks of what was removed.
 */
#include "reshard/tree/tree_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* --- the working tree, from and to the catalog --- */

int rs_work_clear_rows(struct rs_job *job, struct sc_err *err)
{
	int rc = meta_work_clear(job->service->catalog, job->id, err);

	/* rows change under job.tree only, which the caller has for writing */
	for (size_t i = 0; i < job->work.nr; i++)
		for (size_t k = 0; rc == 0 && k < job->work.at[i]->nr; k++) {
			const struct rs_work *w = job->work.at[i]->at[k];

			if (w->kind == META_WORK_DIR && !w->stays)
				rc = meta_work_drop(job->service->catalog, w->blob, err);
		}
	return rc;
}

struct work_load {
	struct rs_job *job;
	struct sc_err *err;
};

/* A crash between a new file's row and its bytes: the file exists and is empty, as if it had come after. */
static int make_missing(struct rs_service *s, const struct meta_work_row *row, const char *path, struct sc_err *err)
{
	const struct rs_owner owner = {row->uid, row->gid, row->mode};
	sc_cleanup(sc_closep) int fd = -1;
	int rc = meta_store_open_work(&s->store, row->id, O_RDONLY, &fd, err);

	if (rc == 0 || err->errnum != ENOENT)
		return rc;
	rc = meta_store_create(&s->store, row->id, &fd, err);
	return rc < 0 ? rc : rs_work_own(fd, &owner, path, err);
}

static int on_work(void *arg, const struct meta_work_row *row)
{
	struct work_load *l = arg;
	struct rs_work w = {.blob = row->id, .kind = row->kind, .path_id = row->path, .mode = row->mode,
			    .uid = row->uid, .gid = row->gid, .mtime_ns = row->mtime_ns};
	uint32_t rank = row->rank == META_SHARED ? RS_SHARED : (uint32_t)row->rank;
	int rc = rs_path_text(l->job->service, row->path, &w.path, l->err);

	if (rc == 0 && row->kind == META_WORK_FILE)
		rc = make_missing(l->job->service, row, w.path, l->err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&l->job->state);
	rc = rs_work_reserve(l->job, rank, 1) < 0 ? sc_nomem(l->err) : 0;
	if (rc == 0) {
		rs_work_put(l->job, rank, w);
		rs_work_unreserve(l->job, 1);
	}
	(void)pthread_mutex_unlock(&l->job->state);
	return rc;
}

int rs_work_load(struct rs_job *job, struct sc_err *err)
{
	struct work_load l = {job, err};

	return meta_work_each(job->service->catalog, job->id, on_work, &l, err);
}

/* --- what a view has --- */

/* Calls `each` with every file of a rank; `plain`: the set of one that is no file of tensors. */
enum origin { FROM_TENSORS, FROM_BYTES, FROM_DATA };

struct files {
	int (*each)(void *arg, const char *path, enum origin origin, const struct rs_set *plain);
	void *arg;
};

static int on_file(void *arg, const char *file, const char *logical)
{
	const struct files *f = arg;

	(void)logical;
	return f->each(f->arg, file, FROM_TENSORS, NULL);
}

static int on_data(void *arg, const char *path)
{
	const struct files *f = arg;

	return f->each(f->arg, path, FROM_DATA, NULL);
}

static int each_file(const struct rs_view *view, uint32_t rank, struct files *f, struct sc_err *err)
{
	const struct rs_version *v = view->version;
	int rc = 0;

	if (rank != RS_SHARED)
		rc = meta_view_files(view->model, rank, on_file, f);
	if (rc == 0 && rank != RS_SHARED)
		rc = rs_data_names(view, on_data, f);
	for (size_t i = 0; rc == 0 && i < v->nr_sets; i++)
		if (v->sets[i]->kind != META_SET_TENSORS && rs_set_plain(v->sets[i], v->layout, &view->topo, rank))
			rc = f->each(f->arg, v->sets[i]->file, FROM_BYTES, v->sets[i]);
	return rc == SC_E_NO_MEMORY ? sc_nomem(err) : rc;
}

struct find {
	const char *path;
	size_t bytes;
	const struct rs_set *plain;
	bool tensors, data, dir;
};

static int on_find(void *arg, const char *path, enum origin origin, const struct rs_set *plain)
{
	struct find *f = arg;

	if (strncmp(path, f->path, f->bytes) != 0)
		return 0;
	f->dir = f->dir || path[f->bytes] == '/';
	if (path[f->bytes])
		return 0;
	f->plain = plain;
	f->tensors = origin == FROM_TENSORS;
	f->data = origin == FROM_DATA;
	return 1;
}

static int look_plain(const struct rs_view *view, const struct rs_set *set, uint32_t rank, struct rs_look *ret)
{
	const struct meta_layout *layout = view->version->layout;
	const struct rs_set_blob *b = rs_set_plain(set, layout, &view->topo, rank);

	ret->kind = RS_BLOB;
	ret->blob = b->blob;
	ret->bytes = b->bytes;
	rs_plain_owner(view->job, set, layout, &view->topo, rank, &ret->owner);
	return 0;
}

static int look_tensors(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
			struct rs_look *ret, struct sc_err *err)
{
	struct rs_image *im = NULL;
	int rc = rs_view_image(s, view, rank, path, false, false, &im, err);

	if (rc < 0)
		return rc;
	ret->kind = im->same_as ? RS_BLOB : RS_VIEW;
	ret->blob = im->same_as;
	ret->bytes = im->bytes;
	rs_image_unref(s, im);
	return rs_view_owner(view, rank, path, &ret->owner, err);
}

static int look_data(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		     struct rs_look *ret, struct sc_err *err)
{
	struct rs_data_file *file;
	int rc = rs_data_open(s, view, rank, path, &file, err);

	if (rc < 0)
		return rc;
	ret->kind = RS_DATA;
	ret->owner.mode = 0444;
	ret->bytes = rs_data_bytes(file);
	rs_data_close(s, file);
	return 0;
}

int rs_tree_look(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		     struct rs_look *ret, struct sc_err *err)
{
	struct find f = {.path = path, .bytes = strlen(path)};
	struct files files = {on_find, &f};
	int rc;

	ret->mtime_ns = view->version->made_ns;
	ret->place = rs_view_place(view, rank == RS_SHARED ? 0 : rank);
	if (rank != RS_SHARED && rank >= view->topo.ranks)
		return 0;
	if (!*path) {
		ret->kind = RS_DIR;
		return 0;
	}
	rc = each_file(view, rank, &files, err);
	if (rc < 0)
		return rc;
	if (f.plain)
		return look_plain(view, f.plain, rank, ret);
	if (f.tensors)
		return look_tensors(s, view, rank, path, ret, err);
	if (f.data)
		return look_data(s, view, rank, path, ret, err);
	if (f.dir)
		ret->kind = RS_DIR;
	return 0;
}

/* A folder exists while a file is in it, whatever made it. */
static bool work_below(struct rs_job *job, uint32_t rank, const char *path)
{
	const struct rs_work_rank *r = rs_work_rank(job, rank);
	size_t n = strlen(path);

	for (size_t i = 0; r && i < r->nr; i++)
		if (r->at[i]->kind != META_WORK_GONE &&
		    (n == 0 || (strncmp(r->at[i]->path, path, n) == 0 && r->at[i]->path[n] == '/')))
			return true;
	return false;
}

static bool is_gone(struct rs_job *job, uint32_t rank, const char *path)
{
	struct rs_work *w = rs_work_find(job, rank, path);

	return w && w->kind == META_WORK_GONE;
}

struct left {
	struct rs_job *job;
	uint32_t rank;
	const char *path;
	size_t bytes;
};

static int on_left(void *arg, const char *path, enum origin origin, const struct rs_set *plain)
{
	const struct left *l = arg;

	(void)origin;
	(void)plain;
	return strncmp(path, l->path, l->bytes) == 0 && path[l->bytes] == '/' &&
	       !is_gone(l->job, l->rank, path);
}

/* Is a committed file below `path` that was not removed? Under job.state. */
int rs_tree_committed_below(struct rs_job *job, const struct rs_view *head, uint32_t rank,
			   const char *path, struct sc_err *err)
{
	struct left l = {job, rank, path, strlen(path)};
	struct files files = {on_left, &l};

	if (!head || (rank != RS_SHARED && rank >= head->topo.ranks))
		return 0;
	return each_file(head, rank, &files, err);
}

static int on_below(void *arg, const char *path, enum origin origin, const struct rs_set *plain)
{
	const struct left *l = arg;

	(void)origin;
	(void)plain;
	return strncmp(path, l->path, l->bytes) == 0 && path[l->bytes] == '/';
}

/* Has a head this folder, without any working tree? 1, 0 or an error. */
static int has_folder(struct rs_job *job, const struct rs_view *head, uint32_t rank, const char *path,
		      struct sc_err *err)
{
	struct left l = {job, rank, path, strlen(path)};
	struct files files = {on_below, &l};

	if (!head || rank == RS_SHARED || rank >= head->topo.ranks)
		return 0;
	return !*path ? 1 : each_file(head, rank, &files, err);
}

int rs_work_settle(struct rs_job *job, const struct rs_view *head, struct sc_err *err)
{
	int rc = 0;

	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; rc == 0 && i < job->work.nr; i++)
		for (size_t k = 0; rc == 0 && k < job->work.at[i]->nr; k++) {
			struct rs_work *w = job->work.at[i]->at[k];

			rc = w->kind == META_WORK_DIR ? has_folder(job, head, job->work.at[i]->rank, w->path, err) : 0;
			w->stays = rc > 0;
			rc = rc < 0 ? rc : 0;
		}
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

static void look_work(const struct rs_work *w, struct rs_look *ret)
{
	ret->kind = w->kind == META_WORK_DIR ? RS_DIR : RS_WORK;
	ret->blob = w->blob;
	ret->owner = (struct rs_owner){w->uid, w->gid, w->mode};
	ret->mtime_ns = w->mtime_ns;
	ret->from_work = true;
}

int rs_look(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_look look = {0};
	struct rs_view *head = NULL;
	struct rs_work *w;
	bool gone = false;
	int rc = 0;

	(void)pthread_mutex_lock(&job->state);
	look.owner = (struct rs_owner){job->uid, job->gid, 0};
	look.mtime_ns = job->mtime_ns;
	if (!view) {
		head = job->head ? rs_view_ref(job->head) : NULL;
		w = rs_work_find(job, rank, path);
		if (w && w->kind != META_WORK_GONE)
			look_work(w, &look);
		else if (!w && work_below(job, rank, path))
			look.kind = RS_DIR;
		gone = w && w->kind == META_WORK_GONE;
	}
	(void)pthread_mutex_unlock(&job->state);
	if (look.kind == RS_NONE && !gone && (view || head)) {
		rc = rs_tree_look(s, view ? view : head, rank, path, &look, err);
		if (rc == 0 && look.kind == RS_DIR && !view && *path) {
			/* it may be that all of its files were removed */
			(void)pthread_mutex_lock(&job->state);
			rc = rs_tree_committed_below(job, head, rank, path, err);
			(void)pthread_mutex_unlock(&job->state);
			if (rc == 0)
				look.kind = RS_NONE;
			rc = rc < 0 ? rc : 0;
		}
	}
	rs_view_unref(s, head);
	if (rc == 0 && look.kind == RS_DIR && !look.from_work) {
		(void)pthread_mutex_lock(&job->state);
		rs_owner_of_folder(job, !view && rank != RS_SHARED && !*path, &look.owner);
		(void)pthread_mutex_unlock(&job->state);
		look.owner.mode &= view ? 0755 : 07777;
	}
	if (rc == 0)
		*ret = look;
	return rc;
}

/* --- listing --- */

struct listing {
	struct rs_job *job;
	uint32_t rank;
	const char *path;
	size_t bytes;
	bool head;
	struct sc_arena arena;
	struct sc_map seen;
	int (*each)(void *arg, const char *name, bool is_dir);
	void *arg;
	struct sc_err *err;
};

/* The next component of a path below the folder, once. */
static int list_one(struct listing *l, const char *path, bool is_dir)
{
	const char *name = path, *slash;
	size_t n;
	char *copy;

	if (l->bytes) {
		if (strncmp(path, l->path, l->bytes) != 0 || path[l->bytes] != '/')
			return 0;
		name = path + l->bytes + 1;
	}
	slash = strchr(name, '/');
	n = slash ? (size_t)(slash - name) : strlen(name);
	if (n == 0 || sc_map_get(&l->seen, name, n))
		return 0;
	copy = sc_arena_copy(&l->arena, name, n);
	if (!copy || sc_map_put(&l->seen, copy, n, copy) < 0)
		return sc_nomem(l->err);
	return l->each(l->arg, copy, slash || is_dir);
}

static int on_list(void *arg, const char *path, enum origin origin, const struct rs_set *plain)
{
	struct listing *l = arg;

	(void)origin;
	(void)plain;
	if (l->head) {
		bool gone;

		(void)pthread_mutex_lock(&l->job->state);
		gone = is_gone(l->job, l->rank, path);
		(void)pthread_mutex_unlock(&l->job->state);
		if (gone)
			return 0;
	}
	return list_one(l, path, false);
}

int rs_list(struct rs_service *s, struct rs_job *job, struct rs_view *view, uint32_t rank,
	    const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg,
	    struct sc_err *err)
{
	struct listing l = {.job = job, .rank = rank, .path = path, .bytes = strlen(path), .head = !view,
			    .each = each, .arg = arg, .err = err};
	struct rs_view *head = view ? NULL : rs_job_head(job), *from = view ? view : head;
	struct files files = {on_list, &l};
	struct rs_work_rows rows = {0};
	int rc = 0;

	if (!view)
		rc = rs_work_rows(job, rank, &rows, err);
	for (size_t i = 0; rc == 0 && i < rows.nr; i++)
		if (rows.at[i].kind != META_WORK_GONE)
			rc = list_one(&l, rows.at[i].path, rows.at[i].kind == META_WORK_DIR);
	if (rc == 0 && from && (rank == RS_SHARED || rank < from->topo.ranks))
		rc = each_file(from, rank, &files, err);
	sc_vec_done(&rows);
	sc_map_done(&l.seen);
	sc_arena_done(&l.arena);
	rs_view_unref(s, head);
	return rc;
}

int rs_ranks(struct rs_service *s, struct rs_job *job, struct rs_view *view,
	     int (*each)(void *arg, uint32_t rank), void *arg, struct sc_err *err)
{
	struct rs_view *head = view ? NULL : rs_job_head(job);
	uint32_t ranks = view ? view->topo.ranks : head ? head->topo.ranks : 0;
	struct {
		uint32_t *at;
		size_t nr, room;
	} more = {0};
	int rc = 0;

	if (!view) {
		(void)pthread_mutex_lock(&job->state);
		for (size_t i = 0; i < job->work.nr && rc == 0; i++)
			if (job->work.at[i]->rank >= ranks && job->work.at[i]->rank != RS_SHARED &&
			    job->work.at[i]->nr)
				rc = sc_vec_push(&more, job->work.at[i]->rank) < 0 ? sc_nomem(err) : 0;
		(void)pthread_mutex_unlock(&job->state);
	}
	for (uint32_t r = 0; rc == 0 && r < ranks; r++)
		rc = each(arg, r);
	for (size_t i = 0; rc == 0 && i < more.nr; i++)
		rc = each(arg, more.at[i]);
	sc_vec_done(&more);
	rs_view_unref(s, head);
	return rc;
}
