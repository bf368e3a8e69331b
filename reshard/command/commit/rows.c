/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the rows that the tree of a new version has for written files: attributes, and the blob of a plain file.  Files
 * of tensors have blob 0: their bytes are in sets, by rank and path.  All names of a file share one row.
 */
#include "reshard/command/changed/items_i.h"

#include <string.h>
#include <sys/stat.h>

#include "reshard/engine/io/hash.h"

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
	return it->how == ITEM_WROTE && !it->gone && !it->stays && !it->nr_rows;
}

static int note_path(struct paths *p, struct item *it)
{
	struct equal *e = sc_map_make(&p->by_path, it->path, strlen(it->path), &p->c->arena, sizeof(*e));

	if (!e)
		return sc_nomem(p->c->err);
	e->ranks++;
	if (!e->first)
		e->first = it;
	e->differ |= it->bytes != e->first->bytes;
	return 0;
}

/* Finds the entry of a path at which all ranks wrote equal files; NULL: not all ranks wrote it, or their files
 * differ. */
static struct equal *equal_of(const struct paths *p, const struct item *it)
{
	struct equal *e = is_plain(it) && it->rank != RS_SHARED ? sc_map_get(&p->by_path, it->path, strlen(it->path))
								: NULL;

	return e && !e->differ && e->ranks == p->c->topo.ranks ? e : NULL;
}

/* Compares an item with the equal files before it.  Bytes on another node are read only here, where their hash tells
 * something. */
static int compare(struct paths *p, struct item *it)
{
	struct equal *e = equal_of(p, it);
	int rc = e && it->away ? rs_hash_bytes(it->remote, it->hash, p->c->err) : 0;

	if (rc == 0 && e)
		e->differ = memcmp(it->hash, e->first->hash, sizeof(it->hash)) != 0;
	return rc;
}

/* Gives one blob to a file that all ranks wrote equal: by that, B2 of docs/tree.md knows that it is the same in all. */
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
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		rc = compare(&p, &c->items.at[i]);
	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		const struct equal *e = equal_of(&p, &c->items.at[i]);

		if (e)
			c->items.at[i].stored = e->first->blob;
	}
	sc_map_done(&p.by_path);
	return rc;
}

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

int rs_commit_rows(struct commit *c)
{
	struct sc_map by_ino = {0}; /* ino -> struct named */
	int rc = share_equal(c);

	for (size_t i = 0; rc == 0 && i < c->items.nr; i++)
		if (c->items.at[i].how == ITEM_WROTE && !c->items.at[i].gone && !c->items.at[i].stays)
			rc = add_row(c, &by_ino, &c->items.at[i]);
	if (rc == 0)
		rc = rs_commit_names(c, &by_ino);
	sc_map_done(&by_ino);
	return rc;
}
