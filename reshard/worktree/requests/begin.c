/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a working tree and its lower layer, and limits who may read a committed file at another topology. */
#include "reshard/worktree/requests/tree_i.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "meta/catalog/trees.h"

struct loading {
	struct meta_changes changes;
	struct sc_arena texts;
	struct sc_err *err;
};

static int copy_bytes(struct sc_arena *texts, struct meta_bytes *b)
{
	if (b->nr)
		b->at = sc_arena_copy(texts, b->at, b->nr);
	return b->at || !b->nr ? 0 : -1;
}

static int on_row(void *arg, const struct meta_change *row)
{
	struct loading *l = arg;
	struct meta_change x = *row;
	int rc = 0;

	if (x.kind == META_PUT_INODE)
		rc = copy_bytes(&l->texts, &x.inode.target);
	else if (x.kind == META_PUT_ENTRY)
		rc = copy_bytes(&l->texts, &x.entry.name);
	else if (x.kind == META_PUT_XATTR)
		rc = copy_bytes(&l->texts, &x.xattr.name) < 0 || copy_bytes(&l->texts, &x.xattr.value) < 0 ? -1 : 0;
	return rc < 0 || sc_vec_push(&l->changes, x) < 0 ? sc_nomem(l->err) : 0;
}

/* Makes the missing files of rows, empty: the power was cut between the row of a new file and its bytes, and the file
 * is as if the power had been cut after it was made. */
static int make_missing(struct rs_job *job, const struct meta_changes *rows, struct sc_err *err)
{
	struct rs_service *s = job->service;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < rows->nr; i++) {
		const struct meta_inode_row *row = &rows->at[i].inode;
		const struct rs_owner owner = {row->uid, row->gid, row->mode & 07777};
		sc_cleanup(sc_closep) int fd = -1;

		if (rows->at[i].kind != META_PUT_INODE || row->data != META_OWN_DATA || !row->nlink)
			continue;
		rc = meta_store_open_work(&s->store, row->blob, O_RDONLY, &fd, err);
		if (rc == SC_E_DAMAGED) { /* one file less is no reason to give none */
			sc_log(SC_LOG_ERROR, "job '%s', a file that is not committed: %s; it can't be read, continuing",
			       job->name, err->msg);
			rc = 0;
			continue;
		}
		if (rc == 0 || err->errnum != ENOENT)
			continue;
		rc = meta_store_create(&s->store, row->blob, &fd, err);
		if (rc == 0)
			rc = rs_work_own(fd, &owner, "a file that a power cut has left without bytes", err);
	}
	return rc;
}

static int load_rows(struct rs_job *job, struct sc_err *err)
{
	struct loading l = {.err = err};
	int rc = meta_upper_each(job->service->catalog, job->id, on_row, &l, err);

	if (rc == 0)
		rc = meta_again_each(job->service->catalog, on_row, &l, err);
	if (rc == 0)
		rc = rs_overlay_load(job->overlay, &l.changes, err);
	if (rc == 0)
		rc = make_missing(job, &l.changes, err);
	if (rc == 0)
		rc = rs_own_of_rows(&l.changes, &job->by_blob, err);
	if (rc == 0)
		rs_count_nameless(job);
	meta_changes_done(&l.changes);
	sc_arena_done(&l.texts);
	return rc;
}

int rs_tree_lower(struct rs_job *job, struct rs_view *view, struct rs_lower *ret, struct sc_err *err)
{
	struct rs_below *b;
	int rc = 0;

	if (!view) {
		*ret = rs_committed_lower(&job->nothing);
		return 0;
	}
	rc = rs_view_below(view, &b, err);
	if (rc == 0)
		*ret = rs_below_lower(b);
	return rc;
}

/* A rank's folder has the mode and owner that the job gives it now, as one that a topology brings to a version. */
static void own_rank(void *arg, struct meta_inode_row *row)
{
	struct rs_job *job = arg;
	struct rs_owner owner;

	rs_owner_of_folder(job, &owner);
	row->mode = S_IFDIR | (owner.mode & 07777);
	row->uid = owner.uid;
	row->gid = owner.gid;
}

int rs_first_ranks(struct rs_service *s, uint64_t layout, const char *topology, uint32_t *ret, struct sc_err *err)
{
	const struct rs_kept_layout *kept;
	struct meta_topology topo = {0};
	int rc = layout && topology ? rs_layout_by_id(s, layout, &kept, err) : 1;

	*ret = 0;
	if (rc == 0)
		rc = meta_topology_parse(kept->layout, topology, &topo, err);
	if (rc == 0)
		*ret = topo.ranks;
	meta_topology_done(&topo);
	return rc < 0 ? rc : 0;
}

static int begin_with_nothing(struct rs_job *job, struct sc_err *err)
{
	struct rs_owner owner;
	uint32_t ranks = 0;
	int rc = job->head ? 0 : rs_first_ranks(job->service, job->first_layout, job->first_topology, &ranks, err);

	rs_owner_of_folder(job, &owner);
	job->nothing = (struct rs_committed){
	    .catalog = job->service->catalog, .job = job->id, .root = job->root, .ranks = ranks,
	    .folder = {.mode = S_IFDIR | (owner.mode & 0777), .uid = owner.uid, .gid = owner.gid, .job = job->id,
		       .atime_ns = job->mtime_ns, .mtime_ns = job->mtime_ns, .ctime_ns = job->mtime_ns},
	    .own_rank = own_rank, .arg = job, .lets_ranks_go = true};
	return rc;
}

struct blocks {
	struct rs_job *job;
	struct sc_err *err;
};

static int on_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	const struct blocks *b = arg;

	return job == b->job->id ? rs_numbers_note(b->job->service, first, nr, job, b->err) : 0;
}

int rs_tree_begin(struct rs_job *job, enum rs_tree_from from, struct sc_err *err)
{
	const struct rs_overlay_log log = {rs_number_take, rs_log_write, job};
	struct blocks blocks = {job, err};
	struct rs_lower lower;
	int rc = begin_with_nothing(job, err);

	if (rc == 0)
		rc = rs_tree_lower(job, job->head, &lower, err);
	if (rc == 0)
		rc = rs_overlay_open(job->id, job->root, &lower, &log, &job->overlay, err);
	if (rc == 0 && from == RS_TREE_LOADED)
		rc = load_rows(job, err);
	if (rc == 0 && from == RS_TREE_CLONED)
		rc = meta_numbers_each(job->service->catalog, on_block, &blocks, err);
	if (rc == 0 && from == RS_TREE_NEW)
		rc = rs_numbers_note(job->service, job->root, (uint64_t)SC_RANKS_MAX + 1, job->id, err);
	return rc;
}

void rs_tree_end(struct rs_job *job)
{
	sc_map_release(&job->by_blob);
	sc_map_release(&job->sealed[0]);
	sc_map_release(&job->sealed[1]);
	sc_vec_done(&job->logs);
	job->overlay = rs_overlay_close(job->overlay);
}

/* --- who may read what nobody made --- */

int rs_owner_limit_named(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner,
			 struct sc_err *err)
{
	uint64_t ino = rank == RS_SHARED ? job->root : job->root + 1 + rank;
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	bool is_jobs = rank == RS_SHARED;
	int rc = 1;

	while (rc > 0 && ino) {
		size_t n = strcspn(path, "/");

		rc = rs_overlay_inode(job->overlay, ino, &texts, &row, err);
		if (rc > 0 && !is_jobs)
			rs_owner_limit_by(owner, &row);
		is_jobs = false;
		if (rc <= 0 || !path[n])
			break;
		rc = rs_overlay_child(job->overlay, ino, (struct meta_bytes){path, n}, &ino, err) < 0 ? err->code : 1;
		path += n + 1;
	}
	sc_arena_done(&texts);
	return rc < 0 ? rc : 0;
}

int rs_owner_limit(struct rs_job *job, uint32_t rank, const char *path, struct rs_owner *owner, struct sc_err *err)
{
	int rc;

	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_owner_limit_named(job, rank, path, owner, err);
	(void)pthread_rwlock_unlock(&job->names);
	return rc;
}

int rs_work_own(int fd, const struct rs_owner *owner, const char *path, struct sc_err *err)
{
	/* without the privilege files stay the daemon's own */
	if (sc_sys.fchown(fd, owner->uid, owner->gid) < 0 && errno != EPERM)
		return sc_fail_sys(err, errno, "'%s': cannot set the owner", path);
	if (sc_sys.fchmod(fd, owner->mode & 07777) < 0)
		return sc_fail_sys(err, errno, "'%s': cannot set the mode", path);
	return 0;
}

int rs_tree_flush(struct rs_service *s, struct sc_err *err)
{
	int rc = rs_log_drain(s, err);

	return rc < 0 ? rc : meta_catalog_flush(s->catalog, err);
}
