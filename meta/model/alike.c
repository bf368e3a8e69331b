/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replica classes: the ranks whose file of a name has the same contents, because they differ only in
 * coordinates that nothing in the file depends on.  Where the stored name itself varies by rank, the
 * class of every rank but coordinate 0 is the rank alone.
 */
#include "meta/model/view.h"

#include <string.h>

/* Makes, for axes of several meshes, a table of the first rank that has the same coordinates. */
static int make_table(struct meta_view *v, struct meta_file_axes *f, struct sc_err *err)
{
	const struct meta_topology *topo = v->topo;
	size_t bytes = topo->nr_axes * sizeof(uint32_t);
	struct sc_arena arena = {0};
	uint32_t *keys = sc_arena_array(&arena, topo->ranks, bytes);
	struct sc_map first = {0};
	int rc = 0;

	f->alike = sc_arena_array(&v->arena, topo->ranks, sizeof(*f->alike));
	if (!keys || !f->alike)
		rc = sc_nomem(err);
	for (uint32_t r = 0; r < topo->ranks && rc == 0; r++) {
		uint32_t *key = keys + (size_t)r * topo->nr_axes;
		const uint32_t *same;

		for (int a = 0; a < topo->nr_axes; a++)
			if (f->axes & 1u << a)
				key[a] = r / topo->stride[a] % topo->degree[a];
		same = sc_map_get(&first, (const char *)key, bytes);
		f->alike[r] = same ? (uint32_t)((size_t)(same - keys) / topo->nr_axes) : r;
		if (!same && sc_map_put(&first, (const char *)key, bytes, key) < 0)
			rc = sc_nomem(err);
	}
	sc_map_done(&first);
	sc_arena_done(&arena);
	return rc;
}

struct files {
	struct meta_file_axes *at;
	size_t nr, room;
	struct sc_map by_name;		/* -> number + 1 */
};

static int add_file(struct files *files, const char *file, struct meta_file_axes **ret)
{
	uintptr_t at = (uintptr_t)sc_map_get(&files->by_name, file, strlen(file));

	if (!at) {
		at = files->nr + 1;
		if (sc_vec_push(files, (struct meta_file_axes){.file = file}) < 0 ||
		    sc_map_put(&files->by_name, file, strlen(file), (void *)at) < 0)
			return -1;
	}
	*ret = &files->at[at - 1];
	return 0;
}

int meta_alike_index(struct meta_view *v, struct sc_err *err)
{
	struct meta_file_axes *f = NULL;
	struct files files = {0};
	int rc = 0;

	for (uint32_t i = 0; i < v->nr_entries && rc == 0; i++) {
		const struct meta_entry *e = &v->entries[i];

		if (e->behind && (!e->hidden || !e->rows))
			continue;
		if ((!f || strcmp(f->file, e->file) != 0) && add_file(&files, e->file, &f) < 0) {
			rc = sc_nomem(err);
			break;
		}
		f->axes |= meta_entry_axes(v, e);
		for (uint16_t k = 0; e->varies && k < e->varies->nr; k++)
			if (e->varies->at[k].axis >= 0)
				f->axes |= 1u << e->varies->at[k].axis;
	}
	if (rc == 0)
		v->files = sc_arena_array(&v->arena, files.nr + 1, sizeof(*v->files));
	if (rc == 0 && !v->files)
		rc = sc_nomem(err);
	if (rc == 0 && files.nr)
		memcpy(v->files, files.at, files.nr * sizeof(*v->files));
	v->nr_files = rc == 0 ? (uint32_t)files.nr : 0;
	for (uint32_t i = 0; i < v->nr_files && rc == 0; i++)
		if (!meta_layout_mesh_axes(v->layout, v->files[i].axes))
			rc = make_table(v, &v->files[i], err);
	sc_map_done(&files.by_name);
	sc_vec_done(&files);
	return rc;
}

uint32_t meta_view_alike(const struct meta_view *view, uint32_t rank, const char *file)
{
	const struct meta_topology *topo = view->topo;

	for (uint32_t i = 0; i < view->nr_files; i++) {
		const struct meta_file_axes *f = &view->files[i];
		uint32_t unused;

		if (strcmp(f->file, file) != 0)
			continue;
		if (f->alike)
			return f->alike[rank];
		unused = meta_layout_mesh_axes(view->layout, f->axes) & ~f->axes;
		for (int a = 0; a < topo->nr_axes; a++)
			if (unused & 1u << a)
				rank -= rank / topo->stride[a] % topo->degree[a] * topo->stride[a];
		return rank;
	}
	return rank;
}
