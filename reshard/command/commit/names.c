/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the names that were one file and are several in the new version, because they get bytes of their own:
 *
 *  - The file has names of tensors and plain names.  A set has the bytes of tensors by rank and path, and the tree has
 *    other bytes by number.  The plain names keep the number.
 *  - The file is one of tensors, and the rank gets a replica's new file under some of its names, or loses the file
 *    there.
 */
#include "reshard/command/changed/items_i.h"

#include <string.h>
#include <sys/stat.h>

#define KEY(number) (const char *)&(number), sizeof(number)
#define TENSORS 0	/* the group of a file's own names of tensors; others are numbers of files */

struct leaving {
	struct commit *c;
	struct rs_below *below;		/* NULL: there is no version */
	struct sc_map *by_ino;		/* -> struct named */
	struct sc_map names;		/* that leave, by folder and name */
	struct sc_map like;		/* by number -> struct like */
	uint64_t ino;
};

struct like {			/* an inode whose rank has replicas' files under some of its names */
	struct meta_inode_row row;
	uint32_t names;
	uint64_t group;
	bool differ, gone;
};

/* Notes that a name leaves its inode, unless it was noted before. */
static int leave(struct leaving *l, uint64_t folder, struct meta_bytes name, uint64_t group)
{
	struct commit *c = l->c;
	struct rs_leave x = {l->ino, folder, {NULL, name.nr}, group};
	const size_t bytes = sizeof(folder) + name.nr;
	char *key = sc_arena_alloc(&c->arena, bytes);

	if (!key)
		return sc_nomem(c->err);
	memcpy(key, &folder, sizeof(folder));
	memcpy(key + sizeof(folder), name.at, name.nr);
	if (sc_map_get(&l->names, key, bytes))
		return 0;
	x.name.at = key + sizeof(folder);
	return sc_map_put(&l->names, key, bytes, key) < 0 || sc_vec_push(&c->leaves, x) < 0 ? sc_nomem(c->err) : 0;
}

static int leave_item(struct leaving *l, const struct item *it, uint64_t group)
{
	const char *slash = strrchr(it->path, '/'), *name = slash ? slash + 1 : it->path;
	char *above = sc_arena_copy(&l->c->arena, it->path, slash ? (size_t)(slash - it->path) : 0);
	uint64_t folder;
	int rc = above ? rs_find_path(l->c->tree, it->rank, above, &folder, l->c->err) : sc_nomem(l->c->err);

	return rc < 0 ? rc : leave(l, folder, (struct meta_bytes){name, strlen(name)}, group);
}

/* --- replicas --- */

/* Finds the file that the rank itself has under the name of an item that stands for a replica's: 1 (a file of several
 * names, or a plain one), 0 or an error. */
static int file_of(struct leaving *l, const struct item *it, struct meta_inode_row *ret)
{
	struct commit *c = l->c;
	uint64_t ino = 0;
	int rc = 0;

	/* most ranks have no rows for what replicas of theirs write */
	if (it->how == ITEM_LIKE && l->below)
		rc = rs_below_tree_path(l->below, c->job->root + 1 + it->rank, it->path, &ino, c->err);
	if (rc == 0 && ino)
		rc = rs_find_path(c->tree, it->rank, it->path, &ino, c->err);
	if (rc == 0 && ino)
		rc = rs_overlay_inode(c->tree->overlay, ino, &c->arena, ret, c->err);
	return rc <= 0 ? rc : S_ISREG(ret->mode) && (ret->nlink > 1 || ret->blob);
}

/* Adds the row of a file that names leave, or that gets other times, unless the file has a row as one that was written
 * or moved. */
static int add_row(struct leaving *l, const struct meta_inode_row *row)
{
	struct commit *c = l->c;
	struct named *n = sc_map_get(l->by_ino, KEY(row->ino)) ? NULL : sc_arena_alloc(&c->arena, sizeof(*n));

	if (!n)
		return sc_map_get(l->by_ino, KEY(row->ino)) ? 0 : sc_nomem(c->err);
	n->ino = row->ino;
	n->row = c->rows.nr;
	return sc_map_put(l->by_ino, KEY(n->ino), n) < 0 ||
			       sc_vec_push(&c->rows, ((struct meta_change){META_PUT_INODE, .inode = *row})) < 0
		       ? sc_nomem(c->err)
		       : 0;
}

static uint64_t group_of(const struct item *it)
{
	return it->gone ? RS_LEAVE_GONE : it->ino;
}

/* Gives a file that gets a replica's bytes their times, too, if the rank has a row of its own for the file. */
static int note_time(struct leaving *l, const struct item *it, struct meta_inode_row *row)
{
	uint32_t had;

	if (it->gone || !S_ISREG(row->mode) || !rs_below_has_own_rows(l->below, it->rank, &had))
		return 0;
	row->mtime_ns = it->mtime_ns;
	row->ctime_ns = it->ctime_ns;
	return add_row(l, row);
}

static int note_like(struct leaving *l, const struct item *it)
{
	struct meta_inode_row row = {0};
	struct like *like;
	int rc = file_of(l, it, &row);

	if (rc <= 0)
		return rc == 0 && row.ino ? note_time(l, it, &row) : rc;
	like = sc_map_get(&l->like, KEY(row.ino));
	if (!like) {
		like = sc_arena_alloc(&l->c->arena, sizeof(*like));
		if (!like)
			return sc_nomem(l->c->err);
		like->row = row;
		if (sc_map_put(&l->like, KEY(like->row.ino), like) < 0)
			return sc_nomem(l->c->err);
	}
	like->gone |= it->gone;
	like->differ |= like->names && like->group != group_of(it);
	like->group = group_of(it);
	like->names++;
	return 0;
}

/* Tells whether all names of a file get one and the same file of a replica, so that they stay one file. */
static bool stays_one(const struct like *like)
{
	return like->names == like->row.nlink && !like->differ && !like->gone && !like->row.blob;
}

static int leave_like(struct leaving *l, const struct item *it)
{
	struct meta_inode_row row;
	int rc = file_of(l, it, &row);

	if (rc <= 0 || stays_one(sc_map_get(&l->like, KEY(row.ino))))
		return rc < 0 ? rc : 0;
	l->ino = row.ino;
	rc = add_row(l, &row);
	return rc < 0 ? rc : leave_item(l, it, group_of(it));
}

/* --- both kinds --- */

static bool was_shard(const struct named *n)
{
	return n->first && n->first->moved && !n->first->was_plain;
}

/* Notes that a name leaves which a committed file of tensors had and still has. */
static int on_old_name(void *arg, const struct meta_entry_row *row)
{
	struct leaving *l = arg;
	int rc = rs_overlay_still_names(l->c->tree->overlay, row, l->c->err);

	return rc <= 0 ? rc : leave(l, row->parent, row->name, TENSORS);
}

/* Notes that names of tensors leave a file that has plain names, too: the names that were written or moved, and the old
 * names of a committed file of tensors. */
static int leave_plain(struct leaving *l)
{
	struct commit *c = l->c;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->by_ino->room; i++) {
		const struct named *n = l->by_ino->slots[i].value;

		if (n && c->rows.at[n->row].inode.blob && was_shard(n)) {
			l->ino = n->first->ino;
			rc = rs_below_names(l->below, l->ino, on_old_name, l, c->err);
		}
	}
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];
		const struct named *n = it->how == ITEM_WROTE && !it->gone && it->nr_rows
					    ? sc_map_get(l->by_ino, KEY(it->ino))
					    : NULL;

		l->ino = it->ino;
		if (n && c->rows.at[n->row].inode.blob)
			rc = leave_item(l, it, TENSORS);
	}
	return rc;
}

int rs_commit_names(struct commit *c, struct sc_map *by_ino)
{
	struct leaving l = {.c = c, .by_ino = by_ino};
	int rc = c->a.base ? rs_view_below(c->a.base, &l.below, c->err) : 0;

	(void)pthread_rwlock_rdlock(&c->tree->names);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		rc = note_like(&l, &c->items.at[i]);
	for (size_t i = 0; rc == 0 && l.like.nr && i < c->items.nr; i++)
		rc = leave_like(&l, &c->items.at[i]);
	if (rc == 0)
		rc = leave_plain(&l);
	(void)pthread_rwlock_unlock(&c->tree->names);
	sc_map_done(&l.names);
	sc_map_done(&l.like);
	return rc;
}
