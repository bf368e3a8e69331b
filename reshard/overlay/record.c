/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes records: collects the changes of a request, logs them and applies them as a whole (T7).  The row of an object
 * is collected as it will be, so that a request that meets an object twice (the old and the new folder of a rename)
 * changes one row.
 */
#include "reshard/overlay/overlay_i.h"

#include <inttypes.h>

struct rs_record rs_record_begin(struct rs_overlay *o, int64_t now_ns)
{
	return (struct rs_record){.o = o, .now_ns = now_ns};
}

int rs_record_add(struct rs_record *r, struct meta_change change, struct sc_err *err)
{
	return sc_vec_push(&r->changes, change) < 0 ? sc_nomem(err) : 0;
}

int rs_record_new(struct rs_record *r, const struct meta_inode_row *row, struct sc_err *err)
{
	struct meta_inode_row *mine = sc_arena_alloc(&r->texts, sizeof(*mine));

	if (!mine || sc_vec_push(&r->rows, mine) < 0)
		return sc_nomem(err);
	*mine = *row;
	return 0;
}

struct copy {
	struct rs_record *r;
	uint64_t ino;
	struct sc_err *err;
};

static int copy_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	const struct copy *c = arg;
	struct meta_xattr_row row = {c->ino,
				     {sc_arena_copy(&c->r->texts, name.at, name.nr), name.nr},
				     {sc_arena_copy(&c->r->texts, value.at, value.nr), value.nr}};

	if (!row.name.at || !row.value.at)
		return sc_nomem(c->err);
	return rs_record_add(c->r, (struct meta_change){META_PUT_XATTR, .xattr = row}, c->err);
}

int rs_record_row(struct rs_record *r, uint64_t ino, struct meta_inode_row **ret, struct sc_err *err)
{
	struct copy c = {r, ino, err};
	struct meta_inode_row row;
	const struct rs_node *n;
	int rc = 1;

	for (size_t i = 0; i < r->rows.nr; i++)
		if (r->rows.at[i]->ino == ino) {
			*ret = r->rows.at[i];
			return 0;
		}
	n = rs_upper_node(&r->o->up, ino);
	if (n)
		row = n->row;
	else
		rc = r->o->lower.inode(r->o->lower.arg, ino, &r->texts, &row, err);
	if (rc == 0)
		return sc_fail(err, SC_E_STALE, "inode %" PRIu64 " is gone", ino);
	if (rc < 0)
		return rc;
	if (!n)
		rc = r->o->lower.xattrs(r->o->lower.arg, ino, copy_xattr, &c, err);
	rc = rc < 0 ? rc : rs_record_new(r, &row, err);
	if (rc == 0)
		*ret = r->rows.at[r->rows.nr - 1];
	return rc;
}

int rs_record_touch(struct rs_record *r, uint64_t ino, struct sc_err *err)
{
	struct meta_inode_row *row;
	int rc = rs_record_row(r, ino, &row, err);

	if (rc == 0)
		row->ctime_ns = r->now_ns;
	return rc;
}

int rs_record_folder(struct rs_record *r, uint64_t ino, struct meta_inode_row **ret, struct sc_err *err)
{
	int rc = rs_record_row(r, ino, ret, err);

	if (rc == 0)
		(*ret)->mtime_ns = (*ret)->ctime_ns = r->now_ns;
	return rc;
}

int rs_record_put_name(struct rs_record *r, uint64_t folder, struct meta_bytes name, uint64_t ino, struct sc_err *err)
{
	return rs_record_add(r, (struct meta_change){META_PUT_ENTRY, .entry = {folder, name, ino}}, err);
}

int rs_record_drop_name(struct rs_record *r, uint64_t folder, struct meta_bytes name, struct sc_err *err)
{
	const struct rs_lower *lower = &r->o->lower;
	uint64_t below;
	int rc = lower->child(lower->arg, folder, name, &below, err);

	if (rc < 0)
		return rc;
	if (below)
		return rs_record_put_name(r, folder, name, 0, err);
	return rs_record_add(r, (struct meta_change){META_DROP_ENTRY, .entry = {folder, name, 0}}, err);
}

/* Puts the changes in order: rows first, since attributes are put to a row. */
static int put_together(const struct rs_record *r, struct meta_changes *ret, struct sc_err *err)
{
	for (size_t i = 0; i < r->rows.nr; i++)
		if (sc_vec_push(ret, (struct meta_change){META_PUT_INODE, .inode = *r->rows.at[i]}) < 0)
			return sc_nomem(err);
	for (size_t i = 0; i < r->changes.nr; i++)
		if (sc_vec_push(ret, r->changes.at[i]) < 0)
			return sc_nomem(err);
	return 0;
}

int rs_record_end(struct rs_record *r, int rc, struct sc_err *err)
{
	struct rs_overlay *o = r->o;
	struct meta_changes all = {0};
	struct rs_prepared p = {0};

	if (rc == 0)
		rc = put_together(r, &all, err);
	if (rc == 0)
		rc = rs_upper_prepare(&o->up, &all, &p, err);
	if (rc == 0) {
		rc = o->log.write(o->log.arg, &all, err);
		if (rc == 0)
			rs_overlay_apply(o, &p);
		else
			rs_upper_cancel(&p);
	}
	meta_changes_done(&all);
	meta_changes_done(&r->changes);
	sc_vec_done(&r->rows);
	sc_arena_done(&r->texts);
	return rc;
}
