/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives new numbers to objects with virtual numbers that were renamed or linked, or that lie in a renamed folder.  A
 * virtual number is made of a path.  The object has another path now, so the version that a commit makes has it under a
 * number that is given once, as that of any file that a program made.
 */
#include "reshard/worktree/rebase/rows.h"

#include <sys/stat.h>

#define KEY(number) (const char *)&(number), sizeof(number)

struct other {			/* of t->others */
	uint64_t was, is;
};

static uint64_t now_of(const struct rs_turn *t, uint64_t ino)
{
	const struct other *x = ino & META_VIRTUAL ? sc_map_get(&t->others, KEY(ino)) : NULL;

	return x ? x->is : ino;
}

bool rs_turn_has_other_number(const struct rs_turn *t, uint64_t ino)
{
	return now_of(t, ino) != ino;
}

/* --- which they are --- */

struct finding {
	struct rs_turn *t;
	struct rs_lower lower;
	uint64_t folder;		/* whose entries are looked at */
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;			/* that were moved, and are to be gone through */
};

static int add(struct finding *f, uint64_t ino)
{
	struct rs_turn *t = f->t;
	struct other *x;
	int rc;

	if (sc_map_get(&t->others, KEY(ino)))
		return 0;
	x = sc_arena_alloc(&t->texts, sizeof(*x));
	if (!x)
		return sc_nomem(t->err);
	x->was = ino;
	rc = rs_number_take(t->job, &x->is, t->err);
	return rc < 0 ? rc : sc_map_put(&t->others, KEY(x->was), x) < 0 ? sc_nomem(t->err) : 0;
}

/* Takes a new number for an object that was renamed, or that lies in a renamed folder; remembers a folder, whose
 * children come next. */
static int on_moved(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct finding *f = arg;
	struct meta_inode_row row;
	int rc;

	(void)name;
	rc = rs_overlay_inode(f->t->job->overlay, ino, &f->t->texts, &row, f->t->err);
	if (rc <= 0)
		return rc;
	if (S_ISDIR(row.mode) && sc_vec_push(&f->folders, ino) < 0)
		return sc_nomem(f->t->err);
	return ino & META_VIRTUAL ? add(f, ino) : 0;
}

static int on_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct finding *f = arg;
	struct rs_turn *t = f->t;
	struct meta_inode_row row;
	uint64_t was = 0;
	int rc = 1;

	/* most entries are of files that were made since: these need no look at what is below */
	if (ino && !(ino & META_VIRTUAL))
		rc = rs_overlay_inode(t->job->overlay, ino, &t->texts, &row, t->err);
	if (!ino || rc <= 0 || (!(ino & META_VIRTUAL) && !S_ISDIR(row.mode)))
		return rc < 0 ? rc : 0;
	rc = f->lower.child(f->lower.arg, f->folder, name, &was, t->err);
	if (rc < 0 || was == ino)
		return rc;
	/* a folder that was made since has entries of its own */
	rc = f->lower.inode(f->lower.arg, ino, &t->texts, &row, t->err);
	return rc > 0 ? on_moved(f, name, ino) : rc;
}

static int on_folder(void *arg, const struct meta_inode_row *folder)
{
	struct finding *f = arg;

	f->folder = folder->ino;
	return rs_overlay_entries(f->t->job->overlay, folder->ino, on_entry, f);
}

int rs_turn_find_others(struct rs_turn *t)
{
	struct finding f = {.t = t};
	int rc = t->job->head ? rs_tree_lower(t->job, t->job->head, &f.lower, t->err) : 1;

	if (rc == 0)
		rc = rs_overlay_each_folder(t->job->overlay, on_folder, &f);
	while (rc == 0 && f.folders.nr)
		rc = rs_overlay_children(t->job->overlay, f.folders.at[--f.folders.nr], on_moved, &f, t->err);
	sc_vec_done(&f.folders);
	return rc < 0 ? rc : 0;
}

/* --- their rows, under the numbers that they had --- */

struct putting {
	struct rs_turn *t;
	struct rs_below *below;
	uint64_t ino, folder;
};

/* Puts a name that the object has in the lower layer and still has. */
static int on_old_name(void *arg, const struct meta_entry_row *row)
{
	const struct putting *p = arg;
	int rc = rs_overlay_still_names(p->t->job->overlay, row, p->t->err);

	return rc <= 0 ? rc : rs_turn_put_name(p->t, row->parent, row->name, row->ino);
}

static int on_upper_name(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct putting *p = arg;

	return rs_turn_has_other_number(p->t, ino) ? rs_turn_put_name(p->t, p->folder, name, ino) : 0;
}

static int on_upper_folder(void *arg, const struct meta_inode_row *folder)
{
	struct putting *p = arg;

	p->folder = folder->ino;
	return rs_overlay_entries(p->t->job->overlay, folder->ino, on_upper_name, p);
}

/* Puts the name of a child of such a folder, and the row of a child that is a folder, since its row names the folder
 * above it.  The names of special files stay in the upper layer. */
static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct putting *p = arg;
	struct rs_turn *t = p->t;
	struct meta_inode_row row;
	int rc = rs_overlay_inode(t->job->overlay, ino, &t->texts, &row, t->err);

	if (rc <= 0 || rs_is_special(row.mode))
		return rc < 0 ? rc : 0;
	rc = rs_turn_put_name(t, p->ino, name, ino);
	return rc == 0 && S_ISDIR(row.mode) && !rs_turn_has_other_number(t, ino) ? rs_turn_put_object(t, &row, 0) : rc;
}

static int put_row(struct putting *p)
{
	struct rs_turn *t = p->t;
	struct meta_inode_row row;
	int rc = rs_overlay_inode(t->job->overlay, p->ino, &t->texts, &row, t->err);

	return rc <= 0 ? rc : rs_turn_put_object(t, &row, p->ino);
}

/* Puts the names of an object, and the names in it if it is a folder. */
static int put_names(struct putting *p)
{
	struct rs_turn *t = p->t;
	struct meta_inode_row row;
	int rc = rs_below_names(p->below, p->ino, on_old_name, p, t->err);

	if (rc == 0)
		rc = rs_overlay_inode(t->job->overlay, p->ino, &t->texts, &row, t->err);
	return rc > 0 ? (S_ISDIR(row.mode) ? rs_overlay_children(t->job->overlay, p->ino, on_child, p, t->err) : 0)
		      : rc;
}

static int each_other(struct putting *p, int (*each)(struct putting *p))
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < p->t->others.room; i++) {
		const struct other *x = p->t->others.slots[i].value;

		p->ino = x ? x->was : 0;
		rc = x ? each(p) : 0;
	}
	return rc;
}

int rs_turn_put_others(struct rs_turn *t)
{
	struct putting p = {.t = t};
	int rc = t->others.nr ? rs_view_below(t->job->head, &p.below, t->err) : 1;

	/* rows of folders are there before what is put into them */
	if (rc == 0)
		rc = each_other(&p, put_row);
	if (rc == 0)
		rc = each_other(&p, put_names);
	if (rc == 0)
		rc = rs_overlay_each_folder(t->job->overlay, on_upper_folder, &p);
	return rc < 0 ? rc : 0;
}

/* --- the numbers that they get --- */

/* Replaces virtual numbers by the new ones in rows.  A row that hides a name keeps the number of its folder: another
 * topology may show the hidden file again. */
static void renumber(const struct rs_turn *t, struct meta_changes *rows)
{
	for (size_t i = 0; i < rows->nr; i++) {
		struct meta_change *x = &rows->at[i];

		if (x->kind == META_PUT_INODE) {
			x->inode.ino = now_of(t, x->inode.ino);
			x->inode.parent = now_of(t, x->inode.parent);
		} else if (x->kind == META_PUT_ENTRY && x->entry.ino) {
			x->entry.parent = now_of(t, x->entry.parent);
			x->entry.ino = now_of(t, x->entry.ino);
		} else if (x->kind == META_PUT_XATTR) {
			x->xattr.ino = now_of(t, x->xattr.ino);
		}
	}
}

static int hide_name(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct putting *p = arg;

	(void)ino;
	return rs_turn_put_name(p->t, p->ino, name, 0);
}

/* Keeps the rows of an object under its virtual number out of the tree, into which the upper layer moves as it is. */
static int leave_out(struct putting *p)
{
	struct rs_turn *t = p->t;
	int rc = rs_turn_put(t, &t->spec.rows, (struct meta_change){META_DROP_INODE, .inode.ino = p->ino});

	if (rc == 0)
		rc = rs_turn_put_nothing(t, p->ino);
	return rc < 0 ? rc : rs_overlay_entries(t->job->overlay, p->ino, hide_name, p);
}

/* Replaces virtual numbers in what stays in the upper layer: the names of special files in renumbered folders. */
static int renumber_upper(struct rs_turn *t)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->upper.nr; i++) {
		struct meta_entry_row e = t->upper.at[i].entry;

		if (t->upper.at[i].kind != META_PUT_ENTRY || !rs_turn_has_other_number(t, e.parent))
			continue;
		rc = rs_turn_put(t, &t->apart, (struct meta_change){META_DROP_ENTRY, .entry = e});
		e.parent = now_of(t, e.parent);
		if (rc == 0)
			rc = rs_turn_put(t, &t->apart, (struct meta_change){META_PUT_ENTRY, .entry = e});
	}
	renumber(t, &t->upper);
	return rc;
}

int rs_turn_renumber(struct rs_turn *t)
{
	struct putting p = {.t = t};
	int rc;

	if (!t->others.nr)
		return 0;
	renumber(t, &t->spec.rows);
	rc = renumber_upper(t);
	return rc < 0 ? rc : each_other(&p, leave_out);
}

void rs_turn_renumber_own(const struct rs_turn *t, struct rs_job *job)
{
	for (size_t i = 0; t->others.nr && i < job->by_blob.room; i++) {
		struct rs_own *own = job->by_blob.slots[i].value;

		if (own)
			own->ino = now_of(t, own->ino);
	}
}
