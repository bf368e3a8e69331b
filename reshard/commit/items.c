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
