/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the two layers as one (T2, T3). */
#include "reshard/overlay/overlay_i.h"

#include <sys/stat.h>

#include "meta/base/limits.h"

int rs_overlay_open(uint64_t job, uint64_t root, const struct rs_lower *lower, const struct rs_overlay_log *log,
		    struct rs_overlay **ret, struct sc_err *err)
{
	struct rs_overlay *o = sc_zalloc(sizeof(*o));

	if (!o)
		return sc_nomem(err);
	*o = (struct rs_overlay){.job = job, .root = root, .lower = *lower, .log = *log};
	*ret = o;
	return 0;
}

struct rs_overlay *rs_overlay_close(struct rs_overlay *o)
{
	if (o)
		rs_upper_done(&o->up);
	sc_sys.release(o);
	return NULL;
}

int rs_overlay_load(struct rs_overlay *o, const struct meta_changes *changes, struct sc_err *err)
{
	struct rs_prepared p;
	int rc = rs_upper_prepare(&o->up, changes, &p, err);

	if (rc == 0)
		rs_upper_apply(&o->up, &p);
	return rc;
}

int rs_overlay_check_name(struct meta_bytes name, struct sc_err *err)
{
	return name.nr <= SC_NAME_BYTES_MAX ? 0 : sc_fail(err, SC_E_NAME, "a name has %zu bytes, at most %d are "
		"possible", name.nr, SC_NAME_BYTES_MAX);
}

bool rs_overlay_has(const struct rs_overlay *o, uint64_t ino)
{
	return rs_upper_node(&o->up, ino) != NULL;
}

int rs_overlay_inode(const struct rs_overlay *o, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret,
		     struct sc_err *err)
{
	const struct rs_node *n = rs_upper_node(&o->up, ino);

	if (!n)
		return o->lower.inode(o->lower.arg, ino, texts, ret, err);
	*ret = n->row;
	if (ret->target.nr) {
		ret->target.at = sc_arena_copy(texts, n->row.target.at, n->row.target.nr);
		if (!ret->target.at)
			return sc_nomem(err);
	}
	return 1;
}

/* Tells whether a folder is removed: the whiteouts of its lower children may be gone with its name. */
static bool is_removed(const struct rs_overlay *o, uint64_t folder)
{
	const struct rs_node *n = rs_upper_node(&o->up, folder);

	return n && !n->row.nlink;
}

int rs_overlay_child(const struct rs_overlay *o, uint64_t folder, struct meta_bytes name, uint64_t *ret,
		     struct sc_err *err)
{
	const struct rs_name *n;
	int rc = rs_overlay_check_name(name, err);

	if (rc < 0)
		return rc;
	n = rs_upper_name(&o->up, folder, name);
	*ret = n ? n->ino : 0;
	return n || is_removed(o, folder) ? 0 : o->lower.child(o->lower.arg, folder, name, ret, err);
}

int rs_overlay_still_names(const struct rs_overlay *o, const struct meta_entry_row *below, struct sc_err *err)
{
	uint64_t now = 0;
	int rc = rs_overlay_child(o, below->parent, below->name, &now, err);

	return rc < 0 ? rc : now == below->ino;
}

struct merge {
	const struct rs_overlay *o;
	uint64_t folder;
	rs_child_fn *fn;
	void *arg;
};

static int on_lower_child(void *arg, struct meta_bytes name, uint64_t ino)
{
	const struct merge *m = arg;

	return rs_upper_name(&m->o->up, m->folder, name) ? 0 : m->fn(m->arg, name, ino);
}

int rs_overlay_children(const struct rs_overlay *o, uint64_t folder, rs_child_fn *fn, void *arg, struct sc_err *err)
{
	const struct rs_names *names = rs_upper_names(&o->up, folder);
	struct merge m = {o, folder, fn, arg};
	int rc = 0;

	for (const struct rs_name *n = names ? names->first : NULL; n && rc == 0; n = n->next)
		if (n->ino)
			rc = fn(arg, (struct meta_bytes){n->key.name, n->bytes}, n->ino);
	return rc || is_removed(o, folder) ? rc : o->lower.children(o->lower.arg, folder, on_lower_child, &m, err);
}

int rs_overlay_xattrs(const struct rs_overlay *o, uint64_t ino, rs_xattr_fn *fn, void *arg, struct sc_err *err)
{
	const struct rs_node *n = rs_upper_node(&o->up, ino);
	int rc = 0;

	if (!n)
		return o->lower.xattrs(o->lower.arg, ino, fn, arg, err);
	for (const struct rs_xattr *x = n->xattrs; x && rc == 0; x = x->next)
		rc = fn(arg, x->name, x->value);
	return rc;
}

int rs_overlay_each(const struct rs_overlay *o, rs_row_fn *fn, void *arg)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < o->up.nodes.room; i++) {
		const struct rs_node *n = o->up.nodes.slots[i].value;

		rc = n ? fn(arg, &n->row) : 0;
	}
	return rc;
}

int rs_overlay_entries(const struct rs_overlay *o, uint64_t folder, rs_child_fn *fn, void *arg)
{
	const struct rs_names *names = rs_upper_names(&o->up, folder);
	int rc = 0;

	for (const struct rs_name *n = names ? names->first : NULL; n && rc == 0; n = n->next)
		rc = fn(arg, (struct meta_bytes){n->key.name, n->bytes}, n->ino);
	return rc;
}

int rs_overlay_each_folder(const struct rs_overlay *o, rs_row_fn *fn, void *arg)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < o->up.folders.room; i++) {
		const struct rs_names *names = o->up.folders.slots[i].value;
		const struct rs_node *n = names ? rs_upper_node(&o->up, names->folder) : NULL;
		/* one that is below, as it is: it has its name */
		struct meta_inode_row row = {.ino = names ? names->folder : 0, .mode = S_IFDIR, .nlink = 2};

		rc = names ? fn(arg, n ? &n->row : &row) : 0;
	}
	return rc;
}

int rs_overlay_each_again(const struct rs_overlay *o, struct meta_changes *ret, struct sc_err *err)
{
	for (size_t i = 0; i < o->up.again.room; i++) {
		const struct meta_again_row *a = o->up.again.slots[i].value;

		if (a && sc_vec_push(ret, (struct meta_change){META_PUT_AGAIN, .again = *a}) < 0)
			return sc_nomem(err);
	}
	return 0;
}

size_t rs_overlay_nameless(const struct rs_overlay *o)
{
	return o->up.nameless;
}

uint64_t rs_overlay_changes(const struct rs_overlay *o, uint64_t folder)
{
	const struct rs_node *n = rs_upper_node(&o->up, folder);

	return (o->swaps << 40) + (n ? n->changes : 0);
}

int64_t rs_overlay_lost_ns(const struct rs_overlay *o, uint64_t ino)
{
	const struct rs_node *n = rs_upper_node(&o->up, ino);

	return n ? n->lost_ns : 0;
}

uint64_t rs_overlay_applied(const struct rs_overlay *o)
{
	return __atomic_load_n(&o->applied, __ATOMIC_SEQ_CST);
}
