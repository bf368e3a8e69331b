/* SPDX-License-Identifier: Apache-2.0 */
/* Makes sets of the checkpoint folders of a version, to present them at a topology. */
#include "reshard/version/state/state_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"

struct adding {
	struct rs_version *v;
	const struct meta_topology *topo;
	struct sc_err *err;
};

bool rs_folder_has_place(const struct rs_version *v, const struct meta_topology *topo, struct rs_folder *folder,
			 struct sc_err *why)
{
	struct rs_folder *under = NULL;
	char path[SC_PATH_BYTES_MAX + 1];
	struct meta_view *view = NULL;
	int rc;

	if (folder->why)
		return sc_fail(why, SC_E_UNSUPPORTED, "%s", folder->why), false;
	(void)snprintf(path, sizeof(path), "%s/%s", folder->path, folder->files.at[0].path);
	if (meta_layout_is_plain(v->layout, path))
		return sc_fail(why, SC_E_STATE, "the layout calls it plain"), false;
	for (size_t i = 0; i < v->nr_sets; i++)
		if (!v->sets[i]->folder && strcmp(v->sets[i]->file, folder->file) == 0)
			return sc_fail(why, SC_E_STATE, "ranks have a file '%s'", folder->file), false;
	rc = rs_folder_under(folder, v->layout, &under, why);
	if (rc == 0)
		rc = meta_view_new(v->layout, topo, &under->state, &view, why);
	meta_view_free(view);
	rs_folder_unref(under);
	return rc == 0;
}

static int to_set(struct rs_folder *folder, struct rs_set *set, struct sc_err *err)
{
	set->folder = rs_folder_ref(folder);
	set->skews = sc_zalloc_array(folder->state.nr + 1, sizeof(*set->skews));
	if (!set->skews)
		return sc_nomem(err);
	set->one_owner = true;
	for (size_t i = 0; i < folder->files.nr; i++) {
		const struct rs_folder_file *f = &folder->files.at[i];
		struct rs_set_blob b = {.path = f->path, .blob = f->blob, .bytes = f->bytes,
					.owner = {f->uid, f->gid, f->mode}, .step = META_STEP_UNKNOWN};

		if (rs_set_add_blob(set, b) < 0)
			return sc_nomem(err);
		set->one_owner = set->one_owner && rs_owner_equal(&b.owner, &set->blobs[0].owner);
	}
	return meta_state_add_all(&set->state, &folder->state) < 0 ? sc_nomem(err) : 0;
}

static int on_folder(void *arg, struct rs_folder *folder)
{
	const struct adding *a = arg;
	struct rs_folder *under = NULL;
	struct rs_set *set;
	struct sc_err why;
	int rc;

	if (!rs_folder_has_place(a->v, a->topo, folder, &why))
		return why.code == SC_E_NO_MEMORY ? sc_nomem(a->err) : 0;
	set = rs_set_new(folder->file, rs_format_find("safetensors")); /* in which .as presents them */
	rc = set ? rs_folder_under(folder, a->v->layout, &under, a->err) : sc_nomem(a->err);
	if (rc == 0)
		rc = to_set(under, set, a->err);
	if (rc == 0 && (meta_state_add_all(&a->v->tensors->all, &set->state) < 0 || rs_version_add_set(a->v, set) < 0))
		rc = sc_nomem(a->err);
	rs_set_unref(set);
	rs_folder_unref(under);
	return rc;
}

int rs_version_add_folders(struct rs_service *s, struct rs_version *v, const struct meta_topology *topo,
			   struct sc_err *err)
{
	struct adding a = {v, topo, err};
	int rc = v->tree ? rs_folders_each(s->folders, v->tree, on_folder, &a, err) : 0;

	rs_version_note_owner(v);
	return rc;
}
