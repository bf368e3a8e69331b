/* SPDX-License-Identifier: Apache-2.0 */
/* Helps to make each entry of a view, be it of a tensor (present.c) or of padding (padding.c). */
#include "meta/model/present_i.h"

#include <string.h>

const char *meta_keep_text(struct builder *b, const struct sc_buf *text, const char *own)
{
	const char *given = text->text ? text->text : "", *kept;

	if (text->failed || strcmp(given, own) == 0)
		return text->failed ? NULL : own;
	kept = sc_map_get(&b->texts, given, text->bytes);
	if (kept)
		return kept;
	kept = sc_arena_copy(&b->v->arena, given, text->bytes);
	return kept && sc_map_put(&b->texts, kept, text->bytes, (void *)kept) == 0 ? kept : NULL;
}

const uint32_t *meta_keep_fixed(struct builder *b, const uint32_t fixed[SC_AXES_MAX])
{
	const uint32_t *kept = sc_map_get(&b->places, (const char *)fixed, META_FIXED_BYTES);
	char *copy;

	if (kept)
		return kept;
	copy = sc_arena_copy(&b->v->arena, (const char *)fixed, META_FIXED_BYTES);
	if (!copy || sc_map_put(&b->places, copy, META_FIXED_BYTES, copy) < 0)
		return NULL;
	return (const uint32_t *)(void *)copy;
}

int meta_check_piece(struct builder *b, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX])
{
	const struct meta_tensor *t = &b->v->state->tensors[e->tensor];
	char scratch[1024] SC_SCRATCH;
	struct sc_arena arena = SC_ARENA_IN(scratch);
	struct meta_piece piece;
	uint64_t bytes;
	int rc = meta_entry_piece(b->v, e, coords, &arena, &piece, b->err);

	if (rc == 0 && !meta_tensor_bytes(t->dtype, &piece.shape, &bytes))
		rc = sc_fail(b->err, SC_E_STATE, "'%s': a rank's piece would not be whole bytes", t->key);
	for (uint32_t k = 0; rc == 0 && meta_dtype_bits(t->dtype) % 8 && k < piece.nr_boxes; k++)
		if (meta_box_elements(&piece.boxes[k]) !=
		    (piece.shape.nr ? piece.shape.dim[0] : 1) *
			    (piece.shape.nr && piece.shape.dim[0] ? piece.boxes[k].stride[0] : 1))
			rc = sc_fail(b->err, SC_E_UNSUPPORTED, "'%s': %s is smaller than a byte and cannot be cut; it "
				     "must be whole on every rank", t->key, meta_dtype_name(t->dtype));
	sc_arena_done(&arena);
	return rc;
}
