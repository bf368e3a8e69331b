/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another version below a working tree: in the catalog in the transaction that makes the version, in memory in one
 * instant after it, which cannot fail.  The gate is closed meanwhile: nobody changes the working tree.
 */
#include "reshard/turn/turn_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"
#include "meta/catalog/trees.h"

struct rs_turn {
	struct rs_job *job;
	struct rs_view *next;		/* borrowed */
	enum rs_turn_by by;
	bool moves;			/* a commit has rows for a tree */
	int64_t now_ns;
	struct meta_tree_spec spec;	/* of a commit */
	struct meta_changes upper;	/* rows that the upper layer will have */
	struct sc_map own;		/* the files of these */
	struct rs_layer *layer;
	struct rs_lower lower;
	struct sc_arena texts;
	struct sc_err *err;
};

static bool is_special(mode_t mode)
{
	return !S_ISDIR(mode) && !S_ISREG(mode) && !S_ISLNK(mode);
}

static int put(struct rs_turn *t, struct meta_changes *to, struct meta_change change)
{
	return sc_vec_push(to, change) < 0 ? sc_nomem(t->err) : 0;
}

/* --- what stays in the upper layer --- */

struct keeping {
	struct rs_turn *t;
	const struct meta_inode_row *row;
	bool all;			/* entries of what has no name */
};

static int keep_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	const struct keeping *k = arg;

	return put(k->t, &k->t->upper, (struct meta_change){META_PUT_XATTR, .xattr = {k->row->ino, name, value}});
}

static int keep_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct keeping *k = arg;
	struct meta_inode_row row = {0};
	int rc = ino && !k->all ? rs_overlay_inode(k->t->job->overlay, ino, &k->t->texts, &row, k->t->err) : 1;

	if (rc < 0 || (!k->all && (!ino || !is_special(row.mode))))
		return rc < 0 ? rc : 0;
	return put(k->t, &k->t->upper, (struct meta_change){META_PUT_ENTRY, .entry = {k->row->ino, name, ino}});
}

/* FIFOs, sockets and devices whose folder is still there, and what has no name. */
static int keep_row(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	struct keeping k = {t, row, row->nlink == 0};
	int rc = 0;

	t->moves |= row->nlink && !is_special(row->mode);
	if (row->nlink == 0 || is_special(row->mode)) {
		rc = put(t, &t->upper, (struct meta_change){META_PUT_INODE, .inode = *row});
		if (rc == 0)
			rc = rs_overlay_xattrs(t->job->overlay, row->ino, keep_xattr, &k, t->err);
	}
	return rc;
}

static int keep_names(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	struct keeping k = {t, row, row->nlink == 0};

	return S_ISDIR(row->mode) ? rs_overlay_entries(t->job->overlay, row->ino, keep_entry, &k) : 0;
}

/* Folders above special files need no row of their own to have upper entries: all folders with such are asked. */
static int keep_upper(struct rs_turn *t)
{
	const struct rs_overlay *o = t->job->overlay;
	int rc = rs_overlay_each(o, keep_row, t);

	if (rc == 0)
		rc = rs_overlay_each_folder(o, keep_names, t);
	return rc == 0 ? rs_overlay_each_again(o, &t->upper, t->err) : rc;
}

/* Drops special files whose folder the next version has not. */
static int drop_lost(struct rs_turn *t)
{
	struct meta_changes kept = {0};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->upper.nr; i++) {
		const struct meta_change *x = &t->upper.at[i];
		struct meta_inode_row row;

		if (x->kind == META_PUT_ENTRY) {
			rc = t->lower.inode(t->lower.arg, x->entry.parent, &t->texts, &row, t->err);
			if (rc == 0)
				continue;
		}
		rc = rc < 0 ? rc : put(t, &kept, *x);
	}
	/* a special file without any name left stays as one that has none */
	for (size_t i = 0; rc == 0 && i < kept.nr; i++) {
		struct meta_inode_row *row = &kept.at[i].inode;
		uint32_t names = 0;

		if (kept.at[i].kind != META_PUT_INODE || !is_special(row->mode))
			continue;
		for (size_t k = 0; k < kept.nr; k++)
			names += kept.at[k].kind == META_PUT_ENTRY && kept.at[k].entry.ino == row->ino;
		row->nlink = names;
	}
	meta_changes_done(&t->upper);
	t->upper = kept;
	return rc;
}

/* --- a commit: rows of the new tree that are not as the upper layer has them --- */

static int copy_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	const struct keeping *k = arg;
	struct rs_turn *t = k->t;
	struct meta_xattr_row row = {k->row->ino,
				     {sc_arena_copy(&t->texts, name.at, name.nr), name.nr},
				     {sc_arena_copy(&t->texts, value.at, value.nr), value.nr}};

	return !row.name.at || !row.value.at
		   ? sc_nomem(t->err)
		   : put(t, &t->spec.rows, (struct meta_change){META_PUT_XATTR, .xattr = row});
}

/* The newest tree that has a row tells all of an object: its attributes, too, unless they come from the upper layer. */
static int put_row(struct rs_turn *t, const struct meta_inode_row *row)
{
	struct keeping k = {t, row, false};
	int rc = put(t, &t->spec.rows, (struct meta_change){META_PUT_INODE, .inode = *row});

	if (rc == 0 && !rs_overlay_has(t->job->overlay, row->ino))
		rc = rs_overlay_xattrs(t->job->overlay, row->ino, copy_xattr, &k, t->err);
	return rc;
}

static int complete_row(struct rs_turn *t, const struct meta_inode_row *given)
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
	return put_row(t, &x.inode);
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

/* The job's folder has a link for each rank of the topology, which nobody made. */
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

struct hiding {
	struct rs_turn *t;
	uint64_t folder;
};

static int hide(void *arg, const struct meta_entry_row *row)
{
	const struct hiding *h = arg;
	struct rs_turn *t = h->t;
	struct meta_entry_row gone = {h->folder, {NULL, row->name.nr}, 0};

	gone.name.at = sc_arena_copy(&t->texts, row->name.at, row->name.nr);
	return gone.name.at ? put(t, &t->spec.rows, (struct meta_change){META_PUT_ENTRY, .entry = gone})
			    : sc_nomem(t->err);
}

struct again {
	struct rs_turn *t;
	uint64_t folder;
};

static int show_again(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct again *a = arg;
	struct rs_turn *t = a->t;

	if (!ino)
		return 0;
	return put(t, &t->spec.rows, (struct meta_change){META_PUT_ENTRY, .entry = {a->folder, name, ino}});
}

/* Rows of ranks that have other coordinates now would count again in the new tree: they are hidden for good. */
static int hide_stale(struct rs_turn *t, struct rs_view *base)
{
	struct meta_tree tree = {.id = base->version->tree};
	struct rs_below *b;
	uint32_t ranks = 0;
	int rc = rs_view_below(base, &b, t->err);

	if (rc == 0)
		(void)rs_below_has_rows(b, 0, &ranks);
	for (uint32_t r = 0; rc == 0 && r < ranks; r++) {
		struct hiding h = {t, t->job->root + 1 + r};
		struct again a = {t, h.folder};
		struct meta_change x = {META_PUT_INODE};

		if (rs_below_has_rows(b, r, &ranks))
			continue;
		rc = meta_tree_children(t->job->service->catalog, &tree, h.folder, hide, &h, t->err);
		if (rc == 0)
			rc = rs_overlay_entries(t->job->overlay, h.folder, show_again, &a);
		if (rc == 0)
			rc = rs_overlay_inode(t->job->overlay, h.folder, &t->texts, &x.inode, t->err);
		rc = rc > 0 ? put_row(t, &x.inode) : rc;
	}
	return rc;
}

/*
 * A folder that came with the topology has a number that is made of its path.  If one above it was renamed, what was
 * made in it would be lost.
 */
static int refuse_moved(void *arg, const struct meta_inode_row *row)
{
	struct rs_turn *t = arg;
	struct sc_buf name = {0};
	const char *path;
	uint64_t found = 0;
	uint32_t rank;
	int rc;

	if (!(row->ino & RS_VIRTUAL) || !row->nlink || !t->job->head)
		return 0;
	rank = rs_virtual_rank(t->job->head, row->ino);
	rc = rs_path_text(t->job->service, row->ino & (SC_PATHS_MAX - 1), &path, t->err);
	if (rc == 0)
		rc = rs_find_path(t->job, rank, path, &found, t->err);
	if (rc < 0 || found == row->ino)
		return rc;
	rc = rs_tree_name(t->job, row->ino, "", &name, t->err);
	if (rc == 0 && name.text)
		rc = sc_fail(t->err, SC_E_STATE, "%s came with the topology as '%s', and a folder above it was "
			     "renamed: copy it to where it is to be, and remove it", name.text, path);
	sc_buf_done(&name);
	return rc;
}

struct restating {
	struct rs_turn *t;
	struct rs_lower lower;
	struct {
		size_t nr, room;
		uint64_t *at;
	} folders;
};

static int restate(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct restating *x = arg;
	struct rs_turn *t = x->t;
	struct meta_change row = {META_PUT_INODE};
	int rc = x->lower.inode(x->lower.arg, ino, &t->texts, &row.inode, t->err);

	(void)name;
	if (rc > 0 && S_ISDIR(row.inode.mode))
		return sc_vec_push(&x->folders, ino) < 0 ? sc_nomem(t->err) : 0;
	if (rc <= 0 || !S_ISREG(row.inode.mode) || !row.inode.blob || rs_overlay_has(t->job->overlay, ino))
		return rc < 0 ? rc : 0;
	return put_row(t, &row.inode);
}

/* At another topology a file has the mode and the owner that follow from all who wrote it: the new tree says so. */
static int restate_files(struct rs_turn *t, struct rs_view *base)
{
	struct restating x = {.t = t};
	struct rs_below *b;
	int rc = rs_view_below(base, &b, t->err);

	if (rc < 0 || rs_below_is_same(b))
		return rc;
	x.lower = rs_below_lower(b);
	for (uint32_t r = 0; rc == 0 && r < base->topo.ranks; r++)
		rc = sc_vec_push(&x.folders, t->job->root + 1 + r) < 0 ? sc_nomem(t->err) : 0;
	while (rc == 0 && x.folders.nr)
		rc = x.lower.children(x.lower.arg, x.folders.at[--x.folders.nr], restate, &x, t->err);
	sc_vec_done(&x.folders);
	return rc;
}

static int plan_commit(struct rs_turn *t, const struct meta_changes *rows)
{
	const struct rs_version *v = t->next->version;
	struct rs_view *base = t->job->head;
	int rc = rs_overlay_each_folder(t->job->overlay, refuse_moved, t);

	if (rc == 0)
		rc = keep_upper(t);
	t->spec.job = t->job->id;
	t->spec.base = base ? base->version->tree : 0;
	t->spec.root = t->job->root;
	t->spec.layout = v->layout_id;
	t->spec.topology = v->topo.text;
	for (size_t i = 0; rc == 0 && rows && i < rows->nr; i++)
		rc = rows->at[i].kind == META_PUT_INODE ? complete_row(t, &rows->at[i].inode)
							: put(t, &t->spec.rows, rows->at[i]);
	if (rc == 0)
		rc = count_root(t);
	if (rc == 0 && base && base->version->tree)
		rc = hide_stale(t, base);
	if (rc == 0 && base && base->version->tree)
		rc = restate_files(t, base);
	return rc;
}

/* --- without a commit --- */

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static int plan_back(struct rs_turn *t)
{
	struct {
		size_t nr, room;
		uint64_t *at;
	} held = {0};
	struct rs_held what;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->job->by_blob.room; i++) {
		const struct rs_own *own = t->job->by_blob.slots[i].value;

		if (own && rs_work_is_open(t->job->service, own->blob))
			rc = sc_vec_push(&held, own->ino) < 0 ? sc_nomem(t->err) : 0;
	}
	if (held.nr)
		qsort(held.at, held.nr, sizeof(*held.at), by_number);
	what = (struct rs_held){held.at, held.nr};
	if (rc == 0)
		rc = rs_overlay_plan_back(t->job->overlay, t->now_ns, &t->lower, &what, &t->texts, &t->upper, t->err);
	sc_vec_done(&held);
	return rc;
}

/* --- the turn --- */

int rs_turn_plan(struct rs_job *job, struct rs_view *next, enum rs_turn_by by, const struct meta_changes *rows,
		 struct rs_turn **ret, struct sc_err *err)
{
	struct rs_turn *t = sc_zalloc(sizeof(*t));
	int rc = t ? rs_log_drain(job->service, err) : sc_nomem(err);

	if (!t)
		return rc;
	*t = (struct rs_turn){.job = job, .next = next, .by = by, .now_ns = sc_now_wall_ns(), .err = err};
	(void)pthread_rwlock_rdlock(&job->names);
	if (rc == 0 && by != RS_TURN_COMMIT)
		rc = rs_tree_lower(job, next, &t->lower, err);
	if (rc == 0 && by == RS_TURN_COMMIT)
		rc = plan_commit(t, rows);
	else if (rc == 0 && by == RS_TURN_BACK)
		rc = plan_back(t);
	else if (rc == 0)
		rc = keep_upper(t);
	if (rc == 0 && by == RS_TURN_STAY)
		rc = drop_lost(t);
	if (rc == 0)
		rc = rs_overlay_layer(&t->upper, &t->layer, err);
	if (rc == 0)
		rc = rs_own_of_rows(&t->upper, &t->own, err);
	(void)pthread_rwlock_unlock(&job->names);
	if (rc < 0) {
		rs_turn_done(t);
		return rc;
	}
	*ret = t;
	return 0;
}

static int save_commit(struct rs_turn *t, struct sc_err *err)
{
	struct rs_version *v = t->next->version;
	struct rs_view *base = t->job->head;
	int rc = 0;

	/* only a position in datasets has moved: the tree is the same */
	if (base && !t->moves)
		v->tree = base->version->tree;
	else
		rc = meta_tree_commit(t->job->service->catalog, &t->spec, &v->tree, err);
	v->floor_ns = base ? base->version->floor_ns : 0;
	/* it is read here, where it can still fail */
	return rc < 0 ? rc : rs_tree_lower(t->job, t->next, &t->lower, err);
}

int rs_turn_save(struct rs_turn *t, struct sc_err *err)
{
	struct meta_catalog *c = t->job->service->catalog;
	int rc;

	if (t->by == RS_TURN_COMMIT)
		return save_commit(t, err);
	if (t->by == RS_TURN_BACK && t->next)
		t->next->version->floor_ns = t->now_ns;
	rc = meta_upper_remove(c, t->job->id, err);
	return rc < 0 ? rc : meta_upper_apply(c, &t->upper, err);
}

/* The files of rows that are gone. */
static void remove_files(struct rs_service *s, const struct sc_map *old, const struct sc_map *now)
{
	struct sc_err ignored;

	for (size_t i = 0; i < old->room; i++) {
		const struct rs_own *own = old->slots[i].value;

		if (own && !rs_own_find(now, own->blob))
			(void)rs_remove_bytes(s, own->blob, &ignored); /* else: at the next start */
	}
}

static void show(struct rs_job *job, const struct rs_lower *lower, struct rs_layer *layer, struct rs_view *head)
{
	struct rs_view *old;

	(void)pthread_mutex_lock(&job->state);
	rs_overlay_put(job->overlay, lower, layer);
	old = rs_job_set_head(job, head);
	(void)pthread_mutex_unlock(&job->state);
	rs_count_nameless(job);
	(void)pthread_rwlock_unlock(&job->names);
	rs_job_head_was_set(job, head, old);
}

void rs_turn_show(struct rs_turn *t, struct rs_view *head)
{
	struct rs_job *job = t->job;
	struct sc_map old;

	(void)pthread_rwlock_wrlock(&job->names);
	if (t->by == RS_TURN_COMMIT)
		rs_own_sealed(job);
	old = job->by_blob;
	job->by_blob = t->own;
	t->own = (struct sc_map){0};
	show(job, &t->lower, t->layer, head);
	t->layer = NULL;
	if (t->by == RS_TURN_BACK && t->next)
		rs_below_note_floor(t->next);
	if (t->by != RS_TURN_COMMIT)
		remove_files(job->service, &old, &job->by_blob);
	rs_own_done(&old);
}

void rs_turn_done(struct rs_turn *t)
{
	if (!t)
		return;
	meta_changes_done(&t->spec.rows);
	meta_changes_done(&t->upper);
	rs_own_done(&t->own);
	rs_overlay_layer_done(t->layer);
	sc_arena_done(&t->texts);
	sc_sys.release(t);
}

void rs_tree_show(struct rs_job *job, struct rs_view *head)
{
	struct rs_lower lower = rs_committed_lower(&job->nothing);
	struct sc_err ignored;

	if (head)
		(void)rs_tree_lower(job, head, &lower, &ignored); /* it is there */
	(void)pthread_rwlock_wrlock(&job->names);
	show(job, &lower, NULL, head);
}
