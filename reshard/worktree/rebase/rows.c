/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the rows that a commit puts into the new tree beside the rows of the upper layer, or in their place: attributes
 * of written files, rows of ranks that had other coordinates, and names of objects that had no rows.
 */
#include "reshard/worktree/rebase/rows.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"

#define KEY(number) (const char *)&(number), sizeof(number)

/* Puts the row of an object.  The newest tree that has a row of an object tells all of it, so its extended attributes
 * go along, unless the upper layer brings them. */
static int put_row(struct rs_turn *t, const struct meta_inode_row *row)
{
	return rs_turn_put_object(t, row, rs_overlay_has(t->job->overlay, row->ino) ? 0 : row->ino);
}

/* --- files that were written, linked or renamed --- */

struct leaving {		/* names that leave an inode together, to be a file of their own */
	uint64_t key[2];	/* its number, and their group */
	uint64_t to;		/* the number that they get; that of the inode: they stay */
	uint32_t names;
	struct leaving *next;
};

struct left {			/* an inode that names leave */
	uint64_t ino;
	uint32_t names;		/* so many */
	struct leaving *first;
};

struct lefts {
	struct sc_map left, leaving;	/* by number; by number and group */
};

static struct leaving *leaving_of(const struct lefts *l, const struct rs_leave *name)
{
	const uint64_t key[2] = {name->ino, name->group};

	return sc_map_get(&l->leaving, KEY(key));
}

static int find_left(struct rs_turn *t, const struct rs_leaves *names, struct lefts *ret)
{
	for (size_t i = 0; i < names->nr; i++) {
		const struct rs_leave *n = &names->at[i];
		struct left *left = sc_map_make(&ret->left, KEY(n->ino), &t->texts, sizeof(*left));
		struct leaving *l = leaving_of(ret, n);

		if (!l) {
			l = sc_arena_alloc(&t->texts, sizeof(*l));
			if (!l || !left)
				return sc_nomem(t->err);
			*l = (struct leaving){.key = {n->ino, n->group}, .next = left->first};
			left->first = l;
			if (sc_map_put(&ret->leaving, KEY(l->key), l) < 0)
				return sc_nomem(t->err);
		}
		left->ino = n->ino;
		left->names++;
		l->names++;
	}
	return 0;
}

/* Makes the row of the file that names become which leave an inode; it has the attributes of that inode. */
static int put_left(struct rs_turn *t, const struct meta_inode_row *row, struct leaving *l)
{
	struct meta_inode_row own = *row;
	int rc = rs_number_take(t->job, &l->to, t->err);

	own.ino = l->to;
	own.nlink = l->names;
	own.blob = 0;
	return rc < 0 ? rc : rs_turn_put_object(t, &own, row->ino);
}

/* Gives a row to each group of names that leave a file, and subtracts these names from the file's own link count.  If
 * all names leave, one group keeps the number. */
static int part(struct rs_turn *t, const struct left *left, struct meta_inode_row *row)
{
	struct leaving *stays = NULL;
	int rc = 0;

	for (struct leaving *l = left->first; l && left->names >= row->nlink; l = l->next)
		if (l->key[1] != RS_LEAVE_GONE)
			stays = l;
	if (stays) {
		stays->to = row->ino;
		row->blob = 0;
	}
	for (struct leaving *l = left->first; rc == 0 && l; l = l->next)
		if (l != stays && l->key[1] != RS_LEAVE_GONE)
			rc = put_left(t, row, l);
	row->nlink = stays ? stays->names : row->nlink - left->names;
	return rc;
}

static int complete_row(struct rs_turn *t, const struct meta_inode_row *given, const struct left *left)
{
	struct meta_change x = {META_PUT_INODE};
	int rc = rs_overlay_inode(t->job->overlay, given->ino, &t->texts, &x.inode, t->err);

	if (rc <= 0)
		return rc;
	x.inode.mode = S_IFREG | (given->mode & 07777);
	x.inode.uid = given->uid;
	x.inode.gid = given->gid;
	x.inode.mtime_ns = given->mtime_ns;
	if (given->atime_ns)
		x.inode.atime_ns = given->atime_ns;
	if (given->ctime_ns > x.inode.ctime_ns)
		x.inode.ctime_ns = given->ctime_ns;
	x.inode.blob = given->blob;
	x.inode.data = META_LOWER_DATA;
	rc = left ? part(t, left, &x.inode) : 0;
	return rc < 0 ? rc : put_row(t, &x.inode);
}

/* Puts the names that leave an inode, as names of their own file.  This comes last, and takes the place of what other
 * rows say of these names. */
static int put_left_names(struct rs_turn *t, const struct rs_leaves *names, const struct lefts *lefts)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < names->nr; i++) {
		const struct rs_leave *n = &names->at[i];
		const struct leaving *l = leaving_of(lefts, n);

		rc = rs_turn_put_name(t, n->folder, n->name, n->group == RS_LEAVE_GONE ? 0 : l->to);
	}
	return rc;
}

static int put_files(struct rs_turn *t, const struct meta_changes *rows, const struct lefts *lefts)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < rows->nr; i++)
		rc = complete_row(t, &rows->at[i].inode, sc_map_get(&lefts->left, KEY(rows->at[i].inode.ino)));
	return rc;
}

struct counting {
	struct rs_turn *t;
	uint32_t folders;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct counting *c = arg;
	struct meta_inode_row row;
	uint32_t rank;
	int rc;

	if (sc_number_parse(name.at, name.nr, &rank) && rank < SC_RANKS_MAX)
		return 0;
	rc = rs_overlay_inode(c->t->job->overlay, ino, &c->t->texts, &row, c->t->err);
	c->folders += rc > 0 && S_ISDIR(row.mode);
	return rc < 0 ? rc : 0;
}

/* Puts the row of the job's folder, whose link count has a link for each rank of the topology, though nobody made these
 * folders. */
static int count_root(struct rs_turn *t)
{
	struct rs_job *job = t->job;
	struct counting c = {.t = t};
	struct meta_change x = {META_PUT_INODE};
	int rc = rs_overlay_inode(job->overlay, job->root, &t->texts, &x.inode, t->err);

	if (rc > 0)
		rc = rs_overlay_children(job->overlay, job->root, on_child, &c, t->err);
	x.inode.nlink = 2 + t->next->topo.ranks + c.folders;
	return rc < 0 ? rc : put_row(t, &x.inode);
}

/* --- other coordinates than those under which rows were made --- */

struct walk {
	struct rs_turn *t;
	uint64_t folder;
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;			/* still to be gone through */
};

/* Hides a name in a folder.  Another topology may show the object again if its number is virtual, so nothing that older
 * trees know of it may count. */
static int hide(void *arg, const struct meta_entry_row *row)
{
	struct walk *h = arg;
	int rc = 0;

	if (row->ino & META_VIRTUAL) {
		if (!rs_overlay_has(h->t->job->overlay, row->ino) && !rs_turn_has_other_number(h->t, row->ino))
			rc = rs_turn_put_nothing(h->t, row->ino);
		if (rc == 0 && sc_vec_push(&h->folders, row->ino) < 0)
			rc = sc_nomem(h->t->err);
	}
	return rc < 0 ? rc : rs_turn_put_name(h->t, h->folder, row->name, 0);
}

/* Hides all names that rows tell of in a folder, and in the virtual folders in it. */
static int hide_folder(struct rs_turn *t, struct meta_tree *tree, uint64_t folder)
{
	struct walk h = {.t = t};
	int rc = sc_vec_push(&h.folders, folder) < 0 ? sc_nomem(t->err) : 0;

	while (rc == 0 && h.folders.nr) {
		h.folder = h.folders.at[--h.folders.nr];
		rc = meta_tree_children(t->job->service->catalog, tree, h.folder, hide, &h, t->err);
	}
	sc_vec_done(&h.folders);
	return rc;
}

static int on_any_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	(void)name;
	(void)value;
	*(bool *)arg = true;
	return 0;
}

/* Tells whether a file needs no row because sets and datasets tell all of it: files of datasets and of tensors that
 * nobody changed, and that have no extended attributes.  1, 0 or an error. */
static int follows(struct rs_turn *t, const struct meta_inode_row *row)
{
	bool any = false;
	int rc;

	if (!S_ISREG(row->mode) || row->data == META_OWN_DATA || row->blob || rs_overlay_has(t->job->overlay, row->ino))
		return 0;
	rc = rs_overlay_xattrs(t->job->overlay, row->ino, on_any_xattr, &any, t->err);
	return rc < 0 ? rc : !any;
}

/* Puts an object, with its name, into the new tree for a rank that showed it by the rows of another rank. */
static int restate(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct walk *x = arg;
	struct rs_turn *t = x->t;
	struct meta_inode_row row;
	int rc = rs_overlay_inode(t->job->overlay, ino, &t->texts, &row, t->err);

	if (rc <= 0 || rs_is_special(row.mode))
		return rc < 0 ? rc : 0;
	rc = follows(t, &row);
	if (rc)
		return rc < 0 ? rc : 0;
	rc = rs_turn_put_name(t, x->folder, name, ino);
	if (rc == 0 && !rs_overlay_has(t->job->overlay, ino))
		rc = put_row(t, &row);
	if (rc == 0 && S_ISDIR(row.mode) && sc_vec_push(&x->folders, ino) < 0)
		rc = sc_nomem(t->err);
	return rc;
}

/* Puts the folder of such a rank, and all that is in it. */
static int restate_rank(struct rs_turn *t, uint64_t folder)
{
	struct walk x = {.t = t};
	struct meta_inode_row row;
	int rc = rs_overlay_inode(t->job->overlay, folder, &t->texts, &row, t->err);

	rc = rc > 0 ? put_row(t, &row) : rc;
	if (rc == 0)
		rc = sc_vec_push(&x.folders, folder) < 0 ? sc_nomem(t->err) : 0;
	while (rc == 0 && x.folders.nr) {
		x.folder = x.folders.at[--x.folders.nr];
		rc = rs_overlay_children(t->job->overlay, x.folder, restate, &x, t->err);
	}
	sc_vec_done(&x.folders);
	return rc;
}

/* Puts a name of a file of tensors that was one file with other names where it was written, and has its own bytes at
 * this topology: from now on it is a file of its own. */
static int restate_split(void *arg, const struct meta_entry_row *row)
{
	struct rs_turn *t = arg;
	struct meta_inode_row own;
	int rc = rs_overlay_still_names(t->job->overlay, row, t->err);

	if (rc <= 0)
		return rc;
	rc = rs_turn_put_name(t, row->parent, row->name, row->ino);
	if (rc < 0 || rs_overlay_has(t->job->overlay, row->ino))
		return rc;
	rc = rs_overlay_inode(t->job->overlay, row->ino, &t->texts, &own, t->err);
	return rc > 0 ? put_row(t, &own) : rc;
}

/* Gives rows of their own to the ranks that show rows of other ranks: all rows of a tree are made under one
 * topology. */
static int restate_ranks(struct rs_turn *t, struct rs_view *base)
{
	struct meta_tree tree = {.id = base->version->tree};
	struct rs_below *b;
	uint32_t had = 0;
	int rc = rs_view_below(base, &b, t->err);

	if (rc == 0)
		(void)rs_below_has_own_rows(b, 0, &had);
	for (uint32_t r = 0; rc == 0 && (r < had || r < base->topo.ranks); r++) {
		if (rs_below_has_own_rows(b, r, &had)) {
			rc = rs_below_each_split(b, r, restate_split, t, t->err);
			continue;
		}
		rc = hide_folder(t, &tree, t->job->root + 1 + r);
		if (rc == 0 && r < base->topo.ranks)
			rc = restate_rank(t, t->job->root + 1 + r);
	}
	return rc;
}

/* --- what had no rows: folders on the way to files of tensors, and such files --- */

struct pinning {
	struct rs_turn *t;
	bool any;			/* name was pinned */
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;			/* whose names are not pinned yet */
};

static int pin_name(void *arg, const struct meta_entry_row *row)
{
	struct pinning *p = arg;
	struct rs_turn *t = p->t;
	int rc = rs_overlay_still_names(t->job->overlay, row, t->err);

	if (rc <= 0)
		return rc;
	if ((row->parent & META_VIRTUAL) && sc_vec_push(&p->folders, row->parent) < 0)
		return sc_nomem(t->err);
	p->any = true;
	return rs_turn_put_name(t, row->parent, row->name, row->ino);
}

/* Puts the names of an object with a virtual number that has a row in the upper layer, and the rows and names of the
 * virtual folders above it.  Otherwise the object would vanish from a topology that has no files of tensors there. */
static int pin(void *arg, const struct meta_inode_row *upper)
{
	struct pinning p = {.t = arg};
	struct rs_turn *t = p.t;
	struct meta_inode_row row;
	struct rs_below *b;
	int rc = 0;

	if (!upper->nlink || !(upper->ino & META_VIRTUAL) || rs_turn_has_other_number(t, upper->ino))
		return 0;
	rc = rs_view_below(t->job->head, &b, t->err);
	if (rc == 0)
		rc = rs_below_names(b, upper->ino, pin_name, &p, t->err);
	while (rc == 0 && p.folders.nr) {
		uint64_t ino = p.folders.at[--p.folders.nr];

		p.any = false;
		rc = rs_below_names(b, ino, pin_name, &p, t->err);
		if (rc == 0 && p.any && !rs_overlay_has(t->job->overlay, ino)) {
			rc = rs_overlay_inode(t->job->overlay, ino, &t->texts, &row, t->err);
			rc = rc > 0 ? put_row(t, &row) : rc;
		}
	}
	sc_vec_done(&p.folders);
	return rc;
}

/* --- what was removed and may be there again at another topology, under the same number --- */

struct removing {
	struct rs_turn *t;
	struct rs_lower lower;
	uint64_t folder;
};

static int hide_removed(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct removing *r = arg;
	struct meta_tree tree = {.id = r->t->spec.base};
	uint64_t was = 0;
	int rc = r->lower.child(r->lower.arg, r->folder, name, &was, r->t->err);

	return rc == 0 && (was & META_VIRTUAL) && was != ino ? hide_folder(r->t, &tree, was) : rc;
}

static int hide_removed_in(void *arg, const struct meta_inode_row *folder)
{
	struct removing *r = arg;

	r->folder = folder->ino;
	return rs_overlay_entries(r->t->job->overlay, folder->ino, hide_removed, r);
}

/* --- the first version --- */

/* Puts the name of a rank's folder that has a row: the layer below had it (first.c), and no version comes to have it
 * otherwise. */
static int name_rank(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	const uint64_t root = t->job->root;
	char name[16];
	int n;

	if (!row->nlink || row->ino <= root || row->ino - root > SC_RANKS_MAX)
		return 0;
	n = snprintf(name, sizeof(name), "%u", (uint32_t)(row->ino - root - 1));
	return rs_turn_put_name(t, root, (struct meta_bytes){name, (size_t)n}, row->ino);
}

/* Puts all of these rows, but for the names that leave their inodes. */
static int put_others(struct rs_turn *t)
{
	struct rs_view *base = t->job->head;
	struct removing removing = {.t = t};
	int rc = count_root(t);

	if (rc == 0 && !base)
		rc = rs_overlay_each(t->job->overlay, name_rank, t);
	if (rc == 0 && t->spec.base)
		rc = restate_ranks(t, base);
	if (rc == 0 && base)
		rc = rs_overlay_each(t->job->overlay, pin, t);
	if (rc == 0 && t->spec.base)
		rc = rs_tree_lower(t->job, base, &removing.lower, t->err);
	return rc < 0 || !t->spec.base ? rc
				       : rs_overlay_each_folder(t->job->overlay, hide_removed_in, &removing);
}

int rs_turn_rows(struct rs_turn *t, const struct meta_changes *rows, const struct rs_leaves *leaves)
{
	struct lefts lefts = {0};
	int rc = leaves ? find_left(t, leaves, &lefts) : 0;

	if (rc == 0 && rows)
		rc = put_files(t, rows, &lefts);
	if (rc == 0)
		rc = put_others(t);
	if (rc == 0 && leaves)
		rc = put_left_names(t, leaves, &lefts);
	sc_map_done(&lefts.left);
	sc_map_done(&lefts.leaving);
	return rc;
}
