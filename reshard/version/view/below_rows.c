/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the rows of what a view shows: rows of the tree, which count or do not (B1, B2 of below.c), and rows that
 * follow from sets and datasets. */
#include "reshard/version/view/below_i.h"

#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define KEPT_ROWS 32768
#define KEPT_NAMES 32768
#define KEPT_NAME_BYTES 39
#define BYTES_UNKNOWN UINT64_MAX

/*
 * Keeps the rows and names that were asked for last, of all views: the rows of a version never change, and a request
 * asks for them several times.  They are kept by view and not by tree, as the id of a tree may be given again.
 */
static struct {
	pthread_mutex_t lock;
	struct kept_row {
		uint64_t serial;	/* of the view; 0: none */
		struct meta_inode_row row;
		bool is_nameless;	/* the tree has no name of this number; of the row only that is set */
		bool is_counted;	/* the folders in it were */
		uint32_t folders;
		uint64_t bytes;		/* of its blob */
	} rows[KEPT_ROWS];
	struct kept_name {
		uint64_t serial, folder, ino;
		uint8_t nr;
		char name[KEPT_NAME_BYTES];
	} names[KEPT_NAMES];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct kept_row *kept_row(const struct rs_below *b, uint64_t ino)
{
	/* numbers that follow each other lie beside each other */
	return &kept.rows[(b->serial * 0x9e3779b9 + ino) % KEPT_ROWS];
}

/* Finds the row of a number in the tree. */
static int tree_row(struct rs_below *b, uint64_t ino, struct meta_inode_row *ret, struct sc_buf *target,
		    struct sc_err *err)
{
	struct kept_row *k = kept_row(b, ino);
	bool known;
	int rc;

	(void)pthread_mutex_lock(&kept.lock);
	known = k->serial == b->serial && k->row.ino == ino && !k->is_nameless;
	if (known)
		*ret = k->row;
	(void)pthread_mutex_unlock(&kept.lock);
	if (known)
		return ret->nlink > 0;
	rc = rs_below_unless_dropped(b, meta_tree_inode(b->catalog, &b->tree, ino, ret, target, err));
	if (rc > 0 && !ret->nlink) /* hidden, with what earlier topologies said of it */
		rc = 0;
	if (rc <= 0 || S_ISLNK(ret->mode))
		return rc;
	(void)pthread_mutex_lock(&kept.lock);
	*k = (struct kept_row){.serial = b->serial, .row = *ret, .bytes = BYTES_UNKNOWN};
	k->row.target = (struct meta_bytes){0};
	(void)pthread_mutex_unlock(&kept.lock);
	return rc;
}

bool rs_below_is_nameless(const struct rs_below *b, uint64_t ino)
{
	const struct kept_row *k = kept_row(b, ino);
	bool is;

	(void)pthread_mutex_lock(&kept.lock);
	is = k->serial == b->serial && k->row.ino == ino && k->is_nameless;
	(void)pthread_mutex_unlock(&kept.lock);
	return is;
}

void rs_below_keep_nameless(const struct rs_below *b, uint64_t ino)
{
	struct kept_row *k = kept_row(b, ino);

	(void)pthread_mutex_lock(&kept.lock);
	*k = (struct kept_row){.serial = b->serial, .row.ino = ino, .is_nameless = true, .bytes = BYTES_UNKNOWN};
	(void)pthread_mutex_unlock(&kept.lock);
}

static struct kept_name *kept_name(const struct rs_below *b, uint64_t folder, struct meta_bytes name)
{
	return &kept.names[XXH3_64bits_withSeed(name.at, name.nr, folder + b->serial) % KEPT_NAMES];
}

void rs_below_keep_name(struct rs_below *b, uint64_t folder, struct meta_bytes name, uint64_t ino)
{
	struct kept_name *k = kept_name(b, folder, name);

	if (!ino || name.nr > KEPT_NAME_BYTES)
		return;
	(void)pthread_mutex_lock(&kept.lock);
	k->serial = b->serial;
	k->folder = folder;
	k->ino = ino;
	k->nr = (uint8_t)name.nr;
	memcpy(k->name, name.at, name.nr);
	(void)pthread_mutex_unlock(&kept.lock);
}

int rs_below_tree_child(struct rs_below *b, uint64_t folder, struct meta_bytes name, uint64_t *ret,
			struct sc_err *err)
{
	const struct kept_name *k = kept_name(b, folder, name);
	bool known;
	int rc;

	(void)pthread_mutex_lock(&kept.lock);
	known = k->serial == b->serial && k->folder == folder && k->nr == name.nr && name.nr <= KEPT_NAME_BYTES &&
		memcmp(k->name, name.at, name.nr) == 0;
	if (known)
		*ret = k->ino;
	(void)pthread_mutex_unlock(&kept.lock);
	if (known)
		return 0;
	rc = meta_tree_child(b->catalog, &b->tree, folder, name, ret, err);
	if (rc == 0)
		rs_below_keep_name(b, folder, name, *ret);
	return rs_below_unless_dropped(b, rc);
}

int rs_below_blob_bytes(struct rs_below *b, const struct meta_inode_row *row, uint64_t *ret, struct sc_err *err)
{
	struct kept_row *k = kept_row(b, row->ino);
	bool known;
	int rc;

	(void)pthread_mutex_lock(&kept.lock);
	known = k->serial == b->serial && k->row.ino == row->ino && k->row.blob == row->blob;
	*ret = known ? k->bytes : BYTES_UNKNOWN;
	(void)pthread_mutex_unlock(&kept.lock);
	if (*ret != BYTES_UNKNOWN)
		return 0;
	rc = meta_blob_bytes(b->catalog, row->blob, ret, err);
	if (rc < 0)
		return rc;
	(void)pthread_mutex_lock(&kept.lock);
	if (k->serial == b->serial && k->row.ino == row->ino && k->row.blob == row->blob)
		k->bytes = *ret;
	(void)pthread_mutex_unlock(&kept.lock);
	return 0;
}

void rs_below_keep_rows(struct rs_below *b, const uint64_t *inos, size_t nr)
{
	struct meta_inode_row row;
	struct sc_err ignored;
	uint64_t bytes;

	meta_catalog_hold(b->catalog);
	for (size_t i = 0; i < nr; i++)
		if (tree_row(b, inos[i], &row, NULL, &ignored) > 0 && row.blob)
			(void)rs_below_blob_bytes(b, &row, &bytes, &ignored);
	meta_catalog_release(b->catalog);
}

/* Tells whether a row that the rank itself has counts at this path (B1): 1, 0 or an error. */
int rs_own_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
	       struct meta_inode_row *ret, struct sc_buf *target, struct sc_err *err)
{
	const struct rs_below_file *file = rs_rank_file(t, path);
	int rc = tree_row(b, ino, ret, target, err);

	if (rc <= 0 || !*path) /* rows of ranks' and jobs' folders always count */
		return rc;
	if (S_ISREG(ret->mode) && !ret->blob)
		return file && !file->data;
	return !file && (S_ISDIR(ret->mode) || !rs_rank_folder(t, path));
}

/*
 * Tells whether a place is at another topology, below .as.  A file that joins several files is the job owner's there,
 * who has to reach it.  So folders are like the job's folder, and a file has only the mode bits that its own folders,
 * which are not shown as they are, leave it (limit()).
 */
static bool is_foreign(const struct rs_below *b, const struct rs_where *at)
{
	return !b->same && at->rank != RS_SHARED && strcmp(b->view->topo.text, b->view->version->topo.text) != 0;
}

/* Makes the row of a folder that has none. */
static void implied_folder(struct rs_below *b, const struct rs_rank_files *t, const char *path,
			   struct meta_inode_row *ret)
{
	const struct rs_below_folder *f = rs_rank_folder(t, path);
	struct rs_owner owner = b->rank_folder;

	if (*path || t->rank == RS_SHARED || !b->has_rank_folder)
		rs_owner_of_folder(b->view->job, &owner);
	*ret = b->folder;
	/* of the job's own folder the job says it (rs_tree_make()) */
	ret->mode = S_IFDIR | (owner.mode & (*path || t->rank != RS_SHARED ? 07777 : 0777));
	ret->uid = owner.uid;
	ret->gid = owner.gid;
	ret->nlink = 2 + (f ? f->folders : 0) + (!*path && t->rank == RS_SHARED ? b->ranks : 0);
}

/* Makes the row of a file of tensors or of a dataset as the view has it. */
static int file_row(struct rs_below *b, const struct rs_where *at, const struct rs_below_file *file,
		    struct meta_inode_row *ret, struct sc_err *err)
{
	struct rs_owner owner = {.mode = 0444};
	int rc = file->data ? 0 : rs_view_owner(b->view, at->rank, at->path, &owner, err);

	*ret = b->folder;
	ret->nlink = 1;
	ret->data = META_LOWER_DATA;
	ret->parent = rs_number_of_rank(b, at->rank);
	ret->mode = S_IFREG | (owner.mode & 07777);
	ret->uid = owner.uid;
	ret->gid = owner.gid;
	return rc;
}

/* Counts the folders in a folder that is shown from another rank's rows: folders of these rows, and folders on the way
 * to files of tensors. */
static int count_folders(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint32_t *ret,
			 struct sc_err *err)
{
	const struct rs_below_folder *f = rs_rank_folder(t, path);
	struct rs_source_names names = {0};
	int rc = rs_source_children(b, t, path, &names, err);

	*ret = f ? f->folders : 0;
	for (size_t i = 0; rc >= 0 && i < names.nr; i++) {
		const char *full = *path ? sc_arena_join(&names.arena, path, '/', names.at[i].at) : names.at[i].at;
		struct meta_inode_row row;

		if (full && (rs_rank_folder(t, full) || rs_rank_file(t, full)))
			continue;
		rc = full ? rs_source_row(b, t, full, &row, NULL, err) : sc_nomem(err);
		*ret += rc > 0 && S_ISDIR(row.mode);
	}
	rs_source_names_done(&names);
	return rc < 0 ? rc : 0;
}

/* Gives the row that another rank's rows show here: 1, 0 or an error. */
static int source_row(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
		      struct meta_inode_row *ret, struct sc_buf *target, struct sc_err *err)
{
	uint32_t folders;
	int rc = rs_source_row(b, t, at->path, ret, target, err);

	if (rc <= 0 || (!S_ISDIR(ret->mode) && rs_rank_folder(t, at->path)))
		return rc < 0 ? rc : 0;
	ret->parent = rs_number_of_rank(b, at->rank);
	if (!S_ISDIR(ret->mode))
		return 1;
	rc = count_folders(b, t, at->path, &folders, err);
	ret->parent = 0;
	ret->nlink = 2 + folders;
	return rc < 0 ? rc : 1;
}

/* Gives a folder the mode of the job's folder, and takes from a file the bits that its own folders would have kept: at
 * another topology folders keep nobody out. */
static int limit(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
		 struct meta_inode_row *row, struct sc_err *err)
{
	struct rs_owner owner = {row->uid, row->gid, row->mode & 07777};
	int rc = 0;

	if (S_ISDIR(row->mode)) {
		rs_owner_of_folder(b->view->job, &owner);
		owner.mode &= 0755;
	} else if (S_ISREG(row->mode)) {
		rc = rs_source_limit(b, t, at->path, &owner, err);
	}
	row->mode = (row->mode & S_IFMT) | owner.mode;
	row->uid = owner.uid;
	row->gid = owner.gid;
	return rc;
}

static bool known_folders(const struct rs_below *b, uint64_t ino, uint32_t *ret)
{
	const struct kept_row *k = kept_row(b, ino);
	bool known;

	(void)pthread_mutex_lock(&kept.lock);
	known = k->serial == b->serial && k->row.ino == ino && k->is_counted;
	*ret = k->folders;
	(void)pthread_mutex_unlock(&kept.lock);
	return known;
}

static void keep_folders(const struct rs_below *b, uint64_t ino, uint32_t folders)
{
	struct kept_row *k = kept_row(b, ino);

	(void)pthread_mutex_lock(&kept.lock);
	if (k->serial == b->serial && k->row.ino == ino) {
		k->is_counted = true;
		k->folders = folders;
	}
	(void)pthread_mutex_unlock(&kept.lock);
}

/* Counts the folders in a folder of the rank's own rows.  The link count of the row may be from a time when other
 * folders were on the way to files of tensors.  1 or an error. */
static int count_own_folders(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
			     struct meta_inode_row *row, struct sc_err *err)
{
	const struct rs_below_folder *f = rs_rank_folder(t, at->path);
	struct rs_named_list names = {.err = err};
	uint32_t folders;
	int rc = 0;

	if (at->rank == RS_SHARED || (row->nlink <= 2 && (!f || !f->folders)))
		return 1;
	if (!known_folders(b, at->ino, &folders)) {
		folders = f ? f->folders : 0;
		rc = meta_tree_children(b->catalog, &b->tree, at->ino, rs_on_named, &names, err);
		rc = rs_below_unless_dropped(b, rc);
		for (size_t i = 0; rc >= 0 && i < names.nr; i++) {
			const char *full = meta_path_in(&names.arena, at->path, names.at[i].name);
			struct meta_inode_row child;

			if (full && (rs_rank_folder(t, full) || rs_rank_file(t, full)))
				continue;
			rc = full ? tree_row(b, names.at[i].ino, &child, NULL, err) : sc_nomem(err);
			folders += rc > 0 && S_ISDIR(child.mode);
		}
		rs_named_done(&names);
		if (rc >= 0)
			keep_folders(b, at->ino, folders);
	}
	row->nlink = 2 + folders;
	return rc < 0 ? rc : 1;
}

/* Finds the row that the tree has for an object: 1, 0 or an error. */
int rs_tree_row(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
		struct meta_inode_row *ret, struct sc_buf *target, struct sc_err *err)
{
	int rc = 0;

	if (t->rows == RS_ROWS_OWN) {
		rc = rs_own_row(b, t, at->path, at->ino, ret, target, err);
		if (rc > 0 && rs_below_is_split(b, ret))
			ret->nlink = 1;
		if (rc > 0 && S_ISDIR(ret->mode))
			rc = count_own_folders(b, at, t, ret, err);
	} else if ((t->rows == RS_ROWS_OTHER || (t->rows == RS_ROWS_COMMON && *at->path)) &&
		 !rs_rank_file(t, at->path))
		rc = source_row(b, at, t, ret, target, err);
	if (rc > 0 && at->ino == b->root)
		ret->nlink += b->ranks - b->rows_ranks;
	/* whoever may read a file of tensors follows from what it is made of */
	if (rc > 0 && is_foreign(b, at) && !rs_rank_file(t, at->path) && limit(b, at, t, ret, err) < 0)
		rc = err->code;
	return rc;
}

int rs_below_row(struct rs_below *b, const struct rs_where *at, struct meta_inode_row *ret, struct sc_buf *target,
		 struct sc_err *err)
{
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	struct meta_inode_row now;
	int rc = rs_rank_files(b, at->rank, &t, err);

	if (rc < 0)
		return rc;
	file = rs_rank_file(t, at->path);
	rc = rs_tree_row(b, at, t, ret, target, err);
	if (rc > 0 && file) {
		/* what it is made of limits who may read it */
		rc = file_row(b, at, file, &now, err);
		ret->mode = now.mode;
		ret->uid = now.uid;
		ret->gid = now.gid;
		return rc < 0 ? rc : 1;
	}
	if (rc || (*at->path && !(at->ino & META_VIRTUAL)))
		return rc;
	if (file) {
		rc = file_row(b, at, file, ret, err);
		return rc == SC_E_NOT_FOUND ? 0 : rc < 0 ? rc : 1;
	}
	if (*at->path && !rs_rank_folder(t, at->path))
		return 0;
	implied_folder(b, t, at->path, ret);
	return 1;
}
