/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was changed since the head, in terms of its sets: files by rank and path.  Both trees of each rank that has
 * anything in the upper layer are walked, as they are now and as they are below, and compared.
 */
#include "reshard/turn/turn_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "meta/base/text.h"

#define NAMES_SHOWN 4

struct seen {
	const char *path;
	uint64_t ino;
	bool closed;			/* a folder above has got another mode or owner */
};

struct tree {
	struct seen *at;
	size_t nr, room;
};

struct walk {
	struct rs_job *job;
	const struct rs_lower *lower;	/* NULL: the tree as it is now */
	const struct rs_lower *below;
	struct sc_arena *texts;
	struct tree files, folders;	/* folders: still to be walked */
	const char *above;
	bool at_root, closed;
	struct sc_err *err;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct walk *w = arg;
	struct meta_inode_row row;
	struct seen x = {NULL, ino, w->closed};
	uint32_t rank;
	int rc;

	if (w->at_root && sc_number_parse(name.at, name.nr, &rank) && rank < SC_RANKS_MAX)
		return 0;
	rc = w->lower ? w->lower->inode(w->lower->arg, ino, w->texts, &row, w->err)
		      : rs_overlay_inode(w->job->overlay, ino, w->texts, &row, w->err);
	if (rc <= 0)
		return rc;
	if (!S_ISDIR(row.mode) && !S_ISREG(row.mode))
		return 0;
	x.path = sc_arena_printf(w->texts, "%s%s%.*s", w->above, *w->above ? "/" : "", (int)name.nr, name.at);
	if (!x.path || (S_ISDIR(row.mode) ? sc_vec_push(&w->folders, x) : sc_vec_push(&w->files, x)) < 0)
		return sc_nomem(w->err);
	return 0;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct seen *)a)->path, ((const struct seen *)b)->path);
}

static int has_other_mode(struct walk *w, uint64_t ino)
{
	struct meta_inode_row now, below;
	int rc = 0;

	if (rs_overlay_has(w->job->overlay, ino))
		rc = rs_overlay_inode(w->job->overlay, ino, w->texts, &now, w->err);
	if (rc > 0)
		rc = w->below->inode(w->below->arg, ino, w->texts, &below, w->err);
	return rc <= 0 ? rc : now.mode != below.mode || now.uid != below.uid || now.gid != below.gid;
}

/* All regular files of a rank (or of the job's own folder), by path. */
static int walk_home(struct walk *w, uint64_t home)
{
	int rc = sc_vec_push(&w->folders, (struct seen){"", home}) < 0 ? sc_nomem(w->err) : 0;

	while (rc == 0 && w->folders.nr) {
		struct seen folder = w->folders.at[--w->folders.nr];

		w->above = folder.path;
		w->at_root = folder.ino == w->job->root;
		rc = w->lower ? 0 : has_other_mode(w, folder.ino);
		w->closed = folder.closed || rc > 0;
		if (rc < 0)
			return rc;
		rc = w->lower ? w->lower->children(w->lower->arg, folder.ino, on_child, w, w->err)
			      : rs_overlay_children(w->job->overlay, folder.ino, on_child, w, w->err);
	}
	if (w->files.nr)
		qsort(w->files.at, w->files.nr, sizeof(*w->files.at), by_path);
	return rc;
}

static void walk_done(struct walk *w)
{
	sc_vec_done(&w->files);
	sc_vec_done(&w->folders);
}

/* --- which ranks --- */

struct homes {
	struct rs_job *job;
	struct {
		size_t nr, room;
		uint64_t *at;
	} all;
	struct sc_arena *texts;
	struct sc_err *err;
};

static int on_row(void *arg, const struct meta_inode_row *row)
{
	struct homes *h = arg;
	uint64_t ino = 0;
	int rc = row->nlink ? rs_tree_home(h->job, row, h->texts, &ino, h->err) : 0;

	if (rc < 0 || !ino)
		return rc;
	for (size_t i = 0; i < h->all.nr; i++)
		if (h->all.at[i] == ino)
			return 0;
	return sc_vec_push(&h->all, ino) < 0 ? sc_nomem(h->err) : 0;
}

/* --- comparing --- */

struct comparing {
	struct rs_job *job;
	uint32_t rank;
	struct rs_lower lower;
	rs_change_row_fn *fn;
	void *arg;
	struct sc_arena *texts;
	struct sc_err *err;
};

static int on_gone(const struct comparing *c, const struct seen *was)
{
	const struct rs_change_row row = {.how = RS_CHANGE_GONE, .rank = c->rank, .path = was->path, .ino = was->ino};

	return c->fn(c->arg, &row);
}

/* Do the folders above a file limit who may read it more than they did?  1, 0 or an error. */
static int is_closed(const struct comparing *c, const struct seen *file, const struct meta_inode_row *row)
{
	struct rs_owner now = {row->uid, row->gid, row->mode & 07777}, was = now;
	struct rs_look look = {0};
	struct rs_below *b;
	int rc = rs_view_below(c->job->head, &b, c->err);

	if (rc == 0)
		rc = rs_below_look(b, c->rank, file->path, &look, c->err);
	was.mode &= look.owner.mode;
	if (rc == 0)
		rc = rs_owner_limit_named(c->job, c->rank, file->path, &now, c->err);
	return rc < 0 ? rc : (was.mode & ~now.mode & 0077) != 0;
}

/* A file that is there; `was`: what was at its path, NULL: nothing. */
static int on_there(const struct comparing *c, const struct seen *now, const struct seen *was)
{
	struct rs_change_row row = {.rank = c->rank, .path = now->path, .ino = now->ino};
	bool same = was && was->ino == now->ino;
	struct meta_inode_row is, below;
	struct rs_look look;
	int rc;

	if (same && !rs_overlay_has(c->job->overlay, now->ino) && !now->closed)
		return 0;
	rc = rs_overlay_inode(c->job->overlay, now->ino, c->texts, &is, c->err);
	if (rc <= 0)
		return rc;
	row.how = is.data == META_OWN_DATA ? RS_CHANGE_WROTE : RS_CHANGE_MOVED;
	row.blob = is.blob;
	row.owner = (struct rs_owner){is.uid, is.gid, is.mode & 07777};
	row.mtime_ns = is.mtime_ns;
	if (row.how == RS_CHANGE_WROTE)
		return c->fn(c->arg, &row);
	if (same) {
		rc = c->lower.inode(c->lower.arg, now->ino, c->texts, &below, c->err);
		if (rc > 0 && below.mode == is.mode && below.uid == is.uid && below.gid == is.gid) {
			/* times and attributes are the tree's */
			rc = now->closed ? is_closed(c, now, &below) : 0;
			if (rc == 0)
				return 0;
		}
		if (rc < 0)
			return rc;
	}
	rc = rs_look_below(c->job->head, now->ino, &look, c->err);
	if (rc < 0 || !rs_look_is_committed(&look))
		return rc;
	row.blob = look.kind == RS_BLOB ? look.blob : 0;
	row.bytes = look.bytes;
	return c->fn(c->arg, &row);
}

static int compare(const struct comparing *c, const struct tree *now, const struct tree *was)
{
	size_t k = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < now->nr; i++) {
		const struct seen *at = NULL;

		while (rc == 0 && k < was->nr && strcmp(was->at[k].path, now->at[i].path) < 0)
			rc = on_gone(c, &was->at[k++]);
		if (rc == 0 && k < was->nr && strcmp(was->at[k].path, now->at[i].path) == 0)
			at = &was->at[k++];
		if (rc == 0)
			rc = on_there(c, &now->at[i], at);
	}
	while (rc == 0 && k < was->nr)
		rc = on_gone(c, &was->at[k++]);
	return rc;
}

static int compare_home(struct rs_job *job, uint64_t home, rs_change_row_fn *fn, void *arg, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct comparing c = {.job = job, .rank = home == job->root ? RS_SHARED : (uint32_t)(home - job->root - 1),
			      .fn = fn, .arg = arg, .texts = &texts, .err = err};
	struct walk now = {.job = job, .texts = &texts, .err = err}, was = now;
	int rc = rs_tree_lower(job, job->head, &c.lower, err);

	now.below = was.lower = &c.lower;
	if (rc == 0)
		rc = walk_home(&now, home);
	if (rc == 0)
		rc = walk_home(&was, home);
	if (rc == 0)
		rc = compare(&c, &now.files, &was.files);
	walk_done(&now);
	walk_done(&was);
	sc_arena_done(&texts);
	return rc;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int rs_tree_changes(struct rs_job *job, rs_change_row_fn *fn, void *arg, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct homes h = {.job = job, .texts = &texts, .err = err};
	int rc;

	(void)pthread_rwlock_rdlock(&job->names);
	rc = rs_overlay_each(job->overlay, on_row, &h);
	if (h.all.nr)
		qsort(h.all.at, h.all.nr, sizeof(*h.all.at), by_number);
	for (size_t i = 0; rc == 0 && i < h.all.nr; i++)
		rc = compare_home(job, h.all.at[i], fn, arg, err);
	(void)pthread_rwlock_unlock(&job->names);
	sc_vec_done(&h.all);
	sc_arena_done(&texts);
	return rc;
}

/* --- shards under other names --- */

struct shards {
	struct rs_below *below;
	struct {
		size_t nr, room;
		uint64_t *at;
	} inos;
	struct sc_err *err;
};

static int on_change(void *arg, const struct rs_change_row *row)
{
	struct shards *x = arg;

	if (row->how != RS_CHANGE_MOVED || !rs_below_is_shard(x->below, row->ino))
		return 0;
	return sc_vec_push(&x->inos, row->ino) < 0 ? sc_nomem(x->err) : 0;
}

int rs_tree_own_shards(struct rs_job *job, struct sc_err *err)
{
	struct shards x = {.err = err};
	uint64_t blob;
	int rc = job->head ? rs_view_below(job->head, &x.below, err) : 0;

	if (rc == 0 && x.below)
		rc = rs_tree_changes(job, on_change, &x, err);
	for (size_t i = 0; rc == 0 && i < x.inos.nr; i++)
		rc = rs_tree_copy_up(job->service, job, rs_overlay_shown(job->overlay, x.inos.at[i]), false, &blob,
				     err);
	sc_vec_done(&x.inos);
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

/* A name that was removed, whatever is there now. */
static int on_entry(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct dirt *d = arg;
	char text[256];
	int rc = 0;

	if (ino)
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

/* The same in any order. */
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

	if (!row->nlink)
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

static int find_dirt(struct rs_job *job, bool specials, struct rs_dirt *ret, struct sc_buf *names, struct sc_err *err)
{
	struct dirt d = {.job = job, .ret = ret, .names = names, .specials = specials, .err = err};
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
	return find_dirt(job, false, ret, names, err);
}

int rs_tree_specials(struct rs_job *job, struct sc_buf *names, struct sc_err *err)
{
	struct rs_dirt dirt;

	return find_dirt(job, true, &dirt, names, err);
}
