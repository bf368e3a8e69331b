/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tree of a new version says of the files that were written: their attributes, and of plain files the blob.
 * Files of tensors have blob 0: their bytes are in sets, by rank and path.  All names of a file are one row.
 */
#include "reshard/commit/commit_i.h"

#include <string.h>
#include <sys/stat.h>

#define KEY(number) (const char *)&(number), sizeof(number)

struct paths {
	struct commit *c;
	struct sc_map by_path;	/* -> struct equal */
};

struct equal {			/* plain files of one path */
	uint32_t ranks;
	bool differ;
	struct item *first;
};

static bool is_plain(const struct item *it)
{
	return it->how == ITEM_WROTE && !it->gone && !it->nr_rows;
}

static int note_path(struct paths *p, struct item *it)
{
	struct equal *e = sc_map_make(&p->by_path, it->path, strlen(it->path), &p->c->arena, sizeof(*e));

	if (!e)
		return sc_nomem(p->c->err);
	e->ranks++;
	if (!e->first)
		e->first = it;
	else if (it->bytes != e->first->bytes || memcmp(it->hash, e->first->hash, 16) != 0)
		e->differ = true;
	return 0;
}

/* A file that all ranks wrote equal has one blob: so it is seen to be the same in all ranks (docs/tree.md, B2). */
static int share_equal(struct commit *c)
{
	struct paths p = {.c = c};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		struct item *it = &c->items.at[i];

		it->stored = it->blob;
		if (is_plain(it) && it->rank != RS_SHARED)
			rc = note_path(&p, it);
	}
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		struct item *it = &c->items.at[i];
		const struct equal *e = is_plain(it) && it->rank != RS_SHARED
					    ? sc_map_get(&p.by_path, it->path, strlen(it->path))
					    : NULL;

		if (e && !e->differ && e->ranks == c->topo.ranks)
			it->stored = e->first->blob;
	}
	sc_map_done(&p.by_path);
	return rc;
}

struct named {			/* an inode, of which items are names */
	uint64_t ino;
	size_t row;		/* of c->rows */
	uint32_t names;		/* items */
	const struct item *first;
};

static int add_row(struct commit *c, struct sc_map *by_ino, const struct item *it)
{
	/* other names of a plain file that has become one of tensors may be plain still */
	const bool has_blob = !it->nr_rows || (it->was_plain && it->nlink > 1);
	struct meta_inode_row row = {.ino = it->ino, .job = c->job->id, .mode = S_IFREG | it->own.mode,
				     .uid = it->own.uid, .gid = it->own.gid, .mtime_ns = it->mtime_ns,
				     .atime_ns = it->atime_ns, .ctime_ns = it->ctime_ns,
				     .data = META_LOWER_DATA, .blob = has_blob ? it->stored : 0};
	struct named *n = sc_map_make(by_ino, KEY(it->ino), &c->arena, sizeof(*n));

	if (!n)
		return sc_nomem(c->err);
	if (n->names++) {
		struct meta_inode_row *before = &c->rows.at[n->row].inode;

		/* another name: one blob for both, that of the name which shares it with other ranks */
		if (row.blob && (!before->blob || before->blob == it->blob))
			before->blob = row.blob;
		return 0;
	}
	n->first = it;
	n->row = c->rows.nr;
	return sc_vec_push(&c->rows, ((struct meta_change){META_PUT_INODE, .inode = row})) < 0 ? sc_nomem(c->err) : 0;
}

/* --- names of both kinds --- */

struct leaving {
	struct commit *c;
	uint64_t ino;
};

/* A name is a file of tensors while others of its inode are plain. */
static int leave(struct commit *c, uint64_t folder, const char *name, size_t bytes, uint64_t ino)
{
	struct meta_change x = {META_PUT_ENTRY, .entry = {folder, {name, bytes}, ino}};

	return sc_vec_push(&c->rows, x) < 0 ? sc_nomem(c->err) : 0;
}

static bool was_shard(const struct named *n)
{
	return n->first->moved && !n->first->was_plain;
}

/* A name that a committed file of tensors had, and has still. */
static int on_old_name(void *arg, const struct meta_entry_row *row)
{
	const struct leaving *l = arg;
	struct commit *c = l->c;
	uint64_t now = 0;
	const char *name;
	int rc = rs_overlay_child(c->job->overlay, row->parent, row->name, &now, c->err);

	if (rc < 0 || now != l->ino)
		return rc;
	name = sc_arena_copy(&c->arena, row->name.at, row->name.nr);
	return name ? leave(c, row->parent, name, row->name.nr, l->ino) : sc_nomem(c->err);
}

static int leave_old_names(struct commit *c, const struct named *n)
{
	struct leaving l = {c, n->first->ino};
	struct rs_below *below;
	int rc = rs_view_below(c->a.base, &below, c->err);

	return rc < 0 ? rc : rs_below_names(below, n->first->ino, on_old_name, &l, c->err);
}

static int leave_item(struct commit *c, const struct named *n, const struct item *it)
{
	const char *slash = strrchr(it->path, '/'), *name = slash ? slash + 1 : it->path;
	char *above = sc_arena_copy(&c->arena, it->path, slash ? (size_t)(slash - it->path) : 0);
	struct rs_below *below;
	uint64_t folder, was = 0;
	int rc = above ? 0 : sc_nomem(c->err);

	if (rc == 0 && was_shard(n))
		rc = rs_view_below(c->a.base, &below, c->err);
	if (rc == 0 && was_shard(n))
		rc = rs_below_find(below, it->rank, it->path, &was, c->err);
	if (rc < 0 || was == it->ino) /* one of its old names */
		return rc;
	rc = rs_find_path(c->job, it->rank, above, &folder, c->err);
	return rc < 0 ? rc : leave(c, folder, name, strlen(name), it->ino);
}

/*
 * A file that has names of both kinds is two from now on.  Its row is that of the plain names; the turn gives those of
 * files of tensors another number.  They are the names that were written or moved, and the old ones of a committed file
 * of tensors.
 */
static int part_names(struct commit *c, const struct sc_map *by_ino)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < by_ino->room; i++) {
		const struct named *n = by_ino->slots[i].value;

		if (n && c->rows.at[n->row].inode.blob && was_shard(n))
			rc = leave_old_names(c, n);
	}
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];
		const struct named *n = it->how == ITEM_WROTE && !it->gone && it->nr_rows
					    ? sc_map_get(by_ino, KEY(it->ino))
					    : NULL;

		if (n && c->rows.at[n->row].inode.blob)
			rc = leave_item(c, n, it);
	}
	return rc;
}

int rs_commit_rows(struct commit *c)
{
	struct sc_map by_ino = {0}; /* ino -> struct named */
	int rc = share_equal(c);

	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		if (c->items.at[i].how == ITEM_WROTE && !c->items.at[i].gone)
			rc = add_row(c, &by_ino, &c->items.at[i]);
	(void)pthread_rwlock_rdlock(&c->job->names);
	if (rc == 0)
		rc = part_names(c, &by_ino);
	(void)pthread_rwlock_unlock(&c->job->names);
	sc_map_done(&by_ino);
	return rc;
}
