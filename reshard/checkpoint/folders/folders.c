/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the checkpoint folders of the last few committed trees that were asked for; these never change. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/limits.h"
#include "reshard/checkpoint/folders/folder.h"

#define KEPT 4 /* trees; a folder of 100,000 chunks takes 25 MB */

struct rs_folders {
	struct meta_catalog *catalog;
	struct rs_blobs *blobs;
	pthread_mutex_t lock;
	struct of_tree {
		uint64_t tree;
		size_t nr, room;
		struct rs_folder **at;
	} kept[KEPT];			/* most recent first; tree 0: none */
};

struct rs_folders *rs_folders_new(struct meta_catalog *catalog, struct rs_blobs *blobs)
{
	struct rs_folders *f = sc_zalloc(sizeof(*f));

	if (!f)
		return NULL;
	f->catalog = catalog;
	f->blobs = blobs;
	(void)pthread_mutex_init(&f->lock, NULL);
	return f;
}

static void of_tree_done(struct of_tree *t)
{
	for (size_t i = 0; i < t->nr; i++)
		rs_folder_unref(t->at[i]);
	sc_vec_done(t);
	t->tree = 0;
}

struct rs_folders *rs_folders_free(struct rs_folders *f)
{
	if (!f)
		return NULL;
	for (int i = 0; i < KEPT; i++)
		of_tree_done(&f->kept[i]);
	(void)pthread_mutex_destroy(&f->lock);
	sc_sys.release(f);
	return NULL;
}

/* --- one tree --- */

struct walk {
	struct rs_folders *f;
	struct meta_tree tree;
	struct {
		size_t nr, room;
		uint64_t *at;
	} inos;			/* of folders with a .metadata */
	uint64_t ino;		/* of the one that is read */
	struct of_tree found;
	struct sc_err *err;
};

static int on_folder(void *arg, uint64_t ino)
{
	struct walk *w = arg;

	return sc_vec_push(&w->inos, ino) < 0 ? sc_nomem(w->err) : 0;
}

/* Narrows a file's mode by the folders above it: a user who cannot reach the file may not read what is made of it. */
static int limit(struct walk *w, uint64_t folder, struct rs_folder_file *file, struct sc_err *err)
{
	struct meta_inode_row row;
	int rc = 1;

	for (unsigned depth = 0; rc > 0 && folder && depth < SC_PATH_BYTES_MAX; depth++) {
		rc = meta_tree_inode(w->f->catalog, &w->tree, folder, &row, NULL, err);
		if (rc > 0 && row.parent) /* the job's own folder lets the same in here and there */
			file->mode = meta_mode_below(file->mode, file->gid, &row);
		folder = rc > 0 ? row.parent : 0;
	}
	return rc < 0 ? rc : 0;
}

/* Finds a file below the folder, in the rows of the tree. */
static int find(void *arg, const char *path, struct rs_folder_file *ret, struct sc_err *err)
{
	struct walk *w = arg;
	struct meta_inode_row row;
	uint64_t ino = w->ino, folder = ino;
	int rc = 0;

	for (const char *at = path, *end; rc == 0 && *at && ino; at = end + (*end == '/')) {
		end = strchrnul(at, '/');
		folder = ino;
		rc = meta_tree_child(w->f->catalog, &w->tree, ino, (struct meta_bytes){at, (size_t)(end - at)}, &ino,
				     err);
	}
	if (rc == 0 && ino)
		rc = meta_tree_inode(w->f->catalog, &w->tree, ino, &row, NULL, err);
	if (rc <= 0 || !S_ISREG(row.mode) || !row.blob)
		return rc < 0 ? rc : 0;
	*ret = (struct rs_folder_file){.blob = row.blob, .uid = row.uid, .gid = row.gid, .mode = row.mode & 07777};
	rc = limit(w, folder, ret, err);
	if (rc == 0)
		rc = meta_blob_bytes(w->f->catalog, row.blob, &ret->bytes, err);
	return rc < 0 ? rc : 1;
}

/* Makes a folder that says why it cannot be read. */
static struct rs_folder *closed_folder(const char *path, const struct sc_err *why)
{
	struct rs_folder *f = sc_zalloc(sizeof(*f));

	if (!f)
		return NULL;
	f->refs = 1;
	f->path = f->file = sc_arena_copy(&f->arena, path, strlen(path));
	f->why = sc_arena_copy(&f->arena, why->msg, strlen(why->msg));
	if (f->path && f->why)
		return f;
	rs_folder_unref(f);
	return NULL;
}

/* Is called with each path of a folder that has a marker; reads the folder, if it is the job's and not a rank's. */
static int on_path(void *arg, int64_t rank, const char *path)
{
	struct walk *w = arg;
	struct rs_folder *folder = NULL;
	struct sc_err why;
	int rc;

	if (rank != META_SHARED || !*path)
		return 0;
	rc = rs_folder_read(w->f->blobs, path, find, w, &folder, &why);
	if (rc < 0 && rc != SC_E_NO_MEMORY)
		folder = closed_folder(path, &why);
	if (!folder)
		return rc < 0 ? sc_nomem(w->err) : 0;
	if (sc_vec_push(&w->found, folder) == 0)
		return 0;
	rs_folder_unref(folder);
	return sc_nomem(w->err);
}

static int by_path(const void *a, const void *b)
{
	return strcmp((*(struct rs_folder *const *)a)->path, (*(struct rs_folder *const *)b)->path);
}

static int read_tree(struct rs_folders *f, uint64_t tree, struct of_tree *ret, struct sc_err *err)
{
	struct walk w = {.f = f, .tree.id = tree, .found.tree = tree, .err = err};
	int rc = meta_tree_named(f->catalog, &w.tree, on_folder, &w, err);

	for (size_t i = 0; rc == 0 && i < w.inos.nr; i++) {
		w.ino = w.inos.at[i];
		rc = meta_tree_paths(f->catalog, &w.tree, w.ino, on_path, &w, err);
	}
	if (w.found.nr)
		qsort(w.found.at, w.found.nr, sizeof(*w.found.at), by_path);
	sc_vec_done(&w.inos);
	if (rc < 0)
		of_tree_done(&w.found);
	else
		*ret = w.found;
	return rc;
}

/* --- all --- */

static int on_any(void *arg, uint64_t ino)
{
	(void)ino;
	*(bool *)arg = true;
	return 0;
}

int rs_folders_any(struct rs_folders *f, uint64_t tree, struct sc_err *err)
{
	struct meta_tree t = {.id = tree};
	bool any = false;
	int rc = tree ? meta_tree_named(f->catalog, &t, on_any, &any, err) : 0;

	return rc < 0 ? rc : any;
}

int rs_folders_each(struct rs_folders *f, uint64_t tree, int (*each)(void *arg, struct rs_folder *folder), void *arg,
		    struct sc_err *err)
{
	struct of_tree found = {0};
	int rc = 0, i = 0;

	(void)pthread_mutex_lock(&f->lock);
	while (i < KEPT && f->kept[i].tree != tree)
		i++;
	if (i < KEPT)
		found = f->kept[i];
	else
		rc = read_tree(f, tree, &found, err);
	if (rc == 0) {
		if (i == KEPT)
			of_tree_done(&f->kept[--i]);
		memmove(&f->kept[1], &f->kept[0], (size_t)i * sizeof(*f->kept));
		f->kept[0] = found;
	}
	for (size_t k = 0; rc == 0 && k < found.nr; k++)
		rc = each(arg, found.at[k]);
	(void)pthread_mutex_unlock(&f->lock);
	return rc;
}
