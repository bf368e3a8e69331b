/* SPDX-License-Identifier: Apache-2.0 */
/* Puts rows into the tree that a commit makes: names, objects with their attributes. */
#include "reshard/worktree/rebase/rows.h"

#include <sys/stat.h>

static int put(struct rs_turn *t, struct meta_change change)
{
	return rs_turn_put(t, &t->spec.rows, change);
}

int rs_turn_put_name(struct rs_turn *t, uint64_t folder, struct meta_bytes name, uint64_t ino)
{
	struct meta_entry_row row = {folder, {sc_arena_copy(&t->texts, name.at, name.nr), name.nr}, ino};

	return row.name.at ? put(t, (struct meta_change){META_PUT_ENTRY, .entry = row}) : sc_nomem(t->err);
}

struct copying {
	struct rs_turn *t;
	uint64_t ino;
};

static int copy_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	const struct copying *k = arg;
	struct rs_turn *t = k->t;
	struct meta_xattr_row row = {k->ino,
				     {sc_arena_copy(&t->texts, name.at, name.nr), name.nr},
				     {sc_arena_copy(&t->texts, value.at, value.nr), value.nr}};

	return !row.name.at || !row.value.at
		   ? sc_nomem(t->err)
		   : put(t, (struct meta_change){META_PUT_XATTR, .xattr = row});
}

int rs_turn_put_object(struct rs_turn *t, const struct meta_inode_row *row, uint64_t xattrs_of)
{
	struct copying k = {t, row->ino};
	int rc = put(t, (struct meta_change){META_PUT_INODE, .inode = *row});

	return rc < 0 || !xattrs_of ? rc : rs_overlay_xattrs(t->job->overlay, xattrs_of, copy_xattr, &k, t->err);
}

/* A row without a link hides the rows that older trees have for the number. */
int rs_turn_put_nothing(struct rs_turn *t, uint64_t ino)
{
	return put(t, (struct meta_change){META_PUT_INODE,
					   .inode = {.ino = ino, .mode = S_IFREG, .data = META_LOWER_DATA}});
}
