/* SPDX-License-Identifier: Apache-2.0 */
/* Looks up paths in a view, lists its folders, reads links and extended attributes. */
#include "reshard/version/view/shown_i.h"

#include <string.h>
#include <sys/stat.h>

/* --- rows as looks --- */

/* Makes a look of a row; it does not say where the bytes of a committed file are. */
static void look_of_row(const struct meta_inode_row *row, struct rs_look *ret)
{
	ret->ino = row->ino;
	ret->owner = (struct rs_owner){row->uid, row->gid, row->mode & 07777};
	ret->type = row->mode & S_IFMT;
	ret->nlink = row->nlink;
	ret->rdev = row->rdev;
	ret->atime_ns = row->atime_ns;
	ret->mtime_ns = row->mtime_ns;
	ret->ctime_ns = row->ctime_ns;
	if (S_ISDIR(row->mode))
		ret->kind = RS_DIR;
	else if (S_ISLNK(row->mode))
		ret->kind = RS_LINK;
	else if (!S_ISREG(row->mode))
		ret->kind = RS_SPECIAL;
	else if (row->data == META_OWN_DATA)
		ret->kind = RS_WORK;
	ret->bytes = S_ISLNK(row->mode) ? row->target.nr : S_ISDIR(row->mode) ? 4096 : 0;
	ret->blob = row->data == META_OWN_DATA ? row->blob : 0;
}

/* Says in a look where the bytes of a committed file are; the attributes are those of its row. */
static int look_file(struct rs_view *view, const struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err)
{
	struct rs_below *b;
	int rc = view ? rs_view_below(view, &b, err) : 0;

	if (rc == 0 && view)
		rc = rs_below_bytes(b, row, ret, err);
	if (rc == 0 && !row->nlink) {
		/* somebody has it open, as an earlier version: it has attributes still */
		ret->kind = RS_BLOB;
		return 0;
	}
	if (rc == 0)
		return sc_fail(err, SC_E_STALE, "the file is gone");
	return rc < 0 ? rc : 0;
}

int rs_look_row(struct rs_view *view, const struct meta_inode_row *row, struct rs_look *ret, struct sc_err *err)
{
	*ret = (struct rs_look){0};
	look_of_row(row, ret);
	return ret->kind == RS_NONE ? look_file(view, row, ret, err) : 0;
}

/* Looks up a number in a view; RS_NONE: the view shows nothing under it. */
static int look_below(struct rs_view *view, uint64_t ino, struct rs_look *ret, struct sc_err *err)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	struct rs_lower lower;
	struct rs_below *b;
	int rc = rs_view_below(view, &b, err);

	*ret = (struct rs_look){0};
	if (rc < 0)
		return rc;
	lower = rs_below_lower(b);
	rc = lower.inode(lower.arg, ino, &texts, &row, err);
	if (rc > 0)
		rc = rs_look_row(view, &row, ret, err);
	if (rc == 0 && ret->kind == RS_LINK && ret->nlink > 1)
		rc = rs_below_link(b, ino, &ret->path_id, err);
	sc_arena_done(&texts);
	return rc < 0 ? rc : 0;
}

/* --- by path --- */

int rs_view_look(struct rs_view *view, uint32_t rank, const char *path, struct rs_look *ret, struct sc_err *err)
{
	struct rs_below *b;
	uint64_t ino = 0;
	int rc = rs_view_below(view, &b, err);

	if (rc == 0)
		rc = rs_below_find(b, rank, path, &ino, err);
	*ret = (struct rs_look){0};
	return rc < 0 || !ino ? rc : look_below(view, ino, ret, err);
}

struct view_list {
	struct rs_lower lower;
	struct sc_arena texts;
	int (*each)(void *arg, const char *name, mode_t type);
	void *arg;
	struct sc_err *err;
};

static int on_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	struct view_list *l = arg;
	struct meta_inode_row row = {0};
	char text[256];
	int rc = l->lower.inode(l->lower.arg, ino, &l->texts, &row, l->err);

	if (rc <= 0)
		return rc;
	memcpy(text, name.at, name.nr);
	text[name.nr] = 0;
	return l->each(l->arg, text, row.mode & S_IFMT);
}

int rs_view_list(struct rs_view *view, uint32_t rank, const char *path,
		 int (*each)(void *arg, const char *name, mode_t type), void *arg, struct sc_err *err)
{
	struct view_list l = {.each = each, .arg = arg, .err = err};
	struct rs_below *b;
	uint64_t ino = 0;
	int rc = rs_view_below(view, &b, err);

	if (rc == 0)
		rc = rs_below_find(b, rank, path, &ino, err);
	if (rc == 0 && ino) {
		l.lower = rs_below_lower(b);
		rc = l.lower.children(l.lower.arg, ino, on_child, &l, err);
	}
	sc_arena_done(&l.texts);
	return rc;
}

int rs_view_link(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path, struct sc_buf *ret,
		 struct sc_err *err)
{
	struct meta_inode_row row = {0};
	struct sc_arena texts = {0};
	struct rs_lower lower;
	struct rs_below *b;
	uint64_t ino = 0;
	int rc = rs_view_below(view, &b, err);

	(void)s;
	if (rc == 0)
		rc = rs_below_find(b, rank, path, &ino, err);
	if (rc == 0) {
		lower = rs_below_lower(b);
		rc = ino ? lower.inode(lower.arg, ino, &texts, &row, err) : 0;
	}
	if (rc >= 0 && !S_ISLNK(row.mode))
		rc = sc_fail(err, SC_E_STALE, "'%s' is no link", path);
	if (rc > 0)
		sc_buf_add(ret, row.target.at, row.target.nr);
	sc_arena_done(&texts);
	return rc < 0 ? rc : 0;
}

/* --- extended attributes --- */

int rs_on_xattr_value(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct rs_xattr_search *x = arg;

	if (name.nr != x->name.nr || memcmp(name.at, x->name.at, name.nr) != 0)
		return 0;
	x->found = true;
	sc_buf_add(x->ret, value.at, value.nr);
	return 0;
}

int rs_on_xattr_name(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	(void)value;
	sc_buf_add(arg, name.at, name.nr);
	sc_buf_add(arg, "", 1);
	return 0;
}

/* Walks over the extended attributes of the object at a path. */
static int each_xattr(struct rs_view *view, uint32_t rank, const char *path, rs_xattr_fn *fn, void *arg,
		      struct sc_err *err)
{
	struct rs_lower lower;
	struct rs_below *b;
	uint64_t ino = 0;
	int rc = rs_view_below(view, &b, err);

	if (rc == 0)
		rc = rs_below_find(b, rank, path, &ino, err);
	if (rc < 0 || !ino)
		return rc < 0 ? rc : sc_fail(err, SC_E_STALE, "'%s' is gone", path);
	lower = rs_below_lower(b);
	return lower.xattrs(lower.arg, ino, fn, arg, err);
}

int rs_view_xattr(struct rs_view *view, uint32_t rank, const char *path, struct meta_bytes name, struct sc_buf *ret,
		  struct sc_err *err)
{
	struct rs_xattr_search x = {name, ret, false};
	int rc = each_xattr(view, rank, path, rs_on_xattr_value, &x, err);

	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : x.found;
}

int rs_view_xattrs(struct rs_view *view, uint32_t rank, const char *path, struct sc_buf *ret, struct sc_err *err)
{
	int rc = each_xattr(view, rank, path, rs_on_xattr_name, ret, err);

	return rc < 0 ? rc : ret->failed ? sc_nomem(err) : 0;
}
