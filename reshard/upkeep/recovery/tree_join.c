/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/upkeep/recovery/tree_join.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY(x) (const char *)&(x), sizeof(x)
#define LOW (SC_RANKS_MAX - 1)

/* --- the records --- */

static int read_chain(struct rs_service *s, uint64_t tree, struct rs_joined *j, struct sc_err *err)
{
	uint64_t root = 0;

	while (tree) {
		struct rs_tree_record *r = &j->chain[j->nr_chain];
		int rc;

		if (j->nr_chain == META_CHAIN_MAX)
			return sc_fail(err, SC_E_FORMAT, "tree %" PRIu64 " is one of too many", tree);
		rc = rs_tree_record_read(s, tree, r, err);
		if (rc == SC_E_SYSTEM && err->errnum == ENOENT)
			return sc_fail(err, SC_E_FORMAT, "the recovery record of tree %" PRIu64 " is missing", tree);
		if (rc < 0)
			return rc;
		j->nr_chain++;
		if ((root && r->root != root) || r->base >= tree)
			return sc_fail(err, SC_E_FORMAT, "tree %" PRIu64 " is of another job", tree);
		root = r->root;
		tree = r->base;
	}
	return 0;
}

struct rs_joined_inode *rs_joined_inode(const struct rs_joined *j, uint64_t ino)
{
	return sc_map_get(&j->by_number, KEY(ino));
}

static int add_inode(struct rs_joined *j, const struct meta_inode_row *row, size_t from)
{
	struct rs_joined_inode *x = rs_joined_inode(j, row->ino);

	if (x)
		return 0; /* a newer row */
	x = sc_map_make(&j->by_number, KEY(row->ino), &j->arena, sizeof(*x));
	if (!x)
		return -1;
	x->row = row;
	x->from = from;
	return sc_vec_push(&j->inodes, x);
}

static int add_entry(struct rs_joined *j, const struct meta_entry_row *row)
{
	size_t bytes = sizeof(row->parent) + row->name.nr;
	char *key = sc_arena_alloc(&j->arena, bytes);

	if (!key)
		return -1;
	memcpy(key, &row->parent, sizeof(row->parent));
	if (row->name.nr)
		memcpy(key + sizeof(row->parent), row->name.at, row->name.nr);
	if (sc_map_get(&j->names, key, bytes))
		return 0;
	if (sc_map_put(&j->names, key, bytes, j) < 0)
		return -1;
	return row->ino ? sc_vec_push(&j->entries, (struct rs_joined_entry){.row = row}) : 0;
}

/* Adds an attribute, unless a newer tree has the row of its inode: a row tells all of an inode, with the attributes of
 * the same tree. */
static int add_xattr(struct rs_joined *j, const struct meta_xattr_row *row, size_t from)
{
	const struct rs_joined_inode *x = rs_joined_inode(j, row->ino);

	return x && x->from == from ? sc_vec_push(&j->xattrs, row) : 0;
}

static int merge(struct rs_joined *j, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < j->nr_chain; i++)
		for (size_t k = 0; rc == 0 && k < j->chain[i].rows.nr; k++) {
			const struct meta_change *x = &j->chain[i].rows.at[k];

			if (x->kind == META_PUT_INODE)
				rc = add_inode(j, &x->inode, i);
			else if (x->kind == META_PUT_ENTRY)
				rc = add_entry(j, &x->entry);
			else if (x->kind == META_PUT_XATTR)
				rc = add_xattr(j, &x->xattr, i);
			else
				return sc_fail(err, SC_E_FORMAT, "tree %" PRIu64 ": no tree has a change of kind %d",
					       j->chain[i].id, (int)x->kind);
		}
	return rc < 0 ? sc_nomem(err) : 0;
}

/* --- what is reached --- */

struct folder {
	uint64_t ino;
	uint32_t rank;
	const char *path;
};

struct folders {
	size_t nr, room;
	struct folder *at;
};

const char *rs_joined_path(const struct rs_joined *j, uint64_t path_id)
{
	for (size_t i = 0; i < j->nr_chain; i++)
		for (size_t k = 0; k < j->chain[i].paths.nr; k++)
			if (j->chain[i].paths.at[k].id == path_id)
				return j->chain[i].paths.at[k].text;
	return NULL;
}

/* Tells whether an inode needs no name: the folder of the job or of a rank, or what follows from a topology. */
static bool is_top(const struct rs_joined *j, uint64_t ino)
{
	const uint64_t root = j->chain[0].root;

	return ino >= META_VIRTUAL || (ino >= root && ino - root <= SC_RANKS_MAX);
}

static struct folder top(const struct rs_joined *j, uint64_t ino)
{
	const uint64_t root = j->chain[0].root;
	struct folder f = {ino, ino == root ? RS_SHARED : (uint32_t)(ino - root - 1), ""};

	if (ino >= META_VIRTUAL) {
		f.rank = meta_virtual_rank(ino);
		f.rank = f.rank == SC_RANKS_MAX - 1 ? RS_SHARED : f.rank;
		f.path = rs_joined_path(j, meta_virtual_path(ino));
	}
	return f;
}

static int by_parent(const void *a, const void *b)
{
	const struct rs_joined_entry *x = a, *y = b;

	return (x->row->parent > y->row->parent) - (x->row->parent < y->row->parent);
}

static size_t first_in(const struct rs_joined *j, uint64_t folder)
{
	return sc_first(j->entries.nr, i, j->entries.at[i].row->parent >= folder);
}

static int reach(struct rs_joined *j, const struct folder *in, struct folders *more)
{
	for (size_t i = first_in(j, in->ino); i < j->entries.nr && j->entries.at[i].row->parent == in->ino; i++) {
		struct rs_joined_entry *e = &j->entries.at[i];
		struct rs_joined_inode *x = rs_joined_inode(j, e->row->ino);
		bool is_new = x && !x->live;

		e->inode = x;
		e->rank = in->rank;
		e->path = meta_path_in(&j->arena, in->path, e->row->name);
		if (!e->path)
			return -1;
		e->live = x || is_top(j, e->row->ino);
		if (x)
			x->live = true;
		if (is_new && S_ISDIR(x->row->mode) && !is_top(j, x->row->ino) &&
		    sc_vec_push(more, (struct folder){x->row->ino, in->rank, e->path}) < 0)
			return -1;
	}
	return 0;
}

static int mark_live(struct rs_joined *j, struct sc_err *err)
{
	struct folders f = {0};
	int rc = 0;

	if (j->entries.nr)
		qsort(j->entries.at, j->entries.nr, sizeof(*j->entries.at), by_parent);
	for (size_t i = 0; i < j->inodes.nr; i++)
		j->inodes.at[i]->live = is_top(j, j->inodes.at[i]->row->ino);
	for (size_t i = 0; rc == 0 && i < j->entries.nr; i++) {
		uint64_t ino = j->entries.at[i].row->parent;
		struct folder one = top(j, ino);

		if (is_top(j, ino) && one.path && (i == 0 || j->entries.at[i - 1].row->parent != ino))
			rc = sc_vec_push(&f, one);
	}
	while (rc == 0 && f.nr) {
		struct folder one = f.at[--f.nr];

		rc = reach(j, &one, &f);
	}
	sc_vec_done(&f);
	return rc < 0 ? sc_nomem(err) : 0;
}

int rs_tree_join(struct rs_service *s, uint64_t tree, struct rs_joined *ret, struct sc_err *err)
{
	int rc;

	*ret = (struct rs_joined){0};
	rc = read_chain(s, tree, ret, err);
	if (rc == 0)
		rc = merge(ret, err);
	if (rc == 0)
		rc = mark_live(ret, err);
	if (rc < 0)
		rs_joined_done(ret);
	return rc;
}

void rs_joined_done(struct rs_joined *j)
{
	for (size_t i = 0; i < j->nr_chain; i++)
		rs_tree_record_done(&j->chain[i]);
	sc_vec_done(&j->inodes);
	sc_vec_done(&j->entries);
	sc_vec_done(&j->xattrs);
	sc_map_done(&j->by_number);
	sc_map_done(&j->names);
	sc_arena_done(&j->arena);
	*j = (struct rs_joined){0};
}
