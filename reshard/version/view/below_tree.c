/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the names of a version's tree, and tells which of its rows a rank shows (B2) and whether they are still
 * there. */
#include "reshard/version/view/below_i.h"

#include <string.h>

/* --- versions that were dropped --- */

static int on_version(void *arg, const struct meta_version_row *row)
{
	(void)row;
	*(bool *)arg = true;
	return 0;
}

/*
 * Turns the error of missing rows into "nothing is there".  The rows of a version that was dropped a moment ago may be
 * gone while somebody opens a file of it that was looked up before (state/leaving.c): then only its sets show anything.
 * Returns rc, or 0 for such an error.
 */
int rs_below_unless_dropped(struct rs_below *b, int rc)
{
	bool is_there = false;
	struct sc_err ignored = {0};

	if (rc >= 0 || rc == SC_E_NO_MEMORY)
		return rc;
	if (__atomic_load_n(&b->dropped, __ATOMIC_RELAXED))
		return 0;
	(void)meta_version_get(b->catalog, b->view->version->id, on_version, &is_there, &ignored);
	if (is_there || (ignored.code && ignored.code != SC_E_NOT_FOUND))
		return rc;
	__atomic_store_n(&b->dropped, true, __ATOMIC_RELAXED);
	return 0;
}

/* --- names --- */

int rs_on_named(void *arg, const struct meta_entry_row *row)
{
	struct rs_named_list *n = arg;
	struct rs_named x = {row->parent, row->ino, {NULL, row->name.nr}};

	x.name.at = sc_arena_copy(&n->arena, row->name.at, row->name.nr);
	return !x.name.at || sc_vec_push(n, x) < 0 ? sc_nomem(n->err) : 0;
}

void rs_named_done(struct rs_named_list *n)
{
	sc_vec_done(n);
	sc_arena_done(&n->arena);
}

int rs_by_name(const void *a, const void *b)
{
	const struct rs_named *x = a, *y = b;
	size_t n = x->name.nr < y->name.nr ? x->name.nr : y->name.nr;
	int order = memcmp(x->name.at, y->name.at, n);

	return order ? order : (x->name.nr > y->name.nr) - (x->name.nr < y->name.nr);
}

int rs_below_tree_path(struct rs_below *b, uint64_t folder, const char *path, uint64_t *ret, struct sc_err *err)
{
	int rc = 0;

	*ret = folder;
	while (rc == 0 && *ret && *path) {
		size_t n = strcspn(path, "/");

		rc = meta_tree_child(b->catalog, &b->tree, *ret, (struct meta_bytes){path, n}, ret, err);
		path += n + (path[n] == '/');
	}
	return rc;
}

/* --- which rows --- */

enum rs_rows rs_below_source(const struct rs_below *b, const struct meta_layout *layout,
			     const struct meta_topology *topo, uint32_t rank, uint32_t *ret_source)
{
	uint32_t coords[SC_AXES_MAX], at[SC_AXES_MAX] = {0};
	const struct meta_mesh *mesh;

	*ret_source = rank;
	if (!rs_below_has_tree(b))
		return RS_ROWS_NONE;
	if (rank == RS_SHARED)
		return RS_ROWS_OWN;
	mesh = &b->rows_layout->meshes[0];
	meta_topology_coords(topo, rank, coords);
	for (int i = 0; i < mesh->nr; i++) {
		const char *name = b->rows_layout->axes.name[mesh->at[i].axis];
		int k = meta_axis_find(&layout->axes, name, strlen(name));
		uint32_t c = k >= 0 ? coords[k] : 0;

		if (c >= b->rows_topo.degree[mesh->at[i].axis])
			return RS_ROWS_COMMON;
		at[mesh->at[i].axis] = c;
	}
	*ret_source = meta_topology_rank(&b->rows_topo, at);
	return *ret_source == rank ? RS_ROWS_OWN : RS_ROWS_OTHER;
}
