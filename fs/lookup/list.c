/* SPDX-License-Identifier: Apache-2.0 */
/* Lists folders that are none of a working tree: of versions, of the mount, of control files. */
#include "fs/lookup/lookup.h"

#include <inttypes.h>
#include <stdio.h>

#include "fs/node/node.h"
#include "fs/open/open.h"

struct lister {
	struct fs_names *names;
	struct sc_err *err;
};

static int add_name(struct lister *l, const char *name, mode_t type, uint64_t ino)
{
	struct fs_name n = {sc_strdup(name), type, ino};

	if (!n.name)
		return sc_nomem(l->err);
	if (sc_vec_push(l->names, n) == 0)
		return 0;
	sc_sys.release(n.name);
	return sc_nomem(l->err);
}

static int on_name(void *arg, const char *name, mode_t type)
{
	return add_name(arg, name, type, 0);
}

/* Adds the folder of a version, without its inode number: that would need the version to be loaded. */
static int on_nr(void *arg, uint64_t nr)
{
	char name[24];

	(void)snprintf(name, sizeof(name), "%" PRIu64, nr);
	return add_name(arg, name, S_IFDIR, (uint64_t)FS_VROOT << 60 | ((UINT64_C(1) << 59) + nr));
}

static int list_controls(struct lister *l, const struct fs_node *n)
{
	struct fs_node file = *n;
	const struct rs_control *row;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (row = rs_control_at(i)); i++)
		if ((n->kind == FS_TOP) == !!(row->flags & RS_CTL_MOUNT)) {
			file.what = FS_CTL_FILE + row->nr;
			rc = add_name(l, row->name, S_IFREG, fs_node_id(file));
		}
	return rc;
}

static int list_view(struct fs *fs, const struct fs_node *n, struct lister *l)
{
	struct rs_view *view = NULL;
	const char *path;
	int rc = fs_view(fs, n, &view, &path, l->err);

	if (rc < 0)
		return rc;
	rc = rs_list(fs->service, rs_view_job(view), view, fs_rank(n, view), path, on_name, l, l->err);
	rs_view_unref(fs->service, view);
	return rc;
}

/* Lists the files of the head's model; a job without a version has none. */
static int list_model(struct fs *fs, struct rs_job *job, struct lister *l)
{
	struct rs_view *view = NULL;
	int rc = rs_view_as(fs->service, job, NULL, &rs_form_hf, &view, l->err);

	if (rc == 0)
		rc = rs_list(fs->service, job, view, 0, "", on_name, l, l->err);
	rs_view_unref(fs->service, view);
	return rc == SC_E_NOT_FOUND ? 0 : rc;
}

/* Lists a folder of a version. */
static int list_version(struct fs *fs, const struct fs_node *n, struct lister *l)
{
	struct rs_view *of = NULL, *view = NULL;
	const char *path;
	int rc = n->what == FS_HF_DIR ? fs_view(fs, n, &of, &path, l->err) : 0;

	if (rc < 0 || !of)
		return rc;
	rc = rs_view_in(fs->service, of, NULL, &rs_form_hf, &view, l->err);
	if (rc == 0)
		rc = rs_list(fs->service, rs_view_job(view), view, 0, "", on_name, l, l->err);
	rs_view_unref(fs->service, view);
	rs_view_unref(fs->service, of);
	return rc;
}

static int list_root(struct fs *fs, struct lister *l)
{
	char name[SC_NAME_BYTES_MAX + 1];
	struct rs_job *job;
	int rc = 0;

	for (size_t i = 0; rc == 0 && (job = rs_job_at(fs->service, i)); i++)
		if (!rs_job_is_removed(job))
			rc = add_name(l, rs_job_name(job, name, sizeof(name)), S_IFDIR, rs_job_root(job));
	return rc;
}

int fs_list(struct fs *fs, uint64_t ino, struct fs_names *ret, struct sc_err *err)
{
	struct fs_node n = fs_node_of(ino);
	struct lister l = {ret, err};
	struct rs_job *job;

	fs_names_done(ret);
	switch (n.kind) {
	case FS_ROOT:
		return list_root(fs, &l);
	case FS_TOP:
		return list_controls(&l, &n);
	case FS_VROOT:
	case FS_VDIR:
	case FS_VSDIR:
		return list_view(fs, &n, &l);
	case FS_VSPECIAL:
		return list_version(fs, &n, &l);
	case FS_SPECIAL:
		break;
	default:
		return sc_fail(err, SC_E_NOT_DIR, "not a folder");
	}
	job = fs_job(fs, &n);
	if (!job)
		return sc_fail(err, SC_E_STALE, "the job is gone");
	if (n.what == FS_CTL_DIR)
		return list_controls(&l, &n);
	if (n.what == FS_V_DIR)
		return rs_versions_each(fs->service, job, on_nr, &l, err);
	if (n.what == FS_HF_DIR)
		return list_model(fs, job, &l);
	return 0; /* .as: any topology can be looked up, none is listed */
}
