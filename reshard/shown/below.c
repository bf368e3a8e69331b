/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a view shows, by number: the lower layer of a working tree, and what .v and .as show.
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
 *  B3  What no row of a rank's own tells of has a virtual number: of the job, the rank and the path.
 */
#include "reshard/shown/below_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

#define KEY(number) (const char *)&(number), sizeof(number)
#define ROWS_AT_ONCE 256
#define LOW ((UINT64_C(1) << 20) - 1)

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
		*ret = RS_VIRTUAL | b->view->job->id << 40 | (uint64_t)rank << 20 | path_id;
	return rc;
}

uint32_t rs_virtual_rank(const struct rs_view *view, uint64_t ino)
{
	uint32_t rank = (uint32_t)(ino >> 20 & LOW);

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

struct names {
	size_t nr, room;
	struct rs_named {
		uint64_t parent, ino;
		struct meta_bytes name;
	} *at;
	struct sc_arena arena;
	struct sc_err *err;
};

static int on_name(void *arg, const struct meta_entry_row *row)
{
	struct names *n = arg;
	struct rs_named x = {row->parent, row->ino, {NULL, row->name.nr}};

	x.name.at = sc_arena_copy(&n->arena, row->name.at, row->name.nr);
	return !x.name.at || sc_vec_push(n, x) < 0 ? sc_nomem(n->err) : 0;
}

static void names_done(struct names *n)
{
	sc_vec_done(n);
	sc_arena_done(&n->arena);
}

static int by_name(const void *a, const void *b)
{
	const struct rs_named *x = a, *y = b;
	size_t n = x->name.nr < y->name.nr ? x->name.nr : y->name.nr;
	int order = memcmp(x->name.at, y->name.at, n);

	return order ? order : (x->name.nr > y->name.nr) - (x->name.nr < y->name.nr);
}

static int by_parent(const void *a, const void *b)
{
	const struct rs_named *x = a, *y = b;

	return x->parent != y->parent ? (x->parent > y->parent ? 1 : -1) : by_name(a, b);
}

static int find_where(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err);
static int find_number(struct rs_below *b, const struct rs_where *at, uint64_t folder, struct meta_bytes name,
		       bool remembers, uint64_t *ret, struct sc_err *err);

/* Finds a number by the names that it has: when it comes from a daemon before this one, or has several.  Of these it is
 * the first that there is, for each daemon. */
static int climb(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err)
{
	struct names names = {.err = err};
	int rc = rs_below_has_tree(b) ? meta_tree_names(b->catalog, &b->tree, ino, on_name, &names, err) : 0;
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

		rc = find_where(b, n->parent, &above, err);
		if (rc <= 0)
			continue;
		path = *above.path ? sc_arena_join(&names.arena, above.path, '/', n->name.at) : (char *)n->name.at;
		rc = path ? find_number(b, &above, n->parent, n->name, false, &is, err) : sc_nomem(err);
		if (rc < 0 || is != ino)
			continue;
		rc = remember(b, ino, above.rank, path, err);
		found = rc == 0;
	}
	names_done(&names);
	return rc < 0 ? rc : found ? find_where(b, ino, ret, err) : 0;
}

/* 1: found, 0: it is nothing here, or an error. */
static int find_where(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err)
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
	if (ino & RS_VIRTUAL) {
		ret->rank = rs_virtual_rank(b->view, ino);
		if ((ino >> 40 & LOW) != b->view->job->id || (ret->rank != RS_SHARED && ret->rank >= b->ranks))
			return 0;
		rc = rs_path_text(b->view->job->service, ino & LOW, &ret->path, err);
		return rc == SC_E_NOT_FOUND ? 0 : rc < 0 ? rc : 1;
	}
	(void)pthread_mutex_lock(&b->lock);
	known = sc_map_get(&b->wheres, KEY(ino));
	(void)pthread_mutex_unlock(&b->lock);
	if (!known)
		return rs_below_is_nameless(b, ino) ? 0 : climb(b, ino, ret, err);
	*ret = *known;
	return 1;
}

/* Remembers where a row is that was found at a path: where it is always, if it has several names. */
static int remember_row(struct rs_below *b, const struct meta_inode_row *row, uint32_t rank, const char *path,
			struct sc_err *err)
{
	struct rs_where first;
	int rc = S_ISDIR(row->mode) || row->nlink < 2 ? 0 : find_where(b, row->ino, &first, err);

	return rc == 0 ? remember(b, row->ino, rank, path, err) : rc < 0 ? rc : 0;
}

/* --- numbers of names --- */

/* Is there something at a path of a rank that has no number of its own?  1, 0 or an error. */
static int is_there(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct sc_err *err)
{
	struct meta_inode_row row;

	if (rs_rank_file(t, path) || rs_rank_folder(t, path))
		return 1;
	return t->rows == RS_ROWS_OTHER || t->rows == RS_ROWS_COMMON ? rs_source_row(b, t, path, &row, NULL, err) : 0;
}

/* Gives the number of what is at a path, where the rank's own rows have `ino` (0: nothing); 0: there is nothing. */
static int number_at(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino, bool remembers,
		     uint64_t *ret, struct sc_err *err)
{
	struct meta_inode_row row;
	int rc = ino ? rs_own_row(b, t, path, ino, &row, NULL, err) : 0;

	*ret = 0;
	if (rc > 0)
		rc = remembers ? remember_row(b, &row, t->rank, path, err) : 0;
	else if (rc == 0)
		ino = 0;
	if (rc == 0 && !ino) {
		rc = is_there(b, t, path, err);
		rc = rc > 0 ? virtual_number(b, t->rank, path, &ino, err) : rc;
	}
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
		rc = number_at(b, t, path, ino, remembers, ret, err);
	sc_arena_done(&arena);
	return rc;
}

static int get_child(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err)
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
	rc = find_where(b, folder, &at, err);
	return rc <= 0 ? rc : find_number(b, &at, folder, name, true, ret, err);
}

static int find_parent(struct rs_below *b, const struct rs_where *at, uint64_t *ret, struct sc_err *err)
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

static int get_inode(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err)
{
	struct rs_below *b = arg;
	const int64_t floor_ns = __atomic_load_n(&b->floor_ns, __ATOMIC_RELAXED);
	struct sc_buf target = {0};
	struct rs_where at;
	int rc = find_where(b, ino, &at, err);

	if (rc > 0)
		rc = rs_below_row(b, &at, ret, &target, err);
	if (rc > 0 && S_ISDIR(ret->mode) && !ret->parent && find_parent(b, &at, &ret->parent, err) < 0)
		rc = err->code;
	if (rc > 0) {
		ret->ino = ino;
		ret->job = b->view->job->id;
		if (target.bytes) {
			ret->target.at = sc_arena_copy(texts, target.text, target.bytes);
			ret->target.nr = target.bytes;
			rc = ret->target.at ? rc : sc_nomem(err);
		}
		if (ret->ctime_ns < floor_ns)
			ret->ctime_ns = floor_ns;
	}
	sc_buf_done(&target);
	return rc;
}

/* --- children --- */

struct children {
	struct rs_below *b;
	const struct rs_where *at;
	const struct rs_rank_files *t;
	rs_child_fn *fn;
	void *arg;
	struct sc_err *err;
};

/* A name of the folder, which `ino` has in the tree (0: none has). */
static int hand_over(struct children *c, struct meta_bytes name, uint64_t ino)
{
	char scratch[512] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	char *path = meta_path_in(&arena, c->at->path, name);
	int rc = path ? number_at(c->b, c->t, path, ino, true, &ino, c->err) : sc_nomem(c->err);

	sc_arena_done(&arena);
	return rc < 0 ? rc : ino ? c->fn(c->arg, name, ino) : 0;
}

/* The names that the tree tells of; those of other ranks without numbers. */
static int tree_names(struct children *c, uint64_t folder, struct names *names)
{
	struct rs_source_names other = {0};
	struct rs_below *b = c->b;
	int rc = 0;

	if (c->t->rows == RS_ROWS_OWN) {
		rc = rs_below_unless_dropped(
		    b, meta_tree_children(b->catalog, &b->tree, folder, on_name, names, c->err));
		for (size_t i = 0; rc == 0 && i < names->nr; i++)
			rs_below_keep_name(b, folder, names->at[i].name, names->at[i].ino);
		return rc;
	}
	if (c->t->rows != RS_ROWS_NONE)
		rc = rs_source_children(b, c->t, c->at->path, &other, c->err);
	for (size_t i = 0; rc == 0 && i < other.nr; i++)
		rc = on_name(names, &(struct meta_entry_row){folder, other.at[i], 0});
	rs_source_names_done(&other);
	return rc;
}

/* Keeps the rows of the next names, from time to time: of many at once they cost a third. */
static void keep_next(struct rs_below *b, const struct names *names, size_t from)
{
	uint64_t inos[ROWS_AT_ONCE];
	size_t nr = 0;

	if (from % ROWS_AT_ONCE)
		return;
	for (size_t i = from; i < names->nr && nr < ROWS_AT_ONCE; i++)
		if (names->at[i].ino)
			inos[nr++] = names->at[i].ino;
	rs_below_keep_rows(b, inos, nr);
}

static int each_rank(const struct rs_below *b, rs_child_fn *fn, void *arg)
{
	int rc = 0;

	for (uint32_t rank = 0; rc == 0 && rank < b->ranks; rank++) {
		char name[16];
		int n = snprintf(name, sizeof(name), "%u", rank);

		rc = fn(arg, (struct meta_bytes){name, (size_t)n}, b->root + 1 + rank);
	}
	return rc;
}

static int each_child(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_below *b = arg;
	struct names names = {.err = err};
	const struct rs_below_folder *f;
	struct rs_where at;
	struct children c = {.b = b, .at = &at, .fn = fn, .arg = fn_arg, .err = err};
	uint32_t rank;
	int rc = find_where(b, folder, &at, err);

	if (rc <= 0)
		return rc;
	rc = rs_rank_files(b, at.rank, &c.t, err);
	if (rc == 0)
		rc = tree_names(&c, folder, &names);
	if (rc == 0 && folder == b->root)
		rc = each_rank(b, fn, fn_arg);
	for (size_t i = 0; rc == 0 && i < names.nr; i++) {
		keep_next(b, &names, i);
		if (folder != b->root || !sc_number_parse(names.at[i].name.at, names.at[i].name.nr, &rank) ||
		    rank >= SC_RANKS_MAX)
			rc = hand_over(&c, names.at[i].name, names.at[i].ino);
	}
	f = rc == 0 ? rs_rank_folder(c.t, at.path) : NULL;
	for (size_t i = 0; rc == 0 && f && i < f->nr; i++) {
		const struct rs_named key = {.name = f->at[i]};

		/* names of the catalog are sorted by their bytes */
		if (!names.nr || !bsearch(&key, names.at, names.nr, sizeof(key), by_name))
			rc = hand_over(&c, f->at[i], 0);
	}
	names_done(&names);
	return rc;
}

struct xattrs {
	rs_xattr_fn *fn;
	void *arg;
};

static int on_xattr(void *arg, const struct meta_xattr_row *row)
{
	const struct xattrs *x = arg;

	return x->fn(x->arg, row->name, row->value);
}

static int each_xattr(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err)
{
	struct rs_below *b = arg;
	struct xattrs x = {fn, fn_arg};
	const struct rs_rank_files *t = NULL;
	struct meta_inode_row row;
	struct rs_where at;
	int rc = rs_below_has_tree(b) && b->has_xattrs ? find_where(b, ino, &at, err) : 0;

	if (rc > 0)
		rc = rs_rank_files(b, at.rank, &t, err) < 0 ? err->code : rs_tree_row(b, &at, t, &row, NULL, err);
	if (rc <= 0)
		return rc;
	if (t->rows != RS_ROWS_OWN)
		return rs_source_xattrs(b, t, at.path, fn, fn_arg, err);
	rc = meta_tree_xattrs(b->catalog, &b->tree, ino, on_xattr, &x, err);
	return rc > 0 ? rc : rs_below_unless_dropped(b, rc);
}

struct rs_lower rs_below_lower(struct rs_below *b)
{
	return (struct rs_lower){get_inode, get_child, each_child, each_xattr, b};
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

		rc = get_child(b, ino, (struct meta_bytes){path, n}, &ino, err);
		path += n + (path[n] == '/');
	}
	*ret = ino;
	return rc;
}

int rs_below_link(struct rs_below *b, uint64_t ino, uint64_t *ret_path_id, struct sc_err *err)
{
	struct rs_where at;
	int rc = find_where(b, ino, &at, err);

	return rc <= 0 ? rc : rs_path_id(b->view->job, at.path, ret_path_id, err);
}

/* The name of a number that is made of its path. */
static int virtual_name(struct rs_below *b, const struct rs_where *at, meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	const char *slash = strrchr(at->path, '/'), *name = slash ? slash + 1 : at->path;
	struct meta_entry_row row = {0, {name, strlen(name)}, at->ino};
	uint64_t is = 0;
	int rc = find_parent(b, at, &row.parent, err);

	if (rc == 0 && row.parent)
		rc = get_child(b, row.parent, row.name, &is, err);
	return rc < 0 || is != at->ino ? rc : fn(arg, &row);
}

int rs_below_names(struct rs_below *b, uint64_t ino, meta_entry_fn *fn, void *arg, struct sc_err *err)
{
	struct names names = {.err = err};
	struct rs_where at;
	int rc = find_where(b, ino, &at, err);

	if (rc <= 0)
		return rc;
	if (ino & RS_VIRTUAL)
		return virtual_name(b, &at, fn, arg, err);
	rc = rs_below_unless_dropped(b, meta_tree_names(b->catalog, &b->tree, ino, on_name, &names, err));
	for (size_t i = 0; rc == 0 && i < names.nr; i++) {
		const struct rs_named *n = &names.at[i];
		uint64_t is = 0;

		rc = get_child(b, n->parent, n->name, &is, err);
		if (rc == 0 && is == ino)
			rc = fn(arg, &(struct meta_entry_row){n->parent, n->name, ino});
	}
	names_done(&names);
	return rc;
}

int rs_below_file(struct rs_below *b, uint64_t ino, uint32_t *ret_rank, uint64_t *ret_path_id, const char **ret_path,
		  struct sc_err *err)
{
	struct meta_inode_row row;
	struct rs_where at;
	int rc = find_where(b, ino, &at, err);

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
	int rc = find_where(b, row->ino, &at, err);

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

bool rs_below_is_shard(struct rs_below *b, uint64_t ino)
{
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	struct sc_err ignored;
	struct rs_where at;

	if (find_where(b, ino, &at, &ignored) <= 0 || rs_rank_files(b, at.rank, &t, &ignored) < 0)
		return false;
	file = rs_rank_file(t, at.path);
	return file && !file->data;
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
