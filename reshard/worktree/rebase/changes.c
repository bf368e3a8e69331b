/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists what was changed since the head, as files by rank and path: written files, and files of tensors, which sets
 * know by their paths.  All other changes are the tree's (turn.c).
 *
 * The time grows with the changes, not with the tree.  The upper layer tells which files were written and which names
 * are new.  The lower layer is asked for the names that written files had before, for the contents of folders that were
 * moved, and for the files of tensors of ranks in which anything changed.
 */
#include "reshard/worktree/rebase/turn_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "meta/base/text.h"

#define NAMES_SHOWN 4
#define KEY(number) (const char *)&(number), sizeof(number)

struct named {			/* a name of the upper layer */
	uint64_t parent, ino;
	struct meta_bytes name;
};

struct place {			/* where a folder is */
	uint64_t ino;
	uint32_t rank;
	const char *path;	/* NULL: it was removed */
	bool closed;		/* it, or one above, has got another mode or owner */
};

struct changes {
	struct rs_job *job;
	struct rs_lower lower;
	struct rs_below *below;		/* NULL: there is no version */
	struct {
		size_t nr, room;
		struct named *at;
	} names;
	struct sc_map name_of, places, homes;	/* folder -> its name, its place; folders of ranks with changes */
	struct {
		size_t nr, room;
		struct rs_change_row *at;
	} all;
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;			/* of a walk */
	uint64_t folder;		/* whose names are handed over */
	uint32_t rank;
	struct sc_arena texts;
	struct sc_err *err;
};

/* --- where a folder is --- */

static int has_other_mode(struct changes *x, uint64_t ino)
{
	struct meta_inode_row now, below;
	int rc = 0;

	if (rs_overlay_has(x->job->overlay, ino))
		rc = rs_overlay_inode(x->job->overlay, ino, &x->texts, &now, x->err);
	if (rc > 0)
		rc = x->lower.inode(x->lower.arg, ino, &x->texts, &below, x->err);
	return rc <= 0 ? rc : now.mode != below.mode || now.uid != below.uid || now.gid != below.gid;
}

struct finding_name {
	struct changes *x;
	uint64_t parent;
	struct meta_bytes name;		/* at NULL: none yet */
};

/* Takes a name that a folder has in the lower layer, if the working tree has not taken that name from the folder. */
static int on_lower_name(void *arg, const struct meta_entry_row *row)
{
	struct finding_name *f = arg;
	int rc = row->parent == f->parent ? rs_overlay_still_names(f->x->job->overlay, row, f->x->err) : 0;

	if (rc > 0) {
		f->name = (struct meta_bytes){sc_arena_copy(&f->x->texts, row->name.at, row->name.nr), row->name.nr};
		rc = f->name.at ? 0 : sc_nomem(f->x->err);
	}
	return rc;
}

static int place_of(struct changes *x, uint64_t ino, const struct place **ret);

static int make_place(struct changes *x, struct place *p)
{
	const uint64_t root = x->job->root;
	struct finding_name f = {.x = x};
	const struct named *named;
	const struct place *above;
	struct meta_inode_row row;
	int rc;

	if (p->ino >= root && p->ino - root <= SC_RANKS_MAX) {
		p->rank = p->ino == root ? RS_SHARED : (uint32_t)(p->ino - root - 1);
		p->path = "";
		rc = has_other_mode(x, p->ino);
		p->closed = rc > 0;
		return rc < 0 ? rc : 0;
	}
	rc = rs_overlay_inode(x->job->overlay, p->ino, &x->texts, &row, x->err);
	if (rc <= 0 || !row.nlink)
		return rc < 0 ? rc : 0;
	rc = place_of(x, row.parent, &above);
	if (rc < 0 || !above->path)
		return rc;
	f.parent = row.parent;
	named = sc_map_get(&x->name_of, KEY(p->ino));
	if (named)
		f.name = named->name;
	else if (x->below)
		rc = rs_below_names(x->below, p->ino, on_lower_name, &f, x->err);
	if (rc < 0 || !f.name.at)
		return rc;
	p->rank = above->rank;
	p->path = meta_path_in(&x->texts, above->path, f.name);
	if (!p->path)
		return sc_nomem(x->err);
	rc = has_other_mode(x, p->ino);
	p->closed = above->closed || rc > 0;
	return rc < 0 ? rc : 0;
}

static int place_of(struct changes *x, uint64_t ino, const struct place **ret)
{
	struct place *p = sc_map_get(&x->places, KEY(ino));
	int rc = 0;

	if (!p) {
		p = sc_arena_alloc(&x->texts, sizeof(*p));
		if (!p)
			return sc_nomem(x->err);
		p->ino = ino;
		if (sc_map_put(&x->places, KEY(p->ino), p) < 0)
			return sc_nomem(x->err);
		rc = make_place(x, p);
	}
	*ret = p;
	return rc;
}

/* --- files --- */

static int add(struct changes *x, const struct rs_change_row *row)
{
	return sc_vec_push(&x->all, *row) < 0 ? sc_nomem(x->err) : 0;
}

/* Lists a regular file under one of its names: the file was written, or the lower layer does not have this name. */
static int add_file(struct changes *x, uint64_t folder, struct meta_bytes name, const struct meta_inode_row *is)
{
	struct rs_change_row row = {.ino = is->ino, .blob = is->blob};
	const struct place *at = NULL;
	int rc = place_of(x, folder, &at);

	if (rc < 0 || !at->path)
		return rc;
	row.how = is->data == META_OWN_DATA ? RS_CHANGE_WROTE : RS_CHANGE_MOVED;
	row.rank = at->rank;
	row.path = meta_path_in(&x->texts, at->path, name);
	return row.path ? add(x, &row) : sc_nomem(x->err);
}

/* Lists a child of a moved folder, which moved with it. */
static int on_moved_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct changes *x = arg;
	struct meta_inode_row row;
	int rc = rs_overlay_inode(x->job->overlay, ino, &x->texts, &row, x->err);

	if (rc <= 0)
		return rc;
	if (S_ISDIR(row.mode))
		return sc_vec_push(&x->folders, ino) < 0 ? sc_nomem(x->err) : 0;
	return S_ISREG(row.mode) ? add_file(x, x->folder, name, &row) : 0;
}

static int add_moved_folder(struct changes *x, uint64_t ino)
{
	int rc = sc_vec_push(&x->folders, ino) < 0 ? sc_nomem(x->err) : 0;

	while (rc == 0 && x->folders.nr) {
		x->folder = x->folders.at[--x->folders.nr];
		rc = rs_overlay_children(x->job->overlay, x->folder, on_moved_child, x, x->err);
	}
	return rc;
}

static int add_name(struct changes *x, const struct named *n)
{
	struct meta_inode_row row, below;
	int rc = rs_overlay_inode(x->job->overlay, n->ino, &x->texts, &row, x->err);

	if (rc > 0 && S_ISREG(row.mode))
		return add_file(x, n->parent, n->name, &row);
	if (rc > 0 && S_ISDIR(row.mode)) {
		rc = x->lower.inode(x->lower.arg, n->ino, &x->texts, &below, x->err);
		return rc > 0 ? add_moved_folder(x, n->ino) : rc;
	}
	return rc < 0 ? rc : 0;
}

struct old_names {
	struct changes *x;
	const struct meta_inode_row *row;
};

/* Lists a written file under a name that it had in the lower layer and still has. */
static int on_old_name(void *arg, const struct meta_entry_row *row)
{
	const struct old_names *o = arg;
	struct changes *x = o->x;
	int rc = rs_overlay_still_names(x->job->overlay, row, x->err);

	return rc <= 0 ? rc : add_file(x, row->parent, row->name, o->row);
}

/* --- the upper layer --- */

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct changes *x = arg;
	struct old_names old = {x, row};
	uint64_t home = 0, *kept;
	int rc = row->nlink ? rs_tree_home(x->job, row, &x->texts, &home, x->err) : 0;

	if (rc < 0 || !home)
		return rc;
	if (!sc_map_get(&x->homes, KEY(home))) {
		kept = sc_arena_alloc(&x->texts, sizeof(*kept));
		if (!kept)
			return sc_nomem(x->err);
		*kept = home;
		if (sc_map_put(&x->homes, KEY(*kept), kept) < 0)
			return sc_nomem(x->err);
	}
	if (x->below && S_ISREG(row->mode) && row->data == META_OWN_DATA)
		rc = rs_below_names(x->below, row->ino, on_old_name, &old, x->err);
	return rc;
}

static int on_upper_name(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct changes *x = arg;

	if (!ino)
		return 0;
	return sc_vec_push(&x->names, ((struct named){x->folder, ino, name})) < 0 ? sc_nomem(x->err) : 0;
}

static int on_folder(void *arg, const struct meta_inode_row *row)
{
	struct changes *x = arg;

	x->folder = row->ino;
	return rs_overlay_entries(x->job->overlay, row->ino, on_upper_name, x);
}

/* --- files of tensors, by their paths below --- */

/* Tells whether a file of tensors that was neither moved nor written has another mode or owner than in the head, or
 * folders above it shut out more users: 1, 0 or an error. */
static int is_other(struct changes *x, const char *path, uint64_t ino, bool closed)
{
	struct meta_inode_row now, below;
	struct rs_owner owner;
	int rc = rs_overlay_inode(x->job->overlay, ino, &x->texts, &now, x->err);

	if (rc <= 0 || now.data == META_OWN_DATA)
		return rc < 0 ? rc : 0;
	rc = x->lower.inode(x->lower.arg, ino, &x->texts, &below, x->err);
	if (rc <= 0 || below.mode != now.mode || below.uid != now.uid || below.gid != now.gid)
		return rc < 0 ? rc : 1;
	owner = (struct rs_owner){below.uid, below.gid, below.mode & 07777};
	rc = closed ? rs_owner_limit_named(x->job, x->rank, path, &owner, x->err) : 0;
	return rc < 0 ? rc : (below.mode & ~owner.mode & 0077) != 0;
}

static int on_shard(void *arg, const char *path)
{
	struct changes *x = arg;
	struct rs_change_row row = {.how = RS_CHANGE_GONE, .rank = x->rank};
	uint64_t folder = x->job->root + 1 + x->rank, was = 0, now = 0;
	const char *slash = strrchr(path, '/');
	const char *above = slash ? sc_arena_copy(&x->texts, path, (size_t)(slash - path)) : "";
	const struct place *at = NULL;
	int rc;

	row.path = sc_arena_copy(&x->texts, path, strlen(path));
	rc = row.path && above ? rs_below_find(x->below, x->rank, path, &was, x->err) : sc_nomem(x->err);

	if (rc == 0)
		rc = rs_find_path(x->job, x->rank, path, &now, x->err);
	row.ino = was;
	if (rc == 0 && now != was)
		return add(x, &row);
	if (rc == 0)
		rc = rs_find_path(x->job, x->rank, above, &folder, x->err);
	if (rc == 0)
		rc = place_of(x, folder, &at);
	if (rc == 0 && (at->closed || rs_overlay_has(x->job->overlay, now)))
		rc = is_other(x, row.path, now, at->closed);
	row.how = RS_CHANGE_MOVED;
	return rc > 0 ? add(x, &row) : rc;
}

static int by_path(const void *a, const void *b)
{
	const struct rs_change_row *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return strcmp(x->path, y->path);
}

static int add_shards(struct changes *x)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && x->below && i < x->homes.room; i++) {
		const uint64_t *home = x->homes.slots[i].value;

		if (!home || *home == x->job->root)
			continue;
		x->rank = (uint32_t)(*home - x->job->root - 1);
		rc = rs_below_shards(x->below, x->rank, on_shard, x, x->err);
	}
	return rc;
}

/* Sorts the files by rank and path, and drops the second entry of a name that was found twice: as a new name, and in a
 * folder that was moved. */
static void sort(struct changes *x)
{
	size_t kept = 0;

	if (x->all.nr)
		qsort(x->all.at, x->all.nr, sizeof(*x->all.at), by_path);
	for (size_t i = 0; i < x->all.nr; i++) {
		struct rs_change_row *last = kept ? &x->all.at[kept - 1] : NULL;

		if (last && by_path(last, &x->all.at[i]) == 0) {
			/* what is there now stands before what was there */
			if (last->how == RS_CHANGE_GONE)
				*last = x->all.at[i];
			continue;
		}
		x->all.at[kept++] = x->all.at[i];
	}
	x->all.nr = kept;
}

/* Fills in all changes.  The caller holds job.names. */
static int find(struct changes *x)
{
	struct rs_job *job = x->job;
	int rc = rs_tree_lower(job, job->head, &x->lower, x->err);

	if (rc == 0 && job->head)
		rc = rs_view_below(job->head, &x->below, x->err);
	if (rc == 0)
		rc = rs_overlay_each_folder(job->overlay, on_folder, x);
	for (size_t i = 0; rc == 0 && i < x->names.nr; i++)
		if (sc_map_put(&x->name_of, KEY(x->names.at[i].ino), &x->names.at[i]) < 0)
			rc = sc_nomem(x->err);
	if (rc == 0)
		rc = rs_overlay_each(job->overlay, on_row, x);
	for (size_t i = 0; rc == 0 && i < x->names.nr; i++)
		rc = add_name(x, &x->names.at[i]);
	if (rc == 0)
		rc = add_shards(x);
	sort(x);
	return rc;
}

static void done(struct changes *x)
{
	sc_vec_done(&x->names);
	sc_vec_done(&x->all);
	sc_vec_done(&x->folders);
	sc_map_done(&x->name_of);
	sc_map_done(&x->places);
	sc_map_done(&x->homes);
	sc_arena_done(&x->texts);
}

int rs_tree_changes(struct rs_job *job, rs_change_row_fn *fn, void *arg, struct sc_err *err)
{
	struct changes x = {.job = job, .err = err};
	int rc;

	(void)pthread_rwlock_rdlock(&job->names);
	rc = find(&x);
	(void)pthread_rwlock_unlock(&job->names);
	for (size_t i = 0; rc == 0 && i < x.all.nr; i++)
		rc = fn(arg, &x.all.at[i]);
	done(&x);
	return rc;
}

/* --- what is uncommitted --- */

struct dirt {
	struct rs_job *job;
	struct rs_lower lower;
	struct rs_dirt *ret;
	struct sc_buf *names;
	size_t named;
	bool specials;			/* these are to be named, not the rest */
	const struct sc_map *but;	/* these numbers do not count */
	struct sc_arena texts;
	uint64_t folder;
	struct sc_err *err;
};

static int name_one(struct dirt *d, uint64_t ino, const char *more)
{
	if (!d->names || d->named == NAMES_SHOWN)
		return 0;
	if (d->named++)
		sc_buf_printf(d->names, ", ");
	return rs_tree_name(d->job, ino, more, d->names, d->err);
}

/* Counts a removed name, whether or not something has the name again; not that of a rank's folder, which no version has
 * yet. */
static int on_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct dirt *d = arg;
	char text[256];
	uint32_t rank;
	int rc = 0;

	if (ino || (d->lower.lets_ranks_go && d->folder == d->job->root && sc_number_parse(name.at, name.nr, &rank)))
		return 0;
	d->ret->nr++;
	memcpy(text, name.at, name.nr);
	text[name.nr] = 0;
	if (!d->specials)
		rc = name_one(d, d->folder, text);
	return rc;
}

static bool differs(const struct meta_inode_row *a, const struct meta_inode_row *b)
{
	return a->mode != b->mode || a->uid != b->uid || a->gid != b->gid || a->parent != b->parent;
}

/* Adds an attribute to a sum that does not depend on the order of the attributes. */
static int add_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	*(uint64_t *)arg += XXH3_64bits_withSeed(value.at, value.nr, XXH3_64bits(name.at, name.nr));
	return 0;
}

static int xattrs_differ(struct dirt *d, uint64_t ino)
{
	uint64_t now = 0, below = 0;
	int rc = rs_overlay_xattrs(d->job->overlay, ino, add_xattr, &now, d->err);

	if (rc == 0)
		rc = d->lower.xattrs(d->lower.arg, ino, add_xattr, &below, d->err);
	return rc < 0 ? rc : now != below;
}

static int on_dirt(void *arg, const struct meta_inode_row *row)
{
	struct dirt *d = arg;
	bool special = !S_ISDIR(row->mode) && !S_ISREG(row->mode) && !S_ISLNK(row->mode), is = !special;
	struct meta_inode_row below;
	int rc = 0;

	if (!row->nlink || (d->but && sc_map_get(d->but, KEY(row->ino))))
		return 0;
	if (S_ISDIR(row->mode)) {
		/* times of folders change by themselves */
		rc = d->lower.inode(d->lower.arg, row->ino, &d->texts, &below, d->err);
		is = rc == 0 || differs(row, &below);
		if (rc > 0 && !is) {
			rc = xattrs_differ(d, row->ino);
			is = rc > 0;
		}
		d->folder = row->ino;
		if (rc >= 0)
			rc = rs_overlay_entries(d->job->overlay, row->ino, on_entry, d);
	}
	d->ret->nr += is;
	d->ret->others += is && row->data != META_OWN_DATA;
	d->ret->special += special;
	if (rc >= 0 && (d->specials ? special : is))
		rc = name_one(d, row->ino, "");
	return rc < 0 ? rc : 0;
}

static int find_dirt(struct rs_job *job, bool specials, const struct sc_map *but, struct rs_dirt *ret,
		     struct sc_buf *names, struct sc_err *err)
{
	struct dirt d = {.job = job, .ret = ret, .names = names, .specials = specials, .but = but, .err = err};
	int rc;

	*ret = (struct rs_dirt){0};
	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_tree_lower(job, job->head, &d.lower, err);
	if (rc == 0)
		rc = rs_overlay_each(job->overlay, on_dirt, &d);
	(void)pthread_rwlock_unlock(&job->names);
	sc_arena_done(&d.texts);
	return rc;
}

int rs_tree_dirt(struct rs_job *job, struct rs_dirt *ret, struct sc_buf *names, struct sc_err *err)
{
	return find_dirt(job, false, NULL, ret, names, err);
}

int rs_tree_dirt_but(struct rs_job *job, const struct sc_map *but, struct rs_dirt *ret, struct sc_buf *names,
		     struct sc_err *err)
{
	return find_dirt(job, false, but, ret, names, err);
}

int rs_tree_specials(struct rs_job *job, struct sc_buf *names, struct sc_err *err)
{
	struct rs_dirt dirt;

	return find_dirt(job, true, NULL, &dirt, names, err);
}
