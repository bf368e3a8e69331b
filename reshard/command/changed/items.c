/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the items of a commit by rank and path, and the tensors of their files by rank. */
#include "reshard/command/changed/items_i.h"

#include <stdlib.h>
#include <string.h>

static int by_rank(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return strcmp(x->path, y->path);
}

void rs_commit_sort(struct commit *c)
{
	if (c->items.nr)
		qsort(c->items.at, c->items.nr, sizeof(*c->items.at), by_rank);
}

const struct item *rs_commit_find(const struct commit *c, size_t nr, uint32_t rank, const char *path)
{
	const struct item key = {.rank = rank, .path = path};

	return nr ? bsearch(&key, c->items.at, nr, sizeof(key), by_rank) : NULL;
}

const struct item *rs_commit_item(const struct commit *c, uint32_t rank, const char *path)
{
	return rs_commit_find(c, c->items.nr, rank, path);
}

static int by_written_rank(const void *a, const void *b)
{
	const struct meta_written *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

bool rs_commit_has_rows(const struct commit *c, uint32_t rank)
{
	const struct meta_written key = {.rank = rank};

	return c->written.nr && bsearch(&key, c->written.at, c->written.nr, sizeof(key), by_written_rank);
}

void rs_commit_coords(const struct meta_view *view, const struct meta_entry *e, uint32_t ret[SC_AXES_MAX])
{
	memset(ret, 0, SC_AXES_MAX * sizeof(*ret));
	for (int i = 0; i < view->topo->nr_axes; i++)
		if (e->fixed[i] != META_FREE)
			ret[i] = e->fixed[i];
}

int rs_commit_part(struct commit *c, const struct meta_view *view, const struct meta_entry *e,
		   const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena, struct part *ret)
{
	*ret = (struct part){.rank = meta_topology_rank(view->topo, coords)};
	if (meta_entry_stored(view, e, coords, arena, &ret->file, &ret->name) < 0)
		return sc_nomem(c->err);
	ret->item = rs_commit_item(c, ret->rank, ret->file);
	if (ret->item && !ret->item->parsed)
		ret->item = NULL;
	if (ret->item)
		ret->at = rs_found_tensor(ret->item->found, ret->name);
	return 0;
}
