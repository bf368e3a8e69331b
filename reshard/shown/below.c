/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a view shows, by number: the lower layer of a working tree, and what .v and .as show.
 *
 * Which files there are follows from the view: from its sets, and from datasets.  The version's tree says what these do
 * not: folders, links, numbers, times, attributes.  Invariants:
 *
 *  B1  A row of the tree for a regular file counts only while the view shows the same bytes at its path: the blob of
 *      the row is that of the set, or it is 0 and the view has a file of tensors there.
 *  B2  Rows of a rank count only if its coordinates are those that it had when they were made (files.c's rs_rank_of()).
 *  B3  What the view shows and no row tells of has a virtual number: of the job, the rank and the path.  So have the
 *      folders on the way to it.
 */
#include "reshard/shown/below_i.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "meta/base/text.h"

#define KEY(number) (const char *)&(number), sizeof(number)
#define LOW ((UINT64_C(1) << 20) - 1)

static uint64_t number_of_rank(const struct rs_below *b, uint32_t rank)
{
	return rank == RS_SHARED ? b->root : b->root + 1 + rank;
}

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

static bool has_tree(const struct rs_below *b)
{
	return b->tree.id && !__atomic_load_n(&b->dropped, __ATOMIC_RELAXED);
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

static int find_where(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err);

/* Finds a number by the names that it has: when it comes from a daemon before this one. */
static int climb(struct rs_below *b, uint64_t ino, struct rs_where *ret, struct sc_err *err)
{
	struct names names = {.err = err};
	int rc = has_tree(b) ? meta_tree_names(b->catalog, &b->tree, ino, on_name, &names, err) : 0;
	bool found = false;

	rc = rs_below_unless_dropped(b, rc);
	for (size_t i = 0; rc == 0 && !found && i < names.nr; i++) {
		const struct rs_named *n = &names.at[i];
		struct rs_where above;
		uint64_t is = 0;
		char *path;

		rc = find_where(b, n->parent, &above, err);
		if (rc <= 0)
			continue;
		path = *above.path ? sc_arena_join(&names.arena, above.path, '/', n->name.at) : (char *)n->name.at;
		rc = path ? rs_below_number(b, &above, n->parent, n->name, &is, err) : sc_nomem(err);
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
		return climb(b, ino, ret, err);
	*ret = *known;
	return 1;
}

/* --- rows --- */

/* Does a row count at this path (B1)? `row` NULL: only whether. 1, 0 or an error. */
static int valid_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
		     struct meta_inode_row *row, struct sc_buf *target, struct sc_err *err)
{
	const struct rs_below_file *file = rs_rank_file(t, path);
	struct meta_inode_row mine;
	int rc = rs_below_unless_dropped(b, meta_tree_inode(b->catalog, &b->tree, ino, row ? row : &mine, target, err));

	if (rc <= 0)
		return rc;
	row = row ? row : &mine;
	if (!S_ISREG(row->mode))
		return !file && (S_ISDIR(row->mode) || !rs_rank_folder(t, path));
	if (!file || file->origin == RS_FROM_DATA)
		return 0;
	return file->origin == RS_FROM_TENSORS ? row->blob == 0 : row->blob == rs_below_plain(b, t->rank, file)->blob;
}

int rs_below_number(struct rs_below *b, const struct rs_where *at, uint64_t folder, struct meta_bytes name,
		    uint64_t *ret, struct sc_err *err)
{
	char scratch[512] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	const struct rs_rank_files *t = NULL;
	uint64_t ino = 0;
	char *path;
	int rc = rs_rank_files(b, at->rank, &t, err);

	*ret = 0;
	path = sc_arena_printf(&arena, "%s%s%.*s", at->path, *at->path ? "/" : "", (int)name.nr, name.at);
	if (rc == 0 && !path)
		rc = sc_nomem(err);
	if (rc == 0 && t->rows && has_tree(b))
		rc = rs_below_unless_dropped(b, meta_tree_child(b->catalog, &b->tree, folder, name, &ino, err));
	if (rc == 0 && ino) {
		rc = valid_row(b, t, path, ino, NULL, NULL, err);
		if (rc == 0)
			ino = 0;
		rc = rc > 0 ? remember(b, ino, at->rank, path, err) : rc;
	}
	if (rc == 0 && !ino && (rs_rank_file(t, path) || rs_rank_folder(t, path)))
		rc = virtual_number(b, at->rank, path, &ino, err);
	if (rc == 0)
		*ret = ino;
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
	return rc <= 0 ? rc : rs_below_number(b, &at, folder, name, ret, err);
}

/*
 * Another topology of .as: files that join others are the job owner's there, who has to reach them.  So folders are
 * like the job's.  (Modes of files are, at any other topology, as the folders limited them when they were written.)
 */
static bool is_foreign(const struct rs_below *b, const struct rs_where *at)
{
	return !b->same && at->rank != RS_SHARED && strcmp(b->view->topo.text, b->view->version->topo.text) != 0;
}

/* A folder that no row tells of. */
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

static int implied_parent(struct rs_below *b, const struct rs_where *at, uint64_t *ret, struct sc_err *err)
{
	const char *slash = strrchr(at->path, '/');
	char *above;
	int rc;

	if (!slash) {
		*ret = !*at->path ? b->root : number_of_rank(b, at->rank);
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

/* A file, as the view has it. */
static int file_row(struct rs_below *b, const struct rs_where *at, struct meta_inode_row *ret, struct sc_err *err)
{
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	struct rs_owner owner = {.mode = 0444};
	int rc = rs_rank_files(b, at->rank, &t, err);

	if (rc < 0)
		return rc;
	file = rs_rank_file(t, at->path);
	*ret = b->folder;
	ret->nlink = 1;
	ret->data = META_LOWER_DATA;
	ret->parent = number_of_rank(b, at->rank);
	if (file->origin == RS_FROM_BYTES)
		ret->blob = rs_below_plain(b, at->rank, file)->blob;
	if (file->origin == RS_FROM_BYTES)
		rs_plain_owner(b->view->job, file->set, b->view->version->layout, &b->view->topo, at->rank, &owner);
	else if (file->origin == RS_FROM_TENSORS)
		rc = rs_view_owner(b->view, at->rank, at->path, &owner, err);
	ret->mode = S_IFREG | (owner.mode & 07777);
	ret->uid = owner.uid;
	ret->gid = owner.gid;
	return rc;
}

static int find_row(struct rs_below *b, const struct rs_where *at, struct meta_inode_row *ret, struct sc_buf *target,
		    struct sc_err *err)
{
	const struct rs_rank_files *t;
	const struct rs_below_file *file;
	struct meta_inode_row row;
	int rc = rs_rank_files(b, at->rank, &t, err);

	if (rc < 0)
		return rc;
	file = rs_rank_file(t, at->path);
	if (t->rows && has_tree(b)) {
		if (!*at->path) /* rows of ranks' and jobs' folders always count */
			rc = rs_below_unless_dropped(
			    b, meta_tree_inode(b->catalog, &b->tree, at->ino, &row, NULL, err));
		else
			rc = valid_row(b, t, at->path, at->ino, &row, target, err);
	}
	if (rc < 0)
		return rc;
	if (rc > 0 && at->ino == b->root)
		row.nlink += b->ranks - b->rows_ranks;
	if (rc > 0 && S_ISDIR(row.mode) && is_foreign(b, at)) {
		struct rs_owner owner;

		rs_owner_of_folder(b->view->job, &owner);
		row.mode = S_IFDIR | (owner.mode & 0755);
		row.uid = owner.uid;
		row.gid = owner.gid;
	}
	if (rc > 0 && file && (file->origin == RS_FROM_TENSORS || (!b->same && at->rank != RS_SHARED))) {
		/* what it is made of limits who may read it */
		rc = file_row(b, at, ret, err);
		row.mode = ret->mode;
		row.uid = ret->uid;
		row.gid = ret->gid;
		rc = rc < 0 ? rc : 1;
	} else if (rc == 0 && file) {
		rc = at->ino & RS_VIRTUAL ? file_row(b, at, &row, err) : SC_E_NOT_FOUND;
		rc = rc == SC_E_NOT_FOUND ? 0 : rc < 0 ? rc : 1;
	} else if (rc == 0 && (!*at->path || (rs_rank_folder(t, at->path) && at->ino & RS_VIRTUAL))) {
		implied_folder(b, t, at->path, &row);
		rc = implied_parent(b, at, &row.parent, err);
		rc = rc < 0 ? rc : 1;
	}
	*ret = row;
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
		rc = find_row(b, &at, ret, &target, err);
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

static int by_name(const void *a, const void *b)
{
	const struct rs_named *x = a, *y = b;
	size_t n = x->name.nr < y->name.nr ? x->name.nr : y->name.nr;
	int order = memcmp(x->name.at, y->name.at, n);

	return order ? order : (x->name.nr > y->name.nr) - (x->name.nr < y->name.nr);
}

/* A name of the folder, which `ino` has in the tree (0: none has). */
static int hand_over(struct children *c, struct meta_bytes name, uint64_t ino)
{
	char scratch[512] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	char *path = sc_arena_printf(&arena, "%s%s%.*s", c->at->path, *c->at->path ? "/" : "", (int)name.nr, name.at);
	int rc = path ? 0 : sc_nomem(c->err);

	if (rc == 0 && ino) {
		rc = valid_row(c->b, c->t, path, ino, NULL, NULL, c->err);
		if (rc == 0)
			ino = 0;
		rc = rc > 0 ? remember(c->b, ino, c->at->rank, path, c->err) : rc;
	}
	if (rc == 0 && !ino && (rs_rank_file(c->t, path) || rs_rank_folder(c->t, path)))
		rc = virtual_number(c->b, c->at->rank, path, &ino, c->err);
	sc_arena_done(&arena);
	return rc < 0 ? rc : ino ? c->fn(c->arg, name, ino) : 0;
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
	if (rc == 0 && c.t->rows && has_tree(b))
		rc = rs_below_unless_dropped(b, meta_tree_children(b->catalog, &b->tree, folder, on_name, &names, err));
	if (rc == 0 && folder == b->root)
		rc = each_rank(b, fn, fn_arg);
	for (size_t i = 0; rc == 0 && i < names.nr; i++)
		if (folder != b->root || !sc_number_parse(names.at[i].name.at, names.at[i].name.nr, &rank) ||
		    rank >= SC_RANKS_MAX)
			rc = hand_over(&c, names.at[i].name, names.at[i].ino);
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
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	int rc = has_tree(b) ? get_inode(arg, ino, &texts, &row, err) : 0;

	sc_arena_done(&texts);
	if (rc <= 0 || !has_tree(b))
		return rc < 0 ? rc : 0;
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
	uint64_t ino = number_of_rank(b, rank);
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

int rs_below_file(struct rs_below *b, uint64_t ino, uint32_t *ret_rank, uint64_t *ret_path_id, const char **ret_path,
		  struct sc_err *err)
{
	const struct rs_rank_files *t;
	struct rs_where at;
	int rc = find_where(b, ino, &at, err);

	if (rc <= 0)
		return rc;
	rc = rs_rank_files(b, at.rank, &t, err);
	if (rc < 0 || !rs_rank_file(t, at.path))
		return rc;
	rc = rs_path_id(b->view->job, at.path, ret_path_id, err);
	if (rc == 0)
		rc = rs_path_text(b->view->job->service, *ret_path_id, ret_path, err);
	*ret_rank = at.rank;
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
	return file && file->origin == RS_FROM_TENSORS;
}

bool rs_below_has_rows(const struct rs_below *b, uint32_t rank, uint32_t *ret_rows_ranks)
{
	*ret_rows_ranks = b->rows_ranks;
	return rank >= b->ranks ? false : rs_rank_has_rows(b, rank);
}

void rs_below_note_floor(struct rs_view *view)
{
	struct rs_below *b = __atomic_load_n(&view->below, __ATOMIC_ACQUIRE);

	if (b)
		__atomic_store_n(&b->floor_ns, view->version->floor_ns, __ATOMIC_RELAXED);
}

bool rs_below_is_same(const struct rs_below *b)
{
	return b->same || !b->tree.id;
}
