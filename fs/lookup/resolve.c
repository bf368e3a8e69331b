/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks up names, and so makes the shape of the tree:
 *
 *     /                    jobs
 *     /.ctl/               metrics, health, version
 *     /JOB/                ranks, files and folders of the job, and (not listed) .ctl .v .as .full .pt .dcp .hf .vllm
 *                          .gpu
 *     /JOB/RANK/...        the working tree on top of the head
 *     /JOB/.v/N/...        a version, with (not listed) .as .pt .dcp .hf .vllm .gpu of its own; so has .as/TOPOLOGY
 *     /JOB/.as/TOPOLOGY/...
 *     /JOB/.pt/TOPOLOGY/RANK/...   its files of tensors, as torch.save() writes them
 *     /JOB/.hf/            the model, as Hugging Face's libraries read it
 *     /JOB/.dcp/TOPOLOGY/  one folder, as torch.distributed's
 *     /JOB/.vllm/TOPOLOGY/ the model, as vLLM's ranks load it
 *     /JOB/.gpu/RANK/...   files in the memory of a GPU, while they are open
 */
#include "fs/lookup/lookup.h"

#include <stdio.h>
#include <string.h>

#include "fs/cache/cache.h"
#include "fs/node/node.h"
#include "meta/base/text.h"

static int lookup_root(struct fs *fs, const char *name, struct fs_found *f, struct sc_err *err)
{
	struct rs_job *job;

	if (strcmp(name, ".ctl") == 0)
		return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_TOP, .what = FS_CTL_DIR}), f, err);
	job = rs_job_by_name(fs->service, name);
	if (!job)
		return fs_no_entry(err);
	return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_JOB, .job = rs_job_id(job)}), f, err);
}

static int lookup_top(struct fs *fs, const struct fs_node *n, const char *name, struct fs_found *f, struct sc_err *err)
{
	const struct rs_control *row = n->what == FS_CTL_DIR ? rs_control_find(true, name) : NULL;

	if (!row)
		return fs_no_entry(err);
	return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_TOP, .what = FS_CTL_FILE + row->nr}), f, err);
}

/* Gives the form of the views in a folder of presentations. */
static const struct rs_form *form_of(uint32_t what)
{
	return what == FS_DCP_DIR ? &rs_form_dcp
	       : what == FS_PT_DIR ? &rs_form_pt
	       : what == FS_HF_DIR ? &rs_form_hf
	       : what == FS_VLLM_DIR ? &rs_form_vllm
	       : what == FS_GPU_DIR ? &rs_form_gpu
				   : &rs_form_ranks;
}

/* Looks up a name in the folder of a model. */
static int lookup_model(struct fs *fs, struct rs_view *model, const char *name, struct fs_found *f, struct sc_err *err)
{
	struct rs_view *view = NULL;
	int rc = rs_view_of_path(fs->service, model, name, &view, err);

	if (rc == 0)
		rc = fs_stat_path(fs, view, 0, name, f, err);
	rs_view_unref(fs->service, view);
	return rc;
}

/* Tells whether a folder of presentations has a folder for each topology; those of one topology have none. */
static bool has_topologies(uint32_t what)
{
	return what != FS_HF_DIR && what != FS_GPU_DIR;
}

/* Gives node and attributes for a name in the folder of a view, or for the view as a whole. */
static int stat_view(struct fs *fs, struct rs_view *view, uint32_t what, const char *name, struct fs_found *f,
		     struct sc_err *err)
{
	uint32_t rank;

	if (what == FS_HF_DIR)
		return lookup_model(fs, view, name, f, err);
	if (what == FS_GPU_DIR)
		return fs_rank_number(name, &rank) ? fs_stat_path(fs, view, rank, "", f, err) : fs_no_entry(err);
	if (rs_view_is_folder(view))
		return fs_stat_path(fs, view, 0, "", f, err);
	return fs_stat(fs, fs_node_id((struct fs_node){.kind = FS_VROOT, .place = rs_view_place(view, 0)}), f, err);
}

static int lookup_special(struct fs *fs, const struct fs_node *n, struct rs_job *job,
			  const char *name, struct fs_found *f, struct sc_err *err)
{
	struct fs_node found = {.kind = FS_SPECIAL, .job = n->job};
	const struct rs_control *row;
	struct rs_view *view = NULL;
	int rc;

	if (n->what == FS_CTL_DIR) {
		row = rs_control_find(false, name);
		if (!row)
			return fs_no_entry(err);
		found.what = FS_CTL_FILE + row->nr;
		return fs_stat(fs, fs_node_id(found), f, err);
	}
	if (n->what == FS_V_DIR)
		rc = rs_view_archived(fs->service, job, name, &view, err);
	else
		rc = rs_view_as(fs->service, job, has_topologies(n->what) ? name : NULL, form_of(n->what), &view, err);
	if (rc == 0)
		rc = stat_view(fs, view, n->what, name, f, err);
	rs_view_unref(fs->service, view);
	return rc == SC_E_NOT_FOUND ? fs_no_entry(err) : rc;
}

/* Looks up a name in a folder of presentations of a version. */
static int lookup_version(struct fs *fs, const struct fs_node *n, const char *name, struct fs_found *f,
			  struct sc_err *err)
{
	struct rs_view *of = NULL, *view = NULL;
	const char *path;
	int rc = fs_view(fs, n, &of, &path, err);

	if (rc == 0)
		rc = rs_view_in(fs->service, of, has_topologies(n->what) ? name : NULL, form_of(n->what), &view, err);
	if (rc == 0)
		rc = stat_view(fs, view, n->what, name, f, err);
	rs_view_unref(fs->service, view);
	rs_view_unref(fs->service, of);
	return rc == SC_E_NOT_FOUND ? fs_no_entry(err) : rc;
}

static int join(const char *folder, const char *name, char *ret, struct sc_err *err)
{
	if (strlen(name) > SC_NAME_BYTES_MAX)
		return sc_fail(err, SC_E_NAME, "a name has at most %d bytes", SC_NAME_BYTES_MAX);
	if (strlen(folder) + 1 + strlen(name) > SC_PATH_BYTES_MAX)
		return fs_no_entry(err); /* no version has such a path */
	(void)snprintf(ret, SC_PATH_BYTES_MAX + 1, "%s%s%s", folder, *folder ? "/" : "", name);
	return 0;
}

static int lookup_view(struct fs *fs, const struct fs_node *n, const char *name, struct fs_found *f,
		       struct sc_err *err)
{
	char path[SC_PATH_BYTES_MAX + 1];
	struct rs_view *view = NULL, *of_path = NULL;
	const char *folder, *special;
	uint32_t rank;
	int rc = fs_view(fs, n, &view, &folder, err);

	if (rc < 0)
		return rc;
	if (n->kind == FS_VROOT && rs_view_has_others(view))
		for (uint32_t i = FS_PRESENTED_FIRST, what; (special = fs_special_name(i, &what)); i++)
			if (what != FS_FULL_LINK && strcmp(name, special) == 0) {
				rs_view_unref(fs->service, view);
				return fs_stat(fs, fs_node_id((struct fs_node){FS_VSPECIAL, .place = n->place,
									       .what = what}), f, err);
			}
	rank = fs_rank(n, view);
	if (n->kind == FS_VROOT && fs_rank_number(name, &rank))
		path[0] = 0;
	else
		rc = join(folder, name, path, err);
	if (rc == 0 && rs_view_is_folder(view)) {
		rc = rs_view_of_path(fs->service, view, path, &of_path, err);
		rs_view_unref(fs->service, view);
		if (rc < 0)
			return err->code == SC_E_NOT_FOUND ? fs_no_entry(err) : rc;
		view = of_path;
	}
	if (rc == 0)
		rc = fs_stat_path(fs, view, rank, path, f, err);
	rs_view_unref(fs->service, view);
	return rc;
}

/* Looks up a name in a working tree. */
static int lookup_number(struct fs *fs, const struct fs_node *n, const char *name, struct fs_found *f,
			 struct sc_err *err)
{
	const char *special;
	struct rs_look look;
	struct rs_job *job;
	uint64_t number;
	int rc;

	for (uint32_t i = 0, what; n->kind == FS_JOB && (special = fs_special_name(i, &what)); i++)
		if (strcmp(name, special) == 0)
			return fs_stat(fs, fs_node_id((struct fs_node){FS_SPECIAL, .job = n->job, .what = what}), f,
				       err);
	rc = fs_number(fs, n, &job, &number, err);
	if (rc == 0)
		rc = rs_tree_child(fs->service, job, number, (struct meta_bytes){name, strlen(name)}, &look, err);
	if (rc < 0)
		return rc;
	return look.kind == RS_NONE ? fs_no_entry(err) : fs_stat_look(fs, job, &look, f, err);
}

int fs_lookup(struct fs *fs, uint64_t parent, const char *name, struct fs_found *f, struct sc_err *err)
{
	struct fs_node n = fs_node_of(parent);
	struct rs_job *job;

	*f = (struct fs_found){.timeout = FS_FOREVER};
	switch (n.kind) {
	case FS_ROOT:
		return lookup_root(fs, name, f, err);
	case FS_TOP:
		return lookup_top(fs, &n, name, f, err);
	case FS_VROOT:
	case FS_VDIR:
	case FS_VSDIR:
		return lookup_view(fs, &n, name, f, err);
	case FS_JOB:
	case FS_INODE:
	case FS_IMPLIED:
		return lookup_number(fs, &n, name, f, err);
	case FS_VSPECIAL:
		return lookup_version(fs, &n, name, f, err);
	case FS_SPECIAL:
		job = fs_job(fs, &n);
		if (!job)
			return sc_fail(err, SC_E_STALE, "the job is gone");
		return lookup_special(fs, &n, job, name, f, err);
	default:
		return sc_fail(err, SC_E_NOT_DIR, "not a folder");
	}
}

void fs_entry(struct fs *fs, const struct fs_found *found, struct fuse_entry_param *ret)
{
	*ret = (struct fuse_entry_param){.ino = fs_node_id(found->node), .attr = found->st,
					 .attr_timeout = fs_keep(fs, found->timeout),
					 .entry_timeout = fs_keep(fs, FS_FOREVER)};
	if (found->node.kind == FS_WORK)
		fs_number_keep(fs, ret->ino, found->st.st_ino);
}
