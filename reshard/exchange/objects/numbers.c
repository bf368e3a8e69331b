/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates the inode numbers in rows of other nodes.  Most are taken as they are: blocks that the job's nodes took
 * say that they are the job's.  An object that follows from a topology gets the virtual number of this job and of its
 * path here.
 */
#include "reshard/exchange/objects/objects_i.h"

#include <stdlib.h>

#include "reshard/worktree/requests/tree_i.h"

uint64_t rs_object_number(uint64_t ino)
{
	return ino < META_VIRTUAL ? ino : meta_virtual(0, meta_virtual_rank(ino), meta_virtual_path(ino));
}

static int on_block(void *arg, uint64_t first, uint64_t nr, uint64_t job)
{
	struct rs_object_renumbering *r = arg;

	if (job != r->t->job->id)
		return 0;
	return sc_vec_push(&r->blocks, ((struct rs_object_numbers){first, nr})) < 0 ? sc_nomem(r->t->io.err) : 0;
}

static int take_numbers(struct rs_object_renumbering *r, const struct rs_object_blocks *blocks)
{
	struct rs_object_take *t = r->t;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < blocks->nr; i++) {
		const struct rs_object_numbers *n = &blocks->at[i];

		rc = meta_numbers_put(t->s->catalog, n->first, n->nr, t->job->id, t->io.err);
		if (rc > 0)
			rc = rs_numbers_note(t->s, n->first, n->nr, t->job->id, t->io.err);
	}
	return rc < 0 ? rc : meta_numbers_each(t->s->catalog, on_block, r, t->io.err);
}

static int take_paths(struct rs_object_renumbering *r)
{
	int rc = 0;

	r->path_ids = sc_zalloc_array(r->paths->nr + 1, sizeof(*r->path_ids));
	if (!r->path_ids)
		return sc_nomem(r->t->io.err);
	for (size_t i = 0; rc == 0 && i < r->paths->nr; i++)
		rc = meta_path_put(r->t->s->catalog, r->paths->at[i].text, &r->path_ids[i], r->t->io.err);
	return rc;
}

int rs_object_renumber_begin(struct rs_object_take *t, const struct rs_object_blocks *blocks,
			     const struct rs_object_paths *paths, struct rs_object_renumbering *ret)
{
	int rc;

	*ret = (struct rs_object_renumbering){.t = t, .paths = paths};
	rc = take_numbers(ret, blocks);
	return rc < 0 ? rc : take_paths(ret);
}

static int by_id(const void *key, const void *path)
{
	const uint64_t id = *(const uint64_t *)key, its = ((const struct rs_object_path *)path)->id;

	return (id > its) - (id < its);
}

/* Finds the block that has a number. */
static int in_block(const void *key, const void *block)
{
	const uint64_t x = *(const uint64_t *)key;
	const struct rs_object_numbers *b = block;

	return x < b->first ? -1 : x - b->first >= b->nr;
}

bool rs_object_renumber(const struct rs_object_renumbering *r, uint64_t *x)
{
	const struct rs_object_path *path;
	uint64_t id = meta_virtual_path(*x);

	if (*x < META_VIRTUAL)
		return bsearch(x, r->blocks.at, r->blocks.nr, sizeof(*r->blocks.at), in_block);
	path = r->paths->nr ? bsearch(&id, r->paths->at, r->paths->nr, sizeof(*path), by_id) : NULL;
	if (!path || *x != meta_virtual(0, meta_virtual_rank(*x), id))
		return false;
	*x = meta_virtual(r->t->job->id, meta_virtual_rank(*x), r->path_ids[path - r->paths->at]);
	return true;
}

void rs_object_renumber_done(struct rs_object_renumbering *r)
{
	sc_vec_done(&r->blocks);
	sc_sys.release(r->path_ids);
	r->path_ids = NULL;
}
