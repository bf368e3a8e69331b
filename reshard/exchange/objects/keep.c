/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and takes the lists of the files that nodes keep of a version. */
#include "reshard/exchange/objects/objects_i.h"

#include "meta/base/limits.h"

static void one_kept(struct rs_text *t, struct rs_object_kept *k)
{
	rs_text_key(t, "kept");
	RS_TEXT_NUMBER(t, k->rank);
	RS_TEXT_NUMBER(t, k->node);
	RS_TEXT_NUMBER(t, k->number);
	RS_TEXT_NUMBER(t, k->bytes);
	rs_text_rest(t, &k->path);
	rs_text_end(t);
	t->bad |= !k->node || k->node >> META_NODE_BITS || !k->number || k->number >= SC_BLOBS_MAX ||
		  k->bytes > INT64_MAX || k->rank >= SC_RANKS_MAX;
}

static void walk(struct rs_text *t, uint64_t *nr, struct rs_object_keep *keep)
{
	rs_text_key(t, "scalai keep 1\nversion");
	RS_TEXT_NUMBER(t, *nr);
	rs_text_end(t);
	RS_TEXT_LIST(t, "files", keep, one_kept);
}

int rs_objects_put_keep(uint64_t nr, struct rs_object_keep *keep, const struct rs_object_ops *ops, void *arg,
			struct rs_object_name *ret, struct sc_err *err)
{
	const struct rs_object_io io = {ops, arg, err};
	struct sc_buf text = {0};

	walk(&(struct rs_text){.to = &text}, &nr, keep);
	return rs_object_put(&io, &text, ret);
}

int rs_objects_take_keep(uint64_t nr, const struct rs_object_name *name, const struct rs_object_ops *ops, void *arg,
			 struct sc_arena *arena, struct rs_object_keep *ret, struct sc_err *err)
{
	const struct rs_object_io io = {ops, arg, err};
	struct rs_object_keep keep = {0};
	struct sc_buf buf = {0};
	struct rs_text text;
	uint64_t its = 0;
	int rc = rs_object_read(&io, name, &buf, arena, &text);

	if (rc == 0) {
		walk(&text, &its, &keep);
		rc = rs_object_parsed(&io, name, &text, "list of what a node keeps");
	}
	if (rc == 0 && its != nr)
		rc = rs_object_bad(&io, name, "lists what a node keeps of another version");
	for (size_t i = 0; rc == 0 && i < keep.nr; i++)
		rc = sc_vec_push(ret, keep.at[i]) < 0 ? sc_nomem(err) : 0;
	sc_vec_done(&keep);
	sc_buf_done(&buf);
	return rc;
}
