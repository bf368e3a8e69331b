/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans which objects the upper layer keeps when another version comes below it, and under which numbers programs see
 * them.
 *
 * A rollback may bring back an object that somebody holds, as something else.  A removed folder was marked dead by the
 * kernel, and whatever is found under its number is dead as long as it is held.  A file may be back with its old bytes,
 * while a descriptor goes on with the bytes that were written since.  So the object that is back is shown under a new
 * number, for ever (table `again`).  The object that is held has no name any more, and is shown under the number that
 * it had: its row has the new number and RS_WAS, so that an object which comes back several times parts several times.
 */
#include "reshard/overlay/overlay_i.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "meta/catalog/trees.h"

#define KEY(number) (const char *)&(number), sizeof(number)

uint64_t rs_overlay_shown(const struct rs_overlay *o, uint64_t ino)
{
	const struct meta_again_row *a = sc_map_get(&o->up.again, KEY(ino));

	return a ? a->number : ino & ~RS_WAS;
}

uint64_t rs_overlay_of_shown(const struct rs_overlay *o, uint64_t number)
{
	const struct meta_again_row *a = sc_map_get(&o->up.again_of, KEY(number));

	if (a)
		return a->ino;
	/* the number of what is shown under another one: nothing has it, or the removed folder of an older store */
	return sc_map_get(&o->up.again, KEY(number)) ? number | RS_WAS : number;
}

struct back {
	const struct rs_overlay *o;
	int64_t now_ns;
	const struct rs_lower *after;
	struct sc_arena *texts;
	struct meta_changes *ret;
	struct sc_err *err;
	uint64_t as;		/* number of the row whose attributes are copied */
};

static int put(struct back *b, struct meta_change change)
{
	return sc_vec_push(b->ret, change) < 0 ? sc_nomem(b->err) : 0;
}

static int put_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	struct back *b = arg;
	struct meta_xattr_row row = {b->as,
				     {sc_arena_copy(b->texts, name.at, name.nr), name.nr},
				     {sc_arena_copy(b->texts, value.at, value.nr), value.nr}};

	if (!row.name.at || !row.value.at)
		return sc_nomem(b->err);
	return put(b, (struct meta_change){META_PUT_XATTR, .xattr = row});
}

/* Puts the rows of an object without a name, under the number `as`. */
static int put_nameless(struct back *b, const struct meta_inode_row *row, uint64_t as)
{
	struct meta_change x = {META_PUT_INODE, .inode = *row};
	int rc;

	x.inode.ino = as;
	if (x.inode.nlink)
		x.inode.ctime_ns = b->now_ns;
	x.inode.nlink = 0;
	rc = put(b, x);
	b->as = as;
	return rc < 0 ? rc : rs_overlay_xattrs(b->o, row->ino, put_xattr, b, b->err);
}

/* Parts two objects of one number: the one that is back with the next version is shown under a new number, the one that
 * is held under the number that it had. */
static int part(struct back *b, const struct meta_inode_row *row)
{
	struct meta_again_row back = {.ino = row->ino}, was = {.number = rs_overlay_shown(b->o, row->ino)};
	int rc = b->o->log.number(b->o->log.arg, &back.number, b->err);

	was.ino = back.number | RS_WAS;
	if (rc == 0)
		rc = put(b, (struct meta_change){META_PUT_AGAIN, .again = back}); /* first: `was` gets its number */
	if (rc == 0)
		rc = put(b, (struct meta_change){META_PUT_AGAIN, .again = was});
	return rc < 0 ? rc : put_nameless(b, row, was.ino);
}

/* Keeps an object that somebody holds, in the way that the next version leaves. */
static int keep(struct back *b, const struct meta_inode_row *row)
{
	struct meta_inode_row other;
	int rc;

	if (row->data == META_FORGOTTEN)
		return 0;
	if (row->ino & RS_WAS)
		return put_nameless(b, row, row->ino);
	rc = b->after->inode(b->after->arg, row->ino, b->texts, &other, b->err);
	if (rc < 0)
		return rc;
	/* any commit may show what has a virtual number again; who reads a committed file has its version's node */
	if (rc == 0 && row->ino & META_VIRTUAL)
		return row->data == META_LOWER_DATA ? 0 : part(b, row);
	if (rc == 0)
		return put_nameless(b, row, row->ino);
	/* a file with the same bytes is itself again: no kernel marks files dead */
	return (S_ISDIR(row->mode) && row->nlink == 0) || row->data == META_OWN_DATA ? part(b, row) : 0;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static bool is_held(const struct rs_held *held, uint64_t ino)
{
	return held->nr && bsearch(&ino, held->at, held->nr, sizeof(ino), by_number);
}

int rs_overlay_plan_back(const struct rs_overlay *o, int64_t now_ns, const struct rs_lower *after,
			 const struct rs_held *held, struct sc_arena *texts, struct meta_changes *ret,
			 struct sc_err *err)
{
	struct back b = {.o = o, .now_ns = now_ns, .after = after, .texts = texts, .ret = ret, .err = err};
	int rc = rs_overlay_each_again(o, ret, err);

	for (size_t i = 0; rc == 0 && i < o->up.nodes.room; i++) {
		const struct rs_node *n = o->up.nodes.slots[i].value;

		if (n && (!S_ISREG(n->row.mode) || n->row.nlink == 0 || is_held(held, n->row.ino)))
			rc = keep(&b, &n->row);
	}
	for (size_t i = 0; rc == 0 && i < held->nr; i++) {
		struct meta_inode_row row;

		if (rs_overlay_has(o, held->at[i]))
			continue;
		rc = o->lower.inode(o->lower.arg, held->at[i], texts, &row, err);
		rc = rc > 0 ? keep(&b, &row) : rc;
	}
	return rc;
}

int rs_overlay_plan_apart(const struct rs_overlay *o, int64_t now_ns, const struct meta_inode_row *row,
			  struct sc_arena *texts, struct meta_changes *ret, struct sc_err *err)
{
	struct back b = {.o = o, .now_ns = now_ns, .texts = texts, .ret = ret, .err = err};

	return part(&b, row);
}

struct rs_layer {
	struct rs_upper up;
};

int rs_overlay_layer(const struct meta_changes *rows, struct rs_layer **ret, struct sc_err *err)
{
	struct rs_layer *layer = sc_zalloc(sizeof(*layer));
	struct rs_prepared p;
	int rc = layer ? rs_upper_prepare(&layer->up, rows, &p, err) : sc_nomem(err);

	if (rc < 0) {
		rs_overlay_layer_done(layer);
		return rc;
	}
	rs_upper_apply(&layer->up, &p);
	*ret = layer;
	return 0;
}

void rs_overlay_layer_done(struct rs_layer *layer)
{
	if (layer)
		rs_upper_done(&layer->up);
	sc_sys.release(layer);
}

void rs_overlay_put(struct rs_overlay *o, const struct rs_lower *lower, struct rs_layer *layer)
{
	if (layer) {
		rs_upper_done(&o->up);
		o->up = layer->up;
		sc_sys.release(layer);
	}
	o->lower = *lower;
	o->swaps++;
	(void)__atomic_add_fetch(&o->applied, 1, __ATOMIC_SEQ_CST);
}

struct rs_ready {
	struct rs_prepared p;
	bool used;
};

int rs_overlay_ready(struct rs_overlay *o, const struct meta_changes *changes, struct rs_ready **ret,
		     struct sc_err *err)
{
	struct rs_ready *ready = sc_zalloc(sizeof(*ready));
	int rc = ready ? rs_upper_prepare(&o->up, changes, &ready->p, err) : sc_nomem(err);

	if (rc < 0) {
		sc_sys.release(ready);
		return rc;
	}
	*ret = ready;
	return 0;
}

void rs_overlay_put_ready(struct rs_overlay *o, const struct rs_lower *lower, struct rs_ready *ready)
{
	rs_upper_apply(&o->up, &ready->p);
	ready->used = true;
	rs_overlay_put(o, lower, NULL);
}

void rs_overlay_ready_done(struct rs_ready *ready)
{
	if (ready && !ready->used)
		rs_upper_cancel(&ready->p);
	sc_sys.release(ready);
}
