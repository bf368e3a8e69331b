/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets objects of any size.  An object that is too large for where objects are kept is cut: its name is that
 * of a list of parts, which are its bytes in order.  A part begins with the SHA-256 of the whole, so it is a part of
 * nothing else, and may go with it.
 */
#include "reshard/exchange/objects/objects_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"

#define BYTES_MAX (UINT64_C(256) << 20)
#define PARTS "scalai parts 2\n"
#define SLICE (RS_OBJECT_BYTES_MAX - RS_OBJECT_NAME_BYTES)	/* of the whole, in each part but the last */

struct parts {
	uint64_t bytes;
	uint8_t of[RS_OBJECT_NAME_BYTES];	/* SHA-256 of the whole */
	struct rs_object_names names;
};

static void one_part(struct rs_text *t, struct rs_object_name *n)
{
	rs_text_key(t, "part");
	rs_text_hex(t, n->at, sizeof(n->at));
	rs_text_end(t);
}

static void walk_parts(struct rs_text *t, struct parts *p)
{
	rs_text_key(t, PARTS "bytes");
	rs_text_number(t, &p->bytes);
	rs_text_hex(t, p->of, sizeof(p->of));
	rs_text_end(t);
	RS_TEXT_LIST(t, "parts", &p->names, one_part);
	t->bad |= p->bytes <= RS_OBJECT_BYTES_MAX || p->bytes > BYTES_MAX ||
		  p->names.nr != (p->bytes + SLICE - 1) / SLICE;
}

/* --- putting --- */

static int put_one(const struct rs_object_io *io, const char *at, size_t bytes, struct rs_object_name *ret)
{
	int rc = io->ops->name(io->arg, at, bytes, ret->at, io->err);

	return rc < 0 ? rc : io->ops->put(io->arg, ret->at, at, bytes, io->err);
}

static int put_slice(const struct rs_object_io *io, const struct parts *p, const char *at, size_t bytes,
		     struct rs_object_name *ret)
{
	struct sc_buf part = {0};
	int rc;

	sc_buf_add(&part, p->of, sizeof(p->of));
	sc_buf_add(&part, at, bytes);
	rc = part.failed ? sc_nomem(io->err) : put_one(io, part.text, part.bytes, ret);
	sc_buf_done(&part);
	return rc;
}

static int put_parts(const struct rs_object_io *io, const struct sc_buf *text, struct rs_object_name *ret)
{
	struct parts p = {.bytes = text->bytes};
	struct sc_buf list = {0};
	struct rs_text t = {.to = &list};
	int rc = text->bytes <= BYTES_MAX ? 0 : sc_fail(io->err, SC_E_LIMIT, "a set or tree of %zu bytes is more than "
							"other nodes take", text->bytes);

	if (rc == 0)
		rc = io->ops->name(io->arg, text->text, text->bytes, p.of, io->err);
	for (size_t at = 0; rc == 0 && at < text->bytes; at += SLICE) {
		struct rs_object_name part;

		rc = put_slice(io, &p, text->text + at, sc_min_u64(text->bytes - at, SLICE), &part);
		if (rc == 0 && sc_vec_push(&p.names, part) < 0)
			rc = sc_nomem(io->err);
	}
	if (rc == 0)
		walk_parts(&t, &p);
	if (rc == 0)
		rc = list.failed ? sc_nomem(io->err) : put_one(io, list.text, list.bytes, ret);
	sc_buf_done(&list);
	sc_vec_done(&p.names);
	return rc;
}

int rs_object_put(const struct rs_object_io *io, struct sc_buf *text, struct rs_object_name *ret)
{
	int rc = text->failed                              ? sc_nomem(io->err)
		 : text->bytes <= RS_OBJECT_BYTES_MAX ? put_one(io, text->text, text->bytes, ret)
						      : put_parts(io, text, ret);

	sc_buf_done(text);
	return rc;
}

/* --- getting --- */

int rs_object_bad(const struct rs_object_io *io, const struct rs_object_name *name, const char *what)
{
	char hex[17];

	return sc_fail(io->err, SC_E_FORMAT, "object %s... %s: nothing of it was taken", sc_hex(hex, name->at, 8),
		       what);
}

static int get_one(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *to)
{
	const size_t before = to->bytes;
	uint8_t is[RS_OBJECT_NAME_BYTES];
	int rc = io->ops->get(io->arg, name->at, to, io->err);

	if (rc == 0 && to->failed)
		rc = sc_nomem(io->err);
	if (rc == 0 && (to->bytes == before || to->bytes - before > RS_OBJECT_BYTES_MAX))
		rc = rs_object_bad(io, name, "has no bytes, or more than an object may have");
	if (rc == 0)
		rc = io->ops->name(io->arg, to->text + before, to->bytes - before, is, io->err);
	if (rc == 0 && memcmp(is, name->at, sizeof(is)) != 0)
		rc = rs_object_bad(io, name, "has other bytes than its name says");
	return rc;
}

static int get_parts(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *list,
		     struct sc_buf *ret)
{
	struct rs_text t = {.at = list->text, .end = list->text + list->bytes};
	struct sc_buf part = {0};
	struct parts p = {0};
	int rc;

	walk_parts(&t, &p);
	rc = rs_object_parsed(io, name, &t, "list of parts");
	for (size_t i = 0; rc == 0 && i < p.names.nr; i++) {
		sc_buf_reset(&part);
		rc = get_one(io, &p.names.at[i], &part);
		if (rc == 0 && (part.bytes != sizeof(p.of) + sc_min_u64(p.bytes - i * (uint64_t)SLICE, SLICE) ||
				memcmp(part.text, p.of, sizeof(p.of)) != 0))
			rc = rs_object_bad(io, name, "has a part of another size, or of another one");
		if (rc == 0)
			sc_buf_add(ret, part.text + sizeof(p.of), part.bytes - sizeof(p.of));
	}
	sc_buf_done(&part);
	sc_vec_done(&p.names);
	return rc == 0 && ret->failed ? sc_nomem(io->err) : rc;
}

int rs_object_get(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *ret)
{
	struct sc_buf list = {0};
	int rc;

	sc_buf_reset(ret);
	rc = get_one(io, name, ret);
	if (rc < 0 || ret->bytes < strlen(PARTS) || memcmp(ret->text, PARTS, strlen(PARTS)) != 0)
		return rc;
	list = *ret;
	*ret = (struct sc_buf){0};
	rc = get_parts(io, name, &list, ret);
	sc_buf_done(&list);
	return rc;
}

int rs_object_read(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *buf,
		   struct sc_arena *arena, struct rs_text *ret)
{
	int rc = rs_object_get(io, name, buf);

	*ret = (struct rs_text){.at = buf->text, .end = buf->text + (rc == 0 ? buf->bytes : 0), .arena = arena};
	return rc;
}

int rs_object_parsed(const struct rs_object_io *io, const struct rs_object_name *name, const struct rs_text *t,
		     const char *what)
{
	char text[60];

	if (t->failed)
		return sc_nomem(io->err);
	(void)snprintf(text, sizeof(text), "is no %s that this program knows", what);
	return t->bad || t->at != t->end ? rs_object_bad(io, name, text) : 0;
}
