/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing the working tree: each call is one transaction of the catalog, and its copy in memory.
 * Callers hold rs_tree_enter, so that no commit seals meanwhile.
 */
#include "reshard/tree/tree_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "reshard/engine/copy.h"

static int64_t row_rank(uint32_t rank)
{
	return rank == RS_SHARED ? META_SHARED : (int64_t)rank;
}

static int save_work(struct rs_job *job, uint32_t rank, const struct rs_work *w, struct sc_err *err)
{
	struct meta_work_row row = {.id = w->blob, .job = job->id, .rank = row_rank(rank), .path = w->path_id,
				    .kind = w->kind, .mode = w->mode, .uid = w->uid, .gid = w->gid,
				    .mtime_ns = w->mtime_ns};

	return meta_work_put(job->service->catalog, &row, err);
}

/* Memory for so many more rows: what follows a transaction may not fail. */
static int reserve(struct rs_job *job, uint32_t rank, size_t more, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&job->state);
	rc = rs_work_reserve(job, rank, more);
	(void)pthread_mutex_unlock(&job->state);
	return rc < 0 ? sc_nomem(err) : 0;
}

/* A new row at a path, of *blob or (0) a new number; replaces the row of what was written there before. */
static int add_row(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   enum meta_work_kind kind, const struct rs_owner *owner, uint64_t *blob, struct sc_err *err)
{
	struct rs_work w = {.kind = kind, .blob = *blob, .mode = owner->mode, .uid = owner->uid, .gid = owner->gid,
			    .mtime_ns = sc_now_wall_ns()};
	int rc = rs_path_id(job, path, &w.path_id, err);

	if (rc == 0)
		rc = rs_path_text(s, w.path_id, &w.path, err);
	if (rc == 0)
		rc = reserve(job, rank, 1, err);
	if (rc < 0)
		return rc;
	rc = meta_catalog_begin(s->catalog, false, err);
	if (rc == 0) {
		rc = w.blob ? meta_blob_adopt(s->catalog, w.blob, err) : meta_blob_add(s->catalog, &w.blob, err);
		if (rc == 0)
			rc = save_work(job, rank, &w, err);
		rc = meta_catalog_end(s->catalog, rc, err);
	}
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0) {
		rs_work_put(job, rank, w);
		job->mtime_ns = w.mtime_ns;
	}
	rs_work_unreserve(job, 1);
	(void)pthread_mutex_unlock(&job->state);
	if (rc < 0)
		return rc;
	*blob = w.blob;
	rs_job_tell(job);
	return 0;
}

static int add_work(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    enum meta_work_kind kind, const struct rs_owner *owner, uint64_t *ret_blob,
		    struct sc_err *err)
{
	*ret_blob = 0;
	return add_row(s, job, rank, path, kind, owner, ret_blob, err);
}

static int remove_work(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       uint64_t blob, bool is_file, struct sc_err *err)
{
	struct sc_err ignored;
	int rc = meta_work_remove(s->catalog, blob, err);

	/* on a full disk even a removal needs room for its row: the bytes that go make some */
	if (rc == SC_E_NO_SPACE && is_file && rs_remove_bytes(s, blob, &ignored) == 0)
		rc = meta_work_remove(s->catalog, blob, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->state);
	rs_work_drop(job, rank, path);
	job->mtime_ns = sc_now_wall_ns();
	(void)pthread_mutex_unlock(&job->state);
	if (is_file)
		(void)rs_remove_bytes(s, blob, &ignored); /* else: garbage at the next start */
	rs_job_tell(job);
	return 0;
}

/* A copy of the row at a path; false: there is none. */
static bool row_at(struct rs_job *job, uint32_t rank, const char *path, struct rs_work *ret)
{
	const struct rs_work *found;

	(void)pthread_mutex_lock(&job->state);
	found = rs_work_find(job, rank, path);
	if (found)
		*ret = *found;
	(void)pthread_mutex_unlock(&job->state);
	return found != NULL;
}

bool rs_work_has(struct rs_job *job, uint32_t rank, const char *path)
{
	struct rs_work w;

	return row_at(job, rank, path, &w);
}

int rs_work_adopt(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, uint64_t blob, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc = add_row(s, job, rank, path, META_WORK_FILE, owner, &blob, err);

	if (rc == 0)
		rc = meta_store_open_work(&s->store, blob, O_RDWR, &fd, err);
	return rc < 0 ? rc : rs_work_own(fd, owner, path, err);
}

int rs_work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err ignored;
	uint64_t blob;
	int rc = add_work(s, job, rank, path, META_WORK_FILE, owner, &blob, err);

	if (rc < 0)
		return rc;
	rc = meta_store_create(&s->store, blob, &fd, err);
	if (rc == 0)
		rc = rs_work_own(fd, owner, path, err);
	if (rc < 0) {
		(void)remove_work(s, job, rank, path, blob, true, &ignored);
		return rc;
	}
	*ret_blob = blob;
	*ret_fd = sc_steal_fd(&fd);
	return 0;
}

static int copy_image(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		      int to, struct sc_err *err)
{
	struct rs_image *im = NULL;
	unsigned char *buffer = sc_sys.alloc(1u << 20);
	int rc = buffer ? rs_view_image(s, view, rank, path, true, true, &im, err) : sc_nomem(err);

	for (uint64_t at = 0; rc == 0 && at < im->bytes;) {
		uint64_t n = im->bytes - at < 1u << 20 ? im->bytes - at : 1u << 20;

		rc = rs_image_fetch(im, at, n, buffer, err);
		if (rc == 0 && sc_pwrite_all(to, buffer, n, at) < 0)
			rc = sc_fail_sys(err, errno, "cannot copy '%s'", path);
		at += n;
	}
	rs_image_unref(s, im);
	sc_sys.release(buffer);
	return rc;
}

/* What a dataset shows is no rank's to change. */
static int refuse_data(const struct rs_look *look, const char *path, struct sc_err *err)
{
	return look->kind != RS_DATA ? 0
				     : sc_fail(err, SC_E_SEALED, "'%s' is part of a dataset, which is read-only", path);
}

int rs_work_copy_up(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    bool truncate, uint64_t *ret_blob, struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	sc_cleanup(sc_closep) int to = -1;
	sc_cleanup(sc_closep) int from = -1;
	struct rs_look look;
	struct sc_err ignored;
	uint64_t blob = 0;
	int rc = rs_look(s, job, NULL, rank, path, &look, err);

	if (rc == 0)
		rc = refuse_data(&look, path, err);
	if (rc == 0 && look.kind != RS_VIEW && look.kind != RS_BLOB) {
		/* somebody else was faster */
		rs_view_unref(s, head);
		*ret_blob = look.blob;
		return look.kind == RS_WORK ? 0 : sc_fail(err, SC_E_STALE, "'%s' is gone", path);
	}
	if (rc == 0)
		rc = rs_work_create(s, job, rank, path, &look.owner, &blob, &to, err);
	if (rc == 0 && !truncate && look.kind == RS_BLOB) {
		rc = meta_store_open_blob(&s->store, look.blob, look.bytes, &from, err);
		if (rc == 0)
			rc = rs_copy_file(to, from, look.blob, look.bytes, path, err);
	} else if (rc == 0 && !truncate) {
		rc = copy_image(s, head, rank, path, to, err);
	}
	if (rc < 0 && blob)
		(void)remove_work(s, job, rank, path, blob, true, &ignored);
	rs_view_unref(s, head);
	*ret_blob = blob;
	return rc;
}

int rs_work_mkdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, struct sc_err *err)
{
	struct rs_look look;
	uint64_t blob;
	int rc = rs_look(s, job, NULL, rank, path, &look, err);

	if (rc == 0 && look.kind != RS_NONE)
		return sc_fail(err, SC_E_EXISTS, "'%s' exists", path);
	return rc < 0 ? rc : add_work(s, job, rank, path, META_WORK_DIR, owner, &blob, err);
}

/* Is there a committed file at this path, under the working tree? */
static int is_committed(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
			struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct rs_look look = {0};
	int rc = head ? rs_tree_look(s, head, rank, path, &look, err) : 0;

	rs_view_unref(s, head);
	return rc < 0 ? rc : look.kind == RS_VIEW || look.kind == RS_BLOB;
}

int rs_work_unlink(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   struct sc_err *err)
{
	static const struct rs_owner nobody = {0};
	struct sc_err ignored;
	struct rs_look look;
	uint64_t blob;
	int rc = rs_look(s, job, NULL, rank, path, &look, err), committed;

	if (rc < 0)
		return rc;
	if (look.kind == RS_NONE)
		return sc_fail(err, SC_E_NOT_FOUND, "'%s' does not exist", path);
	if (look.kind == RS_DIR)
		return sc_fail(err, SC_E_IS_DIR, "'%s' is a folder", path);
	rc = refuse_data(&look, path, err);
	committed = rc == 0 ? is_committed(s, job, rank, path, err) : rc;
	if (committed < 0)
		return committed;
	if (!committed)
		return remove_work(s, job, rank, path, look.blob, true, err);
	/* the mark takes the place of what was written */
	rc = add_work(s, job, rank, path, META_WORK_GONE, &nobody, &blob, err);
	if (rc == 0 && look.kind == RS_WORK)
		(void)rs_remove_bytes(s, look.blob, &ignored);
	return rc;
}

static int has_children(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)name;
	(void)is_dir;
	return 1;
}

/* Is it a folder that may go? */
static int check_rmdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_look *look, struct sc_err *err)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct rs_view *head;
	bool is_rank;
	int rc;

	if (look->kind == RS_NONE)
		return sc_fail(err, SC_E_NOT_FOUND, "'%s' does not exist", path);
	if (look->kind != RS_DIR)
		return sc_fail(err, SC_E_NOT_DIR, "'%s' is not a folder", path);
	rc = rs_list(s, job, NULL, rank, path, has_children, NULL, err);
	if (rc)
		return rc < 0 ? rc : sc_fail(err, SC_E_NOT_EMPTY, "rank %u: '%s' is not empty", rank, path);
	head = rs_job_head(job);
	is_rank = !*path && head && rank < head->topo.ranks;
	rs_view_unref(s, head);
	if (is_rank)
		return sc_fail(
		    err, SC_E_BUSY,
		    "rank %u is a rank of the job's topology, its folder stays; 'scalai delete %s' removes "
		    "the job, and a write to .ctl/discard brings back what was removed since the last version",
		    rank, rs_job_name(job, name, sizeof(name)));
	return 0;
}

int rs_work_rmdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  struct sc_err *err)
{
	struct rs_look look;
	int rc = rs_look(s, job, NULL, rank, path, &look, err);

	if (rc == 0)
		rc = check_rmdir(s, job, rank, path, &look, err);
	return rc < 0 ? rc : remove_work(s, job, rank, path, look.blob, false, err);
}

struct moves {
	uint32_t rank, new_rank;
	struct {
		size_t nr, room;
		struct {
			const char *from;
			struct rs_work to;
		} *at;
	} rows;
	struct rs_work gone;		/* the mark that is left behind */
	bool leaves_mark;
};

static int add_move(struct rs_job *job, struct moves *m, const struct rs_work *w, const char *new_path,
		    struct sc_err *err)
{
	struct rs_work to = *w;
	int rc = rs_path_id(job, new_path, &to.path_id, err);

	if (rc == 0)
		rc = rs_path_text(job->service, to.path_id, &to.path, err);
	if (rc < 0)
		return rc;
	if (sc_vec_grow((void **)&m->rows.at, m->rows.nr, &m->rows.room, sizeof(*m->rows.at)) < 0)
		return sc_nomem(err);
	m->rows.at[m->rows.nr].from = w->path;
	m->rows.at[m->rows.nr++].to = to;
	return 0;
}

static int save_moves(struct rs_service *s, struct rs_job *job, struct moves *m, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < m->rows.nr; i++)
		rc = save_work(job, m->new_rank, &m->rows.at[i].to, err); /* replaces what is there */
	if (rc == 0 && m->leaves_mark) {
		rc = meta_blob_add(s->catalog, &m->gone.blob, err);
		if (rc == 0)
			rc = save_work(job, m->rank, &m->gone, err);
	}
	return rc;
}

/* All rows at once: after a crash all are at their old places or at their new ones. */
static int move(struct rs_service *s, struct rs_job *job, struct moves *m, struct sc_err *err)
{
	size_t nr = m->rows.nr + 1;
	int rc = reserve(job, m->new_rank, nr, err);

	if (rc < 0)
		return rc;
	rc = reserve(job, m->rank, 1, err);
	nr += rc == 0;
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, false, err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, save_moves(s, job, m, err), err);
	(void)pthread_mutex_lock(&job->state);
	for (size_t i = 0; rc == 0 && i < m->rows.nr; i++) {
		rs_work_drop(job, m->rank, m->rows.at[i].from);
		rs_work_put(job, m->new_rank, m->rows.at[i].to);
	}
	if (rc == 0 && m->leaves_mark)
		rs_work_put(job, m->rank, m->gone);
	rs_work_unreserve(job, nr);
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

static int rename_dir(struct rs_service *s, struct rs_job *job, struct moves *m, const char *path, const char *new_path,
		      struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct rs_work_rows rows = {0};
	size_t n = strlen(path);
	int rc;

	(void)pthread_mutex_lock(&job->state);
	rc = rs_tree_committed_below(job, head, m->rank, path, err);
	(void)pthread_mutex_unlock(&job->state);
	rs_view_unref(s, head);
	if (rc)
		return rc < 0 ? rc : sc_fail(err, SC_E_CROSS, "'%s' has committed files and cannot be renamed; copy "
			"it instead", path);
	rc = rs_work_rows(job, m->rank, &rows, err);
	for (size_t i = 0; rc == 0 && i < rows.nr; i++) {
		const struct rs_work *w = &rows.at[i];
		struct sc_buf to = {0};

		if (strncmp(w->path, path, n) != 0 || (w->path[n] && w->path[n] != '/') ||
		    w->kind == META_WORK_GONE)
			continue;
		sc_buf_printf(&to, "%s%s", new_path, w->path + n);
		rc = to.failed ? sc_nomem(err) : add_move(job, m, w, to.text, err);
		sc_buf_done(&to);
	}
	sc_vec_done(&rows);
	return rc < 0 ? rc : move(s, job, m, err);
}

static int rename_file(struct rs_service *s, struct rs_job *job, struct moves *m, const char *path,
		       const char *new_path, struct sc_err *err)
{
	struct rs_work w = {0};
	int committed = is_committed(s, job, m->rank, path, err), rc = committed;

	if (rc >= 0)
		rc = row_at(job, m->rank, path, &w) ? 0 : sc_fail(err, SC_E_NOT_FOUND, "'%s' does not exist", path);
	if (rc == 0)
		rc = add_move(job, m, &w, new_path, err);
	m->leaves_mark = committed > 0;
	m->gone = (struct rs_work){
	    .kind = META_WORK_GONE, .path = w.path, .path_id = w.path_id, .mtime_ns = sc_now_wall_ns()};
	return rc < 0 ? rc : move(s, job, m, err);
}

int rs_work_rename(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   uint32_t new_rank, const char *new_path, bool no_replace, struct sc_err *err)
{
	struct moves m = {.rank = rank, .new_rank = new_rank};
	struct rs_look from, to;
	struct sc_err ignored;
	uint64_t copy = 0;
	int rc = rs_look(s, job, NULL, rank, path, &from, err);

	if (rc == 0)
		rc = rs_look(s, job, NULL, new_rank, new_path, &to, err);
	if (rc < 0)
		return rc;
	if (from.kind == RS_NONE)
		return sc_fail(err, SC_E_NOT_FOUND, "'%s' does not exist", path);
	if (to.kind != RS_NONE && no_replace)
		return sc_fail(err, SC_E_EXISTS, "'%s' exists", new_path);
	rc = refuse_data(&from, path, err);
	if (rc == 0)
		rc = refuse_data(&to, new_path, err);
	if (rc < 0)
		return rc;
	if (to.kind == RS_DIR && from.kind != RS_DIR)
		return sc_fail(err, SC_E_IS_DIR, "'%s' is a folder", new_path);
	if (to.kind != RS_NONE && to.kind != RS_DIR && from.kind == RS_DIR)
		return sc_fail(err, SC_E_NOT_DIR, "'%s' is not a folder", new_path);
	if (rank == new_rank && strcmp(path, new_path) == 0)
		return 0;
	if (from.kind == RS_DIR) {
		rc = to.kind == RS_DIR ? check_rmdir(s, job, new_rank, new_path, &to, err) : 0;
		if (rc == 0)
			rc = rename_dir(s, job, &m, path, new_path, err);
	} else {
		/* the bytes of a version stay where they are: a copy of them moves */
		if (from.kind != RS_WORK)
			rc = rs_work_copy_up(s, job, rank, path, false, &copy, err);
		if (rc == 0)
			rc = rename_file(s, job, &m, path, new_path, err);
		if (rc < 0 && copy)
			(void)remove_work(s, job, rank, path, copy, true, &ignored);
	}
	if (rc == 0 && to.kind == RS_WORK)
		(void)rs_remove_bytes(s, to.blob, &ignored);
	sc_vec_done(&m.rows);
	rs_job_tell(job);
	return rc;
}

int rs_work_chattr_dir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_owner *owner, int64_t mtime_ns, struct sc_err *err)
{
	struct rs_work w, *found;
	uint64_t blob;
	int rc = 0;

	if (!row_at(job, rank, path, &w))
		return add_work(s, job, rank, path, META_WORK_DIR, owner, &blob, err);
	w.mode = owner->mode;
	w.uid = owner->uid;
	w.gid = owner->gid;
	w.mtime_ns = mtime_ns;
	rc = save_work(job, rank, &w, err);
	(void)pthread_mutex_lock(&job->state);
	found = rc == 0 ? rs_work_find(job, rank, path) : NULL;
	if (found && found->blob == w.blob)
		rs_work_put(job, rank, w);
	(void)pthread_mutex_unlock(&job->state);
	return rc;
}

bool rs_work_is(struct rs_service *s, struct rs_job *job, uint64_t blob)
{
	return rs_work_is_file(job, blob) || rs_work_is_removed(s, blob);
}

int rs_work_open(struct rs_service *s, struct rs_job *job, uint64_t blob, int flags, int *ret_fd,
		 struct sc_err *err)
{
	if (!rs_work_is(s, job, blob))
		return sc_fail(err, SC_E_STALE, "this file is not in the working tree any more");
	return meta_store_open_work(&s->store, blob, flags, ret_fd, err);
}

int rs_work_sync(struct rs_service *s, uint64_t blob, int fd, bool data_only, struct sc_err *err)
{
	struct meta_store_dirs dirs = {{0}};
	int rc;

	if ((data_only ? sc_sys.fdatasync(fd) : sc_sys.fsync(fd)) < 0)
		return sc_fail_sys(err, errno, "fsync");
	meta_store_note_dir(&dirs, blob);
	rc = meta_store_sync_dirs(&s->store, &dirs, err);
	return rc < 0 ? rc : meta_catalog_flush(s->catalog, err);
}
