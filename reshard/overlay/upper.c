/* SPDX-License-Identifier: Apache-2.0 */
/* The upper layer in memory: maps of rows.  It is changed by applying changes, and by nothing else. */
#include "reshard/overlay/overlay_i.h"

#include <string.h>

#define KEY(number) (const char *)&(number), sizeof(number)

struct rs_node *rs_upper_node(const struct rs_upper *up, uint64_t ino)
{
	return sc_map_get(&up->nodes, KEY(ino));
}

const struct rs_names *rs_upper_names(const struct rs_upper *up, uint64_t folder)
{
	return sc_map_get(&up->folders, KEY(folder));
}

static size_t key_bytes(size_t name_bytes)
{
	return offsetof(struct rs_name_key, name) + name_bytes;
}

struct rs_name *rs_upper_name(const struct rs_upper *up, uint64_t folder, struct meta_bytes name)
{
	char key[offsetof(struct rs_name_key, name) + 256];

	if (name.nr > 255)
		return NULL;
	memcpy(key, &folder, sizeof(folder));
	memcpy(key + offsetof(struct rs_name_key, name), name.at, name.nr);
	return sc_map_get(&up->names, key, key_bytes(name.nr));
}

/* --- what changes put, allocated before --- */

static struct rs_node *new_node(const struct meta_inode_row *row)
{
	struct rs_node *n = sc_zalloc(sizeof(*n) + row->target.nr);

	if (!n)
		return NULL;
	n->row = *row;
	n->row.target.at = (char *)(n + 1);
	if (row->target.nr)
		memcpy(n + 1, row->target.at, row->target.nr);
	return n;
}

static struct rs_name *new_name(const struct meta_entry_row *row)
{
	struct rs_name *n = sc_zalloc(sizeof(*n) + row->name.nr);

	if (!n)
		return NULL;
	n->ino = row->ino;
	n->bytes = row->name.nr;
	n->key.folder = row->parent;
	memcpy(n->key.name, row->name.at, row->name.nr);
	return n;
}

static struct rs_xattr *new_xattr(const struct meta_xattr_row *row)
{
	struct rs_xattr *x = sc_zalloc(sizeof(*x) + row->name.nr + row->value.nr);
	char *to = (char *)(x + 1);

	if (!x)
		return NULL;
	x->name = (struct meta_bytes){to, row->name.nr};
	x->value = (struct meta_bytes){to + row->name.nr, row->value.nr};
	memcpy(to, row->name.at, row->name.nr);
	if (row->value.nr)
		memcpy(to + row->name.nr, row->value.at, row->value.nr);
	return x;
}

static void *new_again(const struct meta_again_row *row)
{
	struct meta_again_row *a = sc_zalloc(sizeof(*a));

	if (a)
		*a = *row;
	return a;
}

static int allocate(const struct meta_change *x, void **ret, struct rs_names **ret_folder)
{
	switch (x->kind) {
	case META_PUT_INODE:
		*ret = new_node(&x->inode);
		break;
	case META_PUT_ENTRY:
		*ret = new_name(&x->entry);
		*ret_folder = sc_zalloc(sizeof(**ret_folder));
		if (!*ret_folder)
			return -1;
		(*ret_folder)->folder = x->entry.parent;
		break;
	case META_PUT_XATTR:
		*ret = new_xattr(&x->xattr);
		break;
	case META_PUT_AGAIN:
		*ret = new_again(&x->again);
		break;
	default:
		return 0;
	}
	return *ret ? 0 : -1;
}

void rs_upper_cancel(struct rs_prepared *p)
{
	for (size_t i = 0; p->at && i < 2 * p->changes->nr; i++)
		sc_sys.release(p->at[i]);
	sc_sys.release(p->at);
	*p = (struct rs_prepared){0};
}

int rs_upper_prepare(struct rs_upper *up, const struct meta_changes *changes, struct rs_prepared *ret,
		     struct sc_err *err)
{
	size_t nr = changes->nr;
	bool failed;

	*ret = (struct rs_prepared){changes, sc_zalloc_array(nr ? nr : 1, 2 * sizeof(void *)), NULL};
	failed = !ret->at || sc_map_reserve(&up->nodes, nr) < 0 || sc_map_reserve(&up->names, nr) < 0 ||
		 sc_map_reserve(&up->folders, nr) < 0 || sc_map_reserve(&up->again, nr) < 0 ||
		 sc_map_reserve(&up->again_of, nr) < 0;
	ret->folders = (struct rs_names **)(ret->at + nr);
	for (size_t i = 0; !failed && i < nr; i++)
		failed = allocate(&changes->at[i], &ret->at[i], &ret->folders[i]) < 0;
	if (!failed)
		return 0;
	rs_upper_cancel(ret);
	return sc_nomem(err);
}

/* --- applying --- */

static void drop_xattrs(struct rs_node *n)
{
	while (n->xattrs) {
		struct rs_xattr *x = n->xattrs;

		n->xattrs = x->next;
		sc_sys.release(x);
	}
}

static bool is_nameless(const struct rs_node *n)
{
	return n->row.nlink == 0 && n->row.data != META_FORGOTTEN;
}

/* The new node takes the place of the old one, with its attributes. */
static void put_node(struct rs_upper *up, struct rs_node *n)
{
	struct rs_node *old = rs_upper_node(up, n->row.ino);

	n->changes = 1; /* names may have come before the row of their folder */
	if (old ? n->row.nlink < old->row.nlink : n->row.data == META_LOWER_DATA)
		n->lost_ns = n->row.ctime_ns;
	else if (old)
		n->lost_ns = old->lost_ns;
	if (old) {
		n->xattrs = old->xattrs;
		n->changes = old->changes;
		up->nameless -= is_nameless(old);
	}
	up->nameless += is_nameless(n);
	(void)sc_map_put(&up->nodes, KEY(n->row.ino), n);
	sc_sys.release(old);
}

static void count_change(struct rs_upper *up, uint64_t folder)
{
	struct rs_node *n = rs_upper_node(up, folder);

	if (n)
		n->changes++;
}

static void drop_name(struct rs_upper *up, struct rs_name *n)
{
	struct rs_names *of = sc_map_get(&up->folders, KEY(n->key.folder));

	if (n->next)
		n->next->prev = n->prev;
	if (n->prev)
		n->prev->next = n->next;
	else
		of->first = n->next;
	sc_map_drop(&up->names, (const char *)&n->key, key_bytes(n->bytes));
	sc_sys.release(n);
	if (of->first)
		return;
	sc_map_drop(&up->folders, KEY(of->folder));
	sc_sys.release(of);
}

/* `spare`: for a folder without entries.  Returns what was not used. */
static struct rs_names *put_name(struct rs_upper *up, struct rs_name *n, struct rs_names *spare)
{
	struct rs_name *old = rs_upper_name(up, n->key.folder, (struct meta_bytes){n->key.name, n->bytes});
	struct rs_names *of;

	if (old)
		drop_name(up, old);
	of = sc_map_get(&up->folders, KEY(n->key.folder));
	if (!of) {
		of = spare;
		spare = NULL;
		(void)sc_map_put(&up->folders, KEY(of->folder), of);
	}
	n->next = of->first;
	if (n->next)
		n->next->prev = n;
	of->first = n;
	(void)sc_map_put(&up->names, (const char *)&n->key, key_bytes(n->bytes), n);
	count_change(up, n->key.folder);
	return spare;
}

static void drop_node(struct rs_upper *up, uint64_t ino)
{
	struct rs_node *n = rs_upper_node(up, ino);
	const struct rs_names *names;

	while ((names = rs_upper_names(up, ino)) != NULL)
		drop_name(up, names->first);
	if (!n)
		return;
	drop_xattrs(n);
	up->nameless -= is_nameless(n);
	sc_map_drop(&up->nodes, KEY(ino));
	sc_sys.release(n);
}

static struct rs_xattr **find_xattr(struct rs_node *n, struct meta_bytes name)
{
	struct rs_xattr **x = &n->xattrs;

	while (*x && ((*x)->name.nr != name.nr || memcmp((*x)->name.at, name.at, name.nr) != 0))
		x = &(*x)->next;
	return x;
}

/* `put`: NULL drops the attribute.  Returns what is not needed. */
static struct rs_xattr *set_xattr(struct rs_upper *up, const struct meta_xattr_row *row, struct rs_xattr *put)
{
	struct rs_node *n = rs_upper_node(up, row->ino);
	struct rs_xattr **at, *old;

	if (!n)
		return put;
	at = find_xattr(n, row->name);
	old = *at;
	if (old)
		*at = old->next;
	if (put) {
		put->next = n->xattrs;
		n->xattrs = put;
	}
	return old;
}

static struct meta_again_row *put_again(struct rs_upper *up, struct meta_again_row *a)
{
	struct meta_again_row *old = sc_map_get(&up->again, KEY(a->ino));

	if (old)
		sc_map_drop(&up->again_of, KEY(old->number));
	(void)sc_map_put(&up->again, KEY(a->ino), a);
	(void)sc_map_put(&up->again_of, KEY(a->number), a);
	return old;
}

void rs_upper_apply(struct rs_upper *up, struct rs_prepared *p)
{
	for (size_t i = 0; i < p->changes->nr; i++) {
		const struct meta_change *x = &p->changes->at[i];
		void *put = p->at[i];
		struct rs_name *name;

		p->at[i] = NULL; /* what stays is released below */
		switch (x->kind) {
		case META_PUT_INODE:
			put_node(up, put);
			break;
		case META_DROP_INODE:
			drop_node(up, x->inode.ino);
			break;
		case META_PUT_ENTRY:
			p->folders[i] = put_name(up, put, p->folders[i]);
			break;
		case META_DROP_ENTRY:
			name = rs_upper_name(up, x->entry.parent, x->entry.name);
			if (name)
				drop_name(up, name);
			count_change(up, x->entry.parent);
			break;
		case META_PUT_XATTR:
		case META_DROP_XATTR:
			p->at[i] = set_xattr(up, &x->xattr, put);
			break;
		case META_PUT_AGAIN:
			p->at[i] = put_again(up, put);
			break;
		}
	}
	rs_upper_cancel(p);
}

void rs_upper_done(struct rs_upper *up)
{
	for (size_t i = 0; i < up->nodes.room; i++)
		if (up->nodes.slots[i].value)
			drop_xattrs(up->nodes.slots[i].value);
	sc_map_release(&up->nodes);
	sc_map_release(&up->names);
	sc_map_release(&up->folders);
	sc_map_release(&up->again);
	sc_map_done(&up->again_of);
}
