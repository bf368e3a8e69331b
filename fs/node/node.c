/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: of which job and object they are, and which node an object has now.  Of written files the next daemon has to
 * know it, too (hold.h): the kernel knows such a node by its bytes, and a commit takes these.
 */
#include "fs/node/node.h"

#include <string.h>

#include "fs/handover/hold.h"
#include "meta/base/text.h"

/* the names in a job's folder that are Scalai's */
static const char *const ours[] = {".ctl", ".v", ".as", ".full", ".pt", ".dcp", ".hf", ".vllm", ".gpu"};

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
	bool of_job = n->kind == FS_SHARED || n->kind == FS_VSDIR || n->kind == FS_VSLINK ||
		      fs_node_is_version(n);

	return of_job ? RS_SHARED : rs_view_rank(view, n->place);
}

struct rs_job *fs_job(struct fs *fs, const struct fs_node *n)
{
	struct rs_view *view = NULL;
	struct sc_err ignored;
	struct rs_job *job = NULL;

	if (fs_node_has_place(n)) {
		if (rs_view_at(fs->service, n->place, &view, &ignored) == 0)
			job = rs_view_job(view);
		rs_view_unref(fs->service, view);
	} else if (n->kind == FS_INODE || n->kind == FS_IMPLIED) {
		job = rs_job_of_number(fs->service, n->number);
	} else if (n->kind != FS_ROOT && n->kind != FS_TOP) {
		job = rs_job_by_id(fs->service, n->job);
	}
	return job && !rs_job_is_removed(job) ? job : NULL;
}

const struct rs_control *fs_control_of(const struct fs_node *n)
{
	return !fs_is_control(n->what) ? NULL : rs_control_by_nr(n->kind == FS_TOP, n->what - FS_CTL_FILE);
}

struct fs_node fs_node_of_number(struct rs_job *job, uint64_t number)
{
	if (number == rs_job_root(job))
		return (struct fs_node){.kind = FS_JOB, .job = rs_job_id(job)};
	return (struct fs_node){.kind = number & META_VIRTUAL ? FS_IMPLIED : FS_INODE, .number = number};
}

struct fs_node fs_node_of_look(struct rs_job *job, const struct rs_look *look)
{
	struct fs_node n = {.place = look->place, .path = look->path_id};

	switch (look->kind) {
	case RS_WORK:
		return (struct fs_node){.kind = FS_WORK, .job = rs_job_id(job), .blob = look->blob};
	case RS_VIEW:
	case RS_DATA:
		n.kind = FS_VIEW;
		return n;
	case RS_BLOB:
		n.kind = look->rank == RS_SHARED ? FS_SHARED : FS_BLOB;
		return n;
	default:
		return fs_node_of_number(job, look->ino);
	}
}

int fs_view(struct fs *fs, const struct fs_node *n, struct rs_view **ret, const char **ret_path, struct sc_err *err)
{
	int rc = rs_view_at(fs->service, n->place, ret, err);

	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_STALE, "the version is gone");
	*ret_path = "";
	if (rc == 0 && !fs_node_is_version(n))
		rc = rs_path_text(fs->service, n->path, ret_path, err);
	if (rc < 0) {
		rs_view_unref(fs->service, *ret);
		*ret = NULL;
	}
	return rc;
}

int fs_fail_sealed(struct sc_err *err)
{
	return sc_fail(err, SC_E_SEALED, "what is shown in .v, .as, .full and the like is read-only; write into the "
		       "folders of ranks, and commit");
}

static int number_of_file(struct fs *fs, const struct fs_node *n, struct rs_job **ret_job, uint64_t *ret,
			  struct sc_err *err)
{
	struct rs_view *view = NULL;
	const char *path;
	int rc = fs_view(fs, n, &view, &path, err);

	if (rc < 0)
		return rc;
	*ret_job = rs_view_job(view);
	if (!fs_node_is_file(n) || !rs_view_is_own(view))
		rc = fs_fail_sealed(err);
	else if (rs_job_is_removed(*ret_job))
		rc = sc_fail(err, SC_E_STALE, "the job is gone");
	else
		rc = rs_tree_of_file(fs->service, view, fs_rank(n, view), path, ret, err);
	rs_view_unref(fs->service, view);
	return rc;
}

void fs_number_keep(struct fs *fs, uint64_t ino, uint64_t number)
{
	struct fs_number *kept = &fs->kept->numbers[ino % FS_NUMBERS_MAX];

	if (!fs->kept->init_bytes || __atomic_load_n(&kept->node, __ATOMIC_ACQUIRE) == ino)
		return;
	(void)pthread_mutex_lock(&fs->lock);
	__atomic_store_n(&kept->node, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&kept->number, number, __ATOMIC_RELEASE);
	__atomic_store_n(&kept->node, ino, __ATOMIC_RELEASE);
	(void)pthread_mutex_unlock(&fs->lock);
}

int fs_number_of_bytes(struct fs *fs, struct rs_job *job, const struct fs_node *n, uint64_t *ret, struct sc_err *err)
{
	const uint64_t ino = fs_node_id(*n);
	struct fs_number kept;
	int rc = rs_tree_of_blob(fs->service, job, n->blob, ret, err);

	if (rc < 0 || *ret)
		return rc;
	(void)pthread_mutex_lock(&fs->lock);
	kept = fs->kept->numbers[ino % FS_NUMBERS_MAX];
	(void)pthread_mutex_unlock(&fs->lock);
	if (kept.node != ino)
		return 0;
	rs_tree_was_of(job, n->blob, kept.number);
	return rs_tree_of_blob(fs->service, job, n->blob, ret, err);
}

int fs_number(struct fs *fs, const struct fs_node *n, struct rs_job **ret_job, uint64_t *ret, struct sc_err *err)
{
	int rc = 0;

	*ret = 0;
	if (n->kind == FS_ROOT || n->kind == FS_TOP || n->kind == FS_SPECIAL)
		return sc_fail(err, SC_E_PERMISSION, "control files and the mount's own folder are Scalai's");
	if (fs_node_has_place(n)) {
		rc = number_of_file(fs, n, ret_job, ret, err);
	} else {
		*ret_job = fs_job(fs, n);
		if (!*ret_job)
			return sc_fail(err, SC_E_STALE, "the job is gone");
		if (n->kind == FS_JOB)
			*ret = rs_job_root(*ret_job);
		else if (n->kind == FS_WORK)
			rc = fs_number_of_bytes(fs, *ret_job, n, ret, err);
		else
			*ret = n->number;
	}
	return rc < 0 || *ret ? rc : sc_fail(err, SC_E_STALE, "the file is gone");
}

/* Refuses to make a control file: most probably its name was misspelt. */
static int refuse_control(struct fs *fs, const struct fs_node *n, const char *name, struct fs_folder *ret,
			  struct sc_err *err)
{
	struct sc_buf names = {0};
	int rc;

	ret->job = n->kind == FS_SPECIAL ? fs_job(fs, n) : NULL;
	for (size_t i = 0; rs_control_at(i); i++)
		if (!(rs_control_at(i)->flags & RS_CTL_MOUNT) == (n->kind == FS_SPECIAL))
			sc_buf_printf(&names, " %s", rs_control_at(i)->name);
	rc = names.failed ? sc_nomem(err)
			  : sc_fail(err, SC_E_NOT_FOUND, "there is no control file '%s'; there are%s", name,
				    names.text ? names.text : " none");
	sc_buf_done(&names);
	return rc;
}

int fs_folder(struct fs *fs, uint64_t parent, const char *name, struct fs_folder *ret, struct sc_err *err)
{
	struct fs_node n = fs_node_of(parent);
	int rc;

	if ((n.kind == FS_TOP || n.kind == FS_SPECIAL) && n.what == FS_CTL_DIR &&
	    !rs_control_find(n.kind == FS_TOP, name))
		return refuse_control(fs, &n, name, ret, err);
	if (n.kind != FS_JOB && n.kind != FS_INODE && n.kind != FS_IMPLIED)
		return sc_fail(err, SC_E_SEALED, "'%s': .v, .as, .full and .ctl are read-only, and the mount's own "
			       "folder holds jobs only; write into JOB/ or JOB/RANK/", name);
	rc = fs_number(fs, &n, &ret->job, &ret->number, err);
	if (rc < 0)
		return rc;
	ret->name = (struct meta_bytes){name, strlen(name)};
	for (size_t i = 0; n.kind == FS_JOB && i < sizeof(ours) / sizeof(*ours); i++)
		if (strcmp(name, ours[i]) == 0)
			return sc_fail(err, SC_E_PERMISSION, "'%s' is a name that Scalai uses itself in a job's "
				       "folder; take another one", name);
	return 0;
}

/* Gives the node of the folder above a path of a version. */
static int parent_in_view(struct fs *fs, const struct fs_node *n, struct fs_node *ret, struct sc_err *err)
{
	struct rs_view *view = NULL;
	const char *path, *slash;
	struct sc_buf above = {0};
	int rc = fs_view(fs, n, &view, &path, err);

	if (rc < 0)
		return rc;
	slash = strrchr(path, '/');
	*ret = (struct fs_node){.kind = FS_VROOT, .place = rs_view_place(view, 0)};
	if (n->kind == FS_VROOT) {
		*ret = (struct fs_node){.kind = FS_SPECIAL, .job = rs_job_id(rs_view_job(view)), .what = FS_V_DIR};
	} else if (*path && (slash || n->kind != FS_VSDIR)) {
		*ret = (struct fs_node){.kind = n->kind, .place = n->place};
		sc_buf_add(&above, path, slash ? (size_t)(slash - path) : 0);
		rc = above.failed ? sc_nomem(err)
				  : rs_path_id(rs_view_job(view), above.text ? above.text : "", &ret->path, err);
	}
	sc_buf_done(&above);
	rs_view_unref(fs->service, view);
	return rc;
}

int fs_parent(struct fs *fs, const struct fs_node *n, struct fs_node *ret, struct sc_err *err)
{
	struct rs_job *job;
	uint64_t number;
	int rc;

	*ret = (struct fs_node){.kind = FS_ROOT};
	switch (n->kind) {
	case FS_ROOT:
	case FS_TOP:
	case FS_JOB:
		return 0;
	case FS_SPECIAL:
		*ret = (struct fs_node){.kind = FS_JOB, .job = n->job};
		return 0;
	case FS_VROOT:
	case FS_VDIR:
	case FS_VSDIR:
	case FS_VSPECIAL:
		return parent_in_view(fs, n, ret, err);
	case FS_INODE:
	case FS_IMPLIED:
		break;
	default:
		return sc_fail(err, SC_E_NOT_DIR, "not a folder");
	}
	rc = fs_number(fs, n, &job, &number, err);
	if (rc == 0)
		rc = rs_tree_parent(fs->service, job, number, &number, err);
	if (rc == 0)
		*ret = fs_node_of_number(job, number);
	return rc;
}
