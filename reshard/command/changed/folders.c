/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint folders of the job in which something was written or removed: each is complete, or the commit is refused
 * (F1 of reshard/checkpoint/folders/folder.h).  One that is of a kind which is not read in place is kept as its files;
 * `status` says so.  Reads, and keeps nothing.
 */
#include "reshard/command/changed/items_i.h"

#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

struct checking {
	struct commit *c;
	struct sc_map seen;		/* folders by path: `with` or `without` */
	struct {
		size_t nr, room;
		uint64_t *at;
	} read;				/* numbers of the head's folders that were */
	const char *whole;		/* path of a file whose folder has a newer .metadata, too */
};

/* --- files, as the new version will have them --- */

struct looking {
	struct commit *c;
	uint64_t ino;			/* of a folder of the working tree */
};

/* Goes down a path from a folder; *ret is 0 if there is nothing. */
static int walk(struct commit *c, uint64_t from, const char *path, uint64_t *ret, struct sc_err *err)
{
	int rc = 0;

	*ret = from;
	(void)pthread_rwlock_rdlock(&c->tree->names);
	for (const char *at = path, *end; rc == 0 && *at && *ret; at = end + (*end == '/')) {
		end = strchrnul(at, '/');
		rc = rs_overlay_child(c->tree->overlay, *ret, (struct meta_bytes){at, (size_t)(end - at)}, ret, err);
	}
	(void)pthread_rwlock_unlock(&c->tree->names);
	return rc;
}

int rs_commit_file(struct commit *c, uint64_t ino, struct rs_folder_file *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	int rc;

	(void)pthread_rwlock_rdlock(&c->tree->names);
	rc = rs_overlay_inode(c->tree->overlay, ino, &texts, &row, err);
	(void)pthread_rwlock_unlock(&c->tree->names);
	sc_arena_done(&texts);
	if (rc <= 0 || !S_ISREG(row.mode))
		return rc < 0 ? rc : 0;
	*ret = (struct rs_folder_file){.blob = row.blob, .uid = row.uid, .gid = row.gid, .mode = row.mode & 07777};
	for (size_t i = 0; i < c->items.nr; i++)
		if (c->items.at[i].ino == ino) { /* its row does not know how long it is */
			ret->blob = c->items.at[i].blob;
			ret->bytes = c->items.at[i].bytes;
			return 1;
		}
	rc = meta_blob_bytes(c->s->catalog, row.blob, &ret->bytes, err);
	return rc < 0 ? rc : 1;
}

static int find(void *arg, const char *path, struct rs_folder_file *ret, struct sc_err *err)
{
	const struct looking *l = arg;
	uint64_t ino;
	int rc = walk(l->c, l->ino, path, &ino, err);

	return rc < 0 || !ino ? rc : rs_commit_file(l->c, ino, ret, err);
}

/* --- folders in which something was written --- */

/* Tells whether a path is of a file that a save writes before its .metadata. */
static bool is_item_file(const char *path)
{
	const char *name = strrchr(path, '/');

	return name && strncmp(name + 1, "__", 2) == 0 && sc_ends_with(path, ".distcp");
}

/* values for what is known of a folder: it has no marker, it has one */
static char without, with;

static int refuse_unfinished(struct commit *c, const char *folder, const struct item *it)
{
	if (!folder)
		return sc_nomem(c->err);
	return sc_fail(c->err, SC_E_STATE, "checkpoint folder '%s': '%s' is there, but no .metadata: the save has not "
		       "ended, or was stopped; wait for it, or remove the folder (or keep it as it is by the line "
		       "'plain %s/*' in the layout)", folder, it->path, folder);
}

/* Tells whether a folder has a marker, and the layout does not call it plain: 1, 0 or an error. */
static int has_marker(struct looking *l, const char *folder, char **ret)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && rs_folder_marker(i); i++) {
		struct rs_folder_file found;
		char *path = sc_arena_printf(&l->c->arena, "%s/%s", folder, rs_folder_marker(i));

		if (!path)
			return sc_nomem(l->c->err);
		if (meta_layout_is_plain(l->c->layout, path)) {
			*ret = &with; /* nobody's business */
			return 0;
		}
		rc = find(l, rs_folder_marker(i), &found, l->c->err);
	}
	*ret = rc ? &with : &without;
	return rc;
}

/* Tells what an error of reading a folder means for the commit. */
static int judge(struct commit *c, const char *path, int rc, const struct sc_err *why)
{
	if (rc == SC_E_FORMAT)
		return sc_fail(c->err, rc, "%s; save it again, or keep it as it is by the line 'plain %s/*' in the "
			       "layout", why->msg, path);
	if (rc == SC_E_UNSUPPORTED || rc == SC_E_LIMIT)
		return 0; /* it may be whole, and only its owner can read it */
	if (rc < 0)
		*c->err = *why;
	return rc;
}

/* Refuses a file .metadata that cannot be parsed, beside files of a save: it was cut short, or never written. */
static int refuse_strange(struct looking *l, const char *folder, struct sc_err *err)
{
	struct rs_folder_file file;
	int rc = find(l, "__0_0.distcp", &file, err);

	return rc <= 0 ? rc
		       : sc_fail(err, SC_E_FORMAT, "checkpoint folder '%s': its .metadata is none of "
				 "torch.distributed: it was cut, or is of something else", folder);
}

static bool was_read(const struct checking *x, uint64_t ino)
{
	for (size_t i = 0; i < x->read.nr; i++)
		if (x->read.at[i] == ino)
			return true;
	return false;
}

static int check_folder(struct checking *x, const char *path, char **ret)
{
	struct commit *c = x->c;
	struct looking l = {c, 0};
	struct rs_folder *folder = NULL;
	struct sc_err why;
	int rc = walk(c, c->job->root, path, &l.ino, c->err);

	*ret = &without;
	if (rc == 0 && l.ino)
		rc = has_marker(&l, path, ret);
	if (rc <= 0 || was_read(x, l.ino))
		return rc < 0 ? rc : 0;
	rc = rs_folder_read(c->s->blobs, path, find, &l, &folder, &why);
	if (rc == 0 && !folder)
		rc = refuse_strange(&l, path, &why);
	rc = judge(c, path, rc, &why);
	if (rc == 0 && folder)
		rc = rs_commit_chunks(c, folder);
	rs_folder_unref(folder);
	return rc;
}

/* Checks the folders above a file, beginning with its own, up to one that was seen: a file of a save has its marker in
 * one of them. */
static int check_above(struct checking *x, const struct item *it)
{
	struct commit *c = x->c;
	const bool needs = !it->gone && is_item_file(it->path);
	const char *slash = strrchr(it->path, '/');
	bool marked = false;
	int rc = 0;

	for (size_t n; rc == 0 && slash; slash = memrchr(it->path, '/', n)) {
		char *path = sc_arena_copy(&c->arena, it->path, n = (size_t)(slash - it->path));
		char *has = path ? sc_map_get(&x->seen, path, n) : NULL;
		const bool known = has != NULL;

		if (path && !known)
			rc = check_folder(x, path, &has);
		if (!path || (rc == 0 && !known && sc_map_put(&x->seen, path, n, has) < 0))
			return sc_nomem(c->err);
		marked |= has == &with;
		if (known && (!needs || marked))
			return rc;
	}
	slash = strrchr(it->path, '/');
	if (rc < 0 || !needs || marked || !slash)
		return rc;
	return refuse_unfinished(c, sc_arena_copy(&c->arena, it->path, (size_t)(slash - it->path)), it);
}

/* --- folders that the head has, of which files were removed --- */

struct changed {
	struct checking *checking;
	struct commit *c;
	struct meta_tree tree;		/* the head's */
	struct {
		size_t nr, room;
		uint64_t *at;
	} inos;
	struct looking at;		/* the folder that is looked at */
	bool done;
};

static int on_changed(void *arg, const struct meta_inode_row *row)
{
	struct changed *x = arg;

	return row->nlink && sc_vec_push(&x->inos, row->ino) < 0 ? sc_nomem(x->c->err) : 0;
}

/* Checks a folder that was a checkpoint in the head: it is still whole, or its marker and its files went together. */
static int on_path(void *arg, int64_t rank, const char *path)
{
	struct changed *x = arg;
	struct commit *c = x->c;
	struct rs_folder *folder = NULL;
	struct rs_folder_file file;
	struct sc_err why;
	char *marker = sc_arena_printf(&c->arena, "%s/" RS_FOLDER_METADATA, path);
	int rc = marker ? 0 : sc_nomem(c->err);

	if (rc < 0 || rank != META_SHARED || !*path || x->done || meta_layout_is_plain(c->layout, marker))
		return rc;
	x->done = true;
	if (sc_vec_push(&x->checking->read, x->at.ino) < 0)
		return sc_nomem(c->err);
	rc = rs_folder_read(c->s->blobs, path, find, &x->at, &folder, &why);
	if (rc == 0 && !folder && (rc = find(&x->at, RS_FOLDER_METADATA, &file, &why)) > 0)
		rc = refuse_strange(&x->at, path, &why);
	if (rc < 0 || folder) {
		rc = judge(c, path, rc, &why);
		if (rc == 0 && folder)
			rc = rs_commit_chunks(c, folder);
		rs_folder_unref(folder);
		return rc;
	}
	rc = find(&x->at, "__0_0.distcp", &file, c->err);
	return rc <= 0 ? rc
		       : sc_fail(c->err, SC_E_STATE, "checkpoint folder '%s': its .metadata is gone, and "
				 "'__0_0.distcp' is there; remove all of it (or keep it as it is by the line 'plain "
				 "%s/*' in the layout)", path, path);
}

static int check_changed(struct checking *checking)
{
	struct commit *c = checking->c;
	struct changed x = {.checking = checking, .c = c, .tree.id = c->head ? c->head->version->tree : 0, .at.c = c};
	int rc;

	(void)pthread_rwlock_rdlock(&c->tree->names);
	rc = x.tree.id ? rs_overlay_each_folder(c->tree->overlay, on_changed, &x) : 0;
	(void)pthread_rwlock_unlock(&c->tree->names);
	for (size_t i = 0; rc == 0 && i < x.inos.nr; i++) {
		uint64_t marker = 0;

		x.at.ino = x.inos.at[i];
		x.done = false;
		for (size_t k = 0; rc == 0 && !marker && rs_folder_marker(k); k++)
			rc = meta_tree_child(c->s->catalog, &x.tree, x.at.ino,
					     (struct meta_bytes){rs_folder_marker(k), strlen(rs_folder_marker(k))},
					     &marker, c->err);
		if (rc == 0 && marker)
			rc = meta_tree_paths(c->s->catalog, &x.tree, x.at.ino, on_path, &x, c->err);
	}
	sc_vec_done(&x.inos);
	return rc;
}

static bool is_item(const struct commit *c, uint64_t ino)
{
	for (size_t i = 0; i < c->items.nr; i++)
		if (c->items.at[i].ino == ino && !c->items.at[i].gone)
			return true;
	return false;
}

static bool same_folder(const char *a, const char *b)
{
	const size_t n = (size_t)(strrchr(a, '/') - a);

	return strncmp(a, b, n + 1) == 0 && !strchr(b + n + 1, '/');
}

/* Refuses a save that has not ended.  A save writes .metadata last: new files beside the .metadata of the save before
 * would be taken for one checkpoint, of two saves. */
static int refuse_half_saved(struct checking *x, const struct item *it)
{
	struct commit *c = x->c;
	char *path = sc_arena_copy(&c->arena, it->path, strlen(it->path)), *slash;
	uint64_t ino = 0;
	int rc = path ? 0 : sc_nomem(c->err);

	while (rc == 0 && !ino && (slash = strrchr(path, '/'))) {
		const char *marker;

		*slash = 0;
		marker = sc_arena_printf(&c->arena, "%s/" RS_FOLDER_METADATA, path);
		if (marker && meta_layout_is_plain(c->layout, marker))
			return 0;
		rc = marker ? walk(c, c->job->root, marker, &ino, c->err) : sc_nomem(c->err);
	}
	if (rc < 0 || !ino || is_item(c, ino)) {
		x->whole = ino ? it->path : NULL;
		return rc;
	}
	return sc_fail(c->err, SC_E_STATE, "checkpoint folder '%s': '%s' was written, and its .metadata, which a save "
		       "writes last, was not: the save has not ended, or was stopped; wait for it, save again, or "
		       "discard (if the folder is whole all the same, put a copy of its .metadata in the place of it)",
		       path, it->path);
}

int rs_commit_folders(struct commit *c)
{
	struct checking x = {.c = c};
	int rc = check_changed(&x);

	for (size_t i = 0; rc == 0 && i < c->items.nr; i++) {
		const struct item *it = &c->items.at[i];

		if (it->rank != RS_SHARED)
			continue;
		rc = check_above(&x, it);
		if (rc == 0 && it->how == ITEM_WROTE && !it->gone && !it->moved && is_item_file(it->path) &&
		    !(x.whole && same_folder(x.whole, it->path)))
			rc = refuse_half_saved(&x, it);
	}
	sc_map_done(&x.seen);
	sc_vec_done(&x.read);
	return rc;
}
