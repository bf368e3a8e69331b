/* SPDX-License-Identifier: Apache-2.0 */
/* The items of a commit, by rank and path; and the tensors of their files, by rank. */
#include "reshard/commit/commit_i.h"

#include <stdlib.h>
#include <string.h>

static int by_rank(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return strcmp(x->w.path, y->w.path);
}

void rs_commit_sort(struct commit *c)
{
	if (c->items.nr)
		qsort(c->items.at, c->items.nr, sizeof(*c->items.at), by_rank);
}

const struct item *rs_commit_find(const struct commit *c, size_t nr, uint32_t rank, const char *path)
{
	const struct item key = {.rank = rank, .w.path = (char *)path};

	return nr ? bsearch(&key, c->items.at, nr, sizeof(key), by_rank) : NULL;
}

const struct item *rs_commit_item(const struct commit *c, uint32_t rank, const char *path)
{
	return rs_commit_find(c, c->items.nr, rank, path);
}

bool rs_commit_has_rows(const struct commit *c, uint32_t rank)
{
	size_t lo = 0, hi = c->written.nr;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (c->written.at[mid].rank < rank)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < c->written.nr && c->written.at[lo].rank == rank;
}
