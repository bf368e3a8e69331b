/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/dcp_frame.h"

#include <string.h>

#include "reshard/codec/format/torch_i.h"

int rs_dcp_item_bytes(const struct rs_wanted *wanted, uint64_t *ret, struct sc_err *err)
{
	struct rs_frame item = {0};
	int rc = rs_torch_describe_one(wanted, &item, err);

	if (rc == 0)
		*ret = item.bytes;
	rs_frame_done(&item);
	return rc;
}

/* Appends an item's pieces, and the fill behind it, to an array that has room for one more each time. */
struct pieces {
	struct rs_piece *at;
	size_t nr, room;
};

static int add_item(const struct rs_frame *item, uint32_t tensor, struct sc_arena *arena, uint64_t at,
		    struct pieces *pieces)
{
	for (uint32_t i = 0; i < item->nr; i++) {
		struct rs_piece p = item->pieces[i];

		if (p.kind == RS_PIECE_TEXT) {
			p.text = sc_arena_copy(arena, p.text, rs_piece_end(item, &item->pieces[i]) - p.at);
			if (!p.text)
				return -1;
		} else if (p.kind == RS_PIECE_TENSOR) {
			p.tensor = tensor;
		}
		p.at += at;
		if (sc_vec_push(pieces, p) < 0)
			return -1;
	}
	return 0;
}

/* Begins an item on a page; *at becomes where. */
static int begin_item(struct pieces *pieces, uint64_t *at)
{
	const uint64_t gap = -*at % RS_DCP_ITEM_ALIGN;

	*at += gap;
	return gap ? sc_vec_push(pieces, (struct rs_piece){.at = *at - gap, .kind = RS_PIECE_FILL}) : 0;
}

static int add_object(const struct rs_object *o, uint32_t piece, struct sc_arena *arena, uint64_t at,
		      struct pieces *pieces)
{
	const char *text = o->text ? sc_arena_copy(arena, o->text, o->bytes) : NULL;

	if (!o->bytes)
		return 0;
	if (!o->text)
		return sc_vec_push(pieces, (struct rs_piece){.at = at, .kind = RS_PIECE_TENSOR, .tensor = piece});
	return text ? sc_vec_push(pieces, (struct rs_piece){.at = at, .kind = RS_PIECE_TEXT, .text = text}) : -1;
}

int rs_dcp_describe(const struct rs_wanted *wanted, uint32_t nr, const struct rs_object *objects, size_t nr_objects,
		    struct rs_frame *ret, struct sc_err *err)
{
	struct pieces pieces = {0};
	uint64_t at = 0;
	int rc = 0;

	*ret = (struct rs_frame){0};
	for (uint32_t i = 0; rc == 0 && i < nr; i++) {
		struct rs_frame item = {0};

		rc = begin_item(&pieces, &at) < 0 ? sc_nomem(err) : rs_torch_describe_one(&wanted[i], &item, err);
		if (rc == 0 && add_item(&item, i, &ret->arena, at, &pieces) < 0)
			rc = sc_nomem(err);
		at += item.bytes;
		rs_frame_done(&item);
	}
	for (size_t i = 0; rc == 0 && i < nr_objects; i++) {
		if (begin_item(&pieces, &at) < 0 || add_object(&objects[i], nr + (uint32_t)i, &ret->arena, at,
								   &pieces) < 0)
			rc = sc_nomem(err);
		at += objects[i].bytes;
	}
	ret->bytes = at;
	ret->nr = (uint32_t)pieces.nr;
	ret->pieces = sc_arena_array(&ret->arena, pieces.nr + 1, sizeof(*ret->pieces));
	if (rc == 0 && !ret->pieces)
		rc = sc_nomem(err);
	if (rc == 0 && pieces.nr)
		memcpy(ret->pieces, pieces.at, pieces.nr * sizeof(*pieces.at));
	sc_vec_done(&pieces);
	if (rc < 0)
		rs_frame_done(ret);
	return rc;
}
