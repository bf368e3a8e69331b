/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds, by path, the rows that a rank shows though another rank has made them (B2): those of its source, the rank that
 * had its coordinates then; or, if it has no source, those that are equal in all ranks of that time.
 */
#include "reshard/version/view/below_i.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

/* --- rows of other ranks --- */

/* Finds what a rank of the tree had at a path, files of tensors too: 1, 0 or an error. */
static int any_row_at(struct rs_below *b, uint32_t rank, const char *path, struct meta_inode_row *ret,
		      struct sc_buf *target, struct sc_err *err)
{
	uint64_t ino;
	int rc = rs_below_tree_path(b, b->root + 1 + rank, path, &ino, err);

	if (rc == 0 && ino)
		rc = meta_tree_inode(b->catalog, &b->tree, ino, ret, target, err);
	return rs_below_unless_dropped(b, rc);
}

static bool is_of_tensors(const struct meta_inode_row *row)
{
	return S_ISREG(row->mode) && !row->blob;
}

/* Finds what a rank of the tree had at a path, unless it is a file of tensors: 1, 0 or an error. */
static int row_at(struct rs_below *b, uint32_t rank, const char *path, struct meta_inode_row *ret,
		  struct sc_buf *target, struct sc_err *err)
{
	int rc = any_row_at(b, rank, path, ret, target, err);

	return rc > 0 && is_of_tensors(ret) ? 0 : rc;
}

static bool is_same(const struct meta_inode_row *a, const struct meta_inode_row *b)
{
	if ((a->mode & S_IFMT) != (b->mode & S_IFMT) || a->blob != b->blob)
		return false;
	return a->target.nr == b->target.nr &&
	       (!a->target.nr || memcmp(a->target.at, b->target.at, a->target.nr) == 0);
}

/* Joins one more row into a row that stands for several: it has the mode bits that all have, and the newest times. */
static void join(const struct rs_below *b, struct meta_inode_row *all, const struct meta_inode_row *more)
{
	struct rs_owner owner = {all->uid, all->gid, all->mode & 07777};
	const struct rs_owner other = {more->uid, more->gid, more->mode & 07777};

	rs_owner_join(b->view->job, &owner, &other);
	all->mode = (all->mode & S_IFMT) | owner.mode;
	all->uid = owner.uid;
	all->gid = owner.gid;
	if (more->atime_ns > all->atime_ns)
		all->atime_ns = more->atime_ns;
	if (more->mtime_ns > all->mtime_ns)
		all->mtime_ns = more->mtime_ns;
	if (more->ctime_ns > all->ctime_ns)
		all->ctime_ns = more->ctime_ns;
}

/* Finds what all ranks of the tree have at a path, if it is equal: 1, 0 or an error. */
static int common_row(struct rs_below *b, const char *path, struct meta_inode_row *ret, struct sc_buf *target,
		      struct sc_err *err)
{
	struct sc_buf mine = {0}, other = {0};
	struct meta_inode_row row;
	int rc;

	target = target ? target : &mine;
	rc = row_at(b, 0, path, ret, target, err);
	for (uint32_t r = 1; rc > 0 && r < b->rows_ranks; r++) {
		rc = row_at(b, r, path, &row, &other, err);
		if (rc > 0 && !is_same(ret, &row))
			rc = 0;
		if (rc > 0)
			join(b, ret, &row);
	}
	sc_buf_done(&mine);
	sc_buf_done(&other);
	return rc;
}

/* --- names of one file --- */

/* Puts the path of a folder in front of `*path`; *path becomes NULL if the folder is not in this rank's folder. */
static int add_above(struct rs_below *b, uint64_t home, uint64_t folder, struct sc_arena *arena, const char **path,
		     struct sc_err *err)
{
	int rc = 0;

	while (rc == 0 && *path && folder != home) {
		struct rs_named_list above = {.err = err};

		rc = rs_below_unless_dropped(
		    b, meta_tree_names(b->catalog, &b->tree, folder, rs_on_named, &above, err));
		if (rc == 0 && above.nr == 1) {
			*path = sc_arena_join(arena, above.at[0].name.at, '/', *path);
			rc = *path ? 0 : sc_nomem(err);
			folder = above.at[0].parent;
		} else {
			*path = NULL;
		}
		rs_named_done(&above);
	}
	return rc;
}

/* Tells whether files of tensors or of datasets hide a name (B1). */
static bool is_hidden(const struct rs_rank_files *t, const char *path, struct sc_arena *arena)
{
	bool hidden = rs_rank_file(t, path) || rs_rank_folder(t, path);

	for (const char *at = strchr(path, '/'); at && !hidden; at = strchr(at + 1, '/')) {
		const char *above = sc_arena_copy(arena, path, (size_t)(at - path));

		hidden = !above || rs_rank_file(t, above);
	}
	return hidden;
}

/* Tells whether both paths are names of one file, in all ranks of the tree: 1, 0 or an error. */
static int are_linked(struct rs_below *b, const struct rs_rank_files *t, const char *path, const char *other,
		      struct sc_err *err)
{
	int rc = 1;

	for (uint32_t r = 1; rc > 0 && t->rows == RS_ROWS_COMMON && r < b->rows_ranks; r++) {
		struct meta_inode_row x, y;

		rc = row_at(b, r, path, &x, NULL, err);
		if (rc > 0)
			rc = row_at(b, r, other, &y, NULL, err);
		if (rc > 0)
			rc = x.ino == y.ino;
	}
	return rc;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int links_of(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
		    struct rs_source_links *ret, struct sc_err *err)
{
	struct rs_named_list names = {.err = err};
	const uint64_t home = b->root + 1 + (t->rows == RS_ROWS_OTHER ? t->source : 0);
	int rc = rs_below_unless_dropped(
	    b, meta_tree_names(b->catalog, &b->tree, ino, rs_on_named, &names, err));

	for (size_t i = 0; rc >= 0 && i < names.nr; i++) {
		const char *other = sc_arena_copy(&ret->arena, names.at[i].name.at, names.at[i].name.nr);

		rc = other ? add_above(b, home, names.at[i].parent, &ret->arena, &other, err) : sc_nomem(err);
		if (rc < 0 || !other || is_hidden(t, other, &ret->arena))
			continue;
		rc = are_linked(b, t, path, other, err);
		if (rc > 0 && sc_vec_push(ret, other) < 0)
			rc = sc_nomem(err);
	}
	if (rc >= 0 && ret->nr > 1)
		qsort(ret->at, ret->nr, sizeof(*ret->at), by_text);
	rs_named_done(&names);
	return rc < 0 ? rc : 1;
}

/*
 * Keeps how many names a file has, and the first of them: these do not depend on the name that was asked for, so one
 * search is enough.  The key is the file's number in the source, or, in a rank without a source, a hash of its numbers
 * in all ranks.
 */
struct known_links {
	struct {
		uint64_t rank, id[2];
	} key;
	uint32_t nr;
	const char *first;
};

static int identify(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino, uint64_t id[2],
		    struct sc_err *err)
{
	int rc = 1;

	id[0] = ino;
	id[1] = 0;
	for (uint32_t r = 1; rc > 0 && t->rows == RS_ROWS_COMMON && r < b->rows_ranks; r++) {
		struct meta_inode_row row;

		rc = row_at(b, r, path, &row, NULL, err);
		if (rc > 0) {
			const uint64_t all[] = {id[0], id[1], row.ino};
			const XXH128_hash_t sum = XXH3_128bits(all, sizeof(all));

			id[0] = sum.low64;
			id[1] = sum.high64;
		}
	}
	return rc;
}

static int count_links(struct rs_below *b, const struct rs_rank_files *t, const char *path, uint64_t ino,
		       struct known_links *ret, struct sc_err *err)
{
	struct rs_source_links links = {0};
	struct known_links *known;
	int rc;

	*ret = (struct known_links){.key.rank = t->rank};
	rc = identify(b, t, path, ino, ret->key.id, err);
	if (rc <= 0)
		return rc;
	(void)pthread_mutex_lock(&b->lock);
	known = sc_map_get(&b->links, (const char *)&ret->key, sizeof(ret->key));
	if (known)
		*ret = *known;
	(void)pthread_mutex_unlock(&b->lock);
	if (known)
		return 1;
	rc = links_of(b, t, path, ino, &links, err);
	(void)pthread_mutex_lock(&b->lock);
	ret->nr = (uint32_t)links.nr;
	ret->first = rc > 0 && links.nr ? sc_arena_copy(&b->arena, links.at[0], strlen(links.at[0])) : NULL;
	known = ret->first ? sc_arena_alloc(&b->arena, sizeof(*known)) : NULL;
	if (known) { /* without memory it is searched for again */
		*known = *ret;
		(void)sc_map_put(&b->links, (const char *)&known->key, sizeof(known->key), known);
	}
	(void)pthread_mutex_unlock(&b->lock);
	if (rc > 0 && links.nr && !ret->first)
		rc = sc_nomem(err);
	rs_source_links_done(&links);
	return rc;
}

void rs_source_links_done(struct rs_source_links *links)
{
	sc_vec_done(links);
	sc_arena_done(&links->arena);
}

/* Finds what the rank shows at a path; the link count is that of the rank that has made the row. */
static int shown_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct meta_inode_row *ret,
		     struct sc_buf *target, struct sc_err *err)
{
	return t->rows == RS_ROWS_OTHER ? row_at(b, t->source, path, ret, target, err)
					: common_row(b, path, ret, target, err);
}

int rs_source_row(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct meta_inode_row *ret,
		  struct sc_buf *target, struct sc_err *err)
{
	struct known_links links;
	int rc = shown_row(b, t, path, ret, target, err);

	if (rc > 0 && !S_ISDIR(ret->mode) && ret->nlink > 1) {
		rc = count_links(b, t, path, ret->ino, &links, err);
		ret->nlink = links.nr;
	}
	return rc;
}

int rs_source_first(struct rs_below *b, const struct rs_rank_files *t, const char *path, const char **ret,
		    struct sc_err *err)
{
	struct meta_inode_row row;
	struct known_links links;
	int rc = shown_row(b, t, path, &row, NULL, err);

	*ret = path;
	if (rc <= 0 || S_ISDIR(row.mode) || row.nlink < 2)
		return rc;
	rc = count_links(b, t, path, row.ino, &links, err);
	if (rc > 0 && links.first)
		*ret = links.first;
	return rc;
}

int rs_source_links(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct rs_source_links *ret,
		    struct sc_err *err)
{
	struct meta_inode_row row;
	int rc = shown_row(b, t, path, &row, NULL, err);

	return rc <= 0 || S_ISDIR(row.mode) || row.nlink < 2 ? rc : links_of(b, t, path, row.ino, ret, err);
}

struct source_names {
	struct rs_source_names *names;
	struct sc_err *err;
};

static int on_name(void *arg, const struct meta_entry_row *row)
{
	const struct source_names *n = arg;
	struct meta_bytes name = {sc_arena_copy(&n->names->arena, row->name.at, row->name.nr), row->name.nr};

	return !name.at || sc_vec_push(n->names, name) < 0 ? sc_nomem(n->err) : 0;
}

/* Takes names out of the list that not all ranks have. */
static int keep_common(struct rs_below *b, const char *path, struct rs_source_names *names, struct sc_err *err)
{
	size_t kept = 0;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < names->nr; i++) {
		struct meta_inode_row row;
		const char *full = *path ? sc_arena_join(&names->arena, path, '/', names->at[i].at) : names->at[i].at;

		rc = full ? common_row(b, full, &row, NULL, err) : sc_nomem(err);
		if (rc > 0)
			names->at[kept++] = names->at[i];
	}
	names->nr = kept;
	return rc < 0 ? rc : 0;
}

int rs_source_children(struct rs_below *b, const struct rs_rank_files *t, const char *path,
		       struct rs_source_names *ret, struct sc_err *err)
{
	struct source_names n = {ret, err};
	struct meta_inode_row folder;
	uint32_t rank = t->rows == RS_ROWS_OTHER ? t->source : 0;
	uint64_t ino = b->root + 1 + rank;
	int rc = *path ? row_at(b, rank, path, &folder, NULL, err) : 1;

	if (rc > 0 && *path)
		ino = S_ISDIR(folder.mode) ? folder.ino : 0;
	if (rc <= 0 || !ino)
		return rc < 0 ? rc : 0;
	rc = rs_below_unless_dropped(b, meta_tree_children(b->catalog, &b->tree, ino, on_name, &n, err));
	return rc == 0 && t->rows == RS_ROWS_COMMON ? keep_common(b, path, ret, err) : rc;
}

void rs_source_names_done(struct rs_source_names *names)
{
	sc_vec_done(names);
	sc_arena_done(&names->arena);
}

/* --- attributes --- */

struct attributes {
	struct {
		size_t nr, room;
		struct attribute {
			struct meta_bytes name, value;
			uint32_t ranks;		/* that have it */
		} *at;
	} all;
	struct sc_arena arena;
	bool first;
	struct sc_err *err;
};

static int on_xattr(void *arg, const struct meta_xattr_row *row)
{
	struct attributes *a = arg;
	struct attribute x = {.ranks = 1};

	for (size_t i = 0; !a->first && i < a->all.nr; i++) {
		struct attribute *y = &a->all.at[i];

		if (y->name.nr == row->name.nr && y->value.nr == row->value.nr &&
		    memcmp(y->name.at, row->name.at, row->name.nr) == 0 &&
		    (!row->value.nr || memcmp(y->value.at, row->value.at, row->value.nr) == 0))
			y->ranks++;
	}
	if (!a->first)
		return 0;
	x.name = (struct meta_bytes){sc_arena_copy(&a->arena, row->name.at, row->name.nr), row->name.nr};
	x.value = (struct meta_bytes){sc_arena_copy(&a->arena, row->value.at, row->value.nr), row->value.nr};
	return !x.name.at || !x.value.at || sc_vec_push(&a->all, x) < 0 ? sc_nomem(a->err) : 0;
}

int rs_source_xattrs(struct rs_below *b, const struct rs_rank_files *t, const char *path, rs_xattr_fn *fn, void *arg,
		     struct sc_err *err)
{
	const bool common = t->rows == RS_ROWS_COMMON, of_tensors = rs_rank_file(t, path);
	struct attributes a = {.err = err};
	int rc = 0;

	for (uint32_t r = 0; rc == 0 && r < (common ? b->rows_ranks : 1); r++) {
		struct meta_inode_row row;

		a.first = r == 0;
		rc = any_row_at(b, common ? r : t->source, path, &row, NULL, err);
		if (rc > 0 && is_of_tensors(&row) != of_tensors)
			rc = 0;
		if (rc > 0)
			rc = meta_tree_xattrs(b->catalog, &b->tree, row.ino, on_xattr, &a, err);
		rc = rs_below_unless_dropped(b, rc);
	}
	for (size_t i = 0; rc == 0 && i < a.all.nr; i++)
		if (!common || a.all.at[i].ranks == b->rows_ranks)
			rc = fn(arg, a.all.at[i].name, a.all.at[i].value);
	sc_vec_done(&a.all);
	sc_arena_done(&a.arena);
	return rc;
}

/* --- who may read it where the folders above are not shown as they are --- */

int rs_source_limit(struct rs_below *b, const struct rs_rank_files *t, const char *path, struct rs_owner *owner,
		    struct sc_err *err)
{
	const bool common = t->rows == RS_ROWS_COMMON;
	char *above = sc_strdup(path);
	int rc = above ? 0 : sc_nomem(err);

	for (uint32_t r = 0; rc >= 0 && r < (common ? b->rows_ranks : 1); r++) {
		size_t at = 0;

		do {
			struct meta_inode_row row;
			const char *slash = strchr(path + at + (at > 0), '/');

			memcpy(above, path, at);
			above[at] = 0;
			rc = row_at(b, common ? r : t->source, above, &row, NULL, err);
			if (rc > 0)
				rs_owner_limit_by(owner, &row);
			at = slash ? (size_t)(slash - path) : 0;
		} while (rc >= 0 && at);
	}
	sc_sys.release(above);
	return rc < 0 ? rc : 0;
}
