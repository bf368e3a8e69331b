/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tree of a new version says of its regular files.  Their bytes are in sets, by rank and path; a row says
 * which names are one file, and what it is like.  It counts only while it has the blob that the set has, or 0 for a
 * file of tensors (tree/below.c).  So all names of a file need one blob.
 */
#include "reshard/commit/commit_i.h"

#include <string.h>
#include <sys/stat.h>

struct files {
	struct commit *c;
	struct sc_map by_ino;	/* ino -> its row, plus 1 */
};

static bool is_own(const struct item *it)
{
	return it->how == ITEM_WROTE && !it->gone;
}

static int add_row(struct files *f, const struct item *it)
{
	struct commit *c = f->c;
	struct meta_inode_row row = {.ino = it->ino, .job = c->job->id, .mode = S_IFREG | it->own.mode,
				     .uid = it->own.uid, .gid = it->own.gid, .mtime_ns = it->mtime_ns,
				     .atime_ns = it->atime_ns, .ctime_ns = it->ctime_ns,
				     .data = META_LOWER_DATA, .blob = it->nr_rows ? 0 : it->stored};
	size_t at = (size_t)(uintptr_t)sc_map_get(&f->by_ino, (const char *)&it->ino, sizeof(it->ino));

	if (at) {
		struct meta_inode_row *before = &c->rows.at[at - 1].inode;

		/* another name: one blob for both, that of the name which shares it with other ranks */
		if (row.blob && (!before->blob || before->blob == it->blob))
			before->blob = row.blob;
		return 0;
	}
	if (sc_vec_push(&c->rows, ((struct meta_change){META_PUT_INODE, .inode = row})) < 0 ||
	    sc_map_put(&f->by_ino, (const char *)&it->ino, sizeof(it->ino), (void *)(uintptr_t)c->rows.nr) < 0)
		return sc_nomem(c->err);
	return 0;
}

static struct rs_set_blob *stored_blob(const struct commit *c, const struct item *it)
{
	enum meta_set_kind kind = it->rank == RS_SHARED ? META_SET_SHARED : META_SET_PLAIN;

	for (size_t i = 0; i < c->version->nr_sets; i++) {
		const struct rs_set *set = c->version->sets[i];

		if (set->kind == kind && strcmp(set->file, it->path) == 0)
			return (struct rs_set_blob *)rs_set_find(set, it->rank, it->path);
	}
	return NULL;
}

/* A name whose set has another blob with the same bytes. */
static void share_blob(const struct files *f, const struct item *it)
{
	size_t at = (size_t)(uintptr_t)sc_map_get(&f->by_ino, (const char *)&it->ino, sizeof(it->ino));
	uint64_t blob = f->c->rows.at[at - 1].inode.blob;
	bool differs = !it->nr_rows && it->stored == it->blob && it->stored != blob;
	struct rs_set_blob *b = differs ? stored_blob(f->c, it) : NULL;

	if (b)
		b->blob = blob;
}

int rs_commit_rows(struct commit *c)
{
	struct files f = {.c = c};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		if (is_own(&c->items.at[i]))
			rc = add_row(&f, &c->items.at[i]);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		if (is_own(&c->items.at[i]))
			share_blob(&f, &c->items.at[i]);
	sc_map_done(&f.by_ino);
	return rc;
}
