/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds by number what a view shows: in the lower layer of a working tree, and below .v and .as.
 *
 * Files of tensors follow from the view's sets, partitions from its datasets.  All else is in the version's tree: rows
 * of folders, plain files and links, and the numbers, times and attributes of files of tensors.  Invariants:
 *
 *  B1  A row of a file of tensors (blob 0) counts only while the view has such a file at its path.  Any other row
 *      counts only while there is neither such a file, nor one of a dataset, nor a folder on the way to one (a row of a
 *      folder counts there, too).
 *  B2  A rank shows the rows of its source, the rank that had its coordinates when they were made (below_source.c):
 *      under their own numbers if that is the rank itself, else under virtual ones.  A rank without a source shows what
 *      is the same in all ranks of the tree.  The job's own folder is its own source.
 *      Of files of tensors only attributes are shown so.
 *  B3  An object of which no row of the rank's own tells has a virtual number: of the job, the rank and the path.
 *      Names of one file have the number of the first of them.
 *  B4  Names of one file of tensors are one file only where it was written: at another topology each is made of other
 *      bytes.  There the first name keeps the number and the row.
 */
#include "reshard/version/view/below_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

#define KEY(number) (const char *)&(number), sizeof(number)

static bool is_rank(const struct rs_below *b, uint64_t ino)
{
	return ino > b->root && ino - b->root <= SC_RANKS_MAX;
}

static int virtual_number(struct rs_below *b, uint32_t rank, const char *path, uint64_t *ret, struct sc_err *err)
{
	uint64_t path_id;
	int rc = rs_path_id(b->view->job, path, &path_id, err);

	/* files of the job itself: what a commit made of them is in the tree, so this is of a rebuilt catalog */
	if (rank == RS_SHARED)
		rank = SC_RANKS_MAX - 1;
	if (rc == 0)
		*ret = meta_virtual(b->view->job->id, rank, path_id);
	return rc;
}

/* Returns the rank of a virtual number (RS_SHARED: the job's own). */
static uint32_t virtual_rank(const struct rs_view *view, uint64_t ino)
{
	uint32_t rank = meta_virtual_rank(ino);

	return rank == SC_RANKS_MAX - 1 && view->topo.ranks < SC_RANKS_MAX ? RS_SHARED : rank;
}

/* --- where a number is --- */

static int remember(struct rs_below *b, uint64_t ino, uint32_t rank, const char *path, struct sc_err *err)
{
	struct rs_where *w;
	int rc = 0;

	(void)pthread_mutex_lock(&b->lock);
	if (!sc_map_get(&b->wheres, KEY(ino))) {
		w = sc_arena_alloc(&b->arena, sizeof(*w));
		if (w) {
			*w = (struct rs_where){ino, rank, sc_arena_copy(&b->arena, path, strlen(path))};
			rc = !w->path || sc_map_put(&b->wheres, KEY(w->ino), w) < 0 ? sc_nomem(err) : 0;
		} else {
			rc = sc_nomem(err);
		}
	}
	(void)pthread_mutex_unlock(&b->lock);
	return rc;
}

static int by_parent(const void *a, const void *b)
{
	const struct rs_named *x = a, *y = b;

	return x->parent != y->parent ? (x->parent > y->parent ? 1 : -1) : rs_by_name(a, b);
}

static int find_named(struct rs_below *b, struct rs_where *at, struct sc_err *err);
static int find_number(struct rs_below *b, const struct rs_where *at, uint64_t folder, struct meta_bytes name,
		       bool remembers, uint64_t *ret, struct sc_err *err);

/* Finds where a number is by its names in the tree: a daemon before this one has given the number out, or the file has
 * several names.  Each daemon takes the first name that still leads to the number. */
static int climb(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err)
{
	struct rs_named_list names = {.err = err};
	int rc = rs_below_has_tree(b) ? meta_tree_names(b->catalog, &b->tree, ino, rs_on_named, &names, err) : 0;
	bool found = false;

	rc = rs_below_unless_dropped(b, rc);
	if (rc == 0 && !names.nr)
		rs_below_keep_nameless(b, ino);
	if (names.nr)
		qsort(names.at, names.nr, sizeof(*names.at), by_parent);
	for (size_t i = 0; rc == 0 && !found && i < names.nr; i++) {
		const struct rs_named *n = &names.at[i];
		struct rs_where above;
		uint64_t is = 0;
		char *path;

		rc = rs_below_where(b, n->parent, &above, err);
		if (rc <= 0)
			continue;
		path = *above.path ? sc_arena_join(&names.arena, above.path, '/', n->name.at) : (char *)n->name.at;
		rc = path ? find_number(b, &above, n->parent, n->name, false, &is, err) : sc_nomem(err);
		if (rc < 0 || is != ino)
			continue;
		rc = remember(b, ino, above.rank, path, err);
		found = rc == 0;
	}
	rs_named_done(&names);
	return rc < 0 ? rc : found ? rs_below_where(b, ino, ret, err) : 0;
}

/* Returns 1 (found), 0 (the view shows nothing under this number), or an error. */
int rs_below_where(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err)
{
	const struct rs_where *known;
	int rc;

	*ret = (struct rs_where){ino, RS_SHARED, ""};
	if (ino == b->root)
		return 1;
	if (is_rank(b, ino)) {
		ret->rank = (uint32_t)(ino - b->root - 1);
		return ret->rank < b->ranks;
	}
	if (ino & META_VIRTUAL) {
		ret->rank = virtual_rank(b->view, ino);
		if (meta_virtual_job(ino) != b->view->job->id || (ret->rank != RS_SHARED && ret->rank >= b->ranks))
			return 0;
		rc = rs_path_text(b->view->job->service, meta_virtual_path(ino), &ret->path, err);
		return rc == SC_E_NOT_FOUND ? 0 : rc < 0 ? rc : find_named(b, ret, err);
	}
	(void)pthread_mutex_lock(&b->lock);
	known = sc_map_get(&b->wheres, KEY(ino));
	(void)pthread_mutex_unlock(&b->lock);
	if (!known)
		return rs_below_is_nameless(b, ino) ? 0 : climb(b, ino, ret, err);
	*ret = *known;
	return 1;
}

/*
 * Finds where a virtual number is.  That is the path of which the number is made, unless a row of the rank's own has
 * the number: then the file may have several names, and may have lost the name of which the number is made.  Returns 1
 * or an error.
 */
static int find_named(struct rs_below *b, struct rs_where *at, struct sc_err *err)
{
	const struct rs_rank_files *t;
	const struct rs_where *known;
	uint64_t ino = 0;
	int rc = rs_rank_files(b, at->rank, &t, err);

	if (rc < 0 || t->rows != RS_ROWS_OWN)
		return rc < 0 ? rc : 1;
	(void)pthread_mutex_lock(&b->lock);
	known = sc_map_get(&b->wheres, KEY(at->ino));
	(void)pthread_mutex_unlock(&b->lock);
	if (known) {
		*at = *known;
		return 1;
	}
	rc = rs_below_unless_dropped(b, rs_below_tree_path(b, rs_number_of_rank(b, at->rank), at->path, &ino, err));
	if (rc == 0 && ino != at->ino && !rs_below_is_nameless(b, at->ino))
		rc = climb(b, at->ino, at, err);
	else if (rc == 0 && ino == at->ino)
		rc = remember(b, ino, at->rank, at->path, err);
	return rc < 0 ? rc : 1;
}

/* Remembers at which path a row was found; of a file with several names, at which of them it is always found. */
static int remember_row(struct rs_below *b, const struct meta_inode_row *row, uint32_t rank, const char *path,
			struct sc_err *err)
{
	struct rs_where first;
	int rc = S_ISDIR(row->mode) || row->nlink < 2 ? 0 : rs_below_where(b, row->ino, &first, err);

	return rc == 0 ? remember(b, row->ino, rank, path, err) : rc < 0 ? rc : 0;
}

/* --- numbers of names --- */

/* Gives the virtual number of an object at a path of a rank that has no number of its own; 0: nothing is there. */
static int implied_number(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t *ret,
			  struct sc_err *err)
{
	int rc = rs_rank_file(t, path) || rs_rank_folder(t, path);

	if (!rc && (t->rows == RS_ROWS_OTHER || t->rows == RS_ROWS_COMMON))
		rc = rs_source_first(b, t, path, &path, err);
	return rc > 0 ? virtual_number(b, t->rank, path, ret, err) : rc;
}

/* Gives the number of the object at a path; `ino` is what the rank's own rows have there (0: nothing).  0: nothing is
 * there. */
int rs_below_number_at(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
		       bool remembers, uint64_t *ret, struct sc_err *err)
{
	struct meta_inode_row row;
	struct rs_where first;
	int rc = ino ? rs_own_row(b, t, path, ino, &row, NULL, err) : 0;

	*ret = 0;
	if (rc > 0 && remembers && rs_below_is_split(b, &row)) {
		rc = rs_below_where(b, ino, &first, err);
		rc = rc > 0 ? first.rank == t->rank && strcmp(first.path, path) == 0 : rc;
	}
	if (rc > 0)
		rc = remembers ? remember_row(b, &row, t->rank, path, err) : 0;
	else if (rc == 0)
		ino = 0;
	if (rc == 0 && !ino)
		rc = implied_number(b, t, path, &ino, err);
	if (rc == 0)
		*ret = ino;
	return rc;
}

/* Finds the number of a name in a folder, which is at `at`; 0: there is none. */
static int find_number(struct rs_below *b, const struct rs_where *at, uint64_t folder, struct meta_bytes name,
		       bool remembers, uint64_t *ret, struct sc_err *err)
{
	char scratch[512] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	const struct rs_rank_files *t = NULL;
	uint64_t ino = 0;
	char *path = meta_path_in(&arena, at->path, name);
	int rc = path ? rs_rank_files(b, at->rank, &t, err) : sc_nomem(err);

	*ret = 0;
	if (rc == 0 && t->rows == RS_ROWS_OWN)
		rc = rs_below_tree_child(b, folder, name, &ino, err);
	if (rc == 0)
		rc = rs_below_number_at(b, t, path, ino, remembers, ret, err);
	sc_arena_done(&arena);
	return rc;
}

int rs_below_child(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err)
{
	struct rs_below *b = arg;
	struct rs_where at;
	uint32_t rank;
	int rc;

	*ret = 0;
	if (folder == b->root && sc_number_parse(name.at, name.nr, &rank) && rank < SC_RANKS_MAX) {
		*ret = rank < b->ranks ? b->root + 1 + rank : 0;
		return 0;
	}
	rc = rs_below_where(b, folder, &at, err);
	return rc <= 0 ? rc : find_number(b, &at, folder, name, true, ret, err);
}

int rs_below_parent(struct rs_below *b, const struct rs_where *at, uint64_t *ret, struct sc_err *err)
{
	const char *slash = strrchr(at->path, '/');
	char *above;
	int rc;

	if (!slash) {
		*ret = !*at->path ? b->root : rs_number_of_rank(b, at->rank);
		return 0;
	}
	above = sc_strdup(at->path);
	if (!above)
		return sc_nomem(err);
	above[slash - at->path] = 0;
	rc = rs_below_find(b, at->rank, above, ret, err);
	sc_sys.release(above);
	return rc;
}

/* --- by path --- */

int rs_below_find(struct rs_below *b, uint32_t rank, const char *path, uint64_t *ret, struct sc_err *err)
{
	uint64_t ino = rs_number_of_rank(b, rank);
	int rc = 0;

	if (rank != RS_SHARED && rank >= b->ranks)
		ino = 0;
	while (rc == 0 && ino && *path) {
		size_t n = strcspn(path, "/");

		rc = rs_below_child(b, ino, (struct meta_bytes){path, n}, &ino, err);
		path += n + (path[n] == '/');
	}
	*ret = ino;
	return rc;
}

int rs_below_link(struct rs_below *b, uint64_t ino, uint64_t *ret_path_id, struct sc_err *err)
{
	struct rs_where at;
	int rc = rs_below_where(b, ino, &at, err);

	return rc <= 0 ? rc : rs_path_id(b->view->job, at.path, ret_path_id, err);
}

/* Hands over the name of an object whose number follows from its path. */
static int virtual_name(struct rs_below *b, const struct rs_where *at, meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	const char *slash = strrchr(at->path, '/'), *name = slash ? slash + 1 : at->path;
	struct meta_entry_row row = {0, {name, strlen(name)}, at->ino};
	uint64_t is = 0;
	int rc = rs_below_parent(b, at, &row.parent, err);

	if (rc == 0 && row.parent)
		rc = rs_below_child(b, row.parent, row.name, &is, err);
	return rc < 0 || is != at->ino ? rc : fn(arg, &row);
}

static int virtual_names(struct rs_below *b, const struct rs_where *at, const struct rs_rank_files *t,
			 meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	struct rs_source_links links = {0};
	int rc = t->rows == RS_ROWS_OTHER || t->rows == RS_ROWS_COMMON ? rs_source_links(b, t, at->path, &links, err)
								       : 0;

	if (rc >= 0)
		rc = links.nr ? 0 : virtual_name(b, at, fn, arg, err);
	for (size_t i = 0; rc == 0 && i < links.nr; i++)
		rc = virtual_name(b, &(struct rs_where){at->ino, at->rank, links.at[i]}, fn, arg, err);
	rs_source_links_done(&links);
	return rc;
}

int rs_below_names(struct rs_below *b, uint64_t ino, meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	struct rs_named_list names = {.err = err};
	const struct rs_rank_files *t;
	struct rs_where at;
	bool any = false;
	int rc = rs_below_where(b, ino, &at, err);

	if (rc > 0)
		rc = rs_rank_files(b, at.rank, &t, err) < 0 ? err->code : 1;
	if (rc <= 0)
		return rc;
	rc = t->rows == RS_ROWS_OWN ? meta_tree_names(b->catalog, &b->tree, ino, rs_on_named, &names, err) : 0;
	rc = rs_below_unless_dropped(b, rc);
	for (size_t i = 0; rc == 0 && i < names.nr; i++) {
		const struct rs_named *n = &names.at[i];
		uint64_t is = 0;

		rc = rs_below_child(b, n->parent, n->name, &is, err);
		if (rc < 0 || is != ino)
			continue;
		any = true;
		rc = fn(arg, &(struct meta_entry_row){n->parent, n->name, ino});
	}
	rs_named_done(&names);
	return rc == 0 && !any && (ino & META_VIRTUAL) ? virtual_names(b, &at, t, fn, arg, err) : rc;
}

int rs_below_file(struct rs_below *b, uint64_t ino, uint32_t *ret_rank, uint64_t *ret_path_id, const char **ret_path,
		  struct sc_err *err)
{
	struct meta_inode_row row;
	struct rs_where at;
	int rc = rs_below_where(b, ino, &at, err);

	if (rc > 0)
		rc = rs_below_row(b, &at, &row, NULL, err);
	if (rc <= 0 || !S_ISREG(row.mode))
		return rc < 0 ? rc : 0;
	rc = rs_path_id(b->view->job, at.path, ret_path_id, err);
	if (rc == 0)
		rc = rs_path_text(b->view->job->service, *ret_path_id, ret_path, err);
	*ret_rank = at.rank;
	return rc < 0 ? rc : 1;
}

int rs_below_bytes(struct rs_below *b, const struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err)
{
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	struct rs_where at;
	int rc = rs_below_where(b, row->ino, &at, err);

	if (rc <= 0)
		return rc;
	rc = rs_rank_files(b, at.rank, &t, err);
	if (rc < 0)
		return rc;
	file = rs_rank_file(t, at.path);
	if (!file && !row->blob)
		return 0;
	ret->rank = at.rank;
	ret->place = rs_view_place(b->view, at.rank == RS_SHARED ? 0 : at.rank);
	rc = rs_path_id(b->view->job, at.path, &ret->path_id, err);
	if (rc == 0 && row->blob) {
		ret->kind = RS_BLOB;
		ret->blob = row->blob;
		rc = rs_below_blob_bytes(b, row, &ret->bytes, err);
	} else if (rc == 0) {
		rc = rs_below_described(b, at.rank, at.path, file, ret, err);
	}
	return rc < 0 ? rc : 1;
}

bool rs_below_has_own_rows(struct rs_below *b, uint32_t rank, uint32_t *ret_rows_ranks)
{
	uint32_t source;

	*ret_rows_ranks = b->rows_ranks;
	return rank < b->ranks && rs_below_source(b, b->view->version->layout, &b->view->topo, rank, &source) ==
				      RS_ROWS_OWN;
}

void rs_below_note_floor(struct rs_view *view)
{
	struct rs_below *b = __atomic_load_n(&view->below, __ATOMIC_ACQUIRE);

	if (b)
		__atomic_store_n(&b->floor_ns, view->version->floor_ns, __ATOMIC_RELAXED);
}

int rs_below_each_split(struct rs_below *b, uint32_t rank, meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	const struct rs_rank_files *t;
	int rc = b->same ? 1 : rs_rank_files(b, rank, &t, err);

	for (size_t i = 0; rc == 0 && t->rows == RS_ROWS_OWN && i < t->files.room; i++) {
		const struct rs_below_file *file = t->files.slots[i].value;
		struct meta_inode_row row;
		const char *slash;
		struct meta_entry_row name = {0};
		uint64_t was = 0;

		if (!file || file->data)
			continue;
		slash = strrchr(file->path, '/');
		name.name.at = slash ? slash + 1 : file->path;
		name.name.nr = strlen(name.name.at);
		rc = rs_below_parent(b, &(struct rs_where){0, rank, file->path}, &name.parent, err);
		if (rc == 0 && name.parent)
			rc = rs_below_tree_child(b, name.parent, name.name, &was, err);
		if (rc == 0 && was)
			rc = rs_own_row(b, t, file->path, was, &row, NULL, err);
		if (rc > 0 && !rs_below_is_split(b, &row))
			rc = 0;
		if (rc > 0)
			rc = rs_below_child(b, name.parent, name.name, &name.ino, err) < 0 ? err->code : fn(arg, &name);
	}
	return rc < 0 ? rc : 0;
}
