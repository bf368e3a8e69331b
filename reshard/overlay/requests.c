/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that change names.  Their checks are those of Linux, in its order: the kernel makes most of them itself, but
 * on names that it remembers, and a command may have changed what is below.
 */
#include "reshard/overlay/overlay_i.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "meta/base/limits.h"

/* Bytes for messages: users' texts are escaped where messages are shown. */
#define NAME(name) (int)(name).nr, (name).at

static bool is_rank(const struct rs_overlay *o, uint64_t ino)
{
	return ino > o->root && ino - o->root <= SC_RANKS_MAX;
}

/* What a request names: a name in a folder, and the object that has it. */
struct place {
	uint64_t folder;
	struct meta_bytes name;
	struct meta_inode_row in;	/* the folder's */
	uint64_t ino;			/* 0: nothing has the name */
	struct meta_inode_row row;	/* the object's */
};

/* Finds out what a name is.  SC_E_NOT_FOUND: the folder was removed. */
static int find_place(struct rs_record *r, struct place *p, struct sc_err *err)
{
	int rc = rs_overlay_check_name(p->name, err);

	if (rc == 0)
		rc = rs_overlay_inode(r->o, p->folder, &r->texts, &p->in, err);
	if (rc == 0)
		return sc_fail(err, SC_E_STALE, "the folder of '%.*s' is gone", NAME(p->name));
	if (rc < 0)
		return rc;
	if (!S_ISDIR(p->in.mode))
		return sc_fail(err, SC_E_NOT_DIR, "what should hold '%.*s' is no folder", NAME(p->name));
	if (p->in.nlink == 0)
		return sc_fail(err, SC_E_NOT_FOUND, "the folder of '%.*s' was removed", NAME(p->name));
	rc = rs_overlay_child(r->o, p->folder, p->name, &p->ino, err);
	if (rc < 0 || !p->ino)
		return rc;
	rc = rs_overlay_inode(r->o, p->ino, &r->texts, &p->row, err);
	if (rc == 0)
		return sc_fail(err, SC_E_CORRUPT,
			       "'%.*s' names inode %" PRIu64 ", which does not exist: run 'scalai fsck'", NAME(p->name),
			       p->ino);
	return rc < 0 ? rc : 0;
}

static int not_found(const struct place *p, struct sc_err *err)
{
	return sc_fail(err, SC_E_NOT_FOUND, "'%.*s' does not exist", NAME(p->name));
}

static int exists(const struct place *p, struct sc_err *err)
{
	return sc_fail(err, SC_E_EXISTS, "'%.*s' exists", NAME(p->name));
}

static int one_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	(void)arg;
	(void)name;
	(void)ino;
	return 1;
}

/* Checks that a folder may go. */
static int check_empty(struct rs_record *r, const struct place *p, struct sc_err *err)
{
	int rc = rs_overlay_children(r->o, p->ino, one_child, NULL, err);

	return rc <= 0 ? rc : sc_fail(err, SC_E_NOT_EMPTY, "'%.*s' is not empty", NAME(p->name));
}

/* A version has the ranks of its topology; others, that somebody made before there was one, may go. */
static int check_no_rank(struct rs_record *r, const struct place *p, struct sc_err *err)
{
	const struct rs_lower *lower = &r->o->lower;
	struct meta_inode_row row;
	int rc = is_rank(r->o, p->ino) && !lower->lets_ranks_go ? lower->inode(lower->arg, p->ino, &r->texts, &row, err)
								: 0;

	return rc <= 0 ? rc
		       : sc_fail(err, SC_E_BUSY, "'%.*s' is a rank of the job's topology and stays", NAME(p->name));
}

/* Finds the rank whose tree a folder belongs to, or the job's folder.  `below`: tells whether the folder is it, or is
 * inside of it (NULL: not asked). */
static int find_home(struct rs_record *r, uint64_t folder, const struct place *below, bool *ret_inside, uint64_t *ret,
		     struct sc_err *err)
{
	struct meta_inode_row row;
	int rc = 1;

	*ret_inside = false;
	while (folder != r->o->root && !is_rank(r->o, folder) && rc > 0) {
		*ret_inside |= below && folder == below->ino;
		rc = rs_overlay_inode(r->o, folder, &r->texts, &row, err);
		folder = rc > 0 ? row.parent : 0;
	}
	*ret = folder;
	*ret_inside |= below && folder == below->ino;
	return rc == 0 ? sc_fail(err, SC_E_STALE, "a folder is gone") : rc < 0 ? rc : 0;
}

static int check_same_home(uint64_t a, uint64_t b, struct meta_bytes name, struct sc_err *err)
{
	return a == b ? 0
		      : sc_fail(err, SC_E_CROSS, "'%.*s' cannot get a name in another rank: copy it", NAME(name));
}

/* --- a new name --- */

int rs_overlay_make(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		    struct meta_inode_row *what, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct place p = {.folder = folder, .name = name};
	struct meta_inode_row *in;
	uint64_t home = 0;
	bool inside;
	int rc = find_place(&r, &p, err);

	if (rc == 0 && p.ino)
		rc = exists(&p, err);
	if (rc == 0)
		rc = find_home(&r, folder, NULL, &inside, &home, err);
	if (rc == 0 && !what->ino)
		rc = o->log.number(o->log.arg, &what->ino, err);
	if (rc == 0)
		rc = rs_record_folder(&r, folder, &in, err);
	if (rc < 0)
		return rs_record_end(&r, rc, err);
	what->job = o->job;
	what->atime_ns = what->mtime_ns = what->ctime_ns = now_ns;
	what->nlink = 1;
	what->parent = home;
	what->data = S_ISREG(what->mode) ? META_OWN_DATA : META_NO_DATA;
	if (in->mode & S_ISGID)
		what->gid = in->gid;
	if (S_ISDIR(what->mode)) {
		what->mode |= in->mode & S_ISGID;
		what->nlink = 2;
		what->parent = folder;
		in->nlink++;
	}
	rc = rs_record_new(&r, what, err);
	if (rc == 0)
		rc = rs_record_put_name(&r, folder, name, what->ino, err);
	return rs_record_end(&r, rc, err);
}

static int add_link(struct rs_record *r, const struct place *p, uint64_t ino, struct sc_err *err)
{
	struct meta_inode_row *row, *in;
	uint64_t home;
	bool inside;
	int rc = rs_record_row(r, ino, &row, err);

	if (rc < 0)
		return rc;
	if (S_ISDIR(row->mode))
		return sc_fail(err, SC_E_PERMISSION, "'%.*s' would be another name of a folder", NAME(p->name));
	rc = find_home(r, p->folder, NULL, &inside, &home, err);
	if (rc == 0)
		rc = check_same_home(home, row->parent, p->name, err);
	if (rc < 0)
		return rc;
	if (row->nlink == 0)
		return sc_fail(err, SC_E_NOT_FOUND, "the file that '%.*s' would name was removed", NAME(p->name));
	if (row->nlink >= RS_LINKS_MAX)
		return sc_fail_sys(err, EMLINK, "'%.*s' names a file that has %u names, which is the limit",
				   NAME(p->name), row->nlink);
	row->nlink++;
	row->ctime_ns = r->now_ns;
	rc = rs_record_folder(r, p->folder, &in, err);
	return rc < 0 ? rc : rs_record_put_name(r, p->folder, p->name, ino, err);
}

int rs_overlay_link(struct rs_overlay *o, int64_t now_ns, uint64_t ino, uint64_t folder, struct meta_bytes name,
		    struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct place p = {.folder = folder, .name = name};
	int rc = find_place(&r, &p, err);

	if (rc == 0 && p.ino)
		rc = exists(&p, err);
	if (rc == 0)
		rc = add_link(&r, &p, ino, err);
	return rs_record_end(&r, rc, err);
}

/* --- a name less --- */

/* An object loses a name: a folder its only one. */
static int lose_name(struct rs_record *r, uint64_t ino, uint64_t folder, struct sc_err *err)
{
	struct meta_inode_row *row, *in;
	int rc = rs_record_row(r, ino, &row, err);

	if (rc < 0)
		return rc;
	row->ctime_ns = r->now_ns;
	row->nlink = S_ISDIR(row->mode) ? 0 : row->nlink - 1;
	rc = rs_record_folder(r, folder, &in, err);
	if (rc == 0 && S_ISDIR(row->mode))
		in->nlink--;
	return rc;
}

static int remove_name(struct rs_record *r, struct place *p, bool is_rmdir, struct sc_err *err)
{
	int rc = find_place(r, p, err);

	if (rc < 0)
		return rc;
	if (!p->ino)
		return not_found(p, err);
	if (is_rmdir && !S_ISDIR(p->row.mode))
		return sc_fail(err, SC_E_NOT_DIR, "'%.*s' is no folder", NAME(p->name));
	if (!is_rmdir && S_ISDIR(p->row.mode))
		return sc_fail(err, SC_E_IS_DIR, "'%.*s' is a folder", NAME(p->name));
	rc = check_no_rank(r, p, err);
	if (rc == 0 && is_rmdir)
		rc = check_empty(r, p, err);
	if (rc == 0)
		rc = lose_name(r, p->ino, p->folder, err);
	return rc < 0 ? rc : rs_record_drop_name(r, p->folder, p->name, err);
}

int rs_overlay_unlink(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct place p = {.folder = folder, .name = name};

	return rs_record_end(&r, remove_name(&r, &p, false, err), err);
}

int rs_overlay_rmdir(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct place p = {.folder = folder, .name = name};

	return rs_record_end(&r, remove_name(&r, &p, true, err), err);
}

/* --- rename --- */

/* A folder gets another parent. */
static int move_folder(struct rs_record *r, const struct place *from, const struct place *to, struct sc_err *err)
{
	struct meta_inode_row *row, *a, *b;
	int rc = rs_record_row(r, from->ino, &row, err);

	if (rc < 0 || !S_ISDIR(row->mode))
		return rc;
	rc = rs_record_folder(r, from->folder, &a, err);
	if (rc == 0)
		rc = rs_record_folder(r, to->folder, &b, err);
	if (rc < 0)
		return rc;
	a->nlink--;
	b->nlink++;
	row->parent = to->folder;
	return 0;
}

static int exchange(struct rs_record *r, const struct place *from, const struct place *to, struct sc_err *err)
{
	int rc = move_folder(r, from, to, err);

	if (rc == 0)
		rc = move_folder(r, to, from, err);
	if (rc == 0)
		rc = rs_record_touch(r, to->ino, err);
	if (rc == 0)
		rc = rs_record_put_name(r, from->folder, from->name, to->ino, err);
	return rc < 0 ? rc : rs_record_put_name(r, to->folder, to->name, from->ino, err);
}

static int move(struct rs_record *r, const struct place *from, const struct place *to, struct sc_err *err)
{
	int rc = to->ino ? lose_name(r, to->ino, to->folder, err) : 0;

	if (rc == 0)
		rc = move_folder(r, from, to, err);
	if (rc == 0)
		rc = rs_record_drop_name(r, from->folder, from->name, err);
	return rc < 0 ? rc : rs_record_put_name(r, to->folder, to->name, from->ino, err);
}

/* Neither object may be, or hold, the folder that the other one goes to; a name stays in its rank. */
static int check_loops(struct rs_record *r, const struct place *from, const struct place *to, bool is_exchange,
		       struct sc_err *err)
{
	uint64_t home, new_home;
	bool into_itself, over_above;
	int rc = find_home(r, to->folder, from, &into_itself, &new_home, err);

	if (rc == 0)
		rc = find_home(r, from->folder, to->ino ? to : NULL, &over_above, &home, err);
	if (rc < 0)
		return rc;
	if (into_itself || (over_above && is_exchange))
		return sc_fail_sys(err, EINVAL, "'%.*s' cannot be moved into itself",
				   NAME(into_itself ? from->name : to->name));
	if (over_above)
		return sc_fail(err, SC_E_NOT_EMPTY, "'%.*s' is not empty", NAME(to->name));
	return check_same_home(home, new_home, from->name, err);
}

static int check_rename(struct rs_record *r, const struct place *from, const struct place *to, enum rs_rename how,
			struct sc_err *err)
{
	int rc;

	if (!from->ino)
		return not_found(from, err);
	if (how == RS_RENAME_NOREPLACE && to->ino)
		return exists(to, err);
	if (how == RS_RENAME_EXCHANGE && !to->ino)
		return not_found(to, err);
	rc = check_loops(r, from, to, how == RS_RENAME_EXCHANGE, err);
	if (rc == 0 && from->ino == to->ino)
		rc = sc_fail(err, SC_E_STALE, "'%.*s' and '%.*s' are names of one file", NAME(from->name),
			     NAME(to->name));
	if (rc == 0)
		rc = check_no_rank(r, from, err);
	if (rc < 0 || !to->ino)
		return rc;
	rc = check_no_rank(r, to, err);
	if (rc < 0 || how == RS_RENAME_EXCHANGE)
		return rc;
	if (S_ISDIR(from->row.mode) && !S_ISDIR(to->row.mode))
		return sc_fail(err, SC_E_NOT_DIR, "'%.*s' is no folder", NAME(to->name));
	if (!S_ISDIR(from->row.mode) && S_ISDIR(to->row.mode))
		return sc_fail(err, SC_E_IS_DIR, "'%.*s' is a folder", NAME(to->name));
	return S_ISDIR(to->row.mode) ? check_empty(r, to, err) : 0;
}

int rs_overlay_rename(struct rs_overlay *o, int64_t now_ns, uint64_t folder, struct meta_bytes name,
		      uint64_t new_folder, struct meta_bytes new_name, enum rs_rename how, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct place from = {.folder = folder, .name = name}, to = {.folder = new_folder, .name = new_name};
	struct meta_inode_row *in;
	int rc = find_place(&r, &from, err);

	if (rc == 0)
		rc = find_place(&r, &to, err);
	if (rc == 0)
		rc = check_rename(&r, &from, &to, how, err);
	if (rc == 0)
		rc = how == RS_RENAME_EXCHANGE ? exchange(&r, &from, &to, err) : move(&r, &from, &to, err);
	if (rc == 0)
		rc = rs_record_touch(&r, from.ino, err);
	if (rc == 0)
		rc = rs_record_folder(&r, folder, &in, err);
	if (rc == 0)
		rc = rs_record_folder(&r, new_folder, &in, err);
	return rs_record_end(&r, rc, err);
}
