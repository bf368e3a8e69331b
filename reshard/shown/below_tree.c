/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows of a version's tree a rank shows (B2), and whether they are there still. */
#include "reshard/shown/below_i.h"

#include <string.h>

/* --- versions that were dropped --- */

static int on_version(void *arg, const struct meta_version_row *row)
{
	(void)row;
	*(bool *)arg = true;
	return 0;
}

/*
 * The rows of a version that was dropped a moment ago may be gone, while somebody who had looked its files up opens
 * them (leaving.c): then there is only what follows from its sets.  Returns rc, or 0 for such an error.
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
