/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing the working tree: each call is one transaction of the catalog, and its copy in memory.
 * Callers hold rs_tree_enter, so that no commit seals meanwhile.  Programs change a tree at the same time: the kernel
 * keeps two changes of one folder apart, but not the copy that an open for writing makes.  Invariants:
 *
 *  N1  A job's rows change under job.names, held from the look that the change follows from to the copy in memory.
 *  N2  Who takes a row away, or puts another in its place, removes the file of that row and of no other (when it is
 *      closed: opened.c).  So a blob that no row has, has no file.
 *  N3  A file is whole before its row comes: nobody opens half a copy, also after a crash.  Only a start meets files
 *      without rows, those that a crash has left, and removes them.
 */
#include "reshard/tree/tree_i.h"

#include <fcntl.h>
#include <string.h>

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

/* Names a row that is to be saved. */
static int name_row(struct rs_job *job, const char *path, struct rs_work *w, struct sc_err *err)
{
	int rc = rs_path_id(job, path, &w->path_id, err);

	return rc < 0 ? rc : rs_path_text(job->service, w->path_id, &w->path, err);
}

/* A new row at a path, of *blob or (0) a new number; replaces what was written there before.  Under job.names. */
static int add_row(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   enum meta_work_kind kind, const struct rs_owner *owner, uint64_t *blob, struct sc_err *err)
{
	struct rs_work w = {.kind = kind, .blob = *blob, .mode = owner->mode, .uid = owner->uid, .gid = owner->gid,
			    .mtime_ns = sc_now_wall_ns()};
	struct rs_work before = {0};
	struct sc_err ignored;
	int rc = name_row(job, path, &w, err);

	if (rc == 0)
		rc = reserve(job, rank, 1, err);
	if (rc < 0)
		return rc;
	(void)row_at(job, rank, path, &before);
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
	if (before.blob && before.kind == META_WORK_FILE)
		(void)rs_remove_bytes(s, before.blob, &ignored); /* else: garbage at the next start */
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

/* Under job.names, which has found the row. */
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

bool rs_work_has(struct rs_job *job, uint32_t rank, const char *path)
{
	struct rs_work w;

	return row_at(job, rank, path, &w);
}

int rs_work_adopt(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, uint64_t blob, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	int rc;

	(void)pthread_mutex_lock(&job->names);
	rc = add_row(s, job, rank, path, META_WORK_FILE, owner, &blob, err);
	(void)pthread_mutex_unlock(&job->names);
	if (rc == 0)
		rc = meta_store_open_work(&s->store, blob, O_RDWR, &fd, err);
	return rc < 0 ? rc : rs_work_own(fd, owner, path, err);
}

static int create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, bool may_replace, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct rs_work other;
	struct sc_err ignored;
	uint64_t blob;
	int rc = rs_file_make(s, path, owner, &blob, &fd, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->names);
	if (!may_replace && row_at(job, rank, path, &other) && other.kind != META_WORK_GONE)
		rc = sc_fail(err, SC_E_EXISTS, "'%s' exists", path);
	if (rc == 0)
		rc = add_row(s, job, rank, path, META_WORK_FILE, owner, &blob, err);
	(void)pthread_mutex_unlock(&job->names);
	if (rc < 0) {
		(void)meta_store_remove(&s->store, blob, &ignored);
		return rc;
	}
	*ret_blob = blob;
	*ret_fd = sc_steal_fd(&fd);
	return 0;
}

/* What a dataset shows is no rank's to change. */
static int refuse_data(const struct rs_look *look, const char *path, struct sc_err *err)
{
	return look->kind != RS_DATA ? 0
				     : sc_fail(err, SC_E_SEALED, "'%s' is part of a dataset, which is read-only", path);
}

int rs_work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	return create(s, job, rank, path, owner, true, ret_blob, ret_fd, err);
}

int rs_work_create_new(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err)
{
	return create(s, job, rank, path, owner, false, ret_blob, ret_fd, err);
}

int rs_work_copy_up(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    bool truncate, uint64_t *ret_blob, struct sc_err *err)
{
	struct sc_err ignored;
	struct rs_look look;
	uint64_t copy;
	int rc = rs_file_copy(s, job, rank, path, truncate, &copy, err);

	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&job->names);
	rc = rs_look(s, job, NULL, rank, path, &look, err);
	if (rc == 0)
		rc = refuse_data(&look, path, err);
	if (rc == 0 && copy && rs_look_is_committed(&look)) {
		rc = add_row(s, job, rank, path, META_WORK_FILE, &look.owner, &copy, err);
		if (rc == 0) {
			*ret_blob = copy;
			copy = 0;
		}
	} else if (rc == 0) {
		/* somebody else was faster */
		*ret_blob = look.blob;
		rc = look.kind == RS_WORK ? 0 : sc_fail(err, SC_E_STALE, "'%s' is gone", path);
	}
	(void)pthread_mutex_unlock(&job->names);
	if (copy)
		(void)meta_store_remove(&s->store, copy, &ignored);
	return rc;
}

int rs_work_mkdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		  const struct rs_owner *owner, struct sc_err *err)
{
	struct rs_look look;
	uint64_t blob;
	int rc;

	(void)pthread_mutex_lock(&job->names);
	rc = rs_look(s, job, NULL, rank, path, &look, err);
	if (rc == 0 && look.kind != RS_NONE)
		rc = sc_fail(err, SC_E_EXISTS, "'%s' exists", path);
	if (rc == 0)
		rc = add_work(s, job, rank, path, META_WORK_DIR, owner, &blob, err);
	(void)pthread_mutex_unlock(&job->names);
	return rc;
}

/* Is there a committed file at this path, under the working tree? */
static int is_committed(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
			struct sc_err *err)
{
	struct rs_view *head = rs_job_head(job);
	struct rs_look look = {0};
	int rc = head ? rs_tree_look(s, head, rank, path, &look, err) : 0;

	rs_view_unref(s, head);
	return rc < 0 ? rc : rs_look_is_committed(&look);
}

static int unlink_named(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err)
{
	static const struct rs_owner nobody = {0};
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
	return add_work(s, job, rank, path, META_WORK_GONE, &nobody, &blob, err);
}

int rs_work_unlink(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&job->names);
	rc = unlink_named(s, job, rank, path, err);
	(void)pthread_mutex_unlock(&job->names);
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
	int rc;

	(void)pthread_mutex_lock(&job->names);
	rc = rs_look(s, job, NULL, rank, path, &look, err);
	if (rc == 0)
		rc = check_rmdir(s, job, rank, path, &look, err);
	if (rc == 0)
		rc = remove_work(s, job, rank, path, look.blob, false, err);
	(void)pthread_mutex_unlock(&job->names);
	return rc;
}

struct moves {
	uint32_t rank, new_rank;
	struct {
		size_t nr, room;
		struct {
			const char *from;
			struct rs_work to;
			uint64_t replaced;	/* the blob of the file that was there; 0: none was */
		} *at;
	} rows;
	uint64_t copy;			/* of the committed file that is to move; 0: none was needed */
	struct rs_work gone;		/* the mark that is left behind */
	bool leaves_mark;
};

static int add_move(struct rs_job *job, struct moves *m, const struct rs_work *w, const char *new_path,
		    struct sc_err *err)
{
	struct rs_work to = *w;
	int rc = name_row(job, new_path, &to, err);

	if (rc < 0)
		return rc;
	return sc_vec_push(&m->rows, (typeof(*m->rows.at)){w->path, to}) < 0 ? sc_nomem(err) : 0;
}

/* Is it the copy of a committed file that moves? */
static bool moves_copy(const struct moves *m)
{
	return m->copy && m->rows.nr && m->rows.at[0].to.blob == m->copy;
}

static int save_moves(struct rs_service *s, struct rs_job *job, struct moves *m, struct sc_err *err)
{
	int rc = moves_copy(m) ? meta_blob_adopt(s->catalog, m->copy, err) : 0;

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
	struct sc_err ignored;
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
		const struct rs_work *there = rs_work_find(job, m->new_rank, m->rows.at[i].to.path);

		m->rows.at[i].replaced = there && there->kind == META_WORK_FILE ? there->blob : 0;
		rs_work_drop(job, m->rank, m->rows.at[i].from);
		rs_work_put(job, m->new_rank, m->rows.at[i].to);
	}
	if (rc == 0 && m->leaves_mark)
		rs_work_put(job, m->rank, m->gone);
	rs_work_unreserve(job, nr);
	(void)pthread_mutex_unlock(&job->state);
	for (size_t i = 0; rc == 0 && i < m->rows.nr; i++)
		if (m->rows.at[i].replaced)
			(void)rs_remove_bytes(s, m->rows.at[i].replaced, &ignored);
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

/* The bytes of a version stay where they are: what moves is m->copy. */
static int rename_file(struct rs_service *s, struct rs_job *job, struct moves *m, const struct rs_look *from,
		       const char *path, const char *new_path, struct sc_err *err)
{
	struct rs_work w = {.kind = META_WORK_FILE, .blob = m->copy, .mode = from->owner.mode, .uid = from->owner.uid,
			    .gid = from->owner.gid, .mtime_ns = sc_now_wall_ns()};
	int committed = is_committed(s, job, m->rank, path, err), rc = committed;

	if (rc >= 0 && from->kind == RS_WORK)
		rc = row_at(job, m->rank, path, &w) ? 0 : sc_fail(err, SC_E_NOT_FOUND, "'%s' does not exist", path);
	else if (rc >= 0)
		rc = name_row(job, path, &w, err);
	if (rc == 0)
		rc = add_move(job, m, &w, new_path, err);
	m->leaves_mark = committed > 0;
	m->gone = (struct rs_work){
	    .kind = META_WORK_GONE, .path = w.path, .path_id = w.path_id, .mtime_ns = sc_now_wall_ns()};
	return rc < 0 ? rc : move(s, job, m, err);
}

#define NEEDS_COPY 1

/* Under job.names.  Returns 0, an error, or NEEDS_COPY: to be called again with m->copy. */
static int rename_named(struct rs_service *s, struct rs_job *job, struct moves *m, const char *path,
			const char *new_path, bool no_replace, struct sc_err *err)
{
	struct rs_look from, to;
	int rc = rs_look(s, job, NULL, m->rank, path, &from, err);

	if (rc == 0)
		rc = rs_look(s, job, NULL, m->new_rank, new_path, &to, err);
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
	if (m->rank == m->new_rank && strcmp(path, new_path) == 0)
		return 0;
	if (from.kind == RS_DIR) {
		rc = to.kind == RS_DIR ? check_rmdir(s, job, m->new_rank, new_path, &to, err) : 0;
		return rc < 0 ? rc : rename_dir(s, job, m, path, new_path, err);
	}
	if (rs_look_is_committed(&from) && !m->copy)
		return NEEDS_COPY;
	return rename_file(s, job, m, &from, path, new_path, err);
}

int rs_work_rename(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		   uint32_t new_rank, const char *new_path, bool no_replace, struct sc_err *err)
{
	struct moves m = {.rank = rank, .new_rank = new_rank};
	struct sc_err ignored;
	int rc, made = 0;

	do {
		(void)pthread_mutex_lock(&job->names);
		rc = rename_named(s, job, &m, path, new_path, no_replace, err);
		(void)pthread_mutex_unlock(&job->names);
		if (rc == NEEDS_COPY)
			made = rs_file_copy(s, job, rank, path, false, &m.copy, err);
	} while (rc == NEEDS_COPY && made == 0);
	rc = made < 0 ? made : rc;
	/* the rename was refused, or somebody else has made a copy meanwhile */
	if (m.copy && (rc < 0 || !moves_copy(&m)))
		(void)meta_store_remove(&s->store, m.copy, &ignored);
	sc_vec_done(&m.rows);
	rs_job_tell(job);
	return rc;
}

int rs_work_chattr_dir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		       const struct rs_owner *owner, int64_t mtime_ns, struct sc_err *err)
{
	struct rs_work w;
	uint64_t blob;
	int rc = 0;

	(void)pthread_mutex_lock(&job->names);
	if (!row_at(job, rank, path, &w)) {
		rc = add_work(s, job, rank, path, META_WORK_DIR, owner, &blob, err);
		(void)pthread_mutex_unlock(&job->names);
		return rc;
	}
	w.mode = owner->mode;
	w.uid = owner->uid;
	w.gid = owner->gid;
	w.mtime_ns = mtime_ns;
	rc = save_work(job, rank, &w, err);
	(void)pthread_mutex_lock(&job->state);
	if (rc == 0)
		rs_work_put(job, rank, w);
	(void)pthread_mutex_unlock(&job->state);
	(void)pthread_mutex_unlock(&job->names);
	return rc;
}
