/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes and decodes records.  A change is its kind (one byte) and then the fields that its kind uses, in the order of
 * the struct: numbers as 8 bytes, little endian as all of Scalai's machines are, and texts as a number of bytes and the
 * bytes.
 */
#include "meta/tree/change.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are stored as they are in memory");

/* --- one walk over the fields of a change, for both directions --- */

struct coder {
	struct sc_buf *to;	/* encodes, if it is set */
	const char *from, *end;	/* else decodes */
	bool bad;
};

static void number(struct coder *c, uint64_t *n)
{
	if (c->to) {
		sc_buf_add(c->to, n, sizeof(*n));
		return;
	}
	*n = 0;
	if ((size_t)(c->end - c->from) < sizeof(*n)) {
		c->bad = true;
		return;
	}
	memcpy(n, c->from, sizeof(*n));
	c->from += sizeof(*n);
}

#define NUMBER(c, field) \
	do { \
		uint64_t n_ = (uint64_t)(field); \
	\
		number((c), &n_); \
		(field) = (__typeof__(field))n_; \
		(c)->bad |= (uint64_t)(field) != n_; \
	} while (0)

static void bytes(struct coder *c, struct meta_bytes *b)
{
	NUMBER(c, b->nr);
	if (c->to) {
		sc_buf_add(c->to, b->at, b->nr);
		return;
	}
	if (c->bad || (size_t)(c->end - c->from) < b->nr) {
		c->bad = true;
		b->nr = 0;
	}
	b->at = c->from;
	c->from += b->nr;
}

static void inode(struct coder *c, struct meta_inode_row *r)
{
	NUMBER(c, r->ino);
	NUMBER(c, r->job);
	NUMBER(c, r->mode);
	NUMBER(c, r->uid);
	NUMBER(c, r->gid);
	NUMBER(c, r->rdev);
	NUMBER(c, r->nlink);
	NUMBER(c, r->atime_ns);
	NUMBER(c, r->mtime_ns);
	NUMBER(c, r->ctime_ns);
	NUMBER(c, r->parent);
	NUMBER(c, r->data);
	NUMBER(c, r->blob);
	bytes(c, &r->target);
	c->bad |= r->data > META_FORGOTTEN;
}

static void change(struct coder *c, struct meta_change *x)
{
	switch (x->kind) {
	case META_PUT_INODE:
		inode(c, &x->inode);
		return;
	case META_DROP_INODE:
		NUMBER(c, x->inode.ino);
		return;
	case META_PUT_ENTRY:
	case META_DROP_ENTRY:
		NUMBER(c, x->entry.parent);
		bytes(c, &x->entry.name);
		if (x->kind == META_PUT_ENTRY)
			NUMBER(c, x->entry.ino);
		return;
	case META_PUT_XATTR:
	case META_DROP_XATTR:
		NUMBER(c, x->xattr.ino);
		bytes(c, &x->xattr.name);
		if (x->kind == META_PUT_XATTR)
			bytes(c, &x->xattr.value);
		return;
	case META_PUT_AGAIN:
		NUMBER(c, x->again.ino);
		NUMBER(c, x->again.number);
		return;
	}
	c->bad = true;
}

void meta_changes_encode(const struct meta_changes *changes, struct sc_buf *to)
{
	struct coder c = {.to = to};

	for (size_t i = 0; i < changes->nr; i++) {
		struct meta_change x = changes->at[i];
		unsigned char kind = (unsigned char)x.kind;

		sc_buf_add(to, &kind, 1);
		change(&c, &x);
	}
}

int meta_changes_decode(const char *from, size_t nr, struct meta_changes *ret, struct sc_err *err)
{
	struct coder c = {.from = from, .end = from + nr};
	size_t before = ret->nr;

	while (c.from < c.end && !c.bad) {
		struct meta_change x = {.kind = (enum meta_change_kind)(unsigned char)*c.from++};

		change(&c, &x);
		if (!c.bad && sc_vec_push(ret, x) < 0) {
			ret->nr = before;
			return sc_nomem(err);
		}
	}
	if (!c.bad)
		return 0;
	ret->nr = before;
	return sc_fail(err, SC_E_CORRUPT, "record of a working tree: byte %zu of its %zu belongs to no change",
		       (size_t)(c.from - from), nr);
}

/* --- paths --- */

char *meta_path_in(struct sc_arena *arena, const char *folder, struct meta_bytes name)
{
	return sc_arena_printf(arena, "%s%s%.*s", folder, *folder ? "/" : "", (int)name.nr, name.at);
}
