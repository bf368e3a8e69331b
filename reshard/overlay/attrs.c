/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that change an object: attributes, extended attributes, its blob, its end. */
#include "reshard/overlay/overlay_i.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

int rs_overlay_set_attrs(struct rs_overlay *o, int64_t now_ns, uint64_t ino, const struct rs_attrs *set,
			 struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct meta_inode_row *row;
	int rc = rs_record_row(&r, ino, &row, err);

	if (rc < 0)
		return rs_record_end(&r, rc, err);
	if (set->has_mode)
		row->mode = (row->mode & S_IFMT) | (set->mode & 07777);
	if (set->has_uid)
		row->uid = set->uid;
	if (set->has_gid)
		row->gid = set->gid;
	if (set->has_atime)
		row->atime_ns = set->atime_ns;
	if (set->has_mtime)
		row->mtime_ns = set->mtime_ns;
	row->ctime_ns = now_ns;
	return rs_record_end(&r, 0, err);
}

int rs_overlay_own_data(struct rs_overlay *o, int64_t now_ns, uint64_t ino, uint64_t blob, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct meta_inode_row *row;
	int rc = rs_record_row(&r, ino, &row, err);

	if (rc == 0 && row->data == META_OWN_DATA)
		rc = sc_fail(err, SC_E_EXISTS, "inode %" PRIu64 " has bytes of its own already", ino);
	if (rc == 0) {
		row->data = META_OWN_DATA;
		row->blob = blob;
	}
	return rs_record_end(&r, rc, err);
}

/* --- extended attributes --- */

struct search {
	struct meta_bytes name, value;
	bool found, same;	/* with this value */
	size_t bytes;		/* of all others */
};

static int on_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct search *s = arg;

	if (name.nr == s->name.nr && memcmp(name.at, s->name.at, name.nr) == 0) {
		s->found = true;
		s->same = value.nr == s->value.nr && (!value.nr || memcmp(value.at, s->value.at, value.nr) == 0);
	} else {
		s->bytes += name.nr + value.nr;
	}
	return 0;
}

static int check_xattr(const struct search *s, struct meta_bytes value, enum rs_xattr_set how, struct sc_err *err)
{
	if (how == RS_XATTR_NEW && s->found)
		return sc_fail(err, SC_E_EXISTS, "the file has an attribute '%.*s'", (int)s->name.nr, s->name.at);
	if (how == RS_XATTR_OLD && !s->found)
		return sc_fail_sys(err, ENODATA, "the file has no attribute '%.*s'", (int)s->name.nr, s->name.at);
	if (value.nr > RS_XATTR_VALUE_MAX)
		return sc_fail(err, SC_E_LIMIT, "attribute '%.*s': %zu bytes, at most %d are possible", (int)s->name.nr,
			       s->name.at, value.nr, RS_XATTR_VALUE_MAX);
	if (s->bytes + s->name.nr + value.nr > RS_XATTRS_BYTES_MAX)
		return sc_fail(err, SC_E_NO_SPACE, "attribute '%.*s': the attributes of a file have at most %u bytes",
			       (int)s->name.nr, s->name.at, RS_XATTRS_BYTES_MAX);
	return 0;
}

int rs_overlay_set_xattr(struct rs_overlay *o, int64_t now_ns, uint64_t ino, struct meta_bytes name,
			 struct meta_bytes value, enum rs_xattr_set how, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct search s = {.name = name, .value = value};
	int rc = rs_overlay_check_name(name, err);

	if (rc == 0)
		rc = rs_overlay_xattrs(o, ino, on_xattr, &s, err);
	if (rc == 0)
		rc = check_xattr(&s, value, how, err);
	if (rc == 0 && s.same) { /* nothing changes, as on ext4 */
		(void)rs_record_end(&r, 1, err);
		return 0;
	}
	if (rc == 0)
		rc = rs_record_touch(&r, ino, err);
	if (rc == 0)
		rc = rs_record_add(&r, (struct meta_change){META_PUT_XATTR, .xattr = {ino, name, value}}, err);
	return rs_record_end(&r, rc, err);
}

int rs_overlay_drop_xattr(struct rs_overlay *o, int64_t now_ns, uint64_t ino, struct meta_bytes name,
			  struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, now_ns);
	struct search s = {.name = name};
	int rc = rs_overlay_xattrs(o, ino, on_xattr, &s, err);

	if (rc == 0 && !s.found)
		rc = sc_fail_sys(err, ENODATA, "the file has no attribute '%.*s'", (int)name.nr, name.at);
	if (rc == 0)
		rc = rs_record_touch(&r, ino, err);
	if (rc == 0)
		rc = rs_record_add(&r, (struct meta_change){META_DROP_XATTR, .xattr = {ino, name, {0}}}, err);
	return rs_record_end(&r, rc, err);
}

int rs_overlay_forget(struct rs_overlay *o, uint64_t ino, struct sc_err *err)
{
	struct rs_record r = rs_record_begin(o, 0);
	const struct rs_node *n = rs_upper_node(&o->up, ino);
	struct meta_change gone = {META_DROP_INODE, .inode.ino = ino}, stays = {META_PUT_INODE};
	int rc = 0;

	if (!n)
		return rs_record_end(&r, 0, err);
	if (n->row.nlink)
		return rs_record_end(&r, sc_fail(err, SC_E_BUSY, "inode %" PRIu64 " has a name", ino), err);
	rc = o->lower.inode(o->lower.arg, ino, &r.texts, &stays.inode, err);
	if (rc >= 0) {
		bool is_below = rc > 0;

		stays.inode = n->row;
		stays.inode.data = META_FORGOTTEN;
		stays.inode.blob = 0;
		rc = rs_record_add(&r, gone, err);
		if (rc == 0 && is_below)
			rc = rs_record_add(&r, stays, err);
	}
	return rs_record_end(&r, rc, err);
}
